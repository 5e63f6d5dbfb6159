//! The settings of a circuit, checked and complete.

use crate::{machine::policy::CircuitPolicy, verdict::OutcomeRule};
use std::{sync::Arc, time::Duration};

#[derive(Clone, Debug, Default)]
pub(super) struct Profile {
    /// What the machine goes by.
    pub(super) policy: Arc<CircuitPolicy>,
    /// What outcomes are judged by.
    pub(super) rule: OutcomeRule,
    pub(super) abandoned_after: Option<Duration>,
}

impl Profile {
    /// Whether calls have to be timed. Reading the clock costs as much as all the rest of a healthy call.
    #[inline]
    pub(super) fn is_timed(&self) -> bool {
        self.rule.slow_call.is_some() || self.abandoned_after.is_some()
    }
}
