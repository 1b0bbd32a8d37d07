//! The store against a plain list: random histories, random filters, slices of every size, writes
//! between slices.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::nostr::kind::GIFT_WRAP;

/// A store that is a list.
#[derive(Default)]
struct Model {
    events: Vec<Event>,
}

impl Model {
    fn put(&mut self, event: &Event) -> &'static str {
        if let Some(known) = self.events.iter().find(|known| known.id() == event.id()) {
            return if known.sig() == event.sig() {
                "duplicate"
            } else {
                "another signature"
            };
        }
        if event.class() == Class::Ephemeral {
            return "refused";
        }
        if let Some(at) = self
            .events
            .iter()
            .position(|known| address(event).is_some() && address(known) == address(event))
        {
            let order = |event: &Event| (event.created_at(), std::cmp::Reverse(*event.id()));
            if order(&self.events[at]) > order(event) {
                return "superseded";
            }
            self.events.remove(at);
        }
        self.events.push(event.clone());
        "stored"
    }

    /// All that a filter matches, in the order of answers.
    fn matching(&self, filter: &Filter) -> Vec<&Event> {
        let mut events: Vec<&Event> = self
            .events
            .iter()
            .filter(|event| filter.matches(event))
            .collect();
        events.sort_by_key(|event| (std::cmp::Reverse(event.created_at()), *event.id()));
        events
    }

    fn answer(&self, filters: &[Filter], bounds: QueryBounds) -> Vec<String> {
        let mut answer: Vec<String> = Vec::new();
        for filter in filters {
            for event in self
                .matching(filter)
                .into_iter()
                .take(limit(filter, bounds))
            {
                if !answer.iter().any(|json| json == event.json()) {
                    answer.push(event.json().to_owned());
                }
            }
        }
        answer
    }

    fn count(&self, filters: &[Filter]) -> u64 {
        self.events
            .iter()
            .filter(|event| filters.iter().any(|filter| filter.matches(event)))
            .count() as u64
    }
}

fn limit(filter: &Filter, bounds: QueryBounds) -> usize {
    filter
        .limit
        .map_or(bounds.limit_default, |limit| limit as usize)
        .min(bounds.limit_max)
}

const LONG: &str =
    "a value that is too long to be a key as it is, so that the index holds its hash";
const HEX: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const VALUES: [&str; 8] = [
    "",
    "a",
    "aa",
    HEX,
    "00112233445566778899AABBCCDDEEFF00112233445566778899AABBCCDDEEFF",
    LONG,
    "\n\"\\ü\u{1}",
    "0x112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
];
const LETTERS: [&str; 5] = ["d", "e", "t", "p", "T"];
const KINDS: [u16; 7] = [0, 1, 7, 10_002, 20_001, 30_023, 30_024];

fn author(number: u8) -> [u8; 32] {
    // The first two agree in the bytes that an index entry keeps.
    let mut author = [number / 2; 32];
    author[31] = number;
    author
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let tags = prop::collection::vec((0..LETTERS.len(), 0..VALUES.len()), 0..4);
    let parts = (0..4u8, 0..8u64, 0..KINDS.len(), tags, any::<u16>());
    type Parts = (u8, u64, usize, Vec<(usize, usize)>, u16);
    prop::collection::vec(parts, 1..40).prop_map(|parts| {
        let event = |(n, (by, at, kind, tags, salt)): (usize, Parts)| {
            let mut id = [0; 32];
            id[..2].copy_from_slice(&salt.to_be_bytes());
            id[2] = n as u8;
            let tags: Vec<[&str; 2]> = tags
                .iter()
                .map(|&(letter, value)| [LETTERS[letter], VALUES[value]])
                .collect();
            let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
            event(id, author(by), at, KINDS[kind], &tags, "content")
        };
        parts.into_iter().enumerate().map(event).collect()
    })
}

/// A filter; ids are places in the pool of events.
fn filters(max: usize) -> impl Strategy<Value = Vec<(Filter, Vec<usize>)>> {
    let rarely = |weight, strategy| prop::option::weighted(weight, strategy);
    let filter = (
        rarely(0.15, prop::collection::btree_set(0..45usize, 0..8)),
        prop::option::weighted(0.4, prop::collection::btree_set(0..5u8, 1..4)),
        prop::option::weighted(0.4, prop::collection::btree_set(0..KINDS.len(), 1..4)),
        prop::collection::btree_map(
            0..LETTERS.len(),
            prop::collection::btree_set(0..VALUES.len(), 1..4),
            0..3,
        ),
        prop::option::weighted(0.2, 0..9u64),
        prop::option::weighted(0.2, 0..9u64),
        prop::option::weighted(0.5, 0..12u64),
    );
    prop::collection::vec(filter, 1..=max).prop_map(|filters| {
        let filter = |(ids, authors, kinds, tags, since, until, limit)| {
            let ids: Option<std::collections::BTreeSet<usize>> = ids;
            let authors: Option<std::collections::BTreeSet<u8>> = authors;
            let kinds: Option<std::collections::BTreeSet<usize>> = kinds;
            let tags: BTreeMap<usize, std::collections::BTreeSet<usize>> = tags;
            let mut tags: Vec<(u8, Vec<Box<[u8]>>)> = tags
                .into_iter()
                .map(|(letter, values)| {
                    let mut values: Vec<Box<[u8]>> = values
                        .into_iter()
                        .map(|n| VALUES[n].as_bytes().into())
                        .collect();
                    values.sort();
                    (LETTERS[letter].as_bytes()[0], values)
                })
                .collect();
            tags.sort();
            let filter = Filter {
                ids: ids.is_some().then(Vec::new),
                authors: authors.map(|authors| authors.into_iter().map(author).collect()),
                kinds: kinds.map(|kinds| kinds.into_iter().map(|n| KINDS[n]).collect()),
                tags,
                since,
                until,
                limit,
            };
            (filter, ids.unwrap_or_default().into_iter().collect())
        };
        filters.into_iter().map(filter).collect()
    })
}

/// Puts the ids of events into filters. A place beyond the pool is an id that nobody has.
fn resolve(filters: Vec<(Filter, Vec<usize>)>, pool: &[Event]) -> Vec<Filter> {
    let resolve = |(mut filter, places): (Filter, Vec<usize>)| {
        if let Some(ids) = &mut filter.ids {
            *ids = places
                .iter()
                .map(|&place| pool.get(place).map_or([9; 32], |event| *event.id()))
                .collect();
            ids.sort();
            ids.dedup();
        }
        filter
    };
    filters.into_iter().map(resolve).collect()
}

#[derive(Clone, Debug)]
enum Step {
    /// Events of the pool to write in one group; true: with another signature.
    Write(Vec<(usize, bool)>),
    /// A query of several filters, with nothing going on beside it.
    Ask(Vec<(Filter, Vec<usize>)>, u32),
    /// A query of one filter, with a group of events written before each further slice.
    AskWhile(Vec<(Filter, Vec<usize>)>, u32, Vec<Vec<usize>>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let group = prop::collection::vec((0..40usize, prop::bool::weighted(0.05)), 1..12);
    let slice = prop_oneof![1..4u32, 4..40u32, Just(u32::MAX)];
    let writes = prop::collection::vec(prop::collection::vec(0..40usize, 1..4), 0..4);
    let step = prop_oneof![
        3 => group.prop_map(Step::Write),
        4 => (filters(4), slice.clone()).prop_map(|(filters, entries)| Step::Ask(filters, entries)),
        2 => (filters(1), slice, writes)
            .prop_map(|(filters, entries, writes)| Step::AskWhile(filters, entries, writes)),
    ];
    prop::collection::vec(step, 4..24)
}

fn write(store: &impl TestStore, model: &mut Model, group: &[Event]) {
    let expected: Vec<&str> = group.iter().map(|event| model.put(event)).collect();
    let outcomes: Vec<&str> = put(store, group).iter().map(word).collect();
    assert_eq!(outcomes, expected);
}

/// With events removed under way, an answer is the model's at the watermark without some of those.
fn check_under_way(
    model: &Model,
    now: &Model,
    filter: &Filter,
    bounds: QueryBounds,
    given: &[String],
) {
    let mut given = given.iter().peekable();
    let mut left = limit(filter, bounds);
    for event in model.matching(filter) {
        if left == 0 {
            break;
        }
        if given.next_if(|json| *json == event.json()).is_some() {
            left -= 1;
        } else {
            assert!(!now.events.contains(event), "missing: {event:?}");
        }
    }
    assert_eq!(given.next(), None, "an event too many, or out of order");
}

fn run(store: &impl TestStore, pool: &[Event], steps: Vec<Step>) {
    let mut model = Model::default();
    let bounds = QueryBounds {
        limit_max: 10,
        limit_default: 7,
    };
    for step in steps {
        match step {
            Step::Write(places) => {
                let pick = |&(place, forged): &(usize, bool)| {
                    let event = &pool[place % pool.len()];
                    let json = event.json();
                    if forged {
                        Event::parse(&json.replace("5a5a5a5a", "6b6b6b6b")).unwrap()
                    } else {
                        event.clone()
                    }
                };
                let group: Vec<Event> = places.iter().map(pick).collect();
                write(store, &mut model, &group);
            }
            Step::Ask(filters, piece) => {
                let filters = resolve(filters, pool);
                let ask = Ask::piece(piece);
                let given = answer(store, &filters, bounds, &ask);
                assert_eq!(given, model.answer(&filters, bounds), "{filters:?}");
                let (count, _) = store.count(&filters, &ask);
                assert_eq!(count, model.count(&filters), "{filters:?}");
            }
            Step::AskWhile(filters, piece, writes) => {
                let filters = resolve(filters, pool);
                let before = Model {
                    events: model.events.clone(),
                };
                let mut query = store.query(&filters, bounds, &Ask::piece(piece));
                let mut given = Vec::new();
                let mut writes = writes.into_iter();
                while let Some(piece) = query.next().expect("a piece") {
                    given.extend(piece);
                    let places = writes.next().unwrap_or_default();
                    let group: Vec<Event> = places
                        .iter()
                        .map(|place| pool[place % pool.len()].clone())
                        .collect();
                    write(store, &mut model, &group);
                }
                check_under_way(&before, &model, &filters[0], bounds, &given);
            }
        }
    }
    let mut stored: Vec<Event> = store.audit().into_values().collect();
    stored.sort_by_key(|event| *event.id());
    model.events.sort_by_key(|event| *event.id());
    assert_eq!(stored, model.events);
}

/// Runs random cases, each on a fresh store.
pub fn random<S: TestStore, T: std::fmt::Debug>(
    first: S,
    strategy: impl Strategy<Value = T>,
    mut run: impl FnMut(&S, T),
) {
    let config = Config {
        cases: S::CASES,
        failure_persistence: None,
        ..Config::default()
    };
    let store = std::cell::RefCell::new(first);
    let run = std::cell::RefCell::new(&mut run);
    let ran = TestRunner::new(config).run(&strategy, |case| {
        let mut store = store.borrow_mut();
        store.empty();
        (run.borrow_mut())(&store, case);
        Ok(())
    });
    if let Err(error) = ran {
        panic!("{error}");
    }
}

pub fn the_store_is_a_list<S: TestStore>(store: S) {
    random(store, (events(), steps()), |store, (pool, steps)| {
        run(store, &pool, steps);
    });
}

pub fn many_runs_are_merged_in_order(store: impl TestStore) {
    let mut model = Model::default();
    let pool: Vec<Event> = (0..600u64)
        .map(|n| {
            let author = [(n * 7 % 97) as u8; 32];
            let kind = [1, 6, 7][n as usize % 3];
            event(id(n * 7_919 % 1_000), author, n * 31 % 200, kind, &[], "x")
        })
        .collect();
    write(&store, &mut model, &pool);
    let authors: Vec<[u8; 32]> = (0..97).map(|n| [n; 32]).collect();
    let filter = Filter {
        authors: Some(authors),
        kinds: Some(vec![1, 7]),
        ..Filter::default()
    };
    for limit in [1, 50, 1_000] {
        let filters = [Filter {
            limit: Some(limit),
            ..filter.clone()
        }];
        for piece in [1, 100, u32::MAX] {
            let given = answer(&store, &filters, BOUNDS, &Ask::piece(piece));
            assert_eq!(given, model.answer(&filters, BOUNDS));
        }
    }
}

pub fn what_an_earlier_filter_gave_counts_only_where_it_matches(store: impl TestStore) {
    let tagged = event(id(1), [1; 32], 1, 1, &[&["t", "x"]], "");
    put(
        &store,
        &[tagged.clone(), event(id(2), [1; 32], 2, 1, &[], "")],
    );
    let newest = Filter {
        limit: Some(1),
        ..Filter::default()
    };
    let by_author = Filter {
        authors: Some(vec![[1; 32]]),
        tags: vec![(b't', vec![b"x"[..].into()])],
        limit: Some(1),
        ..Filter::default()
    };
    // The walk over the author's events meets the untagged one, already given, first.
    let given = answer(&store, &[newest, by_author], BOUNDS, &Ask::piece(9));
    assert_eq!(given.last().map(String::as_str), Some(tagged.json()));
}

pub fn what_is_sealed_is_for_its_addressee(store: impl TestStore) {
    let hex = |key: [u8; 32]| const_hex::encode(key);
    let (ann, bob) = (hex([1; 32]), hex([2; 32]));
    let events = [
        event(id(1), [9; 32], 1, GIFT_WRAP, &[&["p", &ann]], ""),
        event(id(2), [9; 32], 2, GIFT_WRAP, &[&["p", &bob]], ""),
        event(
            id(3),
            [9; 32],
            3,
            GIFT_WRAP,
            &[&["p", &ann], &["p", &bob]],
            "",
        ),
        event(id(4), [9; 32], 4, 1, &[&["p", &bob]], ""),
    ];
    put(&store, &events);
    let filters = [
        Filter::default(),
        Filter {
            kinds: Some(vec![GIFT_WRAP]),
            limit: Some(1),
            ..Filter::default()
        },
        Filter {
            tags: vec![(b'p', vec![bob.as_bytes().into()])],
            ..Filter::default()
        },
    ];
    type Sees<'a> = (&'a [[u8; 32]], [&'a [usize]; 3]);
    let viewers: [Sees<'_>; 3] = [
        (&[], [&[4], &[], &[4]]),
        (&[[1; 32]], [&[4, 3, 1], &[3], &[4, 3]]),
        (&[[1; 32], [2; 32]], [&[4, 3, 2, 1], &[3], &[4, 3, 2]]),
    ];
    for (keys, expected) in viewers {
        for (filter, expected) in filters.iter().zip(expected) {
            let ask = Ask {
                viewer: Some(Viewer::new(keys)),
                ..Ask::piece(2)
            };
            let filter = std::slice::from_ref(filter);
            let given = answer(&store, filter, BOUNDS, &ask);
            let expected: Vec<&str> = expected.iter().map(|n| events[n - 1].json()).collect();
            assert_eq!(given, expected, "{keys:?}");
            if filter[0].limit.is_none() {
                let (count, _) = store.count(filter, &ask);
                assert_eq!(count, expected.len() as u64, "{keys:?}");
            }
        }
    }
}
