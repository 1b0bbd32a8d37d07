//! LaunchDarkly end to end: what it says is followed, and what becomes of it changes no cap.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::{Launch, Relay, until};
use crate::launchdarkly::{Fake, Mode};
use crate::support::{
    AUTH, AUTH_FLAG, Gauges, HISTORY, HISTORY_FLAG, Hooks, SLACK, changes, end_quietly, follows,
    gauges, has_said, hooked, of_launchdarkly, refreshes, source,
};

/// How long a start waits for the first delivery.
const START: Duration = Duration::from_secs(3);

fn start(launch: &Launch) -> (Relay, Duration) {
    let start = Instant::now();
    let relay = launch.start();
    (relay, start.elapsed())
}

fn ready(relay: &Relay) -> f64 {
    let label = "provider=\"launchdarkly\"";
    let ready = relay.metric("buzz_feature_flags_ready", &[label]);
    ready.expect("a gauge for the chosen provider")
}

fn limits(relay: &Relay) -> [u32; 2] {
    [HISTORY, AUTH].map(|gate| gauges(relay, gate).limit)
}

fn sources(relay: &Relay) -> [String; 2] {
    [HISTORY, AUTH].map(|gate| source(relay, gate))
}

#[test]
fn caps_hold_from_the_start_and_follow_each_change_within_one_refresh() {
    let fake = Fake::start(&[(AUTH_FLAG, json!(7)), (HISTORY_FLAG, json!(12))]);
    let launch = of_launchdarkly(&fake);
    let relay = launch.start();
    assert_eq!(limits(&relay), [12, 7]);
    assert_eq!(sources(&relay), ["launchdarkly"; 2]);
    assert_eq!(ready(&relay), 1.0);
    let first = &fake.requests()[0];
    assert!(first.authorization.starts_with("sdk-"), "{first:?}");

    fake.set(AUTH_FLAG, json!(3));
    follows(&relay, AUTH, 3);
    assert_eq!(limits(&relay), [12, 3]);
    fake.set(HISTORY_FLAG, json!(99));
    follows(&relay, HISTORY, 40);
    fake.set(AUTH_FLAG, json!(0));
    follows(&relay, AUTH, 0);
    assert_eq!(sources(&relay), ["launchdarkly"; 2]);

    // What is the same says nothing.
    refreshes(&relay, 2);
    let said: Vec<String> = changes(&relay).iter().map(|line| line.join(" ")).collect();
    assert_eq!(
        said,
        [
            "history_reads 40 12 40 launchdarkly",
            "auth none 7 none launchdarkly",
            "auth 7 3 none launchdarkly",
            "history_reads 12 40 40 launchdarkly",
            "auth 3 none none launchdarkly",
        ]
    );
    end_quietly(relay, &launch, &fake);
}

#[test]
fn only_integers_are_caps_and_others_are_counted() {
    let fake = Fake::start(&[(AUTH_FLAG, json!(4)), (HISTORY_FLAG, json!(5))]);
    let launch = of_launchdarkly(&fake);
    let relay = launch.start();
    let mistyped = |flag: &str| {
        let label = format!("flag=\"{flag}\"");
        let count = relay.metric("buzz_feature_flag_mistyped_total", &[&label]);
        count.expect("a counter for each flag")
    };
    assert_eq!([mistyped(AUTH_FLAG), mistyped(HISTORY_FLAG)], [0.0; 2]);
    fake.set(AUTH_FLAG, json!("4-hush-hush"));
    follows(&relay, AUTH, 0);
    assert_eq!(sources(&relay), ["launchdarkly", "default"]);
    let first = mistyped(AUTH_FLAG);
    assert!(first >= 1.0);
    // It goes on for as long as the value is there, so that an alert on its rate stays.
    refreshes(&relay, 2);
    assert!(mistyped(AUTH_FLAG) > first);
    assert_eq!(mistyped(HISTORY_FLAG), 0.0);
    fake.set(HISTORY_FLAG, json!(2.5));
    follows(&relay, HISTORY, 40);
    assert!(mistyped(HISTORY_FLAG) >= 1.0);
    fake.set(AUTH_FLAG, json!(6));
    follows(&relay, AUTH, 6);
    let last = mistyped(AUTH_FLAG);
    refreshes(&relay, 1);
    assert_eq!(mistyped(AUTH_FLAG), last);
    let said = relay.output();
    let warned = said
        .lines()
        .filter(|line| line.contains("flag is not an integer") && line.contains(AUTH_FLAG));
    assert_eq!(warned.count(), 1, "one warning for one mistake");
    end_quietly(relay, &launch, &fake);
}

#[test]
fn a_lost_stream_is_found_again_and_caps_stay_meanwhile() {
    let fake = Fake::start(&[(AUTH_FLAG, json!(7))]);
    let launch = of_launchdarkly(&fake);
    let relay = launch.start();
    // What changes while there is no stream comes with the next one.
    fake.mode(Mode::Status(503));
    fake.lose_streams();
    fake.set(AUTH_FLAG, json!(2));
    fake.wait_for("/all", 2);
    refreshes(&relay, 1);
    assert_eq!((limits(&relay), ready(&relay)), ([40, 7], 1.0));
    fake.mode(Mode::Ok);
    relay.await_metric("buzz_concurrency_limit", &["auth"], |limit| limit == 2.0);
    fake.set(AUTH_FLAG, json!(5));
    follows(&relay, AUTH, 5);
    assert_eq!(source(&relay, AUTH), "launchdarkly");
    for text in ["stream is lost", "answers with an error", "connected again"] {
        assert!(has_said(&relay, text), "{text}");
    }
    end_quietly(relay, &launch, &fake);
}

#[test]
fn caps_stay_through_an_outage() {
    let mut fake = Fake::start(&[(AUTH_FLAG, json!(7)), (HISTORY_FLAG, json!(3))]);
    let launch = of_launchdarkly(&fake);
    let relay = launch.start();
    fake.refuse();
    refreshes(&relay, 2);
    assert_eq!((limits(&relay), ready(&relay)), ([3, 7], 1.0));
    assert_eq!(sources(&relay), ["launchdarkly"; 2]);
    assert!(has_said(&relay, "last values stay"));
    fake.set(AUTH_FLAG, json!(1));
    fake.listen();
    relay.await_metric("buzz_concurrency_limit", &["auth"], |limit| limit == 1.0);
    assert_eq!(limits(&relay), [3, 1]);
    end_quietly(relay, &launch, &fake);
}

#[test]
fn a_start_while_connections_are_refused() {
    let mut fake = Fake::start(&[(AUTH_FLAG, json!(7))]);
    fake.refuse();
    let launch = of_launchdarkly(&fake);
    let (relay, took) = start(&launch);
    assert!(took < START + SLACK, "{took:?}");
    assert_eq!((limits(&relay), ready(&relay)), ([40, 0], 0.0));
    assert_eq!(sources(&relay), ["default"; 2]);
    refreshes(&relay, 1);
    assert_eq!((limits(&relay), ready(&relay)), ([40, 0], 0.0));
    fake.listen();
    relay.await_metric("buzz_concurrency_limit", &["auth"], |limit| limit == 7.0);
    assert_eq!(ready(&relay), 1.0);
    assert_eq!(source(&relay, AUTH), "launchdarkly");
    // The other flag is one that LaunchDarkly does not have.
    assert_eq!(source(&relay, HISTORY), "default");
    end_quietly(relay, &launch, &fake);
}

#[test]
fn a_start_while_nobody_answers() {
    let fake = Fake::start(&[(AUTH_FLAG, json!(7))]);
    fake.mode(Mode::Hung);
    let launch = of_launchdarkly(&fake);
    let (relay, took) = start(&launch);
    assert!((START..START + SLACK).contains(&took), "{took:?}");
    assert_eq!((limits(&relay), ready(&relay)), ([40, 0], 0.0));
    fake.mode(Mode::Ok);
    // The request that hangs is given up after 15 s.
    relay.await_metric("buzz_concurrency_limit", &["auth"], |limit| limit == 7.0);
    assert!(has_said(&relay, "does not answer"));
    end_quietly(relay, &launch, &fake);
}

#[test]
fn a_slow_first_answer_is_waited_for_up_to_three_seconds() {
    let fake = Fake::start(&[(AUTH_FLAG, json!(7))]);
    fake.mode(Mode::Slow(Duration::from_millis(1_000)));
    let launch = of_launchdarkly(&fake);
    let (relay, took) = start(&launch);
    assert!(took >= Duration::from_millis(1_000), "{took:?}");
    assert_eq!((limits(&relay), ready(&relay)), ([40, 7], 1.0));
    relay.stop();

    fake.mode(Mode::Slow(Duration::from_millis(5_500)));
    let (relay, took) = start(&launch);
    assert!((START..START + SLACK).contains(&took), "{took:?}");
    assert_eq!((limits(&relay), ready(&relay)), ([40, 0], 0.0));
    relay.await_metric("buzz_concurrency_limit", &["auth"], |limit| limit == 7.0);
    assert_eq!(ready(&relay), 1.0);
    end_quietly(relay, &launch, &fake);
}

#[test]
fn a_rejected_key_is_tried_again_and_caps_stay_meanwhile() {
    for status in [401, 403] {
        let fake = Fake::start(&[(AUTH_FLAG, json!(7))]);
        fake.mode(Mode::Status(status));
        // Clients that were rejected are replaced every minute; here every second.
        let hooks = Hooks::new(&[("rebuild_ms", "1000")]);
        let launch = hooked(of_launchdarkly(&fake), &hooks);
        let (relay, took) = start(&launch);
        assert!(took < START, "a rejection is not waited for: {took:?}");
        assert_eq!((limits(&relay), ready(&relay)), ([40, 0], 0.0));
        assert!(has_said(&relay, "rejects the key"));
        fake.mode(Mode::Ok);
        relay.await_metric("buzz_concurrency_limit", &["auth"], |limit| limit == 7.0);
        assert_eq!(ready(&relay), 1.0);

        // The same to one that has had its values.
        fake.mode(Mode::Status(status));
        let asked = fake.requests().len();
        fake.lose_streams();
        until("another request", || {
            (fake.requests().len() > asked).then_some(())
        });
        refreshes(&relay, 1);
        let kept = Gauges {
            limit: 7,
            in_flight: 0,
            waiting: 0,
            debt: 0,
        };
        assert_eq!((gauges(&relay, AUTH), ready(&relay)), (kept, 1.0));
        fake.set(AUTH_FLAG, json!(2));
        fake.mode(Mode::Ok);
        relay.await_metric("buzz_concurrency_limit", &["auth"], |limit| limit == 2.0);
        end_quietly(relay, &launch, &fake);
    }
}

#[test]
fn a_last_flush_that_hangs_is_waited_for_two_seconds() {
    let fake = Fake::start(&[(AUTH_FLAG, json!(7))]);
    fake.hang_bulk();
    let launch = of_launchdarkly(&fake);
    let relay = launch.start();
    refreshes(&relay, 1);
    let start = Instant::now();
    end_quietly(relay, &launch, &fake);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2) + SLACK, "{took:?}");
}
