//! Clients that nobody here wrote: nostr-sdk from the Rust registry, nostr-tools with ws from npm.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use nostr_sdk::prelude::*;

use common::{Launch, Relay, WAIT, skip};

async fn client(relay: &Relay, keys: Keys) -> nostr_sdk::Client {
    let client = nostr_sdk::Client::new(keys);
    client.add_relay(relay.url()).await.expect("a relay");
    client.connect().await;
    client.wait_for_connection(WAIT).await;
    client
}

async fn send(client: &nostr_sdk::Client, builder: EventBuilder) -> EventId {
    let output = client.send_event_builder(builder).await.expect("an answer");
    assert!(output.failed.is_empty(), "{output:?}");
    assert_eq!(output.success.len(), 1, "{output:?}");
    output.val
}

#[tokio::test]
async fn nostr_sdk_publishes_fetches_subscribes_and_replaces() {
    let relay = Launch::new().start();
    let keys = Keys::generate();
    let author = client(&relay, keys.clone()).await;
    let reader = client(&relay, Keys::generate()).await;

    // Published, then fetched: the client checks id and signature of what it gets.
    let text = "caf\u{e9} \u{1f41d} \"quoted\" \\ \n\t";
    let note = send(
        &author,
        EventBuilder::text_note(text).tag(Tag::hashtag("bees")),
    )
    .await;
    let filter = Filter::new().author(keys.public_key()).kind(Kind::TextNote);
    let found = reader
        .fetch_events(filter.clone(), WAIT)
        .await
        .expect("events");
    let found = found.into_iter().collect::<Vec<_>>();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].id, found[0].content.as_str()), (note, text));
    assert!(found[0].verify().is_ok());

    // Subscribed: history and then live.
    let mut notifications = reader.notifications();
    let bees = Filter::new().hashtag("bees");
    reader.subscribe(bees, None).await.expect("a subscription");
    let live = send(
        &author,
        EventBuilder::text_note("live").tag(Tag::hashtag("bees")),
    )
    .await;
    send(&author, EventBuilder::text_note("of something else")).await;
    // The pool tells of events that are new to the reader: the first one was fetched before.
    let seen = tokio::time::timeout(WAIT, async {
        loop {
            match notifications.recv().await.expect("a notification") {
                RelayPoolNotification::Event { event, .. } if event.id == note => {}
                RelayPoolNotification::Event { event, .. } => return event.id,
                _ => {}
            }
        }
    });
    assert_eq!(seen.await.expect("an event in time"), live);

    // Replaceable and addressable events.
    let time = Timestamp::now().as_secs();
    let named = |name: &str, age: u64| {
        EventBuilder::metadata(&Metadata::new().name(name))
            .custom_created_at(Timestamp::from_secs(time - age))
    };
    send(&author, named("old", 5)).await;
    send(&author, named("new", 1)).await;
    let metadata = reader
        .fetch_metadata(keys.public_key(), WAIT)
        .await
        .expect("metadata");
    assert_eq!(
        metadata.and_then(|metadata| metadata.name).as_deref(),
        Some("new")
    );
    let article = |age: u64| {
        EventBuilder::new(Kind::LongFormTextNote, format!("{age} s ago"))
            .tag(Tag::identifier("article"))
            .custom_created_at(Timestamp::from_secs(time - age))
    };
    send(&author, article(3)).await;
    let newest = send(&author, article(2)).await;
    let filter = Filter::new()
        .kind(Kind::LongFormTextNote)
        .identifier("article");
    let found = reader.fetch_events(filter, WAIT).await.expect("events");
    assert_eq!(
        found.into_iter().map(|event| event.id).collect::<Vec<_>>(),
        [newest]
    );

    // Refused: the client is told why.
    let future =
        EventBuilder::text_note("too early").custom_created_at(Timestamp::from_secs(time + 10_000));
    let output = author.send_event_builder(future).await.expect("an answer");
    assert!(output.success.is_empty(), "{output:?}");
    assert!(
        output
            .failed
            .values()
            .all(|why| why.starts_with("invalid: ")),
        "{output:?}"
    );
    for client in [author, reader] {
        client.shutdown().await;
    }
}

#[test]
fn nostr_tools_publishes_fetches_subscribes_and_replaces() {
    const TEST: &str = "nostr_tools_publishes_fetches_subscribes_and_replaces";
    const NODE_MAJOR_MIN: u32 = 20;
    let version = run(Command::new("node").arg("--version"));
    let major = version.and_then(|version| {
        let text = String::from_utf8(version.stdout).ok()?;
        text.trim_start_matches('v')
            .split('.')
            .next()?
            .parse::<u32>()
            .ok()
    });
    match major {
        None => return skip(TEST, "Node is not installed"),
        Some(major) if major < NODE_MAJOR_MIN => {
            return skip(
                TEST,
                &format!("nostr-tools needs Node {NODE_MAJOR_MIN}, this is {major}"),
            );
        }
        Some(_) => {}
    }
    if run(Command::new("npm").arg("--version")).is_none() {
        return skip(TEST, "npm is not installed");
    }
    // A copy, so that a test leaves nothing behind in the sources.
    let copy = tempfile::tempdir().expect("a temporary folder");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/js");
    for file in ["package.json", "package-lock.json", "session.mjs"] {
        fs::copy(sources.join(file), copy.path().join(file)).expect("a copy");
    }
    let install = ["ci", "--no-audit", "--no-fund", "--ignore-scripts"];
    let output = run(Command::new("npm").args(install).current_dir(&copy));
    expect_success("npm ci", output);
    let relay = Launch::new().start();
    let mut session = Command::new("node");
    session
        .args(["session.mjs", &relay.url()])
        .current_dir(&copy);
    expect_success("the session", run(&mut session));
}

/// Runs a program to its end; `None` when there is no such program.
fn run(command: &mut Command) -> Option<Output> {
    command.output().ok()
}

#[track_caller]
fn expect_success(what: &str, output: Option<Output>) {
    let output = output.unwrap_or_else(|| panic!("{what} could not be run"));
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{what} failed: {}\n{out}\n{err}",
        output.status
    );
}
