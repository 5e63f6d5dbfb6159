//! What can be set per circuit.

use super::{
    profile::Profile,
    trip::{Trip, billionths},
};
use crate::{
    error::ConfigError,
    machine::{policy::CircuitPolicy, state::CircuitMode},
    verdict::{OutcomeRule, StatusSet},
};
use std::{num::NonZeroU8, sync::Arc, time::Duration};

/// The settings of a circuit. What is left unset is inherited: by one circuit from
/// [`defaults`](crate::CircuitBreakerBuilder::defaults), by those from the values below.
///
/// | setting | default |
/// |---|---|
/// | [`trip`](Self::trip) | `Trip::consecutive(5)` |
/// | [`failure_statuses`](Self::failure_statuses) | 500 to 599 |
/// | [`open_for`](Self::open_for) | 30 s |
/// | [`max_open_for`](Self::max_open_for) | as `open_for` |
/// | [`open_jitter`](Self::open_jitter) | 0 |
/// | [`honor_retry_after`](Self::honor_retry_after) | 60 s |
/// | [`probes`](Self::probes) | 1 |
/// | [`success_threshold`](Self::success_threshold) | 1 |
/// | [`probe_lease`](Self::probe_lease) | 60 s |
/// | [`slow_call`](Self::slow_call) | none |
/// | [`abandoned_after`](Self::abandoned_after) | none |
/// | [`mode`](Self::mode) | `CircuitMode::Enforcing` |
///
/// Values are checked by [`build`](crate::CircuitBreakerBuilder::build). A duration may be as long as
/// [`Duration::MAX`]; what is beyond 584 years lasts forever.
#[derive(Clone, Debug, Default)]
pub struct CircuitSettings {
    trip: Option<Trip>,
    failure_statuses: Option<Vec<u16>>,
    open_for: Option<Duration>,
    max_open_for: Option<Duration>,
    open_jitter: Option<f64>,
    honor_retry_after: Option<Duration>,
    probes: Option<u32>,
    success_threshold: Option<u32>,
    probe_lease: Option<Duration>,
    slow_call: Option<Duration>,
    abandoned_after: Option<Duration>,
    mode: Option<CircuitMode>,
}

impl CircuitSettings {
    /// When a closed circuit opens: `Trip::consecutive(5)` by default.
    #[must_use]
    pub fn trip(self, trip: impl Into<Trip>) -> Self {
        Self { trip: Some(trip.into()), ..self }
    }

    /// The statuses that are failures, each between 100 and 999: 500 to 599 by default. None at all: only
    /// errors of the network count.
    #[must_use]
    pub fn failure_statuses(self, statuses: impl IntoIterator<Item = u16>) -> Self {
        Self { failure_statuses: Some(statuses.into_iter().collect()), ..self }
    }

    /// How long an open circuit rejects before it lets a probe through: 30 seconds by default. Zero: the very
    /// next call is a probe.
    #[must_use]
    pub fn open_for(self, open_for: Duration) -> Self {
        Self { open_for: Some(open_for), ..self }
    }

    /// The longest wait: as `open_for` by default, and not shorter than it. Each failed probe of one outage
    /// doubles the wait up to this; when the circuit closes, the next outage begins with `open_for` again.
    #[must_use]
    pub fn max_open_for(self, max_open_for: Duration) -> Self {
        Self { max_open_for: Some(max_open_for), ..self }
    }

    /// Adds a random share of up to this much to every wait, from 0 (the default) to 1. Never shortens it.
    /// Keeps a fleet that tripped together from probing together.
    #[must_use]
    pub fn open_jitter(self, open_jitter: f64) -> Self {
        Self { open_jitter: Some(open_jitter), ..self }
    }

    /// The `Retry-After` (RFC 9110, 10.2.3) of the response that opens or reopens the circuit lengthens the
    /// wait, up to this: 60 seconds by default. Zero: not at all.
    #[must_use]
    pub fn honor_retry_after(self, honor_retry_after: Duration) -> Self {
        Self { honor_retry_after: Some(honor_retry_after), ..self }
    }

    /// How many probes may be in flight at once while half-open: 1 (the default) to 255. Never more than
    /// [`success_threshold`](Self::success_threshold) still needs.
    #[must_use]
    pub fn probes(self, probes: u32) -> Self {
        Self { probes: Some(probes), ..self }
    }

    /// How many probes in a row must succeed to close the circuit: 1 (the default) to 255. One that fails
    /// opens it again.
    #[must_use]
    pub fn success_threshold(self, success_threshold: u32) -> Self {
        Self { success_threshold: Some(success_threshold), ..self }
    }

    /// How long the youngest probe may be without an outcome: longer than zero, 60 seconds by default. After
    /// that the probes have failed and the circuit has been open since then; the next call finds it so, and
    /// what the probes bring later is stale. Bounds what a probe that hangs for good can do.
    #[must_use]
    pub fn probe_lease(self, probe_lease: Duration) -> Self {
        Self { probe_lease: Some(probe_lease), ..self }
    }

    /// A response whose headers took longer than this is a failure, whatever its status: longer than zero;
    /// off by default. Costs two clock reads per call.
    #[must_use]
    pub fn slow_call(self, slow_call: Duration) -> Self {
        Self { slow_call: Some(slow_call), ..self }
    }

    /// A call whose future was dropped after this long is a failure; one dropped earlier says nothing. Off by
    /// default: no dropped call counts. For callers that bound their calls with `tokio::time::timeout`, which
    /// cuts them off without a word. Costs a clock read per call.
    #[must_use]
    pub fn abandoned_after(self, abandoned_after: Duration) -> Self {
        Self { abandoned_after: Some(abandoned_after), ..self }
    }

    /// The mode a circuit begins in and returns to when it is reset: [`CircuitMode::Enforcing`] by default.
    #[must_use]
    pub fn mode(self, mode: CircuitMode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// These settings, and those of `base` where nothing is set here.
    pub(super) fn or(self, base: &Self) -> Self {
        Self {
            trip: self.trip.or(base.trip),
            failure_statuses: self.failure_statuses.or_else(|| base.failure_statuses.clone()),
            open_for: self.open_for.or(base.open_for),
            max_open_for: self.max_open_for.or(base.max_open_for),
            open_jitter: self.open_jitter.or(base.open_jitter),
            honor_retry_after: self.honor_retry_after.or(base.honor_retry_after),
            probes: self.probes.or(base.probes),
            success_threshold: self.success_threshold.or(base.success_threshold),
            probe_lease: self.probe_lease.or(base.probe_lease),
            slow_call: self.slow_call.or(base.slow_call),
            abandoned_after: self.abandoned_after.or(base.abandoned_after),
            mode: self.mode.or(base.mode),
        }
    }

    /// Checks every value and fills in the defaults.
    pub(super) fn check(&self) -> Result<Profile, ConfigError> {
        let default = CircuitPolicy::default();
        let open_for = self.open_for.unwrap_or(default.open_for);
        let max_open_for = self.max_open_for.unwrap_or(open_for);
        if max_open_for < open_for {
            return Err(ConfigError::new(
                "max_open_for",
                format!("{max_open_for:?}"),
                format!("must not be shorter than open_for, {open_for:?}"),
            ));
        }
        let policy = CircuitPolicy {
            trip: self.trip.map_or(Ok(default.trip), |trip| trip.check())?,
            open_for,
            max_open_for,
            open_jitter: self.open_jitter.map_or(Ok(default.open_jitter), checked_jitter)?,
            honor_retry_after: self.honor_retry_after.unwrap_or(default.honor_retry_after),
            probes: checked_count("probes", self.probes, default.probes)?,
            success_threshold: checked_count(
                "success_threshold",
                self.success_threshold,
                default.success_threshold,
            )?,
            probe_lease: longer_than_zero("probe_lease", self.probe_lease)?.unwrap_or(default.probe_lease),
            mode: self.mode.unwrap_or(default.mode),
        };
        let failure_statuses = match &self.failure_statuses {
            Some(statuses) => StatusSet::checked("failure_statuses", statuses)?,
            None => StatusSet::default(),
        };
        Ok(Profile {
            policy: Arc::new(policy),
            rule: OutcomeRule { failure_statuses, slow_call: longer_than_zero("slow_call", self.slow_call)? },
            abandoned_after: self.abandoned_after,
        })
    }
}

fn checked_count(
    field: &'static str,
    value: Option<u32>,
    default: NonZeroU8,
) -> Result<NonZeroU8, ConfigError> {
    let Some(value) = value else {
        return Ok(default);
    };
    u8::try_from(value)
        .ok()
        .and_then(NonZeroU8::new)
        .ok_or_else(|| ConfigError::new(field, value, "must be between 1 and 255"))
}

fn checked_jitter(share: f64) -> Result<u32, ConfigError> {
    if (0.0..=1.0).contains(&share) {
        return Ok(billionths(share));
    }
    Err(ConfigError::new("open_jitter", share, "must be between 0 and 1"))
}

fn longer_than_zero(field: &'static str, value: Option<Duration>) -> Result<Option<Duration>, ConfigError> {
    if value.is_some_and(|value| value.is_zero()) {
        return Err(ConfigError::new(field, "0ns", "must be longer than zero"));
    }
    Ok(value)
}
