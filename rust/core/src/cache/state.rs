//! The state under the cache's one lock: entries, LRU order and active loads.

use crate::sync::Ordering;

use super::CacheStats;
use super::clock::Clock;
use super::flight::Flights;
use super::lanes::Lanes;
use super::map::{MAX_ENTRIES, Map, Node, Owner};
use super::order::{Id, Order, Stamp};
use super::removal::{RemovalCause, Removals};

/// Number of expired entries that one put removes in addition to those that it must evict. Each put
/// adds one entry, so expired entries are removed faster than entries are added. A cache that is
/// used only for puts needs no sweeps.
const EXPIRED_PER_PUT: usize = 2;
/// Number of retired entries that one operation frees.
const FREED_AT_ONCE: usize = 256;

pub(super) struct State<K, V, E> {
    pub owner: Owner<K, V>,
    pub flights: Flights<K, V, E>,
    pub weight: u64,
    pub max_bytes: u64,
    pub closed: bool,
    pub record_stats: bool,
    pub stats: CacheStats,
    order: Order,
    /// Stamp of the last put.
    last: Stamp,
}

impl<K, V, E> State<K, V, E> {
    pub fn new(owner: Owner<K, V>, max_bytes: u64, record_stats: bool) -> Self {
        Self {
            owner,
            flights: Flights::new(),
            weight: 0,
            max_bytes,
            closed: false,
            record_stats,
            stats: CacheStats::default(),
            order: Order::new(),
            last: Stamp { ms: i64::MIN, sequence: 0 },
        }
    }

    /// Returns the cache's current time, which is not before the latest time that the caller's
    /// thread or the last put has seen.
    pub fn time_ms(&mut self, clock: &Clock, lanes: &Lanes, now_ms: i64) -> i64 {
        let seen_ms = lanes.own().map_or(i64::MIN, |lane| lane.seen_ms.load(Ordering::Relaxed));
        let time_ms = self.not_before(clock, seen_ms, now_ms);
        if let Some(lane) = lanes.own() {
            lane.seen_ms.store(time_ms, Ordering::Relaxed);
        }
        time_ms
    }

    /// Returns the cache's current time, which is not before the latest time that any thread has
    /// seen.
    pub fn latest_ms(&mut self, clock: &Clock, lanes: &Lanes, now_ms: i64) -> i64 {
        self.catch_up(lanes);
        self.time_ms(clock, lanes, now_ms)
    }

    /// Advances to the latest time that any thread has seen.
    pub fn catch_up(&mut self, lanes: &Lanes) {
        self.last.ms = self.last.ms.max(lanes.latest_ms());
    }

    fn not_before(&mut self, clock: &Clock, seen_ms: i64, now_ms: i64) -> i64 {
        let seen_ms = seen_ms.max(self.last.ms);
        let time_ms = clock.time_ms(now_ms);
        if clock.set_back(time_ms, seen_ms) {
            clock.continue_from(seen_ms, time_ms);
        }
        self.last.ms = time_ms.max(seen_ms);
        self.last.ms
    }

    fn stamp(&mut self, lanes: &Lanes) -> Stamp {
        let lane = lanes.own();
        let used = lane.map_or(0, |lane| lane.sequence.load(Ordering::Relaxed));
        self.last.sequence = self.last.sequence.max(used) + 1;
        if let Some(lane) = lane {
            // Later uses by this thread get larger sequence numbers than this put.
            lane.sequence.store(self.last.sequence, Ordering::Relaxed);
        }
        self.last
    }

    /// Removes the entry that `id` names, if it was not removed before.
    pub fn remove(
        &mut self,
        map: &Map<K, V>,
        id: Id,
        cause: RemovalCause,
        removals: &mut Removals<K, V>,
    ) -> bool {
        let Some(removed) = self.owner.unlink(map, id) else { return false };
        self.weight -= removed.weight;
        self.count(cause);
        removals.push(removed, cause);
        true
    }

    fn count(&mut self, cause: RemovalCause) {
        if self.record_stats {
            self.stats.count_removal(cause);
        }
    }

    /// Returns true when an entry has expired at the latest time that this state has seen.
    pub fn expired(&self, clock: &Clock, id: Id) -> bool {
        self.owner.node(id).is_some_and(|node| clock.expired(node.used.ms(), self.last.ms))
    }

    /// Puts an entry and returns whether it was kept. Entries are evicted first, so the limit holds
    /// at every moment. The caller has called `time_ms` before.
    pub fn put(
        &mut self,
        map: &Map<K, V>,
        clock: &Clock,
        mut node: Box<Node<K, V>>,
        weight: u64,
        removals: &mut Removals<K, V>,
    ) -> bool
    where
        K: Eq,
    {
        let old = self.owner.find(map, node.hash, &node.key);
        if weight > self.max_bytes {
            if let Some(old) = old {
                self.remove(map, old, RemovalCause::Replaced, removals);
            }
            self.count(RemovalCause::Size);
            removals.refused = Some((node, weight));
            return false;
        }
        let stamp = self.stamp(&map.lanes);
        node.used.put(stamp);
        let id = if let Some(old) = old {
            let cause = match self.expired(clock, old) {
                true => RemovalCause::Expired,
                false => RemovalCause::Replaced,
            };
            self.weight -= self.owner.weight(old);
            self.make_room(map, clock, weight, Some(old), removals);
            let Some((id, removed)) = self.owner.replace(map, old, node, weight) else {
                return false;
            };
            self.count(cause);
            removals.push(removed, cause);
            id
        } else {
            self.make_room(map, clock, weight, None, removals);
            self.owner.link(map, node, weight)
        };
        self.weight += weight;
        self.order.push(stamp, id);
        true
    }

    fn make_room(
        &mut self,
        map: &Map<K, V>,
        clock: &Clock,
        weight: u64,
        replaced: Option<Id>,
        removals: &mut Removals<K, V>,
    ) {
        let most = self.max_bytes - weight;
        let mut expired = 0;
        while let Some((stamp, id)) = self.oldest() {
            let must = self.weight > most || self.owner.len() >= MAX_ENTRIES;
            let cause = match clock.expired(stamp.ms, self.last.ms) {
                true => RemovalCause::Expired,
                false => RemovalCause::Size,
            };
            if !must && (cause == RemovalCause::Size || expired == EXPIRED_PER_PUT) {
                return;
            }
            self.order.pop_oldest();
            // `put` removes the replaced entry itself.
            if Some(id) != replaced {
                expired += usize::from(!must);
                self.remove(map, id, cause, removals);
            }
        }
    }

    fn oldest(&mut self) -> Option<(Stamp, Id)> {
        let owner = &self.owner;
        self.order.oldest(|id| owner.node(id).map(|node| node.used.stamp()))
    }

    /// Removes up to `most` expired entries and returns their number.
    pub fn expire(
        &mut self,
        map: &Map<K, V>,
        clock: &Clock,
        most: usize,
        removals: &mut Removals<K, V>,
    ) -> usize {
        let mut removed = 0;
        while removed < most
            && let Some((stamp, id)) = self.oldest()
            && clock.expired(stamp.ms, self.last.ms)
        {
            self.order.pop_oldest();
            self.remove(map, id, RemovalCause::Expired, removals);
            removed += 1;
        }
        removed
    }

    /// Removes up to `most` entries while the weights exceed the limit. Returns whether the weights
    /// are now within the limit.
    pub fn shrink(
        &mut self,
        map: &Map<K, V>,
        clock: &Clock,
        most: usize,
        removals: &mut Removals<K, V>,
    ) -> bool {
        let mut removed = 0;
        while removed < most && self.weight > self.max_bytes {
            let Some((stamp, id)) = self.oldest() else { break };
            self.order.pop_oldest();
            let cause = match clock.expired(stamp.ms, self.last.ms) {
                true => RemovalCause::Expired,
                false => RemovalCause::Size,
            };
            self.remove(map, id, cause, removals);
            removed += 1;
        }
        self.weight <= self.max_bytes
    }

    /// Drops removed entries from the order, and moves retired entries that can be freed to
    /// `removals`. Called before the lock is released.
    pub fn tidy(&mut self, map: &Map<K, V>, removals: &mut Removals<K, V>) {
        let owner = &mut self.owner;
        self.order.tidy(owner.len(), |id| owner.node(id).is_some());
        if owner.retired() == 0 {
            return;
        }
        let quiet = map.lanes.quiet();
        while removals.garbage.len() < FREED_AT_ONCE
            && let Some(removed) = owner.take_retired(quiet)
        {
            removals.garbage.push(removed);
        }
    }
}
