//! One group of events into one write transaction.
//!
//! Events are decided one after the other, each seeing those before it: duplicates and versions
//! within the group are found like stored ones. What an event's decision needs (`events`, `id`,
//! `address`, `deleted`, `vanished`) is written at once; the ordered index entries are collected and written at the end in
//! key order, which touches each page of a tree once.
//!
//! Every key is bounded by the layout, and a stored event that cannot be read back fails only the
//! event that would replace it, before anything of that event is written. So an error of this file's
//! functions is one of the whole commit: no room, or an I/O error.

use heed::{PutFlags, RwTxn};

use super::keep::Change;
use super::layout::{self, Index, META_SEQUENCE, for_each_entry};
use super::size::Room;
use super::tables::Tables;
use super::{deletion, store_error};
use crate::limits::COMMIT_INDEX_ENTRIES_MAX;
use crate::nostr::event::Event;
use crate::nostr::kind::{self, Class};
use crate::nostr::reason::{Prefix, Reason};
use crate::store::{CommitSink, Outcome, Removal, StoreError, StoreErrorKind};

/// Buffers that outlive a group, so that a commit allocates nothing in steady state.
#[derive(Default)]
pub struct Scratch {
    record: Vec<u8>,
    bytes: Vec<u8>,
    entries: Vec<Pending>,
    /// By sequence, from the group's first: removed again within the group.
    removed: Vec<bool>,
    /// Events that the group adds and removes, in its order.
    pub(super) changes: Vec<Change>,
    /// Events removed, by why.
    removals: [usize; Removal::ALL.len()],
}

impl Scratch {
    /// Says, once, what the last group removed. To be called after its commit has succeeded.
    pub fn report(&mut self, sink: &mut impl CommitSink) {
        let removals = std::mem::take(&mut self.removals);
        for why in Removal::ALL {
            match removals[why as usize] {
                0 => {}
                events => sink.removed(why, events),
            }
        }
    }
}

/// An index entry to write: its key and value lie one after the other in [`Scratch::bytes`].
#[derive(Clone, Copy)]
struct Pending {
    index: Index,
    key_len: u8,
    value_len: u8,
    at: u32,
    /// The event's place in the group's sequences.
    nth: u32,
}

/// A write transaction being filled.
pub struct Group<'t, 's> {
    pub(super) tables: &'t Tables,
    pub(super) txn: RwTxn<'t>,
    scratch: &'s mut Scratch,
    /// The last sequence before this group.
    base: u64,
    seq: u64,
    room: Room,
    /// Whether anything but events was written.
    pub(super) changed: bool,
    /// Index entries of events that were removed.
    entries_removed: usize,
}

impl<'t, 's> Group<'t, 's> {
    /// Begins a transaction.
    pub fn begin(
        tables: &'t Tables,
        scratch: &'s mut Scratch,
    ) -> Result<Group<'t, 's>, StoreError> {
        let txn = tables.env.write_txn().map_err(store_error)?;
        let base = tables.last_sequence(&txn)?;
        let room = Room::begin(tables, &txn)?;
        scratch.bytes.clear();
        scratch.entries.clear();
        scratch.removed.clear();
        scratch.changes.clear();
        scratch.removals = Default::default();
        Ok(Group {
            tables,
            txn,
            scratch,
            base,
            seq: base,
            room,
            changed: false,
            entries_removed: 0,
        })
    }

    /// Decides one event and takes it into the transaction if it is to be stored. The outcome holds
    /// once [`commit`](Self::commit) has succeeded. `None`: a request to vanish, whose events are to
    /// be removed first, see [`vanish`](super::vanish).
    pub fn add(&mut self, event: &Event) -> Result<Option<Outcome>, StoreError> {
        self.outcome(|group| group.decide(event))
    }

    /// Whether it has removed so much that it should be committed.
    pub fn is_full(&self) -> bool {
        self.entries_removed >= COMMIT_INDEX_ENTRIES_MAX
    }

    /// Takes a request to vanish in, whose events have been removed.
    pub fn add_vanished(&mut self, event: &Event) -> Result<Outcome, StoreError> {
        let outcome = self.outcome(|group| {
            if let Some(outcome) = group.known(event)? {
                return Ok(Some(outcome));
            }
            group.insert(event).map_err(Fail::Group)?;
            Ok(Some(Outcome::Stored { seq: group.seq }))
        })?;
        Ok(outcome.expect("nothing is left to be done first"))
    }

    fn outcome(
        &mut self,
        decide: impl FnOnce(&mut Self) -> Result<Option<Outcome>, Fail>,
    ) -> Result<Option<Outcome>, StoreError> {
        match decide(self) {
            Ok(outcome) => Ok(outcome),
            Err(Fail::Event(error)) => Ok(Some(Outcome::Failed(error))),
            Err(Fail::Group(error)) => Err(error),
        }
    }

    fn decide(&mut self, event: &Event) -> Result<Option<Outcome>, Fail> {
        if let Some(outcome) = self.known(event)? {
            return Ok(Some(outcome));
        }
        let gone = deletion::gone(self.tables, &self.txn, event).map_err(Fail::before)?;
        if let Some(gone) = gone {
            return Ok(Some(Outcome::Refused(gone.reason())));
        }
        if event.kind() == kind::VANISH {
            self.begin_vanish(event).map_err(Fail::Group)?;
            return Ok(None);
        }
        if !self.room.is_left(event) {
            let full = StoreError::new(StoreErrorKind::Full, "it has reached its size");
            return Ok(Some(Outcome::Failed(full)));
        }
        if event.kind() == kind::DELETION && self.names_too_much(event).map_err(Fail::before)? {
            let text = "the request names more than one commit may remove, send it in parts";
            return Ok(Some(Outcome::Refused(Reason::fixed(Prefix::Invalid, text))));
        }
        let d = match event.class() {
            Class::Regular => None,
            Class::Replaceable => Some(""),
            Class::Addressable => Some(event.d_tag()),
            Class::Ephemeral => {
                return Ok(Some(Outcome::Refused(Reason::new(
                    Prefix::Error,
                    "ephemeral events are not stored",
                ))));
            }
        };
        if let Some(d) = d {
            let address = layout::address_key(event.pubkey(), event.kind(), d.as_bytes());
            if !self.replace(event, &address)? {
                return Ok(Some(Outcome::Superseded));
            }
            let value = layout::address_value(self.seq + 1, event);
            let put = self.tables.address.put(&mut self.txn, &address, &value);
            put.map_err(Fail::group)?;
        }
        self.insert(event).map_err(Fail::Group)?;
        if event.kind() == kind::DELETION {
            self.delete_named(event).map_err(Fail::Group)?;
        }
        Ok(Some(Outcome::Stored { seq: self.seq }))
    }

    /// Writes the indexes and commits. `Ok(false)`: there was nothing to write.
    pub fn commit(mut self) -> Result<bool, StoreError> {
        if self.seq == self.base && !self.changed {
            self.txn.abort();
            return Ok(false);
        }
        self.write_entries()?;
        let seq = self.seq.to_be_bytes();
        self.tables
            .meta
            .put(&mut self.txn, META_SEQUENCE, &seq)
            .map_err(store_error)?;
        self.txn.commit().map_err(store_error)?;
        Ok(true)
    }

    /// What is to be said of an event whose id is stored.
    fn known(&self, event: &Event) -> Result<Option<Outcome>, Fail> {
        let Some(value) = self
            .tables
            .id
            .get(&self.txn, event.id())
            .map_err(Fail::group)?
        else {
            return Ok(None);
        };
        let seq = layout::parse_id(event.id(), value)
            .map_err(Fail::Event)?
            .seq;
        let json = self.tables.json(&self.txn, seq).map_err(Fail::Event)?;
        let json = json.ok_or(Fail::Event(layout::corrupt("an id without its event")))?;
        let same = layout::json_sig(json).map_err(Fail::Event)? == *event.sig();
        Ok(Some(if same {
            Outcome::Duplicate
        } else {
            Outcome::SignatureDiffers
        }))
    }

    /// Makes room for a new version of an address. False: the stored one stays. NIP-01: the newer
    /// one, and of the same second the one with the lower id.
    fn replace(&mut self, event: &Event, address: &[u8]) -> Result<bool, Fail> {
        let Some(value) = self
            .tables
            .address
            .get(&self.txn, address)
            .map_err(Fail::group)?
        else {
            return Ok(true);
        };
        let (seq, created_at, id) = layout::parse_address(value).map_err(Fail::Event)?;
        let stays = created_at > event.created_at()
            || (created_at == event.created_at() && id <= *event.id());
        if stays {
            return Ok(false);
        }
        let old = self.tables.event(&self.txn, seq).map_err(Fail::Event)?;
        let old = old.ok_or(Fail::Event(layout::corrupt("an address without its event")))?;
        self.remove(&old, seq, Removal::Replaced)
            .map_err(Fail::Group)?;
        Ok(true)
    }

    fn insert(&mut self, event: &Event) -> Result<(), StoreError> {
        let seq = self.seq + 1;
        let Scratch {
            record,
            bytes,
            entries,
            removed,
            changes,
            ..
        } = &mut *self.scratch;
        record.clear();
        layout::push_record(record, event);
        self.tables
            .events
            .put_with_flags(&mut self.txn, PutFlags::APPEND, &seq.to_be_bytes(), record)
            .map_err(store_error)?;
        self.tables
            .id
            .put(&mut self.txn, event.id(), &layout::id_value(seq, event))
            .map_err(store_error)?;
        if let Some(expires) = event.expiration() {
            self.tables
                .expiry
                .put(&mut self.txn, &layout::expiry_key(expires, seq), &[])
                .map_err(store_error)?;
        }
        let nth = removed.len() as u32;
        for_each_entry(event, seq, |index, key, value| {
            let (key_len, value_len) = (key.len() as u8, value.len() as u8);
            entries.push(Pending {
                index,
                key_len,
                value_len,
                at: bytes.len() as u32,
                nth,
            });
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(value);
            Ok::<(), StoreError>(())
        })?;
        removed.push(false);
        changes.push(Change::of(event, true));
        self.seq = seq;
        self.room.take(event);
        Ok(())
    }

    /// Removes a stored event and the version of its address that it is.
    pub(super) fn erase(
        &mut self,
        event: &Event,
        seq: u64,
        why: Removal,
    ) -> Result<(), StoreError> {
        let d = match event.class() {
            Class::Replaceable => Some(""),
            Class::Addressable => Some(event.d_tag()),
            Class::Regular | Class::Ephemeral => None,
        };
        if let Some(d) = d {
            let key = layout::address_key(event.pubkey(), event.kind(), d.as_bytes());
            let address = self.tables.address;
            let version = address.get(&self.txn, &key).map_err(store_error)?;
            if version.is_some_and(|value| value.starts_with(&seq.to_be_bytes())) {
                address.delete(&mut self.txn, &key).map_err(store_error)?;
            }
        }
        self.remove(event, seq, why)
    }

    fn remove(&mut self, event: &Event, seq: u64, why: Removal) -> Result<(), StoreError> {
        self.changed = true;
        self.scratch.changes.push(Change::of(event, false));
        self.scratch.removals[why as usize] += 1;
        self.entries_removed += layout::entry_count(event);
        if let Some(expires) = event.expiration() {
            self.tables
                .expiry
                .delete(&mut self.txn, &layout::expiry_key(expires, seq))
                .map_err(store_error)?;
        }
        self.tables
            .events
            .delete(&mut self.txn, &seq.to_be_bytes())
            .map_err(store_error)?;
        self.tables
            .id
            .delete(&mut self.txn, event.id())
            .map_err(store_error)?;
        if seq > self.base {
            self.scratch.removed[(seq - self.base - 1) as usize] = true;
            return Ok(());
        }
        for_each_entry(event, seq, |index, key, value| {
            let table = self.tables.index(index);
            // An entry of another event under the same key stays (two ids alike in 16 bytes).
            if table.get(&self.txn, key).map_err(store_error)? == Some(value) {
                table.delete(&mut self.txn, key).map_err(store_error)?;
            }
            Ok(())
        })
    }

    fn write_entries(&mut self) -> Result<(), StoreError> {
        let Scratch {
            bytes,
            entries,
            removed,
            ..
        } = &mut *self.scratch;
        let key = |entry: &Pending| {
            let at = entry.at as usize;
            &bytes[at..at + entry.key_len as usize]
        };
        entries.sort_unstable_by(|a, b| {
            (a.index as u8)
                .cmp(&(b.index as u8))
                .then_with(|| key(a).cmp(key(b)))
        });
        for entry in entries.iter().filter(|entry| !removed[entry.nth as usize]) {
            let value = entry.at as usize + entry.key_len as usize;
            let value = &bytes[value..value + entry.value_len as usize];
            self.tables
                .index(entry.index)
                .put(&mut self.txn, key(entry), value)
                .map_err(store_error)?;
        }
        Ok(())
    }
}

/// Whom an error concerns.
enum Fail {
    /// This event alone; nothing of it has been written.
    Event(StoreError),
    /// The whole commit.
    Group(StoreError),
}

impl Fail {
    /// An error from before anything was written.
    fn before(error: StoreError) -> Fail {
        match error.kind() {
            StoreErrorKind::Corrupt => Fail::Event(error),
            _ => Fail::Group(error),
        }
    }

    fn group(error: heed::Error) -> Fail {
        Fail::Group(store_error(error))
    }
}
