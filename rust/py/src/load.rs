//! C interface for loads of cache entries: one thread loads a value, and the other threads wait for
//! it. See [`crate::cache`].
#![expect(unsafe_code, reason = "C callers hand over pointers and Python objects")]

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use foldhash::fast::RandomState;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use tierlog_core::cache::{Begun, LoadError, Outcome, Ticket, Waiter};

use crate::cache::{Handle, forks};
use crate::object::{Index, Key, Object, Value, key_of, python, raise, raise_closed};

/// A load from the point of view of the calling thread.
pub enum Turn {
    /// This thread has to load. The cache outlives the turn, because the caller holds it.
    Mine { ticket: Ticket<'static, Key, Value, Object, RandomState>, forks: u64 },
    /// Another thread is loading.
    Theirs(Waiter<Key, Value, Object>),
}

/// Result of [`begin`]; `_hot.pxd` has the same layout.
#[repr(C)]
pub struct Begin {
    kind: c_int,
    /// A new reference if `kind` is [`HIT`], else null.
    value: *mut ffi::PyObject,
    /// Null if `kind` is [`HIT`]. Otherwise the caller passes it to exactly one of [`fail`],
    /// [`finish`] and [`let_go`].
    turn: *mut Turn,
    began_ms: i64,
}

impl Begin {
    fn hit(value: Object, began_ms: i64) -> Self {
        Self { kind: HIT, value: value.give(), turn: ptr::null_mut(), began_ms }
    }
}

const HIT: c_int = 1;
const MINE: c_int = 2;
const THEIRS: c_int = 3;

/// Starts to load a key unless it is in the cache. Returns 0, or -1 with an exception.
///
/// # Safety
/// The conditions of [`crate::cache::get`] hold, and `begin` can be written.
pub unsafe extern "C" fn begin(
    handle: *const Handle,
    key: *mut ffi::PyObject,
    now_ms: i64,
    begin: *mut Begin,
) -> c_int {
    // SAFETY: the caller promises this. The cache lives as long as its handle, which the caller
    // keeps until the load has ended.
    let (cache, py) = unsafe { ((*handle).cache(), python()) };
    // SAFETY: the caller promises this (see `# Safety`).
    let Some(key) = (unsafe { key_of(key) }) else { return -1 };
    let turn = |kind, turn| {
        let turn = Box::into_raw(Box::new(turn));
        Begin { kind, value: ptr::null_mut(), turn, began_ms: now_ms }
    };
    let begun = match cache.begin_load(&key, now_ms) {
        Ok(Begun::Hit(value)) => Begin::hit(value.object(), now_ms),
        Ok(Begun::Load(ticket)) => turn(MINE, Turn::Mine { ticket, forks: forks() }),
        Ok(Begun::Wait(waiter)) => turn(THEIRS, Turn::Theirs(waiter)),
        Err(LoadError::Closed) => return raise_closed(py),
        Err(LoadError::Deadlock) => {
            let text = "the loader asked for a key whose load waits for this loader";
            return raise(py, PyRuntimeError::new_err(text));
        }
        Err(LoadError::Reentrant | LoadError::TimedOut | LoadError::Failed(_)) => {
            let text = "the loader asked for the key that it is loading";
            return raise(py, PyRuntimeError::new_err(text));
        }
    };
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe { begin.write(begun) };
    0
}

/// Ends this thread's load without a value. Every waiter gets `error`. If `error` is null, the
/// waiters start again.
///
/// # Safety
/// `turn` came from [`begin`] and is not used after this call; `error` is null or alive; this
/// thread holds the interpreter lock.
pub unsafe extern "C" fn fail(turn: *mut Turn, error: *mut ffi::PyObject, now_ms: i64) {
    // SAFETY: the caller promises this (see `# Safety`).
    let Some(ticket) = (unsafe { take_ticket(turn) }) else { return };
    if error.is_null() {
        drop(ticket);
    } else {
        // SAFETY: the caller promises this (see `# Safety`).
        ticket.fail(unsafe { Object::new(error) }, now_ms);
    }
}

/// Ends this thread's load with a value. Returns 1 when the value is kept, 0 when it is not, or -1
/// with an exception.
///
/// # Safety
/// The conditions of [`fail`] hold, `value` is alive, and `index` is null or a part of `value`.
pub unsafe extern "C" fn finish(
    turn: *mut Turn,
    value: *mut ffi::PyObject,
    index: *const Index,
    weight: u64,
    now_ms: i64,
) -> c_int {
    // SAFETY: the caller promises this (see `# Safety`).
    let Some(ticket) = (unsafe { take_ticket(turn) }) else { return 0 };
    // SAFETY: the caller promises this (see `# Safety`).
    let value = unsafe { Value::new(value, index) };
    match ticket.finish(value, weight, now_ms) {
        Ok(kept) => kept.into(),
        // SAFETY: the caller promises this (see `# Safety`).
        Err(_) => raise_closed(unsafe { python() }),
    }
}

/// Returns the ticket of this thread's load, or None in a forked child, which has another cache.
///
/// # Safety
/// The conditions of [`fail`] hold.
unsafe fn take_ticket(turn: *mut Turn) -> Option<Ticket<'static, Key, Value, Object, RandomState>> {
    // SAFETY: boxed by `begin`, and the caller gives it up.
    match *unsafe { Box::from_raw(turn) } {
        Turn::Mine { ticket, forks: began } if began == forks() => Some(ticket),
        Turn::Mine { ticket, .. } => {
            // Dropping the ticket takes a lock that another thread of the parent may hold.
            std::mem::forget(ticket);
            None
        }
        Turn::Theirs(_) => None,
    }
}

/// Waits for another thread's load without the interpreter lock. Returns 1 when it has ended.
///
/// # Safety
/// `turn` came from [`begin`] and was not passed to [`fail`], [`finish`] or [`let_go`].
pub unsafe extern "C" fn wait(turn: *const Turn, duration_ms: u64) -> c_int {
    // SAFETY: the caller promises this (see `# Safety`).
    match unsafe { &*turn } {
        Turn::Theirs(waiter) => {
            waiter.wait(Some(Duration::from_millis(duration_ms))).is_some().into()
        }
        Turn::Mine { .. } => 1,
    }
}

/// Returns the result of another thread's load that has ended: a new reference to the loaded value,
/// a new reference to `again` if the load was cancelled, or null with an exception.
///
/// # Safety
/// The conditions of [`wait`] hold, `again` is alive, and this thread holds the interpreter lock.
pub unsafe extern "C" fn outcome(
    turn: *const Turn,
    again: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the caller promises this (see `# Safety`).
    let (turn, py) = unsafe { (&*turn, python()) };
    let outcome = match turn {
        Turn::Theirs(waiter) => waiter.wait(Some(Duration::ZERO)),
        Turn::Mine { .. } => None,
    };
    match outcome {
        Some(Outcome::Loaded(value)) => value.object().give(),
        Some(Outcome::Failed(error)) => {
            // SAFETY: `error` is an exception and keeps the object alive.
            unsafe { ffi::PyErr_SetObject(ffi::Py_TYPE(error.as_ptr()).cast(), error.as_ptr()) };
            ptr::null_mut()
        }
        Some(Outcome::Closed) => {
            raise_closed(py);
            ptr::null_mut()
        }
        Some(Outcome::Cancelled) | None => {
            // SAFETY: the caller promises this (see `# Safety`).
            unsafe { Object::new(again) }.give()
        }
    }
}

/// Ends a wait.
///
/// # Safety
/// The conditions of [`fail`] hold.
pub unsafe extern "C" fn let_go(turn: *mut Turn) {
    // SAFETY: boxed by `begin`, and the caller gives it up.
    drop(unsafe { Box::from_raw(turn) });
}
