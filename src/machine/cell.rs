//! One circuit, shared by threads.

use super::{
    Expendable, Moment,
    call::{Admission, Outcome, Passage, Refusal, Settlement},
    circuit::Circuit,
    event::CircuitEvent,
    tick::Tick,
    word::Word,
};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};

/// A place for one circuit: a word that everybody reads, and the circuit behind a lock.
///
/// A healthy call reads `word` twice and writes nothing. Everything else, each of them rare or on its way to
/// a rejection, takes the lock, lets the [`Circuit`] decide, and publishes its new word. So every decision is
/// made on the whole truth, one at a time, and the word is never behind by more than the step under way.
///
/// Places are reused. The owner is named by `birth`, the first epoch it lived in; whoever looked a key up
/// holds that number and is told when the place has gone to another.
///
/// ```text
///   writer, under the lock          reader, without it
///   1. word  := vacant              1. word   (acquire)
///   2. birth := the new owner's     2. birth: is it still mine?
///   3. word  := closed (release)
/// ```
///
/// A reader that saw the word of step 3 also sees the birth of step 2, so it cannot take a new owner's
/// circuit for its own; one that saw an earlier word got an epoch that no later state will ever have.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CircuitCell {
    word: AtomicU64,
    birth: AtomicU64,
    circuit: Mutex<Option<Circuit>>,
}

impl CircuitCell {
    pub(crate) fn vacant() -> Self {
        Self {
            word: AtomicU64::new(Word::VACANT.bits()),
            birth: AtomicU64::new(0),
            circuit: Mutex::new(None),
        }
    }

    /// Admits without the lock where the word alone can tell; `None`: ask [`admit`](Self::admit).
    #[inline]
    pub(crate) fn admit_at_a_glance(&self, birth: u64) -> Option<Passage> {
        let word = self.glance();
        // Relaxed: ordered by the acquire of the word.
        if self.birth.load(Ordering::Relaxed) != birth {
            return None;
        }
        if word.admits() {
            return Some(Passage::Observed { epoch: word.epoch() });
        }
        word.is_forced_closed().then_some(Passage::Unobserved)
    }

    /// Refuses a call of the owner `birth` by a clock that may lag, where the circuit stays open for long
    /// enough; `None`: ask [`admit`](Self::admit).
    #[inline]
    pub(crate) fn refuse(
        &self,
        birth: u64,
        recently: Tick,
        journal: &mut Vec<CircuitEvent>,
    ) -> Option<Refusal> {
        if !self.glance().rejects() {
            return None;
        }
        self.with_owner(birth, |circuit| circuit.refuse_for_long(recently, journal))?
    }

    /// Asks for one call of the owner `birth`; `None`: the place has gone to another.
    #[inline]
    pub(crate) fn admit(
        &self,
        birth: u64,
        at: &Moment<'_>,
        journal: &mut Vec<CircuitEvent>,
    ) -> Option<Admission> {
        self.with_owner(birth, |circuit| circuit.admit(at, journal))
    }

    /// Whether an outcome has nothing to write: a success while all is well, or an ignored call while closed.
    #[inline]
    pub(crate) fn is_indifferent_to(&self, epoch: u64, outcome: Outcome) -> bool {
        let word = self.glance();
        let closed_here = word.admits() && word.epoch() == epoch;
        match outcome {
            Outcome::Success => closed_here && !word.records(),
            Outcome::Ignored => closed_here,
            Outcome::Failure => false,
        }
    }

    /// Takes what a call brings back, whoever owns the place now. What an earlier owner admitted counts
    /// nowhere, and has no name to be reported by.
    pub(crate) fn settle(&self, call: Settlement, at: &Moment<'_>, journal: &mut Vec<CircuitEvent>) {
        let circuit = lock(&self.circuit);
        if self.birth.load(Ordering::Relaxed) <= call.epoch {
            let _ = self.change(circuit, |circuit| circuit.settle(call, at, journal));
        }
    }

    /// Runs `change` on the circuit of the owner `birth`; `None`: the place has gone to another.
    #[inline]
    pub(crate) fn with_owner<T>(&self, birth: u64, change: impl FnOnce(&mut Circuit) -> T) -> Option<T> {
        let circuit = lock(&self.circuit);
        // Relaxed: ordered by the lock.
        if self.birth.load(Ordering::Relaxed) != birth {
            return None;
        }
        self.change(circuit, change)
    }

    /// Runs `change` on whatever circuit lives here.
    pub(crate) fn with_circuit<T>(&self, change: impl FnOnce(&mut Circuit) -> T) -> Option<T> {
        self.change(lock(&self.circuit), change)
    }

    /// Ends the circuit that lives here if it may be given up, and as gladly as `at_most`.
    pub(crate) fn evict(&self, at_most: Expendable, now: Tick) -> Option<Circuit> {
        let mut circuit = lock(&self.circuit);
        let expendable = circuit.as_mut()?.expendable(now)?;
        if at_most < expendable {
            return None;
        }
        self.publish(Word::VACANT);
        circuit.take()
    }

    /// Gives the vacant place to a new circuit.
    pub(crate) fn occupy(&self, circuit: Circuit) {
        let mut place = lock(&self.circuit);
        self.birth.store(circuit.epoch(), Ordering::Relaxed);
        self.publish(circuit.word());
        *place = Some(circuit);
    }

    #[inline]
    fn change<T>(
        &self,
        mut circuit: MutexGuard<'_, Option<Circuit>>,
        change: impl FnOnce(&mut Circuit) -> T,
    ) -> Option<T> {
        let circuit = circuit.as_mut()?;
        let result = change(circuit);
        let word = circuit.word();
        if word != self.glance() {
            self.publish(word);
        }
        Some(result)
    }

    #[inline]
    fn glance(&self) -> Word {
        Word::from_bits(self.word.load(Ordering::Acquire))
    }

    fn publish(&self, word: Word) {
        self.word.store(word.bits(), Ordering::Release);
    }
}
