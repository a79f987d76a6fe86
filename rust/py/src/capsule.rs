//! The C function table that `tierlog._hot`, and through it the Cython of other packages, calls
//! without the interpreter lock. Its layout stands a second time in `_hot.pxd`; whoever changes it
//! raises [`VERSION`].
#![expect(unsafe_code, reason = "C callers hand over pointers")]

use std::ffi::CStr;
use std::slice;

use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tierlog_core::{local_index, remote_index};

/// Of the table's layout and of what its functions mean.
const VERSION: u32 = 1;
const NAME: &CStr = c"tierlog._core._C_API";

/// The table. Functions are only ever added at its end.
#[repr(C)]
struct Api {
    version: u32,
    size_bytes: u32,
    lookup_offset_index: unsafe extern "C" fn(*const u8, usize, i64, i64, *mut i64, *mut i32),
    lookup_log_index: unsafe extern "C" fn(*const i64, usize, i64) -> isize,
}

/// A slice of what C calls (pointer, length).
///
/// # Safety
/// `pointer` is null, or points to `length` values that nobody changes during `'a`.
unsafe fn slice_of<'a, T>(pointer: *const T, length: usize) -> &'a [T] {
    if pointer.is_null() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { slice::from_raw_parts(pointer, length) }
}

/// The largest entry of a `.index` at or below an offset; (base, 0) when there is none.
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
    // SAFETY: as the caller promises.
    let data = unsafe { slice_of(data, length) };
    let found = local_index::lookup_offset(data, base_offset, target_offset);
    // SAFETY: as the caller promises.
    unsafe {
        offset.write(found.0);
        position.write(found.1);
    }
}

/// The row of a remoteLogIndex whose last offset is the first to reach an offset; -1 past the end.
///
/// # Safety
/// `last_offset` is null or holds `rows` values.
unsafe extern "C" fn lookup_log_index(
    last_offset: *const i64,
    rows: usize,
    target_offset: i64,
) -> isize {
    // SAFETY: as the caller promises.
    let last_offset = unsafe { slice_of(last_offset, rows) };
    // A slice never has more than isize::MAX rows.
    remote_index::lookup_offset(last_offset, target_offset).map_or(-1, |row| row as isize)
}

/// Puts the table into the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let api = Api {
        version: VERSION,
        size_bytes: size_of::<Api>() as u32,
        lookup_offset_index,
        lookup_log_index,
    };
    module.add("_C_API", PyCapsule::new_with_value(module.py(), api, NAME)?)
}
