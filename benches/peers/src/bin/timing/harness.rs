//! How contenders are timed: in turns, so that a machine that drifts drifts for all of them.

use core_affinity::CoreId;
use peers::ratio::median;
use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

const ROUNDS: usize = 60;
/// About how long one contender runs at a time.
const BATCH: Duration = Duration::from_millis(5);
/// On how many threads each one runs.
const THREADS: [usize; 2] = [1, 2];

/// One way to do the work.
pub(crate) struct Contender<'a> {
    name: &'static str,
    /// Runs the work on so many threads, so often on each.
    run: Box<dyn Fn(usize, u64) -> Duration + 'a>,
}

impl<'a> Contender<'a> {
    /// `on_thread` is called on each thread before the clock starts, and makes what that thread then repeats.
    pub(crate) fn new<W: FnMut()>(name: &'static str, on_thread: impl Fn() -> W + Sync + 'a) -> Self {
        Self { name, run: Box::new(move |threads, times| run(threads, times, &on_thread)) }
    }

    /// How often the work is done in a batch.
    fn times(&self, threads: usize) -> u64 {
        let mut times = 64;
        loop {
            let took = (self.run)(threads, times);
            if took > BATCH / 4 {
                let one = took.as_nanos() / u128::from(times);
                return u64::try_from(BATCH.as_nanos() / one.max(1)).unwrap_or(u64::MAX).max(1);
            }
            times *= 2;
        }
    }
}

/// From when the first thread starts to when the last one is done. So a thread that has to wait for a core
/// costs time, and does not look as if it were never in the way. Each has a core of its own, where there is.
fn run<W: FnMut()>(threads: usize, times: u64, on_thread: &(impl Fn() -> W + Sync)) -> Duration {
    let start = Barrier::new(threads);
    // For the timers of those who have some.
    let runtime = Handle::current();
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let one = |core: Option<CoreId>| {
        core.map(core_affinity::set_for_current);
        let _entered = runtime.enter();
        let mut work = on_thread();
        start.wait();
        let begin = Instant::now();
        (0..times).for_each(|_| work());
        (begin, Instant::now())
    };
    thread::scope(|scope| {
        let one = &one;
        let start = |thread: usize| {
            let core = cores.get(thread).copied();
            scope.spawn(move || one(core))
        };
        let running: Vec<_> = (0..threads).map(start).collect();
        let spans = running.into_iter().map(|thread| thread.join().unwrap());
        let whole = spans.reduce(|(begin, end), (early, late)| (begin.min(early), end.max(late)));
        whole.map_or(Duration::ZERO, |(begin, end)| end - begin)
    })
}

/// Nanoseconds for each thread's piece of work, of each round.
type Rounds = Vec<f64>;

/// What a race brought.
pub(crate) struct Outcome(Vec<(&'static str, [Rounds; THREADS.len()])>);

/// Runs the contenders in turns, a different one first in each round, and prints the table.
pub(crate) fn race(heading: &str, words: &str, contenders: &[Contender<'_>]) -> Outcome {
    let times: Vec<_> = contenders.iter().map(|one| THREADS.map(|threads| one.times(threads))).collect();
    go(heading, words, contenders, &times)
}

/// The same with so many pieces of work in every batch: for work that its own repetition changes.
pub(crate) fn race_for(heading: &str, words: &str, contenders: &[Contender<'_>], times: u64) -> Outcome {
    go(heading, words, contenders, &vec![[times; THREADS.len()]; contenders.len()])
}

fn go(heading: &str, words: &str, contenders: &[Contender<'_>], times: &[[u64; THREADS.len()]]) -> Outcome {
    let mut outcome = Outcome(contenders.iter().map(|one| (one.name, Default::default())).collect());
    for round in 0..ROUNDS {
        for turn in 0..contenders.len() {
            let place = (round + turn) % contenders.len();
            for (nth, threads) in THREADS.into_iter().enumerate() {
                let times = times[place][nth];
                let took = (contenders[place].run)(threads, times);
                outcome.0[place].1[nth].push(took.as_nanos() as f64 / times as f64);
            }
        }
    }
    outcome.print(heading, words);
    outcome
}

impl Outcome {
    fn rounds(&self, name: &str, threads: usize) -> &[f64] {
        let nth = THREADS.iter().position(|&number| number == threads).unwrap();
        &self.0.iter().find(|(known, _)| *known == name).unwrap().1[nth]
    }

    /// Of the rounds, both in the same one: how many times the work of `base` that of `name` takes.
    pub(crate) fn ratio(&self, name: &str, base: &str, threads: usize) -> f64 {
        let pairs = self.rounds(name, threads).iter().zip(self.rounds(base, threads));
        median(pairs.map(|(ours, theirs)| ours / theirs))
    }

    /// Of the rounds, both in the same one: what `name` takes longer than `base`, in nanoseconds.
    pub(crate) fn surplus(&self, name: &str, base: &str, threads: usize) -> f64 {
        let pairs = self.rounds(name, threads).iter().zip(self.rounds(base, threads));
        median(pairs.map(|(ours, theirs)| ours - theirs))
    }

    /// Of the rounds: the scaling of `base` over that of `name`. Scaling is the time on one thread over that
    /// on two.
    pub(crate) fn scaling_lost(&self, name: &str, base: &str) -> f64 {
        let scaling = |name| {
            let pairs = self.rounds(name, 1).iter().zip(self.rounds(name, 2));
            pairs.map(|(one, two)| one / two).collect::<Vec<_>>()
        };
        median(scaling(base).iter().zip(scaling(name)).map(|(base, ours)| base / ours))
    }

    /// The quickest of `names`.
    pub(crate) fn quickest(&self, names: &[&'static str], threads: usize) -> &'static str {
        let time = |name: &str| median(self.rounds(name, threads).iter().copied());
        names.iter().copied().min_by(|a, b| time(a).total_cmp(&time(b))).unwrap()
    }

    fn print(&self, heading: &str, words: &str) {
        println!("\n## {heading}\n{words}\n");
        println!(
            "{:<44}{:>10}{:>10}{:>12}{:>10}",
            "ns a call", "1 thread", "(least)", "2 threads", "(least)"
        );
        for (name, [one, two]) in &self.0 {
            let middle = |rounds: &Rounds| median(rounds.iter().copied());
            let least = |rounds: &Rounds| rounds.iter().copied().fold(f64::INFINITY, f64::min);
            println!(
                "{name:<44}{:>10.1}{:>10.1}{:>12.1}{:>10.1}",
                middle(one),
                least(one),
                middle(two),
                least(two),
            );
        }
    }
}
