//! What a healthy call allocates: for the breaker nothing, beyond the one boxed future that the trait costs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails so")]

mod support;

use futures::FutureExt;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next, Result};
use reqwest_resilience::{CircuitBreaker, CircuitKey, Deadline, Retry, Scope, Trip};
use std::time::Duration;
use support::{Transport, URL, plain_client};

/// The cheapest layer there can be.
struct Noop;

#[async_trait::async_trait]
impl Middleware for Noop {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut http::Extensions,
        next: Next<'_>,
    ) -> Result<reqwest::Response> {
        next.run(request, extensions).await
    }
}

fn chain(layer: Option<impl Middleware>) -> ClientWithMiddleware {
    let mut builder = ClientBuilder::new(plain_client());
    if let Some(layer) = layer {
        builder = builder.with(layer);
    }
    builder.with(Transport::answering(200)).build()
}

/// Allocations of one call, once everything is warm.
fn allocations(client: &ClientWithMiddleware, key: Option<&CircuitKey>) -> u64 {
    let call = || {
        let request = client.get(URL).build().unwrap();
        let mut extensions = http::Extensions::new();
        if let Some(key) = key {
            extensions.insert(key.clone());
        }
        let mut response = None;
        let counted = allocation_counter::measure(|| {
            response = client.execute_with_extensions(request, &mut extensions).now_or_never();
        });
        assert_eq!(response.expect("the transport answers at once").unwrap().status(), 200);
        counted.count_total
    };
    // The transport notes each URL in a list that grows now and then: the least of many calls has no such share.
    (0..100).map(|_| call()).min().unwrap()
}

fn with_breaker(breaker: CircuitBreaker, key: Option<&CircuitKey>) -> u64 {
    allocations(&chain(Some(breaker)), key)
}

#[test]
fn a_healthy_call_allocates_what_a_layer_that_does_nothing_does() {
    let bare = allocations(&chain(None::<Noop>), None);
    let noop = allocations(&chain(Some(Noop)), None);
    assert_eq!(noop, bare + 1, "the boxed future of the trait");

    let breaker = CircuitBreaker::builder();
    assert_eq!(with_breaker(breaker.build().unwrap(), None), noop, "by origin");

    let rate = Trip::failure_rate(0.5);
    let breaker = CircuitBreaker::builder().defaults(|circuit| circuit.trip(rate));
    assert_eq!(with_breaker(breaker.build().unwrap(), None), noop, "by rate");

    let breaker = CircuitBreaker::builder().scope(Scope::shared("all"));
    assert_eq!(with_breaker(breaker.build().unwrap(), None), noop, "shared");

    let key = CircuitKey::new("reports");
    let breaker = CircuitBreaker::builder();
    let keyed = with_breaker(breaker.build().unwrap(), Some(&key));
    assert_eq!(keyed, noop, "by a key of the request");
}

#[tokio::test]
async fn a_retry_costs_a_copy_of_the_request_and_a_deadline_its_extension() {
    let noop = allocations(&chain(Some(Noop)), None);
    let request = plain_client().get(URL).build().unwrap();
    let copy = allocation_counter::measure(|| drop(request.try_clone()));
    let retry = allocations(&chain(Some(Retry::default())), None);
    assert_eq!(retry, noop + copy.count_total, "retry");

    let extension = allocation_counter::measure(|| {
        http::Extensions::new().insert(std::time::Instant::now());
    });
    let deadline = allocations(&chain(Some(Deadline::after(Duration::from_secs(9)))), None);
    // tokio's timer is no allocation: it lives in the future.
    assert_eq!(deadline, noop + extension.count_total, "deadline");
}

#[test]
fn the_measure_sees_an_allocation() {
    let breaker = CircuitBreaker::builder().scope(Scope::by(|request| Some(request.url().path().to_owned())));
    let noop = allocations(&chain(Some(Noop)), None);
    assert!(noop < with_breaker(breaker.build().unwrap(), None));
}
