//! Random lives of a circuit beside a naive model that remembers everything and computes all from it.
//!
//! Calls, answers, drops and the clock come in any order, through the public face. After each step the circuit
//! and the model have to agree on all that a user can see.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use futures::FutureExt;
use proptest::{collection::vec, prelude::*};
use reqwest_middleware::Result;
use reqwest_resilience::{
    CircuitBreaker, CircuitMode, CircuitSettings, CircuitState, ManualClock, Rejection, Trip, Verdict,
};
use std::{future::Future, pin::Pin, time::Duration};
use support::{Held, KEY, Lagging, Transport, URL, chain};

/// A status that the rule of this test ignores.
const IGNORED: u16 = 299;
const MILLI: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
struct Rules {
    consecutive: Option<u32>,
    /// Failures of calls that are needed at least, and the fewest calls.
    rate: Option<(u64, u64, u64)>,
    window: Duration,
    open_for: Duration,
    max_open_for: Duration,
    probes: usize,
    success_threshold: usize,
    lease: Duration,
}

impl Rules {
    fn settings(&self, circuit: CircuitSettings) -> CircuitSettings {
        let run = self.consecutive.map(Trip::consecutive);
        let rate = self.rate.map(|(failures, calls, min_calls)| {
            #[allow(clippy::cast_precision_loss, reason = "small numbers")]
            let share = failures as f64 / calls as f64;
            Trip::from(
                Trip::failure_rate(share).over(self.window).min_calls(u32::try_from(min_calls).unwrap()),
            )
        });
        let trip = match (run, rate) {
            (Some(run), Some(rate)) => run.or(rate),
            (run, rate) => run.or(rate).unwrap(),
        };
        circuit
            .trip(trip)
            .open_for(self.open_for)
            .max_open_for(self.max_open_for)
            .probes(u32::try_from(self.probes).unwrap())
            .success_threshold(u32::try_from(self.success_threshold).unwrap())
            .probe_lease(self.lease)
    }
}

fn rules() -> impl Strategy<Value = Rules> {
    let rate = prop::option::of((prop::sample::select(vec![(1, 2), (1, 4), (1, 1), (3, 10)]), 1..5_u64));
    (prop::option::of(1..4_u32), rate, 1..100_u32, 0..60_u32, 1..6_u32, 1..4_usize, 1..4_usize, 1..150_u32)
        .prop_map(|(consecutive, rate, window, open_for, growth, probes, success_threshold, lease)| Rules {
            // One rule at least.
            consecutive: consecutive.or(rate.is_none().then_some(2)),
            rate: rate.map(|((failures, calls), min_calls)| (failures, calls, min_calls)),
            window: window * MILLI,
            open_for: open_for * MILLI,
            max_open_for: growth * open_for * MILLI,
            probes,
            success_threshold,
            lease: lease * MILLI,
        })
}

#[derive(Clone, Debug)]
enum Step {
    Call,
    /// Answers one of the calls that are out.
    Answer(usize, u16),
    Drop(usize),
    Advance(Duration),
    SetMode(CircuitMode),
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    use CircuitMode::{Enforcing, ForcedClosed, ForcedOpen, Shadow};
    let status = prop::sample::select(vec![200, 503, 503, 503, 404, IGNORED]);
    let mode = prop::sample::select(vec![Enforcing, Enforcing, Shadow, ForcedOpen, ForcedClosed]);
    let step = prop_oneof![
        40 => Just(Step::Call),
        40 => (any::<usize>(), status).prop_map(|(which, status)| Step::Answer(which, status)),
        8 => any::<usize>().prop_map(Step::Drop),
        30 => (0..40_u32).prop_map(|millis| Step::Advance(millis * MILLI)),
        2 => mode.prop_map(Step::SetMode),
        1 => Just(Step::Reset),
    ];
    vec(step, 1..150)
}

/// The naive model. An epoch is the number of changes so far.
struct Model {
    rules: Rules,
    now: Duration,
    mode: CircuitMode,
    epoch: u64,
    state: State,
    reopenings: u32,
    rejected: u64,
}

enum State {
    /// Every outcome since it closed, with its time.
    Closed(Vec<(Duration, bool)>),
    Open {
        until: Duration,
    },
    HalfOpen {
        out: usize,
        passed: usize,
        youngest: Duration,
    },
}

/// What the model says of a call: refused, or sent with or without the epoch in which its outcome counts.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Refused,
    Sent(Option<u64>),
}

impl Model {
    fn new(rules: Rules) -> Self {
        Self {
            rules,
            now: Duration::ZERO,
            mode: CircuitMode::Enforcing,
            epoch: 0,
            state: State::Closed(Vec::new()),
            reopenings: 0,
            rejected: 0,
        }
    }

    fn become_(&mut self, state: State) {
        self.state = state;
        self.epoch += 1;
    }

    fn open(&mut self, since: Duration) {
        if matches!(self.state, State::Closed(_)) {
            (self.reopenings, self.rejected) = (0, 0);
        } else {
            self.reopenings += 1;
        }
        let wait = (self.rules.open_for * 2_u32.pow(self.reopenings.min(10))).min(self.rules.max_open_for);
        self.become_(State::Open { until: since + wait });
    }

    fn close(&mut self) {
        self.rejected = 0;
        self.become_(State::Closed(Vec::new()));
    }

    fn end_lease(&mut self) {
        if let State::HalfOpen { out: 1.., youngest, .. } = self.state {
            let end = youngest + self.rules.lease;
            if end <= self.now {
                self.open(end);
            }
        }
    }

    fn call(&mut self) -> Sent {
        match self.mode {
            CircuitMode::ForcedClosed => return Sent::Sent(None),
            CircuitMode::ForcedOpen => {
                self.rejected += 1;
                return Sent::Refused;
            }
            _ => {}
        }
        self.end_lease();
        if matches!(self.state, State::Open { until } if until <= self.now) {
            self.become_(State::HalfOpen { out: 0, passed: 0, youngest: self.now });
        }
        let admitted = match &mut self.state {
            State::Closed(_) => true,
            State::Open { .. } => false,
            State::HalfOpen { out, passed, youngest } => {
                let free = *out < self.rules.probes && *out + *passed < self.rules.success_threshold;
                if free {
                    *out += 1;
                    *youngest = self.now;
                }
                free
            }
        };
        if admitted {
            return Sent::Sent(Some(self.epoch));
        }
        self.rejected += 1;
        if self.mode == CircuitMode::Shadow { Sent::Sent(None) } else { Sent::Refused }
    }

    /// `failed`: none for an outcome that is ignored.
    fn settle(&mut self, admitted: Option<u64>, failed: Option<bool>) {
        let Some(admitted) = admitted else {
            return;
        };
        if admitted == self.epoch {
            self.end_lease();
        }
        if admitted != self.epoch {
            return;
        }
        match &mut self.state {
            State::Closed(outcomes) => {
                outcomes.extend(failed.map(|failed| (self.now, failed)));
                let (run, calls, failures) = (self.run(), self.window().0, self.window().1);
                let by_run = failed == Some(true) && self.rules.consecutive.is_some_and(|limit| limit <= run);
                let by_rate = failed.is_some()
                    && self.rules.rate.is_some_and(|(share, of, min_calls)| {
                        min_calls <= calls && share * calls <= failures * of
                    });
                if by_run || by_rate {
                    self.open(self.now);
                }
            }
            State::Open { .. } => panic!("nobody is admitted while open"),
            State::HalfOpen { out, passed, .. } => {
                *out -= 1;
                match failed {
                    None => {}
                    Some(true) => self.open(self.now),
                    Some(false) => {
                        *passed += 1;
                        if self.rules.success_threshold <= *passed {
                            self.close();
                        }
                    }
                }
            }
        }
    }

    fn set_mode(&mut self, mode: CircuitMode) {
        if mode == self.mode {
            return;
        }
        self.mode = mode;
        self.epoch += 1;
        match &mut self.state {
            State::Closed(_) => self.rejected = 0,
            State::HalfOpen { out, .. } => *out = 0,
            State::Open { .. } => {}
        }
    }

    fn run(&self) -> u32 {
        let State::Closed(outcomes) = &self.state else {
            return 0;
        };
        u32::try_from(outcomes.iter().rev().take_while(|(_, failed)| *failed).count()).unwrap()
    }

    /// Calls and failures in the window, which moves in steps of a tenth.
    fn window(&self) -> (u64, u64) {
        let State::Closed(outcomes) = &self.state else {
            return (0, 0);
        };
        let step = self.rules.window.as_nanos() / 10;
        let number = |time: &Duration| time.as_nanos() / step;
        let inside = outcomes.iter().filter(|(time, _)| number(&self.now) < number(time) + 10);
        let failures = inside.clone().filter(|(_, failed)| *failed).count();
        (inside.count() as u64, failures as u64)
    }

    fn state(&self) -> CircuitState {
        match self.state {
            State::Closed(_) => CircuitState::Closed,
            State::Open { .. } => CircuitState::Open,
            State::HalfOpen { .. } => CircuitState::HalfOpen,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self.state {
            _ if self.mode == CircuitMode::ForcedOpen => None,
            State::Closed(_) => None,
            State::Open { until } => Some(until.saturating_sub(self.now)),
            State::HalfOpen { out, passed, .. } => (out < self.rules.probes
                && out + passed < self.rules.success_threshold)
                .then_some(Duration::ZERO),
        }
    }
}

/// A call that is out, and the epoch in which the model admitted it.
struct Out {
    call: Pin<Box<dyn Future<Output = Result<reqwest::Response>>>>,
    held: Held,
    admitted: Option<u64>,
}

/// By how much the cheap hand of the clock lags.
const LAG: Duration = Duration::from_millis(10);

fn live(rules: Rules, steps: Vec<Step>) -> std::result::Result<(), TestCaseError> {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| rules.settings(circuit))
        .classify(|attempt| match attempt.result() {
            Ok(response) if response.status() == IGNORED => Verdict::Ignore,
            _ => attempt.default_verdict(),
        })
        .clock(Lagging { clock: clock.clone(), lag: LAG })
        .build()
        .unwrap();
    let transport = Transport::answering(200);
    transport.hold();
    let client = chain(&breaker, &transport);
    let mut model = Model::new(rules);
    let mut out = Vec::<Out>::new();
    let mut epochs = (0, 0);

    for step in steps {
        match step {
            Step::Call => {
                let mut call = Box::pin(client.get(URL).send());
                let answer = (&mut call).now_or_never();
                let held = transport.take_held();
                match model.call() {
                    Sent::Refused => {
                        let error = answer.expect("a rejection comes at once").unwrap_err();
                        let told = match Rejection::find(&error) {
                            Some(Rejection::CircuitOpen { retry_after, .. }) => *retry_after,
                            _ => return Err(TestCaseError::fail(error.to_string())),
                        };
                        let exact = model.retry_after();
                        prop_assert!(exact <= told && told <= exact.map(|exact| exact + LAG), "{told:?}");
                        prop_assert!(held.is_none(), "a rejected call was sent");
                    }
                    Sent::Sent(admitted) => {
                        prop_assert!(answer.is_none(), "rejected, but should have been sent");
                        let held = held.expect("the call was sent");
                        out.push(Out { call, held, admitted });
                    }
                }
            }
            Step::Answer(which, status) if !out.is_empty() => {
                let Out { call, held, admitted } = out.swap_remove(which % out.len());
                held.answer(status);
                let response = call.now_or_never().expect("answered").unwrap();
                prop_assert_eq!(response.status(), status);
                model.settle(admitted, (status != IGNORED).then_some(status == 503));
            }
            Step::Drop(which) if !out.is_empty() => {
                let Out { call, admitted, .. } = out.swap_remove(which % out.len());
                drop(call);
                model.settle(admitted, None);
            }
            Step::Answer(..) | Step::Drop(_) => {}
            Step::Advance(by) => {
                clock.advance(by);
                model.now += by;
            }
            Step::SetMode(mode) => {
                // A circuit that does not exist yet would be made by this.
                if breaker.snapshot(KEY).is_some() {
                    breaker.set_mode(KEY, mode).unwrap();
                    model.set_mode(mode);
                }
            }
            Step::Reset => {
                if breaker.reset(KEY) {
                    model.mode = CircuitMode::Enforcing;
                    model.close();
                }
            }
        }
        let Some(seen) = breaker.snapshot(KEY) else {
            continue;
        };
        prop_assert_eq!(seen.state, model.state());
        prop_assert_eq!(seen.mode, model.mode);
        prop_assert_eq!(seen.consecutive_failures, model.run());
        prop_assert_eq!(
            seen.window.map_or((0, 0), |window| (window.calls, window.failures)),
            if model.rules.rate.is_some() { model.window() } else { (0, 0) }
        );
        prop_assert_eq!(seen.retry_after, model.retry_after());
        prop_assert_eq!(seen.rejected, model.rejected);
        let in_flight = if let State::HalfOpen { out, .. } = model.state { out } else { 0 };
        prop_assert_eq!(seen.probes_in_flight as usize, in_flight);
        prop_assert_eq!(seen.opened_at.is_some(), seen.state != CircuitState::Closed);
        // Epochs are other numbers than the model's, but they grow exactly when those do.
        prop_assert_eq!(epochs.0 < seen.epoch, epochs.1 < model.epoch || epochs.0 == 0);
        prop_assert!(epochs.0 <= seen.epoch);
        epochs = (seen.epoch, model.epoch);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_circuit_lives_as_the_naive_model_does(rules in rules(), steps in steps()) {
        live(rules, steps)?;
    }
}
