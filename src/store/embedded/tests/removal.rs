//! Deletion, expiry and vanishing against a relay that is a list: random histories, and the cases
//! that chance does not meet.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::apply::{Group, Scratch};
use super::super::upkeep::{Share, expire};
use super::*;
use crate::limits::UPKEEP_STEPS_MAX;
use crate::nostr::hll::Hll;
use crate::nostr::kind::{DELETION, GIFT_WRAP, VANISH};
use crate::nostr::message::EoseHint;

/// A relay that is a list.
#[derive(Default)]
pub(super) struct Model {
    pub(super) events: Vec<Event>,
    /// Deletion requests ever taken in, but for those of a past that has vanished.
    requests: Vec<Event>,
    vanished: HashMap<[u8; 32], u64>,
}

fn values(event: &Event, name: &str) -> Vec<String> {
    let tags = event.tags().filter(|tag| tag.name() == name);
    tags.filter_map(|tag| Some(tag.value()?.into_owned()))
        .collect()
}

/// Whether a key may take an event back.
fn owns(key: &[u8; 32], event: &Event) -> bool {
    let addressed = || values(event, "p").contains(&const_hex::encode(key));
    key == event.pubkey() || event.kind() == GIFT_WRAP && addressed()
}

fn names(request: &Event, event: &Event) -> bool {
    let address =
        address(event).map(|(key, kind, d)| format!("{kind}:{}:{d}", const_hex::encode(key)));
    let may = owns(request.pubkey(), event) && ![DELETION, VANISH].contains(&event.kind());
    let by_id = values(request, "e").contains(&const_hex::encode(event.id()));
    let by_address = address.is_some_and(|address| values(request, "a").contains(&address));
    may && (by_id || by_address && event.created_at() <= request.created_at())
}

impl Model {
    /// What the store must say, in a word.
    pub(super) fn put(&mut self, event: &Event) -> &'static str {
        if self.events.iter().any(|known| known.id() == event.id()) {
            return "duplicate";
        }
        let barred = |(key, until): (&[u8; 32], &u64)| {
            owns(key, event)
                && (event.created_at() < *until
                    || event.created_at() == *until && event.kind() != VANISH)
        };
        if self.vanished.iter().any(barred)
            || self.requests.iter().any(|request| names(request, event))
        {
            return "refused";
        }
        let version = |event: &Event| (event.created_at(), std::cmp::Reverse(*event.id()));
        let same = |known: &Event| address(event).is_some() && address(known) == address(event);
        if let Some(at) = self.events.iter().position(same) {
            if version(&self.events[at]) > version(event) {
                return "superseded";
            }
            self.events.remove(at);
        }
        match event.kind() {
            VANISH => {
                let (key, until) = (event.pubkey(), event.created_at());
                self.vanished.insert(*key, until);
                self.events
                    .retain(|known| !owns(key, known) || known.created_at() > until);
                self.requests
                    .retain(|known| known.pubkey() != key || known.created_at() > until);
            }
            DELETION => {
                self.events.retain(|known| !names(event, known));
                self.requests.push(event.clone());
            }
            _ => {}
        }
        self.events.push(event.clone());
        "stored"
    }

    fn matching(&self, filter: &Filter, now: u64) -> Vec<&Event> {
        let lives = |event: &&Event| event.expiration().is_none_or(|expires| now < expires);
        let matching = self.events.iter().filter(|event| filter.matches(event));
        let mut events: Vec<&Event> = matching.filter(lives).collect();
        events.sort_by_key(|event| (std::cmp::Reverse(event.created_at()), *event.id()));
        events
    }
}

pub(super) fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Stored { .. } => "stored",
        Outcome::Duplicate => "duplicate",
        Outcome::Superseded => "superseded",
        Outcome::Refused(_) => "refused",
        other => panic!("{other:?}"),
    }
}

fn author(number: usize) -> [u8; 32] {
    [number as u8 + 1; 32]
}

#[derive(Clone, Debug)]
struct Draft {
    author: usize,
    at: u64,
    kind: usize,
    tags: Vec<(usize, usize)>,
    salt: u8,
}

const KINDS: [u16; 9] = [1, 5, 5, 62, 1_059, 1_059, 0, 30_023, 30_023];

/// Events that speak of each other: a tag's second number is a place in the pool.
fn pool() -> impl Strategy<Value = Vec<Event>> {
    let tags = prop::collection::vec((0..8usize, 0..30usize), 0..4);
    let draft = (0..3usize, 1..9u64, 0..KINDS.len(), tags, any::<u8>());
    let draft = draft.prop_map(|(author, at, kind, tags, salt)| Draft {
        author,
        at,
        kind,
        tags,
        salt,
    });
    prop::collection::vec(draft, 2..30).prop_map(|drafts| make(&drafts))
}

fn make(drafts: &[Draft]) -> Vec<Event> {
    let id = |n: usize| {
        let mut id = [drafts[n].salt; 32];
        id[1] = n as u8;
        id
    };
    let d = |n: usize| ["", "a", "b"][n % 3].to_owned();
    let build = |(n, draft): (usize, &Draft)| {
        let tag = |&(what, place): &(usize, usize)| {
            let place = place % drafts.len();
            let other = &drafts[place];
            let (name, value) = match what {
                0..=2 => ("e", const_hex::encode(id(place))),
                3 => {
                    let kind = KINDS[other.kind];
                    let d = if kind == 0 { String::new() } else { d(place) };
                    let key = const_hex::encode(author(other.author));
                    ("a", format!("{kind}:{key}:{d}"))
                }
                4 | 5 => ("p", const_hex::encode(author(other.author))),
                6 => ("t", "x".to_owned()),
                _ => ("expiration", (other.at + 3).to_string()),
            };
            [name.to_owned(), value]
        };
        let mut tags = vec![["d".to_owned(), d(n)]];
        tags.extend(draft.tags.iter().map(tag));
        let tags: Vec<[&str; 2]> = tags.iter().map(|[a, b]| [a.as_str(), b.as_str()]).collect();
        let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
        event(
            id(n),
            author(draft.author),
            draft.at,
            KINDS[draft.kind],
            &tags,
            "",
        )
    };
    drafts.iter().enumerate().map(build).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<usize>),
    Tick(u64),
    Sweep,
    Ask(usize, Option<u64>, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let slice = prop_oneof![1..4u32, Just(u32::MAX)];
    let step = prop_oneof![
        6 => prop::collection::vec(0..30usize, 1..8).prop_map(Step::Write),
        1 => (1..4u64).prop_map(Step::Tick),
        1 => Just(Step::Sweep),
        4 => (0..FILTERS, prop::option::of(0..4u64), slice)
            .prop_map(|(which, limit, slice)| Step::Ask(which, limit, slice)),
    ];
    prop::collection::vec(step, 4..40)
}

const FILTERS: usize = 9;

fn filter(which: usize, limit: Option<u64>, pool: &[Event]) -> Filter {
    let tag = |letter, value: &str| vec![(letter, vec![value.as_bytes().into()])];
    let any = Filter {
        limit,
        ..Filter::default()
    };
    match which {
        0 => any,
        1 => Filter {
            kinds: Some(vec![1, 1_059]),
            ..any
        },
        2 => Filter {
            kinds: Some(vec![5, 62]),
            ..any
        },
        3 => Filter {
            authors: Some(vec![author(0), author(2)]),
            ..any
        },
        4 => Filter {
            authors: Some(vec![author(1)]),
            kinds: Some(vec![0, 1, 30_023]),
            ..any
        },
        5 => Filter {
            tags: tag(b'p', &const_hex::encode(author(0))),
            ..any
        },
        6 => Filter {
            tags: tag(b't', "x"),
            ..any
        },
        7 => Filter {
            tags: tag(b'd', "a"),
            kinds: Some(vec![30_023]),
            ..any
        },
        _ => {
            let mut ids: Vec<[u8; 32]> = pool.iter().map(|event| *event.id()).collect();
            ids.sort();
            ids.dedup();
            Filter {
                ids: Some(ids),
                ..any
            }
        }
    }
}

fn ask(running: &Running, model: &Model, filter: &Filter, slice: u32, now: u64) {
    let reader = running.store.reader();
    let budget = Budget {
        now,
        ..budget(slice)
    };
    let filters = Rc::<[Filter]>::from(vec![filter.clone()]);
    let expected = model.matching(filter, now);
    let limit = filter.limit.map_or(expected.len(), |limit| limit as usize);
    let given: Vec<&str> = expected
        .iter()
        .take(limit)
        .map(|event| event.json())
        .collect();
    let mut query = Query::new(Rc::clone(&filters), BOUNDS);
    let mut answer = Vec::new();
    let mut sink = |json: &str| answer.push(json.to_owned());
    while query.slice(&reader, &budget, &mut sink).expect("a slice") == Progress::More {}
    assert_eq!(answer, given, "{filter:?} at {now}");
    let hint = match limit {
        0 if filter.limit == Some(0) => None,
        _ if given.len() == expected.len() => Some(EoseHint::Finish),
        _ => Some(EoseHint::More),
    };
    assert_eq!(query.hint(), hint, "{filter:?} at {now}");

    let mut count = Count::new(Rc::clone(&filters));
    while count.slice(&reader, &budget).expect("a slice") == Progress::More {}
    assert_eq!(count.total(), expected.len() as u64, "{filter:?} at {now}");
    let hll = Hll::of(&filters).map(|mut hll| {
        expected.iter().for_each(|event| hll.add(event.pubkey()));
        hll
    });
    assert_eq!(count.hll(), hll.as_ref());
}

fn run(pool: &[Event], steps: Vec<Step>) {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let mut model = Model::default();
    let mut now = 1;
    for step in steps {
        match step {
            Step::Write(places) => {
                let group: Vec<Event> = places
                    .iter()
                    .map(|n| pool[n % pool.len()].clone())
                    .collect();
                // A request to vanish is answered when all is gone: later than its neighbours.
                for group in group.chunk_by(|a, b| a.kind() != VANISH && b.kind() != VANISH) {
                    let expected: Vec<_> = group.iter().map(|event| model.put(event)).collect();
                    let outcomes: Vec<_> = running.put(group).iter().map(word).collect();
                    assert_eq!(outcomes, expected, "{group:?}");
                }
            }
            Step::Tick(by) => now += by,
            Step::Sweep => {
                sweep(&running, now);
                let lives = |event: &Event| event.expiration().is_none_or(|expires| now < expires);
                model.events.retain(lives);
            }
            Step::Ask(which, limit, slice) => {
                ask(&running, &model, &filter(which, limit, pool), slice, now);
            }
        }
    }
    let mut stored: Vec<Event> = audit(&running.store).into_values().collect();
    stored.sort_by_key(|event| *event.id());
    model.events.sort_by_key(|event| *event.id());
    assert_eq!(stored, model.events);
}

fn sweep(running: &Running, now: u64) {
    let tables = &running.store.shared.tables;
    while !expire(tables, &mut Scratch::default(), now, Share::part(0)).expect("sweeps") {}
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]
    #[test]
    fn what_is_taken_back_is_gone(pool in pool(), steps in steps()) {
        run(&pool, steps);
    }
}

fn request(number: u64, by: [u8; 32], at: u64, tags: &[&[&str]]) -> Event {
    event(id(number), by, at, DELETION, tags, "")
}

#[test]
fn one_group_may_hold_an_event_and_its_deletion() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let hex = const_hex::encode(id(1));
    let outcomes = running.put(&[
        note(1, 1),
        request(2, [1; 32], 5, &[&["e", &hex]]),
        note(1, 1),
        note(3, 3),
    ]);
    let words: Vec<&str> = outcomes.iter().map(word).collect();
    assert_eq!(words, ["stored", "stored", "refused", "stored"]);
    assert_eq!(audit(&running.store).len(), 2);
}

#[test]
fn a_large_past_vanishes_in_steps_between_other_writes() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let count = u64::from(UPKEEP_STEPS_MAX) * 2 + 100;
    let past: Vec<Event> = (0..count).map(|n| note(n, 10 + n % 5)).collect();
    running.put(&past);
    let vanish = event(id(count), [1; 32], 20, VANISH, &[], "");
    let late = event(id(count + 1), [2; 32], 5, 1, &[], "");
    // Both at once: the other one's event is answered first, for the removal takes several commits.
    let job = |event: &Event| Job {
        event: Arc::new(event.clone()),
        origin: Origin {
            shard: 7,
            token: event.kind().into(),
        },
    };
    running.store.submit(&mut vec![job(&vanish), job(&late)]);
    let first = running.done.recv_timeout(WAIT).expect("an outcome");
    let second = running.done.recv_timeout(WAIT).expect("an outcome");
    assert_eq!([word(&first.outcome), word(&second.outcome)], ["stored"; 2]);
    assert_eq!([first.event.kind(), second.event.kind()], [1, VANISH]);
    let left: Vec<Event> = audit(&running.store).into_values().collect();
    assert_eq!(left, [late, vanish.clone()]);
    // Counted out just after its answer.
    while running.store.pending() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(word(&running.put_one(&past[3])), "refused");
    assert_eq!(word(&running.put_one(&vanish)), "duplicate");
}

#[test]
fn closing_waits_until_a_request_to_vanish_is_followed() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let past: Vec<Event> = (0..3_000).map(|n| note(n, 1)).collect();
    running.put(&past);
    let vanish = event(id(9_999), [1; 32], 20, VANISH, &[], "");
    let origin = Origin { shard: 0, token: 0 };
    running.store.submit(&mut vec![Job {
        event: Arc::new(vanish),
        origin,
    }]);
    running.store.close();
    assert_eq!(
        word(&running.done.try_recv().expect("an answer").outcome),
        "stored"
    );
    assert_eq!(audit(&running.store).len(), 1);
}

#[test]
fn a_removal_cut_short_goes_on_at_the_next_start() {
    let dir = folder();
    let vanish = event(id(9), [1; 32], 20, VANISH, &[], "");
    {
        let running = Running::open(&options(dir.path()));
        running.put(&[note(1, 1), note(2, 30)]);
    }
    {
        let store = Embedded::open(&options(dir.path())).expect("opens");
        let mut scratch = Scratch::default();
        let mut group = Group::begin(&store.shared.tables, &mut scratch).expect("begins");
        assert!(group.add(&vanish).expect("adds").is_none());
        assert!(group.commit().expect("commits"));
    }
    let running = Running::open(&options(dir.path()));
    running.put_one(&event(id(3), [2; 32], 1, 1, &[], ""));
    let gone = || {
        running
            .store
            .reader()
            .find(&id(1))
            .expect("reads")
            .is_none()
    };
    while !gone() {
        std::thread::yield_now();
    }
    assert_eq!(audit(&running.store).len(), 2);
    // The request was not answered, so it comes again.
    assert_eq!(word(&running.put_one(&vanish)), "stored");
    assert_eq!(word(&running.put_one(&note(1, 1))), "refused");
}

#[test]
fn the_writer_sweeps_by_itself() {
    let dir = folder();
    let store = Embedded::open(&options(dir.path())).expect("opens");
    let running = Running::start_at(store, || 100);
    running.put(&[
        event(id(1), [1; 32], 1, 1, &[&["expiration", "100"]], ""),
        event(id(2), [1; 32], 1, 1, &[&["expiration", "101"]], ""),
    ]);
    let end = std::time::Instant::now() + WAIT;
    while running
        .store
        .reader()
        .find(&id(1))
        .expect("reads")
        .is_some()
    {
        assert!(std::time::Instant::now() < end, "not swept");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(audit(&running.store).len(), 1);
}

#[test]
fn export_leaves_out_what_has_expired() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let expiring = event(id(1), [1; 32], 1, 1, &[&["expiration", "100"]], "");
    running.put(&[expiring, note(2, 2)]);
    let export = |now| {
        let mut seqs = Vec::new();
        let budget = Budget { now, ..budget(9) };
        let reader = running.store.reader();
        let end = reader.events_after(0, &budget, &mut |seq, _| seqs.push(seq));
        assert_eq!(end, Ok(None));
        seqs
    };
    assert_eq!((export(99), export(100)), (vec![1, 2], vec![2]));
}

#[test]
fn a_store_of_schema_1_is_brought_up_to_date() {
    let dir = folder();
    let hex = const_hex::encode(id(3));
    let expiring = event(
        id(1),
        [1; 32],
        1,
        30_023,
        &[&["expiration", "50"], &["d", "x"]],
        "",
    );
    let deletion = request(2, [1; 32], 9, &[&["e", &hex]]);
    {
        let running = Running::open(&options(dir.path()));
        running.put(&[expiring.clone(), deletion]);
        // As schema 1 had it: no databases of ours, no mark in the sequences, no time before the JSON.
        let tables = &running.store.shared.tables;
        let mut txn = tables.env.write_txn().expect("a transaction");
        tables.deleted.clear(&mut txn).expect("clears");
        tables.expiry.clear(&mut txn).expect("clears");
        let record = [&[0], expiring.json().as_bytes()].concat();
        tables
            .events
            .put(&mut txn, &1u64.to_be_bytes(), &record)
            .expect("writes");
        let unmark = |value: &[u8]| [&1u64.to_be_bytes()[..], &value[8..]].concat();
        let value = unmark(&layout::id_value(1, &expiring));
        tables
            .id
            .put(&mut txn, expiring.id(), &value)
            .expect("writes");
        for_each_entry(&expiring, 1, |index, key, value| {
            tables.index(index).put(&mut txn, key, &unmark(value))
        })
        .expect("writes");
        tables
            .meta
            .put(&mut txn, layout::META_SCHEMA, &1u32.to_be_bytes())
            .expect("writes");
        txn.commit().expect("commits");
        assert_eq!(word(&running.put_one(&note(3, 3))), "stored");
    }
    let running = Running::open(&options(dir.path()));
    assert_eq!(audit(&running.store).len(), 2);
    assert_eq!(word(&running.put_one(&note(3, 3))), "refused");
    let all = [Filter::default()];
    let at = |now| {
        answer(
            &running.store.reader(),
            &all,
            BOUNDS,
            &Budget { now, ..budget(9) },
        )
        .len()
    };
    assert_eq!((at(49), at(50)), (2, 1));
    sweep(&running, 50);
    assert_eq!(audit(&running.store).len(), 1);
}
