//! What callers are told, what they find in it, and what an outcome counts as.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use anyhow::Context as _;
use futures::FutureExt;
use http::Extensions;
use reqwest::{Method, Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use reqwest_resilience::{
    CircuitBreaker, CircuitMode, CircuitSettings, CircuitState, ManualClock, Rejection, Scope, Trip, Verdict,
};
use std::{error::Error, fmt, future::Future, time::Duration};
use support::{
    Conversation, KEY, Reply, Saw, Server, Transport, URL, call, chain, network, plain_client, state,
};

const CHARGES: &str = "https://api.example.com/v1/charges";
/// Port 0 refuses every connection.
const DEAD: &str = "http://127.0.0.1:0/";

/// An open circuit, 17.7 seconds after its call failed, and the client that it protects.
async fn outage() -> (ManualClock, CircuitBreaker, Transport, ClientWithMiddleware) {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(1)))
        .clock(clock.clone())
        .build()
        .unwrap();
    let transport = Transport::answering(503);
    let client = chain(&breaker, &transport);
    assert_eq!(call(&client, CHARGES).await, Saw::Status(503));
    clock.advance(Duration::from_millis(17_700));
    (clock, breaker, transport, client)
}

/// What the caller of an open circuit gets.
async fn rejected() -> reqwest_middleware::Error {
    let (_, _, _, client) = outage().await;
    client.get(CHARGES).send().await.unwrap_err()
}

/// An error of the caller's own, with what it stems from.
#[derive(Debug)]
struct Charging(reqwest_middleware::Error);

impl fmt::Display for Charging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("charging the card")
    }
}

impl Error for Charging {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

/// An error of another middleware, which none of ours may replace.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TokenExpired;

impl fmt::Display for TokenExpired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("token expired")
    }
}

impl Error for TokenExpired {}

/// A middleware that does something with what came back.
struct Then<F>(F);

#[async_trait::async_trait]
impl<F, Fut> Middleware for Then<F>
where
    F: Fn(reqwest_middleware::Result<Response>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = reqwest_middleware::Result<Response>> + Send,
{
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        (self.0)(next.run(request, extensions).await).await
    }
}

#[tokio::test]
async fn a_rejection_tells_which_circuit_in_which_state_and_for_how_long() {
    let error = rejected().await;
    let Some(Rejection::CircuitOpen { circuit_key, state, mode, retry_after, .. }) = Rejection::find(&error)
    else {
        panic!("{error:?}");
    };
    assert_eq!(&**circuit_key, "https://api.example.com:443");
    assert_eq!((*state, *mode), (CircuitState::Open, CircuitMode::Enforcing));
    assert_eq!(*retry_after, Some(Duration::from_millis(12_300)));
    assert!(Rejection::find(&error).unwrap().is_unsent());
}

#[tokio::test]
async fn a_rejection_is_found_under_whatever_the_caller_wraps_it_in() {
    let error = rejected().await;
    let found = Rejection::find(&error).cloned();
    assert!(found.is_some());
    assert_eq!(Rejection::find(found.as_ref().unwrap()), found.as_ref());

    let typed = Charging(rejected().await);
    assert_eq!(Rejection::find(&typed), found.as_ref());
    let context = anyhow::Error::from(typed).context("paying").context("ordering");
    assert_eq!(Rejection::find(context.as_ref()), found.as_ref());
    let bare_context = Err::<(), _>(rejected().await).context("paying").unwrap_err();
    assert_eq!(Rejection::find(bare_context.as_ref()), found.as_ref());
    let boxed: Box<dyn Error + Send + Sync> = rejected().await.into();
    assert_eq!(Rejection::find(boxed.as_ref()), found.as_ref());
    // What a middleware outside the breaker may make of it.
    let inside = reqwest_middleware::Error::Middleware(context);
    assert_eq!(Rejection::find(&inside), found.as_ref());
}

#[tokio::test]
async fn nothing_is_found_in_an_error_that_is_not_ours() {
    for error in [
        Err(reqwest_middleware::Error::middleware(TokenExpired)),
        plain_client().get(DEAD).send().await.map_err(Into::into),
    ] {
        assert_eq!(Rejection::find(&error.unwrap_err()), None);
    }
}

#[tokio::test]
async fn a_rejection_that_is_handed_on_is_the_same_error_again() {
    let error = rejected().await;
    let rejection = Rejection::find(&error).unwrap().clone();
    let again = reqwest_middleware::Error::from(rejection.clone());
    assert_eq!(again.to_string(), error.to_string());
    assert_eq!(Rejection::find(&again), Some(&rejection));
}

#[tokio::test]
async fn a_printed_rejection_says_the_whole_story_once() {
    let error = rejected().await;
    assert_eq!(
        error.to_string(),
        "request not sent: circuit https://api.example.com:443 is open, next probe in 12.3 s"
    );
    let source = error.source().unwrap();
    assert_eq!(source.to_string(), "circuit open");
    assert!(source.source().is_none());
    let context = anyhow::Error::from(error).context("charging the card");
    assert_eq!(
        format!("{context:#}"),
        "charging the card: request not sent: circuit https://api.example.com:443 is open, \
         next probe in 12.3 s: circuit open"
    );
}

#[tokio::test]
async fn a_printed_rejection_tells_waiting_for_a_probe_from_being_forced_open() {
    let (clock, breaker, transport, client) = outage().await;
    clock.advance(Duration::from_millis(12_300));
    transport.hold();
    let mut probe = Box::pin(call(&client, CHARGES));
    assert_eq!((&mut probe).now_or_never(), None);
    let waiting = client.get(CHARGES).send().await.unwrap_err();
    assert_eq!(
        waiting.to_string(),
        "request not sent: circuit https://api.example.com:443 is half-open, waiting for its probes"
    );
    breaker.set_mode(CHARGES, CircuitMode::ForcedOpen).unwrap();
    let forced = client.get(CHARGES).send().await.unwrap_err();
    assert_eq!(forced.to_string(), "request not sent: circuit https://api.example.com:443 is forced open");
    for error in [waiting, forced] {
        let found = Rejection::find(&error).unwrap();
        assert!(matches!(
            found,
            Rejection::CircuitOpen { state: CircuitState::HalfOpen, retry_after: None, .. }
        ));
        assert!(found.is_unsent());
    }
}

#[tokio::test]
async fn the_error_that_trips_a_circuit_or_ends_a_probe_is_reqwests_own() {
    let (clock, breaker, _, _) = outage().await;
    let client = network(&breaker);
    for opened in 1..=2 {
        let error = client.get(DEAD).send().await.unwrap_err();
        assert!(error.is_connect(), "{error:?}");
        assert!(matches!(error, reqwest_middleware::Error::Reqwest(_)));
        assert_eq!(Rejection::find(&error), None);
        assert_eq!(state(&breaker, DEAD), CircuitState::Open, "{opened}");
        clock.advance(Duration::from_secs(30));
    }
}

#[tokio::test]
async fn the_response_that_trips_a_circuit_arrives_as_it_was_sent() {
    let server = Server::start(|conversation| async {
        conversation.send("HTTP/1.1 503 Sorry\r\nx-trace: 7\r\ncontent-length: 10\r\n\r\nbe patient").await
    })
    .await;
    let (_, breaker, _, _) = outage().await;
    let url = format!("{}orders?page=2", server.url());
    let response = network(&breaker).get(&url).send().await.unwrap();
    assert_eq!(state(&breaker, &url), CircuitState::Open);
    assert_eq!(response.status(), 503);
    assert_eq!(response.url().as_str(), url);
    assert_eq!(response.headers()["x-trace"], "7");
    assert_eq!(response.content_length(), Some(10));
    assert!(response.remote_addr().is_some());
    assert_eq!(response.text().await.unwrap(), "be patient");
}

#[tokio::test]
async fn the_error_of_another_middleware_passes_as_it_is() {
    let breaker = CircuitBreaker::default();
    let client = ClientBuilder::new(plain_client())
        .with(breaker)
        .with(Then(|_| async { Err(reqwest_middleware::Error::middleware(TokenExpired)) }))
        .with(Transport::answering(200))
        .build();
    match client.get(URL).send().await.unwrap_err() {
        reqwest_middleware::Error::Middleware(error) => {
            assert_eq!(error.downcast_ref(), Some(&TokenExpired));
        }
        other @ reqwest_middleware::Error::Reqwest(_) => panic!("{other:?}"),
    }
}

/// What a call through a chain counts as, read off a circuit that has one failure in a row: two then, or none, or still one.
async fn verdict<Fut: Future>(
    settings: fn(CircuitSettings) -> CircuitSettings,
    make_call: impl FnOnce(CircuitBreaker) -> Fut,
) -> Verdict {
    let breaker =
        CircuitBreaker::builder().scope(Scope::shared("judged")).defaults(settings).build().unwrap();
    let failures = || breaker.snapshot("judged").unwrap().consecutive_failures;
    call(&chain(&breaker, &Transport::answering(503)), URL).await;
    assert_eq!(failures(), 1);
    make_call(breaker.clone()).await;
    match failures() {
        2 => Verdict::Failure,
        0 => Verdict::Success,
        1 => Verdict::Ignore,
        other => panic!("one call counted as {other}"),
    }
}

/// Nothing but the defaults.
fn same(circuit: CircuitSettings) -> CircuitSettings {
    circuit
}

/// `breaker → inner → transport`
fn around(breaker: CircuitBreaker, inner: impl Middleware, transport: Transport) -> ClientWithMiddleware {
    ClientBuilder::new(plain_client()).with(breaker).with(inner).with(transport).build()
}

#[tokio::test]
async fn f61_of_all_statuses_only_5xx_open_a_circuit() {
    for status in [400, 401, 403, 404, 408, 409, 422, 429, 500, 501, 503, 505, 599] {
        let breaker = CircuitBreaker::default();
        let transport = Transport::answering(status);
        let client = chain(&breaker, &transport);
        for _ in 0..20 {
            call(&client, URL).await;
        }
        let (opens, hits) = if status < 500 { (CircuitState::Closed, 20) } else { (CircuitState::Open, 5) };
        assert_eq!((state(&breaker, KEY), transport.hits()), (opens, hits), "{status}");
    }
}

#[tokio::test]
async fn a_status_that_is_no_failure_is_a_success() {
    for status in [101, 200, 204, 301, 304, 404, 429, 499, 600, 999] {
        let judged = verdict(same, |breaker| async move {
            call(&chain(&breaker, &Transport::answering(status)), URL).await
        });
        assert_eq!(judged.await, Verdict::Success, "{status}");
    }
}

#[tokio::test]
async fn f46_a_request_that_cannot_be_built_says_nothing_about_the_origin() {
    // reqwest finds a bad header before any middleware runs, unless a middleware adds it.
    let breaker = CircuitBreaker::default();
    let transport = Transport::answering(200).then((0..20).map(|_| Reply::BuilderError));
    for client in [chain(&breaker, &transport), network(&breaker)] {
        for _ in 0..20 {
            let early = client.get(URL).header("bad name", "x").send().await;
            assert!(early.unwrap_err().is_builder());
            let late = client.get("ftp://api.example.com/").send().await;
            assert!(late.unwrap_err().is_builder());
        }
    }
    assert_eq!(transport.hits(), 20);
    let circuit = breaker.snapshot("ftp://api.example.com").unwrap();
    assert_eq!(circuit.state, CircuitState::Closed);
    assert_eq!(circuit.consecutive_failures, 0);
    assert_eq!(breaker.snapshot(KEY), None);
    let judged =
        verdict(same, |breaker| async move { call(&network(&breaker), "ftp://api.example.com/").await });
    assert_eq!(judged.await, Verdict::Ignore);
}

#[tokio::test]
async fn a_redirect_loop_says_nothing_about_the_origin() {
    let server = Server::start(|conversation| async {
        conversation.send("HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n").await
    })
    .await;
    let judged = verdict(same, |breaker| async move {
        let error = network(&breaker).get(server.url()).send().await.unwrap_err();
        assert!(error.is_redirect());
    });
    assert_eq!(judged.await, Verdict::Ignore);
}

#[tokio::test]
async fn every_fault_of_the_network_is_a_failure() {
    type Fault = fn(Conversation) -> futures::future::BoxFuture<'static, Option<Conversation>>;
    let faults: [(&str, Fault); 5] = [
        ("closed", |_| async { None }.boxed()),
        ("reset", |conversation| async { conversation.reset() }.boxed()),
        ("garbage", |conversation| conversation.send("\u{1}\u{2}\r\n\r\n").boxed()),
        ("incomplete", |conversation| {
            async {
                conversation.send("HTTP/1.1 200 OK\r\ncontent-le").await;
                None
            }
            .boxed()
        }),
        ("silence", |conversation| {
            async {
                conversation.closed_by_peer().await;
                None
            }
            .boxed()
        }),
    ];
    let impatient =
        reqwest::Client::builder().no_proxy().timeout(Duration::from_millis(300)).build().unwrap();
    let sent = |breaker, url: String| {
        let client = ClientBuilder::new(impatient.clone()).with(breaker).build();
        async move { assert_eq!(call(&client, &url).await, Saw::Error) }
    };
    for (name, fault) in faults {
        let server = Server::start(fault).await;
        let judged = verdict(same, |breaker| sent(breaker, server.url()));
        assert_eq!(judged.await, Verdict::Failure, "{name}");
        assert_eq!(server.hits(), 1, "{name}");
    }
    for (name, url) in [("refused", DEAD), ("no such host", "http://host.invalid/")] {
        let judged = verdict(same, |breaker| sent(breaker, url.to_owned()));
        assert_eq!(judged.await, Verdict::Failure, "{name}");
    }
}

#[tokio::test]
async fn a_body_that_breaks_in_the_hands_of_an_inner_middleware_is_a_failure() {
    let server = Server::start(|conversation| async {
        conversation.send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort").await;
        None
    })
    .await;
    let judged = verdict(same, |breaker| async move {
        let reading = Then(|result: reqwest_middleware::Result<Response>| async {
            let body = result?.bytes().await?;
            Ok(http::Response::new(body).into())
        });
        let client = ClientBuilder::new(plain_client()).with(breaker).with(reading).build();
        let error = client.get(server.url()).send().await.unwrap_err();
        assert!(error.is_decode() || error.is_body(), "{error:?}");
    });
    assert_eq!(judged.await, Verdict::Failure);
}

#[tokio::test]
async fn the_error_of_another_middleware_says_nothing_about_the_origin() {
    let judged = verdict(same, |breaker| async move {
        let transport = Transport::answering(200).then([Reply::ForeignError]);
        assert_eq!(call(&chain(&breaker, &transport), URL).await, Saw::Error);
    });
    assert_eq!(judged.await, Verdict::Ignore);
}

#[tokio::test]
async fn the_rejection_of_an_inner_breaker_says_nothing_about_the_origin() {
    let judged = verdict(same, |breaker| async move {
        let inner = CircuitBreaker::default();
        inner.set_mode(URL, CircuitMode::ForcedOpen).unwrap();
        let transport = Transport::answering(200);
        let client = around(breaker, inner, transport.clone());
        assert_eq!(call(&client, URL).await, Saw::Rejected);
        assert_eq!(transport.hits(), 0);
    });
    assert_eq!(judged.await, Verdict::Ignore);
}

#[tokio::test]
async fn an_error_made_of_a_status_is_judged_by_the_status() {
    for (status, expected) in
        [(404, Verdict::Success), (429, Verdict::Success), (500, Verdict::Failure), (503, Verdict::Failure)]
    {
        let judged = verdict(same, |breaker| async move {
            let strict = Then(|result: reqwest_middleware::Result<Response>| async {
                Ok(result?.error_for_status()?)
            });
            let client = around(breaker, strict, Transport::answering(status));
            let error = client.get(URL).send().await.unwrap_err();
            assert_eq!(error.status().unwrap(), status);
        });
        assert_eq!(judged.await, expected, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_later_than_slow_call_is_a_failure_whatever_its_status() {
    let late = Duration::from_millis(101);
    let limit = Duration::from_millis(100);
    for (wait, status, expected) in [
        (limit, 200, Verdict::Success),
        (late, 200, Verdict::Failure),
        (late, 404, Verdict::Failure),
        (late, 503, Verdict::Failure),
    ] {
        let slow_call = |circuit: CircuitSettings| circuit.slow_call(Duration::from_millis(100));
        let judged = verdict(slow_call, |breaker| async move {
            let transport = Transport::answering(200).then([Reply::Late(wait, status)]);
            call(&chain(&breaker, &transport), URL).await
        });
        assert_eq!(judged.await, expected, "{status} after {wait:?}");
    }
}

#[tokio::test]
async fn failure_statuses_are_what_each_circuit_says() {
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(1)).failure_statuses([503]))
        .origin("http://throttling", |circuit| circuit.failure_statuses([429, 503]))
        .origin("http://forgiven", |circuit| circuit.failure_statuses([]))
        .build()
        .unwrap();
    for (url, status, after) in [
        ("http://a", 503, CircuitState::Open),
        ("http://b", 500, CircuitState::Closed),
        ("http://c", 429, CircuitState::Closed),
        ("http://throttling", 429, CircuitState::Open),
        ("http://forgiven", 503, CircuitState::Closed),
    ] {
        call(&chain(&breaker, &Transport::answering(status)), url).await;
        assert_eq!(state(&breaker, url), after, "{status} from {url}");
    }
    // An error made of a status goes by the same set.
    let strict =
        Then(|result: reqwest_middleware::Result<Response>| async { Ok(result?.error_for_status()?) });
    let client = around(breaker.clone(), strict, Transport::answering(503));
    assert_eq!(call(&client, "http://forgiven").await, Saw::Error);
    assert_eq!(state(&breaker, "http://forgiven"), CircuitState::Closed);
    // An error that has no status is still one.
    call(&network(&breaker), DEAD).await;
    assert_eq!(state(&breaker, DEAD), CircuitState::Open);
}

#[tokio::test(start_paused = true)]
async fn a_rule_of_ones_own_sees_the_attempt_and_has_the_last_word() {
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(2)).failure_statuses([418]))
        .classify(|attempt| match attempt.result() {
            Ok(response) if response.status() == 503 => Verdict::Ignore,
            Ok(_) if Duration::from_secs(1) <= attempt.elapsed() => Verdict::Failure,
            Ok(_) if attempt.method() == Method::DELETE => Verdict::Failure,
            Err(error) if error.is_builder() => Verdict::Failure,
            _ => attempt.default_verdict(),
        })
        .build()
        .unwrap();
    let second = Duration::from_secs(1);
    for (method, reply, failures) in [
        (Method::GET, Reply::Status(418), 1),
        (Method::GET, Reply::Status(503), 1),
        (Method::GET, Reply::Status(500), 0),
        (Method::GET, Reply::Late(second, 200), 1),
        (Method::GET, Reply::Late(Duration::from_millis(999), 200), 0),
        (Method::DELETE, Reply::Status(200), 1),
        (Method::GET, Reply::ForeignError, 1),
        (Method::GET, Reply::Status(200), 0),
        (Method::GET, Reply::BuilderError, 1),
    ] {
        let what = format!("{method} {reply:?}");
        let client = chain(&breaker, &Transport::answering(200).then([reply]));
        let _ = client.request(method, URL).send().await;
        assert_eq!(breaker.snapshot(KEY).unwrap().consecutive_failures, failures, "{what}");
    }
}

/// The crate is named in tests where the feature brings it in.
#[cfg(feature = "reqwest-retry")]
mod with_reqwest_retry {
    use super::*;
    use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};

    fn retry(times: u32) -> RetryTransientMiddleware<ExponentialBackoff> {
        let millisecond = Duration::from_millis(1);
        RetryTransientMiddleware::new_with_policy(
            ExponentialBackoff::builder()
                .retry_bounds(millisecond, millisecond)
                .build_with_max_retries(times),
        )
    }

    /// It wraps every error, and in another way when it did retry.
    #[tokio::test]
    async fn a_rejection_is_found_behind_it_after_no_retry_and_after_one() {
        let (clock, breaker, transport, _) = outage().await;
        let client =
            ClientBuilder::new(plain_client()).with(retry(1)).with(breaker).with(transport.clone()).build();
        for attempts in [0, 1] {
            let before = transport.hits();
            let error = client.get(CHARGES).send().await.unwrap_err();
            let rejection = Rejection::find(&error).unwrap();
            let Rejection::CircuitOpen { circuit_key, .. } = rejection else {
                panic!("{rejection:?}");
            };
            assert_eq!(&**circuit_key, "https://api.example.com:443");
            assert_eq!(transport.hits() - before, attempts);
            // The next call probes, fails and is retried.
            clock.advance(Duration::from_secs(30));
        }
    }

    #[tokio::test]
    async fn the_last_error_behind_it_is_what_a_breaker_outside_judges() {
        for retries in [0, 1] {
            let refused = verdict(same, |breaker| async move {
                let client = ClientBuilder::new(plain_client()).with(breaker).with(retry(retries)).build();
                assert_eq!(call(&client, DEAD).await, Saw::Error);
            });
            assert_eq!(refused.await, Verdict::Failure);
            for (last, expected) in [
                (Reply::Status(200), Verdict::Success),
                (Reply::Status(503), Verdict::Failure),
                (Reply::BuilderError, Verdict::Ignore),
                (Reply::ForeignError, Verdict::Ignore),
            ] {
                let what = format!("{last:?} after {retries} retries");
                let judged = verdict(same, |breaker| async move {
                    let transport = Transport::answering(200);
                    transport.script((0..retries).map(|_| Reply::Status(500)));
                    transport.script([last]);
                    call(&around(breaker, retry(retries), transport.clone()), URL).await;
                    assert_eq!(transport.hits(), 1 + retries as usize);
                });
                assert_eq!(judged.await, expected, "{what}");
            }
        }
    }

    #[tokio::test]
    async fn the_rejection_of_a_breaker_inside_it_says_nothing_about_the_origin() {
        for retries in [0, 1] {
            let judged = verdict(same, |breaker| async move {
                let (clock, inner, transport, _) = outage().await;
                if 0 < retries {
                    clock.advance(Duration::from_secs(30));
                }
                let client = ClientBuilder::new(plain_client())
                    .with(breaker)
                    .with(retry(retries))
                    .with(inner)
                    .with(transport)
                    .build();
                assert_eq!(call(&client, CHARGES).await, Saw::Rejected);
            });
            assert_eq!(judged.await, Verdict::Ignore, "{retries}");
        }
    }
}
