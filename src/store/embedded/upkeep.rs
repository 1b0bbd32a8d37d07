//! What the writer does between groups: removing what has expired, and what has vanished.
//!
//! A turn is one commit, bounded by a [`Share`]; so a group waits for at most one of them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::apply::{Group, Scratch};
use super::tables::Tables;
use super::vanish::Erasure;
use super::{Shared, expiry};
use crate::limits::{EXPIRY_LOOK, UPKEEP_INDEX_ENTRIES_MAX, UPKEEP_STEPS_MAX};
use crate::nostr::event::Event;
use crate::store::{CommitSink, Done, StoreError};

/// What one commit may still remove.
pub struct Share {
    steps: u32,
    entries: usize,
}

impl Share {
    /// A whole share.
    pub fn new() -> Share {
        Share {
            steps: UPKEEP_STEPS_MAX,
            entries: UPKEEP_INDEX_ENTRIES_MAX,
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

/// What is to be done.
pub struct Upkeep<C> {
    erasures: VecDeque<Erasure>,
    /// When to look for expired events, and to try again what failed.
    next_look: Instant,
    failed: bool,
    clock: C,
}

impl<C: Fn() -> u64> Upkeep<C> {
    /// Takes up what the last process left under way.
    pub fn begin(tables: &Tables, clock: C) -> Upkeep<C> {
        let (erasures, failed) = match Erasure::left_behind(tables) {
            Ok(left) => (left.into(), false),
            Err(error) => {
                tracing::error!(%error, "requests to vanish cannot be read");
                (VecDeque::new(), false)
            }
        };
        Upkeep {
            erasures,
            next_look: Instant::now(),
            failed,
            clock,
        }
    }

    /// Takes a request to vanish that a commit has begun. Its answer comes when all is removed.
    pub fn vanish(&mut self, done: Done) {
        self.erasures.push_back(Erasure::begin(done));
    }

    /// Whether a request still waits for its answer.
    pub fn owes_an_answer(&self) -> bool {
        self.erasures.iter().any(|erasure| erasure.done.is_some())
    }

    /// How long nothing is to be done.
    pub fn wait(&self) -> Duration {
        if !self.erasures.is_empty() && !self.failed {
            return Duration::ZERO;
        }
        self.next_look.saturating_duration_since(Instant::now())
    }

    /// Removes a share, if there is anything to remove.
    pub fn turn(&mut self, shared: &Shared, scratch: &mut Scratch, sink: &mut impl CommitSink) {
        let is_time = Instant::now() >= self.next_look;
        if is_time {
            self.failed = false;
            match expire(&shared.tables, scratch, (self.clock)()) {
                Ok(all) => {
                    scratch.report(sink);
                    if all {
                        self.next_look = Instant::now() + EXPIRY_LOOK;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "expired events could not be removed, trying again");
                    self.next_look = Instant::now() + EXPIRY_LOOK;
                }
            }
        }
        let Some(erasure) = self.erasures.front_mut().filter(|_| !self.failed) else {
            return;
        };
        let mut answers = Vec::new();
        match step(&shared.tables, scratch, erasure) {
            Ok(all) => {
                scratch.report(sink);
                if !all {
                    return;
                }
                answers.extend(erasure.done.take());
                self.erasures.pop_front();
            }
            Err(error) => {
                tracing::warn!(%error, "a vanished key's events could not be removed, trying again");
                erasure.rewind();
                answers.extend(
                    self.erasures
                        .iter_mut()
                        .filter_map(|erasure| erasure.fail(&error)),
                );
                self.failed = true;
                self.next_look = Instant::now() + EXPIRY_LOOK;
            }
        }
        let bytes = answers.iter().map(|done| done.event.json().len()).sum();
        let events = answers.len();
        sink.committed(&mut answers);
        shared.queue.answered(events, bytes);
    }
}

/// Removes a share of what has expired. True: all of it.
pub(super) fn expire(tables: &Tables, scratch: &mut Scratch, now: u64) -> Result<bool, StoreError> {
    if !expiry::is_due(tables, now)? {
        return Ok(true);
    }
    let mut group = Group::begin(tables, scratch)?;
    let all = group.expire(now, &mut Share::new())?;
    group.commit()?;
    Ok(all)
}

fn step(tables: &Tables, scratch: &mut Scratch, erasure: &mut Erasure) -> Result<bool, StoreError> {
    let mut group = Group::begin(tables, scratch)?;
    let all = erasure.step(&mut group, &mut Share::new())?;
    group.commit()?;
    Ok(all)
}
