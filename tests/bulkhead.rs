//! The bulkhead in a chain: slots, the queue before them, and how both are given back.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use http::{Extensions, Method};
use http_body::{Body as HttpBody, Frame};
use reqwest::{Body, Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next, Result};
use reqwest_resilience::{
    Bulkhead, BulkheadBuilder, BypassCircuit, CircuitBreaker, CircuitBreakerBuilder, CircuitState, Deadline,
    QueuedFor, Rejection, Retry, Scope, Trip, Until,
};
use std::{
    error::Error as _,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use support::{Held, KEY, Log, Reply, Saw, Transport, URL, call, plain_client, saw, state};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::{self, JoinHandle, JoinSet},
    time::{self, Instant},
};
use tracing::Level;

const OTHER_URL: &str = "http://other.example.com/";
const OTHER_KEY: &str = "http://other.example.com:80";

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// So many slots, so many places in the queue, and a second of patience.
fn sized(slots: usize, queue: usize) -> BulkheadBuilder {
    Bulkhead::builder().max_concurrent(slots).max_queue(queue)
}

/// `bulkhead → transport`, nothing else.
fn chain(bulkhead: &Bulkhead, transport: &impl Last) -> ClientWithMiddleware {
    ClientBuilder::new(plain_client()).with(bulkhead.clone()).with(transport.clone()).build()
}

/// `breaker → bulkhead → transport`, nothing else.
fn behind_a_breaker(
    breaker: &CircuitBreaker,
    bulkhead: &Bulkhead,
    transport: &Transport,
) -> ClientWithMiddleware {
    ClientBuilder::new(plain_client())
        .with(breaker.clone())
        .with(bulkhead.clone())
        .with(transport.clone())
        .build()
}

/// One failure opens for a second.
fn brittle() -> CircuitBreakerBuilder {
    CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(1)).open_for(Duration::from_secs(1)))
}

/// A call in a task of its own.
fn spawn(client: &ClientWithMiddleware, url: impl Into<String>) -> JoinHandle<Saw> {
    let (client, url) = (client.clone(), url.into());
    tokio::spawn(async move { call(&client, &url).await })
}

/// Lets the other tasks run, in paused time, until this is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..200 {
        if is_so() {
            return;
        }
        task::yield_now().await;
    }
    panic!("never so: {what}");
}

/// Waits, in real time, until this is so.
async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let soon = async {
        while !is_so() {
            time::sleep(millis(1)).await;
        }
    };
    time::timeout(Duration::from_secs(5), soon).await.expect(what);
}

/// Slots taken and calls queued for the origin that most tests call.
fn in_flight_and_queued(bulkhead: &Bulkhead) -> (usize, usize) {
    let snapshots = bulkhead.snapshots();
    let gate = snapshots.iter().find(|gate| &*gate.key == KEY).unwrap();
    (gate.in_flight, gate.queued)
}

/// All calls that have a slot or a place in a queue.
fn calls_in(bulkhead: &Bulkhead) -> usize {
    let gates = bulkhead.snapshots();
    gates.iter().map(|gate| gate.in_flight + gate.queued).sum()
}

/// Sends calls that the transport holds, one after the other, and lets each take its slot or place.
async fn fill(client: &ClientWithMiddleware, bulkhead: &Bulkhead, calls: usize) -> Vec<JoinHandle<Saw>> {
    let mut tasks = Vec::new();
    for number in 1..=calls {
        tasks.push(spawn(client, URL));
        until("the call is in", || number <= calls_in(bulkhead)).await;
    }
    tasks
}

/// The oldest request at the transport, once there is one.
async fn held(transport: &Transport) -> Held {
    let mut held = None;
    until("a request is held", || {
        held = transport.take_held();
        held.is_some()
    })
    .await;
    held.unwrap()
}

/// The rejection that this call ended in.
async fn rejection(client: &ClientWithMiddleware, url: &str) -> Rejection {
    let error = client.get(url).send().await.unwrap_err();
    Rejection::find(&error).expect("a rejection").clone()
}

/// A last middleware: its clones share what they count.
trait Last: Middleware + Clone {}
impl<M: Middleware + Clone> Last for M {}

type Data = <Body as HttpBody>::Data;

/// A body that the test feeds.
struct Fed(UnboundedReceiver<io::Result<Frame<Data>>>);

/// What feeds it. Dropping this is the end of the body.
struct Feeder(UnboundedSender<io::Result<Frame<Data>>>);

impl Fed {
    fn new() -> (Feeder, Self) {
        let (sender, receiver) = unbounded_channel();
        (Feeder(sender), Self(receiver))
    }

    fn into_response(self, status: u16) -> Response {
        let response = http::Response::builder().status(status);
        response.body(Body::wrap(self)).unwrap().into()
    }
}

impl Feeder {
    fn data(&self) {
        // The reader may be gone by now.
        let _ = self.0.send(Ok(Frame::data("data".into())));
    }

    fn fault(&self) {
        let _ = self.0.send(Err(io::ErrorKind::ConnectionReset.into()));
    }
}

impl HttpBody for Fed {
    type Data = Data;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Self::Data>>>> {
        self.0.poll_recv(cx)
    }
}

/// Answers with bodies that the test feeds.
#[derive(Clone)]
struct Streaming(u16, Arc<Mutex<Vec<Feeder>>>);

impl Streaming {
    fn answering(status: u16) -> Self {
        Self(status, Arc::default())
    }

    fn feeder(&self) -> Feeder {
        self.1.lock().unwrap().pop().expect("a request came")
    }
}

#[async_trait::async_trait]
impl Middleware for Streaming {
    async fn handle(&self, _: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        let (feeder, body) = Fed::new();
        self.1.lock().unwrap().push(feeder);
        Ok(body.into_response(self.0))
    }
}

// Slots

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn f53_a_thousand_calls_dropped_at_random_moments_leave_exactly_the_configured_slots() {
    for hold in [Until::Headers, Until::BodyEnd] {
        let busy = Busy::default();
        let bulkhead = sized(3, 8).max_wait(Duration::from_secs(60)).hold(hold).build().unwrap();
        let client = chain(&bulkhead, &busy);
        let mut callers = JoinSet::new();
        for _ in 0..20 {
            let client = client.clone();
            callers.spawn(async move {
                for _ in 0..50 {
                    tokio::select! {
                        _ = read_all(&client) => {}
                        () = a_random_moment() => {}
                    }
                }
            });
        }
        callers.join_all().await;
        assert_eq!(in_flight_and_queued(&bulkhead), (0, 0), "{hold:?}");
        assert_eq!(busy.peak.load(Ordering::SeqCst), 3, "{hold:?}: all slots were in use");

        let transport = Transport::answering(200);
        transport.hold();
        let client = chain(&bulkhead, &transport);
        let calls: Vec<_> = (0..5).map(|_| spawn(&client, URL)).collect();
        eventually("three get through and two queue", || {
            transport.hits() == 3 && in_flight_and_queued(&bulkhead) == (3, 2)
        })
        .await;
        calls.iter().for_each(JoinHandle::abort);
    }
}

/// A call, and its body.
async fn read_all(client: &ClientWithMiddleware) -> Result<()> {
    let mut response = client.get(URL).send().await?;
    while response.chunk().await?.is_some() {
        task::yield_now().await;
    }
    Ok(())
}

/// Now, soon or a little later.
async fn a_random_moment() {
    if fastrand::bool() {
        time::sleep(Duration::from_micros(fastrand::u64(..4_000))).await;
    }
    for _ in 0..fastrand::u32(..20) {
        task::yield_now().await;
    }
}

/// A last middleware that takes its time and knows how many calls it ever had at once.
#[derive(Clone, Default)]
struct Busy {
    now: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
}

/// One call that it has.
struct Serving<'a>(&'a AtomicUsize);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait::async_trait]
impl Middleware for Busy {
    async fn handle(&self, _: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        let _serving = Serving(&self.now);
        self.peak.fetch_max(now, Ordering::SeqCst);
        a_random_moment().await;
        let (feeder, body) = Fed::new();
        feeder.data();
        feeder.data();
        Ok(body.into_response(200))
    }
}

#[tokio::test(start_paused = true)]
async fn f54_waiters_are_served_in_order_and_no_newcomer_overtakes_them() {
    let transport = Transport::answering(200);
    transport.hold();
    let bulkhead = sized(1, 10).build().unwrap();
    let client = chain(&bulkhead, &transport);
    let at = |path: &str| format!("http://api.example.com/{path}");
    let mut calls = Vec::new();
    let mut expected = vec![at("holder")];
    calls.push(spawn(&client, at("holder")));
    for waiter in 1..=5 {
        until("the one before is in", || calls_in(&bulkhead) == waiter).await;
        calls.push(spawn(&client, at(&waiter.to_string())));
        expected.push(at(&waiter.to_string()));
    }
    until("all five queue", || in_flight_and_queued(&bulkhead) == (1, 5)).await;
    for newcomer in ["a", "b", "c", "d", "e"] {
        // The holder gives its slot back before the newcomer looks, and the waiter runs after that.
        held(&transport).await.answer(200);
        calls.push(spawn(&client, at(newcomer)));
        expected.push(at(newcomer));
    }
    for _ in 0..6 {
        held(&transport).await.answer(200);
    }
    for call in calls {
        assert_eq!(call.await.unwrap(), Saw::Status(200));
    }
    assert_eq!(transport.urls(), expected);
}

#[tokio::test(start_paused = true)]
async fn f55_any_sizes_let_a_call_through_to_an_idle_server() {
    let most = tokio::sync::Semaphore::MAX_PERMITS.min(u32::MAX as usize);
    for (slots, queue, wait) in [
        (1, 0, Duration::ZERO),
        (1, 0, Duration::from_secs(1)),
        (1, 1, Duration::ZERO),
        (most, usize::MAX, Duration::MAX),
    ] {
        let bulkhead = sized(slots, queue).max_wait(wait).build().unwrap();
        let client = chain(&bulkhead, &Transport::answering(200));
        for _ in 0..3 {
            assert_eq!(call(&client, URL).await, Saw::Status(200), "{slots} {queue} {wait:?}");
        }
        assert_eq!(in_flight_and_queued(&bulkhead), (0, 0));
    }
}

#[test]
fn f21_sizes_that_cannot_be_are_errors_that_name_field_and_value() {
    let too_large = usize::MAX.to_string();
    for (result, field, value) in [
        (Bulkhead::per_origin(0), "max_concurrent", "0"),
        (Bulkhead::shared(0), "max_concurrent", "0"),
        (sized(0, 1).build(), "max_concurrent", "0"),
        (sized(usize::MAX, 1).build(), "max_concurrent", &too_large),
        (Bulkhead::builder().max_queue(1).build(), "max_concurrent", "not set"),
        (sized(1, 1).max_keys(0).build(), "max_keys", "0"),
        (sized(1, 1).scope(Scope::shared("")).build(), "scope", "\"\""),
    ] {
        let error = result.unwrap_err();
        assert_eq!((error.field(), error.value()), (field, value), "{error}");
        assert!(!error.rule().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn f56_the_slot_is_held_as_long_as_was_asked_for_and_given_back_once() {
    for what in ["read to its end", "broken", "dropped unread"] {
        let streaming = Streaming::answering(200);
        let bulkhead = sized(2, 2).hold(Until::BodyEnd).build().unwrap();
        let mut response = chain(&bulkhead, &streaming).get(URL).send().await.unwrap();
        let feeder = streaming.feeder();
        assert_eq!(in_flight_and_queued(&bulkhead), (1, 0), "{what}: the headers are no end");
        feeder.data();
        if what != "dropped unread" {
            assert!(response.chunk().await.unwrap().is_some());
            assert_eq!(in_flight_and_queued(&bulkhead), (1, 0), "{what}: nor is a part");
            if what == "broken" {
                feeder.fault();
            }
            drop(feeder);
            assert_eq!(response.chunk().await.is_err(), what == "broken");
            assert_eq!(in_flight_and_queued(&bulkhead), (0, 0), "{what}: though the response is kept");
        }
        drop(response);
        assert_slots(&bulkhead, 2, what).await;
    }
}

/// Of four calls, exactly so many have a slot at once.
async fn assert_slots(bulkhead: &Bulkhead, slots: usize, what: &str) {
    let transport = Transport::answering(200);
    transport.hold();
    let calls = fill(&chain(bulkhead, &transport), bulkhead, 4).await;
    until(what, || transport.hits() == slots && in_flight_and_queued(bulkhead) == (slots, 4 - slots)).await;
    calls.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn f56_the_slot_is_free_at_the_headers_by_default_and_where_no_body_comes() {
    let (get, head) = (Method::GET, Method::HEAD);
    for (hold, method, status) in [
        (Until::default(), &get, 200),
        (Until::BodyEnd, &head, 200),
        (Until::BodyEnd, &get, 204),
        (Until::BodyEnd, &get, 304),
        (Until::BodyEnd, &get, 101),
    ] {
        let streaming = Streaming::answering(status);
        let bulkhead = sized(2, 2).hold(hold).build().unwrap();
        let client = chain(&bulkhead, &streaming);
        let response = client.request(method.clone(), URL).send().await.unwrap();
        assert_eq!(in_flight_and_queued(&bulkhead), (0, 0), "{hold:?} {method} {status}");
        drop(response);
        assert_slots(&bulkhead, 2, "two slots").await;
    }
}

#[tokio::test(start_paused = true)]
async fn f57_a_call_that_sleeps_between_its_attempts_holds_no_slot() {
    let transport = Transport::answering(200).then([Reply::Header(503, "retry-after", "1")]);
    let client = ClientBuilder::new(plain_client())
        .with(Retry::default())
        .with(sized(1, 0).build().unwrap())
        .with(transport.clone())
        .build();
    let begun = Instant::now();
    let first = spawn(&client, URL);
    until("the first is refused", || transport.hits() == 1).await;
    assert_eq!(call(&client, URL).await, Saw::Status(200));
    assert!(begun.elapsed() < Duration::from_secs(1), "the second did not wait for the first");
    assert_eq!(first.await.unwrap(), Saw::Status(200));
    assert!(Duration::from_secs(1) <= begun.elapsed());
    assert_eq!(transport.hits(), 3);
}

#[tokio::test(start_paused = true)]
async fn f58_only_the_calls_that_queue_when_the_circuit_opens_still_reach_the_server() {
    let transport = Transport::answering(503);
    transport.hold();
    let breaker = brittle().build().unwrap();
    let bulkhead = sized(1, 3).build().unwrap();
    let client = behind_a_breaker(&breaker, &bulkhead, &transport);
    let log = Log::listen();
    let calls = fill(&client, &bulkhead, 4).await;
    assert_eq!(in_flight_and_queued(&bulkhead), (1, 3));
    held(&transport).await.answer(503);
    until("the circuit is open", || state(&breaker, KEY) == CircuitState::Open).await;

    let begun = Instant::now();
    assert!(matches!(rejection(&client, URL).await, Rejection::CircuitOpen { .. }));
    assert_eq!(begun.elapsed(), Duration::ZERO);
    for _ in 0..3 {
        held(&transport).await.answer(503);
    }
    for call in calls {
        assert_eq!(call.await.unwrap(), Saw::Status(503));
    }
    assert_eq!(transport.hits(), 4);
    assert_eq!(log.of("circuit.opened").len(), 1);
    assert_eq!(log.of("circuit.stale_outcome").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn f08_a_probe_that_a_full_bulkhead_refuses_leaves_the_circuit_able_to_probe_at_once() {
    let transport = Transport::answering(200).then([Reply::Status(503)]);
    let breaker = brittle().build().unwrap();
    let bulkhead = sized(1, 1).max_wait(millis(100)).build().unwrap();
    let client = behind_a_breaker(&breaker, &bulkhead, &transport);
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    time::advance(Duration::from_secs(1)).await;

    transport.hold();
    let bypassing = client.clone();
    let holder =
        tokio::spawn(async move { saw(&bypassing.get(URL).with_extension(BypassCircuit).send().await) });
    let slot = held(&transport).await;
    for _ in 0..10 {
        // It holds the only probe slot of the circuit for as long as it queues.
        assert!(matches!(rejection(&client, URL).await, Rejection::BulkheadFull { .. }));
        let circuit = breaker.snapshot(KEY).unwrap();
        assert_eq!((circuit.state, circuit.probes_in_flight), (CircuitState::HalfOpen, 0));
    }
    slot.answer(200);
    assert_eq!(holder.await.unwrap(), Saw::Status(200));
    transport.stop_holding();
    assert_eq!(call(&client, URL).await, Saw::Status(200));
    assert_eq!(state(&breaker, KEY), CircuitState::Closed);
}

// Waiting

#[tokio::test(start_paused = true)]
async fn f68_what_a_call_queued_is_not_charged_to_the_origin() {
    // (the origin takes, of a patience of 100 ms; the circuit then is)
    for (takes, expected) in [(10, CircuitState::Closed), (110, CircuitState::Open)] {
        let transport = Transport::answering(200);
        transport.hold();
        let breaker = brittle().defaults(|circuit| circuit.trip(Trip::consecutive(1)).slow_call(millis(100)));
        let breaker = breaker.build().unwrap();
        let bulkhead = sized(1, 1).build().unwrap();
        let client = behind_a_breaker(&breaker, &bulkhead, &transport);
        let holder = tokio::spawn({
            let client = client.clone();
            async move { saw(&client.get(URL).with_extension(BypassCircuit).send().await) }
        });
        let slot = held(&transport).await;
        transport.script([Reply::Late(millis(takes), 200)]);
        let queued = spawn(&client, URL);
        until("the second queues", || in_flight_and_queued(&bulkhead) == (1, 1)).await;
        time::advance(millis(300)).await;
        slot.answer(200);
        assert_eq!(holder.await.unwrap(), Saw::Status(200));
        assert_eq!(queued.await.unwrap(), Saw::Status(200));
        assert_eq!(state(&breaker, KEY), expected, "{takes} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn f68_a_call_that_is_dropped_is_charged_only_with_the_time_that_the_origin_had_it() {
    // (queues for, then is at the origin for, of a patience of 100 ms; the circuit then is)
    for (queues, takes, expected) in [
        (300, None, CircuitState::Closed),
        (300, Some(90), CircuitState::Closed),
        (300, Some(110), CircuitState::Open),
    ] {
        let transport = Transport::answering(200);
        transport.hold();
        let breaker = CircuitBreaker::builder()
            .defaults(|circuit| circuit.trip(Trip::consecutive(1)).abandoned_after(millis(100)));
        let breaker = breaker.build().unwrap();
        let bulkhead = sized(1, 1).build().unwrap();
        let outside = chain(&bulkhead, &transport);
        let _holder = spawn(&outside, URL);
        let slot = held(&transport).await;
        let abandoned = spawn(&behind_a_breaker(&breaker, &bulkhead, &transport), URL);
        until("it queues", || in_flight_and_queued(&bulkhead) == (1, 1)).await;
        time::advance(millis(queues)).await;
        if let Some(takes) = takes {
            slot.answer(200);
            let _at_the_origin = held(&transport).await;
            time::advance(millis(takes)).await;
            abandoned.abort();
        } else {
            abandoned.abort();
        }
        assert!(abandoned.await.unwrap_err().is_cancelled());
        assert_eq!(state(&breaker, KEY), expected, "{queues} {takes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn f75_a_queue_that_runs_into_the_deadline_is_a_full_bulkhead_and_nobody_is_charged() {
    let transport = Transport::answering(200);
    transport.hold();
    let breaker = brittle().build().unwrap();
    let bulkhead = sized(1, 1).build().unwrap();
    let _holder = fill(&chain(&bulkhead, &transport), &bulkhead, 1).await;
    let client = ClientBuilder::new(plain_client())
        .with(Deadline::after(millis(200)))
        .with(breaker.clone())
        .with(bulkhead.clone())
        .with(transport.clone())
        .build();
    let begun = Instant::now();
    let Rejection::BulkheadFull { waited, .. } = rejection(&client, URL).await else {
        panic!("not what ended it");
    };
    // A little before the deadline, so that there is no doubt which of the two ended it.
    assert_eq!((waited, begun.elapsed()), (millis(199), millis(199)));
    let circuit = breaker.snapshot(KEY).unwrap();
    assert_eq!((circuit.state, circuit.consecutive_failures), (CircuitState::Closed, 0));
    assert_eq!(in_flight_and_queued(&bulkhead), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_full_bulkhead_without_patience_refuses_at_once() {
    let transport = Transport::answering(200);
    transport.hold();
    let bulkhead = sized(1, 1).max_wait(Duration::ZERO).build().unwrap();
    let client = chain(&bulkhead, &transport);
    let _holder = fill(&client, &bulkhead, 1).await;
    let begun = Instant::now();
    let Rejection::BulkheadFull { waited, queued, .. } = rejection(&client, URL).await else {
        panic!("not what ended it");
    };
    assert_eq!((waited, queued), (Duration::ZERO, 0));
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn boundless_patience_waits_for_as_long_as_it_takes() {
    let transport = Transport::answering(200);
    transport.hold();
    let bulkhead = sized(1, 1).max_wait(Duration::MAX).build().unwrap();
    let calls = fill(&chain(&bulkhead, &transport), &bulkhead, 2).await;
    time::sleep(Duration::from_secs(100_000_000)).await;
    assert_eq!(in_flight_and_queued(&bulkhead), (1, 1));
    held(&transport).await.answer(200);
    held(&transport).await.answer(201);
    for (call, status) in calls.into_iter().zip([200, 201]) {
        assert_eq!(call.await.unwrap(), Saw::Status(status));
    }
}

#[tokio::test(start_paused = true)]
async fn by_default_as_many_queue_as_there_are_slots_for_a_second_each() {
    let transport = Transport::answering(200);
    transport.hold();
    let bulkhead = Bulkhead::per_origin(2).unwrap();
    let client = chain(&bulkhead, &transport);
    let begun = Instant::now();
    let mut calls = fill(&client, &bulkhead, 4).await;
    assert_eq!(in_flight_and_queued(&bulkhead), (2, 2));
    assert_eq!(call(&client, URL).await, Saw::Rejected);
    assert_eq!(begun.elapsed(), Duration::ZERO);
    for waiter in calls.drain(2..) {
        assert_eq!(waiter.await.unwrap(), Saw::Rejected);
    }
    assert_eq!(begun.elapsed(), Duration::from_secs(1));
    assert_eq!(in_flight_and_queued(&bulkhead), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_dropped_or_unwound_frees_its_place_at_once() {
    let transport = Transport::answering(200);
    transport.hold();
    let bulkhead = sized(1, 1).build().unwrap();
    let client = chain(&bulkhead, &transport);
    let _holder = fill(&client, &bulkhead, 1).await;

    let dropped = spawn(&client, URL);
    until("it queues", || in_flight_and_queued(&bulkhead) == (1, 1)).await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    assert_eq!(in_flight_and_queued(&bulkhead), (1, 0));

    let (panics, told) = tokio::sync::oneshot::channel::<()>();
    let waiter = client.clone();
    let unwound = tokio::spawn(async move {
        tokio::join!(call(&waiter, URL), async {
            told.await.expect("the test says when");
        })
    });
    until("it queues", || in_flight_and_queued(&bulkhead) == (1, 1)).await;
    drop(panics);
    assert!(unwound.await.unwrap_err().is_panic());
    assert_eq!(in_flight_and_queued(&bulkhead), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_panics_or_is_dropped_gives_its_slot_back_in_both_modes() {
    for hold in [Until::Headers, Until::BodyEnd] {
        let transport = Transport::answering(200).then([Reply::ForeignError, Reply::Panic, Reply::Hang]);
        let bulkhead = sized(2, 2).hold(hold).build().unwrap();
        let client = chain(&bulkhead, &transport);
        assert_eq!(call(&client, URL).await, Saw::Error);
        assert!(spawn(&client, URL).await.unwrap_err().is_panic());
        let dropped = spawn(&client, URL);
        until("it is under way", || in_flight_and_queued(&bulkhead) == (1, 0)).await;
        dropped.abort();
        assert!(dropped.await.unwrap_err().is_cancelled());
        assert_slots(&bulkhead, 2, "two slots").await;
    }
}

// Keys

#[tokio::test(start_paused = true)]
async fn every_origin_has_slots_of_its_own_and_a_shared_scope_has_them_for_all() {
    for (bulkhead, other, keys) in [
        (Bulkhead::per_origin(1), Saw::Status(200), vec![KEY, OTHER_KEY]),
        (Bulkhead::shared(1), Saw::Rejected, vec!["all"]),
        (sized(1, 1).scope(Scope::shared("gateway")).build(), Saw::Rejected, vec!["gateway"]),
    ] {
        let bulkhead = bulkhead.unwrap();
        let transport = Transport::answering(200).then([Reply::Hang]);
        let client = chain(&bulkhead, &transport);
        let _holder = fill(&client, &bulkhead, 1).await;
        assert_eq!(call(&client, OTHER_URL).await, other);
        let snapshots = bulkhead.snapshots();
        assert_eq!(snapshots.iter().map(|gate| &*gate.key).collect::<Vec<_>>(), keys);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_key_passes() {
    let transport = Transport::answering(200).then([Reply::Hang, Reply::Hang]);
    let by_tenant = Scope::by(|request| Some(request.headers().get("x-tenant")?.to_str().ok()?.to_owned()));
    let bulkhead = sized(1, 0).scope(by_tenant).build().unwrap();
    let client = chain(&bulkhead, &transport);
    let _holders = [spawn(&client, URL), spawn(&client, URL)];
    until("both are under way", || transport.hits() == 2).await;
    assert_eq!(call(&client, URL).await, Saw::Status(200));
    assert!(bulkhead.snapshots().is_empty());
    let known = client.get(URL).header("x-tenant", "acme").send().await;
    assert_eq!(saw(&known), Saw::Status(200));
    assert_eq!(&*bulkhead.snapshots()[0].key, "acme");
}

#[tokio::test(start_paused = true)]
async fn a_bulkhead_in_use_keeps_its_place_in_a_full_registry_and_newcomers_pass() {
    let streaming = Streaming::answering(200);
    let bulkhead = sized(1, 0).max_keys(1).hold(Until::BodyEnd).build().unwrap();
    let client = chain(&bulkhead, &streaming);
    let unread = client.get(URL).send().await.unwrap();
    let mut others = Vec::new();
    for _ in 0..5 {
        others.push(client.get(OTHER_URL).send().await.unwrap());
        assert_eq!(call(&client, URL).await, Saw::Rejected, "its only slot is taken");
    }
    let gates = bulkhead.snapshots();
    assert_eq!(gates.len(), 1);
    assert_eq!((&*gates[0].key, gates[0].in_flight, gates[0].rejected), (KEY, 1, 5));

    // Passed is passed: they held no slot, so that they give none back.
    drop((unread, others));
    let transport = Transport::answering(200);
    transport.hold();
    let client = chain(&bulkhead, &transport);
    let _holder = fill(&client, &bulkhead, 1).await;
    assert_eq!(call(&client, URL).await, Saw::Rejected);
    assert_eq!(transport.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_free_bulkhead_makes_room_for_another_key() {
    let transport = Transport::answering(200);
    let bulkhead = sized(1, 0).max_keys(1).build().unwrap();
    let client = chain(&bulkhead, &transport);
    for (url, key) in [(URL, KEY), (OTHER_URL, OTHER_KEY), (URL, KEY)] {
        // One that was used since the last newcomer came has a second chance: it goes at the next.
        for _ in 0..2 {
            assert_eq!(call(&client, url).await, Saw::Status(200));
        }
        transport.hold();
        let holder = spawn(&client, url);
        let slot = held(&transport).await;
        assert_eq!(call(&client, url).await, Saw::Rejected);
        let gates = bulkhead.snapshots();
        assert_eq!(gates.len(), 1);
        let seen = (&*gates[0].key, gates[0].in_flight, gates[0].rejected);
        assert_eq!(seen, (key, 1, 1), "nothing is left of the one before");
        slot.answer(200);
        assert_eq!(holder.await.unwrap(), Saw::Status(200));
        transport.stop_holding();
    }
}

// What callers, neighbours and operators see

/// What the layers on one side of it were told of the queue.
#[derive(Clone, Default)]
struct Witness(Arc<Mutex<Vec<Told>>>);

/// What the extensions say on the way in and on the way out.
type Told = (Option<Duration>, Option<Duration>);

impl Witness {
    fn last(&self) -> Told {
        *self.0.lock().unwrap().last().expect("a call came by")
    }
}

#[async_trait::async_trait]
impl Middleware for Witness {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let told = |extensions: &Extensions| extensions.get().map(|_: &QueuedFor| QueuedFor::of(extensions));
        let inward = told(extensions);
        let result = next.run(request, extensions).await;
        self.0.lock().unwrap().push((inward, told(extensions)));
        result
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_call_queued_is_told_inward_and_outward_and_added_up() {
    let transport = Transport::answering(200);
    let (outer, inner) = (sized(1, 1).build().unwrap(), sized(1, 1).build().unwrap());
    let (outside, between, inside) = (Witness::default(), Witness::default(), Witness::default());
    let client = ClientBuilder::new(plain_client())
        .with(outside.clone())
        .with(outer.clone())
        .with(between.clone())
        .with(inner.clone())
        .with(inside.clone())
        .with(transport.clone())
        .build();

    assert_eq!(call(&client, URL).await, Saw::Status(200));
    for witness in [&outside, &between, &inside] {
        assert_eq!(witness.last(), (None, None), "it did not queue");
    }

    transport.hold();
    let _holders = [
        fill(&chain(&outer, &transport), &outer, 1).await,
        fill(&chain(&inner, &transport), &inner, 1).await,
    ];
    let (slot_of_outer, slot_of_inner) = (held(&transport).await, held(&transport).await);
    transport.stop_holding();
    let queued = spawn(&client, URL);
    until("it queues outside", || in_flight_and_queued(&outer) == (1, 1)).await;
    time::advance(millis(300)).await;
    slot_of_outer.answer(200);
    until("it queues inside", || in_flight_and_queued(&inner) == (1, 1)).await;
    time::advance(millis(40)).await;
    slot_of_inner.answer(200);
    assert_eq!(queued.await.unwrap(), Saw::Status(200));
    assert_eq!(outside.last(), (None, Some(millis(340))));
    assert_eq!(between.last(), (Some(millis(300)), Some(millis(340))));
    assert_eq!(inside.last(), (Some(millis(340)), Some(millis(340))));
}

#[tokio::test(start_paused = true)]
async fn a_refused_caller_is_told_what_was_full_and_how_long_it_waited() {
    let transport = Transport::answering(200);
    transport.hold();
    let bulkhead = sized(2, 2).max_wait(millis(200)).build().unwrap();
    let client = chain(&bulkhead, &transport);
    let calls = fill(&client, &bulkhead, 3).await;
    time::advance(millis(50)).await;
    let error = client.get(URL).send().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "request not sent: no free slot for http://api.example.com:80, 2 in flight, 0 queued, waited 200 ms"
    );
    assert_eq!(error.source().unwrap().to_string(), "bulkhead full");
    let rejection = Rejection::find(&error).unwrap();
    assert!(rejection.is_unsent());
    let Rejection::BulkheadFull { key, max_concurrent, queued, waited, .. } = rejection else {
        panic!("{rejection:?}");
    };
    let told = (&**key, *max_concurrent, *queued, *waited);
    assert_eq!(told, (KEY, 2, 0, millis(200)), "the other waiter had left by then");
    assert_eq!(transport.hits(), 2);
    calls.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn snapshots_are_sorted_and_print_as_one_line() {
    let transport = Transport::answering(200);
    transport.hold();
    let bulkhead = sized(1, 1).build().unwrap();
    let client = chain(&bulkhead, &transport);
    assert!(bulkhead.snapshots().is_empty());
    let _other = spawn(&client, OTHER_URL);
    until("it is there", || transport.hits() == 1).await;
    let _calls = [spawn(&client, URL), spawn(&client, URL)];
    until("one of them queues", || {
        bulkhead.snapshots().len() == 2 && in_flight_and_queued(&bulkhead) == (1, 1)
    })
    .await;
    assert_eq!(call(&client, URL).await, Saw::Rejected);
    let lines: Vec<_> = bulkhead.clone().snapshots().iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "http://api.example.com:80 1 in flight, 1 queued, 1 rejected",
            "http://other.example.com:80 1 in flight, 0 queued, 0 rejected",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn refusals_are_logged_at_most_once_a_second_for_each_key() {
    let transport = Transport::answering(200);
    transport.hold();
    let bulkhead = sized(1, 1).max_wait(Duration::MAX).build().unwrap();
    let client = chain(&bulkhead, &transport);
    let _calls = fill(&client, &bulkhead, 2).await;
    let _others = [spawn(&client, OTHER_URL), spawn(&client, OTHER_URL)];
    until("all are in", || calls_in(&bulkhead) == 4).await;

    let log = Log::listen();
    for _ in 0..3 {
        assert_eq!(call(&client, URL).await, Saw::Rejected);
    }
    assert_eq!(call(&client, OTHER_URL).await, Saw::Rejected);
    time::advance(millis(999)).await;
    assert_eq!(call(&client, URL).await, Saw::Rejected);
    time::advance(millis(1)).await;
    assert_eq!(call(&client, URL).await, Saw::Rejected);

    let lines = log.of("bulkhead.rejected");
    assert_eq!(log.lines().len(), lines.len(), "nothing else is logged");
    for line in &lines {
        assert_eq!(line.level, Level::WARN);
        assert_eq!(line.names(), ["key", "max_concurrent", "queued", "suppressed"]);
        assert_eq!((line.get("max_concurrent"), line.get("queued")), ("1", "1"));
    }
    let told: Vec<_> = lines.iter().map(|line| (line.get("key"), line.get("suppressed"))).collect();
    assert_eq!(told, [(KEY, "0"), (OTHER_KEY, "0"), (KEY, "3")]);
    assert_eq!(bulkhead.snapshots()[0].rejected, 5);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_queued_in_vain_is_told_so_outward_and_one_that_was_refused_at_once_is_not() {
    let transport = Transport::answering(200);
    transport.hold();
    let bulkhead = sized(1, 1).max_wait(millis(200)).build().unwrap();
    let _holder = fill(&chain(&bulkhead, &transport), &bulkhead, 1).await;
    let outside = Witness::default();
    let client = ClientBuilder::new(plain_client())
        .with(outside.clone())
        .with(bulkhead.clone())
        .with(transport.clone())
        .build();
    let queued = spawn(&client, URL);
    until("it queues", || in_flight_and_queued(&bulkhead) == (1, 1)).await;
    assert_eq!(call(&client, URL).await, Saw::Rejected, "the queue is full");
    assert_eq!(outside.last(), (None, None));
    assert_eq!(queued.await.unwrap(), Saw::Rejected);
    assert_eq!(outside.last(), (None, Some(millis(200))));
}
