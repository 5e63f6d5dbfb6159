//! How a breaker is made.

use super::{
    CircuitBreaker,
    settings::CircuitSettings,
    shared::{Classifier, Profiles, Shared},
};
use crate::{
    body::Until,
    clock::{Clock, TokioClock},
    error::ConfigError,
    event::{CircuitEvent, Listener, Reporter},
    key::{Key, without_secrets},
    machine::Epochs,
    registry::Registry,
    scope::{Keying, Scope},
    verdict::{Attempt, Verdict},
};
use std::{fmt, sync::Arc};

/// Makes a [`CircuitBreaker`]; from [`CircuitBreaker::builder`].
///
/// Settings of circuits are closures over [`CircuitSettings`]. They run at once; what a circuit leaves unset
/// it inherits when [`build`](Self::build) is called, so the order of the calls does not matter. Settings for
/// one circuit may be given in several calls: a later one overrides what it sets itself.
#[must_use = "a builder does nothing until `build` is called"]
pub struct CircuitBreakerBuilder {
    defaults: CircuitSettings,
    own: Vec<(&'static str, String, CircuitSettings)>,
    scope: Scope,
    classify: Option<Box<Classifier>>,
    listeners: Vec<Box<Listener>>,
    max_circuits: usize,
    observe: Until,
    clock: Arc<dyn Clock>,
}

impl Default for CircuitBreakerBuilder {
    fn default() -> Self {
        Self {
            defaults: CircuitSettings::default(),
            own: Vec::new(),
            scope: Scope::Origin,
            classify: None,
            listeners: Vec::new(),
            max_circuits: 10_000,
            observe: Until::Headers,
            clock: Arc::new(TokioClock),
        }
    }
}

impl CircuitBreakerBuilder {
    /// The settings of every circuit that does not say otherwise.
    pub fn defaults(mut self, settings: impl FnOnce(CircuitSettings) -> CircuitSettings) -> Self {
        self.defaults = settings(CircuitSettings::default()).or(&self.defaults);
        self
    }

    /// What differs for one origin, given by any URL of it.
    pub fn origin(
        mut self,
        url: impl Into<String>,
        settings: impl FnOnce(CircuitSettings) -> CircuitSettings,
    ) -> Self {
        self.own.push(("origin", url.into(), settings(CircuitSettings::default())));
        self
    }

    /// What differs for one named circuit: one that [`Scope`] or [`CircuitKey`](crate::CircuitKey) names. A
    /// name with `://` is a URL and means its origin, as everywhere.
    pub fn circuit(
        mut self,
        name: impl Into<String>,
        settings: impl FnOnce(CircuitSettings) -> CircuitSettings,
    ) -> Self {
        self.own.push(("circuit", name.into(), settings(CircuitSettings::default())));
        self
    }

    /// What has a circuit of its own: [`Scope::Origin`] by default.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Judges outcomes by a rule of yours instead of [`Attempt::default_verdict`], which it may call.
    ///
    /// Runs once per tracked call, outside all locks. A panic in it unwinds that call alone, which then
    /// counts as ignored. Costs two clock reads per call, for [`Attempt::elapsed`].
    pub fn classify(mut self, rule: impl Fn(&Attempt<'_>) -> Verdict + Send + Sync + 'static) -> Self {
        self.classify = Some(Box::new(rule));
        self
    }

    /// Adds a listener for what is also logged; see [`CircuitEvent`].
    ///
    /// Called outside all locks, on the thread of the call, before that call goes on: be quick. It may use
    /// the breaker and its client. A panic in it is caught and reported as `circuit.listener_panicked`.
    ///
    /// ```
    /// use reqwest_resilience::CircuitBreaker;
    /// use std::sync::mpsc;
    ///
    /// let (sender, events) = mpsc::channel();
    /// let breaker = CircuitBreaker::builder()
    ///     .on_event(move |event| {
    ///         let _ = sender.send(event.clone());
    ///     })
    ///     .build()?;
    /// # Ok::<(), reqwest_resilience::ConfigError>(())
    /// ```
    pub fn on_event(mut self, listener: impl Fn(&CircuitEvent) + Send + Sync + 'static) -> Self {
        self.listeners.push(Box::new(listener));
        self
    }

    /// The most circuits kept, at least 1: 10,000 by default. One takes some 350 bytes, some 460 with a
    /// failure rate; hosts of more than 48 bytes take 64 more for each further 48.
    ///
    /// When they are all taken, a new key is given the place of a circuit that was not used lately and
    /// protects nobody: best one that nobody could tell from a new one, then a closed one with something
    /// counted, then one whose wait is over. Never one that is open within its wait, has a probe out, is
    /// forced, or has a mode that was set by hand. Where the next 64 places offer none, the request passes
    /// untracked and `circuit.untracked` says so.
    pub fn max_circuits(mut self, max_circuits: usize) -> Self {
        self.max_circuits = max_circuits;
        self
    }

    /// When the outcome of a call is known: [`Until::Headers`] by default.
    ///
    /// With [`Until::BodyEnd`], a response that was good by its headers counts when its body is over: read to
    /// the end or dropped, read or not, it is a success; broken (truncated, reset, corrupt, stalled past the
    /// timeout), it is a failure. A probe holds its slot so long: set
    /// [`probe_lease`](CircuitSettings::probe_lease) above the longest body, and timeouts above the slowest
    /// reader. Costs the response two allocations.
    pub fn observe(mut self, observe: Until) -> Self {
        self.observe = observe;
        self
    }

    /// Where decisions read the time: [`TokioClock`] by default. An open circuit whose wait is far from over
    /// refuses by the clock's [`recent`](Clock::recent) time.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Checks all settings and makes the breaker.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for the first value that cannot be, with its field, the circuit it was for, and the
    /// rule.
    pub fn build(mut self) -> Result<CircuitBreaker, ConfigError> {
        if self.max_circuits == 0 {
            return Err(ConfigError::new("max_circuits", 0, "must be at least 1"));
        }
        let keying = std::mem::take(&mut self.scope).check()?;
        let profiles = self.profiles()?;
        Ok(self.assemble(keying, profiles))
    }

    /// Puts the checked parts together.
    pub(super) fn assemble(self, keying: Keying, profiles: Profiles) -> CircuitBreaker {
        CircuitBreaker {
            shared: Arc::new(Shared {
                keying,
                circuits: Registry::new(self.max_circuits),
                profiles,
                classify: self.classify,
                observe: self.observe,
                reporter: Reporter::new(self.listeners),
                zero: self.clock.now(),
                clock: self.clock,
                epochs: Epochs::new(),
            }),
        }
    }

    fn profiles(&mut self) -> Result<Profiles, ConfigError> {
        let mut profiles = Profiles { defaults: self.defaults.check()?, ..Profiles::default() };
        let mut settings = Vec::<(Key, CircuitSettings)>::new();
        for (field, text, own) in self.own.drain(..) {
            let key = key_of(field, &text)?;
            match settings.iter_mut().find(|(known, _)| *known == key) {
                Some((_, earlier)) => *earlier = own.or(earlier),
                None => settings.push((key, own)),
            }
        }
        for ((key, own), number) in settings.into_iter().zip(0..) {
            let profile = own.or(&self.defaults).check();
            profiles.own.push(profile.map_err(|error| error.of(key.text()))?);
            profiles.by_key.insert(key, number);
        }
        Ok(profiles)
    }
}

fn key_of(field: &'static str, text: &str) -> Result<Key, ConfigError> {
    let wrong = |rule| ConfigError::new(field, format!("{:?}", without_secrets(text)), rule);
    let key = Key::parse(text).map_err(|invalid| wrong(invalid.rule()))?;
    if field == "origin" && !key.is_origin() {
        return Err(wrong(
            "an origin is given by a URL, such as https://api.example.com; for a name use `circuit`",
        ));
    }
    Ok(key)
}

impl fmt::Debug for CircuitBreakerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreakerBuilder")
            .field("defaults", &self.defaults)
            .field("own", &self.own.len())
            .field("scope", &self.scope)
            .field("max_circuits", &self.max_circuits)
            .finish_non_exhaustive()
    }
}
