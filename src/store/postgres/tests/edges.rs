//! What shows only at an edge: long gaps, answers that cross a ban, connections left half way, bounds.

use std::thread;

use super::*;
use crate::limits::{DB_FETCH_BYTES_MAX, DB_FETCH_EVENTS_MAX, DB_QUESTIONS_MAX, UPKEEP_STEPS_MAX};
use crate::store::conformance::{WAIT, event, id, note, put, put_one, word};
use crate::store::postgres::testing::Proxy;

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// What another store publishes while this one is cut off comes in order, all of it, and once.
fn comes_later(events: &[Event]) {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let proxy = Proxy::to(cluster.port());
    let away = Running::on(&cluster.url_by(proxy.port(), &url));
    let there = Running::on(&url);
    until("it listens", || away.store.status().listening);
    proxy.close();
    put(&there, events);
    proxy.open();
    for event in events {
        assert_eq!(away.outcomes.arrived().event.id(), event.id());
    }
    // Sent behind all of them.
    let last = note(9_999_999, 1);
    put_one(&there, &last);
    assert_eq!(away.outcomes.arrived().event.id(), last.id());
}

#[test]
fn a_gap_of_many_events_is_fetched_in_pieces() {
    let many = 2 * DB_FETCH_EVENTS_MAX as u64 + 10;
    comes_later(&(0..many).map(|n| note(n, n)).collect::<Vec<_>>());
}

#[test]
fn a_gap_of_large_events_is_fetched_in_pieces() {
    let text = "x".repeat(DB_FETCH_BYTES_MAX / 5);
    let large = |n| event(id(n), [1; 32], n, 1, &[], &text);
    comes_later(&(0..23).map(large).collect::<Vec<_>>());
}

#[test]
fn a_subscription_reads_at_least_what_was_told_before_it() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let (one, two) = (Running::on(&url), Running::on(&url));
    for number in 1..=20 {
        put_one(&one, &note(number, number));
        let seq = two.outcomes.arrived().seq.expect("it is stored");
        assert!(two.store.reader().delivered() >= seq);
    }
}

#[test]
fn a_login_that_crosses_a_ban_is_refused() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let (one, two) = (Running::on(&url), Running::on(&url));
    two.access(&[1; 32]);
    let before = two.store.status().statements;
    // Looked up before the ban, and looked at after it.
    let login = two.store.reader().access([1; 32]);
    until("it is looked up", || two.store.status().statements > before);
    until("it is answered", || two.store.status().writers.0 == 0);
    one.edit(&[[1; 32]], List::Banned, true);
    assert_eq!(two.outcomes.banned(), [1; 32]);
    assert!(wait(login).expect("an answer").banned);
}

#[test]
fn edits_at_once_do_not_undo_each_other() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let stores = [Running::on(&url), Running::on(&url)];
    for number in 0..60 {
        let key = [number; 32];
        let edit = |place: usize, list| stores[place].store.edit_access(vec![key], list, true);
        let edits = [edit(0, List::Allowed), edit(1, List::Members)];
        for edit in edits {
            assert_eq!(wait(edit).expect("an edit"), [true]);
        }
        let access = stores[0].access(&key);
        assert!(access.allowed && access.member, "{number}: {access:?}");
    }
}

#[test]
fn commits_are_durable_whatever_the_server_says() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let alter = format!("ALTER DATABASE {} SET synchronous_commit = off", name(&url));
    cluster.run("postgres", &alter);
    let running = Running::on(&url);
    let core = running.store.shared.core.clone();
    let ask = async move {
        let lease = core.writers.get().await?;
        let rows = lease
            .ask("SELECT current_setting('synchronous_commit')", &[])
            .await?;
        Ok(rows[0].get::<_, String>(0))
    };
    let said = wait(running.store.shared.questioner.run(ask)).expect("an answer");
    assert_eq!(said, "on");
}

#[test]
fn a_connection_that_is_left_half_way_is_closed() {
    let Some(cluster) = cluster() else { return };
    let running = Running::on(&cluster.database());
    let core = running.store.shared.core.clone();
    // Of the readers', which nobody else uses here.
    let leave = async move {
        let open = || core.readers.in_use().1;
        let lease = core.readers.get().await?;
        lease.ask("SELECT 1", &[]).await?;
        drop(lease);
        let whole = open();
        let lease = core.readers.get().await?;
        lease.begin().await?;
        drop(lease);
        let in_transaction = open();
        let lease = core.readers.get().await?;
        let sleep = lease.ask("SELECT pg_sleep(5)::text", &[]);
        let slept = tokio::time::timeout(Duration::from_millis(300), sleep).await;
        assert!(slept.is_err());
        drop(lease);
        Ok([whole, in_transaction, open()])
    };
    let open = wait(running.store.shared.questioner.run(leave)).expect("answers");
    assert_eq!(open, [1, 0, 0]);
}

#[test]
fn questions_are_bounded() {
    let Some(cluster) = cluster() else { return };
    let running = Running::with(PostgresOptions {
        read_pool: 1,
        ..options(&cluster.database())
    });
    let core = running.store.shared.core.clone();
    let (release, released) = oneshot::channel::<()>();
    let hold = async move {
        let _lease = core.readers.get().await?;
        let _ = released.await;
        Ok(())
    };
    let hold = running.store.shared.questioner.run(hold);
    until("it is held", || running.store.status().readers.0 == 1);
    let reader = running.store.reader();
    let waiting: Vec<_> = (1..DB_QUESTIONS_MAX).map(|_| reader.last_seq()).collect();
    let error = wait(reader.last_seq()).expect_err("there are too many");
    assert!(error.to_string().contains("too many questions"), "{error}");
    drop(release);
    wait(hold).expect("it was held");
    for question in waiting {
        // They have waited too long, or are answered.
        let _ = wait(question);
    }
    assert_eq!(running.last_seq(), 0);
}

#[test]
fn what_another_relay_left_vanishing_is_removed() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let (running, database) = (Running::on(&url), name(&url));
    let others = event(id(9), [2; 32], 5, 1, &[], "");
    put(&running, &[note(1, 5), note(2, 50), others.clone()]);
    // As a relay leaves it that ends between the steps.
    cluster.run(
        &database,
        "INSERT INTO buzz.vanished (pubkey, until, under_way, since)
         VALUES (decode(repeat('01', 32), 'hex'), 10, true, now() - interval '1 hour')",
    );
    let under_way = "SELECT count(*) FROM buzz.vanished WHERE under_way";
    // The store looks by itself, too: who finds the other at it leaves it to it.
    until("it has ended", || {
        running.sweep(0);
        cluster.number(&database, under_way) == 0
    });
    let left: Vec<[u8; 32]> = running.audit().values().map(|event| *event.id()).collect();
    assert_eq!(left, [id(2), *others.id()]);
    // Its own requests are marked as ended too.
    put_one(&running, &event(id(3), [2; 32], 60, 62, &[], ""));
    assert_eq!(cluster.number(&database, under_way), 0);
}

#[test]
fn all_that_was_wrapped_for_a_key_vanishes_with_it() {
    let Some(cluster) = cluster() else { return };
    let running = Running::on(&cluster.database());
    let hex = const_hex::encode([1; 32]);
    let count = u64::from(UPKEEP_STEPS_MAX) + 50;
    let wrap = |n| event(id(n), [2; 32], n, 1059, &[&["p", &hex]], "");
    put(&running, &(0..count).map(wrap).collect::<Vec<_>>());
    let request = event(id(count), [1; 32], count, 62, &[], "");
    assert_eq!(word(&put_one(&running, &request)), "stored");
    let left: Vec<Event> = running.audit().into_values().collect();
    assert_eq!(left, [request]);
}
