//! How large the store may grow, and what happens before it is that large.
//!
//! The file grows to its size, which is that of LMDB's map, and never beyond. Pages that events have
//! left are used again, so what counts is the room in use, without them. When that comes near the
//! size, events are refused, because removing something takes pages too: a commit writes each page
//! that it touches anew. The last part is therefore kept for what makes room: the first half of it
//! for requests to delete and to vanish, which are stored as well, the rest for removals and for the
//! access lists. Only a store that held more than that when it was opened, because its size was
//! larger once, gets a larger map: it could not get smaller otherwise.
//!
//! Pages of a moment that is still being read (a backup) cannot be used again until that ends. Then
//! the map can be full while little of it is in use; a commit that finds no room fails as a whole.

use heed::RoTxn;

use super::store_error;
use super::tables::Tables;
use crate::limits::{
    STORE_RESERVE_BYTES_MAX, STORE_RESERVE_DIVISOR, STORE_WARN_FALL_PERCENT, STORE_WARN_PERCENTS,
};
use crate::nostr::event::Event;
use crate::store::StoreError;
use crate::store::retention::is_request;

/// How full the store is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// In use.
    pub used_bytes: u64,
    /// In the file and not in use; used again before the file grows.
    pub free_bytes: u64,
    /// At so many bytes in use events are refused.
    pub events_max: u64,
    /// What the file may grow to.
    pub bytes_max: u64,
    /// Slots for read transactions in use.
    pub readers: u32,
}

impl Usage {
    /// The file's bytes.
    pub fn file_bytes(&self) -> u64 {
        self.used_bytes + self.free_bytes
    }

    /// Whether more is in use than can have come in with this size: it was larger once.
    pub fn is_beyond_its_size(&self) -> bool {
        self.used_bytes > Bounds::of(self.bytes_max).requests
    }

    /// How full the store is for events, in percent, at most 100.
    pub fn percent(&self) -> u64 {
        (self.used_bytes.saturating_mul(100) / self.events_max.max(1)).min(100)
    }
}

/// The store's usage as of its last commit, and of what is held since.
pub fn usage(tables: &Tables) -> Result<Usage, StoreError> {
    let young = tables.nursery.young();
    let txn = tables.env.read_txn().map_err(store_error)?;
    // What is held takes its room with the next commit.
    let last = tables.last_sequence(&txn)?;
    let held = young.held.iter().filter(|(seq, _)| *seq > last);
    let held: usize = held.map(|(_, event)| event.json().len()).sum();
    let used_bytes = used_bytes(tables, &txn)? + held as u64;
    let info = tables.env.info();
    let page = u64::from(tables.env.unnamed_database_stat().page_size);
    let file_bytes = (info.last_page_number as u64 + 1) * page;
    Ok(Usage {
        used_bytes,
        free_bytes: file_bytes.saturating_sub(used_bytes),
        events_max: Bounds::of(tables.bytes_max).events,
        bytes_max: tables.bytes_max,
        readers: info.number_of_readers,
    })
}

/// What may still come in, in bytes in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    events: u64,
    requests: u64,
}

impl Bounds {
    /// The bounds of a store whose file may grow to so much.
    pub fn of(bytes_max: u64) -> Bounds {
        let reserve = STORE_RESERVE_BYTES_MAX.min(bytes_max / STORE_RESERVE_DIVISOR);
        Bounds {
            events: bytes_max - reserve,
            requests: bytes_max - reserve / 2,
        }
    }
}

/// About what an index entry takes, in a page that is two thirds full.
const ENTRY_BYTES: u64 = 150;

/// The room that is left to a commit.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    used: u64,
    bounds: Bounds,
    page: u64,
}

impl Room {
    /// What is left as a transaction begins.
    pub fn begin(tables: &Tables, txn: &RoTxn<'_>) -> Result<Room, StoreError> {
        let young = tables.nursery.young().entries() as u64 * ENTRY_BYTES;
        Ok(Room {
            used: used_bytes(tables, txn)? + young,
            bounds: Bounds::of(tables.bytes_max),
            page: tables.env.unnamed_database_stat().page_size.into(),
        })
    }

    /// Whether another event is taken.
    pub fn is_left(&self, event: &Event) -> bool {
        let bound = match is_request(event.kind()) {
            true => self.bounds.requests,
            false => self.bounds.events,
        };
        self.used < bound
    }

    /// Takes the room of an event.
    pub fn take(&mut self, event: &Event) {
        self.used += self.cost(event);
    }

    /// Takes the room of events that are not in their tree yet: about so many bytes.
    pub fn take_bytes(&mut self, bytes: usize) {
        self.used += bytes as u64;
    }

    /// About what an event takes: its record, in pages of its own if it is large, and its entries.
    fn cost(&self, event: &Event) -> u64 {
        const ENTRIES_WITHOUT_TAGS: u64 = 6;
        let record = event.json().len() as u64;
        let record = if record > self.page / 2 {
            record.next_multiple_of(self.page)
        } else {
            record * 3 / 2
        };
        record + (ENTRIES_WITHOUT_TAGS + event.index_tags().count() as u64) * ENTRY_BYTES
    }
}

/// Bytes of the pages that hold something.
fn used_bytes(tables: &Tables, txn: &RoTxn<'_>) -> Result<u64, StoreError> {
    const META_PAGES: u64 = 2;
    let names = tables.env.unnamed_database_stat();
    let pages = |stat: &heed::DatabaseStat| {
        (stat.branch_pages + stat.leaf_pages + stat.overflow_pages) as u64
    };
    let mut used = META_PAGES + pages(&names);
    for table in tables.all() {
        used += pages(&table.stat(txn).map_err(store_error)?);
    }
    Ok(used * u64::from(names.page_size))
}

/// Says that the store fills, and that it has room again: one line for each step, each way.
#[derive(Debug, Default)]
pub struct Pressure {
    /// The highest step that was reached, in percent; 0: none.
    step: u64,
}

impl Pressure {
    /// Looks at how full the store is. A step that was reached counts until the store has fallen
    /// well below it, so that one that moves around it does not fill the log. `Some`: it is to be
    /// said that the store has reached this step, or (`false`) has fallen below it.
    pub fn look(&mut self, percent: u64) -> Option<(u64, bool)> {
        let reached = STORE_WARN_PERCENTS
            .iter()
            .rev()
            .find(|step| percent >= **step);
        let reached = reached.copied().unwrap_or(0);
        if reached > self.step {
            self.step = reached;
            return Some((reached, true));
        }
        if percent + STORE_WARN_FALL_PERCENT > self.step || self.step == 0 {
            return None;
        }
        let left = std::mem::replace(&mut self.step, reached);
        Some((left, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_said_once_each_way() {
        let mut pressure = Pressure::default();
        let percents = [
            10, 79, 80, 80, 81, 79, 78, 80, 79, 77, 80, 96, 94, 91, 50, 20, 100, 100,
        ];
        let said: Vec<_> = percents
            .iter()
            .filter_map(|percent| pressure.look(*percent))
            .collect();
        let expected = [
            (80, true),
            (80, false),
            (80, true),
            (95, true),
            (95, false),
            (90, false),
            (100, true),
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn the_reserve_is_a_part_of_a_small_map_and_no_more_than_is_needed_of_a_large_one() {
        let small = Bounds::of(16 << 20);
        assert_eq!((small.events, small.requests), (12 << 20, 14 << 20));
        let large = Bounds::of(256 << 30);
        assert_eq!(large.events, (256 << 30) - STORE_RESERVE_BYTES_MAX);
        assert!(large.requests > large.events);
    }
}
