//! Under which keys a filter is registered, and which keys an event has.
//!
//! The rule: a filter is registered in one dimension, under each of its values there, so that every
//! event it matches has at least one of its keys. The dimension is the narrowest:
//!
//! 1. `ids`: an id is one event.
//! 2. Else, of `authors` and the tag letters, the one with the fewest values; of equals, `authors`
//!    (a tag value is open to everybody), then the letter that comes first.
//! 3. Else `kinds`. Else the one key that every event has.
//!
//! Under 2., where the filter also names at most [`COMBINED_KINDS_MAX`] kinds, each value is
//! combined with each kind: a reaction then never looks at those who follow its author's notes. So
//! a filter has at most that many keys a value, and values are bounded a connection. A filter that
//! can match nothing is not kept, and has no key.
//!
//! A key is a 32-bit fingerprint under a seed that no client knows. Two values may share one; then
//! a subscription is looked at in vain, which its full check makes harmless.

use std::hash::{BuildHasher, Hasher};

use foldhash::quality::RandomState;

use super::packed::{Parts, Values};
use crate::limits::COMBINED_KINDS_MAX;
use crate::nostr::Event;

/// What stands for a value of a dimension, with or without a kind, in the index.
pub(super) type Key = u32;

/// The seed that makes keys of values.
#[derive(Debug)]
pub(super) struct Keys {
    seed: RandomState,
    /// With fewer bits, values collide: for tests.
    mask: Key,
}

impl Keys {
    pub(super) fn new() -> Keys {
        Keys::with_mask(Key::MAX)
    }

    /// Keys of which only the bits in `mask` differ.
    pub(super) fn with_mask(mask: Key) -> Keys {
        Keys {
            seed: RandomState::default(),
            mask,
        }
    }

    /// Calls `each` for the classes and keys that a filter is registered under; the same ones
    /// whenever it is asked, some perhaps twice.
    pub(super) fn of_filter(&self, filter: Parts<'_>, mut each: impl FnMut(Class, Key)) {
        let (kinds, narrowest) = narrowest(filter);
        match narrowest {
            Narrowest::Ids(ids) => {
                ids.iter()
                    .for_each(|id| each(Class::alone(ID), self.alone(self.value(ID, id))));
            }
            Narrowest::Authors(authors) => {
                for author in authors {
                    self.of_value(AUTHOR, author, kinds, &mut each);
                }
            }
            Narrowest::Tag(letter, values) => {
                values.for_each(|value| self.of_value(letter, value, kinds, &mut each));
            }
            Narrowest::Kinds(kinds) => {
                for kind in kinds {
                    each(Class::alone(KIND), self.alone(self.value(KIND, kind)));
                }
            }
            Narrowest::Everything => each(Class::alone(ALL), self.alone(self.value(ALL, &[]))),
        }
    }

    /// Calls `each` for the keys of `event` in classes that are in use, some perhaps twice.
    pub(super) fn of_event(&self, event: &Event, used: &Registered, mut each: impl FnMut(Key)) {
        let kind = event.kind();
        for (dimension, value) in [
            (ALL, &[] as &[u8]),
            (KIND, &kind.to_be_bytes()),
            (ID, event.id()),
            (AUTHOR, event.pubkey()),
        ]
        .into_iter()
        .chain(event.index_tags())
        {
            let alone = used.has(Class::alone(dimension));
            let combined = used.has(Class::combined(dimension, kind));
            if !alone && !combined {
                continue;
            }
            let value = self.value(dimension, value);
            if alone {
                each(self.alone(value));
            }
            if combined {
                each(self.combined(value, kind));
            }
        }
    }

    /// The keys of one author or tag value of a filter.
    fn of_value(
        &self,
        dimension: u8,
        value: &[u8],
        kinds: Option<&[[u8; 2]]>,
        each: &mut impl FnMut(Class, Key),
    ) {
        let value = self.value(dimension, value);
        match kinds {
            Some(kinds) if kinds.len() <= COMBINED_KINDS_MAX => {
                for kind in kinds {
                    let kind = u16::from_be_bytes(*kind);
                    each(Class::combined(dimension, kind), self.combined(value, kind));
                }
            }
            _ => each(Class::alone(dimension), self.alone(value)),
        }
    }

    fn value(&self, dimension: u8, value: &[u8]) -> u64 {
        let mut hasher = self.seed.build_hasher();
        hasher.write_u8(dimension);
        hasher.write(value);
        hasher.finish()
    }

    fn alone(&self, value: u64) -> Key {
        value as Key & self.mask
    }

    fn combined(&self, value: u64, kind: u16) -> Key {
        self.seed.hash_one((value, kind)) as Key & self.mask
    }
}

/// How many registrations each class of keys has, so that an event is not looked up where nobody
/// listens.
#[derive(Debug)]
pub(super) struct Registered(Box<[u32; Class::COUNT]>);

impl Registered {
    pub(super) fn new() -> Registered {
        Registered(Box::new([0; Class::COUNT]))
    }

    pub(super) fn add(&mut self, class: Class) {
        self.0[class.0 as usize] += 1;
    }

    pub(super) fn remove(&mut self, class: Class) {
        let count = &mut self.0[class.0 as usize];
        assert!(*count > 0, "what is removed was registered");
        *count -= 1;
    }

    pub(super) fn has(&self, class: Class) -> bool {
        self.0[class.0 as usize] > 0
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|&count| count == 0)
    }
}

/// A set of keys that are counted together: a dimension alone, or a dimension with a kind. Classes
/// with a kind share 256 counts; one that shares a count in use is looked up in vain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Class(u16);

impl Class {
    const COUNT: usize = 512;

    fn alone(dimension: u8) -> Class {
        Class(u16::from(dimension))
    }

    fn combined(dimension: u8, kind: u16) -> Class {
        let spread = (u32::from(kind).wrapping_mul(0x9e37_79b1) >> 24) as u8;
        Class(256 + u16::from(spread ^ dimension))
    }
}

/// Dimensions: these, and the tag letters, which are ASCII.
const ALL: u8 = 0;
const KIND: u8 = 1;
const ID: u8 = 2;
const AUTHOR: u8 = 3;

/// The dimension that a filter is registered in, by the rule at the head of this file.
enum Narrowest<'a> {
    Ids(&'a [[u8; 32]]),
    Authors(&'a [[u8; 32]]),
    Tag(u8, Values<'a>),
    Kinds(&'a [[u8; 2]]),
    Everything,
}

/// The kinds of a filter, and its narrowest dimension.
fn narrowest(mut filter: Parts<'_>) -> (Option<&[[u8; 2]]>, Narrowest<'_>) {
    let kinds = filter.kinds();
    let _ = (filter.since(), filter.until());
    let authors = filter.authors();
    let narrowest = match filter.ids() {
        Some(ids) => Narrowest::Ids(ids),
        None => {
            let tag = filter
                .tags()
                .min_by_key(|(letter, values)| (values.len(), *letter));
            match (authors, tag, kinds) {
                (Some(authors), Some((_, values)), _) if authors.len() <= values.len() => {
                    Narrowest::Authors(authors)
                }
                (_, Some((letter, values)), _) => Narrowest::Tag(letter, values),
                (Some(authors), None, _) => Narrowest::Authors(authors),
                (None, None, Some(kinds)) => Narrowest::Kinds(kinds),
                (None, None, None) => Narrowest::Everything,
            }
        }
    };
    (kinds, narrowest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::packed::Packed;
    use crate::nostr::Filter;

    /// The classes that a filter is registered in, one for each key.
    fn classes(text: &str) -> Vec<Class> {
        let mut classes = Vec::new();
        let filter = Filter::parse(text, 1_000).unwrap();
        let packed = Packed::new(&[filter]);
        let keys = Keys::new();
        packed
            .each()
            .for_each(|filter| keys.of_filter(filter, |class, _| classes.push(class)));
        classes
    }

    /// `count` 64-digit values, in JSON.
    fn hex(count: usize) -> String {
        let values: Vec<String> = (0..count)
            .map(|number| format!("\"{number:064x}\""))
            .collect();
        values.join(",")
    }

    #[test]
    fn a_filter_is_registered_in_its_narrowest_dimension() {
        let (one, two) = (hex(1), hex(2));
        for (text, expected) in [
            ("{}".to_owned(), vec![Class::alone(ALL)]),
            ("{\"kinds\":[1,2]}".to_owned(), vec![Class::alone(KIND); 2]),
            (
                format!("{{\"ids\":[{two}],\"authors\":[{one}],\"kinds\":[1]}}"),
                vec![Class::alone(ID); 2],
            ),
            (
                format!("{{\"authors\":[{two}]}}"),
                vec![Class::alone(AUTHOR); 2],
            ),
            (
                format!("{{\"authors\":[{two}],\"#p\":[{two}]}}"),
                vec![Class::alone(AUTHOR); 2],
            ),
            (
                format!("{{\"authors\":[{two}],\"#p\":[{one}]}}"),
                vec![Class::alone(b'p')],
            ),
            (
                format!("{{\"#p\":[{one}],\"#e\":[{one}]}}"),
                vec![Class::alone(b'e')],
            ),
            (
                format!("{{\"#p\":[{one}],\"#e\":[{two}]}}"),
                vec![Class::alone(b'p')],
            ),
            (
                "{\"#t\":[\"a\",\"b\"],\"kinds\":[1,2]}".to_owned(),
                [1, 2, 1, 2]
                    .map(|kind| Class::combined(b't', kind))
                    .to_vec(),
            ),
            (
                "{\"#t\":[\"a\"],\"kinds\":[1,2,3,4,5]}".to_owned(),
                vec![Class::alone(b't')],
            ),
            ("{\"#t\":[\"a\"],\"kinds\":[]}".to_owned(), vec![]),
            ("{\"since\":2,\"until\":1}".to_owned(), vec![]),
        ] {
            assert_eq!(classes(&text), expected, "{text}");
        }
    }

    #[test]
    fn dimensions_have_counts_of_their_own() {
        let dimensions = [ALL, KIND, ID, AUTHOR]
            .into_iter()
            .chain(b'A'..=b'Z')
            .chain(b'a'..=b'z');
        let mut counts: Vec<u16> = dimensions
            .map(|dimension| Class::alone(dimension).0)
            .collect();
        counts.dedup();
        assert_eq!(counts.len(), 56);
        assert!(counts.iter().all(|&count| count < 256));
    }

    #[test]
    fn one_value_in_two_dimensions_or_with_two_kinds_is_two_keys() {
        let keys = Keys::new();
        let value = keys.value(AUTHOR, &[1; 32]);
        assert_ne!(keys.alone(value), keys.alone(keys.value(ID, &[1; 32])));
        assert_ne!(keys.combined(value, 1), keys.combined(value, 2));
        assert_ne!(keys.combined(value, 1), keys.alone(value));
    }
}
