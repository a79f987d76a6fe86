//! Reserve before, settle after: bytes that are granted before they are sent, so that no two
//! threads are granted the same room, and no sliding window holds more than the limit allows and
//! one grant.

use super::published::Slot;
use super::state::{Head, Shape};
use super::window;
use super::{FULL_WINDOW_BYTES, MAX_AMOUNT_BYTES, QuotaError, QuotaSensor, RateMode};

/// A grant, to be settled or cancelled exactly once. It does not return by itself, as
/// [`Reservation`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    amount: u64,
    granted_in: u64,
}

impl Token {
    /// Bytes granted.
    pub fn amount(&self) -> u64 {
        self.amount
    }
}

/// The answer to [`QuotaSensor::try_reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// The bytes may be sent.
    Granted(Token),
    /// Ask again in so many milliseconds: then there is room, if nobody else takes it.
    Wait(u64),
}

/// The answer to [`QuotaSensor::reserve`].
#[derive(Debug)]
pub enum Attempt<'a> {
    /// The bytes may be sent.
    Granted(Reservation<'a>),
    /// Ask again in so many milliseconds: then there is room, if nobody else takes it.
    Wait(u64),
}

/// A grant that returns by itself if it is dropped without having been settled.
#[must_use = "a reservation that is dropped returns itself"]
pub struct Reservation<'a> {
    sensor: &'a QuotaSensor,
    token: Option<Token>,
}

impl std::fmt::Debug for Reservation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reservation").field("token", &self.token).finish_non_exhaustive()
    }
}

impl Reservation<'_> {
    /// As [`QuotaSensor::settle`].
    ///
    /// # Errors
    /// As [`QuotaSensor::settle`]; the reservation has returned itself then.
    pub fn settle(mut self, actual: u64, now_ms: i64) -> Result<(), QuotaError> {
        let Some(token) = self.token else { return Ok(()) };
        let settled = self.sensor.settle(token, actual, now_ms);
        if settled.is_ok() {
            self.token = None;
        }
        settled
    }

    /// As [`QuotaSensor::cancel`].
    ///
    /// # Errors
    /// As [`QuotaSensor::cancel`].
    pub fn cancel(self, now_ms: i64) -> Result<(), QuotaError> {
        self.settle(0, now_ms)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            // It is outstanding, since it was never settled: there is nothing to refuse.
            let _returned = self.sensor.settle_at(token, 0, None);
        }
    }
}

impl QuotaSensor {
    /// Ask to send `amount` bytes. They are granted if the window and the bucket that left it last
    /// hold less than the limit allows a window, however many bytes are asked for (so an amount
    /// larger than the limit allows is not put off for ever), and if what went beyond the limit
    /// before has been made up for.
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

    /// As [`Self::try_reserve`], with a grant that returns by itself.
    ///
    /// # Errors
    /// As [`Self::try_reserve`].
    pub fn reserve(&self, amount: u64, now_ms: i64) -> Result<Attempt<'_>, QuotaError> {
        Ok(match self.try_reserve(amount, now_ms)? {
            Reserve::Wait(wait_ms) => Attempt::Wait(wait_ms),
            Reserve::Granted(token) => {
                Attempt::Granted(Reservation { sensor: self, token: Some(token) })
            }
        })
    }

    /// Say how many bytes of a grant were sent. What was not is taken back from the bucket it was
    /// granted in, as if it had not been asked for; what was sent beyond the grant is recorded now.
    ///
    /// # Errors
    /// [`QuotaError::AmountTooLarge`], [`QuotaError::NotReserved`].
    pub fn settle(&self, token: Token, actual: u64, now_ms: i64) -> Result<(), QuotaError> {
        self.settle_at(token, actual, Some(now_ms))
    }

    /// Give a whole grant back.
    ///
    /// # Errors
    /// [`QuotaError::NotReserved`].
    pub fn cancel(&self, token: Token, now_ms: i64) -> Result<(), QuotaError> {
        self.settle_at(token, 0, Some(now_ms))
    }

    /// As [`Self::settle`], without a time at the latest moment the sensor knows: for those who give
    /// something back and have no clock at hand.
    ///
    /// # Errors
    /// As [`Self::settle`].
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

    /// The time to wait, if it can be told without a new state.
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
