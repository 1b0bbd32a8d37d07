//! The embedded store: one LMDB environment, one writer thread, readers on every shard.
//!
//! `layout` says how the bytes lie; `tables` opens them; `writer` commits in groups; `young` and
//! `nursery` keep the index entries that are written later than their group; `plan`
//! chooses the index for a filter; `merge` walks it; `query` answers filters in bounded slices.
//! `deletion`, `expiry`, `vanish` and `keep` take events away, all but the first in the writer's
//! `upkeep`.
//! `size` says how full it is, `file` whether its file is whole, and `copy` makes
//! backups and compacts.
//!
//! A process holds the data folder by `lock`; a handle is cheap to clone and to send. The writer
//! thread keeps the environment alive until [`Embedded::close`].

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heed::MdbError;

use super::retention::Retention;
use super::{CommitSink, Job, StoreError, StoreErrorKind, unix_seconds};

mod access;
mod apply;
mod copy;
mod deletion;
mod expiry;
mod file;
mod journal;
mod keep;
mod layout;
mod lock;
mod lone;
mod merge;
mod nursery;
mod plan;
mod query;
mod reader;
mod size;
mod source;
mod tables;
mod upgrade;
mod upkeep;
mod vanish;
mod writer;
mod young;

#[cfg(test)]
mod tests;

pub use access::{Access, List, Screen};
pub use copy::{Backup, CompactError, Compacted, CopyError, Watch};
pub use deletion::Gone;
pub use lock::FolderLock;
#[doc(hidden)] // For benches/plan.rs.
pub use plan::plan;
pub use query::{Budget, Count, Progress, Query, QueryBounds};
pub use reader::{Found, Reader};
pub use size::Usage;
use writer::GroupBounds;

/// Where the store is, and how large it may be.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// The data folder; made if missing.
    pub dir: PathBuf,
    /// Address space for the file, in bytes: the most the store can hold. Rounded up to whole pages.
    pub map_bytes: usize,
    /// Read transactions open at one time, over all threads.
    pub readers_max: u32,
}

/// Why a folder could not be opened. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("another relay{} is using this data folder; stop it, or choose another folder", pid.map(|pid| format!(" (process {pid})")).unwrap_or_default())]
    Locked {
        /// The other process, if it left its number.
        pid: Option<u32>,
    },
    /// The path is something else.
    #[error("the data folder is not a folder")]
    NotAFolder,
    /// No right to write.
    #[error(
        "the data folder cannot be written: {0}; give this user write access, or choose another folder"
    )]
    ReadOnly(#[source] io::Error),
    /// Written by a later version.
    #[error(
        "the data folder is of schema {found}, this program knows schema {supported}; run a newer version, or choose another folder"
    )]
    NewerSchema {
        /// The folder's schema.
        found: u32,
        /// The newest schema known here.
        supported: u32,
    },
    /// An LMDB environment of some other program.
    #[error("the data folder holds a database that is not a relay's; choose another folder")]
    Foreign,
    /// Not readable as a store.
    #[error("the data folder is damaged: {0}; restore it from a backup, or choose another folder")]
    Corrupt(&'static str),
    /// The operating system refused.
    #[error("the data folder cannot be opened: {0}")]
    Io(#[source] io::Error),
    /// The store refused.
    #[error("the data folder cannot be opened: {0}")]
    Store(#[source] StoreError),
}

/// A handle to the embedded store. Clones are the same store.
#[derive(Clone)]
pub struct Embedded {
    shared: Arc<Shared>,
}

/// What the handles, the readers and the writer have in common. Fields drop in this order: the
/// environment is closed before the folder is free.
struct Shared {
    tables: tables::Tables,
    queue: writer::Queue,
    /// What the writer will keep; it takes them.
    rules: Mutex<Retention>,
    _lock: lock::FolderLock,
}

impl Embedded {
    /// Takes the folder, opens or creates the store. The writer is not started.
    pub fn open(options: &EmbeddedOptions) -> Result<Embedded, OpenError> {
        let lock = lock::FolderLock::take(&options.dir)?;
        let tables = tables::Tables::open(options)?;
        let shared = Shared {
            tables,
            queue: writer::Queue::new(),
            rules: Mutex::default(),
            _lock: lock,
        };
        Ok(Embedded {
            shared: Arc::new(shared),
        })
    }

    /// Whether a store was ever made in a folder. Neither opens nor locks it.
    ///
    /// # Errors
    ///
    /// When the folder may not be looked into.
    pub fn is_in(dir: &Path) -> io::Result<bool> {
        dir.join(tables::FOLDER).try_exists()
    }

    /// Says how long events are kept. For the writer that is started afterwards; without it events
    /// are kept for ever.
    pub fn retain(&self, rules: Retention) {
        *self.rules() = rules;
    }

    /// Starts the writer's thread, once.
    ///
    /// # Panics
    /// If it was started before, or the system gives no thread.
    pub fn start_writer(&self, sink: impl CommitSink) {
        self.start_writer_at(sink, unix_seconds);
    }

    /// As [`start_writer`](Self::start_writer), with a clock in seconds since 1970 by which events
    /// expire and become too old to be kept.
    ///
    /// # Panics
    /// As [`start_writer`](Self::start_writer).
    pub fn start_writer_at(&self, sink: impl CommitSink, clock: impl Fn() -> u64 + Send + 'static) {
        self.start(sink, clock, GroupBounds::SERVING);
    }

    /// As [`start_writer`](Self::start_writer), for a process that does nothing but fill the store:
    /// commits are larger, and come later.
    ///
    /// # Panics
    /// As [`start_writer`](Self::start_writer).
    pub fn start_filling(&self, sink: impl CommitSink) {
        self.start(sink, unix_seconds, GroupBounds::FILLING);
    }

    fn start(
        &self,
        sink: impl CommitSink,
        clock: impl Fn() -> u64 + Send + 'static,
        bounds: GroupBounds,
    ) {
        let rules = std::mem::take(&mut *self.rules());
        writer::start(&self.shared, sink, rules, clock, bounds);
    }

    fn rules(&self) -> MutexGuard<'_, Retention> {
        // Nothing is ever half done under this lock.
        let rules = self.shared.rules.lock();
        rules.unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands events to the writer, from any thread, without waiting; the writer is woken at most
    /// once. What does not fit the queue's bounds, and everything after [`close`](Self::close),
    /// stays in `jobs`: refuse it, or hand it in again later.
    pub fn submit(&self, jobs: &mut Vec<Job>) {
        self.shared.queue.submit(jobs);
    }

    /// Events handed in and not yet answered.
    pub fn pending(&self) -> usize {
        self.shared.queue.pending()
    }

    /// Takes no more events, waits until those handed in are answered, ends the writer. Must not be
    /// called from the sink. A second call does nothing.
    pub fn close(&self) {
        self.shared.queue.close();
    }

    /// A reader; one a shard.
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.shared))
    }

    /// How full the store is.
    pub fn usage(&self) -> Result<Usage, StoreError> {
        size::usage(&self.shared.tables)
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded")
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}

/// LMDB's error as ours.
fn store_error(error: heed::Error) -> StoreError {
    use StoreErrorKind::{Broken, Corrupt, Full, Io, ReadersExhausted};
    match error {
        heed::Error::Io(error) => StoreError::from_io(&error),
        heed::Error::Mdb(MdbError::MapFull) => StoreError::new(Full, "its map is used up"),
        heed::Error::Mdb(MdbError::TxnFull) => StoreError::new(Full, "one commit is too large"),
        heed::Error::Mdb(MdbError::Incompatible) => {
            StoreError::new(Corrupt, "its pages do not add up")
        }
        heed::Error::Mdb(MdbError::ReadersFull) => StoreError::new(ReadersExhausted, ""),
        heed::Error::Mdb(MdbError::Panic) => {
            StoreError::new(Broken, "an earlier write failed midway")
        }
        heed::Error::Mdb(MdbError::Corrupted | MdbError::PageNotFound | MdbError::Invalid) => {
            StoreError::new(Corrupt, "a page")
        }
        heed::Error::Decoding(_) | heed::Error::Encoding(_) => StoreError::new(Corrupt, "a record"),
        _ => StoreError::new(Io, ""),
    }
}
