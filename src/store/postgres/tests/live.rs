//! Several stores on one database: what one publishes the others deliver, each event once, whatever
//! becomes of their connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::store::conformance::{WAIT, event, id, job, note, put, put_one, word};
use crate::store::postgres::testing::Proxy;
use crate::store::{Outcome, Removal};

/// Says that it is over when it is dropped, by a failure too: a thread waits for that.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// How often a store has handed each event to its shards: own commits, and those of others.
fn delivered(running: &Running, counts: &mut HashMap<[u8; 32], usize>) {
    for arrived in running.outcomes.all_arrived() {
        *counts.entry(*arrived.event.id()).or_default() += 1;
    }
}

/// Waits until a store has delivered as many events as these, and checks that each came once.
fn deliver_all(running: &Running, counts: &mut HashMap<[u8; 32], usize>, all: &[[u8; 32]]) {
    let end = Instant::now() + WAIT;
    loop {
        delivered(running, counts);
        if all.iter().all(|id| counts.contains_key(id)) {
            break;
        }
        let missing = all.iter().filter(|id| !counts.contains_key(*id)).count();
        assert!(Instant::now() < end, "{missing} are missing");
        thread::sleep(Duration::from_millis(10));
    }
    // What comes twice comes soon.
    thread::sleep(Duration::from_millis(200));
    delivered(running, counts);
    let twice = counts.values().filter(|count| **count > 1).count();
    assert_eq!(twice, 0, "events came twice");
    assert_eq!(counts.len(), all.len());
}

fn stored_ids(running: &Running) -> Vec<[u8; 32]> {
    audit(&running.store)
        .values()
        .map(|event| *event.id())
        .collect()
}

#[test]
fn what_one_publishes_the_others_deliver_once() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let stores: Vec<Running> = (0..3).map(|_| Running::on(&url)).collect();
    const EACH: u64 = 1_000;
    let threads: Vec<_> = stores
        .iter()
        .zip(0..)
        .map(|(store, place)| {
            let submit = store.submitter();
            thread::spawn(move || {
                for n in 0..EACH {
                    let number = place * EACH + n;
                    submit(&mut vec![job(&note(number, number), number)]);
                    if n % 50 == 0 {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("a writer"));
    for store in &stores {
        let mut counts = HashMap::new();
        for _ in 0..EACH {
            let done = store.outcomes.done();
            assert_eq!(word(&done.outcome), "stored");
            *counts.entry(*done.event.id()).or_default() += 1;
        }
        let mut last = 0;
        while counts.len() < 3 * EACH as usize {
            let arrived = store.outcomes.arrived();
            let seq = arrived.seq.expect("a stored event has a sequence");
            assert!(seq > last, "out of order");
            last = seq;
            *counts.entry(*arrived.event.id()).or_default() += 1;
        }
        deliver_all(store, &mut counts, &stored_ids(store));
        let status = store.store.status();
        assert_eq!((status.fetched, status.lost), (2 * EACH, 0));
    }
    let seqs: Vec<u64> = audit(&stores[0].store).into_keys().collect();
    assert!(
        seqs.iter().copied().eq(1..=3 * EACH),
        "sequences have a gap"
    );
}

#[test]
fn nothing_is_missed_or_told_twice_when_connections_are_cut() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let proxy = Proxy::to(cluster.port());
    let steady = Running::on(&url);
    let shaken = Running::on(&cluster.url_by(proxy.port(), &url));
    let over = AtomicBool::new(false);
    let mut counts = [HashMap::new(), HashMap::new()];
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !over.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(60));
                match round % 3 {
                    0 => proxy.cut(),
                    1 => {
                        proxy.close();
                        thread::sleep(Duration::from_millis(40));
                        proxy.open();
                    }
                    _ => proxy.swallow_commits(1),
                }
                round += 1;
            }
        });
        let _over = Over(&over);
        publish_on_both([&steady, &shaken], 3_000, &mut counts);
    });
    proxy.swallow_commits(0);
    assert!(
        shaken.store.status().lost > 0,
        "{:?}",
        shaken.store.status()
    );
    assert!(proxy.swallowed() > 0);
    settle([&steady, &shaken], counts);
}

#[test]
fn nothing_is_missed_or_told_twice_when_backends_are_ended() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let stores = [Running::on(&url), Running::on(&url)];
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
        name(&url)
    );
    let over = AtomicBool::new(false);
    let mut counts = [HashMap::new(), HashMap::new()];
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(70));
                cluster.run("postgres", &end);
            }
        });
        let _over = Over(&over);
        publish_on_both([&stores[0], &stores[1]], 3_000, &mut counts);
    });
    assert!(stores[0].store.status().lost > 2);
    settle([&stores[0], &stores[1]], counts);
}

/// Publishes on two stores in turn. What is answered as failed is handed in again, as a client would.
fn publish_on_both(stores: [&Running; 2], each: u64, counts: &mut [HashMap<[u8; 32], usize>; 2]) {
    let mut open = [0, 0];
    let mut next = 0;
    let mut failed = 0;
    let end = Instant::now() + WAIT * 2;
    while next < each || open != [0, 0] {
        assert!(Instant::now() < end, "{open:?} are not answered");
        if next < each {
            let batch = 20.min(each - next);
            for (place, store) in stores.iter().enumerate() {
                let number = |n: u64| place as u64 * 1_000_000 + next + n;
                let job = |n| job(&note(number(n), number(n)), number(n));
                store.submit(&mut (0..batch).map(job).collect());
                open[place] += batch;
            }
            next += batch;
        }
        for (place, store) in stores.iter().enumerate() {
            for done in store.outcomes.all_done() {
                open[place] -= 1;
                match done.outcome {
                    // Its own shards have it from the commit.
                    Outcome::Stored { .. } => {
                        *counts[place].entry(*done.event.id()).or_default() += 1;
                    }
                    // Committed, but nobody could say so then: it comes as another's would.
                    Outcome::Duplicate => {}
                    Outcome::Failed(error) => {
                        assert!(error.retryable(), "{error}");
                        failed += 1;
                        store.submit(&mut vec![job(&done.event, 0)]);
                        open[place] += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    println!("{failed} were answered as failed, and handed in again");
}

fn settle(stores: [&Running; 2], counts: [HashMap<[u8; 32], usize>; 2]) {
    let all = stored_ids(stores[0]);
    assert_eq!(all.len(), 6_000);
    for (store, mut counts) in stores.into_iter().zip(counts) {
        deliver_all(store, &mut counts, &all);
    }
}

#[test]
fn a_commit_whose_answer_is_lost_is_found_again() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let proxy = Proxy::to(cluster.port());
    let store = Running::on(&cluster.url_by(proxy.port(), &url));
    put(&store, &[note(1, 1)]);
    proxy.swallow_commits(1);
    let profile = event(id(2), [1; 32], 5, 0, &[], "");
    let outcomes = put(&store, &[note(3, 3), profile.clone()]);
    assert_eq!(proxy.swallowed(), 1);
    // It was committed, so it is a duplicate now: the client may be content.
    let words: Vec<&str> = outcomes.iter().map(word).collect();
    assert_eq!(words, ["duplicate", "duplicate"]);
    let arrived = [store.outcomes.arrived(), store.outcomes.arrived()];
    assert_eq!(arrived.map(|arrived| arrived.seq), [Some(2), Some(3)]);
    assert_eq!(audit(&store.store).len(), 3);
    assert_eq!(word(&put_one(&store, &note(4, 4))), "stored");
    thread::sleep(Duration::from_millis(100));
    assert!(store.outcomes.all_arrived().is_empty());
}

#[test]
fn ephemeral_events_reach_the_others() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let proxy = Proxy::to(cluster.port());
    let (one, two) = (
        Running::on(&url),
        Running::on(&cluster.url_by(proxy.port(), &url)),
    );
    let ephemeral = |number| event(id(number), [1; 32], number, 20_001, &[], "now");
    let large = event(id(99), [1; 32], 99, 20_001, &[], &"x".repeat(100_000));
    for number in 0..50 {
        assert!(one.store.pass_on(ephemeral(number).into()));
    }
    assert!(one.store.pass_on(large.clone().into()));
    for number in 0..50 {
        let arrived = two.outcomes.arrived();
        assert_eq!((arrived.seq, *arrived.event.id()), (None, id(number)));
    }
    assert_eq!(two.outcomes.arrived().event.json(), large.json());
    // A connection that is cut misses nothing that is not too old.
    proxy.close();
    for number in 100..110 {
        one.store.pass_on(ephemeral(number).into());
    }
    while one.store.status().passed.0 < 61 {
        thread::sleep(Duration::from_millis(5));
    }
    proxy.open();
    for number in 100..110 {
        assert_eq!(*two.outcomes.arrived().event.id(), id(number));
    }
    assert!(one.outcomes.all_arrived().is_empty(), "its own came back");
    assert_eq!(one.store.status().passed.1, 0);
}

#[test]
fn ephemeral_events_do_not_stay() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let store = Running::on(&url);
    for number in 0..100 {
        let event = event(id(number), [1; 32], number, 20_001, &[], "now");
        store.store.pass_on(event.into());
    }
    while store.store.status().passed.0 < 100 {
        thread::sleep(Duration::from_millis(5));
    }
    let count = || cluster.number(&name(&url), "SELECT count(*) FROM buzz.ephemeral");
    assert_eq!(count(), 100);
    let length = "SELECT sum(octet_length(json))::bigint FROM buzz.ephemeral WHERE n > 90";
    let bytes = cluster.number(&name(&url), length);
    cluster.run(
        &name(&url),
        &format!("SELECT buzz.forget_ephemeral(3600, {bytes})"),
    );
    assert_eq!(count(), 10);
    cluster.run(&name(&url), "SELECT buzz.forget_ephemeral(0, 1000000)");
    assert_eq!(count(), 0);
}

#[test]
fn a_ban_reaches_every_process() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let proxy = Proxy::to(cluster.port());
    let stores = [
        Running::on(&url),
        Running::on(&cluster.url_by(proxy.port(), &url)),
    ];
    let ban = |key: u8, on| stores[0].edit(&[[key; 32]], List::Banned, on);
    assert_eq!(ban(1, true), [true]);
    for store in &stores {
        assert_eq!(store.outcomes.banned(), [1; 32]);
    }
    // A second try is told again; other lists are not.
    assert_eq!(ban(1, true), [false]);
    stores[0].edit(&[[1; 32], [2; 32]], List::Members, true);
    for store in &stores {
        assert_eq!(store.outcomes.banned(), [1; 32]);
    }
    proxy.close();
    ban(3, true);
    ban(4, true);
    ban(4, false);
    proxy.open();
    // A connection that is lost may have heard of earlier ones: they are told again then.
    while stores[1].outcomes.banned() != [3; 32] {}
    assert!(stores[1].access(&[3; 32]).banned && !stores[1].access(&[4; 32]).banned);
    // Nothing of a banned author comes in, on whichever process.
    let theirs = event(id(1), [3; 32], 1, 1, &[], "");
    assert_eq!(word(&put_one(&stores[1], &theirs)), "refused");
}

#[test]
fn the_first_ban_is_told_after_other_edits() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let stores = [Running::on(&url), Running::on(&url)];
    stores[0].edit(&[[2; 32]], List::Members, true);
    // Told after the edit, on the same connection: so the edit has been heard of.
    put_one(&stores[0], &note(1, 1));
    assert_eq!(*stores[1].outcomes.arrived().event.id(), *note(1, 1).id());
    stores[0].edit(&[[1; 32]], List::Banned, true);
    for store in &stores {
        assert_eq!(store.outcomes.banned(), [1; 32]);
    }
}

#[test]
fn a_ban_that_is_being_committed_while_a_relay_starts_is_told() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    // Makes the tables.
    drop(Running::on(&url));
    let database = name(&url);
    let slow = "BEGIN;
        INSERT INTO buzz.access (pubkey, banned, allowed, member, version)
        VALUES (decode(repeat('07', 32), 'hex'), true, false, false, nextval('buzz.access_version'));
        SELECT pg_sleep(2);
        SELECT pg_notify('buzz_access', (SELECT last_value FROM buzz.access_version)::text);
        COMMIT";
    thread::scope(|scope| {
        let ban = scope.spawn(|| cluster.run(&database, slow));
        let begun = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' \
                     AND datname = current_database()";
        while cluster.number(&database, begun) == 0 {
            thread::sleep(Duration::from_millis(5));
        }
        let starting = Running::on(&url);
        while !starting.store.status().listening {
            thread::sleep(Duration::from_millis(5));
        }
        ban.join().expect("it is committed");
        assert_eq!(starting.outcomes.banned(), [7; 32]);
    });
}

#[test]
fn removals_are_told_by_their_reason() {
    let Some(cluster) = cluster() else { return };
    let store = Running::on(&cluster.database());
    let profile = |number| event(id(number), [1; 32], number, 0, &[], "");
    let hex = const_hex::encode(id(5));
    let group = [
        profile(1),
        profile(2),
        note(5, 5),
        event(id(6), [1; 32], 6, 5, &[&["e", &hex]], ""),
        event(id(7), [1; 32], 7, 1, &[&["expiration", "9"]], ""),
    ];
    put(&store, &group);
    put(
        &store,
        &[profile(3), event(id(8), [1; 32], 50, 62, &[], "")],
    );
    let mut removed = HashMap::new();
    for (why, events) in store.outcomes.removals() {
        *removed.entry(why as usize).or_insert(0) += events;
    }
    let of = |why: Removal| removed.get(&(why as usize)).copied().unwrap_or(0);
    let told = [Removal::Replaced, Removal::Deleted, Removal::Vanished].map(of);
    // The request to vanish takes the last profile, the deletion, and the note that was to expire.
    assert_eq!(told, [2, 1, 3]);
}
