//! Loom models: every interleaving of what threads may do to one circuit, to one budget, and to a
//! place that changes hands.
//!
//! Run with `RUSTFLAGS="--cfg reqwest_resilience_loom" cargo test --lib --release models`.

mod budget;
mod cell;
mod generation;
