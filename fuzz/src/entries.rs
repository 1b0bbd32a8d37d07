//! One function a target: any bytes go in, and what must hold whatever they are is asserted.

use buzz_uring::nostr::auth::{self, RelayUrl};
use buzz_uring::nostr::event::Event;
use buzz_uring::nostr::filter::Filter;
use buzz_uring::nostr::message::{ClientMessage, MessageError, ParseBounds};
use buzz_uring::ws::{Decoder, Item, parse_head};

/// A target's name and function.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("handshake", handshake),
    ("codec", codec),
    ("scanner", scanner),
    ("filter", filter),
    ("message", message),
    ("auth", auth),
];

/// Bytes of a request. A head is read from its own bytes alone, and only once it is all there.
pub fn handshake(data: &[u8]) {
    let Ok(Some(head)) = parse_head(data) else {
        return;
    };
    assert!(head.len <= data.len());
    assert_eq!(parse_head(&data[..head.len - 1]), Ok(None));
    let _ = head.path();
    assert_eq!(parse_head(&data[..head.len]), Ok(Some(head)));
}

/// Bytes of a client behind a handshake. The first byte is no part of them: it says how they are cut
/// into reads, which must not change what comes out.
pub fn codec(data: &[u8]) {
    const MESSAGE_BYTES_MAX: usize = 4_096;
    let Some((cut, data)) = data.split_first() else {
        return;
    };
    let whole = decode(&[data], MESSAGE_BYTES_MAX);
    let pieces: Vec<&[u8]> = data.chunks(usize::from(*cut).max(1)).collect();
    assert_eq!(whole, decode(&pieces, MESSAGE_BYTES_MAX), "cut into {cut}");
}

/// What the decoder made of some reads: a text for each item, and the fault that ended it.
fn decode(reads: &[&[u8]], message_bytes_max: usize) -> (Vec<String>, Option<String>) {
    let mut decoder = Decoder::new(message_bytes_max);
    let (mut held, mut items) = (Vec::new(), Vec::new());
    for read in reads {
        held.extend_from_slice(read);
        let mut at = 0;
        loop {
            let decoded = match decoder.next(&mut held[at..]) {
                Ok(decoded) => decoded,
                Err(fault) => return (items, Some(format!("{fault:?}"))),
            };
            match decoded.item {
                None if decoded.consumed == 0 => break,
                Some(Item::Text(text)) => assert!(text.len() <= message_bytes_max),
                Some(Item::Binary(bytes)) => assert!(bytes.len() <= message_bytes_max),
                _ => {}
            }
            items.extend(decoded.item.map(|item| format!("{item:?}")));
            at += decoded.consumed;
        }
        held.drain(..at);
        // One message and one header at most are held for a peer.
        assert!(held.len() <= message_bytes_max + 14 || reads.len() == 1);
    }
    (items, None)
}

/// The JSON of an event. What is accepted is JSON, and reads the same again in its normal form.
pub fn scanner(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(event) = Event::parse(text) else {
        return;
    };
    walk(&event);
    let again = Event::parse(event.json()).expect("the normal form of an event is one");
    assert_eq!(again.json(), event.json());
    assert_eq!(again.id(), event.id());
    assert_eq!(again.id_matches(), event.id_matches());
    assert!(again.index_tags().eq(event.index_tags()));
}

fn walk(event: &Event) {
    for tag in event.tags() {
        let _ = (tag.name(), tag.value(), tag.iter().count());
    }
    let _ = (event.id_matches(), event.is_protected(), event.class());
    let _ = (event.expiration(), event.d_tag().len());
}

/// The JSON of a filter.
pub fn filter(data: &[u8]) {
    const VALUES_MAX: usize = 100;
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(filter) = Filter::parse(text, VALUES_MAX) else {
        return;
    };
    assert!(filter.value_count() <= VALUES_MAX);
    let matched = sample().is_some_and(|event| filter.matches(&event));
    assert!(!(matched && filter.is_void()));
}

/// An event that filters are tried on.
fn sample() -> Option<Event> {
    let hex = |digit: &str, count| digit.repeat(count);
    let text = format!(
        "{{\"id\":\"{}\",\"pubkey\":\"{}\",\"created_at\":1700000000,\"kind\":1,\
         \"tags\":[[\"e\",\"{}\"],[\"t\",\"a\"]],\"content\":\"\",\"sig\":\"{}\"}}",
        hex("a", 64),
        hex("b", 64),
        hex("c", 64),
        hex("d", 128)
    );
    Event::parse(&text).ok()
}

/// The text of any message, and the answer to it.
pub fn message(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let bounds = ParseBounds::default();
    match ClientMessage::parse(text, &bounds) {
        Ok(ClientMessage::Req { sub, filters } | ClientMessage::Count { sub, filters }) => {
            assert!(!filters.is_empty() && filters.len() <= bounds.filters_max);
            assert!(sub.as_json().starts_with('"') && sub.as_json().ends_with('"'));
        }
        Ok(ClientMessage::Event(event) | ClientMessage::Auth(event)) => walk(&event),
        Ok(ClientMessage::Close { .. }) => {}
        Err(error) => answer(&error, text),
    }
}

/// A refusal is one short JSON array, whatever it repeats of the message.
fn answer(error: &MessageError, text: &str) {
    let mut out = Vec::new();
    error.write(&mut out);
    let out = String::from_utf8(out).expect("an answer is a text");
    assert!(out.starts_with("[\"") && out.ends_with(']'), "{out}");
    assert!(out.len() < 1_000, "{} bytes about {text}", out.len());
    assert!(!out.bytes().any(|byte| byte < b' '), "{out}");
}

/// The event of a login, against a challenge of its own and another.
pub fn auth(data: &[u8]) {
    const NOW: u64 = 1_700_000_000;
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let message = format!("[\"AUTH\",{text}]");
    let Ok(ClientMessage::Auth(event)) = ClientMessage::parse(&message, &ParseBounds::default())
    else {
        return;
    };
    let Ok(url) = RelayUrl::parse("wss://relay.example/path") else {
        return;
    };
    let passes = |challenge| auth::check(&event, challenge, &url, NOW).is_ok();
    assert!(!(passes("one") && passes("another")), "{text}");
    if passes("one") {
        assert_eq!(event.kind(), 22_242);
        assert!(event.created_at().abs_diff(NOW) <= 600);
        assert!(auth::check(&event, "one", &url, NOW + 1_300).is_err());
    }
}
