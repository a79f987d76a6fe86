//! Converts buffers from and to Python.
//!
//! From Python, any C-contiguous buffer is accepted. A read-only buffer is used in place, and a
//! Python buffer view keeps it alive. A writable buffer is copied first, because another thread may
//! change it while the interpreter lock is released. To Python, [`Column`] passes a typed vector
//! that numpy wraps without a copy.
#![expect(unsafe_code, reason = "buffers are raw memory")]

use std::ffi::{CStr, c_int, c_void};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::{mem, ptr, slice};

use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tierlog_core::memory::buffer_pool::PooledBuffer;
use tierlog_core::memory::hints::prefer_large_pages;

use crate::memory::{give_buffer, give_column};

/// Bytes passed by Python.
pub enum Input {
    /// A read-only buffer, kept alive by its view.
    View(PyUntypedBuffer),
    /// A snapshot of a writable buffer.
    Copy(Vec<u8>),
}

impl Input {
    /// Takes a buffer and copies it if it is writable.
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let view = contiguous(object)?;
        if view.readonly() {
            return Ok(Self::View(view));
        }
        Ok(Self::Copy(view_bytes(&view).to_vec()))
    }

    /// Takes a buffer in place even if it is writable. Only for work such as checksums, which
    /// neither keeps the bytes nor uses them to compute memory addresses.
    pub fn shared(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        contiguous(object).map(Self::View)
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::View(view) => view_bytes(view),
            Self::Copy(bytes) => bytes,
        }
    }
}

/// Returns a duplicate of the caller's descriptor, which the caller may close at any time.
pub fn duplicate(descriptor: RawFd) -> io::Result<File> {
    if descriptor < 0 {
        return Err(io::Error::from_raw_os_error(9));
    }
    // SAFETY: the borrow ends with this call. The descriptor is not -1, and if it is not open, the
    // duplication only fails.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    borrowed.try_clone_to_owned().map(File::from)
}

fn contiguous(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let view = PyUntypedBuffer::get(object).map_err(|_| {
        PyTypeError::new_err(format!(
            "expected bytes or another buffer, found {}",
            object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string())
        ))
    })?;
    if !view.is_c_contiguous() {
        return Err(PyBufferError::new_err(
            "expected a C-contiguous buffer, found a strided buffer",
        ));
    }
    Ok(view)
}

fn view_bytes(view: &PyUntypedBuffer) -> &[u8] {
    if view.len_bytes() == 0 {
        return &[];
    }
    // SAFETY: the view is C-contiguous and holds `len_bytes` bytes at `buf_ptr` until it is
    // dropped. The returned lifetime ensures that the slice is dropped before the view.
    unsafe { slice::from_raw_parts(view.buf_ptr().cast::<u8>(), view.len_bytes()) }
}

/// A column of numbers. It is read value by value while the interpreter lock is held, so that no
/// thread changes it meanwhile. Each value is read once.
pub struct Numbers<T: Element> {
    start: *const T,
    rows: usize,
    _view: PyBuffer<T>,
}

/// A column of i64.
pub type Longs = Numbers<i64>;
/// A column of i32.
pub type Ints = Numbers<i32>;

impl<T: Element> Numbers<T> {
    /// Takes a C-contiguous column. Errors call the column `name`.
    pub fn new(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        let view = PyBuffer::<T>::get(object)
            .map_err(|error| PyTypeError::new_err(format!("{name}: {error}")))?;
        match view.dimensions() {
            1 if view.is_c_contiguous() => {
                Ok(Self { start: view.buf_ptr().cast(), rows: view.item_count(), _view: view })
            }
            1 => Err(PyBufferError::new_err(format!("{name}: expected a contiguous column"))),
            found => {
                let message = format!("{name}: expected one dimension, found {found}");
                Err(PyValueError::new_err(message))
            }
        }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns the value of a row.
    #[inline]
    pub fn get(&self, _py: Python<'_>, row: usize) -> Option<T> {
        // SAFETY: the contiguous view holds `rows` aligned values of this type.
        (row < self.rows).then(|| unsafe { self.start.add(row).read() })
    }

    /// Returns all values.
    pub fn to_vec(&self, py: Python<'_>) -> Vec<T> {
        (0..self.rows).filter_map(|row| self.get(py, row)).collect()
    }
}

/// The part of new Python bytes that the `fill` function of [`new_bytes`] has not written yet.
pub struct Place {
    next: *mut u8,
    left: usize,
    is_too_small: bool,
}

impl Place {
    /// Appends `piece`. If `piece` is larger than the rest, [`new_bytes`] fails.
    #[inline(always)]
    pub fn push(&mut self, piece: &[u8]) {
        if piece.len() > self.left || self.is_too_small {
            self.is_too_small = true;
            return;
        }
        // SAFETY: `next` starts `left` writable bytes, and no Rust reference to them exists.
        unsafe {
            ptr::copy_nonoverlapping(piece.as_ptr(), self.next, piece.len());
            self.next = self.next.add(piece.len());
        }
        self.left -= piece.len();
    }
}

/// Returns new Python bytes of `size`. `fill` writes the bytes in place, part by part. `seal` then
/// changes all of them without the interpreter lock.
pub fn new_bytes<'py>(
    py: Python<'py>,
    size: usize,
    fill: impl FnOnce(&mut Place) -> PyResult<()>,
    seal: impl FnOnce(&mut [u8]) + Send,
) -> PyResult<Bound<'py, PyBytes>> {
    // SAFETY: for a null pointer, CPython creates bytes with uninitialised content. No allocation
    // exceeds isize::MAX. The object is new, so its content may be written.
    let (bytes, start) = unsafe {
        let object = ffi::PyBytes_FromStringAndSize(ptr::null(), size as ffi::Py_ssize_t);
        let bytes = Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>();
        let start = ffi::PyBytes_AsString(bytes.as_ptr()).cast::<u8>();
        prefer_large_pages(slice::from_raw_parts(start.cast::<MaybeUninit<u8>>(), size));
        (bytes, start)
    };
    let mut place = Place { next: start, left: size, is_too_small: false };
    fill(&mut place)?;
    if place.left > 0 || place.is_too_small {
        return Err(PyBufferError::new_err(format!("expected to write {size} bytes exactly")));
    }
    // SAFETY: all `size` bytes were written, and no other code has a reference to the object yet.
    let content = unsafe { slice::from_raw_parts_mut(start, size) };
    py.detach(|| seal(content));
    Ok(bytes)
}

/// The vector that a [`Column`] holds.
pub enum Values {
    /// Offsets, positions, timestamps, producer ids.
    I64(Vec<i64>),
    /// Sizes, epochs, sequences, counts, list offsets.
    I32(Vec<i32>),
    /// Attributes, producer epochs.
    I16(Vec<i16>),
    /// Magic bytes.
    I8(Vec<i8>),
    /// Bytes and validity bitmaps.
    U8(Vec<u8>),
    /// Arrow binary views, 16 bytes each.
    View(Vec<u128>),
    /// Bytes of a read, in a buffer that returns to its pool when the column is dropped.
    Pooled(PooledBuffer),
}

/// A read-only, one-dimensional buffer that owns its memory.
#[pyclass(frozen, module = "tierlog._core")]
pub struct Column {
    values: Values,
    shape: [ffi::Py_ssize_t; 1],
    strides: [ffi::Py_ssize_t; 1],
}

impl Column {
    /// Wraps a vector.
    pub fn new(values: Values) -> Self {
        let (_, length, item_size, _) = describe(&values);
        // An allocation never exceeds isize::MAX bytes, so its length does not either.
        Self { shape: [length as isize], strides: [item_size as isize], values }
    }

    /// Returns the vector.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Returns the views of a column of views, or an empty slice for any other column.
    pub fn views(&self) -> &[u128] {
        match &self.values {
            Values::View(views) => views,
            _ => &[],
        }
    }

    /// Returns the bytes of a column of bytes, or an empty slice for any other column.
    pub fn bytes(&self) -> &[u8] {
        match &self.values {
            Values::U8(bytes) => bytes,
            _ => &[],
        }
    }

    /// Returns the values of a column of i64, or an empty slice for any other column.
    pub fn i64_values(&self) -> &[i64] {
        match &self.values {
            Values::I64(values) => values,
            _ => &[],
        }
    }

    /// Creates a column of i64 values.
    pub fn i64(values: Vec<i64>) -> Self {
        Self::new(Values::I64(values))
    }

    /// Creates a column of i32 values.
    pub fn i32(values: Vec<i32>) -> Self {
        Self::new(Values::I32(values))
    }
}

impl Values {
    /// Puts the memory into a pool for later columns or reads, if it is large.
    pub fn release(self) {
        match self {
            Self::I64(column) => give_column(column),
            Self::View(column) => give_column(column),
            Self::U8(column) => give_column(column),
            Self::Pooled(buffer) => give_buffer(buffer),
            Self::I32(_) | Self::I16(_) | Self::I8(_) => {}
        }
    }
}

impl Drop for Column {
    fn drop(&mut self) {
        mem::replace(&mut self.values, Values::U8(Vec::new())).release();
    }
}

/// Returns pointer, number of items, item size and struct format of a column.
fn describe(values: &Values) -> (*const c_void, usize, usize, &'static CStr) {
    match values {
        Values::I64(v) => (v.as_ptr().cast(), v.len(), 8, c"q"),
        Values::I32(v) => (v.as_ptr().cast(), v.len(), 4, c"i"),
        Values::I16(v) => (v.as_ptr().cast(), v.len(), 2, c"h"),
        Values::I8(v) => (v.as_ptr().cast(), v.len(), 1, c"b"),
        Values::U8(v) => (v.as_ptr().cast(), v.len(), 1, c"B"),
        Values::View(v) => (v.as_ptr().cast(), v.len(), 16, c"16s"),
        Values::Pooled(v) => (v.bytes().as_ptr().cast(), v.bytes().len(), 1, c"B"),
    }
}

#[pymethods]
impl Column {
    fn __len__(&self) -> usize {
        describe(&self.values).1
    }

    /// SAFETY (of the caller): CPython calls this with a valid view structure.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view given"));
        }
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("a column is read-only"));
        }
        let column = slf.get();
        let (pointer, length, item_size, format) = describe(&column.values);
        let wants = |flag: c_int| flags & flag == flag;
        // SAFETY: `view` is valid for writes. Every stored pointer points into the frozen pyclass,
        // and `view.obj` keeps the pyclass alive until the view is released.
        unsafe {
            (*view).buf = pointer.cast_mut();
            (*view).len = (length * item_size) as isize;
            (*view).readonly = 1;
            (*view).itemsize = item_size as isize;
            (*view).format =
                if wants(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).ndim = 1;
            (*view).shape = if wants(ffi::PyBUF_ND) {
                column.shape.as_ptr().cast_mut()
            } else {
                ptr::null_mut()
            };
            (*view).strides = if wants(ffi::PyBUF_STRIDES) {
                column.strides.as_ptr().cast_mut()
            } else {
                ptr::null_mut()
            };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.into_ptr();
        }
        Ok(())
    }
}
