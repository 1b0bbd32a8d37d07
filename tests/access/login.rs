//! NIP-42, step by step.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Author, Launch, now, quiet_address};
use crate::{Peer, URL, edit, expect_outcomes, note};

/// Time to a first login, and how late its end may be noticed on a busy machine.
const LOGIN: Duration = Duration::from_secs(5);
const LATE: Duration = Duration::from_millis(1_500);

#[test]
fn a_login_that_is_not_right_is_refused_and_the_next_one_counts() {
    let relay = Launch::new().set("BUZZ_REQUIRE_AUTH", "true").start();
    let author = Author::new(1);
    let mut peer = Peer::connect(&relay);
    let challenge = peer.challenge.clone();
    assert!(challenge.len() >= 16);
    assert_ne!(challenge, Peer::connect(&relay).challenge);
    let login = |kind, url: &str, challenge: &str, time| {
        let tags: [&[&str]; 2] = [&["relay", url], &["challenge", challenge]];
        author.json(time, kind, &tags, "")
    };
    let good = peer.signed(&author);
    let mut forged = good.clone();
    let last = good.len() - 3;
    let digit = if good.ends_with("0\"}") { "1" } else { "0" };
    forged.replace_range(last..last + 1, digit);
    let bad = [
        login(22_243, URL, &challenge, now()),
        login(1, URL, &challenge, now()),
        login(22_242, "ws://elsewhere:3000", &challenge, now()),
        login(
            22_242,
            URL,
            &challenge.to_uppercase().replace('A', "B"),
            now(),
        ),
        login(22_242, URL, "", now()),
        login(22_242, URL, &challenge, now() - 700),
        login(22_242, URL, &challenge, now() + 700),
        author.json::<&str>(now(), 22_242, &[], ""),
        // Another text than the one that was signed.
        good.replace("\"content\":\"\"", "\"content\":\" \""),
        forged,
    ];
    for event in &bad {
        let (accepted, reason) = peer.auth(event);
        assert!(
            !accepted && reason.starts_with("auth-required: "),
            "{event}: {reason}"
        );
    }
    // What is no event at all is an attempt as well.
    peer.send("[\"AUTH\",{\"kind\":22242}]");
    assert_eq!(peer.next()[0], "NOTICE");
    assert!(
        peer.publish(&note(&author, "no"))
            .1
            .starts_with("auth-required: ")
    );
    assert_eq!(peer.auth(&good), (true, String::new()));
    assert!(peer.publish(&note(&author, "yes")).0);
    drop(peer);
    let invalid = bad.len() as u32 + 1;
    expect_outcomes(
        &relay,
        &[("invalid", invalid), ("success", 1), ("disconnect", 1)],
    );
}

#[test]
fn without_a_login_nothing_is_served_where_one_is_required() {
    let relay = Launch::new().set("BUZZ_REQUIRE_AUTH", "true").start();
    let author = Author::new(1);
    let mut peer = Peer::connect(&relay);
    assert!(
        peer.publish(&note(&author, "no"))
            .1
            .starts_with("auth-required: ")
    );
    for question in ["[\"REQ\",\"q\",{}]", "[\"COUNT\",\"q\",{}]"] {
        peer.send(question);
        let answer = peer.next();
        assert_eq!(
            (&answer[0], &answer[1]),
            (&"CLOSED".into(), &"q".into()),
            "{answer}"
        );
        assert!(
            answer[2].as_str().unwrap().starts_with("auth-required: "),
            "{answer}"
        );
    }
    assert!(peer.login(&author).0);
    assert!(peer.publish(&note(&author, "yes")).0);
    assert_eq!(peer.req("q", "{}").len(), 1);
    assert_eq!(peer.count("{}"), 1);
    // Where none is required, a login is possible all the same.
    let relay = Launch::new().start();
    let mut peer = Peer::connect(&relay);
    assert!(peer.publish(&note(&author, "yes")).0);
    assert!(peer.login(&author).0);
    drop(Peer::connect(&relay));
    drop(peer);
    relay.await_metric("buzz_ws_connections_active", &[], |found| found == 0.0);
    expect_outcomes(&relay, &[("success", 1)]);
}

#[test]
fn a_connection_holds_many_keys_and_a_repeated_one_is_checked_again() {
    let launch = Launch::new().set("BUZZ_REQUIRE_AUTH", "true");
    let relay = launch.start();
    let authors: Vec<Author> = (0..65).map(Author::new).collect();
    let mut peer = Peer::of(&relay, &authors[0]);
    for author in &authors[1..64] {
        assert!(peer.login(author).0);
    }
    assert!(peer.login(&authors[0]).0, "a repeated one takes no place");
    let (accepted, reason) = peer.login(&authors[64]);
    assert!(!accepted && reason.starts_with("error: "), "{reason}");
    let gauge = relay.metric("buzz_ws_authenticated_connections_active", &[]);
    assert_eq!(gauge, Some(1.0));
    // Each of them may publish what only its author may.
    for author in [&authors[0], &authors[63]] {
        let event = author.json(now(), 1, &[&["-"]], "mine");
        assert_eq!(peer.publish(&event), (true, String::new()));
    }
    // A key that was turned away is none of the connection's.
    edit(&launch, &["ban", &authors[64].pubkey_hex()]);
    peer.expect_open();
    edit(&launch, &["ban", &authors[63].pubkey_hex()]);
    assert_eq!(peer.closed().1, Some(1008));
    expect_outcomes(&relay, &[("success", 65), ("check_error", 1)]);
    relay.await_metric("buzz_ws_authenticated_connections_active", &[], |found| {
        found == 0.0
    });
}

#[test]
fn who_does_not_log_in_in_time_gets_a_bare_close() {
    let relay = Launch::new().set("BUZZ_REQUIRE_AUTH", "true").start();
    let author = Author::new(1);
    let start = Instant::now();
    let silent = Peer::connect(&relay);
    let mut wrong = Peer::connect(&relay);
    let mut logged_in = Peer::of(&relay, &author);
    assert!(!wrong.auth(&author.json::<&str>(now(), 22_242, &[], "")).0);
    for mut peer in [silent, wrong] {
        assert_eq!(peer.closed(), (Vec::new(), None, String::new()));
        let took = start.elapsed();
        assert!((LOGIN..LOGIN + LATE).contains(&took), "{took:?}");
    }
    logged_in.expect_open();
    expect_outcomes(&relay, &[("success", 1), ("invalid", 1), ("timeout", 1)]);
    let closes = relay.metric("buzz_ws_closes_total", &["reason=\"auth_timeout\""]);
    assert_eq!(closes, Some(2.0));
}

#[test]
fn the_clock_stands_still_while_a_login_is_checked() {
    const CHECK: Duration = Duration::from_millis(6_000);
    let hooks = tempfile::tempdir().unwrap();
    let file = hooks.path().join("hooks");
    std::fs::write(&file, format!("access_ms={}", CHECK.as_millis())).unwrap();
    let launch = Launch::new()
        .set("BUZZ_PUBKEY_ALLOWLIST", "true")
        .set("BUZZ_HOOKS_FILE", file.display());
    let relay = launch.start();
    let (allowed, denied) = (Author::new(1), Author::new(2));
    edit(&launch, &["allow", &allowed.pubkey_hex()]);
    thread::scope(|scope| {
        // Longer than the limit, and let in.
        scope.spawn(|| {
            let mut peer = Peer::connect(&relay);
            assert!(peer.login(&allowed).0);
            thread::sleep(LOGIN);
            peer.expect_open();
        });
        // Longer than the limit, and denied: what was left of the time is left still.
        scope.spawn(|| {
            let start = Instant::now();
            let mut peer = Peer::connect(&relay);
            thread::sleep(Duration::from_millis(1_000));
            assert!(peer.login(&denied).1.starts_with("restricted: "));
            peer.expect_open();
            assert_eq!(peer.closed().1, None);
            let took = start.elapsed();
            let wanted = LOGIN + CHECK;
            assert!((wanted..wanted + LATE).contains(&took), "{took:?}");
        });
    });
    expect_outcomes(&relay, &[("success", 1), ("allowlist_denied", 1)]);
}

#[test]
fn every_attempt_has_one_outcome() {
    let launch = Launch::new()
        .set("BUZZ_PUBKEY_ALLOWLIST", "true")
        .set("BUZZ_REQUIRE_RELAY_MEMBERSHIP", "true");
    let relay = launch.start();
    let [good, banned, stranger, guest] = [1, 2, 3, 4].map(Author::new);
    let hex = |author: &Author| author.pubkey_hex();
    edit(
        &launch,
        &["allow", &hex(&good), &hex(&guest), &hex(&banned)],
    );
    edit(&launch, &["add-member", &hex(&good), &hex(&banned)]);
    edit(&launch, &["ban", &hex(&banned)]);
    let invalid = note(&good, "no login");
    for _ in 0..5 {
        let mut peer = Peer::connect(&relay);
        assert!(!peer.auth(&invalid).0);
        assert!(!peer.login(&stranger).0);
        assert!(!peer.login(&guest).0);
        assert!(peer.login(&good).0);
        assert!(peer.login(&good).0);
        assert!(!peer.login(&banned).0);
        assert_eq!(peer.closed().1, Some(1008));
        drop(Peer::connect(&relay));
    }
    let mut idle = Peer::connect(&relay);
    assert_eq!(idle.closed().1, None);
    expect_outcomes(
        &relay,
        &[
            ("success", 10),
            ("invalid", 5),
            ("banned", 5),
            ("allowlist_denied", 5),
            ("not_relay_member", 5),
            ("disconnect", 5),
            ("timeout", 1),
        ],
    );
}

#[tokio::test]
async fn nostr_sdk_logs_in_by_itself() {
    use nostr_sdk::prelude::*;

    let address = quiet_address();
    let url = format!("ws://{address}");
    let relay = Launch::new()
        .set("BUZZ_BIND_ADDR", address)
        .set("BUZZ_RELAY_URL", &url)
        .set("BUZZ_REQUIRE_AUTH", "true")
        .start();
    let keys = Keys::generate();
    let client = nostr_sdk::Client::new(keys.clone());
    client.add_relay(&url).await.expect("a relay");
    client.connect().await;
    client.wait_for_connection(crate::common::WAIT).await;
    let sent = client
        .send_event_builder(EventBuilder::text_note("logged in"))
        .await
        .expect("an answer");
    assert!(
        sent.failed.is_empty() && sent.success.len() == 1,
        "{sent:?}"
    );
    let filter = Filter::new().author(keys.public_key());
    let found = client.fetch_events(filter, crate::common::WAIT).await;
    assert_eq!(found.expect("events").len(), 1);
    client.shutdown().await;
    assert_eq!(crate::outcome(&relay, "success"), 1.0);
}
