//! The retry budget beside tower's.

use crate::harness::{Contender, race};
use peers::ratio::Ratios;
use reqwest_resilience::internals::LoneBudget;
use std::{hint::black_box, time::Duration};
use tower::retry::budget::{Budget, TpsBudget};

const OURS: &str = "ours";
const TPS: &str = "TpsBudget";

pub(crate) fn beside_tower(ratios: &mut Ratios) {
    let ours = LoneBudget::new();
    let theirs = TpsBudget::new(Duration::from_secs(10), 10, 0.2);
    let outcome = race(
        "budget deposit",
        "Ours and theirs: one deposit in a budget at hand of 10 s, 10 a second, a fifth of the calls. Both read \
         a clock: ours the kernel's coarse one, as a deposit may be dated some milliseconds early.",
        &[
            Contender::new(OURS, || || black_box(&ours).deposit()),
            Contender::new(TPS, || || black_box(&theirs).deposit()),
        ],
    );
    ratios.note("deposit", outcome.ratio(OURS, TPS, 1), 0.7);
    ratios.note("deposit-2-threads", outcome.ratio(OURS, TPS, 2), 0.4);
    race(
        "budget withdrawal",
        "Ours and theirs: one deposit and one withdrawal, most of them refused. (No ratio.)",
        &[
            Contender::new(OURS, || {
                || {
                    black_box(&ours).deposit();
                    black_box(ours.withdraw());
                }
            }),
            Contender::new(TPS, || {
                || {
                    black_box(&theirs).deposit();
                    black_box(theirs.withdraw());
                }
            }),
        ],
    );
}
