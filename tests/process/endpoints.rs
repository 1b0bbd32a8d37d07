//! The health and metrics ports.

use serde_json::json;

use crate::common::{Author, Client, Launch, get, now};

#[test]
fn the_health_port_answers() {
    let relay = Launch::new().start();
    let live = get(relay.health, "/_liveness", &[]);
    assert_eq!((live.status, live.text().as_str()), (200, "ok"));
    let ready = get(relay.health, "/_readiness", &[]);
    assert_eq!(
        (ready.status, ready.json()),
        (200, json!({"status": "ready"}))
    );
    let status = relay.status();
    assert_eq!(
        status["shards"].as_array().map(Vec::len),
        Some(2),
        "{status}"
    );
    assert!(status["uptime_seconds"].is_u64(), "{status}");
    for path in ["/metrics", "/nothing"] {
        assert_eq!(get(relay.health, path, &[]).status, 404, "{path}");
    }
}

#[test]
fn every_series_is_there_from_the_start_at_zero() {
    let relay = Launch::new().set("BUZZ_SHARDS", "3").start();
    let answer = get(relay.metrics, "/metrics", &[]);
    assert_eq!(answer.status, 200);
    let kind = answer.field("Content-Type").unwrap_or_default();
    assert!(
        kind.starts_with("text/plain") && kind.contains("version=0.0.4"),
        "{kind}"
    );
    let text = answer.text();
    let at_zero = |name: &str, labels: &[&str]| {
        let found = crate::common::relay::metric_in(&text, name, labels);
        assert_eq!(found, Some(0.0), "{name}{labels:?} in:\n{text}");
    };
    for shard in ["0", "1", "2"] {
        let label = format!("shard=\"{shard}\"");
        for name in [
            "buzz_ws_connections_active",
            "buzz_ws_connections_total",
            "buzz_subscriptions_active",
        ] {
            at_zero(name, &[&label]);
        }
    }
    for name in [
        "buzz_ws_authenticated_connections_active",
        "buzz_ws_backpressure_disconnects_total",
        "buzz_events_delivered_total",
        "buzz_store_commit_seconds_count",
        "buzz_store_commit_seconds_sum",
        "buzz_ws_closes_total",
        "buzz_events_dropped_total",
    ] {
        at_zero(name, &[]);
    }
    for (name, label, values) in [
        (
            "buzz_events_received_total",
            "outcome",
            &["stored", "ephemeral", "duplicate", "refused"][..],
        ),
        (
            "buzz_events_removed_total",
            "reason",
            &["deleted", "expired", "replaced", "vanished"],
        ),
        ("buzz_queries_total", "kind", &["req", "count", "neg"]),
        ("buzz_query_seconds_count", "kind", &["req", "count", "neg"]),
        (
            "buzz_accept_errors_total",
            "reason",
            &["emfile", "enfile", "econnaborted"],
        ),
    ] {
        for value in values {
            at_zero(name, &[&format!("{label}=\"{value}\"")]);
        }
    }
    let driver = relay.line["driver"].as_str().expect("a driver");
    assert_eq!(
        relay.metric("buzz_io_driver", &[&format!("driver=\"{driver}\"")]),
        Some(1.0)
    );
}

#[tokio::test]
async fn what_happens_is_counted() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    let mut other = Client::connect(relay.address).await;
    let author = Author::new(1);
    let time = now();
    let note = author.json::<&str>(time, 1, &[], "counted");
    let ephemeral = author.json::<&str>(time, 20_001, &[], "not kept");
    let future = author.json::<&str>(time + 10_000, 1, &[], "refused");

    assert!(other.req("all", "{}").await.is_empty());
    client.publish_all([&note, &ephemeral]).await;
    assert!(client.publish(&note).await.0);
    assert!(!client.publish(&future).await.0);
    for _ in 0..2 {
        assert_eq!(other.message().await[0], "EVENT");
    }
    for (name, label, value) in [
        ("buzz_ws_connections_active", "shard", 2.0),
        ("buzz_ws_connections_total", "shard", 2.0),
        ("buzz_subscriptions_active", "shard", 1.0),
        ("buzz_events_received_total", "outcome=\"stored\"", 1.0),
        ("buzz_events_received_total", "outcome=\"ephemeral\"", 1.0),
        ("buzz_events_received_total", "outcome=\"duplicate\"", 1.0),
        ("buzz_events_received_total", "outcome=\"refused\"", 1.0),
        ("buzz_events_delivered_total", "", 2.0),
        ("buzz_queries_total", "kind=\"req\"", 1.0),
        ("buzz_query_seconds_count", "kind=\"req\"", 1.0),
        ("buzz_store_commit_seconds_count", "", 1.0),
    ] {
        relay.await_metric(name, &[label], |found| found == value);
    }
    other.send("[\"CLOSE\",\"all\"]").await;
    relay.await_metric("buzz_subscriptions_active", &[], |found| found == 0.0);
    drop((client, other));
    relay.await_metric("buzz_ws_connections_active", &[], |found| found == 0.0);
    relay.await_metric("buzz_ws_closes_total", &[], |found| found == 2.0);
}
