//! Tests of the PostgreSQL store on a real server. Here: what they share.

mod edges;
mod live;
mod plans;
mod start;
mod trouble;

use std::collections::{BTreeMap, BTreeSet};

use tokio::runtime::Runtime;

use super::keys::Half;
use super::testing::Cluster;
use super::*;
use crate::nostr::filter::Filter;
use crate::nostr::hll::Hll;
use crate::nostr::message::EoseHint;
use crate::store::conformance::{Ask, Outcomes, TestQuery, TestStore, conformance, sink};
use crate::store::embedded::QueryBounds;

/// The shared server, unless it cannot be had.
fn cluster() -> Option<&'static Cluster> {
    match Cluster::shared() {
        Ok(cluster) => Some(cluster),
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

fn options(url: &Secret) -> PostgresOptions {
    PostgresOptions {
        url: url.clone(),
        read_url: None,
        pool: 4,
        read_pool: 4,
        wait: Duration::from_secs(5),
        clock: || 0,
    }
}

/// The name of the database of a URL.
fn name(url: &Secret) -> String {
    let text = url.expose();
    let path = text.rsplit('/').next().unwrap_or_default();
    path.split('?').next().unwrap_or_default().to_owned()
}

/// Waits on a runtime that is not the store's.
fn wait<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: Runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// A store with its writer running.
pub struct Running {
    store: Postgres,
    outcomes: Outcomes,
    url: Secret,
}

impl Running {
    fn on(url: &Secret) -> Running {
        Running::with(options(url))
    }

    fn with(options: PostgresOptions) -> Running {
        let url = options.url.clone();
        let store = wait(Postgres::open(options)).expect("opens");
        let (sink, outcomes) = sink();
        store.start_writer(sink);
        Running {
            store,
            outcomes,
            url,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.store.close();
    }
}

impl TestStore for Running {
    const CASES: u32 = 60;

    fn open() -> Option<Running> {
        Some(Running::on(&cluster()?.database()))
    }

    fn empty(&mut self) {
        // Not TRUNCATE, whose locks may meet those of the store's own look for what has expired.
        let tables = "DELETE FROM buzz.events; DELETE FROM buzz.tags; DELETE FROM buzz.deleted; \
                      DELETE FROM buzz.vanished; DELETE FROM buzz.access; \
                      UPDATE buzz.head SET seq = 0";
        let cluster = cluster().expect("it is there");
        cluster.run(&name(&self.url), tables);
        // What is remembered of sequences is of the past.
        *queue::lock(&self.store.shared.core.ledger) = ledger::Ledger::new(0);
    }

    fn outcomes(&self) -> &Outcomes {
        &self.outcomes
    }

    fn submit(&self, jobs: &mut Vec<Job>) {
        self.store.submit(jobs);
    }

    fn submitter(&self) -> Box<dyn Fn(&mut Vec<Job>) + Send> {
        let store = self.store.clone();
        Box::new(move |jobs| store.submit(jobs))
    }

    fn pending(&self) -> usize {
        self.store.pending()
    }

    fn close(&self) {
        self.store.close();
    }

    fn query(&self, filters: &[Filter], bounds: QueryBounds, ask: &Ask) -> Box<dyn TestQuery> {
        let mut query = Query::new(filters.into(), bounds);
        if let Some(viewer) = &ask.viewer {
            query = query.seen_by(viewer);
        }
        Box::new(Asked {
            reader: self.store.reader(),
            query: Some(query),
            done: false,
            budget: budget(ask),
        })
    }

    fn count(&self, filters: &[Filter], ask: &Ask) -> (u64, Option<Hll>) {
        let mut count = Count::new(filters.into());
        if let Some(viewer) = &ask.viewer {
            count = count.seen_by(viewer);
        }
        loop {
            let read = wait(self.store.reader().count(count, budget(ask)));
            let (counted, progress) = read.expect("a read");
            if progress == Progress::Done {
                return (counted.total(), counted.hll().cloned());
            }
            count = counted;
        }
    }

    fn sweep(&self, now: u64) {
        let core = self.store.shared.core.clone();
        let sweep = async move {
            while upkeep::sweep(&core, now).await?.more {}
            Ok(())
        };
        wait(self.store.shared.questioner.run(sweep)).expect("sweeps");
    }

    fn find(&self, id: &[u8; 32]) -> Option<Found> {
        let found = wait(self.store.reader().find(*id)).expect("reads");
        found.map(|(found, _)| found)
    }

    fn last_seq(&self) -> u64 {
        wait(self.store.reader().last_seq()).expect("reads")
    }

    fn export(&self, ask: &Ask) -> Vec<(u64, String)> {
        let (mut seen, mut after) = (Vec::new(), Some(0));
        while let Some(from) = after {
            let bytes = budget(ask).bytes_max;
            let slice = wait(self.store.reader().events_after(from, bytes, ask.now));
            let slice = slice.expect("a slice");
            let rows = slice.rows.iter().map(|row| row.json.to_owned());
            seen.extend(slice.seqs.iter().copied().zip(rows));
            after = slice.after;
        }
        seen
    }

    fn audit(&self) -> BTreeMap<u64, Event> {
        audit(&self.store)
    }

    fn edit(&self, keys: &[[u8; 32]], list: List, on: bool) -> Vec<bool> {
        wait(self.store.edit_access(keys.to_vec(), list, on)).expect("edits")
    }

    fn access(&self, key: &[u8; 32]) -> Access {
        wait(self.store.reader().access(*key)).expect("reads")
    }

    fn entries(&self, after: Option<&[u8; 32]>) -> Vec<([u8; 32], Access)> {
        wait(self.store.reader().access_list(after.copied(), 1_000)).expect("reads")
    }
}

/// A piece is so many notes of the smallest size.
fn budget(ask: &Ask) -> Budget {
    Budget {
        bytes_max: (ask.piece as usize).saturating_mul(420).min(1 << 20),
        now: ask.now,
        seq_min: 0,
    }
}

struct Asked {
    reader: Reader,
    query: Option<Query>,
    done: bool,
    budget: Budget,
}

impl TestQuery for Asked {
    fn next(&mut self) -> Result<Option<Vec<String>>, StoreError> {
        if self.done {
            return Ok(None);
        }
        let query = self.query.take().expect("no read has failed");
        let read = wait(self.reader.read(query, self.budget))?;
        self.done = read.progress == Progress::Done;
        self.query = Some(read.query);
        Ok(Some(
            read.rows.iter().map(|row| row.json.to_owned()).collect(),
        ))
    }

    fn watermark(&self) -> Option<u64> {
        self.query.as_ref().and_then(Query::watermark)
    }

    fn hint(&self) -> Option<EoseHint> {
        self.query.as_ref().and_then(Query::hint)
    }
}

/// Checks that the tables say the same. Returns the events by sequence.
fn audit(store: &Postgres) -> BTreeMap<u64, Event> {
    type Entry = (Half, i64, Half, i64, i32);
    let core = store.shared.core.clone();
    let read = async move {
        let lease = core.readers.get().await?;
        let all = "SELECT seq, id, half, pubkey, age, kind, address, expires, tags, json \
                   FROM buzz.events ORDER BY seq";
        let events = lease.ask(all, &[]).await?;
        let tags = "SELECT tag, age, half, seq, kind FROM buzz.tags";
        let tags = lease.ask(tags, &[]).await?;
        let head = lease.ask("SELECT seq FROM buzz.head", &[]).await?;
        Ok((events, tags, group::number(&head[0], 0)?))
    };
    let (rows, tags, head) = wait(store.shared.questioner.run(read)).expect("reads");
    let mut events = BTreeMap::new();
    let mut expected: BTreeSet<Entry> = BTreeSet::new();
    for row in rows {
        let json: Vec<u8> = row.get(9);
        let event = Event::parse(std::str::from_utf8(&json).expect("UTF-8")).expect("an event");
        let (seq, age, half): (i64, i64, Half) = (row.get(0), row.get(4), row.get(2));
        assert_eq!(row.get::<_, Vec<u8>>(1), event.id());
        assert_eq!(row.get::<_, Vec<u8>>(3), event.pubkey());
        assert_eq!(
            (age, half),
            (-(event.created_at() as i64), Half::of(event.id()))
        );
        assert_eq!(row.get::<_, i32>(5), i32::from(event.kind()));
        assert_eq!(row.get::<_, Option<Half>>(6), Half::address_of(&event));
        let expires = event.expiration().map(keys::signed);
        assert_eq!(row.get::<_, Option<i64>>(7), expires);
        let names: Vec<Half> = row.get(8);
        assert_eq!(names, Half::tags_of(&event));
        let kind = event.kind().into();
        expected.extend(names.into_iter().map(|tag| (tag, age, half, seq, kind)));
        events.insert(seq as u64, event);
    }
    let count = tags.len();
    let found = |row: tokio_postgres::Row| -> Entry {
        (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4))
    };
    let found: BTreeSet<Entry> = tags.into_iter().map(found).collect();
    assert_eq!(found.len(), count, "an entry twice");
    assert_eq!(found, expected);
    assert!(events.keys().next_back().is_none_or(|seq| *seq <= head));
    events
}

conformance!(Running);
