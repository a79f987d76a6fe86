//! Memory to which decoders append streams, and the errors of decoders.

use crate::error::{Error, ErrorKind};
use crate::memory::hints::prefer_large_pages;
use crate::memory::vector_pool::VectorPool;

/// Smallest size of a new buffer.
pub(crate) const FIRST_ROOM: usize = 128 << 10;
/// Largest size of one buffer, because views store positions in 31 bits.
pub const MAX_BUFFER_BYTES: usize = i32::MAX as usize;

/// Memory to which decoders append streams: a sequence of buffers. Each stream is contiguous in one
/// buffer.
///
/// All memory is initialised, so that a decoder gets plain slices. The system provides allocations
/// of this size already zeroed, so no loop has to zero them.
#[derive(Debug, Default)]
pub struct Output {
    /// Buffers that are full.
    closed: Vec<Vec<u8>>,
    bytes: Vec<u8>,
    used: usize,
    /// Start of the last stream, and the limit of its end.
    start: usize,
    limit: usize,
    /// Size of the next buffer, unless a stream needs more.
    planned: usize,
    /// The next buffer, if it is large enough.
    prepared: Vec<u8>,
}

impl Output {
    /// Returns the bytes of the last stream.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(self.start..self.used).unwrap_or_default()
    }

    /// Returns the current buffer. It holds streams up to [`Self::end`], then free memory. The last
    /// stream begins at [`Self::start`].
    pub(crate) fn buffer(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the position in the current buffer where the last stream starts.
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// Returns the position where the last stream ends.
    pub(crate) fn end(&self) -> usize {
        self.used
    }

    /// Returns the number of buffers before the current one.
    pub(crate) fn closed(&self) -> usize {
        self.closed.len()
    }

    /// Makes the next buffer `size` bytes large, unless a stream needs more. Reuses a pooled buffer
    /// of nearly that size.
    pub(crate) fn plan(&mut self, size: usize, pool: &mut VectorPool) {
        self.planned = size;
        if self.prepared.is_empty() && self.bytes.len() - self.used < FIRST_ROOM {
            self.prepared = pool.take(size - size / 8).unwrap_or_default();
            // Old content is not zeroed, because bytes that a decoder did not write are never
            // returned.
            self.prepared.resize(self.prepared.capacity(), 0);
        }
    }

    /// Removes the content and keeps the memory.
    pub fn clear(&mut self) {
        self.closed.clear();
        self.start = 0;
        self.used = 0;
    }

    /// Returns the content of all buffers without free memory.
    pub(crate) fn into_buffers(mut self, pool: &mut VectorPool) -> Vec<Vec<u8>> {
        pool.give(std::mem::take(&mut self.prepared));
        self.close(self.used);
        self.closed
    }

    /// Closes the current buffer and keeps its first `size` bytes.
    fn close(&mut self, size: usize) {
        let mut full = std::mem::take(&mut self.bytes);
        full.truncate(size);
        full.shrink_to_fit();
        if !full.is_empty() {
            self.closed.push(full);
        }
        self.used = 0;
        self.start = 0;
    }

    /// Starts a stream of at most `max_bytes`.
    pub(crate) fn begin(&mut self, max_bytes: usize) {
        if self.used > MAX_BUFFER_BYTES.saturating_sub(max_bytes) {
            self.close(self.used);
        }
        self.start = self.used;
        self.limit = self.used.saturating_add(max_bytes);
    }

    /// Returns the number of bytes that the limit still allows.
    pub(crate) fn left(&self) -> usize {
        self.limit - self.used
    }

    /// Returns at least `wanted` bytes of free memory, or fewer if the limit does not allow so
    /// many.
    pub(crate) fn free_space(&mut self, wanted: usize) -> &mut [u8] {
        let end = self.used.saturating_add(wanted).min(self.limit);
        if end > self.bytes.len() {
            self.grow(end - self.start);
        }
        let end = self.bytes.len().min(self.limit);
        &mut self.bytes[self.used..end]
    }

    /// Moves only the last stream to a new buffer with space for `size` bytes of that stream. If
    /// the stream was alone in its buffer, the new buffer is twice as large, so that copying takes
    /// linear time.
    fn grow(&mut self, size: usize) {
        let (start, stream, max_bytes) = (self.start, self.used - self.start, self.left());
        let twice = self.bytes.len().saturating_mul(2).min(stream + max_bytes);
        let doubled = if start == 0 { twice } else { 0 };
        let mut next = std::mem::take(&mut self.prepared);
        if next.len() < size.max(doubled) {
            next = vec![0; size.max(doubled).max(self.planned).max(FIRST_ROOM)];
            prefer_large_pages(&next);
        }
        next[..stream].copy_from_slice(&self.bytes[start..self.used]);
        self.close(start);
        self.bytes = next;
        self.used = stream;
        self.limit = stream + max_bytes;
    }

    /// Appends the first `count` bytes of the slice that [`Self::free_space`] returned.
    pub(crate) fn advance(&mut self, count: usize) {
        self.used = self.used.saturating_add(count).min(self.bytes.len());
    }
}

/// Returns the error for a stream that violates its codec.
#[cold]
pub(crate) fn bad(position: usize, expected: &str, found: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadCompression, position as u64, expected, found)
}

/// Returns the error for a stream that exceeds the caller's limit.
#[cold]
pub(crate) fn too_large(output: &Output) -> Error {
    let expected = format!("at most {} decompressed bytes", output.limit - output.start);
    Error::new(ErrorKind::TooLarge, 0, expected, "more")
}
