//! What the clones of a breaker share.

use super::{permit::Ticket, profile::Profile};
use crate::{
    body::Until,
    clock::Clock,
    error::Rejection,
    event::{CircuitEvent, Reporter},
    key::{Key, KeyRef, Sort},
    machine::{
        Epochs, Expendable, Moment,
        call::{Outcome, Refusal, Settlement},
        cell::CircuitCell,
        circuit::Circuit,
        state::{CircuitMode, CircuitState},
        tick::Tick,
    },
    registry::{Found, Registry, Resident, WhenFull},
    scope::{BypassCircuit, CircuitKey, Keying},
    verdict::{Attempt, Verdict},
};
use http::Extensions;
use reqwest::Request;
use reqwest_middleware::Error;
use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

pub(super) type Classifier = dyn Fn(&Attempt<'_>) -> Verdict + Send + Sync;

pub(crate) struct Shared {
    pub(super) keying: Keying,
    pub(super) circuits: Registry<Place>,
    pub(super) profiles: Profiles,
    pub(super) classify: Option<Box<Classifier>>,
    pub(super) observe: Until,
    pub(super) reporter: Reporter,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) zero: Instant,
    pub(super) epochs: Epochs,
}

/// The profiles of all circuits: those with settings of their own, and the one of the others.
#[derive(Debug, Default)]
pub(super) struct Profiles {
    pub(super) defaults: Profile,
    pub(super) own: Vec<Profile>,
    /// Where in `own` a key finds its profile.
    pub(super) by_key: HashMap<Key, u32>,
}

impl Profiles {
    const DEFAULTS: u32 = u32::MAX;

    #[inline]
    pub(super) fn of(&self, place: &Place) -> &Profile {
        self.numbered(place.profile.load(Ordering::Relaxed))
    }

    fn number_of(&self, key: &Key) -> u32 {
        self.by_key.get(key).copied().unwrap_or(Self::DEFAULTS)
    }

    #[inline]
    fn numbered(&self, number: u32) -> &Profile {
        self.own.get(number as usize).unwrap_or(&self.defaults)
    }
}

impl Shared {
    /// Asks the circuit of `request` to let it through. `Ok(None)`: it passes and nobody looks.
    #[inline]
    pub(crate) fn ask(
        &self,
        request: &Request,
        extensions: &Extensions,
    ) -> Result<Option<Ticket<'_>>, Error> {
        if extensions.get::<BypassCircuit>().is_some() {
            return Ok(None);
        }
        let mut made = None;
        let key = match extensions.get::<CircuitKey>() {
            Some(circuit) => circuit.key(),
            None => self.keying.key(request, &mut made),
        };
        let Some(key) = key else {
            return Ok(None);
        };
        let found = self.circuits.find(key);
        let passage = found.and_then(|place| place.resident.circuit.admit_at_a_glance(place.tenancy));
        match (found, passage) {
            (Some(place), Some(passage)) => Ok(Ticket::of(place.resident, passage)),
            _ => self.admit_with_care(key.sort, key.text, found),
        }
    }

    /// Admits where a glance did not do: the circuit is new, gone, not closed, or under orders.
    #[inline(never)]
    fn admit_with_care<'a>(
        &'a self,
        sort: Sort,
        text: &str,
        mut found: Option<Found<'a, Place>>,
    ) -> Result<Option<Ticket<'a>>, Error> {
        let key = KeyRef { sort, text };
        let mut journal = Vec::new();
        if let Some(place) = &found {
            let now = Tick::at(self.clock.recent(), self.zero);
            if let Some(refusal) = place.resident.circuit.refuse(place.tenancy, now, &mut journal) {
                self.reporter.report(&journal, now);
                return Err(Rejection::from(refusal).into());
            }
        }
        let context = self.context();
        loop {
            let place = match found.take() {
                Some(place) => Some(place),
                None => self.find_or_create(key, WhenFull::TurnAway, &context, &mut journal),
            };
            let Some(place) = place else {
                self.reporter.report(&journal, context.moment.now);
                return self.pass_untracked(key, context.moment.now);
            };
            match place.resident.circuit.admit(place.tenancy, &context.moment, &mut journal) {
                // It has gone to another: look again.
                None => {}
                Some(Ok(passage)) => {
                    let held = Held { shared: self, ticket: Ticket::of(place.resident, passage) };
                    self.reporter.report(&journal, context.moment.now);
                    return Ok(held.release());
                }
                Some(Err(refusal)) => {
                    self.reporter.report(&journal, context.moment.now);
                    return Err(Rejection::from(refusal).into());
                }
            }
        }
    }

    /// What becomes of a call that no circuit could be found for. Forced open is an order that needs no
    /// circuit.
    fn pass_untracked<'a>(&self, key: KeyRef<'_>, now: Tick) -> Result<Option<Ticket<'a>>, Error> {
        self.reporter.report_untracked(self.circuits.capacity(), now);
        let key = key.to_key();
        let mode = self.profiles.numbered(self.profiles.number_of(&key)).policy.mode;
        if mode != CircuitMode::ForcedOpen {
            return Ok(None);
        }
        let circuit_key = Arc::clone(key.text());
        let refusal = Refusal { circuit_key, state: CircuitState::Closed, mode, retry_after: None };
        Err(Rejection::from(refusal).into())
    }

    /// Takes an outcome to its circuit. What the response asked for is looked up only where it may be heard.
    #[inline]
    pub(super) fn settle(
        &self,
        circuit: &CircuitCell,
        epoch: u64,
        outcome: Outcome,
        retry_after: impl FnOnce() -> Option<Duration>,
    ) {
        if !circuit.is_indifferent_to(epoch, outcome) {
            self.settle_with_care(circuit, Settlement { epoch, outcome, retry_after: retry_after() });
        }
    }

    #[inline(never)]
    fn settle_with_care(&self, circuit: &CircuitCell, call: Settlement) {
        let moment = self.moment();
        let mut journal = Vec::new();
        circuit.settle(call, &moment, &mut journal);
        self.reporter.report(&journal, moment.now);
    }

    /// Runs `change` on the circuit of `key`; none where there is no such circuit.
    pub(super) fn change<T>(
        &self,
        key: &Key,
        change: impl FnOnce(&mut Circuit, &Moment<'_>, &mut Vec<CircuitEvent>) -> T,
    ) -> Option<T> {
        let moment = self.moment();
        let mut journal = Vec::new();
        let found = self.circuits.look_up(key.as_ref())?;
        let changed = found
            .resident
            .circuit
            .with_owner(found.tenancy, |circuit| change(circuit, &moment, &mut journal));
        self.reporter.report(&journal, moment.now);
        changed
    }

    /// Makes the circuit of `key` where there is none, beyond the cap if need be.
    pub(super) fn ensure(&self, key: &Key) {
        let context = self.context();
        let mut journal = Vec::new();
        self.find_or_create(key.as_ref(), WhenFull::Grow, &context, &mut journal);
        self.reporter.report(&journal, context.moment.now);
    }

    fn find_or_create(
        &self,
        key: KeyRef<'_>,
        when_full: WhenFull,
        context: &Context<'_>,
        journal: &mut Vec<CircuitEvent>,
    ) -> Option<Found<'_, Place>> {
        let arrival = self.circuits.find_or_create(key, when_full, context);
        journal.extend(arrival.farewell.flatten());
        arrival.found
    }

    fn context(&self) -> Context<'_> {
        Context { profiles: &self.profiles, moment: self.moment() }
    }

    pub(super) fn moment(&self) -> Moment<'_> {
        Moment {
            now: Tick::at(self.clock.now(), self.zero),
            chance: || fastrand::u64(..),
            epochs: &self.epochs,
        }
    }
}

/// A ticket while events go out: a log subscriber that panics must not cost a probe slot.
struct Held<'a> {
    shared: &'a Shared,
    ticket: Option<Ticket<'a>>,
}

impl<'a> Held<'a> {
    fn release(mut self) -> Option<Ticket<'a>> {
        self.ticket.take()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(Ticket { place, epoch }) = self.ticket {
            self.shared.settle(&place.circuit, epoch, Outcome::Ignored, || None);
        }
    }
}

/// What the registry tells a circuit that comes or goes.
pub(crate) struct Context<'a> {
    profiles: &'a Profiles,
    moment: Moment<'a>,
}

/// A circuit in the registry. Its tenancy is its birth.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Place {
    /// Where it is found again without its key.
    pub(super) number: u32,
    /// The number of the owner's profile. Who asks for it may be given that of the next owner: for a call that
    /// counts nowhere, since the epoch that admitted it is over.
    profile: AtomicU32,
    pub(super) circuit: CircuitCell,
}

impl Resident for Place {
    type Context<'a> = Context<'a>;
    /// Only a circuit that was not closed leaves with a word.
    type Farewell = Option<CircuitEvent>;

    fn vacant(number: u32, _: &Context<'_>) -> Self {
        Self { number, profile: AtomicU32::new(Profiles::DEFAULTS), circuit: CircuitCell::vacant() }
    }

    fn expendable(&self, context: &Context<'_>) -> Option<Expendable> {
        self.circuit.with_circuit(|circuit| circuit.expendable(context.moment.now))?
    }

    fn evict(&self, at_most: Expendable, context: &Context<'_>) -> Option<Option<CircuitEvent>> {
        let circuit = self.circuit.evict(at_most, context.moment.now)?;
        Some(circuit.forget(&context.moment))
    }

    fn occupy(&self, key: &Key, context: &Context<'_>) -> u64 {
        let profile = context.profiles.number_of(key);
        self.profile.store(profile, Ordering::Relaxed);
        let policy = Arc::clone(&context.profiles.numbered(profile).policy);
        let birth = context.moment.epochs.next();
        self.circuit.occupy(Circuit::new(Arc::clone(key.text()), policy, birth));
        birth
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("keying", &self.keying)
            .field("circuits", &self.circuits)
            .field("profiles", &self.profiles)
            .finish_non_exhaustive()
    }
}
