//! What a bulkhead with a free slot costs beside a bare semaphore, and a watched body for each frame.
//!
//! `cargo bench --all-features --bench bulkhead`
#![allow(missing_docs, reason = "criterion's macros make functions without")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a bench fails so")]

mod support;

use criterion::{Criterion, criterion_group, criterion_main};
use futures::FutureExt;
use http::Extensions;
use http_body::{Body as HttpBody, Frame};
use reqwest::{Body, Request, Response};
use reqwest_middleware::{Middleware, Next, Result};
use reqwest_resilience::{Bulkhead, Until};
use std::{
    convert::Infallible,
    hint::black_box,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use support::{Noop, chain, requests, send, settings};
use tokio::sync::Semaphore;

/// Frames of the body whose reading is measured.
const FRAMES: usize = 1_000;

/// Answers with a body of many frames.
struct Streaming;

#[async_trait::async_trait]
impl Middleware for Streaming {
    async fn handle(&self, _: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        Ok(http::Response::new(Body::wrap(Frames(FRAMES))).into())
    }
}

/// So many small frames.
struct Frames(usize);

impl HttpBody for Frames {
    type Data = &'static [u8];
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Self::Data>, Infallible>>> {
        let Some(left) = self.0.checked_sub(1) else {
            return Poll::Ready(None);
        };
        self.0 = left;
        Poll::Ready(Some(Ok(Frame::data(b"frame"))))
    }
}

fn free_slot(c: &mut Criterion) {
    let semaphore = Semaphore::new(64);
    let request = &requests(1)[0];
    let mut group = c.benchmark_group("free slot");
    group.bench_function("Semaphore::acquire", |bencher| {
        bencher.iter(|| drop(black_box(&semaphore).acquire().now_or_never().unwrap().unwrap()));
    });
    let bulkhead = Bulkhead::per_origin(64).unwrap();
    for (name, client) in
        [("no-op layer", chain(&[Arc::new(Noop)])), ("Bulkhead layer", chain(&[Arc::new(bulkhead)]))]
    {
        group.bench_function(name, |bencher| bencher.iter(|| black_box(send(&client, request))));
    }
    group.finish();
}

fn body(c: &mut Criterion) {
    let watched = Bulkhead::builder().max_concurrent(64).hold(Until::BodyEnd).build().unwrap();
    let request = &requests(1)[0];
    let mut group = c.benchmark_group(format!("{FRAMES} frames"));
    for (name, client) in [
        ("plain body", chain(&[Arc::new(Noop), Arc::new(Streaming)])),
        ("watched body", chain(&[Arc::new(watched), Arc::new(Streaming)])),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let mut response = send(&client, request);
                while let Some(chunk) = response.chunk().now_or_never().unwrap().unwrap() {
                    black_box(chunk);
                }
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = settings();
    targets = free_slot, body
}
criterion_main!(benches);
