//! Synchronization primitives, and a small number for every live thread. The atomics and locks are
//! those of std, or those of loom when the models run (`RUSTFLAGS="--cfg tierlog_loom"`).

#[cfg(tierlog_loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    },
};
#[cfg(tierlog_loom)]
pub(crate) use loom::thread::{self, ThreadId};
#[cfg(not(tierlog_loom))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    },
};
#[cfg(not(tierlog_loom))]
pub(crate) use std::thread::{self, ThreadId};

/// Returns the id of this thread. No other thread of the process ever has the same id.
pub(crate) fn current_thread() -> ThreadId {
    thread::current().id()
}

/// Result of [`thread_number`] for a thread that has no number.
#[cfg(not(tierlog_loom))]
pub(crate) const ENDING: usize = usize::MAX - 1;

#[cfg(not(tierlog_loom))]
pub(crate) use numbers::thread_number;

#[cfg(not(tierlog_loom))]
mod numbers {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::ENDING;

    const UNKNOWN: usize = usize::MAX;

    /// One bit for each number that a live thread holds. There is no lock, because a forked child
    /// would wait forever for a lock that another thread of its parent held.
    static TAKEN: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

    thread_local! {
        // This value has no destructor, so a thread can read it until the thread ends.
        static NUMBER: Cell<usize> = const { Cell::new(UNKNOWN) };
        static OWNED: Owned = Owned::take();
    }

    struct Owned(usize);

    impl Owned {
        fn take() -> Self {
            for (index, word) in TAKEN.iter().enumerate() {
                let mut taken = word.load(Ordering::Relaxed);
                while taken != u64::MAX {
                    let bit = taken.trailing_ones();
                    // Acquire: all that the last owner of this number did happens before.
                    taken = word.fetch_or(1 << bit, Ordering::Acquire);
                    if taken & 1 << bit == 0 {
                        return Self(index * 64 + bit as usize);
                    }
                }
            }
            Self(ENDING)
        }
    }

    impl Drop for Owned {
        fn drop(&mut self) {
            NUMBER.set(ENDING);
            if let Some(word) = TAKEN.get(self.0 / 64) {
                // Release: see `take`.
                word.fetch_and(!(1 << (self.0 % 64)), Ordering::Release);
            }
        }
    }

    /// Returns a number that no other live thread holds. It is the smallest number that was free
    /// when this thread first called this function. Returns [`ENDING`] when the thread runs its
    /// destructors or when there are too many threads.
    #[inline]
    pub(crate) fn thread_number() -> usize {
        let number = NUMBER.get();
        if number != UNKNOWN {
            return number;
        }
        first_time()
    }

    #[cold]
    fn first_time() -> usize {
        let number = OWNED.try_with(|owned| owned.0).unwrap_or(ENDING);
        NUMBER.set(number);
        number
    }
}

#[cfg(all(test, tierlog_loom))]
pub(crate) use modelled::set_thread_number;
#[cfg(tierlog_loom)]
pub(crate) use modelled::thread_number;

#[cfg(tierlog_loom)]
mod modelled {
    use std::cell::Cell;

    loom::thread_local! {
        static NUMBER: Cell<usize> = Cell::new(0);
    }

    /// Returns the number that the model gave this thread.
    pub(crate) fn thread_number() -> usize {
        NUMBER.with(Cell::get)
    }

    /// Sets the number of this thread, so that every run of a model is the same.
    #[cfg(test)]
    pub(crate) fn set_thread_number(number: usize) {
        NUMBER.with(|known| known.set(number));
    }
}

#[cfg(all(test, not(tierlog_loom)))]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn live_threads_hold_unique_numbers_and_release_them_at_their_end() {
        let most = || {
            let together = Barrier::new(8);
            let numbers: Vec<usize> = thread::scope(|scope| {
                let threads: Vec<_> = (0..8)
                    .map(|_| {
                        scope.spawn(|| {
                            let number = thread_number();
                            together.wait();
                            assert_eq!(number, thread_number());
                            number
                        })
                    })
                    .collect();
                threads.into_iter().map(|one| one.join().expect("a thread")).collect()
            });
            assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), 8);
            numbers.into_iter().max().expect("eight numbers")
        };
        let first = most();
        for _ in 0..20 {
            // Other tests run threads too, but never hundreds at once.
            assert!(most() < first + 100);
        }
    }
}
