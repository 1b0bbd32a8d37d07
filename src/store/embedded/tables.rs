//! Opening the environment and its databases, so that nothing is written to a folder that is not
//! ours or of a later schema.
//!
//! **Flags.** Commits are durable as LMDB does them by default: data pages, a sync, then the meta
//! page through a descriptor that syncs. NO_SYNC, NO_META_SYNC and MAP_ASYNC would give up an
//! acknowledged event or the file itself; WRITE_MAP would turn a full disk into a SIGBUS and a stray
//! pointer into damage; NO_MEM_INIT would write old heap bytes, secrets among them, into the file.
//! NO_READ_AHEAD is set: a cold read of one event should not pull its neighbours in. Read
//! transactions are not tied to threads, so that a reader may move to another one.
#![allow(unsafe_code)] // LMDB maps a file, which heed rightly calls unsafe; see the block below.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use heed::types::Bytes;
use heed::{
    CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, MdbError, RoTxn, RwTxn, WithoutTls,
};
use rustix::fs::FallocateFlags;

use super::journal::Journal;
use super::layout::{
    self, Entry, META_INDEXED, META_NAME, META_SCHEMA, META_SEQUENCE, SCHEMA_VERSION, StoreName,
};
use super::lock::{make_folder, refused};
use super::nursery::Nursery;
use super::young::{Tree, Young};
use super::{EmbeddedOptions, OpenError, file, size, store_error, upgrade};
use crate::limits::{COMMIT_BYTES_MAX, STORE_MAP_BYTES_MIN, STORE_RESERVE_BYTES_MAX};
use crate::nostr::event::Event;
use crate::store::{Row, StoreError, StoreErrorKind};

/// A database of this store: bytes to bytes.
pub type Table = Database<'static, Bytes, Bytes>;

/// The environment's folder within the data folder.
pub const FOLDER: &str = "events";
/// Databases that later schemas may add without a change here.
pub const DATABASES_MAX: u32 = 32;
/// The largest memory page of Linux, in bytes: a map must be whole pages.
const PAGE_BYTES_MAX: usize = 64 << 10;
/// Bytes of LMDB's lock file: a header of less than a page, and a cache line for each reader.
const LOCK_HEADER_BYTES: u64 = 4_096;
const LOCK_READER_BYTES: u64 = 64;

/// The environment and its databases.
pub struct Tables {
    /// The environment.
    pub env: Env<WithoutTls>,
    /// What the file may grow to, in bytes. The map is larger where more than that is in use already.
    pub(super) bytes_max: u64,
    /// Entries that are not in their databases yet.
    pub(super) nursery: Nursery,
    /// `None`: there is none, or it failed.
    journal: Mutex<Option<Journal>>,
    pub(super) meta: Table,
    pub(super) events: Table,
    pub(super) id: Table,
    pub(super) address: Table,
    pub(super) time: Table,
    pub(super) kind: Table,
    pub(super) author: Table,
    pub(super) author_kind: Table,
    pub(super) tag: Table,
    pub(super) access: Table,
    pub(super) deleted: Table,
    pub(super) vanished: Table,
    pub(super) expiry: Table,
}

impl Tables {
    /// Opens or creates the environment below a data folder that the caller has locked.
    pub fn open(options: &EmbeddedOptions) -> Result<Tables, OpenError> {
        let dir = options.dir.join(FOLDER);
        if !dir.exists() {
            make_folder(&dir)?;
        }
        reserve_lock_file(&dir, options.readers_max)?;
        file::remove_leftovers(&dir)?;
        let path = dir.join(file::NAME);
        let is_new = !path.exists();
        if is_new {
            create_file(&dir)?;
        }
        file::check(&path)?;
        let bytes_max = whole_map(options.map_bytes);
        let mut open = EnvOpenOptions::new().read_txn_without_tls();
        open.map_size(bytes_max)
            .max_readers(options.readers_max)
            .max_dbs(DATABASES_MAX);
        // SAFETY: the flag asks for less read-ahead and no more. The file is mapped read-only, it is
        // ours alone (the folder's lock is held as long as the environment lives), and no code of
        // this process changes or truncates it but LMDB.
        let env = unsafe {
            open.flags(EnvFlags::NO_READ_AHEAD);
            open.open(&dir).map_err(open_error)?
        };
        env.clear_stale_readers().map_err(open_error)?;
        let found = version(&env)?;
        let mut tables = match found {
            // The file of a store that another program has made and never used.
            None => create(env)?,
            Some(SCHEMA_VERSION) => attach(env)?,
            Some(version) => {
                let tables = extend(env)?;
                upgrade::run(&tables, version).map_err(OpenError::Store)?;
                tables
            }
        };
        tables.bytes_max = bytes_max as u64;
        let (name, last) = {
            let txn = tables.env.read_txn().map_err(open_error)?;
            let name = tables.name(&txn).map_err(OpenError::Store)?;
            (name, tables.last_sequence(&txn).map_err(OpenError::Store)?)
        };
        let is_expected = !is_new && found == Some(SCHEMA_VERSION);
        let (journal, held) = Journal::open(&dir, name, last, is_expected)?;
        tables.journal = Mutex::new(journal);
        let recovered = tables.nursery.recover(&tables, held);
        recovered.map_err(OpenError::Store)?;
        tables.make_room()?;
        Ok(tables)
    }

    /// Gives a store that holds more than it may room all the same: it takes some to get smaller.
    fn make_room(&self) -> Result<(), OpenError> {
        let usage = size::usage(self).map_err(OpenError::Store)?;
        if !usage.is_beyond_its_size() {
            return Ok(());
        }
        let needed = usage.file_bytes() + STORE_RESERVE_BYTES_MAX;
        let map_bytes = whole_map(needed.try_into().unwrap_or(usize::MAX / 2));
        // SAFETY: nobody else has the environment yet, and no transaction is open.
        unsafe { self.env.resize(map_bytes) }.map_err(open_error)
    }

    /// The journal, for as long as something is being stored: a group holds it to its end, and nothing
    /// comes in beside it.
    pub(super) fn journal(&self) -> MutexGuard<'_, Option<Journal>> {
        // Nothing is ever half done under this lock.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an error of a write means, where the system says less: LMDB reports a short write, which
    /// is what a full disk or a limit on the size of files makes of a large one, as an I/O error.
    pub fn explain(&self, error: StoreError) -> StoreError {
        if error.kind() == StoreErrorKind::Io && self.has_no_room() {
            return StoreError::new(StoreErrorKind::Full, "its disk has no room left");
        }
        error
    }

    /// Whether less than one commit fits on the disk, or below the limit on the size of files.
    fn has_no_room(&self) -> bool {
        let room = COMMIT_BYTES_MAX as u64;
        let free = rustix::fs::statvfs(self.env.path())
            .is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < room);
        let length =
            std::fs::metadata(self.env.path().join(file::NAME)).map_or(0, |data| data.len());
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        free || limit.is_some_and(|limit| limit.saturating_sub(length) < room)
    }

    /// The ordered index's database.
    pub fn index(&self, index: layout::Index) -> Table {
        self.tree(Tree::of(index))
    }

    /// The database of index entries.
    pub fn tree(&self, tree: Tree) -> Table {
        match tree {
            Tree::Id => self.id,
            Tree::Time => self.time,
            Tree::Kind => self.kind,
            Tree::Author => self.author,
            Tree::AuthorKind => self.author_kind,
            Tree::Tag => self.tag,
        }
    }

    /// What is known of an id, by a transaction and what was young before it.
    pub fn id_entry(
        &self,
        txn: &RoTxn<'_>,
        young: &Young,
        id: &[u8; 32],
    ) -> Result<Option<Entry>, StoreError> {
        if let Some(value) = young.get(Tree::Id, id) {
            let entry = layout::parse_id(id, value)?;
            if self.is_stored(txn, young, entry.seq)? {
                return Ok(Some(entry));
            }
        }
        let value = self.id.get(txn, id).map_err(store_error)?;
        value.map(|value| layout::parse_id(id, value)).transpose()
    }

    /// Every database.
    pub fn all(&self) -> [Table; NAMES.len()] {
        [
            self.meta,
            self.events,
            self.id,
            self.address,
            self.time,
            self.kind,
            self.author,
            self.author_kind,
            self.tag,
            self.access,
            self.deleted,
            self.vanished,
            self.expiry,
        ]
    }

    /// The last sequence given out, as this transaction sees it.
    pub fn last_sequence(&self, txn: &RoTxn<'_>) -> Result<u64, StoreError> {
        let value = self.meta.get(txn, META_SEQUENCE).map_err(store_error)?;
        let value = value
            .filter(|value| value.len() == 8)
            .ok_or(layout::corrupt("the last sequence"))?;
        Ok(layout::number(value))
    }

    /// The store's own name.
    pub fn name(&self, txn: &RoTxn<'_>) -> Result<StoreName, StoreError> {
        let value = self.meta.get(txn, META_NAME).map_err(store_error)?;
        let name = value.and_then(|value| value.try_into().ok());
        name.ok_or(layout::corrupt("its name"))
    }

    /// Whether there is an event of a sequence.
    pub fn is_stored(&self, txn: &RoTxn<'_>, young: &Young, seq: u64) -> Result<bool, StoreError> {
        let record = self.events.get(txn, &seq.to_be_bytes());
        Ok(record.map_err(store_error)?.is_some() || self.held(txn, young, seq)?.is_some())
    }

    /// The JSON of an event in its tree. `None`: it is not, or no longer, there.
    #[inline]
    pub fn json<'t>(&self, txn: &'t RoTxn<'_>, seq: u64) -> Result<Option<&'t str>, StoreError> {
        Ok(self.record_at(txn, seq, 0)?.map(|row| row.json))
    }

    /// The JSON of an event. `None`: it is not, or no longer, stored, or has expired at `now`, in
    /// seconds since 1970; of a `now` of 0 nothing has.
    #[inline]
    pub fn json_at<'t>(
        &self,
        txn: &'t RoTxn<'_>,
        young: &'t Young,
        seq: u64,
        now: u64,
    ) -> Result<Option<&'t str>, StoreError> {
        let row = self.row_at(txn, young, seq, now)?;
        Ok(row.map(|row| row.json))
    }

    /// As [`json_at`](Self::json_at), with the time at which the event expires.
    #[inline]
    pub fn row_at<'t>(
        &self,
        txn: &'t RoTxn<'_>,
        young: &'t Young,
        seq: u64,
        now: u64,
    ) -> Result<Option<Row<'t>>, StoreError> {
        if let Some(row) = self.record_at(txn, seq, now)? {
            return Ok(Some(row));
        }
        let held = self.held(txn, young, seq)?;
        Ok(held.map(|event| Row {
            json: event.json(),
            expires: None,
        }))
    }

    /// An event that was held when `young` was taken, if its tree had not got it at the transaction:
    /// what it has got counts, removals with it.
    fn held<'t>(
        &self,
        txn: &RoTxn<'_>,
        young: &'t Young,
        seq: u64,
    ) -> Result<Option<&'t Event>, StoreError> {
        let Some(event) = young.held(seq) else {
            return Ok(None);
        };
        Ok((self.last_sequence(txn)? < seq).then_some(event))
    }

    #[inline]
    fn record_at<'t>(
        &self,
        txn: &'t RoTxn<'_>,
        seq: u64,
        now: u64,
    ) -> Result<Option<Row<'t>>, StoreError> {
        let record = self.events.get(txn, &seq.to_be_bytes());
        let Some(record) = record.map_err(store_error)? else {
            return Ok(None);
        };
        let expires = layout::record_expires(record);
        if now > 0 && expires.is_some_and(|expires| expires <= now) {
            return Ok(None);
        }
        let json = layout::record_json(record)?;
        Ok(Some(Row { json, expires }))
    }

    /// As [`event`](Self::event). `None` also: it cannot be read back.
    pub fn sound_event(&self, txn: &RoTxn<'_>, seq: u64) -> Result<Option<Event>, StoreError> {
        match self.event(txn, seq) {
            Err(error) if error.kind() == StoreErrorKind::Corrupt => Ok(None),
            event => event,
        }
    }

    /// The whole event in its tree. `None`: it is not, or no longer, there.
    pub fn event(&self, txn: &RoTxn<'_>, seq: u64) -> Result<Option<Event>, StoreError> {
        let parse = |json| Event::parse(json).map_err(|_| layout::corrupt("an event"));
        self.json(txn, seq)?.map(parse).transpose()
    }
}

/// The databases' names.
pub const NAMES: [&str; 13] = [
    "meta",
    "events",
    "id",
    "address",
    "time",
    "kind",
    "author",
    "author_kind",
    "tag",
    "access",
    "deleted",
    "vanished",
    "expiry",
];

/// The schema version of what is in the environment; `None` of nothing. Anything but nothing must
/// carry one that is known here.
fn version(env: &Env<WithoutTls>) -> Result<Option<u32>, OpenError> {
    let txn = env.read_txn().map_err(open_error)?;
    let state = env.open_databases_and_commit(txn, |opener, txn| {
        let names = opener.open_database::<Bytes, Bytes>(txn, None)?;
        let empty = match names {
            Some(names) => names.is_empty(txn)?,
            None => true,
        };
        let meta = if empty {
            None
        } else {
            opener.open_database::<Bytes, Bytes>(txn, Some("meta"))?
        };
        let version = match meta {
            Some(meta) => meta.get(txn, META_SCHEMA)?.map(<[u8]>::to_vec),
            None => None,
        };
        Ok::<_, heed::Error>(CommitOrAbort::<(), _>::Abort((empty, version)))
    });
    let (empty, version) = state
        .map_err(open_error)?
        .abort()
        .expect("the look is never committed");
    if empty {
        return Ok(None);
    }
    let version: [u8; 4] = version
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(OpenError::Foreign)?;
    match u32::from_be_bytes(version) {
        known @ 1..=SCHEMA_VERSION => Ok(Some(known)),
        found if found > SCHEMA_VERSION => Err(OpenError::NewerSchema {
            found,
            supported: SCHEMA_VERSION,
        }),
        _ => Err(OpenError::Foreign),
    }
}

/// Creates every database and the version key in one commit: a folder is ours entirely or not yet.
fn create(env: Env<WithoutTls>) -> Result<Tables, OpenError> {
    make(env, true)
}

/// A name for a store.
pub(super) fn new_name() -> StoreName {
    fastrand::u128(..).to_be_bytes()
}

/// Creates the databases that an earlier schema did not have. Its version stays until the upgrade
/// has filled them.
fn extend(env: Env<WithoutTls>) -> Result<Tables, OpenError> {
    make(env, false)
}

fn make(env: Env<WithoutTls>, is_new: bool) -> Result<Tables, OpenError> {
    let txn = env.write_txn().map_err(open_error)?;
    let tables = env
        .create_databases_and_commit(txn, |opener, txn: &mut RwTxn<'_>| {
            let mut tables = Vec::with_capacity(NAMES.len());
            for name in NAMES {
                tables.push(opener.create_database::<Bytes, Bytes>(txn, Some(name))?);
            }
            if is_new {
                tables[0].put(txn, META_SCHEMA, &SCHEMA_VERSION.to_be_bytes())?;
                tables[0].put(txn, META_SEQUENCE, &0u64.to_be_bytes())?;
                tables[0].put(txn, META_INDEXED, &0u64.to_be_bytes())?;
                tables[0].put(txn, META_NAME, &new_name())?;
            }
            let tables: [_; NAMES.len()] = tables.try_into().expect("one database a name");
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(tables))
        })
        .map_err(open_error)?
        .commit()
        .expect("creation is committed");
    Ok(assemble(env, tables))
}

fn attach(env: Env<WithoutTls>) -> Result<Tables, OpenError> {
    let txn = env.read_txn().map_err(open_error)?;
    let tables = env
        .open_databases_and_commit(txn, |opener, txn| {
            let mut tables = Vec::with_capacity(NAMES.len());
            for name in NAMES {
                tables.push(opener.open_database::<Bytes, Bytes>(txn, Some(name))?);
            }
            let tables: [_; NAMES.len()] = tables.try_into().expect("one look a name");
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(tables))
        })
        .map_err(open_error)?
        .commit()
        .expect("the look is committed");
    if tables.iter().any(Option::is_none) {
        return Err(OpenError::Corrupt("a database is missing"));
    }
    Ok(assemble(
        env,
        tables.map(|table| table.expect("checked above")),
    ))
}

fn assemble(env: Env<WithoutTls>, tables: [Table; NAMES.len()]) -> Tables {
    let [
        meta,
        events,
        id,
        address,
        time,
        kind,
        author,
        author_kind,
        tag,
        access,
        deleted,
        vanished,
        expiry,
    ] = tables;
    Tables {
        env,
        bytes_max: 0,
        nursery: Nursery::default(),
        journal: Mutex::default(),
        meta,
        events,
        id,
        address,
        time,
        kind,
        author,
        author_kind,
        tag,
        access,
        deleted,
        vanished,
        expiry,
    }
}

/// Makes a new store's file. It gets its name when it is whole: a file of that name that holds
/// nothing is a store that was lost, and not one that is being made.
fn create_file(dir: &Path) -> Result<(), OpenError> {
    let unfinished = dir.join(file::UNFINISHED);
    let mut open = EnvOpenOptions::new().read_txn_without_tls();
    open.map_size(whole_map(STORE_MAP_BYTES_MIN))
        .max_dbs(DATABASES_MAX);
    // SAFETY: nobody else knows the file, and only this thread uses it: so it needs no lock.
    let env = unsafe {
        open.flags(EnvFlags::NO_SUB_DIR | EnvFlags::NO_LOCK);
        open.open(&unfinished).map_err(open_error)?
    };
    let closed = env.clone().prepare_for_closing();
    drop(create(env)?);
    closed.wait();
    file::put_in_place(&unfinished, &dir.join(file::NAME)).map_err(refused)
}

/// The map's size in whole pages of every kind of machine.
fn whole_map(bytes: usize) -> usize {
    bytes
        .max(STORE_MAP_BYTES_MIN)
        .next_multiple_of(PAGE_BYTES_MAX)
}

/// Gives LMDB's lock file its blocks before it is mapped. LMDB makes it sparse, and on a disk that has
/// no room the first write through the map would end the process by SIGBUS.
fn reserve_lock_file(dir: &Path, readers: u32) -> Result<(), OpenError> {
    let file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join("lock.mdb"))
        .map_err(refused)?;
    let bytes = LOCK_HEADER_BYTES + u64::from(readers) * LOCK_READER_BYTES;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        // Not every file system can promise blocks; then nothing is lost.
        Err(rustix::io::Errno::OPNOTSUPP) | Ok(()) => Ok(()),
        Err(error) => Err(refused(error.into())),
    }
}

fn open_error(error: heed::Error) -> OpenError {
    match error {
        heed::Error::Io(error) => refused(error),
        heed::Error::Mdb(MdbError::VersionMismatch) => {
            OpenError::Corrupt("the file is of another LMDB format")
        }
        heed::Error::Mdb(MdbError::Invalid) => OpenError::Corrupt("the file is not an LMDB file"),
        heed::Error::EnvAlreadyOpened => OpenError::Locked {
            pid: Some(std::process::id()),
        },
        other => OpenError::Store(store_error(other)),
    }
}
