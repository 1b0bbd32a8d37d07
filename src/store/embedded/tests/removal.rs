//! Removals across restarts, by the writer itself, and from an earlier schema.

use super::super::apply::{Group, Scratch};
use super::super::upkeep::expire;
use super::*;
use crate::nostr::kind::{DELETION, VANISH};
use crate::store::conformance::word;

fn sweep(running: &Running, now: u64) {
    let tables = &running.store.shared.tables;
    while !expire(tables, &mut Scratch::default(), now).expect("sweeps") {}
}

fn request(number: u64, by: [u8; 32], at: u64, tags: &[&[&str]]) -> Event {
    event(id(number), by, at, DELETION, tags, "")
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
