//! The whole chain in one line, against a service that has bad days.
//!
//! ```text
//! cargo run --example standard
//! ```
//!
//! A day in six scenes: the service is well, flaky, slow in a rush, hangs once, is down, and comes back. After each
//! scene every part that keeps something is printed, and what came to pass is compared with what has to: the answers
//! that the callers got, and the requests that the service counted. Where they differ, the example fails with an
//! error. It takes about three seconds.

use axum::{Router, extract::State, http::StatusCode, routing::get};
use futures::future::join_all;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_resilience::{
    Bulkhead, CircuitBreaker, CircuitState, ClientBuilderExt, Fallback, Resilience, Retry, RetryReport, Trip,
};
use std::{
    collections::VecDeque,
    error::Error,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::net::TcpListener;

// On one thread, so that calls made at once all meet the bulkhead before the service can answer the first.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let service = Service::default();
    let url = service.start().await?;

    // Every part has a default but the bulkhead: only you know what the service can bear.
    let resilience = Resilience::builder()
        .fallback(Fallback::new(|_| async { Ok(http::Response::new("yesterday's orders").into()) }))
        .deadline(Duration::from_secs(5))
        .retry(Retry::builder().backoff(Duration::from_millis(20), Duration::from_millis(100)).build()?)
        .breaker(
            CircuitBreaker::builder()
                .defaults(|circuit| circuit.trip(Trip::consecutive(3)).open_for(Duration::from_secs(1)))
                .build()?,
        )
        .bulkhead(Bulkhead::builder().max_concurrent(2).max_wait(Duration::from_secs(2)).build()?)
        .attempt_deadline(Duration::from_secs(1))
        .build()?;
    let http = reqwest::Client::builder().no_proxy().build()?; // The service is on loopback.
    let client = ClientBuilder::new(http).with_resilience(&resilience).build();
    let day = Day { service, url, resilience, client };

    println!("Well: the layers are not to be noticed.");
    let due = Due::answers(3, "200 in 1 attempt");
    day.one_by_one(3, [], due.of_requests(3)).await?;

    println!("\nFlaky: every other request fails, and the retry makes up for it.");
    let mood = [Mood::Failing, Mood::Well, Mood::Failing, Mood::Well];
    let due = Due::answers(2, "200 in 2 attempts");
    day.one_by_one(2, mood, due.of_requests(4)).await?;

    println!("\nSlow, and six calls at once: two run, two queue, for two there is yesterday's answer.");
    let due = Due::answers(4, "200 in 1 attempt").and(2, "yesterday's orders");
    day.at_once(6, [Mood::Slow; 4], due.of_requests(4)).await?;

    println!("\nA request hangs: its attempt is cut off after a second, the next one is well.");
    let due = Due::answers(1, "200 in 2 attempts");
    day.one_by_one(1, [Mood::Hanging], due.of_requests(2)).await?;

    println!(
        "\nDown: the third failure opens the circuit. Its call still gets the service's own answer, and"
    );
    println!("those after it cost the service nothing.");
    let due = Due::answers(1, "503 in 3 attempts").and(4, "yesterday's orders");
    day.one_by_one(5, [Mood::Failing; 3], due.of_requests(3).and_open()).await?;

    println!("\nWell again, and so the circuit finds with its first probe.");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let due = Due::answers(2, "200 in 1 attempt");
    day.one_by_one(2, [], due.of_requests(2)).await?;
    Ok(())
}

/// Where the story takes place.
struct Day {
    service: Service,
    url: String,
    resilience: Resilience,
    client: ClientWithMiddleware,
}

/// What has to come to pass in a scene: the answers, sorted, the requests that the service gets, and the state of
/// its circuit at the end.
#[derive(Debug, PartialEq)]
struct Due {
    answers: Vec<String>,
    requests: usize,
    circuit: Option<CircuitState>,
}

impl Due {
    fn answers(count: usize, answer: &str) -> Self {
        Self { answers: vec![answer.to_owned(); count], requests: 0, circuit: Some(CircuitState::Closed) }
    }

    fn and(mut self, count: usize, answer: &str) -> Self {
        self.answers.extend(vec![answer.to_owned(); count]);
        self
    }

    fn of_requests(self, requests: usize) -> Self {
        Self { requests, ..self }
    }

    fn and_open(self) -> Self {
        Self { circuit: Some(CircuitState::Open), ..self }
    }
}

impl Day {
    async fn one_by_one(
        &self,
        calls: usize,
        moods: impl IntoIterator<Item = Mood>,
        due: Due,
    ) -> Result<(), String> {
        self.service.script(moods);
        let mut answers = Vec::new();
        for _ in 0..calls {
            answers.push(self.call().await);
        }
        self.end_scene(answers, &due)
    }

    async fn at_once(
        &self,
        calls: usize,
        moods: impl IntoIterator<Item = Mood>,
        due: Due,
    ) -> Result<(), String> {
        self.service.script(moods);
        let answers = join_all((0..calls).map(|_| self.call())).await;
        self.end_scene(answers, &due)
    }

    /// One call, as an application makes it, and what came of it.
    async fn call(&self) -> String {
        let response = match self.client.get(&self.url).send().await {
            Ok(response) => response,
            Err(error) => return error.to_string(),
        };
        let attempts = RetryReport::of(&response).map_or(1, |report| report.attempts);
        let status = response.status().as_u16();
        match response.text().await {
            Ok(text) if text.starts_with("yesterday") => text,
            Ok(_) if attempts == 1 => format!("{status} in 1 attempt"),
            Ok(_) => format!("{status} in {attempts} attempts"),
            Err(error) => error.to_string(),
        }
    }

    /// Prints the answers and all that the layers keep, and compares what came to pass with what is due.
    fn end_scene(&self, mut answers: Vec<String>, due: &Due) -> Result<(), String> {
        for answer in &answers {
            println!("  {answer}");
        }
        let breaker = self.resilience.breaker().into_iter();
        let circuits: Vec<_> = breaker.flat_map(CircuitBreaker::snapshots).collect();
        for circuit in &circuits {
            println!("> circuit  {circuit}");
        }
        let bulkhead = self.resilience.bulkhead().into_iter();
        for gate in bulkhead.flat_map(Bulkhead::snapshots) {
            println!("> bulkhead {gate}");
        }
        answers.sort();
        let found = Due {
            answers,
            requests: self.service.take_requests(),
            circuit: circuits.first().map(|circuit| circuit.state),
        };
        if found == *due {
            return Ok(());
        }
        Err(format!("{found:?} instead of {due:?}"))
    }
}

/// What the service does with a request.
#[derive(Clone, Copy)]
enum Mood {
    Well,
    Failing,
    Slow,
    Hanging,
}

/// A service that has a mood for each request, and counts them.
#[derive(Clone, Default)]
struct Service(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    /// For the requests to come; well, when there is none.
    moods: VecDeque<Mood>,
    requests: usize,
}

impl Service {
    /// Serves on a free port of loopback until the program ends.
    async fn start(&self) -> io::Result<String> {
        let routes = Router::new().route("/orders", get(orders)).with_state(self.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async { axum::serve(listener, routes).await });
        Ok(format!("http://{address}/orders"))
    }

    fn script(&self, moods: impl IntoIterator<Item = Mood>) {
        self.with_book(|book| book.moods.extend(moods));
    }

    /// How many requests came since the last time.
    fn take_requests(&self) -> usize {
        self.with_book(|book| std::mem::take(&mut book.requests))
    }

    fn with_book<T>(&self, f: impl FnOnce(&mut Book) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn orders(State(service): State<Service>) -> (StatusCode, &'static str) {
    let mood = service.with_book(|book| {
        book.requests += 1;
        book.moods.pop_front()
    });
    match mood.unwrap_or(Mood::Well) {
        Mood::Well => {}
        Mood::Failing => return (StatusCode::SERVICE_UNAVAILABLE, "out of order"),
        Mood::Slow => tokio::time::sleep(Duration::from_millis(300)).await,
        Mood::Hanging => std::future::pending().await,
    }
    (StatusCode::OK, "today's orders")
}
