//! What the benches share: requests, the cheapest chain there can be, and work on several threads.
//!
//! Each bench is a crate of its own and uses a part of this.
#![allow(dead_code, unused_imports, reason = "each bench uses a part of this")]
#![allow(unreachable_pub, reason = "`pub` is what a bench may use")]
#![allow(clippy::unwrap_used, reason = "a bench fails so")]
#![allow(clippy::mod_module_files, reason = "`benches/support.rs` would be a bench of its own")]

mod layers;
mod origins;
mod threads;

pub use layers::{Noop, Transport, chain, plain_client, send};
pub use origins::{Floor, failure, open_breaker, requests, success};
pub use threads::{bench, bench_with, settings};
