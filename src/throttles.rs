//! Events about calls, at most one a second for each origin.

use crate::{
    event::{CallEvent, THROTTLED},
    key::{Key, KeyRef},
    machine::{Expendable, throttle::Throttle, tick::Tick},
    registry::{Found, Registry, Resident, WhenFull},
    sync::{Mutex, lock},
};
use reqwest::Url;
use std::{sync::Arc, time::Instant};

/// How many origins are told apart at once. Beyond that, those that had no event within the last second make
/// room.
const ORIGINS: usize = 10_000;
/// What the rest is called when even those do not suffice.
const OTHERS: &str = "others";

/// Where the events of one middleware go. They are timed by tokio's clock, as its waits are.
#[derive(Debug)]
pub(crate) struct Throttles {
    origins: Registry<Speaker>,
    others: Mutex<[Throttle; THROTTLED]>,
    zero: Instant,
}

/// Whom an event is about, looked up before the request is given away.
pub(crate) type Subject<'a> = Found<'a, Speaker>;

/// What was said of one origin lately.
#[derive(Debug)]
pub(crate) struct Speaker(Mutex<Said>);

#[derive(Debug)]
struct Said {
    generation: u64,
    origin: Arc<str>,
    throttles: [Throttle; THROTTLED],
}

impl Said {
    /// Whether an event of any kind could go out at once.
    fn is_quiet(&self, now: Tick) -> bool {
        self.throttles.iter().all(|throttle| throttle.is_over(now))
    }
}

impl Default for Throttles {
    fn default() -> Self {
        Self {
            origins: Registry::new(ORIGINS),
            others: Mutex::default(),
            zero: tokio::time::Instant::now().into_std(),
        }
    }
}

impl Throttles {
    /// The origin of a call that something may have to be said about. Allocates for an origin not seen
    /// lately, only.
    #[inline]
    pub(crate) fn subject(&self, url: &Url) -> Option<Subject<'_>> {
        let mut made = None;
        let key = KeyRef::of(url, &mut made)?;
        self.origins
            .find(key)
            .or_else(|| self.origins.find_or_create(key, WhenFull::TurnAway, &self.now()).found)
    }

    /// Reports `event`, unless one of its kind was reported for this origin within the last second.
    pub(crate) fn report(&self, subject: Option<Subject<'_>>, event: &CallEvent<'_>) {
        let now = self.now();
        let (origin, admitted) = subject
            .and_then(|subject| subject.resident.ask(subject.tenancy, event, now))
            .unwrap_or_else(|| (OTHERS.into(), event.admit(&mut lock(&self.others), now)));
        if let Some(suppressed) = admitted {
            event.trace(&origin, suppressed);
        }
    }

    fn now(&self) -> Tick {
        Tick::at(tokio::time::Instant::now().into_std(), self.zero)
    }
}

impl Speaker {
    /// The origin, and how many events were held back if this one may go out; none where the place has gone
    /// to another origin.
    fn ask(&self, generation: u64, event: &CallEvent<'_>, now: Tick) -> Option<(Arc<str>, Option<u64>)> {
        let mut said = lock(&self.0);
        if said.generation != generation {
            return None;
        }
        let admitted = event.admit(&mut said.throttles, now);
        Some((Arc::clone(&said.origin), admitted))
    }
}

impl Resident for Speaker {
    type Context<'a> = Tick;
    type Farewell = ();

    fn vacant(_: u32, _: &Tick) -> Self {
        Self(Mutex::new(Said { generation: 1, origin: "".into(), throttles: Default::default() }))
    }

    fn expendable(&self, now: &Tick) -> Option<Expendable> {
        lock(&self.0).is_quiet(*now).then_some(Expendable::Fresh)
    }

    fn evict(&self, _: Expendable, now: &Tick) -> Option<()> {
        let mut said = lock(&self.0);
        said.is_quiet(*now).then(|| said.generation += 1)
    }

    fn occupy(&self, key: &Key, _: &Tick) -> u64 {
        let mut said = lock(&self.0);
        said.origin = Arc::clone(key.text());
        said.throttles = Default::default();
        said.generation
    }
}
