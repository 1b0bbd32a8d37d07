//! `buzz-uring access`: the command line's side of the access lists.
//!
//! A running relay is asked over its control socket; else the store is opened here, see `reach`.

use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::{Edit, Edited, Entry, PATH, Page};
use crate::cli::{Access, AccessVerb};
use crate::config::Config;
use crate::control::reach::{Missing, ReachError, Way, reach};
use crate::control::socket;
use crate::error::{EXIT_CLEAN, EXIT_CONFIG, EXIT_FAILED};
use crate::limits::{ACCESS_ANSWER_WAIT, ACCESS_KEYS_MAX, CONTROL_ANSWER_BYTES_MAX};
use crate::nostr::key::{KeyError, PublicKey};
use crate::store::StoreError;
use crate::store::embedded::List;

/// Why nothing, or not all, was done.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// What was typed is no key. Nothing was changed.
    #[error("key {place}: {error}")]
    Key {
        /// Which argument, from 1.
        place: usize,
        /// What is wrong with it.
        error: KeyError,
    },
    /// Neither a relay nor a store.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// The control socket.
    #[error("{path}: {error}{}", advice(error))]
    Socket {
        /// The socket.
        path: String,
        /// What the kernel said.
        error: io::Error,
    },
    /// The relay answered something else.
    #[error("the relay refused: {0}")]
    Refused(String),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Standard output.
    #[error("cannot print: {0}")]
    Print(io::Error),
}

impl AccessError {
    /// The exit code that tells a bad command from a command that failed.
    pub fn exit_code(&self) -> i32 {
        match self {
            AccessError::Key { .. } => EXIT_CONFIG,
            _ => EXIT_FAILED,
        }
    }
}

/// Shows or edits the lists, and prints what there is or what was changed. Returns the exit code.
///
/// # Errors
///
/// What to print. Of many keys some may have been changed; those were printed.
pub fn run(config: &Config, asked: &Access) -> Result<i32, AccessError> {
    let printed = match asked {
        Access::List { json } => list(&reach(config, Missing::Refuse)?, *json),
        Access::Edit { verb, keys } => {
            let keys = parse(keys)?;
            edit(&reach(config, Missing::Refuse)?, *verb, &keys)
        }
    };
    match printed {
        // Whoever read our output has seen enough.
        Err(AccessError::Print(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        other => other?,
    }
    Ok(EXIT_CLEAN)
}

/// All keys are read before the first is used, so that a typing error changes nothing.
fn parse(keys: &[String]) -> Result<Vec<PublicKey>, AccessError> {
    let parsed = keys.iter().enumerate().map(|(at, key)| {
        let place = at + 1;
        key.trim()
            .parse()
            .map_err(|error| AccessError::Key { place, error })
    });
    parsed.collect()
}

fn edit(way: &Way, verb: AccessVerb, keys: &[PublicKey]) -> Result<(), AccessError> {
    let (list, on, done, before) = match verb {
        AccessVerb::Ban => (List::Banned, true, "banned", "was banned already"),
        AccessVerb::Unban => (List::Banned, false, "no longer banned", "was not banned"),
        AccessVerb::Allow => (List::Allowed, true, "allowed", "was allowed already"),
        AccessVerb::Unallow => (List::Allowed, false, "no longer allowed", "was not allowed"),
        AccessVerb::AddMember => (List::Members, true, "now a member", "was a member already"),
        AccessVerb::RemoveMember => (List::Members, false, "no longer a member", "was no member"),
    };
    for keys in keys.chunks(ACCESS_KEYS_MAX) {
        let keys = keys.to_vec();
        let edit = Edit { list, on, keys };
        let edited = way.edit(&edit)?;
        for (key, changed) in edit.keys.iter().zip(edited.changed) {
            print(format_args!(
                "{key} {}",
                if changed { done } else { before }
            ))?;
        }
    }
    Ok(())
}

fn list(way: &Way, json: bool) -> Result<(), AccessError> {
    let mut after = None;
    loop {
        let page = way.page(after)?;
        for entry in &page.entries {
            if json {
                let text = serde_json::to_string(entry);
                print(format_args!("{}", text.expect("an entry is JSON")))?;
            } else {
                print(format_args!("{} {}", entry.key, words(entry)))?;
            }
        }
        match page.entries.last() {
            Some(last) if page.more => after = Some(last.key),
            _ => return Ok(()),
        }
    }
}

fn words(entry: &Entry) -> String {
    let words = [
        (entry.banned, "banned"),
        (entry.allowed, "allowed"),
        (entry.member, "member"),
    ];
    let on: Vec<&str> = words
        .iter()
        .filter_map(|(on, word)| on.then_some(*word))
        .collect();
    on.join(" ")
}

fn print(line: std::fmt::Arguments<'_>) -> Result<(), AccessError> {
    writeln!(io::stdout(), "{line}").map_err(AccessError::Print)
}

/// The two ways to the lists.
trait Lists {
    fn edit(&self, edit: &Edit) -> Result<Edited, AccessError>;
    fn page(&self, after: Option<PublicKey>) -> Result<Page, AccessError>;
}

impl Lists for Way {
    fn edit(&self, edit: &Edit) -> Result<Edited, AccessError> {
        match self {
            Way::Store(store) => Ok(edit.apply(store)?),
            Way::Relay(dir) => {
                let body = serde_json::to_string(edit).expect("an edit is JSON");
                ask(dir, "POST", PATH, &body)
            }
        }
    }

    fn page(&self, after: Option<PublicKey>) -> Result<Page, AccessError> {
        match (self, after) {
            (Way::Store(store), after) => Ok(Page::read(&store.reader(), after)?),
            (Way::Relay(dir), None) => ask(dir, "GET", PATH, ""),
            (Way::Relay(dir), Some(key)) => ask(dir, "GET", &format!("{PATH}?after={key}"), ""),
        }
    }
}

/// One request, and its answer.
fn ask<T: DeserializeOwned>(
    dir: &Path,
    method: &str,
    target: &str,
    body: &str,
) -> Result<T, AccessError> {
    let answer = exchange(dir, method, target, body, ACCESS_ANSWER_WAIT);
    let answer = answer.map_err(|error| socket_error(dir, error))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.split(' ').nth(1).unwrap_or_default();
    match (status, serde_json::from_str(body)) {
        ("200", Ok(answer)) => Ok(answer),
        ("200" | "", _) => Err(AccessError::Refused(
            "no answer that can be understood".to_owned(),
        )),
        ("404", _) => Err(AccessError::Refused(
            "it is of a version that has no access lists".to_owned(),
        )),
        _ => Err(AccessError::Refused(body.to_owned())),
    }
}

fn exchange(
    dir: &Path,
    method: &str,
    target: &str,
    body: &str,
    wait: Duration,
) -> io::Result<String> {
    let mut stream = socket::connect(dir)?;
    stream.set_read_timeout(Some(wait))?;
    stream.set_write_timeout(Some(wait))?;
    let length = body.len();
    let head = format!(
        "{method} {target} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = String::new();
    stream
        .take(CONTROL_ANSWER_BYTES_MAX)
        .read_to_string(&mut answer)?;
    Ok(answer)
}

fn socket_error(dir: &Path, error: io::Error) -> AccessError {
    let path = dir.join(socket::NAME).display().to_string();
    AccessError::Socket { path, error }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; only the user that the relay runs as may use it",
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "; the relay did not answer in time, and may still do it: look with access list"
        }
        _ => "; the relay may have ended meanwhile: look with access list",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_key_is_named_by_its_place_and_is_a_usage_error() {
        let good = "ab".repeat(32);
        let keys = [good.clone(), format!(" {good}\n")];
        assert_eq!(parse(&keys).expect("keys").len(), 2);
        let error = parse(&[good, "npub".to_owned()]).expect_err("no key");
        assert!(error.to_string().starts_with("key 2: "), "{error}");
        assert_eq!(error.exit_code(), EXIT_CONFIG);
        assert_eq!(
            AccessError::from(ReachError::NotEmbedded).exit_code(),
            EXIT_FAILED
        );
    }

    #[test]
    fn an_entry_names_its_lists() {
        let mut entry = Entry {
            key: PublicKey([1; 32]),
            banned: true,
            allowed: false,
            member: true,
        };
        assert_eq!(words(&entry), "banned member");
        entry.banned = false;
        assert_eq!(words(&entry), "member");
    }
}
