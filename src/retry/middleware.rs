//! The retry in a chain.

use super::{Retry, series::Series};
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};
use std::{future::Future, pin::Pin};

/// Written out as `async_trait` would, but for its move of the request into a local variable: borrowed
/// there, it would be kept in the future a second time, and copied twice. Here it stays where it is, and
/// copies of it go out.
impl Middleware for Retry {
    fn handle<'retry, 'call, 'next, 'sent>(
        &'retry self,
        request: Request,
        extensions: &'call mut Extensions,
        next: Next<'next>,
    ) -> Pin<Box<dyn Future<Output = Result<Response>> + Send + 'sent>>
    where
        'retry: 'sent,
        'call: 'sent,
        'next: 'sent,
    {
        Box::pin(async move {
            let mut series = Series::begin(&self.shared, &request, extensions);
            loop {
                let Some(copy) = series.begin_attempt(&request, extensions) else {
                    let mut result = next.run(request, extensions).await;
                    series.settle_last(&mut result, extensions);
                    return result;
                };
                let mut result = next.clone().run(copy, extensions).await;
                let Some(wait) = series.settle(&mut result, &request, extensions) else {
                    return result;
                };
                // In a box, so that a call that goes well is not made larger by it.
                Box::pin(series.pause(result, wait, extensions)).await;
                series.renew(extensions);
            }
        })
    }
}
