//! The attempts of one call: what is decided after each, and what is kept between them.

use super::{
    AttemptNumber, Idempotent, MaxRetries, NoRetry, RetryReport, Shared, StopReason, budget::Account,
    drain::drain, report::Tally,
};
use crate::{
    deadline::DeadlineAt,
    error::Rejection,
    event::CallEvent,
    origin::OriginRef,
    retry_after::retry_after,
    throttles::Subject,
    verdict::{Attempt, FallbackMade, Verdict, retried},
};
use http::Extensions;
use reqwest::{Method, Request, Response, Url, header::HeaderName};
use reqwest_middleware::{Error, Result};
use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};
use tokio::time::{Instant, sleep};

/// draft-ietf-httpapi-idempotency-key-header.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The attempts of one call.
pub(super) struct Series<'a> {
    shared: &'a Shared,
    account: Account<'a>,
    tally: Tally,
    method: Method,
    /// The request may be sent twice.
    is_safe: bool,
    /// What [`MaxRetries`] and [`NoRetry`] say.
    at_most: Option<u32>,
    /// When the call began, for a policy that asks.
    begun: Option<SystemTime>,
    attempt_begun: Option<Instant>,
    retries: u32,
    /// The body cannot be sent twice.
    is_stream: bool,
    /// Where such a body goes; looked up before it is gone.
    stream_to: Option<Subject<'a>>,
    /// The last real result, for when the next attempt is rejected.
    last: Option<Result<Response>>,
    /// What an outer retry told this one.
    outer_number: Option<AttemptNumber>,
}

impl<'a> Series<'a> {
    pub(super) fn begin(shared: &'a Shared, request: &Request, extensions: &mut Extensions) -> Self {
        // What was told of another call that had these extensions.
        extensions.remove::<RetryReport>();
        let at_most = if extensions.get::<NoRetry>().is_some() {
            Some(0)
        } else {
            extensions.get().map(|&MaxRetries(retries)| retries)
        };
        Self {
            shared,
            account: shared.budget.account(request),
            tally: Tally::begin(extensions),
            method: request.method().clone(),
            is_safe: is_safe(request, extensions),
            at_most,
            begun: shared.pacing.begin(),
            attempt_begun: None,
            retries: 0,
            is_stream: false,
            stream_to: None,
            last: None,
            outer_number: extensions.remove(),
        }
    }

    /// An attempt goes out. The copy is for the next one, where there may be one and the body allows it.
    pub(super) fn begin_attempt(&mut self, request: &Request) -> Option<Request> {
        self.tally.begin_attempt(self.retries == 0);
        self.attempt_begun = self.shared.retry_if.as_ref().map(|_| Instant::now());
        if !(self.is_safe || self.shared.trust_connect_errors) {
            return None;
        }
        self.is_stream = request.body().is_some_and(|body| body.as_bytes().is_none());
        if self.is_stream {
            self.stream_to = self.subject(request.url());
            return None;
        }
        if self.may_retry() { request.try_clone() } else { None }
    }

    /// Asks, in this order, all that stands between an attempt and the next: the request of that one and the
    /// wait before it, or why there is none.
    pub(super) fn decide(
        &mut self,
        result: &Result<Response>,
        copy: Option<Request>,
        extensions: &mut Extensions,
    ) -> std::result::Result<(Request, Duration), StopReason> {
        let inner_stopped = self.tally.end_attempt(extensions);
        if was_rejected(result) || inner_stopped == Some(StopReason::Rejected) {
            return Err(StopReason::Rejected);
        }
        // What an outer retry sends again is no new call.
        if self.retries == 0 && self.outer_number.is_none() && was_sent(result) {
            self.account.deposit();
        }
        if !self.is_retryable(result) {
            return Err(StopReason::Settled);
        }
        let is_proved_unsent = self.shared.trust_connect_errors && is_connect_error(result);
        if !(self.is_safe || is_proved_unsent) {
            return Err(StopReason::UnsafeMethod);
        }
        let attempts = self.attempts();
        if self.is_stream {
            self.shared.reports.report(self.stream_to.take(), &CallEvent::StreamingRefused { attempts });
            return Err(StopReason::StreamingBody);
        }
        // Where there is no copy, no retry was allowed from the start: nothing is given up.
        let copy = copy.ok_or(StopReason::Attempts)?;
        let wait = self.wait(result, DeadlineAt::of(extensions));
        let cause = cause(result);
        let event = match wait {
            Ok(delay) => CallEvent::RetryScheduled { attempt: attempts, delay, reason: &cause },
            Err(StopReason::Budget) => CallEvent::BudgetRefused { attempts },
            Err(reason) => CallEvent::GivingUp { attempts, reason: reason.as_str() },
        };
        self.shared.reports.report(self.subject(copy.url()), &event);
        wait.map(|wait| (copy, wait))
    }

    /// Waits, and meanwhile reads what is left of the failed response.
    pub(super) async fn pause(&mut self, result: Result<Response>, wait: Duration, extensions: &Extensions) {
        let begun = Instant::now();
        // Where time is short, reading must not cost the retry its own.
        let limit =
            DeadlineAt::of(extensions).map_or(Duration::MAX, |deadline| wait.max(deadline.remaining() / 2));
        self.last = drain(result, limit).await;
        sleep(wait.saturating_sub(begun.elapsed())).await;
        self.retries = self.retries.saturating_add(1);
    }

    /// Tells the layers inside which attempt this is.
    pub(super) fn mark(&self, extensions: &mut Extensions) {
        extensions.insert(AttemptNumber(self.attempts()));
    }

    /// Hands out the result: the last attempt's own, or what was there before it was rejected.
    pub(super) fn end(
        self,
        reason: StopReason,
        result: Result<Response>,
        extensions: &mut Extensions,
    ) -> Result<Response> {
        match self.outer_number {
            Some(number) => extensions.insert(number),
            None => extensions.remove::<AttemptNumber>(),
        };
        let mut result = match self.last {
            Some(last) if was_rejected(&result) => last,
            _ => result,
        };
        self.tally.end(reason, &mut result, extensions);
        result
    }

    /// The wait before the next attempt, its token taken.
    fn wait(
        &self,
        result: &Result<Response>,
        deadline: Option<DeadlineAt>,
    ) -> std::result::Result<Duration, StopReason> {
        let wait =
            self.shared.pacing.wait(self.begun, self.retries, self.at_most).ok_or(StopReason::Attempts)?;
        let asked = wait_asked_for(result);
        if self.shared.max_retry_after < asked {
            return Err(StopReason::RetryAfter);
        }
        let wait = whole_millis(wait.max(asked));
        if deadline.is_some_and(|deadline| deadline.remaining() <= wait) {
            return Err(StopReason::Deadline);
        }
        if !self.account.withdraw() {
            return Err(StopReason::Budget);
        }
        Ok(wait)
    }

    fn is_retryable(&self, result: &Result<Response>) -> bool {
        let elapsed = self.attempt_begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        let attempt = Attempt::new(&self.method, result, elapsed, &self.shared.rule);
        match &self.shared.retry_if {
            Some(rule) => rule(&attempt),
            None => attempt.default_verdict() == Verdict::Failure,
        }
    }

    /// Whether this call may be retried at all, as far as numbers go.
    fn may_retry(&self) -> bool {
        self.at_most.or(self.shared.pacing.max_retries()) != Some(0)
    }

    fn attempts(&self) -> u32 {
        self.retries.saturating_add(1)
    }

    fn subject(&self, url: &Url) -> Option<Subject<'a>> {
        self.shared.reports.subject(OriginRef::of(url)?)
    }
}

/// Idempotent by its method (RFC 9110, 9.2.2), or because the caller says so.
pub(crate) fn is_safe(request: &Request, extensions: &Extensions) -> bool {
    matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE
    ) || request.headers().contains_key(IDEMPOTENCY_KEY)
        || extensions.get::<Idempotent>().is_some()
}

fn was_rejected(result: &Result<Response>) -> bool {
    match result {
        Ok(_) => false,
        Err(error) => Rejection::find(error).is_some_and(Rejection::is_unsent),
    }
}

/// Whether the attempt reached the network, as far as can be told. What did not pays for no retry.
fn was_sent(result: &Result<Response>) -> bool {
    match result {
        // An answer that a fallback inside made is none of the origin's.
        Ok(response) => response.extensions().get::<FallbackMade>().is_none(),
        Err(Error::Reqwest(error)) => !error.is_builder(),
        // Of another middleware, such as one that could not get a token.
        Err(error) => Rejection::find(error).is_some() || retried(error).is_some(),
    }
}

fn is_connect_error(result: &Result<Response>) -> bool {
    result.as_ref().is_err_and(Error::is_connect)
}

fn wait_asked_for(result: &Result<Response>) -> Duration {
    let asked = result.as_ref().ok().and_then(|response| retry_after(response.headers(), SystemTime::now));
    asked.unwrap_or_default()
}

/// What made the retry necessary, for the log: the status, or the kind of error.
fn cause(result: &Result<Response>) -> Cow<'static, str> {
    match result {
        Ok(response) => response.status().as_str().to_owned().into(),
        Err(error) if error.is_timeout() => "timeout".into(),
        Err(error) if error.is_connect() => "connect".into(),
        Err(error) if Rejection::find(error).is_some() => "deadline".into(),
        Err(_) => "error".into(),
    }
}

/// Rounded up, and at least one: a policy whose waits are all over cannot make a retry spin.
fn whole_millis(wait: Duration) -> Duration {
    let millis = wait.as_nanos().div_ceil(1_000_000).max(1);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}
