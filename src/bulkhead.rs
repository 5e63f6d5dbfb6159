//! A bound on the calls in flight.

mod builder;
mod gate;
mod middleware;

pub use builder::BulkheadBuilder;

use crate::{
    body::Until,
    error::ConfigError,
    registry::Registry,
    scope::{Keying, Scope},
};
use gate::{Gate, Limits};
use http::Extensions;
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// Bounds the calls in flight to each origin, so that a slow one cannot take up every task and connection
/// there is.
///
/// A call that finds all slots taken queues, first come, first served, for at most
/// [`max_wait`](BulkheadBuilder::max_wait) and at most to its [`Deadline`](crate::Deadline). When the queue
/// is full or the wait over, it ends in [`Rejection::BulkheadFull`](crate::Rejection::BulkheadFull): nothing
/// was sent.
///
/// A call that is dropped gives its slot, or its place in the queue, back at once.
///
/// # Order
///
/// Inside the [`Retry`](crate::Retry), so that a call holds no slot while it waits for its next attempt, and
/// inside the [`CircuitBreaker`](crate::CircuitBreaker), so that no call queues for an origin that is known
/// to be down. A call that queued when the circuit opened is still sent when its turn comes: at most as many
/// as the queue holds.
///
/// What a call waited here is not the origin's fault: [`QueuedFor`] tells it to the other layers, and the
/// breaker's `slow_call` and `abandoned_after` do not count it.
///
/// # Clone
///
/// A clone shares the slots.
///
/// # Example
///
/// ```
/// use reqwest_middleware::ClientBuilder;
/// use reqwest_resilience::Bulkhead;
///
/// let bulkhead = Bulkhead::per_origin(64)?;
/// let client = ClientBuilder::new(reqwest::Client::new()).with(bulkhead.clone()).build();
///
/// for gate in bulkhead.snapshots() {
///     println!("{gate}");
/// }
/// # Ok::<(), reqwest_resilience::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Bulkhead {
    shared: Arc<Shared>,
}

/// What the clones share.
struct Shared {
    keying: Keying,
    gates: Registry<Gate>,
    limits: Limits,
    hold: Until,
    zero: Instant,
}

impl Bulkhead {
    /// Begins the settings of a bulkhead.
    pub fn builder() -> BulkheadBuilder {
        BulkheadBuilder::default()
    }

    /// At most so many calls in flight to each origin, as many again in its queue, for up to a second.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for 0, and beyond what a semaphore can count.
    pub fn per_origin(max_concurrent: usize) -> Result<Self, ConfigError> {
        Self::builder().max_concurrent(max_concurrent).build()
    }

    /// At most so many calls in flight in all, as many again in the queue, for up to a second.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for 0, and beyond what a semaphore can count.
    pub fn shared(max_concurrent: usize) -> Result<Self, ConfigError> {
        Self::builder().max_concurrent(max_concurrent).scope(Scope::shared("all")).build()
    }

    /// The longest wait of a call; none where none queues.
    pub(crate) fn max_wait(&self) -> Option<Duration> {
        (self.shared.limits.queue != 0).then_some(self.shared.limits.wait)
    }

    /// All gates, sorted by key. A gate comes into being with its first call.
    #[must_use]
    pub fn snapshots(&self) -> Vec<BulkheadSnapshot> {
        let mut snapshots = Vec::new();
        self.shared.gates.each(|gate| snapshots.push(gate.snapshot(&self.shared.limits)));
        snapshots.sort_by(|a, b| a.key.cmp(&b.key));
        snapshots
    }
}

/// One gate of a bulkhead at one moment: plain data. Prints as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkheadSnapshot {
    /// What shares the slots: `scheme://host:port`, or a name.
    pub key: Arc<str>,
    /// Slots that are taken.
    pub in_flight: usize,
    /// Calls that wait for one.
    pub queued: usize,
    /// Calls that were refused since the gate was made.
    pub rejected: u64,
}

impl fmt::Display for BulkheadSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} in flight, {} queued, {} rejected",
            self.key, self.in_flight, self.queued, self.rejected
        )
    }
}

/// How long an attempt waited in bulkheads of this client. Absent: it did not. Outside a retry, that of the
/// last attempt.
///
/// In the extensions, for the layers inside a [`Bulkhead`] and, once the call is back, for those outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuedFor(pub(crate) Duration);

impl QueuedFor {
    /// What the call that these extensions belong to has waited so far.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Duration {
        extensions.get().map_or(Duration::ZERO, |&Self(waited)| waited)
    }

    fn add(waited: Duration, extensions: &mut Extensions) {
        if !waited.is_zero() {
            let before = Self::of(extensions);
            extensions.insert(Self(before.saturating_add(waited)));
        }
    }
}

impl fmt::Debug for Bulkhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulkhead").field("limits", &self.shared.limits).finish_non_exhaustive()
    }
}
