//! What the writer does between groups: removing what has expired, what has vanished, and what no
//! rule keeps, and saying how full the store is.
//!
//! A turn is at most one commit, bounded by a [`Share`]; so a group waits for at most one of them.
//! The chores take turns. One whose commit finds no room is tried again with a smaller share, as a
//! removal takes pages before it gives any back.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::apply::{Group, Scratch};
use super::keep::Keeper;
use super::size::{Pressure, Usage};
use super::tables::Tables;
use super::vanish::Erasure;
use super::{Shared, expiry, size};
use crate::limits::{
    RETENTION_LEARN_ENTRIES_MAX, UPKEEP_INDEX_ENTRIES_MAX, UPKEEP_LOOK, UPKEEP_STEPS_MAX,
    YOUNG_REST,
};
use crate::nostr::event::Event;
use crate::nostr::reason::Reason;
use crate::store::retention::Retention;
use crate::store::{CommitSink, Done, StoreError};

/// What one commit may still remove.
pub struct Share {
    steps: u32,
    entries: usize,
}

impl Share {
    /// A share that was halved so many times; one step is always in it.
    pub fn part(halvings: u32) -> Share {
        Share {
            steps: (UPKEEP_STEPS_MAX >> halvings).max(1),
            entries: (UPKEEP_INDEX_ENTRIES_MAX >> halvings).max(1),
        }
    }

    /// Whether there is any left.
    pub fn is_left(&self) -> bool {
        self.steps > 0 && self.entries > 0
    }

    /// Takes the look at an entry out.
    pub fn take_one(&mut self) {
        self.steps = self.steps.saturating_sub(1);
    }

    /// Takes the removal of an event out.
    pub fn take(&mut self, event: &Event) {
        self.entries = self.entries.saturating_sub(event.index_tags().count());
    }
}

/// A share is not halved more often than that: then it is one step.
const HALVINGS_MAX: u32 = UPKEEP_STEPS_MAX.ilog2();

/// What is to be done.
pub struct Upkeep<C> {
    erasures: VecDeque<Erasure>,
    keeper: Keeper,
    pressure: Pressure,
    /// When to look for what is due, and to try again what failed.
    next_look: Instant,
    /// Expired events may be left since the last look.
    expiring: bool,
    /// When the writer has been idle for long enough to settle young index entries.
    rests_at: Instant,
    /// Something failed: nothing more is tried until the next look.
    failed: bool,
    /// How often the share is halved.
    halvings: u32,
    next: Chore,
    clock: C,
}

/// What a turn may do.
#[derive(Clone, Copy)]
enum Chore {
    Expiry,
    Erasure,
    Learning,
    Retention,
    Settling,
}

impl Chore {
    const COUNT: usize = 5;

    fn next(self) -> Chore {
        match self {
            Chore::Expiry => Chore::Erasure,
            Chore::Erasure => Chore::Learning,
            Chore::Learning => Chore::Retention,
            Chore::Retention => Chore::Settling,
            Chore::Settling => Chore::Expiry,
        }
    }
}

impl<C: Fn() -> u64> Upkeep<C> {
    /// Takes up what the last process left under way.
    pub fn begin(tables: &Tables, rules: Retention, clock: C) -> Upkeep<C> {
        let erasures = match Erasure::left_behind(tables) {
            Ok(left) => left.into(),
            Err(error) => {
                tracing::error!(%error, "requests to vanish cannot be read");
                VecDeque::new()
            }
        };
        Upkeep {
            erasures,
            keeper: Keeper::new(rules),
            pressure: Pressure::default(),
            next_look: Instant::now(),
            expiring: true,
            rests_at: Instant::now() + YOUNG_REST,
            failed: false,
            halvings: 0,
            next: Chore::Expiry,
            clock,
        }
    }

    /// Takes a request to vanish that a commit has begun. Its answer comes when all is removed.
    pub fn vanish(&mut self, done: Done) {
        self.erasures.push_back(Erasure::begin(done));
    }

    /// Why an event that is not stored need not be: it would be removed at once.
    pub fn refusal(&self, event: &Event) -> Option<Reason> {
        self.keeper.refusal(event)
    }

    /// Takes in what a commit has changed.
    pub fn follow(&mut self, scratch: &Scratch) {
        self.rests_at = Instant::now() + YOUNG_REST;
        self.keeper.follow(&scratch.changes);
    }

    /// Says that events were refused because there is no room for them.
    pub fn say_full(&mut self, tables: &Tables) {
        if let Ok(usage) = size::usage(tables) {
            say(&mut self.pressure, &usage);
        }
    }

    /// Whether a request still waits for its answer.
    pub fn owes_an_answer(&self) -> bool {
        self.erasures.iter().any(|erasure| erasure.done.is_some())
    }

    /// How long nothing is to be done.
    pub fn wait(&self, tables: &Tables) -> Duration {
        let busy = self.expiring
            || !self.erasures.is_empty()
            || self.keeper.is_learning()
            || self.keeper.is_due((self.clock)());
        if busy && !self.failed {
            return Duration::ZERO;
        }
        let wakes_at = match self.failed || tables.nursery.is_empty() {
            true => self.next_look,
            false => self.next_look.min(self.rests_at),
        };
        wakes_at.saturating_duration_since(Instant::now())
    }

    /// Does one share of what there is to do.
    pub fn turn(&mut self, shared: &Shared, scratch: &mut Scratch, sink: &mut impl CommitSink) {
        let now = Instant::now();
        if now >= self.next_look {
            self.next_look = now + UPKEEP_LOOK;
            self.failed = false;
            self.expiring = true;
            self.say_full(&shared.tables);
        }
        for _ in 0..Chore::COUNT {
            if self.failed {
                return;
            }
            let chore = self.next;
            self.next = chore.next();
            if self.did(chore, shared, scratch, sink) {
                return;
            }
        }
    }

    /// Does a share of a chore. False: there was nothing to do.
    fn did(
        &mut self,
        chore: Chore,
        shared: &Shared,
        scratch: &mut Scratch,
        sink: &mut impl CommitSink,
    ) -> bool {
        let tables = &shared.tables;
        match chore {
            Chore::Expiry => self.expire(tables, scratch, sink),
            Chore::Erasure => self.erase(shared, scratch, sink),
            Chore::Learning => self.learn(tables),
            Chore::Retention => self.retain(tables, scratch, sink),
            Chore::Settling => self.settle(tables, scratch, sink),
        }
    }

    fn expire(
        &mut self,
        tables: &Tables,
        scratch: &mut Scratch,
        sink: &mut impl CommitSink,
    ) -> bool {
        if !self.expiring {
            return false;
        }
        let now = (self.clock)();
        match expiry::is_due(tables, now) {
            Ok(false) => {
                self.expiring = false;
                return false;
            }
            Ok(true) => {}
            Err(error) => {
                self.fail(&error, "expired events cannot be looked up, trying again");
                return true;
            }
        }
        match expire(tables, scratch, now, Share::part(self.halvings)) {
            Ok(all) => {
                self.expiring = !all;
                self.commit(scratch, sink);
            }
            Err(error) => {
                let what = "expired events could not be removed, trying again";
                self.try_smaller(tables, error, what);
            }
        }
        true
    }

    fn erase(
        &mut self,
        shared: &Shared,
        scratch: &mut Scratch,
        sink: &mut impl CommitSink,
    ) -> bool {
        let share = Share::part(self.halvings);
        let Some(erasure) = self.erasures.front_mut() else {
            return false;
        };
        let mut answers = Vec::new();
        match step(&shared.tables, scratch, erasure, share) {
            Ok(all) => {
                if all {
                    answers.extend(erasure.done.take());
                    self.erasures.pop_front();
                }
                self.commit(scratch, sink);
            }
            Err(error) => {
                erasure.rewind();
                let what = "a vanished key's events could not be removed, trying again";
                if let Some(error) = self.try_smaller(&shared.tables, error, what) {
                    let failed = self.erasures.iter_mut();
                    answers.extend(failed.filter_map(|erasure| erasure.fail(&error)));
                }
            }
        }
        if !answers.is_empty() {
            let bytes = answers.iter().map(|done| done.event.json().len()).sum();
            let events = answers.len();
            sink.committed(&mut answers);
            shared.queue.answered(events, bytes);
        }
        true
    }

    fn learn(&mut self, tables: &Tables) -> bool {
        if !self.keeper.is_learning() {
            return false;
        }
        if let Err(error) = self.keeper.learn(tables, RETENTION_LEARN_ENTRIES_MAX) {
            self.fail(&error, "stored events cannot be counted, trying again");
        }
        true
    }

    fn retain(
        &mut self,
        tables: &Tables,
        scratch: &mut Scratch,
        sink: &mut impl CommitSink,
    ) -> bool {
        let now = (self.clock)();
        if !self.keeper.is_due(now) {
            return false;
        }
        let share = Share::part(self.halvings);
        match retain(tables, scratch, &mut self.keeper, now, share) {
            Ok(_) => self.commit(scratch, sink),
            Err(error) => {
                self.keeper.undo();
                let what = "events past their retention could not be removed, trying again";
                self.try_smaller(tables, error, what);
            }
        }
        true
    }

    /// Writes index entries to their trees that would wait for more to come.
    fn settle(
        &mut self,
        tables: &Tables,
        scratch: &mut Scratch,
        sink: &mut impl CommitSink,
    ) -> bool {
        if tables.nursery.is_empty() || Instant::now() < self.rests_at {
            return false;
        }
        let entries = (UPKEEP_INDEX_ENTRIES_MAX >> self.halvings).max(1);
        match settle(tables, scratch, entries) {
            Ok(()) => self.commit(scratch, sink),
            Err(error) => {
                let what = "index entries could not be written, trying again";
                self.try_smaller(tables, error, what);
            }
        }
        true
    }

    /// After a commit that has succeeded.
    fn commit(&mut self, scratch: &mut Scratch, sink: &mut impl CommitSink) {
        self.keeper.follow(&scratch.changes);
        self.halvings = self.halvings.saturating_sub(1);
        scratch.report(sink);
    }

    /// After a commit that has failed: if it found no room, a smaller share may. Else gives the error.
    fn try_smaller(
        &mut self,
        tables: &Tables,
        error: StoreError,
        what: &str,
    ) -> Option<StoreError> {
        if error.may_fit_in_parts() && self.halvings < HALVINGS_MAX {
            self.halvings += 1;
            return None;
        }
        let error = tables.explain(error);
        self.fail(&error, what);
        Some(error)
    }

    fn fail(&mut self, error: &StoreError, what: &str) {
        tracing::warn!(%error, "{what}");
        self.failed = true;
    }
}

/// Says in the log that the store has reached a step of its size, or has fallen below it.
fn say(pressure: &mut Pressure, usage: &Usage) {
    let Some((step, up)) = pressure.look(usage.percent()) else {
        return;
    };
    let Usage {
        used_bytes,
        events_max,
        bytes_max,
        ..
    } = *usage;
    match (step, up) {
        (100, true) => tracing::error!(
            used_bytes,
            events_max,
            bytes_max,
            "the store is full: events are refused until something is removed; set \
             BUZZ_RETENTION, or raise BUZZ_STORE_MAX_BYTES"
        ),
        (100, false) => tracing::info!(used_bytes, events_max, "the store takes events again"),
        (step, true) => tracing::warn!(
            used_bytes,
            events_max,
            bytes_max,
            "the store is {step} % full; at 100 % events are refused (BUZZ_STORE_MAX_BYTES, \
             BUZZ_RETENTION)"
        ),
        (step, false) => tracing::info!(
            used_bytes,
            events_max,
            "the store has fallen below {step} % again"
        ),
    }
}

/// Writes so many of the young index entries.
pub(super) fn settle(
    tables: &Tables,
    scratch: &mut Scratch,
    entries: usize,
) -> Result<(), StoreError> {
    let mut group = Group::begin(tables, scratch)?;
    group.settle_some(entries);
    group.commit()?;
    Ok(())
}

/// Removes a share of what has expired. True: all of it.
pub(super) fn expire(
    tables: &Tables,
    scratch: &mut Scratch,
    now: u64,
    mut share: Share,
) -> Result<bool, StoreError> {
    let mut group = Group::begin(tables, scratch)?;
    group.hold();
    let all = group.expire(now, &mut share)?;
    group.commit()?;
    Ok(all)
}

/// Removes a share of what no rule keeps. True: all of it. If it fails, the keeper must
/// [`undo`](Keeper::undo), else [`follow`](Keeper::follow).
pub(super) fn retain(
    tables: &Tables,
    scratch: &mut Scratch,
    keeper: &mut Keeper,
    now: u64,
    mut share: Share,
) -> Result<bool, StoreError> {
    let mut group = Group::begin(tables, scratch)?;
    group.hold();
    let all = group.retain(keeper, now, &mut share)?;
    group.commit()?;
    Ok(all)
}

fn step(
    tables: &Tables,
    scratch: &mut Scratch,
    erasure: &mut Erasure,
    mut share: Share,
) -> Result<bool, StoreError> {
    let mut group = Group::begin(tables, scratch)?;
    group.hold();
    let all = erasure.step(&mut group, &mut share)?;
    group.commit()?;
    Ok(all)
}
