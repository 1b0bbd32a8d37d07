//! The data folder, held by one process at a time.
//!
//! The lock is `flock` on `<data dir>/lock`: the kernel drops it when the process ends, however it
//! ends, so a lock never has to be removed by hand. The file also holds the process id, for the
//! message that a second process gets; nothing is decided by it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use super::OpenError;

/// The lock of a data folder. Dropping it, or the end of the process, frees the folder.
#[derive(Debug)]
pub struct FolderLock {
    file: File,
}

impl AsFd for FolderLock {
    /// What holds the lock: also in another process that it is passed to.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl FolderLock {
    /// Takes over a lock that another process has taken and passed on.
    pub fn adopt(descriptor: OwnedFd) -> FolderLock {
        FolderLock {
            file: descriptor.into(),
        }
    }

    /// Leaves this process's id in the file.
    pub fn sign(&self) {
        let mut file = &self.file;
        // Only a message depends on it: a full disk must not keep the relay from reading.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| write!(file, "{}", std::process::id()));
    }

    /// Makes the folder if it is missing (for its owner only) and takes its lock. Does not wait.
    pub fn take(dir: &Path) -> Result<FolderLock, OpenError> {
        match fs::metadata(dir) {
            Ok(meta) if !meta.is_dir() => return Err(OpenError::NotAFolder),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_folder(dir)?,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(OpenError::NotAFolder);
            }
            Err(error) => return Err(refused(error)),
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join("lock"))
            .map_err(refused)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::Locked {
                    pid: holder(&mut file),
                });
            }
            Err(TryLockError::Error(error)) => return Err(OpenError::Io(error)),
        }
        let lock = FolderLock { file };
        lock.sign();
        Ok(lock)
    }
}

/// Makes one folder and its parents, for the owner only.
pub fn make_folder(dir: &Path) -> Result<(), OpenError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(refused)
}

/// Names the usual reason for which a folder cannot be written.
pub fn refused(error: io::Error) -> OpenError {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            OpenError::ReadOnly(error)
        }
        _ => OpenError::Io(error),
    }
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
