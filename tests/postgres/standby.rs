//! Two servers: one that history is read from, and one that takes over.

use std::collections::HashSet;

use buzz_uring::secret::Secret;
use buzz_uring::store::postgres::testing::{Cluster, Proxy};

use crate::common::{Author, Client, now, until};
use crate::lists::log_in;
use crate::together::{Listener, Told, notes, publish_all, stored};
use crate::trouble::publish_until_accepted;
use crate::{apart, cluster, database, on};

/// Events that each relay is given.
const BURST: usize = 4_000;

/// A server of a test's own, whose commits are durable, and its standby.
fn pair() -> (&'static Cluster, &'static Cluster) {
    let servers = apart(|| {
        let primary = Cluster::start(&[]).expect("a server");
        let standby = primary.standby().expect("a standby");
        (primary, standby)
    });
    // For `apart`. They end with the process.
    (
        Box::leak(Box::new(servers.0)),
        Box::leak(Box::new(servers.1)),
    )
}

#[tokio::test]
async fn history_whose_database_is_down_does_not_go_to_the_writers() {
    let Some(cluster) = cluster() else { return };
    let url = database(cluster);
    let proxy = Proxy::to(cluster.port());
    let read_url = cluster.url_by(proxy.port(), &url);
    let relay = on(&url).set("READ_DATABASE_URL", read_url.expose()).start();
    let (author, mut client) = (Author::new(1), Client::connect(relay.address).await);
    let event = publish_until_accepted(&mut client, &author).await;
    assert_eq!(client.fetch("{\"kinds\":[1]}").await, [event]);
    proxy.close();
    for n in 1..20 {
        client.send("[\"REQ\",\"r\",{\"kinds\":[1]}]").await;
        let reason = client.closed("r").await;
        assert!(reason.starts_with("error:"), "{reason}");
        client.send("[\"COUNT\",\"c\",{\"kinds\":[1]}]").await;
        let reason = client.closed("c").await;
        assert!(reason.starts_with("error:"), "{reason}");
        let event = author.json::<&str>(now(), 1, &[], &n.to_string());
        assert_eq!(client.publish(&event).await, (true, String::new()));
    }
    let (_, accepted, reason) = log_in(relay.address, &author);
    assert!(accepted, "{reason}");
    proxy.open();
    assert_eq!(client.fetch("{\"kinds\":[1]}").await.len(), 20);
}

#[tokio::test]
async fn a_standby_that_is_behind_is_waited_for_and_not_for_ever() {
    if cluster().is_none() {
        return;
    }
    let (primary, standby) = pair();
    let relay = on(&primary.url("postgres"))
        .set("READ_DATABASE_URL", standby.url("postgres").expose())
        .start();
    let (author, mut client) = (Author::new(1), Client::connect(relay.address).await);
    // What is there is read at once, however soon: it is waited for.
    let mut published = HashSet::new();
    for n in 0..50 {
        let event = author.json::<&str>(now(), 1, &[], &n.to_string());
        assert_eq!(client.publish(&event).await, (true, String::new()));
        published.insert(event);
        let found: HashSet<String> = client.fetch("{\"kinds\":[1]}").await.into_iter().collect();
        assert_eq!(found, published);
    }
    apart(move || standby.run("postgres", "SELECT pg_wal_replay_pause()"));
    let paused = "SELECT (pg_get_wal_replay_pause_state() = 'paused')::int";
    until("it is paused", || {
        (apart(move || standby.number("postgres", paused)) == 1).then_some(())
    });
    let event = publish_until_accepted(&mut client, &author).await;
    client.send("[\"REQ\",\"r\",{\"kinds\":[1]}]").await;
    let reason = client.closed("r").await;
    assert!(reason.starts_with("error:"), "{reason}");
    apart(move || standby.run("postgres", "SELECT pg_wal_replay_resume()"));
    published.insert(event);
    let found: HashSet<String> = client.fetch("{\"kinds\":[1]}").await.into_iter().collect();
    assert_eq!(found, published);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_in_a_burst_loses_nothing_acknowledged() {
    if cluster().is_none() {
        return;
    }
    let own: &Cluster = Box::leak(Box::new(apart(move || {
        Cluster::start(&[]).expect("a server")
    })));
    bursts_through(&own.url("postgres"), || {
        own.say("quit");
        own.say("start");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_in_a_burst() {
    if cluster().is_none() {
        return;
    }
    let (primary, standby) = pair();
    let synchronous = "ALTER SYSTEM SET synchronous_standby_names = '*'";
    apart(move || primary.run("postgres", synchronous));
    apart(move || primary.run("postgres", "SELECT pg_reload_conf()"));
    let follows = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    until("the standby is a synchronous one", || {
        (apart(move || primary.number("postgres", follows)) == 1).then_some(())
    });
    // As operators give two servers.
    let both = format!(
        "postgres://buzz@127.0.0.1:{},127.0.0.1:{}/postgres?sslmode=disable&target_session_attrs=read-write",
        primary.port(),
        standby.port()
    );
    bursts_through(&Secret::new(both), || {
        primary.say("quit");
        apart(move || standby.run("postgres", "SELECT pg_promote()"));
    })
    .await;
}

/// Publishes on two relays, does something to the database in the middle, and accounts for every event:
/// each was answered, what was acknowledged is there, and what is there was told once on every relay.
async fn bursts_through(url: &Secret, trouble: impl FnOnce()) {
    let relays = crate::several(url, 2);
    let mut listeners = Vec::new();
    for relay in &relays {
        listeners.push(Listener::start(relay.address, 0).await);
    }
    let mut tasks = Vec::new();
    for (number, relay) in relays.iter().enumerate() {
        let client = Client::connect(relay.address).await;
        let events = notes(number as u64 + 1, BURST);
        tasks.push(tokio::spawn(publish_all(client, events)));
    }
    for relay in &relays {
        relay.await_metric("buzz_events_received_total", &["stored"], |n| n >= 200.0);
    }
    trouble();
    let mut acknowledged = HashSet::new();
    let mut refused = 0;
    for task in tasks {
        let Told { accepted, failed } = task.await.expect("every event is answered");
        assert_eq!(accepted.len() + failed, BURST, "not all were answered");
        acknowledged.extend(accepted);
        refused += failed;
    }
    // They recover by themselves.
    for (number, relay) in relays.iter().enumerate() {
        let mut client = Client::connect(relay.address).await;
        let author = Author::new(90 + number as u64);
        let event = publish_until_accepted(&mut client, &author).await;
        acknowledged.insert(crate::common::id_of(&event).to_owned());
    }
    let mut reader = Client::connect(relays[0].address).await;
    let kept = stored(&mut reader).await;
    let lost = acknowledged.difference(&kept).count();
    assert_eq!(
        lost,
        0,
        "of {} acknowledged, {refused} refused",
        acknowledged.len()
    );
    for listener in listeners {
        listener.await_all(&kept).await;
    }
}
