//! C interface of the index cache. Keys and values are Python objects.
//!
//! The caller of every function except [`find_position`], [`len`], [`weight`] and
//! [`crate::load::wait`] holds the interpreter lock. Such a function reports errors like Python's
//! own C functions: it returns null or -1 and sets an exception. It keeps the interpreter lock,
//! also while it holds the cache's lock. No Python code runs under the cache's lock, so the two
//! locks cannot deadlock.
//!
//! Removed entries are kept for [`take_removed`] if a listener was requested; `_hot.pyx` calls the
//! listener.
#![expect(unsafe_code, reason = "C callers hand over pointers and Python objects")]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{mem, ptr};

use foldhash::fast::RandomState;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tierlog_core::cache::{Cache, CacheSettings, Closed, RemovalCause, RemovalListener};

use crate::key::KeyBytes;
use crate::object::{Index, Key, Object, Value, key_of, python, raise, raise_closed, with_key};
use crate::pointers::slice_of;

/// Result of [`find_position`] for an absent key. Other results are a position, or -1 for an offset
/// past the end.
const MISS: i64 = -2;
const CLOSED: i64 = -4;
const RAISED: i64 = -5;

/// The cache behind a handle.
pub type Core = Cache<Key, Value, Object>;

/// Result of [`stats`]; `_hot.pxd` has the same layout.
#[repr(C)]
pub struct Stats {
    hits: u64,
    misses: u64,
    loads: u64,
    failed_loads: u64,
    load_ms: u64,
    removed_size: u64,
    removed_expired: u64,
    removed_explicit: u64,
    removed_replaced: u64,
    removed_closed: u64,
    entries: u64,
    weight_bytes: u64,
}

/// Removed entries with which the listener was not called yet.
#[derive(Default)]
struct Removed(Mutex<Vec<(Object, Object, RemovalCause)>>);

/// Number of forks between the process that loaded the module and this process.
static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of forks between the process that loaded the module and this process.
pub fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Registers the handler that counts forks in child processes.
pub fn notice_forks() {
    // SAFETY: the handler only increments an atomic. The call fails when memory is exhausted. Child
    // processes then use the cache that they inherit.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
}

/// A cache as C sees it. A forked child creates its own cache in the handle. The lock of the
/// inherited cache may be held by a thread that does not exist in the child.
pub struct Handle {
    inner: AtomicPtr<Inner>,
    max_bytes: AtomicU64,
    ttl_ms: AtomicI64,
    record_stats: bool,
    tell: bool,
    closed: AtomicBool,
}

struct Inner {
    forks: u64,
    cache: Core,
    removed: Arc<Removed>,
}

impl Handle {
    fn make(&self) -> *mut Inner {
        let settings = CacheSettings {
            max_bytes: self.max_bytes.load(Ordering::Relaxed),
            ttl_ms: ttl_of(self.ttl_ms.load(Ordering::Relaxed)),
            record_stats: self.record_stats,
        };
        let removed = Arc::new(Removed::default());
        let listener: Option<RemovalListener<Key, Value>> = self.tell.then(|| {
            let removed = Arc::clone(&removed);
            let tell = move |key: &Key, value: &Value, _: u64, cause: RemovalCause| {
                removed.lock().push((key.object.clone(), value.object(), cause));
            };
            Box::new(tell) as RemovalListener<Key, Value>
        });
        let cache = Cache::with_hasher(settings, listener, RandomState::default());
        if self.closed.load(Ordering::Relaxed) {
            cache.close();
        }
        let forks = FORKS.load(Ordering::Relaxed);
        Box::into_raw(Box::new(Inner { forks, cache, removed }))
    }

    /// Returns the cache of this process.
    #[inline]
    pub fn cache(&self) -> &Core {
        &self.inner().cache
    }

    #[inline]
    fn inner(&self) -> &Inner {
        // SAFETY: `make` created it, and it is freed only with the handle.
        let inner = unsafe { &*self.inner.load(Ordering::Acquire) };
        if inner.forks == FORKS.load(Ordering::Relaxed) { inner } else { self.renewed(inner) }
    }

    #[cold]
    fn renewed(&self, inherited: &Inner) -> &Inner {
        let fresh = self.make();
        let inherited = ptr::from_ref(inherited).cast_mut();
        // The inherited cache is never freed, because no part of it may be accessed.
        let renewed = match self.inner.compare_exchange(
            inherited,
            fresh,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: `fresh` was created just now and is not shared.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        };
        // SAFETY: as in `inner`.
        unsafe { &*renewed }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let inner = *self.inner.get_mut();
        // SAFETY: `make` created it, and `&mut self` proves that there is no other user.
        let forks = unsafe { (*inner).forks };
        if forks == FORKS.load(Ordering::Relaxed) {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(inner) });
        }
    }
}

impl Removed {
    fn lock(&self) -> MutexGuard<'_, Vec<(Object, Object, RemovalCause)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the time to live, or `None` (no expiry) if `ttl_ms` is 0 or less.
fn ttl_of(ttl_ms: i64) -> Option<u64> {
    u64::try_from(ttl_ms).ok().filter(|&ttl_ms| ttl_ms > 0)
}

fn cause_name(cause: RemovalCause) -> &'static str {
    match cause {
        RemovalCause::Size => "size",
        RemovalCause::Expired => "expired",
        RemovalCause::Explicit => "explicit",
        RemovalCause::Replaced => "replaced",
        RemovalCause::Closed => "closed",
    }
}

/// Creates a cache. A time to live of at most 0 ms disables expiry.
pub extern "C" fn new(
    max_bytes: u64,
    ttl_ms: i64,
    record_stats: c_int,
    tell: c_int,
) -> *mut Handle {
    let handle = Box::new(Handle {
        inner: AtomicPtr::new(ptr::null_mut()),
        max_bytes: AtomicU64::new(max_bytes),
        ttl_ms: AtomicI64::new(ttl_ms),
        record_stats: record_stats != 0,
        tell: tell != 0,
        closed: AtomicBool::new(false),
    });
    handle.inner.store(handle.make(), Ordering::Release);
    Box::into_raw(handle)
}

/// Frees a cache and its entries without calling the listener. Ignores null.
///
/// # Safety
/// `handle` is null or came from [`new`], there is no other user, and the caller holds the
/// interpreter lock.
pub unsafe extern "C" fn free(handle: *mut Handle) {
    if !handle.is_null() {
        // SAFETY: `new` boxed the handle, and the caller gives it up.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// Returns the bytes of a key as `bytes`.
///
/// # Safety
/// The conditions of [`with_key`] hold.
pub unsafe extern "C" fn key(key: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the caller promises this (see `# Safety`).
    let bytes = unsafe { with_key(key, |bytes| PyBytes::new(python(), bytes.bytes()).into_ptr()) };
    bytes.unwrap_or(ptr::null_mut())
}

/// Returns a new reference to the value of a key, or to `default`.
///
/// # Safety
/// The conditions of [`with_key`] hold, `handle` came from [`new`], and `default` is alive.
pub unsafe extern "C" fn get(
    handle: *const Handle,
    key: *mut ffi::PyObject,
    now_ms: i64,
    default: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the caller promises this (see `# Safety`).
    let cache = unsafe { (*handle).cache() };
    // SAFETY: the caller promises this (see `# Safety`).
    let found = unsafe { with_key(key, |bytes| cache.get_with(bytes, now_ms, Value::object)) };
    match found {
        Some(Some(value)) => value.give(),
        Some(None) if !cache.is_closed() => {
            // SAFETY: the caller promises this (see `# Safety`).
            unsafe { ffi::Py_INCREF(default) };
            default
        }
        Some(None) => {
            // SAFETY: the caller promises this (see `# Safety`).
            raise_closed(unsafe { python() });
            ptr::null_mut()
        }
        None => ptr::null_mut(),
    }
}

/// Returns 1 when a key is in the cache, 0 when it is not, or -1 with an exception.
///
/// # Safety
/// The conditions of [`get`] hold.
pub unsafe extern "C" fn contains(
    handle: *const Handle,
    key: *mut ffi::PyObject,
    now_ms: i64,
) -> c_int {
    // SAFETY: the caller promises this (see `# Safety`).
    let cache = unsafe { (*handle).cache() };
    // SAFETY: the caller promises this (see `# Safety`).
    match unsafe { with_key(key, |bytes| cache.contains(bytes, now_ms)) } {
        Some(false) if cache.is_closed() => raise_closed(unsafe { python() }),
        Some(found) => found.into(),
        None => -1,
    }
}

/// Returns the byte position of an offset by the index that is the value of a key. Returns -1 if
/// the offset is past the end, [`RAISED`] with an exception, or another one of the codes.
///
/// # Safety
/// The conditions of [`get`] hold.
pub unsafe extern "C" fn lookup_position(
    handle: *const Handle,
    key: *mut ffi::PyObject,
    target_offset: i64,
    now_ms: i64,
) -> i64 {
    // SAFETY: the caller promises this (see `# Safety`).
    let cache = unsafe { (*handle).cache() };
    // SAFETY: the caller promises this (see `# Safety`).
    let found = unsafe { with_key(key, |bytes| find(cache, bytes, target_offset, now_ms)) };
    match found {
        Some(CLOSED) => {
            // SAFETY: the caller promises this (see `# Safety`).
            raise_closed(unsafe { python() });
            RAISED
        }
        Some(position) => position,
        None => RAISED,
    }
}

/// Does the same as [`lookup_position`] for the bytes of a key. Needs no interpreter lock and sets
/// no exception.
///
/// # Safety
/// `handle` came from [`new`]; `key` is null or holds `length` bytes.
pub unsafe extern "C" fn find_position(
    handle: *const Handle,
    key: *const u8,
    length: usize,
    target_offset: i64,
    now_ms: i64,
) -> i64 {
    // SAFETY: the caller promises this (see `# Safety`).
    let (handle, key) = unsafe { (&*handle, slice_of(key, length)) };
    find(handle.cache(), KeyBytes::new(key), target_offset, now_ms)
}

#[inline]
fn find(cache: &Core, key: &KeyBytes, target_offset: i64, now_ms: i64) -> i64 {
    match cache.get_with(key, now_ms, |value| value.find(target_offset)) {
        Some(position) => position,
        None if cache.is_closed() => CLOSED,
        None => MISS,
    }
}

/// Puts a value. Returns 1 when it is kept, 0 when it is too heavy, or -1 with an exception.
///
/// # Safety
/// The conditions of [`get`] hold, `value` is alive, and `index` is null or a part of `value`.
pub unsafe extern "C" fn put(
    handle: *const Handle,
    key: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    index: *const Index,
    weight: u64,
    now_ms: i64,
) -> c_int {
    // SAFETY: the caller promises this (see `# Safety`).
    let cache = unsafe { (*handle).cache() };
    // SAFETY: the caller promises this (see `# Safety`).
    let Some(key) = (unsafe { key_of(key) }) else { return -1 };
    // SAFETY: the caller promises this (see `# Safety`).
    let value = unsafe { Value::new(value, index) };
    match cache.put(key, value, weight, now_ms) {
        Ok(kept) => kept.into(),
        // SAFETY: the caller promises this (see `# Safety`).
        Err(Closed) => raise_closed(unsafe { python() }),
    }
}

/// Removes a key. Returns 1 when it was in the cache, 0 when it was not, or -1 with an exception.
///
/// # Safety
/// The conditions of [`get`] hold.
pub unsafe extern "C" fn remove(handle: *const Handle, key: *mut ffi::PyObject) -> c_int {
    // SAFETY: the caller promises this (see `# Safety`).
    let cache = unsafe { (*handle).cache() };
    // SAFETY: the caller promises this (see `# Safety`).
    match unsafe { with_key(key, |bytes| cache.remove(bytes)) } {
        Some(false) if cache.is_closed() => raise_closed(unsafe { python() }),
        Some(found) => found.into(),
        None => -1,
    }
}

/// Removes every key for which a Python function returns true. Returns the number of removed
/// entries, or -1 with an exception.
///
/// # Safety
/// The conditions of [`get`] hold, and `predicate` is alive.
pub unsafe extern "C" fn remove_if(handle: *const Handle, predicate: *mut ffi::PyObject) -> i64 {
    // SAFETY: the caller promises this (see `# Safety`).
    let (cache, py) = unsafe { ((*handle).cache(), python()) };
    // SAFETY: the caller promises this (see `# Safety`).
    let predicate = unsafe { Borrowed::from_ptr(py, predicate) };
    if cache.is_closed() {
        return raise_closed(py).into();
    }
    let mut failed = None;
    let removed = cache.remove_if(|key| {
        if failed.is_some() {
            return false;
        }
        // SAFETY: the key's reference keeps it alive.
        let key = unsafe { Borrowed::from_ptr(py, key.object.as_ptr()) };
        let answer = predicate.call1((key,)).and_then(|answer| answer.is_truthy());
        answer.unwrap_or_else(|error| {
            failed = Some(error);
            false
        })
    });
    match failed {
        Some(error) => raise(py, error).into(),
        None => removed as i64,
    }
}

/// Removes expired entries. Returns their number, or -1 with an exception.
///
/// # Safety
/// The conditions of [`get`] hold.
pub unsafe extern "C" fn sweep(handle: *const Handle, now_ms: i64) -> i64 {
    // SAFETY: the caller promises this (see `# Safety`).
    let cache = unsafe { (*handle).cache() };
    if cache.is_closed() {
        // SAFETY: the caller promises this (see `# Safety`).
        return raise_closed(unsafe { python() }).into();
    }
    cache.sweep(now_ms) as i64
}

/// Changes the byte limit. Returns 0, or -1 with an exception.
///
/// # Safety
/// The conditions of [`get`] hold.
pub unsafe extern "C" fn resize(handle: *const Handle, max_bytes: u64) -> c_int {
    // SAFETY: the caller promises this (see `# Safety`).
    let handle = unsafe { &*handle };
    let cache = handle.cache();
    if cache.is_closed() {
        // SAFETY: the caller promises this (see `# Safety`).
        return raise_closed(unsafe { python() });
    }
    handle.max_bytes.store(max_bytes, Ordering::Relaxed);
    cache.resize(max_bytes);
    0
}

/// Changes the time to live. Returns 0, or -1 with an exception.
///
/// # Safety
/// The conditions of [`get`] hold.
pub unsafe extern "C" fn set_ttl(handle: *const Handle, ttl_ms: i64) -> c_int {
    // SAFETY: the caller promises this (see `# Safety`).
    let handle = unsafe { &*handle };
    let cache = handle.cache();
    if cache.is_closed() {
        // SAFETY: the caller promises this (see `# Safety`).
        return raise_closed(unsafe { python() });
    }
    handle.ttl_ms.store(ttl_ms, Ordering::Relaxed);
    cache.set_ttl(ttl_of(ttl_ms));
    0
}

/// Removes all entries. From then on the cache holds no entries.
///
/// # Safety
/// The conditions of [`get`] hold.
pub unsafe extern "C" fn close(handle: *const Handle) {
    // SAFETY: the caller promises this (see `# Safety`).
    let handle = unsafe { &*handle };
    let cache = handle.cache();
    handle.closed.store(true, Ordering::Relaxed);
    cache.close();
}

/// Returns 1 after [`close`], else 0.
///
/// # Safety
/// `handle` came from [`new`].
pub unsafe extern "C" fn is_closed(handle: *const Handle) -> c_int {
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe { &*handle }.closed.load(Ordering::Relaxed).into()
}

/// Returns the number of entries.
///
/// # Safety
/// `handle` came from [`new`].
pub unsafe extern "C" fn len(handle: *const Handle) -> usize {
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe { &*handle }.cache().len()
}

/// Returns the sum of the weights.
///
/// # Safety
/// `handle` came from [`new`].
pub unsafe extern "C" fn weight(handle: *const Handle) -> u64 {
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe { &*handle }.cache().weight_bytes()
}

/// Returns the byte limit.
///
/// # Safety
/// `handle` came from [`new`].
pub unsafe extern "C" fn max_bytes(handle: *const Handle) -> u64 {
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe { &*handle }.max_bytes.load(Ordering::Relaxed)
}

/// Returns the time to live as it was set.
///
/// # Safety
/// `handle` came from [`new`].
pub unsafe extern "C" fn ttl_ms(handle: *const Handle) -> i64 {
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe { &*handle }.ttl_ms.load(Ordering::Relaxed)
}

/// Writes the counters of the cache to `stats`.
///
/// # Safety
/// The conditions of [`get`] hold, and `stats` can be written.
pub unsafe extern "C" fn stats(handle: *const Handle, stats: *mut Stats) {
    // SAFETY: the caller promises this (see `# Safety`).
    let seen = unsafe { &*handle }.cache().stats();
    let seen = Stats {
        hits: seen.hits,
        misses: seen.misses,
        loads: seen.loads,
        failed_loads: seen.failed_loads,
        load_ms: seen.load_ms,
        removed_size: seen.removed_size,
        removed_expired: seen.removed_expired,
        removed_explicit: seen.removed_explicit,
        removed_replaced: seen.removed_replaced,
        removed_closed: seen.removed_closed,
        entries: seen.entries as u64,
        weight_bytes: seen.weight_bytes,
    };
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe { stats.write(seen) };
}

/// Returns the entries removed since the last call as a list of (key, value, cause), or None.
///
/// # Safety
/// The conditions of [`get`] hold.
pub unsafe extern "C" fn take_removed(handle: *const Handle) -> *mut ffi::PyObject {
    // SAFETY: the caller promises this (see `# Safety`).
    let (inner, py) = unsafe { ((*handle).inner(), python()) };
    let removed = mem::take(&mut *inner.removed.lock());
    if removed.is_empty() {
        return py.None().into_ptr();
    }
    let rows = removed.into_iter().map(|(key, value, cause)| {
        // SAFETY: the list takes over each reference.
        let objects = unsafe {
            let key = Bound::from_owned_ptr(py, key.give());
            (key, Bound::from_owned_ptr(py, value.give()))
        };
        (objects.0, objects.1, cause_name(cause))
    });
    match PyList::new(py, rows.collect::<Vec<_>>()) {
        Ok(list) => list.into_ptr(),
        Err(error) => {
            raise(py, error);
            ptr::null_mut()
        }
    }
}
