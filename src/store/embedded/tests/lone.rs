//! Events that come alone: durable in the journal, found before they are in their tree, and there
//! after every end.

use super::super::apply::Scratch;
use super::super::journal::{self, Journal};
use super::super::{file, layout, tables};
use super::*;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tracing::level_filters::LevelFilter;

/// Puts events one by one.
fn put_alone(running: &Running, events: &[Event]) {
    for event in events {
        let outcome = running.put_one(event);
        assert!(matches!(outcome, Outcome::Stored { .. }), "{outcome:?}");
    }
}

fn notes(numbers: std::ops::Range<u64>) -> Vec<Event> {
    numbers.map(|n| note(n, n)).collect()
}

/// Events in their tree.
fn written(store: &Embedded) -> u64 {
    let tables = &store.shared.tables;
    let txn = tables.env.read_txn().expect("a transaction");
    tables.events.len(&txn).expect("a length")
}

fn held(store: &Embedded) -> usize {
    store.shared.tables.nursery.young().held.len()
}

/// The folder as a sudden end of the process would leave it now.
fn as_left(dir: &Path) -> TempDir {
    let copy = folder();
    fs::create_dir(copy.path().join(tables::FOLDER)).expect("a folder");
    for name in [file::NAME, journal::NAME] {
        let name = Path::new(tables::FOLDER).join(name);
        fs::copy(dir.join(&name), copy.path().join(&name)).expect("a copy");
    }
    copy
}

fn journal_of(dir: &Path) -> PathBuf {
    dir.join(tables::FOLDER).join(journal::NAME)
}

fn sequences(store: &Embedded) -> Vec<u64> {
    let mut found = Vec::new();
    let mut after = Some(0);
    while let Some(last) = after {
        let each = &mut |seq, _: &str| found.push(seq);
        let next = store.reader().events_after(last, &budget(3), each);
        after = next.expect("a slice");
    }
    found
}

#[test]
fn a_lone_event_is_found_before_it_is_in_its_tree() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let events = notes(0..20);
    put_alone(&running, &events);
    let store = &running.store;
    assert_eq!((written(store), held(store)), (0, 20));
    assert_eq!(store.reader().last_seq().expect("reads"), 20);
    assert_eq!(audit(store).len(), 20);
    assert_eq!(sequences(store), (1..=20).collect::<Vec<_>>());
    let filter = [Filter::default()];
    let all = answer(&store.reader(), &filter, BOUNDS, &budget(u32::MAX));
    let newest_first = events.iter().rev().map(|event| event.json().to_owned());
    assert_eq!(all, newest_first.collect::<Vec<_>>());
    let mut count = Count::new(Rc::from(filter));
    while count.slice(&store.reader(), &budget(9)).expect("a slice") == Progress::More {}
    assert_eq!(count.total(), 20);
    let found = store.reader().find(events[7].id()).expect("reads");
    assert_eq!(found.expect("it is there").seq, 8);
    assert!(matches!(running.put_one(&events[7]), Outcome::Duplicate));
    // That took a group, which has taken them along.
    assert_eq!((written(store), held(store)), (20, 0));
    assert_eq!(audit(store).len(), 20);
    assert_eq!(sequences(store), (1..=20).collect::<Vec<_>>());
}

#[test]
fn after_a_sudden_end_they_are_there_and_numbers_go_on() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    running.put(&notes(0..3));
    put_alone(&running, &notes(3..10));
    for _ in 0..2 {
        let left = as_left(dir.path());
        let again = Running::open(&options(left.path()));
        assert_eq!(held(&again.store), 7);
        assert_eq!(audit(&again.store).len(), 10);
        put_alone(&again, &notes(10..12));
        assert_eq!(sequences(&again.store), (1..=12).collect::<Vec<_>>());
        // And once more, with records of both lives.
        let left = as_left(left.path());
        let third = Running::open(&options(left.path()));
        assert_eq!(sequences(&third.store), (1..=12).collect::<Vec<_>>());
    }
}

#[test]
fn a_bounded_number_is_held_and_none_after_an_end_in_order() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    // No layer is sealed meanwhile, whose slices would take a group.
    running.store.shared.tables.nursery.seal_at(0);
    let max = crate::limits::HELD_EVENTS_MAX as u64;
    put_alone(&running, &notes(0..max));
    assert_eq!(
        (written(&running.store), held(&running.store)),
        (0, max as usize)
    );
    put_alone(&running, &notes(max..max + 3));
    assert_eq!(held(&running.store), 2);
    assert_eq!(written(&running.store), max + 1);
    drop(running);
    // Nothing is lost with the journal now.
    fs::remove_file(journal_of(dir.path())).expect("it is there");
    let again = Running::open(&options(dir.path()));
    assert_eq!(audit(&again.store).len() as u64, max + 3);
}

#[test]
fn records_of_before_are_not_taken_for_new_ones() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    put_alone(&running, &notes(0..9));
    running.put(&notes(9..12));
    put_alone(&running, &notes(12..14));
    // Two new records, and seven old ones behind them.
    let left = as_left(dir.path());
    let again = Running::open(&options(left.path()));
    assert_eq!(held(&again.store), 2);
    assert_eq!(audit(&again.store).len(), 14);
}

#[test]
fn what_is_removed_while_it_is_held_never_comes_back() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    put_alone(&running, &notes(0..5));
    let named = const_hex::encode(id(2));
    let request = event([9; 32], [1; 32], 100, 5, &[&["e", &named]], "");
    put_alone(&running, std::slice::from_ref(&request));
    let gone = |store: &Embedded| {
        let found = store.reader().find(&id(2)).expect("reads");
        assert_eq!(found, None);
        assert_eq!(sequences(store), [1, 2, 4, 5, 6]);
        assert_eq!(audit(store).len(), 5);
    };
    gone(&running.store);
    put_alone(&running, &notes(5..6));
    let left = as_left(dir.path());
    let again = Running::open(&options(left.path()));
    assert!(matches!(again.put_one(&note(2, 2)), Outcome::Refused(_)));
    let outcomes = again.put(&notes(6..8));
    assert!(matches!(outcomes[1], Outcome::Stored { seq: 9 }));
}

#[test]
fn only_plain_events_are_held() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let of_kind = |n: u64, kind: u16, tags: &[&[&str]]| event(id(n), [1; 32], n, kind, tags, "");
    let others = [
        of_kind(1, 0, &[]),
        of_kind(2, 10_002, &[]),
        of_kind(3, 30_000, &[&["d", "x"]]),
        of_kind(4, 5, &[]),
        of_kind(5, 1, &[&["expiration", "4000000000"]]),
    ];
    for (n, other) in (1..).zip(&others) {
        put_alone(&running, std::slice::from_ref(other));
        assert_eq!((written(&running.store), held(&running.store)), (n, 0));
    }
}

#[test]
fn a_backup_has_what_is_held() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    put_alone(&running, &notes(0..4));
    let to = dir.path().join("backup");
    let backup = running.store.backup(&to, &mut |_, _| ()).expect("a backup");
    assert_eq!(backup.events, 4);
    // What comes afterwards is numbered as if nothing had been.
    put_alone(&running, &notes(4..5));
    assert_eq!(sequences(&running.store), [1, 2, 3, 4, 5]);
    let again = Running::open(&options(&to));
    assert_eq!(audit(&again.store).len(), 4);
}

#[test]
fn a_reader_of_a_moment_before_sees_each_event_once() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    put_alone(&running, &notes(0..4));
    let tables = &running.store.shared.tables;
    let young = tables.nursery.young();
    let before = tables.env.read_txn().expect("a transaction");
    tables.write_held(&mut Scratch::default()).expect("writes");
    let after = tables.env.read_txn().expect("a transaction");
    for seq in 1..=4 {
        assert!(
            tables
                .json_at(&before, &young, seq, 0)
                .expect("reads")
                .is_some()
        );
        assert!(
            tables
                .json_at(&after, &young, seq, 0)
                .expect("reads")
                .is_some()
        );
    }
    drop(before);
    let named = const_hex::encode(id(0));
    let request = event([9; 32], [1; 32], 100, 5, &[&["e", &named]], "");
    put_alone(&running, std::slice::from_ref(&request));
    // Its removal counts, however old the list of what is held.
    let txn = tables.env.read_txn().expect("a transaction");
    assert!(tables.json_at(&txn, &young, 1, 0).expect("reads").is_none());
    assert!(
        tables
            .id_entry(&txn, &young, &id(0))
            .expect("reads")
            .is_none()
    );
}

#[test]
fn a_torn_record_ends_the_journal_and_a_gap_is_damage() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    put_alone(&running, &notes(0..4));
    let spoil = |record: u64| {
        let left = as_left(dir.path());
        let file = fs::File::options()
            .write(true)
            .open(journal_of(left.path()));
        let file = file.expect("opens");
        file.write_all_at(b"?", record * 4_096 + 200)
            .expect("writes");
        left
    };
    let torn = spoil(3);
    let again = Running::open(&options(torn.path()));
    assert_eq!(sequences(&again.store), [1, 2, 3]);
    assert!(matches!(
        again.put_one(&note(50, 1)),
        Outcome::Stored { seq: 4 }
    ));
    let damaged = spoil(1);
    let opened = Embedded::open(&options(damaged.path()));
    assert!(matches!(opened, Err(OpenError::Corrupt(_))), "{opened:?}");
}

#[test]
fn large_events_fill_the_journal_and_are_committed_then() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let content = "x".repeat(60_000);
    for n in 0..40 {
        let large = event(id(n), [1; 32], n, 1, &[], &content);
        put_alone(&running, &[large]);
    }
    assert_eq!(held(&running.store) as u64 + written(&running.store), 40);
    assert!(written(&running.store) > 0, "the journal has a size");
    let left = as_left(dir.path());
    let again = Running::open(&options(left.path()));
    assert_eq!(audit(&again.store).len(), 40);
    let length = fs::metadata(journal_of(dir.path()))
        .expect("it is there")
        .len();
    assert_eq!(length, crate::limits::JOURNAL_BYTES as u64);
}

const NAME: layout::StoreName = [7; 16];

#[test]
fn records_come_back_as_they_were_written() {
    let dir = folder();
    let (journal, found) = Journal::open(dir.path(), NAME, 5, false).expect("opens");
    let mut journal = journal.expect("there is room");
    assert!(found.is_empty());
    let events = notes(0..3);
    for (seq, event) in (6..).zip(&events) {
        journal.append(event, seq).expect("writes");
    }
    assert_eq!(journal.used(), 3 * 4_096);
    for (last, left) in [(5, 3), (6, 2), (8, 0), (100, 0)] {
        let (_, found) = Journal::open(dir.path(), NAME, last, true).expect("opens");
        let found: Vec<_> = found.iter().map(Event::json).collect();
        let expected: Vec<_> = events[3 - left..].iter().map(Event::json).collect();
        assert_eq!(found, expected, "behind {last}");
    }
    let (_, found) = Journal::open(dir.path(), [8; 16], 5, true).expect("opens");
    assert!(found.is_empty(), "of another store");
}

#[test]
fn a_journal_is_its_stores_alone() {
    let ours = folder();
    let running = Running::open(&options(ours.path()));
    put_alone(&running, &notes(0..5));
    let left = as_left(ours.path());
    // Beside a store that was never used, and where its own store is gone and a new one is made.
    let other = folder();
    drop(Running::open(&options(other.path())));
    fs::copy(journal_of(left.path()), journal_of(other.path())).expect("a copy");
    fs::remove_file(left.path().join(tables::FOLDER).join(file::NAME)).expect("it goes");
    for dir in [other.path(), left.path()] {
        let (logs, _guard) = crate::control::logs::capture::logs(LevelFilter::WARN);
        let running = Running::open(&options(dir));
        assert!(logs.text().contains("of another store"), "{}", logs.text());
        assert_eq!(audit(&running.store).len(), 0);
        put_alone(&running, &notes(7..9));
        let again = Running::open(&options(as_left(dir).path()));
        assert_eq!(audit(&again.store).len(), 2);
    }
}

#[test]
fn a_journal_that_is_missing_is_told_of() {
    let dir = folder();
    let missing = |dir: &Path| {
        let (logs, _guard) = crate::control::logs::capture::logs(LevelFilter::WARN);
        drop(Running::open(&options(dir)));
        logs.text().contains("the journal is not there")
    };
    assert!(!missing(dir.path()), "a new store");
    assert!(!missing(dir.path()), "and one that has been");
    fs::remove_file(journal_of(dir.path())).expect("it goes");
    assert!(missing(dir.path()));
    fs::write(journal_of(dir.path()), b"cut").expect("it is short");
    assert!(missing(dir.path()));
}

#[test]
fn a_journal_is_a_regular_file() {
    let dir = folder();
    drop(Running::open(&options(dir.path())));
    let journal = journal_of(dir.path());
    fs::remove_file(&journal).expect("it goes");
    std::os::unix::fs::symlink("/dev/zero", &journal).expect("a link");
    assert!(Embedded::open(&options(dir.path())).is_err());
    fs::remove_file(&journal).expect("it goes");
    fs::create_dir(&journal).expect("a folder");
    assert!(Embedded::open(&options(dir.path())).is_err());
}
