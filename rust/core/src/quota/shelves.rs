//! Memory that only grows. The first user of a shelf creates it, and it lives as long as its owner.
//! No other module of the sensor has `unsafe` code.

#![allow(unsafe_code)]

use std::ptr;

use crate::sync::{AtomicPtr, Ordering};

/// Up to `COUNT` shelves of `T`s; an existing shelf never moves.
pub(super) struct Shelves<T, const COUNT: usize> {
    shelves: [AtomicPtr<Vec<T>>; COUNT],
}

impl<T, const COUNT: usize> Shelves<T, COUNT> {
    pub(super) fn new() -> Self {
        Self { shelves: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())) }
    }

    /// Returns an existing shelf.
    pub(super) fn get(&self, number: usize) -> Option<&[T]> {
        // Acquire: pairs with the Release of `get_or_create`, so the shelf's content is visible.
        let shelf = self.shelves.get(number)?.load(Ordering::Acquire);
        // SAFETY: a pointer that is not null came from `Box::into_raw` in `get_or_create` and is
        // never replaced. Only `drop` frees it, and no `&self` outlives `drop`. Until then only
        // shared references to it exist.
        unsafe { shelf.as_ref() }.map(Vec::as_slice)
    }

    /// Returns a shelf and creates it with `make` if necessary. Returns `None` if `number` is past
    /// the last shelf.
    pub(super) fn get_or_create(
        &self,
        number: usize,
        make: impl FnOnce() -> Vec<T>,
    ) -> Option<&[T]> {
        if self.get(number).is_none() {
            let new = Box::into_raw(Box::new(make()));
            // Release publishes what `make` wrote. Of two racing threads, one wins, and its shelf
            // is kept.
            let won = self.shelves.get(number)?.compare_exchange(
                ptr::null_mut(),
                new,
                Ordering::Release,
                Ordering::Relaxed,
            );
            if won.is_err() {
                // SAFETY: `new` is private to this thread, since the exchange failed.
                drop(unsafe { Box::from_raw(new) });
            }
        }
        self.get(number)
    }
}

impl<T, const COUNT: usize> Drop for Shelves<T, COUNT> {
    fn drop(&mut self) {
        for shelf in &self.shelves {
            // Relaxed: `&mut self` proves that every other use is over and ordered before.
            let shelf = shelf.load(Ordering::Relaxed);
            if !shelf.is_null() {
                // SAFETY: `Box::into_raw` made the pointer, as in `get`. `&mut self` proves that no
                // reference into the shelf exists.
                drop(unsafe { Box::from_raw(shelf) });
            }
        }
    }
}
