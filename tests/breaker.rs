//! States, probes, stragglers, waits and modes of a circuit, over a scripted transport and a clock moved by
//! hand.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unchecked_time_subtraction,
    reason = "a test fails so"
)]

mod support;

use futures::{FutureExt, future::BoxFuture};
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use reqwest_resilience::{
    CircuitBreaker, CircuitBreakerBuilder, CircuitEvent, CircuitMode, CircuitSettings, CircuitSnapshot,
    CircuitState, Clock, ManualClock, OpenReason, Rejection, Trip, Until,
};
use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use support::{Held, KEY, Lagging, Log, Reply, Saw, Transport, URL, call, chain, plain_client, state};
use tokio::{
    sync::{Barrier, Semaphore},
    task::JoinSet,
};

/// How long the circuit of a [`Lab`] stays open.
const WAIT: Duration = ms(300);
const A_NANO: Duration = Duration::from_nanos(1);
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A circuit over a scripted transport. It opens when half of four calls or more failed, for [`WAIT`]; one
/// probe decides.
struct Lab {
    breaker: CircuitBreaker,
    clock: ManualClock,
    transport: Transport,
    client: ClientWithMiddleware,
    events: Arc<Mutex<Vec<CircuitEvent>>>,
}

impl Lab {
    fn new() -> Self {
        Self::with(|circuit| circuit)
    }

    /// With settings that differ.
    fn with(settings: impl FnOnce(CircuitSettings) -> CircuitSettings) -> Self {
        Self::over(Transport::answering(200), |breaker| breaker.defaults(settings))
    }

    fn over(
        transport: Transport,
        settings: impl FnOnce(CircuitBreakerBuilder) -> CircuitBreakerBuilder,
    ) -> Self {
        let clock = ManualClock::new();
        let events = Arc::<Mutex<Vec<CircuitEvent>>>::default();
        let heard = Arc::clone(&events);
        let base = CircuitBreaker::builder()
            .defaults(|circuit| circuit.trip(Trip::failure_rate(0.5).min_calls(4)).open_for(WAIT))
            .clock(clock.clone())
            .on_event(move |event| heard.lock().unwrap().push(event.clone()));
        let breaker = settings(base).build().unwrap();
        Self { client: chain(&breaker, &transport), breaker, clock, transport, events }
    }

    /// Sends a call that is answered with `status` if it goes out.
    async fn send(&self, status: u16) -> Saw {
        self.transport.answer(status);
        call(&self.client, URL).await
    }

    /// Sends a call that is left without an answer.
    fn begin(&self) -> UnderWay<'_> {
        self.transport.hold();
        let mut call = call(&self.client, URL).boxed();
        let early = (&mut call).now_or_never();
        self.transport.stop_holding();
        let answer = self.transport.take_held();
        UnderWay { answer: answer.unwrap_or_else(|| panic!("not sent: {early:?}")), call }
    }

    /// Sends a call that must not go out, and returns what its rejection says.
    async fn rejection(&self) -> (CircuitState, CircuitMode, Option<Duration>) {
        let hits = self.transport.hits();
        let error = self.client.get(URL).send().await.unwrap_err();
        assert_eq!(self.transport.hits(), hits);
        match Rejection::find(&error) {
            Some(Rejection::CircuitOpen { state, mode, retry_after, .. }) => (*state, *mode, *retry_after),
            _ => panic!("{error}"),
        }
    }

    /// Sends a call that must not go out, and returns how long it is told to wait.
    async fn refused(&self) -> Option<Duration> {
        self.rejection().await.2
    }

    /// Fails calls until the circuit opens.
    async fn trip(&self) {
        for _ in 0..100 {
            assert_eq!(self.send(503).await, Saw::Status(503));
            if self.state() == CircuitState::Open {
                return;
            }
        }
        panic!("100 failures do not open it");
    }

    /// Opens the circuit and lets its wait pass: the next call is a probe.
    async fn trip_and_wait(&self) {
        self.trip().await;
        self.clock.advance(WAIT);
    }

    fn snapshot(&self) -> CircuitSnapshot {
        self.breaker.snapshot(KEY).unwrap()
    }

    fn state(&self) -> CircuitState {
        state(&self.breaker, KEY)
    }

    fn set_mode(&self, mode: CircuitMode) {
        self.breaker.set_mode(KEY, mode).unwrap();
    }

    /// Ends a call that is too late to change anything.
    async fn ends_in_vain(&self, straggler: UnderWay<'_>, status: u16) {
        let before = self.snapshot();
        assert_eq!(straggler.ends(status).await, Saw::Status(status));
        assert_eq!(self.snapshot(), before);
    }

    /// The events since the last time somebody asked.
    fn events(&self) -> Vec<CircuitEvent> {
        std::mem::take(&mut *self.events.lock().unwrap())
    }

    /// Their names.
    fn event_names(&self) -> Vec<&'static str> {
        self.events().iter().map(CircuitEvent::name).collect()
    }
}

/// A call that was sent and has no answer yet. Dropping it is what a caller does who gives up.
struct UnderWay<'a> {
    call: BoxFuture<'a, Saw>,
    answer: Held,
}

impl UnderWay<'_> {
    async fn ends(self, status: u16) -> Saw {
        self.answer.answer(status);
        self.call.await
    }
}

// Closed

#[tokio::test(start_paused = true)]
async fn a_circuit_opens_at_the_fifth_failure_in_a_row_and_the_sixth_call_is_not_sent() {
    let breaker = CircuitBreaker::default();
    let transport = Transport::answering(503);
    let client = chain(&breaker, &transport);
    for _ in 0..5 {
        assert_eq!(call(&client, URL).await, Saw::Status(503));
    }
    assert_eq!(state(&breaker, KEY), CircuitState::Open);
    assert_eq!(call(&client, URL).await, Saw::Rejected);
    assert_eq!(transport.hits(), 5);
    tokio::time::advance(Duration::from_secs(30)).await;
    transport.answer(200);
    assert_eq!(call(&client, URL).await, Saw::Status(200));
    assert_eq!(state(&breaker, KEY), CircuitState::Closed);
}

#[tokio::test]
async fn a_clock_moved_by_hand_ends_the_wait_to_the_nanosecond() {
    let lab = Lab::new();
    lab.trip().await;
    lab.clock.advance(WAIT - A_NANO);
    assert_eq!(lab.refused().await, Some(A_NANO));
    lab.clock.advance(A_NANO);
    assert_eq!(lab.send(204).await, Saw::Status(204));
    assert_eq!(lab.state(), CircuitState::Closed);
}

#[tokio::test]
async fn a_success_starts_the_count_of_failures_in_a_row_again() {
    let lab = Lab::with(|circuit| circuit.trip(Trip::consecutive(3)));
    for status in [503, 503, 404, 503, 503] {
        lab.send(status).await;
    }
    assert_eq!(lab.state(), CircuitState::Closed);
    assert_eq!(lab.snapshot().consecutive_failures, 2);
    lab.send(503).await;
    assert_eq!(lab.state(), CircuitState::Open);
}

#[tokio::test]
async fn an_ignored_outcome_touches_no_count() {
    let both_rules = Trip::consecutive(3).or(Trip::failure_rate(0.9).min_calls(10));
    let lab = Lab::with(|circuit| circuit.trip(both_rules));
    for status in [200, 503, 503] {
        lab.send(status).await;
    }
    let before = lab.snapshot();
    for _ in 0..5 {
        lab.transport.script([Reply::BuilderError, Reply::ForeignError]);
        assert_eq!(lab.send(200).await, Saw::Error);
        assert_eq!(lab.send(200).await, Saw::Error);
        drop(lab.begin());
    }
    assert_eq!(lab.snapshot(), before);
    lab.send(503).await;
    assert_eq!(lab.state(), CircuitState::Open);
}

#[tokio::test]
async fn f09_after_a_recovery_it_takes_the_full_evidence_again() {
    for trip in [Trip::consecutive(4), Trip::failure_rate(0.5).min_calls(4).into()] {
        let lab = Lab::with(|circuit| circuit.trip(trip));
        lab.trip_and_wait().await;
        lab.send(200).await;
        for _ in 0..3 {
            lab.send(503).await;
            assert_eq!(lab.state(), CircuitState::Closed);
        }
        lab.send(503).await;
        assert_eq!(lab.state(), CircuitState::Open);
    }
}

#[tokio::test]
async fn a_response_later_than_slow_call_is_a_failure_whatever_its_status() {
    let lab = Lab::with(|circuit| circuit.trip(Trip::consecutive(2)).slow_call(ms(100)));
    let in_time = lab.begin();
    lab.clock.advance(ms(100));
    in_time.ends(200).await;
    assert_eq!(lab.snapshot().consecutive_failures, 0);
    for status in [200, 404] {
        let late = lab.begin();
        lab.clock.advance(ms(100) + A_NANO);
        assert_eq!(late.ends(status).await, Saw::Status(status));
    }
    assert_eq!(lab.state(), CircuitState::Open);

    lab.clock.advance(WAIT);
    let late_probe = lab.begin();
    lab.clock.advance(ms(101));
    late_probe.ends(200).await;
    assert_eq!(lab.state(), CircuitState::Open);
}

// Half-open

#[tokio::test]
async fn f01_a_hung_probe_is_given_up_after_its_lease_and_its_late_result_changes_nothing() {
    for late in [200, 503] {
        let lab = Lab::with(|circuit| circuit.probe_lease(ms(200)));
        lab.trip_and_wait().await;
        let hung = lab.begin();
        lab.clock.advance(ms(250));
        // Open since its lease ended, 50 ms ago.
        assert_eq!(lab.refused().await, Some(WAIT - ms(50)));
        lab.clock.advance(ms(300));
        let probe = lab.begin();
        lab.ends_in_vain(hung, late).await;
        assert_eq!(lab.refused().await, None);
        probe.ends(200).await;
        assert_eq!(lab.state(), CircuitState::Closed);
    }
}

#[tokio::test]
async fn the_lease_runs_from_the_youngest_probe_and_the_circuit_has_been_open_since_its_end() {
    let lab = Lab::with(|circuit| circuit.probes(2).success_threshold(2).probe_lease(ms(200)));
    lab.trip().await;
    let opened_at = lab.snapshot().opened_at;
    lab.clock.advance(WAIT);
    let _older = lab.begin();
    lab.clock.advance(ms(150));
    let _younger = lab.begin();
    lab.clock.advance(ms(200) - A_NANO);
    assert_eq!(lab.rejection().await.0, CircuitState::HalfOpen);
    lab.events();

    lab.clock.advance(ms(100) + A_NANO);
    assert_eq!(lab.refused().await, Some(WAIT - ms(100)));
    assert!(matches!(
        lab.events()[..],
        [CircuitEvent::Opened {
            from: CircuitState::HalfOpen,
            reason: OpenReason::Lease,
            failures: 2,
            open_for: WAIT,
            ..
        }]
    ));
    assert_eq!(lab.snapshot().opened_at, opened_at);
}

#[tokio::test]
async fn a_lease_that_ended_long_ago_leaves_no_wait() {
    let lab = Lab::with(|circuit| circuit.probe_lease(ms(200)));
    lab.trip_and_wait().await;
    let hung = lab.begin();
    lab.clock.advance(ms(200) + WAIT);
    let probe = lab.begin();
    assert_eq!(lab.snapshot().probes_in_flight, 1);
    lab.ends_in_vain(hung, 200).await;
    probe.ends(200).await;
    assert_eq!(lab.state(), CircuitState::Closed);
}

#[tokio::test]
async fn a_probe_that_ends_after_its_lease_is_late_though_no_call_came_between() {
    let lab = Lab::with(|circuit| circuit.probe_lease(ms(200)));
    lab.trip_and_wait().await;
    let hung = lab.begin();
    lab.clock.advance(ms(250));
    hung.ends(200).await;
    assert_eq!(lab.state(), CircuitState::Open);
    assert_eq!(lab.snapshot().retry_after, Some(WAIT - ms(50)));
}

/// Keeps the calls that reach it until the test lets them go.
#[derive(Clone)]
struct Crowd {
    inside: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

#[async_trait::async_trait]
impl Middleware for Crowd {
    async fn handle(
        &self,
        _: Request,
        _: &mut Extensions,
        _: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        self.inside.fetch_add(1, Ordering::SeqCst);
        self.gate.acquire().await.unwrap().forget();
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Ok(http::Response::new("").into())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn f03_of_fifty_callers_at_once_as_many_go_through_as_there_are_probes() {
    const CALLERS: usize = 50;
    const ROUNDS: usize = 200;
    for probes in [1, 3] {
        let lab = Lab::with(|circuit| {
            let probes = u32::try_from(probes).unwrap();
            circuit.probes(probes).success_threshold(probes)
        });
        let crowd = Crowd { inside: Arc::default(), gate: Arc::new(Semaphore::new(0)) };
        let client = ClientBuilder::new(plain_client()).with(lab.breaker.clone()).with(crowd.clone()).build();
        for _ in 0..ROUNDS {
            lab.trip_and_wait().await;
            let start = Arc::new(Barrier::new(CALLERS));
            let refused = Arc::new(AtomicUsize::new(0));
            let mut callers = JoinSet::new();
            for _ in 0..CALLERS {
                let (client, start, refused) = (client.clone(), Arc::clone(&start), Arc::clone(&refused));
                callers.spawn(async move {
                    start.wait().await;
                    let saw = call(&client, URL).await;
                    if saw == Saw::Rejected {
                        refused.fetch_add(1, Ordering::SeqCst);
                    }
                    saw
                });
            }
            let inside = || crowd.inside.load(Ordering::SeqCst);
            until(|| inside() + refused.load(Ordering::SeqCst) == CALLERS).await;
            assert_eq!(inside(), probes);
            crowd.gate.add_permits(probes);
            let saw = callers.join_all().await;
            assert_eq!(count(&saw, &Saw::Status(200)), probes);
            assert_eq!(lab.state(), CircuitState::Closed);
        }
        let names = lab.event_names();
        for name in ["circuit.opened", "circuit.half_open", "circuit.closed"] {
            assert_eq!(count(&names, &name), ROUNDS, "{name}");
        }
    }
}

fn count<T: PartialEq>(items: &[T], wanted: &T) -> usize {
    items.iter().filter(|item| *item == wanted).count()
}

/// Waits in real time.
async fn until(condition: impl Fn() -> bool) {
    let polling = async {
        while !condition() {
            tokio::time::sleep(ms(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), polling).await.expect("it comes true");
}

#[tokio::test]
async fn f05_an_ignored_probe_gives_its_slot_back_ten_times_in_a_row() {
    let lab = Lab::new();
    lab.trip_and_wait().await;
    for _ in 0..10 {
        lab.transport.script([Reply::BuilderError]);
        assert_eq!(lab.send(200).await, Saw::Error);
        let now = lab.snapshot();
        assert_eq!(now.state, CircuitState::HalfOpen);
        assert_eq!(now.probes_in_flight, 0);
        assert_eq!(now.retry_after, Some(Duration::ZERO));
    }
    assert_eq!(lab.transport.hits(), 14);
    lab.send(200).await;
    assert_eq!(lab.state(), CircuitState::Closed);
}

#[tokio::test]
async fn f08_a_probe_that_an_inner_layer_refuses_is_charged_to_nobody() {
    let inner = CircuitBreaker::default();
    let mut lab = Lab::new();
    lab.client = ClientBuilder::new(plain_client())
        .with(lab.breaker.clone())
        .with(inner.clone())
        .with(lab.transport.clone())
        .build();
    lab.trip_and_wait().await;
    drop(lab.begin());
    let half_open = lab.snapshot();

    inner.set_mode(KEY, CircuitMode::ForcedOpen).unwrap();
    assert_eq!(lab.rejection().await.1, CircuitMode::ForcedOpen);
    assert_eq!(lab.snapshot(), half_open);

    inner.set_mode(KEY, CircuitMode::Enforcing).unwrap();
    lab.transport.script([Reply::ForeignError]);
    assert_eq!(lab.send(200).await, Saw::Error);
    assert_eq!(lab.snapshot(), half_open);

    lab.send(200).await;
    assert_eq!(lab.state(), CircuitState::Closed);
}

#[tokio::test]
async fn no_more_probes_go_out_than_are_still_needed() {
    let lab = Lab::with(|circuit| circuit.probes(5).success_threshold(3));
    lab.trip_and_wait().await;
    let (first, second, dropped) = (lab.begin(), lab.begin(), lab.begin());
    assert_eq!(lab.rejection().await, (CircuitState::HalfOpen, CircuitMode::Enforcing, None));
    first.ends(200).await;
    // Two in flight, two needed.
    assert_eq!(lab.refused().await, None);
    drop(dropped);
    let third = lab.begin();
    assert_eq!(lab.refused().await, None);
    second.ends(200).await;
    assert_eq!(lab.refused().await, None);
    third.ends(200).await;
    assert_eq!(lab.state(), CircuitState::Closed);
}

#[tokio::test]
async fn fewer_probes_at_once_than_successes_needed_take_turns() {
    let lab = Lab::with(|circuit| circuit.probes(2).success_threshold(3));
    lab.trip_and_wait().await;
    let (first, second) = (lab.begin(), lab.begin());
    assert_eq!(lab.refused().await, None);
    first.ends(200).await;
    let third = lab.begin();
    second.ends(200).await;
    assert_eq!(lab.state(), CircuitState::HalfOpen);
    third.ends(200).await;
    assert_eq!(lab.state(), CircuitState::Closed);
}

#[tokio::test]
async fn one_failed_probe_reopens_whatever_the_others_bring_and_the_count_starts_again() {
    let lab = Lab::with(|circuit| circuit.probes(3).success_threshold(3));
    lab.trip_and_wait().await;
    let (first, second, third) = (lab.begin(), lab.begin(), lab.begin());
    first.ends(200).await;
    second.ends(503).await;
    assert_eq!(lab.state(), CircuitState::Open);
    lab.ends_in_vain(third, 200).await;

    lab.clock.advance(WAIT);
    for state in [CircuitState::HalfOpen, CircuitState::HalfOpen, CircuitState::Closed] {
        lab.send(200).await;
        assert_eq!(lab.state(), state);
    }
}

// Waits

#[tokio::test]
async fn f10_failed_probes_double_the_wait_up_to_its_maximum_until_the_circuit_closes() {
    let lab = Lab::with(|circuit| circuit.open_for(ms(50)).max_open_for(ms(200)));
    for _ in 0..2 {
        lab.trip().await;
        for wait in [50, 100, 200, 200] {
            assert_eq!(lab.refused().await, Some(ms(wait)));
            lab.clock.advance(ms(wait) - A_NANO);
            assert_eq!(lab.refused().await, Some(A_NANO));
            lab.clock.advance(A_NANO);
            assert_eq!(lab.send(503).await, Saw::Status(503));
        }
        lab.clock.advance(ms(200));
        lab.send(200).await;
    }
}

#[tokio::test]
async fn without_a_maximum_of_its_own_the_wait_stays_the_same() {
    let lab = Lab::new();
    lab.trip().await;
    for _ in 0..4 {
        assert_eq!(lab.refused().await, Some(WAIT));
        lab.clock.advance(WAIT);
        lab.send(503).await;
    }
}

#[tokio::test]
async fn a_lease_that_ends_doubles_the_wait_like_a_failed_probe() {
    let lab = Lab::with(|circuit| circuit.max_open_for(2 * WAIT).probe_lease(ms(200)));
    lab.trip_and_wait().await;
    let _hung = lab.begin();
    lab.clock.advance(ms(200));
    assert_eq!(lab.refused().await, Some(2 * WAIT));
}

#[tokio::test]
async fn f11_nothing_happens_until_a_call_comes_and_half_open_is_told_before_it_is_sent() {
    let transport = Transport::answering(200);
    let sent_before = Arc::new(Mutex::new(Vec::new()));
    let (seen, notes) = (transport.clone(), Arc::clone(&sent_before));
    let lab = Lab::over(transport, |breaker| {
        breaker.on_event(move |event| {
            if let CircuitEvent::HalfOpen { .. } = event {
                notes.lock().unwrap().push(seen.hits());
            }
        })
    });
    lab.trip().await;
    assert_eq!(lab.event_names(), ["circuit.opened"]);
    lab.clock.advance(Duration::from_secs(1));
    tokio::task::yield_now().await;
    assert_eq!(lab.state(), CircuitState::Open);
    assert!(lab.events().is_empty());

    let _probe = lab.begin();
    assert_eq!(lab.event_names(), ["circuit.half_open"]);
    assert_eq!(*sent_before.lock().unwrap(), [4]);
}

#[tokio::test]
async fn f12_jitter_spreads_the_probes_of_a_fleet_and_brings_none_forward() {
    for (retry_after, wait) in [("0", WAIT), ("10", Duration::from_secs(10))] {
        let mut waits = HashSet::new();
        for _ in 0..50 {
            let lab = Lab::with(|circuit| circuit.trip(Trip::consecutive(1)).open_jitter(0.2));
            lab.transport.script([Reply::Header(503, "retry-after", retry_after)]);
            lab.trip().await;
            lab.clock.advance(wait - A_NANO);
            let left = lab.refused().await.unwrap();
            waits.insert(left);
            lab.clock.advance(left);
            assert_eq!(lab.send(200).await, Saw::Status(200));
        }
        let (earliest, latest) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
        assert!(A_NANO <= *earliest && *latest <= wait / 5 + A_NANO, "{waits:?}");
        // Fifty draws that all fall into one half of the share: once in 2^49 runs.
        assert!(wait / 10 < *latest - *earliest && 25 < waits.len(), "{waits:?}");
    }
}

#[tokio::test]
async fn a_jitter_of_one_at_most_doubles_every_wait_of_an_outage() {
    for _ in 0..50 {
        let lab = Lab::with(|circuit| circuit.max_open_for(2 * WAIT).open_jitter(1.0));
        lab.trip().await;
        for wait in [WAIT, 2 * WAIT] {
            let left = lab.refused().await.unwrap();
            assert!(wait <= left && left <= 2 * wait, "{left:?}");
            lab.clock.advance(left);
            lab.send(503).await;
        }
    }
}

#[tokio::test]
async fn the_retry_after_of_the_response_that_opens_lengthens_the_wait_as_far_as_it_is_honoured() {
    const MINUTE: u64 = 60;
    for (honoured, asked, waited) in [
        (MINUTE, "40", 40),
        (MINUTE, "3600", MINUTE),
        (MINUTE, "Fri, 31 Dec 9999 23:59:59 GMT", MINUTE),
        // Never shorter than `open_for`, and what is no wait is none.
        (MINUTE, "5", 10),
        (MINUTE, "0", 10),
        (MINUTE, "-40", 10),
        (MINUTE, "soon", 10),
        (MINUTE, "Sun, 06 Nov 1994 08:49:37 GMT", 10),
        (20, "40", 20),
        (0, "40", 10),
    ] {
        let lab = Lab::with(|circuit| {
            circuit
                .trip(Trip::consecutive(1))
                .open_for(Duration::from_secs(10))
                .honor_retry_after(Duration::from_secs(honoured))
        });
        let asking = || [Reply::Header(503, "retry-after", asked)];
        let waited = Duration::from_secs(waited);
        lab.transport.script(asking());
        lab.trip().await;
        assert_eq!(lab.refused().await, Some(waited), "{honoured} {asked}");

        // The same of a probe, and for this once.
        lab.clock.advance(waited);
        lab.transport.script(asking());
        lab.send(200).await;
        assert_eq!(lab.refused().await, Some(waited), "{honoured} {asked}");
        lab.clock.advance(waited);
        lab.send(503).await;
        assert_eq!(lab.refused().await, Some(Duration::from_secs(10)));
    }
}

#[tokio::test]
async fn the_retry_after_of_a_failure_that_does_not_open_is_forgotten() {
    let lab = Lab::new();
    lab.transport.script([Reply::Header(503, "retry-after", "40")]);
    lab.trip().await;
    assert_eq!(lab.refused().await, Some(WAIT));
}

#[tokio::test]
async fn the_retry_after_of_a_success_that_opens_by_the_rate_lengthens_the_wait_too() {
    let lab = Lab::new();
    for _ in 0..3 {
        lab.send(503).await;
    }
    lab.transport.script([Reply::Header(429, "retry-after", "40")]);
    assert_eq!(lab.send(200).await, Saw::Status(429));
    assert_eq!(lab.refused().await, Some(Duration::from_secs(40)));
}

#[tokio::test]
async fn a_retry_after_is_heard_too_where_the_body_has_the_last_word() {
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::failure_rate(0.5).min_calls(4)))
        .observe(Until::BodyEnd)
        .clock(ManualClock::new())
        .build()
        .unwrap();
    let slow_down =
        http::Response::builder().status(429).header("retry-after", "40").body("slow down").unwrap();
    let transport = Transport::answering(503);
    let client = chain(&breaker, &transport);
    for _ in 0..3 {
        call(&client, URL).await;
    }
    transport.script([Reply::Response(slow_down.into())]);
    let response = client.get(URL).send().await.unwrap();
    assert_eq!(state(&breaker, KEY), CircuitState::Closed);
    assert_eq!(response.text().await.unwrap(), "slow down");
    assert_eq!(breaker.snapshot(KEY).unwrap().retry_after, Some(Duration::from_secs(40)));
}

#[tokio::test]
async fn a_wait_of_zero_makes_the_very_next_call_a_probe() {
    let lab = Lab::with(|circuit| circuit.open_for(Duration::ZERO).max_open_for(Duration::MAX));
    lab.trip().await;
    for _ in 0..3 {
        assert_eq!(lab.snapshot().retry_after, Some(Duration::ZERO));
        assert_eq!(lab.send(503).await, Saw::Status(503));
        assert_eq!(lab.state(), CircuitState::Open);
    }
    lab.send(200).await;
    assert_eq!(lab.state(), CircuitState::Closed);
}

#[tokio::test]
async fn the_longest_lease_and_limits_are_never_reached() {
    let lab = Lab::with(|circuit| {
        circuit.probe_lease(Duration::MAX).slow_call(Duration::MAX).abandoned_after(Duration::MAX)
    });
    lab.trip_and_wait().await;
    let probe = lab.begin();
    lab.clock.advance(CENTURY);
    assert_eq!(lab.refused().await, None);
    probe.ends(200).await;
    assert_eq!(lab.state(), CircuitState::Closed);

    let abandoned = lab.begin();
    lab.clock.advance(CENTURY);
    drop(abandoned);
    assert_eq!(lab.snapshot().window.unwrap().calls, 0);
}

// Stragglers

#[tokio::test]
async fn f13_a_call_from_closed_days_neither_settles_a_probe_nor_frees_its_slot() {
    let lab = Lab::new();
    let (well, sick, dropped) = (lab.begin(), lab.begin(), lab.begin());
    lab.trip_and_wait().await;
    let probe = lab.begin();
    lab.ends_in_vain(well, 200).await;
    lab.ends_in_vain(sick, 503).await;
    drop(dropped);
    assert_eq!(lab.refused().await, None);
    assert_eq!(lab.snapshot().probes_in_flight, 1);
    probe.ends(200).await;
    assert_eq!(lab.state(), CircuitState::Closed);
}

#[tokio::test]
async fn f14_a_call_from_before_an_outage_does_not_count_after_it() {
    let lab = Lab::new();
    let (well, sick) = (lab.begin(), lab.begin());
    lab.trip_and_wait().await;
    lab.send(200).await;
    lab.ends_in_vain(sick, 503).await;
    lab.send(503).await;
    // Nor does a success end the new run of failures.
    lab.ends_in_vain(well, 200).await;
    assert_eq!(lab.snapshot().consecutive_failures, 1);
}

#[tokio::test]
async fn f15_twenty_late_failures_open_the_circuit_once_and_do_not_push_the_wait() {
    let lab = Lab::new();
    let calls: Vec<_> = (0..20).map(|_| lab.begin()).collect();
    let mut opened_at = None;
    for (ended, call) in (1..).zip(calls) {
        lab.clock.advance(ms(1));
        assert_eq!(call.ends(503).await, Saw::Status(503));
        if ended == 4 {
            opened_at = Some(lab.clock.now());
        }
        assert_eq!(lab.snapshot().opened_at, opened_at);
    }
    assert_eq!(lab.refused().await, Some(WAIT - ms(16)));
    let names = lab.event_names();
    assert_eq!(names[0], "circuit.opened");
    assert_eq!(names[1..17], ["circuit.stale_outcome"; 16]);
    assert_eq!(names[17..], ["circuit.rejected"]);
}

#[tokio::test]
async fn f16_a_late_success_does_not_shorten_the_wait() {
    let lab = Lab::new();
    let straggler = lab.begin();
    lab.trip().await;
    lab.clock.advance(ms(100));
    lab.ends_in_vain(straggler, 200).await;
    lab.clock.advance(ms(200) - A_NANO);
    assert_eq!(lab.refused().await, Some(A_NANO));
}

#[tokio::test]
async fn f17_every_outcome_that_comes_too_late_is_told_once_at_debug() {
    let log = Log::listen();
    let lab = Lab::with(|circuit| circuit.trip(Trip::consecutive(4)));
    let mut stragglers: Vec<_> = (0..7).map(|_| lab.begin()).collect();
    let admitted_epoch = lab.snapshot().epoch;
    let mut late = async |status| {
        lab.ends_in_vain(stragglers.pop().unwrap(), status).await;
        let told = log.of("circuit.stale_outcome");
        let last = told.last().unwrap();
        assert_eq!(last.level, tracing::Level::DEBUG);
        assert_eq!(last.names(), ["admitted_epoch", "circuit_key", "epoch"]);
        assert_eq!(last.get("circuit_key"), KEY);
        assert_eq!(last.get("admitted_epoch"), admitted_epoch.to_string());
        assert_eq!(last.get("epoch"), lab.snapshot().epoch.to_string());
        told.len()
    };
    lab.trip().await;
    assert_eq!(late(503).await, 1);
    lab.clock.advance(WAIT);
    let probe = lab.begin();
    assert_eq!(late(200).await, 2);
    probe.ends(200).await;
    assert_eq!(late(200).await, 3);
    assert_eq!(late(503).await, 4);
    lab.set_mode(CircuitMode::ForcedOpen);
    assert_eq!(late(200).await, 5);
    lab.set_mode(CircuitMode::ForcedClosed);
    assert_eq!(late(503).await, 6);
    lab.breaker.reset(KEY);
    assert_eq!(late(200).await, 7);
}

// Modes

#[tokio::test]
async fn f69_shadow_tells_the_whole_story_and_refuses_nobody() {
    let log = Log::listen();
    let lab = Lab::with(|circuit| circuit.mode(CircuitMode::Shadow));
    lab.trip().await;
    for _ in 0..3 {
        assert_eq!(lab.send(503).await, Saw::Status(503));
    }
    lab.clock.advance(WAIT);
    let probe = lab.begin();
    // It is no probe: its failure reopens nothing, nor does its success close.
    for status in [503, 200] {
        assert_eq!(lab.send(status).await, Saw::Status(status));
        assert_eq!(lab.state(), CircuitState::HalfOpen);
        assert_eq!(lab.snapshot().probes_in_flight, 1);
    }
    assert_eq!(lab.snapshot().rejected, 5);
    probe.ends(200).await;
    assert_eq!(lab.state(), CircuitState::Closed);

    assert_eq!(lab.transport.hits(), 4 + 3 + 1 + 2);
    assert_eq!(log.events(), ["circuit.opened", "circuit.rejected", "circuit.half_open", "circuit.closed"]);
    assert!(log.lines().iter().all(|line| line.get("mode") == "shadow"));
    assert_eq!(log.of("circuit.closed")[0].get("rejected"), "5");
}

#[tokio::test]
async fn forced_open_rejects_every_call_and_names_no_time() {
    let lab = Lab::new();
    lab.set_mode(CircuitMode::ForcedOpen);
    for rejected in 1..=3 {
        assert_eq!(lab.rejection().await, (CircuitState::Closed, CircuitMode::ForcedOpen, None));
        assert_eq!(lab.snapshot().rejected, rejected);
    }
    lab.set_mode(CircuitMode::Enforcing);
    assert_eq!(lab.send(200).await, Saw::Status(200));

    lab.trip().await;
    lab.set_mode(CircuitMode::ForcedOpen);
    for _ in 0..2 {
        assert_eq!(lab.rejection().await, (CircuitState::Open, CircuitMode::ForcedOpen, None));
        assert_eq!(lab.snapshot().retry_after, None);
        lab.clock.advance(WAIT);
    }
    lab.set_mode(CircuitMode::Enforcing);
    assert_eq!(lab.send(200).await, Saw::Status(200));
    assert_eq!(lab.state(), CircuitState::Closed);
}

#[tokio::test]
async fn forced_closed_admits_every_call_and_counts_nothing() {
    let lab = Lab::new();
    lab.send(503).await;
    let statuses = [503, 503, 503, 503, 200, 503];
    let all_pass = async || {
        lab.set_mode(CircuitMode::ForcedClosed);
        let before = lab.snapshot();
        for status in statuses {
            assert_eq!(lab.send(status).await, Saw::Status(status));
        }
        assert_eq!(lab.snapshot(), before);
        lab.set_mode(CircuitMode::Enforcing);
    };
    all_pass().await;
    assert_eq!(lab.state(), CircuitState::Closed);
    lab.trip().await;
    all_pass().await;
    assert_eq!(lab.refused().await, Some(WAIT));
    lab.clock.advance(WAIT);
    let probe = lab.begin();
    all_pass().await;
    assert_eq!(lab.state(), CircuitState::HalfOpen);
    drop(probe);
}

#[tokio::test]
async fn a_change_of_mode_keeps_the_evidence_and_the_wait() {
    let lab = Lab::new();
    for _ in 0..3 {
        lab.send(503).await;
    }
    lab.set_mode(CircuitMode::Shadow);
    assert_eq!(lab.snapshot().consecutive_failures, 3);
    lab.send(503).await;
    assert_eq!(lab.state(), CircuitState::Open);
    let open = lab.snapshot();

    lab.clock.advance(ms(100));
    lab.set_mode(CircuitMode::Enforcing);
    assert_eq!(lab.refused().await, Some(WAIT - ms(100)));
    assert_eq!(lab.snapshot().opened_at, open.opened_at);
    assert!(open.epoch < lab.snapshot().epoch);
}

#[tokio::test]
async fn a_change_of_mode_frees_the_probe_slots_and_keeps_the_probes_that_passed() {
    let lab = Lab::with(|circuit| circuit.success_threshold(2));
    lab.trip_and_wait().await;
    lab.send(200).await;
    let probe = lab.begin();
    let epoch = lab.snapshot().epoch;
    lab.set_mode(CircuitMode::Shadow);
    let now = lab.snapshot();
    assert_eq!((now.state, now.probes_in_flight), (CircuitState::HalfOpen, 0));
    assert!(epoch < now.epoch);

    lab.set_mode(CircuitMode::Enforcing);
    lab.ends_in_vain(probe, 503).await;
    lab.send(200).await;
    assert_eq!(lab.state(), CircuitState::Closed);
}

#[tokio::test]
async fn the_mode_it_is_in_already_is_no_change() {
    let lab = Lab::new();
    lab.trip_and_wait().await;
    let probe = lab.begin();
    let before = lab.snapshot();
    lab.events();
    lab.set_mode(CircuitMode::Enforcing);
    assert_eq!(lab.snapshot(), before);
    assert!(lab.events().is_empty());
    probe.ends(200).await;
    assert_eq!(lab.state(), CircuitState::Closed);
}

#[tokio::test]
async fn a_mode_can_be_set_before_the_first_call_and_only_where_there_is_a_key() {
    let lab = Lab::new();
    for key in [URL, "reports"] {
        lab.breaker.set_mode(key, CircuitMode::ForcedOpen).unwrap();
        assert_eq!(lab.breaker.snapshot(key).unwrap().mode, CircuitMode::ForcedOpen);
    }
    lab.rejection().await;
    for key in ["", "http://", "file:///etc/hosts"] {
        assert!(lab.breaker.set_mode(key, CircuitMode::Shadow).is_err(), "{key}");
    }
}

// The handle

#[tokio::test]
async fn a_snapshot_prints_as_one_line_in_every_state() {
    let lab = Lab::with(|circuit| circuit.probes(2).success_threshold(2));
    let line = || {
        let line = lab.snapshot().to_string();
        line.strip_prefix(KEY).unwrap().to_owned()
    };
    lab.send(200).await;
    assert_eq!(line(), " closed, 0 of 1 call failed");
    lab.send(503).await;
    assert_eq!(line(), " closed, 1 failure in a row, 1 of 2 calls failed");
    lab.send(503).await;
    assert_eq!(line(), " closed, 2 failures in a row, 2 of 3 calls failed");
    lab.trip().await;
    assert_eq!(line(), " open, next probe in 300 ms");
    lab.refused().await;
    assert_eq!(line(), " open, next probe in 300 ms, 1 rejected");
    lab.set_mode(CircuitMode::ForcedOpen);
    assert_eq!(line(), " open (forced_open), 1 rejected");
    lab.set_mode(CircuitMode::Shadow);
    lab.clock.advance(WAIT);
    assert_eq!(line(), " open (shadow), next call probes, 1 rejected");
    lab.set_mode(CircuitMode::Enforcing);
    let first = lab.begin();
    assert_eq!(line(), " half_open, next call probes, 1 probe in flight, 1 rejected");
    let second = lab.begin();
    assert_eq!(line(), " half_open, 2 probes in flight, 1 rejected");
    first.ends(200).await;
    second.ends(200).await;
    assert_eq!(line(), " closed");
}

#[tokio::test]
async fn a_snapshot_shows_the_counts_of_its_own_state_alone() {
    let lab = Lab::new();
    let window = || {
        let window = lab.snapshot().window.unwrap();
        (window.calls, window.failures)
    };
    for status in [200, 200, 503] {
        lab.send(status).await;
    }
    let closed = lab.snapshot();
    assert_eq!(&*closed.circuit_key, KEY);
    assert_eq!(closed.mode, CircuitMode::Enforcing);
    assert_eq!((closed.consecutive_failures, window()), (1, (3, 1)));
    assert_eq!((closed.retry_after, closed.opened_at), (None, None));

    lab.trip().await;
    let opened_at = lab.clock.now();
    lab.clock.advance(ms(100));
    lab.refused().await;
    let open = lab.snapshot();
    assert_eq!((open.consecutive_failures, window()), (0, (0, 0)));
    assert_eq!(open.retry_after, Some(WAIT - ms(100)));
    assert_eq!((open.rejected, open.opened_at), (1, Some(opened_at)));

    lab.clock.advance(ms(200));
    let probe = lab.begin();
    lab.refused().await;
    let half_open = lab.snapshot();
    assert_eq!((half_open.probes_in_flight, half_open.retry_after), (1, None));
    assert_eq!((half_open.rejected, half_open.opened_at), (2, Some(opened_at)));

    // A failed probe stays in the outage.
    probe.ends(503).await;
    lab.refused().await;
    let reopened = lab.snapshot();
    assert_eq!((reopened.probes_in_flight, reopened.rejected), (0, 3));
    assert_eq!(reopened.opened_at, Some(opened_at));

    lab.clock.advance(WAIT);
    lab.send(200).await;
    let recovered = lab.snapshot();
    assert_eq!((recovered.consecutive_failures, window()), (0, (0, 0)));
    assert_eq!((recovered.rejected, recovered.opened_at), (0, None));

    lab.trip().await;
    assert_eq!(lab.snapshot().opened_at, Some(lab.clock.now()));
}

#[tokio::test]
async fn an_expired_open_period_reads_open_with_no_time_left_until_a_call_comes() {
    let lab = Lab::new();
    lab.trip().await;
    let epoch = lab.snapshot().epoch;
    for later in [WAIT, CENTURY] {
        lab.clock.advance(later);
        let now = lab.snapshot();
        assert_eq!(now.state, CircuitState::Open);
        assert_eq!(now.retry_after, Some(Duration::ZERO));
        assert_eq!(now.epoch, epoch);
    }
    let _probe = lab.begin();
    assert_eq!(lab.state(), CircuitState::HalfOpen);
}

#[tokio::test]
async fn every_change_begins_a_higher_epoch_and_nothing_else_does() {
    let lab = Lab::new();
    let mut epochs = Vec::new();
    let mut changed = || epochs.push(lab.snapshot().epoch);
    for status in [503, 503, 503] {
        lab.send(status).await;
    }
    let closed = lab.snapshot().epoch;
    changed();
    lab.trip().await;
    changed();
    lab.refused().await;
    lab.clock.advance(WAIT);
    let probe = lab.begin();
    changed();
    probe.ends(503).await;
    changed();
    lab.clock.advance(WAIT);
    drop(lab.begin());
    changed();
    lab.send(200).await;
    changed();
    lab.set_mode(CircuitMode::Shadow);
    changed();
    lab.breaker.reset(KEY);
    changed();
    lab.breaker.reset_all();
    changed();
    assert!(epochs.is_sorted_by(|a, b| a < b), "{epochs:?}");
    // One epoch each: the numbers are the breaker's own, and this is its only circuit.
    let steps: Vec<_> = epochs.iter().map(|epoch| epoch - closed).collect();
    assert_eq!(steps, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[tokio::test]
async fn snapshots_come_sorted_and_are_found_by_any_url_of_their_origin() {
    let lab = Lab::new();
    for url in ["http://b.example.com/x", "http://a.example.com:8080", "https://a.example.com"] {
        call(&lab.client, url).await;
    }
    lab.breaker.set_mode("reports", CircuitMode::Shadow).unwrap();
    let keys: Vec<_> =
        lab.breaker.snapshots().iter().map(|circuit| circuit.circuit_key.to_string()).collect();
    assert_eq!(
        keys,
        ["http://a.example.com:8080", "http://b.example.com:80", "https://a.example.com:443", "reports"]
    );
    for (asked, found) in [
        ("HTTPS://A.example.com/path?query", Some("https://a.example.com:443")),
        ("http://b.example.com:80", Some("http://b.example.com:80")),
        ("reports", Some("reports")),
        ("http://a.example.com", None),
        ("unknown", None),
        ("", None),
        ("http://", None),
    ] {
        let circuit = lab.breaker.snapshot(asked);
        assert_eq!(circuit.as_ref().map(|circuit| &*circuit.circuit_key), found, "{asked}");
    }
}

#[tokio::test]
async fn a_reset_closes_clears_and_gives_the_mode_of_the_settings_back() {
    let lab = Lab::with(|circuit| circuit.mode(CircuitMode::Shadow).max_open_for(4 * WAIT));
    lab.trip_and_wait().await;
    lab.set_mode(CircuitMode::Enforcing);
    // One failed probe, one under way, one call refused.
    lab.send(503).await;
    lab.clock.advance(2 * WAIT);
    let probe = lab.begin();
    lab.refused().await;
    lab.events();

    assert!(lab.breaker.reset(URL));
    let now = lab.snapshot();
    assert_eq!((now.state, now.mode), (CircuitState::Closed, CircuitMode::Shadow));
    assert_eq!((now.rejected, now.opened_at), (0, None));
    assert!(matches!(
        lab.events()[..],
        [CircuitEvent::Reset { from: CircuitState::HalfOpen, rejected: 1, mode: CircuitMode::Shadow, .. }]
    ));
    lab.ends_in_vain(probe, 503).await;
    // The next outage begins with the shortest wait.
    lab.trip().await;
    assert_eq!(lab.snapshot().retry_after, Some(WAIT));
}

#[tokio::test]
async fn a_reset_clears_the_evidence_of_a_closed_circuit() {
    let both_rules = Trip::consecutive(4).or(Trip::failure_rate(0.5).min_calls(4));
    let lab = Lab::with(|circuit| circuit.trip(both_rules));
    for _ in 0..3 {
        lab.send(503).await;
    }
    lab.breaker.reset(KEY);
    for _ in 0..3 {
        lab.send(503).await;
    }
    assert_eq!(lab.state(), CircuitState::Closed);
    lab.send(503).await;
    assert_eq!(lab.state(), CircuitState::Open);
}

#[tokio::test]
async fn a_reset_finds_no_circuit_where_there_is_none() {
    let lab = Lab::new();
    for key in [KEY, "reports", "", "http://"] {
        assert!(!lab.breaker.reset(key), "{key}");
    }
    assert!(lab.breaker.snapshots().is_empty());
}

#[tokio::test]
async fn reset_all_resets_every_circuit() {
    let lab = Lab::new();
    lab.trip().await;
    lab.breaker.set_mode("reports", CircuitMode::ForcedOpen).unwrap();
    lab.breaker.reset_all();
    for circuit in lab.breaker.snapshots() {
        assert_eq!(circuit.state, CircuitState::Closed);
        assert_eq!(circuit.mode, CircuitMode::Enforcing);
    }
    let names = lab.event_names();
    assert_eq!(names[names.len() - 2..], ["circuit.reset"; 2]);
    assert_eq!(lab.send(200).await, Saw::Status(200));
}

#[tokio::test]
async fn a_clock_that_lags_delays_no_probe_and_tells_nobody_to_wait_longer_than_the_circuit_is_open() {
    let (clock, lag) = (ManualClock::new(), ms(10));
    let lab =
        Lab::over(Transport::answering(200), |breaker| breaker.clock(Lagging { clock: clock.clone(), lag }));
    lab.trip().await;
    assert_eq!(lab.refused().await, Some(WAIT), "not more");
    clock.advance(ms(100));
    assert_eq!(lab.refused().await, Some(ms(210)), "never too short, and too long by no more than the lag");
    clock.advance(ms(200) - A_NANO);
    assert_eq!(lab.refused().await, Some(A_NANO), "to the point when it is near");
    clock.advance(A_NANO);
    assert_eq!(lab.send(200).await, Saw::Status(200), "the probe");
}

#[tokio::test]
async fn a_circuit_opens_for_as_long_as_it_is_set_to_where_the_clock_lags() {
    let clock = ManualClock::new();
    let lab = Lab::over(Transport::answering(200), |breaker| {
        breaker.clock(Lagging { clock: clock.clone(), lag: ms(10) })
    });
    lab.trip_and_wait().await;
    assert_eq!(lab.refused().await, Some(WAIT), "another clock was moved");
    clock.advance(WAIT);
    assert_eq!(lab.send(503).await, Saw::Status(503), "the probe");
    assert_eq!(lab.refused().await, Some(WAIT), "not from before it opened again");
}
