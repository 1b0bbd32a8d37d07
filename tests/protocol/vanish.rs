//! NIP-62.

use crate::common::{Author, Launch, id_of, now};
use crate::{count, refused, start};

const URL: &str = "ws://localhost:3000";

#[tokio::test]
async fn a_key_that_vanishes_leaves_nothing_and_its_past_stays_away() {
    let launch = Launch::new();
    let (relay, mut client) = start(launch.clone()).await;
    let (ada, ben) = (Author::new(1), Author::new(2));
    let time = now();
    let until = time - 10;
    let (a, b) = (ada.pubkey_hex(), ben.pubkey_hex());
    let wrap = |to: &str, age: u64| ben.json(until - age, 1_059, &[&["p", to]], "");
    let past = [
        ada.json::<&str>(until, 1, &[], "the last second counts"),
        ada.json::<&str>(until - 5, 0, &[], "{}"),
        ada.json(until - 6, 30_023, &[&["d", "x"]], ""),
        wrap(&a, 3),
    ];
    let note = ada.json::<&str>(until - 9, 1, &[], "deleted");
    let deletion = ada.json(until - 8, 5, &[&["e", id_of(&note)]], "");
    let after = ada.json::<&str>(until + 1, 1, &[], "a new life");
    let mention = ben.json(until - 1, 1, &[&["p", &a]], "");
    let other = wrap(&b, 3);
    client
        .publish_all(past.iter().chain([&note, &deletion]))
        .await;
    client.publish_all([&after, &mention, &other]).await;
    // Not for us, or for nobody: said so, and nothing is done.
    for tags in [&[&["relay", "wss://other.example"][..]][..], &[]] {
        let request = ada.json(until, 62, tags, "");
        assert!(
            refused(&mut client, &request)
                .await
                .starts_with("invalid: ")
        );
    }
    let own = format!("{{\"authors\":[\"{a}\"]}}");
    assert_eq!(count(&mut client, &own).await, 5);

    let tags: &[&[&str]] = &[
        &["relay", "wss://other.example"],
        &["relay", "WS://LocalHost:3000/"],
    ];
    let request = ada.json(until, 62, tags, "goodbye");
    client.publish_all([&request]).await;
    assert_eq!(client.fetch(&own).await, [after.clone(), request.clone()]);
    assert_eq!(
        client
            .fetch(&format!("{{\"authors\":[\"{b}\"],\"kinds\":[1]}}"))
            .await,
        [mention]
    );
    assert!(client.publish(&other).await.1.starts_with("duplicate: "));
    let never = ada.json::<&str>(until - 99, 1, &[], "never seen here");
    let ephemeral = ada.json::<&str>(until, 20_001, &[], "");
    let earlier = ada.json(until - 1, 62, &[&["relay", URL]], "");
    let barred: Vec<&String> = past
        .iter()
        .chain([&note, &deletion, &never, &ephemeral, &earlier])
        .collect();
    for event in &barred {
        assert!(
            refused(&mut client, event).await.starts_with("blocked: "),
            "{event}"
        );
    }
    // A request to vanish cannot be deleted.
    client
        .publish_all([&ada.json(time, 5, &[&["e", id_of(&request)]], "")])
        .await;
    assert!(client.publish(&request).await.1.starts_with("duplicate: "));
    drop((client, relay));
    let (_relay, mut client) = start(launch).await;
    for event in &barred {
        assert!(
            refused(&mut client, event).await.starts_with("blocked: "),
            "{event}"
        );
    }
    client
        .publish_all([&ada.json::<&str>(time, 1, &[], "back again")])
        .await;
}

#[tokio::test]
async fn a_request_to_all_relays_is_followed_whoever_may_write() {
    let launch = Launch::new()
        .set("BUZZ_REQUIRE_AUTH", "true")
        .set("BUZZ_MIN_POW_DIFFICULTY", 20)
        .set("BUZZ_CREATED_AT_PAST_SECONDS", 60);
    let (_relay, mut client) = start(launch).await;
    let ada = Author::new(1);
    let note = ada.json::<&str>(now(), 1, &[], "");
    assert!(
        refused(&mut client, &note)
            .await
            .starts_with("auth-required: ")
    );
    let request = ada.json(now() - 900, 62, &[&["relay", "ALL_RELAYS"]], "");
    client.publish_all([&request]).await;
    let ahead = ada.json(now() + 9_000, 62, &[&["relay", "ALL_RELAYS"]], "");
    assert!(refused(&mut client, &ahead).await.starts_with("invalid: "));
}
