//! Finds the first row of a remoteLogIndex whose last offset is at least a given offset. It is made
//! for many look-ups in the same index.
//!
//! Entries cover similar numbers of offsets, so the offset itself predicts its row to within a few
//! rows. From the predicted row the search moves up or down in growing steps. It reads two or three
//! cache lines, while a binary search reads a dozen. If entries are uneven, the search only needs
//! more steps. Each step is four times as large as the step before, and a binary search within the
//! last step finds the row.

/// Size of the first step from the predicted row, in rows.
const FIRST_STEP: usize = 4;
/// Growth factor of each further step.
const STEP_GROWTH: usize = 4;

/// Linear model of a column of offsets, computed once for many look-ups.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Slope {
    least: i64,
    most: i64,
    rows_per_offset: f64,
}

impl Slope {
    /// Returns the model of an ascending column. In an empty column, no row reaches any offset.
    pub fn of(last_offset: &[i64]) -> Self {
        let (Some(&least), Some(&most)) = (last_offset.first(), last_offset.last()) else {
            return Self { least: i64::MAX, most: i64::MIN, rows_per_offset: 0.0 };
        };
        let rows_per_offset = (last_offset.len() - 1) as f64 / (most as f64 - least as f64);
        Self { least, most, rows_per_offset }
    }

    /// Returns the first row whose offset is at least `target_offset`, or `None` if there is no
    /// such row. `last_offset` must be the column of this model.
    #[inline]
    pub fn lookup(&self, last_offset: &[i64], target_offset: i64) -> Option<usize> {
        if target_offset > self.most || last_offset.is_empty() {
            return None;
        }
        // Any prediction leads to the row. The cast turns NaN and negative values into 0.
        let beyond = target_offset.saturating_sub(self.least) as f64;
        let guess = ((beyond * self.rows_per_offset) as usize).min(last_offset.len() - 1);
        let (low, high) = bracket(last_offset, guess, target_offset);
        Some(low + last_offset[low..high].partition_point(|&offset| offset < target_offset))
    }
}

/// Returns rows `low..high` such that the result is one of these rows or `high`.
#[inline]
fn bracket(last_offset: &[i64], guess: usize, target_offset: i64) -> (usize, usize) {
    let mut step = FIRST_STEP;
    if last_offset[guess] < target_offset {
        let mut low = guess + 1;
        while let Some(&offset) = last_offset.get(low + step - 1)
            && offset < target_offset
        {
            low += step;
            step *= STEP_GROWTH;
        }
        (low, (low + step).min(last_offset.len()))
    } else {
        let mut high = guess;
        while high >= step && last_offset[high - step] >= target_offset {
            high -= step;
            step *= STEP_GROWTH;
        }
        (high.saturating_sub(step), high)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn by_halving(last_offset: &[i64], target_offset: i64) -> Option<usize> {
        let row = last_offset.partition_point(|&offset| offset < target_offset);
        (row < last_offset.len()).then_some(row)
    }

    fn assert_same(last_offset: &[i64], targets: impl IntoIterator<Item = i64>) {
        let slope = Slope::of(last_offset);
        for target in targets {
            let found = slope.lookup(last_offset, target);
            assert_eq!(found, by_halving(last_offset, target), "{target} in {last_offset:?}");
        }
    }

    #[test]
    fn small_and_odd_columns() {
        let edges = [i64::MIN, i64::MIN + 1, -1, 0, 1, 5, i64::MAX - 1, i64::MAX];
        assert_same(&[], edges);
        for &only in &edges {
            assert_same(&[only], edges);
            assert_same(&[only, only], edges);
        }
        assert_same(&edges, edges);
        let even: Vec<i64> = (0..4096).map(|row| 99 + 100 * row).collect();
        assert_same(&even, (0..410_000).step_by(7));
        // Nearly all offsets are in the last rows of `late` and in the first rows of `early`.
        let late: Vec<i64> = (0..40).map(|row| 1 << row).collect();
        assert_same(&late, (0..41).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]));
        let early: Vec<i64> = late.iter().rev().map(|offset| -offset).collect();
        assert_same(&early, (0..41).flat_map(|bit| [-(1 << bit) - 1, -(1 << bit), 1 - (1 << bit)]));
    }

    proptest! {
        #[test]
        fn every_column_agrees_with_binary_search(
            mut column in vec(prop_oneof![any::<i64>(), 0..1000_i64], 0..200),
            targets in vec(prop_oneof![any::<i64>(), -10..1010_i64], 1..50),
        ) {
            column.sort_unstable();
            let own = column.clone();
            assert_same(&column, targets.into_iter().chain(own));
        }
    }
}
