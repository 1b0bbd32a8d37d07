//! `buzz-uring migrate`: the schema of the database, before a relay needs it.
//!
//! A relay does the same at its start. By hand it is done before an upgrade, at a time of one's own.

use std::io::{self, Write};

use super::runtime;
use crate::config::{Config, StoreKind};
use crate::error::{EXIT_CLEAN, EXIT_FAILED};
use crate::store::postgres::{self, OpenError};

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// There is no database.
    #[error("BUZZ_STORE is embedded: its folder is brought up to date by the relay's start")]
    NoDatabase,
    /// The database.
    #[error(transparent)]
    Database(#[from] OpenError),
    /// The operating system.
    #[error("cannot start: {0}")]
    System(#[source] io::Error),
    /// Standard output.
    #[error("standard output: {0}")]
    Print(#[source] io::Error),
}

/// Applies what is missing, or only says it. Returns the exit code: 1 if something is missing still.
///
/// # Errors
///
/// What to print.
pub fn run(config: &Config, check: bool) -> Result<i32, MigrateError> {
    let StoreKind::Postgres { url, .. } = &config.store else {
        return Err(MigrateError::NoDatabase);
    };
    let runtime = runtime().map_err(MigrateError::System)?;
    let (versions, word) = match check {
        true => (runtime.block_on(postgres::check(url))?, "missing"),
        false => (runtime.block_on(postgres::migrate(url))?, "applied"),
    };
    for version in &versions {
        writeln!(io::stdout(), "migration {version}: {word}").map_err(MigrateError::Print)?;
    }
    if versions.is_empty() {
        writeln!(io::stdout(), "the schema is up to date").map_err(MigrateError::Print)?;
    }
    let missing = check && !versions.is_empty();
    Ok(if missing { EXIT_FAILED } else { EXIT_CLEAN })
}
