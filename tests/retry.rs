//! What is tried again, when and how often, and what callers are told, over a scripted transport.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use futures::{FutureExt, stream};
use http::{Extensions, HeaderValue};
use reqwest::{Body, Method, Request, Response, ResponseBuilderExt, StatusCode, Url, Version};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next, RequestBuilder};
use reqwest_resilience::{
    AttemptNumber, BypassCircuit, CircuitBreaker, CircuitMode, CircuitState, Deadline, Idempotent,
    MaxRetries, NoRetry, Rejection, Retry, RetryBudget, RetryBuilder, RetryReport, RetryReportHandle,
    StopReason, Trip, Verdict,
};
use retry_policies::{Jitter, RetryDecision, RetryPolicy, policies::ExponentialBackoff};
use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use support::{
    KEY, Log, Look, Reply, Saw, Transport, URL, call, chain, plain_client, refused, saw, stack, state,
    timed_out,
};
use tokio::time::{Instant, advance, sleep, timeout};
use tracing::Level;

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const OTHER: &str = "http://other.example.com/";

/// A retry that no budget holds back.
fn keen() -> RetryBuilder {
    Retry::builder().budget(RetryBudget::unlimited())
}

/// A budget that hands out so many tokens and never another one.
fn tokens(count: u32) -> RetryBudget {
    RetryBudget::builder()
        .ratio(0.0)
        .min_per_second(count)
        .window(SECOND)
        .clock(reqwest_resilience::ManualClock::new())
        .build()
        .unwrap()
}

fn breaker(consecutive: u32) -> CircuitBreaker {
    CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(consecutive)))
        .build()
        .unwrap()
}

/// `retry → transport`.
fn through(retry: RetryBuilder, transport: &Transport) -> ClientWithMiddleware {
    stack([Arc::new(retry.build().unwrap())], transport)
}

/// `retry → breaker → transport`.
fn guarded(retry: RetryBuilder, breaker: &CircuitBreaker, transport: &Transport) -> ClientWithMiddleware {
    stack([Arc::new(retry.build().unwrap()), Arc::new(breaker.clone())], transport)
}

/// `deadline → retry → transport`.
fn hurried(limit: Duration, retry: RetryBuilder, transport: &Transport) -> ClientWithMiddleware {
    let deadline = Deadline::after(limit);
    stack([Arc::new(deadline), Arc::new(retry.build().unwrap())], transport)
}

/// A policy as users of reqwest-retry have them: so many retries, each after the same wait.
struct Fixed(u32, Duration);

impl RetryPolicy for Fixed {
    fn should_retry(&self, _: SystemTime, past: u32) -> RetryDecision {
        if self.0 <= past {
            return RetryDecision::DoNotRetry;
        }
        RetryDecision::Retry { execute_after: SystemTime::now() + self.1 }
    }
}

/// A policy that wants every retry at one and the same moment, and has never enough.
struct At(SystemTime);

impl RetryPolicy for At {
    fn should_retry(&self, _: SystemTime, _: u32) -> RetryDecision {
        RetryDecision::Retry { execute_after: self.0 }
    }
}

/// A body that can be sent once: so many bytes after so long.
fn streaming(after: Duration, bytes: usize) -> Body {
    let chunk = async move {
        sleep(after).await;
        std::io::Result::Ok(vec![b'x'; bytes])
    };
    Body::wrap_stream(stream::once(chunk))
}

fn once() -> Body {
    streaming(Duration::ZERO, 1)
}

fn answer(body: Body) -> Reply {
    Reply::Response(http::Response::builder().status(503).body(body).unwrap().into())
}

fn told(handle: &RetryReportHandle) -> (u32, StopReason) {
    (handle.get().attempts, handle.get().stopped)
}

fn reported(response: &Response) -> Option<(u32, StopReason)> {
    RetryReport::of(response).map(|report| (report.attempts, report.stopped))
}

/// Sends a request; what its caller saw, how many attempts were made, and why there were no more.
async fn tell(request: RequestBuilder) -> (Saw, (u32, StopReason)) {
    let handle = RetryReportHandle::new();
    let result = request.with_extension(handle.clone()).send().await;
    if let Ok(response) = &result {
        // Absent means one attempt; else response and handle tell the same.
        let reported = reported(response).unwrap_or((1, StopReason::Settled));
        assert_eq!(reported, told(&handle));
    }
    (saw(&result), told(&handle))
}

fn strings<T: ToString>(items: impl IntoIterator<Item = T>) -> Vec<String> {
    items.into_iter().map(|item| item.to_string()).collect()
}

// What can be set.

#[test]
fn f21_a_setting_that_cannot_be_is_an_error_that_names_field_and_value() {
    let backoff = |min, max| Retry::builder().backoff(min, max);
    let statuses = |statuses: &[u16]| Retry::builder().statuses(statuses.iter().copied());
    for (retry, field, value) in [
        (backoff(2 * SECOND, SECOND), "backoff", "2s to 1s"),
        (backoff(MILLI, Duration::ZERO), "backoff", "1ms to 0ns"),
        (statuses(&[503, 99]), "statuses", "99"),
        (statuses(&[1000, 503]), "statuses", "1000"),
        (statuses(&[0]), "statuses", "0"),
        (statuses(&[u16::MAX]), "statuses", "65535"),
    ] {
        let error = retry.build().expect_err(field);
        assert_eq!((error.field(), error.value()), (field, value));
        assert_eq!(error.to_string(), format!("{field} = {value}: {}", error.rule()));
    }
}

#[tokio::test(start_paused = true)]
async fn extreme_settings_that_can_be_work() {
    let at_once = || keen().backoff(Duration::ZERO, Duration::ZERO);
    let failing = || Transport::answering(200).then((0..500).map(|_| Reply::Status(503)));
    let expected = (Saw::Status(200), (501, StopReason::Settled));
    let request = through(at_once().max_retries(u32::MAX), &failing()).get(URL);
    assert_eq!(tell(request).await, expected);
    let request = through(at_once(), &failing()).get(URL);
    assert_eq!(tell(request.with_extension(MaxRetries(u32::MAX))).await, expected);
    // The doubling stops where it has to.
    let request = through(keen().max_retries(500).backoff(MILLI, SECOND), &failing()).get(URL);
    assert_eq!(tell(request).await, expected);

    let transport = Transport::answering(100);
    call(&through(at_once().statuses(100..=999), &transport), URL).await;
    assert_eq!(transport.hits(), 3);

    let longest = || keen().backoff(Duration::MAX, Duration::MAX);
    let call = through(longest(), &Transport::answering(503)).get(URL).send();
    assert!(timeout(SECOND, call).await.is_err());
    let request = hurried(SECOND, longest(), &Transport::answering(503)).get(URL);
    assert_eq!(tell(request).await, (Saw::Status(503), (1, StopReason::Deadline)));
}

// Whether there is a retry.

/// Seven questions stand between an attempt and the next. In each round one more of them is answered with
/// yes, and all the others with no.
#[tokio::test(start_paused = true)]
async fn the_first_question_answered_with_no_ends_the_series_and_says_so() {
    let rounds = [
        (StopReason::Settled, None),
        (StopReason::UnsafeMethod, None),
        (StopReason::StreamingBody, Some("retry.streaming_refused")),
        (StopReason::Attempts, Some("retry.giving_up")),
        (StopReason::RetryAfter, Some("retry.giving_up")),
        (StopReason::Deadline, Some("retry.giving_up")),
        (StopReason::Budget, Some("retry.budget_refused")),
    ];
    for (yes, (reason, event)) in rounds.into_iter().enumerate() {
        let is_yes: [bool; 6] = std::array::from_fn(|question| question < yes);
        let status = if is_yes[0] { 503 } else { 404 };
        let method = if is_yes[1] { Method::PUT } else { Method::POST };
        let body = if is_yes[2] { "often".into() } else { once() };
        let retries = if is_yes[3] { 2 } else { 0 };
        let retry_after = if is_yes[4] { "30" } else { "3600" };
        let limit = if is_yes[5] { HOUR } else { SECOND };

        let transport = Transport::answering(200).then([Reply::Header(status, "retry-after", retry_after)]);
        let retry = Retry::builder().policy(Fixed(retries, MILLI)).budget(tokens(0));
        let client = hurried(limit, retry, &transport);
        let log = Log::listen();
        let request = client.request(method, URL).body(body);
        assert_eq!(tell(request).await, (Saw::Status(status), (1, reason)));
        assert_eq!(log.events(), strings(event), "{reason}");
        assert_eq!(transport.hits(), 1);
    }
}

/// However retries are forbidden: attempts are counted after the body was looked at.
#[tokio::test(start_paused = true)]
async fn a_stream_is_what_is_told_of_first_also_where_no_retry_is_allowed() {
    let transport = Transport::answering(503);
    let put = |retry: RetryBuilder| through(retry, &transport).put(URL).body(once());
    let requests = [
        put(keen().policy(Fixed(0, MILLI))),
        put(keen().max_retries(0)),
        put(keen()).with_extension(MaxRetries(0)),
        put(keen()).with_extension(NoRetry),
    ];
    for request in requests {
        assert_eq!(tell(request).await, (Saw::Status(503), (1, StopReason::StreamingBody)));
    }
}

#[tokio::test(start_paused = true)]
async fn f47_seven_statuses_are_retried_and_no_others() {
    let retried = [408, 425, 429, 500, 502, 503, 504];
    for status in (400..=451).chain(500..=511).chain([200, 204, 301, 304, 599, 999]) {
        let transport = Transport::answering(status);
        assert_eq!(call(&through(keen(), &transport), URL).await, Saw::Status(status));
        let hits = if retried.contains(&status) { 3 } else { 1 };
        assert_eq!(transport.hits(), hits, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn statuses_of_ones_own_replace_the_seven_and_errors_are_retried_as_ever() {
    for (statuses, status, hits) in [(vec![404], 404, 3), (vec![404], 503, 1), (vec![], 503, 1)] {
        let retry = || keen().statuses(statuses.clone());
        let transport = Transport::answering(status);
        call(&through(retry(), &transport), URL).await;
        assert_eq!(transport.hits(), hits, "{statuses:?} {status}");
        let transport = Transport::answering(200).then([timed_out().await]);
        assert_eq!(call(&through(retry(), &transport), URL).await, Saw::Status(200));
    }
}

#[tokio::test(start_paused = true)]
async fn only_idempotent_methods_are_retried_unless_the_caller_vouches_for_the_request() {
    let safe = ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"];
    let unsafe_ = ["POST", "PATCH", "CONNECT", "PURGE", "get"];
    let client = through(keen(), &Transport::answering(503));
    for method in safe.iter().chain(&unsafe_) {
        let request = || client.request(method.parse().unwrap(), URL).body("twice");
        let expected =
            if safe.contains(method) { (3, StopReason::Attempts) } else { (1, StopReason::UnsafeMethod) };
        assert_eq!(tell(request()).await.1, expected, "{method}");
        let vouched = [
            request().header("Idempotency-Key", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
            request().header("idempotency-key", ""),
            request().with_extension(Idempotent),
        ];
        for request in vouched {
            assert_eq!(tell(request).await.1, (3, StopReason::Attempts), "{method}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_says_for_itself_how_often_it_may_be_retried() {
    type Say = fn(RequestBuilder) -> RequestBuilder;
    let five: Say = |request| request.with_extension(MaxRetries(5));
    let once_more: Say = |request| request.with_extension(MaxRetries(1));
    let never: Say = |request| request.with_extension(NoRetry);
    // Whichever comes last, the stricter word counts.
    let both: Say = |request| request.with_extension(NoRetry).with_extension(MaxRetries(5));
    let calls = [
        (keen(), (|request| request) as Say, 3),
        (keen(), five, 6),
        (keen(), once_more, 2),
        (keen(), never, 1),
        (keen(), both, 1),
        (keen().max_retries(0), five, 6),
        // A policy of the user's may want fewer.
        (keen().policy(Fixed(2, MILLI)), five, 3),
        (keen().policy(Fixed(9, MILLI)), five, 6),
        (keen().policy(Fixed(9, MILLI)), never, 1),
    ];
    for (retry, say, attempts) in calls {
        let transport = Transport::answering(503);
        let request = say(through(retry, &transport).get(URL));
        assert_eq!(tell(request).await, (Saw::Status(503), (attempts, StopReason::Attempts)));
        assert_eq!(transport.hits(), attempts as usize);
    }
}

#[tokio::test(start_paused = true)]
async fn f35_a_post_is_sent_once_unless_its_connect_error_can_be_trusted() {
    for trust in [false, true] {
        for (reply, is_retried) in
            [(Reply::Status(502), false), (timed_out().await, false), (refused().await, trust)]
        {
            let transport = Transport::answering(200).then([reply]);
            let client = through(keen().trust_connect_errors(trust), &transport);
            let expected = if is_retried { (2, StopReason::Settled) } else { (1, StopReason::UnsafeMethod) };
            assert_eq!(tell(client.post(URL).body("an order")).await.1, expected);
            assert_eq!(transport.hits(), expected.0 as usize);
            assert_eq!(transport.seen().pop().unwrap().body, Some("an order".into()));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn f46_a_request_that_cannot_be_built_is_neither_retried_nor_charged_to_the_circuit() {
    let breaker = breaker(1);
    let transport = Transport::answering(200).then((0..20).map(|_| Reply::BuilderError));
    let client = guarded(keen(), &breaker, &transport);
    for _ in 0..20 {
        assert_eq!(tell(client.get(URL)).await, (Saw::Error, (1, StopReason::Settled)));
    }
    assert_eq!(transport.hits(), 20);
    // Reqwest itself refuses an unknown scheme before it touches the network.
    let client =
        ClientBuilder::new(plain_client()).with(keen().build().unwrap()).with(breaker.clone()).build();
    for _ in 0..20 {
        let told = tell(client.get("gopher://api.example.com:80/")).await;
        assert_eq!(told, (Saw::Error, (1, StopReason::Settled)));
    }
    assert_eq!(state(&breaker, KEY), CircuitState::Closed);
    assert_eq!(state(&breaker, "gopher://api.example.com:80"), CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_another_middleware_is_not_retried_and_stays_what_it_is() {
    let transport = Transport::answering(200).then([Reply::ForeignError]);
    let error = through(keen(), &transport).get(URL).send().await.unwrap_err();
    assert_eq!(error.to_string(), "token service unavailable");
    assert_eq!(transport.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_rule_of_ones_own_decides_on_outcomes_and_on_nothing_else() {
    let unless_200 = || {
        keen().retry_if(|attempt| match attempt.result() {
            Ok(response) => response.status() != StatusCode::OK,
            Err(_) => true,
        })
    };
    let calls = [
        (unless_200(), Method::GET, Reply::Status(404), 2),
        (unless_200(), Method::GET, Reply::ForeignError, 2),
        (unless_200(), Method::GET, Reply::BuilderError, 2),
        (unless_200(), Method::POST, Reply::Status(404), 1),
        (unless_200().max_retries(0), Method::GET, Reply::Status(404), 1),
        (keen().retry_if(|_| false), Method::GET, Reply::Status(503), 1),
    ];
    for (retry, method, reply, hits) in calls {
        let what = format!("{method} {reply:?}");
        let transport = Transport::answering(200).then([reply]);
        let _ = through(retry, &transport).request(method, URL).send().await;
        assert_eq!(transport.hits(), hits, "{what}");
    }
    let breaker = breaker(5);
    breaker.set_mode(KEY, CircuitMode::ForcedOpen).unwrap();
    let client = guarded(unless_200(), &breaker, &Transport::answering(200));
    assert_eq!(tell(client.get(URL)).await, (Saw::Rejected, (1, StopReason::Rejected)));
}

#[tokio::test(start_paused = true)]
async fn a_rule_sees_the_method_the_time_and_what_would_be_done_without_it() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let retry = keen().retry_if(move |attempt| {
        let note = (attempt.method().clone(), attempt.elapsed(), attempt.default_verdict());
        notes.lock().unwrap().push(note);
        attempt.default_verdict() == Verdict::Failure
    });
    let attempts = [
        (250 * MILLI, 429, Verdict::Failure),
        (10 * MILLI, 503, Verdict::Failure),
        (70 * MILLI, 501, Verdict::Success),
    ];
    let transport =
        Transport::answering(200).then(attempts.map(|(late, status, _)| Reply::Late(late, status)));
    let request = through(retry, &transport).put(URL);
    assert_eq!(tell(request).await, (Saw::Status(501), (3, StopReason::Settled)));
    assert_eq!(*seen.lock().unwrap(), attempts.map(|(late, _, verdict)| (Method::PUT, late, verdict)));
}

// What is sent, and when.

#[tokio::test(start_paused = true)]
async fn f34_every_attempt_sends_the_same_request() {
    let body: Vec<u8> = (0..=u8::MAX).cycle().take(100_000).collect();
    let transport = Transport::answering(200).then([Reply::Status(503), Reply::Status(503)]);
    let client = through(keen(), &transport);
    let request = client.put(URL).header("x-order", "7").body(body.clone());
    assert_eq!(tell(request).await, (Saw::Status(200), (3, StopReason::Settled)));
    for seen in transport.seen() {
        assert_eq!((seen.method, seen.url.as_str()), (Method::PUT, URL));
        assert_eq!(seen.headers.get("x-order"), Some(&HeaderValue::from_static("7")));
        assert!(seen.body.as_ref() == Some(&body));
    }
}

#[tokio::test(start_paused = true)]
async fn f33_a_streaming_body_is_sent_once_and_the_answer_is_the_callers() {
    let log = Log::listen();
    for (method, reason) in
        [(Method::POST, StopReason::UnsafeMethod), (Method::PUT, StopReason::StreamingBody)]
    {
        for (reply, saw, reason) in [
            (Reply::Status(200), Saw::Status(200), StopReason::Settled),
            (Reply::Status(503), Saw::Status(503), reason),
            (refused().await, Saw::Error, reason),
        ] {
            let transport = Transport::answering(200).then([reply]);
            let client = through(keen(), &transport);
            let request = client.request(method.clone(), URL).body(once());
            assert_eq!(tell(request).await, (saw, (1, reason)));
            assert_eq!(transport.seen().len(), 1);
            assert_eq!(transport.seen()[0].body, None);
        }
    }
    // The stream was in the way of two PUTs alone.
    assert_eq!(log.events(), ["retry.streaming_refused"; 2]);

    let transport = Transport::answering(200).then([refused().await]);
    let client = through(keen().trust_connect_errors(true), &transport);
    let error = client.post(URL).body(once()).send().await.unwrap_err();
    assert!(error.is_connect(), "{error:?}");
    assert_eq!(log.events(), ["retry.streaming_refused"; 3]);
}

#[tokio::test(start_paused = true)]
async fn the_longest_wait_doubles_up_to_its_maximum_and_any_shorter_one_may_be_drawn() {
    let longest = [100, 200, 350, 350].map(|millis| millis * MILLI);
    let transport = Transport::answering(503);
    let client = through(keen().max_retries(4).backoff(longest[0], longest[3]), &transport);
    for _ in 0..100 {
        call(&client, URL).await;
    }
    // From one call to the next no time goes by.
    let gaps = transport.gaps();
    for (n, longest) in longest.into_iter().enumerate() {
        let waits = || gaps.iter().copied().skip(n).step_by(5);
        assert!(waits().all(|wait| MILLI <= wait && wait <= longest));
        assert!(waits().any(|wait| wait < longest / 4));
        assert!(waits().any(|wait| longest * 3 / 4 < wait));
    }
}

#[tokio::test(start_paused = true)]
async fn f66_a_retry_is_logged_before_its_wait_which_is_as_long_as_said() {
    let log = Log::listen();
    let transport = Transport::answering(200).then([Reply::Status(503), timed_out().await]);
    let client = through(keen(), &transport);
    {
        let mut call = pin!(client.get(URL).send());
        assert!(call.as_mut().now_or_never().is_none());
        assert_eq!((transport.hits(), log.events().len()), (1, 1));
        assert_eq!(call.await.unwrap().status(), 200);
    }
    let lines = log.of("retry.scheduled");
    for (line, attempt, reason) in [(&lines[0], "1", "503"), (&lines[1], "2", "timeout")] {
        assert_eq!(line.names(), ["attempt", "delay_ms", "origin", "reason"]);
        assert_eq!((line.level, line.get("origin")), (Level::DEBUG, KEY));
        assert_eq!((line.get("attempt"), line.get("reason")), (attempt, reason));
    }
    // Of whatever length they are drawn: all of them are as long as said.
    transport.answer(503);
    for _ in 0..100 {
        call(&client, URL).await;
    }
    let lines = log.of("retry.scheduled");
    let said = lines.iter().map(|line| line.get("delay_ms"));
    let gaps = transport.gaps();
    let waited = gaps.iter().filter(|gap| !gap.is_zero()).map(Duration::as_millis);
    assert_eq!(strings(said), strings(waited));
    assert_eq!(lines.len(), 202);

    // No token, no word of a retry.
    let log = Log::listen();
    call(&through(Retry::builder().budget(tokens(0)), &transport), URL).await;
    assert_eq!(log.events(), ["retry.budget_refused"]);
}

#[tokio::test(start_paused = true)]
async fn a_policy_written_for_reqwest_retry_carries_over() {
    let policy = ExponentialBackoff::builder()
        .retry_bounds(SECOND, 4 * SECOND)
        .jitter(Jitter::None)
        .build_with_max_retries(4);
    let transport = Transport::answering(503);
    let request = through(keen().policy(policy), &transport).get(URL);
    assert_eq!(tell(request).await.1, (5, StopReason::Attempts));
    for (gap, seconds) in transport.gaps().into_iter().zip([1, 2, 4, 4]) {
        // Policies name a moment of the system's time, which a paused runtime cannot stop.
        let wait = seconds * SECOND;
        assert!(wait < gap + SECOND / 2 && gap <= wait, "{gap:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_is_told_when_the_call_began_and_of_the_retries_so_far() {
    struct Asked(Arc<Mutex<Vec<(SystemTime, u32)>>>);

    impl RetryPolicy for Asked {
        fn should_retry(&self, begun: SystemTime, past: u32) -> RetryDecision {
            self.0.lock().unwrap().push((begun, past));
            Fixed(2, MILLI).should_retry(begun, past)
        }
    }

    let asked = Arc::default();
    let client = through(keen().policy(Asked(Arc::clone(&asked))), &Transport::answering(503));
    let before = SystemTime::now();
    call(&client, URL).await;
    let asked = asked.lock().unwrap();
    let begun = asked[0].0;
    assert!(before <= begun && begun <= SystemTime::now());
    assert_eq!(*asked, [0, 1, 2].map(|past| (begun, past)));
}

#[tokio::test(start_paused = true)]
async fn a_policy_whose_waits_are_always_over_makes_no_call_spin_nor_miss_its_deadline() {
    let transport = Transport::answering(503);
    let request = through(keen().policy(At(UNIX_EPOCH)), &transport).get(URL);
    let (_, told) = tell(request.with_extension(MaxRetries(1_000))).await;
    assert_eq!(told, (1_001, StopReason::Attempts));
    assert_eq!(transport.gaps(), [MILLI; 1_000]);
    // One that never has enough.
    let request = hurried(100 * MILLI, keen().policy(At(UNIX_EPOCH)), &transport).get(URL);
    assert_eq!(tell(request).await, (Saw::Status(503), (100, StopReason::Deadline)));
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_waits_for_ages_lets_the_call_sleep_or_end_at_its_deadline() {
    let ages = [
        UNIX_EPOCH.checked_add(100_000 * DAY),
        UNIX_EPOCH.checked_add(Duration::from_secs(i64::MAX.unsigned_abs())),
    ];
    for then in ages.into_iter().flatten() {
        let transport = Transport::answering(503);
        let client = through(keen().policy(At(then)), &transport);
        assert!(timeout(DAY, client.get(URL).send()).await.is_err());
        assert_eq!(transport.hits(), 1);
        let client = hurried(DAY, keen().policy(At(then)), &transport);
        assert_eq!(tell(client.get(URL)).await, (Saw::Status(503), (1, StopReason::Deadline)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_a_policy_unwinds_its_call_alone() {
    struct Panics;

    impl RetryPolicy for Panics {
        fn should_retry(&self, _: SystemTime, _: u32) -> RetryDecision {
            panic!("the policy was told to panic")
        }
    }

    let transport = Transport::answering(200).then([Reply::Status(503)]);
    let client = through(keen().policy(Panics), &transport);
    let handle = RetryReportHandle::new();
    let request = client.get(URL).with_extension(handle.clone()).send();
    assert!(AssertUnwindSafe(request).catch_unwind().await.is_err());
    assert_eq!(told(&handle), (1, StopReason::Unfinished));
    assert_eq!(tell(client.get(URL)).await, (Saw::Status(200), (1, StopReason::Settled)));
}

/// The wait before the retry of one answer with these headers `Retry-After`; none where it ends the series.
async fn wait_after(retry: RetryBuilder, retry_after: &[&[u8]]) -> Option<Duration> {
    let headers = retry_after.iter().map(|value| HeaderValue::from_bytes(value).unwrap());
    let busy = http::Response::builder().status(503);
    let busy = headers.fold(busy, |busy, value| busy.header("retry-after", value));
    let transport = Transport::answering(200).then([Reply::Response(busy.body("").unwrap().into())]);
    let told = tell(through(retry, &transport).get(URL)).await.1;
    let expected = if transport.hits() == 2 { (2, StopReason::Settled) } else { (1, StopReason::RetryAfter) };
    assert_eq!(told, expected);
    transport.gaps().pop()
}

#[tokio::test(start_paused = true)]
async fn the_wait_is_the_longer_of_what_the_policy_and_the_origin_ask_for() {
    let at_once = || keen().backoff(Duration::ZERO, Duration::ZERO);
    assert_eq!(wait_after(at_once(), &[b"3"]).await, Some(3 * SECOND));
    let patient = keen().policy(Fixed(1, 10 * SECOND));
    let wait = wait_after(patient, &[b"3"]).await.unwrap();
    assert!(9 * SECOND < wait && wait <= 10 * SECOND, "{wait:?}");
    let date = httpdate::fmt_http_date(SystemTime::now() + 30 * SECOND);
    let wait = wait_after(at_once(), &[date.as_bytes()]).await.unwrap();
    assert!(27 * SECOND < wait && wait <= 30 * SECOND, "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn an_origin_that_asks_for_too_long_a_wait_ends_the_series() {
    let at_once = || keen().backoff(Duration::ZERO, Duration::ZERO);
    assert_eq!(wait_after(at_once(), &[b"60"]).await, Some(60 * SECOND));
    for too_long in ["61", "99999999999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"] {
        assert_eq!(wait_after(at_once(), &[too_long.as_bytes()]).await, None, "{too_long}");
    }
    let none = || at_once().max_retry_after(Duration::ZERO);
    assert_eq!(wait_after(none(), &[b"1"]).await, None);
    assert_eq!(wait_after(none(), &[b"0"]).await, Some(MILLI));
    let any = at_once().max_retry_after(Duration::MAX);
    let ages: [&[u8]; 1] = [b"99999999999999999999999999"];
    assert!(timeout(DAY, wait_after(any, &ages)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_that_is_past_malformed_or_repeated_asks_for_no_wait() {
    let values: [&[&[u8]]; 12] = [
        &[b"0"],
        &[b"Sun, 06 Nov 1994 08:49:37 GMT"],
        &[b"Sunday, 06-Nov-94 08:49:37 GMT"],
        &[b"Sun Nov  6 08:49:37 1994"],
        &[b"-5"],
        &[b"+5"],
        &[b"5.0"],
        &[b"5s"],
        &[b""],
        &[b"\xff\x80"],
        &[b"5", b"5"],
        &[b"5", b"soon"],
    ];
    for value in values {
        let retry = keen().backoff(Duration::ZERO, Duration::ZERO);
        assert_eq!(wait_after(retry, value).await, Some(MILLI), "{value:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn f45_a_hanging_origin_is_tried_as_often_as_attempts_and_deadline_allow() {
    let retry = || Arc::new(keen().policy(Fixed(3, 20 * MILLI)).build().unwrap());
    let within = |millis| Arc::new(Deadline::after(millis * MILLI));
    let hanging = || Transport::answering(200).then((0..9).map(|_| Reply::Hang));

    let transport = hanging();
    let client = stack([retry(), within(100)], &transport);
    assert_eq!(tell(client.get(URL)).await, (Saw::Rejected, (4, StopReason::Attempts)));
    assert_eq!(transport.hits(), 4);

    let transport = hanging();
    let client = stack([within(250), retry(), within(100)], &transport);
    let begun = Instant::now();
    let error = client.get(URL).send().await.unwrap_err();
    let Some(Rejection::DeadlineExceeded { limit, .. }) = Rejection::find(&error) else {
        panic!("{error:?}");
    };
    assert_eq!((*limit, begun.elapsed()), (250 * MILLI, 250 * MILLI));
    assert_eq!(transport.hits(), 3);

    let transport = Transport::answering(200).then([Reply::Header(503, "retry-after", "10")]);
    let client = stack([within(250), retry(), within(100)], &transport);
    let begun = Instant::now();
    assert_eq!(tell(client.get(URL)).await, (Saw::Status(503), (1, StopReason::Deadline)));
    assert_eq!((transport.hits(), begun.elapsed()), (1, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_in_its_wait_sends_nothing_more() {
    let transport = Transport::answering(503);
    let client = through(keen().policy(Fixed(2, SECOND)), &transport);
    assert!(timeout(SECOND / 2, client.get(URL).send()).await.is_err());
    advance(HOUR).await;
    assert_eq!(transport.hits(), 1);
}

// What comes back.

#[tokio::test(start_paused = true)]
async fn f38_the_last_answer_is_the_one_that_the_caller_gets() {
    let answers = ["A", "B", "C"].map(|body| Reply::Body(503, body));
    let transport = Transport::answering(200).then(answers);
    let response = through(keen(), &transport).get(URL).send().await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(reported(&response), Some((3, StopReason::Attempts)));
    assert_eq!(response.text().await.unwrap(), "C");
}

#[tokio::test(start_paused = true)]
async fn f41_a_retry_in_a_retry_multiplies_attempts_unless_they_share_a_budget() {
    for (budget, attempts, stopped) in
        [(RetryBudget::unlimited(), 9, StopReason::Attempts), (tokens(2), 3, StopReason::Budget)]
    {
        let transport = Transport::answering(200);
        for _ in 0..9 {
            transport.script([refused().await]);
        }
        let retry = || Arc::new(Retry::builder().budget(budget.clone()).build().unwrap());
        let client = stack([retry(), retry()], &transport);
        let handle = RetryReportHandle::new();
        let error = client.get(URL).with_extension(handle.clone()).send().await.unwrap_err();
        assert!(error.is_connect(), "{error:?}");
        assert_eq!(told(&handle), (attempts, stopped));
        assert_eq!(transport.hits(), attempts as usize);
    }
}

#[tokio::test(start_paused = true)]
async fn f42_a_call_that_is_rejected_neither_sleeps_nor_takes_a_token() {
    let breaker = breaker(1);
    let transport = Transport::answering(503);
    call(&chain(&breaker, &transport), URL).await;
    let client = guarded(Retry::builder().budget(tokens(1)), &breaker, &transport);
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(tell(client.get(URL)).await, (Saw::Rejected, (1, StopReason::Rejected)));
    }
    assert_eq!((transport.hits(), begun.elapsed()), (1, Duration::ZERO));
    // The one token is still there.
    let request = client.get(URL).with_extension(BypassCircuit);
    assert_eq!(tell(request).await.1, (2, StopReason::Budget));
}

#[tokio::test(start_paused = true)]
async fn f43_a_circuit_that_opens_during_a_series_ends_it_with_the_last_real_answer() {
    let transport = Transport::answering(200).then(["A", "B"].map(|body| Reply::Body(503, body)));
    let response = guarded(keen(), &breaker(2), &transport).get(URL).send().await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(reported(&response), Some((3, StopReason::Rejected)));
    assert_eq!(response.text().await.unwrap(), "B");
    assert_eq!(transport.hits(), 2);

    let transport = Transport::answering(200).then([refused().await]);
    let client = guarded(keen(), &breaker(1), &transport);
    let error = client.get(URL).send().await.unwrap_err();
    assert!(error.is_connect(), "{error:?}");
    assert_eq!(transport.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn f44_a_breaker_inside_counts_attempts_and_one_outside_counts_calls() {
    let transport = Transport::answering(503);
    let inside = breaker(3);
    call(&guarded(keen(), &inside, &transport), URL).await;
    assert_eq!(state(&inside, KEY), CircuitState::Open);

    let outside = breaker(3);
    let retry = keen().build().unwrap();
    let client = stack([Arc::new(outside.clone()), Arc::new(retry)], &transport);
    for _ in 0..3 {
        assert_eq!(state_or_closed(&outside), CircuitState::Closed);
        call(&client, URL).await;
    }
    assert_eq!(state(&outside, KEY), CircuitState::Open);
}

fn state_or_closed(breaker: &CircuitBreaker) -> CircuitState {
    breaker.snapshot(KEY).map_or(CircuitState::Closed, |circuit| circuit.state)
}

/// What a caller gets when the circuit opened between this answer and its retry.
async fn after_rejection(answer: Reply) -> reqwest_middleware::Result<Response> {
    let transport = Transport::answering(200).then([answer]);
    let retry = keen().policy(Fixed(1, SECOND));
    guarded(retry, &breaker(1), &transport).get(URL).send().await
}

#[tokio::test(start_paused = true)]
async fn f74_an_answer_that_was_read_whole_outlives_the_rejection_and_another_does_not() {
    let transport = Transport::answering(200).then(["0123456789"; 2].map(|body| Reply::Body(503, body)));
    let client = guarded(keen().max_retries(5), &breaker(2), &transport);
    let response = client.get(URL).send().await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(response.text().await.unwrap(), "0123456789");

    let transport = Transport::answering(200).then([Reply::Body(503, "0123456789"), Reply::Endless(503)]);
    let client = guarded(keen().max_retries(5), &breaker(2), &transport);
    assert_eq!(tell(client.get(URL)).await, (Saw::Rejected, (3, StopReason::Rejected)));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_read_up_to_64_kib_and_50_ms_and_not_beyond() {
    for (body, is_kept) in [
        (streaming(Duration::ZERO, 64 * 1024), true),
        (streaming(Duration::ZERO, 64 * 1024 + 1), false),
        (streaming(49 * MILLI, 1), true),
        (streaming(51 * MILLI, 1), false),
    ] {
        let saw = saw(&after_rejection(answer(body)).await);
        assert_eq!(saw, if is_kept { Saw::Status(503) } else { Saw::Rejected });
    }
    let half = || std::io::Result::Ok(vec![b'x'; 40 * 1024]);
    let halves = Body::wrap_stream(stream::iter([half(), half()]));
    assert_eq!(saw(&after_rejection(answer(halves)).await), Saw::Rejected);
    // One that breaks is not the whole answer.
    let broken = stream::iter([half(), Err(std::io::Error::other("reset"))]);
    let broken = Body::wrap_stream(broken);
    assert_eq!(saw(&after_rejection(answer(broken)).await), Saw::Rejected);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_read_is_still_the_same() {
    #[derive(Clone, Debug, PartialEq)]
    struct Mark(u32);

    let url: Url = URL.parse().unwrap();
    let busy = http::Response::builder()
        .status(503)
        .version(Version::HTTP_2)
        .url(url.clone())
        .header("x-request-id", "7")
        .extension(Mark(7))
        .body(streaming(MILLI, 3));
    let response = after_rejection(Reply::Response(busy.unwrap().into())).await.unwrap();
    assert_eq!((response.status().as_u16(), response.version()), (503, Version::HTTP_2));
    assert_eq!(*response.url(), url);
    assert_eq!(response.headers()["x-request-id"], "7");
    assert_eq!(response.extensions().get(), Some(&Mark(7)));
    assert_eq!(response.text().await.unwrap(), "xxx");
}

#[tokio::test(start_paused = true)]
async fn reading_an_answer_takes_none_but_the_time_of_the_wait() {
    let transport = Transport::answering(200).then([answer(streaming(40 * MILLI, 1))]);
    let client = through(keen().policy(Fixed(1, SECOND)), &transport);
    let log = Log::listen();
    call(&client, URL).await;
    let said = log.of("retry.scheduled")[0].get("delay_ms").to_owned();
    assert_eq!(transport.gaps()[0].as_millis().to_string(), said);

    let transport = Transport::answering(200).then([Reply::Endless(503)]);
    call(&through(keen().policy(Fixed(1, 20 * MILLI)), &transport), URL).await;
    assert!(transport.gaps()[0] <= 50 * MILLI);
}

/// There was time for the wait and for the retry.
#[tokio::test(start_paused = true)]
async fn reading_an_answer_does_not_make_a_retry_miss_its_deadline() {
    let transport = Transport::answering(200).then([Reply::Endless(503), Reply::Late(10 * MILLI, 200)]);
    let client = hurried(40 * MILLI, keen().policy(Fixed(1, 20 * MILLI)), &transport);
    assert_eq!(tell(client.get(URL)).await, (Saw::Status(200), (2, StopReason::Settled)));
}

// What is told.

#[tokio::test(start_paused = true)]
async fn a_first_attempt_that_calls_for_no_retry_writes_nothing() {
    let left = Arc::new(Mutex::new(None));
    let note = Arc::clone(&left);
    let look =
        Look(|_| {}, move |extensions| *note.lock().unwrap() = extensions.get::<RetryReport>().copied());
    let transport = Transport::answering(200).then([Reply::Status(404)]);
    let client = stack([Arc::new(look), Arc::new(keen().build().unwrap())], &transport);
    for _ in 0..2 {
        let response = client.get(URL).send().await.unwrap();
        assert_eq!((RetryReport::of(&response), *left.lock().unwrap()), (None, None));
    }
    transport.script([Reply::Status(503)]);
    let response = client.get(URL).send().await.unwrap();
    let report = RetryReport::of(&response).unwrap();
    assert_eq!((report.attempts, report.stopped), (2, StopReason::Settled));
    assert_eq!(*left.lock().unwrap(), Some(report));
}

#[tokio::test(start_paused = true)]
async fn an_outer_retry_sums_what_inner_ones_report() {
    let once = || Arc::new(keen().max_retries(1).build().unwrap());
    for (failures, expected) in [
        (0, (Saw::Status(200), (1, StopReason::Settled))),
        (1, (Saw::Status(200), (2, StopReason::Settled))),
        (2, (Saw::Status(200), (3, StopReason::Settled))),
        (3, (Saw::Status(200), (4, StopReason::Settled))),
        (4, (Saw::Status(503), (4, StopReason::Attempts))),
    ] {
        let transport = Transport::answering(200).then((0..failures).map(|_| Reply::Status(503)));
        let client = stack([once(), once()], &transport);
        assert_eq!(tell(client.get(URL)).await, expected);
    }
}

/// Sends every request twice, with one and the same map, as reqwest-retry does.
struct Twice;

#[async_trait::async_trait]
impl Middleware for Twice {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let first = request.try_clone().unwrap();
        next.clone().run(first, extensions).await?;
        next.run(request, extensions).await
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_reported_of_a_call_before_is_not_counted_again() {
    let transport = Transport::answering(200).then([Reply::Status(503)]);
    let client = stack([Arc::new(Twice), Arc::new(keen().build().unwrap())], &transport);
    let response = client.get(URL).send().await.unwrap();
    assert_eq!(transport.hits(), 3);
    assert_eq!(reported(&response), None);
}

#[tokio::test(start_paused = true)]
async fn a_handle_is_up_to_date_at_every_attempt_and_after_every_end() {
    let handle = RetryReportHandle::new();
    assert_eq!(told(&handle), (0, StopReason::Unfinished));
    let (seen, notes) = (handle.clone(), Arc::new(Mutex::new(Vec::new())));
    let during = Arc::clone(&notes);
    let look = Look(move |_| during.lock().unwrap().push(told(&seen)), |_| {});
    let transport = Transport::answering(200);
    let once = || Arc::new(keen().max_retries(1).build().unwrap());
    let client = stack([once(), once(), Arc::new(look)], &transport);
    let send = || client.get(URL).with_extension(handle.clone()).send();

    // An error, after two series of two.
    for _ in 0..4 {
        transport.script([timed_out().await]);
    }
    assert!(send().await.is_err());
    assert_eq!(*notes.lock().unwrap(), [1, 2, 3, 4].map(|n| (n, StopReason::Unfinished)));
    assert_eq!(told(&handle), (4, StopReason::Attempts));
    // An error that ends the first attempt.
    transport.script([Reply::BuilderError]);
    assert!(send().await.is_err());
    assert_eq!(told(&handle), (1, StopReason::Settled));
    // Dropped in a wait, then in an attempt.
    for (second, patience, attempts) in [(Reply::Status(200), SECOND / 2, 1), (Reply::Hang, 2 * SECOND, 2)] {
        let transport = Transport::answering(200).then([Reply::Status(503), second]);
        let client = through(keen().policy(Fixed(1, SECOND)), &transport);
        let send = client.get(URL).with_extension(handle.clone()).send();
        assert!(timeout(patience, send).await.is_err());
        assert_eq!(told(&handle), (attempts, StopReason::Unfinished));
    }
    // And cut off by a layer outside.
    let transport = Transport::answering(200).then([Reply::Status(503), Reply::Hang]);
    let request = hurried(SECOND, keen(), &transport).get(URL);
    assert_eq!(tell(request).await, (Saw::Rejected, (2, StopReason::Unfinished)));
}

#[tokio::test(start_paused = true)]
async fn f76_a_handle_that_is_used_again_tells_of_the_second_call_alone() {
    let handle = RetryReportHandle::new();
    let transport = Transport::answering(503).then([503, 503, 200].map(Reply::Status));
    let client = through(keen().policy(Fixed(2, SECOND)), &transport);
    let send = || client.get(URL).with_extension(handle.clone()).send();
    assert!(send().await.is_ok());
    assert_eq!(told(&handle), (3, StopReason::Settled));
    assert!(timeout(SECOND / 2, send()).await.is_err());
    assert_eq!(told(&handle), (1, StopReason::Unfinished));
    // A third one, after one that was dropped.
    assert!(send().await.is_ok());
    assert_eq!(told(&handle), (3, StopReason::Attempts));
}

#[tokio::test(start_paused = true)]
async fn every_retry_gets_its_own_copy_of_the_extensions_and_the_last_one_is_handed_back() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Mark(u32);

    let notes: [Arc<Mutex<Vec<Option<Mark>>>>; 2] = Default::default();
    let [found, handed_back] = notes.clone();
    let outer = Look(
        |extensions| {
            extensions.insert(Mark(0));
        },
        move |extensions| handed_back.lock().unwrap().push(extensions.get().copied()),
    );
    let inner = Look(
        move |extensions| {
            found.lock().unwrap().push(extensions.remove());
            let number = AttemptNumber::of(extensions).get();
            extensions.insert(Mark(number));
        },
        |_| {},
    );
    let layers: [Arc<dyn Middleware>; 3] =
        [Arc::new(outer), Arc::new(keen().build().unwrap()), Arc::new(inner)];
    call(&stack(layers, &Transport::answering(503)), URL).await;
    let [found, handed_back] = notes.map(|notes| notes.lock().unwrap().clone());
    assert_eq!(found, [Some(Mark(0)); 3]);
    assert_eq!(handed_back, [Some(Mark(3))]);
}

#[tokio::test(start_paused = true)]
async fn a_layer_between_two_retries_is_told_the_attempt_of_the_outer_one() {
    let notes: [Arc<Mutex<Vec<u32>>>; 2] = Default::default();
    let look = |notes: &Arc<Mutex<Vec<u32>>>| {
        let note = |notes: Arc<Mutex<Vec<u32>>>| {
            move |extensions: &mut Extensions| {
                notes.lock().unwrap().push(AttemptNumber::of(extensions).get());
            }
        };
        Arc::new(Look(note(Arc::clone(notes)), note(Arc::clone(notes))))
    };
    let once = || Arc::new(keen().max_retries(1).build().unwrap());
    let transport = Transport::answering(503);
    let layers: [Arc<dyn Middleware>; 4] = [look(&notes[0]), once(), look(&notes[1]), once()];
    call(&stack(layers, &transport), URL).await;
    let numbers: Vec<_> = transport.seen().iter().map(|seen| seen.attempt).collect();
    assert_eq!(numbers, [1, 2, 1, 2]);
    let [outside, between] = notes.map(|notes| notes.lock().unwrap().clone());
    assert_eq!((outside, between), (vec![1, 1], vec![1, 1, 2, 2]));
}

/// Asserts that a call which ends so is reported once a second for each origin, and how.
async fn assert_throttled(
    client: ClientWithMiddleware,
    body: fn() -> Body,
    level: Level,
    event: &str,
    fields: &[(&str, &str)],
) {
    let log = Log::listen();
    let put = |url: &'static str| client.put(url).body(body()).send();
    for _ in 0..5 {
        put(URL).await.unwrap();
    }
    put(OTHER).await.unwrap();
    advance(999 * MILLI).await;
    put(URL).await.unwrap();
    advance(MILLI).await;
    put(URL).await.unwrap();
    put(URL).await.unwrap();
    advance(SECOND).await;
    put(URL).await.unwrap();

    let lines = log.of(event);
    assert_eq!(log.lines(), lines);
    let told = lines.iter().map(|line| (line.get("origin"), line.get("suppressed")));
    let expected = [(KEY, "0"), ("http://other.example.com:80", "0"), (KEY, "5"), (KEY, "1")];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    for line in lines {
        assert_eq!(line.level, level);
        let mut names = vec!["origin", "suppressed"];
        for (name, value) in fields {
            assert_eq!(line.get(name), *value);
            names.push(name);
        }
        names.sort_unstable();
        assert_eq!(line.names(), names);
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_series_is_reported_once_a_second_for_each_origin() {
    let transport = Transport::answering(503);
    let giving_up = |reason| [("attempts", "1"), ("reason", reason)];
    let event = "retry.giving_up";
    let client = through(keen().policy(Fixed(0, MILLI)), &transport);
    assert_throttled(client, Body::default, Level::WARN, event, &giving_up("attempts")).await;
    let client = hurried(SECOND, keen().policy(Fixed(1, HOUR)), &transport);
    assert_throttled(client, Body::default, Level::WARN, event, &giving_up("deadline")).await;
    let attempts = [("attempts", "1")];
    let client = through(Retry::builder().budget(tokens(0)), &transport);
    assert_throttled(client, Body::default, Level::WARN, "retry.budget_refused", &attempts).await;
    let client = through(keen(), &transport);
    assert_throttled(client, once, Level::INFO, "retry.streaming_refused", &attempts).await;

    let transport = Transport::answering(200).then((0..10).map(|_| Reply::Header(503, "retry-after", "61")));
    let client = through(keen(), &transport);
    assert_throttled(client, Body::default, Level::WARN, event, &giving_up("retry_after")).await;
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_event_has_a_second_of_its_own_and_counts_attempts() {
    let log = Log::listen();
    let transport = Transport::answering(503);
    let client = through(Retry::builder().max_retries(1).budget(tokens(1)), &transport);
    for _ in 0..2 {
        call(&client, URL).await;
        client.put(URL).body(once()).send().await.unwrap();
    }
    let lines = log.lines();
    let told = lines.iter().map(|line| (line.event(), line.get("attempts")));
    let expected = [
        ("retry.scheduled", ""),
        ("retry.giving_up", "2"),
        ("retry.streaming_refused", "1"),
        ("retry.budget_refused", "1"),
    ];
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

// Layers that share something.

/// A budget of one retry for two calls, whose clock stands still.
fn half() -> RetryBudget {
    let clock = reqwest_resilience::ManualClock::new();
    RetryBudget::builder().ratio(0.5).min_per_second(0).clock(clock).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_an_outer_retry_sends_again_is_no_new_call_for_the_budget() {
    let budget = half();
    // The inner one never retries, so that every token is the outer one's.
    let layer = |most| Arc::new(keen().max_retries(most).budget(budget.clone()).build().unwrap());
    let transport = Transport::answering(503);
    let client = stack([layer(9), layer(0)], &transport);
    for _ in 0..100 {
        call(&client, URL).await;
    }
    // Each of the two layers counts a call once: 200 deposits.
    assert_eq!(transport.hits(), 100 + 100);
}

#[tokio::test(start_paused = true)]
async fn what_never_reached_the_network_pays_for_no_retry() {
    let budget = half();
    let unsent = (0..40).map(|n| if n % 2 == 0 { Reply::BuilderError } else { Reply::ForeignError });
    let transport = Transport::answering(503).then(unsent);
    let client = through(keen().budget(budget), &transport);
    for _ in 0..40 {
        assert_eq!(call(&client, URL).await, Saw::Error);
    }
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    assert_eq!(transport.hits(), 41);
}

#[tokio::test(start_paused = true)]
async fn an_outer_retry_hears_that_an_inner_one_was_rejected() {
    let transport = Transport::answering(503);
    let wait = || Arc::new(keen().policy(Fixed(2, SECOND)).build().unwrap());
    let client = stack([wait(), wait(), Arc::new(breaker(2))], &transport);
    let begun = Instant::now();
    let told = tell(client.get(URL)).await;
    assert_eq!(told, (Saw::Status(503), (3, StopReason::Rejected)));
    // The inner one's waits alone.
    assert!(begun.elapsed() < 2_500 * MILLI, "{:?}", begun.elapsed());
    assert_eq!(transport.hits(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_far_deadline_leaves_time_to_read_what_failed() {
    let transport = Transport::answering(503).then([answer(streaming(40 * MILLI, 10))]);
    let layers: [Arc<dyn Middleware>; 3] = [
        Arc::new(Deadline::after(10 * SECOND)),
        Arc::new(keen().policy(Fixed(2, MILLI)).build().unwrap()),
        Arc::new(breaker(1)),
    ];
    assert_eq!(call(&stack(layers, &transport), URL).await, Saw::Status(503));
}

/// A layer of the user that gives up on its call after a while and sends it again, with the same extensions.
struct Impatient(Duration);

#[async_trait::async_trait]
impl Middleware for Impatient {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let again = request.try_clone().unwrap();
        match timeout(self.0, next.clone().run(request, extensions)).await {
            Ok(result) => result,
            Err(_) => next.run(again, extensions).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_was_dropped_leaves_nothing_behind() {
    let transport = Transport::answering(200).then([Reply::Hang, Reply::Hang]);
    let layers: [Arc<dyn Middleware>; 2] =
        [Arc::new(Impatient(50 * MILLI)), Arc::new(Deadline::after(100 * MILLI))];
    let begun = Instant::now();
    assert_eq!(call(&stack(layers, &transport), URL).await, Saw::Rejected);
    assert_eq!(begun.elapsed(), 150 * MILLI);
}
