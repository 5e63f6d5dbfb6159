//! When a closed circuit opens.

use super::window::Counts;
use std::num::NonZeroU32;
use std::time::Duration;

/// The evidence on which a closed circuit opens: at least one of the two rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TripRule {
    /// This many failures in a row.
    pub(crate) consecutive: Option<NonZeroU32>,
    /// This share of failures among the calls of a window.
    pub(crate) rate: Option<RateRule>,
}

impl TripRule {
    /// Whether `failures` in a row are enough.
    pub(crate) fn met_by_run(&self, failures: u32) -> bool {
        self.consecutive.is_some_and(|limit| limit.get() <= failures)
    }

    /// Whether what the window holds is enough.
    pub(crate) fn met_by_rate(&self, counts: Counts) -> bool {
        self.rate.is_some_and(|rate| rate.is_met(counts))
    }
}

/// A share of failures, compared in integers: what a user writes as 0.3 opens at exactly 3 of 10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateRule {
    /// The share in billionths: 1 to 1,000,000,000.
    pub(crate) billionths: u32,
    /// How far back the window reaches.
    pub(crate) over: Duration,
    /// Fewer calls than this are no evidence.
    pub(crate) min_calls: NonZeroU32,
}

/// One whole in billionths.
pub(crate) const BILLION: u32 = 1_000_000_000;

impl RateRule {
    fn is_met(&self, counts: Counts) -> bool {
        let needed = u128::from(counts.calls) * u128::from(self.billionths);
        u64::from(self.min_calls.get()) <= counts.calls
            && needed <= u128::from(counts.failures) * u128::from(BILLION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(billionths: u32, failures: u64, calls: u64) -> bool {
        RateRule { billionths, over: Duration::from_secs(1), min_calls: NonZeroU32::MIN }
            .is_met(Counts { calls, failures })
    }

    #[test]
    fn a_rate_is_met_at_exactly_its_share() {
        for (billionths, failures, calls) in
            [(300_000_000, 3, 10), (100_000_000, 1, 10), (700_000_000, 7, 10)]
        {
            assert!(met(billionths, failures, calls));
            assert!(!met(billionths, failures - 1, calls));
            assert!(!met(billionths, failures, calls + 1));
        }
        assert!(met(333_300_000, 1, 3));
        assert!(met(BILLION, u64::MAX, u64::MAX));
        assert!(!met(BILLION, u64::MAX - 1, u64::MAX));
    }
}
