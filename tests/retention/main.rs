//! What is kept for how long, how large the store may be, and its copies: the real binary, its
//! settings and its commands.

#[path = "../common/mod.rs"]
mod common;

mod backup;
mod compact;
mod rules;
mod size;

use std::path::Path;

use common::{Author, Client, Exit, Launch};

/// Runs a command on the data folder of `launch`.
fn command(launch: &Launch, args: &[&str]) -> Exit {
    args.iter()
        .fold(launch.clone(), |launch, arg| launch.arg(arg))
        .run()
}

/// Everything that a relay serves, newest first.
async fn all(client: &mut Client) -> Vec<String> {
    client.fetch("{\"limit\":1000}").await
}

/// Publishes events at once, and waits until each is accepted.
async fn publish(client: &mut Client, events: &[String]) {
    for events in events.chunks(100) {
        for event in events {
            client
                .feed(format!("[\"EVENT\",{event}]"))
                .await
                .expect("a relay that takes it");
        }
        client.flush().await.expect("a relay that takes it");
        for _ in events {
            let answer = client.message().await;
            assert_eq!(answer[2], true, "{answer}");
        }
    }
}

/// Notes of different sizes, each a second older than the one before.
fn notes(author: &Author, newest: u64, count: u64) -> Vec<String> {
    let note = |n| {
        let content = format!("{n} {}", "x".repeat(n as usize * 37 % 3_000));
        author.json(newest - n, 1, &[&["t", "kept"]], &content)
    };
    (0..count).map(note).collect()
}

/// Bytes of the store's file.
fn file_bytes(dir: &Path) -> u64 {
    let file = std::fs::metadata(dir.join("events/data.mdb"));
    file.expect("the store's file").len()
}

/// Names in a folder.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("a folder");
    let names = entries.map(|entry| entry.expect("a name").file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into()).collect();
    names.sort();
    names
}
