//! Reading one event, the last sequence, and everything in order.
//!
//! Each call opens a read transaction and ends it before it returns: a transaction that stays open
//! keeps LMDB from using freed pages again, and the file grows.

use std::fmt;
use std::sync::Arc;

use heed::{RoTxn, WithoutTls};

use super::layout;
use super::query::{Budget, Meter};
use super::tables::Tables;
use super::young::Young;
use super::{Shared, store_error};
use crate::store::StoreError;

/// What is known of a stored event by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its sequence.
    pub seq: u64,
    /// Its signature.
    pub sig: [u8; 64],
}

/// A transaction, and the young entries of a moment no later.
pub(super) struct Moment<'t> {
    pub(super) young: Arc<Young>,
    pub(super) txn: RoTxn<'t, WithoutTls>,
}

/// Reads of one thread. May be sent to another.
#[derive(Clone)]
pub struct Reader {
    shared: Arc<Shared>,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>) -> Reader {
        Reader { shared }
    }

    /// Whether an event is stored, and with which signature.
    pub fn find(&self, id: &[u8; 32]) -> Result<Option<Found>, StoreError> {
        self.find_in(&self.moment()?, id)
    }

    pub(super) fn find_in(
        &self,
        moment: &Moment<'_>,
        id: &[u8; 32],
    ) -> Result<Option<Found>, StoreError> {
        let Some((seq, json)) = self.lookup(moment, id)? else {
            return Ok(None);
        };
        Ok(Some(Found {
            seq,
            sig: layout::json_sig(json)?,
        }))
    }

    /// Hands the JSON of an event to `each`, if it is stored. True: it was.
    pub fn event_json(&self, id: &[u8; 32], each: impl FnOnce(&str)) -> Result<bool, StoreError> {
        let moment = self.moment()?;
        let Some((_, json)) = self.lookup(&moment, id)? else {
            return Ok(false);
        };
        each(json);
        Ok(true)
    }

    /// The sequence of the last commit that reads see; 0 before the first.
    pub fn last_seq(&self) -> Result<u64, StoreError> {
        Ok(self.tables().nursery.young().last_seq)
    }

    /// Hands events with a sequence above `after` to `each`, in sequence order, for one slice;
    /// expired ones are left out.
    /// Returns the sequence to go on after, `None` at the end.
    pub fn events_after(
        &self,
        after: u64,
        budget: &Budget,
        each: &mut dyn FnMut(u64, &str),
    ) -> Result<Option<u64>, StoreError> {
        let Some(first) = after.checked_add(1) else {
            return Ok(None);
        };
        let Moment { young, txn } = &self.moment()?;
        let mut meter = Meter::new(budget);
        let start = first.to_be_bytes();
        let range = (
            std::ops::Bound::Included(&start[..]),
            std::ops::Bound::Unbounded,
        );
        for record in self
            .tables()
            .events
            .range(txn, &range)
            .map_err(store_error)?
        {
            let (key, record) = record.map_err(store_error)?;
            let seq = layout::number(key.get(..8).ok_or(layout::corrupt("an event's key"))?);
            let expires = layout::record_expires(record);
            if expires.is_none_or(|expires| budget.now < expires) {
                let json = layout::record_json(record)?;
                each(seq, json);
                meter.bytes(json.len());
            }
            if meter.entry() {
                return Ok(Some(seq));
            }
        }
        let last = after.max(self.tables().last_sequence(txn)?);
        for (seq, event) in young.held.iter().filter(|(seq, _)| *seq > last) {
            each(*seq, event.json());
            meter.bytes(event.json().len());
            if meter.entry() {
                return Ok(Some(*seq));
            }
        }
        Ok(None)
    }

    pub(super) fn txn(&self) -> Result<RoTxn<'_, WithoutTls>, StoreError> {
        self.shared.tables.env.read_txn().map_err(store_error)
    }

    /// A moment to read at.
    pub(super) fn moment(&self) -> Result<Moment<'_>, StoreError> {
        let young = self.tables().nursery.young();
        let txn = self.txn()?;
        Ok(Moment { young, txn })
    }

    pub(super) fn tables(&self) -> &Tables {
        &self.shared.tables
    }

    fn lookup<'t>(
        &self,
        moment: &'t Moment<'_>,
        id: &[u8; 32],
    ) -> Result<Option<(u64, &'t str)>, StoreError> {
        let Moment { young, txn } = moment;
        let Some(entry) = self.tables().id_entry(txn, young, id)? else {
            return Ok(None);
        };
        let seq = entry.seq;
        let json = self
            .tables()
            .json_at(txn, young, seq, 0)?
            .ok_or(layout::corrupt("an id without its event"))?;
        Ok(Some((seq, json)))
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}
