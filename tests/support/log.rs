//! Reads the log events of the crate, field by field.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    subscriber::DefaultGuard,
};
use tracing_subscriber::{Layer, Registry, layer::Context, layer::SubscriberExt};

/// One log event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub level: Level,
    pub fields: BTreeMap<String, String>,
}

impl Line {
    /// The value of the field `event`.
    pub fn event(&self) -> &str {
        self.get("event")
    }

    /// The value of a field, printed; empty where there is none.
    pub fn get(&self, field: &str) -> &str {
        self.fields.get(field).map_or("", String::as_str)
    }

    /// The names of all fields but `event`, sorted.
    pub fn names(&self) -> Vec<&str> {
        self.fields.keys().map(String::as_str).filter(|name| *name != "event").collect()
    }
}

/// The events that this thread logs to the target `reqwest_resilience` while the log is alive.
pub struct Log {
    lines: Arc<Mutex<Vec<Line>>>,
    _guard: DefaultGuard,
}

impl Log {
    /// Listens on this thread. A test on tokio's current-thread runtime logs everything there.
    ///
    /// While a process has one subscriber, `tracing` asks the thread that first comes by an event whether anybody
    /// listens, and keeps its "no" for all threads. A second one, which stays for good, makes it ask them all.
    pub fn listen() -> Self {
        let _ = tracing::subscriber::set_global_default(Registry::default());
        let lines = Arc::default();
        let guard = tracing::subscriber::set_default(Registry::default().with(Collect(Arc::clone(&lines))));
        tracing::callsite::rebuild_interest_cache();
        Self { lines, _guard: guard }
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<Line> {
        self.lines.lock().unwrap().clone()
    }

    /// The lines so far of one event.
    pub fn of(&self, event: &str) -> Vec<Line> {
        let mut lines = self.lines();
        lines.retain(|line| line.event() == event);
        lines
    }

    /// The names of the events so far, in order.
    pub fn events(&self) -> Vec<String> {
        self.lines().iter().map(|line| line.event().to_owned()).collect()
    }
}

struct Collect(Arc<Mutex<Vec<Line>>>);

impl<S: Subscriber> Layer<S> for Collect {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() != "reqwest_resilience" {
            return;
        }
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(Line { level: *event.metadata().level(), fields: fields.0 });
    }
}

struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}
