//! The rules by which a circuit opens, as users write them.

use crate::{
    error::ConfigError,
    machine::trip::{BILLION, RateRule, TripRule},
};
use std::{num::NonZeroU32, time::Duration};

/// When a closed circuit opens: after failures in a row, at a share of failures, or at whichever comes first.
///
/// ```
/// use reqwest_resilience::Trip;
/// use std::time::Duration;
///
/// let quick = Trip::consecutive(5);
/// let steady = Trip::failure_rate(0.5).over(Duration::from_secs(30)).min_calls(50);
/// let either = quick.or(steady);
/// ```
///
/// Failures in a row suit most origins: they see an outage within a few calls and cost a healthy call
/// nothing. A share sees the origin that fails every second call, for the price of a short lock and a clock
/// read per call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trip {
    consecutive: Option<u32>,
    rate: Option<FailureRate>,
    /// Two rules of one kind were put together; `build()` refuses that.
    doubled: bool,
}

/// A share of failures among the calls of a window; see [`Trip::failure_rate`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailureRate {
    rate: f64,
    over: Duration,
    min_calls: u32,
}

impl Trip {
    /// Opens after `failures` in a row, at least 1. A success starts the count again; an ignored outcome does
    /// not.
    #[must_use]
    pub fn consecutive(failures: u32) -> Self {
        Self { consecutive: Some(failures), rate: None, doubled: false }
    }

    /// Opens when at least this share of the calls in the window failed: above 0, at most 1. Over 10 seconds
    /// and at 20 calls, unless said otherwise.
    ///
    /// The share is taken as the nearest decimal of nine places and compared in integers: 3 failures of 10
    /// calls meet `0.3` exactly. It is looked at after every outcome, a success too, and each one includes
    /// itself.
    #[must_use]
    pub fn failure_rate(rate: f64) -> FailureRate {
        FailureRate { rate, over: Duration::from_secs(10), min_calls: 20 }
    }

    /// Opens when either rule says so. At most one rule of each kind; `build()` refuses two.
    #[must_use]
    pub fn or(self, other: impl Into<Self>) -> Self {
        let other = other.into();
        let both_runs = self.consecutive.is_some() && other.consecutive.is_some();
        let both_rates = self.rate.is_some() && other.rate.is_some();
        Self {
            consecutive: self.consecutive.or(other.consecutive),
            rate: self.rate.or(other.rate),
            doubled: self.doubled || other.doubled || both_runs || both_rates,
        }
    }

    pub(super) fn check(&self) -> Result<TripRule, ConfigError> {
        if self.doubled {
            return Err(ConfigError::new(
                "trip",
                "two rules of one kind",
                "at most one of consecutive and one of failure_rate",
            ));
        }
        Ok(TripRule {
            consecutive: self
                .consecutive
                .map(|failures| at_least_one("consecutive", failures))
                .transpose()?,
            rate: self.rate.map(FailureRate::check).transpose()?,
        })
    }
}

impl FailureRate {
    /// How far back the window reaches: longer than zero; 10 seconds by default.
    ///
    /// The window slides in steps of a tenth. What is older than it never counts.
    #[must_use]
    pub fn over(self, over: Duration) -> Self {
        Self { over, ..self }
    }

    /// Fewer calls than this in the window never open the circuit: at least 1; 20 by default.
    #[must_use]
    pub fn min_calls(self, min_calls: u32) -> Self {
        Self { min_calls, ..self }
    }

    /// Opens when either rule says so; see [`Trip::or`].
    #[must_use]
    pub fn or(self, other: impl Into<Trip>) -> Trip {
        Trip::from(self).or(other)
    }

    fn check(self) -> Result<RateRule, ConfigError> {
        let billionths = billionths(self.rate);
        if !(0.0..=1.0).contains(&self.rate) || billionths == 0 {
            return Err(ConfigError::new(
                "failure_rate",
                self.rate,
                "must be above 0, by a billionth at least, and at most 1",
            ));
        }
        if self.over.is_zero() {
            return Err(ConfigError::new("over", "0ns", "a window must be longer than zero"));
        }
        Ok(RateRule { billionths, over: self.over, min_calls: at_least_one("min_calls", self.min_calls)? })
    }
}

impl From<FailureRate> for Trip {
    fn from(rate: FailureRate) -> Self {
        Self { consecutive: None, rate: Some(rate), doubled: false }
    }
}

fn at_least_one(field: &'static str, value: u32) -> Result<NonZeroU32, ConfigError> {
    NonZeroU32::new(value).ok_or_else(|| ConfigError::new(field, value, "must be at least 1"))
}

/// The nearest number of billionths; what lies outside 0 to 1 is the caller's to refuse.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from float saturates, and NaN is zero"
)]
pub(super) fn billionths(share: f64) -> u32 {
    (share * f64::from(BILLION)).round() as u32
}
