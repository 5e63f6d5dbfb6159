//! The breaker over real sockets, in real time: what a sick origin does, and what an open circuit spares it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use reqwest_middleware::Error;
use reqwest_resilience::{
    BypassCircuit, CircuitBreaker, CircuitBreakerBuilder, CircuitEvent, CircuitState, FailureRate, Trip,
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};
use support::{Conversation, Saw, Server, call, network, saw, state};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinSet,
    time,
};
use wiremock::{Mock, MockServer, Request, ResponseTemplate, matchers::any};

/// Nobody listens on port 0, ever.
const DEAD: &str = "http://127.0.0.1:0";

/// Long enough for anything that shall happen at all.
const PATIENCE: Duration = Duration::from_secs(5);

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// So many failures in a row open; the next call is a probe at once.
fn after(failures: u32) -> CircuitBreakerBuilder {
    CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(failures)).open_for(Duration::ZERO))
}

/// So many failures in a row open for longer than a test lasts.
fn for_good_after(failures: u32) -> CircuitBreaker {
    let breaker = after(failures).defaults(|circuit| circuit.open_for(Duration::from_secs(3_600)));
    breaker.build().unwrap()
}

/// Half of four calls, within ten seconds, are enough failures.
fn half_of_four() -> FailureRate {
    Trip::failure_rate(0.5).min_calls(4).over(Duration::from_secs(10))
}

/// A well-behaved server that answers so.
async fn well_behaved(answer: impl wiremock::Respond + 'static) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(answer).mount(&server).await;
    server
}

async fn requests(server: &MockServer) -> usize {
    server.received_requests().await.unwrap().len()
}

/// What a server that holds its requests has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Request,
    Closed,
}

/// A server that answers 503 once and then holds every request until its connection closes.
async fn holding() -> (Server, UnboundedReceiver<Seen>) {
    let (sender, seen) = unbounded_channel();
    let server = Server::start(move |conversation| {
        let sender = sender.clone();
        async move {
            if conversation.number == 0 {
                return conversation.status(503).await;
            }
            sender.send(Seen::Request).ok()?;
            conversation.closed_by_peer().await;
            sender.send(Seen::Closed).ok()?;
            None
        }
    });
    (server.await, seen)
}

/// Waits until the server sees this.
async fn until(seen: &mut UnboundedReceiver<Seen>, expected: Seen) {
    let seen = async { while seen.recv().await.unwrap() != expected {} };
    time::timeout(PATIENCE, seen).await.unwrap();
}

#[tokio::test]
async fn f02_the_call_after_an_aborted_probe_reaches_the_server_a_hundred_times() {
    let (server, mut seen) = holding().await;
    let breaker = after(1).build().unwrap();
    let client = network(&breaker);
    assert_eq!(call(&client, &server.url()).await, Saw::Status(503));
    for _ in 0..100 {
        let (client, url) = (client.clone(), server.url());
        let probe = tokio::spawn(async move { call(&client, &url).await });
        until(&mut seen, Seen::Request).await;
        probe.abort();
        assert!(probe.await.unwrap_err().is_cancelled());
    }
    assert_eq!(server.hits(), 101);
}

#[tokio::test]
async fn f06_a_dropped_probe_closes_its_connection() {
    let (server, mut seen) = holding().await;
    let client = network(&after(1).build().unwrap());
    assert_eq!(call(&client, &server.url()).await, Saw::Status(503));
    let (url, mut probe) = (server.url(), JoinSet::new());
    probe.spawn(async move { call(&client, &url).await });
    until(&mut seen, Seen::Request).await;
    drop(probe);
    until(&mut seen, Seen::Closed).await;
}

#[tokio::test]
async fn f04_a_server_that_hangs_sees_one_call_per_probe_period() {
    let server = Server::start(|conversation| async move {
        if conversation.number < 4 {
            return conversation.status(503).await;
        }
        conversation.closed_by_peer().await;
        None
    });
    let server = server.await;
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(half_of_four()).open_for(millis(300)))
        .build()
        .unwrap();
    let client = network(&breaker);
    for _ in 0..4 {
        assert_eq!(call(&client, &server.url()).await, Saw::Status(503));
    }
    let tripped = Instant::now();
    let mut every = time::interval(millis(20));
    let mut calls = JoinSet::new();
    while tripped.elapsed() < millis(2_000) {
        every.tick().await;
        let request = client.get(server.url()).timeout(millis(400));
        calls.spawn(async move { saw(&request.send().await) });
    }
    let ends = calls.join_all().await;
    let sent = ends.iter().filter(|end| **end != Saw::Rejected).count();
    assert_eq!(sent, server.hits() - 4);
    // A period is the wait of 300 ms and the timeout of 400 ms: three probes when nothing is late.
    assert!((2..=4).contains(&sent), "{sent} probes of {} calls", ends.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f07_a_server_that_flips_leaves_a_legal_chain_and_a_closed_circuit() {
    const TASKS: usize = 64;

    let steps = Arc::<Mutex<Vec<_>>>::default();
    let listener = Arc::clone(&steps);
    // Half the time well is not half the calls failed: the run of failures opens in every bad phase.
    let trip = half_of_four().or(Trip::consecutive(10));
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(trip).open_for(millis(10)))
        .on_event(move |event| listener.lock().unwrap().extend(step(event)))
        .build()
        .unwrap();
    let status = Arc::new(AtomicU16::new(200));
    let answer = Arc::clone(&status);
    let server = Server::start(move |conversation| conversation.status(answer.load(Ordering::SeqCst))).await;
    let client = network(&breaker);
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (client, url, stop) = (client.clone(), server.url(), Arc::clone(&stop));
        tasks.spawn(async move {
            let mut sent = 0;
            while !stop.load(Ordering::SeqCst) {
                match call(&client, &url).await {
                    // A caller that is refused comes back later, or the tasks would do nothing but ask.
                    Saw::Rejected => time::sleep(millis(1)).await,
                    _ => sent += 1,
                }
            }
            sent
        });
    }
    let mut flip = time::interval(millis(50));
    for answer in [503, 200].into_iter().cycle().take(60) {
        flip.tick().await;
        status.store(answer, Ordering::SeqCst);
    }

    status.store(200, Ordering::SeqCst);
    let well = Instant::now();
    while state(&breaker, &server.key()) != CircuitState::Closed {
        assert!(well.elapsed() < millis(1_000), "the circuit did not close");
        time::sleep(millis(1)).await;
    }
    stop.store(true, Ordering::SeqCst);
    let sent = tasks.join_all().await.into_iter().sum::<usize>();
    assert_eq!(sent, server.hits());
    let mut steps = std::mem::take(&mut *steps.lock().unwrap());
    assert!(10 < steps.len(), "{} transitions only", steps.len());
    assert_chain(&mut steps);
}

/// The epoch, the state that ended and the one that began; none for an event that is no transition.
fn step(event: &CircuitEvent) -> Option<(u64, CircuitState, CircuitState)> {
    use CircuitState::{Closed, HalfOpen, Open};

    match event {
        CircuitEvent::Opened { epoch, from, .. } => Some((*epoch, *from, Open)),
        CircuitEvent::HalfOpen { epoch, .. } => Some((*epoch, Open, HalfOpen)),
        CircuitEvent::Closed { epoch, .. } => Some((*epoch, HalfOpen, Closed)),
        _ => None,
    }
}

/// In the order of their epochs, each step leaves the state that the one before began.
fn assert_chain(steps: &mut [(u64, CircuitState, CircuitState)]) {
    steps.sort_unstable_by_key(|(epoch, ..)| *epoch);
    let mut last = (0, CircuitState::Closed);
    for (epoch, from, to) in steps {
        assert!(last.0 < *epoch && last.1 == *from && from != to, "{from} to {to} after {last:?}");
        last = (*epoch, *to);
    }
}

/// Does to a connection what the path of the request says.
async fn misbehave(conversation: Conversation) -> Option<Conversation> {
    let path = conversation.request.split(' ').nth(1).unwrap();
    match path {
        "/close" => None,
        "/reset" => conversation.reset(),
        "/cut" => {
            conversation.send("HTTP/1.1 200 OK\r\ncontent-len").await;
            None
        }
        "/garbage" => {
            // What a TLS server says to plain text: a fatal alert.
            conversation.send(b"\x15\x03\x03\x00\x02\x02\x32").await;
            None
        }
        "/hang" => {
            conversation.closed_by_peer().await;
            None
        }
        other => panic!("unknown fault {other}"),
    }
}

#[tokio::test]
async fn every_fault_of_the_network_is_a_failure_and_the_error_is_what_reqwest_made_it() {
    let server = Server::start(misbehave).await;
    let at = |fault: &str| server.url() + fault;
    for (url, connect, timeout) in [
        (DEAD.to_owned(), true, false),
        ("http://nobody.invalid/".to_owned(), true, false),
        (at("close"), false, false),
        (at("reset"), false, false),
        (at("cut"), false, false),
        (at("garbage"), false, false),
        (at("hang"), false, true),
    ] {
        let breaker = for_good_after(1);
        let mut request = network(&breaker).get(&url);
        if timeout {
            request = request.timeout(millis(100));
        }
        match request.send().await.unwrap_err() {
            Error::Reqwest(error) => assert_eq!(
                (error.is_request(), error.is_connect(), error.is_timeout()),
                (true, connect, timeout),
                "{url}: {error:?}"
            ),
            Error::Middleware(error) => panic!("{url}: {error:?}"),
        }
        assert_eq!(state(&breaker, &url), CircuitState::Open, "{url}");
    }
}

#[tokio::test]
async fn f67_what_a_redirect_leads_to_is_charged_to_the_origin_that_was_asked() {
    let sick = well_behaved(ResponseTemplate::new(503)).await;
    for (target, outcome) in [(sick.uri(), Saw::Status(503)), (DEAD.to_owned(), Saw::Error)] {
        let redirect = ResponseTemplate::new(302).insert_header("location", target);
        let asked = well_behaved(redirect).await;
        let breaker = for_good_after(2);
        let client = network(&breaker);
        for outcome in [outcome, outcome, Saw::Rejected] {
            assert_eq!(call(&client, &asked.uri()).await, outcome);
        }
        assert_eq!(requests(&asked).await, 2);
        let circuits = breaker.snapshots();
        assert_eq!(circuits.len(), 1);
        assert_eq!(*circuits[0].circuit_key, asked.uri());
    }
    assert_eq!(requests(&sick).await, 2);
}

#[tokio::test]
async fn a_status_of_the_4xx_is_a_success_and_ends_a_run_of_failures() {
    let server = well_behaved(|request: &Request| {
        ResponseTemplate::new(request.url.path().trim_matches('/').parse::<u16>().unwrap())
    });
    let server = server.await;
    let breaker = for_good_after(100);
    let client = network(&breaker);
    let calls = async |status: u16| {
        assert_eq!(call(&client, &format!("{}/{status}", server.uri())).await, Saw::Status(status));
        breaker.snapshot(&server.uri()).unwrap().consecutive_failures
    };
    for status in [400, 401, 403, 404, 408, 409, 422, 429] {
        assert_eq!(calls(503).await, 1);
        assert_eq!(calls(status).await, 0);
    }
}

#[tokio::test]
async fn a_rejected_call_opens_no_connection() {
    let server = Server::start(|conversation| async {
        conversation.send("HTTP/1.1 503 Down\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
        None
    });
    let server = server.await;
    let client = network(&for_good_after(2));
    for _ in 0..2 {
        assert_eq!(call(&client, &server.url()).await, Saw::Status(503));
    }
    for _ in 0..100 {
        assert_eq!(call(&client, &server.url()).await, Saw::Rejected);
    }
    // Connections are accepted in their order, so this one comes after any that a rejected call had opened.
    let last = client.get(server.url()).with_extension(BypassCircuit).send().await;
    assert_eq!(last.unwrap().status(), 503);
    assert_eq!((server.connections(), server.hits()), (3, 3));
}
