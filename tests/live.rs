//! History meets live, over all shards: who subscribes gets every event once, whenever it comes and
//! goes while others publish.

mod common;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::time::timeout;

use common::{Author, Client, Launch, WAIT, id_of, now};

/// Shards, more than most machines of a test have CPUs: what crosses them is what is tested.
const SHARDS: usize = 4;
const PUBLISHERS: usize = 6;
/// Stored events of a publisher, and ephemeral ones.
const STORED: usize = 500;
const EPHEMERAL: usize = 100;
/// Events on their way to the relay at one time, for each publisher.
const WINDOW: usize = 32;
/// Subscribers that stay from before the first event until after the last one.
const LASTING: usize = 20;
/// Subscribers that come and go, one subscription after another.
const PASSING: usize = 20;
const DELIVERIES: usize = 100_000;

type Ids = HashSet<[u8; 32]>;

/// What the publishers know.
#[derive(Default)]
struct Published {
    /// Stored events that were acknowledged.
    acknowledged: Mutex<Ids>,
    done: AtomicBool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_subscribes_gets_every_event_once() {
    for driver in ["auto", "epoll"] {
        publish_and_subscribe(driver).await;
    }
}

async fn publish_and_subscribe(driver: &str) {
    let relay = Launch::new()
        .set("BUZZ_IO_DRIVER", driver)
        .set("BUZZ_SHARDS", SHARDS)
        .set("BUZZ_MAX_LIMIT", "1000000")
        .set("BUZZ_DEFAULT_LIMIT", "1000000")
        .set("BUZZ_OUTBOX_HARD_BYTES", "100000000")
        .set("BUZZ_OUTBOX_SOFT_BYTES", "100000000")
        .start();
    let published = Arc::new(Published::default());
    let deliveries = Arc::new(AtomicUsize::new(0));

    let mut lasting = Vec::new();
    for n in 0..LASTING {
        let mut client = Client::connect(relay.address).await;
        let filter = if n % 2 == 0 {
            "{}"
        } else {
            "{\"kinds\":[1,20001]}"
        };
        assert!(client.req("s", filter).await.is_empty());
        lasting.push(tokio::spawn(count_all(client, Arc::clone(&deliveries))));
    }
    let passing: Vec<_> = (0..PASSING)
        .map(|_| {
            tokio::spawn(come_and_go(
                relay.address,
                published.clone(),
                deliveries.clone(),
            ))
        })
        .collect();
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|n| tokio::spawn(publish(relay.address, n as u64, Arc::clone(&published))))
        .collect();

    for publisher in publishers {
        publisher.await.expect("a publisher");
    }
    published.done.store(true, Ordering::Release);
    let mut subscriptions = 0;
    for passing in passing {
        subscriptions += passing.await.expect("a passing subscriber");
    }
    for lasting in lasting {
        lasting.await.expect("a lasting subscriber");
    }
    let mut late = Client::connect(relay.address).await;
    assert_eq!(late.fetch("{}").await.len(), PUBLISHERS * STORED);

    let deliveries = deliveries.load(Ordering::Relaxed);
    eprintln!(
        "{driver}: {deliveries} deliveries, {subscriptions} subscriptions that came and went"
    );
    assert!(deliveries >= DELIVERIES, "only {deliveries} deliveries");
    assert!(
        subscriptions >= 2 * PASSING,
        "only {subscriptions} subscriptions came and went"
    );
    // Every shard had connections, or this test shows less than it says.
    for shard in 0..SHARDS {
        let label = format!("shard=\"{shard}\"");
        let count = relay.metric("buzz_ws_connections_total", &[&label]);
        assert!(
            count.is_some_and(|count| count > 0.0),
            "no connection on shard {shard}"
        );
    }
    assert_eq!(
        relay.metric("buzz_events_dropped_total", &["reason=\"backlog\""]),
        Some(0.0)
    );
}

/// Publishes, with a window of unanswered events.
async fn publish(address: SocketAddr, seed: u64, published: Arc<Published>) {
    let mut client = Client::connect(address).await;
    let author = Author::new(seed);
    let time = now();
    let total = STORED + EPHEMERAL;
    let mut stored = HashSet::new();
    let (mut sent, mut answered) = (0, 0);
    while answered < total {
        while sent < total && sent - answered < WINDOW {
            let is_stored = sent % 6 != 5;
            let kind = if is_stored { 1 } else { 20_001 };
            let event = author.json::<&str>(time, kind, &[], &format!("{seed} {sent}"));
            if is_stored {
                stored.insert(id_of(&event).to_owned());
            }
            client.send(format!("[\"EVENT\",{event}]")).await;
            sent += 1;
        }
        let text = client.text().await;
        let id = text.strip_prefix("[\"OK\",\"").expect("an OK");
        assert!(text.ends_with(",true,\"\"]"), "{text}");
        if stored.contains(&id[..64]) {
            let id = const_hex::decode_to_array(&id[..64]).expect("hex");
            published.acknowledged.lock().unwrap().insert(id);
        }
        answered += 1;
    }
}

/// Reads until all events have come, each once.
async fn count_all(mut client: Client, deliveries: Arc<AtomicUsize>) {
    let total = PUBLISHERS * (STORED + EPHEMERAL);
    let mut seen = Ids::with_capacity(total);
    while seen.len() < total {
        let text = timeout(WAIT, client.try_text()).await;
        let text = text.unwrap_or_else(|_| panic!("a gap: {} of {total} came", seen.len()));
        let id = event_id(&text.expect("no end")).expect("only events come");
        assert!(seen.insert(id), "twice: {}", const_hex::encode(id));
        deliveries.fetch_add(1, Ordering::Relaxed);
    }
    client.expect_silence().await;
}

/// Subscribes, reads until all that was acknowledged by some moment after that has come, each event
/// once; closes; and again, until the publishers are done. Returns how many subscriptions it had.
async fn come_and_go(
    address: SocketAddr,
    published: Arc<Published>,
    deliveries: Arc<AtomicUsize>,
) -> usize {
    let mut subscriptions = 0;
    let mut client = Client::connect(address).await;
    loop {
        let last = published.done.load(Ordering::Acquire);
        let name = format!("s{subscriptions}");
        client
            .send(format!("[\"REQ\",\"{name}\",{{\"kinds\":[1]}}]"))
            .await;
        subscriptions += 1;
        let mut seen = Ids::new();
        let mut history_ended = false;
        let mut wanted: Option<Ids> = None;
        loop {
            if history_ended && wanted.is_none() {
                wanted = Some(published.acknowledged.lock().unwrap().clone());
            }
            if wanted
                .as_ref()
                .is_some_and(|wanted| wanted.is_subset(&seen))
            {
                break;
            }
            let text = timeout(WAIT, client.try_text()).await;
            let text = text.unwrap_or_else(|_| {
                let wanted = wanted.clone().unwrap_or_default();
                let missing = wanted.difference(&seen).count();
                panic!("a gap: {missing} events are missing, {} came", seen.len())
            });
            let text = text.expect("no end");
            match event_id(&text) {
                Some(_) if !text.starts_with(&format!("[\"EVENT\",\"{name}\",")) => {
                    panic!("an event of a closed subscription: {text}")
                }
                Some(id) => {
                    assert!(seen.insert(id), "twice: {}", const_hex::encode(id));
                    deliveries.fetch_add(1, Ordering::Relaxed);
                }
                None => {
                    assert!(text.starts_with(&format!("[\"EOSE\",\"{name}\"")), "{text}");
                    assert!(!history_ended, "two ends of history");
                    history_ended = true;
                }
            }
        }
        if last {
            return subscriptions;
        }
        // Live events may still be on their way; they end where the answer to this begins.
        client.send(format!("[\"CLOSE\",\"{name}\"]")).await;
        client.send("[\"REQ\",\"end\",{\"ids\":[]}]").await;
        while event_id(&client.text().await).is_some() {}
        if subscriptions % 3 == 0 {
            client = Client::connect(address).await;
        } else {
            client.send("[\"CLOSE\",\"end\"]").await;
        }
    }
}

/// The id in an EVENT message.
fn event_id(text: &str) -> Option<[u8; 32]> {
    let event = text.strip_prefix("[\"EVENT\",")?;
    let at = event.find("{\"id\":\"").expect("an event") + 7;
    Some(const_hex::decode_to_array(&event[at..at + 64]).expect("hex"))
}
