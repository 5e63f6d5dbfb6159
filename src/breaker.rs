//! The circuit breaker: type and handle.

mod builder;
mod middleware;
pub(crate) mod permit;
mod profile;
mod settings;
mod shared;
mod trip;

pub use builder::CircuitBreakerBuilder;
pub use settings::CircuitSettings;
pub use trip::{FailureRate, Trip};

use crate::{
    error::InvalidKey,
    key::Key,
    machine::{circuit::Circuit, snapshot::CircuitSnapshot, state::CircuitMode},
    scope::Keying,
};
use shared::{Profiles, Shared};
use std::{fmt, sync::Arc};

/// Stops calling an origin that is down, and finds out when it is back.
///
/// ```text
///             trip rule met                     open_for over, next call
///  ┌────────┐ ───────────────► ┌──────┐ ─────────────────────────────► ┌───────────┐
///  │ closed │                  │ open │                                │ half-open │
///  └────────┘                  └──────┘ ◄───────────────────────────── └───────────┘
///       ▲                                 a probe failed: wait again         │
///       └────────────────────────────────────────────────────────────────────┘
///                 success_threshold probes succeeded: all counters start from zero
/// ```
///
/// Each origin, `(scheme, host, port)`, has a circuit of its own. A caller of a dead origin waits for its
/// timeout, holds a connection and a task meanwhile, and adds to the load that keeps the origin down. An open
/// circuit answers at once instead, with a [`Rejection`](crate::Rejection) that says when to come back. After
/// Michael Nygard, *Release It!*.
///
/// # What counts
///
/// A status of 5xx and an error of the network are failures, any other status (4xx, 429 too) is a success;
/// see [`Attempt::default_verdict`](crate::Attempt::default_verdict). An outcome counts only in the state
/// that admitted its call: what comes late moves nothing. A call that is dropped, or panics, counts as
/// nothing and gives its probe slot back.
///
/// A call is charged to the circuit that admitted it. reqwest follows redirects below the breaker, so a
/// failure behind a redirect is charged to the origin that was asked.
///
/// # Clone
///
/// A clone shares everything: circuits, settings, listeners. Keep one as a handle. Two breakers that were
/// built separately share nothing.
///
/// # Order
///
/// Middlewares run in the order in which they were added. Inside a retry, the breaker counts every attempt
/// and cuts a series short when it opens; outside, it counts what the retries could not mend. With `Retry(2)
/// → CircuitBreaker(5)` an outage opens the circuit during the second call, with `CircuitBreaker(5) →
/// Retry(2)` after the fifth: after 15 attempts.
///
/// # Example
///
/// ```
/// use reqwest_middleware::ClientBuilder;
/// use reqwest_resilience::{CircuitBreaker, Trip};
/// use std::time::Duration;
///
/// let breaker = CircuitBreaker::builder()
///     .defaults(|circuit| circuit.trip(Trip::consecutive(5)).open_for(Duration::from_secs(30)))
///     .origin("https://payments.example.com", |circuit| circuit.trip(Trip::consecutive(2)))
///     .build()?;
/// let client = ClientBuilder::new(reqwest::Client::new())
///     .with(breaker.clone())
///     .build();
///
/// for circuit in breaker.snapshots() {
///     println!("{circuit}");
/// }
/// # Ok::<(), reqwest_resilience::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct CircuitBreaker {
    pub(crate) shared: Arc<Shared>,
}

impl CircuitBreaker {
    /// Begins the settings of a breaker.
    pub fn builder() -> CircuitBreakerBuilder {
        CircuitBreakerBuilder::default()
    }

    /// All circuits, sorted by key. A circuit comes into being with its first call, also that of an origin
    /// with settings of its own.
    #[must_use]
    pub fn snapshots(&self) -> Vec<CircuitSnapshot> {
        let now = self.shared.moment().now;
        let mut snapshots = Vec::new();
        self.shared.circuits.each(|place| {
            snapshots.extend(place.circuit.with_circuit(|circuit| circuit.snapshot(now, self.shared.zero)));
        });
        snapshots.sort_by(|a, b| a.circuit_key.cmp(&b.circuit_key));
        snapshots
    }

    /// The circuit of `key`: a URL stands for its origin, any other text is a name. None where there is no
    /// such circuit (yet).
    #[must_use]
    pub fn snapshot(&self, key: &str) -> Option<CircuitSnapshot> {
        let key = Key::parse(key).ok()?;
        self.shared.change(&key, |circuit, at, _| circuit.snapshot(at.now, self.shared.zero))
    }

    /// Puts the circuit of `key` into `mode`, and makes it where there is none, beyond
    /// [`max_circuits`](CircuitBreakerBuilder::max_circuits) if need be. While it has a mode that
    /// its settings would not give it, the circuit is never recycled.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] for an empty text and for a URL without a host or a known port.
    pub fn set_mode(&self, key: &str, mode: CircuitMode) -> Result<(), InvalidKey> {
        let key = Key::parse(key)?;
        while self
            .shared
            .change(&key, |circuit, at, journal| {
                circuit.set_mode(mode, at, journal);
            })
            .is_none()
        {
            self.shared.ensure(&key);
        }
        Ok(())
    }

    /// Closes the circuit of `key`, clears its counters and gives it the mode of its settings. Calls under
    /// way no longer count. False where there is no such circuit.
    pub fn reset(&self, key: &str) -> bool {
        let Ok(key) = Key::parse(key) else {
            return false;
        };
        self.shared.change(&key, Circuit::reset).is_some()
    }

    /// Resets every circuit.
    pub fn reset_all(&self) {
        let moment = self.shared.moment();
        let mut journal = Vec::new();
        self.shared.circuits.each(|place| {
            let _ = place.circuit.with_circuit(|circuit| circuit.reset(&moment, &mut journal));
        });
        self.shared.reporter.report(&journal, moment.now);
    }
}

/// Consecutive failures of 5 open a circuit for 30 seconds; see [`CircuitSettings`] for the rest.
impl Default for CircuitBreaker {
    fn default() -> Self {
        Self::builder().assemble(Keying::Origin, Profiles::default())
    }
}

impl fmt::Debug for CircuitBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CircuitBreaker").field(&self.shared).finish()
    }
}
