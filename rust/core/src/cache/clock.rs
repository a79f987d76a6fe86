//! The cache's own time: made of what callers say, and never going back.
//!
//! Callers in several threads are a little apart; who is behind counts as being where the others
//! are. Who is behind by more than the time to live (and a second) has had the clock set back:
//! from then on the difference is added to what callers say. So entries live on at most as long
//! again as they were meant to, and time goes on.

use crate::sync::{AtomicI64, Ordering};

/// What callers may say: 140,000 years either way, so sums of a thousand jumps still fit.
const FARTHEST_MS: i64 = 1 << 52;
/// The longest that an entry used by several threads keeps an old stamp.
const MAX_QUANTUM_MS: i64 = 64;
/// As a share of the time to live.
const QUANTUM_SHARE: i64 = 1024;
const MIN_TOLERANCE_MS: i64 = 1000;

/// Settings and offset of the cache's time. All relaxed: a reader that sees one of them late
/// decides as if it had come earlier.
pub(super) struct Clock {
    offset_ms: AtomicI64,
    ttl_ms: AtomicI64,
    quantum_ms: AtomicI64,
}

impl Clock {
    pub fn new(ttl_ms: Option<u64>) -> Self {
        let clock = Self {
            offset_ms: AtomicI64::new(0),
            ttl_ms: AtomicI64::new(0),
            quantum_ms: AtomicI64::new(0),
        };
        clock.set_ttl(ttl_ms);
        clock
    }

    pub fn set_ttl(&self, ttl_ms: Option<u64>) {
        let ttl_ms = ttl_ms.map_or(i64::MAX, |ttl| i64::try_from(ttl).unwrap_or(i64::MAX));
        let quantum_ms = (ttl_ms / QUANTUM_SHARE).clamp(1, MAX_QUANTUM_MS);
        self.ttl_ms.store(ttl_ms, Ordering::Relaxed);
        self.quantum_ms.store(quantum_ms, Ordering::Relaxed);
    }

    /// What a caller says, in the cache's time.
    #[inline]
    pub fn time_ms(&self, now_ms: i64) -> i64 {
        now_ms.clamp(-FARTHEST_MS, FARTHEST_MS) + self.offset_ms.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn quantum_ms(&self) -> i64 {
        self.quantum_ms.load(Ordering::Relaxed)
    }

    /// Whether an entry that was last used then is too old now.
    #[inline]
    pub fn expired(&self, used_ms: i64, time_ms: i64) -> bool {
        let ttl_ms = self.ttl_ms.load(Ordering::Relaxed);
        time_ms - used_ms >= ttl_ms && ttl_ms != i64::MAX
    }

    /// Whether the clock must have been set back to be that far behind.
    pub fn set_back(&self, time_ms: i64, seen_ms: i64) -> bool {
        let tolerance_ms = self.ttl_ms.load(Ordering::Relaxed).max(MIN_TOLERANCE_MS);
        // `seen_ms` may be the smallest there is: nothing seen yet.
        time_ms < seen_ms.saturating_sub(tolerance_ms)
    }

    /// Lets time go on from `seen_ms` although callers now say less. Called under the lock.
    pub fn go_on_from(&self, seen_ms: i64, time_ms: i64) {
        let offset_ms = self.offset_ms.load(Ordering::Relaxed);
        let behind_ms = seen_ms.saturating_sub(time_ms);
        // Saturating twice over: a thousand jumps over all that callers may say.
        let room = i64::MAX / 4;
        self.offset_ms.store(offset_ms.saturating_add(behind_ms).min(room), Ordering::Relaxed);
    }
}
