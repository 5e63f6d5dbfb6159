//! What a retry budget costs a call and a retry, beside tower's, on one and on two threads.
//!
//! `cargo bench --all-features --bench budget`
//!
//! Benches are built with tokio's `test-util`, as tests are, so a deposit reads the dearer clock here; `peers`
//! shows what it costs in production.
#![allow(missing_docs, reason = "criterion's macros make functions without")]

mod support;

use criterion::{Criterion, criterion_group, criterion_main};
use reqwest_resilience::internals::LoneBudget;
use std::{hint::black_box, time::Duration};
use support::{bench, settings};
use tower::retry::budget::{Budget, TpsBudget};

/// How many calls pay for one retry, with the default ratio.
const CALLS: usize = 5;

/// The same rule in both.
fn budgets() -> (LoneBudget, TpsBudget) {
    (LoneBudget::new(), TpsBudget::new(Duration::from_secs(10), 10, 0.2))
}

fn deposit(c: &mut Criterion) {
    let (ours, theirs) = budgets();
    let mut group = c.benchmark_group("deposit");
    bench(&mut group, "RetryBudget", |_| black_box(&ours).deposit());
    bench(&mut group, "TpsBudget", |_| black_box(&theirs).deposit());
    group.finish();
}

/// Nobody deposits, so all but the first hundred are refused: a storm.
fn refused_withdrawal(c: &mut Criterion) {
    let (ours, theirs) = budgets();
    let mut group = c.benchmark_group("refused withdrawal");
    bench(&mut group, "RetryBudget", |_| {
        black_box(black_box(&ours).withdraw());
    });
    bench(&mut group, "TpsBudget", |_| {
        black_box(black_box(&theirs).withdraw());
    });
    group.finish();
}

fn granted_withdrawal(c: &mut Criterion) {
    let (ours, theirs) = budgets();
    let mut group = c.benchmark_group(format!("{CALLS} deposits and the withdrawal they pay for"));
    bench(&mut group, "RetryBudget", |_| {
        (0..CALLS).for_each(|_| black_box(&ours).deposit());
        black_box(black_box(&ours).withdraw());
    });
    bench(&mut group, "TpsBudget", |_| {
        (0..CALLS).for_each(|_| black_box(&theirs).deposit());
        black_box(black_box(&theirs).withdraw());
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = settings();
    targets = deposit, refused_withdrawal, granted_withdrawal
}
criterion_main!(benches);
