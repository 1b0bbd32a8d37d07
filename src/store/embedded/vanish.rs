//! Requests to vanish (NIP-62): everything that a key has left here, up to the request's time.
//!
//! A key may have a million events, and one commit must stay short. So a request is followed in
//! steps:
//!
//! 1. A commit writes to `vanished` that the key is gone up to that time, and that its removal is
//!    under way. From here on none of its past comes in.
//! 2. Commits of a bounded size, between those of other events, remove the key's events, gift wraps
//!    addressed to it (NIP-59), and what it had taken back itself.
//! 3. The last of them stores the request and says in `vanished` that it is done. Only now the
//!    request is answered: `OK` means that everything is gone.
//!
//! A process that ends under way goes on at its next start; the request is then not stored, but may
//! be sent again.

use std::ops::Bound;

use super::apply::Group;
use super::layout::{self, Index, Key, ORDER_BYTES};
use super::store_error;
use super::tables::Tables;
use super::upkeep::Share;
use super::young::Tree;
use crate::nostr::event::Event;
use crate::nostr::kind;
use crate::store::{Done, Outcome, Removal, StoreError};

/// A removal under way.
pub struct Erasure {
    pubkey: [u8; 32],
    until: u64,
    stage: Stage,
    /// The request, to be answered. `None`: its sender is not there any longer.
    pub done: Option<Done>,
}

/// What is being removed, and where the last entry looked at was: its `order`, or its whole key.
enum Stage {
    Events(Option<[u8; ORDER_BYTES]>),
    Wraps(Option<[u8; ORDER_BYTES]>),
    Deletions(Vec<u8>),
}

impl Erasure {
    /// Follows a request that [`Group::add`] has begun, once its commit has succeeded.
    pub fn begin(done: Done) -> Erasure {
        Erasure {
            pubkey: *done.event.pubkey(),
            until: done.event.created_at(),
            stage: Stage::Events(None),
            done: Some(done),
        }
    }

    /// The removals that the last process has left under way.
    pub fn left_behind(tables: &Tables) -> Result<Vec<Erasure>, StoreError> {
        let txn = tables.env.read_txn().map_err(store_error)?;
        let mut left = Vec::new();
        for entry in tables.vanished.iter(&txn).map_err(store_error)? {
            let (key, value) = entry.map_err(store_error)?;
            let (until, under_way) = layout::parse_vanished(value)?;
            if under_way && let Ok(pubkey) = key.try_into() {
                left.push(Erasure {
                    pubkey,
                    until,
                    stage: Stage::Events(None),
                    done: None,
                });
            }
        }
        Ok(left)
    }

    /// Removes as much as the share allows, within a group that the caller commits. True: nothing is
    /// left, and the request's outcome is set. Unless the commit succeeds, [`rewind`](Self::rewind)
    /// to what was there before.
    pub fn step(
        &mut self,
        group: &mut Group<'_, '_>,
        share: &mut Share,
    ) -> Result<bool, StoreError> {
        while share.is_left() {
            match &mut self.stage {
                Stage::Events(after) => {
                    if group.erase_run(&self.pubkey, Run::Author, self.until, after, share)? {
                        self.stage = Stage::Wraps(None);
                    }
                }
                Stage::Wraps(after) => {
                    if group.erase_run(&self.pubkey, Run::Wraps, self.until, after, share)? {
                        self.stage = Stage::Deletions(self.pubkey.to_vec());
                    }
                }
                Stage::Deletions(after) => {
                    if group.forget_deletions(&self.pubkey, self.until, after, share)? {
                        group.end_vanish(&self.pubkey, self.until)?;
                        if let Some(done) = &mut self.done {
                            done.outcome = group.add_vanished(&done.event)?;
                        }
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Goes back to the beginning, after a commit that failed.
    pub fn rewind(&mut self) {
        self.stage = Stage::Events(None);
    }

    /// Takes the request's answer out: the removal goes on unheard.
    pub fn fail(&mut self, error: &StoreError) -> Option<Done> {
        let mut done = self.done.take()?;
        done.outcome = Outcome::Failed(error.clone());
        Some(done)
    }
}

/// A run of index entries that holds what is to be removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Run {
    /// All events of an author.
    Author,
    /// What is addressed to a key; its gift wraps are meant.
    Wraps,
}

impl Group<'_, '_> {
    /// Shuts the door: nothing of the author's past comes in after this commit.
    pub(super) fn begin_vanish(&mut self, request: &Event) -> Result<(), StoreError> {
        self.put_vanished(request.pubkey(), request.created_at(), true)
    }

    fn end_vanish(&mut self, pubkey: &[u8; 32], until: u64) -> Result<(), StoreError> {
        let vanished = self.tables.vanished.get(&self.txn, pubkey);
        let vanished = vanished.map_err(store_error)?;
        match vanished.map(layout::parse_vanished).transpose()? {
            // A later request waits behind this one.
            Some((later, _)) if later > until => Ok(()),
            _ => self.put_vanished(pubkey, until, false),
        }
    }

    fn put_vanished(
        &mut self,
        pubkey: &[u8; 32],
        until: u64,
        under_way: bool,
    ) -> Result<(), StoreError> {
        self.changed = true;
        let value = layout::vanished_value(until, under_way);
        let put = self.tables.vanished.put(&mut self.txn, pubkey, &value);
        put.map_err(store_error)
    }

    /// Removes what a run holds of up to `until`, from behind `after` on. True: all of it.
    fn erase_run(
        &mut self,
        pubkey: &[u8; 32],
        run: Run,
        until: u64,
        after: &mut Option<[u8; ORDER_BYTES]>,
        share: &mut Share,
    ) -> Result<bool, StoreError> {
        let (index, prefix) = match run {
            Run::Author => (Index::Author, pubkey_prefix(pubkey)),
            Run::Wraps => (Index::Tag, addressed_prefix(pubkey)),
        };
        while share.is_left() {
            let mut from = prefix.clone();
            let from = match after {
                Some(order) => Bound::Excluded(from.push(&order[..]).as_bytes()),
                None => Bound::Included(from.push(&(!until).to_be_bytes()).as_bytes()),
            };
            let range = (from, Bound::Unbounded);
            let entries = self.tables.index(index).range(&self.txn, &range);
            let written = entries.map_err(store_error)?.next();
            let written = written.transpose().map_err(store_error)?;
            let young = self.young.next(Tree::of(index), from);
            let next = young.into_iter().chain(written);
            let Some((key, value)) = next.min_by_key(|(key, _)| *key) else {
                return Ok(true);
            };
            let Some(entry) = layout::parse_entry(index, prefix.as_bytes(), key, value)? else {
                return Ok(true);
            };
            let mut order = [0; ORDER_BYTES];
            order.copy_from_slice(&key[prefix.as_bytes().len()..]);
            *after = Some(order);
            share.take_one();
            if run == Run::Wraps && entry.kind != kind::GIFT_WRAP {
                continue;
            }
            // One that cannot be read back has no entries that could be found; it is not served.
            if let Some(event) = self.tables.sound_event(&self.txn, entry.seq)? {
                self.erase(&event, entry.seq, Removal::Vanished)?;
                share.take(&event);
            }
        }
        Ok(false)
    }

    /// Removes what a key had taken back up to `until`: its past is barred as a whole. Goes on
    /// behind the key `after`. True: all of it.
    fn forget_deletions(
        &mut self,
        pubkey: &[u8; 32],
        until: u64,
        after: &mut Vec<u8>,
        share: &mut Share,
    ) -> Result<bool, StoreError> {
        let deleted = self.tables.deleted;
        while share.is_left() {
            let next = deleted
                .get_greater_than(&self.txn, after)
                .map_err(store_error)?;
            let Some((key, value)) = next.filter(|(key, _)| key.starts_with(pubkey)) else {
                return Ok(true);
            };
            let past = layout::parse_time(value)? <= until;
            *after = key.to_vec();
            share.take_one();
            if past {
                self.changed = true;
                deleted.delete(&mut self.txn, after).map_err(store_error)?;
            }
        }
        Ok(false)
    }
}

fn pubkey_prefix(pubkey: &[u8; 32]) -> Key {
    let mut key = Key::new();
    key.push(pubkey);
    key
}

fn addressed_prefix(pubkey: &[u8; 32]) -> Key {
    let mut hex = [0; 64];
    // The buffer has exactly the length of 32 bytes in hex.
    let _ = const_hex::encode_to_slice(pubkey, &mut hex);
    let mut key = Key::new();
    layout::push_tag(&mut key, b'p', &hex);
    key
}
