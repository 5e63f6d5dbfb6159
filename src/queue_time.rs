//! The time that a call spent in our own queues, for layers that must not charge it to the origin.

use crate::sync::{Mutex, lock};
use http::Extensions;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// A stopwatch that an outer layer lays into the extensions and inner bulkheads run while a call queues.
///
/// Shared, since a call that is dropped while it queues hands no extensions back.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueTime(Option<Arc<Mutex<Duration>>>);

/// The stopwatch runs; it stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    total: Option<&'a Mutex<Duration>>,
    begun: Instant,
}

impl QueueTime {
    /// The one that an outer layer laid in, or one that nobody reads.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_default()
    }

    /// The one that is there, or a new one laid in.
    pub(crate) fn lay_in(extensions: &mut Extensions) -> Self {
        extensions.get_or_insert_with(|| Self(Some(Arc::default()))).clone()
    }

    pub(crate) fn begin(&self) -> Running<'_> {
        Running { total: self.0.as_deref(), begun: Instant::now() }
    }

    /// The time so far.
    pub(crate) fn total(&self) -> Duration {
        self.0.as_deref().map_or(Duration::ZERO, |total| *lock(total))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(total) = self.total {
            let mut total = lock(total);
            *total = total.saturating_add(self.begun.elapsed());
        }
    }
}
