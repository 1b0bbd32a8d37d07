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
//! so that of all questions of a shard one slice runs a turn, and waits between reads until the
//! client has taken what it got. A question that has met cold pages goes on on a reader thread.
//!
//! Each connection has at most [`READS_AT_ONCE_MAX`] reads that run or wait for a permit; its other
//! questions queue behind them.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use crate::limits::{
    READ_BYTES_MAX, READS_AT_ONCE_MAX, SLICE_ENTRIES_MAX, SLICE_TIME, SLICE_TIME_COLD,
};
use crate::live::SubKey;
use crate::metrics::{DropReason, MessageRefusal, QueryKind};
use crate::nostr::filter::Filter;
use crate::nostr::message::{self, Prefix, Reason, SubId};
use crate::shard::Shard;
use crate::shard::admission::{Held, Refused};
use crate::shard::conn::{Conn, Phase};
use crate::shard::hooks::{self, Hook};
use crate::shard::question::Question;
use crate::shard::readers::Lost;
use crate::shard::runtime;
use crate::store::embedded::{Budget, Progress, QueryBounds};
use crate::store::{Reader, StoreError, StoreErrorKind};

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
    /// The subscription that a REQ fills; a COUNT has none.
    fills: Option<(SubKey, u32)>,
    /// Values in its filters, without those that its subscription counts.
    values: usize,
    /// `None` while a reader thread has it.
    question: Option<Question>,
    started: Instant,
    /// Bytes of rows that the permit in use has brought.
    bytes: usize,
    /// It goes on away from the shard: it has met pages that were not in memory, or the store is
    /// elsewhere.
    away: bool,
}

const LOG_IN: Reason = Reason::fixed(Prefix::AuthRequired, "log in to read");
const TOO_MANY_SUBS: Reason = Reason::fixed(Prefix::Error, "too many subscriptions");
const TOO_MANY_READS: Reason = Reason::fixed(Prefix::Error, "too many reads are waiting");
const TOO_MANY_VALUES: Reason =
    Reason::fixed(Prefix::Error, "too many filter values on this connection");

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
    let Some(values) = room_for(shard, conn, &filters) else {
        return refuse(
            shard,
            conn,
            &sub,
            MessageRefusal::FilterValues,
            &TOO_MANY_VALUES,
        );
    };
    if must_log_in(shard, conn) {
        return refuse(shard, conn, &sub, MessageRefusal::AuthRequired, &LOG_IN);
    }
    let Some((key, serial, kept)) = conn.add_sub(shard, sub.clone(), &filters) else {
        return refuse(
            shard,
            conn,
            &sub,
            MessageRefusal::Subscriptions,
            &TOO_MANY_SUBS,
        );
    };
    let only_live = filters.iter().all(|filter| filter.limit == Some(0));
    let bounds = QueryBounds {
        limit_max: shard.config().limit_max,
        limit_default: shard.config().limit_default,
    };
    let question = Question::events(&shard.reader, filters.into(), bounds, conn.viewer());
    let mut read = Read::new(sub, Some((key, serial)), question);
    match &read.question {
        _ if !only_live => {
            // Those that the subscription does not keep are here all the same until it has read.
            read.values = values - kept;
            conn.filter_values
                .set(conn.filter_values.get() + read.values);
            enter(shard, conn, read);
        }
        // There is nothing to read but the watermark, and no reader is held for that.
        Some(Question::FarEvents(_, delivered)) => {
            conn.set_watermark(key, *delivered);
            conn.end_history(shard, key, None);
        }
        _ => drop(slice(shard, conn, &mut read)),
    }
}

/// Answers a COUNT (NIP-45).
pub fn count(shard: &Rc<Shard>, conn: &Rc<Conn>, sub: SubId, filters: Vec<Filter>) {
    let Some(values) = room_for(shard, conn, &filters) else {
        return refuse(
            shard,
            conn,
            &sub,
            MessageRefusal::FilterValues,
            &TOO_MANY_VALUES,
        );
    };
    if must_log_in(shard, conn) {
        return refuse(shard, conn, &sub, MessageRefusal::AuthRequired, &LOG_IN);
    }
    let question = Question::count(&shard.reader, filters.into(), conn.viewer());
    let mut read = Read::new(sub, None, question);
    read.values = values;
    conn.filter_values.set(conn.filter_values.get() + values);
    enter(shard, conn, read);
}

impl Read {
    fn new(sub: SubId, fills: Option<(SubKey, u32)>, question: Question) -> Read {
        Read {
            sub,
            fills,
            values: 0,
            away: question.is_far(),
            question: Some(question),
            started: Instant::now(),
            bytes: 0,
        }
    }

    fn kind(&self) -> QueryKind {
        match self.fills {
            Some(_) => QueryKind::Req,
            None => QueryKind::Count,
        }
    }

    /// It is over: its values are the connection's no more.
    fn forget(&self, conn: &Conn) {
        conn.filter_values
            .set(conn.filter_values.get() - self.values);
    }

    /// Whether somebody still waits for the answer.
    fn is_wanted(&self, conn: &Conn) -> bool {
        let asked = |(key, serial)| conn.has_sub(key, serial);
        conn.phase() == Phase::Open && self.fills.is_none_or(asked)
    }

    /// Bytes of rows that the next slice may bring: what the permit in use leaves, and the queue.
    fn bytes_left(&self, shard: &Shard, conn: &Conn) -> usize {
        let left = READ_BYTES_MAX.saturating_sub(self.bytes);
        left.min(conn.history_room(shard)).max(1)
    }
}

/// The values in these filters, if the connection may have so many more.
fn room_for(shard: &Shard, conn: &Conn, filters: &[Filter]) -> Option<usize> {
    let values = filters.iter().map(Filter::value_count).sum();
    let fits = conn.filter_values.get() + values <= shard.config().filter_values_max;
    fits.then_some(values)
}

fn must_log_in(shard: &Shard, conn: &Conn) -> bool {
    shard.config().login_required() && !conn.is_authenticated()
}

/// Turns a question away, and counts it.
fn refuse(shard: &Rc<Shard>, conn: &Rc<Conn>, sub: &SubId, why: MessageRefusal, reason: &Reason) {
    shard.metrics.messages_refused.of(why).increment(1);
    closed(shard, conn, sub, reason);
}

/// Starts a read, or lets it wait behind the connection's other reads.
fn enter(shard: &Rc<Shard>, conn: &Rc<Conn>, mut read: Read) {
    shard.metrics.queries.of(read.kind()).increment(1);
    let mut reads = conn.reads.take().unwrap_or_default();
    if reads.running >= READS_AT_ONCE_MAX {
        // Reads of subscriptions that are gone leave here, and a COUNT is bounded as a subscription
        // is, so no more wait than a connection may have subscriptions.
        reads.waiting.retain(|read| {
            let is_wanted = read.is_wanted(conn);
            if !is_wanted {
                read.forget(conn);
            }
            is_wanted
        });
        if reads.waiting.len() >= shard.config().subscriptions_max {
            conn.reads.set(Some(reads));
            read.forget(conn);
            let why = MessageRefusal::Reads;
            return refuse(shard, conn, &read.sub, why, &TOO_MANY_READS);
        }
        reads.waiting.push_back(read);
        return conn.reads.set(Some(reads));
    }
    reads.running += 1;
    conn.reads.set(Some(reads));
    let slow = read.away || hooks::delay(Hook::History).is_some();
    let hot = conn.takes_history(shard) && !slow;
    let held = hot.then(|| shard.history.at_once()).flatten();
    let held = match held {
        Some(held) => match slice(shard, conn, &mut read) {
            Step::Over => {
                read.forget(conn);
                return leave(conn);
            }
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
        read.forget(&conn);
        let mut reads = conn.reads.take();
        let next = reads.as_mut().and_then(|reads| reads.waiting.pop_front());
        conn.reads.set(reads);
        match next {
            Some(next) => read = next,
            None => return leave(&conn),
        }
    }
}

/// Reads one question to its end, permit by permit.
async fn answer(shard: &Rc<Shard>, conn: &Rc<Conn>, read: &mut Read, mut held: Option<Held>) {
    loop {
        while !conn.takes_history(shard) && read.is_wanted(conn) && held.is_none() {
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
        let step = match read.away {
            true => turn(shard, conn, read).await,
            false => slice(shard, conn, read),
        };
        match step {
            Step::Over => return,
            Step::More => {}
            Step::ReadDone => held = None,
        }
        if !read.away {
            shard.turns.next_alone().await;
        }
    }
}

/// One read less runs. The last one gives the bookkeeping's memory back.
fn leave(conn: &Conn) {
    if let Some(mut reads) = conn.reads.take() {
        reads.running -= 1;
        if reads.running > 0 || !reads.waiting.is_empty() {
            conn.reads.set(Some(reads));
        }
    }
}

/// Reads one slice, here.
fn slice(shard: &Rc<Shard>, conn: &Rc<Conn>, read: &mut Read) -> Step {
    if !read.is_wanted(conn) {
        return Step::Over;
    }
    let bytes_max = read.bytes_left(shard, conn);
    let (Some(question), Reader::Embedded(reader)) = (read.question.as_mut(), &shard.reader) else {
        return Step::Over;
    };
    let start = Instant::now();
    let budget = Budget {
        entries_max: SLICE_ENTRIES_MAX,
        bytes_max,
        deadline: Some(start + SLICE_TIME),
        now: shard.unix_seconds(),
    };
    let (sub, mut bytes) = (&read.sub, 0);
    let mut progress = Ok(Progress::More);
    conn.send(shard, |batch| {
        progress = question.slice(reader, &budget, &mut |row| {
            bytes += row.json.len();
            batch.push_row(sub, row);
        });
    });
    let overran = start.elapsed() >= SLICE_TIME_COLD;
    read.away = overran && (hooks::stalls() || shard.faults.have_grown());
    took(shard, conn, read, bytes, progress)
}

/// Reads on away from the shard: for one turn of a reader thread, or one read of a store elsewhere.
async fn turn(shard: &Rc<Shard>, conn: &Rc<Conn>, read: &mut Read) -> Step {
    let Some(question) = read.question.take() else {
        return Step::Over;
    };
    let (bytes_max, now) = (read.bytes_left(shard, conn), shard.unix_seconds());
    let turn = match (&shard.reader, &shard.common.readers) {
        (Reader::Postgres(reader), _) => {
            let asked = question.ask(reader, bytes_max, now).await;
            asked.map_err(Lost::Failed)
        }
        (Reader::Embedded(_), Some(readers)) => {
            shard.metrics.reader_turns.increment(1);
            readers.turn(question, bytes_max, now).await
        }
        (Reader::Embedded(_), None) => Err(Lost::NoRoom(question)),
    };
    match turn {
        Ok(turn) => {
            read.question = Some(turn.question);
            if !read.is_wanted(conn) {
                return Step::Over;
            }
            conn.send(shard, |batch| {
                turn.rows
                    .iter()
                    .for_each(|row| batch.push_row(&read.sub, row));
            });
            took(shard, conn, read, turn.rows.bytes(), Ok(turn.progress))
        }
        Err(Lost::NoRoom(question)) => {
            // Better slow than never.
            read.question = Some(question);
            read.away = false;
            Step::More
        }
        Err(Lost::Failed(error)) => took(shard, conn, read, 0, Err(error)),
        Err(Lost::Panicked) => {
            shard.metrics.panics.increment(1);
            let error = StoreError::new(StoreErrorKind::Io, "a read panicked");
            took(shard, conn, read, 0, Err(error))
        }
    }
}

/// Takes note of what a slice or a turn has brought.
fn took(
    shard: &Rc<Shard>,
    conn: &Rc<Conn>,
    read: &mut Read,
    bytes: usize,
    progress: Result<Progress, StoreError>,
) -> Step {
    read.bytes += bytes;
    if let (Some((key, _)), Some(question)) = (read.fills, &read.question)
        && let Some(watermark) = question.watermark()
    {
        conn.set_watermark(key, watermark);
    }
    match progress {
        Ok(Progress::More) if read.bytes < READ_BYTES_MAX && conn.takes_history(shard) => {
            Step::More
        }
        Ok(Progress::More) => Step::ReadDone,
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
    let Some(question) = &read.question else {
        return;
    };
    if let Some((key, _)) = read.fills {
        conn.end_history(shard, key, question.hint());
    }
    if let Some((total, hll)) = question.counted() {
        conn.send(shard, |batch| {
            batch.push_text(|out| message::write_count(out, &read.sub, total, hll.as_deref()));
        });
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
    if read.fills.is_some() {
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
    conn.send(shard, |batch| {
        batch.push_text(|out| message::write_closed(out, sub, reason));
    });
}
