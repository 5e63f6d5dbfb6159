//! Time as one integer.

use std::{
    num::NonZeroU64,
    time::{Duration, Instant},
};

/// A point in time: nanoseconds since the zero of whoever counts, the time a breaker was made.
///
/// Arithmetic saturates. [`Tick::NEVER`], 584 years away, stands for everything that does not fit, so no
/// duration that a user may set can overflow. Stored with one added, so that an `Option` of it is no larger:
/// there are several in each circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(NonZeroU64);

impl Tick {
    pub(crate) const ZERO: Self = Self(NonZeroU64::MIN);
    pub(crate) const NEVER: Self = Self(NonZeroU64::MAX);

    /// `now`, counted from `zero`. A clock that went back reads as zero.
    pub(crate) fn at(now: Instant, zero: Instant) -> Self {
        Self::ZERO.after(now.saturating_duration_since(zero))
    }

    pub(crate) fn nanos(self) -> u64 {
        self.0.get() - 1
    }

    #[must_use]
    pub(crate) fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(saturating_nanos(wait)))
    }

    /// How long after `earlier` this is; zero when it is not, the longest of all durations when it is never.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        if self == Self::NEVER {
            return Duration::MAX;
        }
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }

    /// The same point on the clock that `zero` was read from, where that clock reaches so far.
    pub(crate) fn instant(self, zero: Instant) -> Option<Instant> {
        zero.checked_add(Duration::from_nanos(self.nanos()))
    }
}

/// The nanoseconds of a duration, as far as they fit.
pub(crate) fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_beyond_all_time_never_ends() {
        let zero = Instant::now();
        let now = Tick::at(zero, zero);
        assert_eq!(now.after(Duration::MAX), Tick::NEVER);
        assert_eq!(Tick::NEVER.after(Duration::from_nanos(1)), Tick::NEVER);
        assert_eq!(Tick::NEVER.since(now), Duration::MAX);
    }

    #[test]
    fn a_clock_that_goes_back_reads_as_zero() {
        let zero = Instant::now();
        let later = zero + Duration::from_secs(1);
        assert_eq!(Tick::at(zero, later).nanos(), 0);
        let tick = Tick::at(later, zero);
        assert_eq!(tick.instant(zero), Some(later));
        assert_eq!(Tick::at(zero, zero).since(tick), Duration::ZERO);
    }
}
