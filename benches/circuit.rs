//! What a circuit costs a call, beside a plain hashbrown lookup of the same key, on one and on two threads.
//!
//! `cargo bench --all-features --bench circuit`
#![allow(missing_docs, reason = "criterion's macros make functions without")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a bench fails so")]

use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main, measurement::WallTime};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use reqwest::{Method, Request, Response};
use reqwest_resilience::{
    CircuitBreaker, CircuitMode, Trip,
    internals::{LoneCircuit, LookupKey, StoredKey, call, rejection},
};
use std::{
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// How many origins the keyed benches go round.
const ORIGINS: usize = 1_000;

fn requests(number: usize) -> Vec<Request> {
    (0..number)
        .map(|n| {
            let url = format!("https://service-{n}.internal.example.com/v1/items").parse().unwrap();
            Request::new(Method::GET, url)
        })
        .collect()
}

/// The keys of `requests` in a plain map.
fn plain_map(requests: &[Request]) -> HashMap<StoredKey, usize, RandomState> {
    let keys = requests.iter().map(|request| LookupKey::of(request.url()).unwrap().to_stored());
    keys.zip(0..).collect()
}

#[allow(clippy::unnecessary_wraps, reason = "the type that a breaker judges")]
fn success() -> reqwest_middleware::Result<Response> {
    Ok(http::Response::new("").into())
}

/// Runs `work` on `threads` threads at once, `iters` times on each, and reports the slowest. Each thread has a
/// response of its own.
fn on_threads<W>(threads: usize, iters: u64, work: &W) -> Duration
where
    W: Fn(usize, &reqwest_middleware::Result<Response>) + Sync,
{
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let answer = success();
                    start.wait();
                    let begin = Instant::now();
                    for n in 0..usize::try_from(iters).unwrap_or(usize::MAX) {
                        work(n, &answer);
                    }
                    begin.elapsed()
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().unwrap()).max().unwrap_or_default()
    })
}

fn bench<W>(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, work: W)
where
    W: Fn(usize, &reqwest_middleware::Result<Response>) + Sync,
{
    for threads in [1, 2] {
        group.bench_function(format!("{name}, {threads} threads"), |bencher| {
            bencher.iter_custom(|iters| on_threads(threads, iters, &work));
        });
    }
}

/// One circuit, no key: the machine alone.
fn machine(c: &mut Criterion) {
    let circuit = LoneCircuit::closed();
    let mut group = c.benchmark_group("one circuit");
    bench(&mut group, "admit and settle", |_, _| {
        assert!(black_box(&circuit).admit_and_succeed());
    });
    group.finish();
}

/// From the request to the circuit to the outcome, beside the bare lookup.
fn keyed(c: &mut Criterion) {
    for origins in [1, ORIGINS] {
        let requests = requests(origins);
        let mut group = c.benchmark_group(format!("{origins} origins"));

        let floor = plain_map(&requests);
        bench(&mut group, "hashbrown lookup", |n, _| {
            let key = LookupKey::of(black_box(&requests[n % origins]).url()).unwrap();
            black_box(floor.get(&key));
        });
        let in_a_row = CircuitBreaker::default();
        bench(&mut group, "failures in a row", |n, answer| {
            call(&in_a_row, black_box(&requests[n % origins]), answer).unwrap();
        });
        let rate = CircuitBreaker::builder()
            .defaults(|circuit| circuit.trip(Trip::failure_rate(0.5)))
            .build()
            .unwrap();
        bench(&mut group, "failure rate", |n, answer| {
            call(&rate, black_box(&requests[n % origins]), answer).unwrap();
        });
        group.finish();
    }
}

/// A call that is refused, beside what it cannot do without: lookup, clock, error.
fn refused(c: &mut Criterion) {
    let requests = requests(ORIGINS);
    let breaker = CircuitBreaker::default();
    for request in &requests {
        breaker.set_mode(request.url().as_str(), CircuitMode::ForcedOpen).unwrap();
    }
    let floor = plain_map(&requests);
    let mut group = c.benchmark_group("refused");
    bench(&mut group, "lookup, clock, error", |n, _| {
        let key = LookupKey::of(black_box(&requests[n % ORIGINS]).url()).unwrap();
        let (key, _) = floor.get_key_value(&key).unwrap();
        black_box(Instant::now());
        black_box(rejection(key.text().clone()));
    });
    bench(&mut group, "open circuit", |n, answer| {
        black_box(call(&breaker, black_box(&requests[n % ORIGINS]), answer).unwrap_err());
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = machine, keyed, refused
}
criterion_main!(benches);
