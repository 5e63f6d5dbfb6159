//! The events: names, levels, fields and values, how often and in what order they come, logged and typed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use futures::{FutureExt, future::BoxFuture};
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use reqwest_resilience::{
    CircuitBreaker, CircuitEvent, CircuitMode, CircuitSettings, CircuitState, ManualClock, OpenReason, Trip,
};
use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
    sync::{Arc, Mutex},
    time::Duration,
};
use support::{Held, KEY, Line, Log, Reply, Saw, Transport, URL, call, chain, plain_client, state};
use tracing::Level;

/// The rows of `circuit.*`: name, level, and the fields in the order of the alphabet.
#[rustfmt::skip]
const CONTRACT: [(&str, Level, &str); 10] = [
    ("circuit.opened", Level::WARN, "calls circuit_key epoch failures from mode open_for_ms reason"),
    ("circuit.half_open", Level::INFO, "circuit_key epoch mode"),
    ("circuit.closed", Level::INFO, "circuit_key epoch mode outage_ms rejected"),
    ("circuit.rejected", Level::WARN, "circuit_key mode retry_after_ms state suppressed"),
    ("circuit.mode_changed", Level::INFO, "circuit_key epoch mode"),
    ("circuit.reset", Level::INFO, "circuit_key epoch from mode rejected"),
    ("circuit.forgotten", Level::INFO, "circuit_key epoch rejected state"),
    ("circuit.stale_outcome", Level::DEBUG, "admitted_epoch circuit_key epoch"),
    ("circuit.untracked", Level::WARN, "max_circuits suppressed"),
    ("circuit.listener_panicked", Level::ERROR, "suppressed"),
];

const OPEN_FOR: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(60);

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A breaker on a clock moved by hand, over a scripted transport, with all that it logs and tells.
struct Stage {
    log: Log,
    clock: ManualClock,
    breaker: CircuitBreaker,
    transport: Transport,
    client: ClientWithMiddleware,
    told: Arc<Mutex<Vec<CircuitEvent>>>,
}

/// A call that the transport holds.
struct UnderWay {
    call: BoxFuture<'static, Saw>,
    held: Held,
    epoch: u64,
}

impl Stage {
    /// Two failures in a row open for ten seconds. Its listener panics when a circuit is reset.
    fn set(settings: impl FnOnce(CircuitSettings) -> CircuitSettings) -> Self {
        let told = Arc::<Mutex<Vec<_>>>::default();
        let listener = Arc::clone(&told);
        let clock = ManualClock::new();
        let breaker = CircuitBreaker::builder()
            .defaults(|circuit| circuit.trip(Trip::consecutive(2)).open_for(OPEN_FOR).probe_lease(LEASE))
            .defaults(settings)
            .origin("http://rate.example.com", |circuit| circuit.trip(Trip::failure_rate(0.6).min_calls(3)))
            .max_circuits(2)
            .clock(clock.clone())
            .on_event(move |event| {
                listener.lock().unwrap().push(event.clone());
                assert!(!matches!(event, CircuitEvent::Reset { .. }), "the listener panics");
            })
            .build()
            .unwrap();
        let transport = Transport::answering(200);
        Self { log: Log::listen(), clock, client: chain(&breaker, &transport), breaker, transport, told }
    }

    async fn answers(&self, status: u16) {
        self.answers_at(URL, status).await;
    }

    async fn answers_at(&self, url: &str, status: u16) {
        self.transport.script([Reply::Status(status)]);
        assert_eq!(call(&self.client, url).await, Saw::Status(status));
    }

    async fn rejects(&self, times: usize) {
        for _ in 0..times {
            assert_eq!(call(&self.client, URL).await, Saw::Rejected);
        }
    }

    async fn trips(&self) {
        self.answers(503).await;
        self.answers(503).await;
        assert_eq!(state(&self.breaker, KEY), CircuitState::Open);
    }

    /// Sends a call that gets no answer for now.
    fn holds(&self) -> UnderWay {
        self.transport.hold();
        let client = self.client.clone();
        let mut call = async move { call(&client, URL).await }.boxed();
        assert_eq!(call.as_mut().now_or_never(), None);
        self.transport.stop_holding();
        UnderWay { call, held: self.transport.take_held().unwrap(), epoch: self.epoch() }
    }

    async fn releases(&self, under_way: UnderWay, status: u16) {
        under_way.held.answer(status);
        assert_eq!(under_way.call.await, Saw::Status(status));
    }

    /// Answers a call that is too late: one line says so, whatever else comes to light.
    async fn releases_too_late(&self, late: UnderWay, status: u16) {
        let before = self.log.of("circuit.stale_outcome").len();
        let admitted = late.epoch.to_string();
        self.releases(late, status).await;
        let lines = self.log.of("circuit.stale_outcome");
        let [line] = &lines[before..] else {
            panic!("one line was due: {lines:?}");
        };
        assert_eq!(line.level, Level::DEBUG);
        assert_eq!(line.get("admitted_epoch"), admitted);
        assert_eq!(line.get("epoch"), self.epoch().to_string());
    }

    fn epoch(&self) -> u64 {
        self.breaker.snapshot(KEY).unwrap().epoch
    }

    /// The field `suppressed` of all lines of one event so far.
    fn suppressed(&self, event: &str) -> Vec<String> {
        let lines = self.log.of(event);
        lines.iter().map(|line| line.get("suppressed").to_owned()).collect()
    }

    /// Everything that can happen to a circuit, but for the end of a lease.
    async fn everything() -> Self {
        let stage = Self::set(|circuit| circuit);
        stage.trips().await;
        stage.clock.advance(millis(4_000));
        stage.rejects(3).await;
        stage.clock.advance(millis(6_000));
        stage.answers(500).await;
        stage.clock.advance(OPEN_FOR);
        let probe = stage.holds();
        stage.rejects(1).await;
        stage.releases(probe, 404).await;

        let late = stage.holds();
        stage.breaker.set_mode(KEY, CircuitMode::ForcedOpen).unwrap();
        stage.releases(late, 200).await;
        stage.rejects(2).await;
        assert!(stage.breaker.reset(KEY));

        for status in [200, 503, 503] {
            stage.answers_at("http://rate.example.com", status).await;
        }
        // Two open circuits fill the breaker; when their waits are over, one of them makes room.
        stage.trips().await;
        stage.answers_at("http://new.example.com", 200).await;
        stage.clock.advance(OPEN_FOR);
        stage.answers_at("http://new.example.com", 200).await;
        stage
    }
}

#[tokio::test]
async fn every_event_has_the_level_and_exactly_the_fields_of_the_contract() {
    let lines = Stage::everything().await.log.lines();
    for (event, level, fields) in CONTRACT {
        let mut seen = lines.iter().filter(|line| line.event() == event).peekable();
        assert!(seen.peek().is_some(), "{event} did not come");
        for line in seen {
            let mut fields: Vec<_> = fields.split(' ').collect();
            fields.retain(|field| match *field {
                "calls" => line.get("reason") == "failure_rate",
                "retry_after_ms" => line.get("state") == "open" && line.get("mode") != "forced_open",
                _ => true,
            });
            assert_eq!((line.level, line.names()), (level, fields), "{event}");
        }
    }
    let names = CONTRACT.map(|(event, ..)| event);
    assert!(lines.iter().all(|line| names.contains(&line.event())));
}

#[tokio::test]
async fn an_outage_reads_as_a_story() {
    let lines = Stage::everything().await.log.lines();
    // Which of two equal circuits was forgotten is of no interest.
    let story = lines.iter().filter(|line| line.event() != "circuit.forgotten");
    assert_eq!(
        story.map(text).collect::<Vec<_>>(),
        [
            "opened failures=2 from=closed mode=enforcing open_for_ms=10000 reason=consecutive",
            "rejected mode=enforcing retry_after_ms=6000 state=open suppressed=0",
            "half_open mode=enforcing",
            "opened failures=1 from=half_open mode=enforcing open_for_ms=10000 reason=probe",
            "half_open mode=enforcing",
            "rejected mode=enforcing state=half_open suppressed=2",
            "closed mode=enforcing outage_ms=20000 rejected=4",
            "mode_changed mode=forced_open",
            "stale_outcome",
            "rejected mode=forced_open state=closed suppressed=0",
            "reset from=closed mode=enforcing rejected=2",
            "listener_panicked suppressed=0",
            "opened calls=3 failures=2 from=closed mode=enforcing open_for_ms=10000 reason=failure_rate",
            "opened failures=2 from=closed mode=enforcing open_for_ms=10000 reason=consecutive",
            "untracked max_circuits=2 suppressed=0",
        ]
    );
    let epochs = lines
        .iter()
        .filter(|line| line.get("circuit_key") == KEY && line.event() != "circuit.stale_outcome")
        .filter_map(|line| line.get("epoch").parse::<u64>().ok());
    assert!(epochs.collect::<Vec<_>>().is_sorted_by(|a, b| a < b));
}

/// The line without what differs from run to run.
fn text(line: &Line) -> String {
    let mut text = line.event().replace("circuit.", "");
    for (field, value) in &line.fields {
        if !["event", "circuit_key", "epoch", "admitted_epoch"].contains(&field.as_str()) {
            write!(text, " {field}={value}").unwrap();
        }
    }
    text
}

#[tokio::test]
async fn a_listener_is_told_what_is_logged() {
    let stage = Stage::everything().await;
    let mut logged = stage.log.lines();
    logged.retain(|line| line.event() != "circuit.listener_panicked");
    let told = stage.told.lock().unwrap();
    assert_eq!(
        told.iter().map(fields).collect::<Vec<_>>(),
        logged.into_iter().map(|line| line.fields).collect::<Vec<_>>()
    );
}

/// The fields that an event is logged with.
fn fields(event: &CircuitEvent) -> BTreeMap<String, String> {
    macro_rules! named {
        ($($field:ident)*) => { vec![$((stringify!($field), $field.to_string())),*] };
    }
    let in_millis = |duration: &Duration| duration.as_millis().to_string();
    let mut fields = match event {
        CircuitEvent::Opened { from, reason, failures, calls, open_for, mode, epoch, .. } => {
            let mut fields = named![from reason failures mode epoch];
            fields.push(("open_for_ms", in_millis(open_for)));
            fields.extend(calls.map(|calls| ("calls", calls.to_string())));
            fields
        }
        CircuitEvent::HalfOpen { mode, epoch, .. } | CircuitEvent::ModeChanged { mode, epoch, .. } => {
            named![mode epoch]
        }
        CircuitEvent::Closed { rejected, outage, mode, epoch, .. } => {
            let mut fields = named![rejected mode epoch];
            fields.push(("outage_ms", in_millis(outage)));
            fields
        }
        CircuitEvent::Rejected { state, retry_after, suppressed, mode, .. } => {
            let mut fields = named![state suppressed mode];
            fields.extend(retry_after.as_ref().map(|left| ("retry_after_ms", in_millis(left))));
            fields
        }
        CircuitEvent::Reset { from, rejected, mode, epoch, .. } => named![from rejected mode epoch],
        CircuitEvent::Forgotten { state, rejected, epoch, .. } => named![state rejected epoch],
        CircuitEvent::StaleOutcome { epoch, admitted_epoch, .. } => named![epoch admitted_epoch],
        CircuitEvent::Untracked { max_circuits, suppressed, .. } => named![max_circuits suppressed],
        other => panic!("an event without a row in the contract: {other:?}"),
    };
    fields.push(("event", event.name().to_owned()));
    fields.extend(event.circuit_key().map(|key| ("circuit_key", key.to_string())));
    fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect()
}

#[tokio::test]
async fn a_call_while_all_is_well_logs_nothing() {
    let stage = Stage::set(|circuit| circuit);
    for url in [URL, "http://rate.example.com"] {
        for status in [200, 301, 404, 429] {
            stage.answers_at(url, status).await;
        }
        // A failure that is no evidence yet, and calls that say nothing.
        stage.answers_at(url, 503).await;
        stage.transport.script([Reply::BuilderError, Reply::ForeignError]);
        assert_eq!(call(&stage.client, url).await, Saw::Error);
        assert_eq!(call(&stage.client, url).await, Saw::Error);
    }
    drop(stage.holds());
    assert_eq!(stage.log.lines(), []);
    assert_eq!(*stage.told.lock().unwrap(), []);
}

#[tokio::test]
async fn a_call_that_finds_the_lease_over_reports_opened_before_half_open() {
    let stage = Stage::set(|circuit| circuit.probes(2).success_threshold(2));
    stage.trips().await;
    stage.clock.advance(OPEN_FOR);
    let _hanging = (stage.holds(), stage.holds());

    // The wait counts from the end of the lease, so the first call comes too early for a probe.
    stage.clock.advance(LEASE + millis(4_000));
    stage.rejects(1).await;
    stage.clock.advance(millis(6_000));
    let _hanging = stage.holds();
    stage.clock.advance(LEASE + OPEN_FOR);
    stage.answers(200).await;

    assert_eq!(
        stage.log.lines().iter().skip(2).map(text).collect::<Vec<_>>(),
        [
            "opened failures=2 from=half_open mode=enforcing open_for_ms=10000 reason=lease",
            "rejected mode=enforcing retry_after_ms=6000 state=open suppressed=0",
            "half_open mode=enforcing",
            "opened failures=1 from=half_open mode=enforcing open_for_ms=10000 reason=lease",
            "half_open mode=enforcing",
        ]
    );
}

#[tokio::test]
async fn half_open_is_reported_before_its_probe_is_sent() {
    /// Notes when a call is sent.
    struct Sent(Arc<Mutex<Vec<&'static str>>>);

    #[async_trait::async_trait]
    impl Middleware for Sent {
        async fn handle(
            &self,
            request: Request,
            extensions: &mut Extensions,
            next: Next<'_>,
        ) -> reqwest_middleware::Result<Response> {
            self.0.lock().unwrap().push("sent");
            next.run(request, extensions).await
        }
    }

    let order = Arc::<Mutex<Vec<_>>>::default();
    let listener = Arc::clone(&order);
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(1)).open_for(Duration::ZERO))
        .on_event(move |event| listener.lock().unwrap().push(event.name()))
        .build()
        .unwrap();
    let client = ClientBuilder::new(plain_client())
        .with(breaker)
        .with(Sent(Arc::clone(&order)))
        .with(Transport::answering(200).then([Reply::Status(503)]))
        .build();
    call(&client, URL).await;
    call(&client, URL).await;
    assert_eq!(
        *order.lock().unwrap(),
        ["sent", "circuit.opened", "circuit.half_open", "sent", "circuit.closed"]
    );
}

#[tokio::test]
async fn f17_an_outcome_that_comes_too_late_is_one_line_at_debug() {
    let stage = Stage::set(|circuit| circuit);
    let (first, second, third) = (stage.holds(), stage.holds(), stage.holds());
    stage.trips().await;
    stage.releases_too_late(first, 200).await;
    stage.clock.advance(OPEN_FOR);
    let probe = stage.holds();
    stage.releases_too_late(second, 503).await;
    stage.releases(probe, 200).await;
    stage.releases_too_late(third, 503).await;

    let (forced, reset) = (stage.holds(), stage.holds());
    stage.breaker.set_mode(KEY, CircuitMode::ForcedClosed).unwrap();
    stage.releases_too_late(forced, 503).await;
    assert!(stage.breaker.reset(KEY));
    stage.releases_too_late(reset, 200).await;

    // A probe is too late when its lease is over, whether or not another call has found that out.
    stage.trips().await;
    stage.clock.advance(OPEN_FOR);
    let probe = stage.holds();
    stage.clock.advance(LEASE);
    stage.releases_too_late(probe, 200).await;
    stage.clock.advance(OPEN_FOR);
    let probe = stage.holds();
    stage.clock.advance(LEASE);
    stage.rejects(1).await;
    stage.releases_too_late(probe, 503).await;
}

#[tokio::test]
async fn f64_ten_thousand_rejections_in_a_second_are_at_most_two_lines() {
    let stage = Stage::set(|circuit| circuit);
    stage.trips().await;
    for _ in 0..10_000 {
        stage.rejects(1).await;
        stage.clock.advance(Duration::from_micros(100));
    }
    assert!((1..=2).contains(&stage.log.of("circuit.rejected").len()));
    stage.clock.advance(OPEN_FOR);
    stage.answers(200).await;
    assert_eq!(stage.log.of("circuit.closed")[0].get("rejected"), "10000");
}

#[tokio::test]
async fn rejections_are_reported_once_a_second_with_the_number_of_those_that_were_not() {
    let stage = Stage::set(|circuit| circuit);
    stage.trips().await;
    for (at, rejections) in [(0, 5), (999, 2), (1, 3), (1_000, 1), (5_000, 1)] {
        stage.clock.advance(millis(at));
        stage.rejects(rejections).await;
    }
    assert_eq!(stage.suppressed("circuit.rejected"), ["0", "6", "2", "0"]);
}

#[tokio::test]
async fn the_first_rejection_of_every_outage_is_reported_and_a_failed_probe_begins_none() {
    let wait = millis(10);
    let stage = Stage::set(|circuit| circuit.open_for(wait));
    for _ in 0..3 {
        stage.trips().await;
        stage.rejects(3).await;
        stage.clock.advance(wait);
        stage.answers(503).await;
        stage.rejects(2).await;
        stage.clock.advance(wait);
        stage.answers(200).await;
    }
    assert_eq!(stage.suppressed("circuit.rejected"), ["0", "0", "0"]);
    let closed = stage.log.of("circuit.closed");
    assert!(closed.len() == 3 && closed.iter().all(|line| line.get("rejected") == "5"));
}

#[tokio::test]
async fn untracked_requests_are_reported_once_a_second_with_the_number_of_those_that_were_not() {
    let stage = Stage::set(|circuit| circuit.trip(Trip::consecutive(1)));
    for url in ["http://a.example.com", "http://b.example.com"] {
        stage.answers_at(url, 503).await;
    }
    for (at, requests) in [(0, 4), (999, 1), (1, 2)] {
        stage.clock.advance(millis(at));
        for _ in 0..requests {
            stage.answers_at(URL, 503).await;
        }
    }
    assert_eq!(stage.suppressed("circuit.untracked"), ["0", "4"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn f65_in_a_storm_the_events_of_each_circuit_form_a_chain_that_no_snapshot_lags_behind() {
    const TASKS: usize = 8;
    const CALLS: usize = 2_000;

    let events = Arc::<Mutex<Vec<CircuitEvent>>>::default();
    let lagging = Arc::<Mutex<Vec<String>>>::default();
    let handle = Arc::<std::sync::OnceLock<CircuitBreaker>>::default();
    // A panic in a listener would be caught, so what it finds is noted.
    let (listener, notes, circuits) = (Arc::clone(&events), Arc::clone(&lagging), Arc::clone(&handle));
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(2)).open_for(Duration::ZERO))
        .on_event(move |event| {
            let Some((epoch, _, begun)) = step(event) else {
                return;
            };
            let key = event.circuit_key().unwrap();
            let snapshot = circuits.get().unwrap().snapshot(key).unwrap();
            if snapshot.epoch < epoch || (snapshot.epoch == epoch && snapshot.state != begun) {
                notes.lock().unwrap().push(format!("{event:?} {snapshot:?}"));
            }
            listener.lock().unwrap().push(event.clone());
        })
        .build()
        .unwrap();
    handle.set(breaker.clone()).unwrap();
    let transport = Transport::answering(200);
    let client = chain(&breaker, &transport);
    let tasks = (0..TASKS).map(|task| {
        let (client, transport) = (client.clone(), transport.clone());
        tokio::spawn(async move {
            for round in 0..CALLS {
                transport.answer(if (round / 3 + task) % 2 == 0 { 503 } else { 200 });
                call(&client, ["http://a.example.com", "http://b.example.com"][round % 2]).await;
                tokio::task::yield_now().await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }

    assert_eq!(*lagging.lock().unwrap(), Vec::<String>::new());
    let mut chains = HashMap::<_, Vec<_>>::new();
    for event in events.lock().unwrap().iter() {
        if let CircuitEvent::Opened { from, reason, .. } = event {
            let by_probe = matches!(reason, OpenReason::Probe | OpenReason::Lease);
            assert_eq!(by_probe, *from == CircuitState::HalfOpen);
        }
        let key = event.circuit_key().unwrap().to_string();
        chains.entry(key).or_default().extend(step(event));
    }
    assert_eq!(chains.len(), 2);
    for (key, mut steps) in chains {
        assert!(100 < steps.len(), "{key} changed {} times only", steps.len());
        steps.sort_unstable_by_key(|(epoch, ..)| *epoch);
        let mut last = (0, CircuitState::Closed);
        for (epoch, from, to) in steps {
            assert!(last.0 < epoch && last.1 == from && from != to, "{key}: {from} to {to} after {last:?}");
            last = (epoch, to);
        }
        assert_eq!(last.1, state(&breaker, &key));
    }
}

/// The epoch, the state that ended and the one that began; none for an event that is no transition.
fn step(event: &CircuitEvent) -> Option<(u64, CircuitState, CircuitState)> {
    use CircuitState::{Closed, HalfOpen, Open};

    match event {
        CircuitEvent::Opened { epoch, from, .. } => Some((*epoch, *from, Open)),
        CircuitEvent::HalfOpen { epoch, .. } => Some((*epoch, Open, HalfOpen)),
        CircuitEvent::Closed { epoch, .. } => Some((*epoch, HalfOpen, Closed)),
        _ => None,
    }
}
