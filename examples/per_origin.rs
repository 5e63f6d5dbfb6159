//! One breaker, two origins: each has a circuit of its own, and one of them settings of its own.
//!
//! ```text
//! cargo run --example per_origin
//! ```
//!
//! The catalogue of a shop is served; nobody listens at the address of its payments. The breaker gives up on
//! payments after 2 failures in a row, on any other origin after 5. After each step every circuit is printed, and
//! checked: where one is not as it should be, the example fails with an error.

use axum::{Router, http::StatusCode, routing::get};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_resilience::{CircuitBreaker, CircuitState, Rejection, Trip};
use std::{error::Error, io, time::Duration};
use tokio::net::{TcpListener, TcpSocket};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let catalogue = serve_catalogue().await?;
    let (payments, _port) = reserve_dead_port()?;

    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(5)).open_for(Duration::from_secs(30)))
        // What is not said here is as in `defaults`: payments rest for 30 s as well.
        .origin(&payments, |circuit| circuit.trip(Trip::consecutive(2)))
        .build()?;
    let http = reqwest::Client::builder().no_proxy().build()?; // Both are on loopback.
    let client = ClientBuilder::new(http).with(breaker.clone()).build();

    println!("Four calls to each: payments are down, and found so after two; the catalogue does not suffer.");
    for _ in 0..4 {
        call(&client, &format!("{payments}/charges")).await;
        call(&client, &format!("{catalogue}/books")).await;
    }
    print_circuits(&breaker);
    check(&breaker, &payments, CircuitState::Open, 0, 2)?;
    check(&breaker, &catalogue, CircuitState::Closed, 0, 0)?;

    println!("\nThe catalogue's search fails four times: too few for the default of five.");
    for _ in 0..4 {
        call(&client, &format!("{catalogue}/search")).await;
    }
    print_circuits(&breaker);
    check(&breaker, &catalogue, CircuitState::Closed, 4, 0)?;

    println!("\nOnce more, and a call to its books: they have the same origin, and so the same circuit.");
    call(&client, &format!("{catalogue}/search")).await;
    call(&client, &format!("{catalogue}/books")).await;
    print_circuits(&breaker);
    check(&breaker, &catalogue, CircuitState::Open, 0, 1)?;

    println!("\nAn operator resets the catalogue, by any URL of it, and leaves payments as they are.");
    breaker.reset(&format!("{catalogue}/books"));
    call(&client, &format!("{catalogue}/books")).await;
    call(&client, &format!("{payments}/charges")).await;
    print_circuits(&breaker);
    check(&breaker, &catalogue, CircuitState::Closed, 0, 0)?;
    check(&breaker, &payments, CircuitState::Open, 0, 3)?;
    Ok(())
}

/// One call, and what its caller sees.
async fn call(client: &ClientWithMiddleware, url: &str) {
    let saw = match client.get(url).send().await {
        Ok(response) => response.status().to_string(),
        Err(error) if Rejection::find(&error).is_some() => error.to_string(),
        // Any other error is reqwest's own and says so itself.
        Err(error) if error.is_connect() => "connection refused".to_owned(),
        Err(error) => error.to_string(),
    };
    println!("  {url:32}  {saw}");
}

fn print_circuits(breaker: &CircuitBreaker) {
    for circuit in breaker.snapshots() {
        println!("> {circuit}");
    }
}

/// Whether the circuit of `origin` is as it should be.
fn check(
    breaker: &CircuitBreaker,
    origin: &str,
    state: CircuitState,
    consecutive_failures: u32,
    rejected: u64,
) -> Result<(), String> {
    let circuit = breaker.snapshot(origin).ok_or_else(|| format!("{origin} has no circuit"))?;
    let found = (circuit.state, circuit.consecutive_failures, circuit.rejected);
    let due = (state, consecutive_failures, rejected);
    if found == due {
        return Ok(());
    }
    Err(format!("{origin}: state, failures and rejections are {found:?} instead of {due:?}"))
}

/// Serves until the program ends: books, and a search that fails.
async fn serve_catalogue() -> io::Result<String> {
    let routes = Router::new()
        .route("/books", get(async || "Release It!\n"))
        .route("/search", get(async || StatusCode::SERVICE_UNAVAILABLE));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async { axum::serve(listener, routes).await });
    Ok(format!("http://{address}"))
}

/// An address at which nobody listens, and nobody else can while the socket is alive: its connections are refused.
fn reserve_dead_port() -> io::Result<(String, TcpSocket)> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(([127, 0, 0, 1], 0).into())?;
    let address = socket.local_addr()?;
    Ok((format!("http://{address}"), socket))
}
