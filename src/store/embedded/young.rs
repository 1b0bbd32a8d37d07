//! Index entries on their way into their trees.
//!
//! The keys of an index are all over the place: one event goes to a page of its own in most of them,
//! and a commit that writes them one group at a time pays for a page an entry. So a group writes its
//! events, which are what an answer promises, and its index entries are *young*: they are kept here,
//! in memory, in the order of their keys, until there are many that share a page. After a sudden end
//! they are made anew from the events.
//!
//! A [`Layer`] never changes. A few of them, the oldest first, are what a reader sees beside the
//! trees: [`Young`]. Whoever reads takes it *before* the transaction: what leaves it later is in the
//! transaction's trees then, so that an entry may be seen twice but is never missed. Everything
//! behind its last sequence is for live delivery, whatever the trees hold by then.
//!
//! An entry may outlive its event here: one that was removed has left the trees, and is not found
//! where its event is looked for.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::layout::{self, Index};
use crate::nostr::event::Event;

/// A tree of index entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tree {
    /// The `id` database.
    Id,
    /// As [`Index::Time`].
    Time,
    /// As [`Index::Kind`].
    Kind,
    /// As [`Index::Author`].
    Author,
    /// As [`Index::AuthorKind`].
    AuthorKind,
    /// As [`Index::Tag`].
    Tag,
}

const TREES: [Tree; 6] = [
    Tree::Id,
    Tree::Time,
    Tree::Kind,
    Tree::Author,
    Tree::AuthorKind,
    Tree::Tag,
];

impl Tree {
    /// The tree of an index.
    pub fn of(index: Index) -> Tree {
        match index {
            Index::Time => Tree::Time,
            Index::Kind => Tree::Kind,
            Index::Author => Tree::Author,
            Index::AuthorKind => Tree::AuthorKind,
            Index::Tag => Tree::Tag,
        }
    }
}

/// Layers at one time: one that goes into the trees, one that grows, and what came last.
pub const LAYERS_MAX: usize = 3;

/// What readers see beside the trees.
#[derive(Default)]
pub struct Young {
    /// The last sequence that it speaks of.
    pub last_seq: u64,
    /// The oldest first.
    pub layers: Vec<Arc<Layer>>,
    /// Events that are in the journal and not in their tree, by their sequences, in that order.
    pub held: Vec<(u64, Arc<Event>)>,
}

impl Young {
    /// The event of a sequence, if it is held.
    pub fn held(&self, seq: u64) -> Option<&Event> {
        let at = self.held.binary_search_by_key(&seq, |(seq, _)| *seq);
        Some(&self.held[at.ok()?].1)
    }

    /// The newest value of a key.
    pub fn get(&self, tree: Tree, key: &[u8]) -> Option<&[u8]> {
        self.layers
            .iter()
            .rev()
            .find_map(|layer| layer.get(tree, key))
    }

    /// The first key behind a bound, and its newest value.
    pub fn next(&self, tree: Tree, from: Bound<&[u8]>) -> Option<(&[u8], &[u8])> {
        let layers = self.layers.iter().rev();
        let next = layers.filter_map(|layer| layer.at(tree, layer.seek(tree, from)));
        next.min_by_key(|(key, _)| *key)
    }

    /// The last key that is not behind this one, and its newest value.
    pub fn last(&self, tree: Tree, to: &[u8]) -> Option<(&[u8], &[u8])> {
        let last = |layer: &'_ Arc<Layer>| layer.seek(tree, Bound::Excluded(to));
        let layers = self.layers.iter();
        let last = layers.filter_map(|layer| layer.at(tree, last(layer).checked_sub(1)?));
        last.max_by_key(|(key, _)| *key)
    }

    /// Keys from one to another, both included, and their newest values.
    pub fn between(&self, tree: Tree, from: &[u8], to: &[u8]) -> BTreeMap<&[u8], &[u8]> {
        let mut found = BTreeMap::new();
        for layer in &self.layers {
            let mut at = layer.seek(tree, Bound::Included(from));
            while let Some((key, value)) = layer.at(tree, at).filter(|(key, _)| *key <= to) {
                found.insert(key, value);
                at += 1;
            }
        }
        found
    }

    /// Entries of all layers.
    pub fn entries(&self) -> usize {
        self.layers.iter().map(|layer| layer.len()).sum()
    }
}

/// Entries in the order of trees and keys, each key once.
#[derive(Default)]
pub struct Layer {
    chunks: Vec<Arc<[u8]>>,
    places: Vec<Place>,
    /// Where each tree's entries end.
    ends: [u32; TREES.len()],
}

/// Where an entry lies: its key, and its value behind it.
#[derive(Clone, Copy)]
struct Place {
    /// The key's first bytes, as a number: most comparisons need no more.
    head: u64,
    at: u32,
    chunk: u16,
    key_len: u8,
    value_len: u8,
}

const _: () = assert!(layout::KEY_BYTES_MAX <= u8::MAX as usize);

impl Layer {
    /// Entries.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, tree: Tree, key: &[u8]) -> Option<&[u8]> {
        let at = self.seek(tree, Bound::Included(key));
        let (found, value) = self.at(tree, at)?;
        (found == key).then_some(value)
    }

    /// Where the entries of a tree begin that lie behind a bound.
    pub fn seek(&self, tree: Tree, from: Bound<&[u8]>) -> usize {
        let (key, passes) = match from {
            Bound::Unbounded => return self.begin(tree),
            Bound::Included(key) => (key, Ordering::Less),
            Bound::Excluded(key) => (key, Ordering::Equal),
        };
        let (begin, end) = (self.begin(tree), self.ends[tree as usize] as usize);
        let head = head(key);
        begin
            + self.places[begin..end].partition_point(|place| {
                let order = place.head.cmp(&head);
                order.then_with(|| self.key(place).cmp(key)) <= passes
            })
    }

    /// The key and the value at a place that [`seek`](Self::seek) has given, or behind it; `None`
    /// outside of the tree.
    pub fn at(&self, tree: Tree, at: usize) -> Option<(&[u8], &[u8])> {
        if !(self.begin(tree)..self.ends[tree as usize] as usize).contains(&at) {
            return None;
        }
        let place = &self.places[at];
        Some((self.key(place), self.value(place)))
    }

    /// Tree, key and value, from a place on.
    pub fn from(&self, at: usize) -> impl Iterator<Item = (Tree, &[u8], &[u8])> {
        (at..self.places.len()).map(|at| {
            let tree = TREES[self.ends.partition_point(|end| *end as usize <= at)];
            let place = &self.places[at];
            (tree, self.key(place), self.value(place))
        })
    }

    /// Both together; of a key that both have, what the newer one says.
    pub fn merged(older: &Layer, newer: &Layer) -> Layer {
        let mut chunks = older.chunks.clone();
        let moved = chunks.len() as u16;
        chunks.extend_from_slice(&newer.chunks);
        let mut places = Vec::with_capacity(older.len() + newer.len());
        let mut ends = [0; TREES.len()];
        for tree in TREES {
            let mut old = older.of(tree);
            for place in newer.of(tree) {
                let order = |old: &Place| {
                    let order = old.head.cmp(&place.head);
                    order.then_with(|| older.key(old).cmp(newer.key(place)))
                };
                let (before, rest) = old.split_at(leap(old, |old| order(old) == Ordering::Less));
                places.extend_from_slice(before);
                let replaces = rest.first().is_some_and(|old| order(old).is_eq());
                old = &rest[usize::from(replaces)..];
                places.push(Place {
                    chunk: place.chunk + moved,
                    ..*place
                });
            }
            places.extend_from_slice(old);
            ends[tree as usize] = places.len() as u32;
        }
        Layer {
            chunks,
            places,
            ends,
        }
    }

    /// The same in one piece: pieces are counted by a small number.
    pub fn packed(&self) -> Layer {
        let mut bytes = Vec::with_capacity(self.chunks.iter().map(|chunk| chunk.len()).sum());
        let mut places = Vec::with_capacity(self.len());
        for place in &self.places {
            let at = bytes.len() as u32;
            let chunk = 0;
            places.push(Place {
                at,
                chunk,
                ..*place
            });
            bytes.extend_from_slice(self.key(place));
            bytes.extend_from_slice(self.value(place));
        }
        Layer {
            chunks: vec![bytes.into()],
            places,
            ends: self.ends,
        }
    }

    /// Pieces that its bytes lie in.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    fn begin(&self, tree: Tree) -> usize {
        match tree as usize {
            0 => 0,
            tree => self.ends[tree - 1] as usize,
        }
    }

    fn of(&self, tree: Tree) -> &[Place] {
        &self.places[self.begin(tree)..self.ends[tree as usize] as usize]
    }

    fn key(&self, place: &Place) -> &[u8] {
        &self.chunks[place.chunk as usize][place.at as usize..][..place.key_len as usize]
    }

    fn value(&self, place: &Place) -> &[u8] {
        let at = place.at as usize + place.key_len as usize;
        &self.chunks[place.chunk as usize][at..][..place.value_len as usize]
    }
}

/// How many places at the front are `before`, all of which come first. It looks in steps that double:
/// the few entries of a lone event pass thousands of places, those of a group lie close together.
fn leap(places: &[Place], before: impl Fn(&Place) -> bool) -> usize {
    let mut far = 1;
    while far <= places.len() && before(&places[far - 1]) {
        far *= 2;
    }
    let (near, far) = (far / 2, far.min(places.len()));
    near + places[near..far].partition_point(before)
}

fn head(key: &[u8]) -> u64 {
    let mut head = [0; 8];
    let len = key.len().min(8);
    head[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(head)
}

/// The entries of a group as they come.
#[derive(Default)]
pub struct Fresh {
    bytes: Vec<u8>,
    places: Vec<(Tree, Place, u32)>,
}

impl Fresh {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
    }

    /// Takes an entry of the group's event `nth` in.
    pub fn push(&mut self, tree: Tree, key: &[u8], value: &[u8], nth: u32) {
        let place = Place {
            head: head(key),
            at: self.bytes.len() as u32,
            chunk: 0,
            key_len: key.len() as u8,
            value_len: value.len() as u8,
        };
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.places.push((tree, place, nth));
    }

    /// A layer of the entries whose events are wanted. Of equal keys the last one counts.
    pub fn layer(&mut self, is_wanted: impl Fn(u32) -> bool) -> Layer {
        let bytes: Arc<[u8]> = self.bytes.as_slice().into();
        let key = |place: &Place| &bytes[place.at as usize..][..place.key_len as usize];
        self.places.retain(|(_, _, nth)| is_wanted(*nth));
        self.places
            .sort_unstable_by(|(tree, a, nth), (other, b, mth)| {
                let order = tree.cmp(other).then(a.head.cmp(&b.head));
                order
                    .then_with(|| key(a).cmp(key(b)))
                    .then_with(|| mth.cmp(nth))
            });
        self.places.dedup_by(|(tree, a, _), (kept, b, _)| {
            *tree == *kept && a.head == b.head && key(a) == key(b)
        });
        let mut ends = [0; TREES.len()];
        for tree in TREES {
            let end = self.places.partition_point(|(other, ..)| *other <= tree);
            ends[tree as usize] = end as u32;
        }
        Layer {
            places: self.places.iter().map(|(_, place, _)| *place).collect(),
            chunks: vec![bytes],
            ends,
        }
    }
}
