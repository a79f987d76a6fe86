//! The state of a sensor as plain values, and sensor time. This module has no atomics: a state is
//! loaded from the words of one version, transformed, and published as words again.
//!
//! Sensor time is the caller's clock plus `offset_ms`. The offset is 0 until the clock is set back
//! by a whole window or more. Sensor time then continues from its latest value. A smaller step back
//! is ignored. A step forward by more than [`Shape::stride_ms`] is shortened to about that length,
//! after which all samples have expired anyway. So no clock makes sensor time overflow.

use std::ops::{Deref, DerefMut};

use super::published::{Slot, WORDS_PER_LINE};
use super::stripes::Totals;
use super::{FULL_WINDOW_BYTES, QuotaSettings, RateMode};

const FAST_FROM: usize = 1;
const FAST_UNTIL: usize = 2;
const OFFSET: usize = 3;
const LATEST: usize = 4;
const SEQUENCE: usize = 5;
const BASE: usize = 6;
const ADJUST: usize = 7;
const LIMIT: usize = 8;
const FLAGS: usize = 9;
const ROLL: usize = 10;
const PURGE: usize = 11;
const OLDEST: usize = 12;
const RESERVED: usize = 13;
const PAID: usize = 14;
const PAID_REST: usize = 15;
const LOWEST_DEBT: usize = 16;
const CEILINGS: usize = 2 * WORDS_PER_LINE;

const LIMITED: u64 = 1;
const EXACT: u64 = 2;
const FULL: u64 = 4;

/// The clock is clamped to this distance from 0, which is 36 million years.
const FARTHEST_MS: i64 = 1 << 60;

/// Number of ring words that are kept on the stack. The ring of the copy quota fits, because it
/// holds 61 buckets and the bucket that left the window last.
const FEW: usize = 64;

/// The smallest time; it means that no time was seen yet.
pub(super) const NEVER_MS: i64 = i64::MIN;

/// Constants of a sensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) num_samples: u64,
    pub(super) window_ms: i64,
    pub(super) rate: RateMode,
    pub(super) stripes: usize,
}

/// The state without the ring, which each mode uses in its own way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Head {
    /// Sensor time minus the caller's clock.
    pub(super) offset_ms: i64,
    /// Sensor time up to which the state is computed. In [`RateMode::Window`] this is the start of
    /// the bucket.
    pub(super) latest_ms: i64,
    /// Number of the current bucket or sample.
    pub(super) sequence: u64,
    /// Total at the start of the oldest live sample. Later bytes are in the window.
    pub(super) base: u64,
    /// Granted minus returned bytes, to be added to the sum of the counters.
    pub(super) adjust: u64,
    pub(super) limit: Option<u64>,
    /// True when there are no ceilings, so every record sums the counters.
    pub(super) exact: bool,
    /// True when the window refuses more bytes.
    pub(super) full: bool,
    /// A record at or after this sensor time needs a new sample first.
    pub(super) roll_ms: i64,
    /// A measurement at or after this sensor time may find expired samples.
    pub(super) purge_ms: i64,
    /// Start of the oldest sample; used only in [`RateMode::Elapsed`].
    pub(super) oldest_ms: i64,
    /// Bytes granted and not yet settled.
    pub(super) reserved: u64,
    /// Total up to which granted or recorded bytes were paid for at the rate of the limit; used
    /// only in [`RateMode::Window`].
    pub(super) paid: u64,
    /// Thousandths of a byte beyond `paid`.
    pub(super) paid_rest: u64,
    /// Smallest debt in whole bytes at the start of any bucket since the last time without
    /// reservations.
    pub(super) lowest_debt: u64,
}

pub(super) struct State {
    pub(super) head: Head,
    pub(super) ring: Ring,
}

/// The words of the ring. If there are few, they are on the stack, because a reservation copies
/// them twice.
pub(super) struct Ring {
    few: [u64; FEW],
    many: Vec<u64>,
    len: usize,
}

impl Ring {
    fn new(len: usize) -> Self {
        let many = if len > FEW { vec![0; len] } else { Vec::new() };
        Self { few: [0; FEW], many, len }
    }
}

impl Deref for Ring {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        if self.len > FEW { &self.many } else { &self.few[..self.len] }
    }
}

impl DerefMut for Ring {
    fn deref_mut(&mut self) -> &mut [u64] {
        if self.len > FEW { &mut self.many } else { &mut self.few[..self.len] }
    }
}

impl Shape {
    pub(super) fn new(settings: &QuotaSettings, stripes: usize) -> Self {
        Self {
            num_samples: u64::from(settings.num_samples),
            window_ms: settings.window_ms as i64,
            rate: settings.rate,
            stripes,
        }
    }

    /// Returns the length of the whole window.
    pub(super) fn span_ms(&self) -> i64 {
        self.num_samples as i64 * self.window_ms
    }

    /// Returns the longest single step of sensor time. It is longer than any sample lives. It is a
    /// multiple of the window, so that buckets stay aligned to the clock.
    fn stride_ms(&self) -> i64 {
        2 * (self.span_ms() + 2 * self.window_ms)
    }

    pub(super) fn ring_len(&self) -> usize {
        let samples = self.num_samples as usize + 1;
        match self.rate {
            RateMode::Window => samples,
            RateMode::Elapsed => 3 * samples,
        }
    }

    fn ring_line(&self) -> usize {
        (CEILINGS + self.stripes).div_ceil(WORDS_PER_LINE)
    }

    /// Returns word `index` of the ring of an unchecked slot.
    pub(super) fn ring_word(&self, slot: Slot<'_>, index: usize) -> u64 {
        slot.word(self.ring_line() * WORDS_PER_LINE + index)
    }

    /// Returns the largest number of bytes in samples of `span_ms` that is within the limit.
    pub(super) fn allowed_bytes(limit: Option<u64>, span_ms: i64) -> u64 {
        let Some(limit) = limit else { return FULL_WINDOW_BYTES };
        let bytes = match limit.checked_mul(span_ms.unsigned_abs()) {
            Some(thousandths) => thousandths / 1000,
            None => {
                let thousandths = u128::from(limit) * u128::from(span_ms.unsigned_abs());
                u64::try_from(thousandths / 1000).unwrap_or(u64::MAX)
            }
        };
        bytes.min(FULL_WINDOW_BYTES)
    }

    /// Returns the sensor time at `now_ms` without limiting the step.
    #[inline]
    fn bare_ms(head: &Head, now_ms: i64) -> i64 {
        now_ms.clamp(-FARTHEST_MS, FARTHEST_MS).wrapping_add(head.offset_ms)
    }

    /// Returns true when the clock has not been set back and `due_ms` is still ahead, so that no
    /// new state is needed. Then [`Self::settled_ms`] is the sensor time.
    #[inline]
    pub(super) fn is_settled(&self, head: &Head, now_ms: i64, due_ms: i64) -> bool {
        let bare_ms = Self::bare_ms(head, now_ms);
        bare_ms < due_ms && bare_ms > head.latest_ms.wrapping_sub(self.span_ms())
    }

    /// Returns the sensor time at `now_ms` when [`Self::is_settled`] is true.
    #[inline]
    pub(super) fn settled_ms(head: &Head, now_ms: i64) -> i64 {
        Self::bare_ms(head, now_ms).max(head.latest_ms)
    }

    /// Returns the sensor time at `now_ms`, which is at least `latest_ms`, and the time by which a
    /// leap of the clock was shortened. Updates the offset.
    pub(super) fn sensor_ms(&self, head: &mut Head, now_ms: i64, latest_ms: i64) -> (i64, i64) {
        let bare_ms = Self::bare_ms(head, now_ms);
        if head.latest_ms == NEVER_MS {
            return (bare_ms, 0);
        }
        if bare_ms <= latest_ms.wrapping_sub(self.span_ms()) {
            head.offset_ms = head.offset_ms.wrapping_add(latest_ms.wrapping_sub(bare_ms));
            return (latest_ms, 0);
        }
        let beyond_ms = bare_ms.wrapping_sub(latest_ms.wrapping_add(self.stride_ms()));
        if beyond_ms > 0 {
            let skipped_ms = beyond_ms - beyond_ms % self.window_ms;
            head.offset_ms = head.offset_ms.wrapping_sub(skipped_ms);
            return (bare_ms.wrapping_sub(skipped_ms), skipped_ms);
        }
        (bare_ms.max(latest_ms), 0)
    }

    /// Returns the number of words in a slot.
    pub(super) fn words(&self) -> usize {
        self.ring_line() * WORDS_PER_LINE + self.ring_len()
    }

    /// Sets all words of a slot, with ceilings that leave `share` to every stripe.
    pub(super) fn fill(&self, slot: Slot<'_>, state: &State, totals: &Totals, share: u64) {
        self.fill_head(slot, &state.head);
        for (stripe, total) in totals.each[..self.stripes].iter().enumerate() {
            slot.set(CEILINGS + stripe, total.wrapping_add(share));
        }
        slot.set_lines(self.ring_line(), &state.ring);
    }

    fn fill_head(&self, slot: Slot<'_>, head: &Head) {
        let due_ms = head.roll_ms.min(head.purge_ms);
        let (fast_from, fast_until) = if head.exact || due_ms == NEVER_MS {
            (i64::MAX, i64::MIN)
        } else {
            let from_ms = head.latest_ms - self.span_ms() + 1;
            (from_ms.wrapping_sub(head.offset_ms), due_ms.wrapping_sub(head.offset_ms))
        };
        let flags = if head.limit.is_some() { LIMITED } else { 0 }
            | if head.exact { EXACT } else { 0 }
            | if head.full { FULL } else { 0 };
        slot.set(FAST_FROM, fast_from as u64);
        slot.set(FAST_UNTIL, fast_until as u64);
        slot.set(OFFSET, head.offset_ms as u64);
        slot.set(LATEST, head.latest_ms as u64);
        slot.set(SEQUENCE, head.sequence);
        slot.set(BASE, head.base);
        slot.set(ADJUST, head.adjust);
        slot.set(LIMIT, head.limit.unwrap_or(0));
        slot.set(FLAGS, flags);
        slot.set(ROLL, head.roll_ms as u64);
        slot.set(PURGE, head.purge_ms as u64);
        slot.set(OLDEST, head.oldest_ms as u64);
        slot.set(RESERVED, head.reserved);
        slot.set(PAID, head.paid);
        slot.set(PAID_REST, head.paid_rest);
        slot.set(LOWEST_DEBT, head.lowest_debt);
    }
}

impl Head {
    /// Loads the head of an unchecked slot.
    #[inline]
    pub(super) fn load(slot: Slot<'_>) -> Self {
        let flags = slot.word(FLAGS);
        Self {
            offset_ms: slot.word(OFFSET) as i64,
            latest_ms: slot.word(LATEST) as i64,
            sequence: slot.word(SEQUENCE),
            base: slot.word(BASE),
            adjust: slot.word(ADJUST),
            limit: (flags & LIMITED != 0).then(|| slot.word(LIMIT)),
            exact: flags & EXACT != 0,
            full: flags & FULL != 0,
            roll_ms: slot.word(ROLL) as i64,
            purge_ms: slot.word(PURGE) as i64,
            oldest_ms: slot.word(OLDEST) as i64,
            reserved: slot.word(RESERVED),
            paid: slot.word(PAID),
            paid_rest: slot.word(PAID_REST),
            lowest_debt: slot.word(LOWEST_DEBT),
        }
    }
}

impl State {
    pub(super) fn new(shape: &Shape, limit: Option<u64>) -> Self {
        let head = Head {
            offset_ms: 0,
            latest_ms: NEVER_MS,
            // All bucket numbers in the ring are above 0.
            sequence: match shape.rate {
                RateMode::Window => shape.num_samples + 1,
                RateMode::Elapsed => 0,
            },
            base: 0,
            adjust: 0,
            limit,
            exact: true,
            full: false,
            roll_ms: NEVER_MS,
            purge_ms: NEVER_MS,
            oldest_ms: NEVER_MS,
            reserved: 0,
            paid: 0,
            paid_rest: 0,
            lowest_debt: u64::MAX,
        };
        Self { head, ring: Ring::new(shape.ring_len()) }
    }

    /// Loads the state of an unchecked slot.
    pub(super) fn load(shape: &Shape, slot: Slot<'_>) -> Self {
        let mut ring = Ring::new(shape.ring_len());
        slot.load_lines(shape.ring_line(), &mut ring);
        Self { head: Head::load(slot), ring }
    }
}

/// The fields that a record checks first, in an unchecked slot.
pub(super) struct Fast<'a>(pub(super) Slot<'a>);

impl Fast<'_> {
    /// Returns true when the state has ceilings and no roll-over is due at `now_ms`.
    #[inline(always)]
    pub(super) fn covers(&self, now_ms: i64) -> bool {
        (self.0.word(FAST_FROM) as i64) <= now_ms && now_ms < (self.0.word(FAST_UNTIL) as i64)
    }

    #[inline(always)]
    pub(super) fn ceiling(&self, stripe: usize) -> u64 {
        self.0.word(CEILINGS + stripe)
    }

    #[inline(always)]
    pub(super) fn sensor_ms(&self, now_ms: i64) -> i64 {
        now_ms.wrapping_add(self.0.word(OFFSET) as i64)
    }
}
