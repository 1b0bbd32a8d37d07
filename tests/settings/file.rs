//! The file at a start: what it gives, and what is wrong with it.

use std::os::unix::fs::PermissionsExt;

use super::{File, HUSH};
use crate::common::{Launch, get};

#[test]
fn an_option_comes_before_the_environment_before_the_file_before_the_default() {
    let file = File::new(
        "# first\nBUZZ_MAX_LIMIT=91\nBUZZ_DEFAULT_LIMIT=92\nBUZZ_MAX_FILTERS='93'\n\
         BUZZ_MAX_SUBSCRIPTIONS=94\n",
    );
    let launch = file
        .launch()
        .arg("check-config")
        .arg("--max-limit=1000")
        .set("BUZZ_MAX_LIMIT", "81")
        .set("BUZZ_DEFAULT_LIMIT", "82")
        .set("BUZZ_MAX_SUBSCRIPTIONS", " ");
    let exit = launch.run();
    exit.expect(0, &[]);
    for (setting, origin) in [
        ("BUZZ_MAX_LIMIT=1000", "option"),
        ("BUZZ_DEFAULT_LIMIT=82", "environment"),
        ("BUZZ_MAX_FILTERS=93", "file, line 4"),
        // An empty variable is none.
        ("BUZZ_MAX_SUBSCRIPTIONS=94", "file, line 5"),
    ] {
        let (name, _) = setting.split_once('=').expect("a setting");
        let lines = format!("\n# {name}: {origin}\n{setting}\n");
        assert!(exit.stdout.contains(&lines), "{lines} in {exit:#?}");
    }
    for line in [
        "#BUZZ_MAX_FRAME_BYTES=524288".to_owned(),
        format!("# BUZZ_CONFIG is {} (environment)", file.shown()),
    ] {
        assert!(exit.stdout.contains(&line), "{line} in {exit:#?}");
    }
    // The option names another file than the variable.
    let other = File::new("BUZZ_MAX_FILTERS=7");
    let argument = format!("--config={}", other.shown());
    let exit = launch.arg(&argument).run();
    assert!(exit.stdout.contains("\nBUZZ_MAX_FILTERS=7\n"), "{exit:#?}");
}

#[test]
fn what_check_config_prints_is_a_file_of_the_same() {
    let name = r#"it's "a" \\ $name #1"#;
    let first = Launch::new()
        .arg("check-config")
        .arg("--max-limit=77")
        .set("BUZZ_NAME", name)
        .set("DATABASE_URL", HUSH)
        .run();
    first.expect(0, &[]);
    assert!(!first.stdout.contains(HUSH), "{first:#?}");
    let file = File::new(&first.stdout);
    // The file alone.
    let nothing = [
        "BUZZ_DATA_DIR",
        "BUZZ_SHARDS",
        "BUZZ_BIND_ADDR",
        "BUZZ_HEALTH_PORT",
    ];
    let launch = nothing
        .iter()
        .fold(file.launch(), |launch, name| launch.set(name, ""));
    let second = launch.arg("check-config").set("DATABASE_URL", HUSH).run();
    second.expect(0, &[]);
    let of = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with("# "));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(of(&second.stdout), of(&first.stdout));
    let relay = file.launch().start();
    assert_eq!(super::info(&relay)["name"], name);
}

#[test]
fn a_relay_serves_by_its_file_and_commands_find_it_so() {
    let file = File::new("BUZZ_NAME=of the file");
    let relay = file.launch().start();
    assert_eq!(super::info(&relay)["name"], "of the file");
    // The data folder alone, and from the file.
    let folder = File::new(&format!("BUZZ_DATA_DIR={}", relay.data_dir().display()));
    let exit = Launch::new()
        .set("BUZZ_DATA_DIR", "")
        .arg("drain")
        .arg("--config")
        .arg(&folder.shown())
        .run();
    exit.expect(0, &[]);
}

#[test]
fn whatever_is_wrong_with_it_fails_the_start_and_is_named() {
    let file = File::new("");
    let shown = file.shown();
    let at = |line: usize, rest: &str| format!("{shown}:{line}: {rest}");
    for (text, words) in [
        ("BUZZ_NAMES=a", at(1, "BUZZ_NAMES: this is not a setting")),
        (
            "BUZZ_NAME=a\n\nBUZZ_NAME=a",
            at(3, "BUZZ_NAME: it stands in line 1 already"),
        ),
        ("\njunk", at(2, "this is not NAME=value")),
        ("BUZZ_NAME='a", at(1, "BUZZ_NAME: the quote")),
        ("BUZZ_CONFIG=/x", at(1, "BUZZ_CONFIG: a settings file")),
        ("\nBUZZ_MAX_LIMIT=junk", at(2, "BUZZ_MAX_LIMIT: `junk`")),
        ("DATABASE_URL='hush-hush", at(1, "DATABASE_URL: the quote")),
        (
            "BUZZ_FEATURE_FLAGS_PROVIDER=launchdarkly\n\
             BUZZ_LAUNCHDARKLY_SDK_KEY='hush-hush hush-hush'",
            at(2, "BUZZ_LAUNCHDARKLY_SDK_KEY: its value is not accepted"),
        ),
        (
            "hush-hush\nHUSH hush-hush=a",
            at(2, "this is not NAME=value"),
        ),
    ] {
        file.write(text);
        for launch in [file.launch(), file.launch().arg("check-config")] {
            let exit = launch.run();
            exit.expect(64, &[&words]);
            assert!(!exit.stderr.contains(HUSH), "{exit:#?}");
            assert!(!launch.data_dir().exists());
        }
    }
}

#[test]
fn a_file_that_is_none_fails_the_start() {
    let file = File::new("");
    let folder = Launch::new().arg(&format!("--config={}", file.folder.path().display()));
    folder.run().expect(64, &["not a regular file"]);
    let launch = file.launch();
    std::fs::write(file.path(), b"BUZZ_NAME=\xff").expect("a file");
    launch.run().expect(64, &["not UTF-8 text, in line 1"]);
    std::fs::write(file.path(), vec![b'#'; 65_537]).expect("a file");
    launch.run().expect(64, &["more than 65536 bytes"]);
    std::fs::remove_file(file.path()).expect("a file");
    launch
        .run()
        .expect(64, &["BUZZ_CONFIG", &file.shown(), "cannot be read"]);
    Launch::new()
        .arg("--config=/dev/null")
        .run()
        .expect(64, &["not a regular file"]);
}

#[test]
fn secrets_and_flags_may_be_in_it_and_are_shown_to_nobody() {
    let flag = "BUZZ_FEATURE_FLAG_BUZZ_RELAY_CONCURRENCY_AUTH";
    let file = File::new(&format!(
        "DATABASE_URL=postgres://relay:{HUSH}@db.example/relay\nBUZZ_LOG=trace\n\
         BUZZ_LAUNCHDARKLY_SDK_KEY=\"sdk-{HUSH}\"\nBUZZ_FEATURE_FLAGS_PROVIDER=environment\n\
         {flag}=7\n",
    ));
    let mode = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(file.path(), mode).expect("its owner");
    };
    mode(0o644);
    let check = file.launch().arg("check-config");
    let exit = check.run();
    exit.expect(0, &[]);
    let note = "holds a secret (DATABASE_URL) and can be read by every user of this machine";
    assert!(exit.stdout.contains(note), "{exit:#?}");
    assert!(!exit.stdout.contains(HUSH), "{exit:#?}");
    let relay = file.launch().start();
    assert!(relay.output().contains(note), "{}", relay.output());
    assert_eq!(
        relay.status()["gates"]["auth"]["limit"],
        7,
        "{}",
        relay.status()
    );
    let said = [
        relay.metrics_text(),
        relay.status().to_string(),
        get(relay.address, "/", &[]).text(),
    ];
    let exit = relay.stop();
    exit.expect(0, &[]);
    for text in said.iter().chain([&exit.stdout, &exit.stderr]) {
        assert!(!text.contains(HUSH), "{text}");
    }
    mode(0o600);
    assert!(!check.run().stdout.contains("holds a secret"));
}
