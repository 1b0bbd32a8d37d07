//! What authors took back: deletion requests (NIP-09), and which events may not come in any more.
//!
//! A request takes back ids (`e`) and addresses (`a`, every version up to the request's time), of
//! its author's events only. A gift wrap is signed by a key that nobody has any longer, so its
//! addressee may take it back too (NIP-59). Requests themselves, to delete or to vanish, cannot be
//! taken back.
//!
//! Each thing taken back leaves an entry in `deleted`, by the key of who took it back, whether its
//! event is known or not: a deleted event cannot return, and one deleted before it came never comes.
//! An id or address of another author's event gets an entry as well, where that event is not stored;
//! it has no effect, because an event is only looked up under its own author's key.

use heed::RoTxn;

use super::apply::Group;
use super::layout;
use super::store_error;
use super::tables::Tables;
use crate::limits::{DELETION_BYTES_MAX, DELETION_INDEX_ENTRIES_MAX, DELETION_TAGS_UNCHECKED_MAX};
use crate::nostr::address::Address;
use crate::nostr::event::Event;
use crate::nostr::kind::{self, Class};
use crate::nostr::reason::{Prefix, Reason};
use crate::nostr::sealed;
use crate::store::{Removal, StoreError};

/// Why an event may not come in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Gone {
    /// A deletion request names it (NIP-09).
    Deleted,
    /// Its author, or a gift wrap's addressee, has vanished since (NIP-62).
    Vanished,
}

impl Gone {
    /// What its sender is told.
    pub fn reason(self) -> Reason {
        Reason::fixed(
            Prefix::Blocked,
            match self {
                Gone::Deleted => "this event was deleted at its author's request",
                Gone::Vanished => "this key has asked to vanish, with all of its past",
            },
        )
    }
}

/// Whether an event that is not stored was taken back.
pub fn gone(tables: &Tables, txn: &RoTxn<'_>, event: &Event) -> Result<Option<Gone>, StoreError> {
    let own = gone_by(tables, txn, event, event.pubkey())?;
    if own.is_some() || event.kind() != kind::GIFT_WRAP {
        return Ok(own);
    }
    for addressee in addressees(event) {
        let gone = gone_by(tables, txn, event, &addressee)?;
        if gone.is_some() {
            return Ok(gone);
        }
    }
    Ok(None)
}

/// Whether an event was taken back by the owner of `key`, who may do so.
fn gone_by(
    tables: &Tables,
    txn: &RoTxn<'_>,
    event: &Event,
    key: &[u8; 32],
) -> Result<Option<Gone>, StoreError> {
    if let Some(value) = tables.vanished.get(txn, key).map_err(store_error)? {
        let (until, _) = layout::parse_vanished(value)?;
        // The request itself may come again: it may have met the end of the process under way.
        let ends = event.created_at() + u64::from(event.kind() == kind::VANISH);
        if ends <= until {
            return Ok(Some(Gone::Vanished));
        }
    }
    if is_request(event.kind()) {
        return Ok(None);
    }
    let deleted = |key: &[u8]| tables.deleted.get(txn, key).map_err(store_error);
    if deleted(&layout::deleted_id_key(key, event.id()))?.is_some() {
        return Ok(Some(Gone::Deleted));
    }
    let d = match event.class() {
        Class::Replaceable => "",
        Class::Addressable => event.d_tag(),
        Class::Regular | Class::Ephemeral => return Ok(None),
    };
    let address = layout::address_key(key, event.kind(), d.as_bytes());
    let until = deleted(&layout::deleted_address_key(&address))?;
    let until = until.map(layout::parse_time).transpose()?;
    Ok(until
        .filter(|until| event.created_at() <= *until)
        .map(|_| Gone::Deleted))
}

/// Whether events of a kind are requests, which stand.
fn is_request(kind: u16) -> bool {
    kind == kind::DELETION || kind == kind::VANISH
}

/// The keys in the `p` tags of an event.
fn addressees(event: &Event) -> impl Iterator<Item = [u8; 32]> {
    event
        .index_tags()
        .filter(|(letter, _)| *letter == b'p')
        .filter_map(|(_, value)| key(value))
}

/// Whether the owner of `key` may take an event back.
fn may_take_back(event: &Event, key: &[u8; 32]) -> bool {
    let owns = event.pubkey() == key
        || event.kind() == kind::GIFT_WRAP && sealed::is_addressed_to(event, key);
    owns && !is_request(event.kind())
}

/// 64 lower-case hex digits.
fn key(hex: &[u8]) -> Option<[u8; 32]> {
    let lower = !hex.iter().any(u8::is_ascii_uppercase);
    const_hex::decode_to_array(hex).ok().filter(|_| lower)
}

impl Group<'_, '_> {
    /// Does what a deletion request asks for, after it was taken in.
    pub(super) fn delete_named(&mut self, request: &Event) -> Result<(), StoreError> {
        for (letter, value) in request.index_tags() {
            match letter {
                b'e' => {
                    if let Some(id) = key(value) {
                        self.delete_id(request, &id)?;
                    }
                }
                b'a' => {
                    let address = std::str::from_utf8(value).ok().and_then(Address::parse);
                    if let Some(address) = address.filter(|a| a.pubkey == *request.pubkey()) {
                        self.delete_address(request, &address)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a request would remove more than one commit may. Looks no further than it must.
    pub(super) fn names_too_much(&self, request: &Event) -> Result<bool, StoreError> {
        if request.index_tags().count() <= DELETION_TAGS_UNCHECKED_MAX {
            return Ok(false);
        }
        let (mut entries, mut bytes) = (0, 0);
        for (letter, value) in request.index_tags() {
            let seq = match letter {
                b'e' => self.seq_of_id(value)?,
                b'a' => self.seq_of_address(value)?,
                _ => None,
            };
            let Some(seq) = seq else { continue };
            let json = self.tables.json(&self.txn, seq);
            // What cannot be read back is not removed.
            let Ok(Some(json)) = json else { continue };
            bytes += json.len();
            if bytes > DELETION_BYTES_MAX {
                return Ok(true);
            }
            if let Some(event) = self.tables.sound_event(&self.txn, seq)? {
                entries += layout::entry_count(&event);
            }
            if entries > DELETION_INDEX_ENTRIES_MAX {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn seq_of_id(&self, value: &[u8]) -> Result<Option<u64>, StoreError> {
        let Some(id) = key(value) else {
            return Ok(None);
        };
        self.seq_of(&id)
    }

    fn seq_of_address(&self, value: &[u8]) -> Result<Option<u64>, StoreError> {
        let address = std::str::from_utf8(value).ok().and_then(Address::parse);
        let Some(address) = address else {
            return Ok(None);
        };
        let key = layout::address_key(&address.pubkey, address.kind, address.d.as_bytes());
        let found = self.tables.address.get(&self.txn, &key);
        let version = found.map_err(store_error)?.map(layout::parse_address);
        Ok(version.transpose()?.map(|(seq, ..)| seq))
    }

    fn delete_id(&mut self, request: &Event, id: &[u8; 32]) -> Result<(), StoreError> {
        if let Some(seq) = self.seq_of(id)? {
            // One that cannot be read back cannot be told to be the author's: it stays.
            let Some(event) = self.tables.sound_event(&self.txn, seq)? else {
                return Ok(());
            };
            if !may_take_back(&event, request.pubkey()) {
                return Ok(());
            }
            self.erase(&event, seq, Removal::Deleted)?;
        }
        let key = layout::deleted_id_key(request.pubkey(), id);
        self.take_back(&key, request.created_at())
    }

    fn delete_address(&mut self, request: &Event, address: &Address<'_>) -> Result<(), StoreError> {
        let key = layout::address_key(&address.pubkey, address.kind, address.d.as_bytes());
        let found = self.tables.address.get(&self.txn, &key);
        if let Some(value) = found.map_err(store_error)? {
            let (seq, created_at, _) = layout::parse_address(value)?;
            if created_at <= request.created_at()
                && let Some(event) = self.tables.sound_event(&self.txn, seq)?
            {
                self.erase(&event, seq, Removal::Deleted)?;
            }
        }
        self.take_back(&layout::deleted_address_key(&key), request.created_at())
    }

    /// Keeps the latest time at which something was taken back.
    fn take_back(&mut self, key: &[u8], time: u64) -> Result<(), StoreError> {
        let known = self
            .tables
            .deleted
            .get(&self.txn, key)
            .map_err(store_error)?;
        let known = known.map(layout::parse_time).transpose()?;
        if known.is_some_and(|known| known >= time) {
            return Ok(());
        }
        self.changed = true;
        let put = self
            .tables
            .deleted
            .put(&mut self.txn, key, &time.to_be_bytes());
        put.map_err(store_error)
    }
}
