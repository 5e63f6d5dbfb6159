//! What becomes of a failed response before the next attempt.

use crate::body::map_body;
use reqwest::Response;
use reqwest_middleware::Result;
use std::time::Duration;
use tokio::time::timeout;

/// How much is read of a failed response so that its connection can be used again, and for how long.
const BYTES: usize = 64 * 1024;
const TIME: Duration = Duration::from_millis(50);

/// Reads the rest of a failed response, within bounds. What was read whole is kept, an error always is; what
/// was not is dropped, and its connection with it.
pub(super) async fn drain(result: Result<Response>, limit: Duration) -> Option<Result<Response>> {
    match result {
        Ok(response) => timeout(limit.min(TIME), read(response)).await.ok()?.map(Ok),
        Err(error) => Some(Err(error)),
    }
}

/// The same response, its body read; none where that is too long or breaks.
async fn read(mut response: Response) -> Option<Response> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        if BYTES < body.len() + chunk.len() {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    Some(map_body(response, |_| body.into()))
}
