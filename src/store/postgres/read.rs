//! Questions from the shards, answered on the store's runtime.
//!
//! A question is handed over at once and its answer awaited on any runtime. Whoever stops waiting does
//! not stop it: a read that has begun holds its connection until it ends, so the permit that stands for
//! that connection is to be held as long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::runtime::Handle;

use super::Core;
use super::error::{corrupt, exhausted};
use super::group::{number, unreadable};
use super::keys::signed;
use super::pool::closed;
use super::query::{Budget, Count, Query, row_of};
use crate::limits::{DB_FETCH_EVENTS_MAX, DB_QUESTIONS_MAX, DB_REPLICA_PAUSE, DB_REPLICA_WAIT};
use crate::store::embedded::{Found, Progress};
use crate::store::{Rows, StoreError, StoreErrorKind};

const FIND: &str = "
SELECT seq, substring(json FROM octet_length(json) - 129 FOR 128), json
FROM buzz.events WHERE id = $1::bytea";

const LAST: &str = "SELECT seq FROM buzz.head";

const AFTER: &str = "
SELECT seq, CASE WHEN $4::bigint = 0 OR expires IS NULL OR expires > $4 THEN json END, expires
FROM (
    SELECT seq, expires, json, sum(octet_length(json)) OVER (ORDER BY seq) AS bytes,
           row_number() OVER (ORDER BY seq) AS place
    FROM (SELECT seq, expires, json FROM buzz.events WHERE seq > $1::bigint
          ORDER BY seq LIMIT $2::bigint) AS c
) AS s WHERE place = 1 OR bytes <= $3::bigint ORDER BY seq";

/// Events in the order of their sequences, and where to go on.
#[derive(Clone, Debug, Default)]
pub struct Slice {
    /// Sequences, as many as rows.
    pub seqs: Vec<u64>,
    /// The events.
    pub rows: Rows,
    /// The sequence to go on after; `None` at the end.
    pub after: Option<u64>,
}

/// What was read of a query, and the query at its new place.
pub struct Read {
    /// To go on with.
    pub query: Query,
    /// The rows.
    pub rows: Rows,
    /// Whether there is more.
    pub progress: Progress,
}

/// Runs questions for threads that are not the runtime's.
#[derive(Clone)]
pub struct Questioner {
    runtime: Handle,
    under_way: Arc<AtomicUsize>,
}

/// Counts one question, until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Questioner {
    /// Asks on this runtime.
    pub fn new(runtime: Handle) -> Questioner {
        Questioner {
            runtime,
            under_way: Arc::default(),
        }
    }

    /// Runs a question to its end, whether or not its answer is awaited.
    pub fn run<T, F>(
        &self,
        question: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(self.under_way.clone());
        let task = (before < DB_QUESTIONS_MAX).then(|| {
            self.runtime.spawn(async move {
                let _counted = counted;
                question.await
            })
        });
        async move {
            match task {
                None => Err(exhausted("too many questions wait")),
                // Cancelled with the runtime, or it has panicked, which is logged.
                Some(task) => task.await.unwrap_or_else(|_| Err(closed())),
            }
        }
    }
}

/// Goes on with a query for one read.
pub async fn read(core: &Core, mut query: Query, budget: Budget) -> Result<Read, StoreError> {
    let mut retry = Retry::new();
    loop {
        let lease = core.readers.get().await?;
        match query.read(&lease, &budget).await {
            Ok((rows, progress)) => {
                return Ok(Read {
                    query,
                    rows,
                    progress,
                });
            }
            Err(error) => retry.after(error).await?,
        }
    }
}

/// Goes on with a count for one read.
pub async fn count(
    core: &Core,
    mut count: Count,
    budget: Budget,
) -> Result<(Count, Progress), StoreError> {
    let mut retry = Retry::new();
    loop {
        let lease = core.readers.get().await?;
        match count.read(&lease, &budget).await {
            Ok(progress) => return Ok((count, progress)),
            Err(error) => retry.after(error).await?,
        }
    }
}

/// Whether a read that failed is worth another try: on a replica that is behind for a while, and once
/// on a connection that had died in the pool. A statement that failed has moved nothing.
struct Retry {
    started: Instant,
    reconnected: bool,
}

impl Retry {
    fn new() -> Retry {
        Retry {
            started: Instant::now(),
            reconnected: false,
        }
    }

    async fn after(&mut self, error: StoreError) -> Result<(), StoreError> {
        match error.kind() {
            StoreErrorKind::Behind if self.started.elapsed() < DB_REPLICA_WAIT => {
                tokio::time::sleep(DB_REPLICA_PAUSE).await;
                Ok(())
            }
            StoreErrorKind::Unreachable if !self.reconnected => {
                self.reconnected = true;
                Ok(())
            }
            _ => Err(error),
        }
    }
}

/// What is known of an event by its id, and its JSON.
pub async fn find(core: &Core, id: [u8; 32]) -> Result<Option<(Found, String)>, StoreError> {
    let lease = core.readers.get().await?;
    let rows = lease.ask(FIND, &[&&id[..]]).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let hex: &[u8] = row.try_get(1).map_err(|_| unreadable())?;
    let json: Vec<u8> = row.try_get(2).map_err(|_| unreadable())?;
    let found = Found {
        seq: number(row, 0)?,
        sig: const_hex::decode_to_array(hex).map_err(|_| corrupt("a signature"))?,
    };
    let json = String::from_utf8(json).map_err(|_| corrupt("an event"))?;
    Ok(Some((found, json)))
}

/// The last sequence given out.
pub async fn last_seq(core: &Core) -> Result<u64, StoreError> {
    let lease = core.readers.get().await?;
    let rows = lease.ask(LAST, &[]).await?;
    rows.first().map_or(Err(unreadable()), |row| number(row, 0))
}

/// Events above a sequence, in the order of sequences; those that have expired at `now`, in seconds
/// since 1970, are left out, of a `now` of 0 none. At most so many bytes, but at least one event.
pub async fn events_after(
    core: &Core,
    after: u64,
    bytes_max: usize,
    now: u64,
) -> Result<Slice, StoreError> {
    let lease = core.readers.get().await?;
    let (most, bytes) = (DB_FETCH_EVENTS_MAX as i64, signed(bytes_max as u64));
    let rows = lease
        .ask(AFTER, &[&signed(after), &most, &bytes, &signed(now)])
        .await?;
    let mut slice = Slice::default();
    for row in &rows {
        let seq = number(row, 0)?;
        slice.after = Some(seq);
        let json: Option<&[u8]> = row.try_get(1).map_err(|_| unreadable())?;
        if let Some(json) = json {
            slice.seqs.push(seq);
            let expires: Option<i64> = row.try_get(2).map_err(|_| unreadable())?;
            slice.rows.push(row_of(json, expires)?);
        }
    }
    Ok(slice)
}
