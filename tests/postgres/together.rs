//! What is published on one relay is live and stored on all.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::task::JoinHandle;

use crate::common::{Author, Client, LOOK, WAIT, id_of, now};
use crate::{cluster, database, several};

/// Events of a burst; an environment variable makes a soak of it.
fn burst() -> usize {
    let asked = std::env::var("BUZZ_TEST_BURST_EVENTS").ok();
    asked.and_then(|asked| asked.parse().ok()).unwrap_or(2_000)
}

/// A client that takes what comes, all the time, as fast as it can.
pub struct Listener {
    seen: Arc<Mutex<HashSet<String>>>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Subscribes to notes. `limit` is how many stored ones it asks for.
    pub async fn start(relay: SocketAddr, limit: usize) -> Listener {
        let mut client = Client::connect(relay).await;
        let filter = format!("{{\"kinds\":[1],\"limit\":{limit}}}");
        let stored = ids(&client.req("live", &filter).await);
        let seen = Arc::new(Mutex::new(stored));
        let all = seen.clone();
        let task = tokio::spawn(async move {
            while let Ok(text) = client.try_text().await {
                let event = text.strip_prefix("[\"EVENT\",\"live\",").expect(&text);
                let new = all.lock().unwrap().insert(id_of(event).to_owned());
                assert!(new, "twice: {event}");
            }
        });
        Listener { seen, task }
    }

    /// Waits until all of these have come, and nothing else has.
    pub async fn await_all(&self, expected: &HashSet<String>) {
        let end = Instant::now() + 10 * WAIT;
        while self.seen.lock().unwrap().len() < expected.len() {
            assert!(!self.task.is_finished(), "it has lost its connection");
            assert!(Instant::now() < end, "some never came");
            tokio::time::sleep(LOOK).await;
        }
        assert!(*self.seen.lock().unwrap() == *expected);
        assert!(!self.task.is_finished(), "it has lost its connection");
    }
}

/// What became of events that were published.
#[derive(Default)]
pub struct Told {
    /// Ids that were acknowledged.
    pub accepted: HashSet<String>,
    /// How many the relay could not store then.
    pub failed: usize,
}

/// Publishes on one connection, many in flight, until the end of all or of the connection. Slower while
/// the relay says that it has trouble.
pub async fn publish_all(mut client: Client, events: Vec<String>) -> Told {
    let mut told = Told::default();
    let (mut sent, mut answered) = (0, 0);
    while answered < events.len() {
        while sent < events.len() && sent - answered < 100 {
            let text = format!("[\"EVENT\",{}]", events[sent]);
            if client.try_send(text).await.is_err() {
                return told;
            }
            sent += 1;
        }
        let Ok(text) = client.try_text().await else {
            return told;
        };
        let answer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(answer[0], "OK", "{answer}");
        if answer[2] == true {
            let id = answer[1].as_str().expect("an id").to_owned();
            assert!(told.accepted.insert(id), "twice: {answer}");
        } else {
            let reason = answer[3].as_str().expect("a reason");
            assert!(reason.starts_with("error:"), "{answer}");
            told.failed += 1;
            tokio::time::sleep(LOOK).await;
        }
        answered += 1;
    }
    told
}

/// Publishes what is all taken. Returns the ids that were acknowledged, until the end of all or of the
/// connection.
async fn publish(client: Client, events: Vec<String>) -> HashSet<String> {
    let told = publish_all(client, events).await;
    assert_eq!(told.failed, 0);
    told.accepted
}

pub fn notes(author: u64, count: usize) -> Vec<String> {
    let (author, begun) = (Author::new(author), now());
    let note = |n: usize| author.json::<&str>(begun - 100, 1, &[], &n.to_string());
    (0..count).map(note).collect()
}

fn ids(events: &[String]) -> HashSet<String> {
    events.iter().map(|event| id_of(event).to_owned()).collect()
}

pub async fn stored(client: &mut Client) -> HashSet<String> {
    client.send("[\"COUNT\",\"all\",{\"kinds\":[1]}]").await;
    let count = client.message().await[2]["count"].as_u64();
    let found = ids(&client.fetch("{\"kinds\":[1],\"limit\":1000000}").await);
    assert_eq!(Some(found.len() as u64), count);
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_takes_all_have_and_tell() {
    let Some(cluster) = cluster() else { return };
    let relays = several(&database(cluster), 3);
    let mut listeners = Vec::new();
    for relay in &relays {
        listeners.push(Listener::start(relay.address, 0).await);
    }
    let mut all = HashSet::new();
    for (number, relay) in relays.iter().enumerate() {
        let events = notes(number as u64 + 1, 50);
        all.extend(ids(&events));
        let client = Client::connect(relay.address).await;
        assert_eq!(publish(client, events).await.len(), 50);
    }
    for (listener, relay) in listeners.iter().zip(&relays) {
        listener.await_all(&all).await;
        let mut client = Client::connect(relay.address).await;
        assert_eq!(stored(&mut client).await, all);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn history_meets_what_others_publish_meanwhile() {
    let Some(cluster) = cluster() else { return };
    let relays = several(&database(cluster), 2);
    let events = notes(1, burst());
    let all = ids(&events);
    let writer = Client::connect(relays[0].address).await;
    let publishing = tokio::spawn(publish(writer, events));
    // Each comes in the middle of the burst, and gets each event once: stored or live.
    let mut listeners = Vec::new();
    for n in 0..10 {
        listeners.push(Listener::start(relays[n % 2].address, 1_000_000).await);
    }
    assert_eq!(publishing.await.unwrap(), all);
    for listener in listeners {
        listener.await_all(&all).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
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
    let listener = Listener::start(relays[2].address, 0).await;
    let mut tasks = Vec::new();
    for (n, relay) in relays[..2].iter().enumerate() {
        let client = Client::connect(relay.address).await;
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
    listener.await_all(&kept).await;
}

#[tokio::test(flavor = "multi_thread")]
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
