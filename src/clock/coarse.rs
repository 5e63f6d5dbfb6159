//! The kernel's coarse clock: the time of its last tick, told without asking the hardware.

use rustix::time::{ClockId, clock_gettime};
use std::{
    iter::repeat_with,
    sync::LazyLock,
    time::{Duration, Instant},
};

/// One point in time as both tell it: the `Instant`, and the same since the machine was started.
static ZERO: LazyLock<(Instant, Duration)> = LazyLock::new(|| {
    let (_, instant, monotonic) = repeat_with(compare).take(TRIES).min().unwrap_or_else(compare);
    (instant, monotonic)
});

/// How often the two clocks are compared. Whatever came between the readings would be a lag for good.
const TRIES: usize = 8;

/// Both clocks, and how long it took to read them. The `Instant` first: so nothing told here is ahead of it.
fn compare() -> (Duration, Instant, Duration) {
    let instant = Instant::now();
    let monotonic = read(ClockId::Monotonic);
    (instant.elapsed(), instant, monotonic)
}

/// The time of the last tick. Kernels tick every 1 to 10 milliseconds.
#[inline]
pub(super) fn now() -> Instant {
    let (instant, zero) = *ZERO;
    let passed = read(ClockId::MonotonicCoarse).saturating_sub(zero);
    instant.checked_add(passed).unwrap_or(instant)
}

/// The clock of `Instant`, or its coarse twin, since the machine was started.
#[inline]
fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(nanos)) => Duration::new(seconds, nanos),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coarse_clock_is_behind_the_other_and_not_by_much() {
        for _ in 0..10_000 {
            let before = Instant::now();
            let coarse = now();
            assert!(coarse <= Instant::now());
            assert!(before.saturating_duration_since(coarse) < Duration::from_millis(100));
        }
    }
}
