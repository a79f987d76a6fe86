//! Golden byte vectors for tests, from the file that the Python tests read.

const SOURCE: &str = include_str!("../../../tests/vectors.py");

/// Returns the bytes of a vector. For an unknown name it returns no bytes, so that the test fails.
pub fn vector(name: &str) -> Vec<u8> {
    let key = format!("    \"{name}\": ");
    let Some((_, rest)) = SOURCE.split_once(&key) else {
        return Vec::new();
    };
    let mut digits = Vec::new();
    for (index, part) in rest.split('"').enumerate() {
        match (index % 2, part.trim_start()) {
            (1, hex) => digits.extend(hex.bytes().filter_map(|c| char::from(c).to_digit(16))),
            (_, between) if between.starts_with([',', ')']) => break,
            _ => {}
        }
    }
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}
