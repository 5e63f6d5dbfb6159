//! What happened to a circuit, as a value.

use super::state::{CircuitMode, CircuitState};
use std::{fmt, sync::Arc, time::Duration};

/// Why a circuit opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OpenReason {
    /// Enough failures in a row.
    Consecutive,
    /// Too large a share of failures in the window.
    FailureRate,
    /// A probe failed.
    Probe,
    /// The probes had no outcome within [`probe_lease`](crate::CircuitSettings::probe_lease).
    Lease,
}

impl OpenReason {
    /// The name in logs: `consecutive`, `failure_rate`, `probe` or `lease`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Consecutive => "consecutive",
            Self::FailureRate => "failure_rate",
            Self::Probe => "probe",
            Self::Lease => "lease",
        }
    }
}

impl fmt::Display for OpenReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Something that happened to a circuit: the typed form of the log events named `circuit.*`.
///
/// A listener ([`on_event`](crate::CircuitBreakerBuilder::on_event)) gets one for every event that is logged,
/// after all locks are released, on the thread whose call made the change, in the order of its changes. A
/// listener that changes a circuit itself has that told to all before they hear the rest of what it was told.
/// `epoch` orders the events of one circuit across threads: each change of state begins a new one and the
/// numbers only grow.
///
/// ```
/// use reqwest_resilience::{CircuitBreaker, CircuitEvent};
///
/// let breaker = CircuitBreaker::builder()
///     .on_event(|event| {
///         if let CircuitEvent::Opened { circuit_key, open_for, .. } = event {
///             eprintln!("{circuit_key} is down, next try in {open_for:?}");
///         }
///     })
///     .build()?;
/// # Ok::<(), reqwest_resilience::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CircuitEvent {
    /// `circuit.opened`: the circuit begins to reject.
    #[non_exhaustive]
    Opened {
        /// The circuit.
        circuit_key: Arc<str>,
        /// The state it left.
        from: CircuitState,
        /// Why.
        reason: OpenReason,
        /// The failures that decided: the run of them, those in the window, the probe, or the probes that
        /// were out.
        failures: u64,
        /// The calls in the window; [`OpenReason::FailureRate`] only.
        calls: Option<u64>,
        /// How long it rejects before the first probe.
        open_for: Duration,
        /// The mode it is in.
        mode: CircuitMode,
        /// The epoch that begins.
        epoch: u64,
    },
    /// `circuit.half_open`: the wait is over and a call goes through as a probe.
    #[non_exhaustive]
    HalfOpen {
        /// The circuit.
        circuit_key: Arc<str>,
        /// The mode it is in.
        mode: CircuitMode,
        /// The epoch that begins.
        epoch: u64,
    },
    /// `circuit.closed`: the origin is back.
    #[non_exhaustive]
    Closed {
        /// The circuit.
        circuit_key: Arc<str>,
        /// Calls rejected in the whole outage.
        rejected: u64,
        /// How long the outage lasted, from closed to closed.
        outage: Duration,
        /// The mode it is in.
        mode: CircuitMode,
        /// The epoch that begins.
        epoch: u64,
    },
    /// `circuit.rejected`: a call was not sent. At most one a second per circuit; always for the first of an
    /// outage.
    #[non_exhaustive]
    Rejected {
        /// The circuit.
        circuit_key: Arc<str>,
        /// The state that rejected.
        state: CircuitState,
        /// The time left until a probe is admitted; none while probes are out, and when forced open.
        retry_after: Option<Duration>,
        /// Rejections of this outage that were not reported since the last one that was, across failed probes
        /// too.
        suppressed: u64,
        /// The mode it is in; in [`CircuitMode::Shadow`] the call was sent all the same.
        mode: CircuitMode,
    },
    /// `circuit.mode_changed`: somebody set another mode.
    #[non_exhaustive]
    ModeChanged {
        /// The circuit.
        circuit_key: Arc<str>,
        /// The mode it is in now.
        mode: CircuitMode,
        /// The epoch that begins.
        epoch: u64,
    },
    /// `circuit.reset`: somebody closed it and cleared its counters.
    #[non_exhaustive]
    Reset {
        /// The circuit.
        circuit_key: Arc<str>,
        /// The state it left.
        from: CircuitState,
        /// Calls rejected in the outage that this ended.
        rejected: u64,
        /// The mode it is in now: that of its settings.
        mode: CircuitMode,
        /// The epoch that begins.
        epoch: u64,
    },
    /// `circuit.forgotten`: a circuit whose open period was over made room for another origin.
    #[non_exhaustive]
    Forgotten {
        /// The circuit.
        circuit_key: Arc<str>,
        /// The state it was in.
        state: CircuitState,
        /// Calls rejected in the outage that this ended.
        rejected: u64,
        /// The number of this change.
        epoch: u64,
    },
    /// `circuit.stale_outcome`: a success or failure came after the state that admitted its call, and changed
    /// nothing.
    #[non_exhaustive]
    StaleOutcome {
        /// The circuit.
        circuit_key: Arc<str>,
        /// The circuit's epoch now.
        epoch: u64,
        /// The epoch that admitted the call.
        admitted_epoch: u64,
    },
    /// `circuit.untracked`: the breaker was full and a request passed without a circuit. At most one a
    /// second.
    #[non_exhaustive]
    Untracked {
        /// The most circuits the breaker keeps.
        max_circuits: usize,
        /// Requests that passed so and were not reported since the last one that was.
        suppressed: u64,
    },
}

impl CircuitEvent {
    /// The circuit it is about; none for [`Untracked`](Self::Untracked).
    #[must_use]
    pub fn circuit_key(&self) -> Option<&Arc<str>> {
        match self {
            Self::Opened { circuit_key, .. }
            | Self::HalfOpen { circuit_key, .. }
            | Self::Closed { circuit_key, .. }
            | Self::Rejected { circuit_key, .. }
            | Self::ModeChanged { circuit_key, .. }
            | Self::Reset { circuit_key, .. }
            | Self::Forgotten { circuit_key, .. }
            | Self::StaleOutcome { circuit_key, .. } => Some(circuit_key),
            Self::Untracked { .. } => None,
        }
    }

    /// The name in logs, such as `circuit.opened`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Opened { .. } => "circuit.opened",
            Self::HalfOpen { .. } => "circuit.half_open",
            Self::Closed { .. } => "circuit.closed",
            Self::Rejected { .. } => "circuit.rejected",
            Self::ModeChanged { .. } => "circuit.mode_changed",
            Self::Reset { .. } => "circuit.reset",
            Self::Forgotten { .. } => "circuit.forgotten",
            Self::StaleOutcome { .. } => "circuit.stale_outcome",
            Self::Untracked { .. } => "circuit.untracked",
        }
    }
}
