//! Registry of readers: decides when a removed entry may be freed.
//!
//! Every thread has its own lane on its own cache line. A thread that starts to read announces the
//! current epoch in its lane. Writers never wait for a lane. A removed entry is kept until every
//! lane is idle or was entered after the removal.
//!
//! This is safe for the following reason. A removal unlinks the entry, then moves the epoch from
//! `e` to `e + 1`. A reader announces the epoch that it loaded, issues a full fence, then follows
//! pointers. The freeing thread loads the epoch, issues a full fence, then reads the lanes. One of
//! the two fences comes first:
//!
//! * If the reader's fence comes first, the freeing thread sees the announcement. If the announced
//!   epoch is `e` or less, the entry is not freed. If it is larger, the reader loaded it (acquire)
//!   from a store (release) that was made after the unlinking, so the reader cannot have found the
//!   entry.
//! * If the freeing thread's fence comes first, the reader's loads after its own fence see all
//!   stores before the other fence, including the unlinking.
//!
//! A reader leaves with a release store, and the freeing thread reads a lane with an acquire load.
//! So all that a reader did with an entry happens before the entry is freed. A reader also enters
//! with a release store, because the freeing thread may see that the reader has entered again
//! without seeing that it had left.

use std::marker::PhantomData;

use crate::sync::{AtomicI64, AtomicU64, AtomicUsize, Ordering, fence, thread_number};

/// Number of threads with their own lane. Further threads share the guest lanes.
#[cfg(not(tierlog_loom))]
pub(super) const OWN: usize = 64;
#[cfg(not(tierlog_loom))]
const GUESTS: usize = 64;
#[cfg(tierlog_loom)]
pub(super) const OWN: usize = 2;
#[cfg(tierlog_loom)]
const GUESTS: usize = 1;

const IDLE: u64 = 0;

/// Values that only one thread writes. They are aligned to 128 bytes, because processors fetch
/// cache lines in pairs.
#[repr(align(128))]
pub(super) struct Lane {
    /// The epoch in which the thread of this lane started to read, or [`IDLE`].
    entered: AtomicU64,
    /// Latest time that the thread of this lane has seen. It never goes back.
    pub seen_ms: AtomicI64,
    /// Number of uses so far. It orders the uses within one millisecond.
    pub sequence: AtomicU64,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
}

/// A lane for any thread that has no lane of its own.
#[repr(align(128))]
struct Guest(AtomicU64);

/// All lanes of one cache.
pub(super) struct Lanes {
    epoch: AtomicU64,
    /// Lanes with this number or a larger one were never entered. The number is raised before a
    /// thread first enters a lane, under the same fence as the announcement. So a freeing thread
    /// that must see the announcement also sees the new number.
    opened: AtomicUsize,
    guests_opened: AtomicUsize,
    own: Box<[Lane]>,
    guests: Box<[Guest]>,
    /// Number of readers that found every guest lane taken.
    crowd: AtomicU64,
    /// Hits and misses of threads without their own lane.
    pub guest_hits: AtomicU64,
    /// Latest time that any thread without its own lane has seen.
    guest_seen_ms: AtomicI64,
    pub guest_misses: AtomicU64,
}

/// While a reader has a pin, no entry that the reader found is freed.
pub(super) struct Pin<'a> {
    lanes: &'a Lanes,
    place: Place<'a>,
    // A pin stays in its thread, because only that thread may write to its lane.
    not_send: PhantomData<*const ()>,
}

enum Place<'a> {
    Own(&'a Lane, u32),
    /// The thread already has a pin. Dropping the outermost pin leaves the lane.
    Nested(&'a Lane, u32),
    Guest(&'a Guest),
    Crowd,
}

/// Entries that were removed before this epoch may be freed.
#[derive(Clone, Copy)]
pub(super) struct Quiet(u64);

impl Quiet {
    pub fn frees(self, removed_in: u64) -> bool {
        removed_in < self.0
    }
}

fn lane() -> Lane {
    Lane {
        entered: AtomicU64::new(IDLE),
        seen_ms: AtomicI64::new(i64::MIN),
        sequence: AtomicU64::new(0),
        hits: AtomicU64::new(0),
        misses: AtomicU64::new(0),
    }
}

impl Lanes {
    pub fn new() -> Self {
        Self {
            epoch: AtomicU64::new(IDLE + 1),
            opened: AtomicUsize::new(0),
            guests_opened: AtomicUsize::new(0),
            own: (0..OWN).map(|_| lane()).collect(),
            guests: (0..GUESTS).map(|_| Guest(AtomicU64::new(IDLE))).collect(),
            crowd: AtomicU64::new(0),
            guest_hits: AtomicU64::new(0),
            guest_seen_ms: AtomicI64::new(i64::MIN),
            guest_misses: AtomicU64::new(0),
        }
    }

    /// Returns the lane of this thread, for its counters.
    pub fn own(&self) -> Option<&Lane> {
        self.own.get(thread_number())
    }

    /// Returns all lanes that were ever used.
    pub fn opened(&self) -> &[Lane] {
        &self.own[..self.opened.load(Ordering::Relaxed)]
    }

    /// Returns the latest time that any thread has seen.
    pub fn latest_ms(&self) -> i64 {
        let lanes = self.opened().iter().map(|lane| &lane.seen_ms);
        let seen = lanes.chain([&self.guest_seen_ms]).map(|seen| seen.load(Ordering::Relaxed));
        seen.max().unwrap_or(i64::MIN)
    }

    #[inline]
    pub fn enter(&self) -> Pin<'_> {
        let number = thread_number();
        let place = match self.own.get(number) {
            Some(lane) if lane.entered.load(Ordering::Relaxed) != IDLE => {
                Place::Nested(lane, number as u32)
            }
            Some(lane) => {
                if number >= self.opened.load(Ordering::Relaxed) {
                    self.opened.fetch_max(number + 1, Ordering::Relaxed);
                }
                announce(&lane.entered, self.epoch.load(Ordering::Acquire));
                Place::Own(lane, number as u32)
            }
            None => self.enter_as_guest(number),
        };
        Pin { lanes: self, place, not_send: PhantomData }
    }

    #[cold]
    fn enter_as_guest(&self, number: usize) -> Place<'_> {
        for step in 0..GUESTS {
            let index = number.wrapping_add(step) % GUESTS;
            let guest = &self.guests[index];
            if guest.0.load(Ordering::Relaxed) != IDLE {
                continue;
            }
            self.guests_opened.fetch_max(index + 1, Ordering::Relaxed);
            let epoch = self.epoch.load(Ordering::Acquire);
            // Acquire: all that the previous guest did happens before this guest reads.
            if guest.0.compare_exchange(IDLE, epoch, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                fence(Ordering::SeqCst);
                return Place::Guest(guest);
            }
        }
        // More than 128 threads are reading at this moment. No entry is freed until all threads
        // without a lane have left.
        self.crowd.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Place::Crowd
    }

    /// Starts a new epoch and returns the previous epoch, in which the removal took place. Called
    /// with the writer's lock held, after the entry was unlinked.
    pub fn removed(&self) -> u64 {
        let epoch = self.epoch.load(Ordering::Relaxed);
        // Release: a thread that loads the new epoch sees the unlinking.
        self.epoch.store(epoch + 1, Ordering::Release);
        epoch
    }

    /// Returns the oldest epoch that an active reader announced, or the current epoch if there is
    /// no active reader.
    pub fn quiet(&self) -> Quiet {
        let mut oldest = self.epoch.load(Ordering::Acquire);
        fence(Ordering::SeqCst);
        // Acquire: all that a reader did before it left happens before the caller frees an entry.
        if self.crowd.load(Ordering::Acquire) != 0 {
            return Quiet(0);
        }
        let own = &self.own[..self.opened.load(Ordering::Relaxed)];
        let guests = &self.guests[..self.guests_opened.load(Ordering::Relaxed)];
        let entered = own.iter().map(|lane| &lane.entered);
        for entered in entered.chain(guests.iter().map(|guest| &guest.0)) {
            let entered = entered.load(Ordering::Acquire);
            if entered != IDLE && entered < oldest {
                oldest = entered;
            }
        }
        Quiet(oldest)
    }
}

/// Stores `epoch`, then issues a full fence.
#[inline]
fn announce(entered: &AtomicU64, epoch: u64) {
    // On x86 an exchange is a full fence and costs half as much as a store and a fence.
    #[cfg(all(target_arch = "x86_64", not(tierlog_loom)))]
    {
        entered.swap(epoch, Ordering::SeqCst);
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
    #[cfg(not(all(target_arch = "x86_64", not(tierlog_loom))))]
    {
        // Release: all that this thread did before it left happens before this store (see the
        // module documentation).
        entered.store(epoch, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

impl Pin<'_> {
    /// Returns the lane and its number, if the thread has one.
    #[inline]
    pub fn lane(&self) -> Option<(&Lane, u32)> {
        match self.place {
            Place::Own(lane, number) | Place::Nested(lane, number) => Some((lane, number)),
            Place::Guest(_) | Place::Crowd => None,
        }
    }

    /// Raises the latest time seen to `time_ms` and returns the previous value.
    #[inline]
    pub fn raise_seen_ms(&self, time_ms: i64) -> i64 {
        match self.lane() {
            Some((lane, _)) => {
                let seen_ms = lane.seen_ms.load(Ordering::Relaxed);
                if time_ms > seen_ms {
                    lane.seen_ms.store(time_ms, Ordering::Relaxed);
                }
                seen_ms
            }
            None => self.lanes.guest_seen_ms.fetch_max(time_ms, Ordering::Relaxed),
        }
    }

    #[inline]
    pub fn count(&self, hit: bool) {
        match self.lane() {
            Some((lane, _)) => {
                let count = if hit { &lane.hits } else { &lane.misses };
                // Only this thread writes the counter.
                count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            None => {
                let count = if hit { &self.lanes.guest_hits } else { &self.lanes.guest_misses };
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: all reads under the pin happen before the entry is freed.
        match self.place {
            Place::Own(lane, _) => lane.entered.store(IDLE, Ordering::Release),
            Place::Nested(..) => {}
            Place::Guest(guest) => guest.0.store(IDLE, Ordering::Release),
            Place::Crowd => {
                self.lanes.crowd.fetch_sub(1, Ordering::Release);
            }
        }
    }
}
