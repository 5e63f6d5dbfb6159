//! How a retry is made.

use super::{Pacing, Retry, RetryBudget, RetryIf, Shared};
use crate::{
    error::ConfigError,
    machine::backoff::Backoff,
    throttles::Throttles,
    verdict::{Attempt, OutcomeRule, StatusSet},
};
use retry_policies::RetryPolicy;
use std::{fmt, sync::Arc, time::Duration};

/// The answers that are worth another try: the origin was busy, or something on the way failed.
const STATUSES: [u16; 7] = [408, 425, 429, 500, 502, 503, 504];

/// Makes a [`Retry`]; from [`Retry::builder`].
#[must_use = "a builder does nothing until `build` is called"]
pub struct RetryBuilder {
    max_retries: u32,
    backoff: (Duration, Duration),
    policy: Option<Arc<dyn RetryPolicy + Send + Sync>>,
    budget: RetryBudget,
    statuses: Option<Vec<u16>>,
    max_retry_after: Duration,
    trust_connect_errors: bool,
    retry_if: Option<Box<RetryIf>>,
}

impl Default for RetryBuilder {
    fn default() -> Self {
        Self {
            max_retries: 2,
            backoff: (Duration::from_millis(100), Duration::from_secs(5)),
            policy: None,
            budget: RetryBudget::default(),
            statuses: None,
            max_retry_after: Duration::from_secs(60),
            trust_connect_errors: false,
            retry_if: None,
        }
    }
}

impl RetryBuilder {
    /// How many retries there may be after the first attempt: 2 by default. Not asked where there is a
    /// [`policy`](Self::policy).
    pub fn max_retries(mut self, max_retries: u32) -> Self {
        self.max_retries = max_retries;
        self
    }

    /// The wait before a retry: a random share of one that doubles from `min` to `max` (exponential backoff
    /// with full jitter); 100 ms and 5 s by default. `min` must not be longer than `max`.
    pub fn backoff(mut self, min: Duration, max: Duration) -> Self {
        self.backoff = (min, max);
        self
    }

    /// Decides on the number of retries and the waits instead of [`max_retries`](Self::max_retries) and
    /// [`backoff`](Self::backoff): the type that reqwest-retry takes. A panic in it unwinds the call.
    pub fn policy(mut self, policy: impl RetryPolicy + Send + Sync + 'static) -> Self {
        self.policy = Some(Arc::new(policy));
        self
    }

    /// What bounds the retries of all calls together: [`RetryBudget::default`], or
    /// [`RetryBudget::unlimited`].
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.budget = budget;
        self
    }

    /// The answers that are retried, each between 100 and 999: 408, 425, 429, 500, 502, 503 and 504 by
    /// default.
    pub fn statuses(mut self, statuses: impl IntoIterator<Item = u16>) -> Self {
        self.statuses = Some(statuses.into_iter().collect());
        self
    }

    /// A `Retry-After` that asks for a longer wait than this ends the retrying: 60 seconds by default. The
    /// caller gets the answer and may come back later.
    pub fn max_retry_after(mut self, max_retry_after: Duration) -> Self {
        self.max_retry_after = max_retry_after;
        self
    }

    /// Says that the client follows no redirects: then a connect error proves that nothing was sent, and any
    /// method may be retried after it. Off by default: a POST that was redirected to a dead host had been
    /// received.
    pub fn trust_connect_errors(mut self, trust: bool) -> Self {
        self.trust_connect_errors = trust;
        self
    }

    /// Decides which outcomes are worth a retry, instead of the statuses and the errors of the network. A
    /// rejection that sent nothing is never retried, and a method still has to be safe.
    ///
    /// [`Attempt::default_verdict`] is then `Failure` for what would be retried without this rule.
    pub fn retry_if(mut self, rule: impl Fn(&Attempt<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.retry_if = Some(Box::new(rule));
        self
    }

    /// Checks the settings and makes the retry.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for the first value that cannot be.
    pub fn build(self) -> Result<Retry, ConfigError> {
        let (min, max) = self.backoff;
        if max < min {
            return Err(ConfigError::new(
                "backoff",
                format!("{min:?} to {max:?}"),
                "the shortest wait must not be longer than the longest",
            ));
        }
        let statuses = StatusSet::checked("statuses", self.statuses.as_deref().unwrap_or(&STATUSES))?;
        Ok(self.assemble(statuses))
    }

    pub(super) fn assemble(self, statuses: StatusSet) -> Retry {
        let (min, max) = self.backoff;
        Retry {
            shared: Arc::new(Shared {
                pacing: match self.policy {
                    Some(policy) => Pacing::Policy(policy),
                    None => Pacing::Backoff { max_retries: self.max_retries, backoff: Backoff { min, max } },
                },
                budget: self.budget,
                rule: OutcomeRule { failure_statuses: statuses, slow_call: None },
                max_retry_after: self.max_retry_after,
                trust_connect_errors: self.trust_connect_errors,
                retry_if: self.retry_if,
                reports: Throttles::default(),
            }),
        }
    }
}

/// The statuses that are retried by default.
pub(super) fn default_statuses() -> StatusSet {
    StatusSet::of(STATUSES)
}

impl fmt::Debug for RetryBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBuilder")
            .field("max_retries", &self.max_retries)
            .field("backoff", &self.backoff)
            .field("policy", &self.policy.is_some())
            .field("budget", &self.budget)
            .field("statuses", &self.statuses)
            .field("max_retry_after", &self.max_retry_after)
            .field("trust_connect_errors", &self.trust_connect_errors)
            .finish_non_exhaustive()
    }
}
