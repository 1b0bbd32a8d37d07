//! The subscriptions of one shard, found by event.
//!
//! An event has few keys and is looked up under each; whom it finds there is asked in full. So what
//! an event costs depends on whom it nearly concerns, not on how many listen.

use std::fmt;

use super::index::{Index, Slot};
use super::keys::{Keys, Registered};
use super::packed::{Packed, Parts};
use crate::limits::SUBSCRIPTIONS_SHARD_MAX;
use crate::nostr::{Event, Filter};
use crate::table::Table;

/// The shard's name for a subscription of one of its connections. The number means nothing here.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SubKey(pub u64);

/// Where a subscription is, for its removal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place(Slot);

/// The subscriptions of one shard.
pub struct Subscriptions {
    slots: Table<Subscription>,
    index: Index,
    keys: Keys,
    registered: Registered,
    /// Number of the event that is matched, to ask a subscription with several keys once.
    turn: u32,
}

impl Subscriptions {
    /// No subscriptions.
    pub fn new() -> Subscriptions {
        Subscriptions::with_keys(Keys::new())
    }

    /// Adds a subscription: from now on `key` is found by every event that one of `filters`
    /// matches. `limit` has no say in that (NIP-01: it is about the initial query). Nothing keeps
    /// a key from being here twice, in two places.
    ///
    /// # Panics
    ///
    /// If [`SUBSCRIPTIONS_SHARD_MAX`] subscriptions are here.
    pub fn insert(&mut self, key: SubKey, filters: &[Filter]) -> Place {
        assert!(
            self.slots.len() < SUBSCRIPTIONS_SHARD_MAX,
            "no slot is left"
        );
        let subscription = Subscription {
            key,
            filters: Packed::new(filters),
            turn: self.turn,
        };
        let slot = self.slots.insert(subscription);
        for filter in self.slots[slot].filters.each() {
            self.keys.of_filter(filter, |class, key| {
                self.registered.add(class);
                self.index.add(key, slot as Slot);
            });
        }
        Place(slot as Slot)
    }

    /// Removes a subscription, and all that it occupied. Returns its values, see
    /// [`Subscriptions::value_count`]; `None`: there is none of this key in this place.
    pub fn remove(&mut self, place: Place, key: SubKey) -> Option<usize> {
        let Place(slot) = place;
        let values = self.value_count(place, key)?;
        let removed = self.slots.remove(slot as usize)?;
        for filter in removed.filters.each() {
            self.keys.of_filter(filter, |class, key| {
                self.registered.remove(class);
                self.index.remove(key, slot);
            });
        }
        Some(values)
    }

    /// Values in all lists of the filters that are kept, which are those that an event can pass.
    /// `None`: there is no subscription of this key in this place.
    pub fn value_count(&self, place: Place, key: SubKey) -> Option<usize> {
        let subscription = self.slots.get(place.0 as usize)?;
        let filters = (subscription.key == key).then(|| subscription.filters.each())?;
        Some(filters.map(Parts::value_count).sum())
    }

    /// Puts the keys of all subscriptions that `event` matches into `out`, which is cleared first:
    /// each once, in no order. Allocates nothing once `out` has grown.
    pub fn matching(&mut self, event: &Event, out: &mut Vec<SubKey>) {
        out.clear();
        self.turn = self.turn.wrapping_add(1);
        if self.turn == 0 {
            // Every 2^32 events: no old mark may look like a new one.
            self.slots
                .iter_mut()
                .for_each(|subscription| subscription.turn = 0);
            self.turn = 1;
        }
        self.keys.of_event(event, &self.registered, |key| {
            for &slot in self.index.get(key) {
                let subscription = &mut self.slots[slot as usize];
                if subscription.turn == self.turn {
                    continue;
                }
                subscription.turn = self.turn;
                if subscription.filters.matches(event) {
                    out.push(subscription.key);
                }
            }
        });
    }

    /// How many subscriptions there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn with_keys(keys: Keys) -> Subscriptions {
        Subscriptions {
            slots: Table::default(),
            index: Index::default(),
            keys,
            registered: Registered::new(),
            turn: 0,
        }
    }
}

impl Default for Subscriptions {
    fn default() -> Subscriptions {
        Subscriptions::new()
    }
}

impl fmt::Debug for Subscriptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriptions")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// 24 bytes: there is one for each REQ that is open.
struct Subscription {
    key: SubKey,
    filters: Packed,
    /// The last event that it was asked about.
    turn: u32,
}

const _: () = assert!(size_of::<Option<Subscription>>() <= 24);

#[cfg(test)]
mod tests;
