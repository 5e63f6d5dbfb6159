//! How many instructions the paths of a call take, counted by callgrind: unlike times, the same on a busy machine.
//!
//! `cargo bench --all-features --bench instructions` fails where a path differs by more than 3 % from the table in
//! `instructions.md`; with `-- --update` it writes that table. Each path runs in a process of its own, once with
//! few calls and once with many: the difference is free of what comes before the first call. A layer counts by
//! what it adds to a chain without one.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a bench fails so")]

mod support;

use reqwest_middleware::Middleware;
use reqwest_resilience::{
    Bulkhead, CircuitBreaker, Retry,
    internals::{LoneBudget, LoneCircuit, call},
};
use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};
use std::{
    env, fs,
    hint::black_box,
    io,
    process::{Command, ExitCode},
    sync::Arc,
};
use support::{Floor, Noop, chain, open_breaker, requests, send, success};

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.md");
/// By what share a path may differ from the table.
const TOLERANCE: f64 = 0.03;
/// Tells a process that it is one of those that are counted.
const COUNTED: &str = "--counted";
const FEW: u32 = 2_000;
const MANY: u32 = 12_000;

const PREFACE: &str = "\
# Instructions per call

Counted by callgrind; `cargo bench --all-features --bench instructions` compares and fails beyond 3 %, with
`-- --update` it writes this file. A layer counts by what it adds to the chain without one. The figures hold for one
compiler, one set of dependencies, and a processor for which libc makes the same choices. Benches are built with tokio's
`test-util`, where a deposit reads the dearer clock.
";

/// The name of a path, and what goes it so many times.
type Path = (&'static str, fn(u32));

const ALONE: [Path; 6] = [
    ("one closed circuit: admit, settle", |calls| {
        let circuit = LoneCircuit::closed();
        repeat(calls, || assert!(black_box(&circuit).admit_and_succeed()));
    }),
    ("plain hashbrown lookup of a known origin", |calls| {
        let requests = requests(1);
        let floor = Floor::of(&requests);
        repeat(calls, || {
            black_box(floor.look_up(black_box(&requests[0])).unwrap());
        });
    }),
    ("known origin: look up, admit, settle", |calls| {
        let (breaker, request, answer) = (CircuitBreaker::default(), &requests(1)[0], success());
        repeat(calls, || call(&breaker, black_box(request), &answer).unwrap());
    }),
    ("open circuit: look up, make the error, drop it", |calls| {
        let requests = requests(1);
        let (breaker, answer) = (open_breaker(&requests), success());
        repeat(calls, || drop(call(&breaker, black_box(&requests[0]), &answer).unwrap_err()));
    }),
    ("retry budget: deposit", |calls| {
        let budget = LoneBudget::new();
        repeat(calls, || black_box(&budget).deposit());
    }),
    BARE,
];
const BARE: Path = ("chain without a layer", |calls| through(&[], calls));
const LAYERS: [Path; 5] = [
    ("+ a layer that does nothing", |calls| through(&[Arc::new(Noop)], calls)),
    ("+ `CircuitBreaker`", |calls| through(&[Arc::new(CircuitBreaker::default())], calls)),
    ("+ `Bulkhead`, a slot is free", |calls| {
        through(&[Arc::new(Bulkhead::per_origin(64).unwrap())], calls);
    }),
    ("+ `Retry`, first attempt succeeds", |calls| through(&[Arc::new(Retry::default())], calls)),
    ("+ `reqwest-retry`, first attempt succeeds", |calls| {
        let policy = ExponentialBackoff::builder().build_with_max_retries(2);
        through(&[Arc::new(RetryTransientMiddleware::new_with_policy(policy))], calls);
    }),
];

fn repeat(calls: u32, mut call: impl FnMut()) {
    (0..calls).for_each(|_| call());
}

fn through(layers: &[Arc<dyn Middleware>], calls: u32) {
    let (client, request) = (chain(layers), &requests(1)[0]);
    repeat(calls, || drop(black_box(send(&client, black_box(request)))));
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let mut paths = ALONE.iter().chain(&LAYERS);
    if has(COUNTED) {
        let (_, go) = paths.find(|(name, _)| *name == arguments[1]).unwrap();
        go(arguments[2].parse().unwrap());
        return ExitCode::SUCCESS;
    }
    // Cargo says so when it measures. In a test, that each path can be gone is all there is to see.
    if !has("--bench") {
        paths.for_each(|(_, go)| go(1));
        return ExitCode::SUCCESS;
    }
    match measure() {
        Ok(rows) if has("--update") => {
            fs::write(TABLE, table(&rows)).unwrap();
            ExitCode::SUCCESS
        }
        Ok(rows) => compare(&fs::read_to_string(TABLE).unwrap_or_default(), &rows),
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

/// A path and its instructions per call.
type Row = (&'static str, f64);

fn measure() -> Result<Vec<Row>, String> {
    let bare = per_call(BARE.0)?;
    let alone = ALONE.iter().map(|(name, _)| Ok((*name, per_call(name)?)));
    let layers = LAYERS.iter().map(|(name, _)| Ok((*name, per_call(name)? - bare)));
    alone.chain(layers).collect()
}

fn per_call(path: &str) -> Result<f64, String> {
    Ok(f64::from(count(path, MANY)? - count(path, FEW)?) / f64::from(MANY - FEW))
}

/// The instructions of a whole process that goes `path` so many times.
fn count(path: &str, calls: u32) -> Result<u32, String> {
    let output = Command::new("valgrind")
        // With it set, making an error would be making a backtrace.
        .env("RUST_BACKTRACE", "0")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe().unwrap())
        .args([COUNTED, path, &calls.to_string()])
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                "callgrind counts the instructions: install the package `valgrind` of your system.".to_owned()
            }
            _ => format!("valgrind cannot be run: {error}"),
        })?;
    let said = String::from_utf8_lossy(&output.stderr);
    let total = said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    total.filter(|_| output.status.success()).ok_or_else(|| format!("{path}: valgrind failed\n{said}"))
}

/// Fails where a path differs from the table, and says which, from what to what.
fn compare(table: &str, rows: &[Row]) -> ExitCode {
    let mut verdict = ExitCode::SUCCESS;
    for (path, now) in rows {
        let Some(before) = recorded(table, path) else {
            eprintln!("DIFFERS  {path}: not in the table, now {now:.1}");
            verdict = ExitCode::FAILURE;
            continue;
        };
        let share = now / before - 1.0;
        if share.abs() <= TOLERANCE {
            println!("ok       {path}: {before:.1} before, {now:.1} now");
        } else {
            eprintln!("DIFFERS  {path}: {before:.1} before, {now:.1} now ({:+.1} %)", share * 100.0);
            verdict = ExitCode::FAILURE;
        }
    }
    if verdict != ExitCode::SUCCESS {
        if !table.contains(&taken_with()) {
            eprintln!(
                "The table has another origin, which may be all there is to it. Here: {}",
                taken_with()
            );
        }
        eprintln!("If the change is meant: cargo bench --all-features --bench instructions -- --update");
    }
    verdict
}

/// What the table says of `path`.
fn recorded(table: &str, path: &str) -> Option<f64> {
    let row = table.lines().find_map(|line| line.strip_prefix(&format!("| {path} |")))?;
    row.trim_matches([' ', '|']).parse().ok()
}

/// The whole of `instructions.md`.
fn table(rows: &[Row]) -> String {
    let lines: Vec<_> = rows.iter().map(|(path, count)| format!("| {path} | {count:.1} |\n")).collect();
    let head = "| path | instructions per call |\n|---|---:|";
    format!("{PREFACE}\n{}\n\n{head}\n{}", taken_with(), lines.concat())
}

/// What the figures depend on beside the code.
fn taken_with() -> String {
    let output = Command::new("rustc").arg("--version").output().unwrap();
    format!("Taken with {} on {}.", String::from_utf8_lossy(&output.stdout).trim(), env::consts::ARCH)
}
