//! How much waits to be written: for one connection, for a shard, for all of them.
//!
//! A connection's backlog is what is queued, being written, or held back until a history ends. It
//! has a hard bound, and a soft one that it may exceed for a while. The sum over all connections
//! has a bound too; past it the largest are disconnected, one after the other, until it holds.
//!
//! Invariants: `Shard::queued` is the sum of its connections' `counted_bytes`. A connection counts
//! while it is served: once its close was started its queue only shrinks, for at most
//! [`CLOSE_WRITE`](crate::limits::CLOSE_WRITE). What a shard has published of its sum is off by less
//! than a step, so that neighbours' cache lines are not written with every frame; all steps together
//! are a small part of the bound.
//!
//! The largest is disconnected, wherever it is: each shard publishes how much waits for its largest
//! connection, never a step less than that is. One shard at a time looks for it. One that finds that
//! another has published a larger connection passes the search on to it; that one looks at its own,
//! publishes what is true, and goes on.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::config::OutboxBounds;
use crate::limits::{HISTORY_BACKLOG_BYTES_MAX, OUTBOX_TOTAL_SLACK_DIVISOR};
use crate::metrics::{CloseReason, DropReason};
use crate::shard::Shard;
use crate::shard::common::{Common, Mail};
use crate::shard::conn::{Conn, Phase};
use crate::ws::close;

/// Who searches for the largest: nobody. Else a shard's number and one.
const NOBODY: usize = 0;

/// Bytes by which a shard's sum may differ from what it has published of it.
pub(super) fn step(bounds: &OutboxBounds, shards: usize) -> usize {
    (bounds.total_bytes / OUTBOX_TOTAL_SLACK_DIVISOR / shards).max(1)
}

impl Common {
    /// Bytes that wait to be written, over all shards, as published.
    pub fn queued_bytes(&self) -> usize {
        let queued = self.queued.iter();
        queued.map(|queued| queued.0.load(Ordering::Relaxed)).sum()
    }

    /// Gives the search for the largest to a shard, unless one has it. Who asked in vain asks again at
    /// its next growth or sweep.
    fn begin_relief(&self, shard: usize) -> bool {
        let relief = &self.relief.0;
        relief
            .compare_exchange(NOBODY, shard + 1, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    fn end_relief(&self) {
        self.relief.0.store(NOBODY, Ordering::Relaxed);
    }

    /// Passes the search on. A mailbox without room has a busy shard behind it: the next one who is
    /// past the bound begins anew.
    fn pass_relief(&self, shard: usize) {
        self.relief.0.store(shard + 1, Ordering::Relaxed);
        if self.tell(shard, Mail::Relieve).is_err() {
            self.end_relief();
        }
    }
}

impl Conn {
    /// Checks the queue's bounds after it grew. Returns false if that ended the connection.
    pub(super) fn within_bounds(self: &Rc<Self>, shard: &Rc<Shard>) -> bool {
        let backlog = self.backlog();
        if backlog > shard.config().outbox.hard_bytes {
            self.overflow(shard);
            return false;
        }
        if backlog > shard.config().outbox.soft_bytes && self.over_soft_since.get().is_none() {
            self.over_soft_since.set(Some(Instant::now().into()));
        }
        self.recount(shard);
        true
    }

    /// Whether it may be given more history: it has taken most of what it was given.
    pub(super) fn takes_history(&self, shard: &Shard) -> bool {
        let most = HISTORY_BACKLOG_BYTES_MAX.min(shard.config().outbox.soft_bytes / 2);
        self.backlog() <= most
    }

    /// Bytes of history that it may be given now. They leave its queue below the soft bound, so that
    /// only live events, or answers to what it sends itself, make a client too slow.
    pub(super) fn history_room(&self, shard: &Shard) -> usize {
        let most = shard.config().outbox.soft_bytes;
        most.saturating_sub(self.backlog())
    }

    /// Whether the queue has been above its soft bound, without a break, for longer than it may.
    pub(super) fn is_over_soft_too_long(&self, shard: &Shard, now: Instant) -> bool {
        let since = self.over_soft_since.get();
        since.is_some_and(|since| now >= since.instant() + shard.config().outbox.soft)
    }

    /// Takes note of the backlog as it is now.
    pub(super) fn recount(&self, shard: &Shard) {
        let backlog = self.backlog();
        if backlog <= shard.config().outbox.soft_bytes {
            self.over_soft_since.set(None);
        }
        let served = self.phase() <= Phase::Open;
        let now = if served { backlog } else { 0 };
        let before = self.counted_bytes.replace(now);
        if now != before {
            shard.queue_changed(before, now);
        }
    }

    /// Counts live events that were dropped because this connection ends.
    pub(super) fn count_dropped(&self, shard: &Shard, why: CloseReason, dropped: usize) {
        let reason = match why {
            CloseReason::SlowReader | CloseReason::QueuesFull => DropReason::SlowReader,
            _ => DropReason::Closing,
        };
        let series = shard.metrics.events_dropped.of(reason);
        series.increment(dropped as u64);
    }

    /// Counts events that were not written before their time came.
    pub(super) fn count_expired(&self, shard: &Shard, dropped: usize) {
        let series = shard.metrics.events_dropped.of(DropReason::Expired);
        series.increment(dropped as u64);
    }

    /// A client too slow for what it asked for. Nothing more is queued for it; it is told why.
    pub(super) fn overflow(self: &Rc<Self>, shard: &Rc<Shard>) {
        shard.metrics.backpressure_disconnects.increment(1);
        let text = "too slow for the events asked for";
        let code = Some(close::POLICY_VIOLATION);
        self.close(shard, CloseReason::SlowReader, code, text);
    }
}

impl Shard {
    /// A connection's share of the sum changed.
    fn queue_changed(&self, before: usize, now: usize) {
        let queued = self.queued.get() - before + now;
        self.queued.set(queued);
        if now >= self.largest_published.get() + self.queued_step {
            self.publish_largest(now);
        }
        if queued.abs_diff(self.queued_published.get()) >= self.queued_step {
            self.publish_queued();
            if now > before && self.is_past_total() {
                self.relief.wake();
            }
        }
    }

    fn publish_queued(&self) {
        let queued = self.queued.get();
        self.queued_published.set(queued);
        self.common.queued[self.id]
            .0
            .store(queued, Ordering::Relaxed);
    }

    fn is_past_total(&self) -> bool {
        self.common.queued_bytes() > self.config().outbox.total_bytes
    }

    /// Publishes how much waits on this shard, and how much of it for one connection. Part of the
    /// sweep, which also makes up for what lies between two steps.
    pub(super) fn publish_backlog(&self, largest: usize) {
        self.publish_queued();
        self.publish_largest(largest);
        self.metrics.queued_bytes.set(self.queued.get());
        if self.is_past_total() {
            self.relief.wake();
        }
    }

    fn publish_largest(&self, largest: usize) {
        self.largest_published.set(largest);
        self.common.largest[self.id]
            .0
            .store(largest, Ordering::Relaxed);
    }

    /// Disconnects the largest whenever the sum is past its bound.
    pub(super) async fn keep_total(self: Rc<Self>) {
        loop {
            self.relief.wait().await;
            if self.is_past_total() && self.common.begin_relief(self.id) {
                self.relieve();
            }
        }
    }

    /// Goes on with the search, which is this shard's now: disconnects its largest connections while
    /// they are the largest of all and the sum is past its bound.
    pub(super) fn relieve(self: &Rc<Self>) {
        let mut by_size: Vec<(usize, u32)> = Vec::new();
        self.each_conn(|conn| {
            if conn.counted_bytes.get() > 0 {
                by_size.push((conn.counted_bytes.get(), conn.key()));
            }
        });
        by_size.sort_unstable();
        loop {
            let largest = by_size.pop();
            let bytes = largest.map_or(0, |(bytes, _)| bytes);
            self.publish_queued();
            self.publish_largest(bytes);
            if !self.is_past_total() {
                return self.common.end_relief();
            }
            if let Some(other) = self.larger_than(bytes) {
                return self.common.pass_relief(other);
            }
            let Some((_, key)) = largest else {
                return self.common.end_relief();
            };
            let conn = self.conns.borrow().get(key as usize).cloned();
            if let Some(conn) = conn {
                self.metrics.backpressure_disconnects.increment(1);
                let code = Some(close::POLICY_VIOLATION);
                let text = "the relay's queues are full and yours is the longest";
                conn.close(self, CloseReason::QueuesFull, code, text);
            }
        }
    }

    /// The shard that published the largest connection, if that is larger than this.
    fn larger_than(&self, bytes: usize) -> Option<usize> {
        let published = self.common.largest.iter().enumerate();
        let others = published.filter(|(id, _)| *id != self.id);
        others
            .map(|(id, largest)| (largest.0.load(Ordering::Relaxed), id))
            .max()
            .filter(|(largest, _)| *largest > bytes)
            .map(|(_, id)| id)
    }
}
