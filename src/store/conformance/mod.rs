//! What every store promises, as tests that are written once and run against each.
//!
//! A store takes part by implementing [`TestStore`]; [`conformance!`] makes the tests. Tests of how a
//! store keeps its bytes, and of its own troubles, are beside it.

pub(super) mod access;
pub(super) mod model;
pub(super) mod removal;
pub(super) mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::nostr::event::Event;
use crate::nostr::filter::Filter;
use crate::nostr::hll::Hll;
use crate::nostr::kind::Class;
use crate::nostr::message::EoseHint;
use crate::nostr::sealed::Viewer;
use crate::store::embedded::{Access, Found, List, QueryBounds};
use crate::store::{Arrived, CommitSink, Done, Job, Origin, Outcome, Removal, StoreError};

/// Longest wait for anything.
pub(super) const WAIT: Duration = Duration::from_secs(30);

/// Hands jobs in, from another thread.
pub(super) type Submitter = Box<dyn Fn(&mut Vec<Job>) + Send>;

/// A store under test: empty when opened, its writer running, nothing expiring unasked.
pub(super) trait TestStore: Sized {
    /// Random histories to run.
    const CASES: u32;

    /// A fresh one. `None`: it cannot be had here, which was said.
    fn open() -> Option<Self>;
    /// Makes it as good as fresh.
    fn empty(&mut self);
    /// Its ends of the sink.
    fn outcomes(&self) -> &Outcomes;
    /// Hands jobs to the writer.
    fn submit(&self, jobs: &mut Vec<Job>);
    /// The same, for another thread.
    fn submitter(&self) -> Submitter;
    /// Events handed in and not answered.
    fn pending(&self) -> usize;
    /// Ends the writer.
    fn close(&self);
    /// Begins a query.
    fn query(&self, filters: &[Filter], bounds: QueryBounds, ask: &Ask) -> Box<dyn TestQuery>;
    /// Counts.
    fn count(&self, filters: &[Filter], ask: &Ask) -> (u64, Option<Hll>);
    /// Removes what has expired.
    fn sweep(&self, now: u64);
    /// Looks an event up.
    fn find(&self, id: &[u8; 32]) -> Option<Found>;
    /// The last sequence.
    fn last_seq(&self) -> u64;
    /// Everything, in pieces.
    fn export(&self, ask: &Ask) -> Vec<(u64, String)>;
    /// Checks that tables and indexes say the same. Returns the events by sequence.
    fn audit(&self) -> BTreeMap<u64, Event>;
    /// Edits a list.
    fn edit(&self, keys: &[[u8; 32]], list: List, on: bool) -> Vec<bool>;
    /// Reads the lists' entry of a key.
    fn access(&self, key: &[u8; 32]) -> Access;
    /// All entries above a key.
    fn entries(&self, after: Option<&[u8; 32]>) -> Vec<([u8; 32], Access)>;
}

/// How a query or a count is asked.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// How much a piece may hold, in units of the store's own; at least one event is in it.
    pub piece: u32,
    /// See `Budget::now`.
    pub now: u64,
    /// Who asks.
    pub viewer: Option<Viewer>,
}

impl Ask {
    /// In pieces of such a size, of everything.
    pub fn piece(piece: u32) -> Ask {
        Ask {
            piece,
            now: 0,
            viewer: None,
        }
    }

    /// At a time.
    pub fn at(self, now: u64) -> Ask {
        Ask { now, ..self }
    }
}

/// A query under way.
pub(super) trait TestQuery {
    /// The next piece; `None` after the last one.
    fn next(&mut self) -> Result<Option<Vec<String>>, StoreError>;
    /// See `Query::watermark`.
    fn watermark(&self) -> Option<u64>;
    /// See `Query::hint`.
    fn hint(&self) -> Option<EoseHint>;
}

/// What a store's sink was told.
pub(super) struct Outcomes {
    done: Receiver<Done>,
    commits: Receiver<usize>,
    arrived: Receiver<Arrived>,
    banned: Receiver<[u8; 32]>,
    removed: Receiver<(Removal, usize)>,
}

/// A sink that passes all on.
pub(super) struct Sink {
    done: Sender<Done>,
    commits: Sender<usize>,
    arrived: Sender<Arrived>,
    banned: Sender<[u8; 32]>,
    removed: Sender<(Removal, usize)>,
}

pub(super) fn sink() -> (Sink, Outcomes) {
    let (done_sender, done) = channel();
    let (commits_sender, commits) = channel();
    let (arrived_sender, arrived) = channel();
    let (banned_sender, banned) = channel();
    let (removed_sender, removed) = channel();
    let sink = Sink {
        done: done_sender,
        commits: commits_sender,
        arrived: arrived_sender,
        banned: banned_sender,
        removed: removed_sender,
    };
    let outcomes = Outcomes {
        done,
        commits,
        arrived,
        banned,
        removed,
    };
    (sink, outcomes)
}

impl CommitSink for Sink {
    fn committed(&mut self, done: &mut Vec<Done>) {
        done.drain(..).for_each(|done| drop(self.done.send(done)));
    }

    fn commit_took(&mut self, _: Duration, events: usize) {
        let _ = self.commits.send(events);
    }

    fn removed(&mut self, why: Removal, events: usize) {
        let _ = self.removed.send((why, events));
    }

    fn arrived(&mut self, arrived: &mut Vec<Arrived>) {
        let each = arrived.drain(..);
        each.for_each(|arrived| drop(self.arrived.send(arrived)));
    }

    fn banned(&mut self, keys: Vec<[u8; 32]>) {
        for key in keys {
            let _ = self.banned.send(key);
        }
    }
}

impl Outcomes {
    /// The next outcome.
    pub fn done(&self) -> Done {
        self.done.recv_timeout(WAIT).expect("an outcome")
    }

    /// Outcomes that have come.
    pub fn all_done(&self) -> Vec<Done> {
        self.done.try_iter().collect()
    }

    /// Sizes of the commits that stored anything.
    pub fn commits(&self) -> Vec<usize> {
        self.commits.try_iter().collect()
    }

    /// Events removed, by commit and reason.
    pub fn removals(&self) -> Vec<(Removal, usize)> {
        self.removed.try_iter().collect()
    }

    /// The next event of another process.
    pub fn arrived(&self) -> Arrived {
        self.arrived.recv_timeout(WAIT).expect("an event")
    }

    /// Events of other processes that have come.
    pub fn all_arrived(&self) -> Vec<Arrived> {
        self.arrived.try_iter().collect()
    }

    /// The next key that was banned.
    pub fn banned(&self) -> [u8; 32] {
        self.banned.recv_timeout(WAIT).expect("a key")
    }
}

/// A job of one event.
pub(super) fn job(event: &Event, token: u64) -> Job {
    Job {
        event: Arc::new(event.clone()),
        origin: Origin { shard: 7, token },
    }
}

/// Hands events in at once, waits for their outcomes.
pub(super) fn put(store: &impl TestStore, events: &[Event]) -> Vec<Outcome> {
    let jobs = events.iter().enumerate();
    let mut jobs: Vec<Job> = jobs.map(|(n, event)| job(event, n as u64)).collect();
    store.submit(&mut jobs);
    assert!(jobs.is_empty());
    let outcome = |(n, event): (usize, &Event)| {
        let done = store.outcomes().done();
        assert_eq!(done.origin.token, n as u64, "outcomes come in order");
        assert_eq!(done.event.json(), event.json());
        done.outcome
    };
    events.iter().enumerate().map(outcome).collect()
}

pub(super) fn put_one(store: &impl TestStore, event: &Event) -> Outcome {
    put(store, std::slice::from_ref(event)).remove(0)
}

/// Runs a query to its end.
pub(super) fn answer(
    store: &impl TestStore,
    filters: &[Filter],
    bounds: QueryBounds,
    ask: &Ask,
) -> Vec<String> {
    let mut query = store.query(filters, bounds, ask);
    let mut events = Vec::new();
    for _ in 0..1_000_000 {
        match query.next().expect("a piece") {
            Some(piece) => events.extend(piece),
            None => return events,
        }
    }
    panic!("a query that does not end");
}

pub(super) const BOUNDS: QueryBounds = QueryBounds {
    limit_max: 1_000,
    limit_default: 500,
};

/// An event as a store sees one that has been checked: nobody looks at its signature again.
pub(super) fn event(
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
pub(super) fn note(number: u64, created_at: u64) -> Event {
    event(id(number), [1; 32], created_at, 1, &[], "note")
}

pub(super) fn id(number: u64) -> [u8; 32] {
    let mut id = [0xab; 32];
    id[..8].copy_from_slice(&number.to_be_bytes());
    id
}

/// What at most one event is kept of.
pub(super) fn address(event: &Event) -> Option<([u8; 32], u16, String)> {
    match event.class() {
        Class::Replaceable => Some((*event.pubkey(), event.kind(), String::new())),
        Class::Addressable => Some((*event.pubkey(), event.kind(), event.d_tag().to_owned())),
        Class::Regular | Class::Ephemeral => None,
    }
}

pub(super) fn seq(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Stored { seq } => *seq,
        other => panic!("not stored: {other:?}"),
    }
}

/// An outcome, in a word.
pub(super) fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Stored { .. } => "stored",
        Outcome::Duplicate => "duplicate",
        Outcome::Superseded => "superseded",
        Outcome::SignatureDiffers => "another signature",
        Outcome::Refused(_) => "refused",
        Outcome::Failed(error) => panic!("{error}"),
    }
}

/// The tests, for one store.
macro_rules! conformance {
    ($store:ty) => {
        mod conformance {
            use super::*;

            crate::store::conformance::conformance!($store:
                access::a_key_is_on_the_lists_it_was_put_on
                access::pages_of_entries_join
                model::the_store_is_a_list
                model::many_runs_are_merged_in_order
                model::what_an_earlier_filter_gave_counts_only_where_it_matches
                model::what_is_sealed_is_for_its_addressee
                removal::what_is_taken_back_is_gone
                removal::a_hint_looks_past_what_has_expired
                removal::one_group_may_hold_an_event_and_its_deletion
                removal::a_large_past_vanishes_in_steps_between_other_writes
                removal::closing_waits_until_a_request_to_vanish_is_followed
                removal::export_leaves_out_what_has_expired
                writes::outcomes_within_one_group_and_after
                writes::ephemeral_events_are_not_stored
                writes::the_newest_version_stays_and_of_one_second_the_lowest_id
                writes::addresses_differ_by_author_kind_and_d
                writes::a_burst_is_few_commits_and_outcomes_keep_their_order
                writes::closing_answers_what_was_taken_and_takes_no_more
                writes::export_reads_everything_in_order
                writes::pieces_keep_to_their_size
                writes::nothing_above_the_watermark_is_given
                writes::many_writers_get_one_order
            );
        }
    };
    ($store:ty: $($module:ident::$test:ident)*) => {
        $(
            #[test]
            fn $test() {
                if let Some(store) = <$store as crate::store::conformance::TestStore>::open() {
                    crate::store::conformance::$module::$test(store);
                }
            }
        )*
    };
}

pub(super) use conformance;
