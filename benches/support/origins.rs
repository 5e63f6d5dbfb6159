//! Requests to many origins, what comes back, and the floor of every lookup.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use reqwest::{Method, Request, Response};
use reqwest_middleware::Result;
use reqwest_resilience::{
    CircuitBreaker, Trip,
    internals::{LookupKey, StoredKey, call},
};
use std::time::Duration;

/// One request to each of so many origins.
pub fn requests(origins: usize) -> Vec<Request> {
    (0..origins)
        .map(|n| {
            let url = format!("https://service-{n}.internal.example.com/v1/items").parse().unwrap();
            Request::new(Method::GET, url)
        })
        .collect()
}

/// The least that a lookup can take: the same key in a plain map.
pub struct Floor(HashMap<StoredKey, usize, RandomState>);

impl Floor {
    /// With the keys of `requests`.
    pub fn of(requests: &[Request]) -> Self {
        let keys = requests.iter().map(|request| LookupKey::of(request.url()).unwrap().to_stored());
        Self(keys.zip(0..).collect())
    }

    /// The key under which `request` is found. Never inlined, so that it is the same code in every bench.
    #[inline(never)]
    pub fn look_up(&self, request: &Request) -> Option<&StoredKey> {
        let key = LookupKey::of(request.url())?;
        self.0.get_key_value(&key).map(|(key, _)| key)
    }
}

/// A breaker whose circuits for `requests` opened by a failure, and stay open longer than a bench runs.
pub fn open_breaker(requests: &[Request]) -> CircuitBreaker {
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(1)).open_for(Duration::from_secs(86_400)))
        .build()
        .unwrap();
    for request in requests {
        call(&breaker, request, &failure()).unwrap();
    }
    breaker
}

#[allow(clippy::unnecessary_wraps, reason = "the type that a breaker judges")]
pub fn success() -> Result<Response> {
    Ok(http::Response::new("").into())
}

#[allow(clippy::unnecessary_wraps, reason = "the type that a breaker judges")]
pub fn failure() -> Result<Response> {
    let response = http::Response::builder().status(503).body("").unwrap();
    Ok(response.into())
}
