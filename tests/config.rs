//! Settings that cannot be are errors that say so; those that can be work, however extreme.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use futures::FutureExt;
use proptest::{
    collection::vec,
    num,
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};
use reqwest_middleware::ClientWithMiddleware;
use reqwest_resilience::{
    CircuitBreaker, CircuitBreakerBuilder, CircuitMode, CircuitSettings, CircuitState, ManualClock,
    Rejection, Scope, Trip,
};
use std::{cell::Cell, time::Duration};
use support::{KEY, Reply, Saw, Transport, URL, call, chain, state};

type Set = fn(CircuitSettings) -> CircuitSettings;

const ORIGIN: &str = "https://api.example.com";
const NANO: Duration = Duration::from_nanos(1);
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// A `Retry-After` of more seconds than any integer holds.
const AGES: &str = "99999999999999999999999999";

/// Asserts that `build` names this field, this value and this circuit.
#[track_caller]
fn assert_refused(builder: CircuitBreakerBuilder, field: &str, value: &str, circuit_key: Option<&str>) {
    let error = builder.build().expect_err(field);
    assert_eq!((error.field(), error.value(), error.circuit_key()), (field, value, circuit_key));
    assert!(!error.rule().is_empty());
    let place = circuit_key.map_or(String::new(), |key| format!(" ({key})"));
    assert_eq!(error.to_string(), format!("{field} = {value}{place}: {}", error.rule()));
}

#[test]
fn f21_a_setting_that_cannot_be_is_an_error_that_names_field_value_and_circuit() {
    let refused: [(&str, &str, Set); 33] = [
        ("consecutive", "0", |c| c.trip(Trip::consecutive(0))),
        ("failure_rate", "0", |c| c.trip(Trip::failure_rate(0.0))),
        ("failure_rate", "0.0000000004", |c| c.trip(Trip::failure_rate(4e-10))),
        ("failure_rate", "-0.5", |c| c.trip(Trip::failure_rate(-0.5))),
        ("failure_rate", "1.5", |c| c.trip(Trip::failure_rate(1.5))),
        ("failure_rate", "1.0000000000000002", |c| c.trip(Trip::failure_rate(1.0 + f64::EPSILON))),
        ("failure_rate", "NaN", |c| c.trip(Trip::failure_rate(f64::NAN))),
        ("failure_rate", "inf", |c| c.trip(Trip::failure_rate(f64::INFINITY))),
        ("failure_rate", "-inf", |c| c.trip(Trip::failure_rate(f64::NEG_INFINITY))),
        ("min_calls", "0", |c| c.trip(Trip::failure_rate(0.5).min_calls(0))),
        ("over", "0ns", |c| c.trip(Trip::failure_rate(0.5).over(Duration::ZERO))),
        // Each half of a pair is looked at.
        ("consecutive", "0", |c| c.trip(Trip::failure_rate(0.5).or(Trip::consecutive(0)))),
        ("min_calls", "0", |c| c.trip(Trip::consecutive(5).or(Trip::failure_rate(0.5).min_calls(0)))),
        ("trip", "two rules of one kind", |c| c.trip(Trip::consecutive(5).or(Trip::consecutive(5)))),
        ("trip", "two rules of one kind", |c| c.trip(Trip::failure_rate(0.5).or(Trip::failure_rate(0.1)))),
        ("trip", "two rules of one kind", |c| {
            let twice = Trip::consecutive(5).or(Trip::consecutive(5));
            c.trip(Trip::failure_rate(0.5).or(twice))
        }),
        ("trip", "two rules of one kind", |c| {
            let twice = Trip::consecutive(5).or(Trip::consecutive(5));
            c.trip(twice.or(Trip::failure_rate(0.5)))
        }),
        ("trip", "two rules of one kind", |c| {
            let pair = || Trip::consecutive(5).or(Trip::failure_rate(0.5));
            c.trip(pair().or(pair()))
        }),
        ("failure_statuses", "99", |c| c.failure_statuses([500, 99])),
        ("failure_statuses", "1000", |c| c.failure_statuses([1000, 500])),
        ("failure_statuses", "65535", |c| c.failure_statuses([u16::MAX])),
        ("open_jitter", "NaN", |c| c.open_jitter(f64::NAN)),
        ("open_jitter", "-0.1", |c| c.open_jitter(-0.1)),
        ("open_jitter", "1.1", |c| c.open_jitter(1.1)),
        ("open_jitter", "inf", |c| c.open_jitter(f64::INFINITY)),
        ("probes", "0", |c| c.probes(0)),
        ("probes", "256", |c| c.probes(256)),
        ("probes", "4294967295", |c| c.probes(u32::MAX)),
        ("success_threshold", "0", |c| c.success_threshold(0)),
        ("success_threshold", "256", |c| c.success_threshold(256)),
        ("probe_lease", "0ns", |c| c.probe_lease(Duration::ZERO)),
        ("slow_call", "0ns", |c| c.slow_call(Duration::ZERO)),
        ("max_open_for", "1s", |c| c.open_for(Duration::from_secs(2)).max_open_for(Duration::from_secs(1))),
    ];
    for (field, value, set) in refused {
        let builder = CircuitBreaker::builder;
        assert_refused(builder().defaults(set), field, value, None);
        let key = Some("https://api.example.com:443");
        assert_refused(builder().origin(ORIGIN, set), field, value, key);
        assert_refused(builder().circuit("reports", set), field, value, Some("reports"));
    }
}

#[test]
fn a_longest_wait_is_compared_with_the_wait_that_was_inherited() {
    // Thirty seconds is the default of `open_for`.
    let short = |c: CircuitSettings| c.max_open_for(Duration::from_secs(29));
    let builder = CircuitBreaker::builder().origin(ORIGIN, short);
    assert_refused(builder, "max_open_for", "29s", Some("https://api.example.com:443"));
    let builder = CircuitBreaker::builder()
        .defaults(|c| c.max_open_for(Duration::from_secs(60)))
        .circuit("reports", |c| c.open_for(Duration::from_secs(61)));
    assert_refused(builder, "max_open_for", "60s", Some("reports"));
    // Where the inherited wait is as short, it fits.
    let builder =
        CircuitBreaker::builder().defaults(|c| c.open_for(Duration::from_secs(29))).origin(ORIGIN, short);
    assert!(builder.build().is_ok());
}

#[test]
fn what_the_breaker_as_a_whole_cannot_be_is_an_error_too() {
    let same = |c: CircuitSettings| c;
    let builder = CircuitBreaker::builder;
    assert_refused(builder().max_circuits(0), "max_circuits", "0", None);
    for no_key in ["", "https://", "://", "custom://host", "file:///etc/hosts"] {
        let value = format!("{no_key:?}");
        assert_refused(builder().scope(Scope::shared(no_key)), "scope", &value, None);
        assert_refused(builder().circuit(no_key, same), "circuit", &value, None);
        assert_refused(builder().origin(no_key, same), "origin", &value, None);
    }
    for name in ["api.example.com", "localhost:3001", "mailto:example.com"] {
        assert_refused(builder().origin(name, same), "origin", &format!("{name:?}"), None);
        assert!(builder().circuit(name, same).build().is_ok());
    }
}

/// Opens at the first failure, on a clock that stands until it is moved.
fn touchy(set: Set) -> (ManualClock, Transport, CircuitBreaker, ClientWithMiddleware) {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder()
        .defaults(|c| set(c.trip(Trip::consecutive(1))))
        .clock(clock.clone())
        .max_circuits(usize::MAX)
        .build()
        .unwrap();
    let transport = Transport::answering(503);
    let client = chain(&breaker, &transport);
    (clock, transport, breaker, client)
}

#[tokio::test]
async fn the_longest_wait_never_ends() {
    for set in [
        (|c| c.open_for(Duration::MAX)) as Set,
        |c| c.open_for(Duration::MAX).max_open_for(Duration::MAX).open_jitter(1.0),
        |c| c.honor_retry_after(Duration::MAX).open_jitter(1.0),
    ] {
        let (clock, transport, breaker, client) = touchy(set);
        clock.advance(NANO);
        transport.script([Reply::Header(503, "retry-after", AGES)]);
        assert_eq!(call(&client, URL).await, Saw::Status(503));
        for _ in 0..2 {
            let error = client.get(URL).send().await.unwrap_err();
            let Some(Rejection::CircuitOpen { retry_after, .. }) = Rejection::find(&error) else {
                panic!("{error:?}");
            };
            assert_eq!(*retry_after, Some(Duration::MAX));
            assert_eq!(breaker.snapshot(KEY).unwrap().retry_after, *retry_after);
            clock.advance(CENTURY);
        }
    }
}

#[tokio::test]
async fn a_wait_that_doubles_without_a_bound_overflows_nothing() {
    let (clock, _, breaker, client) = touchy(|c| c.open_for(NANO).max_open_for(Duration::MAX));
    // After 62 doublings the outage is as old as the longest time that fits a clock of nanoseconds.
    for reopenings in 0..62 {
        assert_eq!(call(&client, URL).await, Saw::Status(503));
        let wait = breaker.snapshot(KEY).unwrap().retry_after.unwrap();
        assert_eq!(wait, Duration::from_nanos(1 << reopenings), "{reopenings}");
        clock.advance(wait);
    }
}

#[tokio::test]
async fn the_largest_evidence_is_counted_and_never_met() {
    let (clock, _, breaker, client) = touchy(|c| {
        let rate = Trip::failure_rate(1e-9).over(Duration::MAX).min_calls(u32::MAX);
        c.trip(rate.or(Trip::consecutive(u32::MAX)))
            .failure_statuses(100..=999)
            .slow_call(Duration::MAX)
            .abandoned_after(Duration::MAX)
    });
    for failures in 1..=100 {
        assert_eq!(call(&client, URL).await, Saw::Status(503));
        clock.advance(CENTURY / 100);
        let circuit = breaker.snapshot(KEY).unwrap();
        let window = circuit.window.unwrap();
        assert_eq!(circuit.state, CircuitState::Closed);
        assert_eq!(circuit.consecutive_failures, failures);
        assert_eq!((window.calls, window.failures), (failures.into(), failures.into()));
    }
}

#[tokio::test]
async fn two_hundred_and_fifty_five_probes_go_out_at_once_on_a_lease_that_never_ends() {
    let (clock, transport, breaker, client) =
        touchy(|c| c.open_for(Duration::ZERO).probes(255).success_threshold(255).probe_lease(Duration::MAX));
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    transport.hold();
    let mut probes = Vec::new();
    for _ in 0..255 {
        let mut probe = Box::pin(call(&client, URL));
        assert_eq!((&mut probe).now_or_never(), None, "a probe waits for its answer");
        probes.push(probe);
    }
    clock.advance(CENTURY);
    assert_eq!(call(&client, URL).await, Saw::Rejected);
    assert_eq!(breaker.snapshot(KEY).unwrap().probes_in_flight, 255);
    for probe in probes {
        assert_eq!(state(&breaker, KEY), CircuitState::HalfOpen);
        transport.take_held().unwrap().answer(200);
        assert_eq!(probe.await, Saw::Status(200));
    }
    assert_eq!(state(&breaker, KEY), CircuitState::Closed);
}

#[tokio::test]
async fn the_smallest_settings_work() {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder()
        .defaults(|c| {
            let rate = Trip::failure_rate(1e-9).over(NANO).min_calls(1);
            c.trip(rate.or(Trip::consecutive(1)))
                .failure_statuses([])
                .open_for(Duration::ZERO)
                .max_open_for(Duration::ZERO)
                .open_jitter(0.0)
                .honor_retry_after(Duration::ZERO)
                .probes(1)
                .success_threshold(1)
                .probe_lease(NANO)
                .slow_call(NANO)
                .abandoned_after(Duration::ZERO)
        })
        .max_circuits(1)
        .clock(clock.clone())
        .build()
        .unwrap();
    let transport = Transport::answering(503);
    let client = chain(&breaker, &transport);
    // No status is a failure, and nothing took longer than a nanosecond.
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    assert_eq!(state(&breaker, KEY), CircuitState::Closed);
    for _ in 0..3 {
        // Every dropped call is a failure; the wait is over as it begins.
        transport.script([Reply::Hang]);
        assert_eq!(call(&client, URL).now_or_never(), None);
        assert_eq!(state(&breaker, KEY), CircuitState::Open);
        assert_eq!(call(&client, URL).await, Saw::Status(503));
        assert_eq!(state(&breaker, KEY), CircuitState::Closed);
    }
    // A probe whose lease is over is no longer one.
    transport.script([Reply::Hang, Reply::Hang]);
    assert_eq!(call(&client, URL).now_or_never(), None);
    let mut probe = Box::pin(call(&client, URL));
    assert_eq!((&mut probe).now_or_never(), None);
    assert_eq!(call(&client, URL).await, Saw::Rejected);
    clock.advance(NANO);
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    assert_eq!(state(&breaker, KEY), CircuitState::Closed);
}

/// A rule to trip by.
#[derive(Clone, Debug)]
enum Rule {
    Run(u32),
    Rate(f64, Duration, u32),
}

/// A value for every setting of a circuit.
#[derive(Clone, Debug)]
struct Values {
    rules: Vec<Rule>,
    failure_statuses: Vec<u16>,
    open_for: Duration,
    max_open_for: Duration,
    open_jitter: f64,
    honor_retry_after: Duration,
    probes: u32,
    success_threshold: u32,
    probe_lease: Duration,
    slow_call: Duration,
    abandoned_after: Duration,
    mode: CircuitMode,
}

impl Values {
    fn set(&self, circuit: CircuitSettings) -> CircuitSettings {
        let rules = self.rules.iter().map(|rule| match *rule {
            Rule::Run(failures) => Trip::consecutive(failures),
            Rule::Rate(rate, over, calls) => Trip::failure_rate(rate).over(over).min_calls(calls).into(),
        });
        circuit
            .trip(rules.reduce(Trip::or).unwrap())
            .failure_statuses(self.failure_statuses.iter().copied())
            .open_for(self.open_for)
            .max_open_for(self.max_open_for)
            .open_jitter(self.open_jitter)
            .honor_retry_after(self.honor_retry_after)
            .probes(self.probes)
            .success_threshold(self.success_threshold)
            .probe_lease(self.probe_lease)
            .slow_call(self.slow_call)
            .abandoned_after(self.abandoned_after)
            .mode(self.mode)
    }

    /// What the settings ask for, in the words of their documentation.
    fn are_legal(&self) -> bool {
        let runs = self.rules.iter().filter(|rule| matches!(rule, Rule::Run(_))).count();
        let rates = self.rules.len() - runs;
        runs <= 1
            && rates <= 1
            && self.rules.iter().all(|rule| match *rule {
                Rule::Run(failures) => failures != 0,
                Rule::Rate(rate, over, calls) => {
                    1.0 <= (rate * 1e9).round() && rate <= 1.0 && !over.is_zero() && calls != 0
                }
            })
            && self.failure_statuses.iter().all(|status| (100..=999).contains(status))
            && self.open_for <= self.max_open_for
            && (0.0..=1.0).contains(&self.open_jitter)
            && (1..=255).contains(&self.probes)
            && (1..=255).contains(&self.success_threshold)
            && !self.probe_lease.is_zero()
            && !self.slow_call.is_zero()
    }
}

fn duration() -> impl Strategy<Value = Duration> + Clone {
    let any = (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Duration::new(secs, nanos));
    prop_oneof![
        1 => Just(Duration::ZERO),
        4 => Just(NANO),
        4 => Just(Duration::MAX),
        16 => any,
    ]
}

fn count() -> impl Strategy<Value = u32> {
    prop_oneof![30 => 1..=255_u32, 1 => Just(0), 1 => 256..=u32::MAX]
}

fn share() -> impl Strategy<Value = f64> {
    let edges = [0.0, -0.0, 1e-10, 1e-9, 1.0, 1.0 + f64::EPSILON];
    prop_oneof![20 => 1e-9..=1.0, 1 => select(edges.to_vec()), 1 => num::f64::ANY]
}

fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        any::<u32>().prop_map(Rule::Run),
        count().prop_map(Rule::Run),
        (share(), duration(), count()).prop_map(|(rate, over, calls)| Rule::Rate(rate, over, calls)),
    ]
}

prop_compose! {
    fn values()(
        rules in vec(rule(), 1..=2),
        failure_statuses in vec(prop_oneof![50 => 100..=999_u16, 1 => any::<u16>()], 0..4),
        (open_for, max_open_for) in (duration(), duration()),
        open_jitter in share(),
        (honor_retry_after, probe_lease) in (duration(), duration()),
        (probes, success_threshold) in (count(), count()),
        (slow_call, abandoned_after) in (duration(), duration()),
        mode in select(vec![
            CircuitMode::Enforcing,
            CircuitMode::Shadow,
            CircuitMode::ForcedOpen,
            CircuitMode::ForcedClosed,
        ]),
    ) -> Values {
        Values {
            rules, failure_statuses, open_for, max_open_for, open_jitter, honor_retry_after, probes,
            success_threshold, probe_lease, slow_call, abandoned_after, mode,
        }
    }
}

/// A failure with a wait of its own, a dropped call and a success, then time passes; three times over.
fn exercise(breaker: &CircuitBreaker, clock: &ManualClock, pause: Duration) {
    let transport = Transport::answering(200);
    let client = chain(breaker, &transport);
    for _ in 0..3 {
        transport.script([Reply::Header(503, "retry-after", AGES), Reply::Hang]);
        for _ in 0..4 {
            let _ = call(&client, URL).now_or_never();
        }
        clock.advance(pause);
        assert!(breaker.snapshot(KEY).unwrap().to_string().starts_with(KEY));
    }
}

#[test]
fn whatever_the_values_build_refuses_exactly_the_illegal_ones_and_nothing_panics() {
    let (legal, illegal) = (Cell::new(0), Cell::new(0));
    let verdict =
        TestRunner::new(Config::with_cases(1_000)).run(&(values(), duration()), |(values, pause)| {
            let clock = ManualClock::new();
            let breaker = CircuitBreaker::builder()
                .origin(URL, |circuit| values.set(circuit))
                .clock(clock.clone())
                .build();
            prop_assert_eq!(breaker.is_ok(), values.are_legal());
            match breaker {
                Ok(breaker) => {
                    exercise(&breaker, &clock, pause);
                    legal.set(legal.get() + 1);
                }
                Err(error) => {
                    prop_assert_eq!(error.circuit_key(), Some(KEY));
                    prop_assert!(error.to_string().starts_with(error.field()));
                    illegal.set(illegal.get() + 1);
                }
            }
            Ok(())
        });
    verdict.unwrap();
    let enough = 20;
    assert!(enough < legal.get() && enough < illegal.get(), "{legal:?} {illegal:?}");
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::default() })]

    #[test]
    fn whatever_the_text_all_agree_whether_it_is_a_key_and_a_url_is_only_its_origin(
        text in prop_oneof![
            "\\PC{0,12}",
            "(https?|ftp|x)://\\PC{0,12}",
            "https?://[a-c0-9.:@/?#\\[\\]%-]{0,12}",
            "http://(u:p@)?[a-c]{1,3}(:[0-9]{1,3})?/[a-c?#]{0,3}",
        ],
    ) {
        let same = |circuit: CircuitSettings| circuit;
        let breaker = CircuitBreaker::default();
        let is_key = breaker.set_mode(&text, CircuitMode::Shadow).is_ok();
        let is_url = text.contains("://");
        for (builder, accepts) in [
            (CircuitBreaker::builder().circuit(&text, same), is_key),
            (CircuitBreaker::builder().scope(Scope::shared(&text)), is_key),
            (CircuitBreaker::builder().origin(&text, same), is_key && is_url),
        ] {
            prop_assert_eq!(builder.build().is_ok(), accepts);
        }
        let found = breaker.snapshot(&text);
        prop_assert_eq!(found.is_some(), is_key);
        if let Some(circuit) = found {
            let key = circuit.circuit_key.clone();
            prop_assert_eq!(breaker.snapshot(&key), Some(circuit));
            let host_and_port = key.split_once("://").map(|(_, rest)| rest);
            prop_assert_eq!(host_and_port.is_some(), is_url);
            prop_assert!(!host_and_port.unwrap_or_default().contains(['@', '/', '?', '#']));
            prop_assert!(is_url || *key == *text);
        }
    }
}
