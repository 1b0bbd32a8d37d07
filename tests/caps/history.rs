//! History under its gate with a slow store: who is shed, how, and who is not troubled.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::raw::{self, CLOSE};
use crate::common::{Author, Relay, id_of, now, until};
use crate::support::{
    HISTORY, HISTORY_VARIABLE, Hooks, SHED, SLACK, Said, Visitor, agree, await_gauges, hooked,
    of_environment,
};

/// A relay whose history gate admits `cap` reads, each of which lasts until the hooks are cleared.
fn slow(cap: &str) -> (Relay, Hooks) {
    let hooks = Hooks::new(&[("history_ms", "60000")]);
    let relay = hooked(of_environment(&[(HISTORY_VARIABLE, cap)]), &hooks).start();
    (relay, hooks)
}

/// Takes a permit and holds it.
fn hold(relay: &Relay, sub: &str) -> Visitor {
    let mut holder = Visitor::arrive(relay.address);
    holder.send(&format!("[\"REQ\",\"{sub}\",{{}}]"));
    holder
}

fn publish(visitor: &mut Visitor, event: &str) {
    visitor.send(&format!("[\"EVENT\",{event}]"));
    visitor.expect(&format!("[\"OK\",\"{}\",true,\"\"]", id_of(event)));
}

fn closed(sub: &str) -> String {
    json!(["CLOSED", sub, SHED]).to_string()
}

#[test]
fn a_shed_read_is_closed_after_a_second_and_nobody_else_is_troubled() {
    let (relay, hooks) = slow("1");
    let author = Author::new(1);
    let begun = now();
    let event = |age: u64| author.json::<&str>(begun - age, 1, &[], "an event");
    let mut holder = hold(&relay, "held");
    await_gauges(&relay, HISTORY, [1, 1, 0, 0]);

    let mut reader = Visitor::arrive(relay.address);
    let start = Instant::now();
    reader.send("[\"REQ\",\"shed\",{\"kinds\":[1]}]");
    await_gauges(&relay, HISTORY, [1, 1, 1, 0]);
    // While it waits, logins and writes of others go on, and what is no read of the store.
    let mut writer = Visitor::arrive(relay.address);
    let before = event(1);
    publish(&mut writer, &before);
    let mut other = Visitor::arrive(relay.address);
    assert_eq!(other.log_in(&author), Said::In);
    other.send("[\"REQ\",\"live\",{\"kinds\":[1],\"limit\":0}]");
    other.expect("[\"EOSE\",\"live\"]");
    let others = start.elapsed();
    assert!(
        others < Duration::from_millis(900),
        "they waited: {others:?}"
    );
    reader.expect(&closed("shed"));
    let took = start.elapsed();
    let bounds = Duration::from_millis(950)..Duration::from_secs(1) + SLACK;
    assert!(bounds.contains(&took), "shed after {took:?}");

    // Nothing follows its CLOSED: no EOSE, no event that was held back, no later one.
    let after = event(2);
    publish(&mut writer, &after);
    other.expect(&format!("[\"EVENT\",\"live\",{after}]"));
    reader.expect_nothing_more();
    // COUNT is a read of the store as well.
    reader.send("[\"COUNT\",\"counted\",{\"kinds\":[1]}]");
    reader.expect(&closed("counted"));
    reader.expect_nothing_more();

    // The holder is not cut short, and gets what came meanwhile, in order.
    hooks.clear();
    let mut texts = Vec::new();
    loop {
        let text = holder.frame().text().to_owned();
        texts.push(text);
        if texts
            .last()
            .is_some_and(|text| text.starts_with("[\"EOSE\""))
        {
            break;
        }
    }
    let expected = [&before, &after].map(|event| format!("[\"EVENT\",\"held\",{event}]"));
    assert_eq!(texts[..2], expected);
    assert_eq!(texts.len(), 3);
    // The same question again, on the same connection: it is answered, and live from then on.
    reader.send("[\"REQ\",\"shed\",{\"kinds\":[1]}]");
    for event in [&before, &after] {
        reader.expect(&format!("[\"EVENT\",\"shed\",{event}]"));
    }
    reader.expect("[\"EOSE\",\"shed\",[\"finish\"]]");
    let live = event(0);
    publish(&mut writer, &live);
    reader.expect(&format!("[\"EVENT\",\"shed\",{live}]"));

    agree(&relay);
    let sheds = |labels: &[&str]| relay.metric("buzz_concurrency_sheds_total", labels);
    assert_eq!(sheds(&["history_reads", "timeout"]), Some(2.0));
    assert_eq!(sheds(&[]), Some(2.0));
    assert_eq!(
        relay.metric("buzz_concurrency_hold_seconds_count", &["history_reads"]),
        Some(2.0)
    );
}

#[test]
fn the_wait_ends_when_a_permit_comes_free_in_time() {
    let (relay, hooks) = slow("1");
    let mut holder = hold(&relay, "held");
    await_gauges(&relay, HISTORY, [1, 1, 0, 0]);
    let mut reader = hold(&relay, "next");
    await_gauges(&relay, HISTORY, [1, 1, 1, 0]);
    hooks.clear();
    for (visitor, sub) in [(&mut holder, "held"), (&mut reader, "next")] {
        visitor.expect(&format!("[\"EOSE\",\"{sub}\",[\"finish\"]]"));
    }
    agree(&relay);
    assert_eq!(relay.metric("buzz_concurrency_sheds_total", &[]), Some(0.0));
}

#[test]
fn reads_of_others_go_on_as_far_as_the_cap_allows() {
    let hooks = Hooks::new(&[("history_ms", "60000")]);
    let relay = hooked(of_environment(&[(HISTORY_VARIABLE, "2")]), &hooks).start();
    let _held = hold(&relay, "held");
    await_gauges(&relay, HISTORY, [2, 1, 0, 0]);
    // From now on the store is quick, and the first read goes on: it looks at the file as well, so
    // its permit is taken by one that is slow again at once.
    hooks.set(&[("history_ms", "300")]);
    let readers: Vec<_> = (0..3)
        .map(|number| {
            let address = relay.address;
            std::thread::spawn(move || {
                let mut reader = Visitor::arrive(address);
                for turn in 0..4 {
                    let sub = format!("{number}-{turn}");
                    reader.send(&format!("[\"REQ\",\"{sub}\",{{}}]"));
                    let text = reader.frame().text().to_owned();
                    assert_eq!(text, format!("[\"EOSE\",\"{sub}\",[\"finish\"]]"));
                }
            })
        })
        .collect();
    let mut most = 0;
    while readers.iter().any(|reader| !reader.is_finished()) {
        let now = crate::support::gauges(&relay, HISTORY);
        assert!(now.in_flight <= 2, "{now:?}");
        most = most.max(now.in_flight);
        std::thread::sleep(Duration::from_millis(10));
    }
    for reader in readers {
        reader.join().expect("every read is answered");
    }
    assert_eq!(most, 2, "two never ran at once");
    agree(&relay);
}

#[test]
fn one_connection_runs_four_reads_and_the_others_queue_behind_them() {
    let (relay, hooks) = slow("40");
    let mut reader = Visitor::arrive(relay.address);
    for number in 0..10 {
        reader.send(&format!("[\"REQ\",\"{number}\",{{}}]"));
    }
    await_gauges(&relay, HISTORY, [40, 4, 0, 0]);
    std::thread::sleep(Duration::from_millis(300));
    await_gauges(&relay, HISTORY, [40, 4, 0, 0]);
    hooks.clear();
    let mut ended: Vec<String> = (0..10)
        .map(|_| reader.raw.message()[1].as_str().expect("a name").to_owned())
        .collect();
    ended.sort_unstable();
    assert_eq!(ended, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    agree(&relay);
}

#[test]
fn a_read_that_is_shed_midway_is_closed_and_never_ended() {
    // More than the sockets' buffers take, so that its client's pace decides when it is read.
    const ROWS: usize = 400;
    let hooks = Hooks::new(&[]);
    let relay = hooked(of_environment(&[(HISTORY_VARIABLE, "1")]), &hooks).start();
    let author = Author::new(1);
    let mut writer = Visitor::arrive(relay.address);
    let content = "x".repeat(60 << 10);
    for age in 0..ROWS as u64 {
        let event = author.json::<&str>(now() - age, 1, &[], &content);
        writer.send(&format!("[\"EVENT\",{event}]"));
    }
    for _ in 0..ROWS {
        assert_eq!(writer.raw.message()[2], true);
    }
    let mut reader = Visitor::arrive(relay.address);
    reader.send("[\"REQ\",\"long\",{}]");
    // It stops where its queue is full, without a permit. Then another takes that for long.
    let reads = || {
        let name = "buzz_concurrency_hold_seconds_count";
        relay.metric(name, &[HISTORY]).expect(name)
    };
    until("the read pauses", || {
        let before = reads();
        std::thread::sleep(Duration::from_millis(300));
        (before > 0.0 && before == reads()).then_some(())
    });
    hooks.set(&[("history_ms", "60000")]);
    let mut holder = hold(&relay, "held");
    await_gauges(&relay, HISTORY, [1, 1, 0, 0]);
    let mut events = 0;
    loop {
        let frame = reader.frame();
        assert_ne!(frame.opcode, CLOSE);
        let message: Value = serde_json::from_str(frame.text()).expect("JSON");
        if message[0] == "EVENT" {
            events += 1;
            continue;
        }
        assert_eq!(message, json!(["CLOSED", "long", SHED]));
        break;
    }
    assert!(
        (16..ROWS).contains(&events),
        "{events} events before the shed"
    );
    publish(
        &mut writer,
        &author.json::<&str>(now() + 1, 1, &[], "later"),
    );
    reader.expect_nothing_more();
    hooks.clear();
    holder.raw.send(raw::close(1000, ""));
    agree(&relay);
    until("no subscription is left but the holder's", || {
        let left = relay.metric("buzz_subscriptions_active", &[]);
        (left <= Some(1.0)).then_some(())
    });
}
