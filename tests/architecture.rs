//! The house of the crate: who may depend on whom, and who may name what.
//!
//! ```text
//!   shells     breaker retry bulkhead deadline …         async; `impl Middleware`
//!      ▼
//!   services   registry scope key verdict error event …  no async
//!      ▼
//!   machine    circuit cell window …                     pure: no async, clock, http, tracing
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails so"
)]

use std::{collections::BTreeMap, fs, path::Path};

/// The modules of each floor, lowest first. A module depends on its own floor and on lower ones.
const FLOORS: [&[&str]; 4] = [
    &["sync", "human", "machine"],
    &[
        "body",
        "clock",
        "error",
        "event",
        "key",
        "origin",
        "queue_time",
        "registry",
        "retry_after",
        "scope",
        "throttles",
        "verdict",
    ],
    &["breaker", "bulkhead", "deadline", "fallback", "preset", "retry"],
    &["guide", "internals"],
];

/// What only some files may name: the word, and the files, by the beginning of their path.
const RESERVED: [(&str, &[&str]); 8] = [
    ("tracing::", &["event.rs"]),
    ("index::", &["registry.rs"]),
    ("label::", &["registry.rs"]),
    ("arena::", &["registry.rs", "registry/index.rs"]),
    (
        "impl Middleware for",
        &[
            "breaker/middleware.rs",
            "bulkhead/middleware.rs",
            "retry/middleware.rs",
            "deadline.rs",
            "fallback.rs",
        ],
    ),
    ("async fn", &["breaker/middleware.rs", "bulkhead/", "retry/", "deadline.rs", "fallback.rs"]),
    ("HttpBody for", &["body.rs"]),
    ("SystemTime", &["retry_after.rs", "breaker/permit.rs", "retry.rs", "retry/series.rs"]),
];

/// What the machine must not name: it is told the time, and knows of no runtime and no protocol.
const OUTSIDE: [&str; 8] =
    ["async", ".await", "tokio", "reqwest::", "http::", "tracing", "Instant::now", "fastrand"];

/// The code of every source file by its path below `src`, without comments, unit tests and the models.
fn sources() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.to_string_lossy().contains("models") {
                files.insert(below(&root, &path), code(&fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files
}

fn below(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/")
}

fn code(source: &str) -> String {
    let production = source.split("#[cfg(test)]").next().unwrap_or_default();
    let lines: Vec<&str> = production.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    lines.join("\n")
}

/// The module at the top of the tree that a file belongs to.
fn module(path: &str) -> &str {
    path.split(['/', '.']).next().unwrap()
}

fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|modules| modules.contains(&module))
}

/// The top modules of this crate that `code` names, in `crate::a` and in `crate::{a, b::c}`.
fn named(code: &str) -> Vec<String> {
    let mut modules = Vec::new();
    for (at, prefix) in code.match_indices("crate::") {
        let rest = &code[at + prefix.len()..];
        if let Some(group) = rest.strip_prefix('{') {
            modules.extend(first_words(group));
        } else {
            modules.extend(word(rest));
        }
    }
    modules
}

/// The word that each item of a brace group begins with; nested groups are skipped.
fn first_words(group: &str) -> Vec<String> {
    let (mut depth, mut item, mut words) = (0, String::new(), Vec::new());
    for character in group.chars() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => words.extend(word(&std::mem::take(&mut item))),
            _ if depth == 0 => item.push(character),
            _ => {}
        }
    }
    words.extend(word(&item));
    words
}

fn word(text: &str) -> Option<String> {
    let word: String = text
        .trim_start()
        .chars()
        .take_while(|character| character.is_alphanumeric() || *character == '_')
        .collect();
    (!word.is_empty()).then_some(word)
}

#[test]
fn every_module_has_a_floor() {
    for path in sources().keys().filter(|path| *path != "lib.rs") {
        assert!(floor(module(path)).is_some(), "{path} is on no floor: add it to FLOORS");
    }
}

#[test]
fn dependencies_point_downward_only() {
    let sources = sources();
    let mut edges = 0;
    for (path, code) in sources.iter().filter(|(path, _)| *path != "lib.rs") {
        for module_named in named(code) {
            let Some(theirs) = floor(&module_named) else {
                continue;
            };
            edges += 1;
            assert!(
                theirs <= floor(module(path)).unwrap(),
                "{path} names `{module_named}`, which is on a higher floor"
            );
        }
    }
    assert!(
        sources.len() < edges,
        "hardly a dependency was seen ({edges}): does `named` still read the code?"
    );
}

#[test]
fn the_machine_is_pure() {
    for (path, code) in sources().iter().filter(|(path, _)| module(path) == "machine") {
        for word in OUTSIDE {
            assert!(!code.contains(word), "{path} names `{word}`");
        }
    }
}

#[test]
fn what_is_reserved_is_named_where_it_belongs() {
    let sources = sources();
    for (word, owners) in RESERVED {
        let users: Vec<&str> =
            sources.iter().filter(|(_, code)| code.contains(word)).map(|(path, _)| path.as_str()).collect();
        assert!(!users.is_empty(), "nobody names `{word}`: is the rule still true?");
        for path in users {
            assert!(owners.iter().any(|owner| path.starts_with(owner)), "{path} names `{word}`");
        }
    }
}

#[test]
fn the_root_of_the_crate_has_no_logic() {
    let sources = sources();
    for word in ["fn ", "impl ", "struct ", "enum "] {
        assert!(!sources["lib.rs"].contains(word), "lib.rs has a `{word}`");
    }
}
