//! The journal: events of lone publishers, durable before they are in their tree.
//!
//! A commit of LMDB writes its pages, waits for the disk to have them, writes its root, and waits
//! again. For a group of events that is little; for one event it is most of what its publisher waits
//! for. So an event that comes alone is written here, in one write and one wait, and is *held* in
//! memory (`young`) until the next group takes it along, which is never long.
//!
//! A file of a fixed size, whose blocks were written when it was made: a record never needs room on
//! the disk, nor a change of what the file system knows of the file. Records lie one behind the
//! other, each from a page on, so that none is written twice; when everything held is in its tree,
//! the next one begins at the front again.
//!
//! ```text
//! record   MAGIC [8] ‖ seq u64 ‖ bytes u32 ‖ SHA-256 of name, seq, bytes and JSON [32] ‖ JSON
//! ```
//!
//! **What counts.** Of what lies here the records count whose sequences follow on the last one of
//! the tree. What is of that sequence or before is in the tree, or was removed from it. A record
//! that is not whole was never answered; one behind such a gap would have been: then the file is
//! damaged, and is not opened. The store's name is in `meta`, and by its hash in every record, so that
//! another store's journal, or one that outlived its store, has none that counts. The first byte of MAGIC is not UTF-8, so that no JSON looks like a
//! record.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::OpenError;
use super::file::sync_folder;
use super::layout::{self, StoreName};
use super::lock::refused;
use crate::limits::JOURNAL_BYTES;
use crate::nostr::event::Event;

/// The journal's name, beside the data file.
pub const NAME: &str = "journal";

const MAGIC: [u8; 8] = *b"\xffburecd\n";
/// Records begin at multiples of this: no write touches what an earlier one has promised.
const PAGE_BYTES: usize = 4_096;
const HEAD_BYTES: usize = MAGIC.len() + 8 + 4 + 32;

const _: () = assert!(JOURNAL_BYTES.is_multiple_of(PAGE_BYTES));

/// The journal of a store, open for writing.
pub struct Journal {
    file: File,
    /// Whose it is.
    name: StoreName,
    /// Where the next record begins.
    at: usize,
    record: Vec<u8>,
}

impl Journal {
    /// Opens or makes the journal of a store in a folder that is locked. `None`: there is no room for
    /// one, and events are committed without. Also gives the events behind sequence `last`. One that
    /// is expected and not there, or not whole, is told of.
    ///
    /// # Errors
    ///
    /// When what is in it cannot be read.
    pub fn open(
        dir: &Path,
        name: StoreName,
        last: u64,
        is_expected: bool,
    ) -> Result<(Option<Journal>, Vec<Event>), OpenError> {
        let path = dir.join(NAME);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_DSYNC | libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)
            .map_err(refused)?;
        if !file.metadata().map_err(refused)?.is_file() {
            return Err(OpenError::Corrupt("its journal is not a regular file"));
        }
        let mut bytes = vec![0; JOURNAL_BYTES];
        let there = read_all(&file, &mut bytes).map_err(refused)?;
        if is_expected && there < JOURNAL_BYTES {
            tracing::warn!(
                bytes = there,
                "the journal is not there, or cut short: events of the last moments may be missing \
                 if the relay ended suddenly"
            );
        }
        let left_out = broken_records(&bytes, name);
        if left_out > 0 {
            tracing::warn!(
                records = left_out,
                "the journal holds records that are not whole, or of another store: they are left out"
            );
        }
        let (events, at) = events_behind(&bytes, name, last)?;
        if there < JOURNAL_BYTES
            && let Err(error) = fill(&file, there).and_then(|()| sync_folder(&path))
        {
            tracing::warn!(%error, "no journal can be made, so lone events take longer to store");
            return Ok((None, events));
        }
        let record = Vec::new();
        let journal = Journal {
            file,
            name,
            at,
            record,
        };
        Ok((Some(journal), events))
    }

    /// Bytes that hold records.
    pub fn used(&self) -> usize {
        self.at
    }

    /// Whether there is room for an event.
    pub fn has_room(&self, event: &Event) -> bool {
        self.at + record_bytes(event.json().len()) <= JOURNAL_BYTES
    }

    /// Writes an event, for which there is room. It is durable when this returns.
    pub fn append(&mut self, event: &Event, seq: u64) -> io::Result<()> {
        let json = event.json().as_bytes();
        let record = &mut self.record;
        record.clear();
        record.extend_from_slice(&MAGIC);
        record.extend_from_slice(&seq.to_be_bytes());
        record.extend_from_slice(&(json.len() as u32).to_be_bytes());
        record.extend_from_slice(&digest(self.name, seq, json));
        record.extend_from_slice(json);
        record.resize(record_bytes(json.len()), 0);
        self.file.write_all_at(record, self.at as u64)?;
        self.at += record.len();
        Ok(())
    }

    /// Begins at the front again: everything in it is in the tree.
    pub fn restart(&mut self) {
        self.at = 0;
    }

    /// Empties it, where everything in it is in the tree and nothing more comes: whatever becomes of
    /// the data file, nothing of this one is taken for a part of it.
    pub fn clear(&mut self) -> io::Result<()> {
        self.at = 0;
        self.file.write_all_at(&vec![0; JOURNAL_BYTES], 0)
    }
}

/// Makes the journal of a copy of a store that ends with sequence `last`, with the events behind it.
///
/// # Errors
///
/// When they cannot all be written.
pub fn make(dir: &Path, name: StoreName, last: u64, held: &[&(u64, Arc<Event>)]) -> io::Result<()> {
    let no_room = || io::Error::from(io::ErrorKind::StorageFull);
    let opened = Journal::open(dir, name, last, false).map_err(io::Error::other)?;
    let mut journal = opened.0.ok_or_else(no_room)?;
    for (seq, event) in held {
        journal.append(event, *seq)?;
    }
    Ok(())
}

/// Reads what there is of a file, at most as much as fits. Returns how much.
fn read_all(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut there = 0;
    while there < bytes.len() {
        match file.read_at(&mut bytes[there..], there as u64)? {
            0 => break,
            more => there += more,
        }
    }
    Ok(there)
}

/// Gives a file its size and its blocks, from `there` on.
fn fill(file: &File, there: usize) -> io::Result<()> {
    file.write_all_at(&vec![0; JOURNAL_BYTES - there], there as u64)?;
    file.sync_all()
}

/// Bytes of a record in the file.
fn record_bytes(json: usize) -> usize {
    (HEAD_BYTES + json).next_multiple_of(PAGE_BYTES)
}

fn digest(name: StoreName, seq: u64, json: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(name);
    hash.update(seq.to_be_bytes());
    hash.update((json.len() as u32).to_be_bytes());
    hash.update(json);
    hash.finalize().into()
}

/// The events that follow on a sequence, and where they end.
fn events_behind(
    bytes: &[u8],
    name: StoreName,
    last: u64,
) -> Result<(Vec<Event>, usize), OpenError> {
    let damaged = OpenError::Corrupt("its journal has lost an event");
    let (mut events, mut end) = (Vec::new(), 0);
    for at in (0..bytes.len()).step_by(PAGE_BYTES) {
        let Some((seq, json)) = record_at(&bytes[at..], name) else {
            continue;
        };
        if seq <= last {
            continue;
        }
        let follows = seq == last + 1 + events.len() as u64 && (events.is_empty() || at == end);
        let event = std::str::from_utf8(json).ok();
        let event = event.and_then(|json| Event::parse(json).ok());
        let Some(event) = event.filter(|_| follows) else {
            return Err(damaged);
        };
        events.push(event);
        end = at + record_bytes(json.len());
    }
    Ok((events, end))
}

/// How many records begin that are not whole, or another store's.
fn broken_records(bytes: &[u8], name: StoreName) -> usize {
    let pages = bytes.chunks(PAGE_BYTES).enumerate();
    let begun = pages.filter(|(_, page)| page.starts_with(&MAGIC));
    let broken = begun.filter(|(at, _)| record_at(&bytes[at * PAGE_BYTES..], name).is_none());
    broken.count()
}

/// The record that begins here, if one does, and it is whole and this store's.
fn record_at(bytes: &[u8], name: StoreName) -> Option<(u64, &[u8])> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (seq, rest) = rest.split_at_checked(8)?;
    let (len, rest) = rest.split_at_checked(4)?;
    let (hash, rest) = rest.split_at_checked(32)?;
    let seq = layout::number(seq);
    let len = u32::from_be_bytes(len.try_into().ok()?);
    let json = rest.get(..len as usize)?;
    (digest(name, seq, json) == *hash).then_some((seq, json))
}
