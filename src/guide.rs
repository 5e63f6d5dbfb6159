//! Tuning, logs, tests, and the questions that come up.
//!
//! # Choosing the trip rule
//!
//! | the origin | rule |
//! |---|---|
//! | is up or down | `Trip::consecutive(5)`, the default: sees an outage within five calls, whatever the traffic |
//! | fails some calls on its best day | `Trip::failure_rate(0.5)`: needs traffic, at least `min_calls` within the window |
//! | does both | `Trip::consecutive(5).or(Trip::failure_rate(0.5))` |
//!
//! With failures in a row, one success in between starts the count again, so an origin that fails every
//! second call never opens the circuit; a rate sees it. With a rate, `min_calls` is what keeps three calls at
//! night from opening it: choose it below the calls that come in one window on a quiet day, or the circuit
//! never opens then.
//!
//! # Choosing the waits
//!
//! `open_for` is how long callers go without, at least, once the circuit opened. It should be about as long
//! as a restart of the origin takes; a second is not too short where rejected callers have something better
//! to do than to wait. `max_open_for` lets the wait grow in long outages, where a probe every few seconds,
//! from every instance of a fleet, is load too. `open_jitter(0.2)` keeps that fleet from probing all at once.
//! An origin that says `Retry-After` is believed, up to `honor_retry_after`.
//!
//! `probe_lease` only matters to clients without a timeout: it bounds how long a probe that hangs keeps the
//! circuit half-open. Set a timeout on the client in any case, a hanging origin opens no circuit before its
//! calls end.
//!
//! # How many calls at once
//!
//! A [`Bulkhead`](crate::Bulkhead) of `rate × latency` slots (Little's law) is busy and no more at the rate
//! you expect: 200 calls a second of 50 ms each keep 10 slots busy. Give it two or three times that, so that
//! it bites when the origin slows down and not on a busy minute.
//!
//! # Calls that are given up
//!
//! A call whose future is dropped counts as nothing: the caller may have had its own reasons. Where calls are
//! bounded by `tokio::time::timeout`, a hanging origin is therefore invisible to the circuit. Bound them with
//! a [`Deadline`](crate::Deadline) instead, which the breaker knows of; or with the timeout of the reqwest
//! client, or of the request, which ends in an error that counts; or set `abandoned_after` to somewhat less
//! than the outer timeout.
//!
//! # Order of layers
//!
//! Middlewares run in the order in which they were added to the client; the one added first is outermost. The
//! order to choose:
//!
//! ```text
//! Fallback → Deadline → Retry → CircuitBreaker → Bulkhead → Deadline (of each attempt) → network
//! ```
//!
//! [`Resilience`](crate::Resilience) is this chain in one line. Leave out what you do not need; why the rest
//! is where it is:
//!
//! - **The fallback outermost** has the last word, and its answer is not judged, retried or cut off by the
//!   others.
//! - **The deadline outside the rest** bounds all that the caller waits for, but for the fallback. The retry
//!   inside it knows the time that is left.
//! - **Retry outside the breaker:** the circuit sees every attempt. It opens within a series of retries, and
//!   ends it: the attempts that are left would only hammer on. With two retries and `Trip::consecutive(3)`,
//!   an outage opens the circuit during the first call, after 3 requests.
//! - **Breaker outside the retry:** the circuit sees the last attempt of each call alone. The same settings
//!   open it after three calls and 9 requests, and one probe is a whole series of attempts.
//! - **Retry outside the bulkhead:** a call holds no slot while it waits for its next attempt. The other way
//!   round, 64 slots and a backoff of a second make 64 calls a second out of an origin that fails fast, and
//!   the healthy calls queue behind sleepers.
//! - **Breaker outside the bulkhead:** nobody queues for an origin that is down. When the circuit opens,
//!   those who queue already are still sent: as many as the queue holds, at most. A full bulkhead is nothing
//!   to the circuit, and a probe that it refuses gives its slot back.
//! - **A deadline innermost** bounds each attempt, as the timeout of the reqwest client does. Its error is a
//!   failure for the breaker and is retried.
//! - **Logging and tracing** middlewares see what happens in full when they are outside, and what was really
//!   sent when they are inside.
//! - **A cache inside** that answers by itself is judged like the origin: its 200 is a success.
//!
//! # How much to retry
//!
//! Retries mend what is broken for a moment. What is down they hit with a multiple of its traffic: three
//! attempts a call are three times the load, on an origin that cannot bear the first. The
//! [`RetryBudget`](crate::RetryBudget) bounds that for all calls together: with its default, an outage is met
//! with at most 1.2 times the traffic, and 10 requests a second. The breaker then ends it. Retry on one layer
//! of your system only; where two do, let them share a budget.
//!
//! # Moving from reqwest-retry
//!
//! ```
//! use reqwest_middleware::ClientBuilder;
//! use reqwest_resilience::Retry;
//! use retry_policies::policies::ExponentialBackoff;
//!
//! let policy = ExponentialBackoff::builder().build_with_max_retries(3);
//! let client = ClientBuilder::new(reqwest::Client::new())
//!     // .with(RetryTransientMiddleware::new_with_policy(policy))
//!     .with(Retry::builder().policy(policy).build()?)
//!     .build();
//! # Ok::<(), reqwest_resilience::ConfigError>(())
//! ```
//!
//! What changes: an error is reqwest's own, so that `is_connect()` and `is_timeout()` are true again; POST
//! and PATCH are not repeated unless you say so ([`Idempotent`](crate::Idempotent), `Idempotency-Key`); a
//! streaming body is sent once instead of refused; `Retry-After` is obeyed; connections are used again; and
//! all calls together have a budget. A `RetryableStrategy` becomes a closure for
//! [`retry_if`](crate::RetryBuilder::retry_if). To stay with reqwest-retry and put a breaker outside it, turn
//! on the feature `reqwest-retry`: the breaker then judges the error within its `RetryError`.
//!
//! # Reading the logs
//!
//! All events go to the tracing target `reqwest_resilience`. The field `event` names them, `circuit_key` says
//! which circuit.
//!
//! | event | level | fields |
//! |---|---|---|
//! | `circuit.opened` | WARN | `circuit_key`, `from`, `reason` (`consecutive`, `failure_rate`, `probe`, `lease`), `failures`, `calls` (`failure_rate` only), `open_for_ms`, `mode`, `epoch` |
//! | `circuit.half_open` | INFO | `circuit_key`, `mode`, `epoch` |
//! | `circuit.closed` | INFO | `circuit_key`, `rejected` (of the whole outage), `outage_ms`, `mode`, `epoch` |
//! | `circuit.rejected` | WARN | `circuit_key`, `state`, `retry_after_ms` (absent when unknown), `suppressed`, `mode` |
//! | `circuit.mode_changed` | INFO | `circuit_key`, `mode`, `epoch` |
//! | `circuit.reset` | INFO | `circuit_key`, `from`, `rejected`, `mode`, `epoch` |
//! | `circuit.forgotten` | INFO | `circuit_key`, `state`, `rejected`, `epoch` |
//! | `circuit.stale_outcome` | DEBUG | `circuit_key`, `epoch`, `admitted_epoch` |
//! | `circuit.untracked` | WARN, at most one a second | `max_circuits`, `suppressed` |
//! | `circuit.listener_panicked` | ERROR, at most one a second | `suppressed` |
//! | `retry.scheduled` | DEBUG | `origin`, `attempt` (the number of the retry), `delay_ms`, `reason` (the status, `connect`, `timeout`, `deadline` or `error`) |
//! | `retry.giving_up` | WARN | `origin`, `attempts`, `reason` (`attempts`, `deadline`, `retry_after`), `suppressed` |
//! | `retry.budget_refused` | WARN | `origin`, `attempts`, `suppressed` |
//! | `retry.streaming_refused` | INFO | `origin`, `attempts`, `suppressed` |
//! | `bulkhead.rejected` | WARN | `key`, `max_concurrent`, `queued`, `suppressed` |
//! | `deadline.exceeded` | WARN | `origin`, `limit_ms`, `suppressed` |
//! | `fallback.used` | INFO | `origin`, `reason` (`circuit_open`, `bulkhead_full`, or `outcome` where a rule of yours said so) |
//!
//! Those with `suppressed` come at most once a second for each origin or key.
//!
//! An outage reads as a `circuit.opened`, a `circuit.rejected` a second while there is traffic, a pair of
//! `circuit.half_open` and `circuit.opened` with `reason="probe"` for each failed probe, and one
//! `circuit.closed` with the totals. `circuit.rejected` comes at most once a second per circuit, and always
//! for the first rejection of an outage; `suppressed` counts the silent ones in between. `epoch` numbers the
//! changes of one circuit and only grows: sort by it where threads interleave.
//!
//! The same facts, typed, go to [`on_event`](crate::CircuitBreakerBuilder::on_event).
//!
//! # Testing your settings
//!
//! Give the breaker a [`ManualClock`](crate::ManualClock), and let a last middleware of your own answer in
//! place of the network:
//!
//! ```
//! use reqwest_middleware::{ClientBuilder, Middleware, Next};
//! use reqwest_resilience::{CircuitBreaker, CircuitState, ManualClock, Rejection};
//! use std::time::Duration;
//!
//! struct Down;
//!
//! #[async_trait::async_trait]
//! impl Middleware for Down {
//!     async fn handle(
//!         &self,
//!         _: reqwest::Request,
//!         _: &mut http::Extensions,
//!         _: Next<'_>,
//!     ) -> reqwest_middleware::Result<reqwest::Response> {
//!         Ok(http::Response::builder().status(503).body("").unwrap().into())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = ManualClock::new();
//! let breaker = CircuitBreaker::builder().clock(clock.clone()).build()?;
//! let client = ClientBuilder::new(reqwest::Client::new()).with(breaker.clone()).with(Down).build();
//!
//! let url = "https://api.example.com/";
//! for _ in 0..5 {
//!     assert_eq!(client.get(url).send().await?.status(), 503);
//! }
//! let rejected = client.get(url).send().await.unwrap_err();
//! assert!(Rejection::find(&rejected).is_some());
//!
//! clock.advance(Duration::from_secs(30));
//! assert_eq!(client.get(url).send().await?.status(), 503); // the probe
//! assert_eq!(breaker.snapshot(url).unwrap().state, CircuitState::Open);
//! # Ok(()) }
//! ```
//!
//! To test what happens beside a probe, hold it at the server: on several threads it may otherwise be back
//! before the call beside it has asked.
//!
//! On live traffic, [`CircuitMode::Shadow`](crate::CircuitMode::Shadow) does everything but reject: the log
//! says what the settings would have done.
//!
//! # Operating
//!
//! - [`snapshots`](crate::CircuitBreaker::snapshots) for a status page; each prints as a line.
//! - [`set_mode`](crate::CircuitBreaker::set_mode) with `ForcedOpen` takes an origin out of service, with
//!   `ForcedClosed` overrules the breaker.
//! - [`reset`](crate::CircuitBreaker::reset) undoes both and forgets what was counted.
//!
//! # What a healthy call costs
//!
//! Each layer costs the one boxed future of the trait, some 55 ns. What else it takes, on one machine whose
//! hash lookups take 11 ns and whose clock 21; the ratios travel better than the figures:
//!
//! | layer | takes | allocates | reads the clock | writes what others read |
//! |---|---|---|---|---|
//! | `CircuitBreaker` | 25 ns | nothing | no | nothing |
//! | with a failure rate | 60 ns | nothing | once | its window, under a lock of the circuit |
//! | `Retry` | 210 ns, most of it the copy | a copy of the request | the coarse one | one addition to the budget of the origin |
//! | `Bulkhead` | 70 ns | nothing | no | the semaphore of the origin |
//! | `Deadline` | 130 ns | its extension | once | nothing |
//! | `Fallback::to_origin` | 145 ns, most of it the copy | a copy of the request | no | nothing |
//!
//! All five take some 0.85 µs, where a call to a server on the same machine takes 70. A call that is refused takes
//! some 75 ns, its error included. (Where the variable `RUST_BACKTRACE` is set, making any error takes
//! microseconds, since `anyhow` captures a backtrace.) `benches/` in the repository measures all of this,
//! beside other crates in `benches/peers`.
//!
//! # Questions
//!
//! **Why is 429 a success?** The origin works and says so; it is this caller that is too fast. A circuit that
//! opened on it would turn a limit into an outage. [`classify`](crate::CircuitBreakerBuilder::classify) can
//! say otherwise.
//!
//! **Why no timer that half-opens the circuit?** Only a call can find out whether the origin is back, so the
//! change waits for one. An idle breaker costs nothing.
//!
//! **Why do callers not wait for the probe's result?** They would hang on an origin that was just down. They
//! are told at once, and may fall back.
//!
//! **Why a circuit per origin and not per path?** What breaks is mostly the process behind the port, and all
//! its paths with it. For the exception there is [`CircuitKey`](crate::CircuitKey).
//!
//! **What does the body of a response count for?** Nothing, by default: the outcome is known when the headers
//! are there. With [`observe(Until::BodyEnd)`](crate::CircuitBreakerBuilder::observe) a body that breaks
//! makes it a failure.
//!
//! **Why does a failure behind a redirect count for the origin that was asked?** That is the circuit which
//! can spare the next caller the same way into it.
