//! REQ and COUNT: questions to the store, read in slices under the history gate.
//!
//! No gap and no duplicate: a subscription is registered before its first read, and that read's
//! snapshot gives the watermark. History skips what is above the watermark, live skips what is at
//! or below it, and what comes live before `EOSE` is held back until then.
//!
//! A read is a run of slices under one permit: at most [`READ_BYTES_MAX`] of rows. The permit is
//! given back when they are in memory, before they are sent, so a client that reads slowly cannot
//! hold a reader. The first slice of a first read runs at once where a permit is free: a hot answer
//! leaves without a task of its own. What is left over goes on in a task that pauses between slices,
//! and waits between reads until the client has taken what it got.
//!
//! Each connection has at most [`READS_AT_ONCE_MAX`] reads that run or wait for a permit; its other
//! questions queue behind them.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use crate::limits::{
    HISTORY_BACKLOG_BYTES_MAX, READ_BYTES_MAX, READS_AT_ONCE_MAX, SLICE_ENTRIES_MAX, SLICE_TIME,
};
use crate::live::SubKey;
use crate::metrics::{DropReason, QueryKind};
use crate::nostr::filter::Filter;
use crate::nostr::hll::Hll;
use crate::nostr::message::{self, Prefix, Reason, SubId};
use crate::shard::Shard;
use crate::shard::admission::{Held, Refused};
use crate::shard::conn::{Conn, Phase};
use crate::shard::hooks::{self, Hook};
use crate::shard::runtime;
use crate::store::StoreError;
use crate::store::embedded::{Budget, Count, Progress, Query, QueryBounds};

/// What a shed read is answered. Clients retry it; `rate-limited:` would slow them down for good.
const SHED: Reason = Reason::fixed(
    Prefix::Error,
    "history reads are at their limit, retry shortly",
);

/// The questions of one connection: how many are being read, and which wait for one to end.
#[derive(Default)]
pub struct Reads {
    running: usize,
    waiting: VecDeque<Read>,
}

/// A question, from where its answer is read on.
struct Read {
    sub: SubId,
    what: What,
    started: Instant,
    /// Bytes of rows that the permit in use has brought.
    bytes: usize,
}

enum What {
    Events {
        key: SubKey,
        serial: u32,
        query: Query,
    },
    Count(Count),
}

/// How far a slice has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    /// The question is answered, or nobody waits for its answer any longer.
    Over,
    /// There is more under the same permit.
    More,
    /// The permit's share is used up.
    ReadDone,
}

/// Answers a REQ.
pub fn request(shard: &Rc<Shard>, conn: &Rc<Conn>, sub: SubId, filters: Vec<Filter>) {
    conn.remove_sub(shard, &sub);
    let values = filters.iter().map(Filter::value_count).sum();
    if conn.filter_values.get() + values > shard.config.filter_values_max {
        let text = "too many filter values on this connection";
        return closed(shard, conn, &sub, &Reason::fixed(Prefix::Error, text));
    }
    if let Some(reason) = login_first(shard, conn) {
        return closed(shard, conn, &sub, &reason);
    }
    let Some((key, serial)) = conn.add_sub(shard, sub.clone(), values) else {
        let reason = Reason::fixed(Prefix::Error, "too many subscriptions");
        return closed(shard, conn, &sub, &reason);
    };
    let filters: Rc<[Filter]> = filters.into();
    shard.subscribe(key, filters.clone());
    let only_live = filters.iter().all(|filter| filter.limit == Some(0));
    let bounds = QueryBounds {
        limit_max: shard.config.limit_max,
        limit_default: shard.config.limit_default,
    };
    let query = Query::new(filters, bounds).seen_by(conn.viewer());
    let mut read = Read::new(sub, What::Events { key, serial, query });
    if only_live {
        // There is nothing to read but the watermark, and no reader is held for that.
        slice(shard, conn, &mut read);
    } else {
        enter(shard, conn, read);
    }
}

/// Answers a COUNT (NIP-45).
pub fn count(shard: &Rc<Shard>, conn: &Rc<Conn>, sub: SubId, filters: Vec<Filter>) {
    if let Some(reason) = login_first(shard, conn) {
        return closed(shard, conn, &sub, &reason);
    }
    let count = Count::new(filters.into()).seen_by(conn.viewer());
    enter(shard, conn, Read::new(sub, What::Count(count)));
}

impl Read {
    fn new(sub: SubId, what: What) -> Read {
        Read {
            sub,
            what,
            started: Instant::now(),
            bytes: 0,
        }
    }

    fn kind(&self) -> QueryKind {
        match self.what {
            What::Events { .. } => QueryKind::Req,
            What::Count(_) => QueryKind::Count,
        }
    }

    /// Whether somebody still waits for the answer.
    fn is_wanted(&self, conn: &Conn) -> bool {
        conn.phase() == Phase::Open
            && match &self.what {
                What::Events { key, serial, .. } => conn.has_sub(*key, *serial),
                What::Count(_) => true,
            }
    }
}

fn login_first(shard: &Shard, conn: &Conn) -> Option<Reason> {
    let required = shard.config.login_required() && !conn.is_authenticated();
    required.then_some(Reason::fixed(Prefix::AuthRequired, "log in to read"))
}

/// Starts a read, or lets it wait behind the connection's other reads.
fn enter(shard: &Rc<Shard>, conn: &Rc<Conn>, mut read: Read) {
    shard.metrics.queries.of(read.kind()).increment(1);
    {
        let mut reads = conn.reads.borrow_mut();
        let reads = reads.get_or_insert_default();
        if reads.running >= READS_AT_ONCE_MAX {
            // Reads of subscriptions that are gone leave here, and a COUNT is bounded as a
            // subscription is, so no more wait than a connection may have subscriptions.
            reads.waiting.retain(|read| read.is_wanted(conn));
            if reads.waiting.len() >= shard.config.subscriptions_max {
                let reason = Reason::fixed(Prefix::Error, "too many reads are waiting");
                return give_up(shard, conn, &read, &reason);
            }
            return reads.waiting.push_back(read);
        }
        reads.running += 1;
    }
    let hot = conn.backlog() <= HISTORY_BACKLOG_BYTES_MAX && hooks::delay(Hook::History).is_none();
    let held = hot.then(|| shard.history.at_once()).flatten();
    let held = match held {
        Some(held) => match slice(shard, conn, &mut read) {
            Step::Over => return leave(conn),
            Step::More => Some(held),
            Step::ReadDone => None,
        },
        None => None,
    };
    let task = go_on(shard.clone(), conn.clone(), read, held);
    runtime::spawn(shard.guarded(conn.clone(), task));
}

/// Reads on, and then what waited behind, until nothing is left.
async fn go_on(shard: Rc<Shard>, conn: Rc<Conn>, mut read: Read, mut held: Option<Held>) {
    loop {
        answer(&shard, &conn, &mut read, held.take()).await;
        let next = {
            let mut reads = conn.reads.borrow_mut();
            reads.as_mut().and_then(|reads| reads.waiting.pop_front())
        };
        match next {
            Some(next) => read = next,
            None => return leave(&conn),
        }
    }
}

/// Reads one question to its end, permit by permit.
async fn answer(shard: &Rc<Shard>, conn: &Rc<Conn>, read: &mut Read, mut held: Option<Held>) {
    loop {
        while conn.backlog() > HISTORY_BACKLOG_BYTES_MAX && read.is_wanted(conn) && held.is_none() {
            conn.changed().await;
        }
        if !read.is_wanted(conn) {
            return;
        }
        if held.is_none() {
            let admitted = match shard.history.at_once() {
                Some(held) => Ok(held),
                None => shard.history.wait(conn).await,
            };
            match admitted {
                Ok(permit) => held = Some(permit),
                Err(Refused::Gone) => return,
                Err(Refused::Shed(_)) => return give_up(shard, conn, read, &SHED),
            }
            read.bytes = 0;
            hooks::pause(Hook::History).await;
        }
        match slice(shard, conn, read) {
            Step::Over => return,
            Step::More => {}
            Step::ReadDone => held = None,
        }
        shard.turns.next().await;
    }
}

/// One read less runs. The last one gives the bookkeeping's memory back.
fn leave(conn: &Conn) {
    let mut slot = conn.reads.borrow_mut();
    if let Some(reads) = slot.as_mut() {
        reads.running -= 1;
        if reads.running == 0 && reads.waiting.is_empty() {
            *slot = None;
        }
    }
}

/// Reads one slice.
fn slice(shard: &Rc<Shard>, conn: &Rc<Conn>, read: &mut Read) -> Step {
    if !read.is_wanted(conn) {
        return Step::Over;
    }
    let budget = Budget {
        entries_max: SLICE_ENTRIES_MAX,
        bytes_max: READ_BYTES_MAX - read.bytes.min(READ_BYTES_MAX - 1),
        deadline: Some(Instant::now() + SLICE_TIME),
        now: shard.unix_seconds(),
    };
    let progress = match &mut read.what {
        What::Events { key, query, .. } => {
            let (sub, bytes) = (&read.sub, &mut read.bytes);
            let mut progress = Ok(Progress::More);
            conn.send(shard, |outbox| {
                progress = query.slice(&shard.reader, &budget, &mut |json| {
                    *bytes += json.len();
                    outbox.push_row(sub, json);
                });
            });
            if let Some(watermark) = query.watermark() {
                conn.set_watermark(*key, watermark);
            }
            progress
        }
        What::Count(count) => count.slice(&shard.reader, &budget),
    };
    match progress {
        Ok(Progress::More) if read.bytes >= READ_BYTES_MAX => Step::ReadDone,
        Ok(Progress::More) => Step::More,
        Ok(Progress::Done) => {
            finish(shard, conn, read);
            Step::Over
        }
        Err(error) => {
            give_up(shard, conn, read, &failed(&error));
            Step::Over
        }
    }
}

fn finish(shard: &Rc<Shard>, conn: &Rc<Conn>, read: &Read) {
    match &read.what {
        What::Events { key, query, .. } => conn.end_history(shard, *key, query.hint()),
        What::Count(count) => {
            conn.send(shard, |outbox| {
                let hll = count.hll().map(Hll::to_hex);
                outbox.push_text(|out| {
                    message::write_count(out, &read.sub, count.total(), hll.as_deref());
                });
            });
        }
    }
    let seconds = shard.metrics.query_seconds.of(read.kind());
    seconds.record(read.started.elapsed());
}

/// Ends a question without an answer. Its subscription goes first, so that no event follows the
/// `CLOSED`.
fn give_up(shard: &Rc<Shard>, conn: &Rc<Conn>, read: &Read, reason: &Reason) {
    if !read.is_wanted(conn) {
        return;
    }
    if let What::Events { .. } = read.what {
        let held = conn.remove_sub(shard, &read.sub);
        let dropped = shard.metrics.events_dropped.of(DropReason::Closing);
        dropped.increment(held.unwrap_or(0) as u64);
    }
    closed(shard, conn, &read.sub, reason);
}

fn failed(error: &StoreError) -> Reason {
    tracing::warn!(%error, "a history read failed");
    Reason::fixed(Prefix::Error, "the store cannot answer, retry shortly")
}

/// Sends `CLOSED`. It says that no such subscription is left, so one that has this id, from an
/// earlier and better question, goes first.
pub fn closed(shard: &Rc<Shard>, conn: &Rc<Conn>, sub: &SubId, reason: &Reason) {
    conn.remove_sub(shard, sub);
    conn.send(shard, |outbox| {
        outbox.push_text(|out| message::write_closed(out, sub, reason));
    });
}
