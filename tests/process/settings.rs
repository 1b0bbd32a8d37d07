//! The command line and the environment.

use buzz_uring::version::{COMMIT, VERSION};

use crate::common::{Launch, relay};

#[test]
fn help_and_version_are_answered_on_standard_output() {
    let help = Launch::new().arg("--help").run();
    help.expect(0, &[]);
    for word in ["--shards", "BUZZ_SHARDS", "check-config", "DATABASE_URL"] {
        assert!(help.stdout.contains(word), "{word} is not in {help:#?}");
    }
    let version = Launch::new().arg("--version").run();
    version.expect(0, &[]);
    assert_eq!(
        version.stdout.trim(),
        format!("buzz-uring {VERSION} ({COMMIT})")
    );
}

#[test]
fn check_config_prints_the_settings_and_opens_nothing() {
    let launch = Launch::new()
        .arg("check-config")
        .set("BUZZ_MAX_LIMIT", "77")
        .set("BUZZ_DEFAULT_LIMIT", "33")
        .set(
            "DATABASE_URL",
            "postgres://relay:hush-hush@db.example/relay",
        );
    let exit = launch.run();
    exit.expect(0, &[]);
    for line in [
        "BUZZ_MAX_LIMIT=77",
        "BUZZ_DEFAULT_LIMIT=33",
        "BUZZ_SHARDS=2",
        "#BUZZ_MAX_FRAME_BYTES=524288",
        "# DATABASE_URL is set (environment)",
    ] {
        let is_there = exit.stdout.lines().any(|there| there == line);
        assert!(is_there, "{line} is not in {exit:#?}");
    }
    assert!(!exit.stdout.contains("hush"), "{exit:#?}");
    assert!(!launch.data_dir().exists());
}

#[test]
fn an_option_wins_over_its_variable_and_empty_is_unset() {
    let exit = Launch::new()
        .arg("check-config")
        .arg("--max-limit=9")
        .arg("--default-limit=4")
        .set("BUZZ_MAX_LIMIT", "77")
        .set("BUZZ_MAX_FILTERS", " ")
        .run();
    exit.expect(0, &[]);
    for line in [
        "\nBUZZ_MAX_LIMIT=9\n",
        "\nBUZZ_DEFAULT_LIMIT=4\n",
        "\n#BUZZ_MAX_FILTERS=10\n",
    ] {
        assert!(exit.stdout.contains(line), "{line} is not in {exit:#?}");
    }
}

#[test]
fn bad_usage_is_told_once() {
    let exit = Launch::new().arg("frobnicate").run();
    exit.expect(64, &["buzz-uring: unrecognized subcommand 'frobnicate'"]);
    assert!(!exit.stderr.contains("error: "), "{exit:#?}");
    assert!(!exit.stderr.ends_with("\n\n"), "{exit:#?}");
    let postgres = Launch::new().set("BUZZ_STORE", "postgres");
    let exit = postgres
        .set("DATABASE_URL", "junk")
        .arg("check-config")
        .run();
    exit.expect(64, &["DATABASE_URL"]);
    assert_eq!(exit.stderr.matches("DATABASE_URL").count(), 1, "{exit:#?}");
}

#[test]
fn wrong_settings_exit_64_and_name_the_variable() {
    for (variable, junk) in [
        ("BUZZ_SHARDS", "0"),
        ("BUZZ_SHARDS", "two"),
        ("BUZZ_BIND_ADDR", "localhost"),
        ("BUZZ_HEALTH_PORT", "65536"),
        ("BUZZ_METRICS_PORT", "-1"),
        ("BUZZ_IO_DRIVER", "kqueue"),
        ("BUZZ_STORE", "sqlite"),
        ("BUZZ_MAX_CONNECTIONS", "0"),
        ("BUZZ_MAX_FRAME_BYTES", "12"),
        ("BUZZ_MAX_FRAME_BYTES", "1e6"),
        ("BUZZ_OUTBOX_HARD_BYTES", "1000"),
        ("BUZZ_MAX_LIMIT", "1.5"),
        ("BUZZ_MAX_SUBID_LENGTH", "many"),
        ("BUZZ_CREATED_AT_FUTURE_SECONDS", "-900"),
        ("BUZZ_RELAY_URL", "http://relay.example"),
        ("BUZZ_REQUIRE_AUTH", "perhaps"),
        ("BUZZ_DRAIN_JITTER_MS", "soon"),
        ("BUZZ_DRAIN_JITTER_MS", "-1"),
        ("BUZZ_HARD_STOP_MS", "10"),
        ("BUZZ_FEATURE_FLAGS_PROVIDER", "consul"),
        ("BUZZ_PUBKEY", "npub1"),
    ] {
        let launch = Launch::new().set(variable, junk);
        launch.run().expect(64, &[variable]);
        launch.arg("check-config").run().expect(64, &[variable]);
    }
    // The accepted words stand in the message.
    let exit = Launch::new()
        .set("BUZZ_FEATURE_FLAGS_PROVIDER", "consul")
        .run();
    exit.expect(64, &["static", "environment", "launchdarkly"]);
    for argument in ["--nonsense", "frobnicate"] {
        Launch::new().arg(argument).run().expect(64, &[argument]);
    }
}

#[test]
fn nothing_is_opened_when_a_setting_is_wrong() {
    let launch = Launch::new().set("BUZZ_MAX_LIMIT", "junk");
    launch.run().expect(64, &["BUZZ_MAX_LIMIT"]);
    assert!(!launch.data_dir().exists());
}

#[test]
fn a_misspelt_variable_is_told() {
    let relay = Launch::new().set("BUZZ_MAX_LIMITS", "1").start();
    assert!(
        relay.output().contains("BUZZ_MAX_LIMITS"),
        "{}",
        relay.output()
    );
}

#[test]
fn a_clamped_setting_is_told() {
    let relay = Launch::new().set("BUZZ_DRAIN_JITTER_MS", "999999").start();
    assert!(
        relay.output().contains("BUZZ_DRAIN_JITTER_MS"),
        "{}",
        relay.output()
    );
    assert!(relay::files_below(&relay.data_dir()).len() > 1);
}
