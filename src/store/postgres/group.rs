//! One group of events into one transaction: seven to ten statements, sent in two volleys.
//!
//! The first volley waits for the turn to commit and then reads what the decisions depend on; the
//! second writes and commits. Nobody else commits events in between, so what was read still holds.

use std::sync::Arc;

use tokio_postgres::Row;

use super::Core;
use super::decide::{Group, Known, Removals, Stored, Wanted};
use super::error::corrupt;
use super::keys::{Half, age_of, signed};
use super::pool::{Lease, Param};
use super::queue::lock;
use crate::nostr::event::Event;
use crate::store::{Outcome, StoreError};

/// Waits for the turn; the last sequence given out.
pub const TURN: &str = "SELECT buzz.take_turn(current_setting('buzz.timeline'))";

const EVENTS: &str = "
SELECT seq, id, pubkey, kind, age, address,
       substring(json FROM octet_length(json) - 129 FOR 128),
       CASE WHEN kind = 1059 THEN tags ELSE '{}' END
FROM buzz.events WHERE id = ANY ($1::bytea[])
UNION ALL
SELECT seq, id, pubkey, kind, age, address,
       substring(json FROM octet_length(json) - 129 FOR 128),
       CASE WHEN kind = 1059 THEN tags ELSE '{}' END
FROM buzz.events WHERE address = ANY ($2::uuid[])";

const DELETED: &str = "
SELECT w.pubkey, w.target, d.until
FROM unnest($1::bytea[], $2::uuid[]) AS w(pubkey, target)
JOIN buzz.deleted d ON d.pubkey = w.pubkey AND d.target = w.target";

const KEYS: &str = "
SELECT w.pubkey, v.until, coalesce(a.banned, false)
FROM unnest($1::bytea[]) AS w(pubkey)
LEFT JOIN buzz.vanished v ON v.pubkey = w.pubkey
LEFT JOIN buzz.access a ON a.pubkey = w.pubkey
WHERE v.until IS NOT NULL OR a.banned";

const REMOVE: &str = "
WITH gone AS (
    DELETE FROM buzz.events WHERE seq = ANY ($1::bigint[]) RETURNING seq, age, half, tags
)
DELETE FROM buzz.tags t USING gone g, unnest(g.tags) AS x(tag)
WHERE t.tag = x.tag AND t.age = g.age AND t.half = g.half AND t.seq = g.seq";

const TAKE_BACK: &str = "
INSERT INTO buzz.deleted (pubkey, target, until)
SELECT * FROM unnest($1::bytea[], $2::uuid[], $3::bigint[])
ON CONFLICT (pubkey, target) DO UPDATE SET until = greatest(deleted.until, excluded.until)";

const VANISH: &str = "
INSERT INTO buzz.vanished (pubkey, until, under_way)
SELECT pubkey, until, true FROM unnest($1::bytea[], $2::bigint[]) AS v(pubkey, until)
ON CONFLICT (pubkey) DO UPDATE SET until = excluded.until, under_way = true, since = now()";

/// Writes the events, their tags and the last sequence, and tells all processes with the commit.
const INSERT: &str = "
WITH e AS (
    INSERT INTO buzz.events (seq, id, half, pubkey, age, kind, address, expires, tags, json)
    SELECT seq, id, half, pubkey, age, kind, address, expires, tags::uuid[], json
    FROM unnest($1::bigint[], $2::bytea[], $3::uuid[], $4::bytea[], $5::bigint[], $6::integer[],
                $7::uuid[], $8::bigint[], $9::text[], $10::bytea[])
         AS n(seq, id, half, pubkey, age, kind, address, expires, tags, json)
    RETURNING seq, age, half, kind, tags
), t AS (
    INSERT INTO buzz.tags (tag, age, half, seq, kind)
    SELECT x.tag, e.age, e.half, e.seq, e.kind FROM e, unnest(e.tags) AS x(tag)
), h AS (
    UPDATE buzz.head SET seq = $11::bigint
)
SELECT pg_notify('buzz', $11::bigint::text)";

/// What became of a group. `None` in place of an outcome: a request to vanish, which has only begun.
pub struct Committed {
    /// One an event.
    pub outcomes: Vec<Option<Outcome>>,
    /// Events that it removed.
    pub removals: Removals,
}

/// Decides and commits one group. An error leaves open whether anything was committed, if `COMMIT` was sent.
pub async fn commit(core: &Core, events: &[Arc<Event>]) -> Result<Committed, StoreError> {
    let lease = core.writers.get().await?;
    let known = read(&lease, &Wanted::by(events)).await?;
    let mut group = Group::begin(known);
    let committed = Committed {
        outcomes: events.iter().map(|event| group.add(event)).collect(),
        removals: group.removals,
    };
    match group.is_empty() {
        true => lease.roll_back().await?,
        false => write(core, &lease, &group).await?,
    }
    Ok(committed)
}

/// Begins a transaction, waits for the turn, and reads what is wanted.
pub async fn read(lease: &Lease, wanted: &Wanted) -> Result<Known, StoreError> {
    let turn = lease.prepare(TURN).await?;
    let by_id = lease.prepare(EVENTS).await?;
    let by_target = lease.prepare(DELETED).await?;
    let by_key = lease.prepare(KEYS).await?;
    let ids: Vec<&[u8]> = wanted.ids.iter().map(|id| &id[..]).collect();
    let addresses: Vec<Half> = wanted.addresses.iter().copied().collect();
    let (owners, targets): (Vec<&[u8]>, Vec<Half>) = wanted
        .targets
        .iter()
        .map(|(key, half)| (&key[..], half))
        .unzip();
    let keys: Vec<&[u8]> = wanted.keys.iter().map(|key| &key[..]).collect();
    let by_id_params: [Param<'_>; 2] = [&ids, &addresses];
    let by_target_params: [Param<'_>; 2] = [&owners, &targets];
    let by_key_params: [Param<'_>; 1] = [&keys];
    // In this order: what is polled first is sent first, and each statement sees what is committed
    // when it begins.
    let (_, turn, events, deleted, keys) = tokio::try_join!(
        biased;
        lease.begin(),
        lease.query(&turn, &[]),
        lease.query(&by_id, &by_id_params),
        lease.query(&by_target, &by_target_params),
        lease.query(&by_key, &by_key_params),
    )?;
    let mut known = Known {
        last: number(&turn[0], 0)?,
        ..Known::default()
    };
    for row in &events {
        let (id, stored) = stored(row)?;
        if let Some(address) = stored.address {
            known.versions.insert(address, id);
        }
        known.events.insert(id, stored);
    }
    for row in &deleted {
        let target = (key(row, 0)?, row.try_get(1).map_err(|_| unreadable())?);
        known.deleted.insert(target, number(row, 2)?);
    }
    for row in &keys {
        let pubkey = key(row, 0)?;
        let until: Option<i64> = row.try_get(1).map_err(|_| unreadable())?;
        if let Some(until) = until {
            known.vanished.insert(pubkey, until.max(0) as u64);
        }
        if row.try_get(2).map_err(|_| unreadable())? {
            known.banned.insert(pubkey);
        }
    }
    Ok(known)
}

/// Writes what a group has gathered and commits.
pub async fn write(core: &Core, lease: &Lease, group: &Group) -> Result<(), StoreError> {
    let remove = lease.prepare(REMOVE).await?;
    let take_back = lease.prepare(TAKE_BACK).await?;
    let vanish = lease.prepare(VANISH).await?;
    let insert = lease.prepare(INSERT).await?;
    let rows = Rows::of(group);
    let removed: Vec<i64> = group.removed.iter().map(|seq| signed(*seq)).collect();
    let owners: Vec<&[u8]> = group.deleted.keys().map(|(key, _)| &key[..]).collect();
    let targets: Vec<Half> = group.deleted.keys().map(|(_, target)| *target).collect();
    let until: Vec<i64> = group.deleted.values().map(|until| signed(*until)).collect();
    let vanished: Vec<&[u8]> = group.vanished.keys().map(|key| &key[..]).collect();
    let vanished_until: Vec<i64> = group.vanished.values().map(|u| signed(*u)).collect();
    let last = signed(group.last);

    let removal = async {
        match removed.is_empty() {
            true => Ok(0),
            false => lease.execute(&remove, &[&removed]).await,
        }
    };
    let taking_back = async {
        match owners.is_empty() {
            true => Ok(0),
            false => {
                let params: [Param<'_>; 3] = [&owners, &targets, &until];
                lease.execute(&take_back, &params).await
            }
        }
    };
    let vanishing = async {
        match vanished.is_empty() {
            true => Ok(0),
            false => lease.execute(&vanish, &[&vanished, &vanished_until]).await,
        }
    };
    let insertion = async {
        match group.sequences() {
            None => Ok(0),
            Some(_) => lease.execute(&insert, &rows.params(&last)).await,
        }
    };
    if let Some((first, last)) = group.sequences() {
        lock(&core.ledger).begin(first, last);
    }
    let mut pending = PendingRange {
        core,
        committed: false,
    };
    // After a statement that failed the server makes a ROLLBACK of the COMMIT and says that it went
    // well; the failed statement's own answer ends it here.
    tokio::try_join!(
        biased;
        removal,
        taking_back,
        vanishing,
        insertion,
        lease.commit(),
    )?;
    pending.committed = true;
    Ok(())
}

/// The group's range in the ledger, which is resolved whatever happens.
struct PendingRange<'c> {
    core: &'c Core,
    committed: bool,
}

impl Drop for PendingRange<'_> {
    fn drop(&mut self) {
        let mut ledger = lock(&self.core.ledger);
        match self.committed {
            true => ledger.committed(),
            false => ledger.abandoned(),
        }
        drop(ledger);
        self.core.ledger_moved.notify_one();
    }
}

/// A group's events, column by column.
struct Rows<'g> {
    seqs: Vec<i64>,
    ids: Vec<&'g [u8]>,
    halves: Vec<Half>,
    pubkeys: Vec<&'g [u8]>,
    ages: Vec<i64>,
    kinds: Vec<i32>,
    addresses: Vec<Option<Half>>,
    expires: Vec<Option<i64>>,
    tags: Vec<String>,
    jsons: Vec<&'g [u8]>,
}

impl<'g> Rows<'g> {
    fn of(group: &'g Group) -> Rows<'g> {
        let events = || group.inserts().map(|insert| &*insert.event);
        Rows {
            seqs: group.inserts().map(|insert| signed(insert.seq)).collect(),
            ids: events().map(|event| &event.id()[..]).collect(),
            halves: events().map(|event| Half::of(event.id())).collect(),
            pubkeys: events().map(|event| &event.pubkey()[..]).collect(),
            ages: events().map(|event| age_of(event.created_at())).collect(),
            kinds: events().map(|event| event.kind().into()).collect(),
            addresses: group.inserts().map(|insert| insert.address).collect(),
            expires: events()
                .map(|event| event.expiration().map(signed))
                .collect(),
            tags: events().map(tags_text).collect(),
            jsons: events().map(|event| event.json().as_bytes()).collect(),
        }
    }

    fn params<'p>(&'p self, last: &'p i64) -> [Param<'p>; 11] {
        [
            &self.seqs,
            &self.ids,
            &self.halves,
            &self.pubkeys,
            &self.ages,
            &self.kinds,
            &self.addresses,
            &self.expires,
            &self.tags,
            &self.jsons,
            last,
        ]
    }
}

/// An array of `uuid` as text: arrays of different lengths do not nest.
fn tags_text(event: &Event) -> String {
    let tags = Half::tags_of(event);
    let mut text = String::with_capacity(2 + 33 * tags.len());
    text.push('{');
    for (place, tag) in tags.iter().enumerate() {
        if place > 0 {
            text.push(',');
        }
        text.push_str(&const_hex::encode(tag.0));
    }
    text.push('}');
    text
}

fn stored(row: &Row) -> Result<([u8; 32], Stored), StoreError> {
    let get = |_| unreadable();
    let kind: i32 = row.try_get(3).map_err(get)?;
    let age: i64 = row.try_get(4).map_err(get)?;
    let stored = Stored {
        seq: number(row, 0)?,
        pubkey: key(row, 2)?,
        kind: kind as u16,
        created_at: age.unsigned_abs(),
        address: row.try_get(5).map_err(get)?,
        sig: row.try_get(6).map_err(get)?,
        tags: row.try_get(7).map_err(get)?,
    };
    Ok((key(row, 1)?, stored))
}

/// 32 bytes of a row.
pub fn key(row: &Row, at: usize) -> Result<[u8; 32], StoreError> {
    let bytes: &[u8] = row.try_get(at).map_err(|_| unreadable())?;
    bytes.try_into().map_err(|_| unreadable())
}

/// A number of a row that is never negative.
pub fn number(row: &Row, at: usize) -> Result<u64, StoreError> {
    let number: i64 = row.try_get(at).map_err(|_| unreadable())?;
    u64::try_from(number).map_err(|_| unreadable())
}

/// A column that is not what it should be.
pub const fn unreadable() -> StoreError {
    corrupt("a column")
}
