//! What a circuit costs a call, beside a plain hashbrown lookup of the same key, on one and on two threads.
//!
//! `cargo bench --all-features --bench circuit`
#![allow(missing_docs, reason = "criterion's macros make functions without")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a bench fails so")]

mod support;

use criterion::{Criterion, criterion_group, criterion_main};
use reqwest_resilience::{
    CircuitBreaker, Trip,
    internals::{LoneCircuit, call, rejection},
};
use std::{hint::black_box, time::Instant};
use support::{Floor, bench, bench_with, failure, open_breaker, requests, settings, success};

/// How many origins the keyed benches go round.
const ORIGINS: usize = 1_000;

/// The two rules that a circuit can open by.
fn breakers() -> [(&'static str, CircuitBreaker); 2] {
    [("failures in a row", Trip::consecutive(5)), ("failure rate", Trip::failure_rate(0.5).into())].map(
        |(name, trip)| {
            let breaker = CircuitBreaker::builder().defaults(|circuit| circuit.trip(trip));
            (name, breaker.build().unwrap())
        },
    )
}

/// One circuit, no key: the machine alone.
fn machine(c: &mut Criterion) {
    let circuit = LoneCircuit::closed();
    let mut group = c.benchmark_group("one circuit");
    bench(&mut group, "admit and settle", |_| {
        assert!(black_box(&circuit).admit_and_succeed());
    });
    group.finish();
}

/// From the request to the circuit to the outcome, beside the bare lookup.
fn keyed(c: &mut Criterion) {
    for origins in [1, ORIGINS] {
        let requests = requests(origins);
        let floor = Floor::of(&requests);
        let mut group = c.benchmark_group(format!("{origins} origins"));
        bench(&mut group, "hashbrown lookup", |n| {
            black_box(floor.look_up(black_box(&requests[n % origins])).unwrap());
        });
        for (name, breaker) in breakers() {
            bench_with(&mut group, name, success, |n, answer| {
                call(&breaker, black_box(&requests[n % origins]), answer).unwrap();
            });
        }
        group.finish();
    }
}

/// Every hundredth call fails, and none is refused.
fn failing(c: &mut Criterion) {
    let request = &requests(1)[0];
    let mut group = c.benchmark_group("1 % failures");
    for (name, breaker) in breakers() {
        bench_with(
            &mut group,
            name,
            || [success(), failure()],
            |n, answers| {
                call(&breaker, black_box(request), &answers[usize::from(n % 100 == 99)]).unwrap();
            },
        );
    }
    group.finish();
}

/// A call that is refused, beside what it cannot do without: lookup, clock, error.
fn refused(c: &mut Criterion) {
    let requests = requests(ORIGINS);
    let breaker = open_breaker(&requests);
    let floor = Floor::of(&requests);
    let mut group = c.benchmark_group("refused");
    bench(&mut group, "lookup, clock, error", |n| {
        let key = floor.look_up(black_box(&requests[n % ORIGINS])).unwrap();
        black_box(Instant::now());
        black_box(rejection(key.text().clone()));
    });
    bench_with(&mut group, "open circuit", success, |n, answer| {
        black_box(call(&breaker, black_box(&requests[n % ORIGINS]), answer).unwrap_err());
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = settings();
    targets = machine, keyed, failing, refused
}
criterion_main!(benches);
