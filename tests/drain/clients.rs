//! What each kind of client sees, and how the relay ends with it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Hooks, RESTART, counts, ends_clean, expect_restart, launch, lines, millis, summary, terminate,
};
use crate::common::raw::{self, CLOSE, Raw};
use crate::common::{Author, Relay, WAIT, id_of, now};

#[test]
fn everybody_is_told_and_nobody_is_reset() {
    for driver in ["auto", "epoll"] {
        let mut relay = launch(4).set("BUZZ_IO_DRIVER", driver).start();
        let mut clients: Vec<Raw> = (0..200).map(|_| Raw::upgraded(relay.address)).collect();
        terminate(&relay);
        for client in &mut clients {
            assert!(expect_restart(client).is_empty());
        }
        let exit = ends_clean(&mut relay);
        assert_eq!(counts(&exit), (200, 0, 0), "{driver}");
    }
}

#[test]
fn a_client_that_never_answers_the_close_is_cut_after_two_seconds() {
    let mut relay = launch(1).start();
    let mut silent = Raw::upgraded(relay.address);
    let start = terminate(&relay);
    assert_eq!(silent.frame().close(), RESTART);
    // The relay has shut its side, so the end is there to be read; this client just stays.
    silent.expect_end();
    let exit = ends_clean(&mut relay);
    assert!(start.elapsed() >= Duration::from_secs(2), "it had its time");
    assert!(start.elapsed() < Duration::from_secs(8));
    assert_eq!(counts(&exit), (1, 0, 0));
}

/// Events of this many bytes, so many that no socket buffer holds them all.
const LARGE: usize = 400_000;
const MANY: usize = 60;

/// A relay whose queues hold everything, a client that has asked for all that comes and reads
/// nothing, and so much published that the rest waits in its queue.
fn with_a_full_queue() -> (Relay, Raw) {
    let launch = launch(1)
        .set("BUZZ_OUTBOX_HARD_BYTES", 64 << 20)
        .set("BUZZ_OUTBOX_SOFT_BYTES", 64 << 20);
    let relay = launch.start();
    let mut full = raw::slow_socket(relay.address);
    full.send(raw::text(r#"["REQ","all",{"limit":0}]"#));
    assert_eq!(full.frame().text(), r#"["EOSE","all"]"#);
    let mut publisher = Raw::upgraded(relay.address);
    publish_large(&mut publisher);
    relay.await_metric("buzz_events_delivered_total", &[], |count| {
        count >= MANY as f64
    });
    // Queued is not written: the shard has had its turn of writing when it answers something new.
    for _ in 0..2 {
        publisher.send(raw::text(r#"["REQ","turn",{"limit":0}]"#));
        assert_eq!(publisher.frame().text(), r#"["EOSE","turn"]"#);
    }
    (relay, full)
}

fn publish_large(publisher: &mut Raw) {
    let author = Author::new(1);
    for n in 0..MANY {
        let content = format!("{n}{}", "x".repeat(LARGE));
        let event = author.json::<&str>(now(), 1, &[], &content);
        publisher.send(raw::text(&format!("[\"EVENT\",{event}]")));
        let answer = publisher.message();
        assert_eq!(answer, json!(["OK", id_of(&event), true, ""]));
    }
}

#[test]
fn a_client_that_never_reads_is_given_up_after_a_second() {
    let (mut relay, full) = with_a_full_queue();
    let start = terminate(&relay);
    let exit = ends_clean(&mut relay);
    assert!(start.elapsed() >= Duration::from_secs(1), "it had its time");
    assert!(start.elapsed() < Duration::from_secs(8));
    assert_eq!(counts(&exit), (0, 1, 0));
    drop(full);
}

#[test]
fn a_client_with_a_full_queue_that_reads_on_is_told() {
    let (mut relay, mut full) = with_a_full_queue();
    terminate(&relay);
    let dropped = ["reason=\"closing\""];
    relay.await_metric("buzz_events_dropped_total", &dropped, |count| count > 0.0);
    let messages = expect_restart(&mut full);
    // What had not been handed to the kernel was dropped, what had came whole.
    assert!(messages.len() < MANY, "{} events", messages.len());
    for message in &messages {
        assert!(message.starts_with(r#"["EVENT","all",{"#) && message.ends_with("}]"));
    }
    assert_eq!(counts(&ends_clean(&mut relay)), (1, 0, 0));
}

#[test]
fn a_client_in_the_middle_of_its_history_gets_whole_rows_and_is_told() {
    let mut relay = launch(1).start();
    let mut client = Raw::upgraded(relay.address);
    publish_large(&mut client);
    client.send(raw::text(r#"["REQ","all",{}]"#));
    // The first row: the rest is under way.
    assert!(client.frame().text().starts_with(r#"["EVENT","all",{"#));
    terminate(&relay);
    let messages = expect_restart(&mut client);
    // No end of a history that was not sent to its end.
    let eose = messages
        .iter()
        .any(|message| message.starts_with(r#"["EOSE""#));
    assert!(!eose || messages.len() == MANY);
    assert_eq!(counts(&ends_clean(&mut relay)), (1, 0, 0));
}

#[test]
fn a_history_read_in_flight_ends_without_an_answer() {
    let hooks = Hooks::new("history_ms=20000");
    let mut relay = hooks.on(launch(1)).start();
    let mut client = Raw::upgraded(relay.address);
    client.send(raw::text(r#"["REQ","all",{}]"#));
    relay.await_metric("buzz_subscriptions_active", &[], |count| count == 1.0);
    let start = terminate(&relay);
    assert!(expect_restart(&mut client).is_empty());
    ends_clean(&mut relay);
    assert!(start.elapsed() < Duration::from_secs(8));
}

/// A WebSocket whose client has sent its login and has no answer yet.
fn logging_in(relay: &Relay, author: u64) -> Raw {
    let mut client = Raw::connect(relay.address);
    client.send(raw::upgrade(&[]));
    assert_eq!(client.answer_head().status, 101);
    let challenge = client.message()[1].as_str().expect("a text").to_owned();
    let tags = [
        &["relay", "ws://localhost:3000"][..],
        &["challenge", &challenge],
    ];
    let login = Author::new(author).json(now(), 22_242, &tags, "");
    client.send(raw::text(&format!("[\"AUTH\",{login}]")));
    client
}

#[test]
fn a_login_in_the_gate_or_being_checked_ends_with_the_outcome_shutdown() {
    let hooks = Hooks::new("access_ms=20000");
    let mut relay = hooks
        .on(launch(1))
        .set("BUZZ_REQUIRE_AUTH", "true")
        .set("BUZZ_FEATURE_FLAGS_PROVIDER", "environment")
        .set("BUZZ_FEATURE_FLAG_BUZZ_RELAY_CONCURRENCY_AUTH", "1")
        .start();
    let mut checked = logging_in(&relay, 1);
    relay.await_metric("buzz_auth_attempts_total", &[], |count| count == 1.0);
    let mut waiting = logging_in(&relay, 2);
    relay.await_metric("buzz_auth_attempts_total", &[], |count| count == 2.0);
    let start = terminate(&relay);
    for client in [&mut checked, &mut waiting] {
        assert!(expect_restart(client).is_empty(), "no OK");
    }
    let exit = ends_clean(&mut relay);
    assert!(start.elapsed() < Duration::from_secs(8));
    let outcomes = lines(&exit).filter(|line| line["message"] == "auth");
    let outcomes: Vec<Value> = outcomes.map(|line| line["outcome"].clone()).collect();
    assert_eq!(outcomes, ["denied/shutdown", "denied/shutdown"]);
}

#[test]
fn a_client_within_its_upgrade_is_sent_away() {
    let mut relay = launch(1).start();
    let mut silent = Raw::connect(relay.address);
    let mut within = Raw::connect(relay.address);
    let upgrade = raw::upgrade(&[]);
    within.send(&upgrade[..40]);
    relay.await_metric("buzz_ws_connections_active", &[], |count| count == 0.0);
    let start = terminate(&relay);
    for client in [&mut silent, &mut within] {
        let answer = client.answer();
        assert_eq!((answer.status, answer.text().as_str()), (503, RESTART.1));
        assert!(answer.field("Retry-After").is_some(), "{answer:?}");
    }
    drop((silent, within));
    let exit = ends_clean(&mut relay);
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(counts(&exit), (0, 0, 0));
}

#[test]
fn a_client_that_is_being_closed_for_another_reason_is_gone() {
    let mut relay = launch(1).set("BUZZ_DRAIN_GRACE_MS", "300").start();
    let mut bad = Raw::upgraded(relay.address);
    let mut good = Raw::upgraded(relay.address);
    terminate(&relay);
    // Broken framing: its close is under way, and not answered, when the drain starts.
    bad.send([0xff, 0xff]);
    assert_eq!(bad.frame().close().0, Some(1002));
    expect_restart(&mut good);
    let exit = ends_clean(&mut relay);
    assert_eq!(counts(&exit), (1, 0, 1));
}

#[test]
fn a_shard_that_is_busy_tells_everybody_all_the_same() {
    let mut relay = launch(1).start();
    let mut quiet: Vec<Raw> = (0..20).map(|_| Raw::upgraded(relay.address)).collect();
    let floods: Vec<_> = (0..4)
        .map(|n| {
            let author = Author::new(n);
            let event = |i| author.json::<&str>(now() - i, 1, &[], &format!("{n} {i}"));
            let events = (0..2_000).map(|i| raw::text(&format!("[\"EVENT\",{}]", event(i))));
            let flood: Vec<u8> = events.flatten().collect();
            let mut socket = Raw::upgraded(relay.address);
            thread::spawn(move || {
                // Cut short by the relay's end, at the latest.
                let _ = socket.try_send(flood);
                socket
            })
        })
        .collect();
    relay.await_metric("buzz_events_received_total", &[], |count| count > 200.0);
    let start = terminate(&relay);
    for client in &mut quiet {
        expect_restart(client);
    }
    let exit = ends_clean(&mut relay);
    assert!(start.elapsed() < Duration::from_secs(12));
    let summary = summary(&exit);
    assert_eq!(summary["connections"], 24, "{summary}");
    for flood in floods {
        drop(flood.join());
    }
}

/// Clients connect all the time, through the signal, the grace and the end: each is served and then
/// told, or refused with a reason, or finds nobody listening. Nobody is reset.
#[test]
fn whoever_comes_during_the_drain_is_never_reset() {
    let mut relay = launch(2).set("BUZZ_DRAIN_GRACE_MS", "400").start();
    let address = relay.address;
    static ENOUGH: AtomicBool = AtomicBool::new(false);
    let visitors: Vec<_> = (0..8)
        .map(|visitor| {
            thread::spawn(move || {
                let (mut served, mut refused) = (0, 0);
                while !ENOUGH.load(Ordering::Relaxed) {
                    match visit(address, visitor == 0) {
                        Visit::Served => served += 1,
                        Visit::Refused => refused += 1,
                        Visit::Nobody => break,
                    }
                }
                (served, refused)
            })
        })
        .collect();
    thread::sleep(millis(200));
    terminate(&relay);
    ends_clean(&mut relay);
    ENOUGH.store(true, Ordering::Relaxed);
    let seen: Vec<(u32, u32)> = visitors
        .into_iter()
        .map(|visitor| visitor.join().expect("no reset"))
        .collect();
    assert!(seen.iter().any(|(served, _)| *served > 0), "{seen:?}");
    assert!(seen.iter().any(|(_, refused)| *refused > 0), "{seen:?}");
}

enum Visit {
    Served,
    Refused,
    Nobody,
}

fn visit(address: SocketAddr, stays: bool) -> Visit {
    let Ok(stream) = TcpStream::connect(address) else {
        return Visit::Nobody;
    };
    let mut raw = Raw::over(stream);
    raw.send(raw::upgrade(&[]));
    let answer = raw.answer_head();
    match answer.status {
        101 => {
            assert_eq!(raw.message()[0], "AUTH");
            if !stays {
                raw.send(raw::close(1000, ""));
                while raw.frame().opcode != CLOSE {}
            } else {
                let frame = raw.frame();
                assert_eq!(frame.close(), RESTART);
                raw.send(raw::frame(0x80 | CLOSE, &frame.payload));
            }
            raw.rest().expect("an end without a reset");
            Visit::Served
        }
        503 => {
            let body = raw.rest().expect("an end without a reset");
            assert_eq!(body, RESTART.1.as_bytes());
            Visit::Refused
        }
        other => panic!("{other}: {answer:?}"),
    }
}

/// Publishers that go on until they are told to leave: what was acknowledged is there afterwards.
#[test]
fn nothing_acknowledged_is_lost() {
    let launch = launch(2).set("BUZZ_DRAIN_JITTER_MS", "600");
    let mut relay = launch.start();
    let address = relay.address;
    let publishers: Vec<_> = (0..6)
        .map(|n| {
            thread::spawn(move || {
                let author = Author::new(n);
                let mut raw = Raw::upgraded(address);
                let mut acknowledged = Vec::new();
                for i in 0.. {
                    let event = author.json::<&str>(now(), 1, &[], &format!("{n} {i}"));
                    // The relay may have shut its side; what it said is still there to be read.
                    let _ = raw.try_send(raw::text(&format!("[\"EVENT\",{event}]")));
                    let frame = raw.frame();
                    if frame.opcode == CLOSE {
                        assert_eq!(frame.close(), RESTART);
                        let _ = raw.try_send(raw::frame(0x80 | CLOSE, &frame.payload));
                        break;
                    }
                    let answer: Value = serde_json::from_str(frame.text()).expect("JSON");
                    assert_eq!(answer, json!(["OK", id_of(&event), true, ""]));
                    acknowledged.push(id_of(&event).to_owned());
                }
                acknowledged
            })
        })
        .collect();
    thread::sleep(millis(100));
    let start = terminate(&relay);
    let acknowledged: Vec<String> = publishers
        .into_iter()
        .flat_map(|publisher| publisher.join().expect("a publisher"))
        .collect();
    assert!(start.elapsed() < WAIT);
    let exit = ends_clean(&mut relay);
    assert_eq!(counts(&exit), (6, 0, 0));
    assert!(acknowledged.len() > 20, "{}", acknowledged.len());

    let mut relay = launch.start();
    let mut raw = Raw::upgraded(relay.address);
    for ids in acknowledged.chunks(500) {
        raw.send(raw::text(
            &json!(["COUNT", "all", {"ids": ids}]).to_string(),
        ));
        let answer = raw.message();
        assert_eq!(answer[2]["count"], ids.len(), "{answer}");
    }
    relay.kill();
}

/// A client that speaks HTTP/1.0 by hand and stays: the relay ends its connection, and its own.
#[test]
fn a_plain_connection_does_not_hold_the_end_up() {
    let mut relay = launch(1).start();
    let mut stream = TcpStream::connect(relay.address).expect("a connection");
    stream.write_all(b"GET / HT").expect("bytes");
    let start = terminate(&relay);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    ends_clean(&mut relay);
    assert!(start.elapsed() < Duration::from_secs(8));
}
