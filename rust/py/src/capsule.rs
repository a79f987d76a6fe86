//! The C function table. `tierlog._hot` calls its functions, also for the Cython code of other
//! packages. `_hot.pxd` repeats the layout of the table. If the layout changes, [`VERSION`] must be
//! raised.
#![expect(unsafe_code, reason = "C callers hand over pointers")]

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;

use pyo3::ffi::PyObject;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tierlog_core::index::local as local_index;
use tierlog_core::quota::{QuotaSensor, Token};

use crate::cache::Handle;
use crate::load::{Begin, Turn};
use crate::object::Index;
use crate::pointers::slice_of;
use crate::{cache, load, quota};

/// Version of the table's layout and of the meaning of its functions.
const VERSION: u32 = 4;
const NAME: &CStr = c"tierlog._core._C_API";

/// The table. New functions are added only at the end.
#[repr(C)]
struct Api {
    version: u32,
    size_bytes: u32,
    lookup_offset_index: unsafe extern "C" fn(*const u8, usize, i64, i64, *mut i64, *mut i32),
    survey_log_index: unsafe extern "C" fn(*mut Index),
    lookup_log_index: unsafe extern "C" fn(*const Index, i64) -> isize,
    coarse_now_ms: extern "C" fn() -> i64,
    quota_new: extern "C" fn(u64, u64, i64, c_int) -> *mut QuotaSensor,
    quota_free: unsafe extern "C" fn(*mut QuotaSensor),
    quota_record: unsafe extern "C" fn(*const QuotaSensor, u64, i64) -> i64,
    quota_record_and_throttle_ms: unsafe extern "C" fn(*const QuotaSensor, u64, i64) -> i64,
    quota_record_many: unsafe extern "C" fn(*const QuotaSensor, *const i64, usize, i64) -> i64,
    quota_rate: unsafe extern "C" fn(*const QuotaSensor, i64) -> f64,
    quota_throttle_ms: unsafe extern "C" fn(*const QuotaSensor, i64) -> i64,
    quota_limit: unsafe extern "C" fn(*const QuotaSensor) -> i64,
    quota_set_limit: unsafe extern "C" fn(*const QuotaSensor, i64, i64),
    quota_total: unsafe extern "C" fn(*const QuotaSensor) -> u64,
    quota_snapshot: unsafe extern "C" fn(*const QuotaSensor, i64, *mut quota::Snapshot),
    quota_try_reserve: unsafe extern "C" fn(*const QuotaSensor, u64, i64, *mut Token) -> i64,
    quota_settle: unsafe extern "C" fn(*const QuotaSensor, *const Token, u64, i64) -> i64,
    cache_new: extern "C" fn(u64, i64, c_int, c_int) -> *mut Handle,
    cache_free: unsafe extern "C" fn(*mut Handle),
    cache_key: unsafe extern "C" fn(*mut PyObject) -> *mut PyObject,
    cache_get:
        unsafe extern "C" fn(*const Handle, *mut PyObject, i64, *mut PyObject) -> *mut PyObject,
    cache_contains: unsafe extern "C" fn(*const Handle, *mut PyObject, i64) -> c_int,
    cache_lookup_position: unsafe extern "C" fn(*const Handle, *mut PyObject, i64, i64) -> i64,
    cache_find_position: unsafe extern "C" fn(*const Handle, *const u8, usize, i64, i64) -> i64,
    cache_put: unsafe extern "C" fn(
        *const Handle,
        *mut PyObject,
        *mut PyObject,
        *const Index,
        u64,
        i64,
    ) -> c_int,
    cache_remove: unsafe extern "C" fn(*const Handle, *mut PyObject) -> c_int,
    cache_remove_if: unsafe extern "C" fn(*const Handle, *mut PyObject) -> i64,
    cache_sweep: unsafe extern "C" fn(*const Handle, i64) -> i64,
    cache_resize: unsafe extern "C" fn(*const Handle, u64) -> c_int,
    cache_set_ttl: unsafe extern "C" fn(*const Handle, i64) -> c_int,
    cache_close: unsafe extern "C" fn(*const Handle),
    cache_is_closed: unsafe extern "C" fn(*const Handle) -> c_int,
    cache_len: unsafe extern "C" fn(*const Handle) -> usize,
    cache_weight: unsafe extern "C" fn(*const Handle) -> u64,
    cache_max_bytes: unsafe extern "C" fn(*const Handle) -> u64,
    cache_ttl_ms: unsafe extern "C" fn(*const Handle) -> i64,
    cache_stats: unsafe extern "C" fn(*const Handle, *mut cache::Stats),
    cache_take_removed: unsafe extern "C" fn(*const Handle) -> *mut PyObject,
    load_begin: unsafe extern "C" fn(*const Handle, *mut PyObject, i64, *mut Begin) -> c_int,
    load_fail: unsafe extern "C" fn(*mut Turn, *mut PyObject, i64),
    load_finish: unsafe extern "C" fn(*mut Turn, *mut PyObject, *const Index, u64, i64) -> c_int,
    load_wait: unsafe extern "C" fn(*const Turn, u64) -> c_int,
    load_outcome: unsafe extern "C" fn(*const Turn, *mut PyObject) -> *mut PyObject,
    load_let_go: unsafe extern "C" fn(*mut Turn),
}

/// Finds the last entry of a `.index` at or below an offset. The result is (base, 0) if there is no
/// such entry.
///
/// # Safety
/// `data` is null or holds `length` bytes; `offset` and `position` can be written.
unsafe extern "C" fn lookup_offset_index(
    data: *const u8,
    length: usize,
    base_offset: i64,
    target_offset: i64,
    offset: *mut i64,
    position: *mut i32,
) {
    // SAFETY: the caller promises this (see `# Safety`).
    let data = unsafe { slice_of(data, length) };
    let found = local_index::lookup_offset(data, base_offset, target_offset);
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe {
        offset.write(found.0);
        position.write(found.1);
    }
}

/// Prepares `index` for look-ups in the remoteLogIndex whose columns it points at.
///
/// # Safety
/// `index` can be read and written; its columns are as [`Index::survey`] says.
unsafe extern "C" fn survey_log_index(index: *mut Index) {
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe { (*index).survey() };
}

/// Returns the first row of a remoteLogIndex whose last offset is at least `target_offset`, or -1
/// if there is no such row.
///
/// # Safety
/// `survey_log_index` was called for `index`, and its columns have not changed since then.
unsafe extern "C" fn lookup_log_index(index: *const Index, target_offset: i64) -> isize {
    // SAFETY: the caller promises this (see `# Safety`). A slice never has more than isize::MAX
    // rows, so the cast keeps the row.
    unsafe { (*index).row(target_offset) }.map_or(-1, |row| row as isize)
}

/// Returns a monotonic time in milliseconds. It is a few ms behind the exact clock, but reading it
/// costs much less.
extern "C" fn coarse_now_ms() -> i64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `time` can be written.
    if unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, time.as_mut_ptr()) } != 0 {
        return 0;
    }
    // SAFETY: the call succeeded, so it wrote the time.
    let time = unsafe { time.assume_init() };
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

/// Adds the table to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    cache::notice_forks();
    let api = Api {
        version: VERSION,
        size_bytes: size_of::<Api>() as u32,
        lookup_offset_index,
        survey_log_index,
        lookup_log_index,
        coarse_now_ms,
        quota_new: quota::new,
        quota_free: quota::free,
        quota_record: quota::record,
        quota_record_and_throttle_ms: quota::record_and_throttle_ms,
        quota_record_many: quota::record_many,
        quota_rate: quota::rate,
        quota_throttle_ms: quota::throttle_ms,
        quota_limit: quota::limit,
        quota_set_limit: quota::set_limit,
        quota_total: quota::total,
        quota_snapshot: quota::snapshot,
        quota_try_reserve: quota::try_reserve,
        quota_settle: quota::settle,
        cache_new: cache::new,
        cache_free: cache::free,
        cache_key: cache::key,
        cache_get: cache::get,
        cache_contains: cache::contains,
        cache_lookup_position: cache::lookup_position,
        cache_find_position: cache::find_position,
        cache_put: cache::put,
        cache_remove: cache::remove,
        cache_remove_if: cache::remove_if,
        cache_sweep: cache::sweep,
        cache_resize: cache::resize,
        cache_set_ttl: cache::set_ttl,
        cache_close: cache::close,
        cache_is_closed: cache::is_closed,
        cache_len: cache::len,
        cache_weight: cache::weight,
        cache_max_bytes: cache::max_bytes,
        cache_ttl_ms: cache::ttl_ms,
        cache_stats: cache::stats,
        cache_take_removed: cache::take_removed,
        load_begin: load::begin,
        load_fail: load::fail,
        load_finish: load::finish,
        load_wait: load::wait,
        load_outcome: load::outcome,
        load_let_go: load::let_go,
    };
    module.add("_C_API", PyCapsule::new_with_value(module.py(), api, NAME)?)
}
