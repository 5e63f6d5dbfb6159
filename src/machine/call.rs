//! What a call asks of a circuit, what it is told, and what it brings back.

use super::state::{CircuitMode, CircuitState};
use std::{sync::Arc, time::Duration};

/// What becomes of a call that asks to be sent.
pub(crate) type Admission = Result<Passage, Refusal>;

/// A call goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an observed call has to be settled"]
pub(crate) enum Passage {
    /// Its outcome counts in this epoch and in no other.
    Observed { epoch: u64 },
    /// Its outcome is nobody's.
    Unobserved,
}

/// Why a call does not go out.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) circuit_key: Arc<str>,
    pub(crate) state: CircuitState,
    pub(crate) mode: CircuitMode,
    pub(crate) retry_after: Option<Duration>,
}

/// How an admitted call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    Failure,
    /// It says nothing about the origin.
    Ignored,
}

/// What a call brings back to the circuit that admitted it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settlement {
    /// The epoch that admitted it.
    pub(crate) epoch: u64,
    pub(crate) outcome: Outcome,
    /// The wait that the response asked for. Should it open the circuit, it is heard, whatever the outcome
    /// was.
    pub(crate) retry_after: Option<Duration>,
}
