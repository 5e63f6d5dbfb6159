//! An answer where the call was refused: when it is used, what it is told, and the way to another origin.
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
use reqwest::{Body, Method, Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use reqwest_resilience::{
    Attempt, Bulkhead, CircuitBreaker, CircuitKey, CircuitMode, CircuitState, Deadline, Fallback,
    FallbackContext, Idempotent, ManualClock, Rejection, Retry, RetryBudget, RetryReport, RetryReportHandle,
    Scope, Trip, Until,
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use support::{KEY, Log, Reply, Saw, Transport, URL, call, plain_client, saw, state};
use tracing::Level;

const BACKUP: &str = "https://backup.example.com";
const BACKUP_KEY: &str = "https://backup.example.com:443";
/// The status of the stub, which no transport here answers with.
const STUBBED: Saw = Saw::Status(203);

fn answering(status: u16) -> Fallback {
    Fallback::new(move |_| async move { Ok(response(status, "stub")) })
}

fn stub() -> Fallback {
    answering(203)
}

fn response(status: u16, body: &'static str) -> Response {
    http::Response::builder().status(status).body(body).unwrap().into()
}

/// `fallback → breaker → transport`; the circuit of [`URL`] is forced open, the transport answers 200.
fn refused(fallback: Fallback) -> (CircuitBreaker, Transport, ClientWithMiddleware) {
    let breaker = CircuitBreaker::default();
    breaker.set_mode(KEY, CircuitMode::ForcedOpen).unwrap();
    let transport = Transport::answering(200);
    let client = ClientBuilder::new(plain_client())
        .with(fallback)
        .with(breaker.clone())
        .with(transport.clone())
        .build();
    (breaker, transport, client)
}

/// `fallback → layer → transport`.
fn around(fallback: Fallback, layer: impl Middleware, transport: &Transport) -> ClientWithMiddleware {
    ClientBuilder::new(plain_client()).with(fallback).with(layer).with(transport.clone()).build()
}

/// Reasons of the fallbacks that were logged.
fn reasons(log: &Log) -> Vec<String> {
    let used = log.of("fallback.used");
    used.iter().map(|line| line.get("reason").to_owned()).collect()
}

/// A body that cannot be sent twice.
fn stream() -> Body {
    Body::wrap(Body::from("once"))
}

/// Keeps what arrives in front of the transport.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Request>>>);

#[async_trait::async_trait]
impl Middleware for Recorder {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let copy = request.try_clone().unwrap();
        self.0.lock().unwrap().push(copy);
        next.run(request, extensions).await
    }
}

// When it is used.

#[tokio::test(start_paused = true)]
async fn it_answers_for_an_open_circuit_and_for_a_full_bulkhead_and_says_why() {
    let log = Log::listen();
    let (_, transport, client) = refused(stub());
    assert_eq!(call(&client, URL).await, STUBBED);
    assert_eq!(transport.hits(), 0);

    let bulkhead = Bulkhead::builder().max_concurrent(1).max_queue(0).build().unwrap();
    transport.hold();
    let client = around(stub(), bulkhead, &transport);
    let holder = tokio::spawn({
        let client = client.clone();
        async move { call(&client, URL).await }
    });
    tokio::task::yield_now().await;
    assert_eq!(call(&client, URL).await, STUBBED);
    transport.take_held().unwrap().answer(200);
    assert_eq!(holder.await.unwrap(), Saw::Status(200));

    let used = log.of("fallback.used");
    assert_eq!(reasons(&log), ["circuit_open", "bulkhead_full"]);
    for line in &used {
        assert_eq!(line.level, Level::INFO);
        assert_eq!(line.names(), ["origin", "reason"]);
        assert_eq!(line.get("origin"), KEY);
    }
}

/// What may have been sent is the caller's to judge: a fallback would hide it.
#[tokio::test(start_paused = true)]
async fn real_failures_are_the_callers() {
    let log = Log::listen();
    for (reply, expected) in [
        (Reply::Status(200), Saw::Status(200)),
        (Reply::Status(404), Saw::Status(404)),
        (Reply::Status(503), Saw::Status(503)),
        (Reply::BuilderError, Saw::Error),
        (Reply::ForeignError, Saw::Error),
        // The deadline's: it may have been sent.
        (Reply::Hang, Saw::Rejected),
    ] {
        let what = format!("{reply:?}");
        let transport = Transport::answering(200).then([reply]);
        let client = around(stub(), Deadline::after(Duration::from_secs(1)), &transport);
        assert_eq!(call(&client, URL).await, expected, "{what}");
    }
    assert_eq!(reasons(&log), [""; 0]);
}

#[tokio::test]
async fn a_rule_widens_it_to_the_outcomes_it_names_and_to_no_other() {
    let log = Log::listen();
    let unavailable = |attempt: &Attempt<'_>| {
        assert_eq!(attempt.method(), Method::GET);
        matches!(attempt.result(), Ok(response) if response.status() == 503)
    };
    let (breaker, transport, client) = refused(stub().when(unavailable));
    // The rule says no, but nothing was sent.
    assert_eq!(call(&client, URL).await, STUBBED);
    breaker.reset(KEY);
    transport.script([503, 500, 200].map(Reply::Status));
    assert_eq!(call(&client, URL).await, STUBBED);
    assert_eq!(call(&client, URL).await, Saw::Status(500));
    assert_eq!(call(&client, URL).await, Saw::Status(200));
    assert_eq!(reasons(&log), ["circuit_open", "outcome"]);
}

#[tokio::test(start_paused = true)]
async fn a_rule_is_told_how_long_it_took() {
    let slow = |attempt: &Attempt<'_>| Duration::from_secs(1) < attempt.elapsed();
    let client = ClientBuilder::new(plain_client())
        .with(stub().when(slow))
        .with(Transport::answering(200).then([Reply::Late(Duration::from_secs(2), 200)]))
        .build();
    assert_eq!(call(&client, URL).await, STUBBED);
    assert_eq!(call(&client, URL).await, Saw::Status(200));
}

// What a closure is told.

#[tokio::test]
async fn the_context_owns_the_outcome_and_the_request() {
    let backend = Transport::answering(203);
    let other = ClientBuilder::new(plain_client()).with(backend.clone()).build();
    let (_, _, client) = refused(Fallback::new(move |mut context| {
        let other = other.clone();
        async move {
            let error = context.outcome().as_ref().unwrap_err();
            assert!(matches!(Rejection::find(error), Some(Rejection::CircuitOpen { .. })));
            let request = context.take_request().unwrap();
            assert!(context.request().is_none());
            other.execute(request).await
        }
    }));
    let url = format!("{URL}?page=2");
    assert_eq!(call(&client, &url).await, STUBBED);
    assert_eq!(backend.urls(), [url]);
}

#[tokio::test]
async fn an_error_of_the_closure_is_handed_on_as_it_is() {
    let (_, _, client) = refused(Fallback::new(|_| async {
        Err(reqwest_middleware::Error::Middleware(anyhow::anyhow!("cache is empty")))
    }));
    let error = client.get(URL).send().await.unwrap_err();
    assert_eq!(error.to_string(), "cache is empty");
}

#[tokio::test]
async fn a_fallback_that_declines_leaves_everything_as_it_was() {
    let log = Log::listen();
    let outer = CircuitBreaker::default();
    let inner = CircuitBreaker::default();
    let transport = Transport::answering(200).then([Reply::Header(503, "x-node", "seven")]);
    let client = ClientBuilder::new(plain_client())
        .with(outer.clone())
        .with(Fallback::new(|context| async { context.into_outcome() }).when(|_| true))
        .with(inner.clone())
        .with(transport)
        .build();

    let response = client.get(URL).send().await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["x-node"], "seven");
    // It is the origin's answer, so it counts.
    assert_eq!(outer.snapshot(KEY).unwrap().consecutive_failures, 1);

    inner.set_mode(KEY, CircuitMode::ForcedOpen).unwrap();
    let error = client.get(URL).send().await.unwrap_err();
    assert!(Rejection::find(&error).unwrap().is_unsent());
    assert_eq!(reasons(&log), [""; 0]);
}

#[tokio::test]
async fn a_body_that_cannot_be_copied_costs_the_closure_the_request_and_nothing_else() {
    let log = Log::listen();
    let (_, _, client) = refused(Fallback::new(|context: FallbackContext| async move {
        let request = context.request().map(|request| request.url().to_string());
        Ok(http::Response::new(format!("{request:?}")).into())
    }));
    for (body, told) in [(stream(), "None".to_owned()), (Body::from("twice"), format!("Some({URL:?})"))] {
        let response = client.post(URL).body(body).send().await.unwrap();
        assert_eq!(response.text().await.unwrap(), told);
    }
    for line in log.of("fallback.used") {
        assert_eq!(line.get("origin"), KEY);
    }
    assert_eq!(reasons(&log).len(), 2);
}

// Another origin.

#[tokio::test]
async fn only_the_origin_of_the_request_changes() {
    let log = Log::listen();
    let breaker = CircuitBreaker::default();
    let url = "http://api.example.com:8080/v1/a%20b?page=2&q=%26#top";
    breaker.set_mode(url, CircuitMode::ForcedOpen).unwrap();
    let recorder = Recorder::default();
    let client = ClientBuilder::new(plain_client())
        .with(Fallback::to_origin("https://backup.example.com:8443/its/path?is=not").unwrap())
        .with(breaker)
        .with(recorder.clone())
        .with(Transport::answering(201))
        .build();
    let call = client.post(url).header("authorization", "Bearer token").body("amount=7");
    assert_eq!(saw(&call.send().await), Saw::Status(201));

    let requests = recorder.0.lock().unwrap();
    let [request] = &requests[..] else {
        panic!("{requests:?}");
    };
    assert_eq!(request.url().as_str(), "https://backup.example.com:8443/v1/a%20b?page=2&q=%26");
    assert_eq!(request.method(), Method::POST);
    assert_eq!(request.headers()["authorization"], "Bearer token");
    assert_eq!(request.body().unwrap().as_bytes().unwrap(), b"amount=7");

    let used = log.of("fallback.used");
    assert_eq!(used.len(), 1);
    assert_eq!(used[0].get("origin"), "http://api.example.com:8080");
}

/// Its userinfo would be neither sent nor secret: a URL shows in the response and in reqwest's errors.
#[tokio::test]
async fn nothing_but_the_origin_of_the_backup_is_used() {
    let backup = format!("{}/its/path?is=not#asked", BACKUP.replace("://", "://u:s3cret@"));
    let (_, transport, client) = refused(Fallback::to_origin(&backup).unwrap());
    assert_eq!(call(&client, URL).await, Saw::Status(200));
    assert_eq!(transport.urls(), [format!("{BACKUP}/v1/items")]);
}

#[tokio::test]
async fn the_backup_has_a_circuit_of_its_own() {
    let (breaker, transport, client) = refused(Fallback::to_origin(BACKUP).unwrap());
    breaker.set_mode("reports", CircuitMode::ForcedOpen).unwrap();
    transport.answer(503);
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    // The named circuit is the one that refused: under it the backup would be refused too.
    let named = client.get(URL).with_extension(CircuitKey::new("reports"));
    assert_eq!(saw(&named.send().await), Saw::Status(503));

    assert_eq!(transport.urls(), vec![format!("{BACKUP}/v1/items"); 2]);
    let failures = |key| breaker.snapshot(key).unwrap().consecutive_failures;
    assert_eq!(["reports", KEY, BACKUP_KEY].map(failures), [0, 0, 2]);

    // And it may be open as well: that is then what the caller is told.
    breaker.set_mode(BACKUP, CircuitMode::ForcedOpen).unwrap();
    let error = client.get(URL).send().await.unwrap_err();
    let Some(Rejection::CircuitOpen { circuit_key, .. }) = Rejection::find(&error) else {
        panic!("{error:?}");
    };
    assert_eq!(&**circuit_key, BACKUP_KEY);
}

/// Tells what the caller's extensions hold once the call is back.
#[derive(Clone, Default)]
struct Afterwards(Arc<Mutex<Option<CircuitKey>>>);

#[async_trait::async_trait]
impl Middleware for Afterwards {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let result = next.run(request, extensions).await;
        *self.0.lock().unwrap() = extensions.get().cloned();
        result
    }
}

/// Else a retry outside would call the origin itself under another circuit than the first time.
#[tokio::test]
async fn the_name_of_the_circuit_is_put_back() {
    let breaker = CircuitBreaker::default();
    breaker.set_mode("reports", CircuitMode::ForcedOpen).unwrap();
    let afterwards = Afterwards::default();
    let client = ClientBuilder::new(plain_client())
        .with(afterwards.clone())
        .with(Fallback::to_origin(BACKUP).unwrap())
        .with(breaker)
        .with(Transport::answering(200))
        .build();
    let named = client.get(URL).with_extension(CircuitKey::new("reports"));
    assert_eq!(saw(&named.send().await), Saw::Status(200));
    assert_eq!(*afterwards.0.lock().unwrap(), Some(CircuitKey::new("reports")));
}

/// What the retry inside left of the first call must not look like its second one.
#[tokio::test(start_paused = true)]
async fn the_two_reports_of_the_backups_retry_agree() {
    let unavailable =
        |attempt: &Attempt<'_>| matches!(attempt.result(), Ok(response) if response.status() == 503);
    let fallback = Fallback::to_origin(BACKUP).unwrap().when(unavailable);
    let transport = Transport::answering(200).then([503; 3].map(Reply::Status));
    let client = around(fallback, Retry::default(), &transport);
    let handle = RetryReportHandle::new();
    let call = client.get(URL).with_extension(handle.clone());
    let response = call.send().await.unwrap();
    assert_eq!((response.status().as_u16(), transport.hits()), (200, 4));
    let told = RetryReport::of(&response).map_or(1, |report| report.attempts);
    assert_eq!(told, handle.get().attempts);
}

#[tokio::test]
async fn what_may_have_been_sent_goes_to_the_backup_only_where_it_may_be_sent_twice() {
    let log = Log::listen();
    let fallback = Fallback::to_origin(BACKUP).unwrap().when(|_| true);
    let (breaker, transport, client) = refused(fallback);
    let cases = [
        (client.get(URL), true),
        (client.head(URL), true),
        (client.request(Method::OPTIONS, URL), true),
        (client.request(Method::TRACE, URL), true),
        (client.put(URL), true),
        (client.delete(URL), true),
        (client.post(URL), false),
        (client.patch(URL), false),
        (client.post(URL).header("Idempotency-Key", "7"), true),
        (client.post(URL).with_extension(Idempotent), true),
    ];
    for (request, is_sent_on) in cases {
        let what = format!("{request:?}");
        breaker.reset(KEY);
        transport.script([Reply::Status(503)]);
        let before = (transport.hits(), reasons(&log).len());
        let result = request.send().await;
        let after = (transport.hits(), reasons(&log).len());
        let (expected, sent_on) = if is_sent_on { (200, 1) } else { (503, 0) };
        assert_eq!(saw(&result), Saw::Status(expected), "{what}");
        assert_eq!(after, (before.0 + 1 + sent_on, before.1 + sent_on), "{what}");
    }

    // Nothing was sent: so it may be.
    breaker.set_mode(KEY, CircuitMode::ForcedOpen).unwrap();
    assert_eq!(saw(&client.post(URL).send().await), Saw::Status(200));
    assert_eq!(reasons(&log).last().unwrap(), "circuit_open");
}

#[tokio::test]
async fn a_body_that_cannot_be_copied_keeps_its_own_outcome() {
    let log = Log::listen();
    let (_, transport, client) = refused(Fallback::to_origin(BACKUP).unwrap());
    let error = client.put(URL).body(stream()).send().await.unwrap_err();
    let Some(Rejection::CircuitOpen { circuit_key, .. }) = Rejection::find(&error) else {
        panic!("{error:?}");
    };
    assert_eq!(&**circuit_key, KEY);
    assert_eq!((transport.hits(), reasons(&log).len()), (0, 0));
}

#[test]
fn what_is_no_origin_is_refused_without_its_secrets() {
    for url in [
        "",
        "backup",
        "localhost:3001",
        "https://",
        "data:text/plain,backup",
        "https://u:s3cret@backup example.com/?token=abc",
        "unknown://u:s3cret@backup.example.com/?token=abc",
    ] {
        let error = Fallback::to_origin(url).unwrap_err();
        assert_eq!(error.field(), "to_origin", "{url}");
        let printed = format!("{error} {error:?}");
        assert!(
            error.rule().contains("URL") && !printed.contains("s3cret") && !printed.contains("abc"),
            "{printed}"
        );
    }
    let fallback = Fallback::to_origin("https://u:s3cret@backup.example.com/?token=abc").unwrap();
    let printed = format!("{fallback:?}");
    assert!(
        printed.contains(BACKUP_KEY) && !printed.contains("s3cret") && !printed.contains("abc"),
        "{printed}"
    );
}

// The breaker outside.

/// `outer → fallback → inner → transport`, where the inner circuit can be forced open at will.
struct Nested {
    clock: ManualClock,
    outer: CircuitBreaker,
    inner: CircuitBreaker,
    transport: Transport,
    client: ClientWithMiddleware,
}

fn nested(fallback: Fallback, trip: u32) -> Nested {
    let clock = ManualClock::new();
    let outer = CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(trip)))
        .clock(clock.clone())
        .build()
        .unwrap();
    let inner = CircuitBreaker::default();
    let transport = Transport::answering(503);
    let client = ClientBuilder::new(plain_client())
        .with(outer.clone())
        .with(fallback)
        .with(inner.clone())
        .with(transport.clone())
        .build();
    Nested { clock, outer, inner, transport, client }
}

/// Fallbacks that would look sick, well, and sick again to a breaker that took them for the origin.
fn answers() -> [(Fallback, Saw); 3] {
    [
        (answering(503), Saw::Status(503)),
        (stub(), STUBBED),
        (Fallback::to_origin(BACKUP).unwrap(), Saw::Status(503)),
    ]
}

#[tokio::test]
async fn its_answer_counts_neither_for_nor_against_the_origin() {
    for (fallback, expected) in answers() {
        let Nested { outer, inner, client, .. } = nested(fallback, 2);
        assert_eq!(call(&client, URL).await, Saw::Status(503));
        inner.set_mode(KEY, CircuitMode::ForcedOpen).unwrap();
        for _ in 0..3 {
            assert_eq!(call(&client, URL).await, expected);
        }
        let circuit = outer.snapshot(KEY).unwrap();
        assert_eq!((circuit.state, circuit.consecutive_failures), (CircuitState::Closed, 1));
    }
}

#[tokio::test]
async fn a_probe_that_a_fallback_answered_gives_its_slot_back() {
    for (fallback, expected) in answers() {
        let Nested { clock, outer, inner, transport, client } = nested(fallback, 1);
        assert_eq!(call(&client, URL).await, Saw::Status(503));
        assert_eq!(state(&outer, KEY), CircuitState::Open);
        clock.advance(Duration::from_secs(30));
        inner.set_mode(KEY, CircuitMode::ForcedOpen).unwrap();
        for _ in 0..3 {
            assert_eq!(call(&client, URL).await, expected);
            let circuit = outer.snapshot(KEY).unwrap();
            assert_eq!((circuit.state, circuit.probes_in_flight), (CircuitState::HalfOpen, 0));
        }
        inner.reset(KEY);
        transport.answer(200);
        assert_eq!(call(&client, URL).await, Saw::Status(200));
        assert_eq!(state(&outer, KEY), CircuitState::Closed);
    }
}

#[tokio::test(start_paused = true)]
async fn the_refused_answer_is_let_go_before_the_backup_is_asked() {
    let transport = Transport::answering(200).then([Reply::Body(503, "the only slot rides in this")]);
    let bulkhead = Bulkhead::builder()
        .max_concurrent(1)
        .scope(Scope::shared("all"))
        .hold(Until::BodyEnd)
        .build()
        .unwrap();
    let fallback = Fallback::to_origin(BACKUP)
        .unwrap()
        .when(|attempt| attempt.result().as_ref().is_ok_and(|response| response.status() == 503));
    assert_eq!(call(&around(fallback, bulkhead, &transport), URL).await, Saw::Status(200));
}

#[tokio::test(start_paused = true)]
async fn a_call_to_the_backup_that_is_dropped_leaves_the_extensions_as_they_were() {
    let (breaker, transport, client) = refused(Fallback::to_origin(BACKUP).unwrap());
    breaker.set_mode("reports", CircuitMode::ForcedOpen).unwrap();
    transport.hold();
    let key = CircuitKey::new("reports");
    let mut extensions = Extensions::new();
    extensions.insert(key.clone());
    let request = client.get(URL).build().unwrap();
    assert!(client.execute_with_extensions(request, &mut extensions).now_or_never().is_none());
    assert_eq!((transport.hits(), extensions.get()), (1, Some(&key)));
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_the_fallback_pays_for_no_retry() {
    let breaker = CircuitBreaker::default();
    breaker.set_mode(KEY, CircuitMode::ForcedOpen).unwrap();
    let budget = RetryBudget::builder().ratio(1.0).min_per_second(0).clock(ManualClock::new());
    let retry = Retry::builder().max_retries(9).budget(budget.build().unwrap()).build().unwrap();
    let transport = Transport::answering(503);
    let client = ClientBuilder::new(plain_client())
        .with(retry)
        .with(stub())
        .with(breaker.clone())
        .with(transport.clone())
        .build();
    for _ in 0..5 {
        assert_eq!(call(&client, URL).await, STUBBED);
    }
    // Now it reaches the origin, and pays for the one retry that it gets.
    breaker.set_mode(KEY, CircuitMode::ForcedClosed).unwrap();
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    assert_eq!(transport.hits(), 2);
}
