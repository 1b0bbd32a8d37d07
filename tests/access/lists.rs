//! What a list does, and when an edit takes effect.

use buzz_uring::nostr::key::PublicKey;

use crate::common::{Author, Launch, Relay, now};
use crate::{Peer, edit, expect_outcomes, note, outcome};

fn npub(author: &Author) -> String {
    PublicKey(*author.pubkey()).npub()
}

#[test]
fn a_key_that_is_put_on_the_list_asked_for_is_let_in_at_its_next_login() {
    for (setting, on, off, denied) in [
        (
            "BUZZ_PUBKEY_ALLOWLIST",
            "allow",
            "unallow",
            "allowlist_denied",
        ),
        (
            "BUZZ_REQUIRE_RELAY_MEMBERSHIP",
            "add-member",
            "remove-member",
            "not_relay_member",
        ),
    ] {
        let launch = Launch::new().set(setting, "true");
        let relay = launch.start();
        let (author, other) = (Author::new(1), Author::new(2));
        let key = author.pubkey_hex();
        let mut peer = Peer::connect(&relay);
        let refused = |(accepted, reason): (bool, String), prefix: &str| {
            assert!(
                !accepted && reason.starts_with(prefix),
                "{setting}: {reason}"
            );
        };
        refused(peer.login(&author), "restricted: ");
        refused(peer.publish(&note(&author, "too early")), "auth-required: ");

        assert!(edit(&launch, &[on, &key]).starts_with(&key));
        assert_eq!(peer.login(&author), (true, String::new()));
        assert!(peer.publish(&note(&author, "in")).0);
        // The list lets its own keys in and no others; the other list is no help.
        refused(peer.login(&other), "restricted: ");
        let not_asked = if on == "allow" { "add-member" } else { "allow" };
        edit(&launch, &[not_asked, &other.pubkey_hex()]);
        refused(peer.login(&other), "restricted: ");
        refused(Peer::connect(&relay).login(&other), "restricted: ");

        // Off the list: at the next login, and not before.
        edit(&launch, &[off, &key]);
        assert!(peer.publish(&note(&author, "still in")).0);
        refused(peer.login(&author), "restricted: ");
        refused(peer.publish(&note(&author, "out")), "auth-required: ");
        peer.expect_open();
        assert_eq!(
            relay.metric("buzz_ws_authenticated_connections_active", &[]),
            Some(0.0)
        );
        edit(&launch, &[on, &key]);
        assert!(peer.login(&author).0);
        expect_outcomes(&relay, &[("success", 2), (denied, 5)]);
    }
}

#[test]
fn both_lists_can_be_asked_for_and_neither_is_asked_for_without_its_setting() {
    let author = Author::new(1);
    let key = author.pubkey_hex();
    let launch = Launch::new()
        .set("BUZZ_PUBKEY_ALLOWLIST", "true")
        .set("BUZZ_REQUIRE_RELAY_MEMBERSHIP", "true");
    let relay = launch.start();
    let mut peer = Peer::connect(&relay);
    assert!(!peer.login(&author).0);
    edit(&launch, &["add-member", &key]);
    assert!(peer.login(&author).1.contains("allow-list"));
    edit(&launch, &["allow", &key]);
    edit(&launch, &["remove-member", &key]);
    assert!(peer.login(&author).1.contains("member"));
    edit(&launch, &["add-member", &key]);
    assert!(peer.login(&author).0);
    expect_outcomes(
        &relay,
        &[
            ("success", 1),
            ("allowlist_denied", 2),
            ("not_relay_member", 1),
        ],
    );

    for launch in [
        Launch::new(),
        Launch::new().set("BUZZ_REQUIRE_AUTH", "true"),
    ] {
        let relay = launch.start();
        let mut peer = Peer::of(&relay, &author);
        assert!(peer.publish(&note(&author, "as anybody")).0);
    }
}

#[test]
fn a_ban_ends_the_key_s_connections_on_every_shard_and_refuses_its_events() {
    const SHARDS: usize = 4;
    let launch = Launch::new().set("BUZZ_SHARDS", SHARDS);
    let relay = launch.start();
    let (banned, second, bystander) = (Author::new(1), Author::new(2), Author::new(3));
    let mut bystanders: Vec<Peer> = (0..8).map(|_| Peer::of(&relay, &bystander)).collect();
    bystanders.push(Peer::connect(&relay));
    let mut members = Vec::new();
    let mut on_shards = 0;
    // Until the kernel has given every shard some of them.
    while members.len() < 24 || on_shards < SHARDS {
        let mut peer = Peer::connect(&relay);
        if members.len() % 2 == 0 {
            assert!(peer.login(&second).0);
        }
        assert!(peer.login(&banned).0);
        members.push(peer);
        assert!(members.len() < 1_000, "the shards stay empty");
        on_shards = (0..SHARDS)
            .filter(|shard| served(&relay, *shard) > 3.0)
            .count();
    }

    let said = edit(&launch, &["ban", &npub(&banned)]);
    assert_eq!(said, format!("{} banned\n", banned.pubkey_hex()));
    let count = members.len() as f64;
    for mut peer in members {
        let (messages, code, reason) = peer.closed();
        assert_eq!((code, reason.as_str()), (Some(1008), "banned"));
        assert!(messages.is_empty(), "{messages:?}");
    }
    let closes = |relay: &Relay| relay.metric("buzz_ws_closes_total", &["reason=\"banned\""]);
    assert_eq!(closes(&relay), Some(count));

    // Nobody else is disturbed, and nobody can bring its events.
    for peer in &mut bystanders {
        peer.expect_open();
        for kind in [1, 0, 30_000, 20_001] {
            let event = banned.json::<&str>(now(), kind, &[], "by somebody else");
            let (accepted, reason) = peer.publish(&event);
            assert!(!accepted && reason.starts_with("blocked: "), "{reason}");
        }
        assert!(peer.publish(&note(&second, "the other key may")).0);
    }
    assert_eq!(
        bystanders[0].req("q", "{}").len(),
        1,
        "only the other key's note is stored"
    );

    // Nor can it come back, until the ban ends.
    let mut peer = Peer::connect(&relay);
    assert!(peer.login(&second).0, "a connection may hold other keys");
    let login = peer.signed(&banned);
    peer.send(&format!("[\"AUTH\",{login}]"));
    let (messages, code, reason) = peer.closed();
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(messages[0].contains(",false,\"blocked: "), "{messages:?}");
    assert_eq!((code, reason.as_str()), (Some(1008), "banned"));
    assert_eq!(outcome(&relay, "banned"), 1.0);
    assert_eq!(closes(&relay), Some(count + 1.0));
    edit(&launch, &["unban", &npub(&banned)]);
    let mut peer = Peer::of(&relay, &banned);
    assert!(peer.publish(&note(&banned, "back again")).0);
}

/// Connections that a shard has had.
fn served(relay: &Relay, shard: usize) -> f64 {
    let label = format!("shard=\"{shard}\"");
    let count = relay.metric("buzz_ws_connections_total", &[&label]);
    count.expect("a series")
}

#[test]
fn a_ban_meets_a_login_that_is_under_way() {
    let hooks = tempfile::tempdir().unwrap();
    let file = hooks.path().join("hooks");
    std::fs::write(&file, "access_ms=1500").unwrap();
    let launch = Launch::new().set("BUZZ_HOOKS_FILE", file.display());
    let relay = launch.start();
    let author = Author::new(1);
    let mut peer = Peer::connect(&relay);
    let login = peer.signed(&author);
    peer.send(&format!("[\"AUTH\",{login}]"));
    relay.await_metric("buzz_concurrency_in_flight", &["auth"], |held| held == 1.0);
    edit(&launch, &["ban", &author.pubkey_hex()]);
    let (messages, code, _) = peer.closed();
    assert!(messages[0].contains("blocked: "), "{messages:?}");
    assert_eq!(code, Some(1008));
    expect_outcomes(&relay, &[("banned", 1)]);
}

#[test]
fn an_edit_is_logged_without_the_key() {
    let launch = Launch::new().set("BUZZ_LOG", "debug");
    let relay = launch.start();
    let author = Author::new(1);
    let mut peer = Peer::of(&relay, &author);
    for verb in ["allow", "unallow", "ban", "unban"] {
        edit(&launch, &[verb, &npub(&author)]);
    }
    assert_eq!(peer.closed().1, Some(1008));
    let exit = relay.stop();
    let text = format!("{}{}", exit.stdout, exit.stderr);
    for (list, on) in [("allowed", true), ("allowed", false), ("banned", true)] {
        let line = text.lines().find(|line| {
            line.contains("an access list was edited")
                && line.contains(&format!("\"list\":\"{list}\""))
                && line.contains(&format!("\"on\":{on}"))
        });
        assert!(line.is_some(), "{list} {on}: {text}");
    }
    let key = author.pubkey_hex();
    for secret in [&key[..], &key[..16], &npub(&author)[..16]] {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
}
