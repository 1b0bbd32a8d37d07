//! The drain, as clients, operators and supervisors see it: the real process, real sockets, and for
//! every way in which it can go wrong the exit code, the time, and the close that each client saw.
//!
//! Lower bounds of times are exact; upper ones leave room for a busy machine.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/launchdarkly.rs"]
mod launchdarkly;

mod clients;
mod commands;
mod signals;
mod stuck;
mod window;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use common::raw::Raw;
use common::{Exit, Launch, Relay, WAIT};
use rustix::process::Signal;

/// What a client that was told to leave has seen.
const RESTART: (Option<u16>, &str) = (Some(1012), "relay restarting");

/// A relay on so many shards that closes at once when told to.
fn launch(shards: usize) -> Launch {
    Launch::new().set("BUZZ_SHARDS", shards)
}

/// The line that sums the drain up.
#[track_caller]
fn summary(exit: &Exit) -> Value {
    let line = lines(exit).find(|line| line["message"] == "every connection has ended");
    line.unwrap_or_else(|| panic!("no summary: {exit:#?}"))
}

fn lines(exit: &Exit) -> impl Iterator<Item = Value> + '_ {
    let lines = exit.stderr.lines();
    lines.filter_map(|line| serde_json::from_str(line).ok())
}

/// How the closes came out: acknowledged, cancelled, gone.
#[track_caller]
fn counts(exit: &Exit) -> (u64, u64, u64) {
    let summary = summary(exit);
    let count = |name: &str| summary[name].as_u64().expect("a number");
    let counts = (count("acknowledged"), count("cancelled"), count("gone"));
    let all = counts.0 + counts.1 + counts.2;
    assert_eq!(count("connections"), all, "each is settled once: {summary}");
    counts
}

/// SIGTERM, and the moment.
fn terminate(relay: &Relay) -> Instant {
    let now = Instant::now();
    relay.signal(Signal::TERM);
    now
}

/// Reads to the close, which must be the drain's, and answers it; then the end without a reset.
#[track_caller]
fn expect_restart(raw: &mut Raw) -> Vec<String> {
    let (messages, code, reason) = raw.messages_until_close();
    assert_eq!((code, reason.as_str()), RESTART);
    messages
}

/// The relay's end in order.
#[track_caller]
fn ends_clean(relay: &mut Relay) -> Exit {
    let exit = relay.wait_exit(WAIT);
    exit.expect(0, &["the relay has stopped"]);
    exit
}

/// A file of hooks (delays at chosen places) in a folder that goes with it.
struct Hooks {
    folder: tempfile::TempDir,
}

impl Hooks {
    fn new(text: &str) -> Hooks {
        let folder = tempfile::tempdir().expect("a folder");
        let hooks = Hooks { folder };
        fs::write(hooks.file(), text).expect("a file");
        hooks
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("hooks")
    }

    fn on(&self, launch: Launch) -> Launch {
        launch.set("BUZZ_HOOKS_FILE", self.file().display())
    }
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
