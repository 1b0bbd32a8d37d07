//! The PostgreSQL store: many relays on one database that act as one.
//!
//! | file | what it holds |
//! |---|---|
//! | `url`, `pool`, `error` | servers, connections, what they say |
//! | `schema`, `migrations/` | the tables |
//! | `keys` | how things are named in 16 bytes |
//! | `queue`, `writer`, `group`, `decide`, `upkeep` | events on their way in, and out again |
//! | `ledger`, `listen`, `deliver`, `ephemeral` | events of the other relays |
//! | `plan`, `texts`, `query`, `read` | filters and their answers |
//! | `access` | the access lists |
//!
//! **One order.** Every transaction that changes events takes a turn, a lock of the whole database,
//! until it is committed. So commits are serial over all relays, sequences are given out in commit
//! order, and what is visible has no gap below the last one: one number is an exact watermark, on any
//! number of relays, and a deletion, a version or a duplicate cannot slip past another relay's commit.
//! Groups of up to [`COMMIT_EVENTS_MAX`](crate::limits::COMMIT_EVENTS_MAX) events make up for it.
//!
//! **One thread** runs everything that speaks to the database, on tokio's `current_thread` runtime; a
//! second one hands events to the shards. Questions and events are handed over without waiting.
//!
//! A URL is a secret: it is in no error, log or debug print.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot};

use super::embedded::{Access, Found, List, Progress};
use super::{CommitSink, Job, StoreError};
use crate::limits::DB_START_PAUSE;
use crate::nostr::event::Event;
use crate::secret::Secret;

mod access;
mod decide;
mod deliver;
mod ephemeral;
mod error;
mod group;
mod keys;
mod ledger;
mod listen;
mod open;
mod plan;
mod pool;
mod query;
mod queue;
mod read;
mod schema;
#[cfg(any(test, feature = "hooks"))]
pub mod testing;
mod texts;
mod upkeep;
mod url;
mod writer;

#[cfg(test)]
mod tests;

pub use open::{OpenError, check, migrate};
pub use query::{Budget, Count, Query};
pub use read::{Read, Slice};
pub use schema::{MIGRATIONS, SchemaError};
pub use url::UrlError;

/// Which database, and how much of it this process may use.
#[derive(Clone)]
pub struct PostgresOptions {
    /// `DATABASE_URL`.
    pub url: Secret,
    /// `READ_DATABASE_URL`: reads go there.
    pub read_url: Option<Secret>,
    /// Writers' connections: commits, logins, edits of the lists.
    pub pool: usize,
    /// Readers' connections.
    pub read_pool: usize,
    /// How long opening waits for a database that cannot be reached.
    pub wait: Duration,
    /// The clock by which events expire, in seconds since 1970.
    pub clock: fn() -> u64,
}

/// How the store fares, for metrics and for people.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Status {
    /// Writers' connections in use, and open.
    pub writers: (usize, usize),
    /// Readers' connections in use, and open.
    pub readers: (usize, usize),
    /// Statements sent.
    pub statements: u64,
    /// Connections opened by the pools.
    pub opened: u64,
    /// Whether notifications come.
    pub listening: bool,
    /// Listening connections that were lost.
    pub lost: u64,
    /// The last sequence that this process knows to be committed.
    pub head: u64,
    /// Up to where it has delivered or left out everything.
    pub cursor: u64,
    /// Events of other processes fetched.
    pub fetched: u64,
    /// Of those, the ones fetched after a lost connection.
    pub caught_up: u64,
    /// Ephemeral events passed on, and those that could not be.
    pub passed: (u64, u64),
}

/// A handle to the PostgreSQL store. Clones are the same store. Its threads end with the last one.
#[derive(Clone)]
pub struct Postgres {
    shared: Arc<Shared>,
}

/// What all tasks have in common.
pub(super) struct Core {
    server: url::Server,
    writers: pool::Connections,
    readers: pool::Connections,
    counted: Arc<pool::Counted>,
    queue: queue::Queue,
    passing: queue::Passing,
    passed: AtomicU64,
    not_passed: AtomicU64,
    ledger: Mutex<ledger::Ledger>,
    /// Own sequences are no longer pending.
    ledger_moved: Notify,
    /// The highest sequence handed to the shards, or about to be.
    delivered: AtomicU64,
    bans: access::Bans,
    standing: listen::Standing,
    /// A number of this process among those of the database.
    process: i64,
    /// Connections that this process may open on the server it writes to.
    may_open: usize,
    clock: fn() -> u64,
}

struct Shared {
    core: Arc<Core>,
    questioner: read::Questioner,
    logins: access::Questions,
    runtime: Handle,
    /// Ends the runtime's thread when dropped.
    _life: oneshot::Sender<()>,
    live: Mutex<Option<Live>>,
}

impl Shared {
    fn to_ask(&self) -> (&read::Questioner, Arc<Core>) {
        (&self.questioner, self.core.clone())
    }
}

/// What runs once there is a sink.
struct Live {
    writer: tokio::task::JoinHandle<()>,
    others: Vec<tokio::task::JoinHandle<()>>,
    deliverer: JoinHandle<()>,
}

impl Postgres {
    /// Reads the URLs, starts the store's thread, waits for the database, brings its schema up to date
    /// and looks where it stands. To be awaited on any runtime; whoever stops waiting ends it.
    ///
    /// # Errors
    /// See [`OpenError`]. A database that cannot be reached is one only after `wait`.
    pub async fn open(options: PostgresOptions) -> Result<Postgres, OpenError> {
        let server = url::Server::parse(&options.url).map_err(OpenError::Url)?;
        let reads_from = match &options.read_url {
            Some(url) => Some(url::Server::parse(url).map_err(OpenError::ReadUrl)?),
            None => None,
        };
        let (life, ends) = oneshot::channel();
        let (handed, handle) = oneshot::channel();
        let run = move || {
            let _guard = deliver::AbortOnPanic;
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(handed.send(Err(error))),
            };
            let _ = handed.send(Ok(runtime.handle().clone()));
            // Nothing is ever sent: the last handle is dropped.
            let _ = runtime.block_on(ends);
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("store-postgres".into());
        thread.spawn(run).map_err(OpenError::Thread)?;
        let runtime = match handle.await {
            Ok(Ok(runtime)) => runtime,
            Ok(Err(error)) => return Err(OpenError::Thread(error)),
            Err(_) => return Err(OpenError::Thread(std::io::ErrorKind::Other.into())),
        };
        let (questions, asked) = access::questions();
        let opening = runtime.spawn(async move {
            let core = open::open(server, reads_from, &options).await?;
            tokio::spawn(access::run(core.clone(), asked));
            Ok::<_, OpenError>(core)
        });
        let opening = AbortOnDrop(opening);
        let core = opening.wait().await?;
        Ok(Postgres {
            shared: Arc::new(Shared {
                questioner: read::Questioner::new(runtime.clone()),
                logins: questions,
                runtime,
                core,
                _life: life,
                live: Mutex::new(None),
            }),
        })
    }

    /// Starts writing and listening, once. Everything that other processes have committed since the
    /// store was opened is delivered.
    ///
    /// # Panics
    /// If it was started before, or the system gives no thread.
    pub fn start_writer(&self, sink: impl CommitSink) {
        let mut live = queue::lock(&self.shared.live);
        assert!(live.is_none(), "the writer runs already");
        let core = &self.shared.core;
        let (deliveries, deliverer) = deliver::start(core, sink);
        let runtime = &self.shared.runtime;
        *live = Some(Live {
            writer: runtime.spawn(writer::run(core.clone(), deliveries.clone())),
            others: vec![
                runtime.spawn(listen::run(core.clone(), deliveries)),
                runtime.spawn(ephemeral::run(core.clone())),
            ],
            deliverer,
        });
    }

    /// Hands events to the writer, from any thread, without waiting; the writer is woken at most
    /// once. What does not fit the queue's bounds, and everything after [`close`](Self::close),
    /// stays in `jobs`: refuse it, or hand it in again later.
    pub fn submit(&self, jobs: &mut Vec<Job>) {
        self.shared.core.queue.submit(jobs);
    }

    /// Events handed in and not yet answered.
    pub fn pending(&self) -> usize {
        self.shared.core.queue.pending()
    }

    /// Passes an ephemeral event on to the other processes. False: it could not be taken in.
    pub fn pass_on(&self, event: Arc<Event>) -> bool {
        let core = &self.shared.core;
        let taken = core.passing.push(event);
        if !taken {
            core.not_passed.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Takes no more events, waits until those handed in are answered, ends the writer and the
    /// listener. Reads go on. Must not be called from the sink, nor on a runtime. A second call does
    /// nothing.
    pub fn close(&self) {
        self.shared.core.queue.close();
        let Some(live) = queue::lock(&self.shared.live).take() else {
            return;
        };
        let (ended, wait) = std::sync::mpsc::channel::<()>();
        let writer = live.writer;
        self.shared.runtime.spawn(async move {
            let _ended = ended;
            // Its panic ends the process.
            let _ = writer.await;
        });
        // Never sent to: it hangs up.
        let _ = wait.recv();
        live.others.iter().for_each(tokio::task::JoinHandle::abort);
        let _ = live.deliverer.join();
    }

    /// A reader; for any number of threads.
    pub fn reader(&self) -> Reader {
        Reader {
            shared: self.shared.clone(),
        }
    }

    /// Puts keys on a list or takes them off, durably and all together. Returns for each whether
    /// that changed anything. Every process of the database ends the connections of banned keys.
    pub fn edit_access(
        &self,
        keys: Vec<[u8; 32]>,
        list: List,
        on: bool,
    ) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send + use<> {
        let (questioner, core) = self.shared.to_ask();
        questioner.run(async move { access::edit(&core, &keys, list, on).await })
    }

    /// How the store fares.
    pub fn status(&self) -> Status {
        let core = &self.shared.core;
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let standing = &core.standing;
        Status {
            writers: core.writers.in_use(),
            readers: core.readers.in_use(),
            statements: read(&core.counted.statements),
            opened: read(&core.counted.opened),
            listening: standing.connected.load(Ordering::Relaxed),
            lost: read(&standing.lost),
            head: read(&standing.head).max(read(&core.delivered)),
            cursor: queue::lock(&core.ledger).cursor(),
            fetched: read(&standing.fetched),
            caught_up: read(&standing.caught_up),
            passed: (read(&core.passed), read(&core.not_passed)),
        }
    }
}

/// Questions to the store, from any thread, to be awaited on any runtime. A question that is no longer
/// awaited runs to its end all the same.
#[derive(Clone)]
pub struct Reader {
    shared: Arc<Shared>,
}

impl Reader {
    /// The sequence that a subscription's first read must see, if it is registered now: see
    /// [`Budget::seq_min`].
    pub fn delivered(&self) -> u64 {
        self.shared.core.delivered.load(Ordering::SeqCst)
    }

    /// Goes on with a query for one read, on one connection of the readers' pool.
    pub fn read(
        &self,
        query: Query,
        budget: Budget,
    ) -> impl Future<Output = Result<Read, StoreError>> + Send + use<> {
        let (questioner, core) = self.shared.to_ask();
        questioner.run(async move { read::read(&core, query, budget).await })
    }

    /// Goes on with a count for one read, on one connection of the readers' pool.
    pub fn count(
        &self,
        count: Count,
        budget: Budget,
    ) -> impl Future<Output = Result<(Count, Progress), StoreError>> + Send + use<> {
        let (questioner, core) = self.shared.to_ask();
        questioner.run(async move { read::count(&core, count, budget).await })
    }

    /// What the lists say of a key; nothing of one that is on none. Never waits for history: it uses
    /// the writers' pool. Act on the answer in the turn that it is polled in: then a ban cannot slip
    /// in between.
    pub fn access(
        &self,
        key: [u8; 32],
    ) -> impl Future<Output = Result<Access, StoreError>> + Send + use<> {
        access::ask(&self.shared.core, &self.shared.logins, key)
    }

    /// A page of the keys above `after` that are on a list, in the order of the keys.
    pub fn access_list(
        &self,
        after: Option<[u8; 32]>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<([u8; 32], Access)>, StoreError>> + Send + use<> {
        let (questioner, core) = self.shared.to_ask();
        questioner.run(async move { access::list(&core, after, most).await })
    }

    /// What is known of a stored event by its id, and its JSON.
    pub fn find(
        &self,
        id: [u8; 32],
    ) -> impl Future<Output = Result<Option<(Found, String)>, StoreError>> + Send + use<> {
        let (questioner, core) = self.shared.to_ask();
        questioner.run(async move { read::find(&core, id).await })
    }

    /// The sequence of the last commit; 0 before the first.
    pub fn last_seq(&self) -> impl Future<Output = Result<u64, StoreError>> + Send + use<> {
        let (questioner, core) = self.shared.to_ask();
        questioner.run(async move { read::last_seq(&core).await })
    }

    /// Events with a sequence above `after`, in sequence order, at most so many bytes of them;
    /// expired ones are left out.
    pub fn events_after(
        &self,
        after: u64,
        bytes_max: usize,
        now: u64,
    ) -> impl Future<Output = Result<Slice, StoreError>> + Send + use<> {
        let (questioner, core) = self.shared.to_ask();
        questioner.run(async move { read::events_after(&core, after, bytes_max, now).await })
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

/// A task that ends when nobody waits for it.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> AbortOnDrop<Result<T, OpenError>> {
    async fn wait(mut self) -> Result<T, OpenError> {
        match (&mut self.0).await {
            Ok(result) => result,
            Err(_) => Err(OpenError::Thread(std::io::ErrorKind::Other.into())),
        }
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A pause between two tries of a start, unless there is no time left.
async fn pause(since: Instant, wait: Duration) -> bool {
    if since.elapsed() + DB_START_PAUSE > wait {
        return false;
    }
    tokio::time::sleep(DB_START_PAUSE).await;
    true
}
