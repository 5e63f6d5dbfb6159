//! What the tests share: a scripted transport, a raw TCP server and a reader of log events.
//!
//! Each test file is a crate of its own and uses a part of this.
#![allow(dead_code, unused_imports, reason = "each test file uses a part of this")]
#![allow(unreachable_pub, reason = "`pub` is what a test file may use")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]
#![allow(clippy::mod_module_files, reason = "`tests/support.rs` would be a test of its own")]

mod clock;
mod layers;
mod log;
mod server;
mod transport;

pub use clock::Lagging;
pub use layers::{Look, stack};
pub use log::{Line, Log};
pub use server::{Conversation, Server};
pub use transport::{Held, Reply, Seen, Transport, refused, timed_out};

use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware};
use reqwest_resilience::{CircuitBreaker, CircuitState, Rejection};

/// A reqwest client that no proxy variable of the environment can lead astray.
pub fn plain_client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// `breaker → transport`, nothing else.
pub fn chain(breaker: &CircuitBreaker, transport: &Transport) -> ClientWithMiddleware {
    ClientBuilder::new(plain_client()).with(breaker.clone()).with(transport.clone()).build()
}

/// `breaker → network`, nothing else.
pub fn network(breaker: &CircuitBreaker) -> ClientWithMiddleware {
    ClientBuilder::new(plain_client()).with(breaker.clone()).build()
}

/// The origin that tests call where one will do, and its key.
pub const URL: &str = "http://api.example.com/v1/items";
pub const KEY: &str = "http://api.example.com:80";

/// What a caller saw, short enough to be compared in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saw {
    /// A response with this status.
    Status(u16),
    /// A rejection: refused, or cut off by a deadline.
    Rejected,
    /// An error that is no rejection.
    Error,
}

/// Sends a GET and says what came back.
pub async fn call(client: &ClientWithMiddleware, url: &str) -> Saw {
    saw(&client.get(url).send().await)
}

pub fn saw(result: &reqwest_middleware::Result<reqwest::Response>) -> Saw {
    match result {
        Ok(response) => Saw::Status(response.status().as_u16()),
        Err(error) if Rejection::find(error).is_some() => Saw::Rejected,
        Err(_) => Saw::Error,
    }
}

/// The state of the circuit `key`.
pub fn state(breaker: &CircuitBreaker, key: &str) -> CircuitState {
    breaker.snapshot(key).expect("the circuit exists").state
}
