//! The writer's side of the young entries: what is published, and what is written to the trees when.
//!
//! Entries come in with their group. When there are enough of them, they are sealed: one layer, which
//! then goes into the trees in the order of its keys, a slice with each group, while the next one
//! grows. A slice is as large as what has come in and a little more, so that the writer's work is
//! even and a layer is through before the next is full.
//!
//! `meta` says up to which sequence all entries are in the trees: the last one of the last layer that
//! went through. What is behind it is made anew when the store is opened, whether a part of it had
//! got into the trees or not: writing an entry again changes nothing.
//!
//! Everything here follows commits: a group asks for its slice ([`Nursery::due`]), writes it, and
//! says that it is done. Of one that fails nothing is remembered.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heed::RwTxn;

use super::layout::{self, META_INDEXED, for_each_entry};
use super::store_error;
use super::tables::Tables;
use super::young::{Fresh, Layer, Tree, Young};
use crate::limits::{YOUNG_ENTRIES_MAX, YOUNG_SLICE_ENTRIES_MIN};
use crate::nostr::event::Event;
use crate::store::StoreError;

/// Parts of a layer that are gathered before they are merged into it.
const PARTS: usize = 16;
/// Pieces of what came last; more are put into one. Each of them is counted anew with each commit.
const CHUNKS_MAX: usize = 64;

/// Sequences.
pub type Seqs = HashSet<u64, foldhash::fast::RandomState>;

/// The young entries of a store.
#[derive(Default)]
pub struct Nursery {
    published: Mutex<Arc<Young>>,
    /// The writer's own.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// All entries of events up to here are in the trees.
    indexed: u64,
    /// The last sequence that came in.
    last_seq: u64,
    leaving: Option<Leaving>,
    grown: Arc<Layer>,
    recent: Arc<Layer>,
    /// Events in the journal that no group has written yet.
    held: Vec<(u64, Arc<Event>)>,
    /// Sequences behind `indexed` of events that were removed: their entries are not written.
    removed: Seqs,
    /// Entries that came in since the last slice.
    owed: usize,
    /// Entries at which a layer is sealed; 0: the default.
    sealed_at: usize,
}

/// A sealed layer on its way into the trees.
struct Leaving {
    layer: Arc<Layer>,
    /// What is before has been written.
    at: usize,
    last_seq: u64,
}

/// What a group has to write of the entries that came before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing.
    Nothing,
    /// So many entries of the sealed layer.
    Slice(usize),
    /// Everything, and then its own.
    All,
}

impl Nursery {
    /// What readers see. To be taken before the transaction that it is used with.
    pub fn young(&self) -> Arc<Young> {
        Arc::clone(&lock(&self.published))
    }

    /// Entries of events behind this are young, or were.
    pub fn indexed(&self) -> u64 {
        lock(&self.state).indexed
    }

    /// Whether every entry is in its tree.
    pub fn is_empty(&self) -> bool {
        lock(&self.published).layers.is_empty()
    }

    /// What a group that brings so many entries has to write. One with very many of its own writes
    /// them as well: they share pages enough.
    pub fn due(&self, fresh: usize) -> Due {
        let state = lock(&self.state);
        if fresh > state.bound() / 4 {
            return Due::All;
        }
        let Some(leaving) = &state.leaving else {
            return Due::Nothing;
        };
        let left = leaving.layer.len() - leaving.at;
        let owed = state.owed + fresh;
        // The next layer is full: this one has to make place.
        if state.growing() + fresh >= state.bound() {
            return Due::Slice(left);
        }
        // One that was made anew when the store was opened may be larger than others.
        let pace = leaving.layer.len().div_ceil(state.bound()).max(1);
        match owed * pace + owed / 4 {
            share if share >= left => Due::Slice(left),
            share if share >= YOUNG_SLICE_ENTRIES_MIN.min(state.bound() / PARTS) => {
                Due::Slice(share)
            }
            _ => Due::Nothing,
        }
    }

    /// What a group has to write that has nothing else to do: a slice, of what there is.
    pub fn due_at_rest(&self, entries: usize) -> Due {
        let mut state = lock(&self.state);
        if state.leaving.is_none() {
            state.seal();
        }
        match &state.leaving {
            Some(leaving) => Due::Slice(entries.min(leaving.layer.len() - leaving.at)),
            None => Due::Nothing,
        }
    }

    /// Whether more must not come in before some of it has been written.
    pub fn is_full(&self) -> bool {
        let state = lock(&self.state);
        state.growing() >= 2 * state.bound()
    }

    /// Writes what is due. `removed` are sequences that the group itself has removed.
    pub fn write(
        &self,
        tables: &Tables,
        txn: &mut RwTxn<'_>,
        due: Due,
        removed: &Seqs,
    ) -> Result<(), StoreError> {
        let state = lock(&self.state);
        let leaving = state.leaving.as_ref();
        match due {
            Due::Nothing => Ok(()),
            Due::Slice(entries) => {
                let Some(leaving) = leaving else {
                    return Ok(());
                };
                let slice = leaving.layer.from(leaving.at).take(entries);
                state.put(tables, txn, slice, removed)?;
                if leaving.at + entries < leaving.layer.len() {
                    return Ok(());
                }
                put_indexed(tables, txn, leaving.last_seq)
            }
            Due::All => {
                if let Some(leaving) = leaving {
                    state.put(tables, txn, leaving.layer.from(leaving.at), removed)?;
                }
                for layer in [&state.grown, &state.recent] {
                    state.put(tables, txn, layer.from(0), removed)?;
                }
                put_indexed(tables, txn, state.last_seq)
            }
        }
    }

    /// Writes a layer that has just come in, after everything before it.
    pub fn write_layer(
        &self,
        tables: &Tables,
        txn: &mut RwTxn<'_>,
        layer: &Layer,
        last_seq: u64,
    ) -> Result<(), StoreError> {
        lock(&self.state).put(tables, txn, layer.from(0), &Seqs::default())?;
        put_indexed(tables, txn, last_seq)
    }

    /// After a commit that has written what was due, removed events, and brought a layer with
    /// entries up to a sequence.
    pub fn follow(&self, due: Due, removed: &Seqs, layer: Layer, last_seq: u64) {
        let mut state = lock(&self.state);
        let was = (state.last_seq, state.indexed, state.held.is_empty());
        state.last_seq = last_seq;
        // Every group writes them.
        state.held.clear();
        match due {
            Due::Nothing => state.owed += layer.len(),
            Due::Slice(entries) => {
                state.owed = 0;
                state.advance(entries);
            }
            Due::All => {
                state.owed = 0;
                state.leaving = None;
                state.grown = Arc::default();
                state.recent = Arc::default();
                state.indexed = last_seq;
            }
        }
        if due != Due::All && !layer.is_empty() {
            state.take(layer);
        }
        state.removed.extend(removed.iter().copied());
        let indexed = state.indexed;
        state.removed.retain(|seq| *seq > indexed);
        if state.leaving.is_none() && state.growing() >= state.bound() {
            state.seal();
        }
        if was != (state.last_seq, state.indexed, true) {
            *lock(&self.published) = Arc::new(state.young());
        }
    }

    /// After an event of the next sequence was written to the journal.
    pub fn hold(&self, event: &Arc<Event>, seq: u64, layer: Layer) {
        let mut state = lock(&self.state);
        debug_assert_eq!(seq, state.last_seq + 1, "sequences have no gaps");
        state.last_seq = seq;
        state.owed += layer.len();
        state.take(layer);
        state.held.push((seq, Arc::clone(event)));
        if state.leaving.is_none() && state.growing() >= state.bound() {
            state.seal();
        }
        *lock(&self.published) = Arc::new(state.young());
    }

    /// Makes the entries anew that may not be in the trees, when a store is opened: of the events
    /// behind `indexed`, and of those that the journal holds, which follow on the last one.
    pub fn recover(&self, tables: &Tables, held: Vec<Event>) -> Result<(), StoreError> {
        let txn = tables.env.read_txn().map_err(store_error)?;
        let last_seq = tables.last_sequence(&txn)?;
        let held = (last_seq + 1..).zip(held.into_iter().map(Arc::new));
        let held: Vec<(u64, Arc<Event>)> = held.collect();
        let last_seq = last_seq + held.len() as u64;
        let indexed = tables.meta.get(&txn, META_INDEXED).map_err(store_error)?;
        let indexed = indexed.filter(|value| value.len() == 8);
        let indexed = layout::number(indexed.ok_or(layout::corrupt("how far its indexes are"))?);
        let mut fresh = Fresh::default();
        let start = indexed.to_be_bytes();
        let range = (Bound::Excluded(&start[..]), Bound::Unbounded);
        let records = tables.events.range(&txn, &range).map_err(store_error)?;
        for (nth, record) in records.enumerate() {
            let (key, record) = record.map_err(store_error)?;
            let seq = layout::number(key.get(..8).ok_or(layout::corrupt("an event's key"))?);
            // One that cannot be read back is not found by anything.
            let event = layout::record_json(record).ok();
            if let Some(event) = event.and_then(|json| Event::parse(json).ok()) {
                push(&mut fresh, &event, seq, nth as u32);
            }
        }
        for (seq, event) in &held {
            push(&mut fresh, event, *seq, 0);
        }
        let mut state = lock(&self.state);
        *state = State {
            indexed,
            last_seq,
            held,
            sealed_at: state.sealed_at,
            ..State::default()
        };
        let layer = fresh.layer(|_| true);
        if !layer.is_empty() {
            state.take(layer);
            state.seal();
        }
        *lock(&self.published) = Arc::new(state.young());
        Ok(())
    }

    /// Seals layers when they have so many entries.
    #[cfg(test)]
    pub fn seal_at(&self, entries: usize) {
        lock(&self.state).sealed_at = entries;
    }
}

/// Takes in the index entries of an event.
pub fn push(fresh: &mut Fresh, event: &Event, seq: u64, nth: u32) {
    fresh.push(Tree::Id, event.id(), &layout::id_value(seq, event), nth);
    let pushed = for_each_entry(event, seq, |index, key, value| {
        fresh.push(Tree::of(index), key, value, nth);
        Ok::<_, std::convert::Infallible>(())
    });
    let Ok(()) = pushed;
}

impl State {
    fn bound(&self) -> usize {
        match self.sealed_at {
            0 => YOUNG_ENTRIES_MAX,
            entries => entries,
        }
    }

    fn growing(&self) -> usize {
        self.grown.len() + self.recent.len()
    }

    fn young(&self) -> Young {
        let leaving = self.leaving.as_ref().map(|leaving| &leaving.layer);
        let layers = leaving.into_iter().chain([&self.grown, &self.recent]);
        Young {
            last_seq: self.last_seq,
            layers: layers.filter(|layer| !layer.is_empty()).cloned().collect(),
            held: self.held.clone(),
        }
    }

    fn take(&mut self, layer: Layer) {
        self.recent = Arc::new(match self.recent.is_empty() {
            true => layer,
            false => Layer::merged(&self.recent, &layer),
        });
        if self.recent.len() >= self.bound() / PARTS {
            self.grow();
        } else if self.recent.chunks() >= CHUNKS_MAX {
            self.recent = Arc::new(self.recent.packed());
        }
    }

    fn grow(&mut self) {
        let recent = std::mem::take(&mut self.recent);
        if recent.is_empty() {
            return;
        }
        let recent = match recent.chunks() {
            0 | 1 => recent,
            _ => Arc::new(recent.packed()),
        };
        self.grown = match self.grown.is_empty() {
            true => recent,
            false => Arc::new(Layer::merged(&self.grown, &recent)),
        };
    }

    fn seal(&mut self) {
        self.grow();
        if self.grown.is_empty() {
            return;
        }
        self.leaving = Some(Leaving {
            layer: std::mem::take(&mut self.grown),
            at: 0,
            last_seq: self.last_seq,
        });
    }

    fn advance(&mut self, entries: usize) {
        let Some(leaving) = &mut self.leaving else {
            return;
        };
        leaving.at += entries;
        if leaving.at >= leaving.layer.len() {
            self.indexed = leaving.last_seq;
            self.leaving = None;
        }
    }

    fn put<'l>(
        &self,
        tables: &Tables,
        txn: &mut RwTxn<'_>,
        entries: impl Iterator<Item = (Tree, &'l [u8], &'l [u8])>,
        removed: &Seqs,
    ) -> Result<(), StoreError> {
        for (tree, key, value) in entries {
            let seq = layout::entry_seq(value);
            if self.removed.contains(&seq) || removed.contains(&seq) {
                continue;
            }
            tables
                .tree(tree)
                .put(txn, key, value)
                .map_err(store_error)?;
        }
        Ok(())
    }
}

fn put_indexed(tables: &Tables, txn: &mut RwTxn<'_>, seq: u64) -> Result<(), StoreError> {
    let put = tables.meta.put(txn, META_INDEXED, &seq.to_be_bytes());
    put.map_err(store_error)
}

/// Nothing is ever half done under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
