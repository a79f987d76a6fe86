//! Quota sensors. A sensor measures the rate of recent bytes, compares it with a limit, and says
//! how long to wait. No code here takes a lock, waits for another thread or reads a clock.
//!
//! Bytes are counted in counters that only grow ([`stripes`]), so no bytes are lost when a window
//! rolls over. All other data is one small state. Pure functions ([`window`], [`elapsed`])
//! transform it, and one compare-and-swap ([`published`]) replaces it as a whole.
//!
//! [`RateMode`] selects how the samples become a rate. [`QuotaSensor::try_reserve`] grants bytes before
//! they are sent, so that every sliding window holds at most the limit plus one grant.

mod elapsed;
mod error;
mod published;
mod reservation;
mod sensor;
mod shelves;
mod state;
mod stripes;
mod window;

#[cfg(all(test, tierlog_loom))]
mod loom_models;
#[cfg(all(test, not(tierlog_loom)))]
mod tests;

pub use error::QuotaError;
pub use reservation::{Reserve, Token};
pub use sensor::{QuotaSensor, QuotaSnapshot};

/// Largest number of bytes that one call may record or reserve.
pub const MAX_AMOUNT_BYTES: u64 = 1 << 48;

/// A window with this many bytes refuses more ([`QuotaError::WindowFull`]), so that no sum of bytes
/// wraps.
pub const FULL_WINDOW_BYTES: u64 = 1 << 62;

/// Largest number of samples in a window.
pub const MAX_SAMPLES: u32 = 3_600;

/// Longest sample in milliseconds.
pub const MAX_WINDOW_MS: u64 = 86_400_000;

/// How the samples become a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateMode {
    /// The average over all buckets, which are aligned to multiples of the window (KIP-956).
    Window,
    /// Kafka's formula (`SampledStat`, `SimpleRate`): the bytes of the live samples divided by the
    /// time since the oldest live sample began.
    Elapsed,
}

/// Settings of a sensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaSettings {
    /// Samples in a window, 1 to [`MAX_SAMPLES`].
    pub num_samples: u32,
    /// Length of one sample in milliseconds, 1 to [`MAX_WINDOW_MS`].
    pub window_ms: u64,
    /// How the samples become a rate.
    pub rate: RateMode,
    /// Bytes per second; `None` means no limit, and 0 blocks all bytes.
    pub limit_bytes_per_second: Option<u64>,
}
