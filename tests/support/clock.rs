//! A clock of two hands.

use reqwest_resilience::{Clock, ManualClock};
use std::time::{Duration, Instant};

/// Tells the time of a clock that is moved by hand, and as the recent one the time of a while ago, as clocks do
/// that are cheap to read.
pub struct Lagging {
    pub clock: ManualClock,
    pub lag: Duration,
}

impl Clock for Lagging {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn recent(&self) -> Instant {
        self.clock.now().checked_sub(self.lag).unwrap()
    }
}
