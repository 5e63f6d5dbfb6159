//! How many retries there may be, over a scripted transport.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use futures::{FutureExt, future::join_all, stream};
use proptest::{collection::vec, prelude::*, sample::select};
use reqwest::Body;
use reqwest_middleware::{ClientWithMiddleware, Middleware, RequestBuilder};
use reqwest_resilience::{
    AttemptNumber, BypassCircuit, CircuitBreaker, CircuitKey, CircuitMode, CircuitState, Deadline,
    ManualClock, MaxRetries, NoRetry, Retry, RetryBudget, RetryBudgetBuilder, RetryBuilder, RetryReport,
    Scope, StopReason, Trip,
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use support::{KEY, Lagging, Log, Look, Reply, Saw, Transport, URL, call, refused, stack, state, timed_out};
use tokio::time::{advance, timeout};

const NANO: Duration = Duration::from_nanos(1);
const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const OTHER: &str = "http://other.example.com/";
const THIRD: &str = "http://third.example.com/";

/// So many retries per call, and so many more, in a second of this clock.
fn on(clock: &ManualClock, ratio: f64, floor: u32) -> RetryBudgetBuilder {
    RetryBudget::builder().ratio(ratio).min_per_second(floor).window(SECOND).clock(clock.clone())
}

/// The same, in a second that never ends.
fn budget(ratio: f64, floor: u32) -> RetryBudget {
    on(&ManualClock::new(), ratio, floor).build().unwrap()
}

/// Waits as little as it can and stops for no reason of its own.
fn eager(budget: &RetryBudget) -> RetryBuilder {
    Retry::builder().max_retries(u32::MAX).backoff(Duration::ZERO, Duration::ZERO).budget(budget.clone())
}

/// `retry → transport`.
fn through(retry: RetryBuilder, transport: &Transport) -> ClientWithMiddleware {
    stack([Arc::new(retry.build().unwrap())], transport)
}

/// One call to an origin that only fails, which wants so many retries; how many the budget allowed.
async fn ask(budget: &RetryBudget, url: &str, wanted: u32) -> usize {
    let transport = Transport::answering(503);
    let client = through(eager(budget), &transport);
    let request = client.get(url).with_extension(MaxRetries(wanted));
    request.send().await.unwrap();
    transport.hits() - 1
}

/// One call to an origin that only fails, which wants as many retries as it can get.
async fn drain(budget: &RetryBudget, url: &str) -> usize {
    ask(budget, url, u32::MAX).await
}

#[test]
fn f21_a_setting_that_cannot_be_is_an_error_that_names_field_and_value() {
    type Set = fn(RetryBudgetBuilder) -> RetryBudgetBuilder;
    let refused: [(&str, &str, Set); 12] = [
        ("ratio", "-0.5", |budget| budget.ratio(-0.5)),
        ("ratio", "-0.000000001", |budget| budget.ratio(-1e-9)),
        ("ratio", "NaN", |budget| budget.ratio(f64::NAN)),
        ("ratio", "inf", |budget| budget.ratio(f64::INFINITY)),
        ("ratio", "-inf", |budget| budget.ratio(f64::NEG_INFINITY)),
        ("ratio", "1000000.1", |budget| budget.ratio(1_000_000.1)),
        ("window", "0ns", |budget| budget.window(Duration::ZERO)),
        ("window", "9.999999ms", |budget| budget.window(NANO * 9_999_999)),
        ("max_keys", "0", |budget| budget.max_keys(0)),
        ("scope", "\"\"", |budget| budget.scope(Scope::shared(""))),
        ("scope", "\"http://\"", |budget| budget.scope(Scope::shared("http://"))),
        // The first that is wrong.
        ("ratio", "NaN", |budget| budget.ratio(f64::NAN).window(Duration::ZERO)),
    ];
    for (field, value, set) in refused {
        let error = set(RetryBudget::builder()).build().expect_err(field);
        assert_eq!((error.field(), error.value()), (field, value));
        assert_eq!(error.to_string(), format!("{field} = {value}: {}", error.rule()));
    }
}

#[tokio::test(start_paused = true)]
async fn extreme_settings_that_can_be_work() {
    type Set = fn(RetryBudgetBuilder) -> RetryBudgetBuilder;
    // The retries that the first call ever gets, which wants five.
    let allowed: [(usize, Set); 12] = [
        (0, |budget| budget.ratio(0.0)),
        (0, |budget| budget.ratio(-0.0)),
        (0, |budget| budget.ratio(f64::MIN_POSITIVE)),
        (0, |budget| budget.ratio(0.999_999_999)),
        (1, |budget| budget.ratio(1.0)),
        (5, |budget| budget.ratio(1_000_000.0)),
        (5, |budget| budget.ratio(1_000_000.0).min_per_second(u32::MAX).window(Duration::MAX)),
        (5, |budget| budget.ratio(0.0).min_per_second(1).window(Duration::MAX)),
        // Four and a bit.
        (4, |budget| budget.ratio(0.0).min_per_second(450).window(10 * MILLI)),
        (1, |budget| budget.ratio(1.0).window(10 * MILLI)),
        (1, |budget| budget.ratio(1.0).max_keys(usize::MAX)),
        (1, |budget| budget.ratio(1.0).max_keys(1)),
    ];
    for (n, (allowed, set)) in allowed.into_iter().enumerate() {
        let budget = RetryBudget::builder().min_per_second(0).clock(ManualClock::new());
        let budget = set(budget).build().unwrap();
        assert_eq!(ask(&budget, URL, 5).await, allowed, "row {n}");
    }
}

#[tokio::test(start_paused = true)]
async fn by_default_there_is_a_retry_for_a_fifth_of_the_calls_and_for_a_hundred_more() {
    for budget in [RetryBudget::default(), RetryBudget::builder().build().unwrap()] {
        let client = through(eager(&budget), &Transport::answering(503));
        // Dropped at once, each of them: a retry is scheduled or refused before any time goes by.
        let is_granted = |_| client.get(URL).send().now_or_never().is_none();
        assert_eq!((0..1_000).map(is_granted).filter(|granted| *granted).count(), 300);
        advance(10 * SECOND).await;
        assert_eq!((0..1_000).map(is_granted).filter(|granted| *granted).count(), 300);
    }
}

#[tokio::test(start_paused = true)]
async fn f49_every_ratio_is_exact_after_every_call() {
    for (ratio, thousandths) in [
        (0.0, 0),
        (0.01, 10),
        (0.1, 100),
        (0.3, 300),
        (0.6, 600),
        (0.9, 900),
        (1.0, 1_000),
        // In binary a little less than it says.
        (1.001, 1_001),
        (1.5, 1_500),
        (10.0, 10_000),
    ] {
        let transport = Transport::answering(503);
        let client = through(eager(&budget(ratio, 0)), &transport);
        for calls in 1..=1_000 {
            call(&client, URL).await;
            let retries = transport.hits() - calls;
            assert_eq!(retries, calls * thousandths / 1_000, "{calls} calls at {ratio}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn f48_a_thousand_failures_in_a_row_then_at_once_make_1_200_hits_each() {
    let clock = ManualClock::new();
    let budget = on(&clock, 0.2, 0).build().unwrap();
    let transport = Transport::answering(503);
    let client = through(eager(&budget), &transport);
    for _ in 0..1_000 {
        call(&client, URL).await;
    }
    assert_eq!(transport.hits(), 1_200);
    clock.advance(SECOND);
    join_all((0..1_000).map(|_| call(&client, URL))).await;
    assert_eq!(transport.hits(), 2_400);
}

async fn until(condition: impl Fn() -> bool) {
    let polling = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    timeout(10 * SECOND, polling).await.expect("in ten seconds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_thousand_failures_at_the_same_moment_get_exactly_what_they_paid_for() {
    for (ratio, retries) in [
        (0.0, 0),
        (0.01, 10),
        (0.1, 100),
        (0.3, 300),
        (0.6, 600),
        (0.9, 900),
        (1.0, 1_000),
        (1.5, 1_500),
        (10.0, 10_000),
    ] {
        let transport = Transport::answering(503);
        transport.hold();
        let client = through(eager(&budget(ratio, 0)), &transport);
        let calls = (0..1_000).map(|_| {
            let client = client.clone();
            tokio::spawn(async move { call(&client, URL).await })
        });
        let calls = join_all(calls);
        until(|| transport.hits() == 1_000).await;
        transport.stop_holding();
        while let Some(held) = transport.take_held() {
            held.answer(503);
        }
        for saw in calls.await {
            assert_eq!(saw.unwrap(), Saw::Status(503));
        }
        assert_eq!(transport.hits() - 1_000, retries, "at {ratio}");
    }
}

#[tokio::test(start_paused = true)]
async fn f50_who_calls_little_is_retried_from_the_first_call_on() {
    let budget = RetryBudget::builder().ratio(0.0).min_per_second(1).build().unwrap();
    let transport = Transport::answering(200);
    let client = through(eager(&budget), &transport);
    for _ in 0..5 {
        transport.script([Reply::Status(503)]);
        assert_eq!(call(&client, URL).await, Saw::Status(200));
        advance(2 * SECOND).await;
    }
    assert_eq!(transport.hits(), 10);
}

#[tokio::test(start_paused = true)]
async fn f51_retries_dropped_in_their_wait_leave_the_books_right() {
    let clock = ManualClock::new();
    let budget = on(&clock, 0.0, 60).build().unwrap();
    let transport = Transport::answering(503);
    let client = through(eager(&budget), &transport);
    for _ in 0..50 {
        assert!(client.get(URL).send().now_or_never().is_none());
    }
    assert_eq!((transport.hits(), drain(&budget, URL).await), (50, 10));
    // Neither more nor less when their time is over.
    clock.advance(SECOND);
    assert_eq!(drain(&budget, URL).await, 60);
}

#[tokio::test(start_paused = true)]
async fn f52_an_origin_that_drains_its_budget_leaves_others_theirs() {
    let budget = budget(0.0, 7);
    assert_eq!(drain(&budget, URL).await, 7);
    assert_eq!(drain(&budget, URL).await, 0);
    assert_eq!(drain(&budget, OTHER).await, 7);
    // The origin is what counts, not the path.
    assert_eq!(drain(&budget, "http://API.example.com.:80/v2?user=7").await, 0);
    assert_eq!(drain(&budget, "http://api.example.com:81/").await, 7);
}

#[tokio::test(start_paused = true)]
async fn f73_calls_rejected_in_a_long_outage_fund_no_retries_after_it() {
    let breaker =
        CircuitBreaker::builder().defaults(|circuit| circuit.trip(Trip::consecutive(1))).build().unwrap();
    let retry = eager(&budget(0.5, 0)).build().unwrap();
    let transport = Transport::answering(503);
    let client = stack([Arc::new(retry), Arc::new(breaker)], &transport);
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    for _ in 0..1_000 {
        assert_eq!(call(&client, URL).await, Saw::Rejected);
    }
    advance(30 * SECOND).await;
    transport.answer(200);
    assert_eq!(call(&client, URL).await, Saw::Status(200));
    // Two calls were sent so far. The third has one retry and the fourth another.
    transport.answer(503);
    for hits in [4, 6] {
        let request = client.get(URL).with_extension(BypassCircuit);
        request.send().await.unwrap();
        assert_eq!(transport.hits(), hits);
    }
}

#[tokio::test(start_paused = true)]
async fn every_call_that_was_sent_pays_in_once_whatever_became_of_it() {
    let budget = budget(1.0, 0);
    let transport = Transport::answering(200);
    let layers: [Arc<dyn Middleware>; 2] =
        [Arc::new(eager(&budget).build().unwrap()), Arc::new(Deadline::after(SECOND))];
    let client = stack(layers, &transport);
    let replies = [
        Reply::Status(200),
        Reply::Status(404),
        Reply::Status(503),
        Reply::Hang,
        timed_out().await,
        refused().await,
    ];
    transport.script(replies);
    for _ in 0..6 {
        let _ = client.post(URL).send().await;
    }
    transport.script([Reply::Status(503)]);
    let refused = client.get(URL).with_extension(NoRetry).send().await;
    assert_eq!(refused.unwrap().status(), 503);
    // Seven, and the one that asks. Its retries do not.
    assert_eq!(drain(&budget, URL).await, 8);
}

/// A body that can be sent once.
fn once() -> Body {
    Body::wrap_stream(stream::once(async { std::io::Result::Ok("x") }))
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_retried_takes_no_token() {
    type Say = fn(&ClientWithMiddleware) -> RequestBuilder;
    let calls: [(Reply, Say, StopReason); 7] = [
        (Reply::Status(503), |client| client.post(URL), StopReason::UnsafeMethod),
        (Reply::Status(503), |client| client.put(URL).body(once()), StopReason::StreamingBody),
        (Reply::Status(503), |client| client.get(URL).with_extension(NoRetry), StopReason::Attempts),
        (Reply::Status(503), |client| client.get(URL).with_extension(MaxRetries(0)), StopReason::Attempts),
        (Reply::Header(503, "retry-after", "61"), |client| client.get(URL), StopReason::RetryAfter),
        (Reply::Header(503, "retry-after", "1"), |client| client.get(URL), StopReason::Deadline),
        // All attempts are used. This takes the one token that it needs.
        (Reply::Status(503), |client| client.get(URL).with_extension(MaxRetries(1)), StopReason::Attempts),
    ];
    for (reply, say, reason) in calls {
        let tokens = 5;
        let budget = budget(0.0, tokens);
        let layers: [Arc<dyn Middleware>; 2] =
            [Arc::new(Deadline::after(SECOND)), Arc::new(eager(&budget).build().unwrap())];
        let client = stack(layers, &Transport::answering(503).then([reply]));
        let response = say(&client).send().await.unwrap();
        let report = RetryReport::of(&response).unwrap();
        assert_eq!(report.stopped, reason);
        let left = (tokens + 1 - report.attempts) as usize;
        assert_eq!(drain(&budget, URL).await, left, "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_taken_before_the_wait() {
    let budget = budget(0.0, 1);
    let transport = Transport::answering(503);
    let client = through(eager(&budget), &transport);
    let waits = client.get(URL).send();
    tokio::pin!(waits);
    assert!(waits.as_mut().now_or_never().is_none());
    let starved = client.get(URL).send().now_or_never().expect("no wait").unwrap();
    assert_eq!(RetryReport::of(&starved).unwrap().stopped, StopReason::Budget);
    assert_eq!(RetryReport::of(&waits.await.unwrap()).unwrap().attempts, 2);
}

#[tokio::test(start_paused = true)]
async fn a_breaker_outside_a_starved_retry_sees_the_last_attempt_itself() {
    for (reply, after) in [
        (Reply::Status(503), CircuitState::Open),
        (refused().await, CircuitState::Open),
        (Reply::Status(429), CircuitState::Closed),
    ] {
        let breaker =
            CircuitBreaker::builder().defaults(|circuit| circuit.trip(Trip::consecutive(1))).build().unwrap();
        let retry = eager(&budget(0.0, 0)).build().unwrap();
        let transport = Transport::answering(200).then([reply]);
        let log = Log::listen();
        call(&stack([Arc::new(breaker.clone()), Arc::new(retry)], &transport), URL).await;
        assert_eq!((log.of("retry.budget_refused").len(), transport.hits()), (1, 1));
        assert_eq!(state(&breaker, KEY), after);
    }
}

#[tokio::test(start_paused = true)]
async fn the_window_slides_in_tenths() {
    let clock = ManualClock::new();
    let budget = on(&clock, 0.0, 10).build().unwrap();
    assert_eq!(ask(&budget, URL, 4).await, 4);
    clock.advance(550 * MILLI);
    assert_eq!(drain(&budget, URL).await, 6);
    for (millis, allowed) in [(449, 0), (1, 4), (499, 0), (1, 6), (499, 0), (1, 4)] {
        clock.advance(millis * MILLI);
        assert_eq!(drain(&budget, URL).await, allowed);
    }
    // What calls paid in goes the same way.
    let budget = on(&clock, 1.0, 0).build().unwrap();
    for _ in 0..3 {
        assert_eq!(ask(&budget, URL, 0).await, 0);
    }
    clock.advance(999 * MILLI);
    assert_eq!(ask(&budget, URL, 0).await, 0);
    clock.advance(MILLI);
    assert_eq!(drain(&budget, URL).await, 2);
}

#[tokio::test(start_paused = true)]
async fn after_any_time_of_idling_the_books_are_right_at_once() {
    for window in [10 * MILLI, 10 * SECOND, DAY] {
        // A minute or so, long enough for a count of nanoseconds to wrap; months; and a century.
        for idle in [60 * SECOND, NANO * (1 << 31) * 32, 200 * DAY, 36_500 * DAY] {
            if idle < window {
                continue;
            }
            let clock = ManualClock::new();
            let budget = on(&clock, 1.0, 0).window(window).build().unwrap();
            for _ in 0..3 {
                ask(&budget, URL, 0).await;
            }
            clock.advance(idle);
            // Each pays for itself, and nobody for another.
            for _ in 0..3 {
                assert_eq!(drain(&budget, URL).await, 1, "{idle:?} in windows of {window:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_scope_says_what_has_a_budget_of_its_own() {
    let of = |scope| on(&ManualClock::new(), 0.0, 5).scope(scope).build().unwrap();
    let shared = of(Scope::shared("all"));
    assert_eq!(ask(&shared, URL, 2).await, 2);
    assert_eq!(drain(&shared, OTHER).await, 3);

    // A request without a key is not bounded.
    let by_path = of(Scope::by(|request| {
        let path = request.url().path().strip_prefix("/reports/")?;
        Some(path.to_owned())
    }));
    assert_eq!(drain(&by_path, "http://api.example.com/reports/a").await, 5);
    assert_eq!(drain(&by_path, "http://other.example.com/reports/a").await, 0);
    assert_eq!(drain(&by_path, "http://api.example.com/reports/b").await, 5);
    assert_eq!(ask(&by_path, URL, 100).await, 100);
}

#[tokio::test(start_paused = true)]
async fn clones_share_and_what_was_built_apart_does_not() {
    let shared = budget(0.0, 5);
    assert_eq!(ask(&shared.clone(), URL, 2).await, 2);
    let retry = eager(&shared).build().unwrap();
    let transport = Transport::answering(503);
    let clients = [(); 2].map(|()| stack([Arc::new(retry.clone())], &transport));
    let request = clients[0].get(URL).with_extension(MaxRetries(1));
    request.send().await.unwrap();
    clients[1].get(URL).send().await.unwrap();
    assert_eq!(transport.hits(), 5);
    assert_eq!(drain(&shared, URL).await, 0);

    let builders = [(); 2].map(|()| eager(&budget(0.0, 5)));
    for builder in builders {
        let transport = Transport::answering(503);
        call(&through(builder, &transport), URL).await;
        assert_eq!(transport.hits(), 6);
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_registry_grants_nothing_until_a_budget_is_as_good_as_new() {
    let clock = ManualClock::new();
    let budget = on(&clock, 0.0, 5).max_keys(2).build().unwrap();
    assert_eq!(ask(&budget, URL, 1).await, 1);
    clock.advance(SECOND / 2);
    assert_eq!(drain(&budget, OTHER).await, 5);
    let log = Log::listen();
    assert_eq!(drain(&budget, THIRD).await, 0);
    assert_eq!(log.events(), ["retry.budget_refused"]);
    // The others lose nothing to it.
    assert_eq!(drain(&budget, URL).await, 4);
    assert_eq!(drain(&budget, THIRD).await, 0);
    assert_eq!(drain(&budget, OTHER).await, 0);
    assert_eq!(drain(&budget, THIRD).await, 0);
    clock.advance(SECOND);
    assert_eq!(drain(&budget, THIRD).await, 5);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_budget_went_to_another_key_neither_pays_into_it_nor_spends_it() {
    let budget = on(&ManualClock::new(), 1.0, 5).max_keys(1).build().unwrap();
    let transport = Transport::answering(503);
    transport.hold();
    let client = through(eager(&budget), &transport);
    let straggler = client.get(URL).send();
    tokio::pin!(straggler);
    assert!(straggler.as_mut().now_or_never().is_none());
    // Nothing was paid in nor spent so far, so the place is as good as free.
    assert_eq!(ask(&budget, OTHER, 1).await, 1);
    transport.stop_holding();
    transport.take_held().unwrap().answer(503);
    straggler.await.unwrap();
    // Two calls and five for nothing, less the one that was spent.
    assert_eq!(drain(&budget, OTHER).await, 6);
}

#[tokio::test(start_paused = true)]
async fn an_unlimited_budget_has_no_bound() {
    assert_eq!(ask(&RetryBudget::unlimited(), URL, 10_000).await, 10_000);
}

/// A rule of a budget, in integers.
#[derive(Clone, Debug)]
struct Rule {
    thousandths: u32,
    per_second: u32,
    /// A tenth of the window.
    step: Duration,
}

fn rules() -> impl Strategy<Value = Rule> {
    let thousandths =
        prop_oneof![select(vec![0, 10, 100, 300, 600, 900, 1_000, 1_500, 10_000]), 0..2_000_u32,];
    let step = select(vec![4 * MILLI, 100 * MILLI, SECOND, DAY]);
    (thousandths, select(vec![0, 0, 1, 3, 25]), step).prop_map(|(thousandths, per_second, step)| Rule {
        thousandths,
        per_second,
        step,
    })
}

/// What may happen. Times are in quarters of a step.
#[derive(Clone, Debug)]
enum Step {
    Succeed,
    /// A call that only fails and wants so many retries, each of which takes so long.
    Fail(u32, u32),
    /// A call that fails and is dropped.
    Drop,
    /// A call that is rejected.
    Reject,
    Advance(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        30 => Just(Step::Succeed),
        30 => (0..6_u32, 0..8_u32).prop_map(|(wanted, pace)| Step::Fail(wanted, pace)),
        5 => Just(Step::Drop),
        5 => Just(Step::Reject),
        20 => (0..30_u32).prop_map(Step::Advance),
        1 => (0..100_000_u32).prop_map(Step::Advance),
    ];
    vec(step, 1..80)
}

/// The naive books: all that was ever paid in and taken out, and when.
struct Books {
    rule: Rule,
    now: Duration,
    calls: Vec<Duration>,
    retries: Vec<Duration>,
}

impl Books {
    /// How many of these are in the window, which moves in steps from the moment when the budget was made.
    fn inside(&self, times: &[Duration]) -> u128 {
        let number = |time: Duration| time.as_nanos() / self.rule.step.as_nanos();
        let inside = times.iter().filter(|time| number(self.now) < number(**time) + 10);
        inside.count() as u128
    }

    fn withdraw(&mut self) -> bool {
        let earned = self.inside(&self.calls) * u128::from(self.rule.thousandths) / 1_000;
        let window = 10 * self.rule.step.as_millis();
        let floor = window * u128::from(self.rule.per_second) / 1_000;
        let is_granted = self.inside(&self.retries) < earned + floor;
        if is_granted {
            self.retries.push(self.now);
        }
        is_granted
    }
}

async fn compare(rule: Rule, steps: Vec<Step>) {
    let clock = ManualClock::new();
    let budget = RetryBudget::builder()
        .ratio(f64::from(rule.thousandths) / 1_000.0)
        .min_per_second(rule.per_second)
        .window(10 * rule.step)
        .clock(clock.clone());
    let breaker = CircuitBreaker::default();
    breaker.set_mode(KEY, CircuitMode::ForcedClosed).unwrap();
    breaker.set_mode("shut", CircuitMode::ForcedOpen).unwrap();
    // Time that goes by while a retry is out.
    let pace = Arc::new(Mutex::new(Duration::ZERO));
    let (passing, hand) = (Arc::clone(&pace), clock.clone());
    let look = Look(
        move |extensions| {
            if 1 < AttemptNumber::of(extensions).get() {
                hand.advance(*passing.lock().unwrap());
            }
        },
        |_| {},
    );
    let transport = Transport::answering(503);
    let layers: [Arc<dyn Middleware>; 3] =
        [Arc::new(eager(&budget.build().unwrap()).build().unwrap()), Arc::new(breaker), Arc::new(look)];
    let client = stack(layers, &transport);
    let mut books = Books { rule, now: Duration::ZERO, calls: Vec::new(), retries: Vec::new() };
    for step in steps {
        let quarter = books.rule.step / 4;
        let before = transport.hits();
        let mut hits = 1;
        match step {
            Step::Succeed => {
                books.calls.push(books.now);
                transport.script([Reply::Status(200)]);
                call(&client, URL).await;
            }
            Step::Fail(wanted, quarters) => {
                books.calls.push(books.now);
                *pace.lock().unwrap() = quarters * quarter;
                client.get(URL).with_extension(MaxRetries(wanted)).send().await.unwrap();
                while hits <= wanted && books.withdraw() {
                    hits += 1;
                    books.now += quarters * quarter;
                }
            }
            Step::Drop => {
                books.calls.push(books.now);
                let is_waiting = client.get(URL).send().now_or_never().is_none();
                assert_eq!(is_waiting, books.withdraw(), "{step:?}");
            }
            Step::Reject => {
                let request = client.get(URL).with_extension(CircuitKey::new("shut"));
                assert!(request.send().await.is_err());
                hits = 0;
            }
            Step::Advance(quarters) => {
                clock.advance(quarters * quarter);
                books.now += quarters * quarter;
                hits = 0;
            }
        }
        assert_eq!(transport.hits() - before, hits as usize, "{step:?}");
    }
}

proptest! {
    #[test]
    fn a_budget_agrees_with_a_log_of_every_call_and_every_retry(rule in rules(), steps in steps()) {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(compare(rule, steps));
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_lags_loses_no_call_and_none_counts_for_longer() {
    let (clock, lag) = (ManualClock::new(), 10 * MILLI);
    for window in [10 * MILLI, SECOND] {
        let budget = RetryBudget::builder().ratio(1.0).min_per_second(0).window(window);
        let budget = budget.clock(Lagging { clock: clock.clone(), lag }).build().unwrap();
        clock.advance(SECOND);
        assert_eq!(drain(&budget, URL).await, 1, "its own, in {window:?}");
        assert_eq!(drain(&budget, URL).await, 1);
    }
    let budget = RetryBudget::builder().ratio(1.0).min_per_second(0).window(SECOND);
    let budget = budget.clock(Lagging { clock: clock.clone(), lag }).build().unwrap();
    assert_eq!(ask(&budget, URL, 0).await, 0, "saves one");
    clock.advance(SECOND);
    assert_eq!(drain(&budget, URL).await, 1, "its own alone");
}
