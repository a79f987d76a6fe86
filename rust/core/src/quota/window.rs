//! The arithmetic of [`super::RateMode::Window`] and of reservations, as plain functions of a
//! state.
//!
//! Buckets are numbered; `border(k)` is the total of all bytes at the start of bucket k. The ring
//! holds the borders of the N live buckets and of the bucket that left the window last:
//!
//! ```text
//! bytes of the window         total - border(sequence - N + 1)     N live buckets
//! bytes no grant may forget   total - border(sequence - N)         and the one just leaving
//! debt                        total - paid                         a bucket that leaks at the limit
//! ```
//!
//! A window of N x W milliseconds that starts anywhere overlaps at most N + 1 buckets. Bytes are
//! granted only if these buckets hold less than the limit, so the grants in any window sum to at
//! most the limit plus one grant. Bytes are granted only if the debt is less than the limit, too.
//! So a grant that is larger than a whole window still counts after its bucket has left the ring,
//! until it is paid for at the rate of the limit.

use super::FULL_WINDOW_BYTES;
use super::state::{Head, NEVER_MS, Shape, State};

/// Advances the state to the bucket of `now_ms`; `total` is the current total.
pub(super) fn advance(shape: &Shape, state: &mut State, now_ms: i64, total: u64) {
    let State { head, ring } = state;
    let (sensor_ms, skipped_ms) = shape.sensor_ms(head, now_ms, head.latest_ms);
    let begun_ms = sensor_ms - sensor_ms.rem_euclid(shape.window_ms);
    if head.latest_ms != NEVER_MS {
        let buckets = ((begun_ms - head.latest_ms) / shape.window_ms) as u64;
        let fresh = buckets.min(ring.len() as u64);
        head.sequence += buckets;
        for sequence in head.sequence + 1 - fresh..=head.sequence {
            ring[ring_index(shape, sequence)] = total;
        }
        pay(shape, head, buckets + (skipped_ms / shape.window_ms) as u64, total);
    }
    head.latest_ms = begun_ms;
    head.roll_ms = begun_ms + shape.window_ms;
    head.purge_ms = head.roll_ms;
    head.base = ring[ring_index(shape, head.sequence + 1 - shape.num_samples)];
}

fn ring_index(shape: &Shape, sequence: u64) -> usize {
    (sequence % (shape.num_samples + 1)) as usize
}

/// Pays for granted and recorded bytes at the rate of the limit, for each of `buckets` buckets.
/// Rate that is not used in a bucket is not saved.
fn pay(shape: &Shape, head: &mut Head, buckets: u64, total: u64) {
    if buckets == 0 {
        return;
    }
    let debt = total.wrapping_sub(head.paid).min(FULL_WINDOW_BYTES);
    let debt_thousandths = (u128::from(debt) * 1000).saturating_sub(u128::from(head.paid_rest));
    let left = match head.limit {
        None => 0,
        Some(limit) => debt_thousandths.saturating_sub(
            (u128::from(limit) * shape.window_ms as u128).saturating_mul(u128::from(buckets)),
        ),
    };
    let debt = left.div_ceil(1000) as u64;
    head.paid = total.wrapping_sub(debt);
    head.paid_rest = (u128::from(debt) * 1000 - left) as u64;
    head.lowest_debt = head.lowest_debt.min((left / 1000) as u64);
}

/// Returns the milliseconds from `sensor_ms` until the window is within the limit if no more bytes
/// are recorded, or 0 if it is within the limit now. `border` reads a word of the ring.
pub(super) fn throttle_ms(
    shape: &Shape,
    head: &Head,
    border: impl Fn(usize) -> u64,
    total: u64,
    sensor_ms: i64,
) -> u64 {
    let allowed = match head.limit {
        None => return 0,
        Some(0) => return shape.span_ms() as u64,
        limit => Shape::allowed_bytes(limit, shape.span_ms()),
    };
    if total.wrapping_sub(head.base) <= allowed {
        return 0;
    }
    let oldest = head.sequence.wrapping_add(1).wrapping_sub(shape.num_samples);
    let buckets = first(1, shape.num_samples, |gone| {
        total.wrapping_sub(border(ring_index(shape, oldest.wrapping_add(gone)))) <= allowed
    });
    until(shape, head, buckets, sensor_ms)
}

/// Returns the milliseconds from `sensor_ms` until bytes may be granted if no other call changes
/// the state, or 0 if they may be granted now. `border` reads a word of the ring.
pub(super) fn grant_wait_ms(
    shape: &Shape,
    head: &Head,
    border: impl Fn(usize) -> u64,
    total: u64,
    sensor_ms: i64,
) -> u64 {
    let limit = match head.limit {
        None => return 0,
        Some(0) => return shape.span_ms() as u64,
        Some(limit) => u128::from(limit),
    };
    // Computed in thousandths of a byte, so that nothing is rounded.
    let allowed = limit * shape.span_ms() as u128;
    let leaving = head.sequence.wrapping_sub(shape.num_samples);
    let by_borders = first(0, shape.num_samples + 1, |gone| {
        let since = total.wrapping_sub(border(ring_index(shape, leaving.wrapping_add(gone))));
        u128::from(since) * 1000 < allowed
    });
    let debt = u128::from(total.wrapping_sub(head.paid)) * 1000;
    let excess = debt.saturating_sub(u128::from(head.paid_rest)).checked_sub(allowed);
    let by_debt = excess.map_or(0, |excess| excess / (limit * shape.window_ms as u128) + 1);
    let buckets = u128::from(by_borders).max(by_debt);
    if buckets == 0 {
        return 0;
    }
    until(shape, head, buckets.min(u128::from(u64::MAX)) as u64, sensor_ms)
}

/// Returns the first number from `low` on for which `holds` is true, or `high` if `holds` is false
/// for all numbers below `high`. `holds` must be true for all numbers after the first one.
fn first(low: u64, high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (low, high);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

fn until(shape: &Shape, head: &Head, buckets: u64, sensor_ms: i64) -> u64 {
    let in_bucket_ms = sensor_ms.wrapping_sub(head.latest_ms) as u64;
    buckets.saturating_mul(shape.window_ms as u64).saturating_sub(in_bucket_ms)
}

/// Grants `amount` bytes in the current bucket.
pub(super) fn grant(head: &mut Head, amount: u64) {
    if head.reserved == 0 {
        head.lowest_debt = u64::MAX;
    }
    head.adjust = head.adjust.wrapping_add(amount);
    head.reserved = head.reserved.saturating_add(amount);
}

/// Takes back `unused` bytes that were granted in bucket `granted_in`. The bucket and the total are
/// then as if the bytes had never been granted. `total` is the current total.
pub(super) fn give_back(
    shape: &Shape,
    state: &mut State,
    granted_in: u64,
    unused: u64,
    total: u64,
) {
    let State { head, ring } = state;
    let oldest = head.sequence - shape.num_samples;
    for sequence in (granted_in + 1).max(oldest)..=head.sequence {
        let border = &mut ring[ring_index(shape, sequence)];
        *border = border.wrapping_sub(unused);
    }
    // The debt shrinks by the returned bytes, but by no more than the smallest debt at any bucket
    // start since the grant. Rate that was used to pay, or that passed unused, cannot be used
    // again.
    let less = if granted_in == head.sequence { unused } else { unused.min(head.lowest_debt) };
    let debt = total.wrapping_sub(head.paid).saturating_sub(less);
    if granted_in != head.sequence {
        head.lowest_debt -= less;
    }
    head.adjust = head.adjust.wrapping_sub(unused);
    head.paid = total.wrapping_sub(unused).wrapping_sub(debt);
    head.base = ring[ring_index(shape, head.sequence + 1 - shape.num_samples)];
}
