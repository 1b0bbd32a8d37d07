//! The settings file, and what can be changed while the relay runs: the real process, its file read
//! at a start and again, by SIGHUP and by command.

#[path = "../common/mod.rs"]
mod common;

mod commands;
mod file;
mod reread;
mod signals;

use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use common::raw::{self, Raw};
use common::{Launch, Relay, until};

/// A word that is in every secret.
const HUSH: &str = "hush-hush";

/// What the log says when the file was taken, and when it was not.
const TAKEN: &str = "the settings were read again";
const REFUSED: &str = "the settings are wrong, and all old ones stay";

/// A settings file.
struct File {
    folder: TempDir,
}

impl File {
    fn new(text: &str) -> File {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = File { folder };
        file.write(text);
        file
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("relay.conf")
    }

    /// The path as text.
    fn shown(&self) -> String {
        self.path().display().to_string()
    }

    /// Replaces it, so that who reads meanwhile sees the old or the new one.
    fn write(&self, text: &str) {
        let next = self.folder.path().join("next");
        std::fs::write(&next, text).expect("a file");
        std::fs::rename(next, self.path()).expect("a file");
    }

    fn launch(&self) -> Launch {
        Launch::new().set("BUZZ_CONFIG", self.shown())
    }

    /// Writes it and lets the relay read it again. Returns the lines that it logs of that.
    #[track_caller]
    fn reread(&self, relay: &Relay, text: &str) -> Vec<Value> {
        self.write(text);
        hang_up(relay)
    }
}

/// SIGHUP, and the lines that the relay logs of it, with the one that sums it up.
#[track_caller]
fn hang_up(relay: &Relay) -> Vec<Value> {
    let before = lines(&relay.output()).len();
    relay.signal(Signal::HUP);
    until("the settings are read again", || {
        let new = lines(&relay.output()).split_off(before);
        let last = |line: &Value| says(line, TAKEN) || says(line, REFUSED);
        new.iter().any(last).then_some(new)
    })
}

fn lines(output: &str) -> Vec<Value> {
    let lines = output.lines();
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

fn says(line: &Value, words: &str) -> bool {
    let message = line["message"].as_str();
    message.is_some_and(|message| message.contains(words))
}

/// The settings that lines call changed: name, old, new.
fn changed(lines: &[Value]) -> Vec<[&str; 3]> {
    let changed = lines
        .iter()
        .filter(|line| says(line, "a setting has changed"));
    let text = |line: &'_ Value, name: &str| -> Option<()> { line[name].as_str().map(drop) };
    changed
        .map(|line| {
            ["setting", "old", "new"].map(|name| {
                assert!(text(line, name).is_some(), "{line}");
                line[name].as_str().unwrap_or_default()
            })
        })
        .collect()
}

/// The settings that lines name as waiting for a restart.
fn need_restart(lines: &[Value]) -> Vec<&str> {
    let words = "a changed setting needs a restart";
    let named = lines.iter().filter(|line| says(line, words));
    named.filter_map(|line| line["setting"].as_str()).collect()
}

/// The information document.
fn info(relay: &Relay) -> Value {
    raw::get(relay.address, "/", &[("Accept", "application/nostr+json")]).json()
}

/// An upgrade, and its status.
fn upgrade(relay: &Relay, fields: &[(&str, &str)]) -> (Raw, u16) {
    let mut raw = Raw::connect(relay.address);
    raw.send(raw::upgrade(fields));
    let answer = raw.answer_head();
    (raw, answer.status)
}
