//! The data folder: what survives, and what is refused without harm.
#![allow(unsafe_code)] // Opening a folder as another program would asks heed for it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use heed::types::Bytes;
use heed::{CommitOrAbort, RwTxn};

use crate::common::relay::files_below;
use crate::common::{Author, Client, Confine, Exit, Launch, now};

/// Names and contents of all files.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = files_below(dir).into_iter();
    let named = files.map(|path| (path.display().to_string(), fs::read(path).unwrap()));
    named
        .filter(|(name, _)| !name.ends_with("/lock") && !name.ends_with("lock.mdb"))
        .collect()
}

/// The relay did not start, said which folder and why, and changed nothing there.
fn refused(launch: &Launch, words: &[&str], before: &BTreeMap<String, Vec<u8>>) -> Exit {
    let exit = launch.run();
    assert!(![0, 64].contains(&exit.code()), "{exit:#?}");
    let dir = launch.data_dir();
    for word in words
        .iter()
        .chain([&"BUZZ_DATA_DIR", &dir.to_str().unwrap()])
    {
        assert!(exit.stderr.contains(word), "{word} is not in {exit:#?}");
    }
    assert!(*before == contents(&dir), "something was changed");
    exit
}

#[tokio::test]
async fn events_survive_a_restart_and_a_change_of_shards() {
    let launch = Launch::new();
    let (author, time) = (Author::new(1), now());
    let events: Vec<String> = (0..20)
        .map(|age| author.json(time - age, 1, &[&["t", "kept"]], "\u{e9}\\"))
        .collect();
    for shards in ["1", "4", "2"] {
        let relay = launch.clone().set("BUZZ_SHARDS", shards).start();
        let mut client = Client::connect(relay.address).await;
        for event in &events {
            assert!(client.publish(event).await.0);
        }
        assert_eq!(client.fetch(r##"{"#t":["kept"]}"##).await, events);
        drop(client);
        relay.stop().expect(0, &[]);
    }
}

#[test]
fn the_folder_is_made_for_its_owner_only() {
    let launch = Launch::new();
    let relay = launch.start();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o077;
    assert_eq!(mode(&launch.data_dir()), 0);
    relay.stop().expect(0, &[]);
    // A given one may lie deep.
    let deep = launch.data_dir().join("a/b/c");
    let relay = Launch::new().folder(&deep).start();
    assert!(!files_below(&deep).is_empty());
    relay.stop().expect(0, &[]);
}

#[tokio::test]
async fn a_full_disk_refuses_events_and_harms_nothing() {
    let launch = Launch::new();
    let (author, time) = (Author::new(1), now());
    let full = launch.clone().confine(Confine::FileBytes(1 << 20)).start();
    let mut client = Client::connect(full.address).await;
    let mut kept = Vec::new();
    let mut refusals = 0;
    for n in 0..400 {
        let event = author.json::<&str>(time - n, 1, &[], &"x".repeat(20_000));
        let (accepted, reason) = client.publish(&event).await;
        if accepted {
            kept.push(event);
        } else {
            assert!(
                reason.starts_with("error: the store has no room"),
                "{reason}"
            );
            refusals += 1;
        }
        if refusals == 20 {
            break;
        }
    }
    assert_eq!(
        refusals,
        20,
        "the limit was never met: {} stored",
        kept.len()
    );
    assert!(kept.len() > 5, "{} stored", kept.len());
    // What is there can be read, ephemeral events pass, and a small event may still find room.
    let found = client.fetch("{\"limit\":5}").await;
    assert_eq!(found, kept[..5]);
    let ephemeral = author.json::<&str>(now(), 20_001, &[], "passes");
    client.publish_all([&ephemeral]).await;
    drop(client);
    full.stop().expect(0, &[]);

    let relay = launch.start();
    let mut client = Client::connect(relay.address).await;
    assert_eq!(client.fetch("{\"limit\":1000}").await, kept);
    let small = author.json::<&str>(now(), 1, &[], "there is room again");
    client.publish_all([&small]).await;
}

#[test]
fn a_disk_without_any_room_is_told_at_the_start() {
    let exit = Launch::new().confine(Confine::FileBytes(0)).run();
    assert!(exit.signal().is_none(), "{exit:#?}");
    assert_ne!(exit.code(), 0);
    assert!(exit.stderr.contains("BUZZ_DATA_DIR"), "{exit:#?}");
}

#[test]
fn a_folder_that_cannot_be_written_is_told() {
    let launch = Launch::new();
    launch.start().stop().expect(0, &[]);
    let dir = launch.data_dir();
    let before = contents(&dir);
    let set_modes = |folder_mode, file_mode| {
        for path in files_below(&dir) {
            fs::set_permissions(&path, fs::Permissions::from_mode(file_mode)).unwrap();
            let folder = path.parent().unwrap();
            fs::set_permissions(folder, fs::Permissions::from_mode(folder_mode)).unwrap();
        }
        fs::set_permissions(&dir, fs::Permissions::from_mode(folder_mode)).unwrap();
    };
    set_modes(0o500, 0o400);
    refused(
        &launch.clone().confine(Confine::Override),
        &["write"],
        &before,
    );
    set_modes(0o700, 0o600);
    launch.start().stop().expect(0, &[]);

    // One that is not there and cannot be made.
    let parent = tempfile::tempdir().unwrap();
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o500)).unwrap();
    let launch = Launch::new().folder(parent.path().join("data"));
    refused(
        &launch.confine(Confine::Override),
        &["write"],
        &BTreeMap::new(),
    );
}

#[test]
fn a_folder_of_a_newer_format_is_left_as_it_is() {
    let launch = Launch::new();
    launch.start().stop().expect(0, &[]);
    let dir = launch.data_dir();
    let mut open = heed::EnvOpenOptions::new();
    open.max_dbs(32);
    // SAFETY: the relay has ended, so nobody else has the files open.
    let env = unsafe { open.open(dir.join("events")) }.unwrap();
    let txn = env.write_txn().unwrap();
    env.create_databases_and_commit(txn, |opener, txn: &mut RwTxn<'_>| {
        let meta = opener.create_database::<Bytes, Bytes>(txn, Some("meta"))?;
        meta.put(txn, b"schema", &99u32.to_be_bytes())?;
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(()))
    })
    .unwrap();
    env.prepare_for_closing().wait();
    let before = contents(&dir);
    refused(&launch, &["99", "newer"], &before);
}

#[test]
fn a_folder_that_holds_something_else_is_left_as_it_is() {
    let launch = Launch::new();
    launch.start().stop().expect(0, &[]);
    let dir = launch.data_dir();
    let file = files_below(&dir)
        .into_iter()
        .find(|path| path.ends_with("data.mdb"));
    let file = file.expect("the store's file");
    let sound = fs::read(&file).unwrap();
    let cut = |bytes: usize| sound[..sound.len() - bytes].to_vec();
    let broken = [
        b"not a store at all".repeat(1_000),
        vec![0xff; 64 << 10],
        // Cut short by hand, and emptied: no read may end the process, and no new store is made.
        cut(1),
        cut(sound.len() / 2),
        cut(sound.len() - 8_192),
        Vec::new(),
    ];
    for broken in broken {
        fs::write(&file, &broken).unwrap();
        let before = contents(&dir);
        refused(&launch, &["data folder"], &before);
    }
    fs::write(&file, sound).unwrap();
    launch.start().stop().expect(0, &[]);

    let other = tempfile::tempdir().unwrap();
    let path = other.path().join("file");
    fs::write(&path, "a file").unwrap();
    refused(
        &Launch::new().folder(&path),
        &["not a folder"],
        &BTreeMap::new(),
    );
    assert_eq!(fs::read_to_string(path).unwrap(), "a file");
}
