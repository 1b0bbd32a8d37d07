//! What the rules of retention leave: the writer's memory of how many events there are of which kinds
//! and how old they are, and the removal of those that no rule keeps.
//!
//! For each kind that a rule bounds, an *edge* is remembered: no stored event of that kind is older.
//! An edge may be too old, as after a deletion; it is put right when its turn comes, by one look at
//! the end of the kind's run in the index. Edges lie in order, by the time at which the event there
//! is too old, and for a rule with a count by age. So what is to be removed next is the first of
//! them, and when nothing is due nothing is read.
//!
//! **Counts are in memory**, not in the store: they are learned at the start from the index of kinds,
//! in slices between the groups, and followed from then on. A table of counts would be exact from
//! the first moment, but each commit of every store would write to it, whether there is a rule or
//! not; and rules change with the settings, so what is counted for them does. Without a rule with a
//! count the start takes two looks a kind. Until all is learned nothing is removed.
//!
//! What is remembered follows commits alone: [`Keeper::follow`] is told of each that succeeded, and
//! a removal whose commit failed is taken back by [`Keeper::undo`].

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

use heed::RoTxn;

use super::apply::Group;
use super::layout::{self, Index, ORDER_BYTES};
use super::store_error;
use super::tables::Tables;
use super::upkeep::Share;
use super::young::{Tree, Young};
use crate::nostr::event::Event;
use crate::nostr::reason::{Prefix, Reason};
use crate::store::retention::{Retention, Rule, is_request};
use crate::store::{Removal, StoreError};

/// Where an event is in the order of answers: the later, the older; of one second the higher id.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Order {
    /// `!created_at`.
    pub age: u64,
    /// The first bytes of the id.
    pub id: u128,
}

/// An event that a commit has added or removed.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Its kind.
    pub kind: u16,
    /// Its place.
    pub order: Order,
    /// Added, or removed.
    pub added: bool,
}

/// What is remembered for the rules.
pub struct Keeper {
    rules: Retention,
    kinds: HashMap<u16, Known, foldhash::fast::RandomState>,
    /// Of kinds with an age: the second in which the event at the edge becomes too old.
    due: BTreeSet<(u64, u16)>,
    /// By rule; of those without a count nothing is in it.
    crowds: Vec<Crowd>,
    /// Up to where the index of kinds has been learned. `None`: all of it.
    learned: Option<Place>,
    /// What was known before the changes that have not been committed.
    before: Vec<(u16, Option<Known>)>,
}

/// What is known of a kind that has a rule.
#[derive(Clone, Copy)]
struct Known {
    rule: usize,
    edge: Order,
    /// Stored events, if the rule counts; else 0.
    held: u64,
}

/// The kinds of a rule with a count.
#[derive(Default)]
struct Crowd {
    held: u64,
    edges: BTreeSet<(Order, u16)>,
}

/// A place in the index of kinds: everything of lower kinds, and of this one up to the order.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Place(u16, Order);

impl Keeper {
    /// Rules, of whose events nothing is known yet.
    pub fn new(rules: Retention) -> Keeper {
        let learned = (!rules.is_idle()).then_some(Place(0, Order::FIRST));
        Keeper {
            crowds: rules.rules().iter().map(|_| Crowd::default()).collect(),
            kinds: HashMap::default(),
            due: BTreeSet::new(),
            learned,
            before: Vec::new(),
            rules,
        }
    }

    /// Whether there is something to learn, so that nothing can be removed yet.
    pub fn is_learning(&self) -> bool {
        self.learned.is_some()
    }

    /// Whether there is something to remove at `now`, in seconds since 1970, as far as is known.
    pub fn is_due(&self, now: u64) -> bool {
        !self.is_learning()
            && (self.due.first().is_some_and(|(due, _)| *due <= now) || self.crowded().is_some())
    }

    /// Why an event that is not stored would be removed at once: its rule has as many as it keeps,
    /// and all of them are newer.
    pub fn refusal(&self, event: &Event) -> Option<Reason> {
        if self.is_learning() || is_request(event.kind()) {
            return None;
        }
        let rule = self.rules.rule_of(event.kind())?;
        let max = self.rules.rules()[rule].count?;
        let crowd = &self.crowds[rule];
        let (oldest, _) = crowd.edges.last()?;
        (crowd.held >= max && Order::of(event) > *oldest).then(|| {
            let text = "older than the newest events that are kept of its kind";
            Reason::fixed(Prefix::Invalid, text)
        })
    }

    /// Takes in what a commit has changed.
    pub fn follow(&mut self, changes: &[Change]) {
        self.before.clear();
        for change in changes {
            let Some(rule) = self.rules.rule_of(change.kind) else {
                continue;
            };
            let is_ahead = |place: Place| Place(change.kind, change.order) > place;
            if !self.bounds(rule) || self.learned.is_some_and(is_ahead) {
                continue;
            }
            let known = self.kinds.get(&change.kind).copied();
            let held = known.map_or(0, |known| known.held);
            match (change.added, known) {
                (true, _) => {
                    let edge = known.map_or(change.order, |known| known.edge.max(change.order));
                    let one = u64::from(self.counts(rule));
                    self.know(change.kind, rule, edge, held + one);
                }
                (false, Some(known)) if self.counts(rule) => match held.saturating_sub(1) {
                    0 => self.set(change.kind, None),
                    held => self.know(change.kind, rule, known.edge, held),
                },
                (false, _) => {}
            }
        }
    }

    /// Goes back to what was known before a removal whose commit has failed.
    pub fn undo(&mut self) {
        while let Some((kind, known)) = self.before.pop() {
            self.set(kind, known);
        }
    }

    /// Learns a slice of what there is: about so many entries of the index.
    pub fn learn(&mut self, tables: &Tables, entries: u32) -> Result<(), StoreError> {
        let young = tables.nursery.young();
        let young = &*young;
        let txn = tables.env.read_txn().map_err(store_error)?;
        let mut left = entries;
        while let Some(place) = self.learned.filter(|_| left > 0) {
            left -= 1;
            let Some((kind, order)) = next(tables, young, &txn, place)? else {
                self.learned = None;
                break;
            };
            match self.rules.rule_of(kind).filter(|rule| self.bounds(*rule)) {
                Some(rule) if self.counts(rule) => {
                    let place = Place(kind, order);
                    self.count(tables, young, &txn, place, rule, &mut left)?;
                }
                Some(rule) => {
                    if let Some((order, _)) = oldest(tables, young, &txn, kind, Order::LAST)? {
                        self.know(kind, rule, order, 0);
                    }
                    self.learned = Some(Place(kind, Order::LAST));
                }
                None => self.learned = Some(Place(kind, Order::LAST)),
            }
        }
        Ok(())
    }

    /// Counts entries of one kind, from `place` on, which is one.
    fn count(
        &mut self,
        tables: &Tables,
        young: &Young,
        txn: &RoTxn<'_>,
        place: Place,
        rule: usize,
        left: &mut u32,
    ) -> Result<(), StoreError> {
        let Place(kind, mut edge) = place;
        let key = place.key();
        let range = (Bound::Included(&key[..]), Bound::Unbounded);
        let mut held = self.kinds.get(&kind).map_or(0, |known| known.held);
        let mut end = Place(kind, Order::LAST);
        for entry in tables.kind.range(txn, &range).map_err(store_error)? {
            let found = parse_key(entry.map_err(store_error)?.0)?;
            if found.0 != kind {
                break;
            }
            held += 1;
            edge = found.1;
            if *left == 0 {
                end = Place(kind, edge);
                break;
            }
            *left -= 1;
        }
        // So far, what is not written yet.
        for (key, value) in young.between(Tree::Kind, &key, &end.key()) {
            let seq = layout::entry_seq(value);
            let is_written = tables.kind.get(txn, key).map_err(store_error)? == Some(value);
            if !is_written && tables.is_stored(txn, young, seq)? {
                held += 1;
                edge = edge.max(parse_key(key)?.1);
            }
        }
        self.know(kind, rule, edge, held);
        self.learned = Some(Place(kind, edge));
        Ok(())
    }

    fn rule(&self, rule: usize) -> &Rule {
        &self.rules.rules()[rule]
    }

    fn counts(&self, rule: usize) -> bool {
        self.rule(rule).count.is_some()
    }

    fn bounds(&self, rule: usize) -> bool {
        self.counts(rule) || self.rule(rule).age.is_some()
    }

    /// A rule that has more events than it keeps, and how many more.
    fn crowded(&self) -> Option<(usize, u64)> {
        let over = |(rule, crowd): (usize, &Crowd)| {
            let over = crowd.held.saturating_sub(self.rule(rule).count?);
            (over > 0 && !crowd.edges.is_empty()).then_some((rule, over))
        };
        self.crowds.iter().enumerate().find_map(over)
    }

    fn know(&mut self, kind: u16, rule: usize, edge: Order, held: u64) {
        self.set(kind, Some(Known { rule, edge, held }));
    }

    /// Puts what is known of a kind where it belongs.
    fn set(&mut self, kind: u16, known: Option<Known>) {
        let old = match known {
            Some(known) => self.kinds.insert(kind, known),
            None => self.kinds.remove(&kind),
        };
        if let Some(old) = old {
            self.due.remove(&(self.due_at(&old), kind));
            let crowd = &mut self.crowds[old.rule];
            crowd.edges.remove(&(old.edge, kind));
            crowd.held -= old.held;
        }
        if let Some(new) = known {
            if self.rule(new.rule).age.is_some() {
                self.due.insert((self.due_at(&new), kind));
            }
            if self.counts(new.rule) {
                let crowd = &mut self.crowds[new.rule];
                crowd.edges.insert((new.edge, kind));
                crowd.held += new.held;
            }
        }
    }

    /// The first second in which the event at the edge is older than its rule says.
    fn due_at(&self, known: &Known) -> u64 {
        let age = self.rule(known.rule).age.unwrap_or(u64::MAX);
        (!known.edge.age).saturating_add(age).saturating_add(1)
    }

    /// As [`set`](Self::set), until the next [`undo`](Self::undo).
    fn set_for_now(&mut self, kind: u16, known: Option<Known>) {
        self.before.push((kind, self.kinds.get(&kind).copied()));
        self.set(kind, known);
    }

    fn move_edge(&mut self, kind: u16, edge: Order) {
        if let Some(known) = self.kinds.get(&kind) {
            self.set_for_now(kind, Some(Known { edge, ..*known }));
        }
    }
}

impl Group<'_, '_> {
    /// Removes events that no rule keeps at `now`, as many as the share allows. True: all of them.
    /// What the keeper remembers of it holds once the group's changes are committed.
    pub fn retain(
        &mut self,
        keeper: &mut Keeper,
        now: u64,
        share: &mut Share,
    ) -> Result<bool, StoreError> {
        // Of each rule: what this group has removed so far.
        let mut removed = vec![0; keeper.crowds.len()];
        while share.is_left() {
            let Some((kind, aged)) = next_due(keeper, now, &removed) else {
                return Ok(true);
            };
            share.take_one();
            let Known { rule, edge, held } = keeper.kinds[&kind];
            let Some((order, seq)) = oldest(self.tables, &self.young, &self.txn, kind, edge)?
            else {
                keeper.set_for_now(kind, None);
                // They have all been removed here.
                removed[rule] = removed[rule].saturating_sub(held);
                continue;
            };
            keeper.move_edge(kind, order);
            // The edge may have been too old: then another kind is the first now, or none.
            if next_due(keeper, now, &removed) != Some((kind, aged)) {
                continue;
            }
            match self.tables.sound_event(&self.txn, seq)? {
                Some(event) => {
                    self.erase(&event, seq, Removal::Retention)?;
                    removed[rule] += 1;
                    share.take(&event);
                }
                // One that cannot be read back stays: what is next is behind it.
                None => keeper.move_edge(kind, order.newer()),
            }
        }
        Ok(false)
    }
}

/// The kind whose oldest event is to be removed next, and whether for its age.
fn next_due(keeper: &Keeper, now: u64, removed: &[u64]) -> Option<(u16, bool)> {
    if let Some((due, kind)) = keeper.due.first()
        && *due <= now
    {
        return Some((*kind, true));
    }
    let mut crowds = keeper.crowds.iter().zip(removed).enumerate();
    crowds.find_map(|(rule, (crowd, removed))| {
        let over = crowd.held.saturating_sub(*removed) > keeper.rule(rule).count?;
        let (_, kind) = crowd.edges.last().filter(|_| over)?;
        Some((*kind, false))
    })
}

/// The oldest event of a kind that is not older than `edge`, and its sequence. It may be gone, if its
/// entry is young.
fn oldest(
    tables: &Tables,
    young: &Young,
    txn: &RoTxn<'_>,
    kind: u16,
    edge: Order,
) -> Result<Option<(Order, u64)>, StoreError> {
    let key = Place(kind, edge).key();
    let written = tables.kind.get_lower_than_or_equal_to(txn, &key);
    let written = written.map_err(store_error)?;
    let entries = young.last(Tree::Kind, &key).into_iter().chain(written);
    let Some((key, value)) = entries.max_by_key(|(key, _)| *key) else {
        return Ok(None);
    };
    let entry = layout::parse_entry(Index::Kind, &kind.to_be_bytes(), key, value)?;
    Ok(entry.map(|entry| {
        let order = Order {
            age: entry.age,
            id: entry.id,
        };
        (order, entry.seq)
    }))
}

/// The first entry of the index of kinds behind a place.
fn next(
    tables: &Tables,
    young: &Young,
    txn: &RoTxn<'_>,
    place: Place,
) -> Result<Option<(u16, Order)>, StoreError> {
    let key = place.key();
    let written = tables.kind.get_greater_than(txn, &key);
    let written = written.map_err(store_error)?;
    let young = young.next(Tree::Kind, Bound::Excluded(&key));
    let first = young.into_iter().chain(written).map(|(key, _)| key).min();
    first.map(parse_key).transpose()
}

/// Kind and order of a key of the index of kinds.
fn parse_key(key: &[u8]) -> Result<(u16, Order), StoreError> {
    let key: &[u8; 2 + ORDER_BYTES] = key
        .try_into()
        .map_err(|_| layout::corrupt("an index entry"))?;
    let mut id = [0; 16];
    id.copy_from_slice(&key[10..]);
    let order = Order {
        age: layout::number(&key[2..10]),
        id: u128::from_be_bytes(id),
    };
    Ok((u16::from_be_bytes([key[0], key[1]]), order))
}

impl Change {
    /// That an event was added, or removed.
    pub fn of(event: &Event, added: bool) -> Change {
        Change {
            kind: event.kind(),
            order: Order::of(event),
            added,
        }
    }
}

impl Place {
    fn key(&self) -> [u8; 2 + ORDER_BYTES] {
        let Place(kind, order) = self;
        let mut key = [0; 2 + ORDER_BYTES];
        key[..2].copy_from_slice(&kind.to_be_bytes());
        key[2..10].copy_from_slice(&order.age.to_be_bytes());
        key[10..].copy_from_slice(&order.id.to_be_bytes());
        key
    }
}

impl Order {
    /// Before everything. No event is there: its time would be beyond what is accepted.
    const FIRST: Order = Order { age: 0, id: 0 };
    /// Behind everything.
    const LAST: Order = Order {
        age: u64::MAX,
        id: u128::MAX,
    };

    /// The place of an event.
    pub fn of(event: &Event) -> Order {
        Order {
            age: !event.created_at(),
            id: layout::id_head(event.id()),
        }
    }

    /// The next place before this one.
    fn newer(self) -> Order {
        match self.id.checked_sub(1) {
            Some(id) => Order { id, ..self },
            None => Order {
                age: self.age.saturating_sub(1),
                id: u128::MAX,
            },
        }
    }
}

#[cfg(test)]
impl Keeper {
    /// Checks what is remembered against what is stored.
    pub fn audit<'e>(&self, events: impl Iterator<Item = &'e Event>) {
        let mut held = vec![0; self.crowds.len()];
        for event in events {
            let bounded = |rule: &usize| self.bounds(*rule);
            let Some(rule) = self.rules.rule_of(event.kind()).filter(bounded) else {
                continue;
            };
            let known = self.kinds.get(&event.kind()).expect("its kind is known");
            assert!(Order::of(event) <= known.edge && known.rule == rule);
            held[rule] += u64::from(self.counts(rule));
        }
        for (crowd, held) in self.crowds.iter().zip(held) {
            assert_eq!(crowd.held, held);
        }
        for (kind, known) in &self.kinds {
            let rule = self.rule(known.rule);
            let due = self.due.contains(&(self.due_at(known), *kind));
            assert_eq!(due, rule.age.is_some());
            let crowd = &self.crowds[known.rule];
            assert_eq!(
                crowd.edges.contains(&(known.edge, *kind)),
                rule.count.is_some()
            );
        }
        let edges = self.crowds.iter().map(|crowd| crowd.edges.len());
        assert!(edges.sum::<usize>() <= self.kinds.len() && self.due.len() <= self.kinds.len());
        assert!(self.before.is_empty());
    }
}
