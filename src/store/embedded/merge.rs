//! Runs of one index, merged into one walk: newest first, then lowest id first.
//!
//! Between slices a walk is plain data: for each run the entry it stands at, and a heap of the runs
//! by that entry. No transaction and no cursor is kept. In a new slice a run is sought again only
//! when it has to move, from the key of the entry it stands at, which may have been removed
//! meanwhile. So every step costs at most one descent of the tree, and a slice of any size gets
//! somewhere.
//!
//! A run's entry may be older than the slice's snapshot. That is sound: what has been added since
//! lies above the watermark and is skipped by the caller, and what has been removed is not found
//! when its event is fetched.

use std::ops::Bound;

use heed::types::Bytes;
use heed::{RoRange, RoTxn, WithoutTls};

use super::layout::{self, Entry, Index, Key};
use super::plan::Runs;
use super::query::Meter;
use super::reader::Moment;
use super::store_error;
use super::tables::Tables;
use super::young::{LAYERS_MAX, Tree, Young};
use crate::store::StoreError;

/// What a walk has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The next entry. It is given again until the walk is told to move on.
    Entry(Entry),
    /// The slice is used up.
    Pause,
    /// There are no more.
    End,
}

/// One slice's view of the store, and the cursors opened in it.
pub struct View<'t> {
    /// The databases.
    pub tables: &'t Tables,
    /// The slice's transaction.
    pub txn: &'t RoTxn<'t, WithoutTls>,
    /// What is not in the trees yet.
    pub young: &'t Young,
    cursors: Vec<Cursor<'t>>,
}

/// Where a run is read: in its tree, and beside it.
struct Cursor<'t> {
    tree: RoRange<'t, Bytes, Bytes>,
    aside: Option<Box<Aside>>,
}

/// What a run has among the young entries, merged with its tree. An entry that is in both is given
/// once.
struct Aside {
    /// The tree's next entry.
    tree: Option<Entry>,
    /// Of each layer: the next entry, and the place behind it.
    layers: [(Option<Entry>, usize); LAYERS_MAX],
}

impl<'t> View<'t> {
    /// A view with no cursor yet.
    pub fn new(tables: &'t Tables, moment: &'t Moment<'t>) -> View<'t> {
        View {
            tables,
            txn: &moment.txn,
            young: &moment.young,
            cursors: Vec::new(),
        }
    }

    /// Opens a cursor and reads its first entry.
    fn seek(
        &mut self,
        index: Index,
        prefix: &[u8],
        from: Bound<&[u8]>,
    ) -> Result<(u32, Option<Entry>), StoreError> {
        let range = (from, Bound::Unbounded);
        let tree = self.tables.index(index).range(self.txn, &range);
        let mut tree = tree.map_err(store_error)?;
        let mut aside = self.seek_aside(index, prefix, from)?;
        if let Some(aside) = &mut aside {
            aside.tree = parse_next(&mut tree, index, prefix)?;
        }
        self.cursors.push(Cursor { tree, aside });
        let cursor = self.cursors.len() as u32 - 1;
        Ok((cursor, self.read(cursor, index, prefix)?))
    }

    /// Where a run begins among the young entries, if it has any.
    fn seek_aside(
        &self,
        index: Index,
        prefix: &[u8],
        from: Bound<&[u8]>,
    ) -> Result<Option<Box<Aside>>, StoreError> {
        let tree = Tree::of(index);
        let mut aside: Option<Box<Aside>> = None;
        for (nth, layer) in self.young.layers.iter().enumerate() {
            let at = layer.seek(tree, from);
            let Some((key, value)) = layer.at(tree, at) else {
                continue;
            };
            if let Some(entry) = young_entry(index, prefix, key, value)? {
                let aside = aside.get_or_insert_with(|| {
                    Box::new(Aside {
                        tree: None,
                        layers: [(None, 0); LAYERS_MAX],
                    })
                });
                aside.layers[nth] = (Some(entry), at + 1);
            }
        }
        Ok(aside)
    }

    /// Reads a cursor's next entry; `None` at the end of its run.
    #[inline]
    fn read(
        &mut self,
        cursor: u32,
        index: Index,
        prefix: &[u8],
    ) -> Result<Option<Entry>, StoreError> {
        let Cursor { tree, aside } = &mut self.cursors[cursor as usize];
        match aside {
            None => parse_next(tree, index, prefix),
            Some(aside) => aside.next(tree, self.young, index, prefix),
        }
    }
}

impl Aside {
    fn next(
        &mut self,
        tree: &mut RoRange<'_, Bytes, Bytes>,
        young: &Young,
        index: Index,
        prefix: &[u8],
    ) -> Result<Option<Entry>, StoreError> {
        let place = |entry: &Option<Entry>| entry.map(|entry| (entry.age, entry.id));
        let layers = self.layers.iter().map(|(entry, _)| place(entry));
        let Some(first) = layers.chain([place(&self.tree)]).flatten().min() else {
            return Ok(None);
        };
        let mut found = None;
        if place(&self.tree) == Some(first) {
            let next = parse_next(tree, index, prefix)?;
            found = std::mem::replace(&mut self.tree, next);
        }
        for (nth, (entry, at)) in self.layers.iter_mut().enumerate() {
            if place(entry) != Some(first) {
                continue;
            }
            let next = match young.layers[nth].at(Tree::of(index), *at) {
                Some((key, value)) => young_entry(index, prefix, key, value)?,
                None => None,
            };
            *at += 1;
            // What a newer layer says counts.
            found = std::mem::replace(entry, next);
        }
        Ok(found)
    }
}

#[inline]
fn parse_next(
    tree: &mut RoRange<'_, Bytes, Bytes>,
    index: Index,
    prefix: &[u8],
) -> Result<Option<Entry>, StoreError> {
    match tree.next() {
        Some(Ok((key, value))) => layout::parse_entry(index, prefix, key, value),
        Some(Err(error)) => Err(store_error(error)),
        None => Ok(None),
    }
}

/// A young entry. It may have outlived its event: whoever counts entries has to look, as at one that
/// expires.
fn young_entry(
    index: Index,
    prefix: &[u8],
    key: &[u8],
    value: &[u8],
) -> Result<Option<Entry>, StoreError> {
    let entry = layout::parse_entry(index, prefix, key, value)?;
    Ok(entry.map(|entry| Entry {
        expires: true,
        ..entry
    }))
}

/// No cursor in this slice.
const NO_CURSOR: u32 = u32::MAX;

/// The walk.
pub struct Merge {
    runs: Runs,
    youngest: u64,
    oldest: u64,
    /// Where each run stands; as many as have been sought.
    heads: Vec<Entry>,
    /// Each run's cursor in this slice.
    cursors: Vec<u32>,
    /// Runs that have not ended, as a heap by their entries.
    heap: Vec<u32>,
    /// The first run has been read and must move before the next look.
    moved_on: bool,
    /// The last entry given: an event may stand in several runs of a tag.
    last: Option<u64>,
}

impl Merge {
    /// A walk over entries with an age from `youngest` to `oldest`, both included.
    pub fn new(runs: Runs, youngest: u64, oldest: u64) -> Merge {
        let len = runs.len();
        Merge {
            runs,
            youngest,
            oldest,
            heads: Vec::with_capacity(len),
            cursors: Vec::with_capacity(len),
            heap: Vec::with_capacity(len),
            moved_on: false,
            last: None,
        }
    }

    /// Forgets the cursors of the slice before.
    pub fn resume(&mut self) {
        self.cursors.fill(NO_CURSOR);
    }

    /// The next entry, or why there is none.
    pub fn peek(&mut self, view: &mut View<'_>, meter: &mut Meter) -> Result<Step, StoreError> {
        while self.heads.len() < self.runs.len() {
            self.open_next(view)?;
            if meter.entry() {
                return Ok(Step::Pause);
            }
        }
        loop {
            if self.moved_on {
                self.step(view)?;
                self.moved_on = false;
                if meter.entry() {
                    return Ok(Step::Pause);
                }
            }
            let Some(&run) = self.heap.first() else {
                return Ok(Step::End);
            };
            let entry = self.heads[run as usize];
            if self.last == Some(entry.seq) {
                self.moved_on = true;
                continue;
            }
            return Ok(Step::Entry(entry));
        }
    }

    /// Says that the entry given last has been dealt with.
    pub fn advance(&mut self) {
        if let Some(&run) = self.heap.first() {
            self.last = Some(self.heads[run as usize].seq);
            self.moved_on = true;
        }
    }

    /// Seeks the first entry of a run that has not been looked at.
    fn open_next(&mut self, view: &mut View<'_>) -> Result<(), StoreError> {
        let run = self.heads.len();
        let prefix = self.runs.prefix(run);
        let mut key = Key::new();
        key.push(prefix).push(&self.youngest.to_be_bytes());
        let (cursor, entry) =
            view.seek(self.runs.index, prefix, Bound::Included(key.as_bytes()))?;
        self.cursors.push(cursor);
        match entry.filter(|entry| entry.age <= self.oldest) {
            Some(entry) => {
                self.heads.push(entry);
                self.heap.push(run as u32);
                self.sift_up();
            }
            None => self.heads.push(Entry {
                age: u64::MAX,
                id: u128::MAX,
                seq: 0,
                kind: 0,
                who: 0,
                expires: false,
            }),
        }
        Ok(())
    }

    /// Moves the heap's first run on by one entry.
    fn step(&mut self, view: &mut View<'_>) -> Result<(), StoreError> {
        let run = self.heap[0] as usize;
        let prefix = self.runs.prefix(run);
        let entry = match self.cursors[run] {
            NO_CURSOR => {
                let head = &self.heads[run];
                let mut key = Key::new();
                key.push(prefix).push_order(head.age, head.id);
                let (cursor, entry) =
                    view.seek(self.runs.index, prefix, Bound::Excluded(key.as_bytes()))?;
                self.cursors[run] = cursor;
                entry
            }
            cursor => view.read(cursor, self.runs.index, prefix)?,
        };
        match entry.filter(|entry| entry.age <= self.oldest) {
            Some(entry) => self.heads[run] = entry,
            None => {
                self.heap.swap_remove(0);
            }
        }
        self.sift_down();
        Ok(())
    }

    #[inline]
    fn before(&self, a: u32, b: u32) -> bool {
        let (a, b) = (&self.heads[a as usize], &self.heads[b as usize]);
        (a.age, a.id) < (b.age, b.id)
    }

    /// Brings the last run of the heap to its place.
    fn sift_up(&mut self) {
        let mut at = self.heap.len() - 1;
        while at > 0 {
            let parent = (at - 1) / 2;
            if !self.before(self.heap[at], self.heap[parent]) {
                break;
            }
            self.heap.swap(at, parent);
            at = parent;
        }
    }

    /// Brings the first run of the heap to its place.
    fn sift_down(&mut self) {
        let mut at = 0;
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let Some(&left_run) = self.heap.get(left) else {
                return;
            };
            let child = match self.heap.get(right) {
                Some(&right_run) if self.before(right_run, left_run) => right,
                _ => left,
            };
            if !self.before(self.heap[child], self.heap[at]) {
                return;
            }
            self.heap.swap(at, child);
            at = child;
        }
    }
}
