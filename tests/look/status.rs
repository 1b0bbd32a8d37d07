//! `buzz-uring status`.

use rustix::process::Signal;
use serde_json::Value;

use crate::beside;
use crate::common::{Author, Client, Launch, now, quiet_address, until};

#[tokio::test]
async fn a_ready_relay_is_shown_to_people_and_to_scripts() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    assert!(client.req("all", "{}").await.is_empty());
    let mut author = Client::connect(relay.address).await;
    let event = Author::new(1).json::<&str>(now(), 1, &[], "seen");
    assert!(author.publish(&event).await.0);
    relay.await_metric("buzz_events_delivered_total", &[], |count| count == 1.0);

    let exit = beside(&relay, &["status"]).run();
    exit.expect(0, &[]);
    for words in [
        &format!("at http://{}: ready, up ", relay.health),
        "connections  2 open, 2 ever; 1 subscription; ",
        "1 stored; 1 delivered, 0 dropped",
        "1 req",
        "1 commit of",
        "none; it would close all at once",
        "history_reads     40       40",
        "auth            none     none",
    ] {
        assert!(exit.stdout.contains(words), "{words:?} is not in {exit:#?}");
    }
    assert_eq!(exit.stdout.matches("\n0 ").count(), 1, "{exit:#?}");
    assert_eq!(exit.stdout.matches("\n1 ").count(), 1, "{exit:#?}");

    // Of another relay's settings, by its address.
    let url = format!("http://localhost:{}", relay.health.port());
    let exit = Launch::new()
        .arg("status")
        .arg("--json")
        .arg("--url")
        .arg(&url)
        .run();
    exit.expect(0, &[]);
    assert_eq!(exit.stdout.lines().count(), 1, "{exit:#?}");
    let told: Value = serde_json::from_str(&exit.stdout).expect("JSON");
    let asked = relay.status();
    for member in ["version", "commit", "lifecycle", "totals", "gates", "drain"] {
        assert_eq!(told[member], asked[member], "{member}");
    }
}

#[test]
fn a_relay_that_drains_is_shown_and_is_not_ready() {
    let relay = Launch::new().set("BUZZ_DRAIN_GRACE_MS", "20000").start();
    relay.signal(Signal::TERM);
    until("it drains", || {
        (relay.status()["lifecycle"] == "draining").then_some(())
    });
    let exit = beside(&relay, &["status"]).run();
    exit.expect(1, &[]);
    assert!(exit.stdout.contains(": draining, up"), "{exit:#?}");
    assert!(
        exit.stdout.contains("drain        grace: 0 of 0 left"),
        "{exit:#?}"
    );
    assert!(exit.stdout.contains("(SIGTERM)"), "{exit:#?}");
}

#[test]
fn nobody_there_and_nobody_of_ours_are_told() {
    let quiet = quiet_address();
    let launch = Launch::new()
        .set("BUZZ_HEALTH_BIND", quiet.ip())
        .set("BUZZ_HEALTH_PORT", quiet.port());
    for more in [&[][..], &["--json"]] {
        let launch = more
            .iter()
            .fold(launch.clone().arg("status"), |launch, word| {
                launch.arg(word)
            });
        let exit = launch.run();
        exit.expect(1, &["no answer from http://", "/_status", "refused"]);
        assert_eq!(exit.stdout, "");
    }
    // The metrics port has no status.
    let relay = Launch::new().start();
    let url = format!("http://{}", relay.metrics);
    let exit = Launch::new().arg("status").arg("--url").arg(&url).run();
    exit.expect(1, &["/_status answers 404"]);
}

#[test]
fn a_port_that_is_not_known_is_bad_usage() {
    // The settings of a test's relay leave it to chance.
    for command in ["status", "top"] {
        let exit = Launch::new().arg(command).run();
        exit.expect(64, &["BUZZ_HEALTH_PORT"]);
        let exit = Launch::new().arg(command).arg("--url").arg("relay").run();
        exit.expect(64, &["--url", "http://host:port"]);
    }
}
