//! The access lists, one truth for all relays of a database.
//!
//! Logins that come together are looked up together, on a connection of the writers' pool: so a
//! login finds one while history takes all of the readers'.
//!
//! A ban is committed with a version, in commit order, and told to every relay, this one included:
//! each ends the connections of a banned key. A login that read the lists before a ban and is
//! answered after it would slip through. So whoever learns of a ban first remembers it for as long as
//! such a login can be under way, then tells the shards; and a login's answer is held against that
//! memory where it is used.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use hashbrown::HashMap;
use tokio::sync::{mpsc, oneshot};

use super::Core;
use super::error::exhausted;
use super::group::{key, unreadable};
use super::pool::{Param, closed};
use super::queue::lock;
use crate::limits::{DB_ACCESS_KEYS_MAX, DB_BAN_REMEMBERED, DB_QUESTIONS_MAX};
use crate::store::StoreError;
use crate::store::embedded::{Access, List};

const LOOK_UP: &str = "
SELECT pubkey, banned, allowed, member FROM buzz.access WHERE pubkey = ANY ($1::bytea[])";

const LIST: &str = "
SELECT pubkey, banned, allowed, member FROM buzz.access WHERE pubkey > $1::bytea
ORDER BY pubkey LIMIT $2::bigint";

const LOCK: &str = "SELECT pg_advisory_xact_lock(7094707117252804613)";

const PUT: &str = "
INSERT INTO buzz.access (pubkey, banned, allowed, member, version)
SELECT pubkey, banned, allowed, member,
       CASE WHEN $5::boolean THEN nextval('buzz.access_version') END
FROM unnest($1::bytea[], $2::boolean[], $3::boolean[], $4::boolean[])
     AS n(pubkey, banned, allowed, member)
ON CONFLICT (pubkey) DO UPDATE SET banned = excluded.banned, allowed = excluded.allowed,
    member = excluded.member, version = coalesce(excluded.version, access.version)";

/// Off all lists, out of the table; and the word to all relays. The last value of a sequence that was
/// never used is 1 as well, which the first ban will have.
const TIDY: &str = "
WITH gone AS (
    DELETE FROM buzz.access
    WHERE pubkey = ANY ($1::bytea[]) AND NOT (banned OR allowed OR member)
)
SELECT pg_notify('buzz_access', (
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM buzz.access_version
)::text)";

/// A login's question.
pub struct Question {
    key: [u8; 32],
    answer: oneshot::Sender<Result<Access, StoreError>>,
}

/// The way to the task that looks keys up.
pub type Questions = mpsc::Sender<Question>;

/// A way to the task, and its own end of it.
pub fn questions() -> (Questions, mpsc::Receiver<Question>) {
    mpsc::channel(DB_QUESTIONS_MAX)
}

/// Asks what the lists say of a key.
pub fn ask(
    core: &Arc<Core>,
    questions: &Questions,
    key: [u8; 32],
) -> impl Future<Output = Result<Access, StoreError>> + Send + use<> {
    let (answer, answered) = oneshot::channel();
    let asked = Instant::now();
    let sent = questions.try_send(Question { key, answer });
    let core = core.clone();
    async move {
        match sent {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                return Err(exhausted("too many logins wait"));
            }
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(closed()),
        }
        let mut access = answered.await.map_err(|_| closed())??;
        // Here, on the thread that acts on it: see the head of this file.
        access.banned |= core.bans.since(&key, asked);
        Ok(access)
    }
}

/// Answers questions, many at a time, until nobody can ask any more.
pub async fn run(core: Arc<Core>, mut questions: mpsc::Receiver<Question>) {
    let mut waiting = Vec::new();
    while questions.recv_many(&mut waiting, DB_ACCESS_KEYS_MAX).await > 0 {
        let mut keys: Vec<[u8; 32]> = waiting.iter().map(|question| question.key).collect();
        keys.sort_unstable();
        keys.dedup();
        let found = look_up(&core, &keys).await;
        for Question { key, answer } in waiting.drain(..) {
            let access = match &found {
                Ok(found) => Ok(found.get(&key).copied().unwrap_or_default()),
                Err(error) => Err(error.clone()),
            };
            // Nobody waits any more for one whose client has left.
            let _ = answer.send(access);
        }
    }
}

async fn look_up(core: &Core, keys: &[[u8; 32]]) -> Result<HashMap<[u8; 32], Access>, StoreError> {
    let lease = core.writers.get().await?;
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let rows = lease.ask(LOOK_UP, &[&keys]).await?;
    rows.iter().map(entry).collect()
}

/// A page of the entries above a key, in the order of keys.
pub async fn list(
    core: &Core,
    after: Option<[u8; 32]>,
    most: usize,
) -> Result<Vec<([u8; 32], Access)>, StoreError> {
    let lease = core.writers.get().await?;
    let after = after.as_ref().map_or(&[][..], |key| &key[..]);
    let rows = lease.ask(LIST, &[&after, &(most as i64)]).await?;
    rows.iter().map(entry).collect()
}

/// Puts keys on a list or takes them off, all together. Returns for each whether that changed
/// anything.
pub async fn edit(
    core: &Core,
    keys: &[[u8; 32]],
    list: List,
    on: bool,
) -> Result<Vec<bool>, StoreError> {
    let lease = core.writers.get().await?;
    lease.begin().await?;
    lease.ask(LOCK, &[]).await?;
    let raw: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let rows = lease.ask(LOOK_UP, &[&raw]).await?;
    let mut entries: HashMap<[u8; 32], Access> =
        rows.iter().map(entry).collect::<Result<_, _>>()?;
    let bans = list == List::Banned && on;
    let mut changed = Vec::with_capacity(keys.len());
    let mut put: HashMap<[u8; 32], Access> = HashMap::new();
    for key in keys {
        let access = entries.entry(*key).or_default();
        let entry = match list {
            List::Banned => &mut access.banned,
            List::Allowed => &mut access.allowed,
            List::Members => &mut access.member,
        };
        changed.push(*entry != on);
        // A ban that stands is told again: it may be the second try.
        if *entry != on || bans {
            *entry = on;
            put.insert(*key, *access);
        }
    }
    if put.is_empty() {
        lease.roll_back().await?;
        return Ok(changed);
    }
    let raw: Vec<&[u8]> = put.keys().map(|key| &key[..]).collect();
    let column = |of: fn(&Access) -> bool| -> Vec<bool> { put.values().map(of).collect() };
    let (banned, allowed, member) = (
        column(|access| access.banned),
        column(|access| access.allowed),
        column(|access| access.member),
    );
    let params: [Param<'_>; 5] = [&raw, &banned, &allowed, &member, &bans];
    lease.ask(PUT, &params).await?;
    lease.ask(TIDY, &[&raw]).await?;
    lease.commit().await?;
    if bans {
        core.bans.note(keys);
    }
    Ok(changed)
}

fn entry(row: &tokio_postgres::Row) -> Result<([u8; 32], Access), StoreError> {
    let bit = |at: usize| row.try_get(at).map_err(|_| unreadable());
    let access = Access {
        banned: bit(1)?,
        allowed: bit(2)?,
        member: bit(3)?,
    };
    Ok((key(row, 0)?, access))
}

/// Keys banned lately.
#[derive(Debug, Default)]
pub struct Bans {
    keys: Mutex<HashMap<[u8; 32], Instant>>,
}

impl Bans {
    /// Remembers keys for [`DB_BAN_REMEMBERED`].
    pub fn note(&self, keys: &[[u8; 32]]) {
        let mut known = lock(&self.keys);
        let now = Instant::now();
        known.retain(|_, since| now.duration_since(*since) < DB_BAN_REMEMBERED);
        known.extend(keys.iter().map(|key| (*key, now)));
    }

    /// Whether this process has learnt since then that a key was banned.
    pub fn since(&self, key: &[u8; 32], then: Instant) -> bool {
        let known = lock(&self.keys);
        known.get(key).is_some_and(|noted| *noted >= then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ban_is_held_against_questions_asked_before_it() {
        let bans = Bans::default();
        let before = Instant::now();
        bans.note(&[[1; 32]]);
        assert!(bans.since(&[1; 32], before));
        assert!(!bans.since(&[2; 32], before));
        std::thread::sleep(std::time::Duration::from_millis(1));
        // The answer to a later question knows better: the key may be free again.
        assert!(!bans.since(&[1; 32], Instant::now()));
    }
}
