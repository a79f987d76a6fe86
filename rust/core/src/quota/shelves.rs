//! Memory that only grows: shelves that are put up when first needed, by whoever comes first,
//! and stay until the owner goes. The one place of the sensor with `unsafe` in it.

#![allow(unsafe_code)]

use std::ptr;

use crate::sync::{AtomicPtr, Ordering};

/// Up to `COUNT` shelves of `T`s each; a shelf that is up never moves.
pub(super) struct Shelves<T, const COUNT: usize> {
    shelves: [AtomicPtr<Vec<T>>; COUNT],
}

impl<T, const COUNT: usize> Shelves<T, COUNT> {
    pub(super) fn new() -> Self {
        Self { shelves: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())) }
    }

    /// A shelf that is up.
    pub(super) fn get(&self, number: usize) -> Option<&[T]> {
        // Acquire: pairs with the Release of `get_or_put_up`, so the shelf's things are seen made.
        let shelf = self.shelves.get(number)?.load(Ordering::Acquire);
        // SAFETY: a pointer that is not null came from `Box::into_raw` in `get_or_put_up`, is
        // never replaced, and is freed only by `drop`, which no `&self` outlives; only shared
        // references to it are ever made before.
        unsafe { shelf.as_ref() }.map(Vec::as_slice)
    }

    /// A shelf, put up with what `make` makes if it was not up; none past the last.
    pub(super) fn get_or_put_up(
        &self,
        number: usize,
        make: impl FnOnce() -> Vec<T>,
    ) -> Option<&[T]> {
        if self.get(number).is_none() {
            let new = Box::into_raw(Box::new(make()));
            // Release publishes what `make` wrote; of two that race, one wins and stays.
            let won = self.shelves.get(number)?.compare_exchange(
                ptr::null_mut(),
                new,
                Ordering::Release,
                Ordering::Relaxed,
            );
            if won.is_err() {
                // SAFETY: `new` is ours alone, since the exchange did not take place.
                drop(unsafe { Box::from_raw(new) });
            }
        }
        self.get(number)
    }
}

impl<T, const COUNT: usize> Drop for Shelves<T, COUNT> {
    fn drop(&mut self) {
        for shelf in &self.shelves {
            // Relaxed: `&mut self` means every other user is done, and ordered before.
            let shelf = shelf.load(Ordering::Relaxed);
            if !shelf.is_null() {
                // SAFETY: as in `get`; with `&mut self` nobody holds a reference into it.
                drop(unsafe { Box::from_raw(shelf) });
            }
        }
    }
}
