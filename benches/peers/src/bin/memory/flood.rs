//! A million origins through a cap of ten thousand.

use allocation_counter::measure;
use http::Extensions;
use peers::{
    chain::{answer, client, ready, request, unsent, url},
    ratio::{Ratios, median},
};
use reqwest::{Method, Request, Response};
use reqwest_middleware::{ClientWithMiddleware, Middleware, Next, Result};
use reqwest_resilience::{
    Bulkhead, CircuitBreaker, CircuitBreakerBuilder, CircuitEvent, ManualClock, Retry, RetryBudget, Trip,
    internals::call,
};
use std::{
    fs,
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;

const ORIGINS: usize = 1_000_000;
const CAP: usize = 10_000;
/// How often the million is run for its times.
const RUNS: usize = 5;
/// Where memory is looked at, the cap first.
const POINTS: [usize; 10] =
    [CAP, 20_000, 40_000, 80_000, 160_000, 320_000, 480_000, 640_000, 800_000, ORIGINS];

/// The origin of the nth call: each comes once, in the same scattered order in every run.
fn origin(nth: usize) -> usize {
    nth * 611_953 % ORIGINS
}

/// A registry that is flooded.
trait Registry {
    /// One call to an origin that was not seen before; how long our part of it took.
    fn call(&self, request: Request) -> Duration;

    /// Fails where the registry is not full, or its last newcomer (the nth) did not get a place.
    fn check(&self, nth: usize);
}

struct Circuits {
    breaker: CircuitBreaker,
    answer: Result<Response>,
    untracked: Arc<AtomicU32>,
}

impl Circuits {
    fn of(builder: CircuitBreakerBuilder) -> Box<dyn Registry> {
        let untracked = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&untracked);
        let builder = builder.max_circuits(CAP).on_event(move |event| {
            if matches!(event, CircuitEvent::Untracked { .. }) {
                seen.fetch_add(1, Relaxed);
            }
        });
        Box::new(Self { breaker: builder.build().unwrap(), answer: answer(200), untracked })
    }
}

impl Registry for Circuits {
    fn call(&self, request: Request) -> Duration {
        let begin = Instant::now();
        black_box(call(&self.breaker, &request, &self.answer)).unwrap();
        begin.elapsed()
    }

    fn check(&self, nth: usize) {
        assert_eq!(self.breaker.snapshots().len(), CAP);
        assert!(self.breaker.snapshot(url(origin(nth)).as_str()).is_some(), "the newcomer got no circuit");
        assert_eq!(self.untracked.load(Relaxed), 0, "some newcomers got no circuit");
    }
}

struct Gates {
    bulkhead: Bulkhead,
    client: ClientWithMiddleware,
}

impl Gates {
    fn flooded() -> Box<dyn Registry> {
        let bulkhead = Bulkhead::builder().max_concurrent(64).max_keys(CAP).build().unwrap();
        Box::new(Self { client: client(|chain| chain.with(bulkhead.clone())), bulkhead })
    }
}

impl Registry for Gates {
    fn call(&self, request: Request) -> Duration {
        time_chain(&self.client, request)
    }

    fn check(&self, nth: usize) {
        let gates = self.bulkhead.snapshots();
        assert_eq!(gates.len(), CAP);
        let newcomer = format!("https://{}:443", url(origin(nth)).host_str().unwrap());
        assert!(gates.iter().any(|gate| *gate.key == *newcomer), "the newcomer got no gate");
    }
}

struct Budgets<'a> {
    clock: ManualClock,
    client: ClientWithMiddleware,
    /// The same budgets before an origin that is down.
    to_the_dead: ClientWithMiddleware,
    attempts: Arc<AtomicU32>,
    runtime: &'a Runtime,
}

/// A budget is given up when its window, of 10 seconds, is empty: with this between two calls, the oldest of
/// ten thousand is.
const BETWEEN_CALLS: Duration = Duration::from_millis(2);

impl<'a> Budgets<'a> {
    fn flooded(runtime: &'a Runtime) -> Box<dyn Registry + 'a> {
        let clock = ManualClock::new();
        let budget = RetryBudget::builder().max_keys(CAP).clock(clock.clone()).build().unwrap();
        let retry = Retry::builder().max_retries(1).backoff(Duration::ZERO, Duration::ZERO).budget(budget);
        let retry = retry.build().unwrap();
        let attempts = Arc::new(AtomicU32::new(0));
        Box::new(Self {
            clock,
            client: client(|chain| chain.with(retry.clone())),
            to_the_dead: unsent().with(retry).with(Dead(Arc::clone(&attempts))).build(),
            attempts,
            runtime,
        })
    }
}

impl Registry for Budgets<'_> {
    fn call(&self, request: Request) -> Duration {
        self.clock.advance(BETWEEN_CALLS);
        time_chain(&self.client, request)
    }

    /// A call that got no budget is not retried.
    fn check(&self, nth: usize) {
        self.clock.advance(BETWEEN_CALLS);
        self.attempts.store(0, Relaxed);
        let url = format!("https://dead-{nth:06}.internal.example.com").parse().unwrap();
        let answer = self.runtime.block_on(self.to_the_dead.execute(Request::new(Method::GET, url)));
        assert_eq!(answer.unwrap().status(), 503);
        assert_eq!(self.attempts.load(Relaxed), 2, "the newcomer got no budget");
    }
}

/// Answers 503, and counts.
struct Dead(Arc<AtomicU32>);

#[async_trait::async_trait]
impl Middleware for Dead {
    async fn handle(&self, _: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        self.0.fetch_add(1, Relaxed);
        answer(503)
    }
}

fn time_chain(client: &ClientWithMiddleware, request: Request) -> Duration {
    let begin = Instant::now();
    let answer = black_box(ready(client.execute(request)));
    let took = begin.elapsed();
    answer.unwrap();
    took
}

pub(crate) fn of_origins(runtime: &Runtime, ratios: &mut Ratios) {
    println!("\n## 1,000,000 origins, cap 10,000");
    println!(
        "Ours alone. Each origin is called once, in the same order in each run; its key has 46 characters. \
         Live: bytes that the allocator gave out and did not get back since the registry was made; peak: \
         the most since the line before. The ratios: the highest peak per place; the highest peak over \
         that up to the cap. A call beyond the cap recycles a place; its time is the least of \
         {RUNS} runs, each with a fresh registry; the ratio is the slowest over the median. Circuits are \
         timed by themselves, budgets and bulkheads through a whole chain with one layer."
    );
    let rate = || CircuitBreaker::builder().defaults(|circuit| circuit.trip(Trip::failure_rate(0.5)));
    flood("circuits", ratios, || Circuits::of(CircuitBreaker::builder()));
    long_hosts(ratios);
    flood("circuits-failure-rate", ratios, || Circuits::of(rate()));
    flood("budgets", ratios, || Budgets::flooded(runtime));
    flood("bulkheads", ratios, Gates::flooded);
}

/// Up to the cap alone: hosts of 80 bytes, as some load balancers have.
fn long_hosts(ratios: &mut Ratios) {
    let answer = answer(200);
    let breaker = CircuitBreaker::builder().max_circuits(CAP).build().unwrap();
    let live = measure(|| {
        for nth in 0..CAP {
            let host = format!("service-{nth:06}.{}.example.com", "internal-".repeat(5));
            let url = format!("https://{host:x<80}/v1/items").parse().unwrap();
            call(&breaker, &Request::new(Method::GET, url), &answer).unwrap();
        }
    });
    assert_eq!(breaker.snapshots().len(), CAP);
    let per_circuit = live.bytes_current as f64 / CAP as f64;
    println!("with hosts of 80 bytes: {per_circuit:.1} B a circuit");
    ratios.note("circuits-long-hosts-bytes", per_circuit, 512.0);
}

fn flood<'a>(name: &str, ratios: &mut Ratios, registry: impl Fn() -> Box<dyn Registry + 'a>) {
    println!("\n{name}");
    let peaks = peaks(&registry);
    let highest = |peaks: &[i64]| peaks.iter().copied().max().unwrap() as f64;
    ratios.note(format!("{name}-bytes"), highest(&peaks) / CAP as f64, 512.0);
    ratios.note(format!("{name}-memory-flat"), highest(&peaks) / highest(&peaks[..1]), 1.05);

    let times = &least_times(&registry)[CAP..];
    let middle = median(times.iter().map(|&nanos| f64::from(nanos)));
    let (nth, &slowest) = times.iter().enumerate().max_by_key(|&(_, nanos)| nanos).unwrap();
    println!("recycling: median {middle:.0} ns, slowest {slowest} ns (call {})", CAP + nth);
    ratios.note(format!("{name}-slowest-recycling"), f64::from(slowest) / middle, 100.0);
}

/// The most bytes live at once up to each point since the one before.
fn peaks<'a>(registry: &impl Fn() -> Box<dyn Registry + 'a>) -> [i64; POINTS.len()] {
    println!("{:>12}{:>12}{:>12}{:>10}{:>15}", "origins", "live B", "peak B", "B/place", "resident KiB");
    let mut made = None;
    let mut live = measure(|| made = Some(registry())).bytes_current;
    let registry = made.unwrap();
    let mut from = 0;
    POINTS.map(|to| {
        let stretch = measure(|| {
            for nth in from..to {
                registry.call(request(origin(nth)));
            }
        });
        let peak = live + i64::try_from(stretch.bytes_max).unwrap();
        live += stretch.bytes_current;
        from = to;
        let per_place = peak as f64 / CAP as f64;
        println!("{to:>12}{live:>12}{peak:>12}{per_place:>10.1}{:>15}", resident_kib());
        live += measure(|| registry.check(to - 1)).bytes_current;
        peak
    })
}

/// The least nanoseconds of each call over the runs.
fn least_times<'a>(registry: &impl Fn() -> Box<dyn Registry + 'a>) -> Vec<u32> {
    let mut least = vec![u32::MAX; ORIGINS];
    for _ in 0..RUNS {
        let registry = registry();
        for (nth, least) in least.iter_mut().enumerate() {
            let took = registry.call(request(origin(nth)));
            *least = (*least).min(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
        }
        registry.check(ORIGINS - 1);
    }
    least
}

/// Of this process, as the system sees it.
fn resident_kib() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()).unwrap_or("?").to_owned()
}
