//! Random events that speak of each other, and random filters for them.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::nostr::kind::DELETION;

const LONG: &str =
    "a value that is too long to be a key as it is, so that the index holds its hash";
const HEX: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const VALUES: [&str; 8] = [
    "",
    "a",
    "aa",
    HEX,
    "00112233445566778899AABBCCDDEEFF00112233445566778899AABBCCDDEEFF",
    LONG,
    "\n\"\\ü\u{1}",
    "0x112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
];
const LETTERS: [&str; 6] = ["d", "e", "a", "p", "t", "T"];
const KINDS: [u16; 13] = [
    0, 1, 5, 5, 7, 62, 1_059, 1_059, 10_002, 20_001, 30_023, 30_023, 30_024,
];
/// Keys that there are.
pub const AUTHORS: usize = 4;
/// Most events of a pool.
pub const EVENTS_MAX: usize = 40;

/// A key, by its number.
pub fn author(number: usize) -> [u8; 32] {
    // The first two agree in the bytes that an index entry keeps.
    let mut author = [number as u8 / 2; 32];
    author[31] = number as u8;
    author
}

/// What a tag says: its letter, and a value that stands in [`VALUES`] or is an event's of the pool.
type Tag = (usize, usize);

#[derive(Clone, Debug)]
struct Draft {
    author: usize,
    at: u64,
    kind: u16,
    tags: Vec<Tag>,
    expires: Option<u64>,
    salt: u16,
}

fn tag() -> impl Strategy<Value = Tag> {
    (0..LETTERS.len(), 0..VALUES.len() + EVENTS_MAX)
}

/// Events that speak of each other.
pub fn pool() -> impl Strategy<Value = Vec<Event>> {
    let draft = (
        0..AUTHORS,
        0..9u64,
        prop::sample::select(&KINDS[..]),
        prop::collection::vec(tag(), 0..5),
        prop::option::weighted(0.15, 1..14u64),
        any::<u16>(),
    );
    let draft = draft.prop_map(|(author, at, kind, mut tags, expires, salt)| {
        if kind == DELETION {
            tags.iter_mut().skip(1).for_each(name_an_event);
        }
        Draft {
            author,
            at,
            kind,
            tags,
            expires,
            salt,
        }
    });
    prop::collection::vec(draft, 1..EVENTS_MAX).prop_map(|drafts| {
        let names = Names::of(&drafts);
        let event = |n: usize| names.event(&drafts, n);
        (0..drafts.len()).map(event).collect()
    })
}

/// Makes a tag one that names an event or its address.
fn name_an_event((letter, value): &mut Tag) {
    *letter = 1 + *letter % 2;
    *value = VALUES.len() + *value % EVENTS_MAX;
}

/// How events of a pool are called in tags and filters.
pub struct Names {
    ids: Vec<[u8; 32]>,
    keys: Vec<String>,
    addresses: Vec<String>,
}

impl Names {
    fn of(drafts: &[Draft]) -> Names {
        let id = |(n, draft): (usize, &Draft)| {
            let mut id = [0; 32];
            id[..2].copy_from_slice(&draft.salt.to_be_bytes());
            id[2] = n as u8;
            id
        };
        let key = |draft: &Draft| const_hex::encode(author(draft.author));
        let address = |draft: &Draft| {
            let first = draft
                .tags
                .iter()
                .find(|(letter, _)| LETTERS[*letter] == "d");
            let d = first.map_or("", |(_, value)| VALUES[value % VALUES.len()]);
            let d = if draft.kind < 30_000 { "" } else { d };
            format!("{}:{}:{d}", draft.kind, key(draft))
        };
        Names {
            ids: drafts.iter().enumerate().map(id).collect(),
            keys: drafts.iter().map(key).collect(),
            addresses: drafts.iter().map(address).collect(),
        }
    }

    /// Those of a pool.
    pub fn of_pool(pool: &[Event]) -> Names {
        let key = |event: &Event| const_hex::encode(event.pubkey());
        let address = |event: &Event| {
            let d = if event.kind() < 30_000 {
                ""
            } else {
                event.d_tag()
            };
            format!("{}:{}:{d}", event.kind(), key(event))
        };
        Names {
            ids: pool.iter().map(|event| *event.id()).collect(),
            keys: pool.iter().map(key).collect(),
            addresses: pool.iter().map(address).collect(),
        }
    }

    fn value(&self, (letter, value): Tag) -> String {
        let place = value % self.ids.len();
        match LETTERS[letter] {
            "e" if value >= VALUES.len() => const_hex::encode(self.ids[place]),
            "a" if value >= VALUES.len() => self.addresses[place].clone(),
            "p" if value >= VALUES.len() => self.keys[place].clone(),
            _ => VALUES[value % VALUES.len()].to_owned(),
        }
    }

    fn event(&self, drafts: &[Draft], n: usize) -> Event {
        let draft = &drafts[n];
        let tag = |tag: &Tag| [LETTERS[tag.0].to_owned(), self.value(*tag)];
        let mut tags: Vec<[String; 2]> = draft.tags.iter().map(tag).collect();
        let expires = draft
            .expires
            .map(|at| ["expiration".to_owned(), at.to_string()]);
        tags.extend(expires);
        let tags: Vec<[&str; 2]> = tags.iter().map(|[a, b]| [a.as_str(), b.as_str()]).collect();
        let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
        event(
            self.ids[n],
            author(draft.author),
            draft.at,
            draft.kind,
            &tags,
            "content",
        )
    }
}

/// A filter whose ids and tag values are places in a pool.
#[derive(Clone, Debug)]
pub struct Sketch {
    ids: Option<BTreeSet<usize>>,
    authors: Option<BTreeSet<usize>>,
    kinds: Option<BTreeSet<u16>>,
    tags: BTreeMap<usize, BTreeSet<usize>>,
    since: Option<u64>,
    until: Option<u64>,
    limit: Option<u64>,
}

/// Filters.
pub fn sketches(max: usize) -> impl Strategy<Value = Vec<Sketch>> {
    let kind = prop::sample::select(&KINDS[..]);
    let values = prop::collection::btree_set(0..VALUES.len() + EVENTS_MAX, 1..4);
    let sketch = (
        prop::option::weighted(0.15, prop::collection::btree_set(0..EVENTS_MAX + 5, 0..8)),
        prop::option::weighted(0.4, prop::collection::btree_set(0..AUTHORS + 1, 1..4)),
        prop::option::weighted(0.4, prop::collection::btree_set(kind, 1..4)),
        prop::collection::btree_map(0..LETTERS.len(), values, 0..3),
        prop::option::weighted(0.2, 0..9u64),
        prop::option::weighted(0.2, 0..9u64),
        prop::option::weighted(0.5, 0..12u64),
    );
    let sketch = sketch.prop_map(|(ids, authors, kinds, tags, since, until, limit)| Sketch {
        ids,
        authors,
        kinds,
        tags,
        since,
        until,
        limit,
    });
    prop::collection::vec(sketch, 1..=max)
}

impl Sketch {
    /// A place beyond the pool is an id that nobody has.
    pub fn filter(&self, names: &Names) -> Filter {
        let id = |place: &usize| names.ids.get(*place).copied().unwrap_or([9; 32]);
        let tag = |(&letter, values): (&usize, &BTreeSet<usize>)| {
            let value = |value: &usize| names.value((letter, *value)).into_bytes().into();
            let values: BTreeSet<Box<[u8]>> = values.iter().map(value).collect();
            (LETTERS[letter].as_bytes()[0], values.into_iter().collect())
        };
        let sorted = |ids: &BTreeSet<usize>| ids.iter().map(id).collect::<BTreeSet<_>>();
        let mut tags: Vec<(u8, Vec<Box<[u8]>>)> = self.tags.iter().map(tag).collect();
        tags.sort();
        Filter {
            ids: self
                .ids
                .as_ref()
                .map(|ids| sorted(ids).into_iter().collect()),
            authors: (self.authors.as_ref())
                .map(|authors| authors.iter().map(|n| author(*n)).collect()),
            kinds: (self.kinds.as_ref()).map(|kinds| kinds.iter().copied().collect()),
            tags,
            since: self.since,
            until: self.until,
            limit: self.limit,
        }
    }
}
