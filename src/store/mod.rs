//! What every store promises, whatever keeps the bytes.
//!
//! - An [`Outcome::Stored`] is given after the commit: it survives the process and the machine.
//! - A stored event has a sequence number. Sequence numbers grow in commit order, and none is ever
//!   given to two events.
//! - A [`CommitSink`] is called once a commit, in sequence order, on the store's own thread.
//! - A commit that fails stores nothing of its events, says so for each, and the store goes on.
//! - Reads see whole commits. History and live traffic meet at a sequence number, the watermark.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::nostr::event::Event;
use crate::nostr::reason::Reason;

pub mod embedded;
pub mod retention;

/// Who handed an event in. The store gives it back untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The shard that waits for the outcome; one that there is not: an import.
    pub shard: u16,
    /// What that shard calls the event's sender.
    pub token: u64,
}

/// One event to store. Its shape, id and signature have been checked.
#[derive(Clone)]
pub struct Job {
    /// The event.
    pub event: Arc<Event>,
    /// Who waits for the outcome.
    pub origin: Origin,
}

/// What became of a [`Job`].
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Committed, durable.
    Stored {
        /// Its place in the order of commits.
        seq: u64,
    },
    /// The same event is stored already.
    Duplicate,
    /// A newer version of a replaceable or addressable event is stored, or one of the same second
    /// with a lower id (NIP-01).
    Superseded,
    /// An event of this id is stored with another signature.
    SignatureDiffers,
    /// Not stored, on purpose.
    Refused(Reason),
    /// Not stored: the commit failed. The event may be handed in again.
    Failed(StoreError),
}

/// A finished [`Job`].
pub struct Done {
    /// Who waits for the outcome.
    pub origin: Origin,
    /// The event.
    pub event: Arc<Event>,
    /// What became of it.
    pub outcome: Outcome,
}

/// Why the store removed an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// A deletion request names it (NIP-09).
    Deleted,
    /// Its time had come (NIP-40).
    Expired,
    /// A newer version took its place (NIP-01).
    Replaced,
    /// Its author, or a gift wrap's addressee, has asked to vanish (NIP-62).
    Vanished,
    /// No rule keeps it.
    Retention,
}

impl Removal {
    /// Every value, in the order of their numbers.
    pub const ALL: [Removal; 5] = [
        Removal::Deleted,
        Removal::Expired,
        Removal::Replaced,
        Removal::Vanished,
        Removal::Retention,
    ];
}

/// Where outcomes go. Called on the writer's thread: it must not block for long.
pub trait CommitSink: Send + 'static {
    /// Takes the outcomes of one commit, in sequence order, after the commit. Drains `done`.
    fn committed(&mut self, done: &mut Vec<Done>);

    /// Told once a commit that stored events: the time from its first write until it was durable.
    fn commit_took(&mut self, duration: Duration, events: usize) {
        let _ = (duration, events);
    }

    /// Told once a commit, and once a reason, how many events it removed.
    fn removed(&mut self, why: Removal, events: usize) {
        let _ = (why, events);
    }
}

/// The time by which events are dated and expire, in seconds since 1970.
pub fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// What kind of trouble a [`StoreError`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// No room: the disk, a quota, a file size limit or the map. Goes away when there is room.
    Full,
    /// The operating system refused a read or a write.
    Io,
    /// Every slot for a read transaction is taken.
    ReadersExhausted,
    /// What is stored cannot be read back.
    Corrupt,
    /// A commit failed in a way after which only opening the store anew is safe.
    Broken,
}

/// An error of a store, as data. Holds no path and no secret, so that it may go to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    kind: StoreErrorKind,
    os_code: Option<i32>,
    detail: &'static str,
}

impl StoreError {
    /// An error found by the store itself.
    pub const fn new(kind: StoreErrorKind, detail: &'static str) -> StoreError {
        StoreError {
            kind,
            os_code: None,
            detail,
        }
    }

    /// An error of the operating system. No space, an exceeded quota and an exceeded file size
    /// limit are [`StoreErrorKind::Full`].
    pub fn from_io(error: &io::Error) -> StoreError {
        let os_code = error.raw_os_error();
        let kind = match os_code {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => StoreErrorKind::Full,
            _ => StoreErrorKind::Io,
        };
        StoreError {
            kind,
            os_code,
            detail: "",
        }
    }

    /// What kind of trouble it is.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether less of the same may still have room: what is full is the store, and not its disk.
    pub fn may_fit_in_parts(&self) -> bool {
        self.kind == StoreErrorKind::Full && self.os_code.is_none()
    }

    /// Whether the same call may succeed later, without anything being repaired by hand.
    pub fn retryable(&self) -> bool {
        match self.kind {
            StoreErrorKind::Full | StoreErrorKind::Io | StoreErrorKind::ReadersExhausted => true,
            StoreErrorKind::Corrupt | StoreErrorKind::Broken => false,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            StoreErrorKind::Full => "the store is full",
            StoreErrorKind::Io => "the store cannot read or write",
            StoreErrorKind::ReadersExhausted => "too many reads of the store at once",
            StoreErrorKind::Corrupt => "the store is damaged",
            StoreErrorKind::Broken => "the store must be opened anew",
        })?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        if let Some(code) = self.os_code {
            write!(f, ": {}", io::Error::from_raw_os_error(code))?;
        }
        Ok(())
    }
}

impl std::error::Error for StoreError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_room_is_full_and_may_be_tried_again() {
        for code in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
            let error = StoreError::from_io(&io::Error::from_raw_os_error(code));
            assert_eq!(error.kind(), StoreErrorKind::Full);
            assert!(error.retryable());
        }
        let error = StoreError::from_io(&io::Error::from_raw_os_error(libc::EIO));
        assert_eq!(error.kind(), StoreErrorKind::Io);
        assert!(
            error
                .to_string()
                .starts_with("the store cannot read or write: ")
        );
    }

    #[test]
    fn damage_is_not_tried_again() {
        assert!(!StoreError::new(StoreErrorKind::Corrupt, "an index").retryable());
        assert!(!StoreError::new(StoreErrorKind::Broken, "").retryable());
        assert_eq!(
            StoreError::new(StoreErrorKind::Corrupt, "an index").to_string(),
            "the store is damaged: an index"
        );
    }
}
