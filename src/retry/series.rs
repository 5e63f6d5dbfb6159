//! The attempts of one call: what is decided after each, and what is kept between them.

use super::{
    AttemptNumber, Idempotent, MaxRetries, NoRetry, RetryReport, Shared, StopReason, budget::Account,
    drain::drain, report::Tally,
};
use crate::{
    deadline::DeadlineAt,
    error::Rejection,
    event::CallEvent,
    retry_after::retry_after,
    throttles::Subject,
    verdict::{Attempt, FallbackMade, Verdict, retried},
};
use http::Extensions;
use reqwest::{Method, Request, Response, Url, header::HeaderName};
use reqwest_middleware::{Error, Result};
use std::{
    borrow::Cow,
    mem,
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
    /// The extensions that the attempt began with. What it left there must not mislead the next one.
    before: Extensions,
    /// The last real result, for when the next attempt is rejected. Boxed, since most calls have none.
    last: Option<Box<Result<Response>>>,
    /// What an outer retry told this one.
    outer_number: Option<AttemptNumber>,
}

impl<'a> Series<'a> {
    #[inline]
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
            before: Extensions::new(),
            last: None,
            outer_number: extensions.remove(),
        }
    }

    /// An attempt goes out: as a copy where there may be another one and the body allows it, else as it is.
    pub(super) fn begin_attempt(&mut self, request: &Request, extensions: &Extensions) -> Option<Request> {
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
        if !self.may_retry() {
            return None;
        }
        self.before = extensions.clone();
        request.try_clone()
    }

    /// An attempt that left no copy came back, and the series is over.
    pub(super) fn settle_last(&mut self, result: &mut Result<Response>, extensions: &mut Extensions) {
        // Where nothing else is against a retry, none was allowed from the start: nothing is given up.
        let reason = self.judge(result, extensions).err().unwrap_or(StopReason::Attempts);
        self.end(reason, result, extensions);
    }

    /// An attempt on a copy of `request` came back. None: the series is over. Else the wait before the next
    /// attempt.
    pub(super) fn settle(
        &mut self,
        result: &mut Result<Response>,
        request: &Request,
        extensions: &mut Extensions,
    ) -> Option<Duration> {
        match self.decide(result, request, extensions) {
            Ok(wait) => Some(wait),
            Err(reason) => {
                self.end(reason, result, extensions);
                None
            }
        }
    }

    /// Waits, and meanwhile reads what is left of the failed response.
    pub(super) async fn pause(&mut self, result: Result<Response>, wait: Duration, extensions: &Extensions) {
        let begun = Instant::now();
        // Where time is short, reading must not cost the retry its own.
        let limit =
            DeadlineAt::of(extensions).map_or(Duration::MAX, |deadline| wait.max(deadline.remaining() / 2));
        self.last = drain(result, limit).await.map(Box::new);
        sleep(wait.saturating_sub(begun.elapsed())).await;
        self.retries = self.retries.saturating_add(1);
    }

    /// Makes the extensions ready for the next attempt, and tells the layers inside which one it is.
    pub(super) fn renew(&mut self, extensions: &mut Extensions) {
        *extensions = mem::take(&mut self.before);
        extensions.insert(AttemptNumber(self.attempts()));
    }

    /// Asks all that stands between an attempt and the next: the wait before that one, or why there is none.
    fn decide(
        &mut self,
        result: &Result<Response>,
        request: &Request,
        extensions: &mut Extensions,
    ) -> std::result::Result<Duration, StopReason> {
        self.judge(result, extensions)?;
        let wait = self.wait(result, DeadlineAt::of(extensions));
        let (attempts, cause) = (self.attempts(), cause(result));
        let event = match wait {
            Ok(delay) => CallEvent::RetryScheduled { attempt: attempts, delay, reason: &cause },
            Err(StopReason::Budget) => CallEvent::BudgetRefused { attempts },
            Err(reason) => CallEvent::GivingUp { attempts, reason: reason.as_str() },
        };
        self.shared.reports.report(self.subject(request.url()), &event);
        wait
    }

    /// Asks, in this order, what the outcome and the request have against another attempt.
    fn judge(
        &mut self,
        result: &Result<Response>,
        extensions: &mut Extensions,
    ) -> std::result::Result<(), StopReason> {
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
        if self.is_stream {
            let event = CallEvent::StreamingRefused { attempts: self.attempts() };
            self.shared.reports.report(self.stream_to.take(), &event);
            return Err(StopReason::StreamingBody);
        }
        Ok(())
    }

    /// Leaves what the caller gets: the last attempt's own result, or what was there before it was rejected.
    fn end(&mut self, reason: StopReason, result: &mut Result<Response>, extensions: &mut Extensions) {
        match self.outer_number {
            Some(number) => extensions.insert(number),
            None => extensions.remove::<AttemptNumber>(),
        };
        if was_rejected(result) {
            if let Some(last) = self.last.take() {
                *result = *last;
            }
        }
        self.tally.end(reason, result, extensions);
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
        let rule = &self.shared.rule;
        match &self.shared.retry_if {
            Some(retry_if) => {
                let elapsed = self.attempt_begun.map_or(Duration::ZERO, |begun| begun.elapsed());
                retry_if(&Attempt::new(&self.method, result, elapsed, rule))
            }
            None => rule.judge(result, Duration::ZERO) == Verdict::Failure,
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
        self.shared.reports.subject(url)
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
