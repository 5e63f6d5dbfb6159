//! The breaker in a chain.

use super::{CircuitBreaker, permit::Permit};
use crate::body::watch;
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};

#[async_trait::async_trait]
impl Middleware for CircuitBreaker {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let Some(ticket) = self.shared.ask(&request, extensions)? else {
            return next.run(request, extensions).await;
        };
        let method = request.method().clone();
        let permit = Permit::new(&self.shared, ticket, extensions);
        let result = next.run(request, extensions).await;
        match (permit.settle(&method, &result), result) {
            (Some(aboard), Ok(response)) => Ok(watch(&method, response, aboard)),
            (_, result) => result,
        }
    }
}
