//! The right to one call.

use super::{
    profile::Profile,
    shared::{Place, Shared},
};
use crate::{
    body::{BodyEnd, Until, Watcher},
    clock::Clock,
    deadline::DeadlineAt,
    machine::call::{Outcome, Passage},
    queue_time::QueueTime,
    retry_after::retry_after,
    verdict::{Attempt, Verdict},
};
use http::Extensions;
use reqwest::{Method, Response};
use std::{
    mem,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

/// A call that a circuit let through, before anybody answers for it. Two words, so that it is handed on in
/// registers.
#[derive(Clone, Copy, Debug)]
#[must_use = "a probe slot is lost with it"]
pub(crate) struct Ticket<'a> {
    pub(super) place: &'a Place,
    /// The epoch that admitted the call.
    pub(super) epoch: u64,
}

impl<'a> Ticket<'a> {
    /// None where nobody looks at the call.
    #[inline]
    pub(super) fn of(place: &'a Place, passage: Passage) -> Option<Self> {
        match passage {
            Passage::Observed { epoch } => Some(Self { place, epoch }),
            Passage::Unobserved => None,
        }
    }
}

/// The right to one call, and the duty to say how it ended. Dropping it is an answer too.
#[must_use = "dropping a permit says that the call was abandoned"]
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    shared: &'a Arc<Shared>,
    ticket: Ticket<'a>,
    profile: &'a Profile,
    /// None: nobody will ask how long it took. Boxed, since most permits have none.
    stopwatch: Option<Box<Stopwatch>>,
    /// When a layer outside cuts the call off.
    deadline: Option<DeadlineAt>,
}

impl<'a> Permit<'a> {
    /// The call goes out. What listeners took before this is not charged to the origin.
    #[inline]
    pub(crate) fn new(shared: &'a Arc<Shared>, ticket: Ticket<'a>, extensions: &mut Extensions) -> Self {
        let profile = shared.profiles.of(ticket.place);
        let is_timed = profile.is_timed() || shared.classify.is_some();
        Self {
            shared,
            ticket,
            profile,
            stopwatch: is_timed.then(|| Box::new(Stopwatch::start(&*shared.clock, extensions))),
            deadline: DeadlineAt::of(extensions),
        }
    }

    /// Tells the circuit what came back. Where the headers were good and the body has a say, what is left to
    /// tell is handed back, to ride in the body.
    #[inline]
    pub(crate) fn settle(
        mut self,
        method: &Method,
        result: &reqwest_middleware::Result<Response>,
    ) -> Option<Aboard> {
        // A rule of the user may panic: then this permit is dropped, and the slot is free again.
        let outcome = match self.judge(method, result) {
            Verdict::Success => Outcome::Success,
            Verdict::Failure => Outcome::Failure,
            Verdict::Ignore => Outcome::Ignored,
        };
        let Self { shared, profile, ticket: Ticket { place, epoch }, .. } = self;
        // The end of the duty. Before anything else may panic, or the circuit would be told twice.
        self.stopwatch = None;
        mem::forget(self);
        if shared.observe == Until::BodyEnd && outcome == Outcome::Success && result.is_ok() {
            let retry_after = wait_asked_for(result, profile);
            return Some(Aboard { shared: Arc::clone(shared), place: place.number, epoch, retry_after });
        }
        shared.settle(&place.circuit, epoch, outcome, || wait_asked_for(result, profile));
        None
    }

    #[inline]
    fn judge(&self, method: &Method, result: &reqwest_middleware::Result<Response>) -> Verdict {
        let rule = &self.profile.rule;
        match &self.shared.classify {
            Some(classify) => classify(&Attempt::new(method, result, self.elapsed(), rule)),
            None if rule.slow_call.is_some() => rule.judge(result, self.elapsed()),
            None => rule.judge(result, Duration::ZERO),
        }
    }

    fn elapsed(&self) -> Duration {
        self.stopwatch.as_ref().map_or(Duration::ZERO, |stopwatch| stopwatch.elapsed(&*self.shared.clock))
    }

    /// Whether the call was dropped because the origin took too long: a deadline outside has passed, or the
    /// caller lost its patience. A panic says nothing about the origin.
    fn was_cut_off(&self) -> bool {
        !thread::panicking()
            && (self.deadline.is_some_and(DeadlineAt::has_passed)
                || self.profile.abandoned_after.is_some_and(|patience| patience <= self.elapsed()))
    }
}

/// What the response asked for, where the settings listen.
fn wait_asked_for(result: &reqwest_middleware::Result<Response>, profile: &Profile) -> Option<Duration> {
    match result {
        Ok(response) if !profile.policy.honor_retry_after.is_zero() => {
            retry_after(response.headers(), SystemTime::now)
        }
        _ => None,
    }
}

/// How long the origin has had the call: without what it queued on our side.
#[derive(Debug)]
struct Stopwatch {
    started: Instant,
    queue_time: QueueTime,
    /// Queued before this: by an earlier attempt that had the same extensions.
    queued_before: Duration,
}

impl Stopwatch {
    fn start(clock: &dyn Clock, extensions: &mut Extensions) -> Self {
        let queue_time = QueueTime::lay_in(extensions);
        let queued_before = queue_time.total();
        Self { started: clock.now(), queue_time, queued_before }
    }

    fn elapsed(&self, clock: &dyn Clock) -> Duration {
        let queued = self.queue_time.total().saturating_sub(self.queued_before);
        clock.now().saturating_duration_since(self.started).saturating_sub(queued)
    }
}

/// What is left of a permit while the body is read: the header verdict was good, and stands unless the body
/// breaks.
#[must_use = "dropped, it tells nobody how the call ended"]
pub(crate) struct Aboard {
    shared: Arc<Shared>,
    place: u32,
    epoch: u64,
    /// Should this outcome open the circuit, it is heard.
    retry_after: Option<Duration>,
}

impl Watcher for Aboard {
    fn end(self, end: BodyEnd) {
        let outcome = match end {
            BodyEnd::Over => Outcome::Success,
            BodyEnd::Broken => Outcome::Failure,
        };
        if let Some(place) = self.shared.circuits.resident(self.place) {
            self.shared.settle(&place.circuit, self.epoch, outcome, || self.retry_after);
        }
    }
}

/// The call was abandoned.
impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let outcome = if self.was_cut_off() { Outcome::Failure } else { Outcome::Ignored };
        let Ticket { place, epoch } = self.ticket;
        self.shared.settle(&place.circuit, epoch, outcome, || None);
    }
}
