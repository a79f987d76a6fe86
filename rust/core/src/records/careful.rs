//! Parses any record of a v2 batch. Errors name cause and position.

use crate::batch::header::BatchHeader;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::vector_pool::VectorPool;
use crate::records::columns::{BinaryColumn, HeaderColumns, NULL_VIEW, reserve_large};
use crate::records::stage::{Payload, too_many};
use crate::varint::{read_varint, read_varlong};

/// Headers of the records so far; empty until a record has a header.
#[derive(Default)]
pub(crate) struct HeaderRows {
    /// End of the headers of each row, up to the last row that has headers.
    pub(crate) ends: Vec<i32>,
    pub(crate) keys: BinaryColumn,
    pub(crate) values: BinaryColumn,
    /// Largest number of headers of one record.
    pub(crate) most: usize,
}

/// A parsed record.
pub(crate) struct Record {
    pub(crate) timestamp_delta: i64,
    pub(crate) offset_delta: i32,
    pub(crate) key: Option<u128>,
    pub(crate) value: Option<u128>,
    /// Position of the next record.
    pub(crate) next: usize,
}

/// Parses any record. An error says what is wrong with the record. The headers of the record are
/// kept, unless its offset delta is at most `last_delta`. A timestamp beyond 64 bits wraps, as in
/// Kafka.
#[cold]
#[inline(never)]
pub(crate) fn parse_record(
    payload: &Payload<'_>,
    start: usize,
    row: usize,
    last_delta: i64,
    header: &BatchHeader,
    headers: &mut HeaderRows,
) -> Result<Record> {
    let bytes = &payload.bytes[..payload.end];
    let (length, size) = varint(bytes, start, "a record length")?;
    let at = start + size;
    let end = match usize::try_from(length) {
        Ok(length) if length <= bytes.len() - at => at + length,
        _ => {
            let found = format!("{length} with {} bytes left", bytes.len() - at);
            return Err(bad(start, "a record within its payload", found));
        }
    };
    let mut body = Body { bytes: &bytes[..end], at: at + 1 };
    let Some((timestamp_delta, size)) = bytes[..end].get(at + 1..).and_then(read_varlong) else {
        let from = (at + 1).min(end);
        return Err(bad(from, "a timestamp delta", "no varlong in the record"));
    };
    body.at += size;
    let from = body.at;
    let offset_delta = body.varint("an offset delta")?;
    if offset_delta > header.last_offset_delta {
        let expected = format!("an offset delta up to {}", header.last_offset_delta);
        return Err(bad(from, &expected, offset_delta.to_string()));
    }
    let mut passed_over = HeaderRows { most: usize::MAX, ..HeaderRows::default() };
    let is_passed_over = i64::from(offset_delta) <= last_delta;
    let headers = if is_passed_over { &mut passed_over } else { headers };
    let key = body.field("a key")?.map(|(at, size)| payload.view(at, size));
    let value = body.field("a value")?.map(|(at, size)| payload.view(at, size));
    body.headers(payload, row, headers)?;
    if body.at != end {
        let found = format!("{} more bytes", end - body.at);
        return Err(bad(body.at, "the end of the record", found));
    }
    Ok(Record { timestamp_delta, offset_delta, key, value, next: end })
}

/// Returns the error of a bad payload that the fast path did not refuse.
#[cold]
pub(crate) fn find_fault(payload: &Payload<'_>, header: &BatchHeader) -> Error {
    let mut at = payload.start;
    while at < payload.end {
        let mut headers = HeaderRows { most: usize::MAX, ..HeaderRows::default() };
        match parse_record(payload, at, 0, i64::MIN, header, &mut headers) {
            Ok(record) => at = record.next,
            Err(error) => return error,
        }
    }
    bad(payload.end, "offset deltas within the batch", "a larger delta")
}

/// The unread part of a record.
struct Body<'a> {
    /// The payload up to the end of the record.
    bytes: &'a [u8],
    at: usize,
}

impl Body<'_> {
    fn varint(&mut self, what: &str) -> Result<i32> {
        let (value, size) = varint(self.bytes, self.at, what)?;
        self.at += size;
        Ok(value)
    }

    /// Returns position and size of a nullable field.
    fn field(&mut self, what: &str) -> Result<Option<(usize, usize)>> {
        let from = self.at;
        let length = self.varint(what)?;
        let (start, left) = (self.at, self.bytes.len() - self.at);
        match usize::try_from(length) {
            Ok(length) if length <= left => {
                self.at += length;
                Ok(Some((start, length)))
            }
            // Kafka reads any negative length as null.
            Err(_) => Ok(None),
            _ => {
                let expected = format!("{what} within its record");
                Err(bad(from, &expected, format!("length {length} with {left} bytes left")))
            }
        }
    }

    fn headers(
        &mut self,
        payload: &Payload<'_>,
        row: usize,
        headers: &mut HeaderRows,
    ) -> Result<()> {
        let from = self.at;
        let count = self.varint("a header count")?;
        let left = self.bytes.len() - self.at;
        if usize::try_from(count).is_ok_and(|count| count <= left / 2) {
            return match count {
                0 => Ok(()),
                _ if headers.len() + count as usize > headers.most => {
                    Err(too_many(from, headers.most * 2 * size_of::<u128>()))
                }
                _ => headers.append(self, payload, row, count),
            };
        }
        let found = format!("{count} with {left} bytes left");
        Err(bad(from, "a header count that fits", found))
    }
}

impl HeaderRows {
    pub(crate) fn finish(mut self, rows: usize, pool: &mut VectorPool) -> HeaderColumns {
        let list_offsets = self.ends.last().copied().map(|end| {
            self.ends.resize(rows, end);
            self.ends.insert(0, 0);
            self.ends
        });
        HeaderColumns {
            list_offsets,
            keys: self.keys.finish(pool),
            values: self.values.finish(pool),
        }
    }

    /// Returns the number of headers of all records.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Removes all headers and keeps their memory.
    pub(crate) fn clear(&mut self) {
        self.ends.clear();
        self.keys.clear();
        self.values.clear();
    }

    /// Reserves memory for the headers of `more` rows. Assumes that a row has as many headers as
    /// the first `rows` rows have on average.
    pub(crate) fn reserve(&mut self, rows: usize, more: usize, pool: &mut VectorPool) {
        let Some(&end) = self.ends.last() else { return };
        reserve_large(&mut self.ends, more);
        let headers = (end as u128 * more as u128 / rows.max(1) as u128) as usize;
        self.keys.reserve(headers, pool);
        self.values.reserve(headers, pool);
    }

    /// Appends all headers of a row; only values may be null. If there would be too many headers,
    /// returns `None` and appends nothing.
    #[inline]
    pub(crate) fn append_views(&mut self, row: usize, views: &[(u128, u128)]) -> Option<()> {
        let before = self.ends.last().copied().unwrap_or(0);
        let end = before.checked_add(i32::try_from(views.len()).ok()?)?;
        self.ends.resize(row, before);
        for &(key, value) in views {
            self.keys.push(Some(key));
            self.values.push((value != NULL_VIEW).then_some(value));
        }
        self.ends.push(end);
        Some(())
    }

    fn append(
        &mut self,
        body: &mut Body<'_>,
        payload: &Payload<'_>,
        row: usize,
        count: i32,
    ) -> Result<()> {
        let before = self.ends.last().copied().unwrap_or(0);
        self.ends.resize(row, before);
        for _ in 0..count {
            let from = body.at;
            let Some((at, size)) = body.field("a header key")? else {
                return Err(bad(from, "a header key", "null"));
            };
            self.keys.push(Some(payload.view(at, size)));
            let value = body.field("a header value")?;
            self.values.push(value.map(|(at, size)| payload.view(at, size)));
        }
        let Some(end) = before.checked_add(count) else {
            let expected = "at most 2^31 - 1 headers in one decode";
            return Err(Error::new(ErrorKind::TooLarge, body.at as u64, expected, "more"));
        };
        self.ends.push(end);
        Ok(())
    }
}

fn varint(bytes: &[u8], at: usize, what: &str) -> Result<(i32, usize)> {
    match bytes.get(at..).and_then(read_varint) {
        Some(read) => Ok(read),
        None => Err(bad(at, what, "no varint before the end")),
    }
}

#[cold]
pub(crate) fn bad(position: usize, expected: &str, found: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadRecord, position as u64, expected, found)
}
