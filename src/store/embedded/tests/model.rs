//! The store against a plain list: random histories, random filters, slices of every size, writes
//! between slices.

use proptest::prelude::*;

use super::*;
use crate::nostr::kind::Class;

/// A store that is a list.
#[derive(Default)]
struct Model {
    events: Vec<Event>,
}

#[derive(Debug, PartialEq)]
enum Expected {
    Stored,
    Duplicate,
    SignatureDiffers,
    Superseded,
    Refused,
}

impl Expected {
    fn of(outcome: &Outcome) -> Expected {
        match outcome {
            Outcome::Stored { .. } => Expected::Stored,
            Outcome::Duplicate => Expected::Duplicate,
            Outcome::SignatureDiffers => Expected::SignatureDiffers,
            Outcome::Superseded => Expected::Superseded,
            Outcome::Refused(_) => Expected::Refused,
            Outcome::Failed(error) => panic!("{error}"),
        }
    }
}

impl Model {
    fn put(&mut self, event: &Event) -> Expected {
        if let Some(known) = self.events.iter().find(|known| known.id() == event.id()) {
            return if known.sig() == event.sig() {
                Expected::Duplicate
            } else {
                Expected::SignatureDiffers
            };
        }
        if event.class() == Class::Ephemeral {
            return Expected::Refused;
        }
        if let Some(at) = self
            .events
            .iter()
            .position(|known| address(event).is_some() && address(known) == address(event))
        {
            let order = |event: &Event| (event.created_at(), std::cmp::Reverse(*event.id()));
            if order(&self.events[at]) > order(event) {
                return Expected::Superseded;
            }
            self.events.remove(at);
        }
        self.events.push(event.clone());
        Expected::Stored
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

fn write(running: &Running, model: &mut Model, group: &[Event]) {
    let expected: Vec<Expected> = group.iter().map(|event| model.put(event)).collect();
    let outcomes: Vec<Expected> = running.put(group).iter().map(Expected::of).collect();
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

fn run(pool: &[Event], steps: Vec<Step>) {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let reader = running.store.reader();
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
                write(
                    &running,
                    &mut model,
                    &places.iter().map(pick).collect::<Vec<_>>(),
                );
            }
            Step::Ask(filters, entries) => {
                let filters = resolve(filters, pool);
                let given = answer(&reader, &filters, bounds, &budget(entries));
                assert_eq!(given, model.answer(&filters, bounds), "{filters:?}");
                assert_eq!(
                    count(&reader, &filters, &budget(entries)),
                    model.count(&filters),
                    "{filters:?}"
                );
            }
            Step::AskWhile(filters, entries, writes) => {
                let filters = resolve(filters, pool);
                let before = Model {
                    events: model.events.clone(),
                };
                let mut query = Query::new(Rc::<[Filter]>::from(&filters[..]), bounds);
                let mut given = Vec::new();
                let mut writes = writes.into_iter();
                while query
                    .slice(&reader, &budget(entries), &mut |json| {
                        given.push(json.to_owned())
                    })
                    .unwrap()
                    == Progress::More
                {
                    let places = writes.next().unwrap_or_default();
                    let group: Vec<Event> = places
                        .iter()
                        .map(|place| pool[place % pool.len()].clone())
                        .collect();
                    write(&running, &mut model, &group);
                }
                check_under_way(&before, &model, &filters[0], bounds, &given);
            }
        }
    }
    let mut stored: Vec<Event> = audit(&running.store).into_values().collect();
    stored.sort_by_key(|event| *event.id());
    model.events.sort_by_key(|event| *event.id());
    assert_eq!(stored, model.events);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]
    #[test]
    fn the_store_is_a_list(pool in events(), steps in steps()) {
        run(&pool, steps);
    }
}

#[test]
fn many_runs_are_merged_in_order() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let mut model = Model::default();
    let pool: Vec<Event> = (0..600u64)
        .map(|n| {
            let author = [(n * 7 % 97) as u8; 32];
            event(
                id(n * 7_919 % 1_000),
                author,
                n * 31 % 200,
                [1, 6, 7][n as usize % 3],
                &[],
                "x",
            )
        })
        .collect();
    write(&running, &mut model, &pool);
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
        for entries in [1, 100, u32::MAX] {
            let given = answer(&running.store.reader(), &filters, BOUNDS, &budget(entries));
            assert_eq!(given, model.answer(&filters, BOUNDS));
        }
    }
}

#[test]
fn two_ids_alike_in_sixteen_bytes_do_not_remove_each_other() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let twin = |last, time, kind| {
        let mut id = [3; 32];
        id[31] = last;
        event(id, [1; 32], time, kind, &[&["t", "x"]], "")
    };
    // One second, one author, one kind: they share every key. The later one has the entries.
    running.put(&[twin(2, 5, 10_000)]);
    running.put(&[twin(1, 5, 10_000)]);
    assert_eq!(audit(&running.store).len(), 1);
    let filters = [Filter {
        kinds: Some(vec![10_000]),
        ..Filter::default()
    }];
    let given = answer(&running.store.reader(), &filters, BOUNDS, &budget(9));
    assert_eq!(given, [twin(1, 5, 10_000).json()]);
}

#[test]
fn what_an_earlier_filter_gave_counts_only_where_it_matches() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let tagged = event(id(1), [1; 32], 1, 1, &[&["t", "x"]], "");
    running.put(&[tagged.clone(), event(id(2), [1; 32], 2, 1, &[], "")]);
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
    let given = answer(
        &running.store.reader(),
        &[newest, by_author],
        BOUNDS,
        &budget(9),
    );
    assert_eq!(given.last().map(String::as_str), Some(tagged.json()));
}
