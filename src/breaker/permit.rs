//! The right to one call.

use super::{profile::Profile, shared::Shared};
use crate::{
    deadline::DeadlineAt,
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
    shared: &'a Shared,
    circuit: &'a CircuitCell,
    profile: &'a Profile,
    /// The epoch that admitted the call; none once it was settled.
    epoch: Option<u64>,
    /// None: nobody will ask how long it took.
    started: Option<Instant>,
    /// When a layer outside cuts the call off.
    deadline: Option<DeadlineAt>,
}

impl<'a> Permit<'a> {
    #[inline]
    pub(super) fn new(
        shared: &'a Shared,
        circuit: &'a CircuitCell,
        profile: &'a Profile,
        epoch: u64,
    ) -> Self {
        Self {
            shared,
            circuit,
            profile,
            epoch: Some(epoch),
            started: None,
            deadline: None,
        }
    }

    /// The call goes out. What listeners took before this is not charged to the origin.
    #[inline]
    pub(crate) fn start(&mut self, deadline: Option<DeadlineAt>) {
        self.deadline = deadline;
        if self.profile.is_timed() || self.shared.classify.is_some() {
            self.started = Some(self.shared.clock.now());
        }
    }

    /// Tells the circuit what came back.
    #[inline]
    pub(crate) fn settle(mut self, method: &Method, result: &reqwest_middleware::Result<Response>) {
        // A rule of the user may panic: then this permit is dropped, and the slot is free again.
        let outcome = match self.judge(method, result) {
            Verdict::Success => Outcome::Success,
            Verdict::Failure => Outcome::Failure,
            Verdict::Ignore => Outcome::Ignored,
        };
        self.report(outcome, Some(result));
    }

    #[inline]
    fn judge(&self, method: &Method, result: &reqwest_middleware::Result<Response>) -> Verdict {
        let rule = &self.profile.rule;
        let is_timed = rule.slow_call.is_some() || self.shared.classify.is_some();
        let elapsed = if is_timed { self.elapsed() } else { Duration::ZERO };
        let attempt = Attempt::new(method, result, elapsed, rule);
        match &self.shared.classify {
            Some(classify) => classify(&attempt),
            None => attempt.default_verdict(),
        }
    }

    #[inline]
    fn report(&mut self, outcome: Outcome, result: Option<&reqwest_middleware::Result<Response>>) {
        if let Some(epoch) = self.epoch.take() {
            let policy = &self.profile.policy;
            self.shared.settle(self.circuit, epoch, outcome, || match result {
                Some(Ok(response)) if !policy.honor_retry_after.is_zero() => {
                    retry_after(response.headers(), SystemTime::now)
                }
                _ => None,
            });
        }
    }

    fn elapsed(&self) -> Duration {
        self.started.map_or(Duration::ZERO, |started| {
            self.shared.clock.now().saturating_duration_since(started)
        })
    }

    /// Whether the call was dropped because the origin took too long: a deadline outside has passed, or the
    /// caller lost its patience. A panic says nothing about the origin.
    fn was_cut_off(&self) -> bool {
        !thread::panicking()
            && (self.deadline.is_some_and(DeadlineAt::has_passed)
                || self
                    .profile
                    .abandoned_after
                    .is_some_and(|patience| patience <= self.elapsed()))
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.epoch.is_none() {
            return;
        }
        let outcome = if self.was_cut_off() {
            Outcome::Failure
        } else {
            Outcome::Ignored
        };
        self.report(outcome, None);
    }
}
