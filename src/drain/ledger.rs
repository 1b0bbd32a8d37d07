//! What became of the connections: counted by each shard for itself, read by the control thread.
//!
//! A connection comes under the drain once and is settled once, so that at the end the sum of the
//! outcomes is the number that came under it. Figures of different counters may be a moment apart.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::metrics::DrainClose;

/// The counters of all shards.
#[derive(Debug)]
pub struct Ledger {
    shards: Box<[Entry]>,
}

/// The sum over all shards.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Totals {
    /// Connections that came under the drain.
    pub all: usize,
    /// The kernel took their 1012.
    pub acknowledged: usize,
    /// Closed without that.
    pub cancelled: usize,
    /// Left by themselves, or were being closed for another reason.
    pub gone: usize,
    /// When the last 1012 was handed to a connection's writer, from the start of the closes.
    pub last_close: Duration,
}

impl Totals {
    /// Connections whose close is not settled yet.
    pub fn unsettled(&self) -> usize {
        let settled = self.acknowledged + self.cancelled + self.gone;
        self.all.saturating_sub(settled)
    }
}

/// On cache lines of its own: each is written by one shard.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Entry {
    stopped: AtomicBool,
    planned: AtomicUsize,
    all: AtomicUsize,
    acknowledged: AtomicUsize,
    cancelled: AtomicUsize,
    gone: AtomicUsize,
    last_close_micros: AtomicU64,
}

impl Ledger {
    /// Counters at zero.
    pub fn new(shards: usize) -> Ledger {
        Ledger {
            shards: (0..shards).map(|_| Entry::default()).collect(),
        }
    }

    /// A shard accepts no more, and has this many connections to be closed one by one.
    pub fn stopped_accepting(&self, shard: usize, planned: usize) {
        let entry = &self.shards[shard];
        entry.planned.store(planned, Ordering::Relaxed);
        // What the shard counted before is seen by whoever sees this.
        entry.stopped.store(true, Ordering::Release);
    }

    /// What the shard said in [`Ledger::stopped_accepting`], once it has.
    pub fn planned(&self, shard: usize) -> Option<usize> {
        let entry = &self.shards[shard];
        let stopped = entry.stopped.load(Ordering::Acquire);
        stopped.then(|| entry.planned.load(Ordering::Relaxed))
    }

    /// One connection more is the drain's to end.
    pub fn came_under(&self, shard: usize) {
        self.shards[shard].all.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection was told to leave, so long after the start of the closes.
    pub fn told(&self, shard: usize, after: Duration) {
        let micros = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        let last = &self.shards[shard].last_close_micros;
        last.fetch_max(micros, Ordering::Relaxed);
    }

    /// A connection's close came out so. The hard stop's own count is what is left unsettled.
    pub fn settled(&self, shard: usize, how: DrainClose) {
        let entry = &self.shards[shard];
        let counter = match how {
            DrainClose::Acknowledged => &entry.acknowledged,
            DrainClose::Cancelled => &entry.cancelled,
            DrainClose::Gone => &entry.gone,
            DrainClose::Hard => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The figures now.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for entry in &self.shards {
            // Outcomes first: read the other way round, one could outnumber `all`.
            totals.acknowledged += entry.acknowledged.load(Ordering::Relaxed);
            totals.cancelled += entry.cancelled.load(Ordering::Relaxed);
            totals.gone += entry.gone.load(Ordering::Relaxed);
            totals.all += entry.all.load(Ordering::Relaxed);
            let last = Duration::from_micros(entry.last_close_micros.load(Ordering::Relaxed));
            totals.last_close = totals.last_close.max(last);
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_settles_one_connection() {
        let ledger = Ledger::new(2);
        for shard in [0, 1, 1, 1] {
            ledger.came_under(shard);
        }
        assert_eq!(ledger.planned(1), None);
        ledger.stopped_accepting(1, 3);
        assert_eq!((ledger.planned(0), ledger.planned(1)), (None, Some(3)));
        ledger.settled(0, DrainClose::Acknowledged);
        ledger.settled(1, DrainClose::Cancelled);
        ledger.settled(1, DrainClose::Gone);
        ledger.told(1, Duration::from_millis(7));
        ledger.told(0, Duration::from_millis(3));
        let totals = ledger.totals();
        assert_eq!((totals.all, totals.unsettled()), (4, 1));
        assert_eq!(
            (totals.acknowledged, totals.cancelled, totals.gone),
            (1, 1, 1)
        );
        assert_eq!(totals.last_close, Duration::from_millis(7));
    }
}
