//! The writer: groups of events, one commit after the other.
//!
//! Group commit without a timer, as in the embedded store: while one commit is under way the next
//! group gathers. All relays of a database take turns, so their commits have one order.
//!
//! A commit whose connection was lost may have been committed. It is tried again: what was committed
//! is then found by its id and answered as a duplicate, which is true, and which clients take for an
//! acceptance. Only if the database stays away are the events answered [`Outcome::Failed`]. Nothing is
//! answered as stored that is not durable.
//!
//! While the database is away a group has one try, and everything that waits fails with it: clients
//! hear at once.

use std::sync::Arc;
use std::time::Instant;

use super::decide::Removals;
use super::deliver::{Answers, Deliveries, Delivery};
use super::group::Committed;
use super::queue::{Size, lock};
use super::upkeep::Upkeep;
use super::{Core, group};
use crate::limits::{DB_COMMIT_RETRY_TIME, DB_COMMIT_TRIES_MAX, DB_OWN_RANGES_MAX, DB_RETRY_PAUSE};
use crate::nostr::event::Event;
use crate::store::{Done, Job, Outcome, StoreError, StoreErrorKind};

/// Runs until the queue is closed and everything is answered.
pub async fn run(core: Arc<Core>, deliveries: Deliveries) {
    let mut writer = Writer {
        upkeep: Upkeep::begin(&core),
        core,
        deliveries,
        away: false,
    };
    let mut jobs = Vec::new();
    loop {
        let core = writer.core.clone();
        let open = core.queue.take(&mut jobs, writer.upkeep.wait()).await;
        let mut rest = jobs.drain(..).peekable();
        while rest.peek().is_some() {
            let mut size = Size::default();
            let mut group: Vec<Job> = Vec::new();
            while let Some(job) = rest.next_if(|job| size.takes(&job.event)) {
                group.push(job);
            }
            if let Err(error) = writer.commit(group).await {
                let left: Vec<Job> = rest.by_ref().collect();
                writer.fail(left, &error).await;
            }
            writer.turn().await;
        }
        drop(rest);
        writer.turn().await;
        if !open && !writer.upkeep.owes_an_answer() {
            return;
        }
    }
}

struct Writer {
    core: Arc<Core>,
    deliveries: Deliveries,
    upkeep: Upkeep,
    /// The last commit failed because the database was away.
    away: bool,
}

impl Writer {
    /// Commits a group and answers it, whatever comes of it.
    ///
    /// # Errors
    /// The database is away: what else waits need not be tried.
    async fn commit(&mut self, jobs: Vec<Job>) -> Result<(), StoreError> {
        self.let_the_listener_catch_up().await;
        // Parts of the group, the next one last: one event that the database refuses must not take
        // the others with it.
        let mut parts = vec![jobs];
        while let Some(mut jobs) = parts.pop() {
            let events: Vec<Arc<Event>> = jobs.iter().map(|job| job.event.clone()).collect();
            let started = Instant::now();
            match self.attempt(&events).await {
                Ok(committed) => {
                    self.away = false;
                    self.answer(jobs, committed, started).await;
                }
                Err(error) if error.kind() == StoreErrorKind::Corrupt && jobs.len() > 1 => {
                    let second = jobs.split_off(jobs.len() / 2);
                    parts.push(second);
                    parts.push(jobs);
                }
                Err(error) => {
                    let away = is_away(&error);
                    if !(away && self.away) {
                        tracing::error!(%error, events = jobs.len(), "a commit failed");
                    }
                    self.away = away;
                    self.fail(jobs, &error).await;
                    if away {
                        for jobs in parts.drain(..).rev() {
                            self.fail(jobs, &error).await;
                        }
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Tries a commit again while its failure may be a passing one.
    async fn attempt(&self, events: &[Arc<Event>]) -> Result<Committed, StoreError> {
        let started = Instant::now();
        let mut tries = 0;
        loop {
            let error = match group::commit(&self.core, events).await {
                Ok(committed) => return Ok(committed),
                Err(error) => error,
            };
            tries += 1;
            let passing = is_away(&error) || error.kind() == StoreErrorKind::Slow;
            let over = self.away
                || tries >= DB_COMMIT_TRIES_MAX
                || started.elapsed() >= DB_COMMIT_RETRY_TIME;
            if !passing || over {
                return Err(error);
            }
            tracing::warn!(%error, events = events.len(), "a commit is tried again");
            tokio::time::sleep(DB_RETRY_PAUSE).await;
        }
    }

    async fn answer(&mut self, jobs: Vec<Job>, committed: Committed, started: Instant) {
        let mut answers = Answers {
            removals: committed.removals,
            ..Answers::default()
        };
        let mut stored = 0;
        for (job, outcome) in jobs.into_iter().zip(committed.outcomes) {
            let Job { event, origin } = job;
            match outcome {
                Some(outcome) => {
                    stored += usize::from(matches!(outcome, Outcome::Stored { .. }));
                    answers.done.push(Done {
                        origin,
                        event,
                        outcome,
                    });
                }
                None => self.upkeep.vanish(Job { event, origin }),
            }
        }
        answers.took = (stored > 0).then(|| (started.elapsed(), stored));
        self.deliver(answers).await;
    }

    async fn fail(&mut self, jobs: Vec<Job>, error: &StoreError) {
        let failed = |job: Job| Done {
            origin: job.origin,
            event: job.event,
            outcome: Outcome::Failed(error.clone()),
        };
        self.deliver(Answers {
            done: jobs.into_iter().map(failed).collect(),
            ..Answers::default()
        })
        .await;
    }

    /// What is to be done between groups.
    async fn turn(&mut self) {
        let answers = self.upkeep.turn(&self.core).await;
        self.deliver(answers).await;
    }

    async fn deliver(&self, answers: Answers) {
        if !answers.done.is_empty() || answers.removals != Removals::default() {
            // The thread at the other end lives as long as we do.
            let _ = self.deliveries.send(Delivery::Answers(answers)).await;
        }
    }

    /// Own commits above a gap that cannot be fetched are remembered one by one: not for ever.
    async fn let_the_listener_catch_up(&self) {
        while lock(&self.core.ledger).own_ranges() >= DB_OWN_RANGES_MAX {
            tokio::time::sleep(DB_RETRY_PAUSE).await;
        }
    }
}

/// Whether nothing else would fare better now.
fn is_away(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::Unreachable
            | StoreErrorKind::ReadOnly
            | StoreErrorKind::ConnectionsExhausted
    )
}
