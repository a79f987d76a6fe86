//! Compares random operations with the simplest cache: a list in which the most recently used entry
//! is last.

use proptest::prelude::*;
use tierlog_core::cache::{Begun, Cache, RemovalCause};

use super::{drain, told};

#[derive(Clone, Debug)]
enum Step {
    Get(u64),
    Contains(u64),
    Put(u64, u64),
    Remove(u64),
    RemoveMultiplesOf(u64),
    Load(u64, Option<u64>),
    Sweep,
    Resize(u64),
    SetTtl(Option<u64>),
    Wait(i64),
}

struct Entry {
    key: u64,
    value: u64,
    weight: u64,
    used_ms: i64,
}

/// The expected state of the cache.
struct Model {
    entries: Vec<Entry>,
    max_bytes: u64,
    ttl_ms: Option<u64>,
    now_ms: i64,
    /// Latest time passed to the cache.
    told_ms: i64,
    removed: Vec<(u64, u64, u64, RemovalCause)>,
}

impl Model {
    fn expired(&self, entry: &Entry) -> bool {
        self.ttl_ms.is_some_and(|ttl| self.now_ms - entry.used_ms >= ttl as i64)
    }

    fn index(&self, key: u64) -> Option<usize> {
        self.entries.iter().position(|entry| entry.key == key)
    }

    fn live(&self, key: u64) -> Option<usize> {
        self.index(key).filter(|&index| !self.expired(&self.entries[index]))
    }

    fn get(&mut self, key: u64) -> Option<u64> {
        let index = self.live(key)?;
        let mut entry = self.entries.remove(index);
        entry.used_ms = self.now_ms;
        let value = entry.value;
        self.entries.push(entry);
        Some(value)
    }

    fn remove(&mut self, index: usize, cause: RemovalCause) {
        let entry = self.entries.remove(index);
        self.removed.push((entry.key, entry.value, entry.weight, cause));
    }

    fn weight(&self) -> u64 {
        self.entries.iter().map(|entry| entry.weight).sum()
    }

    fn shrink(&mut self, room: u64) {
        while self.weight() > self.max_bytes - room {
            let cause = match self.expired(&self.entries[0]) {
                true => RemovalCause::Expired,
                false => RemovalCause::Size,
            };
            self.remove(0, cause);
        }
    }

    fn put(&mut self, key: u64, value: u64, weight: u64) -> bool {
        let fits = weight <= self.max_bytes;
        // The order of the listener's calls may differ for the replaced entry; see `sorted`.
        if let Some(old) = self.index(key) {
            let expired = fits && self.expired(&self.entries[old]);
            let cause = if expired { RemovalCause::Expired } else { RemovalCause::Replaced };
            self.remove(old, cause);
        }
        if !fits {
            self.removed.push((key, value, weight, RemovalCause::Size));
            return false;
        }
        self.shrink(weight);
        // Each put removes up to two expired entries.
        for _ in 0..2 {
            if self.entries.first().is_some_and(|entry| self.expired(entry)) {
                self.remove(0, RemovalCause::Expired);
            }
        }
        self.entries.push(Entry { key, value, weight, used_ms: self.now_ms });
        true
    }

    fn sweep(&mut self) -> usize {
        let before = self.entries.len();
        while self.entries.first().is_some_and(|entry| self.expired(entry)) {
            self.remove(0, RemovalCause::Expired);
        }
        before - self.entries.len()
    }
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..40u64;
    prop_oneof![
        30 => key().prop_map(Step::Get),
        3 => key().prop_map(Step::Contains),
        20 => (key(), 0..30u64).prop_map(|(key, weight)| Step::Put(key, weight)),
        1 => key().prop_map(|key| Step::Put(key, u64::MAX - key)),
        5 => key().prop_map(Step::Remove),
        1 => (2..9u64).prop_map(Step::RemoveMultiplesOf),
        10 => (key(), proptest::option::of(0..30u64)).prop_map(|(key, loaded)| Step::Load(key, loaded)),
        2 => Just(Step::Sweep),
        1 => (0..300u64).prop_map(Step::Resize),
        1 => proptest::option::of(1..300u64).prop_map(Step::SetTtl),
        10 => (1..50i64).prop_map(Step::Wait),
    ]
}

/// Runs a step on the cache and on the model, and asserts equal results.
fn act(step: &Step, value: u64, cache: &Cache<u64, u64, String>, model: &mut Model) {
    let now_ms = model.now_ms;
    match step {
        Step::Remove(_) | Step::RemoveMultiplesOf(_) | Step::SetTtl(_) | Step::Wait(_) => {}
        Step::Resize(_) => model.now_ms = model.told_ms,
        _ => model.told_ms = now_ms,
    }
    match *step {
        Step::Get(key) => assert_eq!(cache.get(&key, now_ms), model.get(key)),
        Step::Contains(key) => {
            assert_eq!(cache.contains(&key, now_ms), model.live(key).is_some());
        }
        Step::Put(key, weight) => {
            assert_eq!(cache.put(key, value, weight, now_ms), Ok(model.put(key, value, weight)));
        }
        Step::Remove(key) => {
            let index = model.index(key);
            assert_eq!(cache.remove(&key), index.is_some());
            if let Some(index) = index {
                model.remove(index, RemovalCause::Explicit);
            }
        }
        Step::RemoveMultiplesOf(number) => {
            let removed = cache.remove_if(|key| key % number == 0);
            let entries = model.entries.iter().enumerate();
            let multiples = entries.filter(|(_, entry)| entry.key % number == 0);
            let chosen: Vec<_> = multiples.map(|(index, _)| index).collect();
            assert_eq!(removed, chosen.len());
            for index in chosen.into_iter().rev() {
                model.remove(index, RemovalCause::Explicit);
            }
        }
        Step::Load(key, loaded) => load(key, loaded, value, cache, model),
        Step::Sweep => assert_eq!(cache.sweep(now_ms), model.sweep()),
        Step::Resize(max_bytes) => {
            cache.resize(max_bytes);
            model.max_bytes = max_bytes;
            model.shrink(0);
            model.now_ms = now_ms;
        }
        Step::SetTtl(ttl_ms) => {
            cache.set_ttl(ttl_ms);
            model.ttl_ms = ttl_ms;
        }
        Step::Wait(ms) => model.now_ms += ms,
    }
}

fn load(
    key: u64,
    loaded: Option<u64>,
    value: u64,
    cache: &Cache<u64, u64, String>,
    model: &mut Model,
) {
    match (cache.begin_load(&key, model.now_ms), model.get(key)) {
        (Ok(Begun::Hit(found)), Some(expected)) => assert_eq!(found, expected),
        (Ok(Begun::Load(ticket)), None) => {
            if let Some(old) = model.index(key) {
                model.remove(old, RemovalCause::Expired);
            }
            match loaded {
                Some(weight) => {
                    let kept = model.put(key, value, weight);
                    assert_eq!(ticket.finish(value, weight, model.now_ms), Ok(kept));
                }
                None => ticket.fail("on purpose".into(), model.now_ms),
            }
        }
        (_, expected) => panic!("expected {expected:?}"),
    }
}

fn sorted(mut removed: Vec<(u64, u64, u64, RemovalCause)>) -> Vec<(u64, u64, u64, RemovalCause)> {
    // The order within one operation is not defined.
    removed.sort_by_key(|&(key, value, ..)| (value, key));
    removed
}

fn run(steps: &[Step]) {
    let (max_bytes, ttl_ms, now_ms) = (200, Some(100), 1_000_000);
    let (cache, told) = told(max_bytes, ttl_ms);
    let mut model = Model {
        entries: Vec::new(),
        max_bytes,
        ttl_ms,
        now_ms,
        told_ms: now_ms,
        removed: Vec::new(),
    };
    for (value, step) in steps.iter().enumerate() {
        act(step, value as u64, &cache, &mut model);
        assert_eq!(sorted(drain(&told)), sorted(std::mem::take(&mut model.removed)), "{step:?}");
        assert_eq!(cache.len(), model.entries.len());
        assert_eq!(cache.weight_bytes(), model.weight());
        assert!(model.weight() <= model.max_bytes);
    }
    for entry in &model.entries {
        let expected = (!model.expired(entry)).then_some(entry.value);
        assert_eq!(cache.get(&entry.key, model.now_ms), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    // 128 runs of 800 steps on average: about a hundred thousand steps.
    #[test]
    fn cache_equals_the_model(steps in proptest::collection::vec(step(), 400..1200)) {
        run(&steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "eight million steps, for the long proofs"]
    fn the_cache_does_what_the_model_does_for_long(
        steps in proptest::collection::vec(step(), 400..1200),
    ) {
        run(&steps);
    }
}
