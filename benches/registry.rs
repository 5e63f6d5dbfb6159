//! What the registry takes: to find a known origin among many, to make room for a new one, to recycle a place.
//!
//! `cargo bench --all-features --bench registry`
#![allow(missing_docs, reason = "criterion's macros make functions without")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a bench fails so")]

mod support;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use reqwest_resilience::{CircuitBreaker, internals::call};
use std::hint::black_box;
use support::{Floor, requests, settings, success};

/// How many circuits a breaker has room for where places are recycled, and how many newcomers are measured at
/// once.
const CAP: usize = 1_000;

fn known(c: &mut Criterion) {
    let mut group = c.benchmark_group("known origin");
    for residents in [1, 1_000, 10_000] {
        let requests = requests(residents);
        let answer = success();
        let floor = Floor::of(&requests);
        let mut turn = (0..residents).cycle();
        group.bench_function(format!("hashbrown lookup, {residents} residents"), |bencher| {
            bencher.iter(|| black_box(floor.look_up(black_box(&requests[turn.next().unwrap()])).unwrap()));
        });
        let breaker = CircuitBreaker::default();
        group.bench_function(format!("CircuitBreaker, {residents} residents"), |bencher| {
            bencher.iter(|| call(&breaker, black_box(&requests[turn.next().unwrap()]), &answer).unwrap());
        });
    }
    group.finish();
}

fn new(c: &mut Criterion) {
    let mut group = c.benchmark_group("new origin");
    group.throughput(Throughput::Elements(CAP as u64));
    let answer = success();
    // Each is seen once in ten rounds of the places, so that it is new whenever it comes.
    let requests = requests(10 * CAP);
    let mut rounds = requests.chunks(CAP).cycle();
    group.bench_function(format!("{CAP} below the cap"), |bencher| {
        bencher.iter_batched(
            || (CircuitBreaker::default(), rounds.next().unwrap()),
            |(breaker, round)| {
                for request in round {
                    call(&breaker, request, &answer).unwrap();
                }
                breaker
            },
            BatchSize::LargeInput,
        );
    });
    let full = CircuitBreaker::builder().max_circuits(CAP).build().unwrap();
    group.bench_function(format!("{CAP} at the cap"), |bencher| {
        bencher.iter(|| {
            for request in rounds.next().unwrap() {
                call(&full, request, &answer).unwrap();
            }
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = settings();
    targets = known, new
}
criterion_main!(benches);
