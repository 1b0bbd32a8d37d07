//! What a relay says of itself, typed, and what has changed between two looks.
//!
//! An older relay says less: what is missing is at its default. Text that came over the network goes
//! to a terminal, so [`Text`] lets nothing through that a terminal could obey.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::limits::STATUS_TEXT_CHARS_MAX;

/// A text of printable ASCII, not long.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Text(String);

impl Text {
    /// What can be shown of any text: everything else is a question mark each.
    pub fn of(text: &str) -> Text {
        let shown = text.chars().take(STATUS_TEXT_CHARS_MAX);
        let is_shown = |char: &char| char.is_ascii_graphic() || *char == ' ';
        Text(
            shown
                .map(|char| if is_shown(&char) { char } else { '?' })
                .collect(),
        )
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        String::deserialize(deserializer).map(|text| Text::of(&text))
    }
}

/// A relay at one moment.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Picture {
    /// Its version.
    pub version: Text,
    /// The commit that it was built from.
    pub commit: Text,
    /// Where it is in its life.
    pub lifecycle: Text,
    /// How long it has run.
    pub uptime_seconds: u64,
    /// How its shards do I/O.
    pub driver: Text,
    /// Where it listens.
    pub addresses: Addresses,
    /// Open WebSockets.
    pub connections: u64,
    /// By shard.
    pub shards: Vec<Shard>,
    /// Ever counted.
    pub totals: Totals,
    /// By gate.
    pub gates: BTreeMap<Text, Gate>,
    /// Where the gates' limits come from.
    pub feature_flags: FeatureFlags,
    /// Where events are kept.
    pub store: Store,
    /// Imports and exports.
    pub transfers: Transfers,
    /// How it ends.
    pub drain: Drain,
}

/// Where it listens.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Addresses {
    /// For clients.
    pub websocket: Text,
}

/// One shard.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Shard {
    /// Its number.
    pub id: u64,
    /// Open sockets, upgraded or not.
    pub sockets: u64,
    /// How long ago it last showed that it runs.
    pub heartbeat_age_ms: u64,
    /// Open WebSockets.
    pub connections: u64,
    /// Open subscriptions.
    pub subscriptions: u64,
    /// Bytes that wait to be written.
    pub queued_bytes: u64,
    /// EVENT messages ever.
    pub events: u64,
    /// Live events ever queued.
    pub delivered: u64,
    /// REQ and COUNT ever.
    pub queries: u64,
}

/// What all shards have ever counted.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Totals {
    /// WebSockets.
    pub connections: u64,
    /// EVENT messages by outcome.
    pub events: BTreeMap<Text, u64>,
    /// Live events queued.
    pub delivered: u64,
    /// Live events not sent.
    pub dropped: u64,
    /// Queries by kind.
    pub queries: BTreeMap<Text, u64>,
    /// Ends of WebSockets by reason.
    pub closes: BTreeMap<Text, u64>,
    /// Logins by outcome.
    pub logins: BTreeMap<Text, u64>,
}

/// One gate.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Gate {
    /// What is applied; none is no limit.
    pub limit: Option<u64>,
    /// The most it may be.
    pub ceiling: Option<u64>,
    /// Permits in use.
    pub in_flight: u64,
    /// Waiters.
    pub waiting: u64,
    /// In flight above the limit.
    pub debt: u64,
    /// Where the limit comes from.
    pub source: Text,
    /// Shed ever, by reason.
    pub sheds: BTreeMap<Text, u64>,
}

/// Where the gates' limits come from.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct FeatureFlags {
    /// The provider.
    pub provider: Text,
    /// Whether it has delivered.
    pub ready: bool,
}

/// Where events are kept.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Store {
    /// Which store.
    pub kind: Text,
    /// Events that wait for a commit.
    pub pending_writes: u64,
    /// Commits ever.
    pub commits: u64,
    /// The time of all of them.
    pub commit_seconds: f64,
    /// In use; only of the embedded store.
    pub used_bytes: Option<u64>,
    /// In use when events are refused; only of the embedded store.
    pub events_bytes_max: Option<u64>,
    /// Connections that write; only of a database.
    pub writers: Option<Pool>,
    /// Connections that read; only of a database.
    pub readers: Option<Pool>,
    /// Whether other relays' events come in; only of a database.
    pub listening: Option<bool>,
    /// Events known and not yet delivered; only of a database.
    pub behind: Option<u64>,
}

/// Connections to a database.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Pool {
    /// Busy.
    pub in_use: u64,
    /// All.
    pub open: u64,
}

/// Imports and exports that run.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Transfers {
    /// Into the store.
    pub imports: u64,
    /// Out of it.
    pub exports: u64,
}

/// How the relay ends.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Drain {
    /// How far it is; `none` while nobody asked.
    pub state: Text,
    /// Who asked.
    pub requested_by: Option<Text>,
    /// Since then.
    pub running_ms: Option<u64>,
    /// Over which the closes are spread.
    pub window_ms: u64,
    /// There were at its start.
    pub connections: u64,
    /// Still there.
    pub sockets_remaining: u64,
    /// Took their close.
    pub acknowledged: u64,
    /// Closed without that.
    pub cancelled: u64,
    /// Left by themselves.
    pub gone: u64,
}

impl Picture {
    /// Reads what `/_status` answered.
    ///
    /// # Errors
    ///
    /// When it is of another form.
    pub fn read(status: Value) -> Result<Picture, String> {
        // A status without it is that of something else.
        if !status["lifecycle"].is_string() {
            return Err("this is no relay's status".to_owned());
        }
        Picture::deserialize(status).map_err(|error| {
            let error = Text::of(&error.to_string());
            format!("the status cannot be read: {error}; is the relay of another version?")
        })
    }

    /// Whether it wants traffic.
    pub fn is_ready(&self) -> bool {
        self.lifecycle.as_str() == "ready"
    }

    /// EVENT messages ever.
    pub fn events(&self) -> u64 {
        sum(self.totals.events.values())
    }

    /// Queries ever.
    pub fn queries(&self) -> u64 {
        sum(self.totals.queries.values())
    }
}

impl Gate {
    /// Shed ever.
    pub fn shed(&self) -> u64 {
        sum(self.sheds.values())
    }
}

/// What numbers come to. They are what somebody says, so they may come to anything.
pub fn sum<'a>(numbers: impl Iterator<Item = &'a u64>) -> u64 {
    numbers.fold(0, |sum, number| sum.saturating_add(*number))
}

/// A picture, and the one before it.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    now: &'a Picture,
    before: Option<(&'a Picture, f64)>,
}

impl<'a> Change<'a> {
    /// What has changed since an earlier picture, so long ago. After a restart there is nothing to
    /// compare with.
    pub fn new(now: &'a Picture, before: Option<(&'a Picture, Duration)>) -> Change<'a> {
        let before = before.filter(|(before, passed)| {
            !passed.is_zero() && before.uptime_seconds <= now.uptime_seconds
        });
        Change {
            now,
            before: before.map(|(before, passed)| (before, passed.as_secs_f64())),
        }
    }

    /// The newer picture.
    pub fn now(&self) -> &'a Picture {
        self.now
    }

    /// How fast a number grows, a second. None where that is not known: at the first look, after a
    /// restart, or if it went back.
    pub fn a_second(&self, number: impl Fn(&Picture) -> Option<u64>) -> Option<f64> {
        self.grown(|picture| number(picture))
            .map(|(grown, seconds)| grown as f64 / seconds)
    }

    /// How long a commit took since the earlier picture, in seconds. None without any.
    pub fn commit_seconds(&self) -> Option<f64> {
        let (commits, _) = self.grown(|picture| Some(picture.store.commits))?;
        let (before, _) = self.before?;
        let seconds = self.now.store.commit_seconds - before.store.commit_seconds;
        (commits > 0 && seconds >= 0.0).then(|| seconds / commits as f64)
    }

    fn grown(&self, number: impl Fn(&Picture) -> Option<u64>) -> Option<(u64, f64)> {
        let (before, seconds) = self.before?;
        let grown = number(self.now)?.checked_sub(number(before)?)?;
        Some((grown, seconds))
    }
}

#[cfg(test)]
pub(super) mod tests;
