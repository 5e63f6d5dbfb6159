//! Circuit breaker, retry, bulkhead, deadline and fallback for [`reqwest-middleware`](reqwest_middleware):
//! keeps one sick dependency from taking its callers down.
//!
//! When an origin stops answering, every call to it waits for its timeout, holds a connection and a task
//! meanwhile, and adds to the load that keeps the origin down. [`CircuitBreaker`] notices, answers further
//! calls at once, and finds out with single probes when the origin is back. There is one circuit per
//! `(scheme, host, port)`, so one sick origin costs the healthy ones nothing.
//!
//! | middleware | for |
//! |---|---|
//! | [`CircuitBreaker`] | not calling what is down |
//! | [`Retry`] with a [`RetryBudget`] | trying again what failed for a moment, and no more than that |
//! | [`Bulkhead`] | no more calls in flight than an origin can bear |
//! | [`Deadline`] | one total time for a call, across its attempts and waits |
//! | [`Fallback`] | an answer when the call was refused |
//! | [`Resilience`] | all of them in one chain, in the right order |
//!
//! # Quick start
//!
//! ```no_run
//! use reqwest_middleware::ClientBuilder;
//! use reqwest_resilience::{CircuitBreaker, Deadline, Rejection, Retry, Trip};
//! use std::time::Duration;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let breaker = CircuitBreaker::builder()
//!     .defaults(|circuit| circuit.trip(Trip::consecutive(5)).open_for(Duration::from_secs(30)))
//!     .origin("https://payments.example.com", |circuit| circuit.trip(Trip::consecutive(2)))
//!     .build()?; // or CircuitBreaker::default()
//!
//! let client = ClientBuilder::new(reqwest::Client::new())
//!     .with(Deadline::after(Duration::from_secs(10)))
//!     .with(Retry::default())
//!     .with(breaker.clone()) // a clone shares the circuits: keep one as the handle
//!     .build();
//!
//! match client.get("https://payments.example.com/v1/charges").send().await {
//!     Ok(response) => println!("{}", response.status()), // 2xx to 5xx, untouched
//!     Err(error) if Rejection::find(&error).is_some() => println!("{error}"), // refused, or cut off by the deadline
//!     Err(error) => println!("{error}"), // reqwest's own error: is_timeout(), is_connect() work
//! }
//! for circuit in breaker.snapshots() {
//!     println!("{circuit}");
//! }
//! # Ok(()) }
//! ```
//!
//! # What holds, whatever happens
//!
//! - **An outcome counts only in the state that admitted its call.** Every change of state begins a new
//!   epoch. A call that was under way when the circuit moved can neither reopen it, nor close it, nor let a
//!   second probe in.
//! - **Never two probes where one is allowed, never a probe slot lost,** whatever is cancelled, dropped or
//!   panics.
//! - **A rejection by an open circuit means that nothing was sent** ([`Rejection::is_unsent`]). The call that
//!   trips a circuit and every probe report their own result; the type of the error tells the two apart
//!   ([`Rejection::find`]).
//! - **Foreign results pass untouched:** no response and no error of the network is wrapped or replaced.
//! - **The breaker takes no lock and writes nothing that another thread reads for a healthy call,** where
//!   circuits open by failures in a row. A failure rate counts every call, under a lock of its circuit.
//! - **Retries are bounded** for all calls together, exactly, and do not hide from a breaker outside what the
//!   last attempt brought.
//! - **Events leave after the locks,** one per real transition. A listener or a log subscriber may use the
//!   same client.
//! - **Nothing runs in the background:** no task, no timer, no thread.
//!
//! # Where to go on
//!
//! - [`CircuitBreaker`]: states, what counts, the order of layers.
//! - [`CircuitSettings`]: everything that can be set per circuit, with the defaults.
//! - [`Rejection`]: what a refused caller gets.
//! - [`Retry`], [`RetryBudget`], [`Bulkhead`], [`Deadline`], [`Fallback`], [`Resilience`].
//! - [`guide`]: tuning, reading the logs, testing your settings, questions and answers.
//!
//! # Features
//!
//! - `reqwest-retry`: looks through `reqwest_retry::RetryError`, so that a breaker outside reqwest-retry
//!   judges the last real error. Costs that dependency. Off by default.

mod body;
mod breaker;
mod bulkhead;
mod clock;
mod deadline;
mod error;
mod event;
mod fallback;
pub mod guide;
mod human;
#[cfg(feature = "__internals")]
#[doc(hidden)]
pub mod internals;
mod key;
mod machine;
mod origin;
mod preset;
mod queue_time;
mod registry;
mod retry;
mod retry_after;
mod scope;
mod sync;
mod throttles;
mod verdict;

/// The code in the README is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub use body::Until;
pub use breaker::{CircuitBreaker, CircuitBreakerBuilder, CircuitSettings, FailureRate, Trip};
pub use bulkhead::{Bulkhead, BulkheadBuilder, BulkheadSnapshot, QueuedFor};
pub use clock::{Clock, ManualClock, TokioClock};
pub use deadline::{Deadline, DeadlineAt, DeadlineIn};
pub use error::{ConfigError, InvalidKey, Rejection};
pub use event::{CircuitEvent, OpenReason};
pub use fallback::{Fallback, FallbackContext};
pub use machine::{
    snapshot::{CircuitSnapshot, WindowSnapshot},
    state::{CircuitMode, CircuitState, UnknownName},
};
pub use preset::{ClientBuilderExt, Resilience, ResilienceBuilder};
pub use retry::{
    AttemptNumber, Idempotent, MaxRetries, NoRetry, Retry, RetryBudget, RetryBudgetBuilder, RetryBuilder,
    RetryReport, RetryReportHandle, StopReason,
};
pub use scope::{BypassCircuit, CircuitKey, KeyFn, Scope, SharedKey};
pub use verdict::{Attempt, Verdict};
