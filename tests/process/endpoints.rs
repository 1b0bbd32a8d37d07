//! The health and metrics ports.

use serde_json::{Value, json};

use crate::common::{Author, Client, Launch, get, now, until};

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

/// What `/_status` says, by where it says it, and the series that says the same.
const SAME: &[(&str, &str, &str)] = &[
    ("/totals/connections", "buzz_ws_connections_total", ""),
    ("/totals/delivered", "buzz_events_delivered_total", ""),
    ("/totals/dropped", "buzz_events_dropped_total", ""),
    ("/store/commits", "buzz_store_commit_seconds_count", ""),
    ("/store/commit_seconds", "buzz_store_commit_seconds_sum", ""),
    (
        "/shards/0/connections",
        "buzz_ws_connections_active",
        "shard=\"0\"",
    ),
    (
        "/shards/1/connections",
        "buzz_ws_connections_active",
        "shard=\"1\"",
    ),
    (
        "/shards/0/subscriptions",
        "buzz_subscriptions_active",
        "shard=\"0\"",
    ),
    (
        "/shards/1/subscriptions",
        "buzz_subscriptions_active",
        "shard=\"1\"",
    ),
    (
        "/shards/0/queued_bytes",
        "buzz_ws_queued_bytes",
        "shard=\"0\"",
    ),
    (
        "/shards/1/queued_bytes",
        "buzz_ws_queued_bytes",
        "shard=\"1\"",
    ),
];

/// Objects of `/_status` whose members are the values of a label.
const SAME_BY_LABEL: &[(&str, &str, &str, usize)] = &[
    ("/totals/events", "buzz_events_received_total", "outcome", 4),
    ("/totals/queries", "buzz_queries_total", "kind", 3),
    ("/totals/closes", "buzz_ws_closes_total", "reason", 14),
    ("/totals/logins", "buzz_auth_outcomes_total", "outcome", 10),
];

#[tokio::test]
async fn status_and_metrics_agree() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    let mut other = Client::connect(relay.address).await;
    let lost = Client::connect(relay.address).await;
    let author = Author::new(1);
    let time = now();
    let note = author.json::<&str>(time, 1, &[], "counted");
    let ephemeral = author.json::<&str>(time, 20_001, &[], "not kept");
    let future = author.json::<&str>(time + 10_000, 1, &[], "refused");

    assert!(other.req("all", "{}").await.is_empty());
    assert!(other.req("some", "{\"kinds\":[7]}").await.is_empty());
    other.send("[\"COUNT\",\"how many\",{}]").await;
    assert_eq!(other.message().await[0], "COUNT");
    client.publish_all([&note, &ephemeral]).await;
    assert!(client.publish(&note).await.0);
    assert!(!client.publish(&future).await.0);
    client
        .send(
            author
                .json::<&str>(time, 22_242, &[], "")
                .replacen('{', "[\"AUTH\",{", 1)
                + "]",
        )
        .await;
    assert_eq!(client.message().await[0], "OK");
    for _ in 0..2 {
        assert_eq!(other.message().await[0], "EVENT");
    }
    drop(lost);
    relay.await_metric("buzz_ws_closes_total", &[], |found| found == 1.0);

    // The two are asked one after the other, and a sweep may come between them.
    let status = until("both say the same", || {
        let (status, text) = (relay.status(), relay.metrics_text());
        disagreement(&status, &text).is_none().then_some(status)
    });
    let shards = status["shards"].as_array().expect("shards");
    let of_shards = |name: &str| {
        shards
            .iter()
            .map(|shard| shard[name].as_u64().unwrap())
            .sum::<u64>()
    };
    let seen = json!({
        "connections": of_shards("connections"),
        "subscriptions": of_shards("subscriptions"),
        "events": of_shards("events"),
        "delivered": of_shards("delivered"),
        "queries": of_shards("queries"),
    });
    assert_eq!(
        seen,
        json!({"connections": 2, "subscriptions": 2, "events": 4, "delivered": 2, "queries": 3})
    );
    let totals = &status["totals"];
    assert_eq!(totals["connections"], 3);
    assert_eq!(
        totals["events"],
        json!({"stored": 1, "ephemeral": 1, "duplicate": 1, "refused": 1})
    );
    assert_eq!(totals["queries"], json!({"req": 2, "count": 1, "neg": 0}));
    assert_eq!(totals["closes"]["lost"], 1);
    assert_eq!(totals["logins"]["invalid"], 1);
    assert_eq!(status["store"]["commits"], 1);
}

/// Where `/_status` and `/metrics` differ.
fn disagreement(status: &Value, metrics: &str) -> Option<String> {
    let mut pairs: Vec<(String, &str, String)> = SAME
        .iter()
        .map(|(pointer, name, label)| ((*pointer).to_owned(), *name, (*label).to_owned()))
        .collect();
    for (pointer, name, label, count) in SAME_BY_LABEL {
        let members = status.pointer(pointer).and_then(Value::as_object);
        let members = members.unwrap_or_else(|| panic!("no {pointer} in {status}"));
        assert_eq!(members.len(), *count, "{members:?}");
        let members = members.keys();
        pairs.extend(members.map(|key| {
            (
                format!("{pointer}/{key}"),
                *name,
                format!("{label}=\"{key}\""),
            )
        }));
    }
    for gate in ["auth", "history_reads"] {
        for reason in ["timeout", "full", "closed"] {
            pairs.push((
                format!("/gates/{gate}/sheds/{reason}"),
                "buzz_concurrency_sheds_total",
                format!("gate=\"{gate}\",reason=\"{reason}\""),
            ));
        }
    }
    pairs.into_iter().find_map(|(pointer, name, label)| {
        let said = status.pointer(&pointer).and_then(Value::as_f64);
        let said = said.unwrap_or_else(|| panic!("no {pointer} in {status}"));
        let counted = crate::common::relay::metric_in(metrics, name, &[&label]);
        let counted = counted.unwrap_or_else(|| panic!("no {name} {label}"));
        // Seconds are added up in two ways.
        ((said - counted).abs() > 1e-6).then(|| format!("{pointer}: {said}, {name}: {counted}"))
    })
}
