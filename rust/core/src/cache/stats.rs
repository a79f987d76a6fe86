//! Counters of a cache.

use super::removal::RemovalCause;

/// Counts since the cache was created. Unless [`super::CacheSettings::record_stats`] is set, all
/// fields except `entries` and `weight_bytes` stay 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Look-ups that found their entry.
    pub hits: u64,
    /// Look-ups that did not find their entry.
    pub misses: u64,
    /// Loads that returned a value.
    pub loads: u64,
    /// Loads that failed or were cancelled.
    pub failed_loads: u64,
    /// Time spent in all loads, by the callers' clocks.
    pub load_ms: u64,
    /// Entries evicted to make space, or heavier than the whole cache.
    pub removed_size: u64,
    /// Entries that expired.
    pub removed_expired: u64,
    /// Entries that the caller removed.
    pub removed_explicit: u64,
    /// Entries whose key was put again.
    pub removed_replaced: u64,
    /// Entries removed when the cache was closed.
    pub removed_closed: u64,
    /// Current number of entries.
    pub entries: usize,
    /// Current sum of the weights of all entries.
    pub weight_bytes: u64,
}

impl CacheStats {
    pub(super) fn count_removal(&mut self, cause: RemovalCause) {
        *match cause {
            RemovalCause::Size => &mut self.removed_size,
            RemovalCause::Expired => &mut self.removed_expired,
            RemovalCause::Explicit => &mut self.removed_explicit,
            RemovalCause::Replaced => &mut self.removed_replaced,
            RemovalCause::Closed => &mut self.removed_closed,
        } += 1;
    }
}
