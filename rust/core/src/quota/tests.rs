//! Interleavings that are too large for the models, executed step by step on one thread.

use super::published::Published;
use super::sensor::Added;
use super::state::State;
use super::stripes::{MAX_STRIPES, Totals};
use super::{QuotaSensor, QuotaSettings, RateMode, window};

#[test]
fn unpublished_words_are_never_used() {
    let settings = QuotaSettings {
        num_samples: 2,
        window_ms: 10,
        rate: RateMode::Window,
        limit_bytes_per_second: None,
    };
    let sensor = QuotaSensor::new(settings).expect("good settings");
    assert_eq!(sensor.record(0, 0), Ok(()));
    let (published, shape) = (&sensor.published, &sensor.shape);
    let totals = Totals { each: [0; MAX_STRIPES], sum: 0 };
    let mut state = State::new(shape, None);
    state.head.exact = false;
    window::advance(shape, &mut state, 0, 0);

    // A record has read the current version and is delayed.
    let seen = published.current();
    assert!(published.try_replace(seen, |slot| shape.fill(slot, &state, &totals, 100)));
    // Another writer fills the slot of that version with a bucket that covers 30 ms, but it cannot
    // publish the bucket, because the first writer was faster.
    window::advance(shape, &mut state, 30, 0);
    assert!(!published.try_replace(seen, |slot| shape.fill(slot, &state, &totals, 100)));
    assert!(super::state::Fast(published.slot(seen)).covers(30));

    // If the record used these words, its bytes would be added to the bucket of 0 and leave the
    // window early.
    assert!(matches!(sensor.add_as_of(seen, 1, 30), Added::No));
    assert_eq!(sensor.record(1, 30), Ok(()));
    assert_eq!(sensor.snapshot(40).window_bytes, 1);
}

#[test]
fn stalled_writers_delay_no_other_thread() {
    /// `more` writers stall while they fill a slot, one inside the other; only the last writer
    /// publishes.
    fn fill(published: &Published, more: u64) {
        let ((), seen) = published.read(|_| ());
        let replaced = published.try_replace(seen, |slot| {
            if more > 0 {
                fill(published, more - 1);
            }
            (1..40).for_each(|index| slot.set(index, more + index as u64));
        });
        assert_eq!(replaced, more == 0);
    }
    let published = Published::new(40, |_| ());
    for writers in [0, 1, 7, 8, 200, 3] {
        fill(&published, writers);
        let (words, _) = published.read(|slot| (1..40).map(|index| slot.word(index)).sum::<u64>());
        assert_eq!(words, (1..40).sum());
    }
}
