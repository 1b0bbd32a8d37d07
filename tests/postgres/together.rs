//! What is published on one relay is live and stored on all.

use std::collections::{HashMap, HashSet};

use crate::common::{Author, Client, id_of, now};
use crate::{cluster, database, several};

/// Events of a burst; an environment variable makes a soak of it.
fn burst() -> usize {
    let asked = std::env::var("BUZZ_TEST_BURST_EVENTS").ok();
    asked.and_then(|asked| asked.parse().ok()).unwrap_or(2_000)
}

/// Reads live events until each of `ids` has come; none may come twice.
async fn await_all(client: &mut Client, ids: &HashSet<String>) {
    let mut seen = HashMap::new();
    while seen.len() < ids.len() {
        let message = client.message().await;
        assert_eq!(message[0], "EVENT", "{message}");
        let id = message[2]["id"].as_str().expect("an id").to_owned();
        if ids.contains(&id) {
            let before = seen.insert(id, message);
            assert!(before.is_none(), "twice: {before:?}");
        }
    }
}

/// Publishes on one connection, many in flight. Returns the ids that were acknowledged, until the end
/// of all or of the connection.
async fn publish(mut client: Client, events: Vec<String>) -> HashSet<String> {
    let mut acknowledged = HashSet::new();
    let (mut sent, mut answered) = (0, 0);
    while answered < events.len() {
        while sent < events.len() && sent - answered < 100 {
            let text = format!("[\"EVENT\",{}]", events[sent]);
            if client.try_send(text).await.is_err() {
                return acknowledged;
            }
            sent += 1;
        }
        let Ok(text) = client.try_text().await else {
            return acknowledged;
        };
        let answer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            (&answer[0], &answer[2]),
            (&"OK".into(), &true.into()),
            "{answer}"
        );
        acknowledged.insert(answer[1].as_str().expect("an id").to_owned());
        answered += 1;
    }
    acknowledged
}

fn notes(author: u64, count: usize) -> Vec<String> {
    let (author, begun) = (Author::new(author), now());
    let note = |n: usize| author.json::<&str>(begun - 100, 1, &[], &n.to_string());
    (0..count).map(note).collect()
}

fn ids(events: &[String]) -> HashSet<String> {
    events.iter().map(|event| id_of(event).to_owned()).collect()
}

async fn stored(client: &mut Client) -> HashSet<String> {
    client.send("[\"COUNT\",\"all\",{\"kinds\":[1]}]").await;
    let count = client.message().await[2]["count"].as_u64();
    let found = ids(&client.fetch("{\"kinds\":[1],\"limit\":1000000}").await);
    assert_eq!(Some(found.len() as u64), count);
    found
}

#[tokio::test]
async fn what_one_takes_all_have_and_tell() {
    let Some(cluster) = cluster() else { return };
    let relays = several(&database(cluster), 3);
    let mut listeners = Vec::new();
    for relay in &relays {
        let mut client = Client::connect(relay.address).await;
        assert_eq!(
            client.req("live", "{\"kinds\":[1],\"limit\":0}").await,
            [""; 0]
        );
        listeners.push(client);
    }
    let mut all = HashSet::new();
    for (number, relay) in relays.iter().enumerate() {
        let events = notes(number as u64 + 1, 50);
        all.extend(ids(&events));
        let client = Client::connect(relay.address).await;
        assert_eq!(publish(client, events).await.len(), 50);
    }
    for client in &mut listeners {
        await_all(client, &all).await;
        assert_eq!(ids(&client.fetch("{\"kinds\":[1]}").await), all);
        client.expect_silence().await;
    }
}

#[tokio::test]
async fn history_meets_what_others_publish_meanwhile() {
    let Some(cluster) = cluster() else { return };
    let relays = several(&database(cluster), 2);
    let events = notes(1, burst());
    let all = ids(&events);
    let writer = Client::connect(relays[0].address).await;
    let publishing = tokio::spawn(publish(writer, events));
    // Each comes in the middle of the burst, and gets each event once: stored or live.
    let mut readers = Vec::new();
    for n in 0..10 {
        let mut client = Client::connect(relays[n % 2].address).await;
        let filter = "{\"kinds\":[1],\"limit\":1000000}";
        let early = ids(&client.req("both", filter).await);
        readers.push((client, early));
    }
    assert_eq!(publishing.await.unwrap().len(), all.len());
    for (mut client, early) in readers {
        let late: HashSet<String> = all.difference(&early).cloned().collect();
        assert!(early.is_subset(&all));
        await_all(&mut client, &late).await;
        client.expect_silence().await;
    }
}

#[tokio::test]
async fn ephemeral_events_reach_every_relay_and_are_not_kept() {
    let Some(cluster) = cluster() else { return };
    let relays = several(&database(cluster), 2);
    let mut listener = Client::connect(relays[1].address).await;
    listener.req("live", "{\"kinds\":[20001]}").await;
    let author = Author::new(1);
    let mut writer = Client::connect(relays[0].address).await;
    for n in 0..20 {
        let event = author.json::<&str>(now(), 20_001, &[], &n.to_string());
        assert_eq!(writer.publish(&event).await, (true, String::new()));
        let told = listener.text().await;
        assert_eq!(told, format!("[\"EVENT\",\"live\",{event}]"));
    }
    listener.expect_silence().await;
    assert!(writer.fetch("{\"kinds\":[20001]}").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_killed_takes_nothing_acknowledged_with_it() {
    let Some(cluster) = cluster() else { return };
    let mut relays = several(&database(cluster), 3);
    let mut listener = Client::connect(relays[2].address).await;
    listener.req("live", "{\"kinds\":[1],\"limit\":0}").await;
    let mut tasks = Vec::new();
    for n in 0..2 {
        let client = Client::connect(relays[n].address).await;
        tasks.push(tokio::spawn(publish(client, notes(n as u64 + 1, burst()))));
    }
    // In the middle of its burst.
    let a_part = burst() as f64 / 10.0;
    relays[0].await_metric("buzz_events_received_total", &["stored"], |n| n >= a_part);
    relays[0].kill();
    let mut acknowledged = HashSet::new();
    for task in tasks {
        acknowledged.extend(task.await.unwrap());
    }
    assert!(acknowledged.len() >= burst());
    // The others have all of it, and some that the dead one could not acknowledge any more.
    let mut reader = Client::connect(relays[1].address).await;
    let kept = stored(&mut reader).await;
    assert!(acknowledged.is_subset(&kept));
    await_all(&mut listener, &kept).await;
    listener.expect_silence().await;
}

#[tokio::test]
async fn the_same_event_on_two_relays_is_stored_once() {
    let Some(cluster) = cluster() else { return };
    let relays = several(&database(cluster), 2);
    let events = notes(1, 200);
    let mut answers = Vec::new();
    for relay in &relays {
        let (mut client, events) = (Client::connect(relay.address).await, events.clone());
        answers.push(tokio::spawn(async move {
            let mut stored = 0;
            for event in events {
                let (accepted, reason) = client.publish(&event).await;
                assert!(accepted);
                stored += u32::from(reason.is_empty());
                assert!(
                    reason.is_empty() || reason.starts_with("duplicate:"),
                    "{reason}"
                );
            }
            stored
        }));
    }
    let mut stored = 0;
    for answer in answers {
        stored += answer.await.unwrap();
    }
    assert_eq!(stored, 200);
}
