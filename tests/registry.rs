//! What happens when more origins come than circuits are kept.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use futures::FutureExt;
use reqwest_middleware::ClientWithMiddleware;
use reqwest_resilience::{CircuitBreaker, CircuitMode, CircuitSnapshot, CircuitState, ManualClock, Trip};
use std::{collections::BTreeMap, future::Future, pin::Pin, time::Duration};
use support::{Log, Reply, Saw, Transport, call, chain, state};
use tracing::Level;

const OPEN_FOR: Duration = Duration::from_secs(30);
/// A second failure in a row opens this circuit, a first one all others.
const PATIENT: &str = "http://patient";

/// A breaker with room for a few circuits, and what is around it.
///
/// Circuits are read through `snapshots` alone, which counts as no use of any of them.
struct World {
    clock: ManualClock,
    breaker: CircuitBreaker,
    transport: Transport,
    client: ClientWithMiddleware,
    log: Log,
}

/// A call that waits for its answer.
type Pending<'w> = Pin<Box<dyn Future<Output = Saw> + 'w>>;

impl World {
    fn with_room_for(max_circuits: usize) -> Self {
        let clock = ManualClock::new();
        let breaker = CircuitBreaker::builder()
            .defaults(|circuit| circuit.trip(Trip::consecutive(1)))
            .origin(PATIENT, |circuit| circuit.trip(Trip::consecutive(2)))
            .origin("http://windowed", |circuit| {
                circuit.trip(Trip::failure_rate(1.0).over(Duration::from_secs(10)))
            })
            .origin("http://refusing", |circuit| circuit.mode(CircuitMode::ForcedOpen))
            .max_circuits(max_circuits)
            .clock(clock.clone())
            .build()
            .unwrap();
        let transport = Transport::answering(200);
        Self { client: chain(&breaker, &transport), clock, breaker, transport, log: Log::listen() }
    }

    /// One call that succeeds.
    async fn succeed(&self, url: &str) {
        assert_eq!(call(&self.client, url).await, Saw::Status(200), "{url}");
    }

    /// One call that fails; it opens the circuit, unless that is a patient one.
    async fn fail(&self, url: &str) {
        self.transport.script([Reply::Status(503)]);
        assert_eq!(call(&self.client, url).await, Saw::Status(503), "{url}");
    }

    /// One call that stays out.
    fn send<'w>(&'w self, url: &'w str) -> Pending<'w> {
        self.transport.hold();
        let mut pending: Pending<'w> = Box::pin(call(&self.client, url));
        assert_eq!((&mut pending).now_or_never(), None, "{url}");
        self.transport.stop_holding();
        pending
    }

    /// The probe of a circuit that opens now.
    async fn probe<'w>(&'w self, url: &'w str) -> Pending<'w> {
        self.fail(url).await;
        self.clock.advance(OPEN_FOR);
        self.send(url)
    }

    /// The hosts of all circuits.
    fn hosts(&self) -> Vec<String> {
        let circuits = self.breaker.snapshots().into_iter();
        circuits.map(|one| host(&one).to_owned()).collect()
    }
}

fn host(circuit: &CircuitSnapshot) -> &str {
    let key = &*circuit.circuit_key;
    key.strip_prefix("http://").unwrap().strip_suffix(":80").unwrap()
}

#[tokio::test]
async fn a_fresh_circuit_goes_first_then_a_counted_one_then_an_open_one_whose_wait_is_over() {
    for order in [
        ["over", "patient", "fresh"],
        ["over", "fresh", "patient"],
        ["patient", "over", "fresh"],
        ["patient", "fresh", "over"],
        ["fresh", "over", "patient"],
        ["fresh", "patient", "over"],
    ] {
        let world = World::with_room_for(3);
        for host in order {
            let url = format!("http://{host}");
            match host {
                "fresh" => world.succeed(&url).await,
                _ => world.fail(&url).await,
            }
        }
        world.clock.advance(OPEN_FOR);
        for (newcomer, left) in
            [("x", ["over", "patient", "x"]), ("y", ["over", "x", "y"]), ("z", ["x", "y", "z"])]
        {
            // They open, so that none of them is the next to go.
            world.fail(&format!("http://{newcomer}")).await;
            assert_eq!(world.hosts(), left, "{order:?}");
        }
        assert_eq!(world.log.of("circuit.forgotten").len(), 1);
        assert_eq!(world.log.of("circuit.untracked").len(), 0);
    }
}

#[tokio::test]
async fn a_success_in_a_window_is_something_counted() {
    let world = World::with_room_for(2);
    world.succeed("http://windowed").await;
    world.succeed("http://fresh").await;
    world.succeed("http://x").await;
    assert_eq!(world.hosts(), ["windowed", "x"]);
}

#[tokio::test]
async fn what_the_settings_force_open_is_refused_however_full_the_breaker_is() {
    let world = World::with_room_for(1);
    assert_eq!(call(&world.client, "http://refusing").await, Saw::Rejected);
    for newcomer in 0..10 {
        world.fail(&format!("http://x{newcomer}")).await;
    }
    assert_eq!(world.hosts(), ["refusing"]);

    // Also where it comes too late for a circuit of its own.
    let world = World::with_room_for(1);
    world.fail("http://open").await;
    let hits = world.transport.hits();
    let refused = world.client.get("http://refusing").send().await.unwrap_err();
    assert_eq!(refused.to_string(), "request not sent: circuit http://refusing:80 is forced open");
    assert_eq!((world.hosts(), world.transport.hits()), (vec!["open".to_owned()], hits));
}

#[tokio::test]
async fn a_circuit_whose_window_has_emptied_is_as_good_as_fresh() {
    let world = World::with_room_for(2);
    world.fail(PATIENT).await;
    world.succeed("http://windowed").await;
    world.clock.advance(Duration::from_secs(11));
    world.succeed("http://x").await;
    assert_eq!(world.hosts(), ["patient", "x"]);
}

#[tokio::test]
async fn a_circuit_that_goes_while_not_closed_is_forgotten_in_the_log() {
    let world = World::with_room_for(1);
    world.fail("http://open").await;
    for _ in 0..2 {
        assert_eq!(call(&world.client, "http://open").await, Saw::Rejected);
    }
    world.clock.advance(OPEN_FOR);
    // Used lately: the first newcomer is turned away, the second is not.
    world.succeed("http://x").await;
    assert_eq!(world.hosts(), ["open"]);
    world.fail("http://half-open").await;
    world.clock.advance(OPEN_FOR);
    // A probe that says nothing leaves the circuit half-open, with no probe out.
    world.transport.script([Reply::ForeignError]);
    assert_eq!(call(&world.client, "http://half-open").await, Saw::Error);
    world.succeed("http://x").await;
    world.succeed("http://x").await;
    // Closed circuits leave without a word.
    world.fail(PATIENT).await;
    world.succeed("http://y").await;
    assert_eq!(world.hosts(), ["y"]);

    let lines = world.log.of("circuit.forgotten");
    for (line, (key, state, rejected)) in
        lines.iter().zip([("http://open:80", "open", "2"), ("http://half-open:80", "half_open", "0")])
    {
        assert_eq!(line.level, Level::INFO);
        assert_eq!(line.names(), ["circuit_key", "epoch", "rejected", "state"]);
        assert_eq!(line.get("circuit_key"), key);
        assert_eq!(line.get("state"), state);
        assert_eq!(line.get("rejected"), rejected);
    }
    assert_eq!(lines.len(), 2);
}

#[tokio::test]
async fn a_circuit_that_protects_somebody_or_is_under_orders_never_goes() {
    for mode in [CircuitMode::ForcedOpen, CircuitMode::ForcedClosed, CircuitMode::Shadow] {
        let world = World::with_room_for(3);
        let probe = world.probe("http://probed").await;
        world.fail("http://open").await;
        world.breaker.set_mode("http://ordered", mode).unwrap();
        let before = world.breaker.snapshots();
        // More newcomers than chances.
        for newcomer in 0..10 {
            world.fail(&format!("http://x{newcomer}")).await;
        }
        assert_eq!(world.breaker.snapshots(), before);

        world.clock.advance(Duration::from_millis(29_999));
        world.succeed("http://x").await;
        assert_eq!(world.hosts(), ["open", "ordered", "probed"]);
        world.clock.advance(Duration::from_millis(1));
        world.succeed("http://x").await;
        assert_eq!(world.hosts(), ["ordered", "probed", "x"]);

        // Both may go once the probe is back and the order taken back; their last use buys them one round more.
        world.transport.take_held().unwrap().answer(200);
        assert_eq!(probe.await, Saw::Status(200));
        assert!(world.breaker.reset("http://ordered"));
        for newcomer in ["http://a", "http://b", "http://c", "http://d"] {
            world.fail(newcomer).await;
        }
        for gone in ["ordered", "probed"] {
            assert!(!world.hosts().contains(&gone.to_owned()), "{gone}");
        }
    }
}

#[tokio::test]
async fn a_probe_that_hangs_for_good_keeps_its_circuit_no_longer_than_lease_and_wait() {
    let world = World::with_room_for(1);
    let probe = world.probe("http://hung").await;
    // The first newcomer takes the mark of the last use away.
    world.fail("http://x").await;
    // 60 s of lease and 30 s of waiting.
    world.clock.advance(Duration::from_millis(89_999));
    world.fail("http://x").await;
    assert_eq!(world.hosts(), ["hung"]);
    world.clock.advance(Duration::from_millis(1));
    world.fail("http://x").await;
    assert_eq!(world.hosts(), ["x"]);

    let before = world.breaker.snapshots();
    world.transport.take_held().unwrap().answer(200);
    assert_eq!(probe.await, Saw::Status(200));
    assert_eq!(world.breaker.snapshots(), before);
}

#[tokio::test]
async fn with_nothing_to_recycle_requests_pass_untracked_and_one_a_second_is_reported() {
    let world = World::with_room_for(1);
    world.fail("http://open").await;
    for (pause, reports) in [
        (Duration::ZERO, 1),
        (Duration::ZERO, 1),
        (Duration::from_millis(999), 1),
        (Duration::from_millis(1), 2),
        (Duration::from_millis(999), 2),
        (Duration::from_secs(9), 3),
    ] {
        world.clock.advance(pause);
        // A circuit that opens at the first failure would not let a second call pass.
        world.fail("http://x").await;
        assert_eq!(world.log.of("circuit.untracked").len(), reports);
    }
    let lines = world.log.of("circuit.untracked");
    let suppressed: Vec<_> = lines.iter().map(|line| line.get("suppressed")).collect();
    assert_eq!(suppressed, ["0", "2", "1"]);
    for line in lines {
        assert_eq!(line.level, Level::WARN);
        assert_eq!(line.names(), ["max_circuits", "suppressed"]);
        assert_eq!(line.get("max_circuits"), "1");
    }
    assert_eq!(world.hosts(), ["open"]);
    assert_eq!(call(&world.client, "http://open").await, Saw::Rejected);
}

#[tokio::test]
async fn an_outcome_of_a_recycled_circuit_changes_nothing_of_the_new_owner() {
    for late in [200, 503] {
        for (newcomer, expected) in [
            ("http://closed", CircuitState::Closed),
            // The old key itself, made anew.
            ("http://old", CircuitState::Closed),
            ("http://open", CircuitState::Open),
            ("http://half-open", CircuitState::HalfOpen),
        ] {
            let world = World::with_room_for(1);
            let old = world.send("http://old");
            world.succeed("http://between").await;
            let probe = match expected {
                CircuitState::Closed => {
                    world.succeed(newcomer).await;
                    None
                }
                CircuitState::Open => {
                    world.fail(newcomer).await;
                    None
                }
                CircuitState::HalfOpen => Some(world.probe(newcomer).await),
            };
            let before = world.breaker.snapshots();
            assert_eq!(before[0].state, expected);
            world.transport.take_held().unwrap().answer(late);
            assert_eq!(old.await, Saw::Status(late));
            assert_eq!(world.breaker.snapshots(), before, "{late} for {newcomer}");
            // It has no name to be reported by.
            assert_eq!(world.log.of("circuit.stale_outcome").len(), 0);
            drop(probe);
        }
    }
}

#[tokio::test]
async fn a_place_is_left_with_nothing_of_its_last_owner() {
    let world = World::with_room_for(1);
    world.fail(PATIENT).await;
    world.fail("http://hasty").await;
    let hasty = &world.breaker.snapshots()[0];
    assert_eq!((hasty.state, hasty.window), (CircuitState::Open, None));
    assert_eq!(world.breaker.snapshot(PATIENT), None);
    world.clock.advance(OPEN_FOR);
    world.fail(PATIENT).await;
    let patient = &world.breaker.snapshots()[0];
    assert_eq!(patient.state, CircuitState::Closed);
    assert_eq!(patient.consecutive_failures, 1);
    assert_eq!((patient.rejected, patient.opened_at), (0, None));
}

#[tokio::test]
async fn set_mode_makes_a_circuit_beyond_the_cap_when_nothing_can_go() {
    let world = World::with_room_for(1);
    let order = |url| world.breaker.set_mode(url, CircuitMode::ForcedOpen).unwrap();
    world.succeed("http://fresh").await;
    order("http://a");
    assert_eq!(world.hosts(), ["a"]);
    order("http://b");
    order("http://c");
    assert_eq!(world.hosts(), ["a", "b", "c"]);
    for url in ["http://a", "http://b", "http://c"] {
        assert_eq!(call(&world.client, url).await, Saw::Rejected);
    }
    // Requests do not make it grow, and find the places that orders made once they are free.
    world.fail("http://x").await;
    assert_eq!(world.hosts(), ["a", "b", "c"]);
    world.breaker.reset("http://b");
    for _ in 0..2 {
        world.transport.script([Reply::Status(503)]);
        call(&world.client, "http://x").await;
    }
    assert_eq!(world.hosts(), ["a", "c", "x"]);
}

#[tokio::test]
async fn the_epochs_of_a_key_only_grow_however_often_its_circuit_is_made_anew() {
    let world = World::with_room_for(1);
    let mut snapshots = Vec::new();
    for _ in 0..20 {
        for url in ["http://a", "http://b"] {
            world.fail(url).await;
            snapshots.extend(world.breaker.snapshots());
            world.clock.advance(OPEN_FOR);
        }
    }
    let mut logged = BTreeMap::<_, Vec<u64>>::new();
    for line in world.log.lines() {
        let epoch = line.get("epoch").parse().unwrap();
        logged.entry(line.get("circuit_key").to_owned()).or_default().push(epoch);
    }
    // Opened and forgotten by turns; the last one is still there.
    assert_eq!(logged["http://a:80"].len(), 40);
    assert_eq!(logged["http://b:80"].len(), 39);
    for epochs in logged.values() {
        assert!(epochs.is_sorted_by(|a, b| a < b), "{epochs:?}");
    }
    assert!(snapshots.is_sorted_by(|a, b| a.epoch < b.epoch));
}

#[tokio::test]
async fn a_circuit_used_lately_gets_a_second_chance_and_no_third() {
    let world = World::with_room_for(3);
    for url in ["http://a", "http://b", "http://c", "http://a"] {
        world.succeed(url).await;
    }
    for (newcomer, left) in
        [("http://x", ["a", "c", "x"]), ("http://y", ["a", "x", "y"]), ("http://z", ["x", "y", "z"])]
    {
        world.succeed(newcomer).await;
        assert_eq!(world.hosts(), left);
    }
}

#[tokio::test]
async fn a_circuit_in_use_outlives_any_number_of_newcomers() {
    let world = World::with_room_for(3);
    for newcomer in 0..100 {
        world.succeed("http://a").await;
        world.succeed(&format!("http://x{newcomer}")).await;
        assert!(world.hosts().contains(&"a".to_owned()), "{newcomer}");
    }
    assert_eq!(world.log.events(), [""; 0]);
}

#[tokio::test]
async fn a_newcomer_looks_at_sixty_four_circuits_and_no_more() {
    for (protected, newcomers) in [(0, 1), (63, 1), (64, 2), (127, 2), (128, 3)] {
        let world = World::with_room_for(protected + 1);
        for host in 0..protected {
            world.fail(&format!("http://open{host}")).await;
        }
        world.succeed("http://fresh").await;
        for newcomer in 1..=newcomers {
            assert!(world.hosts().contains(&"fresh".to_owned()), "{protected}");
            world.succeed(&format!("http://x{newcomer}")).await;
        }
        assert!(world.hosts().contains(&format!("x{newcomers}")), "{protected}");
        assert_eq!(world.hosts().len(), protected + 1);
    }
}

#[tokio::test]
async fn ten_thousand_circuits_are_kept_unless_said_otherwise() {
    let breaker = CircuitBreaker::default();
    let client = chain(&breaker, &Transport::answering(200));
    for (seen, kept) in [(9_999, 9_999), (10_000, 10_000), (10_100, 10_000)] {
        for host in breaker.snapshots().len()..seen {
            call(&client, &format!("http://h{host}")).await;
        }
        assert_eq!(breaker.snapshots().len(), kept);
    }
    assert_eq!(state(&breaker, "http://h10099"), CircuitState::Closed);
    assert_eq!(breaker.snapshot("http://h0"), None);
}

#[tokio::test]
async fn a_place_that_changes_hands_has_the_rules_of_its_new_owner() {
    let [own, plain] = ["http://own.example.com/", "http://plain.example.com/"];
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(1)))
        .origin(own, |circuit| circuit.failure_statuses([404]).open_for(Duration::ZERO))
        .max_circuits(1)
        .build()
        .unwrap();
    let transport = Transport::answering(200);
    let client = chain(&breaker, &transport);
    for (url, opens) in [(own, true), (plain, false), (own, true)] {
        transport.answer(200);
        // The owner was used lately, which spares it once.
        for _ in 0..2 {
            call(&client, url).await;
        }
        transport.answer(404);
        call(&client, url).await;
        assert_eq!(state(&breaker, url) == CircuitState::Open, opens, "{url}");
    }
}
