//! The numbers that rule one circuit, checked and complete.

use super::{
    state::CircuitMode,
    tick::saturating_nanos,
    trip::{BILLION, TripRule},
};
use std::num::{NonZeroU8, NonZeroU32};
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct CircuitPolicy {
    pub(crate) trip: TripRule,
    pub(crate) open_for: Duration,
    pub(crate) max_open_for: Duration,
    /// The largest share by which a wait is lengthened, in billionths.
    pub(crate) open_jitter: u32,
    pub(crate) honor_retry_after: Duration,
    pub(crate) probes: NonZeroU8,
    pub(crate) success_threshold: NonZeroU8,
    pub(crate) probe_lease: Duration,
    pub(crate) mode: CircuitMode,
}

impl Default for CircuitPolicy {
    fn default() -> Self {
        Self {
            trip: TripRule { consecutive: NonZeroU32::new(5), rate: None },
            open_for: Duration::from_secs(30),
            max_open_for: Duration::from_secs(30),
            open_jitter: 0,
            honor_retry_after: Duration::from_secs(60),
            probes: NonZeroU8::MIN,
            success_threshold: NonZeroU8::MIN,
            probe_lease: Duration::from_secs(60),
            mode: CircuitMode::Enforcing,
        }
    }
}

impl CircuitPolicy {
    /// Whether another probe may go out: there is a slot, and its success would still be needed.
    pub(crate) fn has_free_slot(&self, in_flight: u8, passed: u8) -> bool {
        let needed = self.success_threshold.get().saturating_sub(passed);
        in_flight < self.probes.get().min(needed)
    }

    /// How long an open period lasts that `reopenings` failed probes of the same outage came before.
    ///
    /// Doubles from `open_for` to `max_open_for`; the origin's own `Retry-After` may ask for more, up to
    /// `honor_retry_after`; the jitter, drawn by `chance`, only ever adds.
    pub(crate) fn wait(&self, reopenings: u32, retry_after: Option<Duration>, chance: u64) -> Duration {
        let factor = 1_u64.checked_shl(reopenings).unwrap_or(u64::MAX);
        let doubled = Duration::from_nanos(saturating_nanos(self.open_for).saturating_mul(factor));
        let grown = doubled.max(self.open_for).min(self.max_open_for);
        let asked = retry_after.map_or(Duration::ZERO, |asked| asked.min(self.honor_retry_after));
        self.jittered(grown.max(asked), chance)
    }

    fn jittered(&self, wait: Duration, chance: u64) -> Duration {
        let nanos = u128::from(saturating_nanos(wait));
        let most = nanos * u128::from(self.open_jitter) / u128::from(BILLION);
        let drawn = (most * u128::from(chance)) >> 64;
        wait.saturating_add(Duration::from_nanos(u64::try_from(drawn).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn policy() -> CircuitPolicy {
        CircuitPolicy {
            open_for: SECOND,
            max_open_for: 4 * SECOND,
            honor_retry_after: 10 * SECOND,
            ..CircuitPolicy::default()
        }
    }

    #[test]
    fn the_wait_doubles_up_to_its_maximum_however_long_the_outage() {
        let waits =
            [0, 1, 2, 3, 31, 32, u32::MAX].map(|reopenings| policy().wait(reopenings, None, 0).as_secs());
        assert_eq!(waits, [1, 2, 4, 4, 4, 4, 4]);
    }

    #[test]
    fn a_retry_after_lengthens_the_wait_up_to_what_is_honored_and_never_shortens_it() {
        for (asked, waited) in [(0, 1), (1, 1), (7, 7), (10, 10), (3600, 10)] {
            let asked = Some(Duration::from_secs(asked));
            assert_eq!(policy().wait(0, asked, 0).as_secs(), waited);
        }
    }

    #[test]
    fn jitter_adds_at_most_its_share_and_never_takes_away() {
        let policy = CircuitPolicy { open_jitter: BILLION / 5, ..policy() };
        assert_eq!(policy.wait(0, None, 0), SECOND);
        let most = policy.wait(0, None, u64::MAX);
        assert!(Duration::from_millis(1199) < most && most <= Duration::from_millis(1200), "{most:?}");
    }

    #[test]
    fn the_longest_duration_overflows_nothing() {
        let policy = CircuitPolicy {
            open_for: Duration::MAX,
            max_open_for: Duration::MAX,
            honor_retry_after: Duration::MAX,
            open_jitter: BILLION,
            ..CircuitPolicy::default()
        };
        assert_eq!(policy.wait(u32::MAX, Some(Duration::MAX), u64::MAX), Duration::MAX);
    }
}
