//! A shard that takes nothing for a while: whoever has something for it waits, and nothing is lost.

use serde_json::Value;

use crate::common::hooks::{Hooks, hooked};
use crate::common::raw;
use crate::common::{Author, Launch, Raw, Relay, now, until};

const STORED: usize = 40;
const EPHEMERAL: usize = 20;

/// Connections of each shard, of shard 0 `counts[0]` and so on.
fn connections(relay: &Relay, counts: [usize; 2]) -> [Vec<Raw>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    until("the kernel has given each shard its connections", || {
        let before = active(relay);
        let raw = Raw::upgraded(relay.address);
        let shard = usize::from(active(relay) == before);
        if found[shard].len() < counts[shard] {
            found[shard].push(raw);
        } else {
            // Kept until the relay has seen its end, so that the next look counts right.
            drop(raw);
            relay.await_metric("buzz_ws_connections_active", &[], |count| {
                count as usize == found[0].len() + found[1].len()
            });
        }
        (found[0].len() == counts[0] && found[1].len() == counts[1]).then_some(())
    });
    found
}

/// Connections of shard 0.
fn active(relay: &Relay) -> usize {
    let count = relay.metric("buzz_ws_connections_active", &["shard=\"0\""]);
    count.expect("it exists from start") as usize
}

fn subscribe(raw: &mut Raw) {
    raw.send(raw::text("[\"REQ\",\"live\",{\"limit\":0}]"));
    assert_eq!(raw.message()[0], "EOSE");
}

/// The contents of the next events.
fn contents(raw: &mut Raw, count: usize) -> Vec<String> {
    let content = |message: Value| {
        assert_eq!(message[0], "EVENT", "{message}");
        message[2]["content"].as_str().expect("a text").to_owned()
    };
    (0..count).map(|_| content(raw.message())).collect()
}

fn of(contents: &[String], start: &str) -> Vec<String> {
    let with = contents.iter().filter(|content| content.starts_with(start));
    with.cloned().collect()
}

fn publish(raw: &mut Raw, kind: u16, events: &[String]) {
    let author = Author::new(1);
    let message = |content: &String| {
        let event = author.json::<&str>(now(), kind, &[], content);
        raw::text(&format!("[\"EVENT\",{event}]"))
    };
    raw.send(events.iter().flat_map(message).collect::<Vec<u8>>());
}

fn expect_ok(raw: &mut Raw, count: usize) {
    for _ in 0..count {
        let answer = raw.message();
        assert_eq!((&answer[0], &answer[2]), (&"OK".into(), &true.into()));
    }
}

fn received(relay: &Relay, outcome: &str) -> usize {
    let label = format!("outcome=\"{outcome}\"");
    let count = relay.metric("buzz_events_received_total", &[&label]);
    count.expect("it exists from start") as usize
}

#[test]
fn a_full_mailbox_makes_writers_wait_and_loses_nothing() {
    const ITEMS: usize = 4;
    let hooks = Hooks::new(&[("mailbox_items", "4"), ("block_on", "block this shard")]);
    let launch = Launch::new().set("BUZZ_SHARDS", 2);
    let relay = hooked(launch, &hooks).start();
    // Shard 0 is told of a commit first, so that no answer overtakes it.
    let [mut blocked, mut free] = connections(&relay, [2, 4]);
    let [there, blocker] = blocked.as_mut_slice() else {
        panic!("two connections")
    };
    let [here, writer, other, neighbour] = free.as_mut_slice() else {
        panic!("four connections")
    };
    subscribe(there);
    subscribe(here);
    blocker.send(raw::text("block this shard"));

    let stored: Vec<String> = (0..STORED).map(|n| format!("stored {n}")).collect();
    publish(writer, 1, &stored);
    until("more is committed than the mailbox takes", || {
        neighbour.send(raw::text("[\"COUNT\",\"n\",{\"kinds\":[1]}]"));
        let counted = neighbour.message()[2]["count"].as_u64();
        (counted > Some(ITEMS as u64)).then_some(())
    });
    let ephemeral: Vec<String> = (0..EPHEMERAL).map(|n| format!("passing {n:02}")).collect();
    publish(other, 20_001, &ephemeral);
    // The shard that is free has them all, and none is acknowledged: not everybody has.
    let mut seen_here = Vec::new();
    while of(&seen_here, "passing").len() < EPHEMERAL {
        seen_here.extend(contents(here, 1));
    }
    assert!(received(&relay, "stored") <= ITEMS);
    assert_eq!(received(&relay, "ephemeral"), 0);

    hooks.clear();
    expect_ok(writer, STORED);
    expect_ok(other, EPHEMERAL);
    let seen_there = contents(there, STORED + EPHEMERAL);
    seen_here.extend(contents(here, STORED + EPHEMERAL - seen_here.len()));
    // What is committed comes in its order; of what is not stored only that it comes once.
    for seen in [seen_there, seen_here] {
        assert_eq!(of(&seen, "stored"), stored);
        let mut passed = of(&seen, "passing");
        passed.sort();
        assert_eq!(passed, ephemeral);
    }
    drop(blocked);
    relay.stop().expect(0, &[]);
}
