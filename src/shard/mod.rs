//! A shard: one pinned thread with its share of the connections.
//!
//! | file | what it holds |
//! |---|---|
//! | [`runtime`] | the runtime seam: sockets, tasks, pauses |
//! | [`socket`] | connected sockets, and which of them can be read |
//! | [`mailbox`] | the way in from other threads |
//! | [`outbox`] | what waits to be written to one connection |
//! | [`common`] | what all threads share, and the store's way to the shards |
//! | [`conn`] | one connection: phase, queue, writer |
//! | [`backlog`] | bounds of what waits to be written |
//! | [`subs`] | its subscriptions: where history ends and live begins |
//! | [`guard`] | a panic ends its connection and nothing else |
//! | [`gather`] | published events, gathered for the store |
//! | [`offers`] | which subscription is offered which event |
//! | [`delivery`] | events on their way from the store, and to subscribers |
//! | [`admission`] | the two gates at their call sites |
//! | [`hooks`] | delays for tests |
//! | [`history`] | REQ and COUNT: questions to the store |
//! | [`question`] | a question, wherever it is read |
//! | [`readers`] | threads for the questions that would hold their shard |
//! | [`login`] | AUTH: who a client is, and whether it is served |
//! | [`ingest`] | EVENT: checks, store, answer |
//! | [`drain`] | the shard's part of the drain |
//! | [`http`] | plain HTTP answers |
//! | [`moment`] | points in time, small |
//! | [`peer`] | addresses, small |
//! | [`settings`] | what it serves by, and how that is exchanged |
//! | [`meter`] | rates of one connection |
//! | [`session`] | one connection's reading side |
//! | [`listener`] | binding and accepting |
//! | [`intake`] | accepted sockets, until they are connections |
//! | [`addresses`] | connections by address |
//!
//! Everything in [`Shard`] belongs to its thread. What threads share is in [`Common`]: settings,
//! mailboxes, a few counters, and the store.

pub mod addresses;
pub mod admission;
pub mod backlog;
pub mod common;
pub mod conn;
pub mod delivery;
pub mod drain;
pub mod gather;
pub mod guard;
pub mod history;
pub mod hooks;
pub mod http;
pub mod ingest;
pub mod intake;
pub mod listener;
pub mod login;
pub mod mailbox;
pub mod meter;
pub mod moment;
pub mod offers;
pub mod outbox;
pub mod peer;
pub mod question;
pub mod readers;
pub mod runtime;
pub mod session;
pub mod settings;
pub mod socket;
pub mod subs;

use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::thread::CpuSet;

use crate::lifecycle::Stage;
use crate::limits::{
    DELIVERED_AT_ONCE_MAX, READY_AT_ONCE_MAX, RECEIVE_BYTES, SWEEP_INTERVAL, VERIFIER_KEYS_MAX,
};
use crate::live::{SubKey, Subscriptions};
use crate::metrics::{CloseReason, GateName, Label, ShardMetrics, UpgradeRefusal};
use crate::nostr::auth::RelayUrl;
use crate::nostr::message::ParseBounds;
use crate::nostr::verify::Verifier;
use crate::store::{Job, Reader, unix_seconds};
use crate::table::Table;
use crate::ws::close;
use addresses::{Client, Full};
use admission::Admission;
use conn::{Conn, Signal};
use gather::Gathered;
use offers::Offers;
use outbox::Batch;
use readers::Faults;
use runtime::{Driver, Listener, Turns};
use session::Reading;
use settings::Settings;
use socket::{Report, Sockets};

pub use common::{Common, Mail};

/// One shard, as its own thread sees it.
pub struct Shard {
    /// Its number, from 0.
    pub id: usize,
    /// What it shares with other threads.
    pub common: Arc<Common>,
    /// Its series.
    pub metrics: ShardMetrics,
    /// Its view of the store.
    pub reader: Reader,
    /// How often it waited for pages of the store.
    pub faults: Faults,
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
    /// What it serves by.
    settings: RefCell<Arc<Settings>>,
    listeners: RefCell<Vec<Rc<Listener>>>,
    /// Whether its listening sockets are others' now.
    has_left: Cell<bool>,
    /// Those who wait for them.
    leaving: RefCell<Vec<Waker>>,
    /// Whether its connections were counted for the drain.
    is_counted: Cell<bool>,
    sockets: Sockets,
    conns: RefCell<Table<Rc<Conn>>>,
    subscriptions: RefCell<Subscriptions>,
    matched: RefCell<Vec<SubKey>>,
    offers: RefCell<Offers>,
    gathered: Gathered<Job>,
    #[allow(clippy::vec_box)] // They come and go in the boxes that connections hold.
    spares: RefCell<Vec<Box<Batch>>>,
    /// Those for which something is queued and nobody writes yet.
    to_write: RefCell<Vec<Rc<Conn>>>,
    written_soon: Signal,
    serial: Cell<u32>,
    unupgraded: Cell<usize>,
    /// Bytes that wait to be written; see [`backlog`].
    queued: Cell<usize>,
    queued_published: Cell<usize>,
    largest_published: Cell<usize>,
    queued_step: usize,
    relief: Signal,
}

/// Starts a shard's thread on `cpu`. `ready` is called on the thread once it takes its mail, or with
/// the reason why it cannot. It accepts connections when it is told from where: see [`Mail::Accept`].
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
    ready: impl FnOnce(io::Result<()>) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(format!("shard-{id}"))
        .spawn(move || {
            if let Some(cpu) = cpu {
                pin_to(cpu);
            }
            let main = async move {
                match Shard::new(common, id, driver) {
                    Ok(shard) => {
                        ready(Ok(()));
                        shard.run().await;
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
    fn new(common: Arc<Common>, id: usize, driver: Driver) -> io::Result<Rc<Shard>> {
        let settings = common.settings();
        let config = &settings.config;
        Ok(Rc::new(Shard {
            id,
            metrics: ShardMetrics::new(id, common.tallies.of(id)),
            reader: common.store.reader(),
            faults: Faults::default(),
            history: Admission::new(&common, GateName::HistoryReads, id),
            auth: Admission::new(&common, GateName::Auth, id),
            relay_url: RelayUrl::parse(&config.relay_url)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?,
            verifier: RefCell::new(Verifier::new(VERIFIER_KEYS_MAX)),
            parse_bounds: ParseBounds {
                filters_max: config.filters_max,
                filter_values_max: config.filter_values_max,
                values_per_filter_max: config.values_per_filter_max,
                subid_length_max: config.subid_length_max,
            },
            turns: Turns::start(driver)?,
            scratch: RefCell::new(vec![0; RECEIVE_BYTES]),
            accepting: Cell::new(true),
            listeners: RefCell::default(),
            has_left: Cell::new(false),
            leaving: RefCell::default(),
            is_counted: Cell::new(false),
            sockets: Sockets::new()?,
            conns: RefCell::default(),
            subscriptions: RefCell::new(Subscriptions::new()),
            matched: RefCell::default(),
            offers: RefCell::default(),
            gathered: Gathered::default(),
            spares: RefCell::default(),
            to_write: RefCell::default(),
            written_soon: Signal::default(),
            serial: Cell::new(0),
            unupgraded: Cell::new(0),
            queued: Cell::new(0),
            queued_published: Cell::new(0),
            largest_published: Cell::new(0),
            queued_step: backlog::step(&config.outbox, config.shards),
            relief: Signal::default(),
            settings: RefCell::new(settings.clone()),
            common,
        }))
    }

    /// The shard's life: sweeps and accepts on the side, and takes its mail.
    async fn run(self: Rc<Self>) {
        runtime::spawn(self.clone().attend_sockets());
        runtime::spawn(self.clone().write_queued());
        runtime::spawn(self.clone().hand_in_gathered());
        runtime::spawn(self.clone().sweep());
        runtime::spawn(self.clone().keep_total());
        let gates = self.common.gates;
        runtime::spawn(gates.history.drive(self.id));
        runtime::spawn(gates.auth.drive(self.id));
        let (mut mail, mut events) = (Vec::new(), Vec::new());
        let common = self.common.clone();
        while common.mail[self.id].take(&mut mail).await.is_ok() {
            for mail in mail.drain(..) {
                match mail {
                    Mail::Event(event, sequence) => events.push((event, sequence)),
                    // Answers lie between the events of a commit, which stay together.
                    Mail::Answer(done) => self.answered(&done),
                    other => {
                        self.deliver(&mut events);
                        self.open_mail(other);
                    }
                }
                if events.len() == DELIVERED_AT_ONCE_MAX {
                    self.deliver(&mut events);
                }
            }
            self.deliver(&mut events);
        }
        // The process is about to end. Operations may be in flight, so nothing is dropped here.
        std::future::pending::<()>().await;
    }

    fn open_mail(self: &Rc<Self>, mail: Mail) {
        match mail {
            Mail::Event(event, sequence) => self.deliver(&mut vec![(event, sequence)]),
            Mail::Answer(done) => self.answered(&done),
            Mail::Adopt(socket, peer) => self.admit(socket, peer),
            Mail::Accept { listeners, done } => {
                // Nobody waits any longer when another shard has failed.
                let _ = done.send(self.accept_from(listeners));
            }
            Mail::LeaveListeners => self.leave_listeners(),
            Mail::Ban(keys) => self.each_conn(|conn| {
                if conn.has_one_of(&keys) {
                    let code = Some(close::POLICY_VIOLATION);
                    conn.close(self, CloseReason::Banned, code, "banned");
                }
            }),
            Mail::Relieve => self.relieve(),
            Mail::StopAccepting => self.stop_accepting(),
            Mail::Close(part) => self.start_closes(part),
            Mail::Settings(exchange) => self.take_over(exchange),
        }
    }

    /// Tells connections what their sockets report, and reads for those that rest.
    async fn attend_sockets(self: Rc<Self>) {
        let mut reports = Vec::with_capacity(READY_AT_ONCE_MAX);
        loop {
            self.sockets.next(&self.turns, &mut reports).await;
            for report in reports.drain(..) {
                self.reported(report);
            }
        }
    }

    fn reported(self: &Rc<Self>, report: Report) {
        let name = report.data.u64();
        let conn = self.conns.borrow().get((name >> 32) as usize).cloned();
        let Some(conn) = conn.filter(|conn| conn.serial == name as u32) else {
            return;
        };
        conn.socket.report(report.flags);
        conn.wake();
        if conn.is_resting() && conn.socket.may_read() {
            match self.guard(&conn, || session::wake(self, &conn)) {
                Some(None) => {}
                Some(Some(reading)) => self.read_on(conn, reading),
                None => {
                    conn.set_resting(false);
                    self.remove(&conn);
                }
            }
        }
    }

    fn read_on(self: &Rc<Self>, conn: Rc<Conn>, reading: Reading) {
        let reader = session::serve(self.clone(), conn.clone(), reading);
        runtime::spawn(self.guarded_reader(conn, reader));
    }

    async fn sweep(self: Rc<Self>) {
        loop {
            runtime::sleep(SWEEP_INTERVAL).await;
            let now = Instant::now();
            self.common.beat(self.id);
            let mut largest = 0;
            self.each_conn(|conn| {
                conn.sweep(&self, now);
                largest = largest.max(conn.counted_bytes.get());
            });
            self.publish_backlog(largest);
        }
    }

    fn each_conn(self: &Rc<Self>, mut visit: impl FnMut(&Rc<Conn>)) {
        let mut key = 0;
        loop {
            // Looked up one by one: a visit may not find the table borrowed.
            let conn = {
                let conns = self.conns.borrow();
                if key >= conns.numbers_end() {
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
        unix_seconds()
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
    /// Counts a WebSocket, or says why there can be none now.
    ///
    /// # Errors
    ///
    /// The reason for the client.
    pub fn admit_upgrade(&self, conn: &Conn, forwarded_for: &[&str]) -> Result<(), UpgradeRefusal> {
        match self.common.lifecycle.stage() {
            Stage::Ready | Stage::Leaving => {}
            Stage::Starting => return Err(UpgradeRefusal::Starting),
            _ => return Err(UpgradeRefusal::Draining),
        }
        let config = self.config();
        let trusted = &config.trusted_proxies;
        conn.speaks_for(addresses::origin(conn.peer().ip(), forwarded_for, trusted));
        let client = Client::of(conn.client());
        let entered = (self.common.addresses).enter(&config.addresses, client, Instant::now());
        let place = entered.map_err(Full::refusal)?;
        if self.common.open.fetch_add(1, Ordering::Relaxed) >= config.connections_max {
            self.common.open.fetch_sub(1, Ordering::Relaxed);
            return Err(UpgradeRefusal::Capacity);
        }
        conn.set_place(place);
        conn.counted.set(true);
        self.unupgraded.set(self.unupgraded.get() - 1);
        self.metrics.connections.increment(1);
        self.metrics.connections_active.rise();
        Ok(())
    }

    pub(super) fn remove(&self, conn: &Conn) {
        self.conns.borrow_mut().remove(conn.key() as usize);
        self.ended(conn);
        if conn.counted.get() {
            // Before the socket's own count: see `Common::has_left`.
            self.common.open.fetch_sub(1, Ordering::Relaxed);
        }
        self.common.load[self.id].0.fetch_sub(1, Ordering::Relaxed);
        conn.set_place(None);
        login::ended(self, conn);
        if conn.is_authenticated() {
            self.metrics.authenticated_active.decrement(1.0);
        }
        if conn.counted.get() {
            self.metrics.connections_active.fall();
            tracing::info!(
                target: "access",
                connection = %conn.name(self),
                shard = self.id,
                peer = %conn.peer(),
                client = %conn.client(),
                outcome = conn.ended_by().map_or("unknown", Label::as_label),
                duration_ms = conn.age().as_millis() as u64,
                "connection ended"
            );
        } else {
            self.unupgraded.set(self.unupgraded.get() - 1);
        }
    }
}
