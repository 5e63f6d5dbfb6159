//! Calls that are cut off, and what the layers around a deadline make of it, over a scripted transport.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use http::Extensions;
use reqwest::{Body, Request, Response};
use reqwest_middleware::{Error, Middleware, Next, RequestBuilder, Result};
use reqwest_resilience::{
    CircuitBreaker, CircuitBreakerBuilder, CircuitSettings, CircuitState, Deadline, DeadlineAt, DeadlineIn,
    ManualClock, Rejection, Retry, RetryBudget, RetryReport, StopReason, Trip,
};
use std::{
    error::Error as _,
    sync::{Arc, Mutex},
    time::Duration,
};
use support::{KEY, Log, Look, Reply, Saw, Transport, URL, call, saw, stack, state};
use tokio::time::{Instant, advance, sleep, timeout};
use tracing::Level;

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

fn within(limit: Duration) -> Arc<Deadline> {
    Arc::new(Deadline::after(limit))
}

/// Answers nothing, for so many requests; then 200.
fn hanging(requests: usize) -> Transport {
    Transport::answering(200).then((0..requests).map(|_| Reply::Hang))
}

/// The limit that cut a call off.
fn limit(error: &Error) -> Duration {
    match Rejection::find(error) {
        Some(Rejection::DeadlineExceeded { limit, .. }) => *limit,
        _ => panic!("{error:?}"),
    }
}

/// Sends a request that is cut off: by which limit, and after how long.
async fn cut_off(request: RequestBuilder) -> (Duration, Duration) {
    let begun = Instant::now();
    let error = request.send().await.unwrap_err();
    (limit(&error), begun.elapsed())
}

/// The request, with a limit of its own where there is one.
fn asking(limit: Option<Duration>, request: RequestBuilder) -> RequestBuilder {
    match limit {
        Some(limit) => request.with_extension(DeadlineIn(limit)),
        None => request,
    }
}

/// A layer that takes its time before it sends a request on.
struct Slow(Duration);

#[async_trait::async_trait]
impl Middleware for Slow {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        sleep(self.0).await;
        next.run(request, extensions).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_is_cut_off_after_its_time_and_every_call_has_all_of_it() {
    let transport = hanging(3);
    let client = stack([within(100 * MILLI)], &transport);
    for _ in 0..3 {
        assert_eq!(cut_off(client.get(URL)).await, (100 * MILLI, 100 * MILLI));
        advance(30 * MILLI).await;
    }
    assert_eq!(call(&client, URL).await, Saw::Status(200));
    assert_eq!(transport.hits(), 4);
}

#[tokio::test(start_paused = true)]
async fn the_error_says_how_long_the_call_had_and_that_it_may_have_been_sent() {
    let client = stack([within(1_500 * MILLI)], &hanging(1));
    let error = client.get(URL).send().await.unwrap_err();
    assert_eq!(error.to_string(), "call cut off: its deadline of 1.5 s has passed, it may have been sent");
    assert_eq!(error.source().unwrap().to_string(), "deadline exceeded");
    assert!(!Rejection::find(&error).unwrap().is_unsent());
    assert_eq!(limit(&error), 1_500 * MILLI);
    assert!(!error.is_timeout() && !error.is_connect());
    let error = anyhow::Error::from(error).context("loading the report");
    assert!(Rejection::find(error.as_ref()).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_zero_cuts_off_before_anything_is_sent() {
    let zero = Duration::ZERO;
    let transport = Transport::answering(200);
    let request = |layers: [Arc<Deadline>; 2]| stack(layers.map(|layer| layer as _), &transport).get(URL);
    for request in [
        request([within(zero), within(SECOND)]),
        request([within(SECOND), within(zero)]),
        request([within(Duration::MAX), within(zero)]),
        request([within(zero), within(zero)]),
        request([within(SECOND), within(SECOND)]).with_extension(DeadlineIn(zero)),
    ] {
        assert_eq!(cut_off(request).await, (zero, zero));
    }
    assert_eq!(transport.hits(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_zero_sends_nothing_also_where_a_deadline_outside_passes_at_that_moment() {
    let transport = Transport::answering(200);
    let layers: [Arc<dyn Middleware>; 3] = [within(SECOND), Arc::new(Slow(SECOND)), within(Duration::ZERO)];
    assert_eq!(cut_off(stack(layers, &transport).get(URL)).await.1, SECOND);
    assert_eq!(transport.hits(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_limit_beyond_the_reach_of_the_clock_never_comes() {
    for limit in [Duration::MAX, Duration::from_secs(i64::MAX.unsigned_abs()), 10_000 * YEAR] {
        for (set, asked) in [(limit, None), (SECOND, Some(limit))] {
            let transport = Transport::answering(503).then([Reply::Late(YEAR, 200)]);
            let request = asking(asked, stack([within(set)], &transport).get(URL));
            assert_eq!(saw(&request.send().await), Saw::Status(200));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_at_the_last_moment_is_in_time() {
    for (late, expected) in [(100 * MILLI, Saw::Status(200)), (101 * MILLI, Saw::Rejected)] {
        let transport = Transport::answering(503).then([Reply::Late(late, 200)]);
        assert_eq!(call(&stack([within(100 * MILLI)], &transport), URL).await, expected);
        let transport = Transport::answering(503).then([Reply::Late(late, 200)]);
        let client = stack([within(100 * MILLI), within(HOUR)], &transport);
        assert_eq!(call(&client, URL).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_ends_with_the_headers() {
    let body = futures::stream::once(async {
        sleep(HOUR).await;
        std::io::Result::Ok("late")
    });
    let response = http::Response::new(Body::wrap_stream(body)).into();
    let transport = Transport::answering(503).then([Reply::Response(response)]);
    let response = stack([within(SECOND)], &transport).get(URL).send().await.unwrap();
    assert_eq!(response.text().await.unwrap(), "late");
}

#[tokio::test(start_paused = true)]
async fn of_nested_deadlines_the_earliest_cuts_off() {
    let [short, late] = [100 * MILLI, 200 * MILLI];
    let slow = || Arc::new(Slow(60 * MILLI));
    for (layers, cut) in [
        ([within(short), slow(), within(late)], (short, short)),
        ([within(late), slow(), within(short)], (short, 160 * MILLI)),
        // The shorter one begins so late that it ends later.
        ([within(short), slow(), within(50 * MILLI)], (short, short)),
        ([within(short), slow(), within(short)], (short, short)),
    ] as [([Arc<dyn Middleware>; 3], _); 4]
    {
        let log = Log::listen();
        let transport = hanging(1);
        assert_eq!(cut_off(stack(layers, &transport).get(URL)).await, cut);
        assert_eq!(log.events(), ["deadline.exceeded"]);
        // It is also the one that layers inside of both know of.
        assert_eq!(transport.seen()[0].deadline.unwrap().instant(), Instant::now());
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_inside_is_dropped_when_the_time_is_up() {
    let transport = Transport::answering(200);
    let client = stack([within(SECOND), Arc::new(Slow(2 * SECOND))], &transport);
    assert_eq!(cut_off(client.get(URL)).await, (SECOND, SECOND));
    advance(HOUR).await;
    assert_eq!(transport.hits(), 0);
}

#[tokio::test(start_paused = true)]
async fn layers_inside_know_the_time_that_is_left() {
    let transport = hanging(1);
    let client = stack([within(SECOND), Arc::new(Slow(SECOND / 4))], &transport);
    let begun = Instant::now();
    let mut call = std::pin::pin!(client.get(URL).send());
    assert!(timeout(SECOND / 2, call.as_mut()).await.is_err());
    let at = transport.seen()[0].deadline.unwrap();
    assert_eq!(at.instant(), begun + SECOND);
    assert_eq!((at.remaining(), at.has_passed()), (SECOND / 2, false));
    assert_eq!(limit(&call.await.unwrap_err()), SECOND);
    assert_eq!((at.remaining(), at.has_passed()), (Duration::ZERO, true));
}

type Notes = Arc<Mutex<Vec<(Option<Duration>, Option<DeadlineIn>)>>>;

/// Notes on the way in and on the way out what a layer at this place is told, as time since now.
fn note(notes: &Notes) -> Arc<dyn Middleware> {
    let begun = Instant::now();
    let look = || {
        let notes = Arc::clone(notes);
        move |extensions: &mut Extensions| {
            let at = DeadlineAt::of(extensions).map(|at| at.instant() - begun);
            notes.lock().unwrap().push((at, extensions.get().copied()));
        }
    };
    Arc::new(Look(look(), look()))
}

#[tokio::test(start_paused = true)]
async fn a_deadline_leaves_the_extensions_as_it_found_them() {
    let [long, short] = [100 * MILLI, 50 * MILLI];
    for reply in [Reply::Status(200), Reply::ForeignError, Reply::Hang] {
        let transport = Transport::answering(503).then([reply]);
        let [outside, between, inside] = <[Notes; 3]>::default();
        let layers = [note(&outside), within(HOUR), note(&between), within(short), note(&inside)];
        let request = stack(layers, &transport).get(URL);
        let asked = DeadlineIn(long);
        let _ = request.with_extension(asked).send().await;

        let [outside, between, inside] =
            [outside, between, inside].map(|notes| notes.lock().unwrap().clone());
        // The outermost deadline takes the wish of the request, and gives it back.
        assert_eq!(outside, [(None, Some(asked)); 2]);
        assert_eq!(between, [(Some(long), None); 2]);
        assert_eq!(inside[0], (Some(short), None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_sets_the_limit_of_the_outermost_deadline_alone() {
    let retry = || Arc::new(Retry::builder().budget(RetryBudget::unlimited()).build().unwrap());
    let [attempt, total] = [100 * MILLI, HOUR];
    for (asked, cut) in [
        (SECOND / 20, (SECOND / 20, SECOND / 20)),
        // Each of three attempts still has its own time, and the call as much as it asked for.
        (2 * HOUR, (attempt, 3 * attempt)),
    ] {
        let transport = hanging(9);
        let client = stack([within(total), retry(), within(attempt)], &transport);
        let (limit, elapsed) = cut_off(client.get(URL).with_extension(DeadlineIn(asked))).await;
        assert_eq!(limit, cut.0);
        assert!(cut.1 <= elapsed && elapsed <= cut.1 + 300 * MILLI, "{elapsed:?}");
        assert!(transport.seen().iter().all(|seen| seen.deadline_in.is_none()));
    }
    // A wish that comes up inside of it is too late.
    let late = Look(
        |extensions| {
            extensions.insert(DeadlineIn(Duration::ZERO));
        },
        |_| {},
    );
    let client = stack([within(total), Arc::new(late), within(attempt)], &Transport::answering(200));
    assert_eq!(call(&client, URL).await, Saw::Status(200));
    // Longer than the one that was set, too.
    let transport = Transport::answering(503).then([Reply::Late(SECOND, 200)]);
    let request = stack([within(attempt)], &transport).get(URL);
    let response = request.with_extension(DeadlineIn(HOUR)).send().await;
    assert_eq!(saw(&response), Saw::Status(200));
}

/// reqwest-retry passes one and the same map to all attempts.
#[cfg(feature = "reqwest-retry")]
#[tokio::test(start_paused = true)]
async fn f71_behind_reqwest_retry_every_attempt_has_its_own_full_time() {
    use reqwest_retry::{
        RetryTransientMiddleware, Retryable, RetryableStrategy, policies::ExponentialBackoff,
    };

    struct Errors;

    impl RetryableStrategy for Errors {
        fn handle(&self, result: &Result<Response>) -> Option<Retryable> {
            result.is_err().then_some(Retryable::Transient)
        }
    }

    let late = |millis| Reply::Late(millis * MILLI, 200);
    for (asked, replies) in [(None, [Reply::Hang, late(90)]), (Some(SECOND), [Reply::Hang, late(990)])] {
        let policy = ExponentialBackoff::builder().retry_bounds(MILLI, MILLI).build_with_max_retries(1);
        let retry = RetryTransientMiddleware::new_with_policy_and_strategy(policy, Errors);
        let transport = Transport::answering(503).then(replies);
        let request = stack([Arc::new(retry), within(100 * MILLI)], &transport).get(URL);
        let request = asking(asked, request);
        assert_eq!(saw(&request.send().await), Saw::Status(200));
        assert_eq!(transport.hits(), 2);
    }
}

// With a retry inside.

#[tokio::test(start_paused = true)]
async fn a_retry_returns_what_it_has_when_the_wait_does_not_fit() {
    // It takes the answer 300 ms to come, and the origin asks for a wait of a second.
    for (limit, is_retried) in [(1_300 * MILLI, false), (1_301 * MILLI, true)] {
        let log = Log::listen();
        let transport = Transport::answering(200).then([Reply::Header(503, "retry-after", "1")]);
        let retry = Retry::builder().budget(RetryBudget::unlimited()).build().unwrap();
        let layers: [Arc<dyn Middleware>; 3] = [within(limit), Arc::new(retry), Arc::new(Slow(300 * MILLI))];
        let client = stack(layers, &transport);
        let begun = Instant::now();
        let result = client.get(URL).send().await;
        if is_retried {
            // It is cut off itself.
            assert_eq!(self::limit(&result.unwrap_err()), limit);
            assert_eq!(begun.elapsed(), limit);
            assert_eq!(log.events(), ["retry.scheduled", "deadline.exceeded"]);
        } else {
            let response = result.unwrap();
            assert_eq!(response.status(), 503);
            assert_eq!(RetryReport::of(&response).unwrap().stopped, StopReason::Deadline);
            assert_eq!(begun.elapsed(), 300 * MILLI);
            assert_eq!(log.events(), ["retry.giving_up"]);
        }
    }
}

// With a breaker.

/// Opens when half of four calls have failed.
fn breaker(set: impl FnOnce(CircuitSettings) -> CircuitSettings) -> CircuitBreakerBuilder {
    let rate = Trip::failure_rate(0.5).min_calls(4);
    CircuitBreaker::builder().defaults(|circuit| set(circuit.trip(rate).open_for(SECOND)))
}

#[tokio::test(start_paused = true)]
async fn f60_who_cuts_off_a_hanging_call_says_whether_the_origin_is_to_blame() {
    const NEVER: Duration = Duration::MAX;
    // A caller with a patience of 100 ms, unless a deadline comes first. A drop is a failure where that is
    // agreed.
    for (outside, agreed, inside, expected) in [
        (NEVER, None, NEVER, CircuitState::Closed),
        (50 * MILLI, None, NEVER, CircuitState::Open),
        (101 * MILLI, None, NEVER, CircuitState::Closed),
        (NEVER, Some(50 * MILLI), NEVER, CircuitState::Open),
        (NEVER, Some(101 * MILLI), NEVER, CircuitState::Closed),
        (NEVER, None, 50 * MILLI, CircuitState::Open),
    ] {
        let breaker = breaker(|circuit| match agreed {
            Some(patience) => circuit.abandoned_after(patience),
            None => circuit,
        });
        let breaker = breaker.build().unwrap();
        let layers: [Arc<dyn Middleware>; 3] = [within(outside), Arc::new(breaker.clone()), within(inside)];
        let client = stack(layers, &hanging(4));
        for _ in 0..4 {
            let _ = timeout(100 * MILLI, client.get(URL).send()).await;
        }
        assert_eq!(state(&breaker, KEY), expected, "{outside:?} {agreed:?} {inside:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_the_request_set_passes_in_tokios_time_whatever_clock_the_breaker_has() {
    let stopped = breaker(|circuit| circuit).clock(ManualClock::new());
    let breaker = stopped.build().unwrap();
    let client = stack([within(HOUR), Arc::new(breaker.clone())], &hanging(4));
    for _ in 0..4 {
        let request = asking(Some(50 * MILLI), client.get(URL));
        assert_eq!(cut_off(request).await.0, 50 * MILLI);
    }
    assert_eq!(state(&breaker, KEY), CircuitState::Open);
}

#[tokio::test(start_paused = true)]
async fn a_default_breaker_behind_a_deadline_opens_at_the_fifth_hanging_call() {
    let breaker = CircuitBreaker::default();
    let transport = hanging(9);
    let client = stack([within(100 * MILLI), Arc::new(breaker.clone())], &transport);
    for _ in 0..5 {
        assert_eq!(cut_off(client.get(URL)).await.0, 100 * MILLI);
    }
    let error = client.get(URL).send().await.unwrap_err();
    let rejection = Rejection::find(&error);
    assert!(matches!(rejection, Some(Rejection::CircuitOpen { .. })), "{error:?}");
    assert_eq!(transport.hits(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_cut_off_reopens_the_circuit_and_one_that_is_dropped_does_not() {
    for (patience, after) in [(HOUR, CircuitState::Open), (50 * MILLI, CircuitState::HalfOpen)] {
        let breaker = breaker(|circuit| circuit.trip(Trip::consecutive(1))).build().unwrap();
        let transport = Transport::answering(200).then([Reply::Status(503), Reply::Hang]);
        let client = stack([within(100 * MILLI), Arc::new(breaker.clone())], &transport);
        assert_eq!(call(&client, URL).await, Saw::Status(503));
        advance(SECOND).await;
        let _ = timeout(patience, client.get(URL).send()).await;
        assert_eq!(transport.hits(), 2);
        let circuit = breaker.snapshot(KEY).unwrap();
        assert_eq!((circuit.state, circuit.probes_in_flight), (after, 0));
        // A new wait, or a free slot.
        let expected = if after == CircuitState::Open { Saw::Rejected } else { Saw::Status(200) };
        assert_eq!(call(&client, URL).await, expected);
        advance(SECOND).await;
        assert_eq!(call(&client, URL).await, Saw::Status(200));
        assert_eq!(state(&breaker, KEY), CircuitState::Closed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_off_is_reported_once_a_second_for_each_origin() {
    const OTHER: &str = "http://other.example.com/";
    let deadline = within(Duration::ZERO);
    let transport = Transport::answering(200);
    let log = Log::listen();
    let client = stack([Arc::clone(&deadline) as _], &transport);
    for _ in 0..5 {
        call(&client, URL).await;
    }
    call(&client, OTHER).await;
    advance(999 * MILLI).await;
    // A clone has a limit of its own, but not a log.
    let clone = Arc::new(Deadline::clone(&deadline));
    call(&stack([clone], &transport), URL).await;
    advance(MILLI).await;
    call(&client, URL).await;
    call(&client, URL).await;
    advance(SECOND).await;
    call(&client, URL).await;

    let lines = log.lines();
    let told = lines.iter().map(|line| (line.get("origin"), line.get("suppressed")));
    let expected = [(KEY, "0"), ("http://other.example.com:80", "0"), (KEY, "5"), (KEY, "1")];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    for line in lines {
        assert_eq!((line.event(), line.level), ("deadline.exceeded", Level::WARN));
        assert_eq!(line.names(), ["limit_ms", "origin", "suppressed"]);
        assert_eq!(line.get("limit_ms"), "0");
    }
}

#[tokio::test(start_paused = true)]
async fn the_limit_that_is_logged_is_the_one_that_cut_off_and_never_too_short() {
    let log = Log::listen();
    let micro = Duration::from_micros(1);
    for (limit, asked, logged) in
        [(1_500 * MILLI, None, "1500"), (1_500 * MILLI + micro, None, "1501"), (HOUR, Some(SECOND), "1000")]
    {
        let request = stack([within(limit)], &hanging(1)).get(URL);
        assert!(asking(asked, request).send().await.is_err());
        assert_eq!(log.lines().pop().unwrap().get("limit_ms"), logged);
    }
    // What ends in time is not worth a word.
    let log = Log::listen();
    call(&stack([within(SECOND)], &Transport::answering(503)), URL).await;
    assert_eq!(log.lines(), []);
}
