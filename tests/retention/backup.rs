//! `buzz-uring backup`: one moment of a store, whole, while writes go on.

use std::collections::HashSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{Author, Client, Confine, Launch, WAIT, id_of, now};
use crate::{all, command, names, notes, publish};

#[tokio::test]
async fn every_event_acknowledged_before_it_is_in_a_backup_made_under_load() {
    let launch = Launch::new();
    let relay = launch.start();
    let author = Author::new(1);
    let mut client = Client::connect(relay.address).await;
    let before = notes(&author, now(), 900);
    publish(&mut client, &before).await;
    command(&launch, &["access", "ban", &Author::new(9).pubkey_hex()]).expect(0, &[]);

    // Publishes as fast as it is acknowledged, until the backup is made.
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let load: Vec<_> = (2..4)
        .map(|key| {
            let (stop, address) = (Arc::clone(&stop), relay.address);
            let acknowledged: Arc<Mutex<Vec<String>>> = Arc::clone(&acknowledged);
            tokio::spawn(async move {
                let author = Author::new(key);
                let mut client = Client::connect(address).await;
                for n in 0.. {
                    if stop.load(Ordering::Acquire) {
                        return;
                    }
                    let content = "x".repeat(n % 2_000);
                    let event = author.json(now() - n as u64, 1, &[&["t", "load"]], &content);
                    publish(&mut client, std::slice::from_ref(&event)).await;
                    acknowledged.lock().unwrap().push(id_of(&event).to_owned());
                }
            })
        })
        .collect();
    let end = std::time::Instant::now() + WAIT;
    while acknowledged.lock().unwrap().len() < 50 {
        assert!(std::time::Instant::now() < end);
        tokio::task::yield_now().await;
    }
    let known: HashSet<String> = acknowledged.lock().unwrap().iter().cloned().collect();
    let target = tempfile::tempdir().unwrap();
    let to = target.path().join("backup");
    let (asked, folder) = (launch.clone(), to.to_str().unwrap().to_owned());
    let backup = tokio::task::spawn_blocking(move || command(&asked, &["backup", &folder]));
    let exit = backup.await.unwrap();
    stop.store(true, Ordering::Release);
    for load in load {
        load.await.unwrap();
    }
    exit.expect(0, &[]);
    assert!(
        exit.stdout.starts_with(&format!("{}: ", to.display())),
        "{exit:?}"
    );
    assert_eq!(names(target.path()), ["backup"]);

    // The restored relay serves all of it; the first goes on.
    let restored = Launch::new().folder(&to).start();
    let mut reader = Client::connect(restored.address).await;
    let mine = format!(
        "{{\"authors\":[\"{}\"],\"limit\":1000}}",
        author.pubkey_hex()
    );
    assert_eq!(reader.fetch(&mine).await, before);
    for ids in known.iter().collect::<Vec<_>>().chunks(200) {
        let found = reader
            .fetch(&serde_json::json!({"ids": ids}).to_string())
            .await;
        assert_eq!(
            found.len(),
            ids.len(),
            "acknowledged before, and not in the backup"
        );
    }
    let listed = command(&Launch::new().folder(&to), &["access", "list"]);
    assert!(listed.stdout.contains("banned"), "{listed:?}");
    publish(
        &mut reader,
        &[author.json::<&str>(now(), 7, &[], "restored")],
    )
    .await;
    publish(
        &mut client,
        &[author.json::<&str>(now(), 7, &[], "goes on")],
    )
    .await;
    drop((client, reader));
    restored.stop().expect(0, &[]);
    relay.stop().expect(0, &["a backup is made"]);
}

#[tokio::test]
async fn without_a_relay_the_store_is_copied_and_nothing_is_ever_overwritten() {
    let launch = Launch::new();
    let target = tempfile::tempdir().unwrap();
    let path = |name: &str| target.path().join(name).to_str().unwrap().to_owned();
    command(&launch, &["backup", &path("none")]).expect(1, &["none ever did", "BUZZ_DATA_DIR"]);
    let relay = launch.start();
    let mut client = Client::connect(relay.address).await;
    publish(&mut client, &notes(&Author::new(1), now(), 50)).await;
    let stored = all(&mut client).await;
    drop(client);
    let mut relay = Some(relay);
    for name in ["online", "offline"] {
        command(&launch, &["backup", &path(name)]).expect(0, &[]);
        let before = fs::read(target.path().join(name).join("events/data.mdb")).unwrap();
        command(&launch, &["backup", &path(name)]).expect(1, &[&path(name), "it exists"]);
        let after = fs::read(target.path().join(name).join("events/data.mdb")).unwrap();
        assert!(before == after, "it was overwritten");
        command(&launch, &["backup", &path("no/such")]).expect(1, &["no folder"]);
        // Ours alone, as the data folder is.
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &fs::metadata(target.path().join(name))
                .unwrap()
                .permissions(),
        );
        assert_eq!(mode & 0o077, 0);
        if let Some(relay) = relay.take() {
            relay.stop().expect(0, &[]);
        }
    }
    assert_eq!(names(target.path()), ["offline", "online"]);
    for name in ["online", "offline"] {
        let restored = Launch::new().folder(target.path().join(name)).start();
        let mut client = Client::connect(restored.address).await;
        assert_eq!(all(&mut client).await, stored);
    }
}

#[tokio::test]
async fn a_full_disk_is_told_and_nothing_half_written_stays() {
    let launch = Launch::new();
    let relay = launch.start();
    let mut client = Client::connect(relay.address).await;
    publish(&mut client, &notes(&Author::new(1), now(), 900)).await;
    drop(client);
    relay.stop().expect(0, &[]);
    let target = tempfile::tempdir().unwrap();
    let to = target.path().join("backup");
    // A limit on the size of files is met where a full disk would be.
    let small = launch.clone().confine(Confine::FileBytes(1 << 20));
    let exit = command(&small, &["backup", to.to_str().unwrap()]);
    exit.expect(1, &[to.to_str().unwrap(), "full"]);
    assert!(names(target.path()).is_empty());
    // Also where the relay writes it; it goes on.
    let bytes = crate::file_bytes(&launch.data_dir());
    assert!(bytes > 2 << 20, "{bytes}");
    let relay = launch.clone().confine(Confine::FileBytes(1 << 20)).start();
    let exit = command(&launch, &["backup", to.to_str().unwrap()]);
    exit.expect(1, &[to.to_str().unwrap(), "full"]);
    assert!(names(target.path()).is_empty());
    let mut client = Client::connect(relay.address).await;
    assert_eq!(all(&mut client).await.len(), 900);
    drop(client);
    relay.stop().expect(0, &["a backup could not be made"]);
}

#[tokio::test]
async fn a_store_whose_disk_is_full_is_backed_up_with_its_last_events() {
    let launch = Launch::new();
    // The copy is smaller than the file, so it fits where the file cannot grow.
    let relay = launch.clone().confine(Confine::FileBytes(2 << 20)).start();
    let mut client = Client::connect(relay.address).await;
    let author = Author::new(1);
    let (mut kept, mut refused) = (Vec::new(), 0);
    for n in 0.. {
        let event = author.json::<&str>(now() - n, 1, &[], &"x".repeat(20_000));
        match client.publish(&event).await.0 {
            true => kept.push(event),
            false => refused += 1,
        }
        if refused == 3 {
            break;
        }
    }
    let target = tempfile::tempdir().unwrap();
    let to = target.path().join("backup");
    command(&launch, &["backup", to.to_str().unwrap()]).expect(0, &[]);
    let restored = Launch::new().folder(&to).start();
    let mut client = Client::connect(restored.address).await;
    assert_eq!(client.fetch("{\"limit\":1000}").await, kept);
    client
        .publish_all([&author.json::<&str>(now(), 1, &[], "after")])
        .await;
}
