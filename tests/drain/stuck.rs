//! What does not end by itself: a shard that no longer runs, a provider whose flush hangs.

use std::time::Duration;

use super::{Hooks, RESTART, counts, ends_clean, expect_restart, launch, lines, terminate};
use crate::common::raw::{self, Raw};
use crate::common::{WAIT, get, until};
use crate::launchdarkly::Fake;

#[test]
fn a_shard_that_is_stuck_meets_the_hard_stop() {
    let hooks = Hooks::new("block_on=stand still");
    let launch = hooks.on(launch(2)).set("BUZZ_HARD_STOP_MS", "7000");
    let mut relay = launch.start();
    let mut clients: Vec<Raw> = (0..40).map(|_| Raw::upgraded(relay.address)).collect();
    let mut one = Raw::upgraded(relay.address);
    one.send(raw::text("stand still"));
    until("a shard stands still", || {
        let answer = get(relay.health, "/_liveness", &[]);
        (answer.status == 503).then_some(())
    });
    // Those of the other shard answer, the others do not.
    let start = terminate(&relay);
    let exit = relay.wait_exit(WAIT);
    let took = start.elapsed();
    exit.expect(1, &["the hard stop"]);
    assert!(took >= Duration::from_secs(7), "{took:?}");
    assert!(took < Duration::from_secs(12), "{took:?}");
    let line = lines(&exit).find(|line| line["hard"].is_u64());
    let line = line.expect("the hard stop's line");
    let (acknowledged, hard) = (&line["acknowledged"], &line["hard"]);
    let told = clients
        .iter_mut()
        .filter_map(|client| client.try_frame().ok().flatten())
        .inspect(|frame| assert_eq!(frame.close(), RESTART))
        .count();
    assert!(told > 0 && told < 40, "{told} of 40 were told");
    assert_eq!(*acknowledged, told, "{line}");
    assert_eq!(*hard, 41 - told, "{line}");
    assert_eq!(line["sockets_left"], 41 - told, "{line}");
}

#[test]
fn a_provider_whose_flush_hangs_is_left_behind_after_two_seconds() {
    let fake = Fake::start(&[("buzz.relay.concurrency.auth", 3.into())]);
    fake.hang_bulk();
    let launch = launch(1)
        .set("BUZZ_FEATURE_FLAGS_PROVIDER", "launchdarkly")
        .set("BUZZ_LAUNCHDARKLY_SDK_KEY", "sdk-test")
        .set("BUZZ_LAUNCHDARKLY_RELAY_PROXY_URL", fake.url());
    let mut relay = launch.start();
    let auth = ["gate=\"auth\""];
    relay.await_metric("buzz_concurrency_limit", &auth, |limit| limit == 3.0);
    let mut client = Raw::upgraded(relay.address);
    let start = terminate(&relay);
    expect_restart(&mut client);
    let exit = ends_clean(&mut relay);
    assert!(start.elapsed() >= Duration::from_secs(2), "it hung");
    assert!(start.elapsed() < Duration::from_secs(7));
    assert_eq!(counts(&exit), (1, 0, 0));
}
