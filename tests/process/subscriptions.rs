//! NIP-01: filters, order, limits, live events, and the names of subscriptions.

use serde_json::json;

use crate::common::{Author, Client, Launch, Relay, id_of, now};

/// Newest first; of the same second the lowest id first.
fn in_order(mut events: Vec<String>) -> Vec<String> {
    let time = |event: &str| -> u64 {
        let value: serde_json::Value = serde_json::from_str(event).unwrap();
        value["created_at"].as_u64().unwrap()
    };
    events.sort_by(|a, b| time(b).cmp(&time(a)).then(id_of(a).cmp(id_of(b))));
    events
}

async fn with_events(launch: Launch, events: &[String]) -> (Relay, Client) {
    let relay = launch.start();
    let mut client = Client::connect(relay.address).await;
    client.publish_all(events).await;
    (relay, client)
}

#[tokio::test]
async fn history_is_ordered_and_cut_exactly() {
    let author = Author::new(1);
    let time = now();
    // Five of each second.
    let events: Vec<String> = (0..60)
        .map(|n| author.json::<&str>(time - n / 5, 1, &[], &n.to_string()))
        .collect();
    let (_relay, mut client) = with_events(Launch::new(), &events).await;
    let sorted = in_order(events);
    assert_eq!(client.fetch("{}").await, sorted);
    for limit in [1, 2, 7, 59, 60, 61] {
        let found = client.fetch(&format!("{{\"limit\":{limit}}}")).await;
        assert_eq!(found, sorted[..limit.min(60)], "limit {limit}");
    }
    assert!(client.fetch("{\"limit\":0}").await.is_empty());
    // Both ends of a span of time belong to it.
    let span = format!("{{\"since\":{},\"until\":{}}}", time - 4, time - 2);
    assert_eq!(client.fetch(&span).await, sorted[10..25]);
    let newest = format!("{{\"until\":{},\"limit\":6}}", time - 1);
    assert_eq!(client.fetch(&newest).await, sorted[5..11]);
    assert!(
        client
            .fetch(&format!("{{\"since\":{}}}", time + 1))
            .await
            .is_empty()
    );
    assert!(client.fetch("{\"since\":5,\"until\":4}").await.is_empty());
}

#[tokio::test]
async fn every_field_of_a_filter_counts() {
    let (ada, ben) = (Author::new(1), Author::new(2));
    let time = now();
    let hex = "ab".repeat(32);
    let ada_note = ada.json(time - 1, 1, &[&["t", "bee"], &["e", &hex]], "a");
    let ben_note = ben.json(time - 2, 1, &[&["t", "Bee"], &["p", &hex]], "b");
    let ada_like = ada.json(
        time - 3,
        7,
        &[&["Z", "zed"], &["t", "bee"], &["t", "wax"]],
        "+",
    );
    let long = "x".repeat(600);
    let ben_long = ben.json(time - 4, 7, &[&["r", &long], &["client", "bee"]], "");
    let all = [&ada_note, &ben_note, &ada_like, &ben_long].map(String::clone);
    let (_relay, mut client) = with_events(Launch::new(), &all).await;
    let (a, b) = (ada.pubkey_hex(), ben.pubkey_hex());
    let cases = [
        (
            format!(
                r#"{{"ids":["{}","{}"]}}"#,
                id_of(&ben_note),
                id_of(&ada_like)
            ),
            vec![1, 2],
        ),
        (format!(r#"{{"authors":["{a}"]}}"#), vec![0, 2]),
        (
            format!(r#"{{"authors":["{a}","{b}","{a}"]}}"#),
            vec![0, 1, 2, 3],
        ),
        (r#"{"kinds":[7]}"#.to_owned(), vec![2, 3]),
        (r#"{"kinds":[7,1,30000]}"#.to_owned(), vec![0, 1, 2, 3]),
        (format!(r#"{{"authors":["{b}"],"kinds":[7]}}"#), vec![3]),
        (r##"{"#t":["bee"]}"##.to_owned(), vec![0, 2]),
        (r##"{"#t":["Bee","wax"]}"##.to_owned(), vec![1, 2]),
        (r##"{"#t":["bee"],"#Z":["zed"]}"##.to_owned(), vec![2]),
        (r##"{"#t":["bee"],"kinds":[1]}"##.to_owned(), vec![0]),
        (format!(r##"{{"#e":["{hex}"]}}"##), vec![0]),
        (format!(r##"{{"#p":["{hex}"]}}"##), vec![1]),
        (format!(r##"{{"#r":["{long}"]}}"##), vec![3]),
        (format!(r##"{{"#r":["{long}x"]}}"##), vec![]),
        (
            format!(r#"{{"ids":["{}"],"kinds":[1]}}"#, id_of(&ada_like)),
            vec![],
        ),
        (
            format!(
                r#"{{"kinds":[1],"since":{},"until":{}}}"#,
                time - 2,
                time - 2
            ),
            vec![1],
        ),
        (r#"{"kinds":[]}"#.to_owned(), vec![]),
        (r#"{"ids":[]}"#.to_owned(), vec![]),
        (r##"{"#t":[]}"##.to_owned(), vec![]),
        // Several filters: any may pass, in the order given, an event once.
        (
            r##"{"kinds":[7]},{"#t":["bee"]},{}"##.to_owned(),
            vec![2, 3, 0, 1],
        ),
        (
            format!(r#"{{"kinds":[7],"limit":1}},{{"authors":["{b}"]}}"#),
            vec![2, 1, 3],
        ),
    ];
    for (filters, expected) in cases {
        let expected: Vec<String> = expected
            .into_iter()
            .map(|n: usize| all[n].clone())
            .collect();
        assert_eq!(client.fetch(&filters).await, expected, "{filters}");
    }
}

#[tokio::test]
async fn live_events_come_to_those_who_ask_and_only_while_they_ask() {
    let relay = Launch::new().start();
    let mut writer = Client::connect(relay.address).await;
    let mut reader = Client::connect(relay.address).await;
    let author = Author::new(1);
    let json = |content: &str, tag: &str| author.json(now(), 1, &[&["t", tag]], content);

    assert!(
        reader
            .req("bees", r##"{"#t":["bee"],"limit":1}"##)
            .await
            .is_empty()
    );
    assert!(reader.req("all", "{},{\"kinds\":[1]}").await.is_empty());
    let bee = json("hum", "bee");
    writer.publish_all([&bee]).await;
    let mut two = [reader.text().await, reader.text().await];
    two.sort();
    assert_eq!(
        two,
        ["all", "bees"].map(|sub| format!("[\"EVENT\",\"{sub}\",{bee}]"))
    );

    // An event that the filter's limit has no say in, and one that does not match.
    let (wax, honey) = (json("wax", "wax"), json("honey", "bee"));
    reader.send("[\"CLOSE\",\"all\"]").await;
    reader.expect_silence().await;
    writer.publish_all([&wax, &honey]).await;
    assert_eq!(reader.text().await, format!("[\"EVENT\",\"bees\",{honey}]"));

    // The same name again replaces the subscription.
    assert_eq!(reader.req("bees", r##"{"#t":["wax"]}"##).await, [wax]);
    let (third, fourth) = (json("third", "bee"), json("fourth", "wax"));
    writer.publish_all([&third, &fourth]).await;
    assert_eq!(
        reader.text().await,
        format!("[\"EVENT\",\"bees\",{fourth}]")
    );
    reader.expect_silence().await;

    // A writer hears itself.
    assert_eq!(writer.req("own", "{\"limit\":1}").await.len(), 1);
    let own = json("own", "own");
    writer.send(format!("[\"EVENT\",{own}]")).await;
    let mut two = [writer.text().await, writer.text().await];
    two.sort();
    assert_eq!(two[0], format!("[\"EVENT\",\"own\",{own}]"));
    assert_eq!(two[1], format!("[\"OK\",\"{}\",true,\"\"]", id_of(&own)));
}

#[tokio::test]
async fn a_name_comes_back_as_the_same_json_string() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    let event = Author::new(1).json::<&str>(now(), 1, &[], "x");
    client.publish_all([&event]).await;
    for name in [
        "a",
        "\"],[\"EVENT\",\"",
        "\\",
        "\n\u{0}\u{7f}",
        "\u{1f41d}",
        " ",
    ] {
        client.send(json!(["REQ", name, {}]).to_string()).await;
        let found = client.message().await;
        assert_eq!((&found[0], &found[1]), (&json!("EVENT"), &json!(name)));
        assert_eq!(found.as_array().map(Vec::len), Some(3));
        client.expect(json!(["EOSE", name, ["finish"]])).await;
        client.send(json!(["CLOSE", name]).to_string()).await;
    }
    // Two spellings are one name.
    client.send(r#"["REQ","\u0061",{"limit":0}]"#).await;
    client.expect(json!(["EOSE", "a"])).await;
    client.send(r#"["CLOSE","a"]"#).await;
    client.expect_silence().await;
    relay.await_metric("buzz_subscriptions_active", &[], |count| count == 0.0);
    // One that is not open may be closed: nothing happens.
    client.send(r#"["CLOSE","never"]"#).await;
    client.expect_silence().await;
}

#[tokio::test]
async fn a_closed_ends_the_subscription_that_had_its_id() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    let author = Author::new(1);
    for broken in [
        r#"["REQ","s",{"search":"x"}]"#,
        r#"["REQ","s",{"kinds":[-1]}]"#,
        r#"["COUNT","s",{"kinds":[-1]}]"#,
    ] {
        assert!(client.req("s", r#"{"limit":0}"#).await.is_empty());
        client.send(broken).await;
        client.closed("s").await;
        let event = author.json::<&str>(now(), 1, &[], broken);
        client.publish_all([&event]).await;
        client.expect_silence().await;
    }
}

#[tokio::test]
async fn filters_that_cannot_be_read_close_their_subscription() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    let hex = "ab".repeat(32);
    for (filters, prefix) in [
        ("1".to_owned(), "invalid: "),
        ("[]".to_owned(), "invalid: "),
        ("{},null".to_owned(), "invalid: "),
        (r#"{"kinds":1}"#.to_owned(), "invalid: "),
        (r#"{"kinds":[-1]}"#.to_owned(), "invalid: "),
        (r#"{"kinds":[65536]}"#.to_owned(), "invalid: "),
        (r#"{"kinds":["1"]}"#.to_owned(), "invalid: "),
        (r#"{"limit":-1}"#.to_owned(), "invalid: "),
        (r#"{"limit":1.5}"#.to_owned(), "invalid: "),
        (r#"{"since":"now"}"#.to_owned(), "invalid: "),
        (r#"{"until":null}"#.to_owned(), "invalid: "),
        (r#"{"ids":["abcd"]}"#.to_owned(), "invalid: "),
        (
            format!(r#"{{"ids":["{}"]}}"#, hex.to_uppercase()),
            "invalid: ",
        ),
        (format!(r#"{{"authors":["{hex}00"]}}"#), "invalid: "),
        (r##"{"#e":["x"]}"##.to_owned(), "invalid: "),
        (r##"{"#p":["x"]}"##.to_owned(), "invalid: "),
        (r##"{"#t":[1]}"##.to_owned(), "invalid: "),
        (r##"{"#t":["\ud83d"]}"##.to_owned(), "invalid: "),
        (r#"{"kinds":[1],"kinds":[2]}"#.to_owned(), "invalid: "),
        (r##"{"#tt":["x"]}"##.to_owned(), "unsupported: "),
        (r#"{"search":"x"}"#.to_owned(), "unsupported: "),
        (r#"{"\n\"x":1}"#.to_owned(), "unsupported: "),
    ] {
        client.send(format!("[\"REQ\",\"bad\",{filters}]")).await;
        let reason = client.closed("bad").await;
        assert!(
            reason.starts_with(prefix) && reason.len() > prefix.len(),
            "{filters}: {reason}"
        );
    }
    client.send("[\"REQ\",\"none\"]").await;
    assert!(client.closed("none").await.starts_with("invalid: "));
    client.expect_silence().await;
    relay.await_metric("buzz_subscriptions_active", &[], |count| count == 0.0);
}

#[tokio::test]
async fn limits_are_the_ones_that_are_set() {
    let author = Author::new(1);
    let time = now();
    let events: Vec<String> = (0..9)
        .map(|age| author.json::<&str>(time - age, 1, &[], "x"))
        .collect();
    let launch = Launch::new()
        .set("BUZZ_MAX_LIMIT", "7")
        .set("BUZZ_DEFAULT_LIMIT", "4")
        .set("BUZZ_MAX_FILTERS", "3")
        .set("BUZZ_MAX_SUBSCRIPTIONS", "2")
        .set("BUZZ_MAX_SUBID_LENGTH", "5")
        .set("BUZZ_MAX_FILTER_VALUES", "6");
    let (relay, mut client) = with_events(launch, &events).await;
    assert_eq!(client.fetch("{}").await, events[..4]);
    assert_eq!(client.fetch("{\"limit\":6}").await, events[..6]);
    assert_eq!(client.fetch("{\"limit\":8}").await, events[..7]);
    assert_eq!(
        client.fetch("{\"limit\":18446744073709551615}").await,
        events[..7]
    );

    assert_eq!(
        client
            .fetch("{\"limit\":1},{\"limit\":1},{\"limit\":1}")
            .await,
        events[..1]
    );
    client.send("[\"REQ\",\"many\",{},{},{},{}]").await;
    assert!(client.closed("many").await.starts_with("invalid: "));

    client
        .send("[\"REQ\",\"vals\",{\"kinds\":[1,2,3,4]},{\"kinds\":[5,6,7]}]")
        .await;
    assert!(client.closed("vals").await.starts_with("invalid: "));

    // Characters, not bytes.
    client
        .send("[\"REQ\",\"\u{1f41d}\u{1f41d}\u{1f41d}\u{1f41d}\u{1f41d}\",{\"limit\":0}]")
        .await;
    assert_eq!(client.message().await[0], "EOSE");
    client.send("[\"REQ\",\"sixsix\",{\"limit\":0}]").await;
    let answer = client.message().await;
    let told = answer[0] == "NOTICE" || answer[0] == "CLOSED";
    assert!(told && answer.to_string().contains("invalid: "), "{answer}");

    // One is open; a second fits, a third does not, the second again does.
    assert!(client.req("two", "{\"limit\":0}").await.is_empty());
    client.send("[\"REQ\",\"three\",{\"limit\":0}]").await;
    let reason = client.closed("three").await;
    // Existing clients take that text for final, which it is.
    assert!(
        reason.starts_with("error: too many subscriptions"),
        "{reason}"
    );
    assert!(client.req("two", "{\"limit\":0}").await.is_empty());
    client.send("[\"CLOSE\",\"two\"]").await;
    assert!(client.req("three", "{\"limit\":0}").await.is_empty());

    // The values of all open subscriptions count together.
    let mut other = Client::connect(relay.address).await;
    assert!(other.req("a", "{\"kinds\":[2,3,4,5]}").await.is_empty());
    other.send("[\"REQ\",\"b\",{\"kinds\":[6,7,8]}]").await;
    let reason = other.closed("b").await;
    assert!(reason.contains("values"), "{reason}");
    other.send("[\"CLOSE\",\"a\"]").await;
    assert!(other.req("b", "{\"kinds\":[6,7,8]}").await.is_empty());
}

#[tokio::test]
async fn many_questions_at_once_are_each_answered_in_full() {
    let author = Author::new(1);
    let time = now();
    let events: Vec<String> = (0..300)
        .map(|n| author.json::<&str>(time - n, 1, &[], &"x".repeat(2_000)))
        .collect();
    let (_relay, mut client) = with_events(Launch::new(), &events).await;
    for n in 0..40 {
        client
            .send(format!("[\"REQ\",\"q{n}\",{{\"limit\":{}}}]", 100 + n))
            .await;
    }
    let mut found = vec![0; 40];
    let mut open = 40;
    while open > 0 {
        let message = client.message().await;
        let name = message[1].as_str().unwrap();
        let n: usize = name[1..].parse().unwrap();
        if message[0] == "EOSE" {
            assert_eq!(found[n], 100 + n, "{name}");
            found[n] = usize::MAX;
            open -= 1;
        } else {
            assert_eq!(
                message[2].to_string().len(),
                events[found[n]].len(),
                "{name}"
            );
            assert_eq!(message[2]["id"], id_of(&events[found[n]]), "{name}");
            found[n] += 1;
        }
    }
}
