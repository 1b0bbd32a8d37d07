//! NIP-40.

use std::time::Duration;

use serde_json::json;

use crate::common::raw::slow_socket;
use crate::common::{Author, Client, Hooks, Launch, Raw, hooked, now, raw, until};
use crate::{count, refused, start};

#[tokio::test]
async fn what_has_expired_is_refused() {
    let (_relay, mut client) = start(Launch::new()).await;
    let author = Author::new(1);
    for (kind, expires) in [(1, now()), (1, 0), (20_001, now() - 1), (30_000, 1)] {
        let tags: &[&[&str]] = &[&["expiration", &expires.to_string()]];
        let event = author.json(now() - 9, kind, tags, "");
        assert!(
            refused(&mut client, &event).await.starts_with("invalid: "),
            "{event}"
        );
    }
    // What is no time is no expiry.
    let tags: &[&[&str]] = &[&["expiration", "soon"], &["expiration"]];
    client.publish_all([&author.json(now(), 1, tags, "")]).await;
}

#[tokio::test]
async fn what_expires_is_not_served_from_that_second_on() {
    let (_relay, mut client) = start(Launch::new()).await;
    let author = Author::new(1);
    let expires = now() + 3;
    let tags: &[&[&str]] = &[&["expiration", &expires.to_string()], &["t", "x"]];
    let event = author.json(now(), 1, tags, "");
    let stays = author.json(now() - 1, 1, &[&["t", "x"]], "");
    client.publish_all([&event, &stays]).await;
    let filters = [
        "{}".to_owned(),
        "{\"kinds\":[1]}".to_owned(),
        "{\"#t\":[\"x\"]}".to_owned(),
        format!("{{\"authors\":[\"{}\"]}}", author.pubkey_hex()),
        format!("{{\"ids\":[\"{}\",\"{}\"]}}", &event[7..71], &stays[7..71]),
    ];
    for filter in &filters {
        let found = client.fetch(filter).await;
        let counted = count(&mut client, filter).await;
        if now() < expires {
            assert_eq!((found.len(), counted), (2, 2), "{filter}");
        }
    }
    reach(expires).await;
    for filter in &filters {
        assert_eq!(
            client.fetch(filter).await,
            std::slice::from_ref(&stays),
            "{filter}"
        );
        assert_eq!(count(&mut client, filter).await, 1, "{filter}");
    }
    assert!(refused(&mut client, &event).await.starts_with("invalid: "));
}

#[tokio::test]
async fn what_has_expired_is_swept() {
    let (relay, mut client) = start(Launch::new()).await;
    let author = Author::new(1);
    // An older version is taken only once the newest is no longer there.
    let tag = (now() + 1).to_string();
    let short = author.json(now(), 30_000, &[&["expiration", &tag]], "short");
    let older = author.json::<&str>(now() - 50, 30_000, &[], "older");
    client.publish_all([&short]).await;
    let address = relay.address;
    until("the sweep makes room", || {
        let mut raw = Raw::upgraded(address);
        raw.send(raw::text(&format!("[\"EVENT\",{older}]")));
        (raw.message()[2] == true).then_some(())
    });
    assert_eq!(client.fetch("{\"kinds\":[30000]}").await, [older]);
}

#[tokio::test]
async fn what_will_expire_is_live_until_then() {
    let (relay, mut client) = start(Launch::new()).await;
    let author = Author::new(1);
    let mut live = Client::connect(relay.address).await;
    assert!(live.req("live", "{\"limit\":0}").await.is_empty());
    let soon = (now() + 60).to_string();
    for kind in [1, 20_001] {
        let event = author.json(now(), kind, &[&["expiration", &soon]], "");
        client.publish_all([&event]).await;
        assert_eq!(live.text().await, format!("[\"EVENT\",\"live\",{event}]"));
    }
}

/// Waits until a second has come.
async fn reach(second: u64) {
    while now() < second {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A note, or an event of another kind, that expires.
fn expiring(author: &Author, kind: u16, at: u64) -> String {
    author.json(
        now(),
        kind,
        &[&["expiration", &at.to_string()]],
        "soon gone",
    )
}

#[tokio::test]
async fn what_expires_between_its_commit_and_its_delivery_is_not_delivered() {
    let hooks = Hooks::new(&[]);
    let (relay, mut writer) = start(hooked(Launch::new(), &hooks)).await;
    let author = Author::new(1);
    let mut live = Client::connect(relay.address).await;
    assert!(live.req("live", "{\"limit\":0}").await.is_empty());
    hooks.set(&[("deliver_ms", "60000")]);
    let expires = now() + 2;
    let soon = expiring(&author, 1, expires);
    writer.send(format!("[\"EVENT\",{soon}]")).await;
    // It is committed: anybody may read it.
    let mut reader = Client::connect(relay.address).await;
    while reader.fetch("{}").await.is_empty() {
        assert!(now() < expires, "the commit took too long for this test");
    }
    reach(expires).await;
    hooks.clear();
    writer
        .expect(json!(["OK", crate::common::id_of(&soon), true, ""]))
        .await;
    let last = author.json::<&str>(now(), 1, &[], "the last one");
    writer.publish_all([&last]).await;
    assert_eq!(live.text().await, format!("[\"EVENT\",\"live\",{last}]"));
    relay.await_metric("buzz_events_dropped_total", &["expired"], |count| {
        count > 0.0
    });
}

#[tokio::test]
async fn what_expires_while_it_is_held_back_for_eose_is_not_delivered() {
    let hooks = Hooks::new(&[("history_ms", "60000")]);
    let (relay, mut writer) = start(hooked(Launch::new(), &hooks)).await;
    let author = Author::new(1);
    let mut waiting = Client::connect(relay.address).await;
    waiting.send("[\"REQ\",\"all\",{}]").await;
    relay.await_metric("buzz_subscriptions_active", &[], |count| count == 1.0);
    let expires = now() + 2;
    // Of these no history knows: they are held back for the time after EOSE.
    let stays = author.json::<&str>(now(), 20_001, &[], "stays");
    writer
        .publish_all([&expiring(&author, 20_001, expires), &stays])
        .await;
    reach(expires).await;
    hooks.clear();
    waiting.expect(json!(["EOSE", "all", ["finish"]])).await;
    assert_eq!(waiting.text().await, format!("[\"EVENT\",\"all\",{stays}]"));
    relay.await_metric("buzz_events_dropped_total", &["expired"], |count| {
        count == 1.0
    });
}

/// Text messages up to and with the first for which `is_last` holds.
fn read_until(raw: &mut Raw, is_last: impl Fn(&str) -> bool) -> Vec<String> {
    let mut texts = Vec::new();
    loop {
        let text = raw.frame().text().to_owned();
        let last = is_last(&text);
        texts.push(text);
        if last {
            return texts;
        }
    }
}

#[tokio::test]
async fn what_expires_in_the_queue_of_a_slow_client_is_not_sent() {
    let launch = Launch::new()
        .set("BUZZ_OUTBOX_HARD_BYTES", 100_000_000)
        .set("BUZZ_OUTBOX_SOFT_BYTES", 100_000_000);
    let (relay, mut writer) = start(launch).await;
    let author = Author::new(1);
    let mut slow = slow_socket(relay.address);
    slow.send(raw::text("[\"REQ\",\"all\",{\"limit\":0}]"));
    assert_eq!(slow.message(), json!(["EOSE", "all"]));
    // As much as kernels take, and more.
    let large = "x".repeat(100_000);
    let queued = || {
        relay
            .metric("buzz_ws_queued_bytes", &[])
            .unwrap_or_default()
    };
    let mut before = 0;
    while queued() < 1_000_000.0 {
        let event = author.json(now(), 20_001, &[&["n", &before.to_string()]], &large);
        writer.publish_all([&event]).await;
        before += 1;
    }
    let expires = now() + 2;
    let last = author.json::<&str>(now(), 1, &[], "the last one");
    // Small ones are copied into the queue, large ones are pointed at.
    let soon = expires.to_string();
    let soon_large = author.json(now(), 1, &[&["expiration", &soon]], &large);
    writer
        .publish_all([&expiring(&author, 1, expires), &soon_large, &last])
        .await;
    reach(expires).await;
    let texts = read_until(&mut slow, |text| text.contains(&last));
    assert_eq!(texts.len(), before + 1);
    assert!(texts.iter().all(|text| !text.contains("expiration")));
    assert_eq!(
        relay.metric("buzz_events_dropped_total", &["expired"]),
        Some(2.0)
    );
}

#[tokio::test]
async fn rows_of_history_that_expire_in_a_queue_are_not_sent() {
    let (relay, mut writer) = start(Launch::new()).await;
    let author = Author::new(1);
    let large = "x".repeat(200_000);
    // More than kernels take and a page of history.
    const STORED: u64 = 40;
    let begun = now();
    let expires = begun + 9;
    let tags: &[&[&str]] = &[&["expiration", &expires.to_string()]];
    let event = |age| author.json(begun - age, 1, tags, &large);
    let events: Vec<String> = (0..STORED).map(event).collect();
    writer.publish_all(&events).await;
    let mut slow = slow_socket(relay.address);
    slow.send(raw::text("[\"REQ\",\"all\",{}]"));
    relay.await_metric("buzz_ws_queued_bytes", &[], |bytes| bytes > 1_000_000.0);
    assert!(now() < expires, "setting up took too long for this test");
    reach(expires).await;
    let texts = read_until(&mut slow, |text| text.starts_with("[\"EOSE\""));
    let dropped = relay.metric("buzz_events_dropped_total", &["expired"]);
    let dropped = dropped.expect("it exists") as usize;
    // A read is a megabyte: so much may wait at most, and what was not read is not there any longer.
    assert!(
        dropped > 0 && texts.len() - 1 + dropped < STORED as usize,
        "{dropped}"
    );
    assert_eq!(
        texts.last().map(String::as_str),
        Some("[\"EOSE\",\"all\",[\"finish\"]]")
    );
}
