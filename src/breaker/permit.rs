//! The right to one call.

use super::{core::Core, profile::Profile};
use crate::{
    machine::{cell::CircuitCell, circuit::Outcome},
    retry_after::retry_after,
    verdict::{Attempt, Verdict},
};
use reqwest::{Method, Response};
use std::{
    thread,
    time::{Duration, Instant, SystemTime},
};

/// The right to one call, and the duty to say how it ended. Dropping it is an answer too.
#[must_use = "dropping a permit says that the call was abandoned"]
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    core: &'a Core,
    circuit: &'a CircuitCell,
    profile: &'a Profile,
    /// The epoch that admitted the call; none once it was settled.
    epoch: Option<u64>,
    /// None: nobody will ask how long it took.
    started: Option<Instant>,
}

impl<'a> Permit<'a> {
    #[inline]
    pub(super) fn new(core: &'a Core, circuit: &'a CircuitCell, profile: &'a Profile, epoch: u64) -> Self {
        let timed = profile.is_timed() || core.classify.is_some();
        Self {
            core,
            circuit,
            profile,
            epoch: Some(epoch),
            started: timed.then(|| core.clock.now()),
        }
    }

    /// Tells the circuit what came back.
    #[inline]
    pub(crate) fn settle(mut self, method: &Method, result: &reqwest_middleware::Result<Response>) {
        let attempt = Attempt::new(method, result, self.elapsed(), &self.profile.rule);
        // A rule of the user may panic: then this permit is dropped, and the slot is free again.
        let verdict = match &self.core.classify {
            Some(classify) => classify(&attempt),
            None => attempt.default_verdict(),
        };
        self.report(match verdict {
            Verdict::Success => Outcome::Success,
            Verdict::Failure => Outcome::Failure {
                retry_after: self.wait_asked_for(result),
            },
            Verdict::Ignore => Outcome::Ignored,
        });
    }

    fn wait_asked_for(&self, result: &reqwest_middleware::Result<Response>) -> Option<Duration> {
        match result {
            Ok(response) if !self.profile.policy.honor_retry_after.is_zero() => {
                retry_after(response.headers(), SystemTime::now())
            }
            _ => None,
        }
    }

    #[inline]
    fn report(&mut self, outcome: Outcome) {
        if let Some(epoch) = self.epoch.take() {
            self.core.settle(self.circuit, epoch, outcome);
        }
    }

    #[inline]
    fn elapsed(&self) -> Duration {
        self.started.map_or(Duration::ZERO, |started| {
            self.core.clock.now().saturating_duration_since(started)
        })
    }

    fn was_abandoned(&self) -> bool {
        match self.profile.abandoned_after {
            Some(patience) => !thread::panicking() && patience <= self.elapsed(),
            None => false,
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.epoch.is_none() {
            return;
        }
        let outcome = if self.was_abandoned() {
            Outcome::Failure { retry_after: None }
        } else {
            Outcome::Ignored
        };
        self.report(outcome);
    }
}
