//! What a retry budget costs beside tower's, and a call that needs no retry beside reqwest-retry.
//!
//! `cargo bench --all-features --bench retry`
#![allow(missing_docs, reason = "criterion's macros make functions without")]
#![allow(clippy::unwrap_used, reason = "a bench fails so")]

use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main, measurement::WallTime};
use futures::FutureExt;
use http::Extensions;
use reqwest::{Method, Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next, Result};
use reqwest_resilience::{Retry, internals::LoneBudget};
use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};
use std::{
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};
use tower::retry::budget::{Budget, TpsBudget};

/// Runs `work` on `threads` threads at once, `iters` times on each, and reports the slowest.
fn on_threads(threads: usize, iters: u64, work: &(impl Fn() + Sync)) -> Duration {
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        let run = || {
            start.wait();
            let begin = Instant::now();
            (0..iters).for_each(|_| work());
            begin.elapsed()
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).max().unwrap_or_default()
    })
}

fn bench(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, work: impl Fn() + Sync) {
    for threads in [1, 2] {
        group.bench_function(format!("{name}, {threads} threads"), |bencher| {
            bencher.iter_custom(|iters| on_threads(threads, iters, &work));
        });
    }
}

fn budget(c: &mut Criterion) {
    let ours = LoneBudget::new();
    let theirs = TpsBudget::new(Duration::from_secs(10), 10, 0.2);
    let mut group = c.benchmark_group("deposit");
    bench(&mut group, "RetryBudget", || black_box(&ours).deposit());
    bench(&mut group, "TpsBudget", || black_box(&theirs).deposit());
    group.finish();
    let mut group = c.benchmark_group("withdraw");
    bench(&mut group, "RetryBudget", || {
        black_box(black_box(&ours).withdraw());
    });
    bench(&mut group, "TpsBudget", || {
        black_box(black_box(&theirs).withdraw());
    });
    group.finish();
}

/// A layer that does nothing.
struct Noop;

#[async_trait::async_trait]
impl Middleware for Noop {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        next.run(request, extensions).await
    }
}

/// The end of the chain: answers at once.
struct Well;

#[async_trait::async_trait]
impl Middleware for Well {
    async fn handle(&self, _: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        Ok(http::Response::new("").into())
    }
}

fn client(layer: impl Middleware) -> ClientWithMiddleware {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    ClientBuilder::new(client).with(layer).with(Well).build()
}

/// A call whose first attempt succeeds, through one layer.
fn first_attempt(c: &mut Criterion) {
    let policy = ExponentialBackoff::builder().build_with_max_retries(2);
    let url: reqwest::Url = "https://api.example.com/v1/items".parse().unwrap();
    let mut group = c.benchmark_group("first attempt succeeds");
    for (name, client) in [
        ("no-op", client(Noop)),
        ("Retry", client(Retry::default())),
        ("reqwest-retry", client(RetryTransientMiddleware::new_with_policy(policy))),
    ] {
        bench(&mut group, name, || {
            let request = Request::new(Method::GET, url.clone());
            black_box(client.execute(request).now_or_never().unwrap().unwrap());
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = budget, first_attempt
}
criterion_main!(benches);
