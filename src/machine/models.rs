//! Loom models: every interleaving of what threads may do to one circuit, and to one budget.
//!
//! Run with `RUSTFLAGS="--cfg reqwest_resilience_loom" cargo test --lib --release models`.

mod budget;
mod cell;
