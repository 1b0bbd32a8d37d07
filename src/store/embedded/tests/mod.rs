//! Tests of the whole embedded store. Here: what they share.

mod conforming;
mod copy;
mod damage;
mod export;
mod histories;
mod lone;
mod model;
mod open;
mod pool;
mod queries;
mod removal;
mod retention;
mod size;
mod trouble;
mod writes;
mod young;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tempfile::TempDir;

use super::layout::{self, Index, for_each_entry};
use super::young::Tree;
use super::*;
use crate::nostr::event::Event;
use crate::nostr::filter::Filter;
use crate::nostr::kind::Class;
use crate::store::{Done, Origin, Outcome};

const MAP_BYTES: usize = 64 << 20;
const WAIT: Duration = Duration::from_secs(30);

/// A folder for one test, in memory where there is such a place: thousands of commits, no disk.
fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a temporary folder")
}

fn options(dir: &std::path::Path) -> EmbeddedOptions {
    EmbeddedOptions {
        dir: dir.to_path_buf(),
        map_bytes: MAP_BYTES,
        readers_max: 16,
    }
}

/// Opens a store that this process may just have closed.
fn open_again(options: &EmbeddedOptions) -> Result<Embedded, OpenError> {
    when_free(
        || Embedded::open(options),
        |error| matches!(error, OpenError::Locked { .. }),
    )
}

/// Compacts a store that this process may just have closed.
fn compact(options: &EmbeddedOptions) -> Result<Compacted, CompactError> {
    when_free(
        || Embedded::compact(options, &mut |_, _| ()),
        |error| matches!(error, CompactError::Open(OpenError::Locked { .. })),
    )
}

/// Tries again while a folder is held: a child that another test starts has what this process has
/// open, a folder's lock with it, until it is another program.
fn when_free<T, E>(
    mut open: impl FnMut() -> Result<T, E>,
    is_held: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let end = std::time::Instant::now() + WAIT;
    loop {
        match open() {
            Err(error) if is_held(&error) && std::time::Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened,
        }
    }
}

/// A store with its writer running.
struct Running {
    store: Embedded,
    done: Receiver<Done>,
    /// Events of each commit that stored any.
    commits: Receiver<usize>,
}

struct Sink {
    done: Sender<Done>,
    commits: Sender<usize>,
}

impl CommitSink for Sink {
    fn committed(&mut self, done: &mut Vec<Done>) {
        done.drain(..).for_each(|done| drop(self.done.send(done)));
    }

    fn commit_took(&mut self, _: Duration, events: usize) {
        let _ = self.commits.send(events);
    }
}

impl Running {
    fn open(options: &EmbeddedOptions) -> Running {
        Running::start(open_again(options).expect("opens"))
    }

    /// By a clock that stands still before everything: nothing expires unasked.
    fn start(store: Embedded) -> Running {
        Running::start_at(store, || 0)
    }

    fn start_at(store: Embedded, clock: fn() -> u64) -> Running {
        // So that a handful of events is enough for layers to grow, to be sealed, and to leave.
        store.shared.tables.nursery.seal_at(256);
        let (done_sender, done) = channel();
        let (commits_sender, commits) = channel();
        let sink = Sink {
            done: done_sender,
            commits: commits_sender,
        };
        store.start_writer_at(sink, clock);
        Running {
            store,
            done,
            commits,
        }
    }

    /// Hands events in at once, waits for their outcomes.
    fn put(&self, events: &[Event]) -> Vec<Outcome> {
        let job = |(n, event): (usize, &Event)| Job {
            event: Arc::new(event.clone()),
            origin: Origin {
                shard: 7,
                token: n as u64,
            },
        };
        let mut jobs: Vec<Job> = events.iter().enumerate().map(job).collect();
        self.store.submit(&mut jobs);
        assert!(jobs.is_empty());
        let outcome = |(n, event): (usize, &Event)| {
            let done = self
                .done
                .recv_timeout(WAIT)
                .expect("an outcome for every event");
            assert_eq!(
                done.origin,
                Origin {
                    shard: 7,
                    token: n as u64
                },
                "outcomes come in order"
            );
            assert_eq!(done.event.json(), event.json());
            done.outcome
        };
        events.iter().enumerate().map(outcome).collect()
    }

    fn put_one(&self, event: &Event) -> Outcome {
        self.put(std::slice::from_ref(event)).remove(0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.store.close();
    }
}

/// An event as a store sees one that has been checked: nobody looks at its signature again.
fn event(
    id: [u8; 32],
    author: [u8; 32],
    created_at: u64,
    kind: u16,
    tags: &[&[&str]],
    content: &str,
) -> Event {
    let (id, author) = (const_hex::encode(id), const_hex::encode(author));
    let tags = serde_json::to_string(tags).expect("strings");
    let content = serde_json::to_string(content).expect("a string");
    let json = format!(
        r#"{{"id":"{id}","pubkey":"{author}","created_at":{created_at},"kind":{kind},"tags":{tags},"content":{content},"sig":"{}"}}"#,
        "5a".repeat(64)
    );
    Event::parse(&json).expect("an event")
}

/// A note whose id starts with a number.
fn note(number: u64, created_at: u64) -> Event {
    event(id(number), [1; 32], created_at, 1, &[], "note")
}

fn id(number: u64) -> [u8; 32] {
    let mut id = [0xab; 32];
    id[..8].copy_from_slice(&number.to_be_bytes());
    id
}

/// What at most one event is kept of.
fn address(event: &Event) -> Option<([u8; 32], u16, String)> {
    match event.class() {
        Class::Replaceable => Some((*event.pubkey(), event.kind(), String::new())),
        Class::Addressable => Some((*event.pubkey(), event.kind(), event.d_tag().to_owned())),
        Class::Regular | Class::Ephemeral => None,
    }
}

const BOUNDS: QueryBounds = QueryBounds {
    limit_max: 1_000,
    limit_default: 500,
};

fn budget(entries_max: u32) -> Budget {
    Budget {
        entries_max,
        bytes_max: usize::MAX,
        deadline: None,
        now: 0,
    }
}

/// Runs a query to its end, slice by slice.
fn answer(
    reader: &Reader,
    filters: &[Filter],
    bounds: QueryBounds,
    budget: &Budget,
) -> Vec<String> {
    let mut query = Query::new(Rc::<[Filter]>::from(filters), bounds);
    let mut events = Vec::new();
    for _ in 0..1_000_000 {
        let progress = query
            .slice(reader, budget, &mut |json| events.push(json.to_owned()))
            .expect("a slice");
        if progress == Progress::Done {
            return events;
        }
    }
    panic!("a query that does not end");
}

/// Writes all young entries.
fn settle(store: &Embedded) {
    let tables = &store.shared.tables;
    while !tables.nursery.is_empty() {
        upkeep::settle(tables, &mut apply::Scratch::default(), 100).expect("settles");
    }
}

/// Checks that the databases say the same: each event has exactly its entries, there or among the
/// young ones, and there are no others. Returns the events by sequence.
fn audit(store: &Embedded) -> BTreeMap<u64, Event> {
    let tables = &store.shared.tables;
    let indexed = tables.nursery.indexed();
    let young = tables.nursery.young();
    // Whether an entry is written; if not, it is young.
    let is_written = |written: Option<&[u8]>, tree, seq, key: &[u8], value: &[u8]| {
        let is_young = seq > indexed && young.get(tree, key) == Some(value);
        let is_written = written == Some(value);
        assert!(is_written || is_young, "{tree:?} of {seq}");
        is_written
    };
    let mut ids = 0;
    let txn = tables.env.read_txn().expect("a transaction");
    let mut events = BTreeMap::new();
    let mut entries = [0; 5];
    let last = tables.last_sequence(&txn).expect("the last sequence");
    let records = tables.events.iter(&txn).expect("events").map(|record| {
        let (key, record) = record.expect("a record");
        let event = Event::parse(layout::record_json(record).expect("JSON")).expect("an event");
        (layout::number(key), event)
    });
    let held = young.held.iter().filter(|(seq, _)| *seq > last);
    let held = held.map(|(seq, event)| (*seq, (**event).clone()));
    for (seq, event) in records.chain(held) {
        let (id, value) = (event.id(), layout::id_value(seq, &event));
        let written = tables.id.get(&txn, id).expect("reads");
        ids += u64::from(is_written(written, Tree::Id, seq, id, &value));
        let mut keys = std::collections::BTreeSet::new();
        for_each_entry(&event, seq, |index, key, value| {
            let written = tables.index(index).get(&txn, key).expect("reads");
            let is_written = is_written(written, Tree::of(index), seq, key, value);
            if is_written && keys.insert((index as u8, key.to_vec())) {
                entries[index as usize] += 1;
            }
            Ok::<_, StoreError>(())
        })
        .expect("entries");
        events.insert(seq, event);
    }
    let indexes = [
        Index::Time,
        Index::Kind,
        Index::Author,
        Index::AuthorKind,
        Index::Tag,
    ];
    for index in indexes {
        assert_eq!(
            tables.index(index).len(&txn).expect("a length"),
            entries[index as usize],
            "{index:?}"
        );
    }
    assert_eq!(tables.id.len(&txn).expect("a length"), ids);
    for address in tables.address.iter(&txn).expect("addresses") {
        let (seq, created_at, id) =
            layout::parse_address(address.expect("an address").1).expect("a version");
        let event = &events[&seq];
        assert_eq!((event.created_at(), *event.id()), (created_at, id));
    }
    let addressed = events.values().filter(|event| address(event).is_some());
    assert_eq!(
        tables.address.len(&txn).expect("a length"),
        addressed.count() as u64
    );
    let times = events
        .iter()
        .filter_map(|(seq, event)| Some((event.expiration()?, *seq)));
    let times: std::collections::BTreeSet<(u64, u64)> = times.collect();
    let expiry = tables.expiry.iter(&txn).expect("times");
    let expiry =
        expiry.map(|entry| layout::parse_expiry(entry.expect("a time").0).expect("a time"));
    assert!(expiry.eq(times), "expiry times");
    let last = last.max(young.last_seq);
    assert!(events.keys().next_back().is_none_or(|&seq| seq <= last));
    events
}
