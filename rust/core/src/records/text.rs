//! Formats records as text with a template. The tokens of a template are like those of kcat. A JSON
//! line is one such template.
//!
//! Many records go into one buffer. JSON text must be UTF-8, so other bytes become an object
//! `{"base64":"..."}` instead of a string.

use crate::records::columns::with_view;

/// Number of bytes of a JSON string that are escaped together, and the size of the longest escape
/// of one byte.
const RUN_BYTES: usize = 128;
const ESCAPE_BYTES: usize = 6;
const WORD_BYTES: usize = 8;
const HEX: &[u8; 16] = b"0123456789abcdef";
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Buffer for one escaped block. It has space for a word that is written after the last escape.
type Run = [u8; RUN_BYTES * ESCAPE_BYTES + WORD_BYTES];
const EMPTY_RUN: Run = [0; RUN_BYTES * ESCAPE_BYTES + WORD_BYTES];

/// Part of a template. A null value prints no bytes and has size -1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// Constant bytes.
    Literal(Vec<u8>),
    /// The value.
    Value,
    /// Size of the value.
    ValueSize,
    /// Size of the value as four bytes, big-endian.
    ValueSizeBinary,
    /// The key.
    Key,
    /// Size of the key.
    KeySize,
    /// Headers as `name=value,name=NULL`.
    Headers,
    /// The offset.
    Offset,
    /// The timestamp in milliseconds.
    Timestamp,
    /// `create`, `logappend` or `unknown`.
    TimestampType,
    /// The key as JSON.
    JsonKey,
    /// The value as JSON.
    JsonValue,
    /// `,"headers":[name,value,...]`, or no text for a record without headers.
    JsonHeaders,
}

impl Token {
    /// Returns the token with this name in a template, or `None` for an unknown name.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "value" => Self::Value,
            "value_size" => Self::ValueSize,
            "value_size_binary" => Self::ValueSizeBinary,
            "key" => Self::Key,
            "key_size" => Self::KeySize,
            "headers" => Self::Headers,
            "offset" => Self::Offset,
            "timestamp_ms" => Self::Timestamp,
            "timestamp_type" => Self::TimestampType,
            "json_key" => Self::JsonKey,
            "json_value" => Self::JsonValue,
            "json_headers" => Self::JsonHeaders,
            _ => return None,
        })
    }
}

/// Byte strings, some of them null, as views into data buffers.
#[derive(Clone, Copy, Debug)]
pub struct Strings<'a> {
    /// A view for each row, as in [`crate::records::columns`].
    pub views: &'a [u128],
    /// One bit per row, lowest bit first; 1 means not null. `None` if no row is null.
    pub validity: Option<&'a [u8]>,
}

impl Strings<'_> {
    /// Calls `use_bytes` with the bytes of a row. Returns `None` if there is no such row, or if its
    /// view points outside `buffers`.
    #[inline(always)]
    fn with<R>(
        &self,
        row: usize,
        buffers: &[&[u8]],
        use_bytes: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Option<R> {
        if let Some(bits) = self.validity
            && bits.get(row / 8)? >> (row % 8) & 1 == 0
        {
            return Some(use_bytes(None));
        }
        with_view(*self.views.get(row)?, buffers, |bytes| use_bytes(Some(bytes)))
    }
}

/// Columns of decoded records.
#[derive(Clone, Copy, Debug)]
pub struct TextRows<'a> {
    /// Offset of each record.
    pub offset: &'a [i64],
    /// Timestamp of each record.
    pub timestamp_ms: &'a [i64],
    /// Keys.
    pub keys: Strings<'a>,
    /// Values.
    pub values: Strings<'a>,
    /// Row of the first record in `keys` and `values`.
    pub first_string: usize,
    /// Start of each record's headers, and the end of the last record's headers. `None` if no
    /// record has headers.
    pub header_ends: Option<&'a [i32]>,
    /// Names of headers.
    pub header_keys: Strings<'a>,
    /// Values of headers.
    pub header_values: Strings<'a>,
    /// Data buffers of the views.
    pub buffers: &'a [&'a [u8]],
    /// First record of each batch. The last item is the number of records.
    pub batch_starts: &'a [i64],
    /// Timestamp type of each batch: -1 none, 0 create time, 1 log append time.
    pub timestamp_types: &'a [i32],
}

impl TextRows<'_> {
    /// Appends records from row `first` on to `out` until `out` reaches `limit_bytes`, but at least
    /// one record. Returns the next row, or `None` when columns contradict each other, which the
    /// columns of this crate never do.
    pub fn append(
        &self,
        template: &[Token],
        first: usize,
        limit_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        let mut batch = self.batch_of(first);
        let mut row = first;
        let mut run = EMPTY_RUN;
        while row < self.offset.len() {
            while *self.batch_starts.get(batch + 1)? <= row as i64 {
                batch += 1;
            }
            for token in template {
                self.append_token(token, row, batch, &mut run, out)?;
            }
            row += 1;
            if out.len() >= limit_bytes {
                break;
            }
        }
        Some(row)
    }

    /// Returns the last batch that starts at or before row `first`.
    fn batch_of(&self, first: usize) -> usize {
        self.batch_starts.partition_point(|&start| start <= first as i64).saturating_sub(1)
    }

    #[inline(always)]
    fn append_token(
        &self,
        token: &Token,
        row: usize,
        batch: usize,
        run: &mut Run,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let string = self.first_string.checked_add(row)?;
        match token {
            Token::Literal(bytes) => out.extend_from_slice(bytes),
            Token::Value => self.values.with(string, self.buffers, |bytes| append(bytes, out))?,
            Token::Key => self.keys.with(string, self.buffers, |bytes| append(bytes, out))?,
            Token::ValueSize => append_number(self.values.with(string, self.buffers, size)?, out),
            Token::KeySize => append_number(self.keys.with(string, self.buffers, size)?, out),
            Token::ValueSizeBinary => {
                let size = self.values.with(string, self.buffers, size)? as i32;
                out.extend_from_slice(&size.to_be_bytes());
            }
            Token::Offset => append_number(*self.offset.get(row)?, out),
            Token::Timestamp => append_number(*self.timestamp_ms.get(row)?, out),
            Token::TimestampType => {
                out.extend_from_slice(match self.timestamp_types.get(batch)? {
                    0 => b"create",
                    1 => b"logappend",
                    _ => b"unknown",
                });
            }
            Token::JsonKey => {
                self.keys.with(string, self.buffers, |bytes| append_json(bytes, run, out))?;
            }
            Token::JsonValue => {
                self.values.with(string, self.buffers, |bytes| append_json(bytes, run, out))?;
            }
            Token::Headers => self.append_headers(row, out)?,
            Token::JsonHeaders => self.append_json_headers(row, run, out)?,
        }
        Some(())
    }

    fn append_headers(&self, row: usize, out: &mut Vec<u8>) -> Option<()> {
        let headers = self.headers_of(row)?;
        let first = headers.start;
        for header in headers {
            if header > first {
                out.push(b',');
            }
            self.header_keys.with(header, self.buffers, |bytes| append(bytes, out))?;
            out.push(b'=');
            self.header_values
                .with(header, self.buffers, |bytes| append(bytes.or(Some(b"NULL")), out))?;
        }
        Some(())
    }

    fn append_json_headers(&self, row: usize, run: &mut Run, out: &mut Vec<u8>) -> Option<()> {
        let headers = self.headers_of(row)?;
        if headers.is_empty() {
            return Some(());
        }
        out.extend_from_slice(b",\"headers\":[");
        let first = headers.start;
        for header in headers {
            if header > first {
                out.push(b',');
            }
            self.header_keys.with(header, self.buffers, |bytes| append_json(bytes, run, out))?;
            out.push(b',');
            self.header_values.with(header, self.buffers, |bytes| append_json(bytes, run, out))?;
        }
        out.push(b']');
        Some(())
    }

    fn headers_of(&self, row: usize) -> Option<std::ops::Range<usize>> {
        let Some(ends) = self.header_ends else { return Some(0..0) };
        let start = usize::try_from(*ends.get(row)?).ok()?;
        let end = usize::try_from(*ends.get(row + 1)?).ok()?;
        Some(start..end)
    }
}

fn append(bytes: Option<&[u8]>, out: &mut Vec<u8>) {
    out.extend_from_slice(bytes.unwrap_or_default());
}

fn size(bytes: Option<&[u8]>) -> i64 {
    bytes.map_or(-1, |bytes| bytes.len() as i64)
}

fn append_number(number: i64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    let mut left = number.unsigned_abs();
    loop {
        first -= 1;
        digits[first] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[first..]);
}

fn append_json(bytes: Option<&[u8]>, run: &mut Run, out: &mut Vec<u8>) {
    let Some(bytes) = bytes else { return out.extend_from_slice(b"null") };
    if str::from_utf8(bytes).is_err() {
        out.extend_from_slice(b"{\"base64\":\"");
        append_base64(bytes, out);
        return out.extend_from_slice(b"\"}");
    }
    out.push(b'"');
    for text in bytes.chunks(RUN_BYTES) {
        let size = escape(text, run);
        out.extend_from_slice(&run[..size]);
    }
    out.push(b'"');
}

/// Writes a text of at most [`RUN_BYTES`] with the escapes that JSON requires and returns the
/// number of bytes written.
fn escape(text: &[u8], run: &mut Run) -> usize {
    let (mut read, mut written) = (0, 0);
    while let Some(&word) = text[read..].first_chunk::<WORD_BYTES>() {
        let Some(place) = run[written..].first_chunk_mut::<WORD_BYTES>() else { break };
        // The word may include a byte that has to be escaped; the escape then overwrites this byte.
        *place = word;
        let plain = plain_bytes(u64::from_le_bytes(word));
        read += plain;
        written += plain;
        if plain < WORD_BYTES {
            written += write_escape(word[plain], &mut run[written..]);
            read += 1;
        }
    }
    for &byte in &text[read..] {
        if byte >= b' ' && byte != b'"' && byte != b'\\' {
            run[written] = byte;
            written += 1;
        } else {
            written += write_escape(byte, &mut run[written..]);
        }
    }
    written
}

/// Returns how many bytes of a word, from the lowest on, precede the first byte that JSON escapes.
#[inline(always)]
fn plain_bytes(word: u64) -> usize {
    const ONES: u64 = u64::MAX / 255;
    let is_zero = |word: u64| word.wrapping_sub(ONES) & !word;
    let is_control = word.wrapping_sub(ONES * 0x20) & !word;
    let is_quote = is_zero(word ^ (ONES * b'"' as u64));
    let is_backslash = is_zero(word ^ (ONES * b'\\' as u64));
    // The mask is exact up to its lowest set bit, and only that bit is used.
    ((is_control | is_quote | is_backslash) & (ONES << 7)).trailing_zeros() as usize / 8
}

#[inline(always)]
fn write_escape(byte: u8, place: &mut [u8]) -> usize {
    let short = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0c => b'f',
        _ => {
            let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
            place[..ESCAPE_BYTES].copy_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
            return ESCAPE_BYTES;
        }
    };
    place[0] = b'\\';
    place[1] = short;
    2
}

fn append_base64(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let mut text = [b'='; 4];
        for (index, character) in text.iter_mut().enumerate().take(group.len() + 1) {
            *character = BASE64[(bits >> (18 - 6 * index)) as usize & 63];
        }
        out.extend_from_slice(&text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        append_json(Some(bytes), &mut EMPTY_RUN.clone(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_byte_is_escaped_at_every_position_of_a_word() {
        for byte in 0..0x80_u8 {
            for before in 0..20 {
                let mut text = vec![b'a'; before];
                text.push(byte);
                text.extend_from_slice(b"zz");
                let escape = match byte {
                    b'"' => "\\\"".into(),
                    b'\\' => "\\\\".into(),
                    b'\n' => "\\n".into(),
                    b'\r' => "\\r".into(),
                    b'\t' => "\\t".into(),
                    8 => "\\b".into(),
                    12 => "\\f".into(),
                    0..0x20 => format!("\\u{byte:04x}"),
                    _ => char::from(byte).to_string(),
                };
                assert_eq!(json(&text), format!("\"{}{escape}zz\"", "a".repeat(before)));
            }
        }
    }

    #[test]
    fn long_text_of_escapes_and_of_wide_characters() {
        let controls = vec![1; 3 * RUN_BYTES + 5];
        assert_eq!(json(&controls), format!("\"{}\"", "\\u0001".repeat(controls.len())));
        let wide = "aé\u{1f600}".repeat(RUN_BYTES);
        assert_eq!(json(wide.as_bytes()), format!("\"{wide}\""));
    }

    #[test]
    fn base64_pads_the_last_bytes() {
        for (bytes, text) in [
            (&b"\xff"[..], "/w=="),
            (b"\xff\xfe", "//4="),
            (b"\xff\xfe\xfd", "//79"),
            (b"\xff\xfe\xfd\0", "//79AA=="),
        ] {
            assert_eq!(json(bytes), format!("{{\"base64\":\"{text}\"}}"));
        }
    }

    #[test]
    fn numbers_of_any_size() {
        for number in [0, 7, -1, 10, 99, 1_760_000_000_000, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            append_number(number, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), number.to_string());
        }
    }

    #[test]
    fn contradicting_columns_are_refused() {
        let none = Strings { views: &[], validity: None };
        let outside = [13_u128 | 20 << 96];
        let rows = TextRows {
            offset: &[5],
            timestamp_ms: &[6],
            keys: none,
            values: Strings { views: &outside, validity: None },
            first_string: 0,
            header_ends: Some(&[0, 1]),
            header_keys: none,
            header_values: none,
            buffers: &[&[0; 32]],
            batch_starts: &[0, 1],
            timestamp_types: &[1],
        };
        let text = |token| {
            let mut out = Vec::new();
            rows.append(&[token], 0, 1, &mut out).map(|_| out)
        };
        assert_eq!(text(Token::TimestampType), Some(b"logappend".to_vec()));
        assert_eq!(text(Token::Offset), Some(b"5".to_vec()));
        assert_eq!(text(Token::Value), None);
        assert_eq!(text(Token::Key), None);
        assert_eq!(text(Token::Headers), None);
        let short = TextRows { batch_starts: &[0], ..rows };
        assert_eq!(short.append(&[], 0, 1, &mut Vec::new()), None);
    }
}
