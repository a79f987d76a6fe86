//! Memory that C callers pass as pointers.
#![expect(unsafe_code, reason = "C callers hand over pointers")]

use std::slice;

/// Returns the slice that C describes by a pointer and a length. A null pointer gives an empty
/// slice.
///
/// # Safety
/// `pointer` is null, or points to `length` values that do not change during `'a`.
pub unsafe fn slice_of<'a, T>(pointer: *const T, length: usize) -> &'a [T] {
    if pointer.is_null() {
        return &[];
    }
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe { slice::from_raw_parts(pointer, length) }
}
