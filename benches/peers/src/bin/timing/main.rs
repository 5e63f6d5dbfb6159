//! How long a call takes, beside the peers on the same work.

mod budget;
mod failure_rate;
mod harness;
mod keyed;
mod layers;
mod peers;
mod rejection;
mod unkeyed;

use ::peers::ratio::Ratios;
use harness::{Contender, race};
use std::{hint::black_box, time::Instant};
use tokio::runtime;

fn main() {
    let runtime = runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    machine();
    let mut ratios = Ratios::default();
    unkeyed::healthy(&mut ratios);
    keyed::healthy(&mut ratios);
    keyed::scaling(&mut ratios);
    rejection::open(&mut ratios);
    failure_rate::beside_tower_resilience(&mut ratios);
    failure_rate::is_constant(&mut ratios);
    unkeyed::failing_now_and_then();
    budget::beside_tower(&mut ratios);
    layers::over_a_scripted_transport(&mut ratios);
    print!("\n{ratios}");
}

/// Whether there is a second core to be had.
fn machine() {
    let arithmetic = Contender::new("64 multiplications", || {
        || {
            black_box((0..64).fold(black_box(3_u64), |product, _| black_box(product.wrapping_mul(5))));
        }
    });
    let clock = Contender::new("clock read", || {
        || {
            black_box(Instant::now());
        }
    });
    race(
        "the machine",
        "Work that threads cannot disturb each other in, and a clock read. Where a second thread slows these, something \
         else had the core, and the columns for 2 threads and their ratios say little.",
        &[arithmetic, clock],
    );
}
