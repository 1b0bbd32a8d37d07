//! Opening a database: waiting for it, its schema, its limits, and where it stands.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::Notify;
use tokio_postgres::Client;

use super::error::{store_error, within};
use super::group::{number, unreadable};
use super::listen::{SHARES, STANDING, Standing};
use super::pool::{Connections, Counted, introduce};
use super::schema::{self, SchemaError};
use super::url::{Server, UrlError};
use super::{Core, PostgresOptions, access, ledger, pause, queue};
use crate::limits::DB_CONNECT_WAIT;
use crate::secret::Secret;
use crate::store::{StoreError, StoreErrorKind};

/// Connections of a process beside its pools: the listener's.
const CONNECTIONS_BESIDE: usize = 1;

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// `DATABASE_URL`.
    #[error("DATABASE_URL {0}")]
    Url(#[source] UrlError),
    /// `READ_DATABASE_URL`.
    #[error("READ_DATABASE_URL {0}")]
    ReadUrl(#[source] UrlError),
    /// No thread, or no runtime on it.
    #[error("the store's thread cannot be started: {0}")]
    Thread(#[source] io::Error),
    /// Not reached in time.
    #[error("the database of {variable} could not be reached: {error}")]
    Unreachable {
        /// Whose URL it is.
        variable: &'static str,
        /// The last error.
        error: StoreError,
    },
    /// The tables.
    #[error("the database cannot be used: {0}")]
    Schema(#[from] SchemaError),
    /// The server gives fewer connections than the pools may open.
    #[error(
        "{variables} and the connection for notifications come to {wanted} connections, and the \
         server of {url} gives {given} (max_connections less those reserved for superusers); lower \
         them, or raise max_connections"
    )]
    TooManyConnections {
        /// Whose sum it is.
        variables: &'static str,
        /// Whose server it is.
        url: &'static str,
        /// The sum.
        wanted: usize,
        /// What the server gives.
        given: usize,
    },
    /// The database.
    #[error("the database cannot be used: {0}")]
    Store(#[from] StoreError),
}

/// Applies the migrations that a database lacks, and returns their numbers.
///
/// # Errors
/// See [`OpenError`]. It is not waited for.
pub async fn migrate(url: &Secret) -> Result<Vec<i32>, OpenError> {
    let server = Server::parse(url).map_err(OpenError::Url)?;
    let mut client = connect(&server)
        .await
        .map_err(|error| unreached("DATABASE_URL", error))?;
    Ok(schema::apply(&mut client).await?)
}

/// The numbers of the migrations that a database lacks. Changes nothing.
///
/// # Errors
/// See [`OpenError`]. It is not waited for.
pub async fn check(url: &Secret) -> Result<Vec<i32>, OpenError> {
    let server = Server::parse(url).map_err(OpenError::Url)?;
    let client = connect(&server)
        .await
        .map_err(|error| unreached("DATABASE_URL", error))?;
    Ok(schema::missing(&client).await?)
}

/// Opens. On the store's runtime.
pub async fn open(
    server: Server,
    reads_from: Option<Server>,
    options: &PostgresOptions,
) -> Result<Arc<Core>, OpenError> {
    let mut client = reach(&server, "DATABASE_URL", options).await?;
    for version in schema::apply(&mut client).await? {
        tracing::info!(version, "a migration of the database was applied");
    }
    let own = options.pool + CONNECTIONS_BESIDE;
    let may_open = match &reads_from {
        None => {
            let variables = "BUZZ_DB_POOL_SIZE, BUZZ_DB_READ_POOL_SIZE";
            let wanted = own + options.read_pool;
            check_connections(&client, variables, "DATABASE_URL", wanted).await?;
            wanted
        }
        Some(other) => {
            check_connections(&client, "BUZZ_DB_POOL_SIZE", "DATABASE_URL", own).await?;
            let client = reach(other, "READ_DATABASE_URL", options).await?;
            let variables = "BUZZ_DB_READ_POOL_SIZE";
            let wanted = options.read_pool + CONNECTIONS_BESIDE;
            check_connections(&client, variables, "READ_DATABASE_URL", wanted).await?;
            own
        }
    };
    let standing = stand(&client).await?;
    let head = standing.head.load(Ordering::Relaxed);
    let counted = Arc::new(Counted::default());
    let mut process = [0; 8];
    getrandom::fill(&mut process).map_err(|error| OpenError::Thread(error.into()))?;
    Ok(Arc::new(Core {
        writers: Connections::new(&server, options.pool, &counted),
        readers: Connections::new(
            reads_from.as_ref().unwrap_or(&server),
            options.read_pool,
            &counted,
        ),
        server,
        counted,
        queue: queue::Queue::default(),
        passing: queue::Passing::default(),
        passed: AtomicU64::new(0),
        not_passed: AtomicU64::new(0),
        ledger: Mutex::new(ledger::Ledger::new(head)),
        ledger_moved: Notify::new(),
        delivered: AtomicU64::new(head),
        bans: access::Bans::default(),
        standing,
        process: i64::from_ne_bytes(process),
        may_open,
        clock: options.clock,
    }))
}

/// Waits for a server, as long as it may take.
async fn reach(
    server: &Server,
    variable: &'static str,
    options: &PostgresOptions,
) -> Result<Client, OpenError> {
    let started = Instant::now();
    let mut told = None;
    loop {
        let error = match connect(server).await {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        if told.as_ref() != Some(&error) {
            let seconds_left = options.wait.saturating_sub(started.elapsed()).as_secs();
            tracing::warn!(variable, %error, seconds_left, "waiting for the database");
            told = Some(error.clone());
        }
        if !pause(started, options.wait).await {
            return Err(unreached(variable, error));
        }
    }
}

fn unreached(variable: &'static str, error: StoreError) -> OpenError {
    OpenError::Unreachable { variable, error }
}

/// A connection outside of the pools.
async fn connect(server: &Server) -> Result<Client, StoreError> {
    let connecting = server.config.connect(server.tls.clone());
    let (client, connection) = within(DB_CONNECT_WAIT, connecting).await?;
    // It ends with the client, and its errors are the client's.
    tokio::spawn(async move { drop(connection.await) });
    introduce(&client)
        .await
        .map_err(|error| store_error(&error))?;
    Ok(client)
}

async fn check_connections(
    client: &Client,
    variables: &'static str,
    url: &'static str,
    wanted: usize,
) -> Result<(), OpenError> {
    let limits = "
        SELECT current_setting('max_connections')::bigint
             - current_setting('superuser_reserved_connections')::bigint,
               (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
                AND pid <> pg_backend_pid()),
               (SELECT coalesce(sum(objid::bigint), 0)::bigint FROM pg_locks
                WHERE locktype = 'advisory' AND classid::bigint = $1 AND objsubid = 2)";
    let row = client.query_one(limits, &[&i64::from(SHARES)]).await;
    let row = row.map_err(|error| store_error(&error))?;
    let [given, used, promised] = [number(&row, 0)?, number(&row, 1)?, number(&row, 2)?];
    let [given, used, promised] = [given, used, promised].map(|count| count as usize);
    if wanted > given {
        return Err(OpenError::TooManyConnections {
            variables,
            url,
            wanted,
            given,
        });
    }
    // Relays have few connections open while they are idle, and all of them at a bad moment.
    if wanted + used.max(promised) > given {
        tracing::warn!(
            variable = url,
            wanted,
            given,
            used,
            promised,
            "the database may run out of connections: others use it too"
        );
    }
    Ok(())
}

async fn stand(client: &Client) -> Result<Standing, StoreError> {
    let row = client.query_one(STANDING, &[]).await;
    let row = row.map_err(|error| store_error(&error))?;
    let timeline: Option<String> = row.try_get(2).map_err(|_| unreadable())?;
    if timeline.as_deref() == Some("standby") {
        return Err(StoreError::new(StoreErrorKind::ReadOnly, "it is a standby"));
    }
    Ok(Standing {
        head: AtomicU64::new(number(&row, 0)?),
        bans: AtomicU64::new(number(&row, 3)?),
        ephemeral: AtomicU64::new(number(&row, 4)?),
        ..Standing::default()
    })
}
