//! A last middleware that answers by itself, for paused time.

use http::{Extensions, HeaderMap, Method};
use reqwest::{Body, Request, Response};
use reqwest_middleware::{Middleware, Next, Result};
use reqwest_resilience::{AttemptNumber, DeadlineAt, DeadlineIn};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::oneshot, time::Instant};

/// What the transport does with one request.
#[derive(Debug)]
pub enum Reply {
    /// Answers at once.
    Status(u16),
    /// Answers at once, with a header.
    Header(u16, &'static str, &'static str),
    /// Answers at once, with a body.
    Body(u16, &'static str),
    /// Answers at once, with a body that never comes to its end.
    Endless(u16),
    /// Answers at once, with this.
    Response(Response),
    /// Answers after a while (tokio time).
    Late(Duration, u16),
    /// Never answers.
    Hang,
    /// Fails with an error of reqwest's own, such as [`refused`] and [`timed_out`].
    Fail(reqwest::Error),
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
    seen: Vec<Seen>,
    holding: bool,
    held: VecDeque<oneshot::Sender<u16>>,
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When, in tokio's time.
    pub at: Instant,
    pub method: Method,
    pub url: String,
    pub headers: HeaderMap,
    /// Empty where there is none, and none where it is a stream.
    pub body: Option<Vec<u8>>,
    pub attempt: u32,
    pub deadline: Option<DeadlineAt>,
    pub deadline_in: Option<DeadlineIn>,
}

impl Seen {
    fn of(request: &Request, extensions: &Extensions) -> Self {
        Self {
            at: Instant::now(),
            method: request.method().clone(),
            url: request.url().to_string(),
            headers: request.headers().clone(),
            body: request.body().map_or(Some(Vec::new()), |body| body.as_bytes().map(<[u8]>::to_vec)),
            attempt: AttemptNumber::of(extensions).get(),
            deadline: DeadlineAt::of(extensions),
            deadline_in: extensions.get().copied(),
        }
    }
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
            seen: Vec::new(),
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
        self.0.lock().unwrap().seen.len()
    }

    /// The requests that arrived, in order.
    pub fn seen(&self) -> Vec<Seen> {
        self.0.lock().unwrap().seen.clone()
    }

    /// The URLs of the requests that arrived, in order.
    pub fn urls(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.url).collect()
    }

    /// The time from each request to the next.
    pub fn gaps(&self) -> Vec<Duration> {
        self.seen().windows(2).map(|pair| pair[1].at - pair[0].at).collect()
    }

    fn next(&self, request: &Request, extensions: &Extensions) -> Turn {
        let mut inner = self.0.lock().unwrap();
        inner.seen.push(Seen::of(request, extensions));
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
    async fn handle(&self, request: Request, extensions: &mut Extensions, _: Next<'_>) -> Result<Response> {
        match self.next(&request, extensions) {
            Turn::Reply(reply) => reply.play().await,
            Turn::Wait(answer) => match answer.await {
                Ok(status) => Ok(response(status, None, "")),
                Err(_) => std::future::pending().await,
            },
        }
    }
}

impl Reply {
    async fn play(self) -> Result<Response> {
        match self {
            Self::Status(status) => Ok(response(status, None, "")),
            Self::Header(status, name, value) => Ok(response(status, Some((name, value)), "")),
            Self::Body(status, body) => Ok(response(status, None, body)),
            Self::Endless(status) => {
                let silence = futures::stream::pending::<std::io::Result<Vec<u8>>>();
                Ok(response(status, None, Body::wrap_stream(silence)))
            }
            Self::Response(response) => Ok(response),
            Self::Late(wait, status) => {
                tokio::time::sleep(wait).await;
                Ok(response(status, None, ""))
            }
            Self::Hang => std::future::pending().await,
            Self::Fail(error) => Err(error.into()),
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

/// What a port without a listener gives: `is_connect()`. Port 0 is refused by the system itself, at once, so
/// this is the one use of the network that goes with paused time.
pub async fn refused() -> Reply {
    let error = super::plain_client().get("http://127.0.0.1:0/").send().await.unwrap_err();
    assert!(error.is_connect(), "{error:?}");
    Reply::Fail(error)
}

/// What a server gives that reads a request and never answers: `is_timeout()`.
pub async fn timed_out() -> Reply {
    let request = super::plain_client().get("http://127.0.0.1:0/").timeout(Duration::ZERO);
    let error = request.send().await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    Reply::Fail(error)
}

fn response(status: u16, header: Option<(&str, &str)>, body: impl Into<Body>) -> Response {
    let mut response = http::Response::builder().status(status);
    if let Some((name, value)) = header {
        response = response.header(name, value);
    }
    response.body(body).unwrap().into()
}
