//! Upgrades that go well.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::process::Signal;

use crate::common::database::{cluster, database, on};
use crate::common::{Client, LOOK, Relay, WAIT, id_of, raw::Raw, skip, until};
use crate::load::Load;
use crate::{half_a_request, has_left, serves, taker};

/// Upgrades in a row; an environment variable makes a soak of it.
fn upgrades() -> usize {
    let asked = std::env::var("BUZZ_TEST_UPGRADES").ok();
    asked.and_then(|asked| asked.parse().ok()).unwrap_or(20)
}

/// Clients that stay are served by this relay, so that the next upgrade has somebody to tell.
async fn has_clients(relay: &Relay, count: u64) {
    let end = Instant::now() + WAIT;
    while relay.status()["connections"].as_u64() < Some(count) {
        assert!(Instant::now() < end, "nobody came back");
        tokio::time::sleep(LOOK).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_in_a_row_under_load_refuse_nobody_and_lose_nothing() {
    let Some(cluster) = cluster() else { return };
    let launch = on(&database(cluster));
    let mut relay = launch.start();
    serves(relay.address, 1_000).await;
    let address = relay.address;
    let listening = relay.listening_descriptors();
    let descriptors = relay.descriptors();

    let load = Load::start(address, 6, 4);
    for number in 0..upgrades() {
        has_clients(&relay, 4).await;
        let before = load.seen.opened.load(Ordering::Relaxed);
        let next = taker(&launch).start();
        assert_eq!((next.address, next.health), (address, relay.health));
        assert_eq!(next.line["sockets"], "taken over");
        has_left(std::mem::replace(&mut relay, next));
        assert_eq!(*load.seen.faults.lock().unwrap(), [""; 0], "{number}");
        let came = || load.seen.opened.load(Ordering::Relaxed) > before + 6;
        until("clients come on", || came().then_some(()));
    }
    let seen = load.stop().await;
    assert_eq!(*seen.faults.lock().unwrap(), [""; 0]);
    assert!(
        seen.told.load(Ordering::Relaxed) >= upgrades(),
        "told to leave"
    );
    assert!(seen.live.load(Ordering::Relaxed) > 0);

    let acknowledged = seen.acknowledged.lock().unwrap().clone();
    let mut reader = Client::connect(address).await;
    let events = reader.fetch("{\"kinds\":[1],\"limit\":1000000}").await;
    let stored: HashSet<String> = events.iter().map(|event| id_of(event).to_owned()).collect();
    assert!(
        acknowledged.is_subset(&stored),
        "acknowledged and not stored"
    );
    drop(reader);
    eprintln!(
        "{} connections, {} events, {} told to leave",
        seen.opened.load(Ordering::Relaxed),
        acknowledged.len(),
        seen.told.load(Ordering::Relaxed)
    );

    // Nothing is left of those before: one process, and no descriptor more than at the beginning,
    // but for the pools.
    relay.await_metric("buzz_ws_connections_active", &[], |n| n == 0.0);
    assert_eq!(relay.listening_descriptors(), listening);
    let pools = 4 + 5 + 1;
    let most = descriptors + pools;
    until("as few descriptors as at the beginning", || {
        (relay.descriptors() <= most).then_some(())
    });
    let folder = relay.data_dir();
    relay.stop().expect(0, &[]);
    assert!(!folder.join("control.sock").exists());
    assert!(!folder.join("hand-over.sock").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_under_way_is_answered_by_the_old_one() {
    let Some(cluster) = cluster() else { return };
    for driver in ["auto", "epoll"] {
        let launch = on(&database(cluster)).set("BUZZ_IO_DRIVER", driver);
        let old = launch.start();
        let (mut raw, rest) = half_a_request(&old);
        let new = taker(&launch).start();
        // The new one serves already, and the old one waits for this client.
        serves(new.address, 1).await;
        raw.send(rest);
        raw.expect_upgrade();
        let (_, code, reason) = raw.messages_until_close();
        assert_eq!((code, reason.as_str()), (Some(1012), "relay restarting"));
        has_left(old);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_socket_is_accepted_from_whatever_the_number_of_shards_and_the_driver() {
    let Some(cluster) = cluster() else { return };
    let launch = on(&database(cluster));
    let mut relay = launch.clone().set("BUZZ_SHARDS", 2).start();
    for (number, (shards, driver)) in [(4, "auto"), (1, "epoll"), (3, "epoll"), (2, "auto")]
        .into_iter()
        .enumerate()
    {
        let next = taker(&launch)
            .set("BUZZ_SHARDS", shards)
            .set("BUZZ_IO_DRIVER", driver)
            .start();
        has_left(std::mem::replace(&mut relay, next));
        // By their hash they come to every socket.
        let mut clients = Vec::new();
        for _ in 0..64 {
            clients.push(Raw::upgraded(relay.address));
        }
        assert_eq!(relay.status()["connections"], 64, "{number}");
        let status = relay.status();
        let shares = status["shards"].as_array().expect("shards").iter();
        let shares: Vec<u64> = shares.filter_map(|one| one["sockets"].as_u64()).collect();
        assert_eq!(shares.len(), shards, "{shares:?}");
        assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
    }
    serves(relay.address, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_old_one_holds_nothing_back_while_it_drains() {
    let Some(cluster) = cluster() else { return };
    let launch = on(&database(cluster));
    let long = launch.clone().set("BUZZ_DRAIN_JITTER_MS", 20_000);
    let old = long.start();
    let mut staying = Vec::new();
    for _ in 0..20 {
        staying.push(Client::connect(old.address).await);
    }
    let mut new = taker(&launch).start();
    // It is gone without a word, while the oldest still drains: the address and the folder are free.
    let fixed = new.address;
    new.kill();
    let fresh = launch.clone().set("BUZZ_BIND_ADDR", fixed).start();
    assert_eq!(fresh.address, fixed);
    serves(fixed, 1).await;
    if old.output().contains("the relay has stopped") {
        skip(
            "the_old_one_holds_nothing_back",
            "all this took longer than its window",
        );
    }
    old.signal(Signal::KILL);
    drop(staying);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_reach_the_new_one_and_status_tells() {
    let Some(cluster) = cluster() else { return };
    let launch = on(&database(cluster));
    let old = launch.start();
    assert_eq!(
        old.status()["hand_over"]["to_process"],
        serde_json::Value::Null
    );
    let new = taker(&launch).start();
    has_left(old);
    let folder = new.data_dir();
    let signed = std::fs::read_to_string(folder.join("lock")).expect("the lock's file");
    assert_eq!(signed, new.process_id().to_string());
    let drain = launch.clone().arg("drain").arg("--wait").run();
    drain.expect(0, &[]);
    let mut new = new;
    new.wait_exit(WAIT)
        .expect(0, &["\"requested_by\":\"admin\""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_nobody_there_it_just_starts() {
    let Some(cluster) = cluster() else { return };
    let launch = on(&database(cluster));
    let relay = taker(&launch).start();
    assert!(relay.output().contains("so nothing is taken over"));
    serves(relay.address, 1).await;
    // A killed one leaves its sockets' files behind.
    let mut relay = relay;
    relay.kill();
    let relay = taker(&launch).start();
    serves(relay.address, 2).await;
}
