//! The access lists: who is banned, allowed, a member.
//!
//! One entry a key, with one bit for each list, so that a login reads all three at once. Edits are
//! rare and done by whoever asks, in a transaction of their own beside the writer's.

use std::ops::{Bound, ControlFlow};

use serde::{Deserialize, Serialize};

use super::deletion::Gone;
use super::reader::{Found, Moment, Reader};
use super::{Embedded, deletion, layout, store_error};
use crate::nostr::event::Event;
use crate::nostr::kind;
use crate::nostr::reason::{Prefix, Reason};
use crate::store::StoreError;

/// What the lists say of a key.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Access {
    /// Neither its events nor its logins are taken.
    pub banned: bool,
    /// On the allow-list.
    pub allowed: bool,
    /// A member.
    pub member: bool,
}

/// One of the lists.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum List {
    /// Banned keys.
    Banned,
    /// The allow-list.
    Allowed,
    /// Members.
    Members,
}

impl List {
    /// Its name in logs and on the control socket.
    pub fn as_str(self) -> &'static str {
        match self {
            List::Banned => "banned",
            List::Allowed => "allowed",
            List::Members => "members",
        }
    }
}

impl Access {
    const BANNED: u8 = 1;
    const ALLOWED: u8 = 2;
    const MEMBER: u8 = 4;

    fn from_bits(bits: u8) -> Access {
        Access {
            banned: bits & Self::BANNED != 0,
            allowed: bits & Self::ALLOWED != 0,
            member: bits & Self::MEMBER != 0,
        }
    }

    fn bits(self) -> u8 {
        let bit = |set, bit| if set { bit } else { 0 };
        bit(self.banned, Self::BANNED)
            | bit(self.allowed, Self::ALLOWED)
            | bit(self.member, Self::MEMBER)
    }

    fn entry(&mut self, list: List) -> &mut bool {
        match list {
            List::Banned => &mut self.banned,
            List::Allowed => &mut self.allowed,
            List::Members => &mut self.member,
        }
    }
}

/// What the store knows of an event before its signature is checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Screen {
    /// The author is banned.
    pub banned: bool,
    /// The event is stored.
    pub found: Option<Found>,
    /// The event is not stored and was taken back.
    pub gone: Option<Gone>,
}

impl Screen {
    /// Why the ban list keeps an event out. A request to vanish is followed whatever its author's
    /// status (NIP-62).
    pub fn ban(&self, event: &Event) -> Option<Reason> {
        let is_barred = self.banned && event.kind() != kind::VANISH;
        is_barred.then(|| Reason::fixed(Prefix::Blocked, "the author is banned"))
    }
}

impl Reader {
    /// What the lists say of a key; nothing of one that is on none.
    pub fn access(&self, key: &[u8; 32]) -> Result<Access, StoreError> {
        let txn = self.txn()?;
        access(self.tables().access.get(&txn, key).map_err(store_error)?)
    }

    /// Looks an event up by its id and among what was taken back, and its author on the ban list, in
    /// one transaction.
    pub fn screen(&self, event: &Event) -> Result<Screen, StoreError> {
        let moment = self.moment()?;
        let mut screen = self.known_in(&moment, event)?;
        if screen.found.is_none() {
            screen.gone = deletion::gone(self.tables(), &moment.txn, event)?;
        }
        Ok(screen)
    }

    /// As [`screen`](Self::screen), but does not look among what was taken back.
    pub fn known(&self, event: &Event) -> Result<Screen, StoreError> {
        self.known_in(&self.moment()?, event)
    }

    fn known_in(&self, moment: &Moment<'_>, event: &Event) -> Result<Screen, StoreError> {
        let entry = self.tables().access.get(&moment.txn, event.pubkey());
        Ok(Screen {
            banned: access(entry.map_err(store_error)?)?.banned,
            found: self.find_in(moment, event.id())?,
            gone: None,
        })
    }

    /// Hands every key above `after` that is on a list to `each`, in the order of the keys, until
    /// it breaks.
    pub fn access_list(
        &self,
        after: Option<&[u8; 32]>,
        each: &mut dyn FnMut([u8; 32], Access) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let txn = self.txn()?;
        let start = after.map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
        let range = (start, Bound::Unbounded);
        let entries = self.tables().access.range(&txn, &range);
        for entry in entries.map_err(store_error)? {
            let (key, value) = entry.map_err(store_error)?;
            let key = key
                .try_into()
                .map_err(|_| layout::corrupt("an access entry"))?;
            if each(key, access(Some(value))?).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Embedded {
    /// Puts keys on a list or takes them off, durably and all together. Returns for each whether
    /// that changed anything. Waits for a commit of the writer that is under way.
    pub fn edit_access(
        &self,
        keys: &[[u8; 32]],
        list: List,
        on: bool,
    ) -> Result<Vec<bool>, StoreError> {
        let tables = &self.shared.tables;
        let mut txn = tables.env.write_txn().map_err(store_error)?;
        let mut changed = Vec::with_capacity(keys.len());
        for key in keys {
            let mut entry = access(tables.access.get(&txn, key).map_err(store_error)?)?;
            let changes = *entry.entry(list) != on;
            changed.push(changes);
            if !changes {
                continue;
            }
            *entry.entry(list) = on;
            match entry.bits() {
                0 => drop(tables.access.delete(&mut txn, key).map_err(store_error)?),
                bits => tables
                    .access
                    .put(&mut txn, key, &[bits])
                    .map_err(store_error)?,
            }
        }
        if changed.contains(&true) {
            txn.commit().map_err(store_error)?;
        }
        Ok(changed)
    }
}

fn access(value: Option<&[u8]>) -> Result<Access, StoreError> {
    match value {
        None => Ok(Access::default()),
        Some([bits]) => Ok(Access::from_bits(*bits)),
        Some(_) => Err(layout::corrupt("an access entry")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::testing::Author;
    use crate::store::embedded::EmbeddedOptions;

    fn open(dir: &std::path::Path) -> Embedded {
        Embedded::open(&EmbeddedOptions {
            dir: dir.to_owned(),
            map_bytes: 64 << 20,
            readers_max: 8,
        })
        .expect("open")
    }

    fn entries(reader: &Reader, after: Option<&[u8; 32]>) -> Vec<([u8; 32], Access)> {
        let mut entries = Vec::new();
        let list = &mut |key, access| {
            entries.push((key, access));
            ControlFlow::Continue(())
        };
        reader.access_list(after, list).expect("list");
        entries
    }

    #[test]
    fn a_key_is_on_the_lists_it_was_put_on() {
        let dir = tempfile::tempdir().expect("folder");
        let store = open(dir.path());
        let (ada, ben) = (Author::new(1), Author::new(2));
        let (one, two) = (*ada.pubkey(), *ben.pubkey());
        let edit = |keys: &[[u8; 32]], list, on| store.edit_access(keys, list, on).expect("edit");
        assert_eq!(edit(&[one, one], List::Banned, true), [true, false]);
        assert_eq!(edit(&[one], List::Banned, true), [false]);
        assert_eq!(edit(&[one], List::Members, true), [true]);
        assert_eq!(edit(&[one, two], List::Allowed, true), [true, true]);
        assert_eq!(edit(&[two, one], List::Allowed, false), [true, true]);
        assert_eq!(edit(&[two], List::Allowed, true), [true]);
        assert_eq!(edit(&[two], List::Members, false), [false]);
        let reader = store.reader();
        let expected = Access {
            banned: true,
            allowed: false,
            member: true,
        };
        assert_eq!(reader.access(&one).expect("read"), expected);
        assert_eq!(reader.access(&[3; 32]).expect("read"), Access::default());
        assert!(reader.screen(&ada.note(1, "")).expect("read").banned);
        assert!(!reader.screen(&ben.note(1, "")).expect("read").banned);

        let keys = |after| -> Vec<[u8; 32]> {
            let entries = entries(&reader, after);
            entries.into_iter().map(|(key, _)| key).collect()
        };
        let (low, high) = (one.min(two), one.max(two));
        assert_eq!(keys(None), [low, high]);
        assert_eq!(keys(Some(&low)), [high]);
        assert_eq!(keys(Some(&high)), [[0; 32]; 0]);
    }

    #[test]
    fn a_key_on_no_list_leaves_no_entry_and_edits_outlive_the_process() {
        let dir = tempfile::tempdir().expect("folder");
        {
            let store = open(dir.path());
            for (key, list, on) in [
                ([1; 32], List::Allowed, true),
                ([2; 32], List::Banned, true),
                ([2; 32], List::Banned, false),
            ] {
                assert_eq!(store.edit_access(&[key], list, on).expect("edit"), [true]);
            }
            store.close();
        }
        let entries = entries(&open(dir.path()).reader(), None);
        assert_eq!(entries.len(), 1);
        assert!(entries[0].0 == [1; 32] && entries[0].1.allowed);
    }
}
