//! Bytes ever counted, in several counters so that threads do not fight over one cache line.
//! Nothing is ever taken off or set back; sums wrap at 2^64 and only differences are used.

use crate::sync::{AtomicU64, Ordering, thread_number};

use super::published::model_fence;

pub(super) const MAX_STRIPES: usize = 64;

#[repr(align(128))]
struct Stripe(AtomicU64);

pub(super) struct Stripes(Vec<Stripe>);

/// Every counter at one look, and their sum.
#[derive(Clone, Copy)]
pub(super) struct Totals {
    pub(super) each: [u64; MAX_STRIPES],
    pub(super) sum: u64,
}

impl Stripes {
    /// `count` counters, a power of two up to [`MAX_STRIPES`].
    pub(super) fn new(count: usize) -> Self {
        debug_assert!(count.is_power_of_two() && count <= MAX_STRIPES);
        Self((0..count).map(|_| Stripe(AtomicU64::new(0))).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The counter that the calling thread adds to.
    #[inline(always)]
    pub(super) fn mine(&self) -> usize {
        thread_number() & (self.0.len() - 1)
    }

    /// Add, and tell what the counter holds now.
    #[inline(always)]
    pub(super) fn add(&self, stripe: usize, amount: u64) -> u64 {
        // Sequentially consistent: followed by `Published::current_in_order`, see there. As a
        // Release it also carries the last event, which is raised before, to whoever sums up.
        let before = self.0[stripe].0.fetch_add(amount, Ordering::SeqCst);
        before.wrapping_add(amount)
    }

    /// The sum. Additions that are not ordered before may be missed, as if they came later; but of
    /// two threads that each add and then sum up, one sees the other's addition.
    #[inline]
    pub(super) fn sum(&self) -> u64 {
        model_fence();
        // Sequentially consistent, as `add` is and the publication of a state without ceilings:
        // two records that together go over cannot both miss it. As Acquire, a state read before
        // keeps these loads after it.
        self.0.iter().fold(0, |sum, one| sum.wrapping_add(one.0.load(Ordering::SeqCst)))
    }

    /// Every counter, to make a new state of.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals { each: [0; MAX_STRIPES], sum: 0 };
        for (each, stripe) in totals.each.iter_mut().zip(&self.0) {
            // Acquire: whoever sees bytes sees the event they came with. A state read before (an
            // Acquire of `current`) keeps these loads after it.
            *each = stripe.0.load(Ordering::Acquire);
            totals.sum = totals.sum.wrapping_add(*each);
        }
        totals
    }

    /// Whether no counter has passed what each had in `totals` by more than `share`. Called after
    /// a publication, in the one order of sequentially consistent operations.
    pub(super) fn are_within(&self, totals: &Totals, share: u64) -> bool {
        model_fence();
        self.0
            .iter()
            .zip(&totals.each)
            .all(|(one, &was)| one.0.load(Ordering::SeqCst).wrapping_sub(was) <= share)
    }
}
