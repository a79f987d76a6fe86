//! Python objects in the cache, and their keys.
#![expect(unsafe_code, reason = "counts references to Python objects")]

use std::borrow::Borrow;
use std::ffi::{c_int, c_void};
use std::hash::{Hash, Hasher};
use std::mem;

use pyo3::ffi;
use pyo3::prelude::*;
use tierlog_core::index::local as local_index;
use tierlog_core::index::offset_search::Slope;

use crate::error;
use crate::key::{KeyBytes, Scratch};
use crate::pointers::slice_of;

/// A reference to a Python object. Only threads that hold the interpreter lock may clone or drop
/// it.
pub struct Object(*mut ffi::PyObject);

// SAFETY: threads without the interpreter lock only move or borrow an `Object`.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    /// Takes a new reference.
    ///
    /// # Safety
    /// `object` is alive, and this thread holds the interpreter lock.
    pub unsafe fn new(object: *mut ffi::PyObject) -> Self {
        // SAFETY: the caller promises this (see `# Safety`).
        unsafe { ffi::Py_INCREF(object) };
        Self(object)
    }

    /// Returns the object, which lives as long as this reference.
    pub fn as_ptr(&self) -> *mut ffi::PyObject {
        self.0
    }

    /// Returns the reference, which the caller then owns.
    pub fn give(self) -> *mut ffi::PyObject {
        mem::ManuallyDrop::new(self).0
    }
}

impl Clone for Object {
    fn clone(&self) -> Self {
        // SAFETY: this reference keeps the object alive, and the cloning thread holds the
        // interpreter lock.
        unsafe { Self::new(self.0) }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: this releases the reference that the value owns. The dropping thread holds the
        // interpreter lock.
        unsafe { ffi::Py_DECREF(self.0) };
    }
}

/// A key: the bytes that identify it, and the Python object from which the bytes were made.
#[derive(Clone)]
pub struct Key {
    bytes: Bytes,
    pub object: Object,
}

/// Bytes of a key; short keys are stored inline.
#[derive(Clone)]
enum Bytes {
    Inline(u8, [u8; INLINE_BYTES]),
    Heap(Box<[u8]>),
}

const INLINE_BYTES: usize = 46;

impl Borrow<KeyBytes> for Key {
    #[inline]
    fn borrow(&self) -> &KeyBytes {
        KeyBytes::new(match &self.bytes {
            Bytes::Inline(length, bytes) => &bytes[..usize::from(*length)],
            Bytes::Heap(bytes) => bytes,
        })
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        Borrow::<KeyBytes>::borrow(self) == other.borrow()
    }
}

impl Eq for Key {}

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        Borrow::<KeyBytes>::borrow(self).hash(state);
    }
}

/// Location of the index entries of a value, for look-ups without the interpreter. `_hot.pxd` has
/// the same layout. This struct and its data belong to the Python object of the value and never
/// change.
#[repr(C)]
pub struct Index {
    length: usize,
    /// Last offsets of a remoteLogIndex, or the bytes of the file of a local index.
    first: *const c_void,
    /// Positions of a remoteLogIndex, or null for a local index.
    position: *const i64,
    /// Base offset of a local index.
    base_offset: i64,
    /// Model of the last offsets of a remoteLogIndex.
    slope: Slope,
}

impl Index {
    /// Returns the first row of a remoteLogIndex whose last offset is at least `target_offset`, or
    /// `None` if there is no such row.
    ///
    /// # Safety
    /// `first` holds `length` last offsets, from which `slope` was computed.
    pub unsafe fn row(&self, target_offset: i64) -> Option<usize> {
        // SAFETY: the caller promises this (see `# Safety`).
        let last_offset = unsafe { slice_of(self.first.cast::<i64>(), self.length) };
        self.slope.lookup(last_offset, target_offset)
    }

    /// Computes `slope`.
    ///
    /// # Safety
    /// `first` is null or holds `length` last offsets.
    pub unsafe fn survey(&mut self) {
        // SAFETY: the caller promises this (see `# Safety`).
        self.slope = Slope::of(unsafe { slice_of(self.first.cast::<i64>(), self.length) });
    }
}

/// Result of [`Value::find`] for a value without an index.
pub const NO_INDEX: i64 = -3;

#[derive(Clone)]
pub struct Value {
    object: Object,
    /// Index of the value, or null.
    index: *const Index,
}

// SAFETY: the struct that `index` points to lives as long as `object` and never changes.
unsafe impl Send for Value {}
// SAFETY: as above.
unsafe impl Sync for Value {}

impl Value {
    /// # Safety
    /// The conditions of [`Object::new`] hold, and `index` is null or a part of `object`.
    pub unsafe fn new(object: *mut ffi::PyObject, index: *const Index) -> Self {
        // SAFETY: the caller promises this (see `# Safety`).
        Self { object: unsafe { Object::new(object) }, index }
    }

    /// Returns a reference to the object, for a thread that holds the interpreter lock.
    #[inline]
    pub fn object(&self) -> Object {
        self.object.clone()
    }

    /// Returns the byte position of an offset, -1 if the offset is past the end, or [`NO_INDEX`].
    pub fn find(&self, target_offset: i64) -> i64 {
        // SAFETY: `index` is null or a part of `object`, which is alive.
        let Some(index) = (unsafe { self.index.as_ref() }) else { return NO_INDEX };
        if index.position.is_null() {
            // SAFETY: `first` points to `length` bytes that the object keeps alive.
            let data = unsafe { slice_of(index.first.cast::<u8>(), index.length) };
            return local_index::lookup_offset(data, index.base_offset, target_offset).1.into();
        }
        // SAFETY: the object keeps two columns of `length` rows alive, and `survey` was called when
        // it was created.
        let (row, position) =
            unsafe { (index.row(target_offset), slice_of(index.position, index.length)) };
        row.map_or(-1, |row| position[row])
    }
}

/// # Safety
/// The caller holds the interpreter lock for as long as the result is used.
pub unsafe fn python<'py>() -> Python<'py> {
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe { Python::assume_attached() }
}

/// Sets a Python exception.
#[cold]
pub fn raise(py: Python<'_>, error: PyErr) -> c_int {
    error.restore(py);
    -1
}

#[cold]
pub fn raise_closed(py: Python<'_>) -> c_int {
    raise(py, error::closed(py, "this cache was closed"))
}

/// Calls `work` with the bytes of a key, or sets an exception if `key` is not a valid key.
///
/// # Safety
/// `key` is alive, and this thread holds the interpreter lock.
#[inline]
pub unsafe fn with_key<R>(key: *mut ffi::PyObject, work: impl FnOnce(&KeyBytes) -> R) -> Option<R> {
    let mut scratch = Scratch::new();
    // SAFETY: the caller promises this (see `# Safety`).
    let (py, key) = unsafe { (python(), Borrowed::from_ptr(python(), key)) };
    match scratch.key(&key) {
        Ok(bytes) => Some(work(bytes)),
        Err(error) => {
            raise(py, error);
            None
        }
    }
}

/// Returns an owned key, or sets an exception if `key` is not a valid key.
///
/// # Safety
/// The conditions of [`with_key`] hold.
#[inline]
pub unsafe fn key_of(key: *mut ffi::PyObject) -> Option<Key> {
    let mut scratch = Scratch::new();
    // SAFETY: the caller promises this (see `# Safety`).
    let (py, given) = unsafe { (python(), Borrowed::from_ptr(python(), key)) };
    let long = match scratch.key(&given) {
        Ok(bytes) => (bytes.bytes().len() > INLINE_BYTES).then(|| bytes.bytes().into()),
        Err(error) => {
            raise(py, error);
            return None;
        }
    };
    // SAFETY: the caller promises this (see `# Safety`).
    let object = unsafe { Object::new(key) };
    let bytes = match (long, scratch.short()) {
        (None, Some((length, bytes))) => Bytes::Inline(length as u8, bytes),
        (long, _) => Bytes::Heap(long.unwrap_or_default()),
    };
    Some(Key { bytes, object })
}
