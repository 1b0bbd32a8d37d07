//! Things with numbers: a table that grows without moving what it holds.
//!
//! A vector that doubles leaves its old half to the allocator, and what is small may lie in that for
//! ever; and a slab's entry says in a word of its own whether it is taken. Here entries are in
//! chunks that stay where they are, which is taken is a bit, and an entry is an `Option`: no larger
//! than the thing where that holds a pointer.
//!
//! Invariants: `with_room` names each chunk that is not full once, and no other. A chunk without
//! entries has no memory but its own 16 bytes.

use std::ops::{Index, IndexMut};

/// Entries that are allocated together.
const CHUNK: usize = u64::BITS as usize;

/// See the head of this file.
#[derive(Debug)]
pub struct Table<T> {
    chunks: Vec<Chunk<T>>,
    with_room: Vec<u32>,
    len: usize,
}

#[derive(Debug)]
struct Chunk<T> {
    /// A bit for each entry.
    used: u64,
    /// `None` while none is taken.
    entries: Option<Box<[Option<T>; CHUNK]>>,
}

impl<T> Table<T> {
    /// Adds a thing and returns its number, a low one.
    ///
    /// # Panics
    ///
    /// If there are 2^32 chunks.
    pub fn insert(&mut self, thing: T) -> usize {
        let number = self.with_room.last().copied().unwrap_or_else(|| {
            let number = u32::try_from(self.chunks.len()).expect("fewer chunks");
            self.chunks.push(Chunk {
                used: 0,
                entries: None,
            });
            self.with_room.push(number);
            number
        });
        let chunk = &mut self.chunks[number as usize];
        let free = || Box::new([const { None }; CHUNK]);
        let entries = chunk.entries.get_or_insert_with(free);
        let place = chunk.used.trailing_ones() as usize;
        entries[place] = Some(thing);
        chunk.used |= 1 << place;
        if chunk.used == u64::MAX {
            self.with_room.pop();
        }
        self.len += 1;
        number as usize * CHUNK + place
    }

    /// Takes a thing out, if there is one of this number.
    pub fn remove(&mut self, number: usize) -> Option<T> {
        let chunk = self.chunks.get_mut(number / CHUNK)?;
        let thing = chunk.entries.as_mut()?[number % CHUNK].take()?;
        if chunk.used == u64::MAX {
            self.with_room.push((number / CHUNK) as u32);
        }
        chunk.used &= !(1 << (number % CHUNK));
        if chunk.used == 0 {
            chunk.entries = None;
        }
        self.len -= 1;
        if self.len == 0 {
            *self = Table::default();
        }
        Some(thing)
    }

    /// The thing of this number.
    #[inline]
    pub fn get(&self, number: usize) -> Option<&T> {
        let chunk = self.chunks.get(number / CHUNK)?;
        chunk.entries.as_ref()?[number % CHUNK].as_ref()
    }

    /// The thing of this number.
    #[inline]
    pub fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        let chunk = self.chunks.get_mut(number / CHUNK)?;
        chunk.entries.as_mut()?[number % CHUNK].as_mut()
    }

    /// All things.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let chunks = self.chunks.iter_mut();
        let entries = chunks.flat_map(|chunk| chunk.entries.as_deref_mut());
        entries.flat_map(|entries| entries.iter_mut().flatten())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What all numbers in use are below.
    pub fn numbers_end(&self) -> usize {
        self.chunks.len() * CHUNK
    }
}

impl<T> Default for Table<T> {
    /// An empty one, which holds no memory.
    fn default() -> Table<T> {
        Table {
            chunks: Vec::new(),
            with_room: Vec::new(),
            len: 0,
        }
    }
}

impl<T> Index<usize> for Table<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: usize) -> &T {
        self.get(number).expect("a number in use")
    }
}

impl<T> IndexMut<usize> for Table<T> {
    #[inline]
    fn index_mut(&mut self, number: usize) -> &mut T {
        self.get_mut(number).expect("a number in use")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Inserts at 0, else removes what is somewhere among the things that are there.
    fn check(steps: Vec<(bool, usize)>) -> Result<(), TestCaseError> {
        let (mut table, mut model) = (Table::default(), BTreeMap::new());
        for (step, (inserts, pick)) in steps.into_iter().enumerate() {
            if inserts || model.is_empty() {
                let number = table.insert(Box::new(step));
                prop_assert!(model.insert(number, step).is_none(), "a number of its own");
                prop_assert!(number < table.numbers_end());
            } else {
                let number = *model.keys().nth(pick % model.len()).expect("one of them");
                prop_assert_eq!(
                    table.remove(number).map(|thing| *thing),
                    model.remove(&number)
                );
                prop_assert!(table.remove(number).is_none() && table.get(number).is_none());
            }
            prop_assert_eq!(table.len(), model.len());
            let most = table.chunks.iter().filter(|chunk| chunk.used == 0);
            prop_assert!(most.clone().all(|chunk| chunk.entries.is_none()));
        }
        prop_assert_eq!(
            table.iter_mut().map(|thing| **thing).collect::<Vec<_>>(),
            model.values().copied().collect::<Vec<_>>()
        );
        for (number, step) in &model {
            prop_assert_eq!(*table[*number], *step);
        }
        for number in model.into_keys() {
            table.remove(number);
        }
        prop_assert_eq!(table.numbers_end(), 0, "an empty table holds no memory");
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn it_is_a_map_that_chooses_its_keys(
            steps in vec((prop::bool::weighted(0.6), any::<usize>()), 0..500),
        ) {
            check(steps)?;
        }
    }

    #[test]
    fn numbers_that_were_given_back_are_used_again() {
        let mut table = Table::default();
        let numbers: Vec<usize> = (0..1_000).map(|thing| table.insert(thing)).collect();
        for number in numbers.iter().filter(|number| *number % 3 == 0) {
            table.remove(*number);
        }
        let end = table.numbers_end();
        for thing in 0..334 {
            table.insert(thing);
        }
        assert_eq!((table.len(), table.numbers_end()), (1_000, end));
        assert!(table.with_room.len() <= 1);
    }
}
