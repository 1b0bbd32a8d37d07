//! Clients that read too slowly, a byte a second, or vanish without a word: what waits for them is
//! bounded, each and together, and nobody else notices.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Author, Client, Launch, Raw, Relay, WAIT, now, raw};
use crate::resources::slow_socket;

const EVENT_BYTES: usize = 50_000;

/// Sends large events that are not stored. The relay has passed each on when it answers.
async fn flood(writer: &mut Client, kind: u16, count: usize) {
    static FLOODED: AtomicU64 = AtomicU64::new(0);
    let author = Author::new(1);
    for _ in 0..count {
        // No event twice, whoever floods.
        let n = FLOODED.fetch_add(1, Ordering::Relaxed);
        let content = format!("{n} {}", "x".repeat(EVENT_BYTES));
        let event = author.json::<&str>(now(), kind, &[], &content);
        writer.publish_all([&event]).await;
    }
}

/// A slow client with a subscription to live events.
fn slow_subscriber(relay: &Relay, filters: &str) -> Raw {
    let mut slow = slow_socket(relay.address);
    subscribe(&mut slow, "all", filters);
    slow
}

fn subscribe(raw: &mut Raw, sub: &str, filters: &str) {
    raw.send(raw::text(&format!("[\"REQ\",\"{sub}\",{filters}]")));
    let answer = raw.message();
    assert_eq!((&answer[0], &answer[1]), (&"EOSE".into(), &sub.into()));
}

fn closes(relay: &Relay, reason: &str) -> f64 {
    let label = format!("reason=\"{reason}\"");
    let count = relay.metric("buzz_ws_closes_total", &[&label]);
    count.expect("it exists from start")
}

#[tokio::test]
async fn past_the_bound_of_all_queues_the_largest_is_disconnected_and_the_others_stay() {
    const TOTAL: usize = 20_000_000;
    let relay = Launch::new()
        .set("BUZZ_OUTBOX_TOTAL_BYTES", TOTAL)
        .set("BUZZ_OUTBOX_HARD_BYTES", TOTAL)
        .set("BUZZ_OUTBOX_SOFT_BYTES", TOTAL)
        .start();
    let mut small: Vec<Raw> = (0..4)
        .map(|_| slow_subscriber(&relay, "{\"kinds\":[20001]}"))
        .collect();
    // Gets everything three times.
    let mut large = slow_subscriber(&relay, "{\"kinds\":[20001]}");
    subscribe(&mut large, "again", "{\"kinds\":[20001]}");
    subscribe(&mut large, "and again", "{\"kinds\":[20001]}");
    let mut reader = Client::connect(relay.address).await;
    assert!(reader.req("all", "{\"kinds\":[20002]}").await.is_empty());
    let mut writer = Client::connect(relay.address).await;
    let mut sent = 0;
    while closes(&relay, "queues_full") == 0.0 {
        flood(&mut writer, 20_001, 5).await;
        sent += 5;
        assert!(sent < 2_000, "{sent} events and nobody is disconnected");
    }
    assert_eq!(closes(&relay, "queues_full"), 1.0);
    assert_eq!(closes(&relay, "slow_reader"), 0.0);
    let (got, code, reason) = large.messages_until_close();
    assert_eq!(code, Some(1008));
    assert_eq!(
        reason,
        "the relay's queues are full and yours is the longest"
    );
    let disconnects = relay.metric("buzz_ws_backpressure_disconnects_total", &[]);
    assert_eq!(disconnects, Some(1.0));
    // Those who stay get all of it, once they read; and who reads was never in danger.
    for small in &mut small {
        for _ in 0..sent {
            assert!(small.frame().text().starts_with("[\"EVENT\",\"all\","));
        }
    }
    // Each event that was queued for the large one has come or is counted; they were queued all.
    let delivered = relay.metric("buzz_events_delivered_total", &[]);
    let queued = delivered.expect("it exists") as usize - small.len() * sent;
    assert!(got.len() < queued, "{} of {queued}", got.len());
    relay.await_metric(
        "buzz_events_dropped_total",
        &["reason=\"slow_reader\""],
        |count| count as usize == queued - got.len(),
    );
    relay.await_metric("buzz_ws_queued_bytes", &[], |bytes| bytes < 1_000.0);
    flood(&mut writer, 20_002, 1).await;
    assert!(reader.text().await.starts_with("[\"EVENT\",\"all\","));
}

#[tokio::test]
async fn the_bound_of_all_queues_holds_whoever_comes_next() {
    const TOTAL: usize = 8_000_000;
    let relay = Launch::new()
        .set("BUZZ_OUTBOX_TOTAL_BYTES", TOTAL)
        .set("BUZZ_OUTBOX_HARD_BYTES", TOTAL / 2)
        .start();
    let mut writer = Client::connect(relay.address).await;
    let mut slow = Vec::new();
    for _ in 0..3 {
        slow.extend((0..6).map(|_| slow_subscriber(&relay, "{\"kinds\":[20001]}")));
        flood(&mut writer, 20_001, 60).await;
        // The gauge is set by the sweep.
        std::thread::sleep(Duration::from_millis(300));
        let queued = relay.metric("buzz_ws_queued_bytes", &[]);
        let queued = queued.expect("it exists") as usize;
        assert!(queued <= TOTAL + TOTAL / 64, "{queued}");
    }
    assert!(closes(&relay, "queues_full") > 0.0);
    assert!(writer.fetch("{}").await.is_empty());
}

#[tokio::test]
async fn above_the_soft_bound_a_queue_may_stay_only_for_a_while() {
    let relay = Launch::new()
        .set("BUZZ_OUTBOX_SOFT_BYTES", 100_000)
        .set("BUZZ_OUTBOX_SOFT_SECONDS", 3)
        .set("BUZZ_OUTBOX_HARD_BYTES", 200_000_000)
        .start();
    let stays = slow_subscriber(&relay, "{}");
    let mut recovers = slow_subscriber(&relay, "{}");
    let mut writer = Client::connect(relay.address).await;
    let started = Instant::now();
    flood(&mut writer, 20_001, 200).await;
    for _ in 0..200 {
        assert!(recovers.frame().text().starts_with("[\"EVENT\""));
    }
    relay.await_metric(
        "buzz_ws_closes_total",
        &["reason=\"slow_reader\""],
        |count| count == 1.0,
    );
    assert!(started.elapsed() >= Duration::from_secs(3));
    // The other one is served on.
    flood(&mut writer, 20_002, 1).await;
    assert!(recovers.frame().text().starts_with("[\"EVENT\""));
    assert_eq!(closes(&relay, "slow_reader"), 1.0);
    drop(stays);
}

#[tokio::test]
async fn a_close_cuts_a_batch_down_to_the_frame_under_way_and_the_answers() {
    const COUNT: usize = 400;
    let mut relay = Launch::new()
        .set("BUZZ_OUTBOX_HARD_BYTES", 100_000_000)
        .set("BUZZ_OUTBOX_SOFT_BYTES", 100_000_000)
        .start();
    let mut slow = slow_subscriber(&relay, "{\"kinds\":[20001]}");
    let mut writer = Client::connect(relay.address).await;
    flood(&mut writer, 20_001, COUNT).await;
    let event = Author::new(2).json::<&str>(now(), 1, &[], "mine");
    slow.send(raw::text(&format!("[\"EVENT\",{event}]")));
    relay.await_metric(
        "buzz_events_received_total",
        &["outcome=\"stored\""],
        |count| count == 1.0,
    );
    relay.signal(Signal::TERM);
    relay.await_metric("buzz_ws_closes_total", &["reason=\"restart\""], |count| {
        count == 2.0
    });
    let (mut messages, code, reason) = slow.messages_until_close();
    assert_eq!((code, reason.as_str()), (Some(1012), "relay restarting"));
    let last: Value = serde_json::from_str(&messages.pop().expect("an answer")).expect("JSON");
    assert_eq!((&last[0], &last[2]), (&"OK".into(), &true.into()), "{last}");
    // What the kernel had taken already, and one write more. Twenty megabytes were queued.
    assert!(messages.len() < COUNT / 2, "{} events", messages.len());
    drop(writer);
    relay.wait_exit(WAIT).expect(0, &[]);
}

#[tokio::test]
async fn one_that_reads_a_byte_a_second_is_cut_in_time() {
    let relay = Launch::new()
        .set("BUZZ_MAX_FRAME_BYTES", 65_536)
        .set("BUZZ_OUTBOX_HARD_BYTES", 1_000_000)
        .set("BUZZ_OUTBOX_SOFT_BYTES", 1_000_000)
        .start();
    let mut slow = slow_subscriber(&relay, "{}");
    let mut reader = Client::connect(relay.address).await;
    assert!(reader.req("all", "{}").await.is_empty());
    let (stop, stopped) = mpsc::channel::<()>();
    let drip = std::thread::spawn(move || {
        let second = Duration::from_secs(1);
        while stopped.recv_timeout(second) == Err(RecvTimeoutError::Timeout) {
            assert!(slow.read_one().expect("a byte"), "much is left to read");
        }
    });
    let mut writer = Client::connect(relay.address).await;
    let mut count = 0;
    while closes(&relay, "slow_reader") == 0.0 {
        flood(&mut writer, 20_001, 5).await;
        for _ in 0..5 {
            reader.text().await;
        }
        count += 5;
        assert!(count < 2_000, "{count} events and it is still there");
    }
    // Its queue has a second to leave, its answer two: however slowly it reads.
    let closed = Instant::now();
    relay.await_metric("buzz_ws_connections_active", &[], |count| count == 2.0);
    assert!(
        closed.elapsed() < Duration::from_secs(8),
        "{:?}",
        closed.elapsed()
    );
    assert_eq!(closes(&relay, "slow_reader"), 1.0);
    drop(stop);
    drip.join().expect("no panic");
}

#[tokio::test]
async fn those_that_vanish_without_a_word_are_missed_by_their_pongs() {
    let relay = Launch::new()
        .set("BUZZ_PING_SECONDS", 1)
        .set("BUZZ_OUTBOX_SOFT_BYTES", 100_000_000)
        .set("BUZZ_OUTBOX_HARD_BYTES", 100_000_000)
        .start();
    // Two are cut off from the network, idle and in the middle of a flood. One is there, and neither
    // reads nor says anything from here on.
    let idle = slow_subscriber(&relay, "{\"kinds\":[1]}");
    let flooded = slow_subscriber(&relay, "{\"kinds\":[20001]}");
    let deaf = slow_subscriber(&relay, "{\"kinds\":[20001]}");
    idle.vanish();
    flooded.vanish();
    let mut there = Raw::upgraded(relay.address);
    subscribe(&mut there, "all", "{\"kinds\":[1]}");
    let mut writer = Client::connect(relay.address).await;
    flood(&mut writer, 20_001, 200).await;
    drop(writer);
    let started = Instant::now();
    while closes(&relay, "unresponsive") < 3.0 {
        let frame = there.frame();
        assert_eq!(frame.opcode, raw::PING);
        there.send(raw::frame(0x80 | raw::PONG, &frame.payload));
        assert!(started.elapsed() < WAIT, "nobody misses them");
    }
    let missed = Instant::now();
    assert!(started.elapsed() > Duration::from_millis(2_500));
    relay.await_metric("buzz_ws_connections_active", &[], |count| count == 1.0);
    relay.await_metric("buzz_subscriptions_active", &[], |count| count == 1.0);
    relay.await_metric("buzz_ws_queued_bytes", &[], |bytes| bytes < 1_000.0);
    assert!(missed.elapsed() < Duration::from_secs(8));
    // What was queued for those that took little is counted.
    let dropped = relay.metric("buzz_events_dropped_total", &["reason=\"closing\""]);
    assert!(
        dropped.is_some_and(|dropped| dropped > 100.0),
        "{dropped:?}"
    );
    // One that answers is kept, however little it says.
    for _ in 0..3 {
        let frame = there.frame();
        there.send(raw::frame(0x80 | raw::PONG, &frame.payload));
    }
    assert_eq!(closes(&relay, "unresponsive"), 3.0);
    drop((idle, flooded, deaf));
}

#[tokio::test]
async fn history_alone_never_makes_a_client_too_slow() {
    const SUBS: usize = 6;
    const EVENTS: usize = 150;
    let relay = Launch::new()
        .set("BUZZ_OUTBOX_SOFT_BYTES", 1_500_000)
        .set("BUZZ_OUTBOX_SOFT_SECONDS", 1)
        .start();
    let (author, time) = (Author::new(1), now());
    let events: Vec<String> = (0..EVENTS as u64)
        .map(|n| author.json::<&str>(time - n, 1, &[], &"x".repeat(40_000)))
        .collect();
    Client::connect(relay.address)
        .await
        .publish_all(&events)
        .await;
    let mut slow = slow_socket(relay.address);
    for sub in 0..SUBS {
        slow.send(raw::text(&format!("[\"REQ\",\"{sub}\",{{}}]")));
    }
    // Far longer than a queue may be above its soft bound. A queue may not grow in that time either.
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        let queued = relay.metric("buzz_ws_queued_bytes", &[]);
        assert!(
            queued.is_some_and(|queued| queued < 1_600_000.0),
            "{queued:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut got = [0; SUBS];
    let mut ended = 0;
    while ended < SUBS {
        let message = slow.message();
        let sub: usize = message[1].as_str().unwrap().parse().unwrap();
        match message[0].as_str() {
            Some("EVENT") => got[sub] += 1,
            Some("EOSE") => ended += 1,
            _ => panic!("{message}"),
        }
    }
    assert_eq!(got, [EVENTS; SUBS]);
    assert_eq!(closes(&relay, "slow_reader"), 0.0);
}
