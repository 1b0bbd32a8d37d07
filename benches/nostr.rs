//! Instruction counts of the protocol code: scanning events, reading messages, matching filters.
//!
//! `scripts/instructions`, or with gungraun's runner `cargo bench --bench nostr`. Hashes and signatures are
//! not here: valgrind hides the CPU's SHA instructions, so they are timed in `benches/verify.rs`.

#![allow(missing_docs)] // What the macros make.

use std::hint::black_box;

use buzz_uring::nostr::{
    ClientMessage, Event, EventError, Filter, MessageError, ParseBounds, testing::Author,
};
use gungraun::{library_benchmark, library_benchmark_group, main};

/// A reaction-like note: two tags of ids and keys, canonical escapes only. 673 bytes.
fn note() -> String {
    let (id, key) = ("ab".repeat(32), "cd".repeat(32));
    let content = "A note of a usual length,\nwith a \"quoted\" word and a second line. ".repeat(2);
    Author::new(1).json(1_700_000_000, 1, &[&["e", &id], &["p", &key]], &content)
}

/// A list of contacts: 680 `p` tags, 50 kB.
fn contacts() -> String {
    let keys: Vec<[String; 2]> = (0..680)
        .map(|n| ["p".to_owned(), const_hex::encode([n as u8; 32])])
        .collect();
    let tags: Vec<&[String]> = keys.iter().map(|tag| &tag[..]).collect();
    Author::new(1).json(1_700_000_000, 3, &tags, "")
}

/// An article: 4 kB of prose in lines.
fn article() -> String {
    let content = "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do.\n".repeat(60);
    Author::new(1).json(1_700_000_000, 30_023, &[&["d", "article"]], &content)
}

/// The note as a client with another order of keys and white space sends it.
fn spaced() -> String {
    note().replace(',', ", ").replace("\":", "\": ")
}

#[library_benchmark]
#[bench::note(note())]
#[bench::spaced(spaced())]
#[bench::article(article())]
#[bench::contacts(contacts())]
fn scan(json: String) -> (Result<Event, EventError>, String) {
    // Given back, so that dropping them is not counted.
    (Event::parse(black_box(&json)), json)
}

#[library_benchmark]
#[bench::event(format!("[\"EVENT\",{}]", note()))]
#[bench::req(r##"["REQ","sub",{"kinds":[1,6],"#t":["nostr","rust"],"since":1700000000},{"ids":["abababababababababababababababababababababababababababababababab"],"limit":1}]"##.to_owned())]
#[bench::close(r#"["CLOSE","sub"]"#.to_owned())]
fn message(text: String) -> (Result<ClientMessage, MessageError>, String) {
    (
        ClientMessage::parse(black_box(&text), &ParseBounds::default()),
        text,
    )
}

fn event_and(filter: &str) -> (Filter, Event) {
    let filter = Filter::parse(filter, 10_000).expect("a filter");
    (filter, Event::parse(&note()).expect("an event"))
}

/// An event that passes on its kind and on the last of 500 authors.
fn following() -> (Filter, Event) {
    let mut authors: Vec<String> = (2..501)
        .map(|seed| Author::new(seed).pubkey_hex())
        .collect();
    authors.push(Author::new(1).pubkey_hex());
    event_and(&serde_json::json!({ "kinds": [1, 6, 30_023], "authors": authors }).to_string())
}

#[library_benchmark]
#[bench::kind_differs(event_and(r#"{"kinds":[7]}"#))]
#[bench::following(following())]
#[bench::tag(event_and(
    r##"{"#p":["cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd"]}"##
))]
#[bench::tag_letter_differs(event_and(r##"{"#t":["nostr"]}"##))]
fn matches(pair: (Filter, Event)) -> (bool, (Filter, Event)) {
    // Given back, so that dropping them is not counted.
    (black_box(&pair.0).matches(black_box(&pair.1)), pair)
}

library_benchmark_group!(name = protocol, benchmarks = [scan, message, matches]);
main!(library_benchmark_groups = protocol);
