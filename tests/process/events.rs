//! NIP-01: what becomes of a published event.

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::common::{Author, Client, Launch, id_of, now};

/// Replaces the value of a key of an event by other JSON.
fn with(event: &str, key: &str, json: &str) -> String {
    let value: Value = serde_json::from_str(event).unwrap();
    let old = format!("\"{key}\":{}", value[key]);
    assert!(event.contains(&old));
    event.replace(&old, &format!("\"{key}\":{json}"))
}

/// Sends something that is refused as an event; gives the reason, whether it is an `OK` or a
/// `NOTICE`. The connection must stay.
async fn refused(client: &mut Client, event: &str) -> String {
    client.send(format!("[\"EVENT\",{event}]")).await;
    let answer = client.message().await;
    let reason = match answer[0].as_str() {
        Some("OK") => {
            assert_eq!(answer[2], false, "{event}: {answer}");
            &answer[3]
        }
        Some("NOTICE") => &answer[1],
        _ => panic!("{event}: {answer}"),
    };
    client.expect_silence().await;
    reason.as_str().expect("a text").to_owned()
}

#[tokio::test]
async fn an_event_comes_back_equal_in_every_field_and_escape() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    let author = Author::new(1);
    let time = now();
    let contents = [
        "",
        "plain",
        "\" \\ / \n \r \t \u{8} \u{c}",
        "\u{0}\u{1}\u{1f}\u{7f}\u{2028}\u{feff}",
        "\u{e9} \u{65e5}\u{672c} \u{1f41d} \u{10ffff}",
        "</script> {\"id\":\"x\"} [\"EVENT\"]",
    ];
    let mut published = Vec::new();
    for (age, content) in contents.iter().enumerate() {
        let tags: &[&[&str]] = &[&["t", content], &["emoji", "", content], &["x"]];
        let event = author.json(time - age as u64, 1, tags, content);
        published.push(event);
    }
    // Escapes that need not be: the value is the same, so the id is, and the text is kept.
    let escaped = author.json(
        time - 100,
        1,
        &[&["t", "/caf\u{e9}"]],
        "/caf\u{e9} \u{1f41d}\n",
    );
    let escaped = escaped
        .replace('/', "\\/")
        .replace('\u{e9}', "\\u00E9")
        .replace('\u{1f41d}', "\\ud83d\\udc1d")
        .replace("\\n", "\\u000a");
    published.push(escaped.clone());
    client.publish_all(&published).await;
    assert_eq!(client.fetch("{\"kinds\":[1]}").await, published);
    // A filter speaks of values, not of how they were written.
    assert_eq!(client.fetch(r##"{"#t":["/caf\u00e9"]}"##).await, [escaped]);

    // Order of keys and white space are the sender's own affair.
    let plain = author.json::<&str>(time - 200, 1, &[], "spaced");
    let event: Value = serde_json::from_str(&plain).unwrap();
    let mut keys: Vec<String> = event
        .as_object()
        .unwrap()
        .iter()
        .map(|(k, v)| format!(" \"{k}\"\t:\n{v} "))
        .collect();
    keys.reverse();
    client
        .send(format!(" [ \"EVENT\" , {{{}}} ] ", keys.join(",")))
        .await;
    assert_eq!(client.message().await[2], true);
    assert_eq!(
        client
            .fetch(&format!("{{\"ids\":[{}]}}", event["id"]))
            .await,
        [plain]
    );
}

#[tokio::test]
async fn what_is_no_sound_event_is_invalid() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    let author = Author::new(1);
    let time = now();
    let event = author.json(time, 1, &[&["t", "a"]], "sound");
    let other = author.json(time, 1, &[&["t", "b"]], "sound too");
    let value: Value = serde_json::from_str(&event).unwrap();
    let other: Value = serde_json::from_str(&other).unwrap();
    let text = |key: &str| value[key].to_string();
    let mut cases = vec![
        // Not what was signed.
        with(&event, "content", "\"another\""),
        with(&event, "created_at", &(time - 1).to_string()),
        with(&event, "kind", "2"),
        with(&event, "tags", "[]"),
        with(&event, "id", &other["id"].to_string()),
        with(&event, "sig", &other["sig"].to_string()),
        with(
            &event,
            "pubkey",
            &format!("\"{}\"", Author::new(2).pubkey_hex()),
        ),
        with(&event, "pubkey", &format!("\"{}\"", "f".repeat(64))),
        with(&event, "sig", &format!("\"{}\"", "0".repeat(128))),
        // Numbers.
        with(&event, "kind", "65536"),
        with(&event, "kind", "-1"),
        with(&event, "kind", "1.0"),
        with(&event, "kind", "1e0"),
        with(&event, "kind", "\"1\""),
        with(&event, "created_at", "-1"),
        with(&event, "created_at", &format!("{time}.0")),
        with(&event, "created_at", "9223372036854775808"),
        with(&event, "created_at", "18446744073709551616"),
        with(&event, "created_at", "1e9"),
        with(&event, "created_at", "null"),
        // Hex.
        with(&event, "id", &text("id").to_uppercase()),
        with(&event, "pubkey", &text("pubkey").to_uppercase()),
        with(&event, "sig", &text("sig").to_uppercase()),
        with(&event, "id", "\"abc\""),
        with(&event, "sig", "\"\""),
        // Strings.
        with(&event, "content", r#""\ud83d""#),
        with(&event, "content", r#""\udc1d\ud83d""#),
        with(&event, "content", r#""\x""#),
        with(&event, "content", "\"a\nb\""),
        with(&event, "content", "1"),
        with(&event, "tags", r#"[["t","\ud83d"]]"#),
        // Tags.
        with(&event, "tags", "[[]]"),
        with(&event, "tags", "[\"t\"]"),
        with(&event, "tags", "[[\"t\",1]]"),
        with(&event, "tags", "[[\"t\",[\"a\"]]]"),
        with(&event, "tags", "{}"),
        // Keys.
        event.replace("{\"id\"", "{\"extra\":1,\"id\""),
        event.replace("\"kind\":1", "\"kind\":1,\"kind\":1"),
        event.replace("\"content\":\"sound\",", ""),
        // Shape.
        format!("{event},1"),
        "[]".to_owned(),
        "{}".to_owned(),
        "null".to_owned(),
        event[..event.len() - 1].to_owned(),
    ];
    let tag = "[\"t\",\"a\"],".repeat(5_000);
    cases.push(with(&event, "tags", &format!("[{tag}[\"t\"]]")));
    for case in &cases {
        let reason = refused(&mut client, case).await;
        assert!(
            reason.starts_with("invalid: ") && reason.len() > 10,
            "{case}: {reason}"
        );
    }
    assert!(client.fetch("{}").await.is_empty());
    // The unharmed one is welcome.
    client.publish_all([&event]).await;
}

#[tokio::test]
async fn a_refusal_names_the_event_where_it_can() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    let event = Author::new(1).json::<&str>(now(), 1, &[], "x");
    let bad = with(&event, "kind", "65536");
    client.send(format!("[\"EVENT\",{bad}]")).await;
    let answer = client.message().await;
    assert_eq!(
        (&answer[0], &answer[1]),
        (&"OK".into(), &id_of(&event).into()),
        "{answer}"
    );
}

#[tokio::test]
async fn known_events_are_duplicates_if_they_are_the_same() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    let mut other = Client::connect(relay.address).await;
    let author = Author::new(1);
    let event = author.json::<&str>(now(), 1, &[], "once");
    client.publish_all([&event]).await;
    for client in [&mut client, &mut other] {
        let (accepted, reason) = client.publish(&event).await;
        assert!(accepted && reason.starts_with("duplicate: "), "{reason}");
    }
    // Another signature, valid or not, is another event, and not that one.
    let id: [u8; 32] = const_hex::decode_to_array(id_of(&event)).unwrap();
    let secret: [u8; 32] = Sha256::digest("author 1").into();
    let pair = secp256k1::Keypair::from_secret_bytes(secret).unwrap();
    let sig = secp256k1::schnorr::sign_with_aux_rand(&id, &pair, &[7; 32]);
    let resigned = with(
        &event,
        "sig",
        &format!("\"{}\"", const_hex::encode(sig.to_byte_array())),
    );
    assert_ne!(resigned, event);
    for case in [
        resigned,
        with(&event, "sig", &format!("\"{}\"", "0".repeat(128))),
        with(&event, "content", "\"twice\""),
    ] {
        let (accepted, reason) = client.publish(&case).await;
        assert!(
            !accepted && reason.starts_with("invalid: "),
            "{case}: {reason}"
        );
    }
    assert_eq!(client.fetch("{}").await, [event]);
}

#[tokio::test]
async fn created_at_is_bounded() {
    let relay = Launch::new()
        .set("BUZZ_CREATED_AT_PAST_SECONDS", "1000")
        .set("BUZZ_CREATED_AT_FUTURE_SECONDS", "500")
        .start();
    let mut client = Client::connect(relay.address).await;
    let event = |time: u64| Author::new(1).json::<&str>(time, 1, &[], "x");
    client
        .publish_all([&event(now() - 900), &event(now() + 400)])
        .await;
    for time in [0, now() - 1_100, now() + 600, i64::MAX as u64] {
        let reason = refused(&mut client, &event(time)).await;
        assert!(reason.starts_with("invalid: "), "{time}: {reason}");
    }
    // Without a bound on the past everything since 1970 is welcome, and 900 s ahead.
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    client.publish_all([&event(0), &event(now() + 800)]).await;
    let reason = refused(&mut client, &event(now() + 1_000)).await;
    assert!(reason.starts_with("invalid: "), "{reason}");
}

#[tokio::test]
async fn protected_and_private_events_are_neither_stored_nor_broadcast() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    let mut other = Client::connect(relay.address).await;
    assert!(other.req("all", "{}").await.is_empty());
    let author = Author::new(1);
    for event in [
        author.json(now(), 1, &[&["-"]], "protected"),
        author.json(now(), 1, &[&["t", "a"], &["-", "x"]], "protected"),
        author.json(now(), 20_001, &[&["-"]], "protected"),
        author.json::<&str>(now(), 22_242, &[], "a login"),
        author.json::<&str>(now(), 27_235, &[], "an HTTP login"),
    ] {
        let reason = refused(&mut client, &event).await;
        let prefix = reason.split(": ").next().unwrap_or_default().to_owned();
        assert!(
            ["invalid", "auth-required", "blocked"].contains(&prefix.as_str()),
            "{reason}"
        );
    }
    assert!(client.fetch("{}").await.is_empty());
    other.expect_silence().await;
}

#[tokio::test]
async fn of_a_replaceable_event_the_newest_stays() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    let author = Author::new(1);
    let stranger = Author::new(2);
    let time = now();
    for kind in [0, 3, 10_000, 19_999] {
        let json = |age: u64, content: &str| author.json::<&str>(time - age, kind, &[], content);
        let (old, new, older) = (json(2, "old"), json(1, "new"), json(3, "older"));
        let foreign = stranger.json::<&str>(time - 9, kind, &[], "another's");
        client.publish_all([&old, &foreign]).await;
        let ask = format!("{{\"kinds\":[{kind}]}}");
        assert_eq!(client.fetch(&ask).await, [old.clone(), foreign.clone()]);
        client.publish_all([&new]).await;
        assert_eq!(client.fetch(&ask).await, [new.clone(), foreign.clone()]);
        for late in [&older, &old] {
            let (_, reason) = client.publish(late).await;
            assert!(reason.starts_with("duplicate: "), "{reason}");
        }
        assert_eq!(client.fetch(&ask).await, [new.clone(), foreign]);
        // What was replaced is gone by id too.
        assert!(
            client
                .fetch(&format!("{{\"ids\":[\"{}\"]}}", id_of(&old)))
                .await
                .is_empty()
        );
    }
}

#[tokio::test]
async fn of_the_same_second_the_lowest_id_stays_whichever_came_first() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    let time = now();
    for (seed, lowest_first) in [(1, true), (2, false)] {
        let author = Author::new(seed);
        for (kind, tags) in [(10_002, &[][..]), (30_023, &[&["d", "x"][..]])] {
            let mut pair = ["a", "b"].map(|content| author.json(time, kind, tags, content));
            pair.sort_by(|a, b| id_of(a).cmp(id_of(b)));
            let lowest = pair[0].clone();
            if !lowest_first {
                pair.reverse();
            }
            for event in &pair {
                client.publish(event).await;
            }
            let ask = format!(
                "{{\"kinds\":[{kind}],\"authors\":[\"{}\"]}}",
                author.pubkey_hex()
            );
            assert_eq!(client.fetch(&ask).await, [lowest]);
        }
    }
}

#[tokio::test]
async fn addressable_events_are_replaced_by_their_d_tag() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    let author = Author::new(1);
    let time = now();
    for kind in [30_000, 39_999] {
        let json = |age: u64, tags: &[&[&str]]| author.json(time - age, kind, tags, "");
        let long = "d".repeat(1_000);
        let a = json(9, &[&["d", "a"]]);
        let b = json(8, &[&["d", "b"], &["d", "a"]]);
        let none = json(7, &[&["t", "a"]]);
        let long_one = json(6, &[&["d", &long]]);
        let other_long = json(5, &[&["d", &format!("{long}!")]]);
        client
            .publish_all([&a, &b, &none, &long_one, &other_long])
            .await;
        let ask = format!("{{\"kinds\":[{kind}]}}");
        let all = [
            other_long.clone(),
            long_one.clone(),
            none.clone(),
            b.clone(),
            a.clone(),
        ];
        assert_eq!(client.fetch(&ask).await, all);

        let new_a = json(4, &[&["t", "x"], &["d", "a", "more"]]);
        // No d tag, an empty one and one without a value are the same address.
        let new_none = json(3, &[&["d", ""]]);
        let newest_none = json(2, &[&["d"]]);
        let new_long = json(1, &[&["d", &long]]);
        client
            .publish_all([&new_a, &new_none, &newest_none, &new_long])
            .await;
        assert_eq!(
            client.fetch(&ask).await,
            [new_long, newest_none, new_a, other_long, b]
        );
    }
}

#[tokio::test]
async fn ephemeral_events_are_passed_on_and_not_kept() {
    let relay = Launch::new().set("BUZZ_SHARDS", "4").start();
    let mut client = Client::connect(relay.address).await;
    let mut others = Vec::new();
    for _ in 0..8 {
        let mut other = Client::connect(relay.address).await;
        assert!(
            other
                .req("live", "{\"kinds\":[20000,29999]}")
                .await
                .is_empty()
        );
        others.push(other);
    }
    let author = Author::new(1);
    for kind in [20_000, 29_999] {
        let event = author.json::<&str>(now(), kind, &[], "now");
        client.publish_all([&event]).await;
        // Said twice, it is passed on once.
        client.publish(&event).await;
        for other in &mut others {
            assert_eq!(other.text().await, format!("[\"EVENT\",\"live\",{event}]"));
        }
    }
    for other in &mut others {
        other.expect_silence().await;
    }
    assert!(client.fetch("{}").await.is_empty());
}

#[tokio::test]
async fn what_is_no_message_gets_a_notice_and_the_connection_stays() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    for text in [
        "",
        "hello",
        "{}",
        "[]",
        "[1]",
        "[\"\"]",
        "[\"EVENT\"]",
        "[\"REQ\"]",
        "[\"REQ\",1,{}]",
        "[\"REQ\",\"\",{}]",
        "[\"CLOSE\"]",
        "[\"SHOUT\",\"a\"]",
        "[\"event\",{}]",
        "[\"\u{202e}\\u0000<script>\",{}]",
    ] {
        client.send(text).await;
        let answer = client.message().await;
        assert_eq!(answer[0], "NOTICE", "{text}: {answer}");
        assert!(
            answer[1].as_str().is_some_and(|text| !text.is_empty()),
            "{text}: {answer}"
        );
    }
    // Depth alone does no harm.
    client
        .send(format!("[\"REQ\",\"deep\",{}", "[".repeat(100_000)))
        .await;
    assert!(client.closed("deep").await.starts_with("invalid: "));
    client
        .send(format!("[\"EVENT\",{}", "{\"a\":".repeat(100_000)))
        .await;
    assert_eq!(client.message().await[0], "NOTICE");
    client.expect_silence().await;
}
