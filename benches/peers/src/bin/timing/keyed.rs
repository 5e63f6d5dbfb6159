//! From a request to its circuit to the outcome, beside the bare lookup and the peers behind it.

use crate::{
    harness::{Contender, race},
    peers::{self, Peer, of_each_peer},
    unkeyed::peer as unkeyed_peer,
};
use ::peers::{
    chain::{answer, request},
    ratio::Ratios,
};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use reqwest::Request;
use reqwest_resilience::{
    CircuitBreaker,
    internals::{LookupKey, StoredKey, call},
};
use std::hint::black_box;

/// How many origins a large client goes round.
pub(crate) const ORIGINS: usize = 1_000;

/// A plain map under the keys of a breaker.
pub(crate) type PlainMap<T> = HashMap<StoredKey, T, RandomState>;

/// A map with the key of each request.
pub(crate) fn plain_map<T>(requests: &[Request], mut value: impl FnMut() -> T) -> PlainMap<T> {
    let keys = requests.iter().map(|request| LookupKey::of(request.url()).unwrap().to_stored());
    keys.map(|key| (key, value())).collect()
}

pub(crate) fn healthy(ratios: &mut Ratios) {
    for origins in [1, ORIGINS] {
        let requests: Vec<_> = (0..origins).map(request).collect();
        let breaker = CircuitBreaker::default();
        let mut contenders = vec![lookup(&requests), ours("ours", &breaker, &requests)];
        contenders.extend(of_each_peer!(peer(&requests)));
        let outcome = race(
            &format!("keyed, {origins} origins"),
            "Ours: request in turn, key, circuit, admit, settle one success. Plain lookup: the same key in \
             a plain hashbrown map. Theirs: that lookup, then one call that succeeds in the breaker found.",
            &contenders,
        );
        if origins == ORIGINS {
            let fastest = outcome.quickest(&peers::NAMES, 1);
            ratios.note("keyed-lookup", outcome.ratio("ours", "plain lookup", 1), 2.0);
            ratios.note("keyed-peers", outcome.ratio("ours", fastest, 1), 1.0);
        }
    }
}

pub(crate) fn scaling(ratios: &mut Ratios) {
    let requests = [request(0)];
    let breaker = CircuitBreaker::default();
    let mut contenders = vec![lookup(&requests), ours("ours", &breaker, &requests)];
    contenders.extend(of_each_peer!(unkeyed_peer()));
    let outcome = race(
        "keyed, 2 threads on one origin",
        "Ours: request, key, circuit, admit, settle one success. Plain lookup: the same key in a plain \
         hashbrown map. Theirs: without key or lookup, one call that succeeds in a breaker at hand. \
         Scaling: the time on 1 thread over that on 2; the ratio is 0.85 x that of the plain lookup over \
         ours, so that up to 1 is ok.",
        &contenders,
    );
    let fastest = outcome.quickest(&peers::NAMES, 2);
    ratios.note("scaling", 0.85 * outcome.scaling_lost("ours", "plain lookup"), 1.0);
    ratios.note("keyed-2-threads-peers", outcome.ratio("ours", fastest, 2), 1.0);
}

fn lookup(requests: &[Request]) -> Contender<'_> {
    let map = plain_map(requests, || ());
    Contender::new("plain lookup", move || {
        let map = map.clone();
        let mut requests = requests.iter().cycle();
        move || {
            let request = black_box(requests.next().unwrap());
            black_box(map.get(&LookupKey::of(request.url()).unwrap()));
        }
    })
}

/// Healthy calls through `breaker`.
pub(crate) fn ours<'a>(
    name: &'static str,
    breaker: &'a CircuitBreaker,
    requests: &'a [Request],
) -> Contender<'a> {
    Contender::new(name, move || {
        let answer = answer(200);
        let mut requests = requests.iter().cycle();
        move || {
            let request = black_box(requests.next().unwrap());
            black_box(call(breaker, request, &answer)).unwrap();
        }
    })
}

/// A map of closed peers, called with success. Each thread has a map of its own, with clones that share the
/// circuits.
fn peer<P: Peer>(requests: &[Request]) -> Contender<'_> {
    let map = plain_map(requests, P::closed);
    Contender::new(P::NAME, move || {
        let mut map = map.clone();
        let mut requests = requests.iter().cycle();
        move || {
            let request = black_box(requests.next().unwrap());
            let peer = map.get_mut(&LookupKey::of(request.url()).unwrap()).unwrap();
            black_box(peer.call(black_box(Ok(()))));
        }
    })
}
