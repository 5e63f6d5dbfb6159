//! The time that decisions are made by.

#[cfg(target_os = "linux")]
mod coarse;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Where a breaker reads the time for its decisions: when an open period ends, what a window still holds.
///
/// Waits (timers) are tokio's. `now` may be called from many threads at once. It must not panic: that may
/// cost a probe its slot until its lease is over. What it returns should not go back. A clock that does go
/// back harms nothing: no time has passed then.
pub trait Clock: Send + Sync + 'static {
    /// The time.
    fn now(&self) -> Instant;

    /// The time, or one not long ago where that is cheaper to tell: for what every call has to be told and is
    /// counted over seconds. By default [`now`](Self::now). It should not be ahead of it, nor more than some
    /// 10 milliseconds behind.
    fn recent(&self) -> Instant {
        self.now()
    }
}

/// The default: tokio's time. It is the system's monotonic clock, and stands still where a test pauses the
/// runtime.
///
/// On Linux, [`recent`](Clock::recent) is the time of the kernel's last tick, at a fifth of the cost. Not
/// where tokio is built with its feature `test-util`: there the time may be paused, and `recent` is `now`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioClock;

impl Clock for TokioClock {
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    #[cfg(target_os = "linux")]
    #[inline]
    fn recent(&self) -> Instant {
        if IS_PAUSABLE { self.now() } else { coarse::now() }
    }
}

/// Whether tokio's time can be paused: where tokio has a function that does it. No crate can ask for the
/// features of another.
#[cfg(target_os = "linux")]
const IS_PAUSABLE: bool = {
    #[allow(dead_code, reason = "hidden by the glob import below where tokio has it")]
    const fn pause() -> u8 {
        0
    }
    const fn returns_nothing<T>(_: fn() -> T) -> bool {
        size_of::<T>() == 0
    }
    {
        #[allow(unused_imports, clippy::wildcard_imports, reason = "only a glob may bring in nothing")]
        use tokio::time::*;
        returns_nothing(pause)
    }
};

/// A clock that a test moves by hand, so that settings can be tried out without waiting and without a
/// runtime.
///
/// Clones share the time: give one to the breaker and keep one.
///
/// ```
/// use reqwest_resilience::{CircuitBreaker, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let breaker = CircuitBreaker::builder().clock(clock.clone()).build()?;
/// clock.advance(Duration::from_secs(30));
/// # Ok::<(), reqwest_resilience::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<Mutex<Instant>>);

impl ManualClock {
    /// A clock that stands at the present time.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    /// Moves the time on. A step beyond what an [`Instant`] can tell is not taken.
    pub fn advance(&self, by: Duration) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(later) = now.checked_add(by) {
            *now = later;
        }
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManualClock").field(&self.now()).finish()
    }
}
