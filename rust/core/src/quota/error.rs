//! Errors of a sensor.

use std::fmt;

use super::{FULL_WINDOW_BYTES, MAX_AMOUNT_BYTES, MAX_SAMPLES, MAX_WINDOW_MS};

/// The reason why a sensor refuses a call. A refused call counts nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaError {
    /// The number of samples is not between 1 and [`MAX_SAMPLES`].
    NumSamples(u32),
    /// The sample length in milliseconds is not between 1 and [`MAX_WINDOW_MS`].
    WindowMs(u64),
    /// The amount in bytes exceeds [`MAX_AMOUNT_BYTES`].
    AmountTooLarge(u64),
    /// The window already holds [`FULL_WINDOW_BYTES`].
    WindowFull,
    /// Reservations need [`super::RateMode::Window`].
    NeedsWindow,
    /// No reservation of this many bytes is outstanding. The token was settled before or belongs to
    /// another sensor.
    NotReserved(u64),
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NumSamples(found) => {
                write!(f, "num_samples must be 1 to {MAX_SAMPLES}, found {found}")
            }
            Self::WindowMs(found) => {
                write!(f, "window_ms must be 1 to {MAX_WINDOW_MS}, found {found}")
            }
            Self::AmountTooLarge(found) => {
                write!(f, "an amount must be at most {MAX_AMOUNT_BYTES} bytes, found {found}")
            }
            Self::WindowFull => {
                write!(f, "the window holds {FULL_WINDOW_BYTES} bytes or more, wait for it to move")
            }
            Self::NeedsWindow => {
                write!(f, "reservations need the rate mode `window`, found `elapsed`")
            }
            Self::NotReserved(found) => write!(
                f,
                "a reservation of {found} bytes is not outstanding; settle or cancel each one once"
            ),
        }
    }
}

impl std::error::Error for QuotaError {}
