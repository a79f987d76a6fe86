//! Groups batches into ranges of whole batches, one range for each remoteLogIndex entry.

use crate::error::Result;
use crate::index::remote::{NewEntry, encode, refused};

/// Batches of a segment; all columns have the same length.
#[derive(Clone, Copy, Debug)]
pub struct BatchRuns<'a> {
    /// Byte position of each batch in the data object.
    pub position: &'a [i64],
    /// Size of each batch.
    pub size_bytes: &'a [i32],
    /// Offset of the first record of each batch.
    pub base_offset: &'a [i64],
    /// Offset of the last record of each batch.
    pub last_offset: &'a [i64],
    /// First timestamp of each batch.
    pub base_timestamp_ms: &'a [i64],
    /// Largest timestamp of each batch.
    pub max_timestamp_ms: &'a [i64],
}

/// A range of whole batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    position: i64,
    data_length: i64,
    first_offset: i64,
    last_offset: i64,
    first_timestamp_ms: i64,
    last_timestamp_ms: i64,
}

impl BatchRuns<'_> {
    fn rows(&self) -> Result<usize> {
        let rows = self.position.len();
        for length in [
            self.size_bytes.len(),
            self.base_offset.len(),
            self.last_offset.len(),
            self.base_timestamp_ms.len(),
            self.max_timestamp_ms.len(),
        ] {
            if length != rows {
                return Err(refused(
                    length.min(rows),
                    format!("{rows} rows in each column"),
                    length,
                ));
            }
        }
        Ok(rows)
    }

    fn batch(&self, row: usize) -> Run {
        Run {
            position: self.position[row],
            data_length: self.size_bytes[row].into(),
            first_offset: self.base_offset[row],
            last_offset: self.last_offset[row],
            first_timestamp_ms: self.base_timestamp_ms[row],
            last_timestamp_ms: self.max_timestamp_ms[row],
        }
    }

    /// Returns ranges of at least `group_bytes`; the last range may be smaller.
    fn group(&self, group_bytes: u64) -> Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        for row in 0..self.rows()? {
            let batch = self.batch(row);
            if batch.position < 0 || batch.data_length <= 0 {
                return Err(refused(row, "a position >= 0 and a size >= 1", batch.data_length));
            }
            let Some(run) = runs.last_mut() else {
                runs.push(batch);
                continue;
            };
            let end = run.position.saturating_add(run.data_length);
            if batch.position != end {
                return Err(refused(row, format!("a batch at byte {end}"), batch.position));
            }
            let joined = run.data_length + batch.data_length;
            if run.data_length as u64 >= group_bytes || joined > i32::MAX.into() {
                runs.push(batch);
                continue;
            }
            run.data_length = joined;
            run.last_offset = batch.last_offset;
            run.last_timestamp_ms = run.last_timestamp_ms.max(batch.last_timestamp_ms);
        }
        Ok(runs)
    }

    /// Encodes one remoteLogIndex entry for each range of at least `group_bytes`; an entry never
    /// splits a batch. The bytes of the segment are in the object `key`. The last timestamp of an
    /// entry is the largest timestamp of its range, and its rdi is `<key>:<byte position>`.
    pub fn encode(&self, key: &str, group_bytes: u64) -> Result<Vec<u8>> {
        let runs = self.group(group_bytes)?;
        let rdis: Vec<String> = runs.iter().map(|run| format!("{key}:{}", run.position)).collect();
        let entries: Vec<NewEntry<'_>> = runs
            .iter()
            .zip(&rdis)
            .map(|(run, rdi)| NewEntry {
                first_offset: run.first_offset,
                last_offset: run.last_offset,
                first_timestamp_ms: run.first_timestamp_ms,
                last_timestamp_ms: run.last_timestamp_ms,
                data_length: run.data_length,
                rdi: rdi.as_bytes(),
            })
            .collect();
        encode(&entries)
    }
}
