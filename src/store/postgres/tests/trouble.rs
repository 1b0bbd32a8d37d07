//! A database in trouble: away, read-only, slow, out of connections, taken over. Every event is
//! answered, nothing acknowledged is lost, and all goes on when it is over.

use std::thread;

use super::*;
use crate::limits::DB_LOCK_WAIT;
use crate::nostr::filter::Filter;
use crate::store::conformance::{BOUNDS, answer, job, note, put_one, seq, word};
use crate::store::postgres::testing::Proxy;
use crate::store::{Outcome, StoreErrorKind};

/// Puts an event until it is stored, as a client would.
fn put_until_stored(running: &Running, number: u64) -> u64 {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match put_one(running, &note(number, number)) {
            Outcome::Failed(error) => {
                assert!(error.retryable(), "{error}");
                assert!(Instant::now() < end, "{error}");
                thread::sleep(Duration::from_millis(50));
            }
            outcome => return seq(&outcome),
        }
    }
}

fn failure(running: &Running, number: u64) -> StoreError {
    match put_one(running, &note(number, number)) {
        Outcome::Failed(error) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn away_and_back() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let proxy = Proxy::to(cluster.port());
    let running = Running::on(&cluster.url_by(proxy.port(), &url));
    assert_eq!(seq(&put_one(&running, &note(1, 1))), 1);
    proxy.close();
    assert_eq!(failure(&running, 2).kind(), StoreErrorKind::Unreachable);
    // From now on whatever waits fails at once, and together.
    let started = Instant::now();
    running.submit(&mut (10..3_000).map(|n| job(&note(n, n), n)).collect());
    for _ in 10..3_000 {
        let done = running.outcomes.done();
        assert!(
            matches!(done.outcome, Outcome::Failed(_)),
            "{:?}",
            done.outcome
        );
    }
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    let read = wait(running.store.reader().last_seq());
    assert!(read.expect_err("no reader").retryable());
    let login = wait(running.store.reader().access([1; 32]));
    assert!(login.expect_err("no login").retryable());
    proxy.open();
    assert_eq!(put_until_stored(&running, 2), 2);
    assert_eq!(running.last_seq(), 2);
    assert_eq!(running.access(&[1; 32]), Access::default());
}

#[test]
fn a_database_that_takes_no_writes() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let (running, database) = (Running::on(&url), name(&url));
    put_one(&running, &note(1, 1));
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
    );
    let read_only = |on| {
        let alter = format!("ALTER DATABASE {database} SET default_transaction_read_only = {on}");
        cluster.run("postgres", &alter);
    };
    read_only("on");
    cluster.run("postgres", &end);
    let error = loop {
        let error = failure(&running, 2);
        if error.kind() != StoreErrorKind::Unreachable {
            break error;
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
    assert!(error.retryable());
    assert_eq!(
        answer(&running, &[Filter::default()], BOUNDS, &Ask::piece(9)).len(),
        1
    );
    // A connection keeps what it was told at its start: none may be used again.
    read_only("off");
    assert_eq!(put_until_stored(&running, 2), 2);
}

#[test]
fn a_slow_turn_is_waited_for_and_not_for_ever() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let running = Running::on(&url);
    put_one(&running, &note(1, 1));
    let take = |seconds: u32| {
        let (cluster, database) = (cluster, name(&url));
        let thread = thread::spawn(move || {
            let take = "SELECT pg_advisory_lock(7094707117252804609)";
            cluster.run(&database, &format!("{take}; SELECT pg_sleep({seconds})"));
        });
        let held = "SELECT count(*) FROM pg_locks
                    WHERE locktype = 'advisory' AND granted AND objsubid = 1";
        while cluster.number(&name(&url), held) == 0 {
            thread::sleep(Duration::from_millis(5));
        }
        thread
    };
    let holder = take(1);
    let started = Instant::now();
    assert_eq!(word(&put_one(&running, &note(2, 2))), "stored");
    assert!(started.elapsed() > Duration::from_millis(300));
    holder.join().expect("no panic");
    let holder = take(DB_LOCK_WAIT.as_secs() as u32 + 2);
    let error = failure(&running, 3);
    assert_eq!(error.kind(), StoreErrorKind::Slow, "{error}");
    // Logins and history do not wait for the turn.
    assert_eq!(running.access(&[1; 32]), Access::default());
    assert_eq!(running.last_seq(), 2);
    holder.join().expect("no panic");
    assert_eq!(put_until_stored(&running, 3), 3);
}

#[test]
fn a_pool_that_is_used_up_sheds_and_logins_go_on() {
    let Some(cluster) = cluster() else { return };
    let running = Running::with(PostgresOptions {
        read_pool: 1,
        ..options(&cluster.database())
    });
    let core = running.store.shared.core.clone();
    let hold = async move {
        let lease = core.readers.get().await?;
        lease.ask("SELECT pg_sleep(4)::text", &[]).await.map(drop)
    };
    let held = running.store.shared.questioner.run(hold);
    let holder = thread::spawn(move || wait(held));
    while running.store.status().readers.0 == 0 {
        thread::sleep(Duration::from_millis(5));
    }
    let started = Instant::now();
    assert_eq!(running.access(&[1; 32]), Access::default());
    assert!(started.elapsed() < Duration::from_secs(1));
    let error = wait(running.store.reader().last_seq()).expect_err("none is free");
    assert_eq!(error.kind(), StoreErrorKind::ConnectionsExhausted);
    assert!(error.retryable());
    holder.join().expect("no panic").expect("sleeps");
    assert_eq!(running.last_seq(), 0);
}

#[test]
fn a_server_without_connections_is_an_error_that_passes() {
    let Some(cluster) = cluster() else { return };
    let database = name(&cluster.database());
    cluster.run("postgres", &format!("CREATE ROLE {database} LOGIN"));
    cluster.run(
        "postgres",
        &format!("ALTER DATABASE {database} OWNER TO {database}"),
    );
    let own = cluster.url(&database);
    let own = Secret::new(own.expose().replace("//buzz@", &format!("//{database}@")));
    let running = Running::on(&own);
    assert_eq!(seq(&put_one(&running, &note(1, 1))), 1);
    let limit = |number: i32| {
        cluster.run(
            "postgres",
            &format!("ALTER ROLE {database} CONNECTION LIMIT {number}"),
        );
        let end = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{database}'"
        );
        cluster.run("postgres", &end);
    };
    limit(0);
    let error = loop {
        let error = failure(&running, 2);
        if error.kind() != StoreErrorKind::Unreachable {
            break error;
        }
    };
    assert_eq!(
        error.kind(),
        StoreErrorKind::ConnectionsExhausted,
        "{error}"
    );
    limit(-1);
    assert_eq!(put_until_stored(&running, 2), 2);
}

#[test]
fn a_copy_that_is_behind_is_not_read() {
    let Some(cluster) = cluster() else { return };
    let running = Running::on(&cluster.database());
    put_one(&running, &note(1, 1));
    let read = |seq_min| {
        let query = Query::new([Filter::default()].into(), BOUNDS);
        let budget = Budget {
            bytes_max: 1 << 20,
            now: 0,
            seq_min,
        };
        wait(running.store.reader().read(query, budget))
    };
    assert_eq!(running.store.reader().delivered(), 1);
    let started = Instant::now();
    let Err(error) = read(2) else {
        panic!("it is behind");
    };
    assert_eq!(error.kind(), StoreErrorKind::Behind);
    assert!(error.retryable() && started.elapsed() >= Duration::from_millis(900));
    // It catches up while it is waited for.
    thread::scope(|scope| {
        let submit = running.submitter();
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(200));
            submit(&mut vec![job(&note(2, 2), 0)]);
        });
        assert_eq!(read(2).expect("it has caught up").rows.len(), 2);
    });
    running.outcomes.done();
}

#[test]
fn sequences_leap_when_another_server_takes_over() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let stores = [Running::on(&url), Running::on(&url)];
    assert_eq!(seq(&put_one(&stores[0], &note(1, 1))), 1);
    stores[1].outcomes.arrived();
    // A standby that lacks the last commits: it is on another timeline, and behind.
    let database = name(&url);
    cluster.run(
        &database,
        "UPDATE buzz.head SET timeline = 'before', seq = 0",
    );
    cluster.run(&database, "TRUNCATE buzz.events, buzz.tags");
    let next = seq(&put_one(&stores[0], &note(2, 2)));
    assert!(next > 1_000_000, "{next}");
    assert_eq!(stores[1].outcomes.arrived().seq, Some(next));
    // A look does the same where nobody writes.
    cluster.run(&database, "UPDATE buzz.head SET timeline = 'before'");
    let timeline = "SELECT count(*) FROM buzz.head WHERE timeline = 'before'";
    let end = Instant::now() + Duration::from_secs(10);
    while cluster.number(&database, timeline) > 0 {
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(20));
    }
    assert!(stores[1].last_seq() > 2_000_000);
}

#[test]
fn one_event_that_the_database_refuses_does_not_take_others_along() {
    let Some(cluster) = cluster() else { return };
    let url = cluster.database();
    let running = Running::on(&url);
    put_one(&running, &note(0, 1));
    let refuse = "ALTER TABLE buzz.events ADD CONSTRAINT odd CHECK (age <> -666)";
    cluster.run(&name(&url), refuse);
    let group = [note(1, 1), note(2, 666), note(3, 3), note(4, 4)];
    running.submit(&mut group.iter().map(|event| job(event, 0)).collect());
    let mut words = Vec::new();
    for _ in 0..group.len() {
        words.push(match running.outcomes.done().outcome {
            Outcome::Stored { .. } => "stored",
            Outcome::Failed(_) => "failed",
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(words, ["stored", "failed", "stored", "stored"]);
}

#[test]
fn what_is_acknowledged_survives_the_server() {
    if cluster().is_none() {
        return;
    }
    // Durable, as in earnest.
    let own = Cluster::start(&[]).expect("a server");
    let url = own.database();
    let running = Running::on(&url);
    let mut acknowledged = Vec::new();
    for round in 0..3u64 {
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(150));
                own.say("quit");
            });
            for n in 0.. {
                let number = round * 1_000_000 + n * 10;
                let job = |n| job(&note(number + n, number), 0);
                running.submit(&mut (0..10).map(job).collect());
                let mut failed = false;
                for _ in 0..10 {
                    let done = running.outcomes.done();
                    match done.outcome {
                        Outcome::Stored { .. } => acknowledged.push(*done.event.id()),
                        Outcome::Duplicate => acknowledged.push(*done.event.id()),
                        Outcome::Failed(_) => failed = true,
                        other => panic!("{other:?}"),
                    }
                }
                if failed {
                    break;
                }
            }
        });
        own.say("start");
        own.wait_until_it_answers();
        put_until_stored(&running, 5_000_000 + round);
        let stored = audit(&running.store);
        for id in &acknowledged {
            assert!(stored.values().any(|event| event.id() == id), "lost");
        }
    }
    assert!(acknowledged.len() > 100, "{}", acknowledged.len());
}
