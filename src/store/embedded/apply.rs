//! One group of events into one write transaction.
//!
//! Events are decided one after the other, each seeing those before it: duplicates and versions
//! within the group are found like stored ones. What an event's decision needs (`events`, `address`,
//! `deleted`, `vanished`) is written at once. Entries of the indexes are collected, and written later
//! than the group (`nursery`); a very large group writes them at its end.
//!
//! Every key is bounded by the layout, and a stored event that cannot be read back fails only the
//! event that would replace it, before anything of that event is written. So an error of this file's
//! functions is one of the whole commit: no room, or an I/O error.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use heed::{PutFlags, RwTxn};

use super::journal::Journal;
use super::keep::Change;
use super::layout::{self, META_SEQUENCE, for_each_entry};
use super::nursery::{self, Due, Seqs};
use super::size::Room;
use super::tables::Tables;
use super::young::{Fresh, Layer, Young};
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
    /// Index entries.
    pub(super) fresh: Fresh,
    /// Sequences of the ids that the group adds.
    ids: HashMap<[u8; 32], u64, foldhash::fast::RandomState>,
    /// Sequences from before the group whose events it removes, and whose entries may be young.
    removed_young: Seqs,
    /// By sequence, from the group's first: removed again within the group.
    removed: Vec<bool>,
    /// Events that the group adds and removes, in its order.
    pub(super) changes: Vec<Change>,
    /// Events removed, by why.
    removals: [usize; Removal::ALL.len()],
}

impl Scratch {
    /// Forgets what was before.
    pub(super) fn begin(&mut self) {
        self.fresh.clear();
        self.ids.clear();
        self.removed_young.clear();
        self.removed.clear();
        self.changes.clear();
        self.removals = Default::default();
    }

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

/// A write transaction being filled.
pub struct Group<'t, 's> {
    pub(super) tables: &'t Tables,
    /// Nothing is held beside a group.
    journal: MutexGuard<'t, Option<Journal>>,
    pub(super) txn: RwTxn<'t>,
    scratch: &'s mut Scratch,
    /// Entries of the groups before that are not in their trees yet.
    pub(super) young: Arc<Young>,
    /// The last sequence of which all entries are in their trees.
    indexed: u64,
    /// What this group writes of the young entries. `None`: what is due when it is committed.
    due: Option<Due>,
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
        let journal = tables.journal();
        let mut txn = tables.env.write_txn().map_err(store_error)?;
        let young = tables.nursery.young();
        scratch.begin();
        write_held(tables, &mut txn, &young, &mut scratch.record)?;
        let base = tables.last_sequence(&txn)?;
        let room = Room::begin(tables, &txn)?;
        Ok(Group {
            tables,
            journal,
            txn,
            scratch,
            indexed: tables.nursery.indexed(),
            young,
            due: None,
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
        if self.seq == self.base && !self.changed && self.young.held.is_empty() {
            self.txn.abort();
            return Ok(false);
        }
        let (layer, due) = self.write_young()?;
        let seq = self.seq.to_be_bytes();
        self.tables
            .meta
            .put(&mut self.txn, META_SEQUENCE, &seq)
            .map_err(store_error)?;
        self.txn.commit().map_err(store_error)?;
        let removed = &self.scratch.removed_young;
        let nursery = &self.tables.nursery;
        nursery.follow(due, removed, layer, self.seq);
        if let Some(journal) = &mut *self.journal {
            journal.restart();
        }
        Ok(true)
    }

    /// Writes nothing of what is due: it is there to make room, or found none for it.
    pub fn hold(&mut self) {
        self.due = Some(Due::Nothing);
    }

    /// Writes a share of the young entries, of about so many.
    pub fn settle_some(&mut self, entries: usize) {
        let due = self.tables.nursery.due_at_rest(entries);
        self.changed |= due != Due::Nothing;
        self.due = Some(due);
    }

    fn write_young(&mut self) -> Result<(Layer, Due), StoreError> {
        let Scratch {
            fresh,
            removed,
            removed_young,
            ..
        } = &mut *self.scratch;
        let layer = fresh.layer(|nth| !removed[nth as usize]);
        let nursery = &self.tables.nursery;
        let due = self.due.unwrap_or_else(|| nursery.due(layer.len()));
        if due == Due::Nothing && nursery.is_full() && !layer.is_empty() {
            let behind = "its indexes are behind";
            return Err(StoreError::new(StoreErrorKind::Full, behind));
        }
        nursery.write(self.tables, &mut self.txn, due, removed_young)?;
        if due == Due::All {
            nursery.write_layer(self.tables, &mut self.txn, &layer, self.seq)?;
        }
        Ok((layer, due))
    }

    /// Where an id is stored, if it is.
    pub(super) fn seq_of(&self, id: &[u8; 32]) -> Result<Option<u64>, StoreError> {
        if let Some(seq) = self.scratch.ids.get(id) {
            return Ok(Some(*seq));
        }
        let entry = self.tables.id_entry(&self.txn, &self.young, id)?;
        Ok(entry.map(|entry| entry.seq))
    }

    /// What is to be said of an event whose id is stored.
    fn known(&self, event: &Event) -> Result<Option<Outcome>, Fail> {
        let Some(seq) = self.seq_of(event.id()).map_err(Fail::before)? else {
            return Ok(None);
        };
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
            fresh,
            ids,
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
        if let Some(expires) = event.expiration() {
            self.tables
                .expiry
                .put(&mut self.txn, &layout::expiry_key(expires, seq), &[])
                .map_err(store_error)?;
        }
        let nth = removed.len() as u32;
        ids.insert(*event.id(), seq);
        nursery::push(fresh, event, seq, nth);
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
        if seq > self.base {
            self.scratch.ids.remove(event.id());
            self.scratch.removed[(seq - self.base - 1) as usize] = true;
            return Ok(());
        }
        if seq > self.indexed {
            self.scratch.removed_young.insert(seq);
        }
        self.tables
            .id
            .delete(&mut self.txn, event.id())
            .map_err(store_error)?;
        for_each_entry(event, seq, |index, key, value| {
            let table = self.tables.index(index);
            // An entry of another event under the same key stays (two ids alike in 16 bytes).
            if table.get(&self.txn, key).map_err(store_error)? == Some(value) {
                table.delete(&mut self.txn, key).map_err(store_error)?;
            }
            Ok(())
        })
    }
}

/// Writes the records of events that are held. All of them are plain: nothing else is to be written
/// now.
fn write_held(
    tables: &Tables,
    txn: &mut RwTxn<'_>,
    young: &Young,
    record: &mut Vec<u8>,
) -> Result<(), StoreError> {
    for (seq, event) in &young.held {
        record.clear();
        layout::push_record(record, event);
        tables
            .events
            .put_with_flags(txn, PutFlags::APPEND, &seq.to_be_bytes(), record)
            .map_err(store_error)?;
    }
    match young.held.last() {
        // From here on the transaction says what is there, and not what is held.
        Some((seq, _)) => {
            let put = tables.meta.put(txn, META_SEQUENCE, &seq.to_be_bytes());
            put.map_err(store_error)
        }
        None => Ok(()),
    }
}

impl Tables {
    /// Writes what is held to its tree, durably.
    pub fn write_held(&self, scratch: &mut Scratch) -> Result<(), StoreError> {
        if self.nursery.young().held.is_empty() {
            return Ok(());
        }
        let mut group = Group::begin(self, scratch)?;
        group.hold();
        group.commit()?;
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
