//! Reservations: bytes are granted before they are sent and settled afterwards. No two threads are
//! granted the same bytes, and every sliding window holds at most the limit plus one grant.

use super::published::Slot;
use super::state::{Head, Shape};
use super::window;
use super::{FULL_WINDOW_BYTES, MAX_AMOUNT_BYTES, QuotaError, QuotaSensor, RateMode};

/// A grant. The caller settles or cancels it exactly once. Dropping the token does not return the
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    amount: u64,
    granted_in: u64,
}

impl Token {
    /// Returns the granted bytes.
    pub fn amount(&self) -> u64 {
        self.amount
    }
}

/// Result of [`QuotaSensor::try_reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// The bytes may be sent.
    Granted(Token),
    /// Retry in this many milliseconds: bytes are available then, unless another thread takes them.
    Wait(u64),
}

impl QuotaSensor {
    /// Requests permission to send `amount` bytes. They are granted if two conditions hold. The
    /// window and the bucket that left it last together hold less than the limit, and the debt of
    /// earlier grants is less than the limit, too. `amount` itself does not count, because an
    /// amount above the limit would then wait forever.
    ///
    /// # Errors
    /// [`QuotaError::NeedsWindow`], [`QuotaError::AmountTooLarge`], [`QuotaError::WindowFull`].
    pub fn try_reserve(&self, amount: u64, now_ms: i64) -> Result<Reserve, QuotaError> {
        if self.shape.rate != RateMode::Window {
            return Err(QuotaError::NeedsWindow);
        }
        if amount > MAX_AMOUNT_BYTES {
            return Err(QuotaError::AmountTooLarge(amount));
        }
        if let Some((sensor_ms, wait_ms)) = self.refusal(now_ms) {
            self.note_throttle(sensor_ms, wait_ms);
            return Ok(Reserve::Wait(wait_ms));
        }
        let shape = &self.shape;
        let (answer, sensor_ms, bytes, limit) = self.transition(1, |state, sum, _| {
            let total = sum.wrapping_add(state.head.adjust);
            window::advance(shape, state, now_ms, total);
            let bytes = total.wrapping_sub(state.head.base);
            let sensor_ms = Shape::settled_ms(&state.head, now_ms);
            let border = |place: usize| state.ring[place];
            let wait_ms = window::grant_wait_ms(shape, &state.head, border, total, sensor_ms);
            let limit = state.head.limit;
            if wait_ms > 0 {
                return ((Ok(Reserve::Wait(wait_ms)), sensor_ms, bytes, limit), true);
            }
            if bytes >= FULL_WINDOW_BYTES {
                return ((Err(QuotaError::WindowFull), sensor_ms, bytes, limit), true);
            }
            window::grant(&mut state.head, amount);
            let token = Token { amount, granted_in: state.head.sequence };
            ((Ok(Reserve::Granted(token)), sensor_ms, bytes + amount, limit), true)
        });
        match answer {
            Ok(Reserve::Wait(wait_ms)) => self.note_throttle(sensor_ms, wait_ms),
            _ => self.note_overshoot(bytes, Shape::allowed_bytes(limit, shape.span_ms())),
        }
        answer
    }

    /// Reports how many bytes of a grant were sent. Unsent bytes are taken back from the bucket of
    /// the grant, as if they had not been requested. Bytes beyond the grant are recorded now.
    ///
    /// # Errors
    /// [`QuotaError::AmountTooLarge`], [`QuotaError::NotReserved`].
    pub fn settle(&self, token: Token, actual: u64, now_ms: i64) -> Result<(), QuotaError> {
        self.settle_at(token, actual, Some(now_ms))
    }

    /// Returns a whole grant.
    ///
    /// # Errors
    /// [`QuotaError::NotReserved`].
    pub fn cancel(&self, token: Token, now_ms: i64) -> Result<(), QuotaError> {
        self.settle_at(token, 0, Some(now_ms))
    }

    /// Does the same as [`Self::settle`]. A caller without a clock passes no time, and the sensor
    /// then uses the latest time that it knows.
    ///
    /// # Errors
    /// The same errors as [`Self::settle`].
    pub fn settle_at(
        &self,
        token: Token,
        actual: u64,
        now_ms: Option<i64>,
    ) -> Result<(), QuotaError> {
        if actual > MAX_AMOUNT_BYTES {
            return Err(QuotaError::AmountTooLarge(actual));
        }
        let shape = &self.shape;
        self.transition(1, |state, sum, _| {
            if token.amount > state.head.reserved || token.granted_in > state.head.sequence {
                return (Err(QuotaError::NotReserved(token.amount)), false);
            }
            let total = sum.wrapping_add(state.head.adjust);
            if let Some(now_ms) = now_ms {
                window::advance(shape, state, now_ms, total);
            }
            state.head.reserved -= token.amount;
            if actual > token.amount {
                let more = actual - token.amount;
                state.head.adjust = state.head.adjust.wrapping_add(more);
            } else {
                let unused = token.amount - actual;
                window::give_back(shape, state, token.granted_in, unused, total);
            }
            (Ok(()), true)
        })
    }

    /// Returns sensor time and the time to wait, if the current state shows that a caller must
    /// wait.
    fn refusal(&self, now_ms: i64) -> Option<(i64, u64)> {
        let find = |slot: Slot<'_>| {
            let head = Head::load(slot);
            let total = self.stripes.sum().wrapping_add(head.adjust);
            if !self.shape.is_settled(&head, now_ms, head.roll_ms) {
                return None;
            }
            let sensor_ms = Shape::settled_ms(&head, now_ms);
            let border = |place| self.shape.ring_word(slot, place);
            let wait_ms = window::grant_wait_ms(&self.shape, &head, border, total, sensor_ms);
            (wait_ms > 0).then_some((sensor_ms, wait_ms))
        };
        self.published.read(find).0
    }
}
