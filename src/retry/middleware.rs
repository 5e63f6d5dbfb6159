//! The retry in a chain.

use super::{Retry, series::Series};
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};

#[async_trait::async_trait]
impl Middleware for Retry {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let mut series = Series::begin(&self.shared, &request, extensions);
        loop {
            let copy = series.begin_attempt(&request);
            // A retry gets its own: what an attempt left there must not mislead the next one.
            let before = copy.as_ref().map(|_| extensions.clone());
            let result = next.clone().run(request, extensions).await;
            let (again, wait) = match series.decide(&result, copy, extensions) {
                Ok(retry) => retry,
                Err(reason) => return series.end(reason, result, extensions),
            };
            series.pause(result, wait, extensions).await;
            request = again;
            *extensions = before.unwrap_or_default();
            series.mark(extensions);
        }
    }
}
