//! A map with a bound in bytes that forgets what was used longest ago, and what nobody has used
//! for some time; one load for all who miss the same key.
//!
//! * **The bound is hard**: room is made before an entry is put. An entry heavier than the whole
//!   cache is not kept. Only the weights given count, not the memory of keys and the table.
//! * **A hit takes no lock** and waits for nobody. It leaves a stamp in its entry; order is made
//!   from the stamps when room is needed. One thread alone sees exact LRU and exact expiry; an
//!   entry used by several threads keeps its stamp for up to 64 ms or 1/1024 of the time to live.
//! * **An entry that is too old is never returned.** It leaves memory with a later put or the next
//!   [`Cache::sweep`]; nothing runs by itself.
//! * **Time is an argument**, in milliseconds. The cache's own time never goes back: see `clock`.
//! * **No code of the user runs under the lock** but `Eq` of keys, which must not use the cache.
//!   Values are dropped by the thread that removes them, or by a later writer if somebody was
//!   looking at that moment.

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

/// Entries removed under one hold of the lock by operations that may remove many.
const BATCH: usize = 256;

/// What a cache is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// The bound on the sum of all weights.
    pub max_bytes: u64,
    /// How long an entry stays after its last use; `None` is for ever.
    pub ttl_ms: Option<u64>,
    /// Whether to count what [`CacheStats`] says.
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

/// The cache. `E` is what loaders fail with.
pub struct Cache<K, V, E = Infallible, S = RandomState> {
    map: Map<K, V>,
    clock: Clock,
    hasher: S,
    record_stats: bool,
    listener: Option<RemovalListener<K, V>>,
    apart: Apart<State<K, V, E>>,
}

/// What writers write, away from what every hit reads.
#[repr(align(128))]
struct Apart<T> {
    state: Mutex<T>,
    // Copies for those who only want to know.
    entries: AtomicUsize,
    weight: AtomicU64,
    closed: AtomicBool,
}

impl<K: Hash + Eq + Clone, V: Clone, E> Cache<K, V, E> {
    /// An empty cache.
    pub fn new(settings: CacheSettings) -> Self {
        Self::with_hasher(settings, None, RandomState::default())
    }

    /// An empty cache that tells `listener` of every removal.
    pub fn with_listener(settings: CacheSettings, listener: RemovalListener<K, V>) -> Self {
        Self::with_hasher(settings, Some(listener), RandomState::default())
    }
}

impl<K, V, E, S> Cache<K, V, E, S> {
    /// An empty cache with a hasher of the caller's.
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

    /// Entries in the cache, those among them that are too old included.
    pub fn len(&self) -> usize {
        self.apart.entries.load(Ordering::Relaxed)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sum of their weights.
    pub fn weight_bytes(&self) -> u64 {
        self.apart.weight.load(Ordering::Relaxed)
    }

    /// The bound on it.
    pub fn max_bytes(&self) -> u64 {
        self.lock().max_bytes
    }

    /// Whether [`Cache::close`] was called. Look-ups find nothing from then on.
    pub fn is_closed(&self) -> bool {
        self.apart.closed.load(Ordering::Relaxed)
    }

    /// What was counted so far.
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

    /// Changes the bound. The new one holds when this returns.
    pub fn resize(&self, max_bytes: u64) {
        {
            let mut state = self.lock();
            state.max_bytes = max_bytes;
            // For the cause: what was too old at the last use of the cache did expire.
            state.catch_up(&self.map.lanes);
        }
        while !self.write(|state, out| state.shrink(&self.map, &self.clock, BATCH, out)) {}
    }

    /// Changes how long entries stay after their last use, for those that are there, too.
    pub fn set_ttl(&self, ttl_ms: Option<u64>) {
        self.clock.set_ttl(ttl_ms);
    }

    /// Removes every entry that is too old and frees whatever nobody looks at any more. Says how
    /// many entries it removed.
    pub fn sweep(&self, now_ms: i64) -> usize {
        let (mut removed, mut aside) = (0, usize::MAX);
        loop {
            let (batch, still_aside) = self.write(|state, out| {
                state.latest_ms(&self.clock, &self.map.lanes, now_ms);
                let batch = state.expire(&self.map, &self.clock, BATCH, out);
                (batch, state.owner.retired())
            });
            removed += batch;
            // As long as there is something to free, and some of it was freed the last time.
            if batch < BATCH && (still_aside == 0 || still_aside >= aside) {
                return removed;
            }
            aside = still_aside;
        }
    }

    /// Removes every entry whose key the predicate says yes to, and does not keep what is being
    /// loaded for such keys. The predicate runs without the lock. Entries put meanwhile may not be
    /// asked about. Says how many entries it removed.
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

    /// Removes everything, wakes everybody who waits for a load with [`LoadError::Closed`], and
    /// keeps nothing from then on.
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
            flight.land(Outcome::Closed);
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
        // Whoever panics under the lock (`Eq` of a key) does so before anything was changed.
        self.apart.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something under the lock; tells and frees what it removed afterwards.
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
            disposal.removals.tell(listener);
        }
        result
    }

    /// The cache's time now, for a reader.
    #[inline]
    fn time_ms(&self, pinned: &Pinned<'_, K, V>, now_ms: i64) -> i64 {
        let time_ms = self.clock.time_ms(now_ms);
        let seen_ms = pinned.pin.see(time_ms);
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
        // A reader does not wait: if there is a writer, the next look-up will do.
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
    /// The value of a key, used at `now_ms`.
    #[inline]
    pub fn get<Q>(&self, key: &Q, now_ms: i64) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.get_with(key, now_ms, V::clone)
    }

    /// What `look` makes of the value of a key, used at `now_ms`, without a clone. What is removed
    /// meanwhile by anybody is freed only after `look` has returned; it may use the cache.
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

    /// Whether a look-up would find the key. That is no use of it.
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

    /// Puts a value. Says whether it was kept: not if it is heavier than the whole cache. What was
    /// there under the key is gone in either case, and a load of it under way is not kept.
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

    /// Removes a key; says whether it was there. A load of it under way is not kept.
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

/// Frees what one operation removed, or lays it aside, also if the listener panics.
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
