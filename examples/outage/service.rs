//! An HTTP service that does as it is told and counts what reaches it.

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    routing::{get, put},
};
use std::{
    future, io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::{net::TcpListener, sync::watch};

struct Service {
    requests: AtomicUsize,
    health: watch::Sender<Health>,
}

#[derive(Clone, Copy)]
enum Health {
    Well,
    Failing,
    Hanging,
}

/// Serves on a free port of loopback until the program ends. Returns its address, `http://127.0.0.1:port`.
pub(crate) async fn start() -> io::Result<String> {
    let service =
        Arc::new(Service { requests: AtomicUsize::new(0), health: watch::Sender::new(Health::Well) });
    let routes = Router::new()
        .route("/orders", get(orders))
        .route("/request-count", get(request_count))
        .route("/health", put(set_health))
        .with_state(service);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async { axum::serve(listener, routes).await });
    Ok(format!("http://{address}"))
}

/// The API. A request is counted when it comes, whatever becomes of it.
async fn orders(State(service): State<Arc<Service>>) -> (StatusCode, &'static str) {
    service.requests.fetch_add(1, Ordering::SeqCst);
    let health = *service.health.borrow();
    match health {
        Health::Well => (StatusCode::OK, "no orders today\n"),
        Health::Failing => (StatusCode::SERVICE_UNAVAILABLE, "out of order\n"),
        Health::Hanging => future::pending().await,
    }
}

/// How many requests the API got. These here, and those of the operator, are none of them.
async fn request_count(State(service): State<Arc<Service>>) -> String {
    service.requests.load(Ordering::SeqCst).to_string()
}

/// The operator's lever: the body says how the API shall be.
async fn set_health(State(service): State<Arc<Service>>, wish: String) -> StatusCode {
    let health = match wish.as_str() {
        "well" => Health::Well,
        "failing" => Health::Failing,
        "hanging" => Health::Hanging,
        _ => return StatusCode::BAD_REQUEST,
    };
    service.health.send_replace(health);
    StatusCode::NO_CONTENT
}
