//! Tests of the public interface of the index cache: single steps, a model, and many threads.
#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod basics;
mod loads;
mod model;
mod threads;

use std::sync::{Arc, Mutex};

use tierlog_core::cache::{Cache, CacheSettings, RemovalCause};

/// Calls of a listener: key, value, weight, cause.
type Told = Arc<Mutex<Vec<(u64, u64, u64, RemovalCause)>>>;

fn settings(max_bytes: u64, ttl_ms: Option<u64>) -> CacheSettings {
    CacheSettings { max_bytes, ttl_ms, record_stats: true }
}

/// Returns a cache and the calls of its listener.
fn told(max_bytes: u64, ttl_ms: Option<u64>) -> (Cache<u64, u64, String>, Told) {
    let told = Told::default();
    let listener = {
        let told = Arc::clone(&told);
        Box::new(move |key: &u64, value: &u64, weight, cause| {
            told.lock().expect("told").push((*key, *value, weight, cause));
        })
    };
    (Cache::with_listener(settings(max_bytes, ttl_ms), listener), told)
}

fn drain(told: &Told) -> Vec<(u64, u64, u64, RemovalCause)> {
    std::mem::take(&mut *told.lock().expect("told"))
}
