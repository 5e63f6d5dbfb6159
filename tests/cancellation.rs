//! What a call leaves behind that ends without a result: aborted, dropped, given up, or ended by a panic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use futures::FutureExt;
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use reqwest_resilience::{
    CircuitBreaker, CircuitBreakerBuilder, CircuitMode, CircuitState, ManualClock, Scope, Trip,
};
use std::{
    panic,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};
use support::{KEY, Log, Reply, Saw, Transport, URL, call, chain, plain_client, state};
use tokio::{task, time};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{Layer, Registry, layer::Context, layer::SubscriberExt};

const OPEN_FOR: Duration = Duration::from_secs(1);

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One failure opens for a second.
fn brittle() -> CircuitBreakerBuilder {
    CircuitBreaker::builder().defaults(|circuit| circuit.trip(Trip::consecutive(1)).open_for(OPEN_FOR))
}

/// Four calls of which half failed open.
fn by_rate() -> CircuitBreakerBuilder {
    CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::failure_rate(0.5).min_calls(4).over(Duration::from_secs(10))))
}

/// A call in a task of its own.
fn spawn(client: &ClientWithMiddleware, url: &'static str) -> task::JoinHandle<Saw> {
    let client = client.clone();
    tokio::spawn(async move { call(&client, url).await })
}

/// Lets the other tasks run until the transport has seen this many requests.
async fn hits(transport: &Transport, hits: usize) {
    for _ in 0..100 {
        if transport.hits() == hits {
            return;
        }
        task::yield_now().await;
    }
    panic!("{} requests reached the transport instead of {hits}", transport.hits());
}

fn failures(breaker: &CircuitBreaker) -> u32 {
    breaker.snapshot(KEY).unwrap().consecutive_failures
}

/// A last middleware that panics after a while, as no reply of the scripted transport does.
struct PanicsAfter(Duration);

#[async_trait::async_trait]
impl Middleware for PanicsAfter {
    async fn handle(
        &self,
        _: Request,
        _: &mut Extensions,
        _: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        time::sleep(self.0).await;
        panic!("the transport panics late")
    }
}

#[tokio::test(start_paused = true)]
async fn f02_a_hundred_rounds_of_aborted_probes_lose_no_slot() {
    for probes in [1, 3] {
        let breaker =
            brittle().defaults(|circuit| circuit.probes(probes).success_threshold(probes)).build().unwrap();
        let transport = Transport::answering(503);
        let client = chain(&breaker, &transport);
        assert_eq!(call(&client, URL).await, Saw::Status(503));
        time::advance(OPEN_FOR).await;
        transport.hold();
        for round in 1..=100 {
            let calls: Vec<_> = (0..probes).map(|_| spawn(&client, URL)).collect();
            hits(&transport, 1 + round * probes as usize).await;
            assert_eq!(call(&client, URL).now_or_never(), Some(Saw::Rejected));
            for aborted in calls {
                aborted.abort();
                assert!(aborted.await.unwrap_err().is_cancelled());
            }
            assert_eq!(breaker.snapshot(KEY).unwrap().probes_in_flight, 0);
        }
        transport.stop_holding();
        transport.answer(200);
        for _ in 0..probes {
            assert_eq!(state(&breaker, KEY), CircuitState::HalfOpen);
            assert_eq!(call(&client, URL).await, Saw::Status(200));
        }
        assert_eq!(state(&breaker, KEY), CircuitState::Closed);
    }
}

#[tokio::test(start_paused = true)]
async fn f59_dropped_calls_are_no_calls() {
    let breaker = by_rate().build().unwrap();
    let transport = Transport::answering(503).then((0..50).map(|_| Reply::Hang));
    let client = chain(&breaker, &transport);
    for _ in 0..50 {
        assert!(time::timeout(millis(10), call(&client, URL)).await.is_err());
    }
    for _ in 0..3 {
        assert_eq!(call(&client, URL).await, Saw::Status(503));
    }
    assert_eq!(state(&breaker, KEY), CircuitState::Closed);
    assert_eq!(breaker.snapshot(KEY).unwrap().window.unwrap().calls, 3);
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    assert_eq!(state(&breaker, KEY), CircuitState::Open);
}

#[tokio::test(start_paused = true)]
async fn f60_calls_cut_off_by_a_bare_timeout_open_the_circuit_with_abandoned_after_and_not_without() {
    for (settings, end) in [
        (by_rate().defaults(|circuit| circuit.abandoned_after(millis(50))), CircuitState::Open),
        (by_rate(), CircuitState::Closed),
    ] {
        let breaker = settings.build().unwrap();
        let transport = Transport::answering(200).then((0..4).map(|_| Reply::Hang));
        let client = chain(&breaker, &transport);
        for _ in 0..4 {
            assert!(time::timeout(millis(100), call(&client, URL)).await.is_err());
        }
        assert_eq!(state(&breaker, KEY), end);
    }
}

#[tokio::test]
async fn a_call_is_abandoned_when_it_was_dropped_at_abandoned_after_and_not_a_nanosecond_earlier() {
    let clock = ManualClock::new();
    let (patience, nanosecond) = (millis(50), Duration::from_nanos(1));
    let breaker =
        brittle().defaults(|circuit| circuit.abandoned_after(patience)).clock(clock.clone()).build().unwrap();
    let transport = Transport::answering(200);
    let client = chain(&breaker, &transport);
    transport.hold();
    let drop_after = |wait| {
        let mut dropped = Box::pin(call(&client, URL));
        assert_eq!(dropped.as_mut().now_or_never(), None);
        clock.advance(wait);
    };
    drop_after(patience.saturating_sub(nanosecond));
    assert_eq!(state(&breaker, KEY), CircuitState::Closed);
    drop_after(patience);
    assert_eq!(state(&breaker, KEY), CircuitState::Open);

    // So with probes: one that was dropped early says nothing, an abandoned one has failed.
    clock.advance(OPEN_FOR);
    drop_after(Duration::ZERO);
    assert_eq!(state(&breaker, KEY), CircuitState::HalfOpen);
    drop_after(patience);
    assert_eq!(state(&breaker, KEY), CircuitState::Open);
    assert_eq!(transport.hits(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_never_a_failure_however_late_it_comes() {
    let late = millis(60);
    let breaker = brittle()
        .defaults(|circuit| circuit.abandoned_after(millis(50)))
        .classify(|attempt| match attempt.result() {
            Ok(response) if response.status() == 418 => panic!("the classifier panics"),
            _ => attempt.default_verdict(),
        })
        .build()
        .unwrap();
    let transport = Transport::answering(200).then([Reply::Late(late, 418), Reply::Hang]);
    let client = chain(&breaker, &transport);
    let panicking = ClientBuilder::new(plain_client()).with(breaker.clone()).with(PanicsAfter(late)).build();

    assert!(spawn(&panicking, URL).await.unwrap_err().is_panic());
    assert!(spawn(&client, URL).await.unwrap_err().is_panic());
    let caller = tokio::spawn(async move {
        let mut call = Box::pin(call(&client, URL));
        assert!(time::timeout(late, call.as_mut()).await.is_err());
        panic!("the caller panics while its call is under way");
    });
    assert!(caller.await.unwrap_err().is_panic());

    assert_eq!(transport.hits(), 2);
    assert_eq!((state(&breaker, KEY), failures(&breaker)), (CircuitState::Closed, 0));
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_transport_unwinds_its_own_call_alone() {
    let breaker = CircuitBreaker::builder();
    unwinds_alone(breaker, URL, |transport| transport.script([Reply::Panic])).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_classifier_unwinds_its_own_call_alone() {
    let breaker = CircuitBreaker::builder().classify(|attempt| match attempt.result() {
        Ok(response) if response.status() == 418 => panic!("the classifier panics"),
        _ => attempt.default_verdict(),
    });
    unwinds_alone(breaker, URL, |transport| transport.script([Reply::Status(418)])).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_scope_function_unwinds_its_own_call_alone() {
    let breaker = CircuitBreaker::builder().scope(Scope::by(|request| match request.url().path() {
        "/panic" => panic!("the scope function panics"),
        _ => Some(URL.to_owned()),
    }));
    unwinds_alone(breaker, "http://api.example.com/panic", |_| {}).await;
}

/// A call to `url` panics once `arm` has prepared the transport: the circuit is as it was before, closed and
/// half-open, and another call that is under way counts as if nothing had been.
async fn unwinds_alone(breaker: CircuitBreakerBuilder, url: &'static str, arm: impl Fn(&Transport)) {
    let breaker =
        breaker.defaults(|circuit| circuit.trip(Trip::consecutive(2)).open_for(OPEN_FOR)).build().unwrap();
    let transport = Transport::answering(503);
    let client = chain(&breaker, &transport);
    let panics = async || {
        arm(&transport);
        assert!(spawn(&client, url).await.unwrap_err().is_panic());
    };

    assert_eq!(call(&client, URL).await, Saw::Status(503));
    transport.hold();
    let bystander = spawn(&client, URL);
    hits(&transport, 2).await;
    let before = breaker.snapshot(KEY);
    panics().await;
    assert_eq!(breaker.snapshot(KEY), before);
    transport.take_held().unwrap().answer(503);
    assert_eq!(bystander.await.unwrap(), Saw::Status(503));
    assert_eq!(state(&breaker, KEY), CircuitState::Open);

    time::advance(OPEN_FOR).await;
    transport.stop_holding();
    panics().await;
    assert_eq!(breaker.snapshot(KEY).unwrap().probes_in_flight, 0);
    transport.answer(200);
    assert_eq!(call(&client, URL).await, Saw::Status(200));
    assert_eq!(state(&breaker, KEY), CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn f72_a_listener_that_panics_while_a_permit_is_dropped_in_a_panic_is_caught_and_reported() {
    /// Panics once more when it is dropped.
    struct Payload;

    impl Drop for Payload {
        fn drop(&mut self) {
            panic!("the payload of the listener's panic panics");
        }
    }

    let log = Log::listen();
    let breaker = brittle()
        .defaults(|circuit| circuit.probe_lease(millis(100)))
        .on_event(|_| panic::panic_any(Payload))
        .build()
        .unwrap();
    let transport = Transport::answering(503);
    let client = chain(&breaker, &transport);
    let panicking =
        ClientBuilder::new(plain_client()).with(breaker.clone()).with(PanicsAfter(millis(200))).build();
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    time::advance(OPEN_FOR).await;

    // The probe outlives its lease, so that there is something to report when it unwinds.
    let unwound = spawn(&panicking, URL).await.unwrap_err().into_panic();
    assert_eq!(unwound.downcast_ref(), Some(&"the transport panics late"));
    assert_eq!(
        log.events(),
        [
            "circuit.opened",
            "circuit.listener_panicked",
            "circuit.half_open",
            "circuit.listener_panicked",
            "circuit.opened",
        ]
    );
    time::advance(OPEN_FOR).await;
    transport.answer(200);
    assert_eq!(call(&client, URL).await, Saw::Status(200));
    assert_eq!(state(&breaker, KEY), CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_panics_disturbs_neither_the_call_nor_the_next_listener() {
    let heard = Arc::<Mutex<Vec<_>>>::default();
    let second = Arc::clone(&heard);
    let breaker = brittle()
        .on_event(|_| panic!("the first listener panics"))
        .on_event(move |event| second.lock().unwrap().push(event.name()))
        .build()
        .unwrap();
    let transport = Transport::answering(503);
    let client = chain(&breaker, &transport);
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    assert_eq!(call(&client, URL).await, Saw::Rejected);
    assert_eq!(*heard.lock().unwrap(), ["circuit.opened", "circuit.rejected"]);
}

#[tokio::test]
async fn panics_of_listeners_are_reported_once_a_second_with_the_number_of_those_that_were_not() {
    let log = Log::listen();
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder()
        .on_event(|_| panic!("the listener panics"))
        .clock(clock.clone())
        .build()
        .unwrap();
    // Each change of mode is one event, and one panic.
    let modes = [CircuitMode::Shadow, CircuitMode::Enforcing];
    for (at, panics) in [(0, 5), (999, 2), (1, 3), (1_000, 1)] {
        clock.advance(millis(at));
        for mode in modes.into_iter().cycle().skip(log.of("circuit.mode_changed").len()).take(panics) {
            breaker.set_mode(KEY, mode).unwrap();
        }
    }
    assert_eq!(log.of("circuit.mode_changed").len(), 11);
    let reports = log.of("circuit.listener_panicked");
    for report in &reports {
        assert_eq!((report.level, report.names()), (Level::ERROR, vec!["suppressed"]));
    }
    let suppressed: Vec<_> = reports.iter().map(|report| report.get("suppressed")).collect();
    assert_eq!(suppressed, ["0", "6", "2"]);
}

#[tokio::test(start_paused = true)]
async fn a_log_subscriber_that_panics_at_half_open_costs_no_slot() {
    struct Once(AtomicBool);

    impl<S: Subscriber> Layer<S> for Once {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let ours = event.metadata().target() == "reqwest_resilience";
            if ours && *event.metadata().level() == Level::INFO {
                assert!(self.0.swap(true, Ordering::SeqCst), "the subscriber panics");
            }
        }
    }

    let subscriber = Registry::default().with(Once(AtomicBool::new(false)));
    let _guard = tracing::subscriber::set_default(subscriber);
    let breaker = brittle().build().unwrap();
    let transport = Transport::answering(200).then([Reply::Status(503)]);
    let client = chain(&breaker, &transport);
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    time::advance(OPEN_FOR).await;
    assert!(spawn(&client, URL).await.unwrap_err().is_panic());
    assert_eq!(state(&breaker, KEY), CircuitState::HalfOpen);
    assert_eq!(call(&client, URL).await, Saw::Status(200));
    assert_eq!(state(&breaker, KEY), CircuitState::Closed);
}

/// Comes back to the breaker and its client, from the middle of a call.
#[derive(Default)]
struct Reentry {
    chain: OnceLock<(CircuitBreaker, ClientWithMiddleware)>,
    busy: AtomicBool,
    saw: Mutex<Vec<(CircuitState, Saw)>>,
}

impl Reentry {
    /// Uses everything that could wait for a lock. What this brings about itself is not answered again.
    fn come_back(&self) {
        if self.busy.swap(true, Ordering::SeqCst) {
            return;
        }
        let (breaker, client) = self.chain.get().unwrap();
        let _ = (format!("{breaker:?}"), breaker.snapshots());
        breaker.set_mode("another", CircuitMode::ForcedOpen).unwrap();
        assert!(breaker.reset("another"));
        let before = state(breaker, KEY);
        let saw = futures::executor::block_on(call(client, URL));
        self.saw.lock().unwrap().push((before, saw));
        self.busy.store(false, Ordering::SeqCst);
    }

    /// One outage: each of its changes is answered with a call. On a thread of its own, since a deadlock
    /// would never end.
    fn watch_an_outage(
        self: Arc<Self>,
        breaker: CircuitBreakerBuilder,
        subscriber: impl Subscriber + Send + Sync + 'static,
    ) {
        let (done, finished) = mpsc::channel();
        thread::spawn(move || {
            let clock = ManualClock::new();
            let breaker = breaker.clock(clock.clone()).build().unwrap();
            let transport = Transport::answering(503);
            let client = chain(&breaker, &transport);
            self.chain.set((breaker, client.clone())).ok().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _guard = tracing::subscriber::set_default(subscriber);
            runtime.block_on(call(&client, URL));
            clock.advance(OPEN_FOR);
            transport.answer(200);
            runtime.block_on(call(&client, URL));
            done.send(self.saw.lock().unwrap().clone()).unwrap();
        });
        assert_eq!(
            finished.recv_timeout(Duration::from_secs(10)).expect("nothing waits for itself"),
            [
                (CircuitState::Open, Saw::Rejected),
                // The call that made the circuit half-open is its probe already, so ours is one too many.
                (CircuitState::HalfOpen, Saw::Rejected),
                (CircuitState::Closed, Saw::Status(200)),
            ]
        );
    }
}

#[test]
fn a_listener_may_use_the_breaker_and_send_through_the_same_client() {
    let reentry = Arc::<Reentry>::default();
    let listener = Arc::clone(&reentry);
    reentry.watch_an_outage(brittle().on_event(move |_| listener.come_back()), Registry::default());
}

#[test]
fn a_log_subscriber_may_use_the_breaker_and_send_through_the_same_client() {
    struct Answer(Arc<Reentry>);

    impl<S: Subscriber> Layer<S> for Answer {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            if event.metadata().target() == "reqwest_resilience" {
                self.0.come_back();
            }
        }
    }

    let reentry = Arc::<Reentry>::default();
    let subscriber = Registry::default().with(Answer(Arc::clone(&reentry)));
    reentry.watch_an_outage(brittle(), subscriber);
}
