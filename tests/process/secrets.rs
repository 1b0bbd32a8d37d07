//! Secrets are in no output, whatever goes well or wrong.

use crate::common::{Launch, get};

/// A word that is in every secret.
const HUSH: &str = "hush-hush";

fn with_secrets() -> Launch {
    Launch::new()
        .set(
            "DATABASE_URL",
            format!("postgres://relay:{HUSH}@db.example/relay"),
        )
        .set(
            "READ_DATABASE_URL",
            format!("postgres://relay:{HUSH}@replica.example/relay"),
        )
        .set("BUZZ_LAUNCHDARKLY_SDK_KEY", format!("sdk-{HUSH}"))
        .set(
            "BUZZ_LAUNCHDARKLY_RELAY_PROXY_URL",
            format!("https://{HUSH}.example/ld"),
        )
        .set("BUZZ_FEATURE_FLAG_BUZZ_RELAY_CONCURRENCY_AUTH", HUSH)
        .set("BUZZ_LOG", "trace")
}

#[test]
fn a_running_relay_prints_no_secret() {
    let relay = with_secrets().start();
    let said = [
        relay.metrics_text(),
        relay.status().to_string(),
        get(relay.address, "/", &[]).text(),
        get(relay.address, "/", &[("Accept", "application/nostr+json")]).text(),
    ];
    let exit = relay.stop();
    exit.expect(0, &[]);
    for text in said.iter().chain([&exit.stdout, &exit.stderr]) {
        assert!(!text.contains(HUSH), "{text}");
    }
}

#[test]
fn nor_does_one_that_only_looks_or_fails() {
    let launch = with_secrets();
    for launch in [
        launch.clone().arg("check-config"),
        launch.clone().arg("--help"),
        launch
            .clone()
            .arg(&format!("--database-url={HUSH}"))
            .arg("--help"),
        launch.clone().set("BUZZ_MAX_LIMIT", "junk"),
        launch.clone().set("BUZZ_BIND_ADDR", "192.0.2.1:1"),
        launch.clone().set("BUZZ_FEATURE_FLAGS_PROVIDER", "junk"),
        // Wrong secrets are not repeated either.
        launch
            .clone()
            .set("BUZZ_FEATURE_FLAGS_PROVIDER", "launchdarkly")
            .set(
                "BUZZ_LAUNCHDARKLY_RELAY_PROXY_URL",
                format!("ftp://{HUSH}.example"),
            ),
        launch
            .clone()
            .set("BUZZ_FEATURE_FLAGS_PROVIDER", "launchdarkly")
            .set("BUZZ_LAUNCHDARKLY_SDK_KEY", format!("{HUSH}\u{e9}")),
    ] {
        let exit = launch.run();
        assert!(
            !exit.stdout.contains(HUSH) && !exit.stderr.contains(HUSH),
            "{exit:#?}"
        );
    }
}
