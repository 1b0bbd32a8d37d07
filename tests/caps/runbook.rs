//! The runbook, followed line by line: its commands are run as they stand there, in their order, its
//! flags are set as it says, and what it shows must come out.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::launchdarkly::Fake;
use crate::support::{AUTH_FLAG, HISTORY_FLAG, agree, of_launchdarkly};

const RUNBOOK: &str = include_str!("../../docs/operator-concurrency-caps.md");

/// What a reader of the runbook does.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Step {
    /// Sets a flag.
    Set(String, Value),
    /// Runs commands, and expects this output where one is shown.
    Run(String, Option<String>),
}

/// "Set `flag` to `value`." on a line of its own, blocks of `sh`, and blocks of `text` after them.
fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(kind) = line.strip_prefix("```") {
            let block: String = lines
                .by_ref()
                .take_while(|line| *line != "```")
                .map(|line| format!("{line}\n"))
                .collect();
            match (kind, steps.last_mut()) {
                ("sh", _) => steps.push(Step::Run(block, None)),
                ("text", Some(Step::Run(_, shown @ None))) => *shown = Some(block),
                ("", _) => {}
                _ => panic!("a block of {kind:?} out of place: {block}"),
            }
        } else if let Some(rest) = line.strip_prefix("Set `") {
            let parts: Vec<&str> = rest.split('`').collect();
            let [flag, " to ", value, "."] = parts[..] else {
                panic!("not a step: {line}");
            };
            let value = serde_json::from_str(value).expect("a value");
            steps.push(Step::Set(flag.to_owned(), value));
        }
    }
    steps
}

#[test]
fn every_command_of_the_runbook_runs_and_shows_what_it_says() {
    let mut tools = Command::new("sh");
    let tools = tools.args(["-c", "command -v curl"]).output();
    if !tools.is_ok_and(|output| output.status.success()) {
        return crate::common::skip("the runbook", "no curl here");
    }
    let fake = Fake::start(&[(AUTH_FLAG, 0.into()), (HISTORY_FLAG, 0.into())]);
    let launch = of_launchdarkly(&fake);
    let relay = launch.start();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let (mut setup, mut commands, mut shown) = (String::new(), 0, 0);
    let over = AtomicBool::new(false);
    let write_log = || {
        let next = folder.path().join("next");
        std::fs::write(&next, relay.output()).expect("a file");
        std::fs::rename(next, &log).expect("a file");
    };
    write_log();
    std::thread::scope(|scope| {
        // The relay's log as a file that grows.
        let _over = Over(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                write_log();
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        for step in steps(RUNBOOK) {
            match step {
                Step::Set(flag, value) => fake.set(&flag, value),
                Step::Run(block, None) if setup.is_empty() => setup = block,
                Step::Run(block, expected) => {
                    commands += 1;
                    let said = sh(&relay, &format!("{setup}\n{block}"), &log);
                    if let Some(expected) = expected {
                        shown += 1;
                        assert_eq!(said, expected, "{block}");
                    }
                }
            }
        }
    });
    // A runbook whose blocks are not found would pass everything.
    assert!(commands >= 12 && shown == commands, "{commands} {shown}");
    agree(&relay);
}

/// Lets the log's thread end, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs commands as a person would who has said where the relay is.
fn sh(relay: &crate::common::Relay, commands: &str, log: &Path) -> String {
    let output = Command::new("sh")
        .args(["-eu", "-c", commands])
        .env("HEALTH", format!("http://{}", relay.health))
        .env("METRICS", format!("http://{}", relay.metrics))
        .env("LOG", format!("cat {}", log.display()))
        .env("no_proxy", "*")
        .output()
        .expect("a shell");
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{commands}\n{said}\n{errors}");
    said
}

#[test]
fn every_series_and_setting_that_the_runbook_names_exists() {
    let relay = of_launchdarkly(&Fake::start(&[]))
        .set("BUZZ_REMEMBER_CAPS", "true")
        .start();
    let metrics = relay.metrics_text();
    let words = RUNBOOK.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let mut seen = 0;
    for word in words.filter(|word| word.starts_with("buzz_")) {
        assert!(metrics.contains(word), "there is no {word}");
        seen += 1;
    }
    let help = crate::common::Launch::new().arg("--help").run().stdout;
    let words = RUNBOOK.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    for word in words.filter(|word| word.starts_with("BUZZ_")) {
        let flag = [
            crate::support::AUTH_VARIABLE,
            crate::support::HISTORY_VARIABLE,
        ];
        assert!(
            help.contains(word) || flag.contains(&word),
            "there is no {word}"
        );
        seen += 1;
    }
    assert!(seen > 30, "{seen}");
}
