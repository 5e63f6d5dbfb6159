//! What the layers cost in a chain: each beside one that does nothing, one on top of the other, and all of them
//! beside a bare client on a real connection.
//!
//! `cargo bench --all-features --bench chain`
#![allow(missing_docs, reason = "criterion's macros make functions without")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a bench fails so")]

mod support;

use axum::{Router, routing::get};
use criterion::{Criterion, criterion_group, criterion_main};
use reqwest_middleware::{ClientBuilder, Middleware};
use reqwest_resilience::{
    Bulkhead, CircuitBreaker, ClientBuilderExt, Deadline, Fallback, FallbackContext, Resilience, Retry,
};
use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};
use std::{future::ready, hint::black_box, sync::Arc, thread, time::Duration};
use support::{Noop, chain, plain_client, requests, send, settings};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn fallback() -> Fallback {
    Fallback::new(|context: FallbackContext| ready(context.into_outcome()))
}

/// A call that succeeds at once, through one layer.
fn one_layer(c: &mut Criterion) {
    let request = &requests(1)[0];
    let policy = ExponentialBackoff::builder().build_with_max_retries(2);
    let mut group = c.benchmark_group("one layer");
    for (name, client) in [
        ("none", chain(&[])),
        ("no-op", chain(&[Arc::new(Noop)])),
        ("CircuitBreaker", chain(&[Arc::new(CircuitBreaker::default())])),
        ("Retry", chain(&[Arc::new(Retry::default())])),
        ("reqwest-retry", chain(&[Arc::new(RetryTransientMiddleware::new_with_policy(policy))])),
    ] {
        group.bench_function(name, |bencher| bencher.iter(|| black_box(send(&client, request))));
    }
    group.finish();
}

/// The same through the first so many layers of the recommended chain.
fn stacked(c: &mut Criterion) {
    let request = &requests(1)[0];
    let layers: [(&str, Arc<dyn Middleware>); 5] = [
        ("Fallback", Arc::new(fallback())),
        ("Deadline", Arc::new(Deadline::after(Duration::from_secs(30)))),
        ("Retry", Arc::new(Retry::default())),
        ("CircuitBreaker", Arc::new(CircuitBreaker::default())),
        ("Bulkhead", Arc::new(Bulkhead::per_origin(64).unwrap())),
    ];
    // The deadline needs a timer.
    let runtime = runtime();
    let _entered = runtime.enter();
    let mut group = c.benchmark_group("stacked");
    let bare = chain(&[]);
    group.bench_function("0 layers", |bencher| bencher.iter(|| black_box(send(&bare, request))));
    for (last, (name, _)) in layers.iter().enumerate() {
        let stack: Vec<_> = layers[..=last].iter().map(|(_, layer)| Arc::clone(layer)).collect();
        let client = chain(&stack);
        group.bench_function(format!("{} layers, {name} innermost", stack.len()), |bencher| {
            bencher.iter(|| black_box(send(&client, request)));
        });
    }
    group.finish();
}

/// The URL of a server on loopback that answers each request at once and keeps its connections.
fn serve() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/v1/items", listener.local_addr().unwrap());
    thread::spawn(|| {
        runtime().block_on(async {
            let service = Router::new().route("/v1/items", get(|| ready("items")));
            axum::serve(TcpListener::from_std(listener).unwrap(), service).await
        })
    });
    url
}

/// The whole chain over a real connection.
fn loopback(c: &mut Criterion) {
    let url = serve();
    let runtime = runtime();
    let bare = plain_client();
    let resilience = Resilience::builder()
        .fallback(fallback())
        .bulkhead(Bulkhead::per_origin(64).unwrap())
        .build()
        .unwrap();
    let client = ClientBuilder::new(plain_client()).with_resilience(resilience).build();

    let mut group = c.benchmark_group("loopback");
    group.bench_function("reqwest", |bencher| {
        bencher
            .iter(|| runtime.block_on(async { bare.get(&url).send().await.unwrap().bytes().await.unwrap() }));
    });
    group.bench_function("Resilience", |bencher| {
        bencher.iter(|| {
            runtime.block_on(async { client.get(&url).send().await.unwrap().bytes().await.unwrap() })
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = settings();
    targets = one_layer, stacked, loopback
}
criterion_main!(benches);
