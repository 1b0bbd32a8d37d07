//! Events that are made up: authors, hashtags and threads of few names.

use std::sync::Arc;

use buzz_uring::nostr::Event;

pub const AUTHORS: u64 = 200;

/// So many events from a number on.
pub fn events(from: u64, count: u64) -> Vec<Arc<Event>> {
    (from..from + count).map(|n| Arc::new(event(n))).collect()
}

fn mix(n: u64, salt: u64) -> u64 {
    (n ^ salt)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

pub fn key(n: u64) -> [u8; 32] {
    let mut key = [0; 32];
    for (place, part) in key.chunks_mut(8).enumerate() {
        part.copy_from_slice(&mix(n + 1, place as u64).to_be_bytes());
    }
    key
}

/// An event of about 700 bytes with two or three tags, of a few hashtags and many threads.
pub fn event(n: u64) -> Event {
    let hex = |n: u64| const_hex::encode(key(n));
    let kind = [1, 1, 1, 7, 6][mix(n, 1) as usize % 5];
    let mut tags = vec![
        format!(r#"["e","{}"]"#, hex(mix(n, 2) % 20_000)),
        format!(r#"["p","{}"]"#, hex(mix(n, 3) % AUTHORS)),
    ];
    if n.is_multiple_of(2) {
        tags.push(format!(r#"["t","tag{}"]"#, mix(n, 4) % 20));
    }
    let json = format!(
        r#"{{"id":"{}","pubkey":"{}","created_at":{},"kind":{kind},"tags":[{}],"content":"{}","sig":"{}"}}"#,
        hex(n + 1_000_000),
        hex(mix(n, 6) % AUTHORS),
        1_700_000_000 + n / 3,
        tags.join(","),
        "lorem ipsum ".repeat(20),
        "5a".repeat(64),
    );
    Event::parse(&json).expect("an event")
}
