//! All that a healthy call reads, in one word.

use super::state::{CircuitMode, CircuitState};

const TAG_SHIFT: u32 = 62;
const FORCED: u64 = 1 << 61;
const VARIANT: u64 = 1 << 60;
const RECORDS: u64 = 1 << 59;
const EPOCH: u64 = RECORDS - 1;

const CLOSED: u64 = 0;
const OPEN: u64 = 1;
const HALF_OPEN: u64 = 2;
const VACANT: u64 = 3;

/// A circuit at a glance.
///
/// ```text
///   63 62   61 60   59        58 ……………………………………………………… 0
///  ┌───────┬───────┬─────────┬──────────────────────────┐
///  │ state │ mode  │ records │ epoch                    │
///  └───────┴───────┴─────────┴──────────────────────────┘
/// ```
///
/// `state`: 0 closed, 1 open, 2 half-open, 3 vacant. `mode`: the upper bit says forced, the lower tells the
/// two of a kind apart. `records`: a success has something to write, a run of failures to end or a window to
/// count in.
///
/// A closed circuit that enforces and has nothing to record is the bare number of its epoch. Epochs never run
/// out: 59 bits last 18 years at a transition a nanosecond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(u64);

impl Word {
    /// No circuit lives here.
    pub(crate) const VACANT: Self = Self(VACANT << TAG_SHIFT);

    pub(crate) fn new(state: CircuitState, mode: CircuitMode, records: bool, epoch: u64) -> Self {
        let tag = match state {
            CircuitState::Closed => CLOSED,
            CircuitState::Open => OPEN,
            CircuitState::HalfOpen => HALF_OPEN,
        };
        let mode = match mode {
            CircuitMode::Enforcing => 0,
            CircuitMode::Shadow => VARIANT,
            CircuitMode::ForcedOpen => FORCED,
            CircuitMode::ForcedClosed => FORCED | VARIANT,
        };
        let records = if records { RECORDS } else { 0 };
        Self(tag << TAG_SHIFT | mode | records | epoch & EPOCH)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn epoch(self) -> u64 {
        self.0 & EPOCH
    }

    /// Closed and free to decide: the next call goes through and its outcome counts.
    pub(crate) fn admits(self) -> bool {
        self.0 & !(VARIANT | RECORDS | EPOCH) == 0
    }

    /// Forced closed: the next call goes through and its outcome is nobody's.
    pub(crate) fn is_forced_closed(self) -> bool {
        self.0 & (FORCED | VARIANT) == FORCED | VARIANT && self.0 >> TAG_SHIFT != VACANT
    }

    /// Open, and the next call does not go through unless time has come for a probe.
    pub(crate) fn rejects(self) -> bool {
        self.0 & !(RECORDS | EPOCH) == OPEN << TAG_SHIFT
    }

    /// A success has something to write.
    pub(crate) fn records(self) -> bool {
        self.0 & RECORDS != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CircuitMode::{Enforcing, ForcedClosed, ForcedOpen, Shadow};
    use CircuitState::{Closed, HalfOpen, Open};

    #[test]
    fn only_a_closed_circuit_that_is_not_forced_admits_at_a_glance() {
        for state in [Closed, Open, HalfOpen] {
            for mode in [Enforcing, Shadow, ForcedOpen, ForcedClosed] {
                for records in [false, true] {
                    let word = Word::new(state, mode, records, 7);
                    assert_eq!(word.admits(), state == Closed && matches!(mode, Enforcing | Shadow));
                    assert_eq!(word.is_forced_closed(), mode == ForcedClosed);
                    assert_eq!(word.rejects(), state == Open && mode == Enforcing);
                    assert_eq!(word.records(), records);
                    assert_eq!(word.epoch(), 7);
                }
            }
        }
        assert!(!Word::VACANT.admits() && !Word::VACANT.is_forced_closed() && !Word::VACANT.rejects());
    }

    #[test]
    fn a_healthy_word_is_its_epoch() {
        assert_eq!(Word::new(Closed, Enforcing, false, 42).bits(), 42);
    }
}
