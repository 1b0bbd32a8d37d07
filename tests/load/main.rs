//! `buzz-load` as a whole process, against a toy relay: right answers pass and are counted, wrong
//! ones end with exit code 1, and a stall cannot hide from the open loop.

mod toy;

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use toy::Fault;

fn run(relay: SocketAddr, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_buzz-load"))
        .args(words)
        .args(["--url", &format!("ws://{relay}/"), "--quiet"])
        .output()
        .unwrap()
}

/// The report of a run that ends with `code`.
fn report(relay: SocketAddr, code: i32, words: &[&str]) -> Value {
    let output = run(relay, words);
    let error = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{words:?}: {error} {text}"
    );
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{words:?}: {error} {text}"))
}

fn operations(report: &Value) -> u64 {
    report["sections"][0]["operations"].as_u64().unwrap()
}

fn faults<'a>(report: &'a Value, kind: &str) -> &'a Value {
    &report["sections"][0]["faults"][kind]
}

const STORED: [&str; 2] = ["--stored", "400"];

#[test]
fn right_answers_are_counted() {
    let relay = toy::start(Fault::None);
    let seeded = report(relay, 0, &[&["seed"][..], &STORED].concat());
    assert_eq!(operations(&seeded), 400);
    for by in ["id", "author-kind", "feed", "tag-e", "tag-p", "tag-t"] {
        let words = [
            "query", "--by", by, "--count", "60", "--warmup", "0", "--window", "2", "--limit", "7",
        ];
        let found = report(relay, 0, &[&words[..], &STORED].concat());
        assert_eq!(operations(&found), 60, "{by}");
        assert_eq!(found["sections"][0]["latency_us"]["count"], 60, "{by}");
        let events = found["sections"][0]["events_per_request"].as_f64().unwrap();
        assert!(
            if by == "id" {
                events == 1.0
            } else {
                events > 1.0
            },
            "{by}: {events}"
        );
    }
    let published = report(
        relay,
        0,
        &[
            "publish",
            "--connections",
            "3",
            "--count",
            "100",
            "--warmup",
            "0",
        ],
    );
    assert_eq!(operations(&published), 100);
    let fanned = report(
        relay,
        0,
        &[
            "fanout",
            "--subscribers",
            "7",
            "--burst",
            "3",
            "--count",
            "5",
            "--warmup",
            "0",
        ],
    );
    assert_eq!(operations(&fanned), 7 * 3 * 5);
    assert_eq!(fanned["sections"][0]["ok_us"]["count"], 3 * 5);
    for words in [
        &["login", "--count", "50", "--warmup", "0"][..],
        &["login", "--count", "50", "--fresh", "--warmup", "0"],
    ] {
        let found = report(relay, 0, words);
        assert_eq!(operations(&found), 50, "{words:?}");
    }
    let accepted = report(
        relay,
        0,
        &["accept", "--count", "100", "--warmup", "0", "--close-frame"],
    );
    assert_eq!(operations(&accepted), 100);
    // What the warm-up did is not in the figures; it ends between two looks at the sockets.
    let warmed = report(
        relay,
        0,
        &[
            "publish",
            "--connections",
            "1",
            "--window",
            "1",
            "--count",
            "100",
            "--warmup",
            "10",
        ],
    );
    assert_eq!(operations(&warmed), 100);
    let pinged = report(relay, 0, &["ping", "--rate", "1000", "--count", "50"]);
    assert_eq!(operations(&pinged), 50);
    let scanned = report(relay, 0, &["scan", "--window", "2", "--count", "20"]);
    assert_eq!(operations(&scanned), 20);
    assert!(scanned["sections"][0]["counted"].as_u64() >= Some(100));
    // One that counts too few is found out.
    let short = toy::start(Fault::ShortPages);
    report(short, 1, &["scan", "--count", "5"]);
}

#[test]
fn a_mixed_run_reports_each_part() {
    let relay = toy::start(Fault::None);
    report(relay, 0, &[&["seed"][..], &STORED].concat());
    let rates = [
        "--publish-rate",
        "50",
        "--query-rate",
        "50",
        "--fanout-rate",
        "20",
        "--subscribers",
        "5",
    ];
    let words = [&["mixed", "--seconds", "0.5"][..], &rates, &STORED].concat();
    let found = report(relay, 0, &words);
    let names: Vec<&str> = found["sections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["workload"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["publish", "query", "fanout", "ping"]);
    for (section, expected) in [(0, 25), (1, 25), (2, 50), (3, 25)] {
        assert_eq!(
            found["sections"][section]["operations"], expected,
            "{}",
            names[section]
        );
    }
}

#[test]
fn the_relays_own_use_is_reported() {
    // The toy lives in this process.
    let pid = std::process::id().to_string();
    let relay = toy::start(Fault::None);
    let words = [
        "publish",
        "--count",
        "100",
        "--connections",
        "2",
        "--pid",
        &pid,
        "--floor",
    ];
    let found = report(relay, 0, &words);
    assert!(found["relay"]["cpu_us_per_operation"].as_f64().unwrap() > 0.0);
    assert!(found["floor"]["ratio"].as_f64().unwrap() > 0.0);
    assert_eq!(found["floor"]["name"], "signature");
    let dir = tempfile::tempdir().unwrap();
    let mut alone = words.to_vec();
    alone[4] = "1";
    alone.extend(["--window", "1", "--dir", dir.path().to_str().unwrap()]);
    let found = report(relay, 0, &alone);
    assert_eq!(found["floor"]["name"], "commit_lmdb");
    assert!(found["floor"]["rate_ratio"].as_f64().unwrap() > 0.0);
    let words = [
        "idle",
        "--connections",
        "50",
        "--subscribed",
        "--settle-seconds",
        "0",
        "--pid",
        &pid,
    ];
    let found = report(relay, 0, &words);
    assert_eq!(operations(&found), 50);
    assert!(
        found["sections"][0]["anonymous_bytes_held"]
            .as_u64()
            .unwrap()
            > 0
    );
}

/// 400 requests at 200 a second; the relay stops for 600 ms. 120 requests are due meanwhile, and
/// each waits for what is left of it: more than a tenth of all users wait more than 300 ms, though
/// only the few in flight are slow to be served.
#[test]
fn the_open_loop_shows_a_stall() {
    let relay = toy::start(Fault::Stall(Duration::from_millis(600)));
    let words = [
        "publish",
        "--rate",
        "200",
        "--count",
        "400",
        "--warmup",
        "0",
        "--connections",
        "1",
        "--window",
        "1",
    ];
    let found = report(relay, 0, &words);
    let at = |name: &str| found["sections"][0][name]["p90"].as_f64().unwrap();
    assert_eq!(operations(&found), 400);
    assert!(at("latency_us") >= 290_000.0, "{found}");
    assert!(at("service_us") < at("latency_us"), "{found}");
}

#[test]
fn wrong_pages_are_faults() {
    for (fault, words, reason) in [
        (
            Fault::ShortPages,
            &["query", "--by", "tag-p"][..],
            "another count than expected",
        ),
        (
            Fault::OldestFirst,
            &["query", "--by", "tag-p"],
            "another event than expected",
        ),
        (
            Fault::OldestFirst,
            &["query", "--by", "tag-p", "--unchecked"],
            "events out of order",
        ),
    ] {
        let relay = toy::start(fault);
        report(relay, 0, &[&["seed"][..], &STORED].concat());
        let tail = ["--count", "20", "--warmup", "0", "--limit", "7"];
        let found = report(relay, 1, &[words, &STORED, &tail].concat());
        assert_eq!(faults(&found, "wrong"), 20, "{fault:?}: {found}");
        assert_eq!(faults(&found, "reasons")[reason], 20, "{fault:?}: {found}");
    }
}

#[test]
fn refused_and_forgotten_events_are_faults() {
    let words = [
        "publish",
        "--count",
        "100",
        "--warmup",
        "0",
        "--connections",
        "2",
        "--drain-seconds",
        "1",
    ];
    let found = report(toy::start(Fault::Refuses), 1, &words);
    assert_eq!(faults(&found, "wrong"), 10);
    assert_eq!(
        faults(&found, "reasons")["refused: blocked: \\\"no\\\""],
        10
    );

    let found = report(toy::start(Fault::Silent), 1, &words);
    assert_eq!(faults(&found, "unanswered"), 10);
    assert_eq!(
        found["sections"][0]["latency_us"]["count"], 100,
        "the unanswered have a latency too"
    );

    let found = report(
        toy::start(Fault::Breaks),
        1,
        &["publish", "--count", "200", "--connections", "1"],
    );
    assert_eq!(faults(&found, "connection"), 1);
    assert!(faults(&found, "unanswered").as_u64().unwrap() > 0);
}

#[test]
fn an_event_delivered_twice_is_a_fault() {
    let words = [
        "fanout",
        "--subscribers",
        "3",
        "--count",
        "5",
        "--warmup",
        "0",
    ];
    let found = report(toy::start(Fault::DeliversTwice), 1, &words);
    assert_eq!(operations(&found), 15);
    let twice = faults(&found, "reasons")["an event twice"]
        .as_u64()
        .unwrap();
    assert!(
        (12..=15).contains(&twice),
        "the last ones may come after the end: {found}"
    );
}

#[test]
fn a_relay_that_is_not_there_is_a_failure() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let found = report(
        nobody,
        1,
        &["publish", "--count", "10", "--connections", "2"],
    );
    assert_eq!(faults(&found, "connection"), 2);
    let output = run(nobody, &["publish", "--rate", "never"]);
    assert_eq!(output.status.code(), Some(64));
    assert_eq!(
        run(nobody, &["publish", "--pid", "1073741808"])
            .status
            .code(),
        Some(1)
    );
}

#[test]
fn a_file_of_events_can_be_made_published_and_asked_about() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("events.jsonl");
    let file = file.to_str().unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_buzz-load"))
        .args(["events", "--stored", "100", "--seed", "5", "--out", file])
        .status();
    assert!(status.unwrap().success());
    let relay = toy::start(Fault::None);
    let found = report(relay, 0, &["publish", "--file", file, "--warmup", "0"]);
    assert_eq!(operations(&found), 100);
    let found = report(
        relay,
        0,
        &[
            "query", "--file", file, "--by", "feed", "--count", "30", "--warmup", "0",
        ],
    );
    assert_eq!(operations(&found), 30);
}
