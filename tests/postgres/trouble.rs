//! A database that is away, goes, and comes back.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use buzz_uring::secret::Secret;
use buzz_uring::store::postgres::testing::Proxy;

use crate::common::{Author, Client, WAIT, get, now, raw, until};
use crate::{cluster, database, on};

/// A URL with a password in it, by way of a proxy.
fn by(
    cluster: &buzz_uring::store::postgres::testing::Cluster,
    proxy: &Proxy,
    url: &Secret,
) -> Secret {
    let url = cluster.url_by(proxy.port(), url);
    Secret::new(url.expose().replace("buzz@", "buzz:hush-hush@"))
}

/// Publishes notes until one is accepted; the others are refused as one that may come again.
pub async fn publish_until_accepted(client: &mut Client, author: &Author) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let end = Instant::now() + WAIT;
    loop {
        let text = format!("again {}", NEXT.fetch_add(1, Ordering::Relaxed));
        let event = author.json::<&str>(now(), 1, &[], &text);
        let (accepted, reason) = client.publish(&event).await;
        if accepted {
            return event;
        }
        assert!(reason.starts_with("error:"), "{reason}");
        assert!(Instant::now() < end, "it does not recover: {reason}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_start_waits_for_the_database_and_serves_nobody_until_then() {
    let Some(cluster) = cluster() else { return };
    let url = database(cluster);
    let proxy = Proxy::to(cluster.port());
    proxy.close();
    let quiet = crate::common::quiet_address();
    let health = crate::common::quiet_address();
    let launch = on(&by(cluster, &proxy, &url))
        .set("BUZZ_BIND_ADDR", quiet)
        .set("BUZZ_HEALTH_BIND", health.ip())
        .set("BUZZ_HEALTH_PORT", health.port());
    let mut process = launch.spawn();
    until("the health port answers", || {
        std::net::TcpStream::connect(health).ok().map(drop)
    });
    assert_eq!(get(health, "/_liveness", &[]).status, 200);
    let ready = get(health, "/_readiness", &[]);
    assert_eq!(
        (ready.status, ready.text().as_str()),
        (503, r#"{"status":"starting"}"#)
    );
    // Whoever looks is told so on the health port, and on that alone.
    assert_eq!(get(health, "/", &[]).status, 200);
    assert_eq!(get(health, "/_status", &[]).json()["lifecycle"], "starting");
    for path in ["/", "/_status"] {
        assert_eq!(get(quiet, path, &[]).status, 503, "{path}");
    }
    let mut early = raw::Raw::connect(quiet);
    early.send(raw::upgrade(&[]));
    let refused = early.answer();
    assert_eq!(refused.status, 503);
    assert!(refused.field("retry-after").is_some());
    assert_eq!(refused.text(), "relay starting");
    until("it says what it waits for", || {
        process.output().contains("database").then_some(())
    });
    proxy.open();
    let line = process.wait_ready().expect("the relay serves");
    let relay = crate::common::Relay::new(process, line);
    let event = Author::new(1).json::<&str>(now(), 1, &[], "");
    let mut client = Client::connect(relay.address).await;
    assert_eq!(client.publish(&event).await, (true, String::new()));
    assert!(!relay.output().contains("hush-hush"), "a secret");
}

#[tokio::test]
async fn a_start_gives_up_after_its_wait_and_says_why() {
    let Some(cluster) = cluster() else { return };
    let url = database(cluster);
    let proxy = Proxy::to(cluster.port());
    proxy.close();
    let launch = on(&by(cluster, &proxy, &url)).set("BUZZ_DB_WAIT_MS", 300);
    let exit = launch.run();
    exit.expect(1, &["DATABASE_URL", "could not be reached"]);
    assert!(!format!("{exit:?}").contains("hush-hush"), "a secret");
}

#[tokio::test]
async fn a_pool_that_the_server_cannot_give_fails_the_start() {
    let Some(cluster) = cluster() else { return };
    let launch = on(&database(cluster)).set("BUZZ_DB_READ_POOL_SIZE", 5_000);
    launch
        .run()
        .expect(1, &["max_connections", "BUZZ_DB_READ_POOL_SIZE"]);
}

#[test]
fn relays_whose_pools_do_not_fit_together_are_told_before_they_are_full() {
    let Some(cluster) = cluster() else { return };
    let database = database(cluster);
    // Each fits, and is idle, so that hardly a connection is open.
    let given = "SELECT current_setting('max_connections')::bigint";
    let given = cluster.number("postgres", given);
    let launch = || on(&database).set("BUZZ_DB_READ_POOL_SIZE", given / 2);
    let first = launch().start();
    until("it listens", || {
        (first.status()["store"]["listening"] == true).then_some(())
    });
    let second = launch().start();
    let told = second.output();
    let told = told
        .lines()
        .find(|line| line.contains("may run out of connections"));
    let told: serde_json::Value = serde_json::from_str(told.expect("a warning")).expect("JSON");
    assert!(told["promised"].as_i64() >= Some(given / 2 + 5), "{told}");
    assert!(told["used"].as_i64() < told["promised"].as_i64(), "{told}");
}

#[tokio::test]
async fn while_the_database_is_away_every_client_is_told_and_afterwards_served() {
    let Some(cluster) = cluster() else { return };
    let url = database(cluster);
    let proxy = Proxy::to(cluster.port());
    let relay = on(&by(cluster, &proxy, &url)).start();
    let author = Author::new(1);
    let note = |n: u64| author.json::<&str>(now() - n, 1, &[], "");
    let mut client = Client::connect(relay.address).await;
    assert_eq!(client.publish(&note(1)).await, (true, String::new()));

    proxy.close();
    let (accepted, reason) = client.publish(&note(2)).await;
    assert!(!accepted && reason.starts_with("error:"), "{reason}");
    client.send("[\"REQ\",\"r\",{\"kinds\":[1]}]").await;
    assert!(client.closed("r").await.starts_with("error:"));
    client.send("[\"COUNT\",\"c\",{\"kinds\":[1]}]").await;
    assert!(client.closed("c").await.starts_with("error:"));
    let ephemeral = author.json::<&str>(now(), 20_001, &[], "");
    let (accepted, reason) = client.publish(&ephemeral).await;
    assert!(!accepted && reason.starts_with("error:"), "{reason}");
    // The database's trouble takes no relay out of service.
    assert_eq!(get(relay.health, "/_readiness", &[]).status, 200);

    proxy.open();
    publish_until_accepted(&mut client, &author).await;
    assert!(client.fetch("{\"kinds\":[1]}").await.len() >= 2);
    assert!(!relay.output().contains("hush-hush"), "a secret");
}

#[tokio::test]
async fn what_was_missed_while_the_database_was_away_is_told_later_and_once() {
    let Some(cluster) = cluster() else { return };
    let url = database(cluster);
    let proxy = Proxy::to(cluster.port());
    let (cut, whole) = (on(&by(cluster, &proxy, &url)).start(), on(&url).start());
    let mut listener = Client::connect(cut.address).await;
    listener.req("live", "{\"kinds\":[1],\"limit\":0}").await;
    let mut writer = Client::connect(whole.address).await;
    let author = Author::new(1);
    let mut published = Vec::new();
    for n in 0..60 {
        match n {
            20 => proxy.close(),
            30 => proxy.cut(),
            40 => proxy.open(),
            50 => proxy.cut(),
            _ => {}
        }
        let event = author.json::<&str>(now(), 1, &[], &n.to_string());
        assert_eq!(writer.publish(&event).await, (true, String::new()));
        published.push(event);
    }
    for event in &published {
        assert_eq!(
            listener.text().await,
            format!("[\"EVENT\",\"live\",{event}]")
        );
    }
    // The listener's own relay answers again: nothing more has come.
    until("it answers", || {
        (cut.metric("buzz_db_listening", &[]) == Some(1.0)).then_some(())
    });
}

#[tokio::test]
async fn a_drain_completes_what_is_on_its_way() {
    let Some(cluster) = cluster() else { return };
    let url = database(cluster);
    let relay = on(&url).start();
    let mut client = Client::connect(relay.address).await;
    let event = Author::new(1).json::<&str>(now(), 1, &[], "");
    assert_eq!(client.publish(&event).await, (true, String::new()));
    assert_eq!(relay.stop().code(), 0);
    let again = on(&url).start();
    let mut client = Client::connect(again.address).await;
    assert_eq!(client.fetch("{\"kinds\":[1]}").await, [event]);
}
