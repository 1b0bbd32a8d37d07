//! What one client may ask for: the bounds that NIP-11 states are those that are enforced, and those
//! on filters hold each and together.

use serde_json::{Value, json};

use crate::common::hooks::{Hooks, hooked};
use crate::common::raw::{self, Raw};
use crate::common::{Author, Client, Launch, Relay, get, now};

fn limitation(relay: &Relay) -> Value {
    let accept = [("Accept", "application/nostr+json")];
    get(relay.address, "/", &accept).json()["limitation"].clone()
}

fn refused(relay: &Relay, reason: &str) -> f64 {
    let label = format!("reason=\"{reason}\"");
    let count = relay.metric("buzz_messages_refused_total", &[&label]);
    count.expect("it exists from start")
}

#[tokio::test]
async fn what_nip_11_states_is_enforced_to_the_last_one() {
    let relay = Launch::new()
        .set("BUZZ_MAX_FRAME_BYTES", 60_000)
        .set("BUZZ_MAX_SUBSCRIPTIONS", 3)
        .set("BUZZ_MAX_SUBID_LENGTH", 9)
        .set("BUZZ_MAX_LIMIT", 7)
        .set("BUZZ_DEFAULT_LIMIT", 4)
        .start();
    let stated = limitation(&relay);
    let most = |name: &str| stated[name].as_u64().expect("a number") as usize;
    let mut client = Client::connect(relay.address).await;
    let author = Author::new(1);

    let tags = |count: usize| vec![["t"].as_slice(); count];
    let fits = author.json(0, 1, &tags(most("max_event_tags")), "");
    assert!(client.publish(&fits).await.0);
    let above = author.json(0, 1, &tags(most("max_event_tags") + 1), "");
    let (accepted, reason) = client.publish(&above).await;
    assert!(!accepted && reason.starts_with("invalid: "), "{reason}");

    let content = |length| author.json::<&str>(0, 1, &[], &"x".repeat(length));
    let longest = content(most("max_content_length"));
    assert!(client.publish(&longest).await.0);
    let message = format!("[\"EVENT\",{}]", content(most("max_content_length") + 1));
    assert_eq!(message.len(), most("max_message_length") + 1);
    let mut raw = Raw::upgraded(relay.address);
    raw.send(raw::text(&message));
    let (notices, code, _) = raw.messages_until_close();
    assert_eq!((notices.len(), code), (1, Some(1009)));

    for n in 0..10 {
        let event = author.json::<&str>(n, 2, &[], "");
        client.publish_all([&event]).await;
    }
    let all = client.fetch("{\"kinds\":[2],\"limit\":1000}").await;
    assert_eq!(all.len(), most("max_limit"));
    let some = client.fetch("{\"kinds\":[2]}").await;
    assert_eq!(some.len(), most("default_limit"));

    let long = "x".repeat(most("max_subid_length"));
    client.req(&long, "{\"limit\":0}").await;
    client.send(format!("[\"REQ\",\"{long}y\",{{}}]")).await;
    assert_eq!(client.message().await[0], "NOTICE");
    assert_eq!(refused(&relay, "malformed"), 1.0);
    for n in 1..most("max_subscriptions") {
        client.req(&n.to_string(), "{\"limit\":0}").await;
    }
    client.send("[\"REQ\",\"one more\",{}]").await;
    assert_eq!(
        client.closed("one more").await,
        "error: too many subscriptions"
    );
    assert_eq!(refused(&relay, "subscriptions"), 1.0);
    // One of them may be asked anew.
    client.req(&long, "{\"limit\":0}").await;
}

#[tokio::test]
async fn what_nip_11_states_of_time_is_enforced() {
    let relay = Launch::new()
        .set("BUZZ_CREATED_AT_PAST_SECONDS", 1_000)
        .set("BUZZ_CREATED_AT_FUTURE_SECONDS", 1_000)
        .start();
    let stated = limitation(&relay);
    let [past, future] = ["created_at_lower_limit", "created_at_upper_limit"]
        .map(|name| stated[name].as_u64().expect("a number"));
    let mut client = Client::connect(relay.address).await;
    // The clock may go on meanwhile.
    const SLACK: u64 = 60;
    for (time, accepted) in [
        (now() - past - SLACK, false),
        (now() - past + SLACK, true),
        (now() + future - SLACK, true),
        (now() + future + SLACK, false),
    ] {
        let event = Author::new(1).json::<&str>(time, 1, &[], "");
        let (said, reason) = client.publish(&event).await;
        assert_eq!(said, accepted, "{reason}");
    }
}

/// A filter with so many values.
fn kinds(count: usize) -> String {
    json!({ "kinds": (0..count).collect::<Vec<_>>(), "limit": 0 }).to_string()
}

#[tokio::test]
async fn values_of_filters_are_bounded_in_one_filter_and_on_one_connection() {
    let relay = Launch::new()
        .set("BUZZ_MAX_FILTER_VALUES", 20)
        .set("BUZZ_MAX_VALUES_PER_FILTER", 8)
        .start();
    let mut client = Client::connect(relay.address).await;
    client.req("a", &kinds(8)).await;
    client.send(format!("[\"REQ\",\"b\",{}]", kinds(9))).await;
    assert!(client.closed("b").await.starts_with("invalid: "));
    client.req("c", &format!("{},{}", kinds(6), kinds(6))).await;
    client.send(format!("[\"REQ\",\"d\",{}]", kinds(1))).await;
    let text = "error: too many filter values on this connection";
    assert_eq!(client.closed("d").await, text);
    client.send(format!("[\"COUNT\",\"e\",{}]", kinds(1))).await;
    assert_eq!(client.closed("e").await, text);
    assert_eq!(refused(&relay, "filter_values"), 2.0);
    assert_eq!(refused(&relay, "malformed"), 1.0);
    // What is given back can be had again, and a subscription asked anew has its own.
    client.req("a", &kinds(7)).await;
    client.req("d", &kinds(1)).await;
    client.send("[\"CLOSE\",\"c\"]").await;
    client.send(format!("[\"COUNT\",\"f\",{}]", kinds(8))).await;
    assert_eq!(client.message().await[0], "COUNT");
    client.req("g", &format!("{},{}", kinds(6), kinds(6))).await;
}

#[tokio::test]
async fn values_of_counts_that_wait_are_bounded_with_them() {
    let hooks = Hooks::new(&[("history_ms", "60000")]);
    let launch = Launch::new()
        .set("BUZZ_MAX_FILTER_VALUES", 20)
        .set("BUZZ_MAX_SUBSCRIPTIONS", 4);
    let relay = hooked(launch, &hooks).start();
    let mut client = Client::connect(relay.address).await;
    // Two of them run, and fill what may be asked.
    for sub in ["a", "b"] {
        client
            .send(format!("[\"COUNT\",\"{sub}\",{}]", kinds(10)))
            .await;
    }
    client.send(format!("[\"COUNT\",\"c\",{}]", kinds(1))).await;
    let text = "error: too many filter values on this connection";
    assert_eq!(client.closed("c").await, text);
    hooks.clear();
    for _ in 0..2 {
        assert_eq!(client.message().await[0], "COUNT");
    }
    // Four run, four wait, and the next one is turned away.
    hooks.set(&[("history_ms", "60000")]);
    for n in 0..9 {
        client.send(format!("[\"COUNT\",\"{n}\",{{}}]")).await;
    }
    assert_eq!(
        client.closed("8").await,
        "error: too many reads are waiting"
    );
    assert_eq!(refused(&relay, "reads"), 1.0);
    hooks.clear();
    for _ in 0..8 {
        assert_eq!(client.message().await[0], "COUNT");
    }
    // All is given back.
    client
        .send(format!("[\"COUNT\",\"last\",{}]", kinds(20)))
        .await;
    assert_eq!(client.message().await[0], "COUNT");
}
