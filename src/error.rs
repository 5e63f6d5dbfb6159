//! What a caller is told when a call was refused, and a programmer when a setting is wrong.

use crate::{
    human::Human,
    machine::{
        call::Refusal,
        state::{CircuitMode, CircuitState},
    },
};
use std::{borrow::Cow, error::Error, fmt, sync::Arc, time::Duration};

/// Why a middleware of this crate ended a call, and not the network.
///
/// Every refusal reaches the caller as a [`reqwest_middleware::Error`]; [`Rejection::find`] tells it from a
/// real failure. What the network answered, error or response, is never wrapped or replaced, so an error in
/// which `find` finds nothing is reqwest's own, with `is_timeout()` and `is_connect()` intact.
///
/// For logs, print the error that the call returned, not the rejection found in it. The error says what
/// happened, to which circuit, and how long it will last; the rejection, as its source, says just `circuit
/// open`, so that a printed chain does not repeat itself:
///
/// ```text
/// request not sent: circuit https://api.example.com:443 is open, next probe in 12.3 s
/// ```
///
/// # Cost
///
/// `reqwest_middleware` carries errors of middlewares in `anyhow::Error`, which captures a backtrace when
/// `RUST_BACKTRACE` is set: microseconds for each rejection instead of nanoseconds. Unset it, or set
/// `RUST_LIB_BACKTRACE=0`, where rejections have to be cheap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// The circuit of this request lets no call through now. Nothing was sent.
    #[error("circuit open")]
    #[non_exhaustive]
    CircuitOpen {
        /// The circuit: `scheme://host:port`, or a name.
        circuit_key: Arc<str>,
        /// Its state: open, or half-open with all probes out. Forced open, whatever it was.
        state: CircuitState,
        /// Its mode.
        mode: CircuitMode,
        /// The time left until a probe is admitted; none while probes hold all slots, and when forced open.
        retry_after: Option<Duration>,
    },
    /// All slots for this request were taken, and the queue was full or the wait too long. Nothing was sent.
    #[error("bulkhead full")]
    #[non_exhaustive]
    BulkheadFull {
        /// What shares the slots: `scheme://host:port`, or a name.
        key: Arc<str>,
        /// How many slots there are.
        max_concurrent: usize,
        /// How many calls waited for one.
        queued: usize,
        /// How long this call waited.
        waited: Duration,
    },
    /// The time for this call was up. It may have been sent.
    #[error("deadline exceeded")]
    #[non_exhaustive]
    DeadlineExceeded {
        /// The time it had.
        limit: Duration,
    },
}

impl Rejection {
    /// Finds the rejection that `error` is or stems from.
    ///
    /// Works on a bare [`reqwest_middleware::Error`], under context that anyhow added (pass
    /// `error.as_ref()`), under errors of your own that name it as their source, and behind
    /// `reqwest_retry::RetryTransientMiddleware`.
    ///
    /// ```
    /// # async fn call(client: reqwest_middleware::ClientWithMiddleware) {
    /// use reqwest_resilience::Rejection;
    ///
    /// match client.get("https://api.example.com/").send().await {
    ///     Ok(response) => println!("{}", response.status()),
    ///     Err(error) => match Rejection::find(&error) {
    ///         Some(Rejection::CircuitOpen { circuit_key, retry_after, .. }) => {
    ///             println!("{circuit_key} rests, try again in {retry_after:?}");
    ///         }
    ///         Some(_) => println!("{error}"),
    ///         None => println!("the network failed: {error}"),
    ///     },
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn find<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e Self> {
        error
            .downcast_ref()
            .or_else(|| error.downcast_ref().map(|Rejected(rejection)| rejection))
            .or_else(|| Self::find(error.source()?))
    }

    /// Whether the attempt that this ended never reached the network: what to ask before sending the request
    /// elsewhere.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        match self {
            Self::CircuitOpen { .. } | Self::BulkheadFull { .. } => true,
            Self::DeadlineExceeded { .. } => false,
        }
    }
}

impl From<Refusal> for Rejection {
    #[inline]
    fn from(refusal: Refusal) -> Self {
        Self::CircuitOpen {
            circuit_key: refusal.circuit_key,
            state: refusal.state,
            mode: refusal.mode,
            retry_after: refusal.retry_after,
        }
    }
}

impl From<Rejection> for reqwest_middleware::Error {
    #[inline]
    fn from(rejection: Rejection) -> Self {
        Self::middleware(Rejected(rejection))
    }
}

/// The carrier: prints the whole story and has the typed rejection as its source.
///
/// `reqwest_middleware::Error` is transparent, so a walk along `source()` skips its payload; the payload's
/// own source it finds, however deep (see [`Rejection::find`]).
#[derive(Debug)]
struct Rejected(Rejection);

impl Error for Rejected {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Rejection::CircuitOpen { circuit_key, state, mode, retry_after } => {
                write!(f, "request not sent: circuit {circuit_key} is ")?;
                if *mode == CircuitMode::ForcedOpen {
                    return f.write_str("forced open");
                }
                match (state, retry_after) {
                    (_, Some(left)) => write!(f, "open, next probe in {}", Human(*left)),
                    (CircuitState::HalfOpen, None) => f.write_str("half-open, waiting for its probes"),
                    (_, None) => f.write_str("open"),
                }
            }
            Rejection::BulkheadFull { key, max_concurrent, queued, waited } => write!(
                f,
                "request not sent: no free slot for {key}, {max_concurrent} in flight, {queued} queued, waited {}",
                Human(*waited)
            ),
            Rejection::DeadlineExceeded { limit } => {
                write!(f, "call cut off: its deadline of {} has passed, it may have been sent", Human(*limit))
            }
        }
    }
}

/// A setting that cannot be: the field, the value it was given and the rule it breaks.
///
/// ```
/// use reqwest_resilience::CircuitBreaker;
///
/// let error = CircuitBreaker::builder()
///     .origin("https://api.example.com", |circuit| circuit.probes(0))
///     .build()
///     .unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "probes = 0 (https://api.example.com:443): must be between 1 and 255"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    field: &'static str,
    value: String,
    rule: Cow<'static, str>,
    place: Option<Arc<str>>,
}

impl ConfigError {
    pub(crate) fn new(
        field: &'static str,
        value: impl fmt::Display,
        rule: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { field, value: value.to_string(), rule: rule.into(), place: None }
    }

    /// Names the circuit whose settings these were.
    pub(crate) fn of(self, place: &Arc<str>) -> Self {
        Self { place: Some(Arc::clone(place)), ..self }
    }

    /// The setting, by the name of the method that sets it.
    #[must_use]
    pub fn field(&self) -> &str {
        self.field
    }

    /// The value it was given.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// What the value has to be.
    #[must_use]
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The origin or the name whose settings these were; none for defaults and for settings of the whole.
    #[must_use]
    pub fn circuit_key(&self) -> Option<&str> {
        self.place.as_deref()
    }
}

impl Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.field, self.value)?;
        if let Some(place) = &self.place {
            write!(f, " ({place})")?;
        }
        write!(f, ": {}", self.rule)
    }
}

/// A text that is no key of a circuit.
///
/// A key that contains `://` is a URL and stands for its origin, so it needs a host and a known port; any
/// other text is a name, and must not be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid key: {rule}")]
pub struct InvalidKey {
    rule: &'static str,
}

impl InvalidKey {
    pub(crate) const EMPTY: Self = Self { rule: "a name must not be empty" };
    pub(crate) const NOT_A_URL: Self = Self { rule: "a text with `://` must be a valid URL" };
    pub(crate) const NO_ORIGIN: Self =
        Self { rule: "a URL must have a host and a port, its own or that of a well-known scheme" };

    /// What a key has to be.
    #[must_use]
    pub fn rule(self) -> &'static str {
        self.rule
    }
}
