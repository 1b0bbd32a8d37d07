//! Deletion, expiry and vanishing: the cases that chance does not meet.

use super::super::apply::{Group, Scratch};
use super::super::upkeep::{Share, expire};
use super::model::word;
use super::*;
use crate::limits::{
    COMMIT_INDEX_ENTRIES_MAX, DELETION_INDEX_ENTRIES_MAX, EVENT_TAGS_MAX, UPKEEP_STEPS_MAX,
};
use crate::nostr::kind::{DELETION, VANISH};

fn sweep(running: &Running, now: u64) {
    let tables = &running.store.shared.tables;
    while !expire(tables, &mut Scratch::default(), now, Share::part(0)).expect("sweeps") {}
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
fn the_latest_deletion_of_an_address_stands() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let address = format!("30023:{}:x", const_hex::encode([1; 32]));
    let page = |at: u64| event(id(at), [1; 32], at, 30_023, &[&["d", "x"]], "");
    let take_back = |number, at| request(number, [1; 32], at, &[&["a", &address]]);
    let outcomes = running.put(&[
        take_back(100, 20),
        take_back(101, 10),
        page(15),
        page(20),
        page(21),
    ]);
    let words: Vec<&str> = outcomes.iter().map(word).collect();
    assert_eq!(words, ["stored", "stored", "refused", "refused", "stored"]);
}

/// An event with as many index entries as one may have.
fn wide(number: u64, created_at: u64, kind: u16) -> Event {
    let values: Vec<String> = (0..EVENT_TAGS_MAX).map(|n| n.to_string()).collect();
    let tags: Vec<[&str; 2]> = values.iter().map(|value| ["t", value]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    event(id(number), [1; 32], created_at, kind, &tags, "")
}

#[test]
fn a_commit_removes_little_more_than_its_share() {
    let dir = folder();
    let store = Embedded::open(&options(dir.path())).expect("opens");
    let kinds = 10_000..10_020;
    let old = kinds.clone().map(|kind| wide(kind.into(), 1, kind));
    let new: Vec<Event> = kinds
        .map(|kind| event(id(u64::from(kind) + 100), [1; 32], 2, kind, &[], ""))
        .collect();
    let running = Running::start(store);
    running.put(&old.collect::<Vec<_>>());
    running.commits.try_iter().for_each(drop);
    // Their own entries fit one group, those of what they replace do not.
    running.put(&new);
    let per_commit = COMMIT_INDEX_ENTRIES_MAX.div_ceil(EVENT_TAGS_MAX + 6);
    let commits: Vec<usize> = running.commits.try_iter().collect();
    assert!(
        commits.iter().all(|events| *events <= per_commit),
        "{commits:?}"
    );
    assert_eq!(commits.iter().sum::<usize>(), new.len());
    assert_eq!(audit(&running.store).into_values().collect::<Vec<_>>(), new);
}

#[test]
fn a_request_that_names_too_much_is_refused_as_a_whole() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    let fits = (DELETION_INDEX_ENTRIES_MAX / (EVENT_TAGS_MAX + 6)) as u64;
    let past: Vec<Event> = (0..=fits).map(|n| wide(n, n, 1)).collect();
    past.iter().for_each(|event| drop(running.put_one(event)));
    let names: Vec<String> = past
        .iter()
        .map(|event| const_hex::encode(event.id()))
        .collect();
    let tags: Vec<[&str; 2]> = names.iter().map(|name| ["e", name]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    assert_eq!(
        word(&running.put_one(&request(900, [1; 32], 99, &tags))),
        "refused"
    );
    assert_eq!(audit(&running.store).len(), past.len());
    let parts = request(901, [1; 32], 99, &tags[1..]);
    assert_eq!(word(&running.put_one(&parts)), "stored");
    let left: Vec<Event> = audit(&running.store).into_values().collect();
    assert_eq!(left, [past[0].clone(), parts.clone()]);
    let last = request(902, [1; 32], 99, &tags);
    assert_eq!(word(&running.put_one(&last)), "stored");
    let left: Vec<Event> = audit(&running.store).into_values().collect();
    assert_eq!(left, [parts, last]);
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
        settle(&running.store);
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
        settle(&running.store);
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
