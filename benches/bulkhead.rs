//! What a bulkhead with a free slot costs beside a bare semaphore, and a watched body for each frame.
//!
//! `cargo bench --all-features --bench bulkhead`
#![allow(missing_docs, reason = "criterion's macros make functions without")]
#![allow(clippy::unwrap_used, reason = "a bench fails so")]

use criterion::{Criterion, criterion_group, criterion_main};
use futures::FutureExt;
use http::Extensions;
use http_body::{Body as HttpBody, Frame};
use reqwest::{Body, Method, Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next, Result};
use reqwest_resilience::{Bulkhead, Until};
use std::{
    convert::Infallible,
    hint::black_box,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::sync::Semaphore;

/// Frames of the body whose reading is measured.
const FRAMES: usize = 1_000;

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

/// The end of the chain: answers at once, with a body of so many frames.
struct Well(usize);

#[async_trait::async_trait]
impl Middleware for Well {
    async fn handle(&self, _: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        Ok(http::Response::new(Body::wrap(Frames(self.0))).into())
    }
}

/// A body of small frames.
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

fn client(layer: impl Middleware, frames: usize) -> ClientWithMiddleware {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    ClientBuilder::new(client).with(layer).with(Well(frames)).build()
}

fn call(client: &ClientWithMiddleware) -> Response {
    let request = Request::new(Method::GET, "https://api.example.com/v1/items".parse().unwrap());
    client.execute(request).now_or_never().unwrap().unwrap()
}

fn free_slot(c: &mut Criterion) {
    let semaphore = Semaphore::new(64);
    let mut group = c.benchmark_group("free slot");
    group.bench_function("Semaphore::acquire", |bencher| {
        bencher.iter(|| drop(black_box(&semaphore).acquire().now_or_never().unwrap().unwrap()));
    });
    for (name, client) in
        [("no-op layer", client(Noop, 0)), ("Bulkhead layer", client(Bulkhead::per_origin(64).unwrap(), 0))]
    {
        group.bench_function(name, |bencher| bencher.iter(|| black_box(call(&client))));
    }
    group.finish();
}

fn body(c: &mut Criterion) {
    let watched = Bulkhead::builder().max_concurrent(64).hold(Until::BodyEnd).build().unwrap();
    let mut group = c.benchmark_group(format!("{FRAMES} frames"));
    for (name, client) in [("plain body", client(Noop, FRAMES)), ("watched body", client(watched, FRAMES))] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let mut response = call(&client);
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
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = free_slot, body
}
criterion_main!(benches);
