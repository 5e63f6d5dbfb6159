//! A last middleware that answers by itself, for paused time.

use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::oneshot;

/// What the transport does with one request.
#[derive(Debug)]
pub enum Reply {
    /// Answers at once.
    Status(u16),
    /// Answers at once, with a header.
    Header(u16, &'static str, &'static str),
    /// Answers after a while (tokio time).
    Late(Duration, u16),
    /// Never answers.
    Hang,
    /// Fails the way a bad header does: a builder error.
    BuilderError,
    /// Fails as another middleware would.
    ForeignError,
    /// Panics.
    Panic,
}

/// Answers requests from a script, counts them, and never touches the network.
///
/// Replies are taken in order; when the script is over, `otherwise` answers. Requests can also be held until the test
/// answers them. Clones share everything.
#[derive(Clone)]
pub struct Transport(Arc<Mutex<Inner>>);

struct Inner {
    script: VecDeque<Reply>,
    otherwise: u16,
    hits: usize,
    urls: Vec<String>,
    holding: bool,
    held: VecDeque<oneshot::Sender<u16>>,
}

/// A request that waits for its answer.
#[derive(Debug)]
pub struct Held(oneshot::Sender<u16>);

impl Held {
    pub fn answer(self, status: u16) {
        // The caller may be gone by now: that is what some tests are about.
        let _ = self.0.send(status);
    }
}

impl Transport {
    /// Answers every request with this status, until told otherwise.
    pub fn answering(status: u16) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            script: VecDeque::new(),
            otherwise: status,
            hits: 0,
            urls: Vec::new(),
            holding: false,
            held: VecDeque::new(),
        })))
    }

    /// Replies these first.
    pub fn then(self, replies: impl IntoIterator<Item = Reply>) -> Self {
        self.script(replies);
        self
    }

    /// Appends to the script.
    pub fn script(&self, replies: impl IntoIterator<Item = Reply>) {
        self.0.lock().unwrap().script.extend(replies);
    }

    /// Changes the answer to requests that the script has none for.
    pub fn answer(&self, status: u16) {
        self.0.lock().unwrap().otherwise = status;
    }

    /// From now on, requests that the script has no reply for wait for [`Held::answer`].
    pub fn hold(&self) {
        self.0.lock().unwrap().holding = true;
    }

    /// From now on, requests are answered again.
    pub fn stop_holding(&self) {
        self.0.lock().unwrap().holding = false;
    }

    /// The oldest request that still waits.
    pub fn take_held(&self) -> Option<Held> {
        self.0.lock().unwrap().held.pop_front().map(Held)
    }

    /// Requests that arrived.
    pub fn hits(&self) -> usize {
        self.0.lock().unwrap().hits
    }

    /// The URLs of the requests that arrived, in order.
    pub fn urls(&self) -> Vec<String> {
        self.0.lock().unwrap().urls.clone()
    }

    fn next(&self, request: &Request) -> Turn {
        let mut inner = self.0.lock().unwrap();
        inner.hits += 1;
        inner.urls.push(request.url().to_string());
        if let Some(reply) = inner.script.pop_front() {
            return Turn::Reply(reply);
        }
        if inner.holding {
            let (sender, receiver) = oneshot::channel();
            inner.held.push_back(sender);
            return Turn::Wait(receiver);
        }
        Turn::Reply(Reply::Status(inner.otherwise))
    }
}

enum Turn {
    Reply(Reply),
    Wait(oneshot::Receiver<u16>),
}

#[derive(Debug)]
struct Foreign;

impl std::fmt::Display for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("token service unavailable")
    }
}

impl std::error::Error for Foreign {}

#[async_trait::async_trait]
impl Middleware for Transport {
    async fn handle(&self, request: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        match self.next(&request) {
            Turn::Reply(reply) => reply.play().await,
            Turn::Wait(answer) => match answer.await {
                Ok(status) => Ok(response(status, None)),
                Err(_) => std::future::pending().await,
            },
        }
    }
}

impl Reply {
    async fn play(self) -> Result<Response> {
        match self {
            Self::Status(status) => Ok(response(status, None)),
            Self::Header(status, name, value) => Ok(response(status, Some((name, value)))),
            Self::Late(wait, status) => {
                tokio::time::sleep(wait).await;
                Ok(response(status, None))
            }
            Self::Hang => std::future::pending().await,
            Self::BuilderError => {
                let error = reqwest::Client::new()
                    .get("http://api.example.com")
                    .header("bad name", "x")
                    .build()
                    .unwrap_err();
                Err(error.into())
            }
            Self::ForeignError => Err(reqwest_middleware::Error::middleware(Foreign)),
            Self::Panic => panic!("the transport was told to panic"),
        }
    }
}

fn response(status: u16, header: Option<(&str, &str)>) -> Response {
    let mut response = http::Response::builder().status(status);
    if let Some((name, value)) = header {
        response = response.header(name, value);
    }
    response.body("").unwrap().into()
}
