//! Calls and failures of the last while, in constant space and time.

use super::tick::{Tick, saturating_nanos};
use std::time::Duration;

/// Into how many buckets a window is cut. What is older than the window never counts; what is younger than
/// nine tenths of it always does.
pub(crate) const BUCKETS: usize = 10;

/// Calls that were counted, and the failures among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) calls: u64,
    pub(crate) failures: u64,
}

/// The counts of one bucket, small since there are ten for each circuit.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    calls: u32,
    failures: u32,
}

/// A ring of buckets under a running sum.
///
/// ```text
///   time ──►   │ 21 │ 22 │ 23 │ … │ 29 │ 30 │      number = now / width
///   ring       [  1 |  2 |  3 | … |  9 |  0 ]      place  = number % 10
///                                        ▲ newest
/// ```
///
/// Nothing is cleared by a timer. Whoever comes next takes the buckets that have left the window out of the
/// sum: at most ten, however long nobody came.
#[derive(Debug)]
pub(crate) struct Window {
    /// Nanoseconds of one bucket.
    width: u64,
    /// The number of the youngest bucket.
    newest: u64,
    ring: [Bucket; BUCKETS],
    sum: Counts,
}

impl Window {
    pub(crate) fn over(length: Duration) -> Self {
        Self { width: width(length), newest: 0, ring: [Bucket::default(); BUCKETS], sum: Counts::default() }
    }

    /// Counts one call and says what the window then holds, this call included.
    pub(crate) fn record(&mut self, failed: bool, now: Tick) -> Counts {
        self.advance(now);
        if let Some(bucket) = self.ring.get_mut(place(self.newest)) {
            if bucket.calls == u32::MAX {
                // What is left of a full bucket has the same share of failures.
                let full = std::mem::take(bucket);
                *bucket = Bucket { calls: full.calls / 2, failures: full.failures / 2 };
                self.sum.calls -= u64::from(full.calls - bucket.calls);
                self.sum.failures -= u64::from(full.failures - bucket.failures);
            }
            bucket.calls += 1;
            bucket.failures += u32::from(failed);
            self.sum.calls += 1;
            self.sum.failures += u64::from(failed);
        }
        self.sum
    }

    /// What the window holds.
    pub(crate) fn counts(&mut self, now: Tick) -> Counts {
        self.advance(now);
        self.sum
    }

    pub(crate) fn clear(&mut self) {
        self.ring = [Bucket::default(); BUCKETS];
        self.sum = Counts::default();
    }

    /// Lets go of the buckets that `now` has left behind. A `now` older than the newest bucket, read before
    /// another thread's but arriving after it, leaves all as it is: its call counts into the newest.
    fn advance(&mut self, now: Tick) {
        let number = now.nanos() / self.width;
        let passed = number.saturating_sub(self.newest);
        if passed == 0 {
            return;
        }
        for number in (number - passed.min(BUCKETS as u64) + 1)..=number {
            if let Some(bucket) = self.ring.get_mut(place(number)) {
                let gone = std::mem::take(bucket);
                self.sum.calls -= u64::from(gone.calls);
                self.sum.failures -= u64::from(gone.failures);
            }
        }
        self.newest = number;
    }
}

/// Nanoseconds of one bucket of a window of this length; at least one.
pub(crate) fn width(length: Duration) -> u64 {
    (saturating_nanos(length) / BUCKETS as u64).max(1)
}

/// Where in a ring the bucket of this number lies.
#[allow(clippy::cast_possible_truncation, reason = "the remainder of a division by ten")]
pub(crate) fn place(number: u64) -> usize {
    (number % BUCKETS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_bucket_keeps_its_share_of_failures() {
        let mut window = Window::over(Duration::MAX);
        let now = Tick::NEVER;
        window.record(true, now);
        let bucket = &mut window.ring[place(window.newest)];
        *bucket = Bucket { calls: u32::MAX, failures: 1 << 30 };
        window.sum = Counts { calls: u32::MAX.into(), failures: 1 << 30 };
        let counts = window.record(false, now);
        assert_eq!(counts, Counts { calls: 1 << 31, failures: 1 << 29 });
        window.clear();
        assert_eq!(window.counts(now), Counts::default());
    }
}
