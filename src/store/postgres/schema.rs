//! The tables, and how they come to be: migrations, in order, each once, never back.
//!
//! The files are part of the program. A migration that was applied must not change: its checksum is
//! kept, and another one under its number is refused. Many relays may start at once: one applies, the
//! others wait for it. Each migration is a transaction of its own, so that one that fails leaves
//! nothing behind.

use sha2::{Digest, Sha256};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::error::store_error;
use crate::limits::{DB_MIGRATION_TIME, DB_MIGRATION_WAIT};
use crate::store::StoreError;
use crate::words::counted;

/// A step of the schema.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Its number, from 1.
    pub version: i32,
    /// What it does, in a few words.
    pub name: &'static str,
    text: &'static str,
}

/// All that this program knows, in order.
pub const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "events",
    text: include_str!("migrations/0001_events.sql"),
}];

/// Why the tables are not what this program needs.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SchemaError {
    /// Made by a later version.
    #[error("its schema is {found}, and this program knows {known}; run a newer version")]
    Newer {
        /// Its version.
        found: i32,
        /// The newest known here.
        known: i32,
    },
    /// An applied migration is not the one that this program has under its number.
    #[error("its migration {0} is not the one of this program: is it another program's database?")]
    Differs(i32),
    /// Migrations are missing, and were not to be applied.
    #[error("it lacks {}: run buzz-uring migrate", counted(.0.len() as u64, "migration"))]
    Missing(Vec<i32>),
    /// A migration failed. Nothing of it remains.
    #[error("migration {version} failed: {detail}")]
    Failed {
        /// Its number.
        version: i32,
        /// What the server says of it.
        detail: String,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

const LOCK: &str = "SELECT pg_advisory_xact_lock(7094707117252804614)";
const BEGIN: &str = "
CREATE SCHEMA IF NOT EXISTS buzz;
CREATE TABLE IF NOT EXISTS buzz.migrations (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   bytea NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);";

impl Migration {
    fn checksum(&self) -> Vec<u8> {
        Sha256::digest(self.text).to_vec()
    }
}

/// The migrations that are missing; none are applied.
pub async fn missing(client: &Client) -> Result<Vec<i32>, SchemaError> {
    let applied = "SELECT version, checksum FROM buzz.migrations ORDER BY version";
    let rows = match client.query(applied, &[]).await {
        Ok(rows) => rows,
        Err(error) if is_absent(&error) => Vec::new(),
        Err(error) => return Err(refused(&error)),
    };
    let known = MIGRATIONS.last().map_or(0, |last| last.version);
    let mut found = Vec::new();
    for row in rows {
        let (version, checksum): (i32, Vec<u8>) = (row.get(0), row.get(1));
        let Some(migration) = MIGRATIONS.iter().find(|known| known.version == version) else {
            return Err(SchemaError::Newer {
                found: version,
                known,
            });
        };
        if migration.checksum() != checksum {
            return Err(SchemaError::Differs(version));
        }
        found.push(version);
    }
    let versions = MIGRATIONS.iter().map(|migration| migration.version);
    Ok(versions
        .filter(|version| !found.contains(version))
        .collect())
}

/// Applies what is missing, and returns what that was.
pub async fn apply(client: &mut Client) -> Result<Vec<i32>, SchemaError> {
    let mut applied = Vec::new();
    // Looked at without a lock first: as a rule there is nothing to do.
    while let Some(version) = missing(client).await?.first().copied() {
        match apply_next(client).await {
            Ok(done) => applied.extend(done),
            Err(error) => {
                let detail = match error.as_db_error() {
                    Some(error) => error.message().to_owned(),
                    None => store_error(&error).to_string(),
                };
                return Err(SchemaError::Failed { version, detail });
            }
        }
    }
    Ok(applied)
}

async fn apply_next(client: &mut Client) -> Result<Option<i32>, tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    let patience = format!(
        "SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {}; \
         SET LOCAL idle_in_transaction_session_timeout = 0",
        DB_MIGRATION_WAIT.as_millis(),
        DB_MIGRATION_TIME.as_millis(),
    );
    transaction.batch_execute(&patience).await?;
    transaction.batch_execute(LOCK).await?;
    transaction.batch_execute(BEGIN).await?;
    let last = "SELECT coalesce(max(version), 0) FROM buzz.migrations";
    let last: i32 = transaction.query_one(last, &[]).await?.get(0);
    let Some(next) = MIGRATIONS.iter().find(|next| next.version > last) else {
        // Another relay was quicker.
        return Ok(None);
    };
    transaction.batch_execute(next.text).await?;
    let note = "INSERT INTO buzz.migrations (version, name, checksum) VALUES ($1, $2, $3)";
    let row: [super::pool::Param<'_>; 3] = [&next.version, &next.name, &next.checksum()];
    transaction.execute(note, &row).await?;
    transaction.commit().await?;
    Ok(Some(next.version))
}

fn is_absent(error: &tokio_postgres::Error) -> bool {
    let code = error.code();
    code == Some(&SqlState::UNDEFINED_TABLE) || code == Some(&SqlState::INVALID_SCHEMA_NAME)
}

fn refused(error: &tokio_postgres::Error) -> SchemaError {
    SchemaError::Store(store_error(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_without_a_gap() {
        for (place, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(migration.version as usize, place + 1);
            assert!(!migration.name.is_empty());
        }
    }
}
