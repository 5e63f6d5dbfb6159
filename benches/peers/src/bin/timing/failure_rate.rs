//! Circuits that open at a share of failures.

use crate::{
    harness::{Contender, race_for},
    peers::{Peer, TowerResilience},
};
use peers::{
    chain::{answer, request},
    ratio::Ratios,
};
use reqwest::Request;
use reqwest_resilience::{CircuitBreaker, Trip, internals::call};
use std::{hint::black_box, time::Duration};
use tower_resilience_circuitbreaker::SlidingWindowType;

/// How many calls are timed at a time, so that what a window holds hardly changes meanwhile.
const TIMES: u64 = 1_000;
const TEN_SECONDS: Duration = Duration::from_secs(10);

pub(crate) fn beside_tower_resilience(ratios: &mut Ratios) {
    let request = request(0);
    let outcome = race_for(
        "failure-rate rule",
        "Ours: request, key, circuit, one success. Theirs: without key, one success. Both 1,000 times in a \
         fresh circuit that has seen so many calls, at half of which failed it would open, over 10 s by \
         time. By time is the nearest of theirs to ours; by count is their default, which counts from the \
         beginning and has no window. The ratio is that by time after 1,000 calls. (On 2 threads each has \
         its own.)",
        &[
            ours("ours, new", TEN_SECONDS, 1, &request),
            ours("ours, after 1,000 calls", TEN_SECONDS, 1_000, &request),
            ours("ours, after 10,000 calls", TEN_SECONDS, 10_000, &request),
            theirs("tower-resilience by time, new", by_time, 1),
            theirs("tower-resilience by time, after 1,000", by_time, 1_000),
            theirs("tower-resilience by time, after 10,000", by_time, 10_000),
            theirs("tower-resilience by count, after 1,000", by_count, 1_000),
        ],
        TIMES,
    );
    let ratio = outcome.ratio("ours, after 1,000 calls", "tower-resilience by time, after 1,000", 1);
    ratios.note("failure-rate-peer", ratio, 0.25);
}

/// What is timed of each window: after so many calls.
const CELLS: [(&str, u64, u32); 9] = [
    ("1 s, new", 1, 1),
    ("1 s, after 1,000 calls", 1, 1_000),
    ("1 s, after 1,000,000 calls", 1, 1_000_000),
    ("10 s, new", 10, 1),
    ("10 s, after 1,000 calls", 10, 1_000),
    ("10 s, after 1,000,000 calls", 10, 1_000_000),
    ("1 h, new", 3_600, 1),
    ("1 h, after 1,000 calls", 3_600, 1_000),
    ("1 h, after 1,000,000 calls", 3_600, 1_000_000),
];

pub(crate) fn is_constant(ratios: &mut Ratios) {
    let request = request(0);
    let outcome = race_for(
        "failure-rate rule, by window and volume",
        "Ours alone: request, key, circuit, one success, 1,000 times in a fresh circuit with this window \
         that has seen so many calls. The ratio is the slowest of these over the fastest. (On 2 threads \
         each has its own.)",
        &CELLS.map(|(name, seconds, calls)| ours(name, Duration::from_secs(seconds), calls, &request)),
        TIMES,
    );
    let beside_first = CELLS.map(|(name, ..)| outcome.ratio(name, CELLS[0].0, 1));
    let slowest = beside_first.iter().copied().fold(0.0, f64::max);
    let fastest = beside_first.iter().copied().fold(f64::INFINITY, f64::min);
    ratios.note("failure-rate-constant", slowest / fastest, 1.25);
}

/// A fresh circuit each time that has seen `calls`.
fn ours<'a>(name: &'static str, window: Duration, calls: u32, request: &'a Request) -> Contender<'a> {
    Contender::new(name, move || {
        let rate = Trip::failure_rate(0.5).over(window);
        let breaker = CircuitBreaker::builder().defaults(|circuit| circuit.trip(rate)).build().unwrap();
        let answer = answer(200);
        (0..calls).for_each(|_| call(&breaker, request, &answer).unwrap());
        move || black_box(call(&breaker, black_box(request), &answer)).unwrap()
    })
}

fn theirs(name: &'static str, closed: fn() -> TowerResilience, calls: u32) -> Contender<'static> {
    Contender::new(name, move || {
        let mut peer = closed();
        for _ in 0..calls {
            peer.call(Ok(()));
        }
        move || {
            black_box(peer.call(black_box(Ok(()))));
        }
    })
}

fn by_time() -> TowerResilience {
    TowerResilience::with(|settings| {
        settings
            .failure_rate_threshold(0.5)
            .sliding_window_type(SlidingWindowType::TimeBased)
            .sliding_window_duration(TEN_SECONDS)
            .minimum_number_of_calls(20)
    })
}

fn by_count() -> TowerResilience {
    TowerResilience::with(|settings| settings.failure_rate_threshold(0.5))
}
