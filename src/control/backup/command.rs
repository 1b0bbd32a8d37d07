//! `buzz-uring backup` and `buzz-uring compact`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};

use super::{Ask, Line, PATH};
use crate::config::{Config, StoreKind};
use crate::control::reach::{Missing, ReachError, Way, reach, store_options};
use crate::control::{runtime, signals, socket};
use crate::error::EXIT_CLEAN;
use crate::limits::{BACKUP_SILENCE_MAX, CONTROL_ANSWER_BYTES_MAX};
use crate::store::Store;
use crate::store::embedded::{CompactError, CopyError, Embedded};
use crate::words::counted;

/// What there is to say where the store is a database.
pub const NOT_EMBEDDED: &str =
    "with BUZZ_STORE=postgres the store is a database: use its own tools";

/// Why there is no backup, or the store is as large as it was.
#[derive(Debug, thiserror::Error)]
pub enum CopyCommandError {
    /// The store is a database.
    #[error("{NOT_EMBEDDED}")]
    NotEmbedded,
    /// Neither a relay nor a store.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// The backup.
    #[error("{}: {error}", to.display())]
    Backup {
        /// What was to be made.
        to: PathBuf,
        /// Why it is not.
        error: CopyError,
    },
    /// The relay says why not.
    #[error("{}: {why}", to.display())]
    Relay {
        /// What was to be made.
        to: PathBuf,
        /// Its words.
        why: String,
    },
    /// The control socket.
    #[error("{}: {error}; the relay's log tells whether the backup was made", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// Compaction.
    #[error("BUZZ_DATA_DIR={}: {error}; the store is as it was", dir.display())]
    Compact {
        /// The folder.
        dir: PathBuf,
        /// Why not.
        error: CompactError,
    },
    /// The operating system.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
}

/// Makes a backup in a new folder, through the relay if it runs, else of its store. Returns the exit
/// code.
///
/// # Errors
///
/// What to print; there is no backup.
pub fn backup(config: &Config, to: &Path) -> Result<i32, CopyCommandError> {
    let to = std::path::absolute(to)
        .map_err(|error| CopyCommandError::System("the path of the backup", error))?;
    let mut bar = Bar::new("backup");
    let watch = &mut |written, total| bar.show(written, total);
    let (bytes, events) = match reach(config, Missing::Refuse)? {
        Way::Relay(dir) => ask(&dir, &to, watch)?,
        Way::Store(Store::Embedded(store)) => match store.backup(&to, watch) {
            Ok(made) => (made.bytes, made.events),
            Err(error) => return Err(CopyCommandError::Backup { to, error }),
        },
        Way::Store(Store::Postgres(_)) => return Err(CopyCommandError::NotEmbedded),
    };
    drop(bar);
    say(format_args!(
        "{}: {}, {bytes} bytes",
        to.display(),
        counted(events, "event")
    ))
}

/// Compacts the store of a folder on which no relay runs. Returns the exit code.
///
/// # Errors
///
/// What to print; the store is as it was.
pub fn compact(config: &Config) -> Result<i32, CopyCommandError> {
    if config.store != StoreKind::Embedded {
        return Err(CopyCommandError::NotEmbedded);
    }
    let control = runtime().and_then(|control| {
        let entered = control.enter();
        signals::outlive_the_file_size_limit()?;
        drop(entered);
        Ok(control)
    });
    let _control =
        control.map_err(|error| CopyCommandError::System("cannot catch signals", error))?;
    let mut bar = Bar::new("compaction");
    let watch = &mut |written, total| bar.show(written, total);
    let done = Embedded::compact(&store_options(config), watch).map_err(|error| {
        let dir = config.data_dir.clone();
        CopyCommandError::Compact { dir, error }
    })?;
    drop(bar);
    say(format_args!(
        "{}: {} bytes before, {} bytes after, {}",
        config.data_dir.display(),
        done.before,
        done.after,
        counted(done.events, "event")
    ))
}

/// Asks the relay that runs on `dir`. Returns bytes and events of the backup.
fn ask(
    dir: &Path,
    to: &Path,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<(u64, u64), CopyCommandError> {
    let refused = |why: String| {
        let to = to.to_owned();
        CopyCommandError::Relay { to, why }
    };
    let broken = |error| CopyCommandError::Socket {
        path: dir.join(socket::NAME),
        error,
    };
    let (status, mut body) = post(dir, to).map_err(broken)?;
    if status != "200" {
        let mut why = String::new();
        body.read_to_string(&mut why).map_err(broken)?;
        return Err(refused(match &*status {
            "404" => "the relay is of a version that makes no backups".to_owned(),
            _ => why,
        }));
    }
    for line in body.lines() {
        match serde_json::from_str(&line.map_err(broken)?) {
            Ok(Line::Written { bytes, total }) => watch(bytes, total),
            Ok(Line::Made { bytes, events }) => return Ok((bytes, events)),
            Ok(Line::Failed(why)) => return Err(refused(why)),
            Err(_) => return Err(refused("no answer that can be understood".to_owned())),
        }
    }
    Err(broken(io::ErrorKind::UnexpectedEof.into()))
}

/// Sends the request. Returns the answer's status and its body.
fn post(dir: &Path, to: &Path) -> io::Result<(String, impl BufRead)> {
    let ask = Ask { to: to.to_owned() };
    let body = serde_json::to_string(&ask).map_err(io::Error::other)?;
    let mut stream = socket::connect(dir)?;
    stream.set_read_timeout(Some(BACKUP_SILENCE_MAX))?;
    stream.set_write_timeout(Some(BACKUP_SILENCE_MAX))?;
    write!(
        stream,
        "POST {PATH} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    // The answer grows with the time that it takes: two short lines a second.
    let mut answer = BufReader::new(stream).take(CONTROL_ANSWER_BYTES_MAX);
    let mut head = String::new();
    while answer.read_line(&mut head)? > 0 && !head.ends_with("\r\n\r\n") {}
    let status = head.split(' ').nth(1).unwrap_or_default().to_owned();
    Ok((status, answer))
}

/// Prints what was done.
fn say(line: std::fmt::Arguments<'_>) -> Result<i32, CopyCommandError> {
    match writeln!(io::stdout(), "{line}") {
        // Whoever read our output has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CopyCommandError::System("cannot print", error))
        }
        _ => Ok(EXIT_CLEAN),
    }
}

/// How far it is, on standard error where that is a terminal.
struct Bar(ProgressBar);

impl Bar {
    fn new(what: &'static str) -> Bar {
        let form = "{prefix} {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        let bar = ProgressBar::new(0).with_prefix(what);
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style);
        }
        Bar(bar)
    }

    fn show(&mut self, written: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(written);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
