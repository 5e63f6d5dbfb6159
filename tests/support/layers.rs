//! Chains of more than one layer, and a layer that looks into them.

use super::{Transport, plain_client};
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next, Result};
use std::sync::Arc;

/// `layers → transport`, the first outermost.
pub fn stack<const N: usize>(
    layers: [Arc<dyn Middleware>; N],
    transport: &Transport,
) -> ClientWithMiddleware {
    let client = layers.into_iter().fold(ClientBuilder::new(plain_client()), ClientBuilder::with_arc);
    client.with(transport.clone()).build()
}

/// Shows the extensions to a function on the way in and to another on the way out.
pub struct Look<In: Fn(&mut Extensions), Out: Fn(&mut Extensions)>(pub In, pub Out);

#[async_trait::async_trait]
impl<In, Out> Middleware for Look<In, Out>
where
    In: Fn(&mut Extensions) + Send + Sync + 'static,
    Out: Fn(&mut Extensions) + Send + Sync + 'static,
{
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        (self.0)(extensions);
        let result = next.run(request, extensions).await;
        (self.1)(extensions);
        result
    }
}
