//! The LRU order of the entries.
//!
//! A hit only writes a stamp into its entry and moves nothing. The order is updated only when it is
//! needed: if the stamp of an entry is newer than its stamp in the queue, the entry is queued again
//! with the newer stamp. So every hit causes at most one step here.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Moment of a use: a time, and the order within its millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp {
    pub ms: i64,
    pub sequence: u64,
}

/// Names an entry: its slot, and a number that changes whenever the entry of the slot is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id {
    pub slot: u32,
    pub tenant: u32,
}

type Queued = (Stamp, Id);

/// Queue of entries. It holds each entry once, with the latest stamp of the entry or an older one.
/// Removed entries stay in the queue until they reach the front or [`Order::tidy`] drops them.
pub(super) struct Order {
    /// New entries, oldest first.
    fresh: VecDeque<Queued>,
    /// Entries that were used again.
    again: BinaryHeap<Reverse<Queued>>,
}

impl Order {
    pub fn new() -> Self {
        Self { fresh: VecDeque::new(), again: BinaryHeap::new() }
    }

    /// Adds a new entry. Stamps of new entries never decrease.
    pub fn push(&mut self, stamp: Stamp, id: Id) {
        self.fresh.push_back((stamp, id));
    }

    /// Returns the least recently used entry. `stamp` returns the last use of an entry, or `None`
    /// when the entry was removed.
    pub fn oldest(&mut self, stamp: impl Fn(Id) -> Option<Stamp>) -> Option<(Stamp, Id)> {
        // Entries may be used faster than this loop checks them, so the number of steps is limited.
        let mut patience = self.fresh.len() + self.again.len();
        loop {
            let from_fresh = self.fresh_is_older();
            let (queued, id) = if from_fresh { *self.fresh.front()? } else { self.again.peek()?.0 };
            match stamp(id) {
                Some(actual) if actual <= queued || patience == 0 => return Some((actual, id)),
                Some(actual) => {
                    patience -= 1;
                    self.pop(from_fresh);
                    self.again.push(Reverse((actual, id)));
                }
                None => self.pop(from_fresh),
            }
        }
    }

    fn fresh_is_older(&self) -> bool {
        match (self.fresh.front(), self.again.peek()) {
            (Some(fresh), Some(Reverse(again))) => fresh <= again,
            (fresh, _) => fresh.is_some(),
        }
    }

    fn pop(&mut self, from_fresh: bool) {
        if from_fresh {
            self.fresh.pop_front();
        } else {
            self.again.pop();
        }
    }

    /// Removes the entry that [`Order::oldest`] has just returned.
    pub fn pop_oldest(&mut self) {
        self.pop(self.fresh_is_older());
    }

    /// Drops removed entries when they outnumber the live ones.
    pub fn tidy(&mut self, live: usize, is_live: impl Fn(Id) -> bool) {
        if self.fresh.len() + self.again.len() <= 2 * live + 64 {
            return;
        }
        self.fresh.retain(|&(_, id)| is_live(id));
        self.again.retain(|&Reverse((_, id))| is_live(id));
        // Shrink the memory, but leave room to grow again.
        self.fresh.shrink_to(2 * self.fresh.len());
        self.again.shrink_to(2 * self.again.len());
    }
}

#[cfg(all(test, not(tierlog_loom)))]
mod tests {
    use super::*;

    fn id(slot: u32) -> Id {
        Id { slot, tenant: 0 }
    }

    fn stamp(sequence: u64) -> Stamp {
        Stamp { ms: 0, sequence }
    }

    #[test]
    fn removed_entries_do_not_accumulate() {
        let mut order = Order::new();
        for slot in 0..100_000 {
            order.push(stamp(slot.into()), id(slot));
            // Only every thousandth entry stays.
            let live = |id: Id| id.slot.is_multiple_of(1000);
            order.tidy(slot as usize / 1000 + 1, live);
        }
        assert!(order.fresh.len() <= 2 * 100 + 64);
        let live = |id: Id| (id.slot.is_multiple_of(1000)).then(|| stamp(id.slot.into()));
        for slot in (0..100_000).step_by(1000) {
            assert_eq!(order.oldest(live), Some((stamp(slot.into()), id(slot))));
            order.pop_oldest();
        }
        assert_eq!(order.oldest(live), None);
    }

    #[test]
    fn search_ends_although_entries_are_used_meanwhile() {
        let mut order = Order::new();
        for slot in 0..10 {
            order.push(stamp(slot.into()), id(slot));
        }
        let uses = std::cell::Cell::new(100);
        let busy = |_: Id| {
            uses.set(uses.get() + 1);
            Some(stamp(uses.get()))
        };
        assert!(order.oldest(busy).is_some());
        assert!(uses.get() <= 100 + 11);
    }
}
