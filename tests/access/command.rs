//! `buzz-uring access`: both of its ways, and what stands in them.
#![allow(unsafe_code)] // Spoiling an entry of the store asks heed to open it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use heed::types::Bytes;
use heed::{CommitOrAbort, RwTxn};

use crate::common::raw::{self, get};
use crate::common::{Author, Confine, Launch, quiet_address};
use crate::{Peer, access, edit, entry, expect_outcomes, listed, note};

/// A folder that a relay has used and left.
fn used() -> Launch {
    let launch = Launch::new();
    launch.start().stop().expect(0, &[]);
    launch
}

#[test]
fn it_says_what_changed_and_lists_the_same_with_and_without_a_relay() {
    let (one, two, three) = (Author::new(1), Author::new(2), Author::new(3));
    let keys = [&one, &two, &three].map(Author::pubkey_hex);
    let launch = used();
    for runs in [false, true] {
        let relay = runs.then(|| launch.start());
        for (verb, done, before) in [
            ("unban", "was not banned", "was not banned"),
            ("ban", "banned", "was banned already"),
            ("unban", "no longer banned", "was not banned"),
            ("allow", "allowed", "was allowed already"),
            ("unallow", "no longer allowed", "was not allowed"),
            ("add-member", "now a member", "was a member already"),
            ("remove-member", "no longer a member", "was no member"),
        ] {
            let said = edit(&launch, &[verb, &keys[0], &keys[1], &keys[0]]);
            let expected = format!("{0} {done}\n{1} {done}\n{0} {before}\n", keys[0], keys[1]);
            assert_eq!(said, expected);
        }
        assert_eq!(edit(&launch, &["list"]), "");
        assert_eq!(listed(&launch).len(), 0);
        edit(&launch, &["ban", &keys[0]]);
        edit(&launch, &["allow", &keys[1], &keys[0]]);
        edit(&launch, &["add-member", &keys[2], &keys[1]]);
        drop(relay);
        // Written by one way, read by both.
        for runs in [false, true] {
            let relay = runs.then(|| launch.start());
            let mut expected = [
                (&one, [true, true, false], "banned allowed"),
                (&two, [false, true, true], "allowed member"),
                (&three, [false, false, true], "member"),
            ];
            expected.sort_by_key(|(author, _, _)| *author.pubkey());
            let json = expected.map(|(one, lists, _)| entry(one, lists));
            assert_eq!(listed(&launch), json);
            let lines = expected.map(|(one, _, words)| format!("{} {words}\n", one.pubkey_hex()));
            assert_eq!(edit(&launch, &["list"]), lines.concat());
            drop(relay);
        }
        for verb in ["unban", "unallow", "remove-member"] {
            edit(&launch, &[verb, &keys[0], &keys[1], &keys[2]]);
        }
    }
}

#[test]
fn an_edit_without_a_relay_counts_when_one_starts_and_a_left_over_socket_is_no_obstacle() {
    let launch = Launch::new().set("BUZZ_PUBKEY_ALLOWLIST", "true");
    let mut relay = launch.start();
    let socket = launch.data_dir().join("control.sock");
    let mode = fs::metadata(&socket).unwrap();
    assert!(mode.file_type().is_socket());
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    relay.kill();
    assert!(socket.exists(), "a killed relay leaves its socket");
    let (allowed, banned) = (Author::new(1), Author::new(2));
    edit(&launch, &["allow", &allowed.pubkey_hex()]);
    assert!(!socket.exists(), "nobody's socket is removed");
    edit(&launch, &["allow", &banned.pubkey_hex()]);
    edit(&launch, &["ban", &banned.pubkey_hex()]);
    let relay = launch.start();
    let mut peer = Peer::of(&relay, &allowed);
    let by_banned = note(&banned, "refused");
    assert!(peer.publish(&by_banned).1.starts_with("blocked: "));
    let (accepted, reason) = Peer::connect(&relay).login(&banned);
    assert!(!accepted && reason.starts_with("blocked: "), "{reason}");
    assert!(socket.exists());
    relay.stop().expect(0, &[]);
    assert!(!socket.exists());
}

#[test]
fn a_long_list_is_edited_and_printed_in_parts() {
    let keys: Vec<String> = (0..2_500u32).map(|n| format!("{n:064x}")).collect();
    let mut args = vec!["allow".to_owned()];
    args.extend(keys.clone());
    let launch = used();
    let relay = launch.start();
    assert_eq!(edit(&launch, &args).lines().count(), keys.len());
    for relay in [Some(relay), None] {
        let found = listed(&launch);
        let found: Vec<&str> = found
            .iter()
            .filter_map(|line| line["key"].as_str())
            .collect();
        assert_eq!(found, keys);
        drop(relay);
    }
}

#[test]
fn what_is_no_key_changes_nothing_and_is_a_usage_error() {
    let launch = used();
    let key = Author::new(1).pubkey_hex();
    let secret = "nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5";
    for relay in [None, Some(launch.start())] {
        for (bad, word) in [
            ("", "key 2"),
            ("deadbeef", "64 hex digits"),
            (&key[1..], "key 2"),
            (
                "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptx",
                "npub",
            ),
            (secret, "secret"),
        ] {
            let exit = access(&launch, &["ban", &key, bad]);
            exit.expect(64, &[word]);
            assert!(!exit.stderr.contains(&secret[5..]), "{exit:#?}");
        }
        for args in [&["ban"][..], &[], &["lists"], &["list", "more"]] {
            access(&launch, args).expect(64, &[]);
        }
        assert_eq!(listed(&launch).len(), 0);
        drop(relay);
    }
}

#[test]
fn a_folder_that_no_relay_has_used_is_not_made() {
    let launch = Launch::new();
    for args in [&["list"][..], &["ban", &"ab".repeat(32)]] {
        let dir = launch.data_dir();
        access(&launch, args).expect(1, &["no relay", "BUZZ_DATA_DIR", dir.to_str().unwrap()]);
        assert!(!dir.exists());
    }
}

#[test]
fn who_holds_the_folder_and_does_not_answer_is_named_after_a_while() {
    let launch = used();
    let key = Author::new(1).pubkey_hex();
    let lock = || {
        let path = launch.data_dir().join("lock");
        let file = File::options().read(true).write(true).open(path).unwrap();
        file.lock().unwrap();
        file
    };
    // For good.
    let held = lock();
    let start = Instant::now();
    access(&launch, &["ban", &key]).expect(1, &["does not answer"]);
    assert!(start.elapsed() >= Duration::from_secs(4), "it did not wait");
    // Only for a while, as by a relay that ends.
    std::thread::scope(|scope| {
        let edited = scope.spawn(|| edit(&launch, &["ban", &key]));
        std::thread::sleep(Duration::from_millis(500));
        drop(held);
        assert!(edited.join().unwrap().ends_with("banned\n"));
    });
}

#[test]
fn commands_and_relays_do_not_get_in_each_other_s_way() {
    let launch = used();
    let keys: Vec<String> = (1..9).map(|n| Author::new(n).pubkey_hex()).collect();
    for (relay, verb) in [(None, "ban"), (Some(launch.start()), "allow")] {
        std::thread::scope(|scope| {
            for key in &keys {
                scope.spawn(|| edit(&launch, &[verb, key]));
            }
        });
        if let Some(relay) = relay {
            // A second relay is turned away and leaves the first one's socket as it is.
            let second = launch.clone().set("BUZZ_BIND_ADDR", quiet_address());
            second.run().expect(1, &["another relay"]);
            edit(&launch, &["list"]);
            relay.stop().expect(0, &[]);
        }
    }
    let found = listed(&launch);
    assert_eq!(found.len(), keys.len());
    assert!(
        found
            .iter()
            .all(|one| one["banned"] == true && one["allowed"] == true)
    );
}

#[test]
fn only_the_socket_takes_edits_and_only_so_large_ones() {
    let launch = Launch::new();
    let relay = launch.start();
    for port in [relay.health, relay.metrics, relay.address] {
        assert_ne!(get(port, "/access", &[]).status, 200);
        assert!(matches!(
            raw::request(port, "POST", "/access", &[]).status,
            404 | 405 | 426
        ));
    }
    let post = |body: &str| {
        let mut stream = UnixStream::connect(launch.data_dir().join("control.sock")).unwrap();
        let request = format!(
            "POST /access HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        // It may have answered before it has read it all.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer.split(' ').nth(1).unwrap_or("none").to_owned()
    };
    let key = format!("\"{}\"", "ab".repeat(32));
    let body = |list: &str, count: usize| {
        let keys = vec![key.clone(); count].join(",");
        format!("{{\"list\":\"{list}\",\"on\":true,\"keys\":[{keys}]}}")
    };
    assert_eq!(post(&body("allowed", 1_000)), "200");
    assert_eq!(post(&body("allowed", 1_001)), "413");
    assert!(["413", "none"].contains(&post(&body("allowed", 10_000)).as_str()));
    for bad in ["", "{}", &body("friends", 1), "[1]"] {
        assert!(post(bad).starts_with('4'), "{bad}");
    }
    assert_eq!(listed(&launch).len(), 1);
}

#[test]
fn a_spoilt_entry_is_an_error_of_its_own_key_and_of_the_command() {
    let launch = used().set("BUZZ_PUBKEY_ALLOWLIST", "true");
    let (spoilt, sound) = (Author::new(1), Author::new(2));
    edit(&launch, &["allow", &sound.pubkey_hex()]);
    spoil(&launch.data_dir(), spoilt.pubkey());
    let args = [
        ["allow", &spoilt.pubkey_hex()],
        ["ban", &spoilt.pubkey_hex()],
    ];
    for args in &args {
        access(&launch, args).expect(1, &["damaged"]);
    }
    access(&launch, &["list"]).expect(1, &["damaged"]);

    let relay = launch.start();
    access(&launch, &["list"]).expect(1, &["damaged"]);
    access(&launch, &args[1]).expect(1, &["damaged"]);
    let mut peer = Peer::connect(&relay);
    let (accepted, reason) = peer.login(&spoilt);
    assert!(!accepted && reason.starts_with("error: "), "{reason}");
    assert!(peer.login(&sound).0, "the connection stays open");
    let (accepted, reason) = peer.publish(&note(&spoilt, "is it banned?"));
    assert!(!accepted && reason.starts_with("error: "), "{reason}");
    assert!(peer.publish(&note(&sound, "this is not")).0);
    expect_outcomes(&relay, &[("success", 1), ("check_error", 1)]);
}

/// Gives a key an entry that no version writes.
fn spoil(dir: &Path, key: &[u8; 32]) {
    let mut open = heed::EnvOpenOptions::new();
    open.max_dbs(32).map_size(1 << 30);
    // SAFETY: the relay has ended, so nobody else has the files open.
    let env = unsafe { open.open(dir.join("events")) }.unwrap();
    let txn = env.write_txn().unwrap();
    env.create_databases_and_commit(txn, |opener, txn: &mut RwTxn<'_>| {
        let access = opener.create_database::<Bytes, Bytes>(txn, Some("access"))?;
        access.put(txn, key, b"spoilt")?;
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(()))
    })
    .unwrap();
    env.prepare_for_closing().wait();
}

#[test]
fn a_full_disk_fails_the_command_and_harms_nothing() {
    let launch = used();
    let key = Author::new(1).pubkey_hex();
    let full = launch.clone().confine(Confine::FileBytes(0));
    let exit = access(&full, &["ban", &key]);
    assert_eq!(exit.signal(), None, "{exit:#?}");
    exit.expect(1, &[]);
    assert_eq!(listed(&launch).len(), 0);
    edit(&launch, &["ban", &key]);
    assert_eq!(listed(&launch).len(), 1);
}
