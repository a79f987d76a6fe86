//! Records of a batch as byte ranges: enough to choose among them and to copy them.

use crate::batch::header::BatchHeader;
use crate::error::{Error, ErrorKind, Result};
use crate::varint::{read_varint, read_varlong, write_varlong};

/// A record. `rest` is everything from its key on.
#[derive(Clone, Copy)]
pub(crate) struct RawRecord<'a> {
    pub(crate) whole: &'a [u8],
    pub(crate) rest: &'a [u8],
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) has_value: bool,
    pub(crate) timestamp_delta: i64,
    pub(crate) offset_delta: i32,
    attributes: u8,
}

impl RawRecord<'_> {
    /// Appends the record with another timestamp delta. Its attributes become 0, as in Kafka.
    pub(crate) fn write(&self, timestamp_delta: i64, output: &mut Vec<u8>) {
        if self.attributes == 0 && timestamp_delta == self.timestamp_delta {
            output.extend_from_slice(self.whole);
            return;
        }
        let mut head = Vec::with_capacity(16);
        head.push(0);
        write_varlong(timestamp_delta, &mut head);
        write_varlong(self.offset_delta.into(), &mut head);
        write_varlong((head.len() + self.rest.len()) as i64, output);
        output.extend_from_slice(&head);
        output.extend_from_slice(self.rest);
    }
}

/// The records of a batch, in order.
pub(crate) struct RawRecords<'a> {
    payload: &'a [u8],
    at: usize,
    left: i32,
    last_offset_delta: i32,
    position: u64,
}

impl<'a> RawRecords<'a> {
    /// `payload` is what the batch at `position` of its file has after its header, decompressed.
    pub(crate) fn new(payload: &'a [u8], header: &BatchHeader, position: u64) -> Self {
        let left = header.record_count;
        Self { payload, at: 0, left, last_offset_delta: header.last_offset_delta, position }
    }

    /// Returns the next record; `None` after the last one, where the batch must end.
    pub(crate) fn next(&mut self) -> Result<Option<RawRecord<'a>>> {
        if self.left == 0 {
            return match self.payload.len() - self.at {
                0 => Ok(None),
                more => Err(self.bad("the end of the batch", more)),
            };
        }
        let start = self.at;
        let record = self.parse(start).ok_or_else(|| self.bad("a record", start))?;
        if !(0..=self.last_offset_delta).contains(&record.offset_delta) {
            return Err(self.bad("an offset delta within the batch", record.offset_delta));
        }
        self.left -= 1;
        self.at += record.whole.len();
        Ok(Some(record))
    }

    fn parse(&self, start: usize) -> Option<RawRecord<'a>> {
        let (length, size) = read_varint(self.payload.get(start..)?)?;
        let body_start = start + size;
        let end = body_start.checked_add(usize::try_from(length).ok()?)?;
        let body = self.payload.get(body_start..end)?;
        let (&attributes, after) = body.split_first()?;
        let (timestamp_delta, size) = read_varlong(after)?;
        let after = &after[size..];
        let (offset_delta, size) = read_varint(after)?;
        let rest = &after[size..];
        let (key, after) = nullable(rest)?;
        let (value, _) = nullable(after)?;
        Some(RawRecord {
            whole: &self.payload[start..end],
            rest,
            key,
            has_value: value.is_some(),
            timestamp_delta,
            offset_delta,
            attributes,
        })
    }

    #[cold]
    fn bad(&self, expected: &str, found: impl ToString) -> Error {
        let found = format!("{} at byte {} of its records", found.to_string(), self.at);
        Error::new(ErrorKind::BadRecord, self.position, expected, found)
    }
}

/// Returns a field, which is null with any negative length, and the bytes after it.
fn nullable(data: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let (length, size) = read_varint(data)?;
    let after = &data[size..];
    match usize::try_from(length) {
        Err(_) => Some((None, after)),
        Ok(length) => after.split_at_checked(length).map(|(field, rest)| (Some(field), rest)),
    }
}
