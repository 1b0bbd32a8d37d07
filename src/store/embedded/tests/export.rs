//! Exports against a dumb choice from all events, quiet and during writes.

use std::collections::{BTreeSet, HashSet};

use proptest::prelude::*;

use super::*;

/// Runs an export to its end; calls `between` after each slice.
fn export(
    reader: &Reader,
    filters: &[Filter],
    budget: &Budget,
    mut between: impl FnMut(usize),
) -> Vec<Event> {
    let mut export = Export::new(filters.to_vec());
    let mut events = Vec::new();
    for slice in 0..1_000_000 {
        let each = &mut |json: &str| events.push(Event::parse(json).expect("an event"));
        let progress = export.slice(reader, budget, each).expect("a slice");
        if progress == Progress::Done {
            return events;
        }
        between(slice);
    }
    panic!("an export that does not end");
}

fn ids(events: &[Event]) -> Vec<[u8; 32]> {
    events.iter().map(|event| *event.id()).collect()
}

/// Everything that filters without a limit want, and the newest that each of the others does.
fn dumb(stored: &BTreeMap<u64, Event>, filters: &[Filter]) -> BTreeSet<[u8; 32]> {
    let mut wanted = BTreeSet::new();
    for filter in filters {
        let mut matching: Vec<&Event> = stored.values().filter(|e| filter.matches(e)).collect();
        matching.sort_by_key(|event| (!event.created_at(), *event.id()));
        let limit = filter.limit.map_or(usize::MAX, |limit| limit as usize);
        wanted.extend(matching.iter().take(limit).map(|event| *event.id()));
    }
    wanted
}

fn filter(kind: Option<u16>, author: Option<u8>, since: Option<u64>, limit: Option<u64>) -> Filter {
    Filter {
        kinds: kind.map(|kind| vec![kind]),
        authors: author.map(|author| vec![[author; 32]]),
        since,
        limit,
        ..Filter::default()
    }
}

fn filters() -> impl Strategy<Value = Vec<Filter>> {
    let one = (
        proptest::option::of(0..4u16),
        proptest::option::of(0..3u8),
        proptest::option::of(0..10u64),
        proptest::option::of(0..12u64),
    );
    proptest::collection::vec(one.prop_map(|(k, a, s, l)| filter(k, a, s, l)), 0..5)
}

/// Kind, author, time.
fn history(length: usize) -> impl Strategy<Value = Vec<(u16, u8, u64)>> {
    proptest::collection::vec((0..4u16, 0..3u8, 0..12u64), 0..length)
}

fn events(history: &[(u16, u8, u64)], first: u64) -> Vec<Event> {
    let one = |(n, (kind, author, at)): (usize, &(u16, u8, u64))| {
        let id = id((first + n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        event(id, [*author; 32], *at, *kind, &[], "")
    };
    history.iter().enumerate().map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_quiet_store_gives_what_is_wanted_once(
        history in history(60), filters in filters(), entries in 1..20u32,
    ) {
        let dir = folder();
        let running = Running::open(&options(dir.path()));
        running.put(&events(&history, 0));
        let stored = audit(&running.store);
        let found = export(&running.store.reader(), &filters, &budget(entries), |_| {});
        if filters.is_empty() {
            let all: Vec<Event> = stored.values().cloned().collect();
            prop_assert_eq!(ids(&found), ids(&all), "in the order of commits");
        } else {
            let expected: Vec<_> = dumb(&stored, &filters).into_iter().collect();
            let mut found = ids(&found);
            found.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn during_writes_nothing_that_is_there_at_the_end_is_missing(
        before in history(40), during in history(40), filters in filters(), entries in 1..8u32,
    ) {
        let dir = folder();
        let running = Running::open(&options(dir.path()));
        running.put(&events(&before, 0));
        let began = audit(&running.store);
        let during = events(&during, 1_000);
        let mut rest = during.chunks(3);
        let found = export(&running.store.reader(), &filters, &budget(entries), |_| {
            if let Some(some) = rest.next() {
                running.put(some);
            }
        });
        // What is not yet written now came after the end.
        let stored = audit(&running.store);
        let found_ids: HashSet<[u8; 32]> = ids(&found).into_iter().collect();
        prop_assert_eq!(found_ids.len(), found.len(), "each once");
        let unlimited: Vec<Filter> = match filters.is_empty() {
            true => vec![Filter::default()],
            false => filters.iter().filter(|f| f.limit.is_none()).cloned().collect(),
        };
        for id in dumb(&stored, &unlimited) {
            prop_assert!(found_ids.contains(&id));
        }
        // What a filter with a limit wanted at the beginning is there unless it was removed since.
        let stored: HashSet<[u8; 32]> = stored.values().map(|event| *event.id()).collect();
        for id in dumb(&began, &filters) {
            prop_assert!(found_ids.contains(&id) || !stored.contains(&id));
        }
        for event in &found {
            prop_assert!(filters.is_empty() || filters.iter().any(|f| f.matches(event)));
        }
    }
}

#[test]
fn what_has_expired_is_left_out() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let mut all = vec![note(1, 5)];
    all.push(event(id(2), [1; 32], 6, 1, &[&["expiration", "100"]], ""));
    running.put(&all);
    for filters in [vec![], vec![filter(Some(1), None, None, None)]] {
        for (now, count) in [(99, 2), (100, 1)] {
            let budget = Budget { now, ..budget(9) };
            let found = export(&running.store.reader(), &filters, &budget, |_| {});
            assert_eq!(found.len(), count);
        }
    }
}
