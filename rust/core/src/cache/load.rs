//! Loads: the first thread that misses a key loads it, and the others wait.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

use super::flight::{Begun, Flight, LoadError, Outcome, Ticket, Waiter};
use super::map::Node;
use super::removal::RemovalCause;
use super::{Cache, Closed};

impl<K, V, E, S> Cache<K, V, E, S>
where
    K: Hash + Eq + Clone,
    V: Clone,
    S: BuildHasher,
{
    /// Returns the value of a key. If the cache does not hold the key, calls `loader`, which
    /// returns the value and its weight. If another thread is loading the key, waits for that load,
    /// at most `timeout` long. If that load is cancelled, starts again with a new timeout. `clock`
    /// returns the current time.
    pub fn get_or_load(
        &self,
        key: &K,
        clock: impl Fn() -> i64,
        timeout: Option<Duration>,
        loader: impl FnOnce(&K) -> Result<(V, u64), E>,
    ) -> Result<V, LoadError<E>>
    where
        E: Clone,
    {
        loop {
            match self.begin_load(key, clock())? {
                Begun::Hit(value) => return Ok(value),
                Begun::Load(ticket) => {
                    return match loader(key) {
                        Ok((value, weight)) => {
                            match ticket.finish(value.clone(), weight, clock()) {
                                Ok(_) => Ok(value),
                                Err(Closed) => Err(LoadError::Closed),
                            }
                        }
                        Err(error) => {
                            ticket.fail(error.clone(), clock());
                            Err(LoadError::Failed(error))
                        }
                    };
                }
                Begun::Wait(waiter) => match waiter.wait(timeout) {
                    Some(Outcome::Loaded(value)) => return Ok(value.clone()),
                    Some(Outcome::Failed(error)) => return Err(LoadError::Failed(error.clone())),
                    Some(Outcome::Cancelled) => {}
                    Some(Outcome::Closed) => return Err(LoadError::Closed),
                    None => return Err(LoadError::TimedOut),
                },
            }
        }
    }

    /// Does the first half of [`Cache::get_or_load`], for callers that load the value themselves.
    /// Returns the value, the right to load it, or another thread's load to wait for.
    pub fn begin_load(&self, key: &K, now_ms: i64) -> Result<Begun<'_, K, V, E, S>, LoadError<E>> {
        let hash = self.hasher.hash_one(key);
        let pinned = self.map.enter();
        if let Some(node) = self.look_up(&pinned, hash, key, now_ms) {
            if self.record_stats {
                pinned.pin.count(true);
            }
            return Ok(Begun::Hit(node.value.clone()));
        }
        let flight = Flight::new(hash, key.clone());
        let found = self.write(|state, out| {
            if state.closed {
                return Err(LoadError::Closed);
            }
            state.time_ms(&self.clock, &self.map.lanes, now_ms);
            // Another thread may have loaded the value since the look-up.
            if let Some(id) = state.owner.find(&self.map, hash, key) {
                if !state.expired(&self.clock, id) {
                    return Ok((pinned.keep(&state.owner, id), None));
                }
                state.remove(&self.map, id, RemovalCause::Expired, out);
            }
            match state.flights.find(hash, key) {
                Some(other) if other.is_mine() => Err(LoadError::Reentrant),
                Some(other) if state.flights.would_deadlock(other) => Err(LoadError::Deadlock),
                Some(other) => Ok((None, Some(Waiter::join(other)))),
                None => {
                    state.flights.insert(Arc::clone(&flight));
                    Ok((None, None))
                }
            }
        });
        if self.record_stats {
            pinned.pin.count(matches!(found, Ok((Some(_), _))));
        }
        Ok(match found? {
            (Some(node), _) => Begun::Hit(node.value.clone()),
            (None, Some(other)) => Begun::Wait(other),
            (None, None) => {
                Begun::Load(Ticket { cache: self, flight, began_ms: now_ms, open: true })
            }
        })
    }
}

impl<K: Eq + Clone, V: Clone, E, S> Cache<K, V, E, S> {
    pub(super) fn finish(
        &self,
        flight: &Arc<Flight<K, V, E>>,
        value: V,
        weight: u64,
        now_ms: i64,
        load_ms: i64,
    ) -> Result<bool, Closed> {
        let node = Node::new(flight.hash, flight.key.clone(), value.clone());
        let (kept, taken, unused) = self.write(|state, out| {
            if state.record_stats {
                state.stats.loads += 1;
                state.stats.load_ms += u64::try_from(load_ms).unwrap_or(0);
            }
            if state.closed {
                return (Err(Closed), None, Some(node));
            }
            let Some(taken) = state.flights.take_same(flight) else {
                return (Ok(false), None, Some(node));
            };
            state.time_ms(&self.clock, &self.map.lanes, now_ms);
            (Ok(state.put(&self.map, &self.clock, node, weight, out)), Some(taken), None)
        });
        flight.set_outcome(Outcome::Loaded(value));
        drop((taken, unused));
        kept
    }
}

impl<K, V, E, S> Cache<K, V, E, S> {
    /// Ends a load without a value.
    pub(super) fn give_up(
        &self,
        flight: &Arc<Flight<K, V, E>>,
        outcome: Outcome<V, E>,
        load_ms: i64,
    ) {
        let taken = self.write(|state, _| {
            if state.record_stats {
                state.stats.failed_loads += 1;
                state.stats.load_ms += u64::try_from(load_ms).unwrap_or(0);
            }
            state.flights.take_same(flight)
        });
        flight.set_outcome(outcome);
        drop(taken);
    }
}
