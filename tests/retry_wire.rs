//! Retries on the wire: real connections on loopback, in real time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use StopReason::{Attempts, Rejected, Settled, StreamingBody, UnsafeMethod};
use futures::stream;
use http::{Extensions, Version};
use reqwest::{Body, Client, Method, Request, Response};
use reqwest_middleware::{
    ClientBuilder, ClientWithMiddleware, Error, Middleware, Next, RequestBuilder, Result,
};
use reqwest_resilience::{
    CircuitBreaker, Deadline, Rejection, Retry, RetryBuilder, RetryReport, RetryReportHandle, StopReason,
    Trip,
};
use retry_policies::{Jitter, policies::ExponentialBackoff};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use support::{Conversation, Saw, Server, call, plain_client, saw};
use tokio::{
    net::TcpListener,
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinHandle,
    time::{Instant, timeout},
};
use wiremock::{Mock, MockServer, ResponseTemplate, matchers};

/// Port 0 refuses every connection.
const DEAD: &str = "http://127.0.0.1:0/";
/// For what takes milliseconds, or else for ever.
const SOON: Duration = Duration::from_secs(5);
/// Between two attempts.
const WAIT: Duration = Duration::from_millis(20);

/// So many retries, each after the same wait.
fn retry(max_retries: u32) -> RetryBuilder {
    let policy = ExponentialBackoff::builder()
        .retry_bounds(WAIT, WAIT)
        .jitter(Jitter::None)
        .build_with_max_retries(max_retries);
    Retry::builder().policy(policy)
}

fn client(retry: RetryBuilder) -> ClientWithMiddleware {
    ClientBuilder::new(plain_client()).with(retry.build().unwrap()).build()
}

/// `retry → breaker → network`, with two retries.
fn with_breaker(failures: u32) -> ClientBuilder {
    let breaker =
        CircuitBreaker::builder().defaults(|circuit| circuit.trip(Trip::consecutive(failures))).build();
    ClientBuilder::new(plain_client()).with(retry(2).build().unwrap()).with(breaker.unwrap())
}

/// Sends a request that must not take long; says what came of it, after how many attempts, and why no more.
async fn send(request: RequestBuilder) -> (Result<Response>, (u32, StopReason)) {
    let report = RetryReportHandle::new();
    let call = request.with_extension(report.clone()).send();
    let result = timeout(SOON, call).await.expect("the call ends");
    let RetryReport { attempts, stopped, .. } = report.get();
    (result, (attempts, stopped))
}

/// A response with this status and body; the connection stays open.
fn response(status: u16, body: &str) -> String {
    format!("HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// A body that can be sent once.
fn streamed(chunks: [&'static str; 2]) -> Body {
    Body::wrap_stream(stream::iter(chunks.map(Ok::<_, Infallible>)))
}

/// Numbers the attempts, and leaves its number in the response of each.
#[derive(Clone, Default)]
struct Numbering(Arc<AtomicUsize>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Number(usize);

#[async_trait::async_trait]
impl Middleware for Numbering {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let number = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        let mut response = next.run(request, extensions).await?;
        response.extensions_mut().insert(Number(number));
        Ok(response)
    }
}

#[tokio::test]
async fn f33_a_body_that_can_be_sent_once_is_and_the_real_outcome_is_the_callers() {
    let client = client(retry(2));
    for (idempotency_key, refusal) in [("", UnsafeMethod), ("idempotency-key", StreamingBody)] {
        let post = |url: &str| {
            let request = client.post(url).body(streamed(["in two ", "chunks"]));
            match idempotency_key {
                "" => request,
                name => request.header(name, "1"),
            }
        };
        for (status, stopped) in [(200, Settled), (503, refusal)] {
            let server = MockServer::start().await;
            Mock::given(matchers::any()).respond_with(ResponseTemplate::new(status)).mount(&server).await;
            let (result, report) = send(post(&server.uri())).await;
            assert_eq!(result.unwrap().status(), status);
            assert_eq!(report, (1, stopped));
            let requests = server.received_requests().await.unwrap();
            let bodies: Vec<_> = requests.iter().map(|request| request.body.as_slice()).collect();
            assert_eq!(bodies, [b"in two chunks"]);
        }
        let (result, report) = send(post(DEAD)).await;
        assert!(matches!(result, Err(Error::Reqwest(error)) if error.is_connect()));
        assert_eq!(report, (1, refusal));
    }
}

#[tokio::test]
async fn f34_the_same_bytes_and_their_length_arrive_with_every_attempt() {
    let server = MockServer::start().await;
    Mock::given(matchers::any())
        .respond_with(ResponseTemplate::new(503))
        .up_to_n_times(2)
        .mount(&server)
        .await;
    Mock::given(matchers::any()).respond_with(ResponseTemplate::new(200)).mount(&server).await;
    let body: Vec<u8> = (0..=u8::MAX).cycle().take(100_000).collect();
    let (result, report) = send(client(retry(2)).put(server.uri()).body(body.clone())).await;
    assert_eq!(result.unwrap().status(), 200);
    assert_eq!(report, (3, Settled));
    let requests = server.received_requests().await.unwrap();
    assert_eq!(requests.len(), 3);
    for request in requests {
        assert_eq!(request.headers["content-length"], "100000");
        assert!(request.body == body, "a retry had another body");
    }
}

#[tokio::test]
async fn f35_a_post_that_may_have_been_received_is_sent_once() {
    for trust in [false, true] {
        let client = client(retry(2).trust_connect_errors(trust));
        let failing = Server::answering(502).await;
        let (result, report) = send(client.post(failing.url())).await;
        assert_eq!(result.unwrap().status(), 502);
        assert_eq!((report, failing.hits()), ((1, UnsafeMethod), 1));

        let closing = Server::start(|_| async { None }).await;
        let (result, report) = send(client.post(closing.url())).await;
        assert!(result.unwrap_err().is_request());
        assert_eq!((report, closing.hits()), ((1, UnsafeMethod), 1));
    }
}

#[tokio::test]
async fn f35_a_post_redirected_to_a_dead_host_has_been_received_and_is_sent_once() {
    let server = Server::start(|conversation| {
        conversation.send(format!("HTTP/1.1 307 Elsewhere\r\nlocation: {DEAD}\r\ncontent-length: 0\r\n\r\n"))
    })
    .await;
    let (result, report) = send(client(retry(2)).post(server.url())).await;
    assert!(result.unwrap_err().is_connect());
    assert_eq!((report, server.hits()), ((1, UnsafeMethod), 1));
}

#[tokio::test]
async fn f35_a_refused_post_is_sent_again_only_where_connect_errors_are_trusted() {
    for (trust, due) in [(false, (1, UnsafeMethod)), (true, (3, Attempts))] {
        let (result, report) = send(client(retry(2).trust_connect_errors(trust)).post(DEAD)).await;
        assert!(result.unwrap_err().is_connect());
        assert_eq!(report, due);
    }
}

#[tokio::test]
async fn f36_a_kept_connection_that_closes_on_the_next_request_costs_a_get_one_retry_and_fails_a_post() {
    for (method, outcome, report, hits, connections) in [
        (Method::GET, Saw::Status(200), (2, Settled), 3, 2),
        (Method::POST, Saw::Error, (1, UnsafeMethod), 2, 1),
    ] {
        let server = Server::start(|conversation: Conversation| async {
            match conversation.number {
                1 => None,
                _ => conversation.status(200).await,
            }
        })
        .await;
        let client = client(retry(2));
        assert_eq!(call(&client, &server.url()).await, Saw::Status(200));
        let (result, told) = send(client.request(method, server.url())).await;
        assert_eq!((saw(&result), told), (outcome, report));
        assert_eq!((server.hits(), server.connections()), (hits, connections));
    }
}

/// Speaks HTTP/2 and refuses the first stream. Ends with the number of streams when its connection does.
async fn refuse_first_stream() -> (String, JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let (connection, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(connection).await.unwrap();
        let mut streams = 0;
        while let Some(Ok((_, mut stream))) = connection.accept().await {
            streams += 1;
            if streams == 1 {
                stream.send_reset(h2::Reason::REFUSED_STREAM);
            } else {
                stream.send_response(http::Response::new(()), true).unwrap();
            }
        }
        streams
    });
    (url, serving)
}

#[tokio::test]
async fn f37_a_refused_stream_of_http2_is_no_attempt_of_ours() {
    for method in [Method::GET, Method::POST] {
        let (url, serving) = refuse_first_stream().await;
        let http2 = Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
        let numbering = Numbering::default();
        let client =
            ClientBuilder::new(http2).with(retry(2).build().unwrap()).with(numbering.clone()).build();
        let (result, report) = send(client.request(method, url)).await;
        let response = result.unwrap();
        assert_eq!((response.status().as_u16(), response.version()), (200, Version::HTTP_2));
        assert_eq!(RetryReport::of(&response), None);
        assert_eq!((report, numbering.0.load(Ordering::SeqCst)), ((1, Settled), 1));
        drop((response, client));
        assert_eq!(timeout(SOON, serving).await.unwrap().unwrap(), 2);
    }
}

#[tokio::test]
async fn f39_a_dead_port_is_tried_three_times_and_the_error_is_reqwests_own() {
    let (result, report) = send(client(retry(2)).get(DEAD)).await;
    assert!(matches!(result, Err(Error::Reqwest(error)) if error.is_connect()));
    assert_eq!(report, (3, Attempts));
}

/// How many connections it takes to get 503, 503, 200 where a failure has a body of so many bytes.
async fn connections_for(method: Method, bytes: usize) -> usize {
    let failure = response(503, &"x".repeat(bytes));
    let head = failure.len() - bytes;
    let sent = if method == Method::HEAD { head } else { failure.len() };
    let server = Server::start(move |conversation: Conversation| {
        let failure = failure[..sent].to_owned();
        async move {
            match conversation.number {
                0 | 1 => conversation.send(failure).await,
                _ => conversation.status(200).await,
            }
        }
    })
    .await;
    let (result, report) = send(client(retry(2)).request(method, server.url())).await;
    assert_eq!(result.unwrap().status(), 200);
    assert_eq!((report, server.hits()), ((3, Settled), 3));
    server.connections()
}

#[tokio::test]
async fn f40_a_failure_with_a_small_body_is_read_and_its_connection_used_again() {
    for (method, bytes) in [
        (Method::GET, 0),
        (Method::GET, 10),
        (Method::GET, 60_000),
        (Method::GET, 64 * 1024),
        (Method::HEAD, 10),
    ] {
        // The reading stops after 50 ms, which a busy machine may take: one round of many has to be in time.
        let mut rounds = 0;
        while connections_for(method.clone(), bytes).await != 1 {
            rounds += 1;
            assert!(rounds < 10, "a body of {bytes} B is not drained");
        }
    }
}

#[tokio::test]
async fn f40_a_failure_with_a_large_body_is_dropped_with_its_connection() {
    assert_eq!(connections_for(Method::GET, 4_000_000).await, 3);
}

/// A failure whose body never ends.
#[derive(Clone, Copy, Debug)]
enum Endless {
    /// As fast as it can be read.
    Flood,
    /// A little at a time, so that something always comes.
    Trickle,
    /// Nothing after the headers.
    Silence,
}

impl Endless {
    /// Fails so to begin with, then answers 200.
    async fn start(self, failures: usize) -> Server {
        Server::start(move |conversation: Conversation| async move {
            if failures <= conversation.number {
                return conversation.status(200).await;
            }
            let head = "HTTP/1.1 503 Status\r\ntransfer-encoding: chunked\r\n\r\n";
            let mut conversation = conversation.send(head).await?;
            let chunk = "400\r\n".to_owned() + &"x".repeat(0x400) + "\r\n";
            loop {
                conversation = match self {
                    Self::Flood => conversation.send(&chunk).await?,
                    Self::Trickle => {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        conversation.send("1\r\nx\r\n").await?
                    }
                    Self::Silence => {
                        conversation.closed_by_peer().await;
                        return None;
                    }
                }
            }
        })
        .await
    }
}

#[tokio::test]
async fn f40_a_failure_with_an_endless_body_does_not_hold_the_retry_up() {
    for endless in [Endless::Flood, Endless::Trickle, Endless::Silence] {
        let server = endless.start(1).await;
        let begun = Instant::now();
        let (result, report) = send(client(retry(2)).get(server.url())).await;
        assert_eq!(result.unwrap().status(), 200, "{endless:?}");
        assert_eq!((report, server.hits(), server.connections()), ((2, Settled), 2, 2));
        assert!(begun.elapsed() < Duration::from_secs(2), "{endless:?}: {:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn f43_an_opening_circuit_ends_the_series_and_the_caller_gets_the_last_answer() {
    let server = Server::start(|conversation: Conversation| {
        let answer = response(503, &format!("answer {}", conversation.number));
        conversation.send(answer)
    })
    .await;
    let client = with_breaker(2).build();
    let (result, report) = send(client.get(server.url())).await;
    let answer = result.unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.text().await.unwrap(), "answer 1");
    assert_eq!((report, server.hits()), ((3, Rejected), 2));
}

#[tokio::test]
async fn f43_at_a_dead_port_the_caller_gets_the_last_error() {
    let (result, report) = send(with_breaker(2).build().get(DEAD)).await;
    assert!(matches!(result, Err(Error::Reqwest(error)) if error.is_connect()));
    assert_eq!(report, (3, Rejected));
}

/// A client that gives an attempt 100 ms.
fn impatient() -> ClientBuilder {
    let http = Client::builder().no_proxy().timeout(Duration::from_millis(100));
    ClientBuilder::new(http.build().unwrap())
}

/// Reads a request, never answers, and tells when its connection is closed.
async fn hanging() -> (Server, UnboundedReceiver<()>) {
    let (sender, closed) = unbounded_channel();
    let server = Server::start(move |conversation: Conversation| {
        let sender = sender.clone();
        async move {
            conversation.closed_by_peer().await;
            let _ = sender.send(());
            None
        }
    });
    (server.await, closed)
}

#[tokio::test]
async fn f45_each_attempt_has_its_own_timeout() {
    let (server, _) = hanging().await;
    let client = impatient().with(retry(3).build().unwrap()).build();
    let (result, report) = send(client.get(server.url())).await;
    assert!(matches!(result, Err(Error::Reqwest(error)) if error.is_timeout()));
    assert_eq!((report, server.hits()), ((4, Attempts), 4));
}

#[tokio::test]
async fn f45_a_deadline_bounds_all_attempts_together() {
    let (server, _) = hanging().await;
    let client =
        impatient().with(Deadline::after(Duration::from_millis(250))).with(retry(3).build().unwrap()).build();
    let begun = Instant::now();
    let (result, _) = send(client.get(server.url())).await;
    let elapsed = begun.elapsed();
    let error = result.unwrap_err();
    // On a slow machine the second timeout may come too late for a third attempt.
    let is_over = matches!(Rejection::find(&error), Some(Rejection::DeadlineExceeded { .. }));
    assert!(is_over || error.is_timeout(), "{error:?}");
    assert!(server.hits() <= 3 && elapsed < Duration::from_secs(2), "{elapsed:?}");
}

#[tokio::test]
async fn f45_an_attempt_that_the_deadline_cuts_off_lets_go_of_its_connection() {
    let (server, mut closed) = hanging().await;
    let client = ClientBuilder::new(plain_client())
        .with(Deadline::after(Duration::from_millis(250)))
        .with(retry(3).build().unwrap())
        .build();
    let (result, report) = send(client.get(server.url())).await;
    let error = result.unwrap_err();
    let is_over = matches!(Rejection::find(&error), Some(Rejection::DeadlineExceeded { .. }));
    assert!(is_over, "{error:?}");
    assert_eq!((report, server.hits()), ((1, StopReason::Unfinished), 1));
    assert_eq!(timeout(SOON, closed.recv()).await, Ok(Some(())));
}

#[tokio::test]
async fn f45_a_wait_that_cannot_fit_the_deadline_is_not_begun() {
    let server = Server::start(|conversation: Conversation| {
        conversation.send("HTTP/1.1 503 Status\r\nretry-after: 10\r\ncontent-length: 6\r\n\r\nbusy\r\n")
    })
    .await;
    let client = ClientBuilder::new(plain_client())
        .with(Deadline::after(Duration::from_secs(3)))
        .with(retry(3).build().unwrap())
        .build();
    let begun = Instant::now();
    let (result, report) = send(client.get(server.url())).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(result.unwrap().text().await.unwrap(), "busy\r\n");
    assert_eq!((report, server.hits()), ((1, StopReason::Deadline), 1));
}

/// Fails with 10 bytes, at the end of a redirect. In HTTP/1.0: a response made anew would be of 1.1.
async fn redirecting() -> Server {
    Server::start(|conversation: Conversation| async {
        let answer = if conversation.request.starts_with("GET /start ") {
            "HTTP/1.0 302 Status\r\nlocation: /end?page=1\r\ncontent-length: 0\r\n\r\n"
        } else {
            "HTTP/1.0 503 Status\r\nx-trace: a\r\nx-trace: b\r\ncontent-length: 10\r\n\r\n0123456789"
        };
        conversation.send(answer).await;
        None
    })
    .await
}

#[tokio::test]
async fn f74_an_answer_that_is_handed_back_after_a_rejection_has_lost_nothing() {
    let server = redirecting().await;
    let numbering = Numbering::default();
    let client = with_breaker(2).with(numbering.clone()).build();
    let (result, report) = send(client.get(server.url() + "start")).await;
    // The third attempt was rejected, so what came back is the second, from its redirect to its last byte.
    assert_eq!((report, server.hits()), ((3, Rejected), 4));
    let response = result.unwrap();
    assert_eq!((response.status().as_u16(), response.version()), (503, Version::HTTP_10));
    assert_eq!(response.url().as_str(), server.url() + "end?page=1");
    let address = response.remote_addr().unwrap();
    assert_eq!(format!("http://{address}/"), server.url());
    let traces: Vec<_> = response.headers().get_all("x-trace").iter().collect();
    assert_eq!(traces, ["a", "b"]);
    assert_eq!(response.extensions().get(), Some(&Number(2)));
    let told = RetryReport::of(&response).unwrap();
    assert_eq!((told.attempts, told.stopped), report);
    assert_eq!(response.content_length(), Some(10));
    assert_eq!(response.text().await.unwrap(), "0123456789");
}

#[tokio::test]
async fn f74_an_answer_whose_body_has_no_end_or_a_broken_one_is_not_handed_back() {
    let broken = Server::start(|conversation: Conversation| async {
        conversation.send("HTTP/1.1 503 Status\r\ncontent-length: 10\r\n\r\n01234567").await;
        None
    })
    .await;
    for server in [broken, Endless::Silence.start(usize::MAX).await, Endless::Flood.start(usize::MAX).await] {
        let (result, report) = send(with_breaker(2).build().get(server.url())).await;
        let error = result.unwrap_err();
        assert!(matches!(Rejection::find(&error), Some(Rejection::CircuitOpen { .. })), "{error:?}");
        assert_eq!((report, server.hits()), ((3, Rejected), 2));
    }
}

#[cfg(feature = "reqwest-retry")]
mod a_program_written_for_reqwest_retry {
    use super::*;
    use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};

    /// What it has always been: this policy, in a chain of which only the layer differs.
    const POLICY: fn() -> ExponentialBackoff = || {
        ExponentialBackoff::builder().retry_bounds(Duration::from_millis(1), WAIT).build_with_max_retries(2)
    };

    fn before() -> (Numbering, ClientWithMiddleware) {
        chain(RetryTransientMiddleware::new_with_policy(POLICY()))
    }

    fn after() -> (Numbering, ClientWithMiddleware) {
        chain(Retry::builder().policy(POLICY()).build().unwrap())
    }

    fn chain(layer: impl Middleware) -> (Numbering, ClientWithMiddleware) {
        let numbering = Numbering::default();
        let client = ClientBuilder::new(plain_client()).with(layer).with(numbering.clone());
        (numbering, client.build())
    }

    #[tokio::test]
    async fn moves_by_one_line_and_its_retries_are_the_same() {
        for (numbering, client) in [before(), after()] {
            let server = Server::start(|conversation: Conversation| async {
                let status = if conversation.number < 2 { 503 } else { 200 };
                conversation.status(status).await
            })
            .await;
            assert_eq!(client.get(server.url()).send().await.unwrap().status(), 200);
            assert_eq!((numbering.0.load(Ordering::SeqCst), server.hits()), (3, 3));
        }
    }

    #[tokio::test]
    async fn then_finds_a_connect_error_to_be_one() {
        for ((numbering, client), is_connect) in [(before(), false), (after(), true)] {
            let error = client.get(DEAD).send().await.unwrap_err();
            assert_eq!(error.is_connect(), is_connect);
            assert_eq!(numbering.0.load(Ordering::SeqCst), 3);
        }
    }

    #[tokio::test]
    async fn then_sends_streams_and_no_post_twice() {
        let server = Server::answering(200).await;
        let upload =
            |client: ClientWithMiddleware| client.post(server.url()).body(streamed(["a", "b"])).send();
        assert!(upload(before().1).await.is_err());
        assert_eq!(upload(after().1).await.unwrap().status(), 200);

        for ((numbering, client), hits) in [(before(), 3), (after(), 1)] {
            let server = Server::answering(502).await;
            assert_eq!(client.post(server.url()).send().await.unwrap().status(), 502);
            assert_eq!((numbering.0.load(Ordering::SeqCst), server.hits()), (hits, hits));
        }
    }
}
