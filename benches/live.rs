//! Instruction counts of finding an event's subscriptions.
//!
//! `scripts/instructions`, or with gungraun's runner `cargo bench --bench live`. `none` is the floor: no
//! subscription at all. Then ten thousand subscriptions that do not match, of one shape each; `near`
//! is the shape that no index helps: each is asked in full and says no. Memory is measured by
//! `benches/live_bytes.rs`.

#![allow(missing_docs)] // What the macros make.

use std::hint::black_box;

use buzz_uring::live::{SubKey, Subscriptions};
use buzz_uring::nostr::testing::Author;
use buzz_uring::nostr::{Event, Filter};
use gungraun::{library_benchmark, library_benchmark_group, main};

struct World {
    subscriptions: Subscriptions,
    event: Event,
    out: Vec<SubKey>,
}

/// A note with an `e` and a `p` tag by author 1.
fn note() -> Event {
    let (id, key) = ("ab".repeat(32), "cd".repeat(32));
    Author::new(1).event(1_700_000_000, 1, &[&["e", &id], &["p", &key]], "hello")
}

/// A list of 680 contacts: what has the most keys in practice.
fn contacts() -> Event {
    let keys: Vec<String> = (1_000_000..1_000_680)
        .map(|number| format!("{number:064x}"))
        .collect();
    let tags: Vec<[&str; 2]> = keys.iter().map(|key| ["p", key]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    Author::new(1).event(1_700_000_000, 3, &tags, "")
}

/// `count` subscriptions of the shape that `filter` gives to a number, of which `matching` match.
fn world(event: Event, count: u64, matching: usize, filter: impl Fn(u64) -> String) -> World {
    let mut subscriptions = Subscriptions::new();
    for number in 0..count {
        let filter = Filter::parse(&filter(number), 1_000).expect("a filter");
        subscriptions.insert(SubKey(number), &[filter]);
    }
    let mut out = Vec::new();
    subscriptions.matching(&event, &mut out);
    assert_eq!(out.len(), matching);
    World {
        subscriptions,
        event,
        out,
    }
}

fn hex(number: u64) -> String {
    format!("{number:064x}")
}

/// One of ten thousand who read twenty authors each, some of them read by many.
fn feed(number: u64) -> String {
    let authors: Vec<String> = (0..20)
        .map(|place| hex(number * 7919 % 5_000 + place * 31))
        .collect();
    serde_json::json!({ "authors": authors, "kinds": [1, 6] }).to_string()
}

fn me() -> String {
    Author::new(1).pubkey_hex()
}

#[library_benchmark]
#[bench::none(world(note(), 0, 0, |_| String::new()))]
#[bench::ids(world(note(), 10_000, 0, |n| format!(r#"{{"ids":["{}"]}}"#, hex(n))))]
#[bench::authors(world(note(), 10_000, 0, |n| format!(r#"{{"authors":["{}"]}}"#, hex(n))))]
#[bench::feeds(world(note(), 10_000, 0, feed))]
#[bench::author_other_kind(world(note(), 10_000, 0, |n| {
    format!(r#"{{"authors":["{}"],"kinds":[{}]}}"#, me(), 2 + n % 1_000)
}))]
#[bench::kinds(world(note(), 10_000, 0, |n| format!(r#"{{"kinds":[{}]}}"#, 2 + n % 1_000)))]
#[bench::mentions(world(note(), 10_000, 0, |n| {
    format!(r##"{{"#p":["{}"],"kinds":[1,6,7,9735]}}"##, hex(n))
}))]
#[bench::threads(world(note(), 10_000, 0, |n| format!(r##"{{"#e":["{}"]}}"##, hex(n))))]
#[bench::topics(world(note(), 10_000, 0, |n| format!(r##"{{"#t":["topic {n}"]}}"##)))]
#[bench::contacts_mentions(world(contacts(), 10_000, 0, |n| {
    format!(r##"{{"#p":["{}"],"kinds":[1,6,7,9735]}}"##, hex(n))
}))]
#[bench::contacts_mentions_any_kind(world(contacts(), 10_000, 0, |n| {
    format!(r##"{{"#p":["{}"]}}"##, hex(n))
}))]
#[bench::near(world(note(), 10_000, 0, |_| r#"{"kinds":[1],"since":1800000000}"#.to_owned()))]
fn ten_thousand_not_matching(mut world: World) -> World {
    world
        .subscriptions
        .matching(black_box(&world.event), &mut world.out);
    world
}

#[library_benchmark]
#[bench::kind(world(note(), 1_000, 1_000, |_| r#"{"kinds":[1]}"#.to_owned()))]
#[bench::author(world(note(), 1_000, 1_000, |_| format!(r#"{{"authors":["{}"]}}"#, me())))]
#[bench::everything(world(note(), 1_000, 1_000, |_| "{}".to_owned()))]
fn a_thousand_matching(mut world: World) -> World {
    world
        .subscriptions
        .matching(black_box(&world.event), &mut world.out);
    world
}

/// A subscription that comes and goes among ten thousand of its shape.
fn come_and_go(filter: impl Fn(u64) -> String) -> (World, [Filter; 1]) {
    let own = Filter::parse(&filter(3), 1_000).expect("a filter");
    (world(contacts(), 10_000, 0, filter), [own])
}

#[library_benchmark]
#[bench::author(come_and_go(|n| format!(r#"{{"authors":["{}"]}}"#, hex(n))))]
#[bench::feed(come_and_go(feed))]
#[bench::popular_kind(come_and_go(|_| r#"{"kinds":[1]}"#.to_owned()))]
fn insert_and_remove((mut world, filters): (World, [Filter; 1])) -> (World, [Filter; 1]) {
    let key = SubKey(u64::MAX);
    let place = world.subscriptions.insert(key, black_box(&filters));
    world.subscriptions.remove(place, key);
    (world, filters)
}

library_benchmark_group!(
    name = live,
    benchmarks = [
        ten_thousand_not_matching,
        a_thousand_matching,
        insert_and_remove
    ]
);
main!(library_benchmark_groups = live);
