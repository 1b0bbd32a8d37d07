//! The subscriptions of one shard, found by event.
//!
//! An event has few keys and is looked up under each; whom it finds there is asked in full. So what
//! an event costs depends on whom it nearly concerns, not on how many listen.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::quality::RandomState;
use hashbrown::HashTable;
use slab::Slab;

use super::index::{Index, Slot, shrink_sparse};
use super::keys::{Keys, Registered};
use crate::limits::SUBSCRIPTIONS_SHARD_MAX;
use crate::nostr::{Event, Filter};

/// The shard's name for a subscription of one of its connections. The number means nothing here.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SubKey(pub u64);

/// The subscriptions of one shard.
pub struct Subscriptions {
    slots: Slab<Subscription>,
    by_key: HashTable<Slot>,
    index: Index,
    keys: Keys,
    registered: Registered,
    seed: RandomState,
    /// Number of the event that is matched, to ask a subscription with several keys once.
    turn: u32,
}

impl Subscriptions {
    /// No subscriptions.
    pub fn new() -> Subscriptions {
        Subscriptions::with_keys(Keys::new())
    }

    /// Adds a subscription: from now on it is found by every event that one of `filters` matches.
    /// `limit` has no say in that (NIP-01: it is about the initial query).
    ///
    /// # Panics
    ///
    /// If `key` is here already, or [`SUBSCRIPTIONS_SHARD_MAX`] subscriptions are.
    pub fn insert(&mut self, key: SubKey, filters: Arc<[Filter]>) {
        assert!(
            self.find(key).is_none(),
            "a key is inserted once until it is removed"
        );
        assert!(
            self.slots.len() < SUBSCRIPTIONS_SHARD_MAX,
            "no slot is left"
        );
        let slot = self.slots.insert(Subscription {
            key,
            filters,
            turn: self.turn,
        }) as Slot;
        for filter in &*self.slots[slot as usize].filters {
            self.keys.of_filter(filter, |class, key| {
                self.registered.add(class);
                self.index.add(key, slot);
            });
        }
        let hash = |slot: &Slot| self.seed.hash_one(self.slots[*slot as usize].key);
        self.by_key
            .insert_unique(self.seed.hash_one(key), slot, hash);
    }

    /// Removes a subscription, and all that it occupied. False: there is none of this key.
    pub fn remove(&mut self, key: SubKey) -> bool {
        let Some(slot) = self.find(key) else {
            return false;
        };
        let found = self
            .by_key
            .find_entry(self.seed.hash_one(key), |&other| other == slot);
        found.expect("it was found just now").remove();
        shrink_sparse(&mut self.by_key, |slot| {
            self.seed.hash_one(self.slots[*slot as usize].key)
        });
        let subscription = self.slots.remove(slot as usize);
        for filter in &*subscription.filters {
            self.keys.of_filter(filter, |class, key| {
                self.registered.remove(class);
                self.index.remove(key, slot);
            });
        }
        if self.slots.is_empty() {
            self.slots.shrink_to_fit();
        }
        true
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
                .for_each(|(_, subscription)| subscription.turn = 0);
            self.turn = 1;
        }
        self.keys.of_event(event, &self.registered, |key| {
            for &slot in self.index.get(key) {
                let subscription = &mut self.slots[slot as usize];
                if subscription.turn == self.turn {
                    continue;
                }
                subscription.turn = self.turn;
                if subscription
                    .filters
                    .iter()
                    .any(|filter| filter.matches(event))
                {
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
            slots: Slab::new(),
            by_key: HashTable::new(),
            index: Index::default(),
            keys,
            registered: Registered::new(),
            seed: RandomState::default(),
            turn: 0,
        }
    }

    fn find(&self, key: SubKey) -> Option<Slot> {
        let is_it = |slot: &Slot| self.slots[*slot as usize].key == key;
        self.by_key.find(self.seed.hash_one(key), is_it).copied()
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

/// 32 bytes: there is one for each REQ that is open.
struct Subscription {
    key: SubKey,
    filters: Arc<[Filter]>,
    /// The last event that it was asked about.
    turn: u32,
}

const _: () = assert!(size_of::<Subscription>() <= 32);

#[cfg(test)]
mod tests;
