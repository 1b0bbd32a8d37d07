//! SIGTERM and SIGINT: connections are closed in order, in time, with a reason.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::raw::{self, Raw, get};
use crate::common::{Author, Client, Launch, WAIT, now, until};

const RESTART: (u16, &str) = (1012, "relay restarting");

#[tokio::test]
async fn every_client_is_told_that_the_relay_restarts() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut relay = Launch::new().set("BUZZ_SHARDS", "4").start();
        let mut clients = Vec::new();
        for n in 0..40 {
            let mut client = Client::connect(relay.address).await;
            if n % 2 == 0 {
                assert!(client.req("all", "{}").await.is_empty());
            }
            clients.push(client);
        }
        relay.signal(signal);
        for client in &mut clients {
            let frame = client.close_frame().await.expect("a code");
            assert_eq!((u16::from(frame.code), frame.reason.as_str()), RESTART);
        }
        relay.wait_exit(WAIT).expect(0, &[]);
    }
}

#[tokio::test]
async fn in_the_grace_old_clients_are_served_and_new_ones_sent_away() {
    let mut relay = Launch::new().set("BUZZ_DRAIN_GRACE_MS", "3000").start();
    let mut client = Client::connect(relay.address).await;
    let mut other = Client::connect(relay.address).await;
    assert!(other.req("all", "{}").await.is_empty());
    let started = Instant::now();
    relay.signal(Signal::TERM);
    let not_ready = until("readiness turns", || {
        let answer = get(relay.health, "/_readiness", &[]);
        (answer.status == 503).then_some(answer)
    });
    assert_eq!(not_ready.text(), r#"{"status":"shutting_down"}"#);
    let public = get(relay.address, "/_readiness", &[]);
    assert_eq!(
        (public.status, public.text().as_str()),
        (503, r#"{"status":"shutting_down"}"#)
    );
    assert_eq!(get(relay.health, "/_liveness", &[]).status, 200);

    let mut late = Raw::connect(relay.address);
    late.send(raw::upgrade(&[]));
    let answer = late.answer();
    assert_eq!((answer.status, answer.text().as_str()), (503, RESTART.1));
    assert!(answer.field("Retry-After").is_some(), "{answer:?}");

    let event = Author::new(1).json::<&str>(now(), 1, &[], "served");
    client.publish_all([&event]).await;
    assert_eq!(other.text().await, format!("[\"EVENT\",\"all\",{event}]"));
    for client in [&mut client, &mut other] {
        let frame = client.close_frame().await.expect("a code");
        assert_eq!((u16::from(frame.code), frame.reason.as_str()), RESTART);
    }
    assert!(
        started.elapsed() >= Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
    relay.wait_exit(WAIT).expect(0, &[]);
}

#[test]
fn the_grace_is_five_seconds() {
    let mut relay = Launch::new().unset("BUZZ_DRAIN_GRACE_MS").start();
    let mut raw = Raw::upgraded(relay.address);
    let started = Instant::now();
    relay.signal(Signal::TERM);
    let (messages, code, reason) = raw.messages_until_close();
    assert_eq!((code, reason.as_str()), (Some(RESTART.0), RESTART.1));
    assert!(messages.is_empty());
    let took = started.elapsed();
    let bounds = Duration::from_millis(4_900)..Duration::from_secs(8);
    assert!(bounds.contains(&took), "closed after {took:?}");
    relay.wait_exit(WAIT).expect(0, &[]);
}

#[test]
fn nobody_keeps_it_past_its_bounds() {
    let mut relay = Launch::new().start();
    let upgraded = || Raw::upgraded(relay.address);
    let mut silent = upgraded();
    let mut busy = upgraded();
    busy.send(raw::text("[\"REQ\",\"all\",{}]"));
    assert!(busy.frame().text().starts_with("[\"EOSE\",\"all\""));
    // One has not asked for a WebSocket yet, one is within a message, and one never reads.
    let idle = Raw::connect(relay.address);
    let mut within = upgraded();
    within.send(&raw::text("[\"REQ\",\"all\",{}]")[..9]);
    let mut never = upgraded();
    for n in 0..20_000 {
        let ask = format!("[\"{n}{}", "x".repeat(500));
        if never.try_send(raw::text(&ask)).is_err() {
            break;
        }
    }
    let started = Instant::now();
    relay.signal(Signal::TERM);
    // 1 s to write, 2 s for the answer, and room for a busy machine.
    let exit = relay.wait_exit(Duration::from_secs(10));
    exit.expect(0, &[]);
    assert!(
        started.elapsed() < Duration::from_secs(8),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(silent.frame().close(), (Some(RESTART.0), RESTART.1));
    assert_eq!(busy.frame().close(), (Some(RESTART.0), RESTART.1));
    drop((idle, never));
}

#[tokio::test]
async fn what_was_acknowledged_before_the_end_is_there_after_it() {
    let launch = Launch::new();
    let mut relay = launch.start();
    let mut client = Client::connect(relay.address).await;
    let (author, time) = (Author::new(1), now());
    let events: Vec<String> = (0..500)
        .map(|age| author.json::<&str>(time - age, 1, &[], "in flight"))
        .collect();
    for event in &events {
        client.feed(format!("[\"EVENT\",{event}]")).await.unwrap();
    }
    client.flush().await.unwrap();
    relay.signal(Signal::TERM);
    let mut acknowledged = Vec::new();
    while let Ok(text) = client.try_text().await {
        let id = text.strip_prefix("[\"OK\",\"").expect("an OK")[..64].to_owned();
        assert!(text.ends_with("true,\"\"]"), "{text}");
        acknowledged.push(id);
    }
    relay.wait_exit(WAIT).expect(0, &[]);
    let relay = launch.start();
    let mut client = Client::connect(relay.address).await;
    let stored = client.fetch("{\"limit\":1000}").await;
    let stored: Vec<&str> = stored
        .iter()
        .map(|event| crate::common::id_of(event))
        .collect();
    for id in &acknowledged {
        assert!(stored.contains(&id.as_str()), "{id} is lost");
    }
}

#[test]
fn a_second_signal_stops_at_once() {
    let mut relay = Launch::new().set("BUZZ_DRAIN_GRACE_MS", "60000").start();
    relay.signal(Signal::TERM);
    until("draining", || {
        (get(relay.health, "/_readiness", &[]).status == 503).then_some(())
    });
    // One that comes within a second of the first is taken for the same.
    std::thread::sleep(Duration::from_millis(1_100));
    relay.signal(Signal::TERM);
    relay.wait_exit(WAIT).expect(1, &[]);
}
