//! Pool of buffers for large reads.
//!
//! A buffer lives until its last reader releases it, and any thread may do that. An allocator with
//! one arena per thread would keep freed buffers in every arena. If an allocator returned freed
//! memory to the system, the kernel would zero every page of the next buffer, which takes longer
//! than the read. Therefore each buffer is its own memory map. The pool hands out the buffer that
//! was returned last, because it is likely still in the CPU cache. The pool never maps more memory
//! than was in use at one moment: before it maps a new buffer, it drops idle buffers of the same
//! total size.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use memmap2::MmapMut;

use crate::error::{Error, Result};
use crate::memory::hints::prefer_large_pages;

/// Number of buffer sizes between two powers of two. Sizes are at least `UNIT_BYTES` apart, so that
/// reads of similar size can share buffers.
const SIZES: usize = 8;
const UNIT_BYTES: usize = 64 << 10;

/// Buffer that is filled once, from its start. Readers see only the bytes that were filled in; the
/// rest may hold bytes of an earlier read.
#[derive(Debug)]
pub struct PooledBuffer {
    map: MmapMut,
    size: usize,
    filled: usize,
}

impl PooledBuffer {
    /// Maps a new buffer for `size` bytes.
    fn map(size: usize) -> Result<Self> {
        let map = capacity_for(size)
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
            .and_then(MmapMut::map_anon)
            .map_err(|error| Error::io(0, error))?;
        prefer_large_pages(&map[..]);
        Ok(Self { map, size, filled: 0 })
    }

    /// Returns the bytes that were filled in.
    pub fn bytes(&self) -> &[u8] {
        &self.map[..self.filled]
    }

    /// Appends `piece` and returns true, or returns false when it does not fit.
    pub fn push(&mut self, piece: &[u8]) -> bool {
        if piece.len() > self.size - self.filled {
            return false;
        }
        self.map[self.filled..self.filled + piece.len()].copy_from_slice(piece);
        self.filled += piece.len();
        true
    }

    /// Appends the bytes of `file` from `position` until the buffer is full or the file ends.
    pub fn read_at(&mut self, file: &File, position: u64) -> Result<()> {
        let start = self.filled;
        while self.filled < self.size {
            let at = position + (self.filled - start) as u64;
            match file.read_at(&mut self.map[self.filled..self.size], at) {
                Ok(0) => break,
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io(at, error)),
            }
        }
        Ok(())
    }

    fn capacity(&self) -> usize {
        self.map.len()
    }
}

/// Returns the capacity of a buffer for `size` bytes, or `None` when it would overflow.
fn capacity_for(size: usize) -> Option<usize> {
    let unit = size.checked_next_power_of_two()? / (2 * SIZES);
    size.max(1).checked_next_multiple_of(unit.max(UNIT_BYTES))
}

/// Idle buffers; the most recently used buffer is last.
#[derive(Debug)]
pub struct BufferPool {
    idle: VecDeque<PooledBuffer>,
    idle_bytes: usize,
    limit_bytes: usize,
}

/// Result of a memory request.
#[derive(Debug)]
pub enum Taken {
    /// A buffer that was used before.
    Reused(PooledBuffer),
    /// No idle buffer fits. The caller drops these evicted buffers, then maps a new buffer.
    Evicted(Vec<PooledBuffer>),
}

impl BufferPool {
    /// Creates a pool that keeps idle buffers of at most `limit_bytes`.
    pub const fn new(limit_bytes: usize) -> Self {
        Self { idle: VecDeque::new(), idle_bytes: 0, limit_bytes }
    }

    /// Returns the total capacity of the idle buffers.
    pub fn idle_bytes(&self) -> usize {
        self.idle_bytes
    }

    /// Takes an idle buffer for `size` bytes. If none fits, evicts idle buffers; the caller passes
    /// them to [`map_buffer`].
    pub fn take(&mut self, size: usize) -> Taken {
        let capacity = capacity_for(size);
        let suits = |buffer: &PooledBuffer| Some(buffer.capacity()) == capacity;
        let Some(index) = self.idle.iter().rposition(suits) else {
            return Taken::Evicted(
                self.shrink(self.idle_bytes.saturating_sub(capacity.unwrap_or(0))),
            );
        };
        let Some(mut buffer) = self.idle.remove(index) else { return Taken::Evicted(Vec::new()) };
        self.idle_bytes -= buffer.capacity();
        (buffer.size, buffer.filled) = (size, 0);
        Taken::Reused(buffer)
    }

    /// Takes back an unused buffer and returns the evicted buffers for the caller to drop.
    pub fn give(&mut self, buffer: PooledBuffer) -> Vec<PooledBuffer> {
        self.idle_bytes += buffer.capacity();
        self.idle.push_back(buffer);
        self.shrink(self.limit_bytes)
    }

    /// Evicts the least recently used buffers until at most `limit_bytes` are idle.
    pub fn shrink(&mut self, limit_bytes: usize) -> Vec<PooledBuffer> {
        let mut evicted = Vec::new();
        while self.idle_bytes > limit_bytes {
            let Some(buffer) = self.idle.pop_front() else { break };
            self.idle_bytes -= buffer.capacity();
            evicted.push(buffer);
        }
        evicted
    }
}

/// Drops the evicted buffers, then maps a new buffer for `size` bytes.
pub fn map_buffer(size: usize, evicted: Vec<PooledBuffer>) -> Result<PooledBuffer> {
    drop(evicted);
    PooledBuffer::map(size)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use proptest::prelude::*;

    use super::*;

    fn buffer(pool: &mut BufferPool, size: usize) -> PooledBuffer {
        match pool.take(size) {
            Taken::Reused(buffer) => buffer,
            Taken::Evicted(evicted) => map_buffer(size, evicted).expect("memory"),
        }
    }

    fn filled(pool: &mut BufferPool, size: usize, byte: u8) -> PooledBuffer {
        let mut buffer = buffer(pool, size);
        assert!(buffer.push(&vec![byte; size]));
        buffer
    }

    #[test]
    fn only_filled_bytes_are_visible() {
        let mut pool = BufferPool::new(1 << 30);
        let first = filled(&mut pool, 100_000, 7);
        assert_eq!(first.bytes(), vec![7; 100_000]);
        assert!(pool.give(first).is_empty());
        let mut second = buffer(&mut pool, 99_999);
        assert_eq!(pool.idle_bytes(), 0);
        assert_eq!(second.bytes(), []);
        assert!(second.push(b"abc"));
        assert!(!second.push(&[1; 99_997]));
        assert_eq!(second.bytes(), b"abc");
        assert!(second.push(&[1; 99_996]));
        assert!(!second.push(&[1]));
        assert_eq!(second.bytes().len(), 99_999);
    }

    #[test]
    fn read_stops_at_the_end_of_the_file() {
        let mut file = tempfile();
        file.write_all(&[5; 1000]).expect("written");
        file.seek(SeekFrom::Start(17)).expect("moved");
        let mut pool = BufferPool::new(0);
        for (position, size, found) in [(0, 1000, 1000), (990, 70_000, 10), (1000, 9, 0), (5, 0, 0)]
        {
            let mut buffer = buffer(&mut pool, size);
            buffer.read_at(&file, position).expect("read");
            assert_eq!(buffer.bytes(), vec![5; found]);
        }
        assert_eq!(file.stream_position().expect("position"), 17);
    }

    fn tempfile() -> File {
        let path = std::env::temp_dir().join(format!("tierlog-buffer-pool-{}", std::process::id()));
        let file = File::options().create_new(true).read(true).write(true).open(&path);
        std::fs::remove_file(path).expect("removed");
        file.expect("created")
    }

    #[test]
    fn most_recently_used_fitting_buffer_is_reused() {
        let mut pool = BufferPool::new(1 << 30);
        for (size, byte) in [(1 << 20, 1), (1 << 20, 2), (4 << 20, 3)] {
            let fresh = filled(&mut BufferPool::new(0), size, byte);
            pool.give(fresh);
        }
        let found = buffer(&mut pool, (1 << 20) - 1000);
        assert_eq!(found.map[0], 2);
        // No idle buffer has this size. The pool evicts as many bytes as it maps, oldest buffers
        // first.
        assert_eq!(pool.idle_bytes(), 5 << 20);
        let fresh = buffer(&mut pool, 2 << 20);
        assert_eq!((fresh.map[0], pool.idle_bytes()), (0, 0));
    }

    #[test]
    fn oldest_buffers_are_evicted_beyond_the_limit() {
        let mut pool = BufferPool::new(3 << 20);
        for byte in 1..=4 {
            let fresh = filled(&mut BufferPool::new(0), 1 << 20, byte);
            let evicted: Vec<u8> = pool.give(fresh).iter().map(|buffer| buffer.map[0]).collect();
            assert_eq!(evicted, if byte == 4 { vec![1] } else { vec![] });
        }
        assert_eq!(pool.idle_bytes(), 3 << 20);
        assert_eq!(pool.shrink(0).len(), 3);
        assert_eq!(pool.idle_bytes(), 0);
    }

    #[test]
    fn impossible_size_is_an_error() {
        for size in [usize::MAX, usize::MAX / 2, 1 << 50] {
            let error = map_buffer(size, Vec::new()).expect_err("too large");
            assert!(error.io.is_some(), "{error:?}");
        }
    }

    proptest! {
        /// For every sequence of takes and returns, the mapped memory never exceeds the maximum
        /// that was in use at one moment (apart from rounding), and no buffer's bytes change.
        #[test]
        fn holds_no_more_than_was_in_use(
            steps in proptest::collection::vec((1usize..12, any::<prop::sample::Index>(), any::<bool>()), 1..40),
            limit in 0usize..(1 << 20),
        ) {
            let mut pool = BufferPool::new(limit);
            let mut held: Vec<(u8, PooledBuffer)> = Vec::new();
            let mut most = 0;
            for (number, (units, which, give)) in steps.into_iter().enumerate() {
                if give && !held.is_empty() {
                    let (byte, buffer) = held.swap_remove(which.index(held.len()));
                    prop_assert_eq!(buffer.bytes(), vec![byte; buffer.size]);
                    drop(pool.give(buffer));
                    prop_assert!(pool.idle_bytes() <= limit);
                } else {
                    let (size, byte) = (units * 20_000, number as u8);
                    held.push((byte, filled(&mut pool, size, byte)));
                    let excess = held[held.len() - 1].1.capacity() - size;
                    prop_assert!(excess <= (size / SIZES).max(UNIT_BYTES));
                }
                let used: usize = held.iter().map(|(_, buffer)| buffer.capacity()).sum();
                most = most.max(used);
                prop_assert!(used + pool.idle_bytes() <= most);
                prop_assert_eq!(pool.idle_bytes(), pool.idle.iter().map(PooledBuffer::capacity).sum::<usize>());
            }
        }
    }
}
