//! One circuit without a key, and circuits that fail now and then.

use crate::{
    harness::{Contender, race},
    keyed::ours,
    peers::{self, Fault, Peer, of_each_peer},
};
use ::peers::{
    chain::{answer, request},
    ratio::Ratios,
};
use reqwest_resilience::{
    CircuitBreaker, Trip,
    internals::{LoneCircuit, call},
};
use std::hint::black_box;

pub(crate) fn healthy(ratios: &mut Ratios) {
    let circuit = LoneCircuit::closed();
    let lone = Contender::new("ours, without key", || {
        || {
            black_box(black_box(&circuit).admit_and_succeed());
        }
    });
    let mut contenders = vec![lone];
    contenders.extend(of_each_peer!(peer()));
    let outcome = race(
        "one circuit, closed",
        "Ours: admit and settle one success in a circuit at hand. Theirs: one call that succeeds in a \
         breaker at hand.",
        &contenders,
    );
    let fastest = outcome.quickest(&peers::NAMES, 1);
    ratios.note("one-circuit", outcome.ratio("ours, without key", fastest, 1), 0.1);
}

/// A closed peer without a key, called with success.
pub(crate) fn peer<P: Peer>() -> Contender<'static> {
    let peer = P::closed();
    Contender::new(P::NAME, move || {
        let mut peer = peer.clone();
        move || {
            black_box(peer.call(black_box(Ok(()))));
        }
    })
}

pub(crate) fn failing_now_and_then() {
    let requests = [request(0)];
    let in_a_row = CircuitBreaker::default();
    let rate = CircuitBreaker::builder().defaults(|circuit| circuit.trip(Trip::failure_rate(0.5)));
    let rate = rate.build().unwrap();
    let failing = |breaker| {
        let request = &requests[0];
        move || {
            let (good, bad) = (answer(200), answer(500));
            let mut hundredth = Hundredth::default();
            move || {
                let answer = if hundredth.is_next() { &bad } else { &good };
                black_box(call(breaker, black_box(request), answer)).unwrap();
            }
        }
    };
    let mut contenders = vec![
        ours("ours, keyed, all healthy", &in_a_row, &requests),
        Contender::new("ours, keyed", failing(&in_a_row)),
        Contender::new("ours, keyed, failure rate", failing(&rate)),
    ];
    contenders.extend(of_each_peer!(failing_peer()));
    race(
        "1 % failures",
        "Ours: request, key, closed circuit, and every 100th answer a 500. Theirs: a closed breaker at \
         hand, and every 100th call an error. (No ratio.)",
        &contenders,
    );
}

fn failing_peer<P: Peer>() -> Contender<'static> {
    let peer = P::closed();
    Contender::new(P::NAME, move || {
        let mut peer = peer.clone();
        let mut hundredth = Hundredth::default();
        move || {
            let outcome = if hundredth.is_next() { Err(Fault) } else { Ok(()) };
            black_box(peer.call(black_box(outcome)));
        }
    })
}

/// Counts to a hundred, over and over.
#[derive(Default)]
struct Hundredth(u32);

impl Hundredth {
    fn is_next(&mut self) -> bool {
        self.0 += 1;
        if self.0 == 100 {
            self.0 = 0;
            return true;
        }
        false
    }
}
