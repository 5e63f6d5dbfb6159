//! States, probes, stragglers and windows of a circuit, over a scripted transport in paused time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use reqwest_resilience::{CircuitBreaker, CircuitState, ManualClock, Trip};
use std::time::Duration;
use support::{KEY, Saw, Transport, URL, call, chain, state};

#[tokio::test(start_paused = true)]
async fn a_circuit_opens_at_the_fifth_failure_in_a_row_and_the_sixth_call_is_not_sent() {
    let breaker = CircuitBreaker::default();
    let transport = Transport::answering(503);
    let client = chain(&breaker, &transport);
    for _ in 0..5 {
        assert_eq!(call(&client, URL).await, Saw::Status(503));
    }
    assert_eq!(state(&breaker, KEY), CircuitState::Open);
    assert_eq!(call(&client, URL).await, Saw::Rejected);
    assert_eq!(transport.hits(), 5);
    tokio::time::advance(Duration::from_secs(30)).await;
    transport.answer(200);
    assert_eq!(call(&client, URL).await, Saw::Status(200));
    assert_eq!(state(&breaker, KEY), CircuitState::Closed);
}

#[tokio::test]
async fn a_clock_moved_by_hand_ends_the_wait() {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(1)))
        .clock(clock.clone())
        .build()
        .unwrap();
    let transport = Transport::answering(500);
    let client = chain(&breaker, &transport);
    assert_eq!(call(&client, URL).await, Saw::Status(500));
    clock.advance(Duration::from_secs(30) - Duration::from_nanos(1));
    assert_eq!(call(&client, URL).await, Saw::Rejected);
    clock.advance(Duration::from_nanos(1));
    transport.answer(204);
    assert_eq!(call(&client, URL).await, Saw::Status(204));
    assert_eq!(transport.hits(), 2);
}
