//! Converts the Python key of a cache entry to the bytes that identify it.
//!
//! | Python | bytes |
//! |---|---|
//! | `str` | `s`, UTF-8 |
//! | `bytes` | `b`, the bytes |
//! | `int` of 64 bits | `i`, 8 bytes, little-endian |
//! | `int` of 128 bits | `I`, 16 bytes, little-endian |
//! | `tuple` of these | `t`, then of each its length (8 bytes, little-endian) and its bytes |
//!
//! Only these exact types are keys, so `True` does not equal 1, and a subclass cannot change
//! equality.
#![expect(unsafe_code, reason = "a slice by another name")]

use std::hash::{Hash, Hasher};
use std::ptr;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple};

/// Longer keys are built on the heap.
const INLINE_BYTES: usize = 120;

/// The bytes of a key, which look-ups compare.
#[derive(PartialEq, Eq)]
#[repr(transparent)]
pub struct KeyBytes([u8]);

impl KeyBytes {
    #[inline]
    pub fn new(bytes: &[u8]) -> &Self {
        // SAFETY: `KeyBytes` has the same representation as its bytes.
        unsafe { &*(ptr::from_ref(bytes) as *const Self) }
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Hash for KeyBytes {
    /// Hashes without the length. The length adds no information, because a key is never hashed as
    /// a part of another value.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

/// Memory in which the bytes of a key are built.
pub struct Scratch {
    inline: [u8; INLINE_BYTES],
    length: usize,
    heap: Vec<u8>,
}

/// A key, or an item of a tuple, before it is written.
enum Part<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
    Short(i64),
    Long(i128),
}

impl Scratch {
    /// Creates empty memory.
    #[inline]
    pub fn new() -> Self {
        Self { inline: [0; INLINE_BYTES], length: 0, heap: Vec::new() }
    }

    /// Returns the bytes of a key. Raises TypeError for a type that cannot be a key, OverflowError
    /// for an int of more than 128 bits, and UnicodeEncodeError for a str that is not valid
    /// Unicode.
    #[inline]
    pub fn key(&mut self, key: &Bound<'_, PyAny>) -> PyResult<&KeyBytes> {
        // The usual keys are not converted to `Part`, which costs more than all the other steps
        // here.
        if let Ok(text) = key.cast_exact::<PyString>() {
            self.push_tagged(b's', text.to_str()?.as_bytes());
        } else if let Ok(bytes) = key.cast_exact::<PyBytes>() {
            self.push_tagged(b'b', bytes.as_bytes());
        } else {
            self.push_number_or_tuple(key)?;
        }
        Ok(KeyBytes::new(self.bytes()))
    }

    /// Returns size and bytes of the last key if it has at most `SIZE` bytes. Copying a fixed size
    /// is cheaper.
    #[inline]
    pub fn short<const SIZE: usize>(&self) -> Option<(usize, [u8; SIZE])> {
        let room = self.inline.first_chunk::<SIZE>()?;
        (self.length <= SIZE).then_some((self.length, *room))
    }

    #[inline(never)]
    fn push_number_or_tuple(&mut self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Some(part) = Part::of(key)? {
            self.push_part(&part);
            return Ok(());
        }
        let tuple = key.cast_exact::<PyTuple>().map_err(|_| refused(key))?;
        self.push(b"t");
        for element in tuple.iter_borrowed() {
            let part = Part::of(&element)?.ok_or_else(|| refused(&element))?;
            self.push(&(part.length() as u64).to_le_bytes());
            self.push_part(&part);
        }
        Ok(())
    }

    fn push_part(&mut self, part: &Part<'_>) {
        match part {
            Part::Text(text) => self.push_tagged(b's', text.as_bytes()),
            Part::Bytes(bytes) => self.push_tagged(b'b', bytes),
            Part::Short(number) => self.push_tagged(b'i', &number.to_le_bytes()),
            Part::Long(number) => self.push_tagged(b'I', &number.to_le_bytes()),
        }
    }

    #[inline]
    fn push_tagged(&mut self, tag: u8, bytes: &[u8]) {
        self.push(&[tag]);
        self.push(bytes);
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if let Some(room) = self.inline.get_mut(self.length..end) {
            room.copy_from_slice(bytes);
        } else {
            self.spill(bytes);
        }
        self.length = end;
    }

    #[cold]
    fn spill(&mut self, bytes: &[u8]) {
        if self.heap.is_empty() {
            self.heap.extend_from_slice(&self.inline[..self.length]);
        }
        self.heap.extend_from_slice(bytes);
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        self.inline.get(..self.length).unwrap_or(&self.heap)
    }
}

impl<'a> Part<'a> {
    /// Returns None for a tuple or a type that cannot be a key.
    fn of(key: &'a Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        if let Ok(text) = key.cast_exact::<PyString>() {
            return Ok(Some(Self::Text(text.to_str()?)));
        }
        if let Ok(bytes) = key.cast_exact::<PyBytes>() {
            return Ok(Some(Self::Bytes(bytes.as_bytes())));
        }
        if key.cast_exact::<PyInt>().is_err() {
            return Ok(None);
        }
        if let Ok(number) = key.extract::<i64>() {
            return Ok(Some(Self::Short(number)));
        }
        let number = key.extract::<i128>().map_err(|_| {
            PyOverflowError::new_err("expected a key of at most 128 bits, found a larger int")
        })?;
        Ok(Some(Self::Long(number)))
    }

    /// Returns the number of bytes, including the tag.
    fn length(&self) -> usize {
        1 + match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Short(_) => size_of::<i64>(),
            Self::Long(_) => size_of::<i128>(),
        }
    }
}

#[cold]
fn refused(key: &Bound<'_, PyAny>) -> PyErr {
    let kind = key.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
    PyTypeError::new_err(format!(
        "expected a key of str, bytes, int or a tuple of these (no subclasses), found {kind}"
    ))
}
