//! What the benches measure and nobody else may use: the machine without the chain around it.

use crate::{
    CircuitBreaker, CircuitMode, CircuitState, Clock, Rejection, TokioClock,
    breaker::permit::Permit,
    key::{Key, KeyRef},
    machine::{
        budget::{BudgetCell, BudgetRule},
        call::{Outcome, Passage, Refusal},
        cell::CircuitCell,
        circuit::Circuit,
        policy::CircuitPolicy,
        tick::Tick,
    },
};
use equivalent::Equivalent;
use http::Extensions;
use reqwest::{Request, Response, Url};
use reqwest_middleware::{Error, Result};
use std::{
    hash::{Hash, Hasher},
    sync::Arc,
    time::Instant,
};

/// One closed circuit, without a key.
#[derive(Debug)]
pub struct LoneCircuit(CircuitCell);

const BIRTH: u64 = 1;

impl LoneCircuit {
    /// With default settings.
    #[must_use]
    pub fn closed() -> Self {
        let cell = CircuitCell::vacant();
        cell.occupy(Circuit::new("lone".into(), Arc::new(CircuitPolicy::default()), BIRTH));
        Self(cell)
    }

    /// Admits a call and settles it as a success; whether nothing had to be written.
    #[inline]
    pub fn admit_and_succeed(&self) -> bool {
        match self.0.admit_at_a_glance(BIRTH) {
            Some(Passage::Observed { epoch }) => self.0.is_indifferent_to(epoch, Outcome::Success),
            _ => false,
        }
    }
}

/// All that the breaker does around an inner call that takes no time and ends in `result`.
///
/// # Errors
///
/// A rejection.
#[inline]
pub fn call(breaker: &CircuitBreaker, request: &Request, result: &Result<Response>) -> Result<()> {
    let mut extensions = Extensions::new();
    if let Some(ticket) = breaker.shared.ask(request, &extensions)? {
        Permit::new(&breaker.shared, ticket, &mut extensions).settle(request.method(), result);
    }
    Ok(())
}

/// The error of a rejection, made.
#[must_use]
pub fn rejection(circuit_key: Arc<str>) -> Error {
    Rejection::from(Refusal {
        circuit_key,
        state: CircuitState::Open,
        mode: CircuitMode::Enforcing,
        retry_after: None,
    })
    .into()
}

/// One budget, without a key, as a call and a retry meet it.
#[derive(Debug)]
#[repr(C)]
pub struct LoneBudget {
    zero: Instant,
    generation: u64,
    cell: BudgetCell,
}

impl LoneBudget {
    /// With default settings.
    #[must_use]
    pub fn new() -> Self {
        let cell = BudgetCell::new(BudgetRule::default());
        Self { zero: Instant::now(), generation: cell.generation(), cell }
    }

    /// A call was sent.
    #[inline]
    pub fn deposit(&self) {
        self.cell.deposit(self.generation, Tick::at(TokioClock.recent(), self.zero));
    }

    /// Whether a retry may be made.
    #[inline]
    pub fn withdraw(&self) -> bool {
        let now = Tick::at(TokioClock.now(), self.zero);
        self.cell.withdraw(self.generation, now) == Some(true)
    }
}

impl Default for LoneBudget {
    fn default() -> Self {
        Self::new()
    }
}

/// The key that a map stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredKey(Key);

impl Hash for StoredKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_ref().hash(state);
    }
}

impl StoredKey {
    /// Its text.
    #[must_use]
    pub fn text(&self) -> &Arc<str> {
        self.0.text()
    }
}

/// The key that a lookup borrows.
#[derive(Debug)]
pub struct LookupKey<'a>(KeyRef<'a>);

impl<'a> LookupKey<'a> {
    /// None without a host, and for a scheme that no client sends to.
    #[allow(clippy::inline_always, reason = "as in the breaker")]
    #[inline(always)]
    #[must_use]
    pub fn of(url: &'a Url) -> Option<Self> {
        KeyRef::of_web(url).map(Self)
    }

    /// The key to store.
    #[must_use]
    pub fn to_stored(&self) -> StoredKey {
        StoredKey(self.0.to_key())
    }
}

#[allow(clippy::inline_always, reason = "as in the breaker")]
impl Hash for LookupKey<'_> {
    #[inline(always)]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

#[allow(clippy::inline_always, reason = "as in the breaker")]
impl Equivalent<StoredKey> for LookupKey<'_> {
    #[inline(always)]
    fn equivalent(&self, key: &StoredKey) -> bool {
        self.0 == key.0.as_ref()
    }
}
