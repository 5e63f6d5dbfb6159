//! What it costs to be refused.

use crate::{
    harness::{Contender, race},
    keyed::{ORIGINS, plain_map},
    peers::{Peer, of_each_peer},
};
use peers::{
    chain::{answer, request},
    ratio::Ratios,
};
use reqwest_resilience::{
    CircuitBreaker,
    internals::{LookupKey, call, rejection},
};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

pub(crate) fn open(ratios: &mut Ratios) {
    let requests: Vec<_> = (0..ORIGINS).map(request).collect();
    let floor = plain_map(&requests, || ());
    let lookup = Contender::new("plain lookup, clock, error", || {
        let floor = floor.clone();
        let mut requests = requests.iter().cycle();
        move || {
            let request = black_box(requests.next().unwrap());
            let (key, ()) = floor.get_key_value(&LookupKey::of(request.url()).unwrap()).unwrap();
            black_box(Instant::now());
            black_box(rejection(key.text().clone()));
        }
    });

    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| circuit.open_for(Duration::from_secs(3_600)))
        .build()
        .unwrap();
    for request in &requests {
        while call(&breaker, request, &answer(500)).is_ok() {}
    }
    let ours = Contender::new("ours", || {
        let answer = answer(200);
        let mut requests = requests.iter().cycle();
        let breaker = &breaker;
        move || {
            let request = black_box(requests.next().unwrap());
            black_box(call(breaker, request, &answer).unwrap_err());
        }
    });

    let mut contenders = vec![lookup, ours];
    contenders.extend(of_each_peer!(open_peer()));
    let outcome = race(
        "rejection, keyed, error made",
        "Ours: one of 1,000 requests in turn, key, circuit opened by failures, error made, boxed and \
         dropped; the clock is the coarse one while the circuit stays open for longer than that may lag. Plain lookup: the same key in a plain hashbrown map, one clock read, the same error \
         made, boxed and dropped. Theirs: without key, one call refused by a breaker opened by failures, \
         with its own error, which holds nothing.",
        &contenders,
    );
    ratios.note("rejection", outcome.ratio("ours", "plain lookup, clock, error", 1), 1.5);
}

fn open_peer<P: Peer>() -> Contender<'static> {
    let peer = P::open();
    Contender::new(P::NAME, move || {
        let mut peer = peer.clone();
        move || {
            assert!(!peer.call(black_box(Ok(()))));
        }
    })
}
