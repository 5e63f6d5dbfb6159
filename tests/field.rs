//! Windows and rates: the faults that circuit breakers in the field had with them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unchecked_time_subtraction,
    reason = "a test fails so"
)]

mod support;

use futures::FutureExt;
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use reqwest_resilience::{
    CircuitBreaker, CircuitEvent, CircuitSettings, CircuitState, FailureRate, ManualClock, OpenReason, Trip,
};
use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};
use support::{KEY, Saw, Transport, URL, call, chain, plain_client, state};

const A_NANO: Duration = Duration::from_nanos(1);
/// The window of [`half_of_four`].
const WINDOW: Duration = Duration::from_secs(10);
const WAIT: Duration = ms(300);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn half_of_four() -> FailureRate {
    Trip::failure_rate(0.5).over(WINDOW).min_calls(4)
}

/// A circuit that opens for [`WAIT`].
struct Lab {
    breaker: CircuitBreaker,
    clock: ManualClock,
    transport: Transport,
    client: ClientWithMiddleware,
}

impl Lab {
    fn new(trip: impl Into<Trip>) -> Self {
        Self::with(|circuit| circuit.trip(trip))
    }

    fn with(settings: impl FnOnce(CircuitSettings) -> CircuitSettings) -> Self {
        let clock = ManualClock::new();
        let breaker = CircuitBreaker::builder()
            .defaults(|circuit| settings(circuit.open_for(WAIT)))
            .clock(clock.clone())
            .build()
            .unwrap();
        let transport = Transport::answering(200);
        Self { client: chain(&breaker, &transport), breaker, clock, transport }
    }

    async fn send(&self, status: u16) -> Saw {
        self.transport.answer(status);
        call(&self.client, URL).await
    }

    /// Sends calls with these answers until one of them opens the circuit, and says which, counted from 1.
    async fn opens_at(&self, statuses: &[u16]) -> Option<usize> {
        for (number, status) in (1..).zip(statuses) {
            assert_eq!(self.send(*status).await, Saw::Status(*status));
            if self.state() == CircuitState::Open {
                return Some(number);
            }
        }
        None
    }

    fn state(&self) -> CircuitState {
        state(&self.breaker, KEY)
    }

    /// Calls and failures in the window.
    fn window(&self) -> (u64, u64) {
        let window = self.breaker.snapshot(KEY).unwrap().window.unwrap();
        (window.calls, window.failures)
    }
}

#[tokio::test]
async fn f18_failures_older_than_the_window_do_not_count() {
    let lab = Lab::new(half_of_four());
    assert_eq!(lab.opens_at(&[503; 3]).await, None);
    lab.clock.advance(WINDOW);
    assert_eq!(lab.window(), (0, 0));
    assert_eq!(lab.opens_at(&[503; 4]).await, Some(4));
}

#[tokio::test]
async fn f19_the_call_that_meets_the_rate_opens_also_as_the_first_of_its_bucket() {
    let lab = Lab::new(Trip::failure_rate(0.1).over(WINDOW).min_calls(2));
    assert_eq!(lab.opens_at(&[200, 200]).await, None);
    lab.clock.advance(WINDOW / 10 + ms(1));
    assert_eq!(lab.opens_at(&[503]).await, Some(1));
}

#[tokio::test]
async fn f20_the_wait_counts_from_the_failure_that_opened() {
    let lab = Lab::new(half_of_four());
    for _ in 0..4 {
        lab.clock.advance(WAIT);
        lab.send(503).await;
    }
    lab.clock.advance(WAIT - A_NANO);
    assert_eq!(lab.send(200).await, Saw::Rejected);
    lab.clock.advance(A_NANO);
    assert_eq!(lab.send(503).await, Saw::Status(503));
    assert_eq!(lab.send(200).await, Saw::Rejected);
}

#[tokio::test]
async fn f22_a_rate_opens_at_exactly_its_share() {
    for (rate, statuses, opens_at) in [
        (0.5, [200, 200, 503, 503], Some(4)),
        (0.5, [200, 200, 200, 503], None),
        (0.5, [503, 503, 200, 200], Some(4)),
        (1.0, [503, 503, 503, 503], Some(4)),
        (1.0, [503, 503, 503, 200], None),
        (1.0, [200, 503, 503, 503], None),
    ] {
        let lab = Lab::new(Trip::failure_rate(rate).min_calls(4));
        assert_eq!(lab.opens_at(&statuses).await, opens_at, "{rate} {statuses:?}");
    }
}

#[tokio::test]
async fn f22_a_rate_is_the_decimal_that_was_written() {
    for (rate, failures, calls) in [(0.1, 1, 10), (0.3, 3, 10), (0.7, 7, 10), (0.3333, 1, 3), (0.29, 29, 100)]
    {
        let lab = || {
            let min_calls = u32::try_from(calls).unwrap();
            Lab::new(Trip::failure_rate(rate).min_calls(min_calls))
        };
        // Whatever comes last: a success opens too.
        let first_sick = [vec![503; failures], vec![200; calls - failures]].concat();
        let first_well = [vec![200; calls - failures], vec![503; failures]].concat();
        for statuses in [first_sick, first_well] {
            assert_eq!(lab().opens_at(&statuses).await, Some(calls), "{rate} {statuses:?}");
        }
        let one_less = [vec![503; failures - 1], vec![200; calls - failures + 1]].concat();
        assert_eq!(lab().opens_at(&one_less).await, None, "{rate}");
    }
    let a_bit_more = Lab::new(Trip::failure_rate(0.3334).min_calls(3));
    assert_eq!(a_bit_more.opens_at(&[503, 200, 200]).await, None);
}

#[tokio::test]
async fn either_rule_opens() {
    let (run, rate) = (Trip::consecutive(3), Trip::failure_rate(0.5).over(WINDOW).min_calls(6));
    for both in [run.or(rate), rate.or(run)] {
        assert_eq!(Lab::new(both).opens_at(&[503, 503, 503]).await, Some(3));
        assert_eq!(Lab::new(both).opens_at(&[503, 200].repeat(3)).await, Some(6));
        assert_eq!(Lab::new(both).opens_at(&[503, 503, 200, 200, 200]).await, None);
    }
}

/// Fails every call at once, without a lock that would put the callers in a row.
struct Sick;

#[async_trait::async_trait]
impl Middleware for Sick {
    async fn handle(
        &self,
        _: Request,
        _: &mut Extensions,
        _: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let response = http::Response::builder().status(503).body("").unwrap();
        Ok(response.into())
    }
}

#[test]
fn f23_of_a_thousand_concurrent_failures_none_is_lost_and_none_counts_twice() {
    const THREADS: usize = 4;
    const CALLS: usize = 1_000;
    const ROUNDS: usize = 200;
    let opened = Arc::new(AtomicUsize::new(0));
    let heard = Arc::clone(&opened);
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| {
            let all = u32::try_from(CALLS).unwrap();
            circuit.trip(Trip::failure_rate(1.0).over(Duration::from_secs(3600)).min_calls(all))
        })
        .on_event(move |event| {
            if let CircuitEvent::Opened {
                reason: OpenReason::FailureRate,
                failures: 1_000,
                calls: Some(1_000),
                ..
            } = event
            {
                heard.fetch_add(1, Ordering::SeqCst);
            }
        })
        .build()
        .unwrap();
    let client = ClientBuilder::new(plain_client()).with(breaker.clone()).with(Sick).build();
    for round in 1..=ROUNDS {
        let start = Barrier::new(THREADS);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..CALLS / THREADS {
                        let saw = call(&client, URL).now_or_never();
                        assert_eq!(saw, Some(Saw::Status(503)));
                    }
                });
            }
        });
        assert_eq!(state(&breaker, KEY), CircuitState::Open);
        assert_eq!(opened.load(Ordering::SeqCst), round);
        breaker.reset(KEY);
    }
}

#[tokio::test]
async fn f24_a_thousand_successes_do_not_delay_the_next_outage() {
    let lab = Lab::new(Trip::failure_rate(0.5).over(ms(100)).min_calls(4));
    for _ in 0..1_000 {
        lab.send(200).await;
        lab.clock.advance(ms(10));
    }
    // A call every 10 ms: ten of them fill the window, so five failures are half of it.
    let mut failures = 0;
    while lab.state() == CircuitState::Closed && failures < 10 {
        lab.send(503).await;
        lab.clock.advance(ms(10));
        failures += 1;
    }
    assert_eq!(failures, 5);

    let lab = Lab::new(Trip::failure_rate(0.5).over(ms(100)).min_calls(4));
    assert_eq!(lab.opens_at(&[200; 1_000]).await, None);
    lab.clock.advance(ms(100));
    assert_eq!(lab.opens_at(&[503; 4]).await, Some(4));
}

#[tokio::test]
async fn f25_probes_further_apart_than_the_window_close_or_reopen_all_the_same() {
    for (last, state) in [(200, CircuitState::Closed), (503, CircuitState::Open)] {
        let lab = Lab::with(|circuit| circuit.trip(half_of_four()).success_threshold(3));
        assert_eq!(lab.opens_at(&[503; 4]).await, Some(4));
        for status in [200, 200, last] {
            lab.clock.advance(100 * WINDOW);
            assert_eq!(lab.send(status).await, Saw::Status(status));
        }
        assert_eq!(lab.state(), state);
    }
}

#[tokio::test]
async fn f26_windows_of_any_length_work() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    for window in [A_NANO, ms(4), DAY, 100 * 365 * DAY] {
        let lab = Lab::new(Trip::failure_rate(0.5).over(window).min_calls(4));
        assert_eq!(lab.opens_at(&[503; 3]).await, None);
        // The shortest one reaches as far as a bucket of one nanosecond lets it.
        lab.clock.advance(window.max(10 * A_NANO));
        for number in 1..=4 {
            assert_eq!(lab.state(), CircuitState::Closed, "{window:?}");
            lab.send(503).await;
            if number < 4 {
                lab.clock.advance(window / 4);
            }
        }
        assert_eq!(lab.state(), CircuitState::Open, "{window:?}");
    }
}

#[tokio::test]
async fn a_call_counts_for_nine_tenths_of_the_window_at_least_and_never_for_more_than_all_of_it() {
    for millis in (0..1_000).step_by(37) {
        let lab = Lab::new(half_of_four());
        lab.clock.advance(ms(millis));
        lab.send(503).await;
        lab.clock.advance(WINDOW / 10 * 9);
        assert_eq!(lab.window(), (1, 1), "{millis}");
        lab.clock.advance(WINDOW / 10);
        assert_eq!(lab.window(), (0, 0), "{millis}");
    }
}
