//! What a running relay takes over when its file is read again, one setting after the other, and what
//! it does not.

use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;

use super::{File, HUSH, REFUSED, changed, hang_up, info, need_restart, says, upgrade};
use crate::common::raw;
use crate::common::{Author, Client, WAIT, now, until};

#[test]
fn texts_and_bounds_of_the_information_document_are_new_at_once() {
    let file = File::new("BUZZ_NAME=before");
    let relay = file.launch().set("BUZZ_SHARDS", 3).start();
    assert_eq!(info(&relay)["name"], "before");
    let key = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
    let lines = file.reread(
        &relay,
        &format!(
            "BUZZ_NAME=after\nBUZZ_DESCRIPTION='<b>what'\nBUZZ_PUBKEY={key}\n\
             BUZZ_CONTACT=mailto:a@relay.example\nBUZZ_ICON=https://relay.example/i.png\n\
             BUZZ_MAX_LIMIT=77\nBUZZ_DEFAULT_LIMIT=7\nBUZZ_MIN_POW_DIFFICULTY=5\n\
             BUZZ_CREATED_AT_PAST_SECONDS=70\nBUZZ_CREATED_AT_FUTURE_SECONDS=7\n"
        ),
    );
    let told = changed(&lines);
    assert_eq!(told.len(), 10, "{told:?}");
    assert!(told.contains(&["BUZZ_NAME", "before", "after"]), "{told:?}");
    assert!(told.contains(&["BUZZ_CONTACT", "none", "mailto:a@relay.example"]));
    // Whichever shard is asked.
    for _ in 0..12 {
        let info = info(&relay);
        for (name, expected) in [
            ("name", "after"),
            ("description", "<b>what"),
            ("pubkey", key),
            ("contact", "mailto:a@relay.example"),
        ] {
            assert_eq!(info[name], expected, "{info}");
        }
        let limitation = &info["limitation"];
        for (name, expected) in [
            ("max_limit", 77),
            ("default_limit", 7),
            ("min_pow_difficulty", 5),
            ("created_at_lower_limit", 70),
            ("created_at_upper_limit", 7),
        ] {
            assert_eq!(limitation[name], expected, "{info}");
        }
        let page = raw::get(relay.address, "/", &[]).text();
        assert!(
            page.contains("after") && page.contains("&lt;b&gt;what"),
            "{page}"
        );
    }
    // What is taken out of the file has its default again.
    file.reread(&relay, "");
    assert_eq!(info(&relay)["name"], "buzz-uring");
    assert_eq!(info(&relay)["pubkey"], Value::Null);
}

/// Sends so many requests and says how many were above a rate.
async fn refused(client: &mut Client, requests: usize) -> usize {
    let mut refused = 0;
    for number in 0..requests {
        client
            .send("[\"REQ\",\"burst\",{\"kinds\":[7],\"limit\":0}]")
            .await;
        let message = client.message().await;
        let closed = message[0] == "CLOSED";
        assert!(closed || message[0] == "EOSE", "{number}: {message}");
        refused += usize::from(closed);
    }
    refused
}

#[tokio::test]
async fn rates_hold_for_connections_that_were_there_and_for_new_ones() {
    let file = File::new("");
    let relay = file.launch().start();
    let mut client = Client::connect(relay.address).await;
    assert_eq!(refused(&mut client, 100).await, 0, "no rate yet");
    file.reread(
        &relay,
        "BUZZ_RATE_MESSAGES_PER_SECOND=1\nBUZZ_RATE_BURST_SECONDS=60",
    );
    // Sixty at once, and what came back meanwhile.
    let mut other = Client::connect(relay.address).await;
    assert!(refused(&mut client, 600).await > 300);
    assert!(refused(&mut other, 600).await > 300);
    // A larger bucket is no fuller than the smaller one was.
    file.reread(
        &relay,
        "BUZZ_RATE_MESSAGES_PER_SECOND=1\nBUZZ_RATE_BURST_SECONDS=3600",
    );
    assert!(refused(&mut client, 600).await > 300, "refilled for free");
    // And it fills at the new rate.
    file.reread(
        &relay,
        "BUZZ_RATE_MESSAGES_PER_SECOND=100000\nBUZZ_RATE_BURST_SECONDS=3600",
    );
    let end = Instant::now() + WAIT;
    while refused(&mut client, 50).await > 0 {
        assert!(Instant::now() < end, "it does not fill");
    }
    let event = Author::new(1).json::<&str>(now(), 1, &[], &"x".repeat(5_000));
    client.publish_all([&event]).await;
    file.reread(
        &relay,
        "BUZZ_RATE_BYTES_PER_SECOND=1\nBUZZ_RATE_BURST_SECONDS=1",
    );
    let (accepted, _) = client.publish(&event).await;
    assert!(accepted, "one message passes, whatever it is");
    let (accepted, reason) = client.publish(&event).await;
    let expected = "rate-limited: too many bytes, slow down";
    assert_eq!((accepted, &*reason), (false, expected));
    file.reread(&relay, "");
    assert_eq!(refused(&mut client, 100).await, 0, "without a rate again");
}

#[test]
fn bounds_by_address_hold_from_then_on() {
    let file = File::new("");
    let relay = file.launch().start();
    let (_before, status) = upgrade(&relay, &[]);
    assert_eq!(status, 101);
    file.reread(&relay, "BUZZ_MAX_CONNECTIONS_PER_ADDRESS=1");
    let (_first, status) = upgrade(&relay, &[]);
    assert_eq!(status, 101, "who was there before is not counted");
    assert_eq!(upgrade(&relay, &[]).1, 429);
    // A proxy's clients, once it is trusted.
    let as_client = |address| upgrade(&relay, &[("X-Forwarded-For", address)]);
    assert_eq!(as_client("203.0.113.1").1, 429);
    file.reread(
        &relay,
        "BUZZ_MAX_CONNECTIONS_PER_ADDRESS=1\nBUZZ_TRUSTED_PROXIES=127.0.0.1",
    );
    let (_second, status) = as_client("203.0.113.1");
    assert_eq!(status, 101);
    assert_eq!(as_client("203.0.113.1").1, 429);
    let (_third, status) = as_client("203.0.113.2");
    assert_eq!(status, 101);
    file.reread(&relay, "BUZZ_MAX_CONNECTIONS_PER_ADDRESS=2");
    assert_eq!(upgrade(&relay, &[]).1, 101);

    file.reread(&relay, "BUZZ_RATE_CONNECTIONS_PER_MINUTE=2");
    assert_eq!(upgrade(&relay, &[]).1, 101);
    // One is left, and at ten times the rate it is still one.
    file.reread(&relay, "BUZZ_RATE_CONNECTIONS_PER_MINUTE=20");
    let opened = (0..8).filter(|_| upgrade(&relay, &[]).1 == 101).count();
    assert!((1..=4).contains(&opened), "{opened}");
    file.reread(&relay, "");
    for _ in 0..5 {
        assert_eq!(upgrade(&relay, &[]).1, 101);
    }
}

#[tokio::test]
async fn limits_and_what_an_event_must_have_hold_for_connections_that_were_there() {
    let file = File::new("");
    let relay = file.launch().start();
    let mut client = Client::connect(relay.address).await;
    let author = Author::new(1);
    let at = |time: u64| author.json::<&str>(time, 1, &[], &time.to_string());
    let events: Vec<String> = (1..=9).map(|back| at(now() - back)).collect();
    client.publish_all(&events).await;
    assert_eq!(client.fetch("{}").await.len(), 9);
    file.reread(&relay, "BUZZ_MAX_LIMIT=4\nBUZZ_DEFAULT_LIMIT=2");
    assert_eq!(client.fetch("{}").await.len(), 2);
    assert_eq!(client.fetch("{\"limit\":8}").await.len(), 4);
    let mut other = Client::connect(relay.address).await;
    assert_eq!(other.fetch("{}").await.len(), 2);

    let refuses = async |client: &mut Client, event: String, words: &str| {
        let (accepted, reason) = client.publish(&event).await;
        assert!(!accepted && reason.contains(words), "{reason}");
    };
    file.reread(&relay, "BUZZ_CREATED_AT_PAST_SECONDS=1000");
    refuses(&mut client, at(now() - 5_000), "too long ago").await;
    file.reread(&relay, "BUZZ_CREATED_AT_FUTURE_SECONDS=100");
    client.publish_all([&at(now() - 5_000)]).await;
    refuses(&mut client, at(now() + 500), "too far ahead").await;
    file.reread(&relay, "BUZZ_MIN_POW_DIFFICULTY=60");
    refuses(&mut client, at(now()), "pow").await;
    refuses(&mut other, at(now()), "pow").await;
}

#[test]
fn the_log_level_is_new_at_once_and_one_line_says_so() {
    let file = File::new("");
    let mut relay = file.launch().start();
    assert_eq!(relay.status()["log_level"], "info");
    let lines = file.reread(&relay, "BUZZ_LOG=trace");
    assert_eq!(changed(&lines), [["BUZZ_LOG", "info", "trace"]]);
    assert_eq!(relay.status()["log_level"], "trace");
    let lines = file.reread(&relay, "BUZZ_LOG=error");
    assert_eq!(changed(&lines), [["BUZZ_LOG", "trace", "error"]]);
    let lines = file.reread(&relay, "BUZZ_LOG=warn");
    assert_eq!(changed(&lines), [["BUZZ_LOG", "error", "warn"]]);
    let before = relay.output().lines().count();
    relay.signal(Signal::TERM);
    relay.wait_exit(WAIT).expect(0, &[]);
    assert_eq!(relay.output().lines().count(), before, "{}", relay.output());
}

#[test]
fn a_drain_goes_by_the_newest_times_and_keeps_those_that_it_began_with() {
    let file = File::new("BUZZ_DRAIN_JITTER_MS=20000");
    let launch = file.launch().unset("BUZZ_DRAIN_GRACE_MS");
    let mut relay = launch.start();
    assert_eq!(relay.status()["drain"]["window_ms"], 20_000);
    let text = "BUZZ_DRAIN_JITTER_MS=300\nBUZZ_DRAIN_GRACE_MS=3000\nBUZZ_HARD_STOP_MS=9000";
    let lines = file.reread(&relay, text);
    assert_eq!(changed(&lines).len(), 3, "{lines:#?}");
    assert_eq!(relay.status()["drain"]["window_ms"], 300);
    relay.signal(Signal::TERM);
    let begun = until("the drain begins", || {
        let lines = super::lines(&relay.output());
        lines
            .into_iter()
            .find(|line| says(line, "the relay drains"))
    });
    for (name, expected) in [
        ("grace_ms", 3_000),
        ("window_ms", 300),
        ("hard_stop_ms", 9_000),
    ] {
        assert_eq!(begun[name], expected, "{begun}");
    }
    file.reread(&relay, "BUZZ_DRAIN_JITTER_MS=1");
    assert_eq!(relay.status()["drain"]["window_ms"], 300);
    relay.wait_exit(WAIT).expect(0, &[]);
}

#[test]
fn what_needs_a_restart_is_named_each_time_and_secrets_are_not_shown() {
    let file = File::new(&format!(
        "DATABASE_URL=postgres://{HUSH}/a\nBUZZ_NAME=before"
    ));
    let relay = file.launch().set("BUZZ_LOG", "trace").start();
    let text = format!(
        "DATABASE_URL=postgres://{HUSH}/b\nBUZZ_LAUNCHDARKLY_SDK_KEY={HUSH}\nBUZZ_NAME=after\n\
         BUZZ_MAX_SUBSCRIPTIONS=5\nBUZZ_SHARDS=1\n"
    );
    for round in 0..2 {
        let lines = file.reread(&relay, &text);
        // BUZZ_SHARDS is given by the environment, so what the file says of it is nothing. The key
        // has no use under this provider, and is told all the same.
        let expected = [
            "DATABASE_URL",
            "BUZZ_MAX_SUBSCRIPTIONS",
            "BUZZ_LAUNCHDARKLY_SDK_KEY",
        ];
        let line = lines.iter().find(|line| line["setting"] == expected[1]);
        let line = line.expect("its line");
        assert_eq!((&line["old"], &line["new"]), (&"1024".into(), &"5".into()));
        assert_eq!(need_restart(&lines), expected, "{round}");
        assert_eq!(changed(&lines).len(), usize::from(round == 0));
        let end = lines.iter().find(|line| says(line, super::TAKEN));
        assert_eq!(end.expect("a sum")["need_restart"], 3);
    }
    assert_eq!(info(&relay)["name"], "after");
    assert_eq!(info(&relay)["limitation"]["max_subscriptions"], 1_024);
    let lines = file.reread(&relay, &format!("DATABASE_URL=postgres://{HUSH}/a"));
    assert_eq!(need_restart(&lines), [""; 0], "as at the start again");
    let lines = file.reread(&relay, &format!("BUZZ_LAUNCHDARKLY_SDK_KEY='{HUSH}"));
    assert!(lines.iter().any(|line| says(line, REFUSED)), "{lines:#?}");
    let exit = relay.stop();
    assert!(!exit.stderr.contains(HUSH), "{}", exit.stderr);
}

#[test]
fn wrong_settings_change_nothing_and_are_told_in_one_line() {
    let file = File::new("BUZZ_NAME=before");
    let relay = file.launch().start();
    let shown = file.shown();
    for (text, words) in [
        (
            "BUZZ_NAME=after\nBUZZ_SHARD=1",
            format!("{shown}:2: BUZZ_SHARD: "),
        ),
        (
            "BUZZ_NAME=after\nBUZZ_MAX_LIMIT=junk\nBUZZ_PUBKEY=a",
            format!("{shown}:3: BUZZ_PUBKEY"),
        ),
        (
            "BUZZ_NAME=after\nBUZZ_NAME=again",
            format!("{shown}:2: BUZZ_NAME: "),
        ),
        // One that must not change now is judged all the same.
        (
            "BUZZ_NAME=after\nBUZZ_MAX_FRAME_BYTES=1",
            format!("{shown}:2: BUZZ_MAX_FRAME"),
        ),
        // Sound by itself, and not beside the others.
        (
            "BUZZ_NAME=after\nBUZZ_HARD_STOP_MS=10",
            "BUZZ_HARD_STOP_MS: 10 mill".to_owned(),
        ),
    ] {
        let lines = file.reread(&relay, text);
        let [line] = &lines[..] else {
            panic!("{lines:#?}")
        };
        assert_eq!(line["level"], "ERROR");
        assert!(
            says(line, REFUSED) && says(line, &words),
            "{words} in {line}"
        );
        assert_eq!(info(&relay)["name"], "before");
    }
    std::fs::remove_file(file.path()).expect("a file");
    let lines = hang_up(&relay);
    assert!(says(&lines[0], "cannot be read"), "{lines:#?}");
    assert_eq!(info(&relay)["name"], "before");
    let lines = file.reread(&relay, "BUZZ_NAME=after");
    assert_eq!(changed(&lines), [["BUZZ_NAME", "before", "after"]]);
    assert_eq!(info(&relay)["name"], "after");
    relay.stop().expect(0, &[]);
}
