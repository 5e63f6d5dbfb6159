//! Retries of what is worth one.

mod budget;
mod builder;
mod drain;
mod middleware;
mod report;
mod series;

pub use budget::{RetryBudget, RetryBudgetBuilder};
pub use builder::RetryBuilder;
pub use report::{AttemptNumber, RetryReport, RetryReportHandle, StopReason};
pub(crate) use series::is_safe;

use crate::{
    machine::backoff::Backoff,
    throttles::Throttles,
    verdict::{Attempt, OutcomeRule},
};
use retry_policies::{RetryDecision, RetryPolicy};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

/// Tries a failed call again, where that can help and can do no harm.
///
/// # When
///
/// After each attempt these are asked in turn, and the first "no" ends the series:
///
/// 1. Is the outcome worth a retry? One of the [`statuses`](RetryBuilder::statuses), or an error of the
///    network. Never a [`Rejection`](crate::Rejection) that sent nothing, an error of another middleware, a
///    builder or redirect error.
/// 2. Is the method safe to repeat? GET, HEAD, OPTIONS, TRACE, PUT and DELETE (RFC 9110, 9.2.2); any other
///    with an `Idempotency-Key` header or the extension [`Idempotent`].
/// 3. Can the body be sent again? A stream is sent once.
/// 4. Are there attempts left?
/// 5. Does the `Retry-After` of the answer fit [`max_retry_after`](RetryBuilder::max_retry_after)?
/// 6. Does the wait fit the [`Deadline`](crate::Deadline), if the call has one?
/// 7. Has the [`RetryBudget`] a token? It is taken before the wait.
///
/// The wait is the longer of the policy's and the origin's `Retry-After`, rounded up to a millisecond, at
/// least one. Meanwhile the failed response is read to its end, up to 64 KiB and for up to 50 ms, so that its
/// connection can be used again.
///
/// # What the caller gets
///
/// The last attempt's own result, response or error, never wrapped. When an attempt is rejected by a layer
/// inside, the last real result before it, if its body was read whole, else the rejection. How it went is in
/// [`RetryReport`].
///
/// # Order
///
/// Outside the [`CircuitBreaker`](crate::CircuitBreaker), so that the circuit sees every attempt and ends the
/// series when it opens; inside the [`Deadline`](crate::Deadline) that bounds the whole call. With two
/// retries inside each other, attempts multiply: three times three. Let them share a budget, or have one.
///
/// # Clone
///
/// A clone shares the budget.
///
/// # Moving from reqwest-retry
///
/// [`policy`](RetryBuilder::policy) takes the policy you have. What changes: an error is reqwest's own and
/// its `is_connect()` true, POST is not repeated unless you say so, a streaming body is sent and not refused,
/// `Retry-After` is obeyed.
///
/// # Example
///
/// ```
/// use reqwest_middleware::ClientBuilder;
/// use reqwest_resilience::Retry;
/// use std::time::Duration;
///
/// let retry = Retry::builder()
///     .max_retries(3)
///     .backoff(Duration::from_millis(50), Duration::from_secs(2))
///     .build()?; // or Retry::default()
/// let client = ClientBuilder::new(reqwest::Client::new()).with(retry).build();
/// # Ok::<(), reqwest_resilience::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Retry {
    shared: Arc<Shared>,
}

type RetryIf = dyn Fn(&Attempt<'_>) -> bool + Send + Sync;

/// What the clones share.
struct Shared {
    pacing: Pacing,
    budget: RetryBudget,
    /// A failure by this rule is worth a retry.
    rule: OutcomeRule,
    max_retry_after: Duration,
    trust_connect_errors: bool,
    retry_if: Option<Box<RetryIf>>,
    reports: Throttles,
}

/// How many retries, and the waits before them.
enum Pacing {
    Backoff { max_retries: u32, backoff: Backoff },
    Policy(Arc<dyn RetryPolicy + Send + Sync>),
}

impl Retry {
    /// The longest first wait; none where there is no retry, or a policy decides.
    pub(crate) fn min_backoff(&self) -> Option<Duration> {
        match &self.shared.pacing {
            Pacing::Backoff { max_retries: 1.., backoff } => Some(backoff.min),
            Pacing::Backoff { .. } | Pacing::Policy(_) => None,
        }
    }

    /// Begins the settings of a retry.
    pub fn builder() -> RetryBuilder {
        RetryBuilder::default()
    }
}

/// Two retries, after up to 100 and 200 ms, for at most a fifth of the calls; see [`RetryBuilder`] for the
/// rest.
impl Default for Retry {
    fn default() -> Self {
        RetryBuilder::default().assemble(builder::default_statuses())
    }
}

impl Pacing {
    /// The time, for a policy that asks when the call began.
    fn begin(&self) -> Option<SystemTime> {
        match self {
            Self::Backoff { .. } => None,
            Self::Policy(_) => Some(SystemTime::now()),
        }
    }

    /// The most retries there can be, where that is known.
    fn max_retries(&self) -> Option<u32> {
        match self {
            Self::Backoff { max_retries, .. } => Some(*max_retries),
            Self::Policy(_) => None,
        }
    }

    /// The wait before the next retry after `retries` that came before; none: no more. `at_most` is what the
    /// request says, instead of `max_retries`.
    fn wait(&self, begun: Option<SystemTime>, retries: u32, at_most: Option<u32>) -> Option<Duration> {
        if at_most.or(self.max_retries()).is_some_and(|most| most <= retries) {
            return None;
        }
        match self {
            Self::Backoff { backoff, .. } => Some(backoff.wait(retries, fastrand::u64(..))),
            Self::Policy(policy) => match policy.should_retry(begun?, retries) {
                RetryDecision::Retry { execute_after } => {
                    Some(execute_after.duration_since(SystemTime::now()).unwrap_or_default())
                }
                RetryDecision::DoNotRetry => None,
            },
        }
    }
}

/// For one request: it may be sent twice, whatever its method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Idempotent;

/// For one request: no retry. Wins over [`MaxRetries`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoRetry;

/// For one request: at most so many retries. Instead of [`max_retries`](RetryBuilder::max_retries); a
/// [`policy`](RetryBuilder::policy) may want fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxRetries(pub u32);

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry").field("budget", &self.shared.budget).finish_non_exhaustive()
    }
}
