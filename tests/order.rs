//! What the order of the layers means: for the origin, for the circuit, for the slots, for the caller.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use Weather::{Crowded, Down, Fine, Hanging, Hiccup, Open, Opening};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_resilience::{
    Bulkhead, CircuitBreaker, CircuitState, ClientBuilderExt, Deadline, Fallback, Rejection, Resilience,
    Retry, Trip,
};
use reqwest_tracing::TracingMiddleware;
use std::time::Duration;
use support::{KEY, Reply, Saw, Transport, URL, call, plain_client};

/// For a whole call, and for one attempt of it: three attempts fit.
const CALL: Duration = Duration::from_secs(1);
const ATTEMPT: Duration = Duration::from_millis(300);
/// The longest wait between two attempts.
const PAUSE: Duration = Duration::from_millis(1);

/// What a call meets.
#[derive(Clone, Copy, Debug)]
enum Weather {
    /// 200.
    Fine,
    /// 503, and never anything else.
    Down,
    /// The same, and two failures in a row are enough to open the circuit.
    Opening,
    /// 503 once, then 200.
    Hiccup,
    /// No answer.
    Hanging,
    /// The circuit is open.
    Open,
    /// Another call has the only slot, and nobody may queue.
    Crowded,
}

/// What a call leaves behind.
#[derive(Debug, PartialEq, Eq)]
struct Trace {
    /// What the caller got: a status, or the kind of rejection.
    got: String,
    /// Requests that arrived.
    hits: usize,
    /// Outcomes that the circuit counted, and how many of them were failures.
    calls: (u64, u64),
    state: CircuitState,
    /// Slots taken once the first attempt had failed, or while it hung.
    held: usize,
}

/// The parts that can be looked at.
struct Parts {
    breaker: CircuitBreaker,
    bulkhead: Bulkhead,
    transport: Transport,
}

fn parts(weather: Weather) -> Parts {
    let failures = if matches!(weather, Opening | Open) { 2 } else { 10 };
    // The rate never opens it: its window is there to count.
    let counting = Trip::failure_rate(1.0).over(Duration::from_secs(60)).min_calls(1_000);
    let trip = Trip::consecutive(failures).or(counting);
    let transport = match weather {
        Fine => Transport::answering(200),
        Hiccup => Transport::answering(200).then([Reply::Status(503)]),
        Hanging => Transport::answering(200).then((0..10).map(|_| Reply::Hang)),
        Down | Opening | Open | Crowded => Transport::answering(503),
    };
    Parts {
        breaker: CircuitBreaker::builder().defaults(|circuit| circuit.trip(trip)).build().unwrap(),
        bulkhead: Bulkhead::builder().max_concurrent(1).max_wait(Duration::ZERO).build().unwrap(),
        transport,
    }
}

impl Parts {
    fn held(&self) -> usize {
        self.bulkhead.snapshots().first().map_or(0, |gate| gate.in_flight + gate.queued)
    }
}

/// Makes one call through layers in this order, in this weather.
async fn observe(order: Order, weather: Weather) -> Trace {
    let parts = parts(weather);
    let client = order(&parts);
    let transport = &parts.transport;
    if let Open = weather {
        for _ in 0..2 {
            assert_eq!(call(&support::chain(&parts.breaker, transport), URL).await, Saw::Status(503));
        }
    }
    let holder = if let Crowded = weather {
        transport.hold();
        let other =
            ClientBuilder::new(plain_client()).with(parts.bulkhead.clone()).with(transport.clone()).build();
        let holder = tokio::spawn(async move { call(&other, URL).await });
        tokio::task::yield_now().await;
        Some(holder)
    } else {
        None
    };

    let before = transport.hits();
    let running = tokio::spawn(async move { client.get(URL).send().await });
    // It runs until it has to wait. Time stands still meanwhile: a first attempt, and no second one.
    tokio::task::yield_now().await;
    let held = parts.held();
    let got = match running.await.unwrap() {
        Ok(response) => response.status().as_str().to_owned(),
        Err(error) => Rejection::find(&error).unwrap().to_string(),
    };
    let hits = transport.hits() - before;
    if let Some(holder) = holder {
        transport.take_held().unwrap().answer(200);
        assert_eq!(holder.await.unwrap(), Saw::Status(200));
    }
    assert_eq!(parts.held(), 0, "{weather:?}");

    let circuit = parts.breaker.snapshot(KEY).unwrap();
    let window = circuit.window.unwrap();
    Trace { got, hits, calls: (window.calls, window.failures), state: circuit.state, held }
}

type Order = fn(&Parts) -> ClientWithMiddleware;

/// One line of a table: what the call meets; what the caller gets, requests, counted outcomes, failures among
/// them, the state of the circuit, slots held.
type Row = (Weather, &'static str, usize, u64, u64, CircuitState, usize);

async fn check(order: Order, rows: &[Row]) {
    for &(weather, got, hits, calls, failures, state, held) in rows {
        let expected = Trace { got: got.to_owned(), hits, calls: (calls, failures), state, held };
        assert_eq!(observe(order, weather).await, expected, "{weather:?}");
    }
}

const CLOSED: CircuitState = CircuitState::Closed;
const OPEN: CircuitState = CircuitState::Open;

fn retry() -> Retry {
    Retry::builder().backoff(PAUSE, PAUSE).build().unwrap()
}

fn stub() -> Fallback {
    Fallback::new(|_| async { Ok(http::Response::builder().status(203).body("").unwrap().into()) })
}

/// Every attempt is counted and may open the circuit, which ends the series; no slot is held between two
/// attempts; only what was never sent is the fallback's.
const RECOMMENDED: [Row; 7] = [
    (Fine, "200", 1, 1, 0, CLOSED, 0),
    (Down, "503", 3, 3, 3, CLOSED, 0),
    (Opening, "503", 2, 0, 0, OPEN, 0),
    (Hiccup, "200", 2, 2, 1, CLOSED, 0),
    (Hanging, "deadline exceeded", 3, 3, 3, CLOSED, 1),
    (Open, "203", 0, 0, 0, OPEN, 0),
    (Crowded, "203", 0, 0, 0, CLOSED, 1),
];

#[tokio::test(start_paused = true)]
async fn the_recommended_order() {
    let order: Order = |parts| {
        ClientBuilder::new(plain_client())
            .with(stub())
            .with(Deadline::after(CALL))
            .with(retry())
            .with(parts.breaker.clone())
            .with(parts.bulkhead.clone())
            .with(Deadline::after(ATTEMPT))
            .with(parts.transport.clone())
            .build()
    };
    check(order, &RECOMMENDED).await;
}

#[tokio::test(start_paused = true)]
async fn the_preset_is_the_recommended_order() {
    let order: Order = |parts| {
        let resilience = Resilience::builder()
            .fallback(stub())
            .deadline(CALL)
            .retry(retry())
            .breaker(parts.breaker.clone())
            .bulkhead(parts.bulkhead.clone())
            .attempt_deadline(ATTEMPT)
            .build()
            .unwrap();
        ClientBuilder::new(plain_client()).with_resilience(&resilience).with(parts.transport.clone()).build()
    };
    check(order, &RECOMMENDED).await;
}

/// A layer that only looks on changes nothing, wherever it is.
#[tokio::test(start_paused = true)]
async fn reqwest_tracing_outside_and_inside() {
    let order: Order = |parts| {
        ClientBuilder::new(plain_client())
            .with(TracingMiddleware::default())
            .with(stub())
            .with(Deadline::after(CALL))
            .with(TracingMiddleware::default())
            .with(retry())
            .with(parts.breaker.clone())
            .with(TracingMiddleware::default())
            .with(parts.bulkhead.clone())
            .with(Deadline::after(ATTEMPT))
            .with(TracingMiddleware::default())
            .with(parts.transport.clone())
            .build()
    };
    check(order, &RECOMMENDED).await;
}

/// The circuit sees calls, not attempts: a third of the failures, none where a retry helped, and it cannot end
/// a series. Its slot is held from the first attempt to the last.
#[tokio::test(start_paused = true)]
async fn the_breaker_and_the_bulkhead_outside_the_retry() {
    let order: Order = |parts| {
        ClientBuilder::new(plain_client())
            .with(Deadline::after(CALL))
            .with(parts.breaker.clone())
            .with(parts.bulkhead.clone())
            .with(retry())
            .with(Deadline::after(ATTEMPT))
            .with(parts.transport.clone())
            .build()
    };
    let rows = [
        (Fine, "200", 1, 1, 0, CLOSED, 0),
        (Down, "503", 3, 1, 1, CLOSED, 1),
        (Opening, "503", 3, 1, 1, CLOSED, 1),
        (Hiccup, "200", 2, 1, 0, CLOSED, 1),
        (Hanging, "deadline exceeded", 3, 1, 1, CLOSED, 1),
        (Open, "circuit open", 0, 0, 0, OPEN, 0),
        (Crowded, "bulkhead full", 0, 0, 0, CLOSED, 1),
    ];
    check(order, &rows).await;
}

/// Only the deadline of the whole call is there: one attempt takes it all, and it is a failure although nobody
/// inside the breaker said so.
#[tokio::test(start_paused = true)]
async fn a_deadline_outside_alone_leaves_a_hanging_origin_one_attempt() {
    let orders: [Order; 2] = [
        |parts| {
            ClientBuilder::new(plain_client())
                .with(Deadline::after(CALL))
                .with(retry())
                .with(parts.breaker.clone())
                .with(parts.bulkhead.clone())
                .with(parts.transport.clone())
                .build()
        },
        |parts| {
            ClientBuilder::new(plain_client())
                .with(Deadline::after(CALL))
                .with(parts.breaker.clone())
                .with(parts.bulkhead.clone())
                .with(retry())
                .with(parts.transport.clone())
                .build()
        },
    ];
    for order in orders {
        let expected =
            Trace { got: "deadline exceeded".to_owned(), hits: 1, calls: (1, 1), state: CLOSED, held: 1 };
        assert_eq!(observe(order, Hanging).await, expected);
    }
}

/// What the fallback sends elsewhere is a call like any other: with attempts, a circuit, a slot and a deadline.
#[tokio::test(start_paused = true)]
async fn the_backup_is_called_through_all_layers_inside_the_fallback() {
    const BACKUP: &str = "http://backup.example.com";
    let Parts { breaker, bulkhead, transport } = parts(Open);
    for _ in 0..2 {
        call(&support::chain(&breaker, &transport), URL).await;
    }
    let resilience = Resilience::builder()
        .fallback(Fallback::to_origin(BACKUP).unwrap())
        .retry(retry())
        .breaker(breaker.clone())
        .bulkhead(bulkhead.clone())
        .attempt_deadline(ATTEMPT)
        .build()
        .unwrap();
    let client =
        ClientBuilder::new(plain_client()).with_resilience(&resilience).with(transport.clone()).build();
    transport.script([Reply::Hang, Reply::Status(200)]);
    assert_eq!(call(&client, URL).await, Saw::Status(200));

    assert_eq!(transport.hits(), 4);
    let backup = breaker.snapshot(BACKUP).unwrap();
    let window = backup.window.unwrap();
    assert_eq!((window.calls, window.failures), (2, 1));
    let gates = bulkhead.snapshots();
    assert_eq!(gates.iter().map(|gate| gate.in_flight).sum::<usize>(), 0);
    assert!(gates.iter().any(|gate| gate.key == backup.circuit_key));
}

#[cfg(feature = "reqwest-retry")]
mod with_reqwest_retry {
    use super::*;
    use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};

    fn foreign_retry() -> RetryTransientMiddleware<ExponentialBackoff> {
        let backoff = ExponentialBackoff::builder().retry_bounds(PAUSE, PAUSE);
        RetryTransientMiddleware::new_with_policy(backoff.build_with_max_retries(2))
    }

    /// As our own, but for two things: a rejection replaces the real answer before it, and an attempt that was
    /// cut off is not tried again (it takes the error of any middleware for final).
    #[tokio::test(start_paused = true)]
    async fn it_lies_outside() {
        let order: Order = |parts| {
            ClientBuilder::new(plain_client())
                .with(Deadline::after(CALL))
                .with(foreign_retry())
                .with(parts.breaker.clone())
                .with(parts.bulkhead.clone())
                .with(Deadline::after(ATTEMPT))
                .with(parts.transport.clone())
                .build()
        };
        let rows = [
            (Fine, "200", 1, 1, 0, CLOSED, 0),
            (Down, "503", 3, 3, 3, CLOSED, 0),
            (Opening, "circuit open", 2, 0, 0, OPEN, 0),
            (Hiccup, "200", 2, 2, 1, CLOSED, 0),
            (Hanging, "deadline exceeded", 1, 1, 1, CLOSED, 1),
            (Open, "circuit open", 0, 0, 0, OPEN, 0),
            (Crowded, "bulkhead full", 0, 0, 0, CLOSED, 1),
        ];
        check(order, &rows).await;
    }

    /// It wraps its errors; the breaker outside looks through them.
    #[tokio::test(start_paused = true)]
    async fn it_lies_inside() {
        let order: Order = |parts| {
            ClientBuilder::new(plain_client())
                .with(Deadline::after(CALL))
                .with(parts.breaker.clone())
                .with(parts.bulkhead.clone())
                .with(foreign_retry())
                .with(Deadline::after(ATTEMPT))
                .with(parts.transport.clone())
                .build()
        };
        let rows = [
            (Fine, "200", 1, 1, 0, CLOSED, 0),
            (Down, "503", 3, 1, 1, CLOSED, 1),
            (Opening, "503", 3, 1, 1, CLOSED, 1),
            (Hiccup, "200", 2, 1, 0, CLOSED, 1),
            (Hanging, "deadline exceeded", 1, 1, 1, CLOSED, 1),
            (Open, "circuit open", 0, 0, 0, OPEN, 0),
            (Crowded, "bulkhead full", 0, 0, 0, CLOSED, 1),
        ];
        check(order, &rows).await;
    }
}
