//! A circuit as an operator reads it.

use super::state::{CircuitMode, CircuitState};
use crate::human::Human;
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// One circuit at one moment: plain data, all of one epoch. Prints as one line.
///
/// From [`CircuitBreaker::snapshots`](crate::CircuitBreaker::snapshots) and
/// [`snapshot`](crate::CircuitBreaker::snapshot). Reading it changes nothing: an open circuit whose wait is
/// over still reads [`Open`](CircuitState::Open), with `retry_after` at zero, until the next call makes it
/// half-open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CircuitSnapshot {
    /// The circuit: `scheme://host:port`, or a name.
    pub circuit_key: Arc<str>,
    /// Its state.
    pub state: CircuitState,
    /// Its mode.
    pub mode: CircuitMode,
    /// Failures in a row while closed.
    pub consecutive_failures: u32,
    /// What the window of a failure rate holds while closed; none without such a rule.
    pub window: Option<WindowSnapshot>,
    /// The time left until a probe is admitted: zero when the next call would be one; none while closed,
    /// while probes hold all slots, and when forced open.
    pub retry_after: Option<Duration>,
    /// Probes that have no outcome yet.
    pub probes_in_flight: u32,
    /// Calls rejected in this outage.
    pub rejected: u64,
    /// When this outage began; none while closed.
    pub opened_at: Option<Instant>,
    /// The number of the present state; grows with every change.
    pub epoch: u64,
}

/// Calls and failures in the window of a failure rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WindowSnapshot {
    /// Calls that ended within the window.
    pub calls: u64,
    /// Those among them that failed.
    pub failures: u64,
}

impl fmt::Display for CircuitSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.circuit_key, self.state)?;
        if self.mode != CircuitMode::Enforcing {
            write!(f, " ({})", self.mode)?;
        }
        match self.retry_after {
            Some(Duration::ZERO) => f.write_str(", next call probes")?,
            Some(left) => write!(f, ", next probe in {}", Human(left))?,
            None => {}
        }
        if self.probes_in_flight != 0 {
            write!(f, ", {} in flight", counted(self.probes_in_flight.into(), "probe"))?;
        }
        if self.consecutive_failures != 0 {
            write!(f, ", {} in a row", counted(self.consecutive_failures.into(), "failure"))?;
        }
        if let Some(WindowSnapshot { calls, failures }) = self.window.filter(|window| window.calls != 0) {
            write!(f, ", {failures} of {} failed", counted(calls, "call"))?;
        }
        if self.rejected != 0 {
            write!(f, ", {} rejected", self.rejected)?;
        }
        Ok(())
    }
}

fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
