//! Rates of a connection, and bounds on the connections of an address.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use buzz_uring::limits::UNUPGRADED_PER_ADDRESS_MAX;
use serde_json::json;
use socket2::{Domain, Socket, Type};

use crate::common::raw::{self, Answer, Raw};
use crate::common::{Author, Client, Launch, id_of, now};

#[tokio::test]
async fn messages_above_the_rate_are_answered_as_what_they_were() {
    let relay = Launch::new()
        .set("BUZZ_RATE_MESSAGES_PER_SECOND", 2)
        .set("BUZZ_RATE_BURST_SECONDS", 3)
        .start();
    let mut client = Client::connect(relay.address).await;
    let event = Author::new(1).json::<&str>(now(), 1, &[], "first");
    client.publish_all([&event]).await;
    assert_eq!(client.req("kept", "{\"limit\":0}").await, [""; 0]);
    // Uses up what is left, and more.
    for _ in 0..20 {
        client.send("[\"REQ\",\"burst\",{\"limit\":0}]").await;
    }
    let mut shed = 0;
    for _ in 0..20 {
        let message = client.message().await;
        shed += usize::from(message[0] == "CLOSED");
    }
    assert!((14..=18).contains(&shed), "{shed}");
    let text = "rate-limited: too many messages, slow down";
    let late = Author::new(1).json::<&str>(now(), 1, &[], "late");
    client.send(format!("[\"EVENT\",{late}]")).await;
    client.send("[\"COUNT\",\"c\",{}]").await;
    client.send("nonsense").await;
    client.send("[\"REQ\",\"bad\",{\"kinds\":1}]").await;
    client.send(format!("[\"AUTH\",{late}]")).await;
    client
        .expect(json!(["OK", id_of(&late), false, text]))
        .await;
    client.expect(json!(["CLOSED", "c", text])).await;
    client.expect(json!(["NOTICE", text])).await;
    client.expect(json!(["CLOSED", "bad", text])).await;
    client
        .expect(json!(["OK", id_of(&late), false, text]))
        .await;
    let limited = relay.metric("buzz_rate_limited_total", &["what=\"messages\""]);
    assert_eq!(limited, Some(shed as f64 + 5.0));
    // A CLOSE is obeyed, whatever the rate says.
    client.send("[\"CLOSE\",\"kept\"]").await;
    relay.await_metric("buzz_subscriptions_active", &[], |count| count == 0.0);

    // Another connection has a rate of its own, and this one gets it back.
    let mut other = Client::connect(relay.address).await;
    assert_eq!(other.fetch("{}").await, std::slice::from_ref(&event));
    std::thread::sleep(Duration::from_secs(2));
    let (accepted, reason) = client.publish(&late).await;
    assert!(accepted, "{reason}");
}

#[tokio::test]
async fn bytes_have_a_rate_too_and_one_large_message_passes() {
    let relay = Launch::new()
        .set("BUZZ_RATE_BYTES_PER_SECOND", 10_000)
        .set("BUZZ_RATE_BURST_SECONDS", 1)
        .start();
    let mut client = Client::connect(relay.address).await;
    let author = Author::new(1);
    let large = author.json::<&str>(now(), 1, &[], &"x".repeat(20_000));
    client.publish_all([&large]).await;
    let small = author.json::<&str>(now(), 1, &[], "small");
    let (accepted, reason) = client.publish(&small).await;
    assert_eq!(
        (accepted, reason.as_str()),
        (false, "rate-limited: too many bytes, slow down")
    );
    let limited = relay.metric("buzz_rate_limited_total", &["what=\"bytes\""]);
    assert_eq!(limited, Some(1.0));
    let started = Instant::now();
    while !client.publish(&small).await.0 {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(started.elapsed() < Duration::from_secs(20));
}

/// An upgrade from a loopback address of its own, with further fields.
fn upgrade_from(from: &str, relay: SocketAddr, fields: &[(&str, &str)]) -> (Raw, Answer) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let from: SocketAddr = format!("{from}:0").parse().unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&relay.into()).unwrap();
    let mut raw = Raw::over(TcpStream::from(socket));
    raw.send(raw::upgrade(fields));
    let answer = raw.answer_head();
    (raw, answer)
}

#[test]
fn connections_of_one_address_are_bounded() {
    let relay = Launch::new()
        .set("BUZZ_MAX_CONNECTIONS_PER_ADDRESS", 2)
        .start();
    let enter = |from| upgrade_from(from, relay.address, &[]);
    let (first, answer) = enter("127.0.0.2");
    assert_eq!(answer.status, 101);
    let (_second, answer) = enter("127.0.0.2");
    assert_eq!(answer.status, 101);
    let (mut third, answer) = enter("127.0.0.2");
    assert_eq!(answer.status, 429, "{answer:?}");
    assert!(answer.field("Retry-After").is_some());
    let body = String::from_utf8(third.rest().unwrap()).unwrap();
    assert_eq!(body, "too many connections from this address");
    // Another one is not concerned, nor is plain HTTP.
    assert_eq!(enter("127.0.0.3").1.status, 101);
    assert_eq!(raw::get(relay.address, "/health", &[]).status, 200);
    relay.await_metric(
        "buzz_ws_upgrades_refused_total",
        &["reason=\"address_connections\""],
        |count| count == 1.0,
    );
    drop(first);
    relay.await_metric("buzz_ws_connections_active", &[], |count| count == 1.0);
    assert_eq!(enter("127.0.0.2").1.status, 101);
}

#[test]
fn only_a_trusted_proxy_says_whose_connection_it_is() {
    let relay = Launch::new()
        .set("BUZZ_MAX_CONNECTIONS_PER_ADDRESS", 1)
        .set("BUZZ_TRUSTED_PROXIES", "127.0.0.9, 10.0.0.0/8")
        .start();
    let mut open = Vec::new();
    let mut enter = |from, line| {
        let (raw, answer) = upgrade_from(from, relay.address, &[("X-Forwarded-For", line)]);
        open.push(raw);
        answer.status
    };
    assert_eq!(enter("127.0.0.9", "203.0.113.1"), 101);
    assert_eq!(enter("127.0.0.9", "203.0.113.2"), 101);
    // What a client has written itself stands left of what the proxy adds.
    assert_eq!(enter("127.0.0.9", "198.51.100.1, 203.0.113.2"), 429);
    // One household.
    assert_eq!(enter("127.0.0.9", "2001:db8::1"), 101);
    assert_eq!(enter("127.0.0.9", "2001:db8::2"), 429);
    assert_eq!(enter("127.0.0.9", "2001:db8:0:1::1"), 101);
    // Anybody can write that line.
    assert_eq!(enter("127.0.0.2", "203.0.113.7"), 101);
    assert_eq!(enter("127.0.0.2", "203.0.113.8"), 429);
    // A proxy may add a line of its own instead; the one before it is trusted as well.
    let enter = |first| {
        let lines = [("X-Forwarded-For", first), ("X-Forwarded-For", "10.1.1.1")];
        upgrade_from("127.0.0.9", relay.address, &lines)
    };
    let (_third, answer) = enter("203.0.113.3");
    assert_eq!(answer.status, 101);
    assert_eq!(enter("203.0.113.1").1.status, 429);
}

#[test]
fn new_connections_of_one_address_have_a_rate() {
    let relay = Launch::new()
        .set("BUZZ_RATE_CONNECTIONS_PER_MINUTE", 3)
        .start();
    // How many are open makes no difference.
    let enter = |from| upgrade_from(from, relay.address, &[]).1;
    for _ in 0..3 {
        assert_eq!(enter("127.0.0.2").status, 101);
    }
    let answer = enter("127.0.0.2");
    assert_eq!(answer.status, 429, "{answer:?}");
    assert!(answer.field("Retry-After").is_some());
    assert_eq!(enter("127.0.0.3").status, 101);
    relay.await_metric(
        "buzz_ws_upgrades_refused_total",
        &["reason=\"address_rate\""],
        |count| count == 1.0,
    );
}

#[test]
fn sockets_of_one_address_that_ask_for_nothing_are_bounded() {
    let relay = Launch::new()
        .set("BUZZ_MAX_CONNECTIONS_PER_ADDRESS", 500)
        .start();
    let connect = |from: &str| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let from: SocketAddr = format!("{from}:0").parse().unwrap();
        socket.bind(&from.into()).unwrap();
        socket.connect(&relay.address.into()).unwrap();
        Raw::over(TcpStream::from(socket))
    };
    let silent: Vec<Raw> = (0..UNUPGRADED_PER_ADDRESS_MAX)
        .map(|_| connect("127.0.0.2"))
        .collect();
    let mut above = connect("127.0.0.2");
    // It is let go at once, and the others when their time for a request is over.
    let end = above.rest();
    assert!(end.is_err() || end.is_ok_and(|bytes| bytes.is_empty()));
    let mut other = connect("127.0.0.3");
    other.send(raw::upgrade(&[]));
    assert_eq!(other.answer_head().status, 101);
    relay.await_metric(
        "buzz_ws_upgrades_refused_total",
        &["reason=\"address_connections\""],
        |count| count == 1.0,
    );
    drop(silent);
}
