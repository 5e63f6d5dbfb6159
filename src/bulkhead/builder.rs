//! How a bulkhead is made.

use super::{Bulkhead, Shared, gate::Limits};
use crate::{
    body::Until,
    clock::{Clock, TokioClock},
    error::ConfigError,
    registry::Registry,
    scope::Scope,
};
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Makes a [`Bulkhead`]; from [`Bulkhead::builder`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct BulkheadBuilder {
    max_concurrent: Option<usize>,
    max_queue: Option<usize>,
    max_wait: Duration,
    scope: Scope,
    hold: Until,
    max_keys: usize,
}

impl Default for BulkheadBuilder {
    fn default() -> Self {
        Self {
            max_concurrent: None,
            max_queue: None,
            max_wait: Duration::from_secs(1),
            scope: Scope::Origin,
            hold: Until::Headers,
            max_keys: 10_000,
        }
    }
}

impl BulkheadBuilder {
    /// The most calls in flight at once, at least 1. Has to be set: only you know what the origin can bear.
    pub fn max_concurrent(mut self, max_concurrent: usize) -> Self {
        self.max_concurrent = Some(max_concurrent);
        self
    }

    /// The most calls that wait for a slot: as many as `max_concurrent` by default. Zero: none waits.
    pub fn max_queue(mut self, max_queue: usize) -> Self {
        self.max_queue = Some(max_queue);
        self
    }

    /// The longest wait for a slot: 1 second by default, and never beyond the [`Deadline`](crate::Deadline)
    /// of the call. Zero: a call that finds all slots taken fails at once.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// What has slots of its own: [`Scope::Origin`] by default. A request without a key passes.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// How long a call holds its slot: [`Until::Headers`] by default.
    pub fn hold(mut self, hold: Until) -> Self {
        self.hold = hold;
        self
    }

    /// The most keys kept, at least 1: 10,000 by default. One takes some 350 bytes (a longer host
    /// more, as in [`max_circuits`](crate::CircuitBreakerBuilder::max_circuits)). When they are all taken, a new
    /// key is given the place of one with no call in flight; where there is none, its calls pass.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = max_keys;
        self
    }

    /// Checks the settings and makes the bulkhead.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for the first value that cannot be.
    pub fn build(self) -> Result<Bulkhead, ConfigError> {
        let Some(max_concurrent) = self.max_concurrent else {
            return Err(ConfigError::new("max_concurrent", "not set", "has to be set"));
        };
        let most = Semaphore::MAX_PERMITS.min(u32::MAX as usize);
        if !(1..=most).contains(&max_concurrent) {
            let rule = format!("must be between 1 and {most}");
            return Err(ConfigError::new("max_concurrent", max_concurrent, rule));
        }
        if self.max_keys == 0 {
            return Err(ConfigError::new("max_keys", 0, "must be at least 1"));
        }
        Ok(Bulkhead {
            shared: Arc::new(Shared {
                keying: self.scope.check()?,
                gates: Registry::new(self.max_keys),
                limits: Limits {
                    concurrent: max_concurrent,
                    queue: self.max_queue.unwrap_or(max_concurrent),
                    wait: self.max_wait,
                },
                hold: self.hold,
                zero: TokioClock.now(),
            }),
        })
    }
}
