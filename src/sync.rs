//! The atomics and the mutex of the machine: std's, or loom's when its models are built.
//!
//! `--cfg loom` would switch tokio as well, which then does not compile; hence a cfg of our own.

#[cfg(reqwest_resilience_loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(reqwest_resilience_loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

use std::sync::PoisonError;

/// Locks `mutex` whether or not a thread panicked with it.
///
/// No code of a user runs under a lock of ours, and what a lock guards is changed in steps that cannot
/// panic. So a poisoned mutex still holds a sound value, and one panic must not end the service.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
