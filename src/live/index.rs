//! The inverted index: from a key to the slots registered under it.
//!
//! Made for many keys with one slot each (an author, an event, a person who is mentioned) and few
//! keys with very many (a popular kind). An entry is 8 bytes: the key, and the only slot or else the
//! number of a list.
//!
//! Invariants: a slot is in an entry at most once; an entry has a slot, and a list has two or more.
//! So what was removed leaves nothing behind, and tables that became sparse give memory back.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use slab::Slab;

use super::keys::Key;
use crate::limits::{INDEX_SHRINK_ENTRIES_MIN, SUBSCRIPTIONS_SHARD_MAX};

/// The number of a subscription within its shard, below [`SUBSCRIPTIONS_SHARD_MAX`].
pub(super) type Slot = u32;

/// From keys to slots.
#[derive(Debug, Default)]
pub(super) struct Index {
    entries: HashTable<Posting>,
    lists: Slab<Vec<Slot>>,
}

impl Index {
    /// Registers `slot` under `key`. The same pair again does nothing, provided that no other slot
    /// was added to the key in between: all keys of a slot are added in a row.
    pub(super) fn add(&mut self, key: Key, slot: Slot) {
        debug_assert!((slot as usize) < SUBSCRIPTIONS_SHARD_MAX);
        let entry = self
            .entries
            .entry(spread(key), |posting| posting.key == key, Posting::spread);
        let posting = match entry {
            Entry::Vacant(vacant) => {
                vacant.insert(Posting { key, slots: slot });
                return;
            }
            Entry::Occupied(occupied) => occupied.into_mut(),
        };
        match posting.list() {
            Some(list) => {
                let list = &mut self.lists[list];
                if list.last() != Some(&slot) {
                    list.push(slot);
                }
            }
            None if posting.slots == slot => {}
            None => {
                let list = self.lists.insert(vec![posting.slots, slot]);
                posting.slots = LIST | Slot::try_from(list).expect("fewer lists than slots");
            }
        }
    }

    /// Takes `slot` from `key`; nothing happens if it is not there.
    pub(super) fn remove(&mut self, key: Key, slot: Slot) {
        let Ok(mut entry) = self
            .entries
            .find_entry(spread(key), |posting| posting.key == key)
        else {
            return;
        };
        let posting = entry.get_mut();
        if let Some(number) = posting.list() {
            let list = &mut self.lists[number];
            if let Some(position) = position(list, slot) {
                list.swap_remove(position);
            }
            if let [last] = list[..] {
                posting.slots = last;
                self.lists.remove(number);
            } else if list.len() < list.capacity() / 4 {
                list.shrink_to(list.len() * 2);
            }
        } else if posting.slots == slot {
            entry.remove();
            shrink_sparse(&mut self.entries, Posting::spread);
            if self.lists.is_empty() {
                self.lists.shrink_to_fit();
            }
        }
    }

    /// The slots registered under `key`.
    pub(super) fn get(&self, key: Key) -> &[Slot] {
        match self.entries.find(spread(key), |posting| posting.key == key) {
            None => &[],
            Some(posting) => match posting.list() {
                Some(list) => &self.lists[list],
                None => std::slice::from_ref(&posting.slots),
            },
        }
    }

    /// Entries there is room for.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.lists.is_empty()
    }
}

/// Gives memory of a table back that has become a fraction of what it was, seldom enough to cost
/// nothing a removal.
fn shrink_sparse<T>(table: &mut HashTable<T>, hash: impl Fn(&T) -> u64) {
    if table.capacity() >= INDEX_SHRINK_ENTRIES_MIN && table.len() < table.capacity() / 8 {
        table.shrink_to(table.len() * 2, hash);
    }
}

#[derive(Debug)]
struct Posting {
    key: Key,
    /// The only slot; or, marked with [`LIST`], the number of a list.
    slots: Slot,
}

impl Posting {
    fn list(&self) -> Option<usize> {
        (self.slots & LIST != 0).then_some((self.slots & !LIST) as usize)
    }

    fn spread(&self) -> u64 {
        spread(self.key)
    }
}

const LIST: Slot = 1 << 31;
const _: () = assert!(SUBSCRIPTIONS_SHARD_MAX <= LIST as usize);

/// A key is random but of 32 bits, and the table wants some in the upper half too.
fn spread(key: Key) -> u64 {
    u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Where `slot` is in `list`. In pieces, because a search without a place is vectorized.
fn position(list: &[Slot], slot: Slot) -> Option<usize> {
    const PIECE: usize = 64;
    let piece = list.chunks(PIECE).position(|piece| piece.contains(&slot))?;
    let start = piece * PIECE;
    list[start..]
        .iter()
        .position(|&other| other == slot)
        .map(|place| start + place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_under_a_key_once() {
        let mut index = Index::default();
        for slot in [1, 1, 2, 2, 3, 3] {
            index.add(7, slot);
        }
        assert_eq!(index.get(7), [1, 2, 3]);
        assert_eq!(index.get(8), [0; 0]);
        index.remove(7, 1);
        index.remove(7, 1);
        index.remove(7, 9);
        assert_eq!(index.get(7), [3, 2]);
    }

    #[test]
    fn a_key_with_one_slot_has_no_list() {
        let mut index = Index::default();
        index.add(7, 1);
        assert!(index.lists.is_empty());
        index.add(7, 2);
        assert_eq!(index.lists.len(), 1);
        index.remove(7, 1);
        assert_eq!((index.get(7), index.lists.len()), (&[2][..], 0));
        index.remove(7, 1);
        assert_eq!(index.get(7), [2]);
        index.remove(7, 2);
        assert!(index.is_empty());
    }
}
