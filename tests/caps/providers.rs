//! The providers that read nothing from elsewhere, and settings that no relay starts with.

use serde_json::json;

use crate::common::Launch;
use crate::support::{
    AUTH, AUTH_FLAG, AUTH_VARIABLE, Gauges, HISTORY, HISTORY_FLAG, HISTORY_VARIABLE, HUSH, agree,
    changes, gauges, of_environment, refreshes, status_of,
};

fn limits(launch: &Launch) -> [u32; 2] {
    let relay = launch.start();
    let found = [HISTORY, AUTH].map(|gate| gauges(&relay, gate).limit);
    agree(&relay);
    found
}

#[test]
fn the_default_is_the_ceilings() {
    // Of another provider nothing is read, however wrong it is.
    let launch = Launch::new()
        .set(AUTH_VARIABLE, "3")
        .set("BUZZ_LAUNCHDARKLY_RELAY_PROXY_URL", "no URL");
    let relay = launch.start();
    let at_rest = |limit| Gauges {
        limit,
        in_flight: 0,
        waiting: 0,
        debt: 0,
    };
    assert_eq!(gauges(&relay, HISTORY), at_rest(40));
    assert_eq!(gauges(&relay, AUTH), at_rest(0));
    assert_eq!(
        relay.status()["gates"],
        json!({
            "history_reads": {
                "limit": 40, "ceiling": 40, "in_flight": 0, "waiting": 0, "debt": 0,
                "sheds": {"timeout": 0, "full": 0, "closed": 0}, "source": "static",
            },
            "auth": {
                "limit": null, "ceiling": null, "in_flight": 0, "waiting": 0, "debt": 0,
                "sheds": {"timeout": 0, "full": 0, "closed": 0}, "source": "static",
            },
        })
    );
    let flags = &relay.status()["feature_flags"];
    assert_eq!(
        (&flags["provider"], &flags["ready"]),
        (&json!("static"), &json!(true))
    );
    assert_eq!(
        relay.metric("buzz_feature_flags_ready", &["static"]),
        Some(1.0)
    );
    assert_eq!(relay.metric("buzz_feature_flags_ready", &[]), Some(1.0));
    agree(&relay);
    for (pool, ceiling) in [("10", 8), ("5", 4), ("4", 4), ("1", 1)] {
        let launch = Launch::new().set("BUZZ_DB_READ_POOL_SIZE", pool);
        assert_eq!(limits(&launch), [ceiling, 0], "a pool of {pool}");
    }
    let empty = Launch::new().set("BUZZ_FEATURE_FLAGS_PROVIDER", " ");
    assert_eq!(limits(&empty), [40, 0]);
}

#[test]
fn the_environment_is_read_once_and_can_only_tighten() {
    for (history, auth, expected) in [
        ("7", "1", [7, 1]),
        (" 7\n", "+1", [7, 1]),
        ("41", "100000", [40, 100_000]),
        ("0", "0", [40, 0]),
        ("-1", "-9223372036854775808", [40, 0]),
        ("", " ", [40, 0]),
    ] {
        let launch = of_environment(&[(HISTORY_VARIABLE, history), (AUTH_VARIABLE, auth)]);
        assert_eq!(limits(&launch), expected, "{history:?} {auth:?}");
    }
    let relay = of_environment(&[(AUTH_VARIABLE, "3")]).start();
    assert_eq!(status_of(&relay, AUTH)["source"], "environment");
    assert_eq!(status_of(&relay, HISTORY)["source"], "default");
    assert_eq!(
        relay.metric("buzz_feature_flags_ready", &["environment"]),
        Some(1.0)
    );
    assert_eq!(
        changes(&relay),
        [["auth", "none", "3", "none", "environment"].map(str::to_owned)]
    );
    agree(&relay);
}

#[test]
fn a_mistyped_variable_is_the_ceiling_counted_and_not_repeated() {
    let launch = of_environment(&[
        (AUTH_VARIABLE, HUSH),
        (HISTORY_VARIABLE, "12.0"),
        ("BUZZ_FEATURE_FLAG_NOBODY_READS", HUSH),
    ]);
    let relay = launch.set("BUZZ_LOG", "trace").start();
    assert_eq!(gauges(&relay, AUTH).limit, 0);
    assert_eq!(gauges(&relay, HISTORY).limit, 40);
    refreshes(&relay, 1);
    for flag in [AUTH_FLAG, HISTORY_FLAG] {
        let label = format!("flag=\"{flag}\"");
        let count = relay.metric("buzz_feature_flag_mistyped_total", &[&label]);
        assert!(count >= Some(1.0), "{flag}: {count:?}");
        let said = relay.output();
        let warned = said
            .lines()
            .filter(|line| line.contains("WARN") && line.contains(flag));
        assert_eq!(warned.count(), 1, "{flag}");
    }
    agree(&relay);
    let said = [relay.status().to_string(), relay.metrics_text()];
    let exit = relay.stop();
    assert!(exit.stderr.contains("BUZZ_FEATURE_FLAG_NOBODY_READS"));
    for text in said.iter().chain([&exit.stdout, &exit.stderr]) {
        assert!(!text.contains(HUSH), "{text}");
    }
}

#[test]
fn wrong_settings_end_the_start_with_64_and_repeat_no_secret() {
    const PROVIDER: &str = "BUZZ_FEATURE_FLAGS_PROVIDER";
    const KEY: &str = "BUZZ_LAUNCHDARKLY_SDK_KEY";
    const URL: &str = "BUZZ_LAUNCHDARKLY_RELAY_PROXY_URL";
    let launch = Launch::new();
    for word in ["launch-darkly", "LaunchDarkly", "static,environment", HUSH] {
        let exit = launch.clone().set(PROVIDER, word).run();
        exit.expect(64, &[PROVIDER, "static", "environment", "launchdarkly"]);
    }
    let launch = launch.set(PROVIDER, "launchdarkly");
    launch.run().expect(64, &[KEY, "required"]);
    for blank in ["", "  ", "\t"] {
        launch.clone().set(KEY, blank).run().expect(64, &[KEY]);
    }
    let good_key = launch.clone().set(KEY, format!("sdk-{HUSH}"));
    for url in [
        format!("{HUSH}.example"),
        format!("//{HUSH}.example/"),
        format!("ftp://{HUSH}.example"),
        format!("http:///{HUSH}"),
        format!("http://{HUSH}.example:99999"),
        format!("https://user:{HUSH}@proxy.example"),
        format!("https://proxy.example/?{HUSH}"),
        format!("https://proxy.example/ {HUSH}"),
    ] {
        let exit = good_key.clone().set(URL, &url).run();
        exit.expect(64, &[URL]);
        let said = exit.stdout + &exit.stderr;
        assert!(!said.contains(HUSH), "{url}: {said}");
    }
    let exit = launch.set(KEY, format!("{HUSH}\u{7}")).run();
    exit.expect(64, &[KEY]);
    assert!(!exit.stderr.contains(HUSH), "{}", exit.stderr);
}
