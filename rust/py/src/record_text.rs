//! `TextTemplate`: formats many records as text in one buffer.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use tierlog_core::records::text::{TextRows, Token};

use crate::buffer::{Column, Input, Ints, Longs, Values};
use crate::memory;
use crate::records::Views;
use crate::row_columns;
use crate::segment::Batches;

/// Additional memory for the record that reaches the limit.
const BEYOND_BYTES: usize = 64 << 10;

/// A compiled template for records.
#[pyclass(frozen, module = "tierlog._core")]
pub struct TextTemplate {
    tokens: Vec<Token>,
}

#[pymethods]
impl TextTemplate {
    /// Creates a template from `parts`. A part is either bytes, which are printed unchanged, or the
    /// name of a token.
    #[new]
    fn new(parts: &Bound<'_, PyList>) -> PyResult<Self> {
        let tokens = parts.iter().map(|part| token(&part)).collect::<PyResult<_>>()?;
        Ok(Self { tokens })
    }

    /// Formats records from row `first` on, until the text has `limit_bytes` or all records are
    /// formatted. Returns the text and the next row. `strings` is the row of `keys` and `values`
    /// that belongs to row 0 of the other columns.
    #[expect(clippy::too_many_arguments, reason = "the columns of decoded records")]
    #[pyo3(signature = (
        first, limit_bytes, *, offset, timestamp_ms, keys, values, strings, header_ends,
        header_keys, header_values, buffers, batches, batch_starts
    ))]
    fn format(
        &self,
        py: Python<'_>,
        first: usize,
        limit_bytes: usize,
        offset: &Bound<'_, PyAny>,
        timestamp_ms: &Bound<'_, PyAny>,
        keys: &Views,
        values: &Views,
        strings: usize,
        header_ends: Option<&Bound<'_, PyAny>>,
        header_keys: &Views,
        header_values: &Views,
        buffers: &Bound<'_, PyList>,
        batches: &Batches,
        batch_starts: &Bound<'_, PyAny>,
    ) -> PyResult<(Column, usize)> {
        let offset = Longs::new(offset, "offset")?.to_vec(py);
        let timestamp_ms = Longs::new(timestamp_ms, "timestamp_ms")?.to_vec(py);
        let batch_starts = Longs::new(batch_starts, "batch_starts")?.to_vec(py);
        let header_ends = match header_ends {
            Some(ends) => Some(Ints::new(ends, "header_ends")?.to_vec(py)),
            None => None,
        };
        let inputs: Vec<Input> =
            buffers.iter().map(|buffer| Input::shared(&buffer)).collect::<PyResult<_>>()?;
        let slices: Vec<&[u8]> = inputs.iter().map(Input::bytes).collect();
        let types = row_columns::timestamp_types(batches).ok_or_else(contradiction)?;
        let rows = TextRows {
            offset: &offset,
            timestamp_ms: &timestamp_ms,
            keys: keys.strings(),
            values: values.strings(),
            first_string: strings,
            header_ends: header_ends.as_deref(),
            header_keys: header_keys.strings(),
            header_values: header_values.strings(),
            buffers: &slices,
            batch_starts: &batch_starts,
            timestamp_types: &types,
        };
        let done = py.detach(|| {
            let mut pool = memory::take_columns();
            let room = limit_bytes.saturating_add(BEYOND_BYTES);
            let mut out = pool.take::<u8>(room).unwrap_or_else(|| Vec::with_capacity(room));
            memory::give_columns(pool);
            out.clear();
            let next = rows.append(&self.tokens, first, limit_bytes, &mut out)?;
            Some((out, next))
        });
        let (out, next) = done.ok_or_else(contradiction)?;
        Ok((Column::new(Values::U8(out)), next))
    }
}

fn token(part: &Bound<'_, PyAny>) -> PyResult<Token> {
    if let Ok(bytes) = part.cast::<PyBytes>() {
        return Ok(Token::Literal(bytes.as_bytes().to_vec()));
    }
    let name = part.cast::<PyString>()?.to_str()?;
    Token::named(name)
        .ok_or_else(|| PyValueError::new_err(format!("expected the name of a token, found {name}")))
}

fn contradiction() -> PyErr {
    PyValueError::new_err(
        "expected the columns of decoded records, found columns that contradict each other",
    )
}
