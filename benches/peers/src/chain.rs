//! A chain that sends nothing: its end answers at once.

use http::Extensions;
use reqwest::{Method, Request, Response, Url};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next, Result};
use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

/// A layer that does nothing: what the trait itself costs.
#[derive(Debug)]
pub struct Noop;

#[async_trait::async_trait]
impl Middleware for Noop {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        next.run(request, extensions).await
    }
}

/// The end of the chain: answers 200.
struct Transport;

#[async_trait::async_trait]
impl Middleware for Transport {
    async fn handle(&self, _: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        answer(200)
    }
}

/// An answer without a body.
///
/// # Errors
///
/// Never: this is the type that a breaker judges.
///
/// # Panics
///
/// On a number that is no status.
pub fn answer(status: u16) -> Result<Response> {
    let mut response = http::Response::new("");
    *response.status_mut() = status.try_into().unwrap();
    Ok(response.into())
}

/// A client whose last layers are those that `add` adds and the scripted transport.
#[must_use]
pub fn client(add: impl FnOnce(ClientBuilder) -> ClientBuilder) -> ClientWithMiddleware {
    add(unsent()).with(Transport).build()
}

/// A client to which a transport has to be added.
///
/// # Panics
///
/// Where reqwest can make no client.
#[must_use]
pub fn unsent() -> ClientBuilder {
    ClientBuilder::new(reqwest::Client::builder().no_proxy().build().unwrap())
}

/// The URL of an item at the origin of this number.
///
/// # Panics
///
/// Never: the text is a URL.
#[must_use]
pub fn url(number: usize) -> Url {
    format!("https://service-{number:06}.internal.example.com/v1/items").parse().unwrap()
}

/// A request for it.
#[must_use]
pub fn request(number: usize) -> Request {
    Request::new(Method::GET, url(number))
}

/// What a future that needs no waiting comes to.
///
/// # Panics
///
/// Where it does need to wait.
pub fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("nothing here has to wait"),
    }
}
