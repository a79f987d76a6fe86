//! A few words that are replaced as a whole, without a lock: readers see one version of all of
//! them, a writer that stalls holds up nobody.
//!
//! `current` names a slot and a version. A reader loads `current`, reads words of that slot and
//! asks whether `current` is still the same; if so, the words belong together. A writer takes a
//! free slot, fills it and swings `current` over; when somebody else was faster it starts again
//! from what that one published. Versions count up, 48 bits of them, so one never comes back
//! while a reader looks; slots are used again, so memory stays small.
//!
//! Why a reader is never fooled: a slot is free only after `current` moved on from it. The taker
//! of a slot sees that move (its Acquire of `busy` pairs with the Release of whoever freed it) and
//! then fences (Release) before it fills; a reader that saw any of the filling and then fences
//! (Acquire) therefore sees the move too, when it looks at `current` again.

use crate::sync::{AtomicU64, Ordering, fence};

use super::shelves::Shelves;

pub(super) const WORDS_PER_LINE: usize = 16;
const INDEX_BITS: u32 = 16;

// Slots on the first shelf, which is always up; each further shelf has twice as many.
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

/// Which slot is current, and the how many versions came before.
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

/// The words of one slot, as long as they are not checked: maybe of several versions.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a>(&'a [Line]);

impl Slot<'_> {
    /// Word `index`; word 0 is the slot's own (taken or free).
    #[inline(always)]
    pub(super) fn word(self, index: usize) -> u64 {
        // Relaxed: whether it belongs to the others is told by `Published::is_still`.
        self.0[index / WORDS_PER_LINE].0[index % WORDS_PER_LINE].load(Ordering::Relaxed)
    }

    /// For whoever fills a slot that is not current.
    #[inline(always)]
    pub(super) fn set(self, index: usize, value: u64) {
        // Relaxed: unseen until the exchange of `current`, which is a Release.
        self.0[index / WORDS_PER_LINE].0[index % WORDS_PER_LINE].store(value, Ordering::Relaxed);
    }

    /// The words from the start of line `line` on, as many as `words` are.
    pub(super) fn load_lines(self, line: usize, words: &mut [u64]) {
        for (from, to) in self.0[line..].iter().zip(words.chunks_mut(WORDS_PER_LINE)) {
            for (from, to) in from.0.iter().zip(to) {
                *to = from.load(Ordering::Relaxed); // as in `word`
            }
        }
    }

    /// As [`Self::set`], from the start of line `line` on.
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
        // Looked at first, so that passing by a taken slot does not claim its cache line.
        self.busy().load(Ordering::Relaxed) == 0
            // Acquire: pairs with `give_back`, see the top of this file.
            && self.busy().compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn give_back(&self) {
        // Release: whoever takes the slot sees that `current` moved on from it.
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
    /// `words` in every version, of which `fill` makes the first.
    pub(super) fn new(words: usize, fill: impl FnOnce(Slot<'_>)) -> Self {
        let lines_per_slot = words.div_ceil(WORDS_PER_LINE);
        let first = lines(lines_per_slot * FIRST_SLOTS);
        let slot = Slot(&first[..lines_per_slot]);
        fill(slot);
        slot.set(0, 1);
        Self { current: AtomicU64::new(0), lines_per_slot, first, further: Shelves::new() }
    }

    /// What is current now.
    #[inline(always)]
    pub(super) fn current(&self) -> Current {
        // Acquire: pairs with the exchange in `try_replace`, so the slot's words are seen filled.
        Current(self.current.load(Ordering::Acquire))
    }

    /// As [`Self::current`], in the one order of all sequentially consistent operations: after
    /// an own such addition to a counter, this load sees a publication, or the publisher's later
    /// look at the counters sees the addition.
    #[inline(always)]
    pub(super) fn current_in_order(&self) -> Current {
        model_fence();
        Current(self.current.load(Ordering::SeqCst))
    }

    /// Whether `seen` is current still, so that all words read since belong together.
    #[inline(always)]
    pub(super) fn is_still(&self, seen: Current) -> bool {
        // The fence keeps the words' loads before this one, see the top of this file.
        fence(Ordering::Acquire);
        self.current.load(Ordering::Relaxed) == seen.0
    }

    /// The slot that was current.
    #[inline(always)]
    pub(super) fn slot(&self, seen: Current) -> Slot<'_> {
        let index = seen.index();
        if index < FIRST_SLOTS {
            // Wrapping only so that it is not checked: it is less than the length.
            let start = index.wrapping_mul(self.lines_per_slot);
            return Slot(self.first.get(start..).unwrap_or_default());
        }
        self.further_slot(index)
    }

    /// What `look` finds in one version. It may be called with words that do not belong
    /// together, and then again.
    pub(super) fn read<R>(&self, mut look: impl FnMut(Slot<'_>) -> R) -> (R, Current) {
        loop {
            let current = self.current();
            let found = look(self.slot(current));
            if self.is_still(current) {
                return (found, current);
            }
        }
    }

    /// Publish what `fill` sets (all words but word 0) if `seen` is current still.
    pub(super) fn try_replace(&self, seen: Current, fill: impl FnOnce(Slot<'_>)) -> bool {
        let (index, slot) = self.take_slot();
        // Release: see the top of this file.
        fence(Ordering::Release);
        fill(slot);
        let new = seen.followed_by(index);
        // Release for the words just written; sequentially consistent for the look at the
        // counters that follows a publication (`current_in_order`). Nothing is read on failure.
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

    /// Any free slot. All are taken only when there are as many writers in the middle of a
    /// replacement as slots on all shelves, 65,528.
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
        self.further.get_or_put_up(further, || lines(slots * self.lines_per_slot))
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

/// loom takes a sequentially consistent operation for an acquiring and releasing one and knows
/// the full strength only of fences; so the models, and only they, have a fence beside it.
#[inline(always)]
pub(super) fn model_fence() {
    #[cfg(tierlog_loom)]
    fence(Ordering::SeqCst);
}
