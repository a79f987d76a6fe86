//! The cache's own time, which follows the callers' clocks and never goes back.
//!
//! The clocks of several threads differ slightly. For a caller whose clock is behind, the cache
//! uses the latest time that it has seen. If a clock is behind by more than the time to live (and
//! by more than one second), it was set back. From then on the difference is added to the time of
//! every caller. So the cache's time continues, and an entry lives at most twice its time to live.

use crate::sync::{AtomicI64, Ordering};

/// A caller's time is limited to 140,000 years before or after 0, so that the sum of a thousand
/// jumps does not overflow.
const FARTHEST_MS: i64 = 1 << 52;
/// An entry that several threads use keeps the time of an earlier use at most this long.
const MAX_QUANTUM_MS: i64 = 64;
/// The quantum is the time to live divided by this number.
const QUANTUM_SHARE: i64 = 1024;
const MIN_TOLERANCE_MS: i64 = 1000;

/// Settings and offset of the cache's time. All loads and stores are relaxed, because a reader that
/// sees a change late only decides as if it had read before the change.
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

    /// Converts a caller's time to the cache's time.
    #[inline]
    pub fn time_ms(&self, now_ms: i64) -> i64 {
        now_ms.clamp(-FARTHEST_MS, FARTHEST_MS) + self.offset_ms.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn quantum_ms(&self) -> i64 {
        self.quantum_ms.load(Ordering::Relaxed)
    }

    /// Returns true when an entry that was last used at `used_ms` has expired.
    #[inline]
    pub fn expired(&self, used_ms: i64, time_ms: i64) -> bool {
        let ttl_ms = self.ttl_ms.load(Ordering::Relaxed);
        time_ms - used_ms >= ttl_ms && ttl_ms != i64::MAX
    }

    /// Returns true when a caller is so far behind that its clock must have been set back.
    pub fn set_back(&self, time_ms: i64, seen_ms: i64) -> bool {
        let tolerance_ms = self.ttl_ms.load(Ordering::Relaxed).max(MIN_TOLERANCE_MS);
        // `seen_ms` is the smallest i64 if no time was seen yet.
        time_ms < seen_ms.saturating_sub(tolerance_ms)
    }

    /// Continues the cache's time from `seen_ms` although callers are now behind. Called under the
    /// lock.
    pub fn continue_from(&self, seen_ms: i64, time_ms: i64) {
        let offset_ms = self.offset_ms.load(Ordering::Relaxed);
        let behind_ms = seen_ms.saturating_sub(time_ms);
        // The offset saturates at a value that leaves room for a thousand jumps over the whole
        // range.
        let room = i64::MAX / 4;
        self.offset_ms.store(offset_ms.saturating_add(behind_ms).min(room), Ordering::Relaxed);
    }
}
