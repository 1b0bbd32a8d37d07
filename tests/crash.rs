//! `kill -9` at any moment loses no acknowledged event and needs no repair.

mod common;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use common::{Author, Client, Launch, id_of, now};

const KILLS: usize = 100;
/// Events on their way to the relay at one time.
const WINDOW: usize = 16;
/// A relay lives at most this long, counted from its first event.
const LIFE_MS_MAX: u64 = 150;

#[tokio::test]
async fn a_hundred_kills_lose_nothing() {
    let launch = Launch::new();
    let author = Author::new(1);
    let mut random = fastrand::Rng::with_seed(now());
    // All acknowledged events, id to JSON.
    let mut acknowledged: HashMap<String, String> = HashMap::new();
    let mut fresh: Vec<String> = Vec::new();
    let mut made = 0;
    for kill in 0..KILLS {
        if kill % 10 == 9 {
            // Also while it starts.
            let mut process = launch.spawn();
            std::thread::sleep(Duration::from_millis(random.u64(0..60)));
            process.kill();
        }
        let mut relay = launch.start();
        let mut client = Client::connect(relay.address).await;
        check(&mut client, &fresh, &acknowledged).await;
        fresh.clear();

        let end = Instant::now() + Duration::from_millis(random.u64(0..LIFE_MS_MAX));
        let mut unanswered: HashMap<String, String> = HashMap::new();
        let killer = tokio::task::spawn_blocking(move || {
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
            relay.kill()
        });
        loop {
            while unanswered.len() < WINDOW {
                // Of every kind that is kept, and of all sizes that matter to a store of pages.
                let content = "x".repeat(random.usize(0..3_000));
                let event = match made % 3 {
                    0 => author.json(now(), 30_000, &[&["d", &made.to_string()]], &content),
                    _ => author.json(now(), 1, &[&["t", "kept"]], &format!("{made}{content}")),
                };
                made += 1;
                unanswered.insert(id_of(&event).to_owned(), event.clone());
                if made % 50 == 0 {
                    acknowledged.insert(id_of(&event).to_owned(), event.clone());
                    fresh.push(id_of(&event).to_owned());
                }
                if client
                    .try_send(format!("[\"EVENT\",{event}]"))
                    .await
                    .is_err()
                {
                    break;
                }
            }
            // The end of the connection is the kill.
            let Ok(text) = client.try_text().await else {
                break;
            };
            let id = text.strip_prefix("[\"OK\",\"").expect("an OK")[..64].to_owned();
            assert!(text.ends_with(",true,\"\"]"), "{text}");
            let event = unanswered.remove(&id).expect("an answer to something sent");
            acknowledged.insert(id.clone(), event);
            fresh.push(id);
        }
        let exit = killer.await.expect("the killer");
        assert_eq!(exit.signal(), Some(9), "it ended by itself: {exit:#?}");
    }
    let relay = launch.start();
    let mut client = Client::connect(relay.address).await;
    let all: Vec<String> = acknowledged.keys().cloned().collect();
    check(&mut client, &all, &acknowledged).await;
    // The store is sound enough to be written, and to be closed in order.
    client
        .publish_all([&author.json::<&str>(now(), 1, &[], "the last")])
        .await;
    drop(client);
    relay.stop().expect(0, &[]);
    eprintln!(
        "{KILLS} kills, {} acknowledged events, none lost",
        all.len()
    );
    assert!(all.len() > KILLS, "only {} were acknowledged", all.len());
}

/// Every one of these events is there, as it was.
async fn check(client: &mut Client, ids: &[String], events: &HashMap<String, String>) {
    for ids in ids.chunks(200) {
        let found = client
            .fetch(&serde_json::json!({"ids": ids}).to_string())
            .await;
        let found: HashMap<&str, &String> =
            found.iter().map(|event| (id_of(event), event)).collect();
        for id in ids {
            assert_eq!(
                found.get(id.as_str()),
                Some(&&events[id]),
                "acknowledged and lost"
            );
        }
    }
}
