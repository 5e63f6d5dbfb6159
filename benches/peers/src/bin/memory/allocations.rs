//! What layers allocate when all is well.

use allocation_counter::measure;
use http::Extensions;
use peers::{
    chain::{Noop, client, ready, request},
    ratio::Ratios,
};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_resilience::{Bulkhead, CircuitBreaker, Deadline, Fallback, Retry, Trip};
use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};
use std::time::{Duration, Instant};

/// Allocations of one call, once everything is warm.
fn allocations(client: &ClientWithMiddleware) -> u64 {
    let call = || {
        let request = request(0);
        let mut result = None;
        let counted = measure(|| result = Some(ready(client.execute(request))));
        assert_eq!(result.unwrap().unwrap().status(), 200);
        counted.count_total
    };
    (0..100).map(|_| call()).min().unwrap()
}

pub(crate) fn of_a_healthy_call(ratios: &mut Ratios) {
    let bare = allocations(&client(|chain| chain));
    let added = |layer: &dyn Fn(ClientBuilder) -> ClientBuilder| allocations(&client(layer)) - bare;

    let original = request(0);
    let clone = measure(|| drop(original.try_clone())).count_total;
    let extension = measure(|| {
        Extensions::new().insert(Instant::now());
    });
    let extension = extension.count_total;

    println!("\n## allocations added per healthy call");
    println!(
        "Ours and reqwest-retry: the fewest of 100 warm calls through this layer to a transport that \
         answers 200 at once, less those without a layer. May add: the one boxed future that the trait \
         costs, and where it says so a clone of the request ({clone}) or one extension in an empty map \
         ({extension}), each counted by itself.\n"
    );
    println!("{:<36}{:>8}{:>10}", "layer", "adds", "may add");
    let (future, second) = (1, Duration::from_secs(1));
    let rate = || {
        let builder = CircuitBreaker::builder().defaults(|circuit| circuit.trip(Trip::failure_rate(0.5)));
        builder.build().unwrap()
    };
    let policy = ExponentialBackoff::builder().build_with_max_retries(2);
    let reference = |name, adds: u64| println!("{name:<36}{adds:>8}");
    reference("no-op layer", added(&|chain| chain.with(Noop)));
    let theirs = |chain: ClientBuilder| chain.with(RetryTransientMiddleware::new_with_policy(policy));
    reference("reqwest-retry", added(&theirs));
    let all_five = |chain: ClientBuilder| {
        let chain = chain.with(Fallback::to_origin("https://backup.example.com").unwrap());
        let chain = chain.with(Deadline::after(second)).with(Retry::default());
        chain.with(CircuitBreaker::default()).with(Bulkhead::per_origin(64).unwrap())
    };
    reference("all five of ours", added(&all_five));
    let mut judge = |name: &str, adds: u64, may_add: u64| {
        println!("{name:<36}{adds:>8}{may_add:>10}");
        ratios.note(format!("allocations-{name}"), adds as f64, may_add as f64);
    };
    judge("breaker", added(&|chain| chain.with(CircuitBreaker::default())), future);
    judge("breaker-failure-rate", added(&|chain| chain.with(rate())), future);
    judge("bulkhead", added(&|chain| chain.with(Bulkhead::per_origin(64).unwrap())), future);
    judge("retry", added(&|chain| chain.with(Retry::default())), future + clone);
    judge("deadline", added(&|chain| chain.with(Deadline::after(second))), future + extension);
    let fallback = || Fallback::to_origin("https://backup.example.com").unwrap();
    judge("fallback", added(&|chain| chain.with(fallback())), future + clone);
}
