//! Every series of the contract exists from the start, counters and histograms at zero.

use crate::common::relay::metric_in;
use crate::common::{Launch, get};
use crate::launchdarkly::Fake;
use crate::support::{agree, end_quietly, of_launchdarkly};

const GATES: [&str; 2] = ["history_reads", "auth"];

/// Labels as Prometheus shows them.
fn label(name: &str, values: &[&str]) -> Vec<String> {
    values
        .iter()
        .map(|value| format!("{name}=\"{value}\""))
        .collect()
}

/// Name, and the label sets that must be there.
fn counters() -> Vec<(&'static str, Vec<String>)> {
    let sheds = GATES.iter().flat_map(|gate| {
        let reasons = ["timeout", "full", "closed"];
        reasons.map(|reason| format!("gate=\"{gate}\",reason=\"{reason}\""))
    });
    let outcomes = [
        "success",
        "invalid",
        "banned",
        "allowlist_denied",
        "not_relay_member",
        "check_error",
        "concurrency_limit",
        "timeout",
        "disconnect",
        "shutdown",
    ];
    let outcomes = outcomes.map(|outcome| format!("method=\"nip42\",outcome=\"{outcome}\""));
    let flags = [
        "buzz.relay.concurrency.history-reads",
        "buzz.relay.concurrency.auth",
    ];
    let none = || vec![String::new()];
    vec![
        ("buzz_concurrency_sheds_total", sheds.collect()),
        ("buzz_concurrency_limit_refresh_panics_total", none()),
        ("buzz_feature_flag_mistyped_total", label("flag", &flags)),
        ("buzz_auth_attempts_total", label("method", &["nip42"])),
        ("buzz_auth_outcomes_total", outcomes.to_vec()),
        ("buzz_ws_connections_total", label("shard", &["0", "1"])),
        ("buzz_ws_backpressure_disconnects_total", none()),
        (
            "buzz_ws_closes_total",
            label(
                "reason",
                &["auth_shed", "auth_timeout", "banned", "lost", "restart"],
            ),
        ),
        (
            "buzz_events_received_total",
            label("outcome", &["stored", "ephemeral", "duplicate", "refused"]),
        ),
        ("buzz_events_delivered_total", none()),
        ("buzz_events_dropped_total", label("reason", &["closing"])),
        (
            "buzz_queries_total",
            label("kind", &["req", "count", "neg"]),
        ),
        (
            "buzz_drain_closes_total",
            label("how", &["acknowledged", "cancelled", "gone", "hard"]),
        ),
    ]
}

fn histograms() -> Vec<(&'static str, Vec<String>)> {
    vec![
        ("buzz_concurrency_wait_seconds", label("gate", &GATES)),
        ("buzz_concurrency_hold_seconds", label("gate", &GATES)),
        (
            "buzz_query_seconds",
            label("kind", &["req", "count", "neg"]),
        ),
        ("buzz_store_commit_seconds", vec![String::new()]),
    ]
}

fn expect(text: &str, name: &str, labels: &str, value: f64) {
    let labels: Vec<&str> = labels
        .split(',')
        .filter(|label| !label.is_empty())
        .collect();
    assert_eq!(
        metric_in(text, name, &labels),
        Some(value),
        "{name}{labels:?} in:\n{text}"
    );
}

#[test]
fn all_of_them_are_there_before_the_first_client() {
    let relay = Launch::new().start();
    let text = relay.metrics_text();
    for (name, sets) in counters() {
        for labels in sets {
            expect(&text, name, &labels, 0.0);
        }
        // Whatever else it has is at zero too.
        expect(&text, name, "", 0.0);
    }
    for (name, sets) in histograms() {
        for labels in sets {
            for part in ["count", "sum"] {
                expect(&text, &format!("{name}_{part}"), &labels, 0.0);
            }
            let bucket = format!("{name}_bucket");
            let wide = format!("{labels},le=\"+Inf\"");
            expect(&text, &bucket, wide.trim_start_matches(','), 0.0);
        }
    }
    for (gate, limit) in [("history_reads", 40.0), ("auth", 0.0)] {
        let labels = format!("gate=\"{gate}\"");
        expect(&text, "buzz_concurrency_limit", &labels, limit);
        for gauge in ["in_flight", "waiting", "debt"] {
            let name = format!("buzz_concurrency_{gauge}");
            expect(&text, &name, &labels, 0.0);
        }
    }
    for name in [
        "buzz_ws_connections_active",
        "buzz_subscriptions_active",
        "buzz_drain_connections_remaining",
    ] {
        for shard in label("shard", &["0", "1"]) {
            expect(&text, name, &shard, 0.0);
        }
    }
    expect(&text, "buzz_ws_authenticated_connections_active", "", 0.0);
    expect(
        &text,
        "buzz_feature_flags_ready",
        "provider=\"static\"",
        1.0,
    );
    let refreshed = metric_in(
        &text,
        "buzz_feature_flags_last_refresh_timestamp_seconds",
        &[],
    );
    let age = crate::common::now() as f64 - refreshed.expect("the time of the last refresh");
    assert!(age.abs() < 60.0, "{age}");
    // Only where the setting asks for it.
    assert!(!text.contains("buzz_concurrency_remembered_age_seconds"));
    agree(&relay);
    // Never on the public port.
    assert_ne!(get(relay.address, "/metrics", &[]).text(), text);
    assert_eq!(get(relay.health, "/metrics", &[]).status, 404);
}

#[test]
fn the_ready_gauge_is_of_the_chosen_provider_only() {
    let mut fake = Fake::start(&[]);
    fake.refuse();
    let launch = of_launchdarkly(&fake).set("BUZZ_REMEMBER_CAPS", "true");
    let relay = launch.start();
    let text = relay.metrics_text();
    let shown: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("buzz_feature_flags_ready"))
        .collect();
    assert_eq!(
        shown,
        ["buzz_feature_flags_ready{provider=\"launchdarkly\"} 0"]
    );
    for gate in label("gate", &GATES) {
        expect(&text, "buzz_concurrency_remembered_age_seconds", &gate, 0.0);
    }
    end_quietly(relay, &launch, &fake);
}
