//! Whole layers in a chain over a scripted transport.

use crate::harness::{Contender, race};
use http::Extensions;
use peers::{
    chain::{Noop, client, ready, url},
    ratio::Ratios,
};
use reqwest::{Method, Request, Response};
use reqwest_middleware::{ClientWithMiddleware, Middleware, Next, Result};
use reqwest_resilience::{Bulkhead, CircuitBreaker, Deadline, Fallback, Retry};
use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};
use std::{hint::black_box, time::Duration};
use tokio::sync::Semaphore;

/// A layer that holds a slot of a bare semaphore.
struct Slot(Semaphore);

#[async_trait::async_trait]
impl Middleware for Slot {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let _slot = self.0.acquire().await.unwrap();
        next.run(request, extensions).await
    }
}

const SLOTS: usize = 64;
const SECOND: Duration = Duration::from_secs(1);

fn clients() -> [(&'static str, ClientWithMiddleware); 10] {
    let policy = ExponentialBackoff::builder().build_with_max_retries(2);
    let fallback = || Fallback::to_origin("https://backup.example.com").unwrap();
    let bulkhead = || Bulkhead::per_origin(SLOTS).unwrap();
    [
        ("no layer", client(|chain| chain)),
        ("no-op layer", client(|chain| chain.with(Noop))),
        ("CircuitBreaker", client(|chain| chain.with(CircuitBreaker::default()))),
        ("Retry", client(|chain| chain.with(Retry::default()))),
        ("reqwest-retry", client(|chain| chain.with(RetryTransientMiddleware::new_with_policy(policy)))),
        ("Bulkhead", client(|chain| chain.with(bulkhead()))),
        ("bare Semaphore", client(|chain| chain.with(Slot(Semaphore::new(SLOTS))))),
        ("Deadline", client(|chain| chain.with(Deadline::after(SECOND)))),
        ("Fallback", client(|chain| chain.with(fallback()))),
        (
            "all five",
            client(|chain| {
                let chain = chain.with(fallback()).with(Deadline::after(SECOND)).with(Retry::default());
                chain.with(CircuitBreaker::default()).with(bulkhead())
            }),
        ),
    ]
}

pub(crate) fn over_a_scripted_transport(ratios: &mut Ratios) {
    let url = url(0);
    let clients = clients();
    let url = &url;
    let contenders: Vec<_> = clients
        .iter()
        .map(|(name, client)| {
            Contender::new(name, move || {
                let url = url.clone();
                move || {
                    let request = Request::new(Method::GET, url.clone());
                    black_box(ready(client.execute(request)).unwrap());
                }
            })
        })
        .collect();
    let outcome = race(
        "layers in a chain over a scripted transport",
        "All: one request made, sent through a client with this layer to a transport that answers 200 at \
         once, the answer dropped. The breaker's ratio is what it adds to no layer over what a no-op layer \
         adds, each the median of the rounds; the retry's is the whole call over that with reqwest-retry \
         (exponential backoff, 2 retries).",
        &contenders,
    );
    let added = |name| outcome.surplus(name, "no layer", 1);
    ratios.note("breaker-layer", added("CircuitBreaker") / added("no-op layer"), 2.0);
    ratios.note("retry-first-attempt", outcome.ratio("Retry", "reqwest-retry", 1), 1.0);
}
