//! Row counts for which decode graphs are captured.

use crate::limits::{BUCKETS, ROWS_MAX};

/// The buckets of a server with that many running sequences, ascending: those of [`BUCKETS`] up to `max_running`, and
/// when it lies between two of them the one that covers it, so that every row count from 1 to `max_running` has a
/// bucket. Panics unless `max_running` is within 1 to [`ROWS_MAX`].
pub fn buckets(max_running: usize) -> &'static [usize] {
    assert!((1..=ROWS_MAX).contains(&max_running), "max_running {max_running}");
    let below = BUCKETS.iter().take_while(|&&bucket| bucket < max_running).count();
    &BUCKETS[..=below]
}

/// The smallest bucket that holds `rows` rows.
pub fn bucket_for(rows: usize) -> usize {
    *BUCKETS.iter().find(|&&bucket| bucket >= rows).expect("rows within ROWS_MAX")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_count_has_a_bucket_and_no_bucket_is_beyond_the_cover() {
        for max_running in 1..=ROWS_MAX {
            let buckets = buckets(max_running);
            assert!((1..=max_running).all(|rows| buckets.contains(&bucket_for(rows))));
            assert!(buckets.iter().rev().skip(1).all(|&bucket| bucket < max_running));
        }
        assert_eq!(buckets(1), [1]);
        assert_eq!(buckets(5), [1, 2, 4, 8]);
        assert_eq!(buckets(8), [1, 2, 4, 8]);
        assert_eq!(buckets(64).last(), Some(&64));
    }
}
