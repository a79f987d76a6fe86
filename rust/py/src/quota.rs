//! C interface of the quota sensors. It uses only numbers, no Python objects and no lock.
//!
//! A sensor is a pointer that is valid until [`free`] is called. Any number of threads may use it
//! at once. A negative result is one of the codes below, which `_hot.pyx` converts to exceptions.
#![expect(unsafe_code, reason = "C callers hand over pointers")]

use std::ffi::c_int;
use std::ptr;

use tierlog_core::quota::{
    QuotaError, QuotaSensor, QuotaSettings, QuotaSnapshot, RateMode, Reserve, Token,
};

use crate::pointers::slice_of;

/// A signed limit that means "unlimited".
const UNLIMITED: i64 = -1;
/// A caller without a clock passes this time. It means the latest time that the sensor knows.
const LATEST_MS: i64 = i64::MIN;

// `_hot.pxd` stores a token as two words.
const _: () = assert!(size_of::<Token>() == 16 && align_of::<Token>() == 8);

/// The code for a negative amount in a list.
const NEGATIVE: i64 = -4;

/// Returns the code of a refusal; `_hot.pxd` has the same numbers.
fn code(error: &QuotaError) -> i64 {
    match error {
        QuotaError::AmountTooLarge(_) => -1,
        QuotaError::WindowFull => -2,
        QuotaError::NeedsWindow => -3,
        QuotaError::NotReserved(_) => -5,
        QuotaError::NumSamples(_) | QuotaError::WindowMs(_) => -6,
    }
}

/// Layout of a snapshot in C.
#[repr(C)]
pub struct Snapshot {
    rate: f64,
    limit: i64,
    total: u64,
    window_bytes: u64,
    reserved_bytes: u64,
    throttled_ms: u64,
    overshoot_bytes: u64,
}

impl From<QuotaSnapshot> for Snapshot {
    fn from(seen: QuotaSnapshot) -> Self {
        Self {
            rate: seen.rate,
            limit: limit_to(seen.limit_bytes_per_second),
            total: seen.total_bytes,
            window_bytes: seen.window_bytes,
            reserved_bytes: seen.reserved_bytes,
            throttled_ms: seen.throttled_ms,
            overshoot_bytes: seen.overshoot_bytes,
        }
    }
}

fn limit_of(limit: i64) -> Option<u64> {
    u64::try_from(limit).ok()
}

fn limit_to(limit: Option<u64>) -> i64 {
    limit.map_or(UNLIMITED, |limit| i64::try_from(limit).unwrap_or(i64::MAX))
}

fn time_of(now_ms: i64) -> Option<i64> {
    (now_ms != LATEST_MS).then_some(now_ms)
}

/// Returns milliseconds, or the code of a refusal.
fn to_code(result: Result<u64, QuotaError>) -> i64 {
    match result {
        Ok(duration_ms) => i64::try_from(duration_ms).unwrap_or(i64::MAX),
        Err(error) => code(&error),
    }
}

/// Returns the sensor behind a handle.
///
/// # Safety
/// `sensor` came from [`new`], and [`free`] is not called during `'a`.
unsafe fn sensor_of<'a>(sensor: *const QuotaSensor) -> &'a QuotaSensor {
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe { &*sensor }
}

/// Creates a sensor. Returns null when the settings are out of range. A negative limit means no
/// limit.
pub extern "C" fn new(
    num_samples: u64,
    window_ms: u64,
    limit: i64,
    elapsed: c_int,
) -> *mut QuotaSensor {
    let settings = QuotaSettings {
        num_samples: u32::try_from(num_samples).unwrap_or(u32::MAX),
        window_ms,
        rate: if elapsed == 0 { RateMode::Window } else { RateMode::Elapsed },
        limit_bytes_per_second: limit_of(limit),
    };
    QuotaSensor::new(settings).map_or(ptr::null_mut(), |sensor| Box::into_raw(Box::new(sensor)))
}

/// Frees a sensor. Ignores null.
///
/// # Safety
/// `sensor` is null or came from [`new`], and there is no other user.
pub unsafe extern "C" fn free(sensor: *mut QuotaSensor) {
    if !sensor.is_null() {
        // SAFETY: `new` boxed the sensor, and the caller gives it up.
        drop(unsafe { Box::from_raw(sensor) });
    }
}

/// Records bytes and returns 0 or a code.
///
/// # Safety
/// The conditions of [`sensor_of`] hold.
pub unsafe extern "C" fn record(sensor: *const QuotaSensor, amount: u64, now_ms: i64) -> i64 {
    // SAFETY: the caller promises this (see `# Safety`).
    let sensor = unsafe { sensor_of(sensor) };
    sensor.record(amount, now_ms).map_or_else(|error| code(&error), |()| 0)
}

/// Records bytes and returns the milliseconds to wait, or a code.
///
/// # Safety
/// The conditions of [`sensor_of`] hold.
pub unsafe extern "C" fn record_and_throttle_ms(
    sensor: *const QuotaSensor,
    amount: u64,
    now_ms: i64,
) -> i64 {
    // SAFETY: the caller promises this (see `# Safety`).
    let sensor = unsafe { sensor_of(sensor) };
    to_code(sensor.record_and_throttle_ms(amount, now_ms))
}

/// Records the sum of `count` amounts as one record. Returns the milliseconds to wait, or a code.
///
/// # Safety
/// The conditions of [`sensor_of`] hold, and `amounts` is null or holds `count` values.
pub unsafe extern "C" fn record_many(
    sensor: *const QuotaSensor,
    amounts: *const i64,
    count: usize,
    now_ms: i64,
) -> i64 {
    // SAFETY: the caller promises this (see `# Safety`).
    let (sensor, amounts) = unsafe { (sensor_of(sensor), slice_of(amounts, count)) };
    // The signs of all amounts together show whether one is negative. The sum cannot overflow:
    // numbers below 2^64 exceed 128 bits only if there are more than 2^64 of them.
    let mut signs = 0;
    let mut sum = 0_u128;
    for &amount in amounts {
        signs |= amount;
        sum += u128::from(amount as u64);
    }
    if signs < 0 {
        return NEGATIVE;
    }
    let sum = u64::try_from(sum).unwrap_or(u64::MAX);
    to_code(sensor.record_and_throttle_ms(sum, now_ms))
}

/// Returns bytes per second.
///
/// # Safety
/// The conditions of [`sensor_of`] hold.
pub unsafe extern "C" fn rate(sensor: *const QuotaSensor, now_ms: i64) -> f64 {
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe { sensor_of(sensor) }.rate(now_ms)
}

/// Returns the milliseconds to wait.
///
/// # Safety
/// The conditions of [`sensor_of`] hold.
pub unsafe extern "C" fn throttle_ms(sensor: *const QuotaSensor, now_ms: i64) -> i64 {
    // SAFETY: the caller promises this (see `# Safety`).
    to_code(Ok(unsafe { sensor_of(sensor) }.throttle_ms(now_ms)))
}

/// Returns the limit in bytes per second, or -1 for no limit.
///
/// # Safety
/// The conditions of [`sensor_of`] hold.
pub unsafe extern "C" fn limit(sensor: *const QuotaSensor) -> i64 {
    // SAFETY: the caller promises this (see `# Safety`).
    limit_to(unsafe { sensor_of(sensor) }.limit())
}

/// Changes the limit. A negative limit means no limit. [`LATEST_MS`] means the latest time that the
/// sensor knows.
///
/// # Safety
/// The conditions of [`sensor_of`] hold.
pub unsafe extern "C" fn set_limit(sensor: *const QuotaSensor, limit: i64, now_ms: i64) {
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe { sensor_of(sensor) }.set_limit_at(limit_of(limit), time_of(now_ms));
}

/// Returns all bytes ever recorded.
///
/// # Safety
/// The conditions of [`sensor_of`] hold.
pub unsafe extern "C" fn total(sensor: *const QuotaSensor) -> u64 {
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe { sensor_of(sensor) }.total()
}

/// Writes a snapshot of the sensor to `snapshot`.
///
/// # Safety
/// The conditions of [`sensor_of`] hold, and `snapshot` can be written.
pub unsafe extern "C" fn snapshot(
    sensor: *const QuotaSensor,
    now_ms: i64,
    snapshot: *mut Snapshot,
) {
    // SAFETY: the caller promises this (see `# Safety`).
    let seen = unsafe { sensor_of(sensor) }.snapshot(now_ms);
    // SAFETY: the caller promises this (see `# Safety`).
    unsafe { snapshot.write(Snapshot::from(seen)) }
}

/// Requests bytes. If the bytes are granted, writes a token and returns 0. Otherwise returns the
/// milliseconds to wait, or a code.
///
/// # Safety
/// The conditions of [`sensor_of`] hold, and `token` can be written.
pub unsafe extern "C" fn try_reserve(
    sensor: *const QuotaSensor,
    amount: u64,
    now_ms: i64,
    token: *mut Token,
) -> i64 {
    // SAFETY: the caller promises this (see `# Safety`).
    match unsafe { sensor_of(sensor) }.try_reserve(amount, now_ms) {
        Ok(Reserve::Granted(granted)) => {
            // SAFETY: the caller promises this (see `# Safety`).
            unsafe { token.write(granted) };
            0
        }
        // A wait is at least 1 ms, because 0 means granted.
        Ok(Reserve::Wait(wait_ms)) => to_code(Ok(wait_ms.max(1))),
        Err(error) => code(&error),
    }
}

/// Settles a reservation. Returns 0 or a code. [`LATEST_MS`] means the latest time that the sensor
/// knows.
///
/// # Safety
/// The conditions of [`sensor_of`] hold. [`try_reserve`] wrote `token`, and `token` is settled only
/// once.
pub unsafe extern "C" fn settle(
    sensor: *const QuotaSensor,
    token: *const Token,
    actual: u64,
    now_ms: i64,
) -> i64 {
    // SAFETY: the caller promises this (see `# Safety`).
    let (sensor, token) = unsafe { (sensor_of(sensor), &*token) };
    sensor.settle_at(*token, actual, time_of(now_ms)).map_or_else(|error| code(&error), |()| 0)
}
