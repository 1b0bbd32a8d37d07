//! Connections: two pools, and what a statement on one of them costs in time at most.
//!
//! A connection goes back to its pool only when nothing is open on it. One whose statement was
//! given up midway, or whose transaction was not ended, is closed instead: the server then rolls
//! back, and nobody meets somebody else's transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime,
};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use super::error::{ends_connection, pool_error, unreachable, within};
use super::url::Server;
use crate::limits::{DB_ACQUIRE_WAIT, DB_ANSWER_WAIT, DB_CONNECT_WAIT};
use crate::store::StoreError;

/// A parameter of a statement.
pub type Param<'a> = &'a (dyn ToSql + Sync);

/// A pool of connections to one server.
#[derive(Clone)]
pub struct Connections {
    pool: Pool,
    counted: Arc<Counted>,
}

/// What is counted of both pools.
#[derive(Debug, Default)]
pub struct Counted {
    /// Statements sent, `BEGIN` and `COMMIT` included.
    pub statements: AtomicU64,
    /// Connections opened.
    pub opened: AtomicU64,
}

/// What a connection is told once, before its first statement: the server's WAL timeline, by which
/// `buzz.take_turn` notices another server, and that commits are durable whatever the server's own
/// default is. A server that has no such function is taken to be always the same one.
const INTRODUCTION: &str = "SELECT set_config('buzz.timeline', \
    CASE WHEN pg_is_in_recovery() THEN 'standby' \
         ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END, false)";
const INTRODUCTION_PLAIN: &str = "SELECT set_config('buzz.timeline', 'unknown', false)";
const DURABLE: &str = "SELECT set_config('synchronous_commit', 'on', false) \
    WHERE current_setting('synchronous_commit') = 'off'";

/// Says to a new connection what every connection must know.
pub async fn introduce(client: &tokio_postgres::Client) -> Result<(), tokio_postgres::Error> {
    if let Err(error) = client.batch_execute(INTRODUCTION).await {
        if error.is_closed() {
            return Err(error);
        }
        client.batch_execute(INTRODUCTION_PLAIN).await?;
    }
    client.batch_execute(DURABLE).await
}

impl Connections {
    /// A pool that has opened nothing yet. To be called on the store's runtime.
    pub fn new(server: &Server, size: usize, counted: &Arc<Counted>) -> Connections {
        let recycling = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        let manager = Manager::from_config(server.config.clone(), server.tls.clone(), recycling);
        let opened = counted.clone();
        let hook = Hook::async_fn(move |client: &mut deadpool_postgres::ClientWrapper, _| {
            let opened = opened.clone();
            Box::pin(async move {
                introduce(client).await.map_err(HookError::Backend)?;
                opened.opened.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        });
        let pool = Pool::builder(manager)
            .max_size(size)
            .wait_timeout(Some(DB_ACQUIRE_WAIT))
            .create_timeout(Some(DB_CONNECT_WAIT))
            .recycle_timeout(Some(DB_CONNECT_WAIT))
            .post_create(hook)
            .runtime(Runtime::Tokio1)
            .build()
            .expect("a runtime is given");
        Connections {
            pool,
            counted: counted.clone(),
        }
    }

    /// A connection, if one is to be had in time.
    pub async fn get(&self) -> Result<Lease, StoreError> {
        let object = self.pool.get().await.map_err(|error| match error {
            deadpool_postgres::PoolError::PostCreateHook(HookError::Backend(error)) => {
                super::error::store_error(&error)
            }
            other => pool_error(&other),
        })?;
        Ok(Lease {
            object: Some(object),
            under_way: AtomicU32::new(0),
            in_transaction: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            counted: self.counted.clone(),
        })
    }

    /// Connections in use and open.
    pub fn in_use(&self) -> (usize, usize) {
        let status = self.pool.status();
        (status.size.saturating_sub(status.available), status.size)
    }
}

/// A connection of a pool, until it is dropped.
pub struct Lease {
    object: Option<Object>,
    /// Statements sent whose answer has not been read.
    under_way: AtomicU32,
    in_transaction: AtomicBool,
    broken: AtomicBool,
    counted: Arc<Counted>,
}

impl Lease {
    /// A prepared statement. Each text is prepared once a connection, so texts must be few.
    pub async fn prepare(&self, text: &'static str) -> Result<Statement, StoreError> {
        self.watch(DB_ANSWER_WAIT, self.client().prepare_cached(text))
            .await
    }

    /// Runs a prepared statement. It is sent at the first poll, so that several can be under way.
    pub async fn query(
        &self,
        statement: &Statement,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.counted.statements.fetch_add(1, Ordering::Relaxed);
        self.watch(DB_ANSWER_WAIT, self.client().query(statement, params))
            .await
    }

    /// Runs a prepared statement that gives no rows; returns how many it touched.
    pub async fn execute(
        &self,
        statement: &Statement,
        params: &[Param<'_>],
    ) -> Result<u64, StoreError> {
        self.counted.statements.fetch_add(1, Ordering::Relaxed);
        self.watch(DB_ANSWER_WAIT, self.client().execute(statement, params))
            .await
    }

    /// Prepares and runs.
    pub async fn ask(
        &self,
        text: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let statement = self.prepare(text).await?;
        self.query(&statement, params).await
    }

    /// Begins a transaction. Unless [`commit`](Self::commit) succeeds the connection is closed with
    /// the lease.
    pub async fn begin(&self) -> Result<(), StoreError> {
        self.in_transaction.store(true, Ordering::Relaxed);
        self.simple("BEGIN").await
    }

    /// Commits. An error leaves open whether it did.
    pub async fn commit(&self) -> Result<(), StoreError> {
        self.simple("COMMIT").await?;
        self.in_transaction.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Ends a transaction that has changed nothing worth keeping.
    pub async fn roll_back(&self) -> Result<(), StoreError> {
        self.simple("ROLLBACK").await?;
        self.in_transaction.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Runs a text without parameters or rows.
    pub async fn simple(&self, text: &str) -> Result<(), StoreError> {
        self.counted.statements.fetch_add(1, Ordering::Relaxed);
        self.watch(DB_ANSWER_WAIT, self.client().batch_execute(text))
            .await
    }

    async fn watch<T>(
        &self,
        wait: Duration,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, StoreError> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let answer = within(wait, answer).await;
        match &answer {
            // An answer that did not come may still come: the connection stays counted as busy.
            Err(error) if *error == super::error::slow() => {}
            Err(error) => {
                if ends_connection(error) {
                    self.broken.store(true, Ordering::Relaxed);
                }
                self.under_way.fetch_sub(1, Ordering::Relaxed);
            }
            Ok(_) => {
                self.under_way.fetch_sub(1, Ordering::Relaxed);
            }
        }
        answer
    }

    fn client(&self) -> &Object {
        self.object.as_ref().expect("it is taken when dropped")
    }

    fn is_clean(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) == 0
            && !self.in_transaction.load(Ordering::Relaxed)
            && !self.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(object) = self.object.take()
            && !self.is_clean()
        {
            // Out of the pool, and closed.
            drop(Object::take(object));
        }
    }
}

/// An error for what comes after the store's end.
pub fn closed() -> StoreError {
    unreachable("the store is closed")
}
