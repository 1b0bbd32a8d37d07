//! A shard: one pinned thread with its share of the connections.
//!
//! | file | what it holds |
//! |---|---|
//! | [`runtime`] | the runtime seam: sockets, tasks, pauses |
//! | [`mailbox`] | the way in from other threads |
//! | [`outbox`] | what waits to be written to one connection |
//! | [`conn`] | one connection: phase, queue, subscriptions, writer |
//! | [`admission`] | the two gates at their call sites |
//! | [`hooks`] | delays for tests |
//! | [`history`] | REQ and COUNT: questions to the store |
//! | [`login`] | AUTH: who a client is, and whether it is served |
//! | [`ingest`] | EVENT: checks, store, answer |
//! | [`drain`] | the shard's part of the drain |
//! | [`http`] | plain HTTP answers |
//! | [`session`] | one connection's reading side |
//! | [`listener`] | binding and accepting |
//!
//! Everything in [`Shard`] belongs to its thread. What threads share is in [`Common`]: settings,
//! mailboxes, a few counters, and the store.

pub mod admission;
pub mod conn;
pub mod drain;
pub mod history;
pub mod hooks;
pub mod http;
pub mod ingest;
pub mod listener;
pub mod login;
pub mod mailbox;
pub mod outbox;
pub mod runtime;
pub mod session;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::thread::CpuSet;
use slab::Slab;

use crate::config::Config;
use crate::drain::ledger::Ledger;
use crate::drain::run::Part;
use crate::lifecycle::{Lifecycle, Stage};
use crate::limits::{
    BATCH_SPARES_MAX, IMBALANCE_MAX, MAILBOX_ITEMS_MAX, RECEIVE_BYTES, SWEEP_INTERVAL,
    UNUPGRADED_MAX, VERIFIER_KEYS_MAX,
};
use crate::live::{RecentIds, SubKey, Subscriptions};
use crate::metrics::{CloseReason, DropReason, GateName, Label, ShardMetrics, UpgradeRefusal};
use crate::nostr::auth::RelayUrl;
use crate::nostr::event::Event;
use crate::nostr::filter::Filter;
use crate::nostr::message::ParseBounds;
use crate::nostr::verify::Verifier;
use crate::store::embedded::{Embedded, Reader};
use crate::store::{CommitSink, Done, Job, Origin, Outcome};
use crate::ws::close;
use admission::{Admission, Gates};
use conn::{Conn, EPHEMERAL};
use mailbox::Mailbox;
use outbox::Batch;
use runtime::{Driver, Listener, Socket, Turns};

/// What a shard is told by other threads.
pub enum Mail {
    /// An event to match against the shard's subscriptions, with its sequence, or [`EPHEMERAL`].
    Event(Arc<Event>, u64),
    /// What the store made of an event that a connection of this shard sent.
    Answer(Done),
    /// A connection that another shard accepted.
    Adopt(OwnedFd, SocketAddr),
    /// End the connections that have logged in with this key: it is banned.
    Ban([u8; 32]),
    /// Accept no more, and say how many connections there are.
    StopAccepting,
    /// Tell these connections to leave, each at its time.
    Close(Part),
}

/// What all threads share.
pub struct Common {
    /// The settings.
    pub config: Arc<Config>,
    /// Whether the relay wants traffic.
    pub lifecycle: Arc<Lifecycle>,
    /// What the public port serves over plain HTTP.
    pub pages: http::Pages,
    /// The store.
    pub store: Embedded,
    /// The two gates.
    pub gates: Gates,
    /// Ids of ephemeral events seen lately.
    pub recent: RecentIds,
    /// What became of the connections that the drain ended.
    pub drain: Ledger,
    mail: Box<[Mailbox<Mail>]>,
    /// Sockets of each shard, upgraded or not.
    load: Box<[Padded]>,
    /// When each shard last swept, in milliseconds since `born`.
    beats: Box<[Padded]>,
    born: Instant,
    /// WebSockets of all shards.
    open: AtomicUsize,
}

/// A counter on a cache line of its own: every shard writes its own and reads all.
#[derive(Default)]
#[repr(align(128))]
struct Padded(AtomicUsize);

impl Common {
    /// Makes what the shards of one process share.
    pub fn new(
        config: Arc<Config>,
        lifecycle: Arc<Lifecycle>,
        pages: http::Pages,
        store: Embedded,
    ) -> Arc<Common> {
        let shards = config.shards;
        let gates = Gates::new(shards, config.db_read_pool, config.connections_max);
        Arc::new(Common {
            config,
            lifecycle,
            pages,
            store,
            gates,
            recent: RecentIds::new(),
            drain: Ledger::new(shards),
            mail: (0..shards)
                .map(|_| Mailbox::new(MAILBOX_ITEMS_MAX))
                .collect(),
            load: (0..shards).map(|_| Padded::default()).collect(),
            beats: (0..shards).map(|_| Padded::default()).collect(),
            born: Instant::now(),
            open: AtomicUsize::new(0),
        })
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

    fn beat(&self, shard: usize) {
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

    /// The store's way to the shards.
    pub fn sink(self: &Arc<Self>) -> Fanout {
        Fanout {
            batches: self.mail.iter().map(|_| Vec::new()).collect(),
            commit_seconds: crate::metrics::store_commit_seconds(),
            common: self.clone(),
        }
    }
}

/// Hands what the store's writer has committed to the shards: every stored event to all of them,
/// every answer to the shard it came from, one wake a shard for a whole commit.
pub struct Fanout {
    common: Arc<Common>,
    batches: Vec<Vec<Mail>>,
    commit_seconds: metrics::Histogram,
}

impl CommitSink for Fanout {
    fn committed(&mut self, done: &mut Vec<Done>) {
        for done in done.drain(..) {
            if let Outcome::Stored { seq } = done.outcome {
                for batch in &mut self.batches {
                    batch.push(Mail::Event(done.event.clone(), seq));
                }
            }
            let origin = usize::from(done.origin.shard);
            self.batches[origin].push(Mail::Answer(done));
        }
        for (mailbox, batch) in self.common.mail.iter().zip(&mut self.batches) {
            if mailbox.push_batch_blocking(batch).is_err() {
                batch.clear();
            }
        }
    }

    fn commit_took(&mut self, duration: Duration, _events: usize) {
        self.commit_seconds.record(duration);
    }
}

/// One shard, as its own thread sees it.
pub struct Shard {
    /// Its number, from 0.
    pub id: usize,
    /// The settings.
    pub config: Arc<Config>,
    /// What it shares with other threads.
    pub common: Arc<Common>,
    /// Its series.
    pub metrics: ShardMetrics,
    /// Its view of the store.
    pub reader: Reader,
    /// Its way to the history gate.
    pub history: Admission,
    /// Its way to the auth gate.
    pub auth: Admission,
    /// What logins must name.
    pub relay_url: RelayUrl,
    /// Its cache of public keys.
    pub verifier: RefCell<Verifier>,
    /// Bounds of what a client may send.
    pub parse_bounds: ParseBounds,
    /// Its pauses.
    pub turns: Rc<Turns>,
    /// The buffer that all its connections receive into.
    pub scratch: RefCell<Vec<u8>>,
    /// Whether new connections are wanted.
    pub accepting: Cell<bool>,
    listener: RefCell<Option<Rc<Listener>>>,
    driver: Driver,
    conns: RefCell<Slab<Rc<Conn>>>,
    subscriptions: RefCell<Subscriptions>,
    matched: RefCell<Vec<SubKey>>,
    jobs: RefCell<Vec<Job>>,
    spares: RefCell<Vec<Batch>>,
    serial: Cell<u32>,
    unupgraded: Cell<usize>,
}

/// Starts a shard's thread on `cpu`, with a listening socket of its own. `ready` is called on the
/// thread once connections are accepted, or with the reason why they cannot be.
///
/// A panic outside a connection ends the process: a shard that has lost its state cannot serve,
/// and one that is missing would leave its share of the clients hanging.
///
/// # Errors
///
/// If the thread cannot be started.
pub fn start(
    common: Arc<Common>,
    id: usize,
    cpu: Option<usize>,
    driver: Driver,
    listener: TcpListener,
    ready: impl FnOnce(io::Result<()>) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(format!("shard-{id}"))
        .spawn(move || {
            if let Some(cpu) = cpu {
                pin_to(cpu);
            }
            let main = async move {
                match Shard::new(common, id, driver, listener) {
                    Ok((shard, listener)) => {
                        ready(Ok(()));
                        shard.run(listener).await;
                    }
                    Err(error) => ready(Err(error)),
                }
            };
            let ran = catch_unwind(AssertUnwindSafe(|| runtime::run(driver, main)));
            if !matches!(ran, Ok(Ok(()))) {
                tracing::error!(shard = id, "a shard has ended, so the relay ends");
                std::process::exit(crate::error::EXIT_INTERNAL);
            }
        })
}

fn pin_to(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &cpus) {
        tracing::warn!(cpu, %error, "a shard cannot be pinned and runs where the kernel puts it");
    }
}

impl Shard {
    fn new(
        common: Arc<Common>,
        id: usize,
        driver: Driver,
        listener: TcpListener,
    ) -> io::Result<(Rc<Shard>, Listener)> {
        let config = common.config.clone();
        let shard = Rc::new(Shard {
            id,
            metrics: ShardMetrics::new(id),
            reader: common.store.reader(),
            history: Admission::new(&common.gates, GateName::HistoryReads, id),
            auth: Admission::new(&common.gates, GateName::Auth, id),
            relay_url: RelayUrl::parse(&config.relay_url)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?,
            verifier: RefCell::new(Verifier::new(VERIFIER_KEYS_MAX)),
            parse_bounds: ParseBounds {
                filters_max: config.filters_max,
                filter_values_max: config.filter_values_max,
                subid_length_max: config.subid_length_max,
            },
            turns: Turns::start(driver)?,
            scratch: RefCell::new(vec![0; RECEIVE_BYTES]),
            accepting: Cell::new(true),
            listener: RefCell::default(),
            driver,
            conns: RefCell::default(),
            subscriptions: RefCell::new(Subscriptions::new()),
            matched: RefCell::default(),
            jobs: RefCell::default(),
            spares: RefCell::default(),
            serial: Cell::new(0),
            unupgraded: Cell::new(0),
            config,
            common,
        });
        Ok((shard, Listener::adopt(listener)?))
    }

    /// The shard's life: sweeps and accepts on the side, and takes its mail.
    async fn run(self: Rc<Self>, listener: Listener) {
        let listener = Rc::new(listener);
        self.listener.replace(Some(listener.clone()));
        runtime::spawn(listener::accept(self.clone(), listener));
        runtime::spawn(self.clone().sweep());
        let gates = self.common.gates;
        runtime::spawn(gates.history.drive(self.id));
        runtime::spawn(gates.auth.drive(self.id));
        let mut mail = Vec::new();
        let common = self.common.clone();
        while common.mail[self.id].take(&mut mail).await.is_ok() {
            for mail in mail.drain(..) {
                self.open_mail(mail);
            }
        }
        // The process is about to end. Operations may be in flight, so nothing is dropped here.
        std::future::pending::<()>().await;
    }

    fn open_mail(self: &Rc<Self>, mail: Mail) {
        match mail {
            Mail::Event(event, sequence) => self.deliver(event, sequence),
            Mail::Answer(done) => self.answered(&done),
            Mail::Adopt(socket, peer) => self.admit(socket, peer),
            Mail::Ban(key) => self.each_conn(|conn| {
                if conn.has_key(&key) {
                    let code = Some(close::POLICY_VIOLATION);
                    conn.close(self, CloseReason::Banned, code, "banned");
                }
            }),
            Mail::StopAccepting => self.stop_accepting(),
            Mail::Close(part) => self.start_closes(part),
        }
    }

    async fn sweep(self: Rc<Self>) {
        loop {
            runtime::sleep(SWEEP_INTERVAL).await;
            let now = Instant::now();
            self.common.beat(self.id);
            self.each_conn(|conn| conn.sweep(&self, now));
        }
    }

    fn each_conn(self: &Rc<Self>, mut visit: impl FnMut(&Rc<Conn>)) {
        let mut key = 0;
        loop {
            // Looked up one by one: a visit may not find the table borrowed.
            let conn = {
                let conns = self.conns.borrow();
                if key >= conns.capacity() {
                    return;
                }
                conns.get(key).cloned()
            };
            if let Some(conn) = conn {
                visit(&conn);
            }
            key += 1;
        }
    }

    /// The time that events are dated by, in seconds since 1970.
    pub fn unix_seconds(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| since.as_secs())
    }

    /// Whether an event's time has come (NIP-40). The clock is read for those only that have one.
    pub fn has_expired(&self, event: &Event) -> bool {
        event
            .expiration()
            .is_some_and(|expires| expires <= self.unix_seconds())
    }

    /// A number that no other connection or subscription of this shard has had lately.
    pub fn next_serial(&self) -> u32 {
        let serial = self.serial.get().wrapping_add(1);
        self.serial.set(serial);
        serial
    }
}

/// Connections.
impl Shard {
    /// Takes an accepted socket, or hands it to a shard that has far fewer.
    pub fn accepted(self: &Rc<Self>, socket: OwnedFd, peer: SocketAddr) {
        let load = |padded: &Padded| padded.0.load(Ordering::Relaxed);
        let loads = self.common.load.iter().map(load).enumerate();
        let (least, fewest) = loads.min_by_key(|(_, load)| *load).unwrap_or((self.id, 0));
        if load(&self.common.load[self.id]) <= fewest + IMBALANCE_MAX {
            return self.admit(socket, peer);
        }
        if let Err((mail, _)) = self.common.mail[least].try_push(Mail::Adopt(socket, peer)) {
            self.open_mail(mail);
        }
    }

    fn admit(self: &Rc<Self>, socket: OwnedFd, peer: SocketAddr) {
        if self.unupgraded.get() >= UNUPGRADED_MAX {
            self.metrics
                .upgrades_refused
                .of(UpgradeRefusal::Capacity)
                .increment(1);
            return;
        }
        let socket = match Socket::adopt(socket, self.driver) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(shard = self.id, %error, "a connection cannot be taken over");
                return;
            }
        };
        let challenge = match login::challenge() {
            Ok(challenge) => challenge,
            Err(error) => {
                tracing::error!(shard = self.id, %error, "no random bytes, so no connection");
                return;
            }
        };
        let conn = Conn::new(socket, peer, self.next_serial(), challenge, Instant::now());
        let key = self.conns.borrow_mut().insert(conn.clone());
        conn.set_key(key as u32);
        self.unupgraded.set(self.unupgraded.get() + 1);
        self.common.load[self.id].0.fetch_add(1, Ordering::Relaxed);
        let this = self.clone();
        let served = self.guarded(conn.clone(), session::serve(self.clone(), conn.clone()));
        runtime::spawn(async move {
            served.await;
            this.remove(&conn);
        });
    }

    /// Counts a WebSocket, or says why there can be none now.
    ///
    /// # Errors
    ///
    /// The reason for the client.
    pub fn admit_upgrade(&self, conn: &Conn) -> Result<(), UpgradeRefusal> {
        match self.common.lifecycle.stage() {
            Stage::Ready => {}
            Stage::Starting => return Err(UpgradeRefusal::Starting),
            _ => return Err(UpgradeRefusal::Draining),
        }
        if self.common.open.fetch_add(1, Ordering::Relaxed) >= self.config.connections_max {
            self.common.open.fetch_sub(1, Ordering::Relaxed);
            return Err(UpgradeRefusal::Capacity);
        }
        conn.counted.set(true);
        self.unupgraded.set(self.unupgraded.get() - 1);
        self.metrics.connections.increment(1);
        self.metrics.connections_active.increment(1.0);
        Ok(())
    }

    fn remove(&self, conn: &Conn) {
        self.conns.borrow_mut().remove(conn.key() as usize);
        self.ended(conn);
        self.common.load[self.id].0.fetch_sub(1, Ordering::Relaxed);
        login::ended(self, conn);
        if conn.is_authenticated() {
            self.metrics.authenticated_active.decrement(1.0);
        }
        if conn.counted.get() {
            self.common.open.fetch_sub(1, Ordering::Relaxed);
            self.metrics.connections_active.decrement(1.0);
            tracing::info!(
                target: "access",
                connection = %conn.name(self),
                shard = self.id,
                peer = %conn.peer,
                outcome = conn.ended_by().map_or("unknown", Label::as_label),
                duration_ms = conn.age().as_millis() as u64,
                "connection ended"
            );
        } else {
            self.unupgraded.set(self.unupgraded.get() - 1);
        }
    }

    /// Runs a task of one connection so that its panic ends that connection and nothing else.
    pub fn guarded<F: Future<Output = ()>>(self: &Rc<Self>, conn: Rc<Conn>, task: F) -> Guarded<F> {
        Guarded {
            shard: self.clone(),
            conn,
            task,
        }
    }

    fn caught(self: &Rc<Self>, conn: &Rc<Conn>) {
        self.metrics.panics.increment(1);
        conn.cut(self, CloseReason::Panic);
        // The task may have been holding the shared buffer.
        let mut scratch = self.scratch.borrow_mut();
        if scratch.is_empty() {
            scratch.resize(RECEIVE_BYTES, 0);
        }
    }
}

/// Events.
impl Shard {
    /// Matches an event against the shard's subscriptions and queues it for those it fits.
    fn deliver(self: &Rc<Self>, event: Arc<Event>, sequence: u64) {
        if self.has_expired(&event) {
            return;
        }
        let mut matched = self.matched.take();
        let delivered = catch_unwind(AssertUnwindSafe(|| {
            self.subscriptions
                .borrow_mut()
                .matching(&event, &mut matched);
            if matched.is_empty() {
                return;
            }
            let shared = Rc::new(event);
            for key in &matched {
                let conn = self.conns.borrow().get((key.0 >> 32) as usize).cloned();
                if let Some(conn) = conn {
                    conn.offer(self, *key, sequence, &shared);
                }
            }
        }));
        if delivered.is_err() {
            self.metrics.panics.increment(1);
            self.metrics
                .events_dropped
                .of(DropReason::Panic)
                .increment(1);
        }
        self.matched.replace(matched);
    }

    /// Hands an event that is not stored to all shards. Returns false if one has no room.
    pub fn broadcast(self: &Rc<Self>, event: &Arc<Event>) -> bool {
        let mut all = true;
        for (id, mailbox) in self.common.mail.iter().enumerate() {
            if id == self.id {
                self.deliver(event.clone(), EPHEMERAL);
            } else {
                all &= mailbox
                    .try_push(Mail::Event(event.clone(), EPHEMERAL))
                    .is_ok();
            }
        }
        all
    }

    /// Passes an event on to the store's writer. Gives it back when the writer's queue is full.
    pub fn submit(&self, job: Job) -> Option<Job> {
        let mut jobs = self.jobs.borrow_mut();
        jobs.push(job);
        self.common.store.submit(&mut jobs);
        jobs.pop()
    }

    /// What the store gives back with its answer, so that it finds its connection.
    pub fn origin(&self, conn: &Conn) -> Origin {
        Origin {
            shard: self.id as u16,
            token: u64::from(conn.key()) << 32 | u64::from(conn.serial),
        }
    }

    fn answered(self: &Rc<Self>, done: &Done) {
        let key = (done.origin.token >> 32) as usize;
        let conn = self.conns.borrow().get(key).cloned();
        let Some(conn) = conn.filter(|conn| conn.serial == done.origin.token as u32) else {
            return;
        };
        conn.in_flight.set(conn.in_flight.get() - 1);
        conn.wake();
        ingest::answer(self, &conn, &done.event, &done.outcome);
    }

    /// Registers a subscription for live events.
    pub fn subscribe(&self, key: SubKey, filters: Rc<[Filter]>) {
        self.subscriptions.borrow_mut().insert(key, filters);
        self.metrics.subscriptions_active.increment(1.0);
    }

    /// Removes a subscription from the live events.
    pub fn forget(&self, key: SubKey) {
        self.subscriptions.borrow_mut().remove(key);
        self.metrics.subscriptions_active.decrement(1.0);
    }

    /// An empty batch, from those kept where there is one.
    pub fn spare_batch(&self) -> Batch {
        self.spares.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a batch's memory for the next one.
    pub fn keep_batch(&self, mut batch: Batch) {
        let mut spares = self.spares.borrow_mut();
        if spares.len() < BATCH_SPARES_MAX {
            batch.clear();
            spares.push(batch);
        }
    }
}

pin_project_lite::pin_project! {
    /// A task of one connection. See [`Shard::guarded`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Guarded<F> {
        shard: Rc<Shard>,
        conn: Rc<Conn>,
        #[pin]
        task: F,
    }
}

impl<F: Future<Output = ()>> Future for Guarded<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        // Nothing of the task is used after a panic but what the shard keeps consistent itself.
        let polled = catch_unwind(AssertUnwindSafe(|| this.task.poll(context)));
        polled.unwrap_or_else(|_| {
            this.shard.caught(this.conn);
            Poll::Ready(())
        })
    }
}
