//! What an outcome says about the origin.

use crate::error::{ConfigError, Rejection};
use reqwest::{Method, Response, StatusCode};
use reqwest_middleware::Error;
use std::time::Duration;

/// What an attempt counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The origin did its work; what it said about the request (4xx) is the caller's matter.
    Success,
    /// The origin, or the way to it, is sick.
    Failure,
    /// The attempt says nothing about the origin.
    Ignore,
}

/// One attempt and what came back, for a rule that judges it.
///
/// `result` has the type that a `RetryableStrategy` of reqwest-retry takes, so a rule written for it carries
/// over.
///
/// ```
/// use reqwest_resilience::{CircuitBreaker, Verdict};
///
/// // This origin answers 429 when it is about to fall over.
/// let breaker = CircuitBreaker::builder()
///     .classify(|attempt| match attempt.result() {
///         Ok(response) if response.status() == 429 => Verdict::Failure,
///         _ => attempt.default_verdict(),
///     })
///     .build()?;
/// # Ok::<(), reqwest_resilience::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct Attempt<'a> {
    method: &'a Method,
    result: &'a reqwest_middleware::Result<Response>,
    elapsed: Duration,
    rule: &'a OutcomeRule,
}

impl<'a> Attempt<'a> {
    #[inline]
    pub(crate) fn new(
        method: &'a Method,
        result: &'a reqwest_middleware::Result<Response>,
        elapsed: Duration,
        rule: &'a OutcomeRule,
    ) -> Self {
        Self { method, result, elapsed, rule }
    }

    /// The method of the request.
    #[must_use]
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// The response, or the error.
    pub fn result(&self) -> &'a reqwest_middleware::Result<Response> {
        self.result
    }

    /// How long it took until the headers came, or the error.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// What the attempt counts as without a rule of your own.
    ///
    /// | what came back | verdict |
    /// |---|---|
    /// | a status in [`failure_statuses`](crate::CircuitSettings::failure_statuses) (5xx) | `Failure` |
    /// | any other status, 429 too | `Success`; `Failure` when it took longer than [`slow_call`](crate::CircuitSettings::slow_call) |
    /// | connect, DNS, TLS, timeout, reset, garbage, incomplete message, body error | `Failure` |
    /// | builder error (bad URL, bad header, unknown scheme), redirect loop | `Ignore` |
    /// | a [`Rejection`] of an inner layer that sent nothing | `Ignore` |
    /// | a response that a [`Fallback`](crate::Fallback) made | `Ignore` |
    /// | the `DeadlineExceeded` of an inner [`Deadline`](crate::Deadline) | `Failure` |
    /// | an error of another middleware | `Ignore` |
    ///
    /// With the feature `reqwest-retry`, `reqwest_retry::RetryError` is looked through and its last error
    /// judged.
    #[inline]
    #[must_use]
    pub fn default_verdict(&self) -> Verdict {
        self.rule.judge(self.result, self.elapsed)
    }
}

/// In the extensions of a response that a [`Fallback`](crate::Fallback) made: it says nothing about the
/// origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FallbackMade;

/// The settings that the default rule goes by.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutcomeRule {
    pub(crate) failure_statuses: StatusSet,
    pub(crate) slow_call: Option<Duration>,
}

impl OutcomeRule {
    #[inline]
    pub(crate) fn judge(&self, result: &reqwest_middleware::Result<Response>, elapsed: Duration) -> Verdict {
        match result {
            Ok(response) if response.extensions().get::<FallbackMade>().is_some() => Verdict::Ignore,
            Ok(response) => self.judge_status(response.status(), elapsed),
            Err(error) => self.judge_error(error, elapsed),
        }
    }

    #[inline]
    fn judge_status(&self, status: StatusCode, elapsed: Duration) -> Verdict {
        let slow = self.slow_call.is_some_and(|limit| limit < elapsed);
        if slow || self.failure_statuses.contains(status) { Verdict::Failure } else { Verdict::Success }
    }

    fn judge_error(&self, error: &Error, elapsed: Duration) -> Verdict {
        match error {
            Error::Reqwest(error) if error.is_builder() || error.is_redirect() => Verdict::Ignore,
            // A status in an error: a middleware below called `error_for_status`, and the origin did answer.
            Error::Reqwest(error) => {
                error.status().map_or(Verdict::Failure, |status| self.judge_status(status, elapsed))
            }
            Error::Middleware(_) => match (Rejection::find(error), retried(error)) {
                (Some(rejection), _) if rejection.is_unsent() => Verdict::Ignore,
                (Some(_), _) => Verdict::Failure,
                (None, Some(last)) => self.judge_error(last, elapsed),
                (None, None) => Verdict::Ignore,
            },
        }
    }
}

/// The last real error within one of reqwest-retry.
#[cfg(feature = "reqwest-retry")]
pub(crate) fn retried(error: &Error) -> Option<&Error> {
    use reqwest_retry::RetryError;

    let Error::Middleware(error) = error else {
        return None;
    };
    let (RetryError::WithRetries { err, .. } | RetryError::Error(err)) = error.downcast_ref()?;
    Some(err)
}

#[cfg(not(feature = "reqwest-retry"))]
pub(crate) fn retried(_: &Error) -> Option<&Error> {
    None
}

const LOWEST: u16 = 100;
const HIGHEST: u16 = 999;
const WORDS: usize = (HIGHEST as usize + 1).div_ceil(64);

/// A set of HTTP statuses, one bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatusSet([u64; WORDS]);

impl StatusSet {
    /// Every status from 100 to 999, which is what HTTP can carry (RFC 9110, 15); anything else is an error.
    pub(crate) fn checked(field: &'static str, statuses: &[u16]) -> Result<Self, ConfigError> {
        match statuses.iter().find(|status| !(LOWEST..=HIGHEST).contains(*status)) {
            Some(status) => Err(ConfigError::new(field, status, "a status must be between 100 and 999")),
            None => Ok(Self::of(statuses.iter().copied())),
        }
    }

    /// A set of statuses that are known to be some.
    pub(crate) fn of(statuses: impl IntoIterator<Item = u16>) -> Self {
        let mut set = Self([0; WORDS]);
        statuses.into_iter().for_each(|status| set.insert(status));
        set
    }

    fn insert(&mut self, status: u16) {
        if let Some(word) = self.0.get_mut(usize::from(status / 64)) {
            *word |= 1 << (status % 64);
        }
    }

    #[inline]
    pub(crate) fn contains(&self, status: StatusCode) -> bool {
        let status = status.as_u16();
        self.0.get(usize::from(status / 64)).is_some_and(|word| word & 1 << (status % 64) != 0)
    }
}

/// 500 to 599.
impl Default for StatusSet {
    fn default() -> Self {
        Self::of(500..600)
    }
}
