//! RFC 6455 byte by byte, as a client that may break every rule.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::raw::{self, BINARY, CLOSE, CONTINUATION, PING, PONG, Raw, TEXT, close, frame};
use crate::common::{Author, Launch, Relay, id_of, now};

const FIN: u8 = 0x80;
const ASK: &str = r#"["REQ","a",{"limit":0}]"#;

fn expect_eose(raw: &mut Raw) {
    assert_eq!(raw.message(), json!(["EOSE", "a"]));
}

/// The relay closes with this code, once `bytes` have come.
fn expect_close(relay: &Relay, bytes: &[u8], code: u16) {
    let mut raw = Raw::upgraded(relay.address);
    raw.send(bytes);
    let (messages, found, reason) = raw.messages_until_close();
    assert_eq!(found, Some(code), "{bytes:x?}: {reason}");
    assert!(
        messages.is_empty() && !reason.is_empty(),
        "{messages:?} {reason:?}"
    );
}

#[test]
fn a_message_may_come_with_the_head_and_in_single_bytes() {
    let relay = Launch::new().start();
    let mut raw = Raw::connect(relay.address);
    let mut bytes = raw::upgrade(&[]).into_bytes();
    bytes.extend(raw::text(ASK));
    raw.send(&bytes);
    raw.expect_upgrade();
    expect_eose(&mut raw);

    let mut raw = Raw::connect(relay.address);
    for byte in &bytes {
        raw.send([*byte]);
    }
    raw.expect_upgrade();
    expect_eose(&mut raw);
}

#[test]
fn fragments_and_control_frames_may_be_mixed() {
    let relay = Launch::new().start();
    let mut raw = Raw::upgraded(relay.address);
    // Cut within a character too.
    let ask = "[\"REQ\",\"\u{1f41d}\",{\"limit\":0}]".as_bytes();
    raw.send(frame(TEXT, &ask[..9]));
    raw.send(frame(FIN | PING, b"one"));
    raw.send(frame(CONTINUATION, &ask[9..11]));
    raw.send(frame(CONTINUATION, b""));
    raw.send(frame(FIN | PING, b""));
    raw.send(frame(FIN | PONG, b"unasked"));
    raw.send(frame(FIN | CONTINUATION, &ask[11..]));
    let pong = |payload: &[u8]| raw::Frame {
        opcode: PONG,
        payload: payload.to_vec(),
    };
    assert_eq!(raw.frame(), pong(b"one"));
    assert_eq!(raw.frame(), pong(b""));
    assert_eq!(raw.message(), json!(["EOSE", "\u{1f41d}"]));
    let long = [0xff; 125];
    raw.send(frame(FIN | PING, &long));
    assert_eq!(raw.frame(), pong(&long));
}

#[test]
fn broken_frames_are_answered_1002() {
    let relay = Launch::new().start();
    let mut unmasked = raw::header(FIN | TEXT, ASK.len(), false);
    unmasked.extend(ASK.as_bytes());
    let mut not_minimal = vec![FIN | TEXT, 0x80 | 126, 0, 1, 0, 0, 0, 0];
    not_minimal.push(b'a');
    for bytes in [
        unmasked,
        not_minimal,
        frame(FIN | 0x40 | TEXT, ASK.as_bytes()),
        frame(FIN | 0x10 | TEXT, ASK.as_bytes()),
        frame(FIN | 0x3, b""),
        frame(FIN | 0xb, b""),
        frame(FIN | CONTINUATION, b"no start"),
        [frame(TEXT, b"[\"R"), frame(FIN | TEXT, b"other")].concat(),
        frame(PING, b"in fragments"),
        frame(FIN | PING, &[0; 126]),
        frame(FIN | CLOSE, &[3]),
        close(999, ""),
        close(1005, ""),
        close(1006, ""),
        close(1015, ""),
        close(5000, ""),
    ] {
        expect_close(&relay, &bytes, 1002);
    }
    relay.await_metric("buzz_ws_closes_total", &["reason=\"protocol\""], |n| {
        n == 16.0
    });
}

#[test]
fn a_text_that_is_not_utf_8_is_answered_1007() {
    let relay = Launch::new().start();
    for bytes in [
        frame(FIN | TEXT, b"[\"\xff\"]"),
        frame(FIN | TEXT, b"\xed\xa0\x80"),
        // Shown by the fragment that has it, not by the end of the message.
        frame(TEXT, b"[\"\xc0\x80"),
        // A character that never ends.
        [frame(TEXT, b"\xf0\x9f"), frame(FIN | CONTINUATION, b"")].concat(),
        frame(FIN | CLOSE, b"\x03\xe8\xff"),
    ] {
        expect_close(&relay, &bytes, 1007);
    }
    relay.await_metric("buzz_ws_closes_total", &["reason=\"not_utf8\""], |n| {
        n == 5.0
    });
}

#[test]
fn the_longest_message_is_served_and_one_byte_more_is_not() {
    const MAX: usize = 524_288;
    let relay = Launch::new().start();
    let author = Author::new(1);
    let event = |content: usize| {
        let content = "x".repeat(content);
        let event = author.json::<&str>(now(), 1, &[], &content);
        format!("[\"EVENT\",{event}]")
    };
    let bare = event(0).len();
    let longest = event(MAX - bare);
    assert_eq!(longest.len(), MAX);
    let mut raw = Raw::upgraded(relay.address);
    raw.send(raw::text(&longest));
    let answer = raw.message();
    assert_eq!(
        (&answer[0], &answer[2]),
        (&json!("OK"), &json!(true)),
        "{answer}"
    );

    let too_long = event(MAX - bare + 1);
    let half = too_long.len() / 2;
    let (start, rest) = too_long.as_bytes().split_at(half);
    let ways = [
        raw::text(&too_long),
        [frame(TEXT, start), frame(FIN | CONTINUATION, rest)].concat(),
        // Only declared, never sent.
        [raw::header(FIN | TEXT, MAX + 1, true), vec![0; 4]].concat(),
        [raw::header(FIN | BINARY, usize::MAX >> 1, true), vec![0; 4]].concat(),
    ];
    for bytes in &ways {
        let mut raw = Raw::upgraded(relay.address);
        // Bytes that nobody will read must not become a reset that destroys the answer.
        let _ = raw.try_send(bytes);
        let (messages, code, _) = raw.messages_until_close();
        assert_eq!(code, Some(1009));
        let [notice] = &messages[..] else {
            panic!("one notice: {messages:?}")
        };
        assert!(
            notice.starts_with("[\"NOTICE\",") && notice.contains("524288"),
            "{notice}"
        );
    }
    relay.await_metric("buzz_ws_closes_total", &["reason=\"too_big\""], |n| {
        n == 4.0
    });
}

#[test]
fn a_message_comes_in_a_bounded_number_of_fragments() {
    let relay = Launch::new().start();
    let mut raw = Raw::upgraded(relay.address);
    let mut bytes = frame(TEXT, b"");
    for _ in 0..4_096 {
        bytes.extend(frame(CONTINUATION, b""));
    }
    raw.send(bytes);
    let (messages, code, _) = raw.messages_until_close();
    assert_eq!((messages.len(), code), (1, Some(1009)));
}

#[test]
fn a_close_is_echoed() {
    let relay = Launch::new().start();
    for (code, reason) in [
        (1000, ""),
        (1001, "bye"),
        (3000, "a"),
        (4999, &"r".repeat(123)),
    ] {
        let mut raw = Raw::upgraded(relay.address);
        raw.send(close(code, reason));
        let frame = raw.frame();
        assert_eq!(frame.close().0, Some(code));
        raw.expect_end();
    }
    let mut raw = Raw::upgraded(relay.address);
    raw.send(frame(FIN | CLOSE, b""));
    assert_eq!(raw.frame().close(), (None, ""));
    raw.expect_end();
    relay.await_metric("buzz_ws_closes_total", &["reason=\"client\""], |n| n == 5.0);

    // What follows a close is not answered.
    let mut raw = Raw::upgraded(relay.address);
    raw.send([close(1000, ""), raw::text(ASK)].concat());
    assert_eq!(raw.frame().close().0, Some(1000));
    raw.expect_end();

    // What precedes it is.
    let mut raw = Raw::upgraded(relay.address);
    raw.send([raw::text(ASK), close(1000, "")].concat());
    expect_eose(&mut raw);
    assert_eq!(raw.frame().close().0, Some(1000));
    raw.expect_end();
    relay.await_metric("buzz_ws_connections_active", &[], |n| n == 0.0);
}

#[test]
fn a_stream_that_just_ends_ends_its_connection() {
    let relay = Launch::new().start();
    // Who shuts its write side is told that this is the end, and so that it is no reset.
    let mut raw = Raw::upgraded(relay.address);
    raw.shut_write();
    assert_eq!(raw.frame().close(), (None, ""));
    raw.expect_end();
    relay.await_metric("buzz_ws_closes_total", &["reason=\"lost\""], |n| n == 1.0);
    // Within a frame, and without a word.
    let mut raw = Raw::upgraded(relay.address);
    raw.send(&raw::text(ASK)[..10]);
    drop(raw);
    drop(Raw::upgraded(relay.address));
    relay.await_metric("buzz_ws_closes_total", &["reason=\"lost\""], |n| n == 3.0);
    relay.await_metric("buzz_ws_connections_active", &[], |n| n == 0.0);
}

#[test]
fn who_says_all_it_has_to_say_and_shuts_its_write_side_is_answered() {
    let relay = Launch::new().start();
    let mut raw = Raw::upgraded(relay.address);
    let author = Author::new(1);
    let events = [1, 2, 3].map(|n| author.json::<&str>(now(), 1, &[], &n.to_string()));
    let messages = events.iter().map(|event| format!("[\"EVENT\",{event}]"));
    raw.send(
        messages
            .flat_map(|text| raw::text(&text))
            .collect::<Vec<u8>>(),
    );
    raw.shut_write();
    for event in &events {
        assert_eq!(
            raw.frame().text(),
            format!("[\"OK\",\"{}\",true,\"\"]", id_of(event))
        );
    }
    assert_eq!(raw.frame().close(), (None, ""));
    raw.expect_end();
    relay.await_metric("buzz_ws_connections_active", &[], |n| n == 0.0);
}

#[test]
fn a_client_that_does_not_answer_the_close_is_cut() {
    let relay = Launch::new().start();
    let mut raw = Raw::upgraded(relay.address);
    raw.send(frame(FIN | 0x3, b""));
    assert_eq!(raw.frame().close().0, Some(1002));
    let start = Instant::now();
    // It shuts its write side at once, and gives up after 2 s.
    raw.expect_end();
    relay.await_metric("buzz_ws_connections_active", &[], |n| n == 0.0);
    assert!(
        start.elapsed() < Duration::from_secs(8),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_binary_message_is_not_taken_for_a_text() {
    let relay = Launch::new().start();
    let mut raw = Raw::upgraded(relay.address);
    raw.send(frame(FIN | BINARY, ASK.as_bytes()));
    let answer = raw.frame();
    match answer.opcode {
        CLOSE => assert_eq!(answer.close().0, Some(1003)),
        _ => assert!(answer.text().starts_with("[\"NOTICE\","), "{answer:?}"),
    }
}

#[test]
fn idle_clients_are_pinged_and_silent_ones_are_told_to_go() {
    let second = Duration::from_secs(1);
    let relay = Launch::new().set("BUZZ_PING_SECONDS", 1).start();
    let mut answering = Raw::upgraded(relay.address);
    let mut silent = Raw::upgraded(relay.address);
    let start = Instant::now();
    let answering = std::thread::spawn(move || {
        for ping in 1..=6 {
            let frame = answering.frame();
            assert_eq!(frame.opcode, PING);
            let took = start.elapsed();
            assert!(
                took >= second * ping - second / 2,
                "ping {ping} after {took:?}"
            );
            answering.send(frame_of_pong(&frame));
        }
        answering.send(raw::text(ASK));
        expect_eose(&mut answering);
    });
    for _ in 0..3 {
        assert_eq!(silent.frame().opcode, PING);
    }
    // It reads, so it can be told.
    assert_eq!(
        silent.frame().close(),
        (Some(1001), "pings went unanswered")
    );
    let took = start.elapsed();
    assert!(took >= second * 4 - second / 2, "told after {took:?}");
    silent.expect_end();
    answering.join().expect("the one that answers is served");
    relay.await_metric("buzz_ws_closes_total", &["reason=\"unresponsive\""], |n| {
        n == 1.0
    });
}

fn frame_of_pong(ping: &raw::Frame) -> Vec<u8> {
    frame(FIN | PONG, &ping.payload)
}
