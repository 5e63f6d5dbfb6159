//! An answer when the call was refused.

use crate::{
    error::{ConfigError, Rejection},
    event,
    key::without_secrets,
    origin::OriginRef,
    retry::is_safe,
    scope::CircuitKey,
    verdict::{Attempt, FallbackMade, OutcomeRule},
};
use http::Extensions;
use reqwest::{Request, Response, Url};
use reqwest_middleware::{Middleware, Next, Result};
use std::{fmt, pin::Pin, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Gives an answer of your own when the call was refused: a stub, a cached value, another origin.
///
/// Used when the rest of the chain ended the call without sending it ([`Rejection::is_unsent`]);
/// [`when`](Self::when) widens that. The outermost layer, so that the answer is not judged, retried or cut
/// off by the others.
///
/// A response that it made says nothing about the origin: a breaker outside ignores it. Its time is its own:
/// a [`Deadline`](crate::Deadline) inside does not bound it, and bounds a call to another origin anew.
///
/// # Clone
///
/// A clone shares the closures.
///
/// # Example
///
/// ```
/// use reqwest_middleware::ClientBuilder;
/// use reqwest_resilience::{CircuitBreaker, Fallback};
///
/// let client = ClientBuilder::new(reqwest::Client::new())
///     .with(Fallback::new(|context| async move {
///         match context.request() {
///             // Nobody misses recommendations for a while.
///             Some(request) if request.url().path().starts_with("/recommendations") => {
///                 Ok(http::Response::new("[]").into())
///             }
///             _ => context.into_outcome(),
///         }
///     }))
///     .with(CircuitBreaker::default())
///     .build();
/// ```
#[derive(Clone)]
pub struct Fallback {
    answer: Answer,
    when: Option<Arc<When>>,
}

type When = dyn Fn(&Attempt<'_>) -> bool + Send + Sync;
type Answerer = dyn Fn(FallbackContext) -> Answering + Send + Sync;
type Answering = Pin<Box<dyn Future<Output = Result<Response>> + Send>>;

#[derive(Clone)]
enum Answer {
    By(Arc<Answerer>),
    From(Arc<Url>),
}

impl Fallback {
    /// Answers by a closure. It owns what is known of the call, and declines with
    /// [`FallbackContext::into_outcome`].
    pub fn new<F, Fut>(answer: F) -> Self
    where
        F: Fn(FallbackContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Response>> + Send + 'static,
    {
        let answer = move |context| -> Answering { Box::pin(answer(context)) };
        Self { answer: Answer::By(Arc::new(answer)), when: None }
    }

    /// Sends the request to another origin, through the rest of the chain and under that origin's circuit.
    /// Path, query, headers and body stay those of the request, credentials and a `Host` among them; of
    /// `url`, only the origin counts.
    ///
    /// A request whose body cannot be sent twice gets its own outcome. So does one that may have been sent
    /// already (where [`when`](Self::when) widens the rule), unless it may be sent twice: the rule of
    /// [`Retry`](crate::Retry) on methods.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for a text that is no URL with a host and a known port.
    pub fn to_origin(url: &str) -> std::result::Result<Self, ConfigError> {
        let origin = Url::parse(url).ok().filter(|url| OriginRef::of(url).is_some());
        origin.map(bare).map(|url| Self { answer: Answer::From(Arc::new(url)), when: None }).ok_or_else(
            || {
                let value = format!("{:?}", without_secrets(url));
                ConfigError::new("to_origin", value, "must be a URL with a host and a known port")
            },
        )
    }

    /// Also where this says so of what came back: for some statuses, say, or for timeouts.
    #[must_use]
    pub fn when(self, rule: impl Fn(&Attempt<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self { when: Some(Arc::new(rule)), ..self }
    }

    /// Why the fallback is used; none where it is not.
    fn reason(&self, sent: &Sent, elapsed: Duration, result: &Result<Response>) -> Option<&'static str> {
        match result.as_ref().err().and_then(|error| Rejection::find(error)) {
            Some(Rejection::CircuitOpen { .. }) => return Some("circuit_open"),
            Some(Rejection::BulkheadFull { .. }) => return Some("bulkhead_full"),
            _ => {}
        }
        let when = self.when.as_ref()?;
        let rule = OutcomeRule::default();
        when(&Attempt::new(&sent.method, result, elapsed, &rule)).then_some("outcome")
    }
}

/// In the extensions of a response that came from the chain: when the closure hands it on, it declines.
#[derive(Clone, Copy, Debug)]
struct Original;

/// What a fallback knows of the call: the outcome, and the request if it could be copied.
#[derive(Debug)]
pub struct FallbackContext {
    outcome: Result<Response>,
    request: Option<Request>,
}

impl FallbackContext {
    /// What came back.
    pub fn outcome(&self) -> &Result<Response> {
        &self.outcome
    }

    /// What came back, to be handed on: the fallback declines.
    ///
    /// # Errors
    ///
    /// Whatever the call ended in.
    pub fn into_outcome(self) -> Result<Response> {
        self.outcome
    }

    /// The request; none where its body cannot be sent twice.
    #[must_use]
    pub fn request(&self) -> Option<&Request> {
        self.request.as_ref()
    }

    /// The request, to be sent elsewhere.
    pub fn take_request(&mut self) -> Option<Request> {
        self.request.take()
    }
}

/// What has to be known of a request once it is gone.
struct Sent {
    method: reqwest::Method,
    is_safe: bool,
    /// Only of a request that could not be copied.
    origin: Option<String>,
    copy: Option<Request>,
}

impl Sent {
    fn of(request: &Request, extensions: &Extensions) -> Self {
        let copy = request.try_clone();
        let text = |url| OriginRef::of(url).map(|origin| origin.to_string());
        Self {
            method: request.method().clone(),
            is_safe: is_safe(request, extensions),
            origin: if copy.is_none() { text(request.url()) } else { None },
            copy,
        }
    }

    fn origin(&self) -> String {
        let copied = self.copy.as_ref().and_then(|copy| OriginRef::of(copy.url()));
        copied.map(|origin| origin.to_string()).or_else(|| self.origin.clone()).unwrap_or_default()
    }
}

#[async_trait::async_trait]
impl Middleware for Fallback {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let begun = self.when.as_ref().map(|_| Instant::now());
        let (sent, sending) = {
            // In a scope of its own: what is borrowed would else be kept in the future a second time.
            let request = request;
            (Sent::of(&request, extensions), next.clone().run(request, &mut *extensions))
        };
        let result = sending.await;
        let elapsed = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        match self.reason(&sent, elapsed, &result) {
            None => result,
            // In a box, so that a call that goes well is not made larger by it.
            Some(reason) => Box::pin(self.answer(sent, reason, result, extensions, next)).await,
        }
    }
}

impl Fallback {
    /// What the caller gets instead of `result`.
    async fn answer(
        &self,
        mut sent: Sent,
        reason: &'static str,
        result: Result<Response>,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let origin = sent.origin();
        let copy = sent.copy.take();
        match &self.answer {
            Answer::By(answer) => {
                let outcome = result.map(|mut response| {
                    response.extensions_mut().insert(Original);
                    response
                });
                let mut answer = answer(FallbackContext { outcome, request: copy }).await?;
                if answer.extensions_mut().remove::<Original>().is_some() {
                    return Ok(answer);
                }
                event::fallback_used(&origin, reason);
                Ok(made_by_fallback(answer))
            }
            Answer::From(backup) => {
                let was_unsent = reason != "outcome";
                let Some(mut copy) = copy.filter(|_| was_unsent || sent.is_safe) else {
                    return result;
                };
                // With it goes what it holds: a connection, and the slot of a bulkhead that the next call may
                // need.
                drop(result);
                event::fallback_used(&origin, reason);
                redirect(&mut copy, backup);
                // On a copy, so that a call dropped meanwhile leaves no trace. The circuit that the caller named is
                // the one that refused.
                let mut apart = extensions.clone();
                let named = apart.remove::<CircuitKey>();
                let answer = next.run(copy, &mut apart).await;
                if let Some(named) = named {
                    apart.insert(named);
                }
                *extensions = apart;
                answer.map(made_by_fallback)
            }
        }
    }
}

/// The origin alone: what else there is would ride in every request.
fn bare(mut url: Url) -> Url {
    // These fail only for a URL without a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_fragment(None);
    url
}

/// The same path and query at another origin.
fn redirect(request: &mut Request, backup: &Url) {
    let mut url = backup.clone();
    url.set_path(request.url().path());
    url.set_query(request.url().query());
    *request.url_mut() = url;
}

fn made_by_fallback(mut response: Response) -> Response {
    response.extensions_mut().insert(FallbackMade);
    response
}

impl fmt::Debug for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to_origin = match &self.answer {
            Answer::By(_) => None,
            Answer::From(url) => OriginRef::of(url).map(|origin| origin.to_string()),
        };
        f.debug_struct("Fallback").field("to_origin", &to_origin).finish_non_exhaustive()
    }
}
