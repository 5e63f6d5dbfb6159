//! A circuit as it is seen from outside: by a call in a hurry, by an operator, by a newcomer who needs its
//! place. Nothing here changes what it will decide.

use super::{Circuit, Phase};
use crate::machine::{
    Expendable,
    snapshot::{CircuitSnapshot, WindowSnapshot},
    state::{CircuitMode, CircuitState},
    tick::Tick,
    word::Word,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

impl Circuit {
    /// The circuit at a glance.
    #[inline]
    pub(crate) fn word(&self) -> Word {
        let records = match self.phase {
            Phase::Closed { consecutive } => consecutive != 0 || self.window.is_some(),
            Phase::Open { .. } | Phase::HalfOpen { .. } => true,
        };
        Word::new(self.state(), self.mode, records, self.epoch)
    }

    #[inline]
    pub(crate) fn state(&self) -> CircuitState {
        match self.phase {
            Phase::Closed { .. } => CircuitState::Closed,
            Phase::Open { .. } => CircuitState::Open,
            Phase::HalfOpen { .. } => CircuitState::HalfOpen,
        }
    }

    /// The present epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn snapshot(&mut self, now: Tick, zero: Instant) -> CircuitSnapshot {
        let (consecutive_failures, retry_after, probes_in_flight) = match self.phase {
            Phase::Closed { consecutive } => (consecutive, None, 0),
            Phase::Open { until, .. } => (0, Some(until.since(now)), 0),
            Phase::HalfOpen { in_flight, passed, .. } => {
                let free = self.policy.has_free_slot(in_flight, passed);
                (0, free.then_some(Duration::ZERO), u32::from(in_flight))
            }
        };
        CircuitSnapshot {
            circuit_key: Arc::clone(&self.key),
            state: self.state(),
            mode: self.mode,
            consecutive_failures,
            window: self.window.as_mut().map(|window| {
                let counts = window.counts(now);
                WindowSnapshot { calls: counts.calls, failures: counts.failures }
            }),
            retry_after: retry_after.filter(|_| self.mode != CircuitMode::ForcedOpen),
            probes_in_flight,
            rejected: self.outage.rejected,
            opened_at: self.outage.since.and_then(|since| since.instant(zero)),
            epoch: self.epoch,
        }
    }

    /// Whether the circuit may make room for another, and how gladly.
    ///
    /// Never while it still protects somebody (open within its wait, a probe out), nor when an operator gave
    /// it a mode that its settings would not give it again.
    pub(crate) fn expendable(&mut self, now: Tick) -> Option<Expendable> {
        if self.mode.is_forced() || self.mode != self.policy.mode {
            return None;
        }
        match self.phase {
            Phase::Closed { consecutive } => {
                let calls = self.window.as_mut().map_or(0, |window| window.counts(now).calls);
                let blank = consecutive == 0 && calls == 0 && self.outage.rejected == 0;
                Some(if blank { Expendable::Fresh } else { Expendable::Counted })
            }
            Phase::Open { until, .. } => (until <= now).then_some(Expendable::WaitOver),
            Phase::HalfOpen { in_flight: 0, .. } => Some(Expendable::WaitOver),
            // A probe that hangs for good must not hold the slot for good.
            Phase::HalfOpen { youngest, .. } => {
                let wait = self.policy.wait(self.outage.reopenings.saturating_add(1), None, u64::MAX);
                let reopened_until = youngest.after(self.policy.probe_lease).after(wait);
                (reopened_until <= now).then_some(Expendable::WaitOver)
            }
        }
    }
}
