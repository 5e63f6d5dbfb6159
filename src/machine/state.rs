//! The states and modes of a circuit, as users read and set them.

use std::{fmt, str::FromStr};

/// Where a circuit stands.
///
/// Logs and `Display` use the same names, `closed`, `open` and `half_open`; texts for people say half-open.
///
/// ```
/// use reqwest_resilience::CircuitState;
///
/// assert_eq!(CircuitState::HalfOpen.to_string(), "half_open");
/// assert_eq!("open".parse(), Ok(CircuitState::Open));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CircuitState {
    /// Calls go through and their outcomes are counted.
    Closed,
    /// Calls are rejected until the wait is over.
    Open,
    /// A few calls go through as probes; the others are rejected.
    HalfOpen,
}

impl CircuitState {
    /// The name in logs: `closed`, `open` or `half_open`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// What a circuit does with what it knows.
///
/// Set for all calls with [`CircuitSettings::mode`](crate::CircuitSettings::mode), or at run time with
/// [`CircuitBreaker::set_mode`](crate::CircuitBreaker::set_mode). A change of mode keeps the state, its
/// evidence and its wait; calls under way no longer count, and probe slots are free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CircuitMode {
    /// Counts, trips and rejects: the normal mode.
    #[default]
    Enforcing,
    /// Does everything but reject. A call that would be rejected is sent, is counted in `rejected`, and its
    /// outcome is ignored. For trying settings out on live traffic.
    Shadow,
    /// Rejects every call.
    ForcedOpen,
    /// Lets every call through and counts nothing.
    ForcedClosed,
}

impl CircuitMode {
    /// The name in logs: `enforcing`, `shadow`, `forced_open` or `forced_closed`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforcing => "enforcing",
            Self::Shadow => "shadow",
            Self::ForcedOpen => "forced_open",
            Self::ForcedClosed => "forced_closed",
        }
    }

    pub(crate) fn is_forced(self) -> bool {
        matches!(self, Self::ForcedOpen | Self::ForcedClosed)
    }
}

/// A text that names no [`CircuitState`] or [`CircuitMode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown name: must be one of {expected}")]
pub struct UnknownName {
    expected: &'static str,
}

impl FromStr for CircuitState {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        [Self::Closed, Self::Open, Self::HalfOpen]
            .into_iter()
            .find(|state| state.as_str() == name)
            .ok_or(UnknownName { expected: "closed, open, half_open" })
    }
}

impl FromStr for CircuitMode {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        [Self::Enforcing, Self::Shadow, Self::ForcedOpen, Self::ForcedClosed]
            .into_iter()
            .find(|mode| mode.as_str() == name)
            .ok_or(UnknownName { expected: "enforcing, shadow, forced_open, forced_closed" })
    }
}

impl fmt::Display for CircuitState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for CircuitMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
