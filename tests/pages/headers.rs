//! What comes with the pages, asked for without a browser.

use crate::common::raw::{Answer, get, request};
use crate::common::{Author, Launch};

/// What every page forbids a browser.
const FORBIDDEN: [&str; 4] = [
    "default-src 'none'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
];

fn policy(answer: &Answer) -> Vec<&str> {
    let policy = answer.field("Content-Security-Policy").expect("a policy");
    assert!(!policy.contains("unsafe"), "{policy}");
    policy.split("; ").collect()
}

fn is_guarded(answer: &Answer) {
    let policy = policy(answer);
    for word in FORBIDDEN {
        assert!(policy.contains(&word), "{word} is not in {policy:?}");
    }
    assert_eq!(answer.field("X-Content-Type-Options"), Some("nosniff"));
    assert_eq!(answer.field("Referrer-Policy"), Some("no-referrer"));
}

#[test]
fn the_relays_page_comes_with_a_policy() {
    let relay = Launch::new().start();
    for method in ["GET", "HEAD"] {
        let answer = request(relay.address, method, "/", &[]);
        assert_eq!(answer.status, 200, "{method}");
        is_guarded(&answer);
        assert!(policy(&answer).contains(&"img-src data:"), "{answer:?}");
    }
}

#[test]
fn a_picture_is_the_only_thing_from_elsewhere() {
    let icon = "https://pictures.example:8443/icon.png?size=64&x=1";
    let relay = Launch::new().set("BUZZ_ICON", icon).start();
    let answer = get(relay.address, "/", &[]);
    is_guarded(&answer);
    let pictures = "img-src data: https://pictures.example:8443";
    assert!(policy(&answer).contains(&pictures), "{answer:?}");
    let shown = "<img src=\"https://pictures.example:8443/icon.png?size=64&amp;x=1\"";
    assert!(answer.text().contains(shown), "{answer:?}");
    // Programs get it too.
    let document = get(relay.address, "/", &[("Accept", "application/nostr+json")]);
    assert_eq!(document.json()["icon"], icon);
    assert_eq!(document.field("Content-Security-Policy"), None);
}

#[test]
fn the_page_tells_who_may_come_in() {
    for (setting, words) in [
        ("BUZZ_MAX_LIMIT", "No login is needed."),
        ("BUZZ_REQUIRE_AUTH", "A login is needed."),
        ("BUZZ_PUBKEY_ALLOWLIST", "By invitation."),
        ("BUZZ_REQUIRE_RELAY_MEMBERSHIP", "For members."),
    ] {
        let value = if setting == "BUZZ_MAX_LIMIT" {
            "1000"
        } else {
            "true"
        };
        let relay = Launch::new().set(setting, value).start();
        let page = get(relay.address, "/", &[]).text();
        assert!(page.contains(words), "{setting}: {page}");
    }
}

#[test]
fn the_operators_key_is_shown_as_people_write_it() {
    let key = Author::new(1).pubkey_hex();
    let relay = Launch::new().set("BUZZ_PUBKEY", &key).start();
    let page = get(relay.address, "/", &[]).text();
    assert!(page.contains(">npub1") && !page.contains(&key), "{page}");
}

#[test]
fn the_status_page_is_on_the_health_port_alone() {
    let relay = Launch::new().start();
    for method in ["GET", "HEAD"] {
        let answer = request(relay.health, method, "/", &[]);
        assert_eq!(answer.status, 200, "{method}");
        is_guarded(&answer);
        assert!(
            policy(&answer).contains(&"connect-src 'self'"),
            "{answer:?}"
        );
    }
    let status = get(relay.health, "/", &[]).text();
    assert!(status.contains("/_status"), "{status}");
    // The public port has a page too, and nothing of this one.
    let public = get(relay.address, "/", &[]);
    assert!(!public.text().contains("/_status"), "{public:?}");
    let policy = policy(&public);
    assert!(
        !policy.iter().any(|rule| rule.starts_with("connect-src")),
        "{policy:?}"
    );
    for path in ["/_status", "/status", "/status.html", "/status.js"] {
        assert_eq!(get(relay.address, path, &[]).status, 404, "{path}");
    }
    assert_eq!(get(relay.metrics, "/", &[]).status, 404);
    // What machines read is as it was, and no other site may load it.
    let status = get(relay.health, "/_status", &[]);
    assert_eq!(status.field("Content-Type"), Some("application/json"));
    assert_eq!(status.field("Access-Control-Allow-Origin"), None);
    assert_eq!(status.field("X-Content-Type-Options"), Some("nosniff"));
    let resource = status.field("Cross-Origin-Resource-Policy");
    assert_eq!(resource, Some("same-origin"));
}
