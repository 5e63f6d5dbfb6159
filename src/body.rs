//! A body that tells when it ended.

use http_body::{Body as HttpBody, Frame, SizeHint};
use reqwest::{Body, Method, Response, ResponseBuilderExt, StatusCode};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

/// When a call is over for a layer that holds something for it: a slot, or the circuit's permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Until {
    /// When the headers of the response are there, or the error.
    #[default]
    Headers,
    /// When the body has been read to its end, has failed, or was dropped. At the headers where there is no
    /// body to come: in answer to HEAD, with 101, 204 and 304.
    BodyEnd,
}

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// All of it was read, or its reader wanted no more.
    Over,
    /// It broke: truncated, reset, corrupt, or stalled past a timeout.
    Broken,
}

/// Something that is told, once, how a body ended.
pub(crate) trait Watcher: Send + Sync + 'static {
    fn end(self, end: BodyEnd);
}

/// Lets `watcher` ride in the body of `response`; it is told at once where there is no body to come.
pub(crate) fn watch(method: &Method, response: Response, watcher: impl Watcher) -> Response {
    if has_no_body(method, &response) {
        watcher.end(BodyEnd::Over);
        return response;
    }
    map_body(response, |body| Body::wrap(Watched { body, watcher: Some(watcher) }))
}

/// The same response with another body. `http::Response` knows no URL, so it has to be told again.
pub(crate) fn map_body(response: Response, map: impl FnOnce(Body) -> Body) -> Response {
    let url = response.url().clone();
    let (mut parts, body) = http::Response::<Body>::from(response).into_parts();
    let url_alone =
        http::Response::builder().url(url).body(()).map(|tagged| tagged.into_parts().0.extensions);
    parts.extensions.extend(url_alone.unwrap_or_default());
    http::Response::from_parts(parts, map(body)).into()
}

/// RFC 9110, 6.4.1 and 15.4.5, or a body that is known to be empty.
fn has_no_body(method: &Method, response: &Response) -> bool {
    *method == Method::HEAD
        || matches!(
            response.status(),
            StatusCode::SWITCHING_PROTOCOLS | StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        )
        || response.content_length() == Some(0)
}

/// A body with a watcher aboard.
struct Watched<W: Watcher> {
    body: Body,
    watcher: Option<W>,
}

impl<W: Watcher> Watched<W> {
    fn tell(&mut self, end: BodyEnd) {
        if let Some(watcher) = self.watcher.take() {
            watcher.end(end);
        }
    }
}

/// Nothing is pinned: the body inside can be moved, and the watcher is plain data.
impl<W: Watcher> Unpin for Watched<W> {}

impl<W: Watcher> HttpBody for Watched<W> {
    type Data = <Body as HttpBody>::Data;
    type Error = reqwest::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            // Not only the missing frame tells the end: who knows the length may never ask for it.
            None => self.tell(BodyEnd::Over),
            Some(Ok(_)) if self.body.is_end_stream() => self.tell(BodyEnd::Over),
            Some(Ok(_)) => {}
            Some(Err(_)) => self.tell(BodyEnd::Broken),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<W: Watcher> Drop for Watched<W> {
    fn drop(&mut self) {
        self.tell(BodyEnd::Over);
    }
}
