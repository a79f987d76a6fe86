//! A few words that are replaced as a whole without a lock. Readers see all words of one version,
//! and a stalled writer delays no other thread.
//!
//! `current` names a slot and a version. A reader loads `current`, reads words of that slot and
//! checks that `current` is unchanged; then the words belong together. A writer takes a free slot,
//! fills it and swaps `current`. If another writer was faster, it starts again from that writer's
//! version. Versions count up in 48 bits, so none repeats while a reader looks. Slots are reused,
//! so memory stays small.
//!
//! Why readers see consistent words: a slot is free only after `current` moved on from it. The
//! writer that takes a slot sees that move (its Acquire of `busy` pairs with the Release that freed
//! the slot) and then fences (Release) before it fills the slot. A reader that saw any of the new
//! words and then fences (Acquire) therefore also sees the move when it checks `current` again.

use crate::sync::{AtomicU64, Ordering, fence};

use super::shelves::Shelves;

pub(super) const WORDS_PER_LINE: usize = 16;
const INDEX_BITS: u32 = 16;

// Number of slots on the first shelf, which always exists; each further shelf has twice as many.
#[cfg(not(tierlog_loom))]
const FIRST_SLOTS: usize = 8;
#[cfg(tierlog_loom)]
const FIRST_SLOTS: usize = 2;

#[cfg(not(tierlog_loom))]
const FURTHER_SHELVES: usize = 12;
#[cfg(tierlog_loom)]
const FURTHER_SHELVES: usize = 1;

/// Two cache lines, since processors fetch them in pairs.
#[repr(align(128))]
pub(super) struct Line([AtomicU64; WORDS_PER_LINE]);

impl Line {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// The current slot and the number of earlier versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Current(u64);

impl Current {
    fn index(self) -> usize {
        (self.0 & ((1 << INDEX_BITS) - 1)) as usize
    }

    fn followed_by(self, index: usize) -> Self {
        let version = (self.0 >> INDEX_BITS).wrapping_add(1);
        Self(version << INDEX_BITS | index as u64)
    }
}

/// The words of one slot, unchecked: they may belong to several versions.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a>(&'a [Line]);

impl Slot<'_> {
    /// Returns word `index`; word 0 is the slot's own (taken or free).
    #[inline(always)]
    pub(super) fn word(self, index: usize) -> u64 {
        // Relaxed: `Published::is_still` checks whether all words belong to one version.
        self.0[index / WORDS_PER_LINE].0[index % WORDS_PER_LINE].load(Ordering::Relaxed)
    }

    /// Sets word `index` of a slot that is not current.
    #[inline(always)]
    pub(super) fn set(self, index: usize, value: u64) {
        // Relaxed: invisible until the exchange of `current`, which is a Release.
        self.0[index / WORDS_PER_LINE].0[index % WORDS_PER_LINE].store(value, Ordering::Relaxed);
    }

    /// Loads `words` from the start of line `line`.
    pub(super) fn load_lines(self, line: usize, words: &mut [u64]) {
        for (from, to) in self.0[line..].iter().zip(words.chunks_mut(WORDS_PER_LINE)) {
            for (from, to) in from.0.iter().zip(to) {
                *to = from.load(Ordering::Relaxed); // as in `word`
            }
        }
    }

    /// Like [`Self::set`], but writes `words`, beginning at the start of cache line `line`.
    pub(super) fn set_lines(self, line: usize, words: &[u64]) {
        for (to, from) in self.0[line..].iter().zip(words.chunks(WORDS_PER_LINE)) {
            for (to, from) in to.0.iter().zip(from) {
                to.store(*from, Ordering::Relaxed); // as in `set`
            }
        }
    }

    fn busy(&self) -> &AtomicU64 {
        &self.0[0].0[0]
    }

    fn take(&self) -> bool {
        // Load first, so that passing a taken slot does not claim its cache line.
        self.busy().load(Ordering::Relaxed) == 0
            // Acquire: pairs with `give_back`, see the module documentation.
            && self.busy().compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn give_back(&self) {
        // Release: the next writer that takes the slot sees that `current` moved on from it.
        self.busy().store(0, Ordering::Release);
    }
}

pub(super) struct Published {
    current: AtomicU64,
    lines_per_slot: usize,
    first: Vec<Line>,
    further: Shelves<Line, FURTHER_SHELVES>,
}

impl Published {
    /// Creates versions of `words` words; `fill` sets those of the first version.
    pub(super) fn new(words: usize, fill: impl FnOnce(Slot<'_>)) -> Self {
        let lines_per_slot = words.div_ceil(WORDS_PER_LINE);
        let first = lines(lines_per_slot * FIRST_SLOTS);
        let slot = Slot(&first[..lines_per_slot]);
        fill(slot);
        slot.set(0, 1);
        Self { current: AtomicU64::new(0), lines_per_slot, first, further: Shelves::new() }
    }

    /// Returns the current version.
    #[inline(always)]
    pub(super) fn current(&self) -> Current {
        // Acquire: pairs with the exchange in `try_replace`, so the slot's words are visible.
        Current(self.current.load(Ordering::Acquire))
    }

    /// Does what [`Self::current`] does, in the single order of all sequentially consistent
    /// operations. After this thread's sequentially consistent addition to a counter, either this
    /// load sees a publication, or the publisher's later look at the counters sees the addition.
    #[inline(always)]
    pub(super) fn current_in_order(&self) -> Current {
        model_fence();
        Current(self.current.load(Ordering::SeqCst))
    }

    /// Returns true when `seen` is still current, so that all words read since belong together.
    #[inline(always)]
    pub(super) fn is_still(&self, seen: Current) -> bool {
        // The fence keeps the loads of the words before this one, see the module documentation.
        fence(Ordering::Acquire);
        self.current.load(Ordering::Relaxed) == seen.0
    }

    /// Returns the slot of version `seen`.
    #[inline(always)]
    pub(super) fn slot(&self, seen: Current) -> Slot<'_> {
        let index = seen.index();
        if index < FIRST_SLOTS {
            // Wrapping avoids the overflow check: the product is less than the length.
            let start = index.wrapping_mul(self.lines_per_slot);
            return Slot(self.first.get(start..).unwrap_or_default());
        }
        self.further_slot(index)
    }

    /// Returns the result of `look` on one version. `look` may see words that do not belong
    /// together; it is then called again.
    pub(super) fn read<R>(&self, mut look: impl FnMut(Slot<'_>) -> R) -> (R, Current) {
        loop {
            let current = self.current();
            let found = look(self.slot(current));
            if self.is_still(current) {
                return (found, current);
            }
        }
    }

    /// Publishes what `fill` sets (all words but word 0) if `seen` is still current.
    pub(super) fn try_replace(&self, seen: Current, fill: impl FnOnce(Slot<'_>)) -> bool {
        let (index, slot) = self.take_slot();
        // Release: see the module documentation.
        fence(Ordering::Release);
        fill(slot);
        let new = seen.followed_by(index);
        // Release for the words just written; sequentially consistent for the look at the counters
        // after a publication (`current_in_order`). Nothing is read on failure.
        let replaced = self
            .current
            .compare_exchange(seen.0, new.0, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok();
        if replaced {
            self.slot(seen).give_back()
        } else {
            slot.give_back()
        }
        replaced
    }

    /// Returns a free slot. All slots are taken only when 65,528 writers, the number of slots on
    /// all shelves, are replacing at once.
    fn take_slot(&self) -> (usize, Slot<'_>) {
        loop {
            for shelf in 0..=FURTHER_SHELVES {
                let Some(lines) = self.shelf(shelf) else { continue };
                for (within, slot) in lines.chunks_exact(self.lines_per_slot).enumerate() {
                    let slot = Slot(slot);
                    if slot.take() {
                        return (FIRST_SLOTS * ((1 << shelf) - 1) + within, slot);
                    }
                }
            }
            std::hint::spin_loop();
        }
    }

    fn shelf(&self, number: usize) -> Option<&[Line]> {
        let Some(further) = number.checked_sub(1) else { return Some(&self.first) };
        let slots = FIRST_SLOTS << number;
        self.further.get_or_create(further, || lines(slots * self.lines_per_slot))
    }

    #[cold]
    fn further_slot(&self, index: usize) -> Slot<'_> {
        let shelf = (index / FIRST_SLOTS + 1).ilog2() as usize;
        let within = index - FIRST_SLOTS * ((1 << shelf) - 1);
        let lines = self.further.get(shelf - 1).unwrap_or_default();
        Slot(&lines[within * self.lines_per_slot..][..self.lines_per_slot])
    }
}

fn lines(count: usize) -> Vec<Line> {
    (0..count).map(|_| Line::new()).collect()
}

/// A fence that only the models have: loom treats a sequentially consistent operation as an
/// acquiring and releasing one, and gives full strength only to fences.
#[inline(always)]
pub(super) fn model_fence() {
    #[cfg(tierlog_loom)]
    fence(Ordering::SeqCst);
}
