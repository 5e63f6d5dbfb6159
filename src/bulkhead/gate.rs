//! The slots of one key, and the queue before them.

use super::BulkheadSnapshot;
use crate::{
    deadline::DeadlineAt,
    error::Rejection,
    event,
    key::Key,
    machine::{Expendable, generation::Generation, throttle::Throttle, tick::Tick},
    queue_time::QueueTime,
    registry::Resident,
    sync::{Mutex, lock},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};

/// By how much a wait ends before the deadline of its call.
const MARGIN: Duration = Duration::from_millis(1);

/// The numbers of a bulkhead, checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The most calls in flight.
    pub(super) concurrent: usize,
    /// The most calls that wait.
    pub(super) queue: usize,
    /// The longest wait.
    pub(super) wait: Duration,
}

/// The slots of one key.
///
/// tokio's semaphore is the queue: first come, first served; nobody overtakes, since a slot that is given
/// back goes to the queue first; who leaves gives its place up.
#[derive(Debug)]
pub(super) struct Gate {
    slots: Arc<Semaphore>,
    queued: AtomicUsize,
    /// Whose the gate is.
    generation: Generation,
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    key: Arc<str>,
    rejected: u64,
    reports: Throttle,
}

/// A slot that was found, and how long that took.
pub(super) struct Entry<'a> {
    pub(super) slot: SemaphorePermit<'a>,
    pub(super) waited: Option<Duration>,
}

/// Why a call did not get a slot.
pub(super) enum Refused {
    /// The gate has gone to another key: look again.
    Gone,
    Full {
        queued: usize,
        waited: Duration,
    },
}

impl Gate {
    /// Waits for a slot of the owner `generation`.
    pub(super) async fn enter(
        &self,
        generation: u64,
        limits: &Limits,
        deadline: Option<DeadlineAt>,
        queue_time: &QueueTime,
    ) -> Result<Entry<'_>, Refused> {
        let entry = match self.slots.try_acquire() {
            Ok(slot) => Ok(Entry { slot, waited: None }),
            // Not of the owner's calls, but of the one who takes the gate from it.
            Err(_) if self.generation.has_gone(generation) => Err(Refused::Gone),
            // In a box, so that a call that finds a slot is not made larger by it.
            Err(_) => Box::pin(self.queue(limits, deadline, queue_time)).await,
        };
        // Who holds a slot keeps the gate from changing hands, so that now is the time to look.
        if self.generation.has_gone(generation) { Err(Refused::Gone) } else { entry }
    }

    async fn queue(
        &self,
        limits: &Limits,
        deadline: Option<DeadlineAt>,
        queue_time: &QueueTime,
    ) -> Result<Entry<'_>, Refused> {
        if limits.wait.is_zero() {
            return Err(self.full(Duration::ZERO));
        }
        let Some(place) = Place::take(&self.queued, limits.queue) else {
            return Err(self.full(Duration::ZERO));
        };
        let begun = Instant::now();
        let waiting = queue_time.begin();
        let patience = begun.checked_add(limits.wait);
        // A little earlier, so that it is the queue that ran out of time and not the origin, whichever timer
        // fires first.
        let deadline = deadline.map(|deadline| deadline.instant().checked_sub(MARGIN).unwrap_or(begun));
        let until = match (patience, deadline) {
            (Some(patience), Some(deadline)) => Some(patience.min(deadline)),
            (patience, deadline) => patience.or(deadline),
        };
        let slot = match until {
            Some(until) => timeout_at(until, self.slots.acquire()).await.ok().and_then(Result::ok),
            None => self.slots.acquire().await.ok(),
        };
        drop(waiting);
        drop(place);
        slot.map(|slot| Entry { slot, waited: Some(begun.elapsed()) })
            .ok_or_else(|| self.full(begun.elapsed()))
    }

    fn full(&self, waited: Duration) -> Refused {
        Refused::Full { queued: self.queued.load(Ordering::Relaxed), waited }
    }

    /// What a call that found no slot is told; logged at most once a second.
    pub(super) fn reject(&self, limits: &Limits, queued: usize, waited: Duration, now: Tick) -> Rejection {
        let (key, admitted) = {
            let mut books = lock(&self.books);
            books.rejected = books.rejected.saturating_add(1);
            (Arc::clone(&books.key), books.reports.admit(now))
        };
        if let Some(suppressed) = admitted {
            event::bulkhead_rejected(&key, limits.concurrent, queued, suppressed);
        }
        Rejection::BulkheadFull { key, max_concurrent: limits.concurrent, queued, waited }
    }

    pub(super) fn snapshot(&self, limits: &Limits) -> BulkheadSnapshot {
        let books = lock(&self.books);
        BulkheadSnapshot {
            key: Arc::clone(&books.key),
            in_flight: limits.concurrent.saturating_sub(self.slots.available_permits()),
            queued: self.queued.load(Ordering::Relaxed),
            rejected: books.rejected,
        }
    }

    /// The semaphore, for a slot that outlives its call.
    pub(super) fn slots(&self) -> &Arc<Semaphore> {
        &self.slots
    }
}

impl Resident for Gate {
    type Context<'a> = Limits;
    type Farewell = ();

    fn vacant(_: u32, limits: &Limits) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(limits.concurrent)),
            queued: AtomicUsize::new(0),
            generation: Generation::new(),
            books: Mutex::new(Books { key: "".into(), rejected: 0, reports: Throttle::default() }),
        }
    }

    fn expendable(&self, limits: &Limits) -> Option<Expendable> {
        (self.slots.available_permits() == limits.concurrent).then_some(Expendable::Fresh)
    }

    /// Who takes the gate over holds every slot meanwhile: then no call does, and none queues.
    fn evict(&self, _: Expendable, limits: &Limits) -> Option<()> {
        let all = u32::try_from(limits.concurrent).ok()?;
        self.generation.take_over(|| self.slots.try_acquire_many(all).ok())
    }

    fn occupy(&self, key: &Key, _: &Limits) -> u64 {
        *lock(&self.books) = Books { key: Arc::clone(key.text()), rejected: 0, reports: Throttle::default() };
        self.generation.current()
    }
}

/// A place in the queue, given up when dropped.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(queued: &'a AtomicUsize, most: usize) -> Option<Self> {
        let taken = queued.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |queued| {
            (queued < most).then_some(queued + 1)
        });
        taken.ok().map(|_| Self(queued))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
