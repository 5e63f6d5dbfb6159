//! Real threads that get in each other's way, and the proof that they did.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use futures::{FutureExt, executor::block_on};
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use reqwest_resilience::{
    CircuitBreaker, CircuitBreakerBuilder, CircuitEvent, CircuitState, Clock, OpenReason, Rejection, Trip,
    Verdict,
};
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Barrier, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use support::{KEY, Saw, call, plain_client, state};

/// So many collisions prove that the threads contended. Few, since a busy machine lets few happen in time.
const ENOUGH: usize = 10;

/// Runs `work` on so many threads that start together.
fn on_threads(threads: usize, work: impl Fn() + Sync) {
    let start = Barrier::new(threads);
    let started = || {
        start.wait();
        work();
    };
    // A panic in one of them ends the scope with a panic.
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(started))));
}

/// Repeats `work` on more and more threads, for a second at least, until they have collided often enough.
fn collide(work: impl Fn() + Sync, collisions: impl Fn() -> usize) {
    let begun = Instant::now();
    for threads in [2, 4, 8, 16, 32, 64, 128] {
        let round = Instant::now();
        on_threads(threads, || {
            while round.elapsed() < Duration::from_millis(250) {
                work();
            }
        });
        if ENOUGH <= collisions() && Duration::from_secs(1) <= begun.elapsed() {
            return;
        }
    }
    panic!("{} collisions are no contention", collisions());
}

const FAILS: &str = "http://api.example.com/503";
const SUCCEEDS: &str = "http://api.example.com/200";
const TEAPOT: &str = "http://api.example.com/418";
const HANGS: &str = "http://api.example.com/hang";
const COIN: &str = "http://api.example.com/coin";

/// A number that many threads raise.
#[derive(Default)]
struct Tally(AtomicUsize);

impl Tally {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// A last middleware that counts the calls inside it, gives way to other threads, and answers what the path
/// says.
#[derive(Clone, Default)]
struct Gate(Arc<Passing>);

#[derive(Default)]
struct Passing {
    entered: Tally,
    inside: AtomicUsize,
    most: AtomicUsize,
}

impl Gate {
    /// Calls that were sent.
    fn entered(&self) -> usize {
        self.0.entered.get()
    }

    /// The most calls that were under way at once.
    fn most(&self) -> usize {
        self.0.most.load(Ordering::SeqCst)
    }
}

/// Ends with the call, however that ends.
struct Inside<'a>(&'a Passing);

impl<'a> Inside<'a> {
    fn enter(passing: &'a Passing) -> Self {
        passing.entered.add();
        let inside = passing.inside.fetch_add(1, Ordering::SeqCst) + 1;
        passing.most.fetch_max(inside, Ordering::SeqCst);
        Self(passing)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait::async_trait]
impl Middleware for Gate {
    async fn handle(
        &self,
        request: Request,
        _: &mut Extensions,
        _: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let _inside = Inside::enter(&self.0);
        thread::yield_now();
        let status = match request.url().path() {
            "/hang" => std::future::pending().await,
            "/coin" => [200, 503][fastrand::usize(..2)],
            status => status[1..].parse().unwrap(),
        };
        let response = http::Response::builder().status::<u16>(status);
        Ok(response.body("").unwrap().into())
    }
}

/// `breaker → gate`, nothing else.
fn gated(breaker: &CircuitBreaker) -> (ClientWithMiddleware, Gate) {
    let gate = Gate::default();
    let client = ClientBuilder::new(plain_client()).with(breaker.clone()).with(gate.clone()).build();
    (client, gate)
}

/// A clock that gives way to other threads when it is read: after a call has looked at its circuit, and
/// before it acts.
struct GivesWay;

impl Clock for GivesWay {
    fn now(&self) -> Instant {
        (0..4).for_each(|_| thread::yield_now());
        Instant::now()
    }
}

/// One failure opens, and the next call is a probe at once.
fn brittle() -> CircuitBreakerBuilder {
    CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(1)).open_for(Duration::ZERO))
        .clock(GivesWay)
}

#[test]
fn probes_that_say_nothing_never_exceed_their_number_and_lose_no_slot() {
    for probes in [1, 3] {
        let breaker = brittle()
            .defaults(|circuit| circuit.probes(probes).success_threshold(probes))
            .classify(|attempt| match attempt.result() {
                Ok(response) if response.status() == 418 => Verdict::Ignore,
                _ => attempt.default_verdict(),
            })
            .build()
            .unwrap();
        let (client, gate) = gated(&breaker);
        block_on(call(&client, FAILS));

        // Every call that is sent from now on is a probe of one and the same half-open state.
        let refused = Tally::default();
        let ask = || {
            drop(client.get(HANGS).send().boxed().now_or_never());
            if block_on(call(&client, TEAPOT)) == Saw::Rejected {
                refused.add();
            }
        };
        let probes = probes as usize;
        // All slots were taken at once, and still somebody asked.
        collide(ask, || if gate.most() < probes { 0 } else { refused.get() });
        assert_eq!(gate.most(), probes);
        for _ in 0..probes {
            assert_eq!(state(&breaker, KEY), CircuitState::HalfOpen);
            assert_eq!(block_on(call(&client, SUCCEEDS)), Saw::Status(200));
        }
        assert_eq!(state(&breaker, KEY), CircuitState::Closed);
    }
}

#[test]
fn a_probe_that_fails_is_alone_and_reopens_its_circuit_once() {
    let witness = Witness::default();
    let breaker = witness.watch(brittle()).build().unwrap();
    let (client, gate) = gated(&breaker);
    block_on(call(&client, FAILS));
    let refused = Tally::default();
    let ask = || {
        if block_on(call(&client, FAILS)) == Saw::Rejected {
            refused.add();
        }
    };
    collide(ask, || refused.get());
    assert_eq!(gate.most(), 1);
    assert_eq!(witness.count("circuit.opened"), gate.entered());
    witness.assert_chains(&breaker);
}

#[test]
fn a_storm_of_transitions_leaves_a_legal_chain_and_every_call_accounted_for() {
    let witness = Witness::default();
    let breaker = witness
        .watch(brittle())
        .defaults(|circuit| {
            let circuit = circuit.trip(Trip::consecutive(2)).open_for(Duration::from_nanos(1));
            circuit.probes(2).success_threshold(3)
        })
        .build()
        .unwrap();
    let (client, gate) = gated(&breaker);
    let (asked, refused, refused_half_open) = <(Tally, Tally, Tally)>::default();
    let ask = || {
        asked.add();
        let Err(error) = block_on(client.get(COIN).send()) else {
            return;
        };
        refused.add();
        match Rejection::find(&error) {
            Some(Rejection::CircuitOpen { state: CircuitState::HalfOpen, .. }) => refused_half_open.add(),
            Some(_) => {}
            None => panic!("{error:?}"),
        }
        assert!(breaker.snapshot(KEY).unwrap().probes_in_flight <= 2);
    };
    let late = || witness.count("circuit.stale_outcome");
    collide(ask, || refused_half_open.get().min(late()));

    assert_eq!(gate.entered() + refused.get(), asked.get());
    let mut counted = breaker.snapshot(KEY).unwrap().rejected;
    for event in witness.events().iter() {
        match event {
            CircuitEvent::Closed { rejected, .. } => counted += rejected,
            // One outcome opens, and it is the one that made the evidence whole.
            CircuitEvent::Opened { reason: OpenReason::Consecutive, failures, .. } => {
                assert_eq!(*failures, 2);
            }
            _ => {}
        }
    }
    assert_eq!(counted, refused.get() as u64);
    witness.assert_chains(&breaker);
}

#[test]
fn origins_that_many_threads_call_first_have_one_circuit_each_that_misses_nothing() {
    const THREADS: usize = 8;
    const ORIGINS: usize = 500;

    let breaker = brittle().defaults(|circuit| circuit.trip(Trip::consecutive(1_000))).build().unwrap();
    let (client, gate) = gated(&breaker);
    // Whoever is ahead makes the circuits, with its slow clock, and so is caught up with.
    on_threads(THREADS, || {
        for origin in 0..ORIGINS {
            block_on(call(&client, &format!("http://origin-{origin}.example.com/503")));
        }
    });
    assert!(1 < gate.most());
    let circuits = breaker.snapshots().into_iter();
    let failures: Vec<_> = circuits.map(|circuit| circuit.consecutive_failures as usize).collect();
    assert_eq!(failures, [THREADS; ORIGINS]);
}

#[test]
fn a_storm_of_recycling_keeps_to_the_cap_and_to_every_circuit_that_is_open() {
    const CIRCUITS: usize = 4;
    const KEYS: usize = 64;
    const DOWN: &str = "http://down.example.com/503";

    let witness = Witness::default();
    let breaker = witness
        .watch(brittle())
        .origin(DOWN, |circuit| circuit.open_for(Duration::from_secs(3_600)))
        .max_circuits(CIRCUITS)
        .build()
        .unwrap();
    let (client, gate) = gated(&breaker);
    block_on(call(&client, DOWN));
    let before = breaker.snapshot(DOWN).unwrap();

    // Most are down too, or closed circuits would be the only ones that have to go.
    let urls: Vec<_> = (0..KEYS)
        .map(|key| {
            let (name, answer) =
                [("well", "200"), ("moody", "coin"), ("down", "503"), ("down", "503")][key % 4];
            format!("http://{name}-{key}.example.com/{answer}")
        })
        .collect();
    let refused = Tally::default();
    let ask = || {
        for _ in 0..8 {
            let url = &urls[fastrand::usize(..KEYS)];
            if let Err(error) = block_on(client.get(url).send()) {
                let Some(Rejection::CircuitOpen { circuit_key, .. }) = Rejection::find(&error) else {
                    panic!("{error:?}");
                };
                assert!(url.starts_with(circuit_key.trim_end_matches(":80")), "{url}: {circuit_key}");
            }
        }
        assert_eq!(block_on(call(&client, DOWN)), Saw::Rejected);
        refused.add();
        assert!(breaker.snapshots().len() <= CIRCUITS);
    };
    collide(ask, || witness.count("circuit.forgotten"));
    assert!(1 < gate.most());
    // No failure of the owner before, or of the one after, was charged to a circuit that has none.
    assert!(
        !witness.events().iter().any(|event| {
            event.name() == "circuit.opened" && event.circuit_key().unwrap().contains("well")
        })
    );

    let after = breaker.snapshot(DOWN).unwrap();
    assert_eq!((after.state, after.epoch), (CircuitState::Open, before.epoch));
    assert_eq!(after.rejected, refused.get() as u64);
    let circuits = breaker.snapshots().into_iter();
    let keys: HashSet<_> = circuits.map(|circuit| circuit.circuit_key).collect();
    assert_eq!(keys.len(), CIRCUITS);
    witness.assert_chains(&breaker);
}

/// A listener that remembers everything but rejections.
#[derive(Clone, Default)]
struct Witness(Arc<Mutex<Vec<CircuitEvent>>>);

impl Witness {
    fn watch(&self, breaker: CircuitBreakerBuilder) -> CircuitBreakerBuilder {
        let witness = self.clone();
        breaker.on_event(move |event| {
            if !matches!(event, CircuitEvent::Rejected { .. }) {
                witness.events().push(event.clone());
            }
        })
    }

    fn events(&self) -> MutexGuard<'_, Vec<CircuitEvent>> {
        self.0.lock().unwrap()
    }

    fn count(&self, name: &str) -> usize {
        self.events().iter().filter(|event| event.name() == name).count()
    }

    /// In the order of their epochs, each transition of a circuit leaves the state that the one before began,
    /// and the last began the state that the circuit is in. One that is gone was forgotten, or closed.
    fn assert_chains(&self, breaker: &CircuitBreaker) {
        let mut chains = HashMap::<_, Vec<_>>::new();
        for event in self.events().iter() {
            if let Some(step) = step(event) {
                let key = Arc::clone(event.circuit_key().unwrap());
                chains.entry(key).or_default().push(step);
            }
        }
        for (key, mut steps) in chains {
            steps.sort_unstable_by_key(|(epoch, ..)| *epoch);
            let mut last = (0, CircuitState::Closed);
            for (epoch, from, to) in steps {
                assert!(
                    last.0 < epoch && last.1 == from && from != to,
                    "{key}: {from} to {to} after {last:?}"
                );
                last = (epoch, to);
            }
            let circuit = breaker.snapshot(&key);
            let state = circuit.map_or(CircuitState::Closed, |circuit| circuit.state);
            assert_eq!(last.1, state, "{key}");
        }
    }
}

/// The epoch, the state that ended and the one that began; none for an event that is no transition.
fn step(event: &CircuitEvent) -> Option<(u64, CircuitState, CircuitState)> {
    use CircuitState::{Closed, HalfOpen, Open};

    match event {
        CircuitEvent::Opened { epoch, from, .. } => Some((*epoch, *from, Open)),
        CircuitEvent::HalfOpen { epoch, .. } => Some((*epoch, Open, HalfOpen)),
        CircuitEvent::Closed { epoch, .. } => Some((*epoch, HalfOpen, Closed)),
        // Its key begins anew, with a closed circuit.
        CircuitEvent::Forgotten { epoch, state, .. } => Some((*epoch, *state, Closed)),
        _ => None,
    }
}
