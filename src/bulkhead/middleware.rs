//! The bulkhead in a chain.

use super::{
    Bulkhead, QueuedFor, Shared,
    gate::{Entry, Gate, Refused},
};
use crate::{
    body::{BodyEnd, Until, Watcher, watch},
    clock::{Clock, TokioClock},
    deadline::DeadlineAt,
    error::Rejection,
    key::KeyRef,
    machine::tick::Tick,
    queue_time::QueueTime,
    registry::{Found, WhenFull},
};
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};
use std::sync::Arc;
use tokio::sync::Semaphore;

#[async_trait::async_trait]
impl Middleware for Bulkhead {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let held = match self.shared.enter(&request, extensions).await {
            Ok(None) => None,
            Ok(Some((gate, Entry { slot, waited }))) => {
                QueuedFor::add(waited.unwrap_or_default(), extensions);
                Some((gate, slot))
            }
            Err(rejection) => {
                if let Rejection::BulkheadFull { waited, .. } = rejection {
                    QueuedFor::add(waited, extensions);
                }
                return Err(rejection.into());
            }
        };
        let method = request.method().clone();
        let mut result = next.run(request, extensions).await;
        match held {
            Some((gate, slot)) if self.shared.hold == Until::BodyEnd && result.is_ok() => {
                slot.forget();
                let slot = HeldSlot(Arc::clone(gate.slots()));
                result = result.map(|response| watch(&method, response, slot));
            }
            held => drop(held),
        }
        result
    }
}

impl Shared {
    /// Waits for a slot; none where the request has no key, or all gates are in use.
    async fn enter(
        &self,
        request: &Request,
        extensions: &Extensions,
    ) -> std::result::Result<Option<(&Gate, Entry<'_>)>, Rejection> {
        let deadline = DeadlineAt::of(extensions);
        let queue_time = QueueTime::of(extensions);
        // Where a gate has moved to is settled only at the desk.
        let mut has_moved = false;
        loop {
            let mut made = None;
            let key = self.keying.key(request, &mut made);
            let found = key.and_then(|key| self.find(key, has_moved));
            let Some(Found { resident: gate, tenancy }) = found else {
                return Ok(None);
            };
            match gate.enter(tenancy, &self.limits, deadline, &queue_time).await {
                Ok(entry) => return Ok(Some((gate, entry))),
                Err(Refused::Full { queued, waited }) => {
                    return Err(gate.reject(&self.limits, queued, waited, self.now()));
                }
                Err(Refused::Gone) => has_moved = true,
            }
        }
    }

    fn find(&self, key: KeyRef<'_>, has_moved: bool) -> Option<Found<'_, Gate>> {
        let found = if has_moved { None } else { self.gates.find(key) };
        found.or_else(|| self.gates.find_or_create(key, WhenFull::TurnAway, &self.limits).found)
    }

    fn now(&self) -> Tick {
        Tick::at(TokioClock.now(), self.zero)
    }
}

/// A slot that rides in a body.
struct HeldSlot(Arc<Semaphore>);

impl Watcher for HeldSlot {
    fn end(self, _: BodyEnd) {}
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}
