//! The sensor: counters, the published state, and the memory orderings between them.
//!
//! If no roll-over is due, [`QuotaSensor::record`] adds to its own thread's counter and checks that
//! the counter does not exceed its ceiling. While no counter exceeds its ceiling, the window is
//! within the limit. So the call need not read the counters of other threads. A thread that exceeds
//! a ceiling publishes a state with new ceilings, or a state without ceilings, before it returns.
//! Two rules make that safe:
//!
//! * A publisher reads the counters again *after* it published, and a record reads `current` again
//!   *after* it added, both sequentially consistent. So for a concurrent addition and publication,
//!   either the record obeys the new ceilings, or the publisher sees a counter above its new
//!   ceiling and publishes again.
//! * A record also checks the state before it adds, so that bytes are never added to a bucket older
//!   than the record's time. If the window moves meanwhile, they are added to a later bucket.

use crate::sync::{AtomicI64, AtomicU64, Ordering};

use super::published::{Current, Published, Slot};
use super::state::{Fast, Head, NEVER_MS, Shape, State};
use super::stripes::{Stripes, Totals};
use super::{
    FULL_WINDOW_BYTES, MAX_AMOUNT_BYTES, MAX_SAMPLES, MAX_WINDOW_MS, QuotaError, QuotaSettings,
    RateMode, elapsed, window,
};

/// Measures the rate of bytes over a rolling window, and compares it with a limit. Any number of
/// threads may use it.
///
/// Every call takes the time of the caller's clock in milliseconds. Sensor time never goes back. If
/// a clock is behind by less than the whole window of N samples, the latest sensor time is used. If
/// it is further behind, it was set back, and sensor time continues from its latest value. If a
/// clock leaps ahead, all samples expire.
pub struct QuotaSensor {
    pub(super) shape: Shape,
    pub(super) published: Published,
    pub(super) stripes: Stripes,
    apart: Box<Apart>,
}

/// Values that are written rarely, on their own cache lines.
#[repr(align(128))]
struct Apart {
    /// Sensor time of the newest record; used only in [`RateMode::Elapsed`].
    last_event_ms: AtomicI64,
    throttled_until_ms: AtomicI64,
    throttled_ms: AtomicU64,
    overshoot_bytes: AtomicU64,
}

/// State of a sensor at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuotaSnapshot {
    /// Bytes per second.
    pub rate: f64,
    /// Bytes per second; `None` means no limit.
    pub limit_bytes_per_second: Option<u64>,
    /// Bytes ever recorded or granted, minus returned bytes; wraps at 2^64.
    pub total_bytes: u64,
    /// Bytes of the live samples.
    pub window_bytes: u64,
    /// Bytes granted and not yet settled.
    pub reserved_bytes: u64,
    /// Total time in milliseconds that callers were told to wait. Overlapping waits count once.
    pub throttled_ms: u64,
    /// Largest number of bytes by which a window exceeded the limit.
    pub overshoot_bytes: u64,
}

/// Result of an attempt to add bytes without a new state.
pub(super) enum Added {
    No,
    Within,
    Beyond { stripe: usize, after: u64 },
}

/// The bytes of a window, compared with the limit.
struct Finding {
    bytes: u64,
    rate: f64,
    throttle_ms: u64,
    allowed: u64,
    sensor_ms: i64,
    head: Head,
    total: u64,
}

enum Replaced {
    Lost,
    Done,
    /// Published, but a counter has already exceeded its new ceiling.
    Passed,
}

impl QuotaSensor {
    /// Creates a sensor without records.
    ///
    /// # Errors
    /// [`QuotaError::NumSamples`], [`QuotaError::WindowMs`].
    pub fn new(settings: QuotaSettings) -> Result<Self, QuotaError> {
        Self::with_stripes(settings, stripes_here())
    }

    pub(super) fn with_stripes(
        settings: QuotaSettings,
        stripes: usize,
    ) -> Result<Self, QuotaError> {
        if !(1..=MAX_SAMPLES).contains(&settings.num_samples) {
            return Err(QuotaError::NumSamples(settings.num_samples));
        }
        if !(1..=MAX_WINDOW_MS).contains(&settings.window_ms) {
            return Err(QuotaError::WindowMs(settings.window_ms));
        }
        let shape = Shape::new(&settings, stripes);
        let stripes = Stripes::new(stripes);
        let state = State::new(&shape, settings.limit_bytes_per_second);
        let totals = stripes.totals();
        let published = Published::new(shape.words(), |slot| shape.fill(slot, &state, &totals, 0));
        let apart = Box::new(Apart {
            last_event_ms: AtomicI64::new(NEVER_MS),
            throttled_until_ms: AtomicI64::new(NEVER_MS),
            throttled_ms: AtomicU64::new(0),
            overshoot_bytes: AtomicU64::new(0),
        });
        Ok(Self { shape, published, stripes, apart })
    }

    /// Records `amount` bytes.
    ///
    /// # Errors
    /// [`QuotaError::AmountTooLarge`], [`QuotaError::WindowFull`].
    #[inline]
    pub fn record(&self, amount: u64, now_ms: i64) -> Result<(), QuotaError> {
        match self.add(amount, now_ms) {
            Added::Within => Ok(()),
            added => self.record_slowly(added, amount, now_ms).map(|_| ()),
        }
    }

    /// Records `amount` bytes and returns how many milliseconds to wait, as [`Self::throttle_ms`]
    /// does.
    ///
    /// # Errors
    /// [`QuotaError::AmountTooLarge`], [`QuotaError::WindowFull`].
    #[inline]
    pub fn record_and_throttle_ms(&self, amount: u64, now_ms: i64) -> Result<u64, QuotaError> {
        match self.add(amount, now_ms) {
            Added::Within => Ok(0),
            added => {
                self.record_slowly(added, amount, now_ms)?;
                Ok(self.throttle_ms(now_ms))
            }
        }
    }

    /// Returns how many milliseconds to wait, or 0 if the rate is within the limit. With
    /// [`RateMode::Window`] this is the time until the rate is within the limit if no more bytes
    /// are recorded. With [`RateMode::Elapsed`] Kafka's formula gives the time. With limit 0 it is
    /// always the whole window.
    #[inline]
    pub fn throttle_ms(&self, now_ms: i64) -> u64 {
        let current = self.published.current();
        let covered = Fast(self.published.slot(current)).covers(now_ms);
        if covered && self.published.is_still(current) {
            // The state has ceilings, and a thread that exceeds one publishes a new state before it
            // returns.
            return 0;
        }
        self.throttle_slowly(now_ms)
    }

    /// Returns the current bytes per second.
    pub fn rate(&self, now_ms: i64) -> f64 {
        self.measure(now_ms).rate
    }

    /// Returns the limit in bytes per second; `None` means no limit.
    pub fn limit(&self) -> Option<u64> {
        self.published.read(|slot| Head::load(slot).limit).0
    }

    /// Changes the limit for every call that starts after this call has returned. The samples are
    /// kept.
    pub fn set_limit(&self, limit_bytes_per_second: Option<u64>, now_ms: i64) {
        self.set_limit_at(limit_bytes_per_second, Some(now_ms));
    }

    /// Changes the limit. If `now_ms` is `None`, uses the latest time that the sensor knows.
    pub fn set_limit_at(&self, limit_bytes_per_second: Option<u64>, now_ms: Option<i64>) {
        self.transition(1, |state, sum, _| {
            if let (RateMode::Window, Some(now_ms)) = (self.shape.rate, now_ms) {
                // First pay the debt up to now at the rate of the old limit.
                let total = sum.wrapping_add(state.head.adjust);
                window::advance(&self.shape, state, now_ms, total);
            }
            state.head.limit = limit_bytes_per_second;
            ((), true)
        });
    }

    /// Returns the bytes ever recorded or granted, minus returned bytes. The number is exact and
    /// wraps at 2^64.
    pub fn total(&self) -> u64 {
        let total = |slot: Slot<'_>| self.stripes.sum().wrapping_add(Head::load(slot).adjust);
        self.published.read(total).0
    }

    /// Returns all figures without delaying other threads.
    pub fn snapshot(&self, now_ms: i64) -> QuotaSnapshot {
        let found = self.measure(now_ms);
        self.note_overshoot(found.bytes, found.allowed);
        QuotaSnapshot {
            rate: found.rate,
            limit_bytes_per_second: found.head.limit,
            total_bytes: found.total,
            window_bytes: found.bytes,
            reserved_bytes: found.head.reserved,
            // Relaxed: these figures are for display only and order nothing.
            throttled_ms: self.apart.throttled_ms.load(Ordering::Relaxed),
            overshoot_bytes: self.apart.overshoot_bytes.load(Ordering::Relaxed),
        }
    }

    #[inline(always)]
    fn add(&self, amount: u64, now_ms: i64) -> Added {
        self.add_as_of(self.published.current(), amount, now_ms)
    }

    /// Adds `amount` if `current` is still current and its state has no roll-over due.
    #[inline(always)]
    pub(super) fn add_as_of(&self, current: Current, amount: u64, now_ms: i64) -> Added {
        let fast = Fast(self.published.slot(current));
        let stripe = self.stripes.mine();
        let covered = fast.covers(now_ms);
        let ceiling = fast.ceiling(stripe);
        let sensor_ms = fast.sensor_ms(now_ms);
        if amount > MAX_AMOUNT_BYTES || !covered || !self.published.is_still(current) {
            return Added::No;
        }
        if self.shape.rate == RateMode::Elapsed {
            self.raise_last_event(sensor_ms);
        }
        let after = self.stripes.add(stripe, amount);
        let within = ceiling.wrapping_sub(after) as i64 >= 0;
        if within && self.published.current_in_order() == current {
            return Added::Within;
        }
        Added::Beyond { stripe, after }
    }

    /// Raises the time of the last event. This happens before the bytes are added, so that a
    /// roll-over that sees the bytes also sees their time.
    #[inline(always)]
    fn raise_last_event(&self, sensor_ms: i64) {
        // Both accesses are relaxed, because the addition that follows is a Release. If another
        // thread stored a later time and this thread read it, the addition publishes that time,
        // too. The value never decreases.
        if self.apart.last_event_ms.load(Ordering::Relaxed) < sensor_ms {
            self.apart.last_event_ms.fetch_max(sensor_ms, Ordering::Relaxed);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_slowly(&self, added: Added, amount: u64, now_ms: i64) -> Result<(), QuotaError> {
        let (stripe, after) = match added {
            Added::Within => return Ok(()),
            Added::Beyond { stripe, after } => (stripe, after),
            Added::No => {
                if amount > MAX_AMOUNT_BYTES {
                    return Err(QuotaError::AmountTooLarge(amount));
                }
                let sensor_ms = self.make_ready(now_ms, amount)?;
                if self.shape.rate == RateMode::Elapsed {
                    self.raise_last_event(sensor_ms);
                }
                let stripe = self.stripes.mine();
                (stripe, self.stripes.add(stripe, amount))
            }
        };
        self.renew_exceeded_ceilings(stripe, after, amount);
        Ok(())
    }

    /// Ensures that the current sample is the sample of `now_ms` or a later sample, and returns the
    /// sensor time of `now_ms`.
    fn make_ready(&self, now_ms: i64, amount: u64) -> Result<i64, QuotaError> {
        let (head, _) = self.published.read(Head::load);
        if !head.full && self.shape.is_settled(&head, now_ms, head.roll_ms) {
            return Ok(Shape::settled_ms(&head, now_ms));
        }
        self.transition(room_for(amount), |state, sum, last_event_ms| {
            let total = sum.wrapping_add(state.head.adjust);
            if state.head.full && self.shape.rate == RateMode::Elapsed {
                elapsed::purge(&self.shape, state, now_ms, total, last_event_ms);
            }
            self.advance(state, now_ms, total, last_event_ms);
            if total.wrapping_sub(state.head.base) >= FULL_WINDOW_BYTES {
                return (Err(QuotaError::WindowFull), true);
            }
            (Ok(Shape::settled_ms(&state.head, now_ms)), true)
        })
    }

    fn advance(&self, state: &mut State, now_ms: i64, total: u64, last_event_ms: i64) {
        match self.shape.rate {
            RateMode::Window => window::advance(&self.shape, state, now_ms, total),
            RateMode::Elapsed => {
                elapsed::advance(&self.shape, state, now_ms, total, last_event_ms);
            }
        }
    }

    /// Publishes a state with new ceilings, or without ceilings, if an addition has raised a
    /// counter above its ceiling.
    fn renew_exceeded_ceilings(&self, stripe: usize, after: u64, amount: u64) {
        loop {
            let current = self.published.current_in_order();
            let slot = self.published.slot(current);
            let (head, ceiling) = (Head::load(slot), Fast(slot).ceiling(stripe));
            let bytes = self.stripes.sum().wrapping_add(head.adjust).wrapping_sub(head.base);
            if !self.published.is_still(current) {
                continue;
            }
            let within = !head.exact && ceiling.wrapping_sub(after) as i64 >= 0;
            // If the state has no ceilings, introduce them again when there is ample room.
            let ample = self.share(&head, bytes) >= 4 * room_for(amount);
            let known_full = head.full || bytes < FULL_WINDOW_BYTES;
            if within || head.exact && known_full && !ample {
                return;
            }
            self.renew(room_for(amount));
            return;
        }
    }

    #[cold]
    #[inline(never)]
    fn throttle_slowly(&self, now_ms: i64) -> u64 {
        let found = self.measure(now_ms);
        if self.shape.rate == RateMode::Elapsed {
            // In this mode the overshoot of a window shrinks with time, so it is noted now. With
            // [`RateMode::Window`] a bucket only grows, and its overshoot is noted when it ends.
            self.note_overshoot(found.bytes, found.allowed);
        }
        self.note_throttle(found.sensor_ms, found.throttle_ms);
        found.throttle_ms
    }

    /// Measures the rate. Publishes a new state only if `now_ms` requires one.
    fn measure(&self, now_ms: i64) -> Finding {
        let find = |slot: Slot<'_>| {
            let head = Head::load(slot);
            let total = self.stripes.sum().wrapping_add(head.adjust);
            self.shape.is_settled(&head, now_ms, head.purge_ms).then(|| {
                let border = |place| self.shape.ring_word(slot, place);
                self.find(&head, border, total, now_ms)
            })
        };
        if let (Some(found), _) = self.published.read(find) {
            return found;
        }
        self.transition(1, |state, sum, last_event_ms| {
            let total = sum.wrapping_add(state.head.adjust);
            match self.shape.rate {
                RateMode::Window => window::advance(&self.shape, state, now_ms, total),
                RateMode::Elapsed => {
                    elapsed::purge(&self.shape, state, now_ms, total, last_event_ms);
                }
            }
            let border = |place: usize| state.ring[place];
            (self.find(&state.head, border, total, now_ms), true)
        })
    }

    fn find(&self, head: &Head, border: impl Fn(usize) -> u64, total: u64, now_ms: i64) -> Finding {
        let shape = &self.shape;
        let bytes = total.wrapping_sub(head.base);
        let sensor_ms = Shape::settled_ms(head, now_ms);
        let (span_ms, throttle_ms) = match shape.rate {
            RateMode::Window => {
                (shape.span_ms(), window::throttle_ms(shape, head, border, total, sensor_ms))
            }
            RateMode::Elapsed => {
                let span_ms = elapsed::window_ms(shape, head, sensor_ms);
                (span_ms, elapsed::throttle_ms(shape, head.limit, bytes, span_ms))
            }
        };
        Finding {
            bytes,
            rate: elapsed::rate(bytes, span_ms),
            throttle_ms,
            allowed: Shape::allowed_bytes(head.limit, span_ms),
            sensor_ms,
            head: *head,
            total,
        }
    }

    /// Returns how many more bytes every stripe may take before a thread has to measure.
    fn share(&self, head: &Head, bytes: u64) -> u64 {
        if head.latest_ms == NEVER_MS || head.limit == Some(0) {
            return 0;
        }
        let allowed = match self.shape.rate {
            RateMode::Window => Shape::allowed_bytes(head.limit, self.shape.span_ms()),
            RateMode::Elapsed if head.sequence == 0 => 0,
            RateMode::Elapsed => {
                let window_ms = elapsed::window_ms(&self.shape, head, head.latest_ms);
                elapsed::surely_allowed_bytes(head.limit, window_ms)
            }
        };
        allowed.saturating_sub(bytes) / self.stripes.len() as u64
    }

    /// Calls `step` with the state, the sum of the counters and the time of the last event, then
    /// publishes the changed state. `step` returns its result and whether to publish the state; it
    /// may be called more than once. The sum is read after the state was loaded, and the state is
    /// replaced only if it is still current. So the border of a new bucket separates earlier bytes
    /// from later bytes. The new state has ceilings if every stripe gets at least `room` bytes.
    pub(super) fn transition<R>(
        &self,
        room: u64,
        mut step: impl FnMut(&mut State, u64, i64) -> (R, bool),
    ) -> R {
        loop {
            let Some((current, mut state, totals)) = self.load() else { continue };
            // Relaxed: the time is read after the counters, whose Acquire makes it visible.
            let last_event_ms = self.apart.last_event_ms.load(Ordering::Relaxed);
            self.note_full_window(&state.head, totals.sum);
            let (result, publish) = step(&mut state, totals.sum, last_event_ms);
            if !publish && self.published.is_still(current) {
                return result;
            }
            match self.replace(current, &mut state, &totals, room) {
                Replaced::Lost => {}
                Replaced::Done => return result,
                Replaced::Passed => {
                    self.renew(room);
                    return result;
                }
            }
        }
    }

    /// Publishes the state with new ceilings, or without ceilings.
    fn renew(&self, room: u64) {
        loop {
            let Some((current, mut state, totals)) = self.load() else { continue };
            if let Replaced::Done = self.replace(current, &mut state, &totals, room) {
                return;
            }
        }
    }

    #[inline(always)]
    fn load(&self) -> Option<(Current, State, Totals)> {
        let current = self.published.current();
        let state = State::load(&self.shape, self.published.slot(current));
        self.published.is_still(current).then(|| (current, state, self.stripes.totals()))
    }

    fn replace(&self, current: Current, state: &mut State, totals: &Totals, room: u64) -> Replaced {
        let head = &mut state.head;
        let bytes = totals.sum.wrapping_add(head.adjust).wrapping_sub(head.base);
        let share = self.share(head, bytes);
        head.full = bytes >= FULL_WINDOW_BYTES;
        head.exact = head.full || share < room;
        let exact = head.exact;
        let fill = |slot: Slot<'_>| self.shape.fill(slot, state, totals, share);
        if !self.published.try_replace(current, fill) {
            return Replaced::Lost;
        }
        if exact || self.stripes.are_within(totals, share) {
            Replaced::Done
        } else {
            Replaced::Passed
        }
    }

    /// Records the overshoot of a window before the window moves on.
    fn note_full_window(&self, head: &Head, sum: u64) {
        if head.exact && head.latest_ms != NEVER_MS {
            let span_ms = match self.shape.rate {
                RateMode::Window => self.shape.span_ms(),
                RateMode::Elapsed => elapsed::window_ms(&self.shape, head, head.latest_ms),
            };
            let bytes = sum.wrapping_add(head.adjust).wrapping_sub(head.base);
            self.note_overshoot(bytes, Shape::allowed_bytes(head.limit, span_ms));
        }
    }

    pub(super) fn note_overshoot(&self, bytes: u64, allowed: u64) {
        let over = bytes.saturating_sub(allowed);
        // Relaxed, here and below: these figures are for display only and order nothing.
        if self.apart.overshoot_bytes.load(Ordering::Relaxed) < over {
            self.apart.overshoot_bytes.fetch_max(over, Ordering::Relaxed);
        }
    }

    /// Adds a time to wait to the total without counting a moment twice. A thread that moves the
    /// end of the wait adds only the time by which it moved the end.
    pub(super) fn note_throttle(&self, sensor_ms: i64, throttle_ms: u64) {
        let end_ms = sensor_ms.saturating_add_unsigned(throttle_ms);
        let apart = &self.apart;
        if throttle_ms == 0 || apart.throttled_until_ms.load(Ordering::Relaxed) >= end_ms {
            return;
        }
        let known_ms = apart.throttled_until_ms.fetch_max(end_ms, Ordering::Relaxed);
        let more_ms = end_ms.saturating_sub(known_ms.max(sensor_ms)).max(0);
        apart.throttled_ms.fetch_add(more_ms as u64, Ordering::Relaxed);
    }
}

/// Returns the bytes that a publication should leave for every stripe, enough for a few more
/// records of this size.
pub(super) fn room_for(amount: u64) -> u64 {
    2 * amount.min(MAX_AMOUNT_BYTES) + 1
}

/// Returns the number of stripes, which is so large that busy threads seldom share a stripe.
#[cfg(not(tierlog_loom))]
fn stripes_here() -> usize {
    static STRIPES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *STRIPES.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(8, usize::from);
        (4 * cores).next_power_of_two().clamp(16, super::stripes::MAX_STRIPES)
    })
}

#[cfg(tierlog_loom)]
fn stripes_here() -> usize {
    2
}
