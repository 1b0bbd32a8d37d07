//! What the shards of one process share, and the store's way to them.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::drain::ledger::Ledger;
use crate::drain::run::Part;
use crate::lifecycle::Lifecycle;
use crate::limits::MAILBOX_ITEMS_MAX;
use crate::live::RecentIds;
use crate::metrics::{ByLabel, Commits, RemovalReason, Tallies};
use crate::nostr::event::Event;
use crate::shard::addresses::Addresses;
use crate::shard::admission::Gates;
use crate::shard::hooks::{self, Hook};
use crate::shard::mailbox::Mailbox;
use crate::shard::readers::Readers;
use crate::shard::settings::{Exchange, Settings};
use crate::shard::subs::EPHEMERAL;
use crate::store::{Arrived, CommitSink, Done, Outcome, Reader, Removal, Store};
use crate::transfer::running::Transfers;

/// What a shard is told by other threads.
pub enum Mail {
    /// An event to match against the shard's subscriptions, with its sequence, or [`EPHEMERAL`](super::subs::EPHEMERAL).
    Event(Arc<Event>, u64),
    /// What the store made of an event that a connection of this shard sent.
    Answer(Done),
    /// A connection that another shard accepted.
    Adopt(OwnedFd, SocketAddr),
    /// End the connections that have logged in with one of these keys, which are sorted: they are
    /// banned.
    Ban(Arc<[[u8; 32]]>),
    /// Accept no more, and say how many connections there are.
    StopAccepting,
    /// All queues together are past their bound, and this shard has published the largest one.
    Relieve,
    /// Tell these connections to leave, each at its time.
    Close(Part),
    /// Serve by these settings from now on.
    Settings(Exchange),
}

/// What all threads share.
pub struct Common {
    /// Whether the relay wants traffic.
    pub lifecycle: Arc<Lifecycle>,
    /// The store.
    pub store: Store,
    /// Threads for reads that would hold their shard.
    pub readers: Option<Readers>,
    /// The two gates.
    pub gates: Gates,
    /// Ids of ephemeral events seen lately.
    pub recent: RecentIds,
    /// Connections by address, where those are bounded.
    pub addresses: Arc<Addresses>,
    /// What became of the connections that the drain ended.
    pub drain: Ledger,
    /// What the shards count and can be read back.
    pub tallies: Tallies,
    /// The store's commits.
    pub commits: Commits,
    /// Imports and exports that run.
    pub transfers: Arc<Transfers>,
    /// The newest settings; each shard has its own handle.
    settings: Mutex<Arc<Settings>>,
    pub(super) mail: Box<[Mailbox<Mail>]>,
    /// Sockets of each shard, upgraded or not.
    pub(super) load: Box<[Padded]>,
    /// Bytes that wait to be written on each shard, to within a step.
    pub(super) queued: Box<[Padded]>,
    /// Bytes that wait for the largest connection of each shard, to within a step.
    pub(super) largest: Box<[Padded]>,
    /// Which shard searches for the largest of all; see [`backlog`](super::backlog).
    pub(super) relief: Padded,
    /// When each shard last swept, in milliseconds since `born`.
    beats: Box<[Padded]>,
    born: Instant,
    /// WebSockets of all shards.
    pub(super) open: AtomicUsize,
}

/// A counter on a cache line of its own: every shard writes its own and reads all.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Padded(pub(super) AtomicUsize);

impl Common {
    /// Makes what the shards of one process share.
    pub fn new(settings: Settings, lifecycle: Arc<Lifecycle>, store: Store) -> Arc<Common> {
        let config = &settings.config;
        let shards = config.shards;
        let gates = Gates::new(shards, config.db_read_pool, config.connections_max);
        let readers = match store.reader() {
            Reader::Embedded(reader) => Some(Readers::start(&reader, config.db_read_pool)),
            // It has connections of its own.
            Reader::Postgres(_) => None,
        };
        Arc::new(Common {
            addresses: Arc::default(),
            lifecycle,
            store,
            readers,
            gates,
            recent: RecentIds::new(),
            drain: Ledger::new(shards),
            tallies: Tallies::new(shards),
            commits: crate::metrics::store_commits(),
            transfers: Arc::default(),
            settings: Mutex::new(Arc::new(settings)),
            mail: (0..shards)
                .map(|_| Mailbox::new(hooks::mailbox_items().unwrap_or(MAILBOX_ITEMS_MAX)))
                .collect(),
            load: (0..shards).map(|_| Padded::default()).collect(),
            queued: (0..shards).map(|_| Padded::default()).collect(),
            largest: (0..shards).map(|_| Padded::default()).collect(),
            relief: Padded::default(),
            beats: (0..shards).map(|_| Padded::default()).collect(),
            born: Instant::now(),
            open: AtomicUsize::new(0),
        })
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.mail.len()
    }

    /// Nothing is ever half done under this lock.
    pub(super) fn lock_settings(&self) -> MutexGuard<'_, Arc<Settings>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// WebSockets of all shards.
    pub fn open_connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Sockets of one shard, upgraded or not.
    pub fn sockets(&self, shard: usize) -> usize {
        self.load[shard].0.load(Ordering::Relaxed)
    }

    /// How long ago a shard last showed that it runs.
    pub fn heartbeat_age(&self, shard: usize) -> Duration {
        let beat = self.beats[shard].0.load(Ordering::Relaxed) as u64;
        self.born
            .elapsed()
            .saturating_sub(Duration::from_millis(beat))
    }

    pub(super) fn beat(&self, shard: usize) {
        let since = self.born.elapsed().as_millis() as usize;
        self.beats[shard].0.store(since, Ordering::Relaxed);
    }

    /// Tells a shard something, without waiting.
    ///
    /// # Errors
    ///
    /// What was to be told, when the mailbox has no room now.
    pub fn tell(&self, shard: usize, mail: Mail) -> Result<(), Mail> {
        self.mail[shard].try_push(mail).map_err(|(mail, _)| mail)
    }

    /// Ends all connections of keys whose ban is committed. Blocks while a mailbox is full: not for
    /// a shard, nor for the control thread itself.
    ///
    /// A login that read the lists before that commit has noted its key before its shard opens this
    /// mail, because it does both in one turn; one that reads them later finds the ban.
    pub fn end_banned(&self, mut keys: Vec<[u8; 32]>) {
        keys.sort_unstable();
        let keys: Arc<[[u8; 32]]> = keys.into();
        for mailbox in self.mail.iter() {
            // A closed one has no connections any more.
            let _ = mailbox.push_batch_blocking(&mut vec![Mail::Ban(keys.clone())]);
        }
    }

    /// The store's way to the shards.
    pub fn sink(self: &Arc<Self>) -> Fanout {
        Fanout {
            batches: self.mail.iter().map(|_| Vec::new()).collect(),
            imported: Vec::new(),
            events_removed: crate::metrics::events_removed(),
            common: self.clone(),
        }
    }
}

/// Hands what the store's writer has committed to the shards: every stored event to all of them,
/// every answer to the shard or the import it came from, one wake a shard for a whole commit.
pub struct Fanout {
    common: Arc<Common>,
    batches: Vec<Vec<Mail>>,
    /// Of an import, which is no shard's.
    imported: Vec<Done>,
    events_removed: ByLabel<RemovalReason, metrics::Counter>,
}

impl Fanout {
    /// Hands the batches over. While a mailbox is full the store waits.
    fn deliver(&mut self) {
        for (mailbox, batch) in self.common.mail.iter().zip(&mut self.batches) {
            if mailbox.push_batch_blocking(batch).is_err() {
                batch.clear();
            }
        }
    }
}

impl CommitSink for Fanout {
    fn committed(&mut self, done: &mut Vec<Done>) {
        hooks::block(Hook::Delivery);
        for done in done.drain(..) {
            if let Outcome::Stored { seq } = done.outcome {
                for batch in &mut self.batches {
                    batch.push(Mail::Event(done.event.clone(), seq));
                }
            }
            if Transfers::has_sent(done.origin) {
                self.imported.push(done);
                continue;
            }
            let origin = usize::from(done.origin.shard);
            self.batches[origin].push(Mail::Answer(done));
        }
        self.deliver();
        if !self.imported.is_empty() {
            self.common.transfers.answer(&mut self.imported);
        }
    }

    fn arrived(&mut self, arrived: &mut Vec<Arrived>) {
        for Arrived { event, seq } in arrived.drain(..) {
            if seq.is_none() && !self.common.recent.insert(event.id()) {
                continue;
            }
            for batch in &mut self.batches {
                batch.push(Mail::Event(event.clone(), seq.unwrap_or(EPHEMERAL)));
            }
        }
        self.deliver();
    }

    fn banned(&mut self, keys: Vec<[u8; 32]>) {
        self.common.end_banned(keys);
    }

    fn commit_took(&mut self, duration: Duration, _events: usize) {
        self.common.commits.record(duration);
    }

    fn removed(&mut self, why: Removal, events: usize) {
        let why = match why {
            Removal::Deleted => RemovalReason::Deleted,
            Removal::Expired => RemovalReason::Expired,
            Removal::Replaced => RemovalReason::Replaced,
            Removal::Vanished => RemovalReason::Vanished,
            Removal::Retention => RemovalReason::Retention,
        };
        self.events_removed.of(why).increment(events as u64);
    }
}
