//! Circuit breaking for `reqwest-middleware`.

mod breaker;
mod clock;
mod error;
mod event;
mod human;
mod key;
mod machine;
mod origin;
mod registry;
mod retry_after;
mod scope;
mod sync;
mod verdict;

pub use breaker::{CircuitBreaker, CircuitBreakerBuilder, CircuitSettings, FailureRate, Trip};
pub use clock::{Clock, ManualClock, TokioClock};
pub use error::{ConfigError, InvalidKey, Rejection};
pub use event::{CircuitEvent, OpenReason};
pub use machine::{
    snapshot::{CircuitSnapshot, WindowSnapshot},
    state::{CircuitMode, CircuitState, UnknownName},
};
pub use scope::{BypassCircuit, CircuitKey, KeyFn, Scope, SharedKey};
pub use verdict::{Attempt, Verdict};
