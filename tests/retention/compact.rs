//! `buzz-uring compact`: smaller, and whole whatever happens.

use std::time::Duration;

use crate::common::{Author, Client, Confine, Launch, WAIT, id_of, now};
use crate::{all, command, file_bytes, names, notes, publish};

/// A folder whose store has had many more events than it has.
async fn shrunken(launch: &Launch) -> Vec<String> {
    let author = Author::new(1);
    let relay = launch.start();
    let mut client = Client::connect(relay.address).await;
    let events = notes(&author, now() - 10, 900);
    publish(&mut client, &events).await;
    let targets: Vec<&str> = events[200..].iter().map(|event| id_of(event)).collect();
    let tags: Vec<[&str; 2]> = targets.iter().map(|id| ["e", id]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    publish(&mut client, &[author.json(now(), 5, &tags, "")]).await;
    let stored = all(&mut client).await;
    assert_eq!(stored.len(), 201);
    drop(client);
    relay.stop().expect(0, &[]);
    stored
}

#[tokio::test]
async fn it_gives_room_back_and_keeps_everything() {
    let launch = Launch::new();
    command(&launch, &["compact"]).expect(1, &["no store", "BUZZ_DATA_DIR"]);
    assert!(!launch.data_dir().exists(), "a mistyped folder is not made");
    let stored = shrunken(&launch).await;
    let before = file_bytes(&launch.data_dir());

    let relay = launch.start();
    let exit = command(&launch, &["compact"]);
    exit.expect(1, &["another relay", "stop it", "as it was"]);
    relay.stop().expect(0, &[]);
    // No room for the copy: nothing changes.
    let small = launch.clone().confine(Confine::FileBytes(400 << 10));
    command(&small, &["compact"]).expect(1, &["full", "as it was"]);
    assert_eq!(file_bytes(&launch.data_dir()), before);

    let exit = command(&launch, &["compact"]);
    exit.expect(0, &[]);
    let after = file_bytes(&launch.data_dir());
    let words = format!("{before} bytes before, {after} bytes after, 201 events");
    assert!(exit.stdout.contains(&words), "{words}: {exit:?}");
    assert!(after * 2 < before, "{exit:?}");
    assert_eq!(
        names(&launch.data_dir().join("events")),
        ["data.mdb", "journal", "lock.mdb"]
    );
    let relay = launch.start();
    let mut client = Client::connect(relay.address).await;
    assert_eq!(all(&mut client).await, stored);
    publish(
        &mut client,
        &[Author::new(2).json::<&str>(now(), 1, &[], "goes on")],
    )
    .await;
    drop(client);
    relay.stop().expect(0, &[]);
}

#[tokio::test]
async fn killed_at_any_moment_it_leaves_a_whole_store() {
    let launch = Launch::new();
    let relay = launch.start();
    let mut client = Client::connect(relay.address).await;
    let author = Author::new(1);
    let events = notes(&author, now(), 900);
    publish(&mut client, &events).await;
    drop(client);
    relay.stop().expect(0, &[]);
    let unfinished = launch.data_dir().join("events/data.mdb.new");
    let mut random = fastrand::Rng::with_seed(now());
    let mut midway = 0;
    for round in 0..16 {
        let mut process = launch.clone().arg("compact").spawn();
        let end = std::time::Instant::now() + WAIT;
        while !unfinished.exists() {
            assert!(std::time::Instant::now() < end);
            if process.wait_exit(Duration::ZERO).is_some() {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(if round % 2 == 0 {
            0
        } else {
            random.u64(0..20)
        }));
        process.kill();
        midway += usize::from(unfinished.exists());
        if round % 4 == 3 {
            let relay = launch.start();
            let mut client = Client::connect(relay.address).await;
            assert_eq!(all(&mut client).await, events);
            drop(client);
            relay.stop().expect(0, &[]);
            assert!(!unfinished.exists(), "what was left is removed");
        }
    }
    assert!(midway > 0, "none of them was killed midway");
}
