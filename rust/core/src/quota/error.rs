//! Why a sensor refuses.

use std::fmt;

use super::{FULL_WINDOW_BYTES, MAX_AMOUNT_BYTES, MAX_SAMPLES, MAX_WINDOW_MS};

/// Why a sensor refuses; nothing was counted when it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaError {
    /// The number of samples found is not between 1 and [`MAX_SAMPLES`].
    NumSamples(u32),
    /// The sample length found, in milliseconds, is not between 1 and [`MAX_WINDOW_MS`].
    WindowMs(u64),
    /// The amount found, in bytes, is more than [`MAX_AMOUNT_BYTES`].
    AmountTooLarge(u64),
    /// The window holds [`FULL_WINDOW_BYTES`] already.
    WindowFull,
    /// Reservations need [`super::RateMode::Window`].
    NeedsWindow,
    /// A reservation of this many bytes is not outstanding: settled before, or of another sensor.
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
