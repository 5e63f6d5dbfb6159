//! What a healthy call allocates, and what a flood of origins leaves behind.
//!
//! A binary of its own, since its allocator counts.

mod allocations;
mod flood;

use peers::ratio::Ratios;
use tokio::runtime;

fn main() {
    let mut ratios = Ratios::default();
    let runtime = runtime::Builder::new_current_thread().enable_time().build().unwrap();
    {
        let _for_timers = runtime.enter();
        allocations::of_a_healthy_call(&mut ratios);
    }
    flood::of_origins(&runtime, &mut ratios);
    print!("\n{ratios}");
}
