//! Whose a place is that is guarded by a count of slots.

use crate::sync::{AtomicU64, Ordering};

/// The owner of such a place, by an even number above zero. It changes only while whoever changes it holds every slot.
///
/// ```text
///   who takes the place over           who comes for a slot
///   1. generation: odd                 1. takes a slot, or finds none
///   2. takes every slot, or gives up   2. generation: still mine?
///   3. generation: the next owner's       then the slot is, and the place stays mine while it is held;
///   4. gives the slots back               or it is truly taken by calls of mine
/// ```
///
/// Whoever is told that the place has gone asks again where the taking over is serialised. Relaxed throughout: what is
/// written here before slots are taken or given back is seen by who comes by the slots after.
#[derive(Debug)]
pub(crate) struct Generation(AtomicU64);

impl Generation {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(2))
    }

    /// The owner, or an odd number while the place changes hands.
    pub(crate) fn current(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether the place is no longer, or perhaps no longer, that of `owner`. Asked after the slots were.
    pub(crate) fn has_gone(&self, owner: u64) -> bool {
        self.current() != owner
    }

    /// Takes the place over, if `claim` gets hold of every slot. What it got is given back when the place has changed
    /// hands. One at a time.
    pub(crate) fn take_over<Slots>(&self, claim: impl FnOnce() -> Option<Slots>) -> Option<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let Some(_every_slot) = claim() else {
            self.0.fetch_sub(1, Ordering::Relaxed);
            return None;
        };
        self.0.fetch_add(1, Ordering::Relaxed);
        Some(())
    }
}
