//! A refresh that panics: counted, and no reason for a limit that can no longer be moved.

use serde_json::json;

use crate::launchdarkly::Fake;
use crate::support::{
    AUTH, AUTH_FLAG, HISTORY, HISTORY_FLAG, Hooks, end_quietly, follows, gauges, has_said, hooked,
    of_launchdarkly, refreshes,
};

const PANICS: &str = "buzz_concurrency_limit_refresh_panics_total";
const REFRESHED: &str = "buzz_feature_flags_last_refresh_timestamp_seconds";

#[test]
fn a_refresh_that_panics_is_counted_and_the_next_change_arrives() {
    let fake = Fake::start(&[(AUTH_FLAG, json!(7)), (HISTORY_FLAG, json!(12))]);
    let hooks = Hooks::new(&[]);
    let launch = hooked(of_launchdarkly(&fake), &hooks);
    let relay = launch.start();
    let panics = || relay.metric(PANICS, &[]).expect(PANICS);
    assert_eq!(panics(), 0.0);

    // Over one gate: the other one's limit moves all the same.
    refreshes(&relay, 1);
    hooks.set(&[("panic_refresh", AUTH)]);
    fake.set(AUTH_FLAG, json!(3));
    fake.set(HISTORY_FLAG, json!(9));
    follows(&relay, HISTORY, 9);
    let refreshed = relay.metric(REFRESHED, &[]);
    relay.await_metric(PANICS, &[], |count| count >= 2.0);
    assert_eq!(gauges(&relay, AUTH).limit, 7);
    assert_eq!(
        relay.metric(REFRESHED, &[]),
        refreshed,
        "it says it finished"
    );
    assert!(has_said(&relay, "the refresh of the limits panicked"));

    // Over everything.
    hooks.set(&[("panic_refresh", "1")]);
    let before = panics();
    relay.await_metric(PANICS, &[], |count| count > before);
    assert_eq!(
        [HISTORY, AUTH].map(|gate| gauges(&relay, gate).limit),
        [9, 7]
    );

    hooks.clear();
    fake.set(HISTORY_FLAG, json!(5));
    follows(&relay, HISTORY, 5);
    assert_eq!(gauges(&relay, AUTH).limit, 3);
    let counted = panics();
    refreshes(&relay, 1);
    assert_eq!(panics(), counted);
    assert!(relay.metric(REFRESHED, &[]) > refreshed);
    end_quietly(relay, &launch, &fake);
}
