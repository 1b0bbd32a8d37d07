//! What an import and an export share with the clients of a running relay.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::common::{Author, Client, Launch, id_of, now, until};
use crate::{exported, import, lines, notes, start_import};

#[tokio::test(flavor = "multi_thread")]
async fn clients_get_what_is_imported_live_and_can_ask_for_it() {
    let launch = Launch::new();
    let relay = launch.start();
    let mut client = Client::connect(relay.address).await;
    assert_eq!(client.req("all", "{\"kinds\":[1]}").await, [""; 0]);
    let events = notes(1, 500);
    let input = lines(&events);
    let imported = tokio::task::spawn_blocking(move || import(&launch, input));
    for event in &events {
        let got = client.message().await;
        assert_eq!((&got[0], &got[1]), (&json!("EVENT"), &json!("all")));
        assert_eq!(got[2]["id"], id_of(event), "in the order of the lines");
    }
    imported
        .await
        .unwrap()
        .expect(0, &[])
        .counts([500, 0, 0, 0]);
    client.send("[\"CLOSE\",\"all\"]").await;
    assert_eq!(
        client.fetch("{\"kinds\":[1],\"limit\":1000}").await.len(),
        500
    );
    let outcomes = [("stored", 500.0), ("duplicate", 0.0), ("refused", 0.0)];
    for (outcome, count) in outcomes {
        let label = format!("outcome=\"{outcome}\"");
        relay.await_metric("buzz_import_events_total", &[&label], |n| n == count);
    }
    relay.await_metric("buzz_transfers_active", &[], |n| n == 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_publish_while_an_import_goes_on() {
    let launch = Launch::new();
    let relay = launch.start();
    let running = start_import(&launch);
    let (mut running, stop) = (running, Arc::new(AtomicBool::new(false)));
    let mut stdin = running.stdin();
    let stopped = Arc::clone(&stop);
    let feeder = std::thread::spawn(move || {
        let author = Author::new(9);
        let mut count = 0;
        while !stopped.load(Ordering::Relaxed) {
            let event = author.json::<&str>(now(), 1, &[], &format!("imported {count}"));
            writeln!(stdin, "{event}").expect("the import reads");
            count += 1;
        }
        count
    });
    let mut client = Client::connect(relay.address).await;
    client.publish_all(&notes(1, 50)).await;
    stop.store(true, Ordering::Relaxed);
    let count = feeder.join().expect("a feeder");
    running.wait().expect(0, &[]).counts([count, 0, 0, 0]);
    assert_eq!(exported(&launch, &[]).lines().count(), count + 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_during_writes_has_everything_that_was_there_before() {
    let launch = Launch::new();
    let relay = launch.start();
    // Enough that it takes several slices.
    let before = notes(1, 3_000);
    import(&launch, lines(&before)).expect(0, &[]);
    let mut client = Client::connect(relay.address).await;
    let profile = |n: u64| Author::new(3).json::<&str>(now() - 100 + n, 0, &[], "me");
    client.publish_all([&profile(0)]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writes = {
        let stop = Arc::clone(&stop);
        tokio::spawn(async move {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                client.publish_all([&profile(n)]).await;
                client.publish_all(&notes(100 + n, 1)).await;
            }
        })
    };
    for args in [&[][..], &["--filter", "{\"kinds\":[0,1]}"]] {
        let (launch, args) = (launch.clone(), args.to_vec());
        let found = tokio::task::spawn_blocking(move || exported(&launch, &args));
        let found = found.await.unwrap();
        let ids: std::collections::HashSet<&str> = found.lines().map(id_of).collect();
        assert_eq!(ids.len(), found.lines().count(), "each once");
        assert!(before.iter().all(|event| ids.contains(id_of(event))));
        assert!(found.contains("\"kind\":0,"), "one version or another");
    }
    stop.store(true, Ordering::Relaxed);
    writes.await.expect("the client goes on");
}

#[test]
fn one_import_runs_at_a_time_and_status_shows_it() {
    let launch = Launch::new();
    let relay = launch.start();
    let running = start_import(&launch);
    until("the import shows", || {
        (relay.status()["transfers"]["imports"] == 1).then_some(())
    });
    relay.await_metric("buzz_transfers_active", &["import"], |n| n == 1.0);
    let refused = import(&launch, lines(&notes(1, 1)));
    refused.expect(1, &["the relay refused: as many of them run as may"]);
    // An export is another matter.
    assert_eq!(exported(&launch, &[]), "");
    let mut running = running;
    drop(running.stdin());
    running.wait().expect(0, &[]).counts([0; 4]);
    import(&launch, lines(&notes(1, 1)))
        .expect(0, &[])
        .counts([1, 0, 0, 0]);
}

#[test]
fn no_other_port_takes_an_import() {
    let relay = Launch::new().start();
    for address in [relay.address, relay.health, relay.metrics] {
        for path in ["/import", "/export"] {
            let mut raw = crate::common::Raw::connect(address);
            raw.send(format!(
                "POST {path} HTTP/1.1\r\nHost: relay\r\nContent-Length: 0\r\n\r\n"
            ));
            let status = raw.answer_head().status;
            assert!((400..500).contains(&status), "{address}{path}: {status}");
        }
    }
}
