//! What a cache counts when it is asked to.

use super::removal::RemovalCause;

/// Counts since the cache was made. All but `entries` and `weight_bytes` stay 0 unless
/// [`super::CacheSettings::record_stats`] is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Look-ups that found their entry.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Loads that brought a value.
    pub loads: u64,
    /// Loads that failed or were cancelled.
    pub failed_loads: u64,
    /// Time spent in loads of both kinds, by the clock of the callers.
    pub load_ms: u64,
    /// Entries removed because the bytes ran out, or that were heavier than the whole cache.
    pub removed_size: u64,
    /// Entries removed because nobody used them for too long.
    pub removed_expired: u64,
    /// Entries that somebody removed.
    pub removed_explicit: u64,
    /// Entries whose key got another value.
    pub removed_replaced: u64,
    /// Entries removed by closing.
    pub removed_closed: u64,
    /// Entries now.
    pub entries: usize,
    /// Their weights.
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
