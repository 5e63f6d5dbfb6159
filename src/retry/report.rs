//! How a call was retried, for its caller and for the layers inside.

use crate::sync::{Mutex, lock};
use http::Extensions;
use reqwest::Response;
use std::{fmt, sync::Arc};

/// How often a call was tried, and why no more.
///
/// In the extensions of the response ([`RetryReport::of`]); for a call that ends in an error, or is dropped,
/// through a [`RetryReportHandle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryReport {
    /// Attempts that were begun, those of inner retries included.
    pub attempts: u32,
    /// Why there were no more.
    pub stopped: StopReason,
}

/// Why a call was not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// The outcome calls for no retry: it is good, or would be no better next time.
    Settled,
    /// The method is not idempotent, and nothing says that this request is.
    UnsafeMethod,
    /// The body cannot be sent twice.
    StreamingBody,
    /// All attempts were used, or the policy wants no more.
    Attempts,
    /// The origin asked for a longer wait than allowed.
    RetryAfter,
    /// The wait did not fit the deadline.
    Deadline,
    /// The budget had no token left.
    Budget,
    /// A layer inside refused to send the attempt, which counts as begun.
    Rejected,
    /// The call is not over yet, or was dropped.
    Unfinished,
}

impl RetryReport {
    /// The report that came with `response`. None: one attempt, whose outcome called for no retry.
    #[must_use]
    pub fn of(response: &Response) -> Option<Self> {
        response.extensions().get().copied()
    }

    /// Whether there is anything to tell.
    pub(super) fn is_plain(self) -> bool {
        self.attempts <= 1 && self.stopped == StopReason::Settled
    }
}

impl StopReason {
    /// The name in logs, such as `retry_after`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::UnsafeMethod => "unsafe_method",
            Self::StreamingBody => "streaming_body",
            Self::Attempts => "attempts",
            Self::RetryAfter => "retry_after",
            Self::Deadline => "deadline",
            Self::Budget => "budget",
            Self::Rejected => "rejected",
            Self::Unfinished => "unfinished",
        }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Which attempt of its call a request is, for middlewares inside a [`Retry`](crate::Retry).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttemptNumber(pub(super) u32);

impl AttemptNumber {
    /// The number of the attempt that these extensions belong to, by the innermost retry; the first is 1.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get().copied().unwrap_or(Self(1))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Tells the caller of one call how it was retried, also when it ends in an error or is dropped.
///
/// Begins anew when a call that it was passed with reaches the outermost [`Retry`](crate::Retry); a call that
/// a layer outside ends before leaves it as it was. Clones share what it tells; use it for one call at a
/// time.
///
/// ```
/// # async fn call(client: reqwest_middleware::ClientWithMiddleware) {
/// use reqwest_resilience::RetryReportHandle;
///
/// let report = RetryReportHandle::new();
/// let result = client.get("https://api.example.com/").with_extension(report.clone()).send().await;
/// println!("{} attempts, stopped by {}", report.get().attempts, report.get().stopped);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RetryReportHandle(Arc<Mutex<Told>>);

#[derive(Debug)]
struct Told {
    report: RetryReport,
    /// The outermost retry of the call under way writes how it stopped; those inside only add their attempts.
    taken: bool,
}

impl RetryReportHandle {
    /// One that tells of no call yet: no attempts, [`StopReason::Unfinished`].
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Told { report: UNFINISHED, taken: false })))
    }

    /// How the call was retried, so far.
    #[must_use]
    pub fn get(&self) -> RetryReport {
        lock(&self.0).report
    }
}

impl Default for RetryReportHandle {
    fn default() -> Self {
        Self::new()
    }
}

const UNFINISHED: RetryReport = RetryReport { attempts: 0, stopped: StopReason::Unfinished };

/// The report of a call under way.
#[derive(Debug)]
pub(super) struct Tally {
    attempts: u32,
    handle: Option<RetryReportHandle>,
    outermost: bool,
}

impl Tally {
    pub(super) fn begin(extensions: &Extensions) -> Self {
        let handle = extensions.get::<RetryReportHandle>().cloned();
        let outermost = handle.as_ref().is_some_and(|RetryReportHandle(told)| {
            let mut told = lock(told);
            let outermost = !told.taken;
            if outermost {
                *told = Told { report: UNFINISHED, taken: true };
            }
            outermost
        });
        Self { attempts: 0, handle, outermost }
    }

    /// An attempt goes out. The first of an inner retry was counted as an attempt of the outer one.
    pub(super) fn begin_attempt(&self, is_first: bool) {
        if let Some(RetryReportHandle(told)) = &self.handle {
            if self.outermost || !is_first {
                let attempts = &mut lock(told).report.attempts;
                *attempts = attempts.saturating_add(1);
            }
        }
    }

    /// An attempt came back. An inner retry left in the extensions how many it was in truth, and why it
    /// stopped.
    pub(super) fn end_attempt(&mut self, extensions: &mut Extensions) -> Option<StopReason> {
        let inner = extensions.remove::<RetryReport>();
        self.attempts = self.attempts.saturating_add(inner.map_or(1, |report| report.attempts));
        inner.map(|report| report.stopped)
    }

    /// The call is over.
    pub(super) fn end(
        &self,
        stopped: StopReason,
        result: &mut reqwest_middleware::Result<Response>,
        extensions: &mut Extensions,
    ) {
        if let (Some(RetryReportHandle(told)), true) = (&self.handle, self.outermost) {
            lock(told).report.stopped = stopped;
        }
        let report = RetryReport { attempts: self.attempts, stopped };
        if !report.is_plain() {
            extensions.insert(report);
        }
        if let Ok(response) = result {
            if report.is_plain() {
                // An inner retry may have had something to tell.
                response.extensions_mut().remove::<RetryReport>();
            } else {
                response.extensions_mut().insert(report);
            }
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        if let (Some(RetryReportHandle(told)), true) = (&self.handle, self.outermost) {
            lock(told).taken = false;
        }
    }
}
