//! REQ: a subscription is registered, its history read in slices, then it follows live.
//!
//! No gap and no duplicate: the subscription is registered before its first read, and that read's
//! snapshot gives the watermark. History skips what is above the watermark, live skips what is at
//! or below it, and what comes live before `EOSE` is held back until then.
//!
//! The first slice runs at once, so that a hot answer leaves without a task of its own. What it
//! leaves over goes on in a task that pauses between slices and waits while the client has not
//! taken what was read, so history is produced only as fast as it is read.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use crate::limits::{
    HISTORY_BACKLOG_BYTES_MAX, READS_AT_ONCE_MAX, SLICE_BYTES_MAX, SLICE_ENTRIES_MAX, SLICE_TIME,
};
use crate::live::SubKey;
use crate::metrics::QueryKind;
use crate::nostr::filter::Filter;
use crate::nostr::message::{self, Prefix, Reason, SubId};
use crate::shard::Shard;
use crate::shard::conn::{Conn, Phase};
use crate::shard::runtime;
use crate::store::StoreError;
use crate::store::embedded::{Budget, Progress, Query, QueryBounds};

/// The reads of one connection: how many run, and which wait for one to end.
#[derive(Default)]
pub struct Reads {
    running: usize,
    waiting: VecDeque<Read>,
}

/// The history of one subscription, from where it is read on.
struct Read {
    key: SubKey,
    serial: u32,
    sub: SubId,
    query: Query,
    started: Instant,
}

/// Answers a REQ.
pub fn request(shard: &Rc<Shard>, conn: &Rc<Conn>, sub: SubId, filters: Vec<Filter>) {
    conn.remove_sub(shard, &sub);
    let values = filters.iter().map(Filter::value_count).sum();
    if conn.filter_values.get() + values > shard.config.filter_values_max {
        let reason = Reason::new(Prefix::Error, "too many filter values on this connection");
        return closed(shard, conn, &sub, &reason);
    }
    let Some((key, serial)) = conn.add_sub(shard, sub.clone(), values) else {
        let reason = Reason::new(Prefix::Error, "too many subscriptions");
        return closed(shard, conn, &sub, &reason);
    };
    let filters: Rc<[Filter]> = filters.into();
    shard.subscribe(key, filters.clone());
    let bounds = QueryBounds {
        limit_max: shard.config.limit_max,
        limit_default: shard.config.limit_default,
    };
    let read = Read {
        key,
        serial,
        sub,
        query: Query::new(filters, bounds),
        started: Instant::now(),
    };
    enter(shard, conn, read);
}

/// Starts a read, or lets it wait behind the connection's other reads.
fn enter(shard: &Rc<Shard>, conn: &Rc<Conn>, mut read: Read) {
    {
        let mut reads = conn.reads.borrow_mut();
        let reads = reads.get_or_insert_default();
        if reads.running >= READS_AT_ONCE_MAX {
            // As many wait as there are subscriptions: each has one read at most, and the reads
            // of replaced ones leave here.
            reads
                .waiting
                .retain(|read| conn.has_sub(read.key, read.serial));
            return reads.waiting.push_back(read);
        }
        reads.running += 1;
    }
    if conn.backlog() <= HISTORY_BACKLOG_BYTES_MAX && slice(shard, conn, &mut read) {
        leave(conn);
    } else {
        let task = go_on(shard.clone(), conn.clone(), read);
        runtime::spawn(shard.guarded(conn.clone(), task));
    }
}

/// Reads on, and then what waited behind, until nothing is left.
async fn go_on(shard: Rc<Shard>, conn: Rc<Conn>, mut read: Read) {
    loop {
        while conn.backlog() > HISTORY_BACKLOG_BYTES_MAX && conn.phase() == Phase::Open {
            conn.changed().await;
        }
        if !slice(&shard, &conn, &mut read) {
            shard.turns.next().await;
            continue;
        }
        let next = conn
            .reads
            .borrow_mut()
            .as_mut()
            .and_then(|reads| reads.waiting.pop_front());
        match next {
            Some(next) => read = next,
            None => return leave(&conn),
        }
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

/// Reads one slice. Returns whether this history has come to its end, in whatever way.
fn slice(shard: &Rc<Shard>, conn: &Rc<Conn>, read: &mut Read) -> bool {
    if conn.phase() != Phase::Open || !conn.has_sub(read.key, read.serial) {
        return true;
    }
    let budget = Budget {
        entries_max: SLICE_ENTRIES_MAX,
        bytes_max: SLICE_BYTES_MAX,
        deadline: Some(Instant::now() + SLICE_TIME),
    };
    let mut progress = Ok(Progress::More);
    conn.send(shard, |outbox| {
        progress = read.query.slice(&shard.reader, &budget, &mut |json| {
            outbox.push_row(&read.sub, json);
        });
    });
    if let Some(watermark) = read.query.watermark() {
        conn.set_watermark(read.key, watermark);
    }
    match progress {
        Ok(Progress::More) => false,
        Ok(Progress::Done) => {
            conn.end_history(shard, read.key);
            shard.metrics.queries.of(QueryKind::Req).increment(1);
            let seconds = read.started.elapsed();
            shard
                .metrics
                .query_seconds
                .of(QueryKind::Req)
                .record(seconds);
            true
        }
        Err(error) => {
            conn.remove_sub(shard, &read.sub);
            closed(shard, conn, &read.sub, &failed(&error));
            true
        }
    }
}

fn failed(error: &StoreError) -> Reason {
    tracing::warn!(%error, "a history read failed");
    Reason::new(Prefix::Error, "the store cannot answer, retry shortly")
}

fn closed(shard: &Rc<Shard>, conn: &Rc<Conn>, sub: &SubId, reason: &Reason) {
    conn.send(shard, |outbox| {
        outbox.push_text(|out| message::write_closed(out, sub, reason));
    });
}
