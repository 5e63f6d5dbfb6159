//! How long to wait before a retry.

use super::tick::saturating_nanos;
use std::time::Duration;

/// Exponential, with full jitter (Marc Brooker, *Exponential Backoff and Jitter*): a random share of a wait
/// that doubles with each retry from `min` to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

impl Backoff {
    /// The wait after `retries` that came before, drawn by `chance`.
    pub(crate) fn wait(&self, retries: u32, chance: u64) -> Duration {
        let doublings = 1_u32.checked_shl(retries).unwrap_or(u32::MAX);
        let longest = self.min.saturating_mul(doublings).min(self.max);
        let drawn = (u128::from(saturating_nanos(longest)) * u128::from(chance)) >> 64;
        Duration::from_nanos(u64::try_from(drawn).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_doubles_up_to_its_maximum_and_any_shorter_one_may_be_drawn() {
        let backoff = Backoff { min: Duration::from_millis(100), max: Duration::from_millis(350) };
        let longest = [0, 1, 2, 31, 32, u32::MAX].map(|retries| backoff.wait(retries, u64::MAX).as_millis());
        assert_eq!(longest, [99, 199, 349, 349, 349, 349]);
        assert_eq!(backoff.wait(1, u64::MAX / 2).as_millis(), 99);
        assert_eq!(backoff.wait(1, 0), Duration::ZERO);
    }

    #[test]
    fn the_longest_durations_overflow_nothing() {
        let backoff = Backoff { min: Duration::MAX, max: Duration::MAX };
        assert!(Duration::from_secs(1 << 30) < backoff.wait(u32::MAX, u64::MAX));
    }
}
