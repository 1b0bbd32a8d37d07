//! Descriptors, connections and memory run out, and the relay goes on.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;

pub use crate::common::raw::slow_socket;
use crate::common::raw::{self, Raw, get};
use crate::common::{Author, Client, Confine, Launch, Relay, WAIT, now, quiet_address, until};

#[tokio::test]
async fn a_full_relay_refuses_before_the_handshake() {
    let relay = Launch::new().set("BUZZ_MAX_CONNECTIONS", "3").start();
    let mut open: Vec<Client> = Vec::new();
    for _ in 0..3 {
        open.push(Client::connect(relay.address).await);
    }
    for _ in 0..5 {
        let mut raw = Raw::connect(relay.address);
        raw.send(raw::upgrade(&[]));
        let answer = raw.answer();
        assert_eq!(answer.status, 503, "{answer:?}");
        let seconds = answer
            .field("Retry-After")
            .and_then(|text| text.parse::<u64>().ok());
        assert!(seconds.is_some_and(|seconds| seconds > 0), "{answer:?}");
    }
    // Probes and pages still get their answer, and those who are in are served.
    assert_eq!(get(relay.address, "/health", &[]).status, 200);
    assert_eq!(get(relay.address, "/_readiness", &[]).status, 200);
    assert!(open[2].fetch("{}").await.is_empty());
    relay.await_metric(
        "buzz_ws_upgrades_refused_total",
        &["reason=\"capacity\""],
        |n| n == 5.0,
    );
    assert_eq!(relay.metric("buzz_ws_connections_total", &[]), Some(3.0));

    open.pop();
    relay.await_metric("buzz_ws_connections_active", &[], |count| count == 2.0);
    let mut late = Client::connect(relay.address).await;
    assert!(late.fetch("{}").await.is_empty());
}

#[tokio::test]
async fn without_descriptors_the_relay_pauses_and_recovers() {
    const LIMIT: u64 = 96;
    // With more shards than this limit is meant for, even the few silent sockets that each allows
    // come to more than there are descriptors.
    let relay = Launch::new()
        .set("BUZZ_SHARDS", "6")
        .confine(Confine::Descriptors(LIMIT))
        .start();
    assert!(
        relay.output().contains("BUZZ_MAX_CONNECTIONS"),
        "the lowered bound is told"
    );
    let mut client = Client::connect(relay.address).await;
    let crowd: Vec<TcpStream> = (0..LIMIT)
        .map(|_| TcpStream::connect(relay.address).expect("the kernel's queue has room"))
        .collect();
    // One that is in is served meanwhile.
    let event = Author::new(1).json::<&str>(now(), 1, &[], "still here");
    client.publish_all([&event]).await;
    let started = Instant::now();
    // Scraping needs a descriptor as well, so the count is looked at once there are some again:
    // when the crowd has been told that its five seconds for a request head are over.
    until("accepting goes on", || {
        let stream = TcpStream::connect_timeout(&relay.address, WAIT).ok()?;
        let mut raw = Raw::over(stream);
        raw.try_send(raw::head("GET", "/health", &[])).ok()?;
        (raw.answer().status == 200).then_some(())
    });
    assert!(
        started.elapsed() < Duration::from_secs(25),
        "{:?}",
        started.elapsed()
    );
    drop(crowd);
    relay.await_metric(
        "buzz_accept_errors_total",
        &["reason=\"emfile\""],
        |count| count > 0.0,
    );
    assert_eq!(client.fetch("{}").await, [event]);
    let mut late = Client::connect(relay.address).await;
    assert_eq!(late.fetch("{}").await.len(), 1);
    relay.stop().expect(0, &[]);
}

#[tokio::test]
async fn silent_sockets_leave_descriptors_to_those_who_need_them() {
    let relay = Launch::new().confine(Confine::Descriptors(200)).start();
    let mut client = Client::connect(relay.address).await;
    let crowd: Vec<TcpStream> = (0..400)
        .map(|_| TcpStream::connect(relay.address).expect("the kernel's queue has room"))
        .collect();
    // It answers, so it has a descriptor for that; and the crowd's time is not over yet.
    let exhausted = relay.metric("buzz_accept_errors_total", &["reason=\"emfile\""]);
    assert_eq!(exhausted, Some(0.0));
    assert!(client.fetch("{}").await.is_empty());
    drop(crowd);
    relay.stop().expect(0, &[]);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected_and_counted() {
    let relay = Launch::new()
        .set("BUZZ_MAX_FRAME_BYTES", "65536")
        .set("BUZZ_OUTBOX_HARD_BYTES", "1000000")
        .set("BUZZ_OUTBOX_SOFT_BYTES", "500000")
        .start();
    let mut slow = slow_socket(relay.address);
    slow.send(raw::text("[\"REQ\",\"all\",{}]"));
    assert!(slow.frame().text().starts_with("[\"EOSE\",\"all\""));
    let mut reader = Client::connect(relay.address).await;
    assert!(reader.req("all", "{}").await.is_empty());
    let mut writer = Client::connect(relay.address).await;
    let author = Author::new(1);
    // Kernels hold a few megabytes for a slow one.
    for n in 0..400 {
        let content = format!("{n} {}", "x".repeat(50_000));
        let event = author.json::<&str>(now(), 20_001, &[], &content);
        writer.publish_all([&event]).await;
        // The one that reads misses nothing.
        assert_eq!(reader.text().await, format!("[\"EVENT\",\"all\",{event}]"));
    }
    relay.await_metric("buzz_ws_backpressure_disconnects_total", &[], |count| {
        count == 1.0
    });
    relay.await_metric(
        "buzz_ws_closes_total",
        &["reason=\"slow_reader\""],
        |count| count == 1.0,
    );
    relay.await_metric("buzz_ws_connections_active", &[], |count| count == 2.0);
    assert!(
        relay
            .metric("buzz_events_dropped_total", &[])
            .is_some_and(|count| count >= 0.0)
    );
}

#[tokio::test]
async fn one_that_reads_history_slowly_gets_all_of_it() {
    let relay = Launch::new()
        .set("BUZZ_MAX_FRAME_BYTES", "65536")
        .set("BUZZ_OUTBOX_HARD_BYTES", "3000000")
        .start();
    let mut writer = Client::connect(relay.address).await;
    let (author, time) = (Author::new(1), now());
    let events: Vec<String> = (0..400)
        .map(|n| author.json::<&str>(time - n, 1, &[], &"x".repeat(40_000)))
        .collect();
    writer.publish_all(&events).await;
    // Sixteen megabytes of answers, through a queue of three: its pace is the client's.
    let mut slow = slow_socket(relay.address);
    slow.send(raw::text("[\"REQ\",\"all\",{}]"));
    relay.await_metric("buzz_subscriptions_active", &[], |count| count == 1.0);
    // Others are served meanwhile.
    assert_eq!(writer.fetch("{\"limit\":9}").await, events[..9]);
    for event in &events {
        assert_eq!(slow.frame().text(), format!("[\"EVENT\",\"all\",{event}]"));
    }
    assert!(slow.frame().text().starts_with("[\"EOSE\",\"all\""));
    assert_eq!(
        relay.metric("buzz_ws_backpressure_disconnects_total", &[]),
        Some(0.0)
    );
}

#[tokio::test]
async fn one_that_asks_and_never_reads_the_answers_is_held_back_or_cut() {
    let relay = Launch::new()
        .set("BUZZ_MAX_FRAME_BYTES", "65536")
        .set("BUZZ_OUTBOX_HARD_BYTES", "200000")
        .set("BUZZ_OUTBOX_SOFT_BYTES", "100000")
        .start();
    let mut witness = Client::connect(relay.address).await;
    let before = anonymous_bytes(&relay);
    let piece = |message: Vec<u8>| message.repeat(100);
    for bytes in [
        piece(raw::frame(0x80 | raw::PING, &[b'p'; 125])),
        piece(raw::text("hello")),
        piece(raw::text("[\"CLOSE\",1]")),
        piece(raw::text(&format!(
            "[\"REQ\",\"{}\",{{\"limit\":0}}]",
            "s".repeat(64)
        ))),
    ] {
        let mut never = slow_socket(relay.address);
        never.bound_write(Duration::from_millis(500));
        // Twenty megabytes of questions at most: the relay stops reading them, or hangs up.
        let most = 20_000_000 / bytes.len();
        let sent = (0..most).take_while(|_| never.try_send(&bytes).is_ok());
        let sent = sent.count() * bytes.len();
        assert!(witness.fetch("{}").await.is_empty());
        // What an allocator keeps counts as well, so this is far above the queue's bound, and far
        // below the answers.
        // It gives back what was freed a moment later.
        until(&format!("{sent} bytes of questions take little"), || {
            let grown = anonymous_bytes(&relay).saturating_sub(before);
            (grown < 32 << 20).then_some(())
        });
    }
    let disconnects = relay.metric("buzz_ws_backpressure_disconnects_total", &[]);
    assert!(
        disconnects.is_some_and(|count| count > 0.0),
        "{disconnects:?}"
    );
}

/// Memory that the process has allocated, in bytes. Pages of its program and of the store's file, which
/// the kernel can take back, are not in it.
pub fn anonymous_bytes(relay: &Relay) -> usize {
    let status = relay.proc_file("status");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse::<usize>().ok())
        .expect("a size")
        << 10
}

#[tokio::test]
async fn connections_of_all_kinds_leave_nothing_behind() {
    let relay = Launch::new().start();
    let author = Author::new(1);
    let mut client = Client::connect(relay.address).await;
    let event = author.json::<&str>(now(), 1, &[], "seen");
    client.publish_all([&event]).await;
    get(relay.address, "/health", &[]);
    relay.await_metric("buzz_ws_connections_active", &[], |count| count == 1.0);
    let before = settled_descriptors(&relay);
    for n in 0..300 {
        match n % 6 {
            0 => drop(Raw::connect(relay.address)),
            1 => drop(Raw::upgraded(relay.address)),
            2 => assert_eq!(get(relay.address, "/", &[]).status, 200),
            3 => {
                let mut raw = Raw::upgraded(relay.address);
                raw.send(raw::text("[\"REQ\",\"all\",{}]"));
                assert!(raw.frame().text().starts_with("[\"EVENT\""));
            }
            4 => {
                let mut raw = Raw::upgraded(relay.address);
                raw.send(raw::close(1000, ""));
                assert_eq!(raw.frame().close().0, Some(1000));
            }
            _ => {
                let mut raw = Raw::connect(relay.address);
                raw.send("GET / HTTP/1.1\r\nHo");
            }
        }
    }
    relay.await_metric("buzz_ws_connections_active", &[], |count| count == 1.0);
    relay.await_metric("buzz_subscriptions_active", &[], |count| count == 0.0);
    until("descriptors come back", || {
        (settled_descriptors(&relay) <= before).then_some(())
    });
    assert_eq!(relay.metric("buzz_ws_panics_total", &[]), Some(0.0));
    assert_eq!(client.fetch("{}").await, [event]);
}

/// Descriptors, without one that a scrape of ours may just have closed.
pub fn settled_descriptors(relay: &Relay) -> usize {
    (0..20)
        .map(|_| relay.descriptors())
        .min()
        .unwrap_or_default()
}

#[test]
fn connections_are_spread_over_the_shards() {
    let relay = Launch::new().set("BUZZ_SHARDS", "4").start();
    let _all: Vec<Raw> = (0..200).map(|_| Raw::upgraded(relay.address)).collect();
    let counts = [0, 1, 2, 3].map(|shard| {
        let label = format!("shard=\"{shard}\"");
        relay
            .metric("buzz_ws_connections_active", &[&label])
            .unwrap()
    });
    assert_eq!(counts.iter().sum::<f64>(), 200.0);
    let spread = counts.iter().fold(0.0, |most: f64, count| most.max(*count))
        - counts
            .iter()
            .fold(f64::MAX, |least: f64, count| least.min(*count));
    assert!(spread <= 40.0, "{counts:?}");
}

#[test]
fn nobody_has_to_read_what_it_logs() {
    let launch = || {
        let address = quiet_address();
        (
            Launch::new()
                .set("BUZZ_BIND_ADDR", address)
                .set("BUZZ_LOG", "trace"),
            address,
        )
    };
    let serves = |address| {
        for _ in 0..600 {
            drop(Raw::upgraded(address));
        }
        let mut raw = Raw::upgraded(address);
        raw.send(raw::text("[\"REQ\",\"all\",{}]"));
        assert!(raw.frame().text().starts_with("[\"EOSE\",\"all\""));
    };
    let started = |address| {
        until("it accepts", || TcpStream::connect(address).ok());
        until("it is ready", || {
            (get(address, "/_readiness", &[]).status == 200).then_some(())
        });
    };
    // A full pipe.
    let (silent, address) = launch();
    let (mut process, pipe) = silent.spawn_unheard();
    started(address);
    serves(address);
    process.signal(Signal::TERM);
    assert!(process.wait_exit(WAIT).expect("an end").status.success());
    drop(pipe);
    // A broken one.
    let (silent, address) = launch();
    let (mut process, pipe) = silent.spawn_unheard();
    started(address);
    drop(pipe);
    serves(address);
    process.signal(Signal::TERM);
    assert!(process.wait_exit(WAIT).expect("an end").status.success());
}
