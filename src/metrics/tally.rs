//! Numbers that can be read back.
//!
//! What a handle of the recorder has counted is read only as a line of the whole text. A number that
//! `/_status` shows as well stands here, and its handle is wrapped with it: one call counts both, so
//! the two cannot come to differ. Each shard counts on cache lines of its own, and whoever shows a
//! total adds them up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

use super::labels::{
    AuthOutcome, CloseReason, DropReason, EventOutcome, GateName, Label, QueryKind, ShedReason,
};

/// What one shard has counted. It lives as long as the process, as its shard does.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Tally {
    /// Open WebSockets.
    pub open: AtomicU64,
    /// WebSockets ever opened.
    pub opened: AtomicU64,
    /// Open subscriptions.
    pub subscriptions: AtomicU64,
    /// Bytes that wait to be written, as of the last sweep.
    pub queued_bytes: AtomicU64,
    /// Live events queued to subscribers.
    pub delivered: AtomicU64,
    /// EVENT messages.
    pub events: PerLabel<{ EventOutcome::ALL.len() }>,
    /// Live events not sent.
    pub dropped: PerLabel<{ DropReason::ALL.len() }>,
    /// Questions.
    pub queries: PerLabel<{ QueryKind::ALL.len() }>,
    /// WebSockets that ended.
    pub closes: PerLabel<{ CloseReason::ALL.len() }>,
    /// Logins.
    pub logins: PerLabel<{ AuthOutcome::ALL.len() }>,
    /// What each gate has turned away.
    pub sheds: [PerLabel<{ ShedReason::ALL.len() }>; GateName::ALL.len()],
}

/// One number for each value of a label, in the order of [`Label::index`].
pub type PerLabel<const N: usize> = [AtomicU64; N];

impl Tally {
    /// A tally for one more shard.
    pub fn for_ever() -> &'static Tally {
        Box::leak(Box::default())
    }
}

/// The tallies of all shards, by shard.
#[derive(Debug)]
pub struct Tallies(Box<[&'static Tally]>);

impl Tallies {
    /// One for each shard.
    pub fn new(shards: usize) -> Tallies {
        Tallies((0..shards).map(|_| Tally::for_ever()).collect())
    }

    /// A shard's own.
    pub fn of(&self, shard: usize) -> &'static Tally {
        self.0[shard]
    }

    /// A number of all shards together.
    pub fn total(&self, number: impl Fn(&Tally) -> &AtomicU64) -> u64 {
        self.0.iter().map(|tally| read(number(tally))).sum()
    }

    /// The numbers of a label, of all shards together, each with the label's text.
    pub fn by_label<L: Label>(
        &self,
        numbers: impl Fn(&Tally) -> &[AtomicU64],
    ) -> impl Iterator<Item = (&'static str, u64)> {
        let texts = L::TEXTS.iter().enumerate();
        texts.map(move |(index, text)| (*text, self.total(|tally| &numbers(tally)[index])))
    }
}

/// What a number is now.
pub fn read(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

/// What the numbers of a label come to.
pub fn sum(numbers: &[AtomicU64]) -> u64 {
    numbers.iter().map(read).sum()
}

/// A counter, and its number.
#[derive(Debug)]
pub struct Counted {
    handle: Counter,
    number: &'static AtomicU64,
}

impl Counted {
    /// Wraps a handle with the number that is to be the same.
    pub fn new(handle: Counter, number: &'static AtomicU64) -> Counted {
        Counted { handle, number }
    }

    /// Counts in both.
    #[inline]
    pub fn increment(&self, by: u64) {
        self.handle.increment(by);
        self.number.fetch_add(by, Ordering::Relaxed);
    }
}

/// A gauge of whole things, and its number.
#[derive(Debug)]
pub struct Level {
    handle: Gauge,
    number: &'static AtomicU64,
}

impl Level {
    /// Wraps a handle with the number that is to be the same.
    pub fn new(handle: Gauge, number: &'static AtomicU64) -> Level {
        Level { handle, number }
    }

    /// One more.
    #[inline]
    pub fn rise(&self) {
        self.handle.increment(1.0);
        self.number.fetch_add(1, Ordering::Relaxed);
    }

    /// One less.
    #[inline]
    pub fn fall(&self) {
        self.handle.decrement(1.0);
        self.number.fetch_sub(1, Ordering::Relaxed);
    }

    /// So many.
    #[inline]
    pub fn set(&self, count: usize) {
        self.handle.set(count as f64);
        self.number.store(count as u64, Ordering::Relaxed);
    }
}

/// How long the store's commits take, and how many there were.
#[derive(Debug)]
pub struct Commits {
    handle: Histogram,
    count: AtomicU64,
    nanos: AtomicU64,
}

impl Commits {
    /// Wraps a handle that has recorded nothing yet.
    pub fn new(handle: Histogram) -> Commits {
        Commits {
            handle,
            count: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
        }
    }

    /// Takes note of a commit.
    pub fn record(&self, took: Duration) {
        self.handle.record(took);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        read(&self.count)
    }

    /// The time of all of them.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(read(&self.nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::series;

    #[test]
    fn one_call_counts_in_both() {
        let tally = Tally::for_ever();
        let commits = std::cell::OnceCell::new();
        let text = crate::metrics::recorded(|| {
            let counted = Counted::new(series::EVENTS_DELIVERED.counter(&[]), &tally.delivered);
            counted.increment(3);
            counted.increment(4);
            let own = [("shard", "9".to_owned())];
            let level = Level::new(
                series::SUBSCRIPTIONS_ACTIVE.gauge(&own),
                &tally.subscriptions,
            );
            level.set(5);
            level.rise();
            level.fall();
            level.fall();
            let time = Commits::new(series::STORE_COMMIT_SECONDS.histogram(&[]));
            time.record(Duration::from_millis(250));
            time.record(Duration::from_millis(500));
            commits.set((time.count(), time.time())).unwrap();
        });
        assert_eq!((read(&tally.delivered), read(&tally.subscriptions)), (7, 4));
        assert_eq!(commits.get(), Some(&(2, Duration::from_millis(750))));
        for line in [
            "buzz_events_delivered_total 7",
            "buzz_subscriptions_active{shard=\"9\"} 4",
            "buzz_store_commit_seconds_count 2",
            "buzz_store_commit_seconds_sum 0.75",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn totals_are_of_all_shards() {
        let tallies = Tallies::new(3);
        for (shard, by) in [(0, 1), (1, 10), (2, 100)] {
            let tally = tallies.of(shard);
            tally.opened.fetch_add(by, Ordering::Relaxed);
            tally.queries[QueryKind::Count.index()].fetch_add(by, Ordering::Relaxed);
        }
        assert_eq!(tallies.total(|tally| &tally.opened), 111);
        let queries: Vec<_> = tallies
            .by_label::<QueryKind>(|tally| &tally.queries)
            .collect();
        assert_eq!(queries, [("req", 0), ("count", 111), ("neg", 0)]);
        assert_eq!(sum(&tallies.of(1).queries), 10);
    }

    #[test]
    fn neighbours_share_no_cache_line() {
        assert_eq!(align_of::<Tally>(), 128);
        assert_eq!(size_of::<Tally>() % 128, 0);
    }
}
