//! Folders of earlier schemas, brought up to date once, in one commit, when they are opened.
//!
//! Schema 1 knew neither deletion nor expiry. Its events that expire are written anew in the form of
//! now, under the same keys, and its deletion requests are followed. Its requests to vanish stay
//! unfollowed, as they were accepted without a look at whom they meant.
//!
//! Schema 2 wrote every entry with its event: all of them are there. Schema 3 had no journal, whose
//! events a program that knows nothing of it would lose, and no name to know it by.

use std::ops::Bound;

use super::apply::{Group, Scratch};
use super::layout::{self, META_INDEXED, META_NAME, META_SCHEMA, SCHEMA_VERSION, for_each_entry};
use super::store_error;
use super::tables::{Tables, new_name};
use crate::nostr::event::Event;
use crate::nostr::kind;
use crate::store::StoreError;

/// Brings a store of an earlier schema up to date.
pub fn run(tables: &Tables, schema: u32) -> Result<(), StoreError> {
    let mut scratch = Scratch::default();
    let mut group = Group::begin(tables, &mut scratch)?;
    if schema < 2 {
        for seq in group.renew_expiring()? {
            if let Some(request) = tables.event(&group.txn, seq)? {
                group.delete_named(&request)?;
            }
        }
    }
    if schema < 3 {
        let last = tables.last_sequence(&group.txn)?.to_be_bytes();
        let put = tables.meta.put(&mut group.txn, META_INDEXED, &last);
        put.map_err(store_error)?;
    }
    let put = tables.meta.put(&mut group.txn, META_NAME, &new_name());
    put.map_err(store_error)?;
    let version = SCHEMA_VERSION.to_be_bytes();
    let put = tables.meta.put(&mut group.txn, META_SCHEMA, &version);
    put.map_err(store_error)?;
    group.changed = true;
    group.commit().map(drop)
}

impl Group<'_, '_> {
    /// Writes every event that expires anew. Returns the sequences of deletion requests.
    fn renew_expiring(&mut self) -> Result<Vec<u64>, StoreError> {
        let mut requests = Vec::new();
        let mut after = 0;
        while let Some((seq, event)) = self.next_expiring(after, &mut requests)? {
            self.renew(&event, seq)?;
            after = seq;
        }
        Ok(requests)
    }

    fn next_expiring(
        &self,
        after: u64,
        requests: &mut Vec<u64>,
    ) -> Result<Option<(u64, Event)>, StoreError> {
        let start = after.to_be_bytes();
        let range = (Bound::Excluded(&start[..]), Bound::Unbounded);
        let records = self.tables.events.range(&self.txn, &range);
        for record in records.map_err(store_error)? {
            let (key, record) = record.map_err(store_error)?;
            let seq = layout::number(key.get(..8).ok_or(layout::corrupt("an event's key"))?);
            let Ok(json) = layout::record_json(record) else {
                continue;
            };
            if layout::json_kind(json) == Ok(kind::DELETION) {
                requests.push(seq);
            }
            // A name with an escape in it is the same name: the backslash tells of it.
            if !json.contains("expiration") && !json.contains("[\"\\") && !json.contains("\\u") {
                continue;
            }
            if let Ok(event) = Event::parse(json)
                && event.expiration().is_some()
            {
                return Ok(Some((seq, event)));
            }
        }
        Ok(None)
    }

    fn renew(&mut self, event: &Event, seq: u64) -> Result<(), StoreError> {
        let tables = self.tables;
        let mut record = Vec::new();
        layout::push_record(&mut record, event);
        let events = tables
            .events
            .put(&mut self.txn, &seq.to_be_bytes(), &record);
        events.map_err(store_error)?;
        let id = tables
            .id
            .put(&mut self.txn, event.id(), &layout::id_value(seq, event));
        id.map_err(store_error)?;
        if let Some(expires) = event.expiration() {
            let key = layout::expiry_key(expires, seq);
            tables
                .expiry
                .put(&mut self.txn, &key, &[])
                .map_err(store_error)?;
        }
        for_each_entry(event, seq, |index, key, value| {
            tables
                .index(index)
                .put(&mut self.txn, key, value)
                .map_err(store_error)
        })
    }
}
