//! The arithmetic of [`super::RateMode::Window`], and of reservations: plain functions of a state.
//!
//! Buckets are numbered; `border(k)` is the total of all bytes ever when bucket k began. The ring
//! keeps the borders of the N live buckets and of the one that left last:
//!
//! ```text
//! bytes of the window         total - border(sequence - N + 1)     N live buckets
//! bytes no grant may forget   total - border(sequence - N)         and the one just leaving
//! debt                        total - paid                         a bucket that leaks at the limit
//! ```
//!
//! A window of N x W milliseconds that starts anywhere meets at most N + 1 buckets. A grant needs
//! these to hold less than the limit allows, so what is granted in any window is at most the limit
//! and one grant. And it needs the debt to be less than the limit allows: a grant larger than a
//! whole window is not forgotten with the buckets, but paid for at the limit's pace.

use super::FULL_WINDOW_BYTES;
use super::state::{Head, NEVER_MS, Shape, State};

/// Bring the state to the bucket of `now_ms`; `total` is that of this moment.
pub(super) fn advance(shape: &Shape, state: &mut State, now_ms: i64, total: u64) {
    let State { head, ring } = state;
    let (sensor_ms, skipped_ms) = shape.sensor_ms(head, now_ms, head.latest_ms);
    let begun_ms = sensor_ms - sensor_ms.rem_euclid(shape.window_ms);
    if head.latest_ms != NEVER_MS {
        let buckets = ((begun_ms - head.latest_ms) / shape.window_ms) as u64;
        let fresh = buckets.min(ring.len() as u64);
        head.sequence += buckets;
        for sequence in head.sequence + 1 - fresh..=head.sequence {
            ring[place(shape, sequence)] = total;
        }
        pay(shape, head, buckets + (skipped_ms / shape.window_ms) as u64, total);
    }
    head.latest_ms = begun_ms;
    head.roll_ms = begun_ms + shape.window_ms;
    head.purge_ms = head.roll_ms;
    head.base = ring[place(shape, head.sequence + 1 - shape.num_samples)];
}

fn place(shape: &Shape, sequence: u64) -> usize {
    (sequence % (shape.num_samples + 1)) as usize
}

/// What is granted or recorded is paid for by the limit, bucket after bucket; nothing is saved up.
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

/// Milliseconds after `sensor_ms` until the window is no longer over the limit, if nothing more
/// comes; 0 if it is not. `border(place)` is the ring.
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
        total.wrapping_sub(border(place(shape, oldest.wrapping_add(gone)))) <= allowed
    });
    until(shape, head, buckets, sensor_ms)
}

/// Milliseconds after `sensor_ms` until bytes may be granted, if nothing else happens; 0 is now.
/// `border(place)` is the ring.
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
    // In thousandths of a byte, so that nothing is rounded.
    let allowed = limit * shape.span_ms() as u128;
    let leaving = head.sequence.wrapping_sub(shape.num_samples);
    let by_borders = first(0, shape.num_samples + 1, |gone| {
        let since = total.wrapping_sub(border(place(shape, leaving.wrapping_add(gone))));
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

/// The first number from `low` up for which `holds`, which then holds for all after; `high` if
/// none below holds.
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

/// Grant `amount` bytes in the current bucket.
pub(super) fn grant(head: &mut Head, amount: u64) {
    if head.reserved == 0 {
        head.lowest_debt = u64::MAX;
    }
    head.adjust = head.adjust.wrapping_add(amount);
    head.reserved = head.reserved.saturating_add(amount);
}

/// Take `unused` bytes back that were granted in bucket `granted_in`: that bucket and the total
/// are as if they had never been granted. `total` is that of this moment.
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
        let border = &mut ring[place(shape, sequence)];
        *border = border.wrapping_sub(unused);
    }
    // The debt is less by what is taken back, but never by more than it has been at any begin of
    // a bucket since: what the limit paid for, or would have idled, is not there to be had again.
    let less = if granted_in == head.sequence { unused } else { unused.min(head.lowest_debt) };
    let debt = total.wrapping_sub(head.paid).saturating_sub(less);
    if granted_in != head.sequence {
        head.lowest_debt -= less;
    }
    head.adjust = head.adjust.wrapping_sub(unused);
    head.paid = total.wrapping_sub(unused).wrapping_sub(debt);
    head.base = ring[place(shape, head.sequence + 1 - shape.num_samples)];
}
