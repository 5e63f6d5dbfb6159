//! One report a second, with the number of those held back.

use super::tick::Tick;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(1);

/// Lets one report through per second and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    last: Option<Tick>,
    suppressed: u64,
}

impl Throttle {
    /// Asks to report at `now`. `Some(n)`: yes, and `n` were held back since the last one.
    pub(crate) fn admit(&mut self, now: Tick) -> Option<u64> {
        if !self.is_over(now) {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Whether the second since the last report is over.
    pub(crate) fn is_over(&self, now: Tick) -> bool {
        self.last.is_none_or(|last| INTERVAL <= now.since(last))
    }
}
