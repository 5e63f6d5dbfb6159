//! Models of [`CircuitCell`].

use crate::machine::{
    Epochs, Expendable, Moment,
    call::{Outcome, Passage, Settlement},
    cell::CircuitCell,
    circuit::Circuit,
    event::CircuitEvent,
    policy::CircuitPolicy,
    snapshot::CircuitSnapshot,
    state::{CircuitMode, CircuitState},
    tick::Tick,
    trip::TripRule,
};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use loom::{model, sync::Arc, thread};
use std::{
    num::NonZeroU32,
    time::{Duration, Instant},
};

/// A cell with an owner, and all that a call to it needs.
struct Place {
    cell: CircuitCell,
    epochs: Epochs,
    zero: Instant,
    birth: u64,
}

impl Place {
    /// The circuit opens at `failures` in a row, for no time at all: the next call is a probe.
    fn opening_at(failures: u32) -> Arc<Self> {
        let place =
            Self { cell: CircuitCell::vacant(), epochs: Epochs::new(), zero: Instant::now(), birth: 1 };
        let first = place.epochs.next();
        place.move_in(first, failures);
        Arc::new(place)
    }

    fn move_in(&self, birth: u64, failures: u32) {
        let policy = CircuitPolicy {
            trip: TripRule { consecutive: NonZeroU32::new(failures), rate: None },
            open_for: Duration::ZERO,
            max_open_for: Duration::ZERO,
            ..CircuitPolicy::default()
        };
        let circuit = Circuit::new("model".into(), std::sync::Arc::new(policy), birth);
        self.cell.occupy(circuit);
    }

    /// Evicts whoever lives here and lets a newcomer in; none when the owner cannot be spared.
    fn recycle(&self) -> Option<u64> {
        self.cell.evict(Expendable::WaitOver, self.moment().now)?;
        assert!(self.cell.admit_at_a_glance(self.birth).is_none(), "an evicted owner admits nobody");
        let birth = self.epochs.next();
        self.move_in(birth, 1);
        Some(birth)
    }

    fn moment(&self) -> Moment<'_> {
        Moment { now: Tick::at(self.zero, self.zero), chance: || 0, epochs: &self.epochs }
    }

    /// The epoch of an admitted call; none when it was refused or the place has gone to another.
    fn admit(&self, birth: u64) -> Option<u64> {
        let glance = self.cell.admit_at_a_glance(birth).map(Ok);
        let admission = glance.or_else(|| self.cell.admit(birth, &self.moment(), &mut Vec::new()));
        match admission {
            Some(Ok(Passage::Observed { epoch })) => Some(epoch),
            _ => None,
        }
    }

    fn settle(&self, epoch: u64, outcome: Outcome) -> Vec<CircuitEvent> {
        let call = Settlement { epoch, outcome, retry_after: None };
        let mut journal = Vec::new();
        if !self.cell.is_indifferent_to(epoch, outcome) {
            self.cell.settle(call, &self.moment(), &mut journal);
        }
        journal
    }

    fn snapshot(&self) -> CircuitSnapshot {
        let now = self.moment().now;
        self.cell.with_circuit(|circuit| circuit.snapshot(now, self.zero)).unwrap()
    }

    /// Opens the circuit by one failure.
    fn trip(&self) {
        let epoch = self.admit(self.birth).unwrap();
        self.settle(epoch, Outcome::Failure);
        assert_eq!(self.snapshot().state, CircuitState::Open);
    }
}

fn opened(journal: &[CircuitEvent]) -> usize {
    journal.iter().filter(|event| matches!(event, CircuitEvent::Opened { .. })).count()
}

#[test]
fn no_failure_is_lost_and_one_of_them_opens() {
    model(|| {
        let place = Place::opening_at(2);
        let other = Arc::clone(&place);
        let fail = |place: &Place| {
            let epoch = place.admit(place.birth).unwrap();
            opened(&place.settle(epoch, Outcome::Failure))
        };
        let first = thread::spawn(move || {
            let epoch = other.admit(other.birth)?;
            Some(opened(&other.settle(epoch, Outcome::Failure)))
        });
        let second = fail(&place);
        assert_eq!(first.join().unwrap().unwrap() + second, 1);
        assert_eq!(place.snapshot().state, CircuitState::Open);
    });
}

#[test]
fn a_success_ends_a_run_of_failures() {
    model(|| {
        let place = Place::opening_at(2);
        let epoch = place.admit(place.birth).unwrap();
        place.settle(epoch, Outcome::Failure);
        let other = Arc::clone(&place);
        let success = thread::spawn(move || other.settle(epoch, Outcome::Success));
        let failure = place.settle(epoch, Outcome::Failure);
        success.join().unwrap();
        let snapshot = place.snapshot();
        match snapshot.state {
            // The failure came first and met the rule.
            CircuitState::Open => assert_eq!(opened(&failure), 1),
            state => assert_eq!((state, snapshot.consecutive_failures), (CircuitState::Closed, 1)),
        }
    });
}

#[test]
fn a_success_that_saw_no_failure_yet_cannot_hide_a_later_one() {
    model(|| {
        let place = Place::opening_at(2);
        let epoch = place.admit(place.birth).unwrap();
        let other = Arc::clone(&place);
        let failing = thread::spawn(move || {
            other.settle(epoch, Outcome::Failure);
        });
        place.settle(epoch, Outcome::Success);
        failing.join().unwrap();
        // Whoever comes after both sees the word of what the circuit holds.
        let run = place.snapshot().consecutive_failures;
        assert_eq!(place.cell.is_indifferent_to(epoch, Outcome::Success), run == 0);
    });
}

#[test]
fn one_of_two_racing_calls_is_the_probe() {
    model(|| {
        let place = Place::opening_at(1);
        place.trip();
        let other = Arc::clone(&place);
        let first = thread::spawn(move || other.admit(other.birth).is_some());
        let second = place.admit(place.birth).is_some();
        assert!(first.join().unwrap() ^ second, "exactly one probe");
        assert_eq!(place.snapshot().probes_in_flight, 1);
    });
}

#[test]
fn a_dropped_probe_gives_its_slot_back() {
    model(|| {
        let place = Place::opening_at(1);
        place.trip();
        let probe = place.admit(place.birth).unwrap();
        let other = Arc::clone(&place);
        let dropping = thread::spawn(move || other.settle(probe, Outcome::Ignored));
        let next = place.admit(place.birth);
        dropping.join().unwrap();
        let next = next.or_else(|| place.admit(place.birth)).unwrap();
        assert_eq!(place.snapshot().probes_in_flight, 1);
        place.settle(next, Outcome::Success);
        assert_eq!(place.snapshot().state, CircuitState::Closed);
    });
}

#[test]
fn a_straggler_moves_nothing_while_a_probe_decides() {
    model(|| {
        let place = Place::opening_at(1);
        let straggler = place.admit(place.birth).unwrap();
        place.trip();
        let probe = place.admit(place.birth).unwrap();
        let other = Arc::clone(&place);
        let late = thread::spawn(move || other.settle(straggler, Outcome::Failure));
        place.settle(probe, Outcome::Success);
        assert!(matches!(late.join().unwrap()[..], [CircuitEvent::StaleOutcome { .. }]));
        let snapshot = place.snapshot();
        assert_eq!((snapshot.state, snapshot.consecutive_failures), (CircuitState::Closed, 0));
    });
}

#[test]
fn once_forced_open_no_later_call_gets_through() {
    model(|| {
        let place = Place::opening_at(1);
        let done = Arc::new(AtomicU64::new(0));
        let (other, flag) = (Arc::clone(&place), Arc::clone(&done));
        let operator = thread::spawn(move || {
            let mut journal = Vec::new();
            other.cell.with_owner(other.birth, |circuit| {
                circuit.set_mode(CircuitMode::ForcedOpen, &other.moment(), &mut journal);
            });
            flag.store(1, Ordering::Release);
        });
        let set = done.load(Ordering::Acquire) == 1;
        let admitted = place.admit(place.birth);
        assert!(!(set && admitted.is_some()));
        operator.join().unwrap();
        // The call that got through before, if any, is judged in an epoch that is over.
        if let Some(epoch) = admitted {
            assert_eq!(opened(&place.settle(epoch, Outcome::Failure)), 0);
        }
    });
}

#[test]
fn an_outcome_of_the_old_owner_never_reaches_the_new_one() {
    model(|| {
        let place = Place::opening_at(2);
        let epoch = place.admit(place.birth).unwrap();
        let other = Arc::clone(&place);
        let late = thread::spawn(move || other.settle(epoch, Outcome::Failure));
        let recycled = place.recycle();
        late.join().unwrap();
        if recycled.is_some() {
            let snapshot = place.snapshot();
            assert_eq!((snapshot.state, snapshot.consecutive_failures), (CircuitState::Closed, 0));
        }
    });
}

#[test]
fn a_call_for_the_old_owner_is_never_admitted_by_the_new_one() {
    model(|| {
        let place = Place::opening_at(1);
        let other = Arc::clone(&place);
        let caller = thread::spawn(move || {
            let epoch = other.admit(other.birth)?;
            // Were it admitted by the new owner, its failure would open that circuit.
            other.settle(epoch, Outcome::Failure);
            Some(epoch)
        });
        let recycled = place.recycle();
        let admitted = caller.join().unwrap();
        if let Some(birth) = recycled {
            assert!(admitted.is_none_or(|epoch| epoch < birth), "charged to a stranger");
            assert_eq!(place.snapshot().state, CircuitState::Closed);
        }
    });
}

#[test]
fn who_finds_the_new_owner_is_served_by_it() {
    model(|| {
        let place = Place::opening_at(1);
        let map = Arc::new(Mutex::new(place.birth));
        let (other, read) = (Arc::clone(&place), Arc::clone(&map));
        let caller = thread::spawn(move || {
            let birth = *lock(&read);
            (birth, other.admit(birth))
        });
        let newcomer = place.recycle().unwrap();
        *lock(&map) = newcomer;
        let (birth, admitted) = caller.join().unwrap();
        if birth == newcomer {
            assert_eq!(admitted, Some(newcomer));
        }
    });
}

#[test]
fn an_owner_with_something_to_protect_is_not_evicted_under_a_racing_failure() {
    model(|| {
        let place = Place::opening_at(1);
        let epoch = place.admit(place.birth).unwrap();
        let other = Arc::clone(&place);
        let failing = thread::spawn(move || opened(&other.settle(epoch, Outcome::Failure)));
        let evicted = place.cell.evict(Expendable::Fresh, place.moment().now).is_some();
        let opened = failing.join().unwrap() == 1;
        assert!(opened ^ evicted, "one word, one winner");
    });
}

#[test]
fn epochs_are_never_given_twice() {
    model(|| {
        let epochs = Arc::new(Epochs::new());
        let other = Arc::clone(&epochs);
        let first = thread::spawn(move || other.next());
        assert_ne!(epochs.next(), first.join().unwrap());
    });
}
