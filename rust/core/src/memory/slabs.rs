//! Memory of large reads, handed on from one to the next.
//!
//! What was read lives until the last one who looks at it lets go, in whatever thread. An allocator
//! that keeps an arena for each thread holds on to such memory in all of them; one that returns it
//! to the system has every page of the next read zeroed, which takes longer than the read. So each
//! slab is a map of its own. The one given back last is handed on first, while it is in the cache.
//! Never is more mapped than was in use at one moment: before a new slab is mapped, idle ones of as
//! much memory go.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use memmap2::MmapMut;

use crate::error::{Error, Result};
use crate::memory::hints::prefer_large_pages;

/// So many sizes of slabs there are between a power of two and the next one, and none closer than
/// `UNIT_BYTES`: reads of about the same size can have each other's.
const SIZES: usize = 8;
const UNIT_BYTES: usize = 64 << 10;

/// Memory that is filled once, from its start on. Nothing can be seen but what was filled in: the
/// rest may be of an earlier read.
#[derive(Debug)]
pub struct Slab {
    map: MmapMut,
    room: usize,
    filled: usize,
}

impl Slab {
    /// New memory for `size` bytes.
    fn map(size: usize) -> Result<Self> {
        let map = capacity_for(size)
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
            .and_then(MmapMut::map_anon)
            .map_err(|error| Error::io(0, error))?;
        prefer_large_pages(&map[..]);
        Ok(Self { map, room: size, filled: 0 })
    }

    /// What was filled in.
    pub fn bytes(&self) -> &[u8] {
        &self.map[..self.filled]
    }

    /// Appends a piece, unless it is larger than what is left.
    pub fn push(&mut self, piece: &[u8]) -> bool {
        if piece.len() > self.room - self.filled {
            return false;
        }
        self.map[self.filled..self.filled + piece.len()].copy_from_slice(piece);
        self.filled += piece.len();
        true
    }

    /// Appends what a file has from `position` on, as far as there is room.
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

/// How large a slab for `size` bytes is; `None` if none can be.
fn capacity_for(size: usize) -> Option<usize> {
    let unit = size.checked_next_power_of_two()? / (2 * SIZES);
    size.max(1).checked_next_multiple_of(unit.max(UNIT_BYTES))
}

/// Slabs that nobody uses, the one used last at the end.
#[derive(Debug)]
pub struct Slabs {
    idle: VecDeque<Slab>,
    idle_bytes: usize,
    limit_bytes: usize,
}

/// What there is for who wants memory: a slab, or the ones that go before he maps a new one.
#[derive(Debug)]
pub enum Found {
    /// Used before.
    Slab(Slab),
    /// To be dropped, best where nobody waits for it.
    Gone(Vec<Slab>),
}

impl Slabs {
    /// Keeps up to `limit_bytes` that nobody uses.
    pub const fn new(limit_bytes: usize) -> Self {
        Self { idle: VecDeque::new(), idle_bytes: 0, limit_bytes }
    }

    /// Bytes that nobody uses.
    pub fn idle_bytes(&self) -> usize {
        self.idle_bytes
    }

    /// Memory for `size` bytes, if some suits; what goes if not, for [`new_slab`].
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

    /// Takes back a slab that nobody can see any more; what is too much, to be dropped.
    pub fn give(&mut self, slab: Slab) -> Vec<Slab> {
        self.idle_bytes += slab.capacity();
        self.idle.push_back(slab);
        self.shrink(self.limit_bytes)
    }

    /// Takes out those unused for longest until no more than `limit_bytes` are left.
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

/// A new slab for `size` bytes, after those that go for it.
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
    fn what_was_filled_in_is_all_that_is_seen() {
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
    fn a_file_is_read_as_far_as_it_goes() {
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
    fn the_one_used_last_that_suits_is_handed_on() {
        let mut slabs = Slabs::new(1 << 30);
        for (size, byte) in [(1 << 20, 1), (1 << 20, 2), (4 << 20, 3)] {
            let fresh = filled(&mut Slabs::new(0), size, byte);
            slabs.give(fresh);
        }
        let found = slab(&mut slabs, (1 << 20) - 1000);
        assert_eq!(found.map[0], 2);
        // Neither too small nor much too large: as much goes as is mapped anew, the oldest first.
        assert_eq!(slabs.idle_bytes(), 5 << 20);
        let fresh = slab(&mut slabs, 2 << 20);
        assert_eq!((fresh.map[0], slabs.idle_bytes()), (0, 0));
    }

    #[test]
    fn what_is_too_much_goes_the_oldest_first() {
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
    fn more_than_there_can_be_is_an_error() {
        for size in [usize::MAX, usize::MAX / 2, 1 << 50] {
            let error = new_slab(size, Vec::new()).expect_err("too large");
            assert!(error.io.is_some(), "{error:?}");
        }
    }

    proptest! {
        /// Whatever is taken and given back: never more is mapped than was in use at one moment,
        /// but for what sizes are rounded up to, and nobody's bytes change.
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
