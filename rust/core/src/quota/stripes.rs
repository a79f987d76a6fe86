//! The total number of bytes, kept in several counters so that threads do not contend for one cache
//! line. Counters are never decreased or reset. Sums wrap at 2^64, and only differences are used.

use crate::sync::{AtomicU64, Ordering, thread_number};

use super::published::model_fence;

pub(super) const MAX_STRIPES: usize = 64;

#[repr(align(128))]
struct Stripe(AtomicU64);

pub(super) struct Stripes(Vec<Stripe>);

/// Values of all counters, and their sum.
#[derive(Clone, Copy)]
pub(super) struct Totals {
    pub(super) each: [u64; MAX_STRIPES],
    pub(super) sum: u64,
}

impl Stripes {
    /// Creates `count` counters, a power of two up to [`MAX_STRIPES`].
    pub(super) fn new(count: usize) -> Self {
        debug_assert!(count.is_power_of_two() && count <= MAX_STRIPES);
        Self((0..count).map(|_| Stripe(AtomicU64::new(0))).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the index of the counter of the calling thread.
    #[inline(always)]
    pub(super) fn mine(&self) -> usize {
        thread_number() & (self.0.len() - 1)
    }

    /// Adds `amount` and returns the new value of the counter.
    #[inline(always)]
    pub(super) fn add(&self, stripe: usize, amount: u64) -> u64 {
        // Sequentially consistent: see `Published::current_in_order`, which is called next. As a
        // Release, the addition also publishes the time of the last event, which was raised before,
        // to threads that sum the counters.
        let before = self.0[stripe].0.fetch_add(amount, Ordering::SeqCst);
        before.wrapping_add(amount)
    }

    /// Returns the sum. It may miss concurrent additions, as if they happened later. But if two
    /// threads each add and then sum, at least one thread sees the other thread's addition.
    #[inline]
    pub(super) fn sum(&self) -> u64 {
        model_fence();
        // Sequentially consistent, like `add` and the publication of a state without ceilings. So
        // if two records together exceed the limit, at least one of them sees that. An earlier read
        // of the state is an Acquire, so these loads come after it.
        self.0.iter().fold(0, |sum, one| sum.wrapping_add(one.0.load(Ordering::SeqCst)))
    }

    /// Returns the values of all counters for a new state.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals { each: [0; MAX_STRIPES], sum: 0 };
        for (each, stripe) in totals.each.iter_mut().zip(&self.0) {
            // Acquire: a thread that sees bytes also sees the time of their event. An earlier read
            // of the state is an Acquire of `current`, so these loads come after it.
            *each = stripe.0.load(Ordering::Acquire);
            totals.sum = totals.sum.wrapping_add(*each);
        }
        totals
    }

    /// Returns true when no counter exceeds its value in `totals` by more than `share`. Called
    /// after a publication; the loads are sequentially consistent.
    pub(super) fn are_within(&self, totals: &Totals, share: u64) -> bool {
        model_fence();
        self.0
            .iter()
            .zip(&totals.each)
            .all(|(one, &was)| one.0.load(Ordering::SeqCst).wrapping_sub(was) <= share)
    }
}
