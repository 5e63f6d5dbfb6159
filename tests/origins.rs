//! Which requests share a circuit, and what of a request may be seen in it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

mod support;

use reqwest::{Method, Request, Url};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_resilience::{
    BypassCircuit, CircuitBreaker, CircuitBreakerBuilder, CircuitKey, CircuitMode, CircuitSettings,
    CircuitState, ManualClock, Rejection, Scope, Trip,
};
use std::{
    collections::BTreeSet,
    error::Error,
    fmt::{Debug, Display},
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};
use support::{KEY, Log, Reply, Saw, Server, Transport, URL, call, chain, network, plain_client, saw, state};

/// Makes circuits that open at their first failure, so that one failed call tells which circuit it was charged to.
fn touchy() -> CircuitBreakerBuilder {
    CircuitBreaker::builder().defaults(|circuit| circuit.trip(Trip::consecutive(1)))
}

/// `touchy → transport`, everything answered with `status`.
fn touchy_chain(scope: Scope, status: u16) -> (CircuitBreaker, Transport, ClientWithMiddleware) {
    let breaker = touchy().scope(scope).build().unwrap();
    let transport = Transport::answering(status);
    let client = chain(&breaker, &transport);
    (breaker, transport, client)
}

fn keys(breaker: &CircuitBreaker) -> Vec<String> {
    let snapshots = breaker.snapshots();
    snapshots.iter().map(|one| one.circuit_key.to_string()).collect()
}

/// A GET to a URL that `RequestBuilder` would refuse.
fn get(url: &str) -> Request {
    Request::new(Method::GET, Url::parse(url).unwrap())
}

#[tokio::test]
async fn f27_each_port_and_each_scheme_has_a_circuit_of_its_own() {
    for (down, up) in [
        ("http://h:8080/", "http://h:8081/"),
        ("http://h:8080/", "https://h:8080/"),
        ("http://h/", "http://hh/"),
    ] {
        let (_, transport, client) = touchy_chain(Scope::Origin, 200);
        transport.script([Reply::Status(503)]);
        assert_eq!(call(&client, down).await, Saw::Status(503));
        assert_eq!(call(&client, up).await, Saw::Status(200), "{up}");
        assert_eq!(call(&client, down).await, Saw::Rejected, "{down}");
    }
}

#[tokio::test]
async fn f28_every_spelling_of_an_origin_is_one_circuit() {
    let breaker = CircuitBreaker::default();
    let client = chain(&breaker, &Transport::answering(503));
    for url in ["https://h", "https://h:443", "https://h:0443", "HTTPS://H/"] {
        assert_eq!(call(&client, url).await, Saw::Status(503));
    }
    assert_eq!(keys(&breaker), ["https://h:443"]);
    assert_eq!(breaker.snapshot("https://h:443").unwrap().consecutive_failures, 4);
    assert_eq!(call(&client, "http://h:443").await, Saw::Status(503));
    assert_eq!(keys(&breaker), ["http://h:443", "https://h:443"]);
}

/// The names are resolved by the client itself: not every machine knows `localhost.`.
#[tokio::test]
async fn f29_a_trailing_dot_is_the_same_circuit_and_the_host_header_stays_as_written() {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&heads);
    let server = Server::start(move |conversation| {
        seen.lock().unwrap().push(conversation.request.to_lowercase());
        conversation.status(503)
    })
    .await;
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let resolving = reqwest::Client::builder()
        .no_proxy()
        .resolve("localhost", loopback)
        .resolve("localhost.", loopback)
        .build()
        .unwrap();
    let breaker =
        CircuitBreaker::builder().defaults(|circuit| circuit.trip(Trip::consecutive(2))).build().unwrap();
    let client = ClientBuilder::new(resolving).with(breaker.clone()).build();
    let port = Url::parse(&server.url()).unwrap().port().unwrap();
    let dotted = format!("http://localhost.:{port}/");
    assert_eq!(call(&client, &dotted).await, Saw::Status(503));
    let plain = format!("http://localhost:{port}/");
    assert_eq!(call(&client, &plain).await, Saw::Status(503));
    assert_eq!(call(&client, &dotted).await, Saw::Rejected);
    assert_eq!(keys(&breaker), [format!("http://localhost:{port}")]);
    let heads = heads.lock().unwrap();
    assert!(heads[0].contains(&format!("\r\nhost: localhost.:{port}\r\n")));
    assert!(heads[1].contains(&format!("\r\nhost: localhost:{port}\r\n")));
}

/// Everything that a person may come to read, printed in every way.
#[derive(Default)]
struct Printed(Vec<String>);

impl Printed {
    fn debug(&mut self, value: &(impl Debug + ?Sized)) {
        self.0.push(format!("{value:?} {value:#?}"));
    }

    fn both(&mut self, value: &(impl Debug + Display + ?Sized)) {
        self.debug(value);
        self.0.push(format!("{value} {value:#}"));
    }

    fn chain(&mut self, error: &dyn Error) {
        self.both(error);
        if let Some(source) = error.source() {
            self.chain(source);
        }
    }
}

/// Port 0 refuses every connection.
#[tokio::test]
async fn f30_neither_userinfo_nor_query_is_ever_printed() {
    const SECRET: &str = "http://u:s3cret@127.0.0.1:0/p?token=abc";
    let log = Log::listen();
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&events);
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder()
        .origin(SECRET, |circuit| circuit.trip(Trip::consecutive(1)))
        .clock(clock.clone())
        .on_event(move |event| heard.lock().unwrap().push(event.clone()))
        .build()
        .unwrap();
    let client = network(&breaker);

    assert_eq!(call(&client, SECRET).await, Saw::Error);
    let rejected = client.get(SECRET).send().await.unwrap_err();
    let rejection = Rejection::find(&rejected).expect("the refused connection opened the circuit");
    let mut printed = Printed::default();
    printed.chain(&rejected);
    printed.both(rejection);
    printed.both(&breaker.snapshots()[0]);

    clock.advance(Duration::from_secs(30));
    let healthy = chain(&breaker, &Transport::answering(200));
    assert_eq!(call(&healthy, SECRET).await, Saw::Status(200));
    breaker.set_mode(SECRET, CircuitMode::ForcedOpen).unwrap();
    assert_eq!(call(&healthy, SECRET).await, Saw::Rejected);
    assert!(breaker.reset(SECRET));
    assert_eq!(
        log.events(),
        [
            "circuit.opened",
            "circuit.rejected",
            "circuit.half_open",
            "circuit.closed",
            "circuit.mode_changed",
            "circuit.rejected",
            "circuit.reset",
        ]
    );
    printed.debug(&log.lines());
    printed.debug(&*events.lock().unwrap());
    printed.both(&breaker.snapshot(SECRET).unwrap());
    printed.debug(&breaker);
    printed.debug(&CircuitKey::new(SECRET));
    let misset = CircuitBreaker::builder().origin(SECRET, |circuit| circuit.probes(0));
    printed.both(&misset.build().unwrap_err());
    for text in printed.0 {
        // The rest of the URL may be read, or nothing would be proved.
        assert!(text.contains("127.0.0.1") || text.contains("circuit open"), "{text}");
        assert!(!text.contains("s3cret") && !text.contains("token=abc"), "{text}");
    }
}

#[tokio::test]
async fn f31_a_thousand_paths_bring_no_new_text_into_the_log() {
    let log = Log::listen();
    let clock = ManualClock::new();
    let breaker = touchy().clock(clock.clone()).build().unwrap();
    let client = chain(&breaker, &Transport::answering(503));
    let values = || {
        let fields = log.lines().into_iter().flat_map(|line| line.fields);
        let texts = fields.filter(|(_, value)| value.parse::<u64>().is_err());
        texts.collect::<BTreeSet<_>>()
    };
    let mut early = BTreeSet::new();
    for path in 0..1_000 {
        // A probe, then a rejection.
        for _ in 0..2 {
            call(&client, &format!("http://api.example.com/{path}?page={path}")).await;
        }
        clock.advance(Duration::from_secs(30));
        if path == 1 {
            early = values();
        }
    }
    assert_eq!(values(), early);
    assert_eq!(log.of("circuit.rejected").len(), 1_000);
    assert_eq!(keys(&breaker), [KEY]);
}

#[tokio::test]
async fn f32_breakers_share_nothing_and_clones_share_everything() {
    let transport = Transport::answering(503);
    // A clock that stands: two snapshots of one circuit are equal.
    let one = touchy().clock(ManualClock::new()).build().unwrap();
    let client = chain(&one, &transport);
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    assert_eq!(call(&client.clone(), URL).await, Saw::Rejected);
    assert_eq!(call(&chain(&one.clone(), &transport), URL).await, Saw::Rejected);
    assert_eq!(one.clone().snapshots(), one.snapshots());

    let other = touchy().build().unwrap();
    assert_eq!(call(&chain(&other, &transport), URL).await, Saw::Status(503));
    assert_eq!(transport.hits(), 2);
    one.reset_all();
    assert_eq!(state(&other, KEY), CircuitState::Open);
}

/// The scripted transport is such a middleware: what it answers carries no URL of the request, but one that was invented.
#[tokio::test]
async fn f70_an_answer_made_by_an_inner_middleware_is_charged_to_the_origin_that_was_asked() {
    let clock = ManualClock::new();
    let breaker = touchy().clock(clock.clone()).build().unwrap();
    let transport = Transport::answering(200).then([Reply::Status(503)]);
    let client = chain(&breaker, &transport);
    let stub = client.get(URL).send().await.unwrap();
    assert_eq!(stub.url().host_str(), Some("no.url.provided.local"));
    assert_eq!(state(&breaker, KEY), CircuitState::Open);
    clock.advance(Duration::from_secs(30));
    assert_eq!(call(&client, URL).await, Saw::Status(200));
    assert_eq!(state(&breaker, KEY), CircuitState::Closed);
    assert_eq!(keys(&breaker), [KEY]);
}

#[tokio::test]
async fn a_key_is_scheme_host_and_port_in_their_ascii_form() {
    for (url, key) in [
        ("http://[::1]:8080/", "http://[::1]:8080"),
        ("https://[2001:DB8:0::1]/", "https://[2001:db8::1]:443"),
        ("http://127.1/", "http://127.0.0.1:80"),
        ("http://b\u{fc}cher.example/", "http://xn--bcher-kva.example:80"),
        ("http://API.Example.com./", "http://api.example.com:80"),
        ("http://%61pi.example.com/", "http://api.example.com:80"),
    ] {
        let (breaker, transport, client) = touchy_chain(Scope::Origin, 503);
        assert_eq!(call(&client, url).await, Saw::Status(503));
        assert_eq!(keys(&breaker), [key]);
        // The key itself is a URL of its origin, and what it stands for is what the call was charged to.
        for spelling in [url, key] {
            assert_eq!(call(&client, spelling).await, Saw::Rejected, "{spelling}");
            assert_eq!(state(&breaker, spelling), CircuitState::Open);
        }
        assert_eq!(transport.urls(), [Url::parse(url).unwrap().to_string()]);
    }
}

#[tokio::test]
async fn a_url_without_a_host_or_a_known_port_passes_and_leaves_nothing() {
    let (breaker, transport, client) = touchy_chain(Scope::Origin, 503);
    let sent = network(&breaker);
    let urls = ["custom://host/x", "mailto:a@example.com", "data:,x", "file:///etc/hosts"];
    for url in urls {
        for _ in 0..2 {
            let answered = client.execute(get(url)).await;
            assert_eq!(saw(&answered), Saw::Status(503), "{url}");
        }
        let error = sent.execute(get(url)).await.unwrap_err();
        assert!(error.is_builder(), "{url}: {error:?}");
    }
    assert_eq!(transport.hits(), 2 * urls.len());
    assert_eq!(keys(&breaker), [""; 0]);
    // With a port of its own the same scheme has an origin.
    client.execute(get("custom://host:7/x")).await.unwrap();
    assert_eq!(state(&breaker, "custom://host:7"), CircuitState::Open);
}

#[tokio::test]
async fn settings_given_by_any_url_of_an_origin_are_its_own_and_nobody_elses() {
    let breaker = CircuitBreaker::builder()
        .origin("HTTP://u:p@API.example.com.:080/some/path?x=1#y", |circuit| {
            circuit.trip(Trip::consecutive(1))
        })
        .build()
        .unwrap();
    let client = chain(&breaker, &Transport::answering(503));
    for (url, after) in [
        (URL, CircuitState::Open),
        ("https://api.example.com/v1/items", CircuitState::Closed),
        ("http://api.example.com:81/", CircuitState::Closed),
    ] {
        assert_eq!(call(&client, url).await, Saw::Status(503));
        assert_eq!(state(&breaker, url), after, "{url}");
    }
}

#[tokio::test]
async fn what_a_circuit_leaves_unset_it_inherits_whatever_the_order_of_the_calls() {
    type Call = fn(CircuitBreakerBuilder) -> CircuitBreakerBuilder;
    let calls: [Call; 4] = [
        |builder| builder.defaults(|circuit| circuit.open_for(Duration::from_secs(7))),
        |builder| builder.defaults(|circuit| circuit.trip(Trip::consecutive(4))),
        |builder| builder.origin(URL, |circuit| circuit.trip(Trip::consecutive(1))),
        |builder| builder.origin(KEY, |circuit| circuit.mode(CircuitMode::Shadow)),
    ];
    for first in 0..calls.len() {
        for backwards in [false, true] {
            let mut order: Vec<_> = calls.iter().cycle().skip(first).take(calls.len()).collect();
            if backwards {
                order.reverse();
            }
            let breaker = order
                .into_iter()
                .fold(CircuitBreaker::builder(), |builder, call| call(builder))
                .clock(ManualClock::new())
                .build()
                .unwrap();
            let client = chain(&breaker, &Transport::answering(503));
            assert_eq!(call(&client, URL).await, Saw::Status(503));
            let own = breaker.snapshot(KEY).unwrap();
            assert_eq!(own.state, CircuitState::Open);
            assert_eq!(own.mode, CircuitMode::Shadow);
            assert_eq!(own.retry_after, Some(Duration::from_secs(7)));
            for _ in 0..4 {
                assert_eq!(call(&client, "http://other/").await, Saw::Status(503));
            }
            assert_eq!(call(&client, "http://other/").await, Saw::Rejected);
        }
    }
}

#[tokio::test]
async fn of_two_settings_for_one_circuit_the_later_wins() {
    let breaker = CircuitBreaker::builder()
        .defaults(|circuit| circuit.trip(Trip::consecutive(9)))
        .defaults(|circuit| circuit.trip(Trip::consecutive(2)))
        .origin(URL, |circuit| circuit.trip(Trip::consecutive(9)))
        .origin(KEY, |circuit| circuit.trip(Trip::consecutive(1)))
        .build()
        .unwrap();
    let client = chain(&breaker, &Transport::answering(503));
    for (url, failures) in [(URL, 1), ("http://other/", 2)] {
        for _ in 0..failures {
            assert_eq!(call(&client, url).await, Saw::Status(503));
        }
        assert_eq!(call(&client, url).await, Saw::Rejected, "{url}");
    }
}

#[tokio::test]
async fn a_shared_scope_is_one_circuit_for_everything() {
    for (name, key) in [("gateway", "gateway"), ("http://proxy/ignored", "http://proxy:80")] {
        let breaker = CircuitBreaker::builder()
            .scope(Scope::shared(name))
            .circuit(name, |circuit| circuit.trip(Trip::consecutive(2)))
            .build()
            .unwrap();
        let client = chain(&breaker, &Transport::answering(503));
        assert_eq!(call(&client, "http://a/").await, Saw::Status(503));
        assert_eq!(call(&client, "https://b/").await, Saw::Status(503));
        assert_eq!(call(&client, "http://c/").await, Saw::Rejected);
        // What has no origin has this circuit all the same.
        assert_eq!(saw(&client.execute(get("data:,x")).await), Saw::Rejected);
        assert_eq!(keys(&breaker), [key]);
    }
}

/// `Scope::by` the header `x-tenant`.
fn by_tenant() -> Scope {
    Scope::by(|request| {
        let tenant = request.headers().get("x-tenant")?;
        Some(tenant.to_str().ok()?.to_owned())
    })
}

async fn call_as(client: &ClientWithMiddleware, tenant: &str) -> Saw {
    saw(&client.get(URL).header("x-tenant", tenant).send().await)
}

#[tokio::test]
async fn a_scope_of_ones_own_says_for_each_request_which_circuit_it_has() {
    let (breaker, _, client) = touchy_chain(by_tenant(), 503);
    assert_eq!(call_as(&client, "red").await, Saw::Status(503));
    assert_eq!(call_as(&client, "red").await, Saw::Rejected);
    assert_eq!(call_as(&client, "blue").await, Saw::Status(503));
    // A URL means its origin, however it is written.
    assert_eq!(call_as(&client, "https://h/some/path").await, Saw::Status(503));
    assert_eq!(call_as(&client, "https://H:443").await, Saw::Rejected);
    assert_eq!(keys(&breaker), ["blue", "https://h:443", "red"]);
}

#[tokio::test]
async fn a_request_for_which_a_scope_names_no_key_passes_untracked() {
    let log = Log::listen();
    let (breaker, transport, client) = touchy_chain(by_tenant(), 503);
    for _ in 0..2 {
        assert_eq!(call(&client, URL).await, Saw::Status(503));
        for no_key in ["", "https://", "custom://host", "file:///etc/hosts"] {
            assert_eq!(call_as(&client, no_key).await, Saw::Status(503), "{no_key:?}");
        }
    }
    assert_eq!(transport.hits(), 10);
    assert_eq!(keys(&breaker), [""; 0]);
    // `circuit.untracked` is about a full breaker, and this one is not.
    assert_eq!(log.events(), [""; 0]);
}

async fn call_under(client: &ClientWithMiddleware, key: &str) -> Saw {
    saw(&client.get(URL).with_extension(CircuitKey::new(key)).send().await)
}

#[tokio::test]
async fn a_circuit_key_replaces_the_circuit_of_the_scope_for_one_request() {
    let (breaker, _, client) = touchy_chain(Scope::Origin, 503);
    assert_eq!(call_under(&client, "reports").await, Saw::Status(503));
    assert_eq!(call_under(&client, "reports").await, Saw::Rejected);
    assert_eq!(keys(&breaker), ["reports"]);
    assert_eq!(call(&client, URL).await, Saw::Status(503));
    // A name is not the URL that it looks like.
    assert_eq!(call_under(&client, "localhost:3001").await, Saw::Status(503));
    assert_eq!(call(&client, "http://localhost:3001").await, Saw::Status(503));
    assert_eq!(keys(&breaker), [KEY, "http://localhost:3001", "localhost:3001", "reports"]);
}

#[tokio::test]
async fn a_circuit_key_that_is_a_url_means_the_circuit_of_its_origin() {
    let (breaker, _, client) = touchy_chain(Scope::Origin, 503);
    assert_eq!(call_under(&client, "HTTP://h/some/path").await, Saw::Status(503));
    assert_eq!(call(&client, "http://h/").await, Saw::Rejected);
    assert_eq!(keys(&breaker), ["http://h:80"]);
}

#[tokio::test]
async fn a_circuit_key_that_is_no_key_tracks_the_request_nowhere() {
    let (breaker, _, client) = touchy_chain(Scope::shared("gateway"), 503);
    for _ in 0..2 {
        for no_key in ["", "https://", "custom://host"] {
            assert_eq!(call_under(&client, no_key).await, Saw::Status(503), "{no_key:?}");
        }
    }
    assert_eq!(keys(&breaker), [""; 0]);
}

#[tokio::test]
async fn a_named_circuit_has_the_settings_made_for_its_name() {
    let once = |circuit: CircuitSettings| circuit.trip(Trip::consecutive(1));
    let breaker =
        CircuitBreaker::builder().circuit("reports", once).circuit("https://h/any", once).build().unwrap();
    let client = chain(&breaker, &Transport::answering(503));
    for (key, second) in [
        ("reports", Saw::Rejected),
        ("https://h", Saw::Rejected),
        ("report", Saw::Status(503)),
        ("Reports", Saw::Status(503)),
    ] {
        assert_eq!(call_under(&client, key).await, Saw::Status(503));
        assert_eq!(call_under(&client, key).await, second, "{key}");
    }
}

#[tokio::test]
async fn a_bypass_is_seen_by_no_breaker_and_wins_over_a_circuit_key() {
    let breaker = touchy().build().unwrap();
    let outer = touchy().scope(Scope::shared("outer")).build().unwrap();
    let transport = Transport::answering(503);
    let client = ClientBuilder::new(plain_client())
        .with(outer.clone())
        .with(breaker.clone())
        .with(transport.clone())
        .build();
    for key in [KEY, "reports"] {
        breaker.set_mode(key, CircuitMode::ForcedOpen).unwrap();
    }
    outer.set_mode("outer", CircuitMode::ForcedOpen).unwrap();
    let before = (breaker.snapshots(), outer.snapshots());
    for _ in 0..2 {
        let health = client.get(URL).with_extension(BypassCircuit);
        assert_eq!(saw(&health.send().await), Saw::Status(503));
        let report = client.get(URL).with_extension(CircuitKey::new("reports")).with_extension(BypassCircuit);
        assert_eq!(saw(&report.send().await), Saw::Status(503));
    }
    assert_eq!(transport.hits(), 4);
    assert_eq!((breaker.snapshots(), outer.snapshots()), before);
    assert_eq!(call(&client, URL).await, Saw::Rejected);
}

#[tokio::test]
async fn a_text_that_is_no_key_finds_nothing_and_makes_nothing() {
    let breaker = CircuitBreaker::default();
    for (text, rule) in [
        ("", "a name must not be empty"),
        ("https://", "must be a valid URL"),
        ("custom://host", "must have a host and a port"),
        ("file:///etc/hosts", "must have a host and a port"),
    ] {
        let invalid = breaker.set_mode(text, CircuitMode::ForcedOpen).unwrap_err();
        assert!(invalid.to_string().contains(rule), "{text:?}: {invalid}");
        assert_eq!(breaker.snapshot(text), None);
        assert!(!breaker.reset(text));
    }
    assert_eq!(keys(&breaker), [""; 0]);
}

#[tokio::test]
async fn a_name_of_any_length_is_one_circuit_and_no_other_of_that_length() {
    for length in [2, 8, 47, 48, 49, 96, 97, 4_096, 4_097, 100_000] {
        let (breaker, _, client) = touchy_chain(Scope::Origin, 503);
        let name = "n".repeat(length);
        let others = [format!("x{}", &name[1..]), format!("{}x", &name[1..])];
        assert_eq!(call_under(&client, &name).await, Saw::Status(503), "{length}");
        assert_eq!(call_under(&client, &name).await, Saw::Rejected, "{length}");
        assert_eq!(state(&breaker, &name), CircuitState::Open, "{length}");
        for other in others {
            assert!(breaker.snapshot(&other).is_none(), "{length}");
            assert_eq!(call_under(&client, &other).await, Saw::Status(503), "{length}");
        }
        assert_eq!(breaker.snapshots().len(), 3, "{length}");
    }
}
