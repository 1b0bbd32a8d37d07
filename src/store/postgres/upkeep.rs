//! What the writer does between groups: removing what has expired (NIP-40), and what has vanished
//! (NIP-62).
//!
//! A turn is one commit of a bounded size, so a group waits for at most one of them. Expired events
//! are removed by one relay of a database at a time; readers never give them anyway.
//!
//! A request to vanish is followed in steps, as in the embedded store: a commit bars the key's past
//! and marks the removal as under way; commits of a bounded size remove it; the last of them stores
//! the request, and only then it is answered. If its relay ends meanwhile, another one goes on with
//! the removal; the request is then not stored, but may be sent again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Core;
use super::decide::{Group, Removals, Wanted};
use super::deliver::Answers;
use super::error::corrupt;
use super::group::{self, TURN, key, number};
use super::keys::{Half, age_of, signed};
use super::pool::{Lease, Param};
use crate::limits::{DB_VANISH_SECONDS, UPKEEP_LOOK, UPKEEP_STEPS_MAX};
use crate::store::{Done, Job, Outcome, Removal, StoreError};

/// Whether anything has expired, and whose removal is left to others.
const DUE: &str = "
SELECT EXISTS (SELECT 1 FROM buzz.events WHERE expires <= $1::bigint),
       v.pubkey, v.until
FROM (SELECT 1) AS one
LEFT JOIN (SELECT pubkey, until FROM buzz.vanished
           WHERE under_way AND since < now() - make_interval(secs => $2::float8) LIMIT 1) v ON true";

/// The right to do for all relays what one of them should do.
const CHARGE: &str = "SELECT pg_try_advisory_xact_lock(7094707117252804610)";

const EXPIRE: &str = "
WITH gone AS (
    DELETE FROM buzz.events WHERE seq = ANY (ARRAY(
        SELECT seq FROM buzz.events WHERE expires <= $1::bigint ORDER BY expires LIMIT $2::bigint))
    RETURNING seq, age, half, tags
), t AS (
    DELETE FROM buzz.tags t USING gone g, unnest(g.tags) AS x(tag)
    WHERE t.tag = x.tag AND t.age = g.age AND t.half = g.half AND t.seq = g.seq
)
SELECT count(*) FROM gone";

const ERASE_EVENTS: &str = "
WITH gone AS (
    DELETE FROM buzz.events WHERE seq = ANY (ARRAY(
        SELECT seq FROM buzz.events WHERE pubkey = $1::bytea AND age >= $2::bigint
        ORDER BY age LIMIT $3::bigint))
    RETURNING seq, age, half, tags
), t AS (
    DELETE FROM buzz.tags t USING gone g, unnest(g.tags) AS x(tag)
    WHERE t.tag = x.tag AND t.age = g.age AND t.half = g.half AND t.seq = g.seq
)
SELECT count(*) FROM gone";

const ERASE_WRAPS: &str = "
WITH gone AS (
    DELETE FROM buzz.events WHERE seq = ANY (ARRAY(
        SELECT seq FROM buzz.tags WHERE tag = $1::uuid AND age >= $2::bigint AND kind = 1059
        ORDER BY age LIMIT $3::bigint))
    RETURNING seq, age, half, tags
), t AS (
    DELETE FROM buzz.tags t USING gone g, unnest(g.tags) AS x(tag)
    WHERE t.tag = x.tag AND t.age = g.age AND t.half = g.half AND t.seq = g.seq
)
SELECT count(*) FROM gone";

const FORGET: &str = "
WITH gone AS (
    DELETE FROM buzz.deleted WHERE pubkey = $1::bytea AND target = ANY (ARRAY(
        SELECT target FROM buzz.deleted WHERE pubkey = $1::bytea AND until <= $2::bigint
        LIMIT $3::bigint))
    RETURNING 1
)
SELECT count(*) FROM gone";

/// A later request waits behind this one: its removal stays under way.
const END_VANISH: &str = "
UPDATE buzz.vanished SET under_way = false WHERE pubkey = $1::bytea AND until <= $2::bigint";

/// What is to be done.
pub struct Upkeep {
    erasures: VecDeque<Job>,
    /// When to look for expired events, and to try again what failed.
    next_look: Instant,
    failed: bool,
}

impl Upkeep {
    /// Nothing yet.
    pub fn begin(_core: &Core) -> Upkeep {
        Upkeep {
            erasures: VecDeque::new(),
            next_look: Instant::now(),
            failed: false,
        }
    }

    /// Takes a request to vanish that a commit has begun. Its answer comes when all is removed.
    pub fn vanish(&mut self, job: Job) {
        self.erasures.push_back(job);
    }

    /// Whether a request still waits for its answer.
    pub fn owes_an_answer(&self) -> bool {
        !self.erasures.is_empty()
    }

    /// How long nothing is to be done.
    pub fn wait(&self) -> Duration {
        match self.erasures.is_empty() || self.failed {
            true => self.next_look.saturating_duration_since(Instant::now()),
            false => Duration::ZERO,
        }
    }

    /// Removes a share, if there is anything to remove. Returns the requests that are answered.
    pub async fn turn(&mut self, core: &Core) -> Answers {
        let mut answers = Answers::default();
        if Instant::now() >= self.next_look {
            match sweep(core, (core.clock)()).await {
                Ok(swept) => {
                    answers.removals = swept.removals;
                    // There may be more at once.
                    if !swept.more {
                        self.next_look = Instant::now() + UPKEEP_LOOK;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "expired events could not be removed, trying again");
                    self.next_look = Instant::now() + UPKEEP_LOOK;
                }
            }
            self.failed = false;
        }
        let Some(job) = self.erasures.front().filter(|_| !self.failed) else {
            return answers;
        };
        let started = Instant::now();
        match erase(core, job).await {
            Ok((removed, outcome)) => {
                answers.removals[Removal::Vanished as usize] += removed;
                if let Some(outcome) = outcome {
                    if let Outcome::Stored { .. } = outcome {
                        answers.took = Some((started.elapsed(), 1));
                    }
                    let job = self.erasures.pop_front();
                    answers.done.extend(job.map(|job| done(job, outcome)));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a vanished key's events could not be removed");
                self.failed = true;
                self.next_look = Instant::now() + UPKEEP_LOOK;
                let failed = |job| done(job, Outcome::Failed(error.clone()));
                // The removal is under way in the table: some relay goes on with it.
                answers.done.extend(self.erasures.drain(..).map(failed));
            }
        }
        answers
    }
}

fn done(job: Job, outcome: Outcome) -> Done {
    Done {
        origin: job.origin,
        event: job.event,
        outcome,
    }
}

/// What a look for what has expired has come to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Swept {
    /// There may be more.
    pub more: bool,
    /// What was removed.
    pub removals: Removals,
}

/// Removes a share of what has expired, and of what others have left under way.
pub async fn sweep(core: &Core, now: u64) -> Result<Swept, StoreError> {
    let lease = core.writers.get().await?;
    let now = signed(now);
    let rows = lease.ask(DUE, &[&now, &(DB_VANISH_SECONDS as f64)]).await?;
    let row = rows.first().ok_or(corrupt("no row"))?;
    let due: bool = row.try_get(0).map_err(|_| group::unreadable())?;
    let left: Option<Vec<u8>> = row.try_get(1).map_err(|_| group::unreadable())?;
    let mut swept = Swept::default();
    if !due && left.is_none() {
        return Ok(swept);
    }
    lease.begin().await?;
    let rows = lease.ask(CHARGE, &[]).await?;
    if !rows.first().is_some_and(|row| row.get(0)) {
        lease.roll_back().await?;
        return Ok(swept);
    }
    lease.ask(TURN, &[]).await?;
    let most = i64::from(UPKEEP_STEPS_MAX);
    if due {
        let expired = count(&lease.ask(EXPIRE, &[&now, &most]).await?)?;
        swept.removals[Removal::Expired as usize] = expired as usize;
        swept.more |= expired == most as u64;
    }
    if left.is_some() {
        let (pubkey, until) = (key(row, 1)?, number(row, 2)?);
        let share = erase_share(&lease, &pubkey, until).await?;
        swept.removals[Removal::Vanished as usize] = share.events;
        swept.more |= !share.is_last;
        if share.is_last {
            let params: [Param<'_>; 2] = [&&pubkey[..], &signed(until)];
            lease.ask(END_VANISH, &params).await?;
        }
    }
    lease.commit().await?;
    Ok(swept)
}

/// Removes a share of what a request to vanish is about. How many events, and the outcome once
/// nothing is left.
async fn erase(core: &Core, job: &Job) -> Result<(usize, Option<Outcome>), StoreError> {
    let lease = core.writers.get().await?;
    let (event, until) = (&job.event, job.event.created_at());
    let known = group::read(&lease, &Wanted::by(std::slice::from_ref(event))).await?;
    let share = erase_share(&lease, event.pubkey(), until).await?;
    if !share.is_last {
        lease.commit().await?;
        return Ok((share.events, None));
    }
    let params: [Param<'_>; 2] = [&&event.pubkey()[..], &signed(until)];
    lease.ask(END_VANISH, &params).await?;
    let mut group = Group::begin(known);
    let outcome = group.add_vanished(event);
    group::write(core, &lease, &group).await?;
    Ok((share.events, Some(outcome)))
}

struct Share {
    events: usize,
    /// Nothing is left.
    is_last: bool,
}

/// Removes a share of a key's past, within the turn.
async fn erase_share(lease: &Lease, pubkey: &[u8; 32], until: u64) -> Result<Share, StoreError> {
    let most = i64::from(UPKEEP_STEPS_MAX);
    let (key, oldest) = (&pubkey[..], age_of(until));
    let addressee = Half::of_addressee(pubkey);
    let events = count(&lease.ask(ERASE_EVENTS, &[&key, &oldest, &most]).await?)?;
    let wraps = count(
        &lease
            .ask(ERASE_WRAPS, &[&addressee, &oldest, &most])
            .await?,
    )?;
    let until = signed(until);
    let forgotten = count(&lease.ask(FORGET, &[&key, &until, &most]).await?)?;
    Ok(Share {
        events: (events + wraps) as usize,
        is_last: events.max(wraps).max(forgotten) < most as u64,
    })
}

fn count(rows: &[tokio_postgres::Row]) -> Result<u64, StoreError> {
    rows.first().map_or(Ok(0), |row| number(row, 0))
}
