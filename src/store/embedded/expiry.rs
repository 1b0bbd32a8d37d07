//! Events that expire (NIP-40): the sweep that removes them.
//!
//! Readers never give an event whose time has come, so the sweep is not what hides it: it gives the
//! room back. `expiry` holds the times in order, and a sweep takes from its front.

use super::apply::Group;
use super::layout;
use super::store_error;
use super::tables::Tables;
use super::upkeep::Share;
use crate::store::{Removal, StoreError};

/// Whether the time of any event has come at `now`, in seconds since 1970.
pub fn is_due(tables: &Tables, now: u64) -> Result<bool, StoreError> {
    let txn = tables.env.read_txn().map_err(store_error)?;
    let first = tables.expiry.first(&txn).map_err(store_error)?;
    let first = first
        .map(|(key, _)| layout::parse_expiry(key))
        .transpose()?;
    Ok(first.is_some_and(|(expires, _)| expires <= now))
}

impl Group<'_, '_> {
    /// Removes events whose time has come at `now`, as many as the share allows. True: all of them.
    pub fn expire(&mut self, now: u64, share: &mut Share) -> Result<bool, StoreError> {
        while share.is_left() {
            let first = self.tables.expiry.first(&self.txn).map_err(store_error)?;
            let Some((key, _)) = first else {
                return Ok(true);
            };
            let (expires, seq) = layout::parse_expiry(key)?;
            if expires > now {
                return Ok(true);
            }
            share.take_one();
            // One that cannot be read back stays; its time is forgotten, or it would be the first for
            // ever.
            if let Some(event) = self.tables.sound_event(&self.txn, seq)? {
                self.erase(&event, seq, Removal::Expired)?;
                share.take(&event);
            }
            let key = layout::expiry_key(expires, seq);
            self.changed = true;
            self.tables
                .expiry
                .delete(&mut self.txn, &key)
                .map_err(store_error)?;
        }
        Ok(false)
    }
}
