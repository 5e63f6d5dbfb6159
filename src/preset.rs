//! The recommended chain.

use crate::{
    breaker::CircuitBreaker, bulkhead::Bulkhead, deadline::Deadline, error::ConfigError, fallback::Fallback,
    retry::Retry,
};
use reqwest_middleware::ClientBuilder;
use std::{borrow::Borrow, time::Duration};

/// All layers in one chain, in the right order, with settings that fit each other.
///
/// ```text
/// Fallback (off) → Deadline 30 s → Retry → CircuitBreaker → Bulkhead (off) → Deadline 10 s per attempt
/// ```
///
/// Why this order: a fallback has the last word. The deadline bounds all that the caller waits for. The retry
/// is outside the breaker, so that each attempt is counted and an open circuit ends the series; it is outside
/// the bulkhead, so that a call between two attempts holds no slot. The breaker is outside the bulkhead, so
/// that nobody queues for an origin that is down. The innermost deadline is each attempt's own, and does not
/// count the time in the queue.
///
/// # Example
///
/// ```
/// use reqwest_middleware::ClientBuilder;
/// use reqwest_resilience::{Bulkhead, ClientBuilderExt, Resilience};
///
/// let resilience = Resilience::builder().bulkhead(Bulkhead::per_origin(64)?).build()?; // or Resilience::default()
/// let client = ClientBuilder::new(reqwest::Client::new()).with_resilience(&resilience).build();
///
/// for circuit in resilience.breaker().into_iter().flat_map(|breaker| breaker.snapshots()) {
///     println!("{circuit}");
/// }
/// # Ok::<(), reqwest_resilience::ConfigError>(())
/// ```
///
/// # Clone
///
/// A clone shares all parts.
#[derive(Clone, Debug)]
pub struct Resilience {
    fallback: Option<Fallback>,
    deadline: Option<Deadline>,
    retry: Option<Retry>,
    breaker: Option<CircuitBreaker>,
    bulkhead: Option<Bulkhead>,
    attempt_deadline: Option<Deadline>,
}

impl Resilience {
    /// Begins the settings of a chain.
    pub fn builder() -> ResilienceBuilder {
        ResilienceBuilder::default()
    }

    /// The handle of the breaker; none where it is off.
    #[must_use]
    pub fn breaker(&self) -> Option<&CircuitBreaker> {
        self.breaker.as_ref()
    }

    /// The handle of the bulkhead; none where it is off.
    #[must_use]
    pub fn bulkhead(&self) -> Option<&Bulkhead> {
        self.bulkhead.as_ref()
    }
}

impl Default for Resilience {
    fn default() -> Self {
        ResilienceBuilder::default().assemble()
    }
}

/// Makes a [`Resilience`]; from [`Resilience::builder`]. Each part can be replaced, or switched off with
/// `None`.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct ResilienceBuilder {
    fallback: Option<Fallback>,
    deadline: Option<Duration>,
    retry: Option<Retry>,
    breaker: Option<CircuitBreaker>,
    bulkhead: Option<Bulkhead>,
    attempt_deadline: Option<Duration>,
}

impl Default for ResilienceBuilder {
    fn default() -> Self {
        Self {
            fallback: None,
            deadline: Some(Duration::from_secs(30)),
            retry: Some(Retry::default()),
            breaker: Some(CircuitBreaker::default()),
            bulkhead: None,
            attempt_deadline: Some(Duration::from_secs(10)),
        }
    }
}

impl ResilienceBuilder {
    /// The outermost layer: off by default.
    pub fn fallback(mut self, fallback: impl Into<Option<Fallback>>) -> Self {
        self.fallback = fallback.into();
        self
    }

    /// The total time of a call, but for its fallback: 30 seconds by default.
    pub fn deadline(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.deadline = limit.into();
        self
    }

    /// The retry: [`Retry::default`] by default.
    pub fn retry(mut self, retry: impl Into<Option<Retry>>) -> Self {
        self.retry = retry.into();
        self
    }

    /// The breaker: [`CircuitBreaker::default`] by default.
    pub fn breaker(mut self, breaker: impl Into<Option<CircuitBreaker>>) -> Self {
        self.breaker = breaker.into();
        self
    }

    /// The bulkhead: off by default, since only you know how many calls your origins can bear.
    pub fn bulkhead(mut self, bulkhead: impl Into<Option<Bulkhead>>) -> Self {
        self.bulkhead = bulkhead.into();
        self
    }

    /// The time of one attempt, without its time in the queue: 10 seconds by default.
    pub fn attempt_deadline(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.attempt_deadline = limit.into();
        self
    }

    /// Checks that the settings fit each other and makes the chain.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a wait does not fit the deadline: the first backoff of the retry, which is up to
    /// its `min`, or the longest wait of the bulkhead, is not shorter than it. It says both values.
    pub fn build(self) -> Result<Resilience, ConfigError> {
        if let Some(deadline) = self.deadline {
            let backoff = self.retry.as_ref().and_then(Retry::min_backoff);
            fits("backoff", backoff, deadline)?;
            let max_wait = self.bulkhead.as_ref().and_then(Bulkhead::max_wait);
            fits("max_wait", max_wait, deadline)?;
        }
        Ok(self.assemble())
    }

    fn assemble(self) -> Resilience {
        Resilience {
            fallback: self.fallback,
            deadline: self.deadline.map(Deadline::after),
            retry: self.retry,
            breaker: self.breaker,
            bulkhead: self.bulkhead,
            attempt_deadline: self.attempt_deadline.map(Deadline::after),
        }
    }
}

fn fits(field: &'static str, wait: Option<Duration>, deadline: Duration) -> Result<(), ConfigError> {
    match wait {
        Some(wait) if deadline <= wait && !wait.is_zero() => Err(ConfigError::new(
            field,
            format!("{wait:?}"),
            format!("must be shorter than the deadline, {deadline:?}"),
        )),
        _ => Ok(()),
    }
}

/// Adds the recommended chain to a client in one line.
pub trait ClientBuilderExt {
    /// Adds the layers of `resilience`, or of a reference to one, outermost first, inside those that were added before.
    #[must_use]
    fn with_resilience(self, resilience: impl Borrow<Resilience>) -> Self;
}

impl ClientBuilderExt for ClientBuilder {
    fn with_resilience(self, resilience: impl Borrow<Resilience>) -> Self {
        let Resilience { fallback, deadline, retry, breaker, bulkhead, attempt_deadline } =
            resilience.borrow().clone();
        let mut builder = self;
        if let Some(fallback) = fallback {
            builder = builder.with(fallback);
        }
        if let Some(deadline) = deadline {
            builder = builder.with(deadline);
        }
        if let Some(retry) = retry {
            builder = builder.with(retry);
        }
        if let Some(breaker) = breaker {
            builder = builder.with(breaker);
        }
        if let Some(bulkhead) = bulkhead {
            builder = builder.with(bulkhead);
        }
        if let Some(deadline) = attempt_deadline {
            builder = builder.with(deadline);
        }
        builder
    }
}
