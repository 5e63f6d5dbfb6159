//! A retry storm, and how not to have one: the same outage met by four clients.
//!
//! ```text
//! cargo run --example retry_storm
//! ```
//!
//! Each client has a service of its own, which is well, then fails for some seconds, then is well again, while
//! 40 callers a second come steadily. It takes about ten seconds and prints
//!
//! - a line per second: how many requests each service received in it,
//! - for the outage: the requests per call (the amplification), and what they have to be.
//!
//! It fails with an error when one of them is not so. What it claims is about counts, never about times, so it
//! holds on a slow machine too.

use axum::{Router, extract::State, http::StatusCode, routing::get};
use reqwest::Response;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_resilience::{
    CircuitBreaker, ConfigError, Deadline, Rejection, Retry, RetryBudget, RetryBuilder, Trip,
};
use std::{
    error::Error,
    io::{self, IsTerminal, stdout},
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

const CALLS_PER_SECOND: u32 = 40;
const MAX_RETRIES: u32 = 3;
const SECOND: Duration = Duration::from_secs(1);

/// The budget: one retry for so many calls, and one a second that needs no calls, which makes a floor of 20
/// in its window. That is longer than the play, so nothing is forgotten.
const CALLS_PER_RETRY: u32 = 5;
const WINDOW: Duration = Duration::from_secs(20);
const FLOOR: u32 = 20;

// On one thread: where the machine is slow, it is so for callers and services alike.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let http = reqwest::Client::builder().no_proxy().build()?; // The services are on loopback.
    let chain = || ClientBuilder::new(http.clone());
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(5)).open_for(SECOND))
        .build()?;
    let bare = chain();
    let retries_alone = chain().with(retry().budget(RetryBudget::unlimited()).build()?);
    let with_a_budget = chain().with(retry().budget(budget()?).build()?);
    let full_chain =
        chain().with(Deadline::after(10 * SECOND)).with(retry().budget(budget()?).build()?).with(breaker);
    let mut play = Play {
        sides: [
            Side::new(bare).await?,
            Side::new(retries_alone).await?,
            Side::new(with_a_budget).await?,
            Side::new(full_chain).await?,
        ],
        seconds: 0,
    };

    println!("Four clients, {CALLS_PER_SECOND} calls of each in a second. What their services receive:\n");
    print_row("second", "service", &NAMES.map(|name| format!("{name:18}")));
    let before = play.act("well", false, 2).await?;
    let outage = play.act("failing", true, 4).await?;
    play.act("well again", false, 2).await?; // Meanwhile the circuit finds out, by a probe.
    let after = play.act("well again", false, 1).await?;
    check(&before, &outage, &after)
}

/// Retries, after up to 50, 100 and 200 ms.
fn retry() -> RetryBuilder {
    Retry::builder().max_retries(MAX_RETRIES).backoff(Duration::from_millis(50), Duration::from_millis(200))
}

fn budget() -> Result<RetryBudget, ConfigError> {
    RetryBudget::builder().ratio(1.0 / f64::from(CALLS_PER_RETRY)).min_per_second(1).window(WINDOW).build()
}

const NAMES: [&str; 4] = ["bare client", "retries alone", "with a budget", "full chain"];

/// Four clients, each with its own service, under the same calls.
struct Play {
    sides: [Side; 4],
    /// How many it has lasted.
    seconds: u32,
}

/// What was counted in one part of the play.
struct Act {
    /// Calls of each client.
    calls: u32,
    counts: [Count; 4],
}

#[derive(Default)]
struct Count {
    /// Requests that the service received.
    requests: u32,
    /// Calls that ended in a [`Rejection`].
    rejected: u32,
}

impl Play {
    /// Calls steadily, for so many seconds, services that are well or failing. The act ends when the last of
    /// its calls has, so every request belongs to the act of its call.
    async fn act(&mut self, name: &str, failing: bool, seconds: u32) -> Result<Act, Box<dyn Error>> {
        for side in &self.sides {
            side.service.failing.store(failing, Ordering::SeqCst);
        }
        let mut ticks = interval(SECOND / CALLS_PER_SECOND);
        // After a hiccup the callers come as steadily as before, not all at once.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        for second in 1..=seconds {
            for _ in 0..CALLS_PER_SECOND {
                self.sides.iter_mut().for_each(Side::call);
                ticks.tick().await;
            }
            if second == seconds {
                for side in &mut self.sides {
                    side.join_calls().await?;
                }
            }
            self.seconds += 1;
            let colour = if failing { RED } else { GREEN };
            let bars = self.sides.each_mut().map(|side| bar(colour, side.end_second()));
            print_row(&self.seconds.to_string(), name, &bars);
        }
        Ok(Act {
            calls: seconds * CALLS_PER_SECOND,
            counts: self.sides.each_mut().map(|side| mem::take(&mut side.count)),
        })
    }
}

/// A client and its service.
struct Side {
    client: ClientWithMiddleware,
    service: Arc<Service>,
    calls: JoinSet<reqwest_middleware::Result<Response>>,
    /// Of the act that is on.
    count: Count,
}

impl Side {
    async fn new(client: ClientBuilder) -> io::Result<Self> {
        Ok(Self {
            client: client.build(),
            service: Service::start().await?,
            calls: JoinSet::new(),
            count: Count::default(),
        })
    }

    /// Another caller comes.
    fn call(&mut self) {
        self.calls.spawn(self.client.get(&self.service.url).send());
    }

    /// Waits for the last of the callers.
    async fn join_calls(&mut self) -> reqwest_middleware::Result<()> {
        for result in mem::take(&mut self.calls).join_all().await {
            match result {
                Ok(_) => {}
                Err(error) if Rejection::find(&error).is_some() => self.count.rejected += 1,
                Err(error) => return Err(error), // The services may fail in this play, the network may not.
            }
        }
        Ok(())
    }

    /// The requests that came since the last second ended.
    fn end_second(&mut self) -> u32 {
        let requests = self.service.requests.swap(0, Ordering::SeqCst);
        self.count.requests += requests;
        requests
    }
}

/// An HTTP service that does as it is told and counts what reaches it.
struct Service {
    url: String,
    requests: AtomicU32,
    failing: AtomicBool,
}

impl Service {
    /// Serves on a free port of loopback until the program ends.
    async fn start() -> io::Result<Arc<Self>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let service = Arc::new(Self {
            url: format!("http://{}/orders", listener.local_addr()?),
            requests: AtomicU32::new(0),
            failing: AtomicBool::new(false),
        });
        let routes = Router::new().route("/orders", get(orders)).with_state(Arc::clone(&service));
        tokio::spawn(async { axum::serve(listener, routes).await });
        Ok(service)
    }
}

async fn orders(State(service): State<Arc<Service>>) -> StatusCode {
    service.requests.fetch_add(1, Ordering::SeqCst);
    if service.failing.load(Ordering::SeqCst) { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
}

/// Prints what came of the outage, and fails where it is not what it has to be.
fn check(before: &Act, outage: &Act, after: &Act) -> Result<(), Box<dyn Error>> {
    let calls = outage.calls;
    let paying = before.calls + calls; // The calls before the outage are within the budget's window too.
    let in_vain = calls * (1 + MAX_RETRIES);
    let [.., full_chain] = &outage.counts;
    let claims = [
        (calls..=calls, "each call is one request".to_owned()),
        (in_vain..=in_vain, format!("1 + {MAX_RETRIES} retries, all in vain")),
        (
            calls + 1..=calls + paying / CALLS_PER_RETRY + FLOOR,
            format!("1 + (1/{CALLS_PER_RETRY} of the {paying} calls so far + a floor of {FLOOR}) / {calls}"),
        ),
        (1..=calls / 4, format!("{} calls were rejected, and not sent", full_chain.rejected)),
    ];

    println!("\nThe outage, {calls} calls of each client:\n");
    println!("{:13}  requests  per call  have to be", "");
    let per_call = |requests: u32| f64::from(requests) / f64::from(calls);
    let mut broken = Vec::new();
    for ((name, count), (due, why)) in NAMES.into_iter().zip(&outage.counts).zip(claims) {
        let requests = count.requests;
        let holds = due.contains(&requests);
        let colour = if holds { GREEN } else { RED };
        let found = paint(colour, &format!("{:8.2}", per_call(requests)));
        let sign = if due.start() == due.end() { "=" } else { "≤" };
        let limit = per_call(*due.end());
        println!("{name:13}  {requests:8}  {found}  {sign} {limit:.2}  {why}");
        if !holds {
            broken.push(format!("{name}: {requests} requests instead of {due:?}"));
        }
    }
    let arrived = after.counts.each_ref().map(|count| count.requests);
    if arrived != [after.calls; 4] {
        broken.push(format!("after the outage {arrived:?} of {} calls arrived", after.calls));
    }
    if broken.is_empty() {
        println!("\nIn the last second every call got through again, with all four.");
        return Ok(());
    }
    Err(broken.join("; ").into())
}

fn print_row(second: &str, service: &str, columns: &[String]) {
    println!("{second:>6}  {service:10}  {}", columns.join("  ").trim_end());
}

/// `  40 ██▌`: sixteen requests a cell.
fn bar(colour: &str, requests: u32) -> String {
    let eighths = requests.div_ceil(2) as usize;
    let part = " ▏▎▍▌▋▊▉".chars().nth(eighths % 8);
    let cells: String = "█".repeat(eighths / 8).chars().chain(part).collect();
    format!("{requests:4} {}", paint(colour, &format!("{cells:13}")))
}

const RED: &str = "31";
const GREEN: &str = "32";

/// Colours `text` for a terminal; for nothing else, and not where `NO_COLOR` is set.
fn paint(colour: &str, text: &str) -> String {
    if stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        format!("\x1b[{colour}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}
