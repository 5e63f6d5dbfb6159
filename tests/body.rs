//! Calls that last to the end of their body, over real sockets in real time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use futures::future::poll_fn;
use http::{Extensions, Method};
use http_body::Body as HttpBody;
use reqwest::{Body, Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use reqwest_resilience::{
    Bulkhead, CircuitBreaker, CircuitBreakerBuilder, CircuitState, Deadline, ManualClock, Retry, Trip, Until,
};
use std::{pin::Pin, sync::Arc, time::Duration};
use support::{Conversation, Log, Saw, Server, call, network, plain_client, state};
use tokio::{sync::Semaphore, time};

/// A response that promises more than its first part.
const FIRST_PART: &str = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello";
/// Its second.
const REST: &str = "world";

/// So many failures in a row open for longer than a test lasts; bodies have a say.
fn watching(failures: u32) -> CircuitBreakerBuilder {
    CircuitBreaker::builder()
        .observe(Until::BodyEnd)
        .defaults(|circuit| circuit.trip(Trip::consecutive(failures)).open_for(Duration::from_secs(3_600)))
}

/// One failure opens, the next call is a probe at once; bodies have a say.
fn probing() -> CircuitBreaker {
    let breaker = CircuitBreaker::builder().observe(Until::BodyEnd);
    let breaker = breaker.defaults(|circuit| circuit.trip(Trip::consecutive(1)).open_for(Duration::ZERO));
    breaker.build().unwrap()
}

/// How a server ends a body.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Whole,
    Truncated,
    Reset,
    BadChunk,
    Stalled,
}

/// The test says when the server goes on.
#[derive(Clone)]
struct Cue(Arc<Semaphore>);

impl Cue {
    fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Lets one body go on.
    fn give(&self) {
        self.0.add_permits(1);
    }

    async fn wait(&self) {
        self.0.acquire().await.unwrap().forget();
    }
}

/// Answers 503 to the first requests, then 200 with a body that ends so when the test gives the cue. `/204` and the
/// like, and HEAD, are answered without a body.
async fn server(failures: usize, cue: &Cue, ending: Ending) -> Server {
    let cue = cue.clone();
    Server::start(move |conversation| {
        let cue = cue.clone();
        async move {
            if conversation.number < failures {
                return conversation.status(503).await;
            }
            answer(conversation, &cue, ending).await
        }
    })
    .await
}

async fn answer(conversation: Conversation, cue: &Cue, ending: Ending) -> Option<Conversation> {
    let request = conversation.request.clone();
    if request.starts_with("HEAD") {
        return conversation.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n").await;
    }
    if request.starts_with("GET /204") {
        return conversation.send("HTTP/1.1 204 No Content\r\n\r\n").await;
    }
    if request.starts_with("GET /503") {
        return conversation.status(503).await;
    }
    if request.starts_with("GET /101") {
        let conversation = conversation
            .send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
            .await?;
        conversation.closed_by_peer().await;
        return None;
    }
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
    let first_part = if matches!(ending, Ending::BadChunk) { chunked } else { FIRST_PART };
    let conversation = conversation.send(first_part).await?;
    cue.wait().await;
    match ending {
        Ending::Whole => conversation.send(REST).await,
        Ending::Truncated => None,
        Ending::Reset => conversation.reset(),
        Ending::BadChunk => conversation.send("zz\r\nworld\r\n").await,
        Ending::Stalled => {
            conversation.closed_by_peer().await;
            None
        }
    }
}

/// `layer → network`, with a timeout of reqwest's own.
fn timed(layer: &(impl Middleware + Clone), timeout: Duration) -> ClientWithMiddleware {
    let client = reqwest::Client::builder().no_proxy().timeout(timeout).build();
    ClientBuilder::new(client.unwrap()).with(layer.clone()).build()
}

async fn get(client: &ClientWithMiddleware, url: &str) -> Response {
    client.get(url).send().await.unwrap()
}

fn in_flight(bulkhead: &Bulkhead) -> usize {
    bulkhead.snapshots()[0].in_flight
}

fn failures(breaker: &CircuitBreaker, server: &Server) -> u32 {
    breaker.snapshot(&server.key()).unwrap().consecutive_failures
}

// The circuit

#[tokio::test]
async fn f62_truncated_bodies_open_the_circuit_where_bodies_have_a_say() {
    for (observe, sent, expected) in
        [(Until::Headers, 10, CircuitState::Closed), (Until::BodyEnd, 4, CircuitState::Open)]
    {
        let cue = Cue::new();
        cue.0.add_permits(10);
        let server = server(0, &cue, Ending::Truncated).await;
        let rate = Trip::failure_rate(0.5).min_calls(4).over(Duration::from_secs(60));
        let breaker = watching(1)
            .observe(observe)
            .defaults(move |circuit| circuit.trip(rate).open_for(Duration::from_secs(3_600)));
        let breaker = breaker.build().unwrap();
        let client = network(&breaker);
        for number in 0..10 {
            match client.get(server.url()).send().await {
                Ok(response) => {
                    assert_eq!(response.status(), 200);
                    assert!(response.text().await.is_err(), "its body is broken all the same");
                }
                Err(_) => assert!(sent <= number, "{observe:?}: refused too early"),
            }
        }
        assert_eq!(state(&breaker, &server.key()), expected, "{observe:?}");
        assert_eq!(server.hits(), sent, "{observe:?}");
    }
}

#[tokio::test]
async fn a_body_that_breaks_is_a_failure_at_once_and_the_headers_alone_are_nothing_yet() {
    for ending in [Ending::Truncated, Ending::Reset, Ending::BadChunk, Ending::Stalled] {
        let cue = Cue::new();
        let server = server(1, &cue, ending).await;
        let breaker = watching(2).build().unwrap();
        // Long enough for the headers on a busy machine.
        let client = timed(&breaker, Duration::from_millis(700));
        assert_eq!(call(&client, &server.url()).await, Saw::Status(503));
        let mut response = get(&client, &server.url()).await;
        assert_eq!(response.chunk().await.unwrap().unwrap(), "hello");
        assert_eq!(failures(&breaker, &server), 1, "{ending:?}: a success would have cleared it");
        cue.give();
        assert!(response.chunk().await.is_err(), "{ending:?}");
        assert_eq!(state(&breaker, &server.key()), CircuitState::Open, "{ending:?}");
    }
}

#[tokio::test]
async fn a_whole_body_is_a_success_when_it_ends_and_so_is_one_that_nobody_wants() {
    for is_read in [true, false] {
        let cue = Cue::new();
        let server = server(1, &cue, Ending::Whole).await;
        let breaker = watching(2).build().unwrap();
        let client = network(&breaker);
        assert_eq!(call(&client, &server.url()).await, Saw::Status(503));
        let mut response = get(&client, &server.url()).await;
        assert_eq!(failures(&breaker, &server), 1);
        if is_read {
            cue.give();
            let mut read = Vec::new();
            while read.len() < 10 {
                read.extend(response.chunk().await.unwrap().unwrap());
            }
            // Nobody asks for what comes after the last byte, and nobody has to.
            assert_eq!(read, b"helloworld");
            assert_eq!(failures(&breaker, &server), 0);
        }
        drop(response);
        assert_eq!(failures(&breaker, &server), 0, "read: {is_read}");
    }
}

#[tokio::test]
async fn bad_headers_are_a_failure_at_once_and_their_body_adds_nothing() {
    let server = Server::start(|conversation| async move {
        let first_part = "HTTP/1.1 503 Status\r\ncontent-length: 10\r\n\r\nhello";
        conversation.send(first_part).await.and(None)
    })
    .await;
    let breaker = watching(3).build().unwrap();
    let client = network(&breaker);
    let broken = get(&client, &server.url()).await;
    assert_eq!(failures(&breaker, &server), 1);
    assert!(broken.text().await.is_err());
    assert_eq!(failures(&breaker, &server), 1);
    let unread = get(&client, &server.url()).await;
    assert_eq!(failures(&breaker, &server), 2);
    drop(unread);
    assert_eq!(failures(&breaker, &server), 2);
}

#[tokio::test]
async fn what_the_reader_takes_is_not_charged_to_the_origin() {
    let cue = Cue::new();
    let server = server(0, &cue, Ending::Whole).await;
    let clock = ManualClock::new();
    let breaker = watching(1).clock(clock.clone()).defaults(|circuit| {
        let patience = Duration::from_secs(1);
        circuit.trip(Trip::consecutive(1)).slow_call(patience).abandoned_after(patience)
    });
    let breaker = breaker.build().unwrap();
    let client = network(&breaker);
    for is_read in [true, false] {
        let response = get(&client, &server.url()).await;
        clock.advance(Duration::from_secs(3_600));
        cue.give();
        if is_read {
            assert_eq!(response.text().await.unwrap(), "helloworld");
        } else {
            drop(response);
        }
        assert_eq!(failures(&breaker, &server), 0, "read: {is_read}");
    }
}

#[tokio::test]
async fn f63_a_probe_without_a_body_to_read_closes_the_circuit() {
    for (method, path) in [(Method::GET, ""), (Method::HEAD, ""), (Method::GET, "204"), (Method::GET, "101")]
    {
        let server = server(1, &Cue::new(), Ending::Whole).await;
        let breaker = probing();
        let client = network(&breaker);
        assert_eq!(call(&client, &server.url()).await, Saw::Status(503));
        let url = format!("{}{path}", server.url());
        let response = client.request(method.clone(), url).send().await.unwrap();
        let has_body = method == Method::GET && path.is_empty();
        assert_eq!(state(&breaker, &server.key()) == CircuitState::HalfOpen, has_body, "{method} {path}");
        drop(response);
        let circuit = breaker.snapshot(&server.key()).unwrap();
        assert_eq!((circuit.state, circuit.probes_in_flight), (CircuitState::Closed, 0), "{method} {path}");
    }
}

#[tokio::test]
async fn a_probe_holds_its_slot_until_its_body_is_over() {
    for (ending, expected) in [(Ending::Whole, CircuitState::Closed), (Ending::Truncated, CircuitState::Open)]
    {
        let cue = Cue::new();
        let server = server(1, &cue, ending).await;
        let breaker = probing();
        let client = network(&breaker);
        assert_eq!(call(&client, &server.url()).await, Saw::Status(503));
        let probe = get(&client, &server.url()).await;
        assert_eq!(call(&client, &server.url()).await, Saw::Rejected);
        let circuit = breaker.snapshot(&server.key()).unwrap();
        assert_eq!((circuit.state, circuit.probes_in_flight), (CircuitState::HalfOpen, 1));
        cue.give();
        assert_eq!(probe.text().await.is_ok(), expected == CircuitState::Closed);
        assert_eq!(state(&breaker, &server.key()), expected);
        assert_eq!(server.hits(), 2);
    }
}

#[tokio::test]
async fn a_body_that_ends_after_the_circuit_moved_on_changes_nothing() {
    for ending in [Ending::Whole, Ending::Truncated] {
        let cue = Cue::new();
        let server = server(0, &cue, ending).await;
        let breaker = probing();
        let client = network(&breaker);
        let straggler = get(&client, &server.url()).await;
        assert_eq!(call(&client, &format!("{}503", server.url())).await, Saw::Status(503));
        // Half-open, with the only probe out.
        let _probe = get(&client, &server.url()).await;
        let before = breaker.snapshot(&server.key()).unwrap();
        assert_eq!((before.state, before.probes_in_flight), (CircuitState::HalfOpen, 1));
        let log = Log::listen();
        cue.give();
        assert_eq!(straggler.text().await.is_ok(), matches!(ending, Ending::Whole));
        assert_eq!(breaker.snapshot(&server.key()).unwrap(), before);
        assert_eq!(log.events(), ["circuit.stale_outcome"]);
    }
}

// The slot

#[tokio::test]
async fn f56_a_slot_is_held_to_the_headers_or_to_the_end_of_the_body() {
    let (get, head) = (Method::GET, Method::HEAD);
    // (hold, the call, taken after its headers)
    for (hold, method, path, taken) in [
        (Until::Headers, &get, "", 0),
        (Until::BodyEnd, &get, "", 1),
        (Until::BodyEnd, &head, "", 0),
        (Until::BodyEnd, &get, "204", 0),
        (Until::BodyEnd, &get, "101", 0),
    ] {
        for is_read in [true, false] {
            let cue = Cue::new();
            let server = server(0, &cue, Ending::Whole).await;
            let bulkhead = Bulkhead::builder().max_concurrent(1).hold(hold).build().unwrap();
            let client = timed(&bulkhead, Duration::from_secs(30));
            let url = format!("{}{path}", server.url());
            let mut response = client.request(method.clone(), url).send().await.unwrap();
            assert_eq!(in_flight(&bulkhead), taken, "{hold:?} {method} {path}");
            cue.give();
            if is_read && taken == 1 {
                while response.chunk().await.unwrap().is_some() {}
                assert_eq!(in_flight(&bulkhead), 0, "read, though the response is still there");
            }
            drop(response);
            assert_eq!(in_flight(&bulkhead), 0, "{hold:?} {method} {path}");
        }
    }
}

#[tokio::test]
async fn a_slot_is_free_again_when_the_body_breaks() {
    for ending in [Ending::Truncated, Ending::Reset, Ending::BadChunk] {
        let cue = Cue::new();
        let server = server(0, &cue, ending).await;
        let hold = Bulkhead::builder().max_concurrent(1).hold(Until::BodyEnd);
        let bulkhead = hold.build().unwrap();
        let mut response = get(&timed(&bulkhead, Duration::from_secs(30)), &server.url()).await;
        assert!(response.chunk().await.unwrap().is_some());
        assert_eq!(in_flight(&bulkhead), 1, "{ending:?}");
        cue.give();
        assert!(response.chunk().await.is_err(), "{ending:?}");
        assert_eq!(in_flight(&bulkhead), 0, "{ending:?}");
    }
}

// The response

/// Marks each response in its extensions.
struct Marking;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Mark(u8);

#[async_trait::async_trait]
impl Middleware for Marking {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let mut response = next.run(request, extensions).await?;
        response.extensions_mut().insert(Mark(7));
        Ok(response)
    }
}

/// `Deadline → Retry → CircuitBreaker → Bulkhead`, the latter two to the end of the body.
fn full_chain(breaker: &CircuitBreaker, bulkhead: &Bulkhead) -> ClientWithMiddleware {
    ClientBuilder::new(plain_client())
        .with(Deadline::after(Duration::from_secs(1)))
        .with(Retry::default())
        .with(breaker.clone())
        .with(bulkhead.clone())
        .with(Marking)
        .build()
}

fn to_the_end() -> (CircuitBreaker, Bulkhead) {
    let bulkhead = Bulkhead::builder().max_concurrent(1).hold(Until::BodyEnd);
    (watching(1).build().unwrap(), bulkhead.build().unwrap())
}

#[tokio::test]
async fn five_megabytes_read_slowly_through_the_full_chain_arrive_whole() {
    let sent: Arc<Vec<u8>> = Arc::new((0_u8..251).cycle().take(5 << 20).collect());
    let body = Arc::clone(&sent);
    let server = Server::start(move |conversation| {
        let body = Arc::clone(&body);
        async move {
            if conversation.request.starts_with("GET /start") {
                let found = "HTTP/1.1 302 Found\r\nlocation: /data?part=1\r\ncontent-length: 0\r\n\r\n";
                return conversation.send(found).await;
            }
            let head = format!("HTTP/1.1 200 OK\r\netag: \"v1\"\r\ncontent-length: {}\r\n\r\n", body.len());
            conversation.send(head).await?.send(&*body).await
        }
    })
    .await;
    let (breaker, bulkhead) = to_the_end();
    let mut response = get(&full_chain(&breaker, &bulkhead), &format!("{}start", server.url())).await;

    assert_eq!(response.status(), 200);
    assert_eq!(response.url().as_str(), format!("{}data?part=1", server.url()));
    assert_eq!(response.content_length(), Some(5 << 20));
    assert_eq!(response.version(), http::Version::HTTP_11);
    assert_eq!(response.headers()["etag"], "\"v1\"");
    let address = response.remote_addr().map(|address| address.to_string());
    assert_eq!(address, server.key().strip_prefix("http://").map(str::to_owned));
    assert_eq!(response.extensions().get(), Some(&Mark(7)));

    // Longer than the deadline: that one is over at the headers.
    time::sleep(Duration::from_millis(1_100)).await;
    let mut read = Vec::new();
    while let Some(chunk) = response.chunk().await.unwrap() {
        read.extend_from_slice(&chunk);
        if read.len() < sent.len() {
            assert_eq!(in_flight(&bulkhead), 1);
        }
        tokio::task::yield_now().await;
    }
    assert!(read == *sent, "the bytes are the same");
    assert_eq!(in_flight(&bulkhead), 0);
    assert_eq!(failures(&breaker, &server), 0);
}

#[tokio::test]
async fn trailers_arrive_and_the_watchers_wait_for_them() {
    let cue = Cue::new();
    let waiting = cue.clone();
    let server = Server::start(move |conversation| {
        let cue = waiting.clone();
        async move {
            let conversation = conversation
                .send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n5\r\nhello\r\n")
                .await?;
            cue.wait().await;
            conversation.send("0\r\nx-sum: 42\r\n\r\n").await
        }
    })
    .await;
    let (breaker, bulkhead) = to_the_end();
    let response = get(&full_chain(&breaker, &bulkhead), &server.url()).await;
    let mut body = http::Response::<Body>::from(response).into_body();
    let data = next_frame(&mut body).await.into_data().unwrap();
    assert_eq!(data, "hello");
    assert_eq!(in_flight(&bulkhead), 1);
    cue.give();
    let trailers = next_frame(&mut body).await.into_trailers().unwrap();
    assert_eq!(trailers["x-sum"], "42");
    assert!(poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.is_none());
    assert_eq!(in_flight(&bulkhead), 0);
}

async fn next_frame(body: &mut Body) -> http_body::Frame<<Body as HttpBody>::Data> {
    poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await.unwrap().unwrap()
}
