//! The last use of an entry, written by the threads that use it.
//!
//! While only one thread uses an entry, every use is written, so order and time are exact. An entry
//! that several threads use is written at most once per quantum. Otherwise every hit would move the
//! cache line of the entry between processors.

use crate::sync::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use super::lanes::Pin;
use super::order::Stamp;

/// No thread has used the entry since it was put.
const UNUSED: u32 = u32::MAX;
/// Several threads use the entry.
const SHARED: u32 = u32::MAX - 1;

/// The stamp of an entry. Its words are read one by one with relaxed loads. A reader that sees the
/// words of two uses treats the entry as used at one of the two times.
pub(super) struct Used {
    ms: AtomicI64,
    sequence: AtomicU64,
}

/// The number of the only thread that uses an entry, [`UNUSED`], or [`SHARED`].
pub(super) struct User(AtomicU32);

impl User {
    pub fn unused() -> Self {
        Self(AtomicU32::new(UNUSED))
    }
}

impl Used {
    pub fn never() -> Self {
        Self { ms: AtomicI64::new(0), sequence: AtomicU64::new(0) }
    }

    /// Sets the stamp before the entry is linked.
    pub fn put(&mut self, stamp: Stamp) {
        self.ms = AtomicI64::new(stamp.ms);
        self.sequence = AtomicU64::new(stamp.sequence);
    }

    #[inline]
    pub fn ms(&self) -> i64 {
        self.ms.load(Ordering::Relaxed)
    }

    pub fn stamp(&self) -> Stamp {
        Stamp { ms: self.ms(), sequence: self.sequence.load(Ordering::Relaxed) }
    }

    /// Records a use at `now_ms`.
    #[inline]
    pub fn touch(&self, user: &User, pin: &Pin<'_>, now_ms: i64, quantum_ms: i64) {
        if let Some((lane, number)) = pin.lane() {
            let sequence = lane.sequence.load(Ordering::Relaxed) + 1;
            lane.sequence.store(sequence, Ordering::Relaxed);
            if user.0.load(Ordering::Relaxed) == number {
                self.ms.store(now_ms, Ordering::Relaxed);
                self.sequence.store(sequence, Ordering::Relaxed);
            } else {
                self.touch_shared(user, Some(number), now_ms, sequence, quantum_ms);
            }
        } else {
            self.touch_shared(user, None, now_ms, 0, quantum_ms);
        }
    }

    fn touch_shared(
        &self,
        user: &User,
        number: Option<u32>,
        now_ms: i64,
        sequence: u64,
        quantum_ms: i64,
    ) {
        let known = user.0.load(Ordering::Relaxed);
        match number {
            Some(number) if known == UNUSED => user.0.store(number, Ordering::Relaxed),
            _ if known != SHARED => user.0.store(SHARED, Ordering::Relaxed),
            _ if now_ms - self.ms() < quantum_ms => return,
            _ => {}
        }
        if (Stamp { ms: now_ms, sequence }) > self.stamp() {
            self.ms.store(now_ms, Ordering::Relaxed);
            self.sequence.store(sequence, Ordering::Relaxed);
        }
    }
}
