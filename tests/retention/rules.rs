//! `BUZZ_RETENTION`: what goes, what stays, what is refused.

use serde_json::json;

use crate::common::{Author, Client, Launch, now};
use crate::{all, command, publish};

const REMOVED: &str = "buzz_events_removed_total";
const BY_RULE: &[&str] = &["reason=\"retention\""];

#[tokio::test]
async fn what_is_too_old_goes_at_the_next_start_and_is_refused_from_then_on() {
    let launch = Launch::new();
    let author = Author::new(1);
    let relay = launch.start();
    let mut client = Client::connect(relay.address).await;
    let hours = |n: u64| now() - n * 3_600;
    let fresh = author.json::<&str>(hours(1), 1, &[], "fresh");
    let old: Vec<String> = (0..300)
        .map(|n| {
            author.json::<&str>(
                hours(3) - n,
                [1, 7, 30_023][n as usize % 3],
                &[&["d", &n.to_string()]],
                "",
            )
        })
        .collect();
    // Kept by a rule, by no rule's reach, and because no range names it.
    let profile = author.json::<&str>(hours(9), 0, &[], "{}");
    let other = author.json::<&str>(hours(9), 40_000, &[], "");
    let deletion = author.json(hours(9), 5, &[&["e", &"ab".repeat(32)]], "");
    publish(&mut client, &old).await;
    let kept = [fresh.clone(), profile, other, deletion.clone()];
    publish(&mut client, &kept).await;
    drop(client);
    relay.stop().expect(0, &[]);

    let rules = "kinds=0 keep; kinds=0-39999 age=2h";
    let launch = launch.set("BUZZ_RETENTION", rules);
    let relay = launch.start();
    relay.await_metric(REMOVED, BY_RULE, |removed| removed == 300.0);
    let mut client = Client::connect(relay.address).await;
    let mut left = all(&mut client).await;
    let mut expected = kept.to_vec();
    left.sort();
    expected.sort();
    assert_eq!(left, expected);
    for old in &old[..3] {
        let (accepted, reason) = client.publish(old).await;
        assert!(
            !accepted && reason.starts_with("invalid: older than"),
            "{reason}"
        );
    }
    let ephemeral = author.json::<&str>(hours(9), 20_001, &[], "");
    assert!(client.publish(&ephemeral).await.0, "it is not kept anyway");
    // A deletion request has work to do, however old.
    let late = author.json(hours(9), 5, &[&["e", &fresh[7..71]]], "");
    assert!(client.publish(&late).await.0);
    assert_eq!(all(&mut client).await.len(), expected.len());
}

#[tokio::test]
async fn an_event_goes_when_its_time_comes_while_others_are_published() {
    let relay = Launch::new()
        .set("BUZZ_RETENTION", "kinds=1 age=4s")
        .start();
    let author = Author::new(1);
    let mut client = Client::connect(relay.address).await;
    let began = now();
    let dying: Vec<String> = (0..50)
        .map(|n| author.json::<&str>(began - 1, 1, &[], &format!("dies {n}")))
        .collect();
    let staying = author.json::<&str>(began + 600, 1, &[], "stays");
    publish(&mut client, &dying).await;
    publish(&mut client, std::slice::from_ref(&staying)).await;
    let mut round = 0;
    while relay.metric(REMOVED, BY_RULE) != Some(50.0) {
        assert!(now() < began + 30, "they stay");
        let event = author.json::<&str>(now(), 7, &[], &round.to_string());
        publish(&mut client, &[event]).await;
        round += 1;
    }
    // `created_at` and 4 seconds are not over before that.
    assert!(now() > began + 3, "too early: {} s", now() - began);
    assert_eq!(client.fetch("{\"kinds\":[1]}").await, [staying]);
    assert_eq!(
        client.fetch("{\"kinds\":[7],\"limit\":1000}").await.len(),
        round.min(1_000)
    );
}

#[tokio::test]
async fn the_newest_of_a_rule_s_kinds_together_are_kept() {
    let launch = Launch::new().set("BUZZ_RETENTION", "kinds=1000-1999 count=20; kinds=* keep");
    let relay = launch.start();
    let author = Author::new(1);
    let mut client = Client::connect(relay.address).await;
    let start = now() - 1_000;
    let many: Vec<String> = (0..300)
        .map(|n| author.json::<&str>(start + n, 1_000 + (n % 7) as u16, &[], ""))
        .collect();
    let other = author.json::<&str>(start, 1, &[], "of another rule");
    publish(&mut client, std::slice::from_ref(&other)).await;
    publish(&mut client, &many).await;
    relay.await_metric(REMOVED, BY_RULE, |removed| removed == 280.0);
    let mut expected: Vec<String> = many[280..].iter().rev().cloned().collect();
    expected.push(other);
    assert_eq!(all(&mut client).await, expected);
    // What is older than all that is kept has no place; what is newer takes one.
    let (accepted, reason) = client.publish(&many[0]).await;
    assert!(
        !accepted && reason.starts_with("invalid: older than"),
        "{reason}"
    );
    let new = author.json::<&str>(now(), 1_005, &[], "new");
    assert!(client.publish(&new).await.0);
    relay.await_metric(REMOVED, BY_RULE, |removed| removed == 281.0);
    drop(client);
    relay.stop().expect(0, &[]);

    // A start counts anew, also by another rule.
    let relay = launch.set("BUZZ_RETENTION", "kinds=* count=5").start();
    relay.await_metric(REMOVED, BY_RULE, |removed| removed == 16.0);
    let mut client = Client::connect(relay.address).await;
    let left = all(&mut client).await;
    assert_eq!((left.len(), &left[0]), (5, &new));
    // Deletion makes a place.
    let deletion = author.json(now(), 5, &[&["e", &new[7..71]]], "");
    publish(&mut client, &[deletion]).await;
    assert!(client.publish(&many[0]).await.0);
}

#[test]
fn junk_fails_the_start_and_names_the_rule() {
    let launch = Launch::new();
    for (rules, words) in [
        ("kinds=1 age=90", ["rule 1: `age=90`", "s, min, h, d, w, y"]),
        (
            "kinds=* age=1d; kinds=1 keep",
            ["rule 2", "earlier rules have all of its kinds"],
        ),
        ("forever", ["`forever` is none of", "kinds=1,6,7 age=90d"]),
    ] {
        let exit = launch.clone().set("BUZZ_RETENTION", rules).run();
        exit.expect(64, &words);
        exit.expect(64, &["BUZZ_RETENTION"]);
    }
    assert!(!launch.data_dir().exists());
    let rules = "kinds=1 age=90d; kinds=* keep";
    let shown = command(&launch.set("BUZZ_RETENTION", rules), &["check-config"]);
    shown.expect(0, &[]);
    assert!(
        shown.stdout.contains(&format!("BUZZ_RETENTION={rules}")),
        "{shown:?}"
    );
}

#[tokio::test]
async fn the_information_document_says_nothing_that_nip_11_does_not_know() {
    let relay = Launch::new()
        .set("BUZZ_RETENTION", "kinds=* age=1d")
        .start();
    let accept = ("Accept", "application/nostr+json");
    let info = crate::common::raw::get(relay.address, "/", &[accept]).json();
    assert_eq!(info["retention"], json!(null));
}
