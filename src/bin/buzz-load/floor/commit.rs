#![allow(unsafe_code)]
//! One durable commit of one event: what a lone publisher waits for at least.
//!
//! Unsafe because opening an LMDB map is; the file is made here and known to no one else.

use std::fs::File;
use std::io::{self, Write as _};
use std::time::Instant;

use heed::types::{Bytes, U64};
use heed::{CommitOrAbort, Database, EnvOpenOptions};

use super::{Cost, Options, median};
use crate::usage;

const EVENT_BYTES: usize = 700;
const MAP_BYTES: usize = 256 << 20;
/// Commits that fit the map with room for the pages that each copies.
const COMMITS_MAX: usize = 50_000;

/// A put and a commit in LMDB, which syncs data and then its root page.
pub fn lmdb(options: &Options) -> io::Result<Cost> {
    let dir = Folder::new(options)?;
    // SAFETY: the folder was made a moment ago under a name of this process's own; nothing else
    // maps or changes the file while the environment lives.
    let env = unsafe { EnvOpenOptions::new().map_size(MAP_BYTES).open(&dir.path) }
        .map_err(io::Error::other)?;
    let txn = env.write_txn().map_err(io::Error::other)?;
    let table: Database<'_, U64<heed::byteorder::BigEndian>, Bytes> = env
        .create_databases_and_commit(txn, |opener, txn| {
            opener
                .create_database(txn, None)
                .map(CommitOrAbort::<_, ()>::Commit)
        })
        .map_err(io::Error::other)?
        .unwrap_commit();
    repeat(options, |index| {
        let put = || -> heed::Result<()> {
            let mut txn = env.write_txn()?;
            table.put(&mut txn, &index, &[b'x'; EVENT_BYTES])?;
            txn.commit()
        };
        put().map_err(io::Error::other)
    })
}

/// An append to a file and one fdatasync.
pub fn append(options: &Options) -> io::Result<Cost> {
    let dir = Folder::new(options)?;
    let mut file = File::create_new(dir.path.join("log"))?;
    repeat(options, |_| {
        file.write_all(&[b'x'; EVENT_BYTES])?;
        file.sync_data()
    })
}

fn repeat(options: &Options, mut commit: impl FnMut(u64) -> io::Result<()>) -> io::Result<Cost> {
    options.relay_core.into_iter().for_each(usage::pin);
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.is_empty()
        || (begin.elapsed().as_secs_f64() < options.seconds && times.len() < COMMITS_MAX)
    {
        let before = Instant::now();
        commit(times.len() as u64)?;
        times.push(before.elapsed().as_secs_f64() * 1e6);
    }
    Ok(Cost {
        count: times.len() as u64,
        micros: median(times),
    })
}

/// A folder that goes when it is dropped.
struct Folder {
    path: std::path::PathBuf,
}

impl Folder {
    fn new(options: &Options) -> io::Result<Folder> {
        let name = format!(
            ".buzz-load-floor-{}-{:08x}",
            std::process::id(),
            fastrand::u32(..)
        );
        let path = options.dir.join(name);
        std::fs::create_dir(&path)?;
        Ok(Folder { path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that cannot be removed is in plain sight; there is nothing better to do.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
