//! Reads of pages that are not in memory: they go on away from their shard, under their permit.

use serde_json::json;

use crate::common::{Author, Client, Launch, Relay, id_of, now};
use crate::support::{HISTORY, Hooks, Visitor, agree, await_gauges, gauges, hooked};

const NOTES: u64 = 300;

/// A relay of one shard with some notes, whose every slice of a read then takes `scan_ms`.
async fn cold(scan_ms: &str) -> (Relay, Hooks, Vec<String>) {
    let hooks = Hooks::new(&[]);
    let relay = hooked(Launch::new().set("BUZZ_SHARDS", 1), &hooks).start();
    let author = Author::new(1);
    let begun = now();
    let note = |n| author.json::<&str>(begun - n, 1, &[], "a note");
    let notes: Vec<String> = (0..NOTES).map(note).collect();
    let mut client = Client::connect(relay.address).await;
    client.publish_all(&notes).await;
    hooks.set(&[("scan_ms", scan_ms)]);
    (relay, hooks, notes)
}

fn turns(relay: &Relay) -> f64 {
    relay
        .metric("buzz_reader_turns_total", &[])
        .expect("a series")
}

#[tokio::test]
async fn a_cold_read_goes_on_elsewhere_and_is_answered_whole_and_in_order() {
    let (relay, _hooks, notes) = cold("10").await;
    assert_eq!(turns(&relay), 0.0);
    let mut client = Client::connect(relay.address).await;
    assert_eq!(client.fetch("{\"limit\":1000}").await, notes);
    let of_reqs = turns(&relay);
    assert!(of_reqs > 0.0);
    let mut counter = Visitor::arrive(relay.address);
    // What the first filter has counted is looked up for the second.
    counter.send("[\"COUNT\",\"c\",{\"kinds\":[1]},{\"since\":0}]");
    counter.expect(&json!(["COUNT", "c", {"count": NOTES}]).to_string());
    assert!(turns(&relay) > of_reqs);
    agree(&relay);
}

#[tokio::test]
async fn a_cold_read_holds_its_permit_and_not_its_shard() {
    // A turn takes far longer than all that is done meanwhile.
    let (relay, hooks, notes) = cold("1000").await;
    let author = Author::new(2);
    let mut reader = Visitor::arrive(relay.address);
    reader.send("[\"REQ\",\"cold\",{\"limit\":1000}]");
    relay.await_metric("buzz_reader_turns_total", &[], |turns| turns >= 1.0);
    assert_eq!(gauges(&relay, HISTORY).in_flight, 1);
    // The shard's others are served between two turns.
    let before = turns(&relay);
    let mut writer = Visitor::arrive(relay.address);
    for n in 0..20 {
        let event = author.json::<&str>(now(), 1, &[], &n.to_string());
        writer.send(&format!("[\"EVENT\",{event}]"));
        writer.expect(&format!("[\"OK\",\"{}\",true,\"\"]", id_of(&event)));
    }
    let meanwhile = turns(&relay) - before;
    assert!(meanwhile <= 10.0, "{meanwhile} turns for 20 events");
    assert_eq!(gauges(&relay, HISTORY).in_flight, 1);
    // What came meanwhile is live: it follows the history.
    hooks.clear();
    for note in &notes {
        reader.expect(&format!("[\"EVENT\",\"cold\",{note}]"));
    }
    let end = reader.frame();
    assert!(
        end.text().starts_with("[\"EOSE\",\"cold\""),
        "{}",
        end.text()
    );
    for _ in 0..20 {
        assert!(reader.frame().text().starts_with("[\"EVENT\",\"cold\","));
    }
    await_gauges(&relay, HISTORY, [40, 0, 0, 0]);
    agree(&relay);
}

#[tokio::test]
async fn nobody_waits_for_a_cold_read_any_longer() {
    let (relay, hooks, _) = cold("200").await;
    let mut closer = Visitor::arrive(relay.address);
    closer.send("[\"REQ\",\"closed\",{\"limit\":1000}]");
    let mut leaver = Visitor::arrive(relay.address);
    leaver.send("[\"COUNT\",\"left\",{\"kinds\":[1]},{\"since\":0}]");
    relay.await_metric("buzz_reader_turns_total", &[], |turns| turns >= 2.0);
    closer.send("[\"CLOSE\",\"closed\"]");
    drop(leaver);
    // Long before the scans would have ended.
    await_gauges(&relay, HISTORY, [40, 0, 0, 0]);
    hooks.clear();
    closer.send("[\"COUNT\",\"c\",{\"kinds\":[1]}]");
    loop {
        let frame = closer.frame();
        if frame.text().starts_with("[\"COUNT\"") {
            assert_eq!(
                frame.text(),
                json!(["COUNT", "c", {"count": NOTES}]).to_string()
            );
            break;
        }
        assert!(
            !frame.text().starts_with("[\"EOSE\""),
            "answered after its CLOSE"
        );
    }
    agree(&relay);
}
