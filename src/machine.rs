//! The machine: what a circuit decides, and how threads share it.
//!
//! Pure: no async, no clock, no http, no tracing. Time, chance and fresh epochs come in as a [`Moment`]; what
//! happened goes out as values.
//!
//! - [`circuit`] is the state machine: `&mut self`, no atomics, every decision.
//! - [`cell`] shares one circuit between threads: a word to read, a lock to change.
//! - [`budget`] says how many retries there may be, [`backoff`] how long to wait before one.
//! - [`generation`] says whose a place is that a semaphore guards.
//! - [`call`] is what goes in and out of a circuit. The rest are their parts: [`word`], [`window`], [`trip`],
//!   [`policy`], [`throttle`], [`tick`].

pub(crate) mod backoff;
pub(crate) mod budget;
pub(crate) mod call;
pub(crate) mod cell;
pub(crate) mod circuit;
pub(crate) mod event;
pub(crate) mod generation;
pub(crate) mod policy;
pub(crate) mod snapshot;
pub(crate) mod state;
pub(crate) mod throttle;
pub(crate) mod tick;
pub(crate) mod trip;
pub(crate) mod window;
pub(crate) mod word;

#[cfg(all(test, reqwest_resilience_loom))]
mod models;

use crate::sync::{AtomicU64, Ordering};
use tick::Tick;

/// What a decision is told of the world outside.
#[derive(Debug)]
pub(crate) struct Moment<'a> {
    /// The time.
    pub(crate) now: Tick,
    /// Draws a number at random, uniform over all values. Few decisions need one.
    pub(crate) chance: fn() -> u64,
    /// Where a transition takes its epoch from.
    pub(crate) epochs: &'a Epochs,
}

/// The numbers of epochs: one sequence for all circuits of a breaker, so that no number is ever used twice.
///
/// An epoch therefore names one state of one owner of one slot, and equality is all that a late outcome
/// has to be asked. For one key the numbers only grow, also when its circuit was recycled and made anew.
#[derive(Debug)]
pub(crate) struct Epochs(AtomicU64);

impl Epochs {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(1))
    }

    /// The next number. Relaxed: uniqueness comes from the addition, order from the lock the caller holds.
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// How gladly the owner of a place is given up for another, gladdest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Expendable {
    /// Nobody could tell it from a new one.
    Fresh,
    /// Closed, with something counted.
    Counted,
    /// Its open period is over, and no probe is out.
    WaitOver,
}
