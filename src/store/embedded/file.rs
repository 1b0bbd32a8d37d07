//! The data file before LMDB maps it: whether everything that it should hold is there.
//!
//! LMDB maps the file, and a read behind its end ends the process by SIGBUS. So the file is judged
//! here, by plain reads, before it is mapped. Its two first pages say how many pages it has; it may
//! be shorter than that only where the missing pages are free: LMDB does not write a page that a
//! commit took and gave back. Then the list of free pages, a tree in the same file, must name every
//! page that is missing.
//!
//! The bytes are those of LMDB's file format 1 on little-endian 64-bit machines. What is not of that
//! format is left to LMDB, which refuses it where it cannot be read.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::OpenError;
use super::lock::refused;

/// The data file's name in its folder.
pub const NAME: &str = "data.mdb";
/// The name of a data file that is being written, until it takes the place of [`NAME`].
pub const UNFINISHED: &str = "data.mdb.new";

/// Removes what a process left that ended while it wrote a file. The folder's lock is held.
pub fn remove_leftovers(dir: &Path) -> Result<(), OpenError> {
    match fs::remove_file(dir.join(UNFINISHED)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(refused(error)),
        _ => Ok(()),
    }
}

/// Gives a whole file its name, durably; what had that name before is there until it is replaced.
pub fn put_in_place(from: &Path, to: &Path) -> io::Result<()> {
    File::open(from)?.sync_all()?;
    fs::rename(from, to)?;
    sync_folder(to)
}

/// Makes the names in the folder of `path` durable.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Checks that a data file holds all that its newest meta page speaks of.
///
/// # Errors
///
/// [`OpenError::Corrupt`] when it does not. A file of another format passes: LMDB says what it is.
pub fn check(path: &Path) -> Result<(), OpenError> {
    let file = File::open(path).map_err(refused)?;
    let len = file.metadata().map_err(refused)?.len();
    if len == 0 {
        return Err(OpenError::Corrupt("its file of events is empty"));
    }
    let Some(meta) = Meta::newest(&file) else {
        return Ok(());
    };
    let (there, pages) = (len / meta.page_bytes, meta.last_page.saturating_add(1));
    if there >= pages {
        return Ok(());
    }
    let free = Free {
        file: &file,
        meta: &meta,
        there,
    };
    match free.count_missing() {
        Ok(free) if free == pages - there => Ok(()),
        _ => Err(OpenError::Corrupt(
            "its file of events is shorter than what it should hold",
        )),
    }
}

// LMDB's numbers are those of the machine.
const _: () = assert!(size_of::<usize>() == 8);

const MAGIC: u32 = 0xBEEF_C0DE;
const FORMAT: u32 = 1;
/// Bytes of a page's head, before its contents.
const HEAD_BYTES: usize = 16;
const PAGE_BYTES: std::ops::RangeInclusive<u64> = 512..=64 << 10;
/// Where in a meta page, behind its head: magic, format, then address, map size, two trees of 48
/// bytes each (free pages, databases), the last page, the commit's number.
const TREES_AT: usize = HEAD_BYTES + 24;
const TREE_BYTES: usize = 48;
const ROOT_AT: usize = TREES_AT + 40;
const LAST_PAGE_AT: usize = TREES_AT + 2 * TREE_BYTES;
const META_BYTES: usize = LAST_PAGE_AT + 16;

const FLAG_BRANCH: u16 = 1;
const FLAG_LEAF: u16 = 2;
const FLAG_META: u16 = 8;
/// A node whose value lies in pages of its own.
const FLAG_BIG: u16 = 1;
/// The tree is empty.
const NO_PAGE: u64 = u64::MAX;

/// What a meta page says.
struct Meta {
    page_bytes: u64,
    last_page: u64,
    commit: u64,
    free_root: u64,
}

impl Meta {
    /// Of both meta pages the one of the later commit. `None`: not of a format known here.
    fn newest(file: &File) -> Option<Meta> {
        let first = Meta::read(file, 0)?;
        let second = Meta::read(file, first.page_bytes)?;
        Some(if second.commit > first.commit {
            second
        } else {
            first
        })
    }

    fn read(file: &File, at: u64) -> Option<Meta> {
        let mut page = [0; META_BYTES];
        file.read_exact_at(&mut page, at).ok()?;
        let is_meta = half(&page, 10)? & FLAG_META != 0
            && word(&page, HEAD_BYTES)? == MAGIC
            && word(&page, HEAD_BYTES + 4)? == FORMAT;
        let meta = Meta {
            page_bytes: word(&page, TREES_AT)?.into(),
            free_root: long(&page, ROOT_AT)?,
            last_page: long(&page, LAST_PAGE_AT)?,
            commit: long(&page, LAST_PAGE_AT + 8)?,
        };
        (is_meta && PAGE_BYTES.contains(&meta.page_bytes)).then_some(meta)
    }
}

/// The tree of free pages.
struct Free<'f> {
    file: &'f File,
    meta: &'f Meta,
    /// Pages that the file has.
    there: u64,
}

impl Free<'_> {
    /// How many of the pages that the file lacks are free.
    fn count_missing(&self) -> io::Result<u64> {
        let mut missing = 0;
        // Each page is met once in a sound tree: whoever meets more walks in a circle.
        let mut left = self.there;
        let mut waiting = vec![self.meta.free_root];
        while let Some(number) = waiting.pop().filter(|number| *number != NO_PAGE) {
            left = left.checked_sub(1).ok_or_else(damaged)?;
            let page = self.read(number, self.meta.page_bytes as usize)?;
            let flags = half(&page, 10).ok_or_else(damaged)?;
            let nodes_end: usize = half(&page, 12).ok_or_else(damaged)?.into();
            for at in (HEAD_BYTES..nodes_end).step_by(2) {
                let node: usize = half(&page, at).ok_or_else(damaged)?.into();
                match flags & (FLAG_BRANCH | FLAG_LEAF) {
                    FLAG_BRANCH => waiting.push(child(&page, node).ok_or_else(damaged)?),
                    FLAG_LEAF => missing += self.missing_in(&page, node)?,
                    _ => return Err(damaged()),
                }
            }
        }
        Ok(missing)
    }

    /// How many of the pages that a leaf's node lists are missing.
    fn missing_in(&self, page: &[u8], node: usize) -> io::Result<u64> {
        let (size, flags, value) = entry(page, node).ok_or_else(damaged)?;
        let far;
        let list = if flags & FLAG_BIG == 0 {
            page.get(value..value + size)
        } else {
            let number = long(page, value).ok_or_else(damaged)?;
            far = self.read(number, HEAD_BYTES + size)?;
            far.get(HEAD_BYTES..)
        };
        // A count, and so many numbers of pages.
        let list = list.ok_or_else(damaged)?.chunks_exact(8);
        let mut numbers = list.filter_map(|bytes| long(bytes, 0));
        let count = numbers.next().ok_or_else(damaged)?;
        let listed = numbers.take(count.try_into().unwrap_or(usize::MAX));
        let missing = self.there..=self.meta.last_page;
        Ok(listed.filter(|number| missing.contains(number)).count() as u64)
    }

    fn read(&self, page: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let at = page.checked_mul(self.meta.page_bytes).ok_or_else(damaged)?;
        let end = at.checked_add(bytes as u64).ok_or_else(damaged)?;
        if end > self.there * self.meta.page_bytes {
            return Err(damaged());
        }
        let mut contents = vec![0; bytes];
        self.file.read_exact_at(&mut contents, at)?;
        Ok(contents)
    }
}

/// The page that a branch's node points to: 48 bits, the lowest first.
fn child(page: &[u8], node: usize) -> Option<u64> {
    let part = |at| half(page, at).map(u64::from);
    Some(part(node)? | part(node + 2)? << 16 | part(node + 4)? << 32)
}

/// Of a leaf's node: the size of its value, its flags, and where the value is.
fn entry(page: &[u8], node: usize) -> Option<(usize, u16, usize)> {
    let size = usize::from(half(page, node)?) | usize::from(half(page, node + 2)?) << 16;
    let key: usize = half(page, node + 6)?.into();
    Some((size, half(page, node + 4)?, node + 8 + key))
}

fn damaged() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
