//! Quota sensors for C callers: numbers in, numbers out, no Python object, no lock.
//!
//! A sensor is a pointer from [`new`] to [`free`]; any number of threads may use it in between.
//! A negative answer is one of the codes below, which `_hot.pyx` turns into exceptions.
#![expect(unsafe_code, reason = "C callers hand over pointers")]

use std::ffi::c_int;
use std::ptr;

use tierlog_core::quota::{
    QuotaError, QuotaSensor, QuotaSettings, QuotaSnapshot, RateMode, Reserve, Token,
};

use crate::pointers::slice_of;

/// Stands for "unlimited" where a limit is a signed number.
const UNLIMITED: i64 = -1;
/// Stands for the latest moment that a sensor knows, where a caller has no time.
const LATEST_MS: i64 = i64::MIN;

// `_hot.pxd` keeps a token as two words.
const _: () = assert!(size_of::<Token>() == 16 && align_of::<Token>() == 8);

/// The code of a negative amount among many.
const NEGATIVE: i64 = -4;

/// Why a call was refused; `_hot.pxd` has the same numbers.
fn code(error: &QuotaError) -> i64 {
    match error {
        QuotaError::AmountTooLarge(_) => -1,
        QuotaError::WindowFull => -2,
        QuotaError::NeedsWindow => -3,
        QuotaError::NotReserved(_) => -5,
        QuotaError::NumSamples(_) | QuotaError::WindowMs(_) => -6,
    }
}

/// What a snapshot looks like to C.
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

/// An answer in milliseconds, or the code of its refusal.
fn answer(result: Result<u64, QuotaError>) -> i64 {
    match result {
        Ok(duration_ms) => i64::try_from(duration_ms).unwrap_or(i64::MAX),
        Err(error) => code(&error),
    }
}

/// The sensor behind a handle.
///
/// # Safety
/// `sensor` came from [`new`], and [`free`] is not called during `'a`.
unsafe fn sensor_of<'a>(sensor: *const QuotaSensor) -> &'a QuotaSensor {
    // SAFETY: as the caller promises.
    unsafe { &*sensor }
}

/// A sensor, or null when the settings are out of range. A negative limit is none.
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

/// Frees a sensor; null is let be.
///
/// # Safety
/// `sensor` is null or came from [`new`], and nobody uses it any more.
pub unsafe extern "C" fn free(sensor: *mut QuotaSensor) {
    if !sensor.is_null() {
        // SAFETY: it was boxed by `new`, and the caller gives it up.
        drop(unsafe { Box::from_raw(sensor) });
    }
}

/// Counts bytes; 0, or a code.
///
/// # Safety
/// As [`sensor_of`].
pub unsafe extern "C" fn record(sensor: *const QuotaSensor, amount: u64, now_ms: i64) -> i64 {
    // SAFETY: as the caller promises.
    let sensor = unsafe { sensor_of(sensor) };
    sensor.record(amount, now_ms).map_or_else(|error| code(&error), |()| 0)
}

/// Counts bytes; the milliseconds to wait, or a code.
///
/// # Safety
/// As [`sensor_of`].
pub unsafe extern "C" fn record_and_throttle_ms(
    sensor: *const QuotaSensor,
    amount: u64,
    now_ms: i64,
) -> i64 {
    // SAFETY: as the caller promises.
    let sensor = unsafe { sensor_of(sensor) };
    answer(sensor.record_and_throttle_ms(amount, now_ms))
}

/// Counts the sum of `count` amounts as one; the milliseconds to wait, or a code.
///
/// # Safety
/// As [`sensor_of`]; `amounts` is null or holds `count` values.
pub unsafe extern "C" fn record_many(
    sensor: *const QuotaSensor,
    amounts: *const i64,
    count: usize,
    now_ms: i64,
) -> i64 {
    // SAFETY: as the caller promises.
    let (sensor, amounts) = unsafe { (sensor_of(sensor), slice_of(amounts, count)) };
    // Whether one is negative shows in the sign of all of them together, and a sum of magnitudes
    // that fit 63 bits needs more than 2^64 of them to pass 128.
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
    answer(sensor.record_and_throttle_ms(sum, now_ms))
}

/// Bytes per second.
///
/// # Safety
/// As [`sensor_of`].
pub unsafe extern "C" fn rate(sensor: *const QuotaSensor, now_ms: i64) -> f64 {
    // SAFETY: as the caller promises.
    unsafe { sensor_of(sensor) }.rate(now_ms)
}

/// The milliseconds to wait.
///
/// # Safety
/// As [`sensor_of`].
pub unsafe extern "C" fn throttle_ms(sensor: *const QuotaSensor, now_ms: i64) -> i64 {
    // SAFETY: as the caller promises.
    answer(Ok(unsafe { sensor_of(sensor) }.throttle_ms(now_ms)))
}

/// Bytes per second, -1 for no limit.
///
/// # Safety
/// As [`sensor_of`].
pub unsafe extern "C" fn limit(sensor: *const QuotaSensor) -> i64 {
    // SAFETY: as the caller promises.
    limit_to(unsafe { sensor_of(sensor) }.limit())
}

/// Changes the limit; a negative one is none, and [`LATEST_MS`] the latest moment it knows.
///
/// # Safety
/// As [`sensor_of`].
pub unsafe extern "C" fn set_limit(sensor: *const QuotaSensor, limit: i64, now_ms: i64) {
    // SAFETY: as the caller promises.
    unsafe { sensor_of(sensor) }.set_limit_at(limit_of(limit), time_of(now_ms));
}

/// All bytes ever counted.
///
/// # Safety
/// As [`sensor_of`].
pub unsafe extern "C" fn total(sensor: *const QuotaSensor) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { sensor_of(sensor) }.total()
}

/// What a sensor has seen.
///
/// # Safety
/// As [`sensor_of`]; `snapshot` can be written.
pub unsafe extern "C" fn snapshot(
    sensor: *const QuotaSensor,
    now_ms: i64,
    snapshot: *mut Snapshot,
) {
    // SAFETY: as the caller promises.
    let seen = unsafe { sensor_of(sensor) }.snapshot(now_ms);
    // SAFETY: as the caller promises.
    unsafe { snapshot.write(Snapshot::from(seen)) }
}

/// Asks for bytes: 0 and a token, the milliseconds to wait, or a code.
///
/// # Safety
/// As [`sensor_of`]; `token` can be written.
pub unsafe extern "C" fn try_reserve(
    sensor: *const QuotaSensor,
    amount: u64,
    now_ms: i64,
    token: *mut Token,
) -> i64 {
    // SAFETY: as the caller promises.
    match unsafe { sensor_of(sensor) }.try_reserve(amount, now_ms) {
        Ok(Reserve::Granted(granted)) => {
            // SAFETY: as the caller promises.
            unsafe { token.write(granted) };
            0
        }
        // Nobody is told to wait no time at all.
        Ok(Reserve::Wait(wait_ms)) => answer(Ok(wait_ms.max(1))),
        Err(error) => code(&error),
    }
}

/// What a reservation became; 0, or a code. [`LATEST_MS`] as above.
///
/// # Safety
/// As [`sensor_of`]; `token` is one that [`try_reserve`] wrote, used once.
pub unsafe extern "C" fn settle(
    sensor: *const QuotaSensor,
    token: *const Token,
    actual: u64,
    now_ms: i64,
) -> i64 {
    // SAFETY: as the caller promises.
    let (sensor, token) = unsafe { (sensor_of(sensor), &*token) };
    sensor.settle_at(*token, actual, time_of(now_ms)).map_or_else(|error| code(&error), |()| 0)
}
