//! The state machine of one circuit.
//!
//! Pure: an old state, an event and a moment in, a new state and what happened out. Nothing here is shared
//! between threads; [`cell`](super::cell) does that. All that changes a circuit is here; what only looks at it
//! is in [`view`].

mod view;

use super::{
    Moment,
    call::{Admission, Outcome, Passage, Refusal, Settlement},
    event::{CircuitEvent, OpenReason},
    policy::CircuitPolicy,
    state::{CircuitMode, CircuitState},
    throttle::Throttle,
    tick::Tick,
    window::Window,
};
use std::{sync::Arc, time::Duration};

/// A clock that lags is less behind than this, on a machine in trouble too.
const LAG: Duration = Duration::from_millis(100);

/// One circuit. Its states are drawn at [`CircuitBreaker`](crate::CircuitBreaker).
#[derive(Debug)]
pub(crate) struct Circuit {
    key: Arc<str>,
    policy: Arc<CircuitPolicy>,
    epoch: u64,
    mode: CircuitMode,
    phase: Phase,
    window: Option<Box<Window>>,
    outage: Outage,
}

/// The state, with what only it carries.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Closed {
        /// Failures in a row.
        consecutive: u32,
    },
    Open {
        since: Tick,
        until: Tick,
    },
    HalfOpen {
        in_flight: u8,
        passed: u8,
        /// When the youngest probe left.
        youngest: Tick,
    },
}

/// From the first opening until the circuit closes again, failed probes included. While closed it is blank,
/// but for the rejections of a forced-open circuit.
#[derive(Debug, Default)]
struct Outage {
    since: Option<Tick>,
    reopenings: u32,
    rejected: u64,
    reports: Throttle,
}

impl Circuit {
    pub(crate) fn new(key: Arc<str>, policy: Arc<CircuitPolicy>, birth: u64) -> Self {
        Self {
            key,
            epoch: birth,
            mode: policy.mode,
            phase: Phase::Closed { consecutive: 0 },
            window: policy.trip.rate.map(|rate| Box::new(Window::over(rate.over))),
            outage: Outage::default(),
            policy,
        }
    }

    /// Asks for one call.
    #[inline]
    pub(crate) fn admit(&mut self, at: &Moment<'_>, journal: &mut Vec<CircuitEvent>) -> Admission {
        match self.mode {
            CircuitMode::ForcedClosed => return Ok(Passage::Unobserved),
            CircuitMode::ForcedOpen => {
                return Err(self.refuse(None, at.now, journal));
            }
            CircuitMode::Enforcing | CircuitMode::Shadow => {}
        }
        self.end_lease(at, journal);
        self.end_wait(at, journal);
        let retry_after = match &mut self.phase {
            Phase::Closed { .. } => return Ok(Passage::Observed { epoch: self.epoch }),
            Phase::Open { until, .. } => Some(until.since(at.now)),
            Phase::HalfOpen { in_flight, passed, youngest } => {
                if self.policy.has_free_slot(*in_flight, *passed) {
                    *in_flight += 1;
                    *youngest = at.now.max(*youngest);
                    return Ok(Passage::Observed { epoch: self.epoch });
                }
                None
            }
        };
        let refusal = self.refuse(retry_after, at.now, journal);
        if self.mode == CircuitMode::Shadow {
            return Ok(Passage::Unobserved);
        }
        Err(refusal)
    }

    /// Refuses one call while the circuit is open beyond doubt, even if the time is a little later than
    /// `recently`. To read a clock that lags costs a fraction.
    #[inline]
    pub(crate) fn refuse_for_long(
        &mut self,
        recently: Tick,
        journal: &mut Vec<CircuitEvent>,
    ) -> Option<Refusal> {
        match self.phase {
            Phase::Open { since, until }
                if self.mode == CircuitMode::Enforcing && recently.after(LAG) < until =>
            {
                // Not from before it opened: what is left is never more than the whole wait.
                let now = recently.max(since);
                Some(self.refuse(Some(until.since(now)), now, journal))
            }
            _ => None,
        }
    }

    /// Takes what a call brings back. In any epoch but the one that admitted it, it changes nothing.
    pub(crate) fn settle(&mut self, call: Settlement, at: &Moment<'_>, journal: &mut Vec<CircuitEvent>) {
        if call.epoch == self.epoch {
            self.end_lease(at, journal);
        }
        if call.epoch != self.epoch {
            // An ignored outcome would have counted nowhere.
            if call.outcome != Outcome::Ignored {
                journal.push(CircuitEvent::StaleOutcome {
                    circuit_key: Arc::clone(&self.key),
                    epoch: self.epoch,
                    admitted_epoch: call.epoch,
                });
            }
            return;
        }
        match &mut self.phase {
            Phase::Closed { consecutive } => {
                match call.outcome {
                    Outcome::Ignored => return,
                    Outcome::Success => *consecutive = 0,
                    Outcome::Failure => *consecutive = consecutive.saturating_add(1),
                }
                let run = *consecutive;
                self.count(run, call, at, journal);
            }
            Phase::HalfOpen { in_flight, passed, .. } => {
                *in_flight = in_flight.saturating_sub(1);
                match call.outcome {
                    Outcome::Ignored => {}
                    Outcome::Failure => self.open(&Cause::probe(at.now), call.retry_after, at, journal),
                    Outcome::Success => {
                        *passed = passed.saturating_add(1);
                        if self.policy.success_threshold.get() <= *passed {
                            self.close(at, journal);
                        }
                    }
                }
            }
            // An open circuit admits nobody, so no outcome carries its epoch.
            Phase::Open { .. } => {}
        }
    }

    pub(crate) fn set_mode(&mut self, mode: CircuitMode, at: &Moment<'_>, journal: &mut Vec<CircuitEvent>) {
        if mode == self.mode {
            return;
        }
        self.mode = mode;
        match &mut self.phase {
            Phase::Closed { .. } => self.outage = Outage::default(),
            Phase::HalfOpen { in_flight, .. } => *in_flight = 0,
            Phase::Open { .. } => {}
        }
        self.epoch = at.epochs.next();
        journal.push(CircuitEvent::ModeChanged {
            circuit_key: Arc::clone(&self.key),
            mode,
            epoch: self.epoch,
        });
    }

    /// Closed, nothing counted, in the mode of the settings.
    pub(crate) fn reset(&mut self, at: &Moment<'_>, journal: &mut Vec<CircuitEvent>) {
        let from = self.state();
        let rejected = self.outage.rejected;
        self.mode = self.policy.mode;
        self.begin_closed(at);
        journal.push(CircuitEvent::Reset {
            circuit_key: Arc::clone(&self.key),
            from,
            rejected,
            mode: self.mode,
            epoch: self.epoch,
        });
    }

    /// The end of this circuit. Only one that was not closed is worth a word.
    pub(crate) fn forget(self, at: &Moment<'_>) -> Option<CircuitEvent> {
        let state = self.state();
        (state != CircuitState::Closed).then(|| CircuitEvent::Forgotten {
            circuit_key: self.key,
            state,
            rejected: self.outage.rejected,
            epoch: at.epochs.next(),
        })
    }

    /// Counts an outcome in the window, and opens when the evidence, this outcome included, is enough. `run`:
    /// the failures in a row that it left.
    fn count(&mut self, run: u32, call: Settlement, at: &Moment<'_>, journal: &mut Vec<CircuitEvent>) {
        let failed = call.outcome == Outcome::Failure;
        let counts = self.window.as_mut().map(|window| window.record(failed, at.now));
        let trip = self.policy.trip;
        let cause = if failed && trip.met_by_run(run) {
            Cause { reason: OpenReason::Consecutive, failures: run.into(), calls: None, since: at.now }
        } else {
            match counts {
                Some(counts) if trip.met_by_rate(counts) => Cause {
                    reason: OpenReason::FailureRate,
                    failures: counts.failures,
                    calls: Some(counts.calls),
                    since: at.now,
                },
                _ => return,
            }
        };
        self.open(&cause, call.retry_after, at, journal);
    }

    /// When no probe had an outcome within the lease, they have failed, and the circuit has been open since
    /// then.
    #[inline]
    fn end_lease(&mut self, at: &Moment<'_>, journal: &mut Vec<CircuitEvent>) {
        let Phase::HalfOpen { in_flight: in_flight @ 1.., youngest, .. } = self.phase else {
            return;
        };
        let end = youngest.after(self.policy.probe_lease);
        if end <= at.now {
            let cause =
                Cause { reason: OpenReason::Lease, failures: in_flight.into(), calls: None, since: end };
            self.open(&cause, None, at, journal);
        }
    }

    /// When the open period is over, the circuit is half-open.
    #[inline]
    fn end_wait(&mut self, at: &Moment<'_>, journal: &mut Vec<CircuitEvent>) {
        match self.phase {
            Phase::Open { until, .. } if until <= at.now => {}
            _ => return,
        }
        self.phase = Phase::HalfOpen { in_flight: 0, passed: 0, youngest: at.now };
        self.epoch = at.epochs.next();
        journal.push(CircuitEvent::HalfOpen {
            circuit_key: Arc::clone(&self.key),
            mode: self.mode,
            epoch: self.epoch,
        });
    }

    fn open(
        &mut self,
        cause: &Cause,
        retry_after: Option<Duration>,
        at: &Moment<'_>,
        journal: &mut Vec<CircuitEvent>,
    ) {
        let from = self.state();
        if from == CircuitState::Closed {
            self.outage = Outage { since: Some(cause.since), ..Outage::default() };
            self.clear_window();
        } else {
            self.outage.reopenings = self.outage.reopenings.saturating_add(1);
        }
        let open_for = self.policy.wait(self.outage.reopenings, retry_after, (at.chance)());
        self.phase = Phase::Open { since: cause.since, until: cause.since.after(open_for) };
        self.epoch = at.epochs.next();
        journal.push(CircuitEvent::Opened {
            circuit_key: Arc::clone(&self.key),
            from,
            reason: cause.reason,
            failures: cause.failures,
            calls: cause.calls,
            open_for,
            mode: self.mode,
            epoch: self.epoch,
        });
    }

    fn close(&mut self, at: &Moment<'_>, journal: &mut Vec<CircuitEvent>) {
        let rejected = self.outage.rejected;
        let outage = self.outage.since.map_or(Duration::ZERO, |since| at.now.since(since));
        self.begin_closed(at);
        journal.push(CircuitEvent::Closed {
            circuit_key: Arc::clone(&self.key),
            rejected,
            outage,
            mode: self.mode,
            epoch: self.epoch,
        });
    }

    fn begin_closed(&mut self, at: &Moment<'_>) {
        self.phase = Phase::Closed { consecutive: 0 };
        self.outage = Outage::default();
        self.clear_window();
        self.epoch = at.epochs.next();
    }

    fn clear_window(&mut self) {
        if let Some(window) = &mut self.window {
            window.clear();
        }
    }

    #[inline]
    fn refuse(
        &mut self,
        retry_after: Option<Duration>,
        now: Tick,
        journal: &mut Vec<CircuitEvent>,
    ) -> Refusal {
        self.outage.rejected = self.outage.rejected.saturating_add(1);
        let refusal =
            Refusal { circuit_key: Arc::clone(&self.key), state: self.state(), mode: self.mode, retry_after };
        if let Some(suppressed) = self.outage.reports.admit(now) {
            journal.push(CircuitEvent::Rejected {
                circuit_key: Arc::clone(&refusal.circuit_key),
                state: refusal.state,
                retry_after,
                suppressed,
                mode: refusal.mode,
            });
        }
        refusal
    }
}

/// Why a circuit opens, and since when it is open.
struct Cause {
    reason: OpenReason,
    failures: u64,
    calls: Option<u64>,
    since: Tick,
}

impl Cause {
    fn probe(since: Tick) -> Self {
        Self { reason: OpenReason::Probe, failures: 1, calls: None, since }
    }
}
