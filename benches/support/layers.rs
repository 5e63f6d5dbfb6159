//! The cheapest chain there can be.

use super::success;
use futures::FutureExt;
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next, Result};
use std::sync::Arc;

/// A layer that does nothing.
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

/// The end of a chain: answers at once.
pub struct Transport;

#[async_trait::async_trait]
impl Middleware for Transport {
    async fn handle(&self, _: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        success()
    }
}

/// A reqwest client that no proxy variable of the environment can lead astray.
pub fn plain_client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// `layers → transport`, the first one outermost.
pub fn chain(layers: &[Arc<dyn Middleware>]) -> ClientWithMiddleware {
    let builder = ClientBuilder::new(plain_client());
    layers.iter().fold(builder, |builder, layer| builder.with_arc(Arc::clone(layer))).with(Transport).build()
}

/// Sends a copy of `request` through a chain that answers at once.
pub fn send(client: &ClientWithMiddleware, request: &Request) -> Response {
    client.execute(request.try_clone().unwrap()).now_or_never().unwrap().unwrap()
}
