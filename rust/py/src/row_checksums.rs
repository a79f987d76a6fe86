//! The checksum at the end of each row of the metadata database (docs/FORMATS.md, "State directory").

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString, PyTuple};
use tierlog_core::checksum::crc32c;

const NULL: u8 = 0;
const INTEGER: u8 = 1;
const TEXT: u8 = 2;
const BLOB: u8 = 3;

/// Returns the CRC-32C of the values of a row. Raises TypeError for a value that is not an integer,
/// text, blob or null.
#[pyfunction]
pub fn row_checksum(row: &Bound<'_, PyTuple>) -> PyResult<u32> {
    let mut data = Vec::with_capacity(256);
    put_values(row, row.len(), &mut data)?;
    Ok(crc32c(&data))
}

/// Returns the index of the first row whose last value is not the checksum of its other values.
#[pyfunction]
pub fn first_bad_row(rows: &Bound<'_, PyList>) -> PyResult<Option<usize>> {
    let mut data = Vec::with_capacity(256);
    for (index, row) in rows.iter().enumerate() {
        data.clear();
        if !is_sound(row.cast::<PyTuple>()?, &mut data) {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

fn is_sound(row: &Bound<'_, PyTuple>, data: &mut Vec<u8>) -> bool {
    let Some(values) = row.len().checked_sub(1) else { return false };
    // If a value has any other type, such as a real number, the row is damaged, too.
    let kept = row.get_borrowed_item(values).and_then(|value| value.extract::<u32>());
    put_values(row, values, data).is_ok() && kept.is_ok_and(|kept| kept == crc32c(data))
}

fn put_values(row: &Bound<'_, PyTuple>, count: usize, data: &mut Vec<u8>) -> PyResult<()> {
    for value in row.iter_borrowed().take(count) {
        if let Ok(number) = value.cast::<PyInt>() {
            data.push(INTEGER);
            data.extend_from_slice(&number.extract::<i64>()?.to_be_bytes());
        } else if value.is_none() {
            data.push(NULL);
        } else if let Ok(text) = value.cast::<PyString>() {
            put_bytes(TEXT, text.to_str()?.as_bytes(), data);
        } else if let Ok(blob) = value.cast::<PyBytes>() {
            put_bytes(BLOB, blob.as_bytes(), data);
        } else {
            return Err(PyTypeError::new_err("a row holds integers, text, blobs and nulls"));
        }
    }
    Ok(())
}

fn put_bytes(kind: u8, bytes: &[u8], data: &mut Vec<u8>) {
    data.push(kind);
    data.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
    data.extend_from_slice(bytes);
}
