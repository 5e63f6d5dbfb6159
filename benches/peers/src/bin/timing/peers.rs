//! The other breakers, each set up and called as its own docs say.
//!
//! All open at 5 failures in a row, for an hour, and have no other rule where one can be switched off.

use circuitbreaker_rs::DefaultPolicy;
use failsafe::{
    CircuitBreaker as _,
    backoff::{self, Constant},
    failure_policy::{self, ConsecutiveFailures},
};
use peers::chain::ready;
use std::{
    error::Error,
    fmt,
    future::{Ready, ready as future_of},
    hint::spin_loop,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tower::Service;
use tower_resilience_circuitbreaker::{
    CircuitBreaker as TowerBreaker, CircuitBreakerConfigBuilder, CircuitBreakerError, CircuitBreakerLayer,
    DefaultClassifier,
};

const FAILURES: u32 = 5;
const OPEN_FOR: Duration = Duration::from_secs(3_600);

/// What a call came to.
pub(crate) type Outcome = Result<(), Fault>;

/// Why it failed.
#[derive(Debug)]
pub(crate) struct Fault;

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fault")
    }
}

impl Error for Fault {}

/// A breaker without a key. A clone shares the circuit: each thread has its own.
pub(crate) trait Peer: Clone + Send + Sync + 'static {
    const NAME: &'static str;

    fn closed() -> Self;

    /// A call that comes to `outcome`; whether it was let through.
    fn call(&mut self, outcome: Outcome) -> bool;

    /// One that failures have opened.
    fn open() -> Self {
        let mut peer = Self::closed();
        let calls = (0..100).take_while(|_| peer.call(Err(Fault))).count();
        assert!(calls < 100, "{} does not open", Self::NAME);
        peer
    }
}

/// All peers.
pub(crate) const NAMES: [&str; 5] =
    [Failsafe::NAME, Recloser::NAME, Breaker::NAME, CircuitBreakerRs::NAME, TowerResilience::NAME];

/// `$contender::<P>($argument, …)` of each peer `P`.
macro_rules! of_each_peer {
    ($contender:ident($($argument:expr),*)) => {
        [
            $contender::<$crate::peers::Failsafe>($($argument),*),
            $contender::<$crate::peers::Recloser>($($argument),*),
            $contender::<$crate::peers::Breaker>($($argument),*),
            $contender::<$crate::peers::CircuitBreakerRs>($($argument),*),
            $contender::<$crate::peers::TowerResilience>($($argument),*),
        ]
    };
}
pub(crate) use of_each_peer;

#[derive(Clone)]
pub(crate) struct Failsafe(failsafe::StateMachine<ConsecutiveFailures<Constant>, ()>);

impl Peer for Failsafe {
    const NAME: &'static str = "failsafe";

    fn closed() -> Self {
        let policy = failure_policy::consecutive_failures(FAILURES, backoff::constant(OPEN_FOR));
        Self(failsafe::Config::new().failure_policy(policy).build())
    }

    fn call(&mut self, outcome: Outcome) -> bool {
        !matches!(self.0.call(|| outcome), Err(failsafe::Error::Rejected))
    }
}

/// Knows only rates: all of the last five is what comes nearest. Opens at the failure after them.
#[derive(Clone)]
pub(crate) struct Recloser(Arc<recloser::Recloser>);

impl Peer for Recloser {
    const NAME: &'static str = "recloser";

    fn closed() -> Self {
        let settings = recloser::Recloser::custom().error_rate(1.0).closed_len(FAILURES as usize);
        Self(Arc::new(settings.open_wait(OPEN_FOR).build()))
    }

    fn call(&mut self, outcome: Outcome) -> bool {
        !matches!(self.0.call(|| outcome), Err(recloser::Error::Rejected))
    }
}

#[derive(Clone)]
pub(crate) struct Breaker(breaker::CircuitBreaker);

impl Peer for Breaker {
    const NAME: &'static str = "breaker";

    fn closed() -> Self {
        let settings = breaker::CircuitBreakerConfig::builder()
            .consecutive_failures(FAILURES)
            .failure_rate_threshold(0.0)
            .wait_duration(OPEN_FOR);
        Self(breaker::CircuitBreaker::new(settings.build()))
    }

    fn call(&mut self, outcome: Outcome) -> bool {
        let result = ready(self.0.call(|| future_of(outcome)));
        !matches!(result, Err(breaker::CircuitBreakerError::CircuitOpen))
    }
}

/// Its rate rule cannot be switched off; below half of the calls it does nothing.
#[derive(Clone)]
pub(crate) struct CircuitBreakerRs(circuitbreaker_rs::CircuitBreaker<DefaultPolicy, Fault>);

impl Peer for CircuitBreakerRs {
    const NAME: &'static str = "circuitbreaker-rs";

    fn closed() -> Self {
        let settings = circuitbreaker_rs::CircuitBreaker::<DefaultPolicy, Fault>::builder()
            .consecutive_failures(FAILURES.into())
            .cooldown(OPEN_FOR);
        Self(settings.build())
    }

    fn call(&mut self, outcome: Outcome) -> bool {
        !matches!(self.0.call(|| outcome), Err(circuitbreaker_rs::BreakerError::Open))
    }
}

/// A service: a thread has a clone of it for good, which is cheaper than a clone for each call.
#[derive(Clone)]
pub(crate) struct TowerResilience(TowerBreaker<Dependency, DefaultClassifier>);

impl TowerResilience {
    pub(crate) fn with(
        settings: impl FnOnce(CircuitBreakerConfigBuilder) -> CircuitBreakerConfigBuilder,
    ) -> Self {
        let settings = settings(CircuitBreakerLayer::builder()).wait_duration_in_open(OPEN_FOR);
        Self(settings.build().unwrap().layer_fn(Dependency))
    }
}

impl Peer for TowerResilience {
    const NAME: &'static str = "tower-resilience";

    fn closed() -> Self {
        Self::with(|settings| settings.consecutive_failures(FAILURES as usize))
    }

    fn call(&mut self, outcome: Outcome) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        // An open one whose lock another thread holds would sleep for 1 ms. A fresh clone spares it that.
        while Service::<Outcome>::poll_ready(&mut self.0, &mut context).is_pending() {
            self.0 = self.0.clone();
        }
        !matches!(finish(self.0.call(outcome)), Err(CircuitBreakerError::OpenCircuit))
    }
}

/// What is called: is always ready, and comes to what it was asked for.
#[derive(Clone)]
struct Dependency;

impl Service<Outcome> for Dependency {
    type Response = ();
    type Error = Fault;
    type Future = Ready<Outcome>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Outcome> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, outcome: Outcome) -> Self::Future {
        future_of(outcome)
    }
}

/// Polls until it is over. Its lock is one that a future waits for; spinning spares it the cost of being
/// woken by the other thread.
fn finish<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        spin_loop();
    }
}
