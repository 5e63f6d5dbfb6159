//! What has a circuit of its own.

use crate::{
    error::ConfigError,
    key::{Key, KeyRef, without_secrets},
};
use reqwest::Request;
use std::{fmt, sync::Arc};

/// What shares one circuit.
///
/// ```
/// use reqwest_resilience::{CircuitBreaker, Scope};
///
/// // One circuit for everything behind one gateway.
/// let breaker = CircuitBreaker::builder().scope(Scope::shared("gateway")).build()?;
///
/// // One circuit per tenant; requests without the header pass untracked.
/// let breaker = CircuitBreaker::builder()
///     .scope(Scope::by(|request| {
///         let tenant = request.headers().get("x-tenant")?;
///         Some(tenant.to_str().ok()?.to_owned())
///     }))
///     .build()?;
/// # Ok::<(), reqwest_resilience::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Scope {
    /// Requests of one origin: `(scheme, host, port)`. Found without an allocation.
    #[default]
    Origin,
    /// All requests; see [`Scope::shared`].
    Shared(SharedKey),
    /// What a function of yours says; see [`Scope::by`].
    By(KeyFn),
}

/// The one key of [`Scope::shared`].
#[derive(Clone)]
pub struct SharedKey(String);

/// The function of [`Scope::by`].
#[derive(Clone)]
pub struct KeyFn(Arc<KeyOf>);

type KeyOf = dyn Fn(&Request) -> Option<String> + Send + Sync;

impl Scope {
    /// One key for everything. Must be a nonempty name or a URL, which stands for its origin; checked by
    /// `build()`.
    pub fn shared(name: impl Into<String>) -> Self {
        Self::Shared(SharedKey(name.into()))
    }

    /// A key of your own for each request. `None`, and a text that is no key (empty, or a URL without host or
    /// known port): the request passes untracked. A text with `://` is a URL and means its origin.
    ///
    /// Runs for every request that has no [`CircuitKey`] and no [`BypassCircuit`], before anything else; a
    /// panic in it unwinds that call alone.
    pub fn by(key: impl Fn(&Request) -> Option<String> + Send + Sync + 'static) -> Self {
        Self::By(KeyFn(Arc::new(key)))
    }

    /// Makes the scope ready for lookups.
    pub(crate) fn check(self) -> Result<Keying, ConfigError> {
        Ok(match self {
            Self::Origin => Keying::Origin,
            Self::Shared(SharedKey(name)) => Keying::Shared(Key::parse(&name).map_err(|invalid| {
                ConfigError::new("scope", format!("{:?}", without_secrets(&name)), invalid.rule())
            })?),
            Self::By(key) => Keying::By(key),
        })
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedKey").field(&without_secrets(&self.0)).finish()
    }
}

impl fmt::Debug for KeyFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyFn")
    }
}

/// A checked [`Scope`].
#[derive(Debug)]
pub(crate) enum Keying {
    Origin,
    Shared(Key),
    By(KeyFn),
}

impl Keying {
    /// The key of `request`, borrowed from it, from here, or from `made` where it had to be made.
    #[allow(clippy::inline_always, reason = "handed back through memory, it would stall who reads it")]
    #[inline(always)]
    pub(crate) fn key<'k>(&'k self, request: &'k Request, made: &'k mut Option<Key>) -> Option<KeyRef<'k>> {
        match self {
            Self::Origin => KeyRef::of(request.url(), made),
            Self::Shared(key) => Some(key.as_ref()),
            Self::By(KeyFn(key)) => Some(made.insert(Key::parse(&key(request)?).ok()?).as_ref()),
        }
    }
}

/// For one request, this circuit instead of the one its [`Scope`] says, with the settings made for it, if
/// any.
///
/// A text with `://` is a URL and means the circuit of its origin; any other is a name. A text that is no key
/// (empty, or a URL without host or known port) tracks the request in no circuit. A circuit whose name is
/// longer than 4 KiB is found under a lock.
///
/// ```
/// # async fn call(client: reqwest_middleware::ClientWithMiddleware) -> reqwest_middleware::Result<()> {
/// use reqwest_resilience::CircuitKey;
///
/// // The slow reports of an origin must not open the circuit of its other calls.
/// let report = client
///     .get("https://api.example.com/reports/2026")
///     .with_extension(CircuitKey::new("reports"))
///     .send()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitKey(Option<Key>);

impl CircuitKey {
    /// The circuit named `key`, or that of the origin whose URL it is.
    pub fn new(key: impl AsRef<str>) -> Self {
        Self(Key::parse(key.as_ref()).ok())
    }

    pub(crate) fn key(&self) -> Option<KeyRef<'_>> {
        self.0.as_ref().map(Key::as_ref)
    }
}

/// For one request, no circuit: no breaker looks at it, a forced-open one neither. Wins over [`CircuitKey`].
///
/// For health checks that must reach a sick origin.
///
/// ```
/// # async fn call(client: reqwest_middleware::ClientWithMiddleware) -> reqwest_middleware::Result<()> {
/// use reqwest_resilience::BypassCircuit;
///
/// client.get("https://api.example.com/health").with_extension(BypassCircuit).send().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BypassCircuit;
