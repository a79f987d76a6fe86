//! Pool of buffers for large reads.
//!
//! A buffer lives until its last reader releases it, on any thread. An allocator with one arena per
//! thread keeps such memory in every arena. An allocator that returns it to the system makes the
//! kernel zero every page of the next read, which takes longer than the read. Therefore each buffer
//! is its own memory map. The pool hands out the buffer that was returned last, while it is still
//! in the CPU cache. The pool never maps more memory than was in use at one moment: before it maps
//! a new buffer, it drops idle ones of the same total size.

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
pub struct Slab {
    map: MmapMut,
    room: usize,
    filled: usize,
}

impl Slab {
    /// Maps a new buffer for `size` bytes.
    fn map(size: usize) -> Result<Self> {
        let map = capacity_for(size)
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
            .and_then(MmapMut::map_anon)
            .map_err(|error| Error::io(0, error))?;
        prefer_large_pages(&map[..]);
        Ok(Self { map, room: size, filled: 0 })
    }

    /// Returns the bytes that were filled in.
    pub fn bytes(&self) -> &[u8] {
        &self.map[..self.filled]
    }

    /// Appends `piece` and returns true, or returns false when it does not fit.
    pub fn push(&mut self, piece: &[u8]) -> bool {
        if piece.len() > self.room - self.filled {
            return false;
        }
        self.map[self.filled..self.filled + piece.len()].copy_from_slice(piece);
        self.filled += piece.len();
        true
    }

    /// Appends the bytes of `file` from `position` until the buffer is full or the file ends.
    pub fn read_at(&mut self, file: &File, position: u64) -> Result<()> {
        let start = self.filled;
        while self.filled < self.room {
            let at = position + (self.filled - start) as u64;
            match file.read_at(&mut self.map[self.filled..self.room], at) {
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

/// Returns the capacity of a buffer for `size` bytes, `None` when it would overflow.
fn capacity_for(size: usize) -> Option<usize> {
    let unit = size.checked_next_power_of_two()? / (2 * SIZES);
    size.max(1).checked_next_multiple_of(unit.max(UNIT_BYTES))
}

/// Idle buffers, the most recently used last.
#[derive(Debug)]
pub struct Slabs {
    idle: VecDeque<Slab>,
    idle_bytes: usize,
    limit_bytes: usize,
}

/// Result of a memory request.
#[derive(Debug)]
pub enum Found {
    /// A buffer that was used before.
    Slab(Slab),
    /// No idle buffer fits. The caller drops these evicted buffers, then maps a new one.
    Gone(Vec<Slab>),
}

impl Slabs {
    /// Creates a pool that keeps at most `limit_bytes` idle.
    pub const fn new(limit_bytes: usize) -> Self {
        Self { idle: VecDeque::new(), idle_bytes: 0, limit_bytes }
    }

    /// Returns the total capacity of the idle buffers.
    pub fn idle_bytes(&self) -> usize {
        self.idle_bytes
    }

    /// Takes an idle buffer for `size` bytes, or evicts idle buffers for [`new_slab`].
    pub fn take(&mut self, size: usize) -> Found {
        let capacity = capacity_for(size);
        let suits = |slab: &Slab| Some(slab.capacity()) == capacity;
        let Some(index) = self.idle.iter().rposition(suits) else {
            return Found::Gone(self.shrink(self.idle_bytes.saturating_sub(capacity.unwrap_or(0))));
        };
        let Some(mut slab) = self.idle.remove(index) else { return Found::Gone(Vec::new()) };
        self.idle_bytes -= slab.capacity();
        (slab.room, slab.filled) = (size, 0);
        Found::Slab(slab)
    }

    /// Takes back an unused buffer and returns the evicted buffers for the caller to drop.
    pub fn give(&mut self, slab: Slab) -> Vec<Slab> {
        self.idle_bytes += slab.capacity();
        self.idle.push_back(slab);
        self.shrink(self.limit_bytes)
    }

    /// Evicts the least recently used buffers until at most `limit_bytes` are idle.
    pub fn shrink(&mut self, limit_bytes: usize) -> Vec<Slab> {
        let mut gone = Vec::new();
        while self.idle_bytes > limit_bytes {
            let Some(slab) = self.idle.pop_front() else { break };
            self.idle_bytes -= slab.capacity();
            gone.push(slab);
        }
        gone
    }
}

/// Drops the evicted buffers, then maps a new buffer for `size` bytes.
pub fn new_slab(size: usize, gone: Vec<Slab>) -> Result<Slab> {
    drop(gone);
    Slab::map(size)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use proptest::prelude::*;

    use super::*;

    fn slab(slabs: &mut Slabs, size: usize) -> Slab {
        match slabs.take(size) {
            Found::Slab(slab) => slab,
            Found::Gone(gone) => new_slab(size, gone).expect("memory"),
        }
    }

    fn filled(slabs: &mut Slabs, size: usize, byte: u8) -> Slab {
        let mut slab = slab(slabs, size);
        assert!(slab.push(&vec![byte; size]));
        slab
    }

    #[test]
    fn only_filled_bytes_are_visible() {
        let mut slabs = Slabs::new(1 << 30);
        let first = filled(&mut slabs, 100_000, 7);
        assert_eq!(first.bytes(), vec![7; 100_000]);
        assert!(slabs.give(first).is_empty());
        let mut second = slab(&mut slabs, 99_999);
        assert_eq!(slabs.idle_bytes(), 0);
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
        let mut slabs = Slabs::new(0);
        for (position, size, found) in [(0, 1000, 1000), (990, 70_000, 10), (1000, 9, 0), (5, 0, 0)]
        {
            let mut slab = slab(&mut slabs, size);
            slab.read_at(&file, position).expect("read");
            assert_eq!(slab.bytes(), vec![5; found]);
        }
        assert_eq!(file.stream_position().expect("position"), 17);
    }

    fn tempfile() -> File {
        let path = std::env::temp_dir().join(format!("tierlog-slabs-{}", std::process::id()));
        let file = File::options().create_new(true).read(true).write(true).open(&path);
        std::fs::remove_file(path).expect("removed");
        file.expect("created")
    }

    #[test]
    fn most_recently_used_fitting_buffer_is_reused() {
        let mut slabs = Slabs::new(1 << 30);
        for (size, byte) in [(1 << 20, 1), (1 << 20, 2), (4 << 20, 3)] {
            let fresh = filled(&mut Slabs::new(0), size, byte);
            slabs.give(fresh);
        }
        let found = slab(&mut slabs, (1 << 20) - 1000);
        assert_eq!(found.map[0], 2);
        // Neither too small nor much too large. The pool evicts as much as it maps, oldest first.
        assert_eq!(slabs.idle_bytes(), 5 << 20);
        let fresh = slab(&mut slabs, 2 << 20);
        assert_eq!((fresh.map[0], slabs.idle_bytes()), (0, 0));
    }

    #[test]
    fn oldest_buffers_are_evicted_beyond_the_limit() {
        let mut slabs = Slabs::new(3 << 20);
        for byte in 1..=4 {
            let fresh = filled(&mut Slabs::new(0), 1 << 20, byte);
            let gone: Vec<u8> = slabs.give(fresh).iter().map(|slab| slab.map[0]).collect();
            assert_eq!(gone, if byte == 4 { vec![1] } else { vec![] });
        }
        assert_eq!(slabs.idle_bytes(), 3 << 20);
        assert_eq!(slabs.shrink(0).len(), 3);
        assert_eq!(slabs.idle_bytes(), 0);
    }

    #[test]
    fn impossible_size_is_an_error() {
        for size in [usize::MAX, usize::MAX / 2, 1 << 50] {
            let error = new_slab(size, Vec::new()).expect_err("too large");
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
            let mut slabs = Slabs::new(limit);
            let mut held: Vec<(u8, Slab)> = Vec::new();
            let mut most = 0;
            for (number, (units, which, give)) in steps.into_iter().enumerate() {
                if give && !held.is_empty() {
                    let (byte, slab) = held.swap_remove(which.index(held.len()));
                    prop_assert_eq!(slab.bytes(), vec![byte; slab.room]);
                    drop(slabs.give(slab));
                    prop_assert!(slabs.idle_bytes() <= limit);
                } else {
                    let (size, byte) = (units * 20_000, number as u8);
                    held.push((byte, filled(&mut slabs, size, byte)));
                    let excess = held[held.len() - 1].1.capacity() - size;
                    prop_assert!(excess <= (size / SIZES).max(UNIT_BYTES));
                }
                let used: usize = held.iter().map(|(_, slab)| slab.capacity()).sum();
                most = most.max(used);
                prop_assert!(used + slabs.idle_bytes() <= most);
                prop_assert_eq!(slabs.idle_bytes(), slabs.idle.iter().map(Slab::capacity).sum::<usize>());
            }
        }
    }
}
