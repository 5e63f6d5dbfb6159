//! The whole chain in one line: what it does by default, what can be replaced, what has to fit.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use reqwest_resilience::{
    Bulkhead, CircuitBreaker, CircuitMode, CircuitState, ClientBuilderExt, Fallback, Rejection, Resilience,
    ResilienceBuilder, Retry, Trip,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use support::{KEY, Reply, Saw, Transport, URL, call, plain_client, saw, state};
use tokio::time::Instant;

/// `resilience → transport`.
fn chain(resilience: &Resilience, transport: &Transport) -> ClientWithMiddleware {
    ClientBuilder::new(plain_client()).with_resilience(resilience).with(transport.clone()).build()
}

fn built(builder: ResilienceBuilder) -> Resilience {
    builder.build().unwrap()
}

fn hanging() -> Transport {
    Transport::answering(200).then((0..10).map(|_| Reply::Hang))
}

/// The limit of the deadline that cut a call off, and how long the call took.
async fn cut_off(client: &ClientWithMiddleware) -> (Duration, Duration) {
    let begun = Instant::now();
    let error = client.get(URL).send().await.unwrap_err();
    let Some(Rejection::DeadlineExceeded { limit, .. }) = Rejection::find(&error) else {
        panic!("{error:?}");
    };
    (*limit, begun.elapsed())
}

/// Nothing but the parts that are asked for.
fn bare() -> ResilienceBuilder {
    Resilience::builder().deadline(None).retry(None).breaker(None).attempt_deadline(None)
}

/// Retries that wait no longer than a millisecond.
fn retry(times: u32) -> Retry {
    let wait = Duration::from_millis(1);
    Retry::builder().max_retries(times).backoff(wait, wait).build().unwrap()
}

fn stub() -> Fallback {
    Fallback::new(|_| async { Ok(http::Response::builder().status(203).body("").unwrap().into()) })
}

// The defaults.

#[tokio::test(start_paused = true)]
async fn by_default_an_attempt_has_10_seconds_and_a_call_with_two_retries_30() {
    for resilience in [Resilience::default(), built(Resilience::builder())] {
        let transport = hanging();
        let (limit, took) = cut_off(&chain(&resilience, &transport)).await;
        assert_eq!((limit.as_secs(), took.as_secs(), transport.hits()), (30, 30, 3));
        // The last attempt was cut off from outside: a failure as well.
        let circuit = resilience.breaker().unwrap().snapshot(KEY).unwrap();
        assert_eq!(circuit.consecutive_failures, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn by_default_five_failed_attempts_open_the_circuit_and_no_slots_are_counted() {
    let resilience = Resilience::default();
    let transport = Transport::answering(503);
    let client = chain(&resilience, &transport);
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    assert_eq!(transport.hits(), 3);
    // Its third attempt is rejected: the caller gets what the second brought.
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    assert_eq!(transport.hits(), 5);
    assert_eq!(call(&client, URL).await, Saw::Rejected);
    assert_eq!(transport.hits(), 5);
    assert_eq!(state(resilience.breaker().unwrap(), KEY), CircuitState::Open);
    assert!(resilience.bulkhead().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_hangs_is_retried() {
    let resilience = Resilience::default();
    let transport = Transport::answering(200).then([Reply::Hang]);
    let begun = Instant::now();
    assert_eq!(call(&chain(&resilience, &transport), URL).await, Saw::Status(200));
    assert_eq!((begun.elapsed().as_secs(), transport.hits()), (10, 2));
}

// Each part for itself.

#[tokio::test(start_paused = true)]
async fn each_part_can_be_switched_off() {
    let transport = hanging();
    let client = chain(&built(Resilience::builder().attempt_deadline(None)), &transport);
    let (limit, _) = cut_off(&client).await;
    assert_eq!((limit.as_secs(), transport.hits()), (30, 1));

    let transport = hanging();
    let client = chain(&built(Resilience::builder().deadline(None)), &transport);
    let (limit, took) = cut_off(&client).await;
    assert_eq!((limit.as_secs(), took.as_secs(), transport.hits()), (10, 30, 3));

    let transport = Transport::answering(503);
    let client = chain(&built(Resilience::builder().retry(None)), &transport);
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    assert_eq!(transport.hits(), 1);

    let transport = Transport::answering(503);
    let resilience = built(Resilience::builder().retry(None).breaker(None));
    let client = chain(&resilience, &transport);
    for _ in 0..10 {
        assert_eq!(call(&client, URL).await, Saw::Status(503));
    }
    assert!(resilience.breaker().is_none());

    let both = Resilience::builder().bulkhead(Bulkhead::per_origin(1).unwrap()).fallback(stub());
    let resilience = built(both.bulkhead(None).fallback(None));
    assert!(resilience.bulkhead().is_none());
    resilience.breaker().unwrap().set_mode(KEY, CircuitMode::ForcedOpen).unwrap();
    assert_eq!(call(&chain(&resilience, &transport), URL).await, Saw::Rejected);
}

#[tokio::test(start_paused = true)]
async fn each_part_can_be_replaced() {
    let second = Duration::from_secs(1);

    let transport = hanging();
    let (limit, took) = cut_off(&chain(&built(bare().deadline(second)), &transport)).await;
    assert_eq!((limit, took, transport.hits()), (second, second, 1));

    let transport = hanging();
    let retried = bare().attempt_deadline(second).retry(retry(4));
    let (limit, took) = cut_off(&chain(&built(retried), &transport)).await;
    assert_eq!((limit, took.as_secs(), transport.hits()), (second, 5, 5));

    let breaker =
        CircuitBreaker::builder().defaults(|circuit| circuit.trip(Trip::consecutive(1))).build().unwrap();
    let resilience = built(bare().breaker(breaker.clone()).fallback(stub()));
    let client = chain(&resilience, &Transport::answering(503));
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    assert_eq!(call(&client, URL).await, Saw::Status(203));
    // The handle that was put in and the one that comes out share their circuits.
    assert_eq!(resilience.breaker().unwrap().snapshots(), breaker.snapshots());
    assert_eq!(state(&breaker, KEY), CircuitState::Open);
}

#[tokio::test(start_paused = true)]
async fn clients_of_one_preset_and_of_its_clones_share_slots_and_circuits() {
    let bulkhead = Bulkhead::builder().max_concurrent(1).max_queue(0).build().unwrap();
    let resilience = built(bare().breaker(CircuitBreaker::default()).bulkhead(bulkhead.clone()));
    let transport = Transport::answering(200);
    let (one, other) = (chain(&resilience, &transport), chain(&resilience.clone(), &transport));
    transport.hold();
    let holder = tokio::spawn(async move { call(&one, URL).await });
    tokio::task::yield_now().await;
    assert_eq!(call(&other, URL).await, Saw::Rejected);
    let gates = resilience.bulkhead().unwrap().snapshots();
    assert_eq!((gates[0].in_flight, gates[0].rejected), (1, 1));
    assert_eq!(gates, bulkhead.snapshots());
    transport.take_held().unwrap().answer(503);
    assert_eq!(holder.await.unwrap(), Saw::Status(503));
    let circuit = resilience.breaker().unwrap().snapshot(KEY).unwrap();
    assert_eq!(circuit.consecutive_failures, 1);
}

// How the parts go together.

/// Counts the calls that come by.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicUsize>);

#[async_trait::async_trait]
impl Middleware for Counter {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        self.0.fetch_add(1, Ordering::SeqCst);
        next.run(request, extensions).await
    }
}

#[tokio::test(start_paused = true)]
async fn it_lies_inside_the_layers_before_it_and_outside_those_after_it() {
    let [before, after] = [(); 2].map(|()| Counter::default());
    let client = ClientBuilder::new(plain_client())
        .with(before.clone())
        .with_resilience(Resilience::default())
        .with(after.clone())
        .with(Transport::answering(503))
        .build();
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    assert_eq!([before, after].map(|counter| counter.0.load(Ordering::SeqCst)), [1, 3]);
}

/// As the outermost layer it sees the end of the series alone, and what it says is not retried.
#[tokio::test(start_paused = true)]
async fn the_fallback_has_the_last_word() {
    let asked = Counter::default();
    let fallback = Fallback::new({
        let asked = asked.clone();
        move |context| {
            asked.0.fetch_add(1, Ordering::SeqCst);
            async move {
                let status = context.outcome().as_ref().unwrap().status();
                Ok(http::Response::builder().status(status).body("stub").unwrap().into())
            }
        }
    });
    let sick = fallback.when(|attempt| matches!(attempt.result(), Ok(response) if response.status() == 503));
    let transport = Transport::answering(503);
    let client = chain(&built(Resilience::builder().fallback(sick)), &transport);
    let response = client.get(URL).send().await.unwrap();
    assert_eq!(response.text().await.unwrap(), "stub");
    assert_eq!((transport.hits(), asked.0.load(Ordering::SeqCst)), (3, 1));
}

/// The fallback would come too late if the deadline cut it off as well.
#[tokio::test(start_paused = true)]
async fn the_fallback_is_outside_the_deadline() {
    let late = Fallback::new(|_| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok(http::Response::builder().status(203).body("").unwrap().into())
    });
    let resilience = built(Resilience::builder().fallback(late));
    let breaker = resilience.breaker().unwrap();
    breaker.set_mode(KEY, CircuitMode::ForcedOpen).unwrap();
    let transport = Transport::answering(200);
    assert_eq!(call(&chain(&resilience, &transport), URL).await, Saw::Status(203));
}

#[tokio::test(start_paused = true)]
async fn the_time_in_the_queue_is_not_the_attempts() {
    let millis = Duration::from_millis;
    let resilience = built(bare().bulkhead(Bulkhead::per_origin(1).unwrap()).attempt_deadline(millis(100)));
    let transport = Transport::answering(200).then([200, 201].map(|status| Reply::Late(millis(90), status)));
    let client = chain(&resilience, &transport);
    let begun = Instant::now();
    let both = tokio::join!(client.get(URL).send(), client.get(URL).send());
    assert_eq!([saw(&both.0), saw(&both.1)], [200, 201].map(Saw::Status));
    assert_eq!(begun.elapsed(), millis(180));
}

// Settings that cannot be.

#[test]
fn a_wait_that_cannot_fit_the_deadline_is_refused_with_both_values() {
    let seconds = Duration::from_secs;
    let backing_off = |min: u64| {
        let retry = Retry::builder().backoff(seconds(min), seconds(60));
        Resilience::builder().retry(retry.build().unwrap())
    };
    let queueing = |wait: u64| {
        let bulkhead = Bulkhead::builder().max_concurrent(1).max_wait(seconds(wait));
        Resilience::builder().bulkhead(bulkhead.build().unwrap())
    };
    for (builder, field, value, deadline) in [
        (backing_off(30), "backoff", "30s", "30s"),
        (backing_off(31), "backoff", "31s", "30s"),
        (backing_off(2).deadline(seconds(1)), "backoff", "2s", "1s"),
        (queueing(30), "max_wait", "30s", "30s"),
        (queueing(3).deadline(seconds(2)), "max_wait", "3s", "2s"),
    ] {
        let error = builder.build().unwrap_err();
        assert_eq!((error.field(), error.value()), (field, value));
        let printed = error.to_string();
        assert!(printed.starts_with(&format!("{field} = {value}: ")), "{printed}");
        assert!(printed.ends_with(deadline), "{printed}");
    }
    for builder in [
        backing_off(29),
        queueing(29),
        backing_off(60).deadline(None),
        queueing(60).deadline(None),
        backing_off(60).retry(None),
        queueing(60).bulkhead(None),
        queueing(0).retry(None).deadline(Duration::ZERO),
    ] {
        assert!(builder.build().is_ok());
    }
}
