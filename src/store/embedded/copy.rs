//! Copies of the store without its free pages: a backup of one moment, made while writes go on, and
//! compaction, which puts the copy in the place of the store.
//!
//! A copy is written under another name, made durable, opened and looked at, and only then gets its
//! own name: so there is a whole copy or none, whenever the process ends. What a process leaves that
//! was killed under way is removed by the next one that makes the same copy.
//!
//! The copy is read in one transaction. Pages that are freed meanwhile are not used again until it
//! ends, so the store's file can grow as long as a backup lasts.
#![allow(unsafe_code)] // A copy is opened, which maps a file; see the block below.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;

use heed::types::Bytes;
use heed::{CommitOrAbort, CompactionOption, Env, EnvFlags, EnvOpenOptions, WithoutTls};
use rustix::fs::{CWD, RenameFlags};

use super::apply::Scratch;
use super::lock::FolderLock;
use super::tables::{self, Tables};
use super::{Embedded, EmbeddedOptions, OpenError, file, journal, layout, size, store_error};
use crate::limits::{COPY_LOOK, COPY_SPARE_BYTES};
use crate::store::StoreError;

/// Told how far a copy is: bytes written, and about how many there will be.
pub type Watch<'w> = &'w mut dyn FnMut(u64, u64);

/// Why there is no copy. What was there before is there, and nothing else.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// Nothing is overwritten.
    #[error("it exists; name one that does not")]
    Exists,
    /// The folder that it is to be made in.
    #[error("there is no folder {} to make it in", .0.display())]
    NoParent(PathBuf),
    /// Somebody writes it now.
    #[error("another backup is being written there")]
    Busy,
    /// Something of somebody else has the name that is needed on the way.
    #[error("{} is in the way and was not left by a backup; remove it", .0.display())]
    InTheWay(PathBuf),
    /// The disk is too small.
    #[error(
        "its disk has {free} bytes free, and {needed} are needed; make room, or choose another"
    )]
    NoRoom {
        /// Bytes that the copy takes.
        needed: u64,
        /// Bytes that there are.
        free: u64,
    },
    /// The operating system refused.
    #[error("it cannot be written: {0}")]
    Io(#[from] io::Error),
    /// The store, or the copy's disk: LMDB does not tell which.
    #[error("it cannot be copied: {0}")]
    Store(#[from] StoreError),
    /// The copy cannot be opened, or holds something else.
    #[error("the copy is not like the store: {0}")]
    Unlike(String),
}

/// Why a store could not be compacted. It is what it was.
#[derive(Debug, thiserror::Error)]
pub enum CompactError {
    /// No store was ever made there.
    #[error("there is no store; set BUZZ_DATA_DIR to a relay's data folder")]
    NoStore,
    /// It cannot be opened, or another process has it.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It cannot be copied.
    #[error("the compacted store: {0}")]
    Copy(#[from] CopyError),
}

/// A backup that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Its bytes.
    pub bytes: u64,
    /// Its events.
    pub events: u64,
}

/// What compaction has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Bytes of the file before.
    pub before: u64,
    /// Bytes of the file now.
    pub after: u64,
    /// Its events.
    pub events: u64,
}

impl Embedded {
    /// Copies the store as it is at one moment after this call into a new data folder, while writes
    /// go on. Takes as long as it takes to read and write all that is in use: not for a shard.
    ///
    /// # Errors
    ///
    /// Why there is no backup. Then nothing is there.
    pub fn backup(&self, to: &Path, watch: Watch<'_>) -> Result<Backup, CopyError> {
        let to = to.components().collect::<PathBuf>();
        if fs::symlink_metadata(&to).is_ok() {
            return Err(CopyError::Exists);
        }
        let parent = match to.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        if !parent.is_dir() {
            return Err(CopyError::NoParent(parent.to_owned()));
        }
        let mut name = to.file_name().map_or_else(OsString::new, OsString::from);
        name.push(".partial");
        let partial = Partial::begin(parent.join(name))?;
        let copy = partial.dir.join(tables::FOLDER).join(file::NAME);
        let tables = &self.shared.tables;
        let young = tables.nursery.young();
        let found = copy_file(tables, &copy, watch)?;
        // What is still held, where the store's own disk has no room to write it.
        let held = young.held.iter().filter(|(seq, _)| *seq > found.last);
        let held: Vec<_> = held.collect();
        let name = tables.name(&*tables.env.read_txn().map_err(store_error)?)?;
        journal::make(&partial.dir.join(tables::FOLDER), name, found.last, &held)?;
        file::sync_folder(&copy)?;
        file::sync_folder(&partial.dir.join(tables::FOLDER))?;
        rename_new(&partial.dir, &to)?;
        partial.keep();
        file::sync_folder(&to)?;
        Ok(Backup {
            bytes: found.bytes,
            events: found.entries[EVENTS] + held.len() as u64,
        })
    }

    /// Puts a copy without free pages in the place of the store in a folder, which no process uses.
    /// A sudden end leaves the old store or the new one, whole.
    ///
    /// # Errors
    ///
    /// Why nothing was changed.
    pub fn compact(options: &EmbeddedOptions, watch: Watch<'_>) -> Result<Compacted, CompactError> {
        if !Embedded::is_in(&options.dir).map_err(OpenError::Io)? {
            return Err(CompactError::NoStore);
        }
        let _lock = FolderLock::take(&options.dir)?;
        let tables = Tables::open(options)?;
        let dir = options.dir.join(tables::FOLDER);
        let (old, new) = (dir.join(file::NAME), dir.join(file::UNFINISHED));
        let bytes_of = |path: &Path| fs::metadata(path).map(|file| file.len());
        let before = bytes_of(&old).map_err(CopyError::Io)?;
        let mut guard = Unfinished(Some(new.clone()));
        let copied = copy_file(&tables, &new, watch)?;
        let stored = entries(&tables.env)?;
        if copied.entries != stored {
            return Err(CopyError::Unlike("it has other entries".to_owned()).into());
        }
        let closed = tables.env.clone().prepare_for_closing();
        drop(tables);
        closed.wait();
        file::put_in_place(&new, &old).map_err(CopyError::Io)?;
        guard.0 = None;
        Ok(Compacted {
            before,
            after: copied.bytes,
            events: stored[EVENTS],
        })
    }
}

/// What a finished copy is.
struct Copied {
    bytes: u64,
    entries: Entries,
    /// Its last sequence.
    last: u64,
}

/// How many entries each database has, in the order of their names.
type Entries = [u64; tables::NAMES.len()];

/// Where the events are in [`Entries`].
const EVENTS: usize = 1;

/// Writes a copy to a new file, durably, and looks at it.
fn copy_file(tables: &Tables, to: &Path, watch: Watch<'_>) -> Result<Copied, CopyError> {
    let needed = size::usage(tables)?.used_bytes;
    let disk = rustix::fs::statvfs(to.parent().unwrap_or(to)).map_err(io::Error::from)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < needed.saturating_add(COPY_SPARE_BYTES) {
        return Err(CopyError::NoRoom { needed, free });
    }
    // A disk without room does not take it: then it stays in the journal.
    let _ = tables.write_held(&mut Scratch::default());
    let sequence = tables.last_sequence(&*tables.env.read_txn().map_err(store_error)?)?;
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(to)?;
    copy_watched(tables, file.try_clone()?, needed, watch)?;
    file.sync_all()?;
    let bytes = file.metadata()?.len();
    watch(bytes, bytes);
    let (entries, last) = look_at(to, sequence)?;
    Ok(Copied {
        bytes,
        entries,
        last,
    })
}

/// Copies on a thread of its own, and looks now and then how far it is.
fn copy_watched(
    tables: &Tables,
    mut file: File,
    total: u64,
    watch: Watch<'_>,
) -> Result<(), CopyError> {
    let looked_at = file.try_clone()?;
    thread::scope(|scope| {
        let (sender, done) = channel();
        thread::Builder::new()
            .name("store-copy".into())
            .spawn_scoped(scope, move || {
                let copied = tables
                    .env
                    .copy_to_file(&mut file, CompactionOption::Enabled);
                // Nobody waits any longer only when the whole process ends.
                let _ = sender.send(copied.map_err(store_error));
            })?;
        loop {
            match done.recv_timeout(COPY_LOOK) {
                Ok(copied) => return Ok(copied?),
                Err(RecvTimeoutError::Timeout) => {
                    let written = looked_at.metadata()?.len();
                    watch(written, total.max(written));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the thread that copies has ended").into());
                }
            }
        }
    })
}

/// Opens a copy as a restored store would, counts what is in it, and reads its last sequence.
fn look_at(path: &Path, sequence: u64) -> Result<(Entries, u64), CopyError> {
    let unlike = |error: &dyn std::fmt::Display| CopyError::Unlike(error.to_string());
    file::check(path).map_err(|error| unlike(&error))?;
    let mut open = EnvOpenOptions::new().read_txn_without_tls();
    open.max_dbs(tables::DATABASES_MAX);
    // SAFETY: the copy is ours alone until it has its name, nothing is written to it, and only this
    // thread reads it: so it needs no lock.
    let env = unsafe {
        open.flags(EnvFlags::NO_SUB_DIR | EnvFlags::NO_LOCK | EnvFlags::READ_ONLY);
        open.open(path).map_err(|error| unlike(&error))?
    };
    let closed = env.clone().prepare_for_closing();
    let found = entries(&env).and_then(|found| Ok((found, last_sequence(&env)?)));
    drop(env);
    closed.wait();
    let (found, last) = found.map_err(|error| unlike(&error))?;
    if last < sequence {
        return Err(CopyError::Unlike("it is older".to_owned()));
    }
    Ok((found, last))
}

fn entries(env: &Env<WithoutTls>) -> Result<Entries, CopyError> {
    let txn = env.read_txn().map_err(store_error)?;
    let counted = env.open_databases_and_commit(txn, |opener, txn| {
        let mut counted = [0; tables::NAMES.len()];
        for (count, name) in counted.iter_mut().zip(tables::NAMES) {
            let table = opener.open_database::<Bytes, Bytes>(txn, Some(name))?;
            *count = match table {
                Some(table) => table.len(txn)?,
                None => return Err(heed::Error::Mdb(heed::MdbError::NotFound)),
            };
        }
        Ok::<_, heed::Error>(CommitOrAbort::<(), _>::Abort(counted))
    });
    let counted = counted.map_err(store_error)?;
    Ok(counted.abort().expect("the look is never committed"))
}

fn last_sequence(env: &Env<WithoutTls>) -> Result<u64, CopyError> {
    let txn = env.read_txn().map_err(store_error)?;
    let found = env.open_databases_and_commit(txn, |opener, txn| {
        let meta = opener.open_database::<Bytes, Bytes>(txn, Some("meta"))?;
        let value = match meta {
            Some(meta) => meta.get(txn, layout::META_SEQUENCE)?.map(<[u8]>::to_vec),
            None => None,
        };
        Ok::<_, heed::Error>(CommitOrAbort::<(), _>::Abort(value))
    });
    let found = found.map_err(store_error)?;
    let value = found.abort().expect("the look is never committed");
    let value = value.filter(|value| value.len() == 8);
    let value = value.ok_or(layout::corrupt("the last sequence"))?;
    Ok(layout::number(&value))
}

/// A file that goes unless it is finished.
struct Unfinished(Option<PathBuf>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // What cannot be removed now is by the next open.
            let _ = fs::remove_file(path);
        }
    }
}

/// A backup being written: a data folder under another name. It goes unless it is finished.
struct Partial {
    dir: PathBuf,
    finished: bool,
    _lock: FolderLock,
}

impl Partial {
    /// Makes the folder, or takes one that a backup left which was killed.
    fn begin(dir: PathBuf) -> Result<Partial, CopyError> {
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            Err(_) if !is_left_behind(&dir) => return Err(CopyError::InTheWay(dir)),
            _ => {}
        }
        let lock = FolderLock::take(&dir).map_err(|error| match error {
            OpenError::Locked { .. } => CopyError::Busy,
            OpenError::Io(error) | OpenError::ReadOnly(error) => CopyError::Io(error),
            _ => CopyError::InTheWay(dir.clone()),
        })?;
        let partial = Partial {
            dir,
            finished: false,
            _lock: lock,
        };
        partial.clear()?;
        let events = partial.dir.join(tables::FOLDER);
        DirBuilder::new().mode(0o700).create(events)?;
        Ok(partial)
    }

    fn keep(mut self) {
        self.finished = true;
    }

    /// Removes what a backup makes, and nothing else.
    fn clear(&self) -> io::Result<()> {
        let events = self.dir.join(tables::FOLDER);
        for removed in [
            fs::remove_file(events.join(file::NAME)),
            fs::remove_dir(&events),
        ] {
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // What cannot be removed now is by the next backup of that name.
        let _ = self.clear();
        let _ = fs::remove_file(self.dir.join("lock"));
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Whether a folder holds nothing but what a backup makes.
fn is_left_behind(dir: &Path) -> bool {
    let names = |dir: &Path, known: &[&str]| match fs::read_dir(dir) {
        Ok(entries) => entries.flatten().all(|entry| {
            let name = entry.file_name();
            known.iter().any(|known| name == *known)
        }),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    dir.is_dir()
        && names(dir, &["lock", tables::FOLDER])
        && names(&dir.join(tables::FOLDER), &[file::NAME])
}

/// Renames a folder, and overwrites nothing.
fn rename_new(from: &Path, to: &Path) -> Result<(), CopyError> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::EXIST) => Err(CopyError::Exists),
        // Not every file system has it. A folder takes the place of an empty one at most.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => Ok(fs::rename(from, to)?),
        Err(error) => Err(io::Error::from(error).into()),
    }
}
