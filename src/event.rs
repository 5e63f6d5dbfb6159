//! How events leave: as log events with fields, and to listeners. The only file that names tracing.

pub use crate::machine::event::{CircuitEvent, OpenReason};

use crate::{
    machine::{
        throttle::Throttle,
        tick::{Tick, saturating_nanos},
    },
    sync::{Mutex, lock},
};
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

/// The target of every log event of this crate.
const TARGET: &str = "reqwest_resilience";

pub(crate) type Listener = dyn Fn(&CircuitEvent) + Send + Sync;

/// Where the events of a breaker go.
pub(crate) struct Reporter {
    listeners: Vec<Box<Listener>>,
    untracked: Mutex<Throttle>,
    panics: Mutex<Throttle>,
}

impl Reporter {
    pub(crate) fn new(listeners: Vec<Box<Listener>>) -> Self {
        Self {
            listeners,
            untracked: Mutex::new(Throttle::default()),
            panics: Mutex::new(Throttle::default()),
        }
    }

    /// Sends events out, in their order. The caller holds no lock: a listener or a log subscriber may come
    /// back with a call of its own.
    pub(crate) fn report(&self, events: &[CircuitEvent], now: Tick) {
        for event in events {
            trace(event);
            for listener in &self.listeners {
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| listener(event))) {
                    // Its drop may panic too, and this may be a drop in a panic already.
                    std::mem::forget(payload);
                    self.report_panic(now);
                }
            }
        }
    }

    /// Says that a request passed without a circuit.
    pub(crate) fn report_untracked(&self, max_circuits: usize, now: Tick) {
        let admitted = lock(&self.untracked).admit(now);
        if let Some(suppressed) = admitted {
            let event = CircuitEvent::Untracked { max_circuits, suppressed };
            self.report(&[event], now);
        }
    }

    fn report_panic(&self, now: Tick) {
        let admitted = lock(&self.panics).admit(now);
        if let Some(suppressed) = admitted {
            tracing::error!(target: TARGET, event = "circuit.listener_panicked", suppressed);
        }
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter").field("listeners", &self.listeners.len()).finish_non_exhaustive()
    }
}

/// Something that happened to a call: the log events of [`Retry`](crate::Retry) and
/// [`Deadline`](crate::Deadline).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEvent<'a> {
    RetryScheduled { attempt: u32, delay: Duration, reason: &'a str },
    GivingUp { attempts: u32, reason: &'a str },
    BudgetRefused { attempts: u32 },
    StreamingRefused { attempts: u32 },
    DeadlineExceeded { limit: Duration },
}

/// How many kinds of them are throttled.
pub(crate) const THROTTLED: usize = 4;

impl CallEvent<'_> {
    /// Asks the throttle of its kind; the number of events that were held back, if this one may go out.
    pub(crate) fn admit(&self, throttles: &mut [Throttle; THROTTLED], now: Tick) -> Option<u64> {
        let [giving_up, budget, streaming, deadline] = throttles;
        match self {
            Self::RetryScheduled { .. } => Some(0),
            Self::GivingUp { .. } => giving_up.admit(now),
            Self::BudgetRefused { .. } => budget.admit(now),
            Self::StreamingRefused { .. } => streaming.admit(now),
            Self::DeadlineExceeded { .. } => deadline.admit(now),
        }
    }

    pub(crate) fn trace(&self, origin: &str, suppressed: u64) {
        match *self {
            Self::RetryScheduled { attempt, delay, reason } => tracing::debug!(
                target: TARGET,
                event = "retry.scheduled",
                origin,
                attempt,
                delay_ms = millis(delay),
                reason,
            ),
            Self::GivingUp { attempts, reason } => {
                tracing::warn!(target: TARGET, event = "retry.giving_up", origin, attempts, reason, suppressed);
            }
            Self::BudgetRefused { attempts } => {
                tracing::warn!(target: TARGET, event = "retry.budget_refused", origin, attempts, suppressed);
            }
            Self::StreamingRefused { attempts } => {
                tracing::info!(target: TARGET, event = "retry.streaming_refused", origin, attempts, suppressed);
            }
            Self::DeadlineExceeded { limit } => tracing::warn!(
                target: TARGET,
                event = "deadline.exceeded",
                origin,
                limit_ms = millis(limit),
                suppressed,
            ),
        }
    }
}

/// A fallback answered in place of the origin.
pub(crate) fn fallback_used(origin: &str, reason: &str) {
    tracing::info!(target: TARGET, event = "fallback.used", origin, reason);
}

/// A bulkhead had no slot for a call.
pub(crate) fn bulkhead_rejected(key: &str, max_concurrent: usize, queued: usize, suppressed: u64) {
    tracing::warn!(target: TARGET, event = "bulkhead.rejected", key, max_concurrent, queued, suppressed);
}

/// Milliseconds, rounded up, so that no wait is logged as shorter than it is.
fn millis(duration: Duration) -> u64 {
    saturating_nanos(duration).div_ceil(1_000_000)
}

#[allow(clippy::too_many_lines, reason = "one arm for each event of the contract")]
fn trace(event: &CircuitEvent) {
    let name = event.name();
    match event {
        CircuitEvent::Opened { circuit_key, from, reason, failures, calls, open_for, mode, epoch } => {
            tracing::warn!(
                target: TARGET,
                event = name,
                circuit_key = &**circuit_key,
                from = from.as_str(),
                reason = reason.as_str(),
                failures,
                calls,
                open_for_ms = millis(*open_for),
                mode = mode.as_str(),
                epoch,
            );
        }
        CircuitEvent::HalfOpen { circuit_key, mode, epoch } => tracing::info!(
            target: TARGET,
            event = name,
            circuit_key = &**circuit_key,
            mode = mode.as_str(),
            epoch,
        ),
        CircuitEvent::Closed { circuit_key, rejected, outage, mode, epoch } => tracing::info!(
            target: TARGET,
            event = name,
            circuit_key = &**circuit_key,
            rejected,
            outage_ms = millis(*outage),
            mode = mode.as_str(),
            epoch,
        ),
        CircuitEvent::Rejected { circuit_key, state, retry_after, suppressed, mode } => tracing::warn!(
            target: TARGET,
            event = name,
            circuit_key = &**circuit_key,
            state = state.as_str(),
            retry_after_ms = retry_after.map(millis),
            suppressed,
            mode = mode.as_str(),
        ),
        CircuitEvent::ModeChanged { circuit_key, mode, epoch } => tracing::info!(
            target: TARGET,
            event = name,
            circuit_key = &**circuit_key,
            mode = mode.as_str(),
            epoch,
        ),
        CircuitEvent::Reset { circuit_key, from, rejected, mode, epoch } => tracing::info!(
            target: TARGET,
            event = name,
            circuit_key = &**circuit_key,
            from = from.as_str(),
            rejected,
            mode = mode.as_str(),
            epoch,
        ),
        CircuitEvent::Forgotten { circuit_key, state, rejected, epoch } => tracing::info!(
            target: TARGET,
            event = name,
            circuit_key = &**circuit_key,
            state = state.as_str(),
            rejected,
            epoch,
        ),
        CircuitEvent::StaleOutcome { circuit_key, epoch, admitted_epoch } => tracing::debug!(
            target: TARGET,
            event = name,
            circuit_key = &**circuit_key,
            epoch,
            admitted_epoch,
        ),
        CircuitEvent::Untracked { max_circuits, suppressed } => {
            tracing::warn!(target: TARGET, event = name, max_circuits, suppressed);
        }
    }
}
