//! What other relays of the same database publish: notifications, and the rows behind them.
//!
//! A connection of its own listens. A notification says up to which sequence events are committed;
//! what of that is not this process's own is fetched in order and handed to the shards. Every new
//! connection first listens and then reads from where the last one ended, so nothing is missed, and
//! the ledger sees to it that nothing comes twice. While no notification comes, a look every
//! [`DB_LISTEN_LOOK`] shows that the connection lives.
//!
//! Ephemeral events and bans come the same way, each by a number of its own.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, Row, Statement};

use super::Core;
use super::deliver::{Deliveries, Delivery};
use super::error::{slow, store_error, unreachable, within};
use super::group::{TURN, key, number, unreadable};
use super::keys::signed;
use super::ledger::Gap;
use super::pool::introduce;
use super::queue::lock;
use crate::limits::{
    DB_ANSWER_WAIT, DB_BAN_KEYS_MAX, DB_CONNECT_WAIT, DB_EPHEMERAL_BYTES_MAX, DB_EPHEMERAL_SECONDS,
    DB_FETCH_BYTES_MAX, DB_FETCH_EVENTS_MAX, DB_LISTEN_LOOK, DB_LISTEN_PAUSE_MAX,
    DB_LISTEN_PAUSE_MIN,
};
use crate::nostr::event::Event;
use crate::store::{Arrived, StoreError, StoreErrorKind};

/// Where everything stands, by what is committed: a sequence's own last value runs ahead of that, and
/// what is still being committed would be taken for seen.
pub const STANDING: &str = "
SELECT h.seq, h.timeline, current_setting('buzz.timeline', true),
       (SELECT coalesce(max(version), 0) FROM buzz.access),
       (SELECT coalesce(max(n), 0) FROM buzz.ephemeral),
       EXISTS (SELECT 1 FROM buzz.ephemeral)
FROM buzz.head h";

/// Rows above a sequence and up to another one, within a number of rows and of bytes.
const FETCH: &str = "
SELECT seq, json FROM (
    SELECT seq, json, sum(octet_length(json)) OVER (ORDER BY seq) - octet_length(json) AS before
    FROM (SELECT seq, json FROM buzz.events WHERE seq > $1::bigint AND seq <= $2::bigint
          ORDER BY seq LIMIT $3::bigint) AS c
) AS s WHERE before < $4::bigint ORDER BY seq";

const FETCH_EPHEMERAL: &str = "
SELECT n, CASE WHEN origin <> $5::bigint THEN json END FROM (
    SELECT n, origin, json,
           sum(octet_length(json)) OVER (ORDER BY n) - octet_length(json) AS before
    FROM (SELECT n, origin, json FROM buzz.ephemeral WHERE n > $1::bigint AND n <= $2::bigint
          ORDER BY n LIMIT $3::bigint) AS c
) AS s WHERE before < $4::bigint ORDER BY n";

const FETCH_BANS: &str = "
SELECT pubkey, version FROM buzz.access WHERE version > $1::bigint AND version <= $2::bigint AND banned
ORDER BY version LIMIT $3::bigint";

const FORGET_EPHEMERAL: &str = "SELECT buzz.forget_ephemeral($1::float8, $2::bigint)";

/// The first half of a lock that each relay holds as long as it listens, shared, so that it keeps
/// nobody out. The second half is how many connections the relay may open: a relay that starts adds
/// up what others may come to, however few they have open.
pub const SHARES: i32 = 0x6275_7A7A;

/// How far things were when the store was opened, and how the listener fares.
#[derive(Debug, Default)]
pub struct Standing {
    /// The last sequence known to be committed.
    pub head: AtomicU64,
    /// Bans are known up to this version.
    pub bans: AtomicU64,
    /// Ephemeral events are known up to this number.
    pub ephemeral: AtomicU64,
    /// Whether the listening connection stands.
    pub connected: AtomicBool,
    /// Connections that were lost.
    pub lost: AtomicU64,
    /// Events of other processes fetched.
    pub fetched: AtomicU64,
    /// Of those, the ones that were fetched after a connection was lost.
    pub caught_up: AtomicU64,
    /// Rows that could not be read.
    pub unreadable: AtomicU64,
}

/// Listens until it is aborted.
pub async fn run(core: Arc<Core>, deliveries: Deliveries) {
    let mut pause = DB_LISTEN_PAUSE_MIN;
    let mut told = false;
    loop {
        let error = match Session::open(&core, &deliveries).await {
            Ok(mut session) => {
                core.standing.connected.store(true, Ordering::Relaxed);
                if told {
                    tracing::info!("notifications of the database come again");
                }
                (pause, told) = (DB_LISTEN_PAUSE_MIN, false);
                let error = session.run().await;
                core.standing.connected.store(false, Ordering::Relaxed);
                core.standing.lost.fetch_add(1, Ordering::Relaxed);
                error
            }
            Err(error) => error,
        };
        if !told {
            tracing::warn!(%error, "no notifications of the database come, trying again");
            told = true;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(DB_LISTEN_PAUSE_MAX);
    }
}

/// What the connection's own task has heard.
#[derive(Default)]
struct Heard {
    head: AtomicU64,
    ephemeral: AtomicU64,
    bans: AtomicU64,
    ended: AtomicBool,
    wake: Notify,
}

struct Session<'c> {
    core: &'c Arc<Core>,
    deliveries: &'c Deliveries,
    client: Client,
    driver: JoinHandle<()>,
    heard: Arc<Heard>,
    standing: Statement,
    fetch: Statement,
    fetch_ephemeral: Statement,
    fetch_bans: Statement,
    /// Up to where this connection catches up with what came before it.
    behind: u64,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl<'c> Session<'c> {
    async fn open(
        core: &'c Arc<Core>,
        deliveries: &'c Deliveries,
    ) -> Result<Session<'c>, StoreError> {
        let server = &core.server;
        let connect = server.config.connect(server.tls.clone());
        let (client, mut connection) = within(DB_CONNECT_WAIT, connect).await?;
        let heard = Arc::new(Heard::default());
        let hears = heard.clone();
        let driver = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(notification) = message {
                    hears.hear(notification.channel(), notification.payload());
                }
            }
            hears.ended.store(true, Ordering::Release);
            hears.wake.notify_one();
        });
        let session = Self::begin(core, deliveries, client, driver, heard);
        tokio::time::timeout(DB_ANSWER_WAIT, session)
            .await
            .map_err(|_| slow())?
    }

    async fn begin(
        core: &'c Arc<Core>,
        deliveries: &'c Deliveries,
        client: Client,
        driver: JoinHandle<()>,
        heard: Arc<Heard>,
    ) -> Result<Session<'c>, StoreError> {
        let abort = AbortOnDrop(Some(driver));
        let refused = |error| store_error(&error);
        introduce(&client).await.map_err(refused)?;
        let begin = format!(
            "LISTEN buzz; LISTEN buzz_ephemeral; LISTEN buzz_access; \
             SELECT pg_try_advisory_lock_shared({SHARES}, {})",
            core.may_open
        );
        client.batch_execute(&begin).await.map_err(refused)?;
        let standing = client.prepare(STANDING).await.map_err(refused)?;
        let fetch = client.prepare(FETCH).await.map_err(refused)?;
        let fetch_ephemeral = client.prepare(FETCH_EPHEMERAL).await.map_err(refused)?;
        let fetch_bans = client.prepare(FETCH_BANS).await.map_err(refused)?;
        let mut session = Session {
            core,
            deliveries,
            client,
            driver: abort.keep(),
            heard,
            standing,
            fetch,
            fetch_ephemeral,
            fetch_bans,
            behind: 0,
        };
        session.look().await?;
        session.behind = session.heard.head.load(Ordering::Relaxed);
        Ok(session)
    }

    /// Fetches and delivers, until the connection is lost.
    async fn run(&mut self) -> StoreError {
        loop {
            if let Err(error) = self.catch_up().await {
                return error;
            }
            let heard = self.heard.clone();
            let moved = self.core.clone();
            let woken = async {
                tokio::select! {
                    () = heard.wake.notified() => {}
                    () = moved.ledger_moved.notified() => {}
                }
            };
            let looked = match tokio::time::timeout(DB_LISTEN_LOOK, woken).await {
                Ok(()) if self.heard.ended.load(Ordering::Acquire) => {
                    Err(unreachable("the listening connection has ended"))
                }
                Ok(()) => Ok(()),
                Err(_) => self.look().await,
            };
            if let Err(error) = looked {
                return error;
            }
        }
    }

    /// Asks where everything stands.
    async fn look(&mut self) -> Result<(), StoreError> {
        let rows = self.query(&self.standing, &[]).await?;
        let row = rows.first().ok_or(unreadable())?;
        let standing = &self.core.standing;
        let timeline = |at| row.try_get::<_, Option<String>>(at).ok().flatten();
        let (then, now) = (timeline(1), timeline(2).unwrap_or_default());
        if now == "standby" {
            return Err(StoreError::new(StoreErrorKind::ReadOnly, ""));
        }
        let mut head = number(row, 0)?;
        let ephemeral = number(row, 4)?;
        if then.is_some_and(|then| then != now) {
            // It may be behind; ephemeral events are not worth a leap.
            self.heard.ephemeral.store(ephemeral, Ordering::Relaxed);
            standing.ephemeral.fetch_min(ephemeral, Ordering::Relaxed);
            // Another server has taken over. Whoever comes first moves the sequence on.
            head = self.take_turn(&now).await?;
        }
        self.heard.head.fetch_max(head, Ordering::Relaxed);
        self.heard
            .bans
            .fetch_max(number(row, 3)?, Ordering::Relaxed);
        self.heard.ephemeral.fetch_max(ephemeral, Ordering::Relaxed);
        if row.try_get(5).map_err(|_| unreadable())? {
            let client = &self.client;
            let forget = client.prepare(FORGET_EPHEMERAL);
            let forget = within(DB_ANSWER_WAIT, forget).await?;
            let (seconds, bytes) = (DB_EPHEMERAL_SECONDS as f64, DB_EPHEMERAL_BYTES_MAX as i64);
            self.query(&forget, &[&seconds, &bytes]).await?;
        }
        Ok(())
    }

    async fn take_turn(&self, timeline: &str) -> Result<u64, StoreError> {
        let turn = within(DB_ANSWER_WAIT, self.client.prepare(TURN)).await?;
        let rows = self.query(&turn, &[]).await?;
        let last = number(rows.first().ok_or(unreadable())?, 0)?;
        if last > 0 {
            tracing::warn!(timeline, last, "another database server has taken over");
        }
        Ok(last)
    }

    /// Fetches all that was heard of.
    async fn catch_up(&mut self) -> Result<(), StoreError> {
        self.bans().await?;
        let head = self.heard.head.load(Ordering::Relaxed);
        self.core.standing.head.fetch_max(head, Ordering::Relaxed);
        loop {
            let gap = lock(&self.core.ledger).next(head);
            match gap {
                Gap::Nothing | Gap::Wait => break,
                Gap::Fetch(after, upto) => self.events(after, upto).await?,
            }
        }
        self.ephemeral().await
    }

    async fn events(&self, after: u64, upto: u64) -> Result<(), StoreError> {
        let most = DB_FETCH_EVENTS_MAX as i64;
        let bytes = DB_FETCH_BYTES_MAX as i64;
        let params: [super::pool::Param<'_>; 4] = [&signed(after), &signed(upto), &most, &bytes];
        let rows = self.query(&self.fetch, &params).await?;
        let mut arrived = Vec::with_capacity(rows.len());
        let (mut last, mut length) = (upto, 0);
        for row in &rows {
            let seq = number(row, 0)?;
            let json: &[u8] = row.try_get(1).map_err(|_| unreadable())?;
            (last, length) = (seq, length + json.len());
            let event = self.parse(json, seq);
            arrived.extend(event.map(|event| Arrived {
                event,
                seq: Some(seq),
            }));
        }
        let all = rows.len() < DB_FETCH_EVENTS_MAX && length < DB_FETCH_BYTES_MAX;
        let upto = if all { upto } else { last };
        let standing = &self.core.standing;
        let count = arrived.len() as u64;
        // Room first: between the ledger's note and the delivery nothing may go wrong.
        let room = self.deliveries.reserve().await;
        let room = room.map_err(|_| super::pool::closed())?;
        lock(&self.core.ledger).fetched(upto);
        room.send(Delivery::Arrived(arrived));
        standing.fetched.fetch_add(count, Ordering::Relaxed);
        if after < self.behind {
            standing.caught_up.fetch_add(count, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn ephemeral(&self) -> Result<(), StoreError> {
        let standing = &self.core.standing;
        loop {
            let after = standing.ephemeral.load(Ordering::Relaxed);
            let upto = self.heard.ephemeral.load(Ordering::Relaxed);
            if after >= upto {
                return Ok(());
            }
            let most = DB_FETCH_EVENTS_MAX as i64;
            let bytes = DB_FETCH_BYTES_MAX as i64;
            let params: [super::pool::Param<'_>; 5] = [
                &signed(after),
                &signed(upto),
                &most,
                &bytes,
                &self.core.process,
            ];
            let rows = self.query(&self.fetch_ephemeral, &params).await?;
            let mut arrived = Vec::new();
            // Nothing there: it was removed before we came, or lost with the server.
            let mut last = upto;
            for row in &rows {
                last = number(row, 0)?;
                let json: Option<&[u8]> = row.try_get(1).map_err(|_| unreadable())?;
                let event = json.and_then(|json| self.parse(json, last));
                arrived.extend(event.map(|event| Arrived { event, seq: None }));
            }
            let room = self.deliveries.reserve().await;
            let room = room.map_err(|_| super::pool::closed())?;
            standing.ephemeral.store(last, Ordering::Relaxed);
            if !arrived.is_empty() {
                room.send(Delivery::Arrived(arrived));
            }
        }
    }

    async fn bans(&self) -> Result<(), StoreError> {
        let standing = &self.core.standing;
        loop {
            let after = standing.bans.load(Ordering::Relaxed);
            let upto = self.heard.bans.load(Ordering::Relaxed);
            if after >= upto {
                return Ok(());
            }
            let most = DB_BAN_KEYS_MAX as i64;
            let params: [super::pool::Param<'_>; 3] = [&signed(after), &signed(upto), &most];
            let rows = self.query(&self.fetch_bans, &params).await?;
            let mut keys = Vec::with_capacity(rows.len());
            let mut last = upto;
            for row in &rows {
                keys.push(key(row, 0)?);
                last = number(row, 1)?;
            }
            if rows.len() < DB_BAN_KEYS_MAX {
                last = upto;
            }
            // Before the shards hear of it: a login whose check was earlier finds it here.
            self.core.bans.note(&keys);
            let room = self.deliveries.reserve().await;
            let room = room.map_err(|_| super::pool::closed())?;
            standing.bans.store(last, Ordering::Relaxed);
            if !keys.is_empty() {
                room.send(Delivery::Banned(keys));
            }
        }
    }

    /// An event that another relay has checked. One that cannot be read must not hold up the others.
    fn parse(&self, json: &[u8], number: u64) -> Option<Arc<Event>> {
        let text = simdutf8::basic::from_utf8(json).ok();
        match text.and_then(|text| Event::parse(text).ok()) {
            Some(event) => Some(Arc::new(event)),
            None => {
                tracing::error!(number, "an event in the database cannot be read");
                self.core
                    .standing
                    .unreadable
                    .fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    async fn query(
        &self,
        statement: &Statement,
        params: &[super::pool::Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.core.counted.statements.fetch_add(1, Ordering::Relaxed);
        within(DB_ANSWER_WAIT, self.client.query(statement, params)).await
    }
}

impl Heard {
    fn hear(&self, channel: &str, payload: &str) {
        let Ok(number) = payload.parse() else { return };
        match channel {
            "buzz" => self.head.fetch_max(number, Ordering::Relaxed),
            "buzz_ephemeral" => self.ephemeral.fetch_max(number, Ordering::Relaxed),
            "buzz_access" => self.bans.fetch_max(number, Ordering::Relaxed),
            _ => return,
        };
        self.wake.notify_one();
    }
}

struct AbortOnDrop(Option<JoinHandle<()>>);

impl AbortOnDrop {
    fn keep(mut self) -> JoinHandle<()> {
        self.0.take().expect("it is kept once")
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}
