//! The breaker in a chain.

use super::{CircuitBreaker, permit::Permit};
use crate::body::watch;
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};
use std::{future::Future, pin::Pin};

/// Written out as `async_trait` would, but for its move of the request into a local variable: borrowed
/// there, it would be kept in the future a second time, and copied twice. That is a tenth of the call.
impl Middleware for CircuitBreaker {
    fn handle<'breaker, 'call, 'next, 'sent>(
        &'breaker self,
        request: Request,
        extensions: &'call mut Extensions,
        next: Next<'next>,
    ) -> Pin<Box<dyn Future<Output = Result<Response>> + Send + 'sent>>
    where
        'breaker: 'sent,
        'call: 'sent,
        'next: 'sent,
    {
        Box::pin(async move {
            let ticket = self.shared.ask(&request, extensions)?;
            let permit = ticket.map(|ticket| Permit::new(&self.shared, ticket, extensions));
            let method = request.method().clone();
            let mut result = next.run(request, extensions).await;
            if let Some(aboard) = permit.and_then(|permit| permit.settle(&method, &result)) {
                result = result.map(|response| watch(&method, response, aboard));
            }
            result
        })
    }
}
