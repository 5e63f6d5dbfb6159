//! An outage from beginning to end: a real service fails, hangs and recovers, and a breaker spares it, and its
//! callers, the calls that would be in vain.
//!
//! ```text
//! cargo run --example outage
//! ```
//!
//! It takes about five seconds and prints
//!
//! - a line per call: when it ended, its number, the state of the circuit then, and what the caller saw,
//! - between them the log lines of the breaker, as any `tracing` subscriber gets them,
//! - a table per phase: the calls that the client believes it sent, against those that the service counted.
//!
//! It fails with an error when the two counts differ anywhere, or when the circuit did not go through the states
//! that it should.
//!
//! This file is the client, the script and the proof; `service.rs` is what it calls, `timeline.rs` how lines are
//! printed.

mod service;
mod timeline;

use Calls::{AtOnce, OneByOne};
use futures::future::join_all;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_resilience::{CircuitBreaker, CircuitEvent, Rejection, Trip};
use std::{error::Error, ops::RangeInclusive, sync::mpsc, time::Duration};
use timeline::{BOLD, GREEN, RED, Stopwatch, YELLOW, paint};

// On one thread, so that calls made at once all meet the circuit before the service can answer the first.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let stopwatch = timeline::start();
    let service = service::start().await?;

    // The breaker, one layer of the client. A clone of it is the handle, for its snapshots.
    let (sender, events) = mpsc::channel();
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| {
            circuit
                .trip(Trip::consecutive(3))
                .open_for(Duration::from_secs(1))
                .max_open_for(Duration::from_secs(2))
        })
        .on_event(move |event| {
            let _ = sender.send(event.clone());
        })
        .build()?;
    let plain = reqwest::Client::builder()
        .timeout(Duration::from_secs(1))
        .no_proxy() // The service is on loopback.
        .build()?;
    let client = ClientBuilder::new(plain.clone()).with(breaker.clone()).build();

    println!("A client calls {service}, each call with a timeout of 1 s. Its breaker opens after");
    println!("3 failures in a row, for 1 s; when the probe after that fails, for 2 s.");
    let mut stage = Stage { service, plain, client, breaker, stopwatch, calls: 0 };
    // The last number says how many calls of the phase have to reach the service. While the circuit is closed: all,
    // the one that trips it too. Open: none. Half-open: one probe, however many callers there are.
    let phases = [
        stage.play("healthy", "well", OneByOne(4), 4).await?,
        stage.play("down", "failing", OneByOne(3), 3).await?,
        stage.play("open", "failing", OneByOne(4), 0).await?,
        stage.play("half-open, too soon", "hanging", AtOnce(3), 1).await?,
        stage.play("open, nobody knows", "well", OneByOne(5), 0).await?,
        stage.play("half-open, back up", "well", AtOnce(3), 1).await?,
        stage.play("closed again", "well", OneByOne(4), 4).await?,
    ];

    let total = print_table(&phases);
    check_counts(&phases)?;
    check_events(events.try_iter(), total.rejected)?;
    println!("\n{} calls were rejected: the service saw none of them, and all the others.", total.rejected);
    Ok(())
}

/// Where the play is given.
struct Stage {
    /// The address of the service, and so the key of its circuit: `http://127.0.0.1:port`.
    service: String,
    /// The operator's client, without a breaker.
    plain: reqwest::Client,
    client: ClientWithMiddleware,
    breaker: CircuitBreaker,
    stopwatch: Stopwatch,
    /// The calls made so far.
    calls: usize,
}

/// How the calls of a phase come.
enum Calls {
    /// One after the other, a moment apart.
    OneByOne(usize),
    /// All together, as soon as the circuit would let a probe through.
    AtOnce(usize),
}

/// What was counted in one phase.
struct Phase {
    name: &'static str,
    /// Calls that ended in a response or in an error of the network.
    sent: usize,
    /// Calls that ended in a [`Rejection`].
    rejected: usize,
    /// Calls that had to be sent.
    due: usize,
    /// Requests that the service counted.
    served: usize,
}

impl Stage {
    /// Tells the service how to be, makes the calls, and counts them on both sides.
    async fn play(
        &mut self,
        name: &'static str,
        health: &'static str,
        calls: Calls,
        due: usize,
    ) -> reqwest_middleware::Result<Phase> {
        println!("\n{}: the service is {health}", paint(BOLD, name));
        let lever = format!("{}/health", self.service);
        self.plain.put(lever).body(health).send().await?.error_for_status()?;

        let served_before = self.request_count().await?;
        let sent = match calls {
            OneByOne(count) => self.call_one_by_one(count).await,
            AtOnce(count) => self.call_at_once(count).await,
        };
        Ok(Phase {
            name,
            sent: sent.iter().filter(|sent| **sent).count(),
            rejected: sent.iter().filter(|sent| !**sent).count(),
            due,
            served: self.request_count().await? - served_before,
        })
    }

    async fn call_one_by_one(&mut self, count: usize) -> Vec<bool> {
        let mut sent = Vec::new();
        for number in self.next_numbers(count) {
            sent.push(self.call(number).await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        sent
    }

    async fn call_at_once(&mut self, count: usize) -> Vec<bool> {
        let circuit = self.breaker.snapshot(&self.service);
        let wait = circuit.and_then(|circuit| circuit.retry_after);
        tokio::time::sleep(wait.unwrap_or_default()).await;
        join_all(self.next_numbers(count).map(|number| self.call(number))).await
    }

    /// One call, as an application makes it. True when it was sent.
    async fn call(&self, number: usize) -> bool {
        let result = self.client.get(format!("{}/orders", self.service)).send().await;
        let (sent, colour, saw) = match result {
            Ok(response) if response.status().is_success() => (true, GREEN, response.status().to_string()),
            Ok(response) => (true, RED, response.status().to_string()),
            Err(error) if Rejection::find(&error).is_some() => (false, YELLOW, error.to_string()),
            // Any other error is reqwest's own and says so itself.
            Err(error) if error.is_timeout() => (true, RED, format!("timeout: {error}")),
            Err(error) => (true, RED, error.to_string()),
        };
        let circuit = self.breaker.snapshot(&self.service);
        let state = circuit.map_or("none", |circuit| circuit.state.as_str());
        let saw = paint(colour, &saw);
        println!("{}  call {number:2}  {state:9}  {saw}", self.stopwatch);
        sent
    }

    fn next_numbers(&mut self, count: usize) -> RangeInclusive<usize> {
        let first = self.calls + 1;
        self.calls += count;
        first..=self.calls
    }

    /// How often the service says that it was called.
    async fn request_count(&self) -> reqwest_middleware::Result<usize> {
        let url = format!("{}/request-count", self.service);
        let text = self.plain.get(url).send().await?.text().await?;
        text.parse().map_err(reqwest_middleware::Error::middleware)
    }
}

/// Prints the counts of each phase, and of all of them, which it returns.
fn print_table(phases: &[Phase]) -> Phase {
    let sum = |count: fn(&Phase) -> usize| phases.iter().map(count).sum();
    let total = Phase {
        name: "in all",
        sent: sum(|phase| phase.sent),
        rejected: sum(|phase| phase.rejected),
        due: sum(|phase| phase.due),
        served: sum(|phase| phase.served),
    };
    println!();
    print_row(["phase", "calls", "sent", "rejected", "service saw", ""]);
    for phase in phases.iter().chain([&total]) {
        let verdict =
            if phase.sent == phase.served { paint(GREEN, "equal") } else { paint(RED, "DIFFERENT") };
        print_row([
            phase.name,
            &(phase.sent + phase.rejected).to_string(),
            &phase.sent.to_string(),
            &phase.rejected.to_string(),
            &phase.served.to_string(),
            &verdict,
        ]);
    }
    total
}

fn print_row([name, calls, sent, rejected, served, verdict]: [&str; 6]) {
    let row = format!("{name:20}  {calls:>5}  {sent:>4}  {rejected:>8}  {served:>11}  {verdict}");
    println!("{}", row.trim_end());
}

/// Whether each call that was sent reached the service, no other did, and they were as many as they had to be.
fn check_counts(phases: &[Phase]) -> Result<(), String> {
    for phase in phases {
        let Phase { name, sent, due, served, .. } = phase;
        if sent != served {
            return Err(format!("{name}: {sent} calls sent, but the service saw {served}"));
        }
        if sent != due {
            return Err(format!("{name}: {sent} calls sent instead of {due}"));
        }
    }
    Ok(())
}

/// Whether the circuit went through its states in order and counted its rejections as the callers did.
fn check_events(events: impl Iterator<Item = CircuitEvent>, rejected: usize) -> Result<(), String> {
    let changes: Vec<_> = events
        .filter_map(|event| match event {
            CircuitEvent::Opened { reason, .. } => Some(format!("opened ({reason})")),
            CircuitEvent::HalfOpen { .. } => Some("half-open".to_owned()),
            CircuitEvent::Closed { rejected, .. } => Some(format!("closed ({rejected} rejected)")),
            _ => None,
        })
        .collect();
    let due = [
        "opened (consecutive)",
        "half-open",
        "opened (probe)",
        "half-open",
        &format!("closed ({rejected} rejected)"),
    ];
    if changes == due {
        return Ok(());
    }
    Err(format!("the circuit went through {changes:?} instead of {due:?}"))
}
