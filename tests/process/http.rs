//! Requests that ask for no WebSocket, and request heads that ask for too much.

use std::time::{Duration, Instant};

use crate::common::raw::{self, Answer, Raw, get, head, request, upgrade};
use crate::common::{Launch, Relay};

const NOSTR: (&str, &str) = ("Accept", "application/nostr+json");

fn is_open_to_web_pages(answer: &Answer) -> bool {
    answer.field("Access-Control-Allow-Origin") == Some("*")
}

#[test]
fn the_relay_describes_itself_as_it_is_set() {
    let relay = Launch::new()
        .set("BUZZ_NAME", "a \"quoted\" name")
        .set("BUZZ_DESCRIPTION", "for tests")
        .set("BUZZ_CONTACT", "mailto:op@relay.example")
        .set("BUZZ_PUBKEY", "ab".repeat(32))
        .set("BUZZ_MAX_FRAME_BYTES", "4096")
        .set("BUZZ_MAX_SUBSCRIPTIONS", "3")
        .set("BUZZ_MAX_SUBID_LENGTH", "5")
        .set("BUZZ_MAX_LIMIT", "7")
        .set("BUZZ_DEFAULT_LIMIT", "2")
        .set("BUZZ_CREATED_AT_PAST_SECONDS", "1000")
        .set("BUZZ_CREATED_AT_FUTURE_SECONDS", "60")
        .start();
    let answer = get(relay.address, "/", &[NOSTR]);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.field("Content-Type"), Some("application/nostr+json"));
    assert!(is_open_to_web_pages(&answer), "{answer:?}");
    let document = answer.json();
    for (field, value) in [
        ("name", "a \"quoted\" name"),
        ("description", "for tests"),
        ("contact", "mailto:op@relay.example"),
        ("pubkey", &"ab".repeat(32)),
        ("version", env!("CARGO_PKG_VERSION")),
    ] {
        assert_eq!(document[field], value, "{document}");
    }
    for (field, value) in [
        ("max_message_length", 4096),
        ("max_subscriptions", 3),
        ("max_subid_length", 5),
        ("max_limit", 7),
        ("default_limit", 2),
        ("created_at_lower_limit", 1000),
        ("created_at_upper_limit", 60),
    ] {
        assert_eq!(document["limitation"][field], value, "{document}");
    }
    for field in ["auth_required", "payment_required", "restricted_writes"] {
        assert_eq!(document["limitation"][field], false, "{document}");
    }
    let nips = document["supported_nips"].as_array().expect("a list");
    assert!(
        nips.contains(&1.into()) && nips.contains(&11.into()),
        "{document}"
    );
}

#[test]
fn web_pages_may_ask_before_they_read() {
    let relay = Launch::new().start();
    let asked = [
        ("Origin", "https://client.example"),
        ("Access-Control-Request-Method", "GET"),
    ];
    let answer = request(relay.address, "OPTIONS", "/", &asked);
    assert!(matches!(answer.status, 200 | 204), "{answer:?}");
    assert!(is_open_to_web_pages(&answer), "{answer:?}");
    assert_eq!(answer.field("Access-Control-Allow-Headers"), Some("*"));
    let methods = answer
        .field("Access-Control-Allow-Methods")
        .unwrap_or_default();
    assert!(methods.contains("GET"), "{answer:?}");
}

#[test]
fn a_browser_gets_a_page_in_plain_html() {
    let relay = Launch::new().set("BUZZ_NAME", "<b>bold</b> & co").start();
    for fields in [
        &[][..],
        &[("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")],
    ] {
        let answer = get(relay.address, "/", fields);
        assert_eq!(answer.status, 200);
        let kind = answer.field("Content-Type").unwrap_or_default();
        assert!(kind.starts_with("text/html"), "{answer:?}");
        let page = answer.text();
        assert!(page.to_lowercase().starts_with("<!doctype html>"), "{page}");
        assert!(!page.contains("<b>bold"), "{page}");
        assert!(page.contains("&lt;b&gt;bold&lt;/b&gt; &amp; co"), "{page}");
    }
    let whole = get(relay.address, "/", &[]);
    let head = request(relay.address, "HEAD", "/", &[]);
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(
        head.field("Content-Length"),
        Some(whole.body.len().to_string().as_str())
    );
}

#[test]
fn the_public_port_says_whether_it_lives_and_no_more() {
    let relay = Launch::new().start();
    for path in ["/health", "/_liveness", "/health?from=probe"] {
        let answer = get(relay.address, path, &[]);
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (200, "ok"),
            "{path}"
        );
    }
    let ready = get(relay.address, "/_readiness", &[]);
    assert_eq!(
        (ready.status, ready.text().as_str()),
        (200, r#"{"status":"ready"}"#)
    );
    for path in [
        "/metrics",
        "/_status",
        "/nothing",
        "//",
        "/%2e%2e/etc/passwd",
    ] {
        assert_eq!(get(relay.address, path, &[]).status, 404, "{path}");
    }
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(
            request(relay.address, method, "/", &[]).status,
            405,
            "{method}"
        );
    }
}

#[test]
fn an_upgrade_is_answered_by_the_rules() {
    let relay = Launch::new().start();
    let mut raw = Raw::connect(relay.address);
    let offers = [
        ("Sec-WebSocket-Extensions", "permessage-deflate"),
        ("Sec-WebSocket-Protocol", "nostr"),
        ("Origin", "https://client.example"),
    ];
    raw.send(upgrade(&offers));
    let answer = raw.answer_head();
    assert_eq!(answer.status, 101, "{answer:?}");
    assert_eq!(answer.field("Sec-WebSocket-Accept"), Some(raw::ACCEPT));
    // What was offered and is not spoken is not answered.
    assert_eq!(answer.field("Sec-WebSocket-Extensions"), None);
    assert_eq!(answer.field("Sec-WebSocket-Protocol"), None);
}

#[test]
fn a_broken_upgrade_is_refused_with_its_reason() {
    let relay = Launch::new().start();
    let whole = upgrade(&[]);
    for (broken, status) in [
        (
            whole.replace("Sec-WebSocket-Version: 13", "Sec-WebSocket-Version: 8"),
            426,
        ),
        (whole.replace(raw::KEY, "short"), 400),
        (whole.replace("Connection: Upgrade\r\n", ""), 400),
        (whole.replace("Host: relay.example\r\n", ""), 400),
        (whole.replace("GET / HTTP/1.1", "GET / HTTP/1.0"), 505),
        (whole.replace("GET", "POST"), 405),
        ("\x16\x03\x01\x02\x00\x01\r\n\r\n".to_owned(), 400),
        ("NONSENSE\r\n\r\n".to_owned(), 400),
    ] {
        let mut raw = Raw::connect(relay.address);
        raw.send(&broken);
        let answer = raw.answer();
        assert_eq!(answer.status, status, "{broken:?}: {answer:?}");
        assert!(!answer.body.is_empty(), "{broken:?}: {answer:?}");
    }
    relay.await_metric(
        "buzz_ws_upgrades_refused_total",
        &["reason=\"malformed\""],
        |n| n == 8.0,
    );
    assert_eq!(relay.metric("buzz_ws_connections_total", &[]), Some(0.0));
}

#[test]
fn a_head_is_bounded_in_bytes_and_fields() {
    let relay = Launch::new().start();
    // 8192 bytes, the empty line included, are fine.
    let filled = |bytes: usize| {
        let bare = head("GET", "/health", &[("X-Filler", "")]);
        head(
            "GET",
            "/health",
            &[("X-Filler", &"x".repeat(bytes - bare.len()))],
        )
    };
    let status = |bytes: &str| {
        let mut raw = Raw::connect(relay.address);
        raw.send(bytes);
        raw.answer().status
    };
    assert_eq!(status(&filled(8192)), 200);
    assert_eq!(status(&filled(8193)), 431);
    assert_eq!(status(&filled(100_000)), 431);
    // So are 64 fields: Host is one.
    let fields = |count: usize| head("GET", "/health", &vec![("X-Field", "x"); count - 1]);
    assert_eq!(status(&fields(64)), 200);
    assert_eq!(status(&fields(65)), 431);
    // A head without an end is refused as soon as it is too long.
    let mut raw = Raw::connect(relay.address);
    raw.send(format!(
        "GET / HTTP/1.1\r\nHost: a\r\nX: {}",
        "x".repeat(8192)
    ));
    assert_eq!(raw.answer().status, 431);
}

#[test]
fn a_head_has_five_seconds_however_slowly_it_comes() {
    let relay = Launch::new().start();
    std::thread::scope(|scope| {
        scope.spawn(|| cut_after_five_seconds(&relay, |_, _| {}));
        scope.spawn(|| {
            cut_after_five_seconds(&relay, |raw, _| {
                let _ = raw.try_send("GET / HTTP/1.1\r\nHost: a\r\n");
            });
        });
        // A byte now and then buys no time.
        scope.spawn(|| {
            cut_after_five_seconds(&relay, |raw, started| {
                while started.elapsed() < Duration::from_secs(15) {
                    if raw.try_send("x").is_err() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        });
    });
    relay.await_metric(
        "buzz_ws_upgrades_refused_total",
        &["reason=\"timeout\""],
        |n| n == 3.0,
    );
    assert_eq!(relay.metric("buzz_ws_connections_total", &[]), Some(0.0));
}

fn cut_after_five_seconds(relay: &Relay, act: impl FnOnce(&mut Raw, Instant)) {
    let mut raw = Raw::connect(relay.address);
    let started = Instant::now();
    act(&mut raw, started);
    // Whether it is told so (408) or just cut is the relay's choice.
    let _ = raw.rest();
    let took = started.elapsed();
    let bounds = Duration::from_millis(4_500)..Duration::from_secs(12);
    assert!(bounds.contains(&took), "cut after {took:?}");
}
