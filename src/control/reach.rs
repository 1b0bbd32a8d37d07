//! How a command reaches what a relay keeps: through the relay if it runs, else in its store.
//!
//! A running relay is asked over its control socket. If none answers, the store is opened here,
//! which takes the folder's lock: so the two ways can never be taken at once, and a socket that is
//! left while the lock is free is nobody's. Who holds the lock without answering is starting or
//! ending, most likely, and is tried again for a bounded time.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::command::ask;
use super::{runtime, signals, socket};
use crate::config::{Config, StoreKind};
use crate::limits::{
    ACCESS_REACH_PAUSE, ACCESS_REACH_WAIT, COMMAND_DB_POOL_MAX, STORE_READERS_DEFAULT,
};
use crate::secret::Secret;
use crate::store::embedded::{Embedded, EmbeddedOptions, OpenError};
use crate::store::postgres::{self, Postgres, PostgresOptions};
use crate::store::{Store, block_on, unix_seconds};

/// How it is reached.
pub enum Way {
    /// By asking the relay that runs on this folder.
    Relay(PathBuf),
    /// In the store: in the folder, whose lock is held here, or in the database.
    Store(Store),
}

/// What to do about a folder in which no relay has ever kept anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It is a mistake: a command that made the folder would hide a mistyped one.
    Refuse,
    /// Make a store there, as a relay would.
    Make,
}

/// Why neither way is open. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// The database.
    #[error(transparent)]
    Database(#[from] postgres::OpenError),
    /// No relay, and no store that one has used.
    #[error(
        "no relay runs on {0}, and none ever did; set BUZZ_DATA_DIR to the relay's data folder"
    )]
    NoStore(String),
    /// The relay there keeps its events elsewhere.
    #[error(
        "the relay that runs on {dir} keeps its events in the {runs} store, and BUZZ_STORE asks for \
         {wanted}: give that one a BUZZ_DATA_DIR of its own, or leave BUZZ_STORE out"
    )]
    OtherStore {
        /// The folder.
        dir: String,
        /// Where the relay's are.
        runs: String,
        /// Where the settings want them.
        wanted: &'static str,
    },
    /// The folder is held by somebody who does not answer.
    #[error(
        "another process{} holds the data folder {dir} and does not answer on its control socket; \
         if it is starting or ending, try again",
        pid.map(|pid| format!(" ({pid})")).unwrap_or_default()
    )]
    Held {
        /// The folder.
        dir: String,
        /// The process, if it left its number.
        pid: Option<u32>,
    },
    /// The store cannot be opened.
    #[error("BUZZ_DATA_DIR={dir}: {error}")]
    Open {
        /// The folder.
        dir: String,
        /// Why.
        error: OpenError,
    },
    /// The control socket.
    #[error("{path}: {error}{}", advice(error))]
    Socket {
        /// The socket.
        path: String,
        /// What the kernel said.
        error: io::Error,
    },
}

/// Finds the way, and waits a while for a folder that is held by somebody who does not answer.
///
/// # Errors
/// What to print.
pub fn reach(config: &Config, missing: Missing) -> Result<Way, ReachError> {
    let dir = &config.data_dir;
    let shown = || dir.display().to_string();
    let end = Instant::now() + ACCESS_REACH_WAIT;
    loop {
        match socket::connect(dir) {
            Ok(_) => {
                is_the_store_meant(config)?;
                return Ok(Way::Relay(dir.clone()));
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => {
                let path = dir.join(socket::NAME).display().to_string();
                return Err(ReachError::Socket { path, error });
            }
        }
        if let StoreKind::Postgres { url, read_url } = &config.store {
            return Ok(Way::Store(open_database(config, url, read_url.as_ref())?));
        }
        if missing == Missing::Refuse && matches!(Embedded::is_in(dir), Ok(false)) {
            return Err(ReachError::NoStore(shown()));
        }
        match open(config) {
            Ok(store) => return Ok(Way::Store(Store::Embedded(store))),
            Err(OpenError::Locked { .. }) if Instant::now() < end => {
                std::thread::sleep(ACCESS_REACH_PAUSE);
            }
            Err(OpenError::Locked { pid }) => {
                return Err(ReachError::Held { dir: shown(), pid });
            }
            Err(error) => {
                return Err(ReachError::Open {
                    dir: shown(),
                    error,
                });
            }
        }
    }
}

/// Whoever names a store means that one, and not what a relay in the same folder has. Who names none
/// means the relay's. A relay that does not answer is told by the command itself.
fn is_the_store_meant(config: &Config) -> Result<(), ReachError> {
    let wanted = match &config.store {
        _ if !config.is_given("BUZZ_STORE") => return Ok(()),
        StoreKind::Embedded => "embedded",
        StoreKind::Postgres { .. } => "postgres",
    };
    let Ok((200, status)) = ask(&config.data_dir, "GET", "/_status") else {
        return Ok(());
    };
    match status["store"]["kind"].as_str() {
        Some(runs) if runs != wanted => Err(ReachError::OtherStore {
            dir: config.data_dir.display().to_string(),
            runs: runs.to_owned(),
            wanted,
        }),
        _ => Ok(()),
    }
}

/// Opens the store, and removes the socket of a relay that has ended without doing so.
fn open(config: &Config) -> Result<Embedded, OpenError> {
    let control = runtime().map_err(OpenError::Io)?;
    let _entered = control.enter();
    signals::outlive_the_file_size_limit().map_err(OpenError::Io)?;
    let store = Embedded::open(&store_options(config))?;
    // It harms nobody where it is: the next relay replaces it.
    let _ = std::fs::remove_file(config.data_dir.join(socket::NAME));
    Ok(store)
}

/// How the embedded store is opened with these settings.
pub fn store_options(config: &Config) -> EmbeddedOptions {
    EmbeddedOptions {
        dir: config.data_dir.clone(),
        map_bytes: config.store_bytes_max,
        readers_max: STORE_READERS_DEFAULT,
    }
}

/// Opens the database, beside the relays that may run on it.
fn open_database(
    config: &Config,
    url: &Secret,
    read_url: Option<&Secret>,
) -> Result<Store, ReachError> {
    let options = PostgresOptions {
        url: url.clone(),
        read_url: read_url.cloned(),
        pool: config.db_pool.min(COMMAND_DB_POOL_MAX),
        read_pool: config.db_read_pool.min(COMMAND_DB_POOL_MAX),
        wait: Duration::ZERO,
        clock: unix_seconds,
    };
    Ok(Store::Postgres(block_on(Postgres::open(options))?))
}

/// Whether nobody is there to answer.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; only the user that the relay runs as may use it",
        _ => "",
    }
}
