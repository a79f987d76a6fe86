//! Active loads: one thread loads a key, and all other threads that ask for it wait for the
//! outcome.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::sync::{Condvar, Mutex, MutexGuard, ThreadId, current_thread};

use super::{Cache, Closed};

/// How a load ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<V, E> {
    /// The value.
    Loaded(V),
    /// The error, the same for all waiters.
    Failed(E),
    /// The ticket was dropped; waiters should start again.
    Cancelled,
    /// The cache was closed during the load.
    Closed,
}

/// The reason why no value is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError<E> {
    /// The loader's error.
    Failed(E),
    /// The load of another thread took longer than the caller's timeout. That load continues.
    TimedOut,
    /// This thread is already loading that key and would wait for itself.
    Reentrant,
    /// The load of that key waits for a load of this thread, so both would wait forever.
    Deadlock,
    /// The cache is closed.
    Closed,
}

impl<E: fmt::Display> fmt::Display for LoadError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::TimedOut => f.write_str("the active load took longer than the timeout"),
            Self::Reentrant => f.write_str("the loader asked for the key it is loading"),
            Self::Deadlock => {
                f.write_str("the loader asked for a key whose load waits for this loader")
            }
            Self::Closed => f.write_str("the cache is closed"),
        }
    }
}

impl<E: std::error::Error> std::error::Error for LoadError<E> {}

pub(super) struct Flight<K, V, E> {
    pub hash: u64,
    pub key: K,
    loader: ThreadId,
    /// Threads that wait for this load; [`Flights::would_deadlock`] reads them.
    waiting: Mutex<Vec<ThreadId>>,
    /// Used only to wait; `outcome` can be read without this lock.
    landed: Mutex<bool>,
    wake: Condvar,
    outcome: OnceLock<Outcome<V, E>>,
}

impl<K, V, E> Flight<K, V, E> {
    pub fn new(hash: u64, key: K) -> Arc<Self> {
        Arc::new(Self {
            hash,
            key,
            loader: current_thread(),
            waiting: Mutex::new(Vec::new()),
            landed: Mutex::new(false),
            wake: Condvar::new(),
            outcome: OnceLock::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.landed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the outcome if there is none yet, and wakes all waiters.
    pub fn set_outcome(&self, outcome: Outcome<V, E>) {
        // A rejected value must not be dropped under the lock.
        let unused = {
            let mut landed = self.lock();
            *landed = true;
            self.outcome.set(outcome)
        };
        self.wake.notify_all();
        drop(unused);
    }

    pub fn is_mine(&self) -> bool {
        self.loader == current_thread()
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<ThreadId>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A load of another thread.
pub struct Waiter<K, V, E> {
    flight: Arc<Flight<K, V, E>>,
    thread: ThreadId,
}

impl<K, V, E> Waiter<K, V, E> {
    /// Registers this thread as a waiter. The caller holds the lock of the loads.
    pub(super) fn join(flight: &Arc<Flight<K, V, E>>) -> Self {
        let thread = current_thread();
        flight.waiting().push(thread);
        Self { flight: Arc::clone(flight), thread }
    }

    /// Waits for the outcome, at most `timeout` long, and returns `None` on a timeout.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<&Outcome<V, E>> {
        let mut landed = self.flight.lock();
        #[cfg(not(tierlog_loom))]
        if let Some(timeout) = timeout {
            let (still, _) = self
                .flight
                .wake
                .wait_timeout_while(landed, timeout, |landed| !*landed)
                .unwrap_or_else(PoisonError::into_inner);
            drop(still);
            return self.flight.outcome.get();
        }
        #[cfg(tierlog_loom)]
        assert!(timeout.is_none(), "models have no clock");
        while !*landed {
            landed = self.flight.wake.wait(landed).unwrap_or_else(PoisonError::into_inner);
        }
        drop(landed);
        self.flight.outcome.get()
    }
}

impl<K, V, E> Drop for Waiter<K, V, E> {
    fn drop(&mut self) {
        let mut waiting = self.flight.waiting();
        if let Some(index) = waiting.iter().position(|thread| *thread == self.thread) {
            waiting.swap_remove(index);
        }
    }
}

type SameHash<K, V, E> = Vec<Arc<Flight<K, V, E>>>;

/// All active loads that another thread can join and whose values the cache will keep.
pub(super) struct Flights<K, V, E> {
    by_hash: HashMap<u64, SameHash<K, V, E>, RandomState>,
}

impl<K, V, E> Flights<K, V, E> {
    pub fn new() -> Self {
        Self { by_hash: HashMap::default() }
    }

    pub fn find<Q>(&self, hash: u64, key: &Q) -> Option<&Arc<Flight<K, V, E>>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.by_hash.get(&hash)?.iter().find(|flight| flight.key.borrow() == key)
    }

    /// Returns true when the load of `wanted` waits for a load of this thread, directly or through
    /// loads of other threads. A thread waits for one load at a time, so the search follows one
    /// path.
    pub fn would_deadlock(&self, wanted: &Arc<Flight<K, V, E>>) -> bool {
        let flights = self.all();
        if !flights.iter().any(|flight| flight.is_mine()) {
            return false;
        }
        let mut next = Some(wanted);
        for _ in 0..=flights.len() {
            let Some(flight) = next else { return false };
            if flight.is_mine() {
                return true;
            }
            next = flights.iter().find(|other| other.waiting().contains(&flight.loader));
        }
        false
    }

    pub fn insert(&mut self, flight: Arc<Flight<K, V, E>>) {
        self.by_hash.entry(flight.hash).or_default().push(flight);
    }

    pub fn all(&self) -> Vec<Arc<Flight<K, V, E>>> {
        self.by_hash.values().flatten().cloned().collect()
    }

    /// Removes a load. Threads that ask for its key later do not get its value.
    pub fn take<Q>(&mut self, hash: u64, key: &Q) -> Option<Arc<Flight<K, V, E>>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.take_where(hash, |flight| flight.key.borrow() == key)
    }

    /// Removes this load unless it was removed before.
    pub fn take_same(&mut self, same: &Arc<Flight<K, V, E>>) -> Option<Arc<Flight<K, V, E>>> {
        self.take_where(same.hash, |flight| Arc::ptr_eq(flight, same))
    }

    fn take_where(
        &mut self,
        hash: u64,
        wanted: impl Fn(&Arc<Flight<K, V, E>>) -> bool,
    ) -> Option<Arc<Flight<K, V, E>>> {
        let flights = self.by_hash.get_mut(&hash)?;
        let index = flights.iter().position(wanted)?;
        let flight = flights.swap_remove(index);
        if flights.is_empty() {
            self.by_hash.remove(&hash);
        }
        Some(flight)
    }
}

/// The right and duty to load a value. Dropping the ticket cancels the load.
pub struct Ticket<'a, K, V, E, S> {
    pub(super) cache: &'a Cache<K, V, E, S>,
    pub(super) flight: Arc<Flight<K, V, E>>,
    pub(super) began_ms: i64,
    pub(super) open: bool,
}

impl<K, V, E, S> Ticket<'_, K, V, E, S> {
    /// Returns the key to load.
    pub fn key(&self) -> &K {
        &self.flight.key
    }

    /// Puts the value into the cache and passes it to all waiters. If the key was removed or put
    /// during the load, or if the value is too heavy, the value is not put and this returns false.
    pub fn finish(mut self, value: V, weight: u64, now_ms: i64) -> Result<bool, Closed>
    where
        K: Clone + Eq,
        V: Clone,
    {
        self.open = false;
        let load_ms = now_ms.saturating_sub(self.began_ms);
        self.cache.finish(&self.flight, value, weight, now_ms, load_ms)
    }

    /// Passes the error to all waiters and puts nothing into the cache.
    pub fn fail(mut self, error: E, now_ms: i64) {
        self.open = false;
        let load_ms = now_ms.saturating_sub(self.began_ms);
        self.cache.give_up(&self.flight, Outcome::Failed(error), load_ms);
    }
}

impl<K, V, E, S> Drop for Ticket<'_, K, V, E, S> {
    fn drop(&mut self) {
        if self.open {
            self.cache.give_up(&self.flight, Outcome::Cancelled, 0);
        }
    }
}

/// Result of [`Cache::begin_load`].
pub enum Begun<'a, K, V, E, S> {
    /// The value is in the cache.
    Hit(V),
    /// The caller has to load the value.
    Load(Ticket<'a, K, V, E, S>),
    /// Another thread is loading the value.
    Wait(Waiter<K, V, E>),
}
