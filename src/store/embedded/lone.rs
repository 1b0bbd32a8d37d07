//! An event that comes alone, stored by the journal.
//!
//! It is decided as in a group, by a read transaction, and everything that is more than a plain new
//! event is left to one: what replaces, removes, expires, or comes while something else is due. So an
//! event that is held is always regular, and all that its tree has to get is its record. The next
//! group writes that first of all ([`Group`](super::apply::Group)).

use std::sync::Arc;

use super::apply::Scratch;
use super::deletion;
use super::keep::Change;
use super::nursery::{self, Due};
use super::size::Room;
use super::store_error;
use super::tables::Tables;
use crate::limits::HELD_EVENTS_MAX;
use crate::nostr::event::Event;
use crate::nostr::kind::{self, Class};
use crate::store::{Outcome, StoreError};

/// Stores an event durably, and makes it visible. `None`: it needs a group.
pub fn store(
    tables: &Tables,
    scratch: &mut Scratch,
    event: &Arc<Event>,
) -> Result<Option<Outcome>, StoreError> {
    let is_plain = event.class() == Class::Regular
        && event.kind() != kind::DELETION
        && event.kind() != kind::VANISH
        && event.expiration().is_none();
    if !is_plain {
        return Ok(None);
    }
    let mut guard = tables.journal();
    let Some(journal) = guard.as_mut().filter(|journal| journal.has_room(event)) else {
        return Ok(None);
    };
    let young = tables.nursery.young();
    if young.held.len() >= HELD_EVENTS_MAX || tables.nursery.is_full() {
        return Ok(None);
    }
    let txn = tables.env.read_txn().map_err(store_error)?;
    let mut room = Room::begin(tables, &txn)?;
    room.take_bytes(journal.used());
    if tables.id_entry(&txn, &young, event.id())?.is_some()
        || deletion::gone(tables, &txn, event)?.is_some()
        || !room.is_left(event)
    {
        return Ok(None);
    }
    drop(txn);
    let seq = young.last_seq + 1;
    scratch.begin();
    nursery::push(&mut scratch.fresh, event, seq, 0);
    let layer = scratch.fresh.layer(|_| true);
    if tables.nursery.due(layer.len()) != Due::Nothing {
        return Ok(None);
    }
    if let Err(error) = journal.append(event, seq) {
        tracing::error!(%error, "the journal cannot be written, so lone events take longer to store");
        *guard = None;
        return Ok(None);
    }
    tables.nursery.hold(event, seq, layer);
    scratch.changes.push(Change::of(event, true));
    Ok(Some(Outcome::Stored { seq }))
}
