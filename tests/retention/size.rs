//! `BUZZ_STORE_MAX_BYTES`: what a full store refuses, what it still does, and how it gets room.

use crate::common::{Author, Client, Launch, Relay, now, until};
use crate::{command, file_bytes};

const MAX: u64 = 16 << 20;
const CONTENT: usize = 400_000;

/// Publishes large events until one is refused. Returns those that were accepted.
async fn fill(client: &mut Client, author: &Author) -> Vec<String> {
    let mut accepted = Vec::new();
    let newest = now();
    loop {
        let age = accepted.len() as u64;
        let event = author.json::<&str>(newest - age, 1, &[], &"x".repeat(CONTENT));
        let (stored, reason) = client.publish(&event).await;
        if !stored {
            assert!(
                reason.starts_with("error: the store has no room"),
                "{reason}"
            );
            return accepted;
        }
        accepted.push(event);
        assert!(accepted.len() < 60, "it never fills");
    }
}

#[track_caller]
fn expect_said(relay: &Relay, words: &str, times: usize) {
    let said = || relay.output().matches(words).count();
    until(words, || (said() >= times).then_some(()));
    assert_eq!(said(), times, "{words}: {}", relay.output());
}

#[tokio::test]
async fn a_full_store_says_so_in_time_refuses_events_and_recovers() {
    let launch = Launch::new().set("BUZZ_STORE_MAX_BYTES", MAX);
    let author = Author::new(1);
    let relay = launch.start();
    let mut client = Client::connect(relay.address).await;
    let accepted = fill(&mut client, &author).await;
    assert!(accepted.len() > 25, "{} of {CONTENT} bytes", accepted.len());
    // The reserve is there, and the file is no larger than it may be.
    assert!(file_bytes(&launch.data_dir()) <= MAX);
    let used = relay.metric("buzz_store_used_bytes", &[]).expect("a gauge");
    let max = relay.metric("buzz_store_max_bytes", &[]).expect("a gauge");
    assert!(
        used >= max && max == (MAX - MAX / 4) as f64,
        "{used} of {max}"
    );
    let status = relay.status();
    assert_eq!(status["store"]["bytes_max"], MAX);
    assert_eq!(status["store"]["used_bytes"], used);
    expect_said(&relay, "the store is full: events are refused", 1);

    // What is there is served, ephemeral events pass, lists are edited.
    assert_eq!(client.fetch("{\"limit\":3}").await, accepted[..3]);
    let ephemeral = author.json::<&str>(now(), 20_001, &[], "passes");
    assert!(client.publish(&ephemeral).await.0);
    let key = Author::new(9).pubkey_hex();
    command(&launch, &["access", "ban", &key]).expect(0, &[]);
    // A deletion makes room.
    let targets: Vec<&str> = accepted[..10].iter().map(|event| &event[7..71]).collect();
    let tags: Vec<[&str; 2]> = targets.iter().map(|id| ["e", id]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    let deletion = author.json(now(), 5, &tags, "");
    assert!(client.publish(&deletion).await.0);
    expect_said(&relay, "the store takes events again", 1);
    assert!(relay.metric("buzz_store_free_bytes", &[]) > Some(3_000_000.0));
    let again = author.json::<&str>(now(), 1, &[], "there is room again");
    assert!(client.publish(&again).await.0);
    drop(client);
    relay.stop().expect(0, &[]);

    // So does retention.
    let relay = launch.set("BUZZ_RETENTION", "kinds=1 count=4").start();
    let mut client = Client::connect(relay.address).await;
    until("retention has made room", || {
        let used = relay.metric("buzz_store_used_bytes", &[]);
        (used < Some(4_000_000.0)).then_some(())
    });
    assert_eq!(client.fetch("{\"kinds\":[1]}").await.len(), 4);
    let large = author.json::<&str>(now(), 1, &[], &"y".repeat(CONTENT));
    assert!(client.publish(&large).await.0);
}

#[tokio::test]
async fn the_log_warns_well_before() {
    let relay = Launch::new().set("BUZZ_STORE_MAX_BYTES", MAX).start();
    let author = Author::new(1);
    let mut client = Client::connect(relay.address).await;
    let max = (MAX - MAX / 4) as f64;
    let mut age = 0;
    for percent in [80.0, 90.0, 95.0] {
        while relay.metric("buzz_store_used_bytes", &[]) < Some(max * percent / 100.0) {
            age += 1;
            let event = author.json::<&str>(now() - age, 1, &[], &"x".repeat(100_000));
            assert!(client.publish(&event).await.0);
        }
        let words = format!("the store is {percent} % full");
        until(&words, || relay.output().contains(&words).then_some(()));
    }
    expect_said(&relay, "% full", 3);
}

#[test]
fn a_size_below_what_a_few_messages_take_fails_the_start() {
    let launch = Launch::new().set("BUZZ_STORE_MAX_BYTES", MAX);
    let exit = launch.set("BUZZ_MAX_FRAME_BYTES", 4 << 20).run();
    exit.expect(
        64,
        &["BUZZ_STORE_MAX_BYTES", "BUZZ_MAX_FRAME_BYTES", "67108864"],
    );
}
