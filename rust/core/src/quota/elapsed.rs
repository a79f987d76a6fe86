//! The arithmetic of [`super::RateMode::Elapsed`] as plain functions of a state. It equals the
//! arithmetic of Kafka's `SampledStat`, `Rate` with `SimpleRate`, and `QuotaUtils`.
//!
//! The state is a ring of up to N + 1 samples of W milliseconds. Each sample has the time of its
//! start, the time of its last event, and the total of all bytes at its start. A measurement purges
//! samples whose last event is N x W milliseconds old. A purged sample restarts at the time of the
//! measurement, so measuring changes later results. Purged samples are always the oldest samples,
//! so the bytes of the live samples are the total minus `base`.
//!
//! The time of the last event of the current sample is not part of the state. `last_event_ms` holds
//! this time. It is in sensor time and only grows.

use super::state::{Head, NEVER_MS, Shape, State};

const START: usize = 0;
const LAST_EVENT: usize = 1;
const BORDER: usize = 2;
const WORDS: u64 = 3;

fn ring_index(shape: &Shape, sequence: u64, word: usize) -> usize {
    (sequence % (shape.num_samples + 1) * WORDS) as usize + word
}

/// Returns the numbers of the live samples. Numbers start at 1; number 0 means an empty ring.
fn live(shape: &Shape, head: &Head) -> std::ops::RangeInclusive<u64> {
    head.sequence.saturating_sub(shape.num_samples).max(1)..=head.sequence
}

/// Prepares the state for a record at `now_ms`. Starts a new sample if the current sample is
/// complete. `total` is the current total, and `last_event_ms` was read after the total.
pub(super) fn advance(
    shape: &Shape,
    state: &mut State,
    now_ms: i64,
    total: u64,
    last_event_ms: i64,
) {
    let sensor_ms = move_time(shape, state, now_ms, last_event_ms);
    if sensor_ms >= state.head.roll_ms {
        begin_sample(shape, state, sensor_ms, total);
    }
    look_up_bounds(shape, state);
}

/// Purges expired samples. Every measurement does this first.
pub(super) fn purge(shape: &Shape, state: &mut State, now_ms: i64, total: u64, last_event_ms: i64) {
    let sensor_ms = move_time(shape, state, now_ms, last_event_ms);
    if state.head.sequence == 0 {
        // The first measurement starts the first sample. Bytes recorded at the same time stay in
        // the window.
        let border = state.head.base;
        begin_sample(shape, state, sensor_ms, border);
    }
    let State { head, ring } = state;
    for sequence in live(shape, head) {
        let last_event_ms = ring[ring_index(shape, sequence, LAST_EVENT)] as i64;
        if sensor_ms - last_event_ms < shape.span_ms() {
            continue;
        }
        ring[ring_index(shape, sequence, START)] = sensor_ms as u64;
        ring[ring_index(shape, sequence, LAST_EVENT)] = sensor_ms as u64;
        let follower = if sequence < head.sequence {
            ring[ring_index(shape, sequence + 1, BORDER)]
        } else {
            total
        };
        head.base = later(head.base, follower, total);
    }
    look_up_bounds(shape, state);
}

/// Advances sensor time and stores the last event of the current sample in the state.
fn move_time(shape: &Shape, state: &mut State, now_ms: i64, last_event_ms: i64) -> i64 {
    let State { head, ring } = state;
    let latest_ms = head.latest_ms.max(last_event_ms);
    let (sensor_ms, _) = shape.sensor_ms(head, now_ms, latest_ms);
    head.latest_ms = sensor_ms;
    if head.sequence > 0 {
        let known = &mut ring[ring_index(shape, head.sequence, LAST_EVENT)];
        *known = (*known as i64).max(last_event_ms) as u64;
    }
    sensor_ms
}

fn begin_sample(shape: &Shape, state: &mut State, sensor_ms: i64, border: u64) {
    let State { head, ring } = state;
    let dropped = *live(shape, head).start();
    head.sequence += 1;
    let overwrites = *live(shape, head).start() > dropped;
    if overwrites {
        // The oldest sample is dropped even if it has not expired.
        let next = ring[ring_index(shape, dropped + 1, BORDER)];
        head.base =
            later(head.base, if dropped + 1 < head.sequence { next } else { border }, border);
    }
    ring[ring_index(shape, head.sequence, START)] = sensor_ms as u64;
    ring[ring_index(shape, head.sequence, LAST_EVENT)] = sensor_ms as u64;
    ring[ring_index(shape, head.sequence, BORDER)] = border;
}

/// Returns the later of two earlier totals. Sums wrap, so it compares their distances from `total`.
fn later(one: u64, other: u64, total: u64) -> u64 {
    if total.wrapping_sub(one) <= total.wrapping_sub(other) { one } else { other }
}

fn look_up_bounds(shape: &Shape, state: &mut State) {
    let State { head, ring } = state;
    if head.sequence == 0 {
        return;
    }
    let least = |word| {
        live(shape, head).map(|sequence| ring[ring_index(shape, sequence, word)] as i64).min()
    };
    let (oldest_ms, last_event_ms) = (least(START), least(LAST_EVENT));
    head.oldest_ms = oldest_ms.unwrap_or(NEVER_MS);
    head.purge_ms = last_event_ms.map_or(NEVER_MS, |event_ms| event_ms + shape.span_ms());
    head.roll_ms = ring[ring_index(shape, head.sequence, START)] as i64 + shape.window_ms;
}

/// Returns the time in milliseconds by which the bytes are divided to get the rate. The caller has
/// purged expired samples from `head`.
pub(super) fn window_ms(shape: &Shape, head: &Head, sensor_ms: i64) -> i64 {
    sensor_ms.wrapping_sub(head.oldest_ms).max(shape.window_ms)
}

/// Returns bytes per second.
pub(super) fn rate(bytes: u64, window_ms: i64) -> f64 {
    bytes as f64 / (window_ms as f64 / 1000.0)
}

/// Returns `QuotaUtils.throttleTime` when `rate` exceeds the limit, else 0.
pub(super) fn throttle_ms(shape: &Shape, limit: Option<u64>, bytes: u64, window_ms: i64) -> u64 {
    match limit {
        None => 0,
        Some(0) => shape.span_ms() as u64,
        Some(limit) => {
            let (rate, bound) = (rate(bytes, window_ms), limit as f64);
            if rate > bound {
                ((rate - bound) / bound * window_ms as f64).round() as u64
            } else {
                0
            }
        }
    }
}

/// Returns a number of bytes up to which the rate stays within the limit, now and later, because
/// the divisor only grows. The number is slightly smaller than the exact one, so that the rounding
/// of `rate` does not matter.
pub(super) fn surely_allowed_bytes(limit: Option<u64>, window_ms: i64) -> u64 {
    let allowed = Shape::allowed_bytes(limit, window_ms);
    if limit.is_none() { allowed } else { allowed.saturating_sub(1 + (allowed >> 50)) }
}
