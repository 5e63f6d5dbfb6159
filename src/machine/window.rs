//! Calls and failures of the last while, in constant space and time.

use super::tick::{Tick, saturating_nanos};
use std::time::Duration;

/// Into how many buckets a window is cut. What is older than the window never counts; what is younger than
/// nine tenths of it always does.
const BUCKETS: usize = 10;

/// Calls that were counted, and the failures among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) calls: u64,
    pub(crate) failures: u64,
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
    ring: [Counts; BUCKETS],
    sum: Counts,
}

impl Window {
    pub(crate) fn over(length: Duration) -> Self {
        Self {
            width: saturating_nanos(length).div_ceil(BUCKETS as u64).max(1),
            newest: 0,
            ring: [Counts::default(); BUCKETS],
            sum: Counts::default(),
        }
    }

    /// Counts one call and says what the window then holds, this call included.
    pub(crate) fn record(&mut self, failed: bool, now: Tick) -> Counts {
        self.advance(now);
        if let Some(bucket) = self.ring.get_mut(place(self.newest)) {
            for counts in [bucket, &mut self.sum] {
                counts.calls += 1;
                counts.failures += u64::from(failed);
            }
        }
        self.sum
    }

    /// What the window holds.
    pub(crate) fn counts(&mut self, now: Tick) -> Counts {
        self.advance(now);
        self.sum
    }

    pub(crate) fn clear(&mut self) {
        self.ring = [Counts::default(); BUCKETS];
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
                self.sum.calls -= gone.calls;
                self.sum.failures -= gone.failures;
            }
        }
        self.newest = number;
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the remainder of a division by ten")]
fn place(number: u64) -> usize {
    (number % BUCKETS as u64) as usize
}
