//! The same work on one and on two threads.

use criterion::{BenchmarkGroup, Criterion, measurement::WallTime};
use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// Short runs: there are many, and what is looked for are ratios.
pub fn settings() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1))
}

/// Measures `work`, which is told how often its thread has done it before.
pub fn bench(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, work: impl Fn(usize) + Sync) {
    bench_with(group, name, || (), |n, ()| work(n));
}

/// The same with a value for each thread, `prepare`d before the time counts: a response cannot be shared.
pub fn bench_with<P>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    prepare: impl Fn() -> P + Sync,
    work: impl Fn(usize, &P) + Sync,
) {
    for threads in [1, 2] {
        group.bench_function(format!("{name}, {threads} threads"), |bencher| {
            bencher.iter_custom(|iters| on_threads(threads, iters, &prepare, &work));
        });
    }
}

/// Runs `work` on `threads` threads at once, `iters` times on each, and reports the slowest.
fn on_threads<P>(
    threads: usize,
    iters: u64,
    prepare: &(impl Fn() -> P + Sync),
    work: &(impl Fn(usize, &P) + Sync),
) -> Duration {
    let iters = usize::try_from(iters).unwrap();
    let start = Barrier::new(threads);
    let run = || {
        let prepared = prepare();
        start.wait();
        let begin = Instant::now();
        (0..iters).for_each(|n| work(n, &prepared));
        begin.elapsed()
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
    })
}
