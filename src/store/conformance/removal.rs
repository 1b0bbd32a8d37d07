//! Deletion, expiry and vanishing against a relay that is a list: random histories, and the cases
//! that chance does not meet.

use std::collections::HashMap;

use proptest::prelude::*;

use super::model::random;
use super::*;
use crate::limits::UPKEEP_STEPS_MAX;
use crate::nostr::kind::{DELETION, GIFT_WRAP, VANISH};

/// A relay that is a list.
#[derive(Default)]
struct Model {
    events: Vec<Event>,
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
    fn put(&mut self, event: &Event) -> &'static str {
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

fn ask(store: &impl TestStore, model: &Model, filter: &Filter, ask: &Ask) {
    let expected = model.matching(filter, ask.now);
    let limit = filter.limit.map_or(expected.len(), |limit| limit as usize);
    let given: Vec<&str> = expected
        .iter()
        .take(limit)
        .map(|event| event.json())
        .collect();
    let filters = std::slice::from_ref(filter);
    let mut query = store.query(filters, BOUNDS, ask);
    let mut answer = Vec::new();
    while let Some(piece) = query.next().expect("a piece") {
        answer.extend(piece);
    }
    assert_eq!(answer, given, "{filter:?} {ask:?}");
    let hint = match limit {
        0 if filter.limit == Some(0) => None,
        _ if given.len() == expected.len() => Some(EoseHint::Finish),
        _ => Some(EoseHint::More),
    };
    assert_eq!(query.hint(), hint, "{filter:?} {ask:?}");

    let (count, hll) = store.count(filters, ask);
    assert_eq!(count, expected.len() as u64, "{filter:?} {ask:?}");
    let expected = Hll::of(filters).map(|mut hll| {
        expected.iter().for_each(|event| hll.add(event.pubkey()));
        hll
    });
    assert_eq!(hll, expected);
}

fn run(store: &impl TestStore, pool: &[Event], steps: Vec<Step>) {
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
                    let outcomes: Vec<_> = put(store, group).iter().map(word).collect();
                    assert_eq!(outcomes, expected, "{group:?}");
                }
            }
            Step::Tick(by) => now += by,
            Step::Sweep => {
                store.sweep(now);
                let lives = |event: &Event| event.expiration().is_none_or(|expires| now < expires);
                model.events.retain(lives);
            }
            Step::Ask(which, limit, piece) => {
                let filter = filter(which, limit, pool);
                ask(store, &model, &filter, &Ask::piece(piece).at(now));
            }
        }
    }
    let mut stored: Vec<Event> = store.audit().into_values().collect();
    stored.sort_by_key(|event| *event.id());
    model.events.sort_by_key(|event| *event.id());
    assert_eq!(stored, model.events);
}

pub fn what_is_taken_back_is_gone<S: TestStore>(store: S) {
    random(store, (pool(), steps()), |store, (pool, steps)| {
        run(store, &pool, steps);
    });
}

pub fn a_hint_looks_past_what_has_expired(store: impl TestStore) {
    let expiring = |n| event(id(n), [1; 32], n, 1, &[&["expiration", "9"]], "");
    let mut pool: Vec<Event> = (1..=8).map(expiring).collect();
    pool.push(note(10, 10));
    let mut model = Model::default();
    for event in &pool {
        model.put(event);
    }
    put(&store, &pool);
    let newest = Filter {
        limit: Some(1),
        ..Filter::default()
    };
    // Nothing but the newest is left, and before that there is more.
    for now in [9, 1] {
        ask(&store, &model, &newest, &Ask::piece(1).at(now));
    }
}

fn request(number: u64, by: [u8; 32], at: u64, tags: &[&[&str]]) -> Event {
    event(id(number), by, at, DELETION, tags, "")
}

pub fn one_group_may_hold_an_event_and_its_deletion(store: impl TestStore) {
    let hex = const_hex::encode(id(1));
    let group = [
        note(1, 1),
        request(2, [1; 32], 5, &[&["e", &hex]]),
        note(1, 1),
        note(3, 3),
    ];
    let outcomes = put(&store, &group);
    let words: Vec<&str> = outcomes.iter().map(word).collect();
    assert_eq!(words, ["stored", "stored", "refused", "stored"]);
    assert_eq!(store.audit().len(), 2);
}

pub fn a_large_past_vanishes_in_steps_between_other_writes(store: impl TestStore) {
    let count = u64::from(UPKEEP_STEPS_MAX) * 2 + 100;
    let past: Vec<Event> = (0..count).map(|n| note(n, 10 + n % 5)).collect();
    put(&store, &past);
    let vanish = event(id(count), [1; 32], 20, VANISH, &[], "");
    let late = event(id(count + 1), [2; 32], 5, 1, &[], "");
    // Both at once: the other one's event is answered first, for the removal takes several commits.
    store.submit(&mut vec![job(&vanish, 0), job(&late, 1)]);
    let (first, second) = (store.outcomes().done(), store.outcomes().done());
    assert_eq!([word(&first.outcome), word(&second.outcome)], ["stored"; 2]);
    assert_eq!([first.event.kind(), second.event.kind()], [1, VANISH]);
    let left: Vec<Event> = store.audit().into_values().collect();
    assert_eq!(left, [late, vanish.clone()]);
    // Counted out just after its answer.
    while store.pending() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(word(&put_one(&store, &past[3])), "refused");
    assert_eq!(word(&put_one(&store, &vanish)), "duplicate");
}

pub fn closing_waits_until_a_request_to_vanish_is_followed(store: impl TestStore) {
    let past: Vec<Event> = (0..3_000).map(|n| note(n, 1)).collect();
    put(&store, &past);
    let vanish = event(id(9_999), [1; 32], 20, VANISH, &[], "");
    store.submit(&mut vec![job(&vanish, 0)]);
    store.close();
    let done = store.outcomes().all_done();
    assert_eq!(done.len(), 1);
    assert_eq!(word(&done[0].outcome), "stored");
    assert_eq!(store.audit().len(), 1);
}

pub fn export_leaves_out_what_has_expired(store: impl TestStore) {
    let expiring = event(id(1), [1; 32], 1, 1, &[&["expiration", "100"]], "");
    put(&store, &[expiring, note(2, 2)]);
    let export = |now| {
        let seen = store.export(&Ask::piece(9).at(now));
        seen.into_iter().map(|(seq, _)| seq).collect::<Vec<u64>>()
    };
    assert_eq!((export(99), export(100)), (vec![1, 2], vec![2]));
}
