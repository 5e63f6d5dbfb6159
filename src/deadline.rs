//! One total time for a call, across all its attempts and waits.

use crate::{error::Rejection, event::CallEvent, throttles::Throttles};
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, timeout_at};

/// Cuts off what is inside it when the time is up.
///
/// The time counts from the moment the call reaches this layer until the headers of its response are there.
/// reqwest's own timeout bounds one attempt; a deadline bounds them all, with the waits between.
///
/// A call that was cut off ends in [`Rejection::DeadlineExceeded`]. It may have been sent, and the origin may
/// have done its work: [`Rejection::is_unsent`] is false.
///
/// Inner layers know the time that is left ([`DeadlineAt`]): a [`Retry`](crate::Retry) begins no wait that
/// could not pay off and returns what it has instead. A call that is cut off from *outside* a
/// [`CircuitBreaker`](crate::CircuitBreaker) counts as a failure there, and so does the error of a deadline
/// inside it.
///
/// # Nesting
///
/// The earliest deadline wins. One outside a retry bounds the whole call, one inside it bounds each attempt.
///
/// # Clone
///
/// A clone shares only how often it is logged.
///
/// # Example
///
/// ```
/// use reqwest_middleware::ClientBuilder;
/// use reqwest_resilience::{Deadline, DeadlineIn};
/// use std::time::Duration;
///
/// # async fn run() -> reqwest_middleware::Result<()> {
/// let client = ClientBuilder::new(reqwest::Client::new())
///     .with(Deadline::after(Duration::from_secs(10)))
///     .build();
///
/// // This call may take longer.
/// client
///     .get("https://api.example.com/export")
///     .with_extension(DeadlineIn(Duration::from_secs(60)))
///     .send()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Deadline {
    limit: Duration,
    reports: Arc<Throttles>,
}

impl Deadline {
    /// Cuts calls off after `limit`. Zero: at once, before anything is sent. What is beyond the reach of the
    /// clock never comes.
    #[must_use]
    pub fn after(limit: Duration) -> Self {
        Self { limit, reports: Arc::default() }
    }
}

/// For one request, the limit of the outermost [`Deadline`] instead of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineIn(pub Duration);

/// When the call will be cut off, for the layers inside a [`Deadline`]; in tokio's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadlineAt(Instant);

impl DeadlineAt {
    /// The deadline of the call that these extensions belong to.
    #[inline]
    #[must_use]
    pub fn of(extensions: &Extensions) -> Option<Self> {
        extensions.get().copied()
    }

    /// The moment, on tokio's clock.
    #[must_use]
    pub const fn instant(self) -> Instant {
        self.0
    }

    /// The time that is left; zero when it has passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    #[must_use]
    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }
}

#[async_trait::async_trait]
impl Middleware for Deadline {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let outer = DeadlineAt::of(extensions);
        let asked = if outer.is_none() { extensions.remove::<DeadlineIn>() } else { None };
        let limit = asked.map_or(self.limit, |DeadlineIn(limit)| limit);
        let own = Instant::now().checked_add(limit).map(DeadlineAt);
        let told = Told { extensions, outer, asked };
        match own {
            Some(own) if limit.is_zero() || outer.is_none_or(|outer| own < outer) => {
                let origin = self.reports.subject(request.url());
                told.extensions.insert(own);
                let inner = next.run(request, &mut *told.extensions);
                // What is inside is asked first, so what ended in time, if only just, counts. With no time at
                // all nothing is asked.
                let result = if limit.is_zero() { None } else { timeout_at(own.0, inner).await.ok() };
                result.unwrap_or_else(|| {
                    self.reports.report(origin, &CallEvent::DeadlineExceeded { limit });
                    Err(Rejection::DeadlineExceeded { limit }.into())
                })
            }
            // The outer one comes first, and cuts off.
            _ => next.run(request, &mut *told.extensions).await,
        }
    }
}

/// What the layers inside are told. Put back as it was when the call is over, dropped or not: under a retry,
/// all attempts may share one map.
struct Told<'a> {
    extensions: &'a mut Extensions,
    outer: Option<DeadlineAt>,
    asked: Option<DeadlineIn>,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        match self.outer {
            Some(outer) => self.extensions.insert(outer),
            None => self.extensions.remove::<DeadlineAt>(),
        };
        if let Some(asked) = self.asked {
            self.extensions.insert(asked);
        }
    }
}
