//! A map with a byte limit, LRU eviction and expiry after access. All threads that miss the same
//! key share one load.
//!
//! * **The bound is hard**: entries are evicted before a new one is put. An entry heavier than the
//!   whole cache is not kept. Only the given weights count, not the memory of keys and table.
//! * **A hit takes no lock** and never waits. It writes a stamp into its entry; the LRU order is
//!   built from the stamps when an entry has to be evicted. A cache used by one thread has exact
//!   LRU order and exact expiry. An entry used by several threads keeps its stamp for up to 64 ms
//!   or 1/1024 of the time to live.
//! * **An expired entry is never returned.** A later put or the next [`Cache::sweep`] frees its
//!   memory; there is no background task.
//! * **Time is an argument**, in milliseconds. The cache's own time never goes back: see `clock`.
//! * **No user code runs under the lock** except `Eq` of keys, which must not use the cache. The
//!   thread that removes a value drops it, or a later writer does when a reader was using it.

mod clock;
mod flight;
mod lanes;
mod load;
#[cfg(all(test, tierlog_loom))]
mod loom_models;
mod map;
mod order;
mod removal;
mod state;
mod stats;
mod used;

use std::borrow::Borrow;
use std::convert::Infallible;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::PoisonError;

use foldhash::fast::RandomState;

use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};

use clock::Clock;
pub use flight::{Begun, LoadError, Outcome, Ticket, Waiter};
use map::{Map, Node, Pinned};
use order::Id;
use removal::Removals;
pub use removal::{RemovalCause, RemovalListener};
use state::State;
pub use stats::CacheStats;

/// Number of entries that a bulk operation removes before it releases the lock.
const BATCH: usize = 256;

/// Settings of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// Limit on the sum of all weights.
    pub max_bytes: u64,
    /// How long an entry stays after its last use; `None` is forever.
    pub ttl_ms: Option<u64>,
    /// Whether to maintain the counters of [`CacheStats`].
    pub record_stats: bool,
}

/// The cache was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the cache is closed")
    }
}

impl std::error::Error for Closed {}

/// The cache. `E` is the error type of loaders.
pub struct Cache<K, V, E = Infallible, S = RandomState> {
    map: Map<K, V>,
    clock: Clock,
    hasher: S,
    record_stats: bool,
    listener: Option<RemovalListener<K, V>>,
    apart: Apart<State<K, V, E>>,
}

/// Values that writers change, on other cache lines than those that every hit reads.
#[repr(align(128))]
struct Apart<T> {
    state: Mutex<T>,
    // Copies for readers without the lock.
    entries: AtomicUsize,
    weight: AtomicU64,
    closed: AtomicBool,
}

impl<K: Hash + Eq + Clone, V: Clone, E> Cache<K, V, E> {
    /// Creates an empty cache.
    pub fn new(settings: CacheSettings) -> Self {
        Self::with_hasher(settings, None, RandomState::default())
    }

    /// Creates an empty cache that calls `listener` for every removal.
    pub fn with_listener(settings: CacheSettings, listener: RemovalListener<K, V>) -> Self {
        Self::with_hasher(settings, Some(listener), RandomState::default())
    }
}

impl<K, V, E, S> Cache<K, V, E, S> {
    /// Creates an empty cache with the caller's hasher.
    pub fn with_hasher(
        settings: CacheSettings,
        listener: Option<RemovalListener<K, V>>,
        hasher: S,
    ) -> Self {
        let (map, owner) = Map::new();
        let state = State::new(owner, settings.max_bytes, settings.record_stats);
        Self {
            map,
            clock: Clock::new(settings.ttl_ms),
            hasher,
            record_stats: settings.record_stats,
            listener,
            apart: Apart {
                state: Mutex::new(state),
                entries: AtomicUsize::new(0),
                weight: AtomicU64::new(0),
                closed: AtomicBool::new(false),
            },
        }
    }

    /// Returns the number of entries, including expired ones.
    pub fn len(&self) -> usize {
        self.apart.entries.load(Ordering::Relaxed)
    }

    /// Returns true when the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sum of the weights.
    pub fn weight_bytes(&self) -> u64 {
        self.apart.weight.load(Ordering::Relaxed)
    }

    /// Returns the limit on that sum.
    pub fn max_bytes(&self) -> u64 {
        self.lock().max_bytes
    }

    /// Returns true after [`Cache::close`]. Look-ups then find nothing.
    pub fn is_closed(&self) -> bool {
        self.apart.closed.load(Ordering::Relaxed)
    }

    /// Returns the counters.
    pub fn stats(&self) -> CacheStats {
        let state = self.lock();
        let lanes = &self.map.lanes;
        let mut stats = state.stats;
        stats.hits = lanes.guest_hits.load(Ordering::Relaxed);
        stats.misses = lanes.guest_misses.load(Ordering::Relaxed);
        for lane in lanes.opened() {
            stats.hits += lane.hits.load(Ordering::Relaxed);
            stats.misses += lane.misses.load(Ordering::Relaxed);
        }
        stats.entries = state.owner.len();
        stats.weight_bytes = state.weight;
        stats
    }

    /// Changes the limit. The new limit is enforced when this returns.
    pub fn resize(&self, max_bytes: u64) {
        {
            let mut state = self.lock();
            state.max_bytes = max_bytes;
            // Entries that had expired at the last use of the cache are removed with cause
            // `Expired`.
            state.catch_up(&self.map.lanes);
        }
        while !self.write(|state, out| state.shrink(&self.map, &self.clock, BATCH, out)) {}
    }

    /// Changes the time to live after the last use, for existing entries, too.
    pub fn set_ttl(&self, ttl_ms: Option<u64>) {
        self.clock.set_ttl(ttl_ms);
    }

    /// Removes every expired entry and frees removed entries that no reader uses any more. Returns
    /// the number of removed entries.
    pub fn sweep(&self, now_ms: i64) -> usize {
        let (mut removed, mut aside) = (0, usize::MAX);
        loop {
            let (batch, still_aside) = self.write(|state, out| {
                state.latest_ms(&self.clock, &self.map.lanes, now_ms);
                let batch = state.expire(&self.map, &self.clock, BATCH, out);
                (batch, state.owner.retired())
            });
            removed += batch;
            // Continue while entries remain to be freed and the last round freed some.
            if batch < BATCH && (still_aside == 0 || still_aside >= aside) {
                return removed;
            }
            aside = still_aside;
        }
    }

    /// Removes every entry whose key matches the predicate, and does not keep active loads of such
    /// keys. The predicate runs without the lock. It may not see entries that are put meanwhile.
    /// Returns the number of removed entries.
    pub fn remove_if(&self, mut predicate: impl FnMut(&K) -> bool) -> usize {
        let (ids, flights) = {
            let state = self.lock();
            (state.owner.ids().collect::<Vec<_>>(), state.flights.all())
        };
        for flight in flights.into_iter().filter(|flight| predicate(&flight.key)) {
            drop(self.write(|state, _| state.flights.take_same(&flight)));
        }
        let mut removed = 0;
        for batch in ids.chunks(BATCH) {
            let chosen = self.choose(batch, &mut predicate);
            removed += self.write(|state, out| {
                let remove = |id: &&Id| state.remove(&self.map, **id, RemovalCause::Explicit, out);
                chosen.iter().filter(remove).count()
            });
        }
        removed
    }

    fn choose(&self, ids: &[Id], predicate: &mut impl FnMut(&K) -> bool) -> Vec<Id> {
        let pinned = self.map.enter();
        let nodes: Vec<_> = {
            let state = self.lock();
            ids.iter().filter_map(|&id| Some((id, pinned.keep(&state.owner, id)?))).collect()
        };
        let chosen = nodes.into_iter().filter(|(_, node)| predicate(&node.key));
        chosen.map(|(id, _)| id).collect()
    }

    /// Removes everything, ends every wait for a load with [`LoadError::Closed`], and keeps nothing
    /// from then on.
    pub fn close(&self) {
        self.apart.closed.store(true, Ordering::Relaxed);
        let flights = self.write(|state, _| {
            state.closed = true;
            let flights = state.flights.all();
            for flight in &flights {
                drop(state.flights.take_same(flight));
            }
            flights
        });
        for flight in flights {
            flight.set_outcome(Outcome::Closed);
        }
        let ids: Vec<_> = self.lock().owner.ids().collect();
        for batch in ids.chunks(BATCH) {
            self.write(|state, out| {
                for &id in batch {
                    state.remove(&self.map, id, RemovalCause::Closed, out);
                }
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<K, V, E>> {
        // A panic under the lock (in `Eq` of a key) happens before anything was changed.
        self.apart.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` under the lock, then notifies the listener and frees what was removed.
    fn write<R>(&self, work: impl FnOnce(&mut State<K, V, E>, &mut Removals<K, V>) -> R) -> R {
        let mut disposal = Disposal { cache: self, removals: Removals::new() };
        let result = {
            let mut state = self.lock();
            let result = work(&mut state, &mut disposal.removals);
            state.tidy(&self.map, &mut disposal.removals);
            self.apart.entries.store(state.owner.len(), Ordering::Relaxed);
            self.apart.weight.store(state.weight, Ordering::Relaxed);
            result
        };
        if let Some(listener) = &self.listener {
            disposal.removals.notify(listener);
        }
        result
    }

    /// Returns the cache's current time for a reader.
    #[inline]
    fn time_ms(&self, pinned: &Pinned<'_, K, V>, now_ms: i64) -> i64 {
        let time_ms = self.clock.time_ms(now_ms);
        let seen_ms = pinned.pin.raise_seen_ms(time_ms);
        if time_ms > seen_ms {
            return time_ms;
        }
        if time_ms < seen_ms && self.clock.set_back(time_ms, seen_ms) {
            self.set_back(now_ms);
        }
        seen_ms
    }

    #[cold]
    fn set_back(&self, now_ms: i64) {
        // A reader does not wait: if there is a writer, the next look-up retries.
        if let Ok(mut state) = self.apart.state.try_lock() {
            state.time_ms(&self.clock, &self.map.lanes, now_ms);
        }
    }
}

impl<K, V, E, S> Cache<K, V, E, S>
where
    K: Hash + Eq + Clone,
    V: Clone,
    S: BuildHasher,
{
    /// Returns the value of a key and marks it as used at `now_ms`.
    #[inline]
    pub fn get<Q>(&self, key: &Q, now_ms: i64) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.get_with(key, now_ms, V::clone)
    }

    /// Returns the result of `look` on the value of a key, used at `now_ms`, without a clone.
    /// Entries removed meanwhile are freed only after `look` has returned. `look` may use the
    /// cache.
    #[inline]
    pub fn get_with<Q, R>(&self, key: &Q, now_ms: i64, look: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        let pinned = self.map.enter();
        let found = self.look_up(&pinned, hash, key, now_ms);
        if self.record_stats {
            pinned.pin.count(found.is_some());
        }
        found.map(|node| {
            let seen = look(&node.value);
            node.assert_alive();
            seen
        })
    }

    #[inline]
    fn look_up<'p, Q>(
        &self,
        pinned: &'p Pinned<'_, K, V>,
        hash: u64,
        key: &Q,
        now_ms: i64,
    ) -> Option<&'p Node<K, V>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let time_ms = self.time_ms(pinned, now_ms);
        let node = pinned.find(hash, key)?;
        if self.clock.expired(node.used.ms(), time_ms) {
            return None;
        }
        node.used.touch(&node.user, &pinned.pin, time_ms, self.clock.quantum_ms());
        Some(node)
    }

    /// Returns true when a look-up would find the key. Does not count as a use.
    pub fn contains<Q>(&self, key: &Q, now_ms: i64) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        let pinned = self.map.enter();
        let time_ms = self.time_ms(&pinned, now_ms);
        let node = pinned.find(hash, key);
        node.is_some_and(|node| !self.clock.expired(node.used.ms(), time_ms))
    }

    /// Puts a value and returns whether it was kept; a value heavier than the whole cache is not.
    /// Either way the previous value of the key is removed, and an active load of the key is not
    /// kept.
    pub fn put(&self, key: K, value: V, weight: u64, now_ms: i64) -> Result<bool, Closed> {
        let hash = self.hasher.hash_one(&key);
        let node = Node::new(hash, key, value);
        let (kept, flight) = self.write(|state, out| {
            if state.closed {
                return (Err(node), None);
            }
            let flight = state.flights.take(hash, &node.key);
            state.time_ms(&self.clock, &self.map.lanes, now_ms);
            (Ok(state.put(&self.map, &self.clock, node, weight, out)), flight)
        });
        drop(flight);
        kept.map_err(|_| Closed)
    }

    /// Removes a key and returns whether it was in the cache. If a load of this key is in progress,
    /// its result is not put into the cache.
    pub fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        let (removed, flight) = self.write(|state, out| {
            let flight = state.flights.take(hash, key);
            let id = state.owner.find(&self.map, hash, key);
            let cause = RemovalCause::Explicit;
            (id.is_some_and(|id| state.remove(&self.map, id, cause, out)), flight)
        });
        drop(flight);
        removed
    }
}

/// Frees or retires what one operation removed, even if the listener panics.
struct Disposal<'a, K, V, E, S> {
    cache: &'a Cache<K, V, E, S>,
    removals: Removals<K, V>,
}

impl<K, V, E, S> Drop for Disposal<'_, K, V, E, S> {
    fn drop(&mut self) {
        if self.removals.len() + self.removals.garbage.len() == 0 {
            return;
        }
        let quiet = self.cache.map.lanes.quiet();
        let mut kept = Vec::new();
        kept.extend(self.removals.take().filter_map(|removed| removed.free(quiet).err()));
        if !kept.is_empty() {
            let mut state = self.cache.lock();
            for removed in kept {
                state.owner.retire(removed);
            }
        }
    }
}

impl<K, V, E, S> Drop for Cache<K, V, E, S> {
    fn drop(&mut self) {
        self.close();
        let mut state = self.apart.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.owner.free_all(&mut self.map);
    }
}
