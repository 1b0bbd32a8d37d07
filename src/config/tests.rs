use super::*;
use crate::cli;
use crate::cli::SETTINGS;

const MACHINE_DESCRIPTORS: u64 = 1_048_576;

fn machine(descriptors_max: u64) -> Machine {
    Machine {
        cpus: vec![2, 3],
        descriptors_max,
    }
}

fn resolve_on(machine: &Machine, env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let env = env.iter().map(|(name, text)| (name.into(), text.into()));
    let (_, raw) = cli::parse(["buzz-uring".into()], env).unwrap();
    Config::resolve(&raw, machine)
}

fn resolve(env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    resolve_on(&machine(MACHINE_DESCRIPTORS), env)
}

fn faults(env: &[(&str, &str)]) -> String {
    resolve(env).expect_err("a fault was expected").to_string()
}

#[test]
fn no_settings_give_the_contract_s_defaults() {
    let config = resolve(&[]).unwrap();
    assert_eq!(config.bind, "0.0.0.0:3000".parse().unwrap());
    assert_eq!(config.health, "0.0.0.0:8080".parse().unwrap());
    assert_eq!(config.metrics, "0.0.0.0:9102".parse().unwrap());
    assert_eq!((config.shards, config.cpus.as_slice()), (2, &[2, 3][..]));
    assert_eq!(config.connections_max, 10_000);
    assert_eq!(config.frame_bytes_max, 524_288);
    assert_eq!(
        config.outbox,
        OutboxBounds {
            hard_bytes: 8 << 20,
            soft_bytes: 2 << 20,
            soft: Duration::from_secs(15),
            total_bytes: 1 << 30,
        }
    );
    assert_eq!((config.db_pool, config.db_read_pool), (20, 50));
    assert_eq!((config.limit_max, config.limit_default), (1_000, 500));
    assert_eq!(
        (config.created_at_past, config.created_at_future),
        (None, 900)
    );
    assert_eq!(config.drain.jitter, Duration::ZERO);
    assert_eq!(config.drain.grace, Duration::from_secs(5));
    assert_eq!(config.drain.hard_stop, Duration::from_secs(30));
    assert_eq!(config.flags, FlagsChoice::Static);
    assert_eq!(config.store, StoreKind::Embedded);
    assert_eq!(config.relay_url, "ws://localhost:3000");
    assert!(!config.login_required() && !config.remember_caps);
    assert_eq!(config.notes, [] as [&str; 0]);
}

#[test]
fn every_row_of_the_table_is_read_and_rendered() {
    let config = resolve(&[
        ("BUZZ_FEATURE_FLAGS_PROVIDER", "launchdarkly"),
        ("BUZZ_LAUNCHDARKLY_SDK_KEY", "sdk-hush"),
        (
            "BUZZ_LAUNCHDARKLY_RELAY_PROXY_URL",
            "https://hush.example/prefix/",
        ),
        ("DATABASE_URL", "postgres://user:hush@db/x"),
    ])
    .unwrap();
    let shown = config.render();
    for setting in SETTINGS {
        // The settings file is not one of its own settings.
        let is_shown = shown.contains(setting.variable) || setting.variable == cli::CONFIG;
        assert!(is_shown, "{} does nothing", setting.variable);
    }
    for line in [
        "# DATABASE_URL is set (environment)",
        "# READ_DATABASE_URL is not set",
        "# BUZZ_FEATURE_FLAGS_PROVIDER: environment",
        "BUZZ_FEATURE_FLAGS_PROVIDER=launchdarkly",
        "#BUZZ_SHARDS=2",
        "#BUZZ_RETENTION=",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}\n{shown}");
    }
    for text in [shown, format!("{config:?}")] {
        assert!(!text.contains("hush"), "{text}");
    }
}

#[test]
fn junk_names_the_variable_and_the_accepted_form() {
    let rows = [
        (
            "BUZZ_SHARDS",
            "many",
            "a whole number of threads from 1 to 256",
        ),
        ("BUZZ_SHARDS", "0", "from 1 to 256"),
        ("BUZZ_SHARDS", "+2", "from 1 to 256"),
        ("BUZZ_BIND_ADDR", "localhost", "an IP address and a port"),
        (
            "BUZZ_HEALTH_PORT",
            "65536",
            "a whole number of port from 0 to 65535",
        ),
        ("BUZZ_STORE", "mysql", "one of: embedded, postgres"),
        ("BUZZ_IO_DRIVER", "kqueue", "one of: auto, io_uring, epoll"),
        (
            "BUZZ_FEATURE_FLAGS_PROVIDER",
            "flagd",
            "one of: static, environment, launchdarkly",
        ),
        (
            "BUZZ_DRAIN_JITTER_MS",
            "-1",
            "a whole number of milliseconds, 0 or more",
        ),
        (
            "BUZZ_DRAIN_JITTER_MS",
            "1.5",
            "a whole number of milliseconds, 0 or more",
        ),
        (
            "BUZZ_DRAIN_JITTER_MS",
            "5s",
            "a whole number of milliseconds, 0 or more",
        ),
        (
            "BUZZ_REQUIRE_AUTH",
            "maybe",
            "true, 1, yes, on, or false, 0, no, off",
        ),
        (
            "BUZZ_RELAY_URL",
            "relay.example",
            "an absolute ws or wss URL",
        ),
        (
            "BUZZ_RELAY_URL",
            "https://relay.example",
            "an absolute ws or wss URL",
        ),
        ("BUZZ_PUBKEY", "npub1abc", "64 lower-case hex digits"),
        ("BUZZ_LOG", "loud", "one of: off, error"),
        ("BUZZ_MAX_FRAME_BYTES", "12", "from 1024 to 16777216"),
    ];
    for (variable, text, form) in rows {
        let fault = faults(&[(variable, text)]);
        assert!(
            fault.starts_with(&format!("{variable}: `{text}` is not accepted")),
            "{fault}"
        );
        assert!(fault.contains(form), "{fault}");
    }
    // All faults at once.
    assert_eq!(
        faults(&[("BUZZ_SHARDS", "x"), ("BUZZ_LOG", "y")])
            .lines()
            .count(),
        2
    );
}

#[test]
fn retention_is_read_once_and_its_junk_names_the_rule_and_the_fix() {
    let config = resolve(&[("BUZZ_RETENTION", "kinds=0 keep; kinds=* age=2y")]).unwrap();
    assert_eq!(config.retention.rule_of(1), Some(1));
    assert!(
        config
            .render()
            .contains("BUZZ_RETENTION=kinds=0 keep; kinds=* age=2y")
    );
    assert!(resolve(&[]).unwrap().retention.is_idle());
    let text = faults(&[
        ("BUZZ_RETENTION", "kinds=0 keep; kinds=1 age=90"),
        ("BUZZ_STORE_MAX_BYTES", "10G"),
    ]);
    for words in [
        "BUZZ_RETENTION: rule 2: `age=90` is not a number and a unit",
        "; expected rules such as `kinds=",
        "BUZZ_STORE_MAX_BYTES: `10G` is not accepted; expected a whole number of bytes",
    ] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    let unused = resolve(&[
        ("BUZZ_STORE", "postgres"),
        ("DATABASE_URL", "postgres://h/d"),
        ("BUZZ_RETENTION", "kinds=* age=1d"),
    ]);
    let notes = unused.unwrap().notes;
    assert!(
        notes
            .iter()
            .any(|note| note.starts_with("BUZZ_RETENTION has no effect")),
        "{notes:?}"
    );
}

#[test]
fn a_long_or_odd_value_is_shown_cut_and_escaped() {
    let fault = faults(&[(
        "BUZZ_STORE",
        &format!("a\u{1b}[31m\n{}", "x".repeat(10_000)),
    )]);
    assert!(
        fault.len() < 400 && !fault.contains('\u{1b}') && fault.lines().count() == 1,
        "{fault}"
    );
}

#[test]
fn empty_or_blank_is_unset() {
    let env = [
        "BUZZ_DRAIN_JITTER_MS",
        "BUZZ_FEATURE_FLAGS_PROVIDER",
        "BUZZ_SHARDS",
        "BUZZ_STORE",
    ];
    let env: Vec<_> = env
        .iter()
        .flat_map(|name| [(*name, ""), (*name, "  \t")])
        .collect();
    let config = resolve(&env).unwrap();
    assert_eq!((config.drain.jitter, config.shards), (Duration::ZERO, 2));
    assert_eq!(config.flags, FlagsChoice::Static);
}

#[test]
fn port_zero_and_loopback_are_fine() {
    let config = resolve(&[
        ("BUZZ_BIND_ADDR", "[::1]:0"),
        ("BUZZ_HEALTH_BIND", "127.0.0.1"),
        ("BUZZ_HEALTH_PORT", "0"),
        ("BUZZ_METRICS_PORT", "0"),
    ])
    .unwrap();
    assert_eq!(config.bind, "[::1]:0".parse().unwrap());
    assert_eq!(config.health, "127.0.0.1:0".parse().unwrap());
}

#[test]
fn two_listeners_on_one_port_are_a_fault() {
    let fault = faults(&[("BUZZ_HEALTH_PORT", "9102")]);
    assert!(fault.starts_with("BUZZ_METRICS_PORT: ") && fault.contains("BUZZ_HEALTH_PORT"));
    faults(&[("BUZZ_BIND_ADDR", "127.0.0.1:8080")]);
    faults(&[
        ("BUZZ_BIND_ADDR", "[::]:8080"),
        ("BUZZ_HEALTH_BIND", "127.0.0.1"),
    ]);
    // Different addresses may share a port.
    resolve(&[("BUZZ_BIND_ADDR", "[::1]:8080")]).unwrap();
    resolve(&[
        ("BUZZ_BIND_ADDR", "127.0.0.1:8080"),
        ("BUZZ_HEALTH_BIND", "127.0.0.2"),
    ])
    .unwrap();
}

#[test]
fn connections_take_at_most_their_share_of_the_descriptors() {
    let config = resolve_on(&machine(1_024), &[]).unwrap();
    assert_eq!(config.connections_max, 460);
    assert!(
        config.notes[0].contains("from 10000 to 460"),
        "{:?}",
        config.notes
    );
    assert!(
        config.render().contains("\n#BUZZ_MAX_CONNECTIONS=460\n"),
        "{}",
        config.render()
    );
    let config = resolve_on(&machine(u64::MAX), &[("BUZZ_MAX_CONNECTIONS", "5000000")]).unwrap();
    assert_eq!((config.connections_max, config.notes.len()), (5_000_000, 0));
    assert_eq!(resolve_on(&machine(1), &[]).unwrap().connections_max, 1);
}

#[test]
fn the_drain_window_is_clamped_and_its_sum_checked() {
    let config = resolve(&[("BUZZ_DRAIN_JITTER_MS", "20001")]).unwrap();
    assert_eq!(config.drain.jitter, Duration::from_secs(20));
    assert!(config.render().contains("\nBUZZ_DRAIN_JITTER_MS=20000\n"));
    assert!(config.notes[0].contains("from 20001 to 20000"));
    for huge in [u64::MAX.to_string(), "9".repeat(40)] {
        let config = resolve(&[("BUZZ_DRAIN_JITTER_MS", &huge)]).unwrap();
        assert_eq!(config.drain.jitter, Duration::from_secs(20));
    }

    resolve(&[
        ("BUZZ_DRAIN_JITTER_MS", "20000"),
        ("BUZZ_HARD_STOP_MS", "27000"),
    ])
    .unwrap();
    let fault = faults(&[
        ("BUZZ_DRAIN_JITTER_MS", "20000"),
        ("BUZZ_HARD_STOP_MS", "26999"),
    ]);
    assert!(
        fault.contains("20000 + 5000") && fault.contains("+ 2000"),
        "{fault}"
    );
    assert!(
        fault.contains("= 27000; raise BUZZ_HARD_STOP_MS to at least 27000"),
        "{fault}"
    );
    // The window that is checked is the clamped one.
    resolve(&[
        ("BUZZ_DRAIN_JITTER_MS", "99999"),
        ("BUZZ_HARD_STOP_MS", "27000"),
    ])
    .unwrap();
    faults(&[("BUZZ_HARD_STOP_MS", "6999")]);

    let config = resolve(&[("BUZZ_DRAIN_GRACE_MS", "30000")]).unwrap();
    assert!(
        config.notes[0].contains("70000 milliseconds"),
        "{:?}",
        config.notes
    );
}

#[test]
fn a_default_gives_way_to_its_bound_but_an_explicit_value_does_not() {
    let config = resolve(&[("BUZZ_MAX_LIMIT", "100")]).unwrap();
    assert_eq!((config.limit_max, config.limit_default), (100, 100));
    assert_eq!(config.notes.len(), 1);
    let fault = faults(&[("BUZZ_MAX_LIMIT", "100"), ("BUZZ_DEFAULT_LIMIT", "200")]);
    assert!(
        fault.starts_with("BUZZ_DEFAULT_LIMIT: 200 is more than BUZZ_MAX_LIMIT"),
        "{fault}"
    );
    let config = resolve(&[("BUZZ_OUTBOX_TOTAL_BYTES", "1048576")]).unwrap();
    assert_eq!(
        (config.outbox.hard_bytes, config.outbox.soft_bytes),
        (1 << 20, 1 << 20)
    );
    faults(&[("BUZZ_OUTBOX_HARD_BYTES", "500000")]);
}

#[test]
fn the_environment_provider_keeps_its_variables_and_only_those() {
    let name = "BUZZ_FEATURE_FLAG_BUZZ_RELAY_CONCURRENCY_AUTH";
    let config = resolve(&[("BUZZ_FEATURE_FLAGS_PROVIDER", "environment"), (name, "7")]).unwrap();
    let FlagsChoice::Environment(variables) = config.flags else {
        panic!("another provider")
    };
    assert_eq!(variables.keys().collect::<Vec<_>>(), [name]);
}

#[test]
fn launchdarkly_needs_its_key_and_a_sound_url() {
    let provider = ("BUZZ_FEATURE_FLAGS_PROVIDER", "launchdarkly");
    let (key, url) = (
        "BUZZ_LAUNCHDARKLY_SDK_KEY",
        "BUZZ_LAUNCHDARKLY_RELAY_PROXY_URL",
    );
    for blank in ["", "   "] {
        let fault = faults(&[provider, (key, blank)]);
        assert!(
            fault.starts_with("BUZZ_LAUNCHDARKLY_SDK_KEY: required"),
            "{fault}"
        );
        assert_eq!(fault.lines().count(), 1);
    }
    assert!(!faults(&[provider, (key, "sdk hush\u{e9}")]).contains("hush"));
    for bad in [
        "hush.example",
        "/hush",
        "ftp://hush.example",
        "https://",
        "https:///hush",
        "http://:80/hush",
        "http://hush.example:port/",
        "http://user@hush.example",
        "http://hush.example/?a=b",
        "http://hush.example/#a",
        "http://hush .example",
        "http:hush",
    ] {
        let fault = faults(&[provider, (key, "sdk"), (url, bad)]);
        assert!(
            fault.contains("an absolute http or https URL"),
            "{bad}: {fault}"
        );
        assert!(!fault.contains("hush"), "{fault}");
    }
    for good in [
        "http://proxy:8030",
        "https://[::1]:8030/",
        "http://10.0.0.1/a/prefix/",
    ] {
        let config = resolve(&[provider, (key, "sdk"), (url, good)]).unwrap();
        let FlagsChoice::LaunchDarkly {
            sdk_key,
            relay_proxy,
        } = config.flags
        else {
            panic!()
        };
        assert_eq!(sdk_key.expose(), "sdk");
        assert_eq!(relay_proxy.unwrap().expose(), good.trim_end_matches('/'));
    }
    // Under another provider they are ignored, whatever they say.
    resolve(&[(url, "junk")]).unwrap();
}

#[test]
fn remembered_caps_are_launchdarkly_s_alone() {
    let remember = ("BUZZ_REMEMBER_CAPS", "yes");
    let config = resolve(&[remember]).unwrap();
    assert!(!config.remember_caps && config.notes.len() == 1);
    let config = resolve(&[
        remember,
        ("BUZZ_FEATURE_FLAGS_PROVIDER", "launchdarkly"),
        ("BUZZ_LAUNCHDARKLY_SDK_KEY", "sdk"),
    ])
    .unwrap();
    assert!(config.remember_caps && config.notes.is_empty());
}

#[test]
fn a_misspelt_variable_is_noted() {
    let config = resolve(&[("BUZZ_SHARD", "2")]).unwrap();
    assert!(
        config.notes[0].starts_with("BUZZ_SHARD is not a setting"),
        "{:?}",
        config.notes
    );
}

#[test]
fn postgres_needs_its_url() {
    let postgres = ("BUZZ_STORE", "postgres");
    assert!(faults(&[postgres]).starts_with("DATABASE_URL: required"));
    let config = resolve(&[postgres, ("DATABASE_URL", "postgres://db/x")]).unwrap();
    assert!(matches!(
        config.store,
        StoreKind::Postgres { read_url: None, .. }
    ));
}

/// Settings with a value other than the default, each accepted beside the others.
const OTHERS: &[(&str, &str)] = &[
    ("BUZZ_BIND_ADDR", "127.0.0.1:4000"),
    ("BUZZ_HEALTH_BIND", "127.0.0.1"),
    ("BUZZ_HEALTH_PORT", "4001"),
    ("BUZZ_METRICS_BIND", "127.0.0.1"),
    ("BUZZ_METRICS_PORT", "4002"),
    ("BUZZ_SHARDS", "1"),
    ("BUZZ_TAKE_OVER", "true"),
    ("BUZZ_IO_DRIVER", "epoll"),
    ("BUZZ_STORE", "postgres"),
    ("BUZZ_DATA_DIR", "/x"),
    ("DATABASE_URL", "postgres://hush/x"),
    ("READ_DATABASE_URL", "postgres://hush/y"),
    ("BUZZ_DB_POOL_SIZE", "3"),
    ("BUZZ_DB_WAIT_MS", "3"),
    ("BUZZ_DB_READ_POOL_SIZE", "3"),
    ("BUZZ_STORE_MAX_BYTES", "68719476736"),
    ("BUZZ_RETENTION", "kinds=1 age=1d"),
    ("BUZZ_MAX_CONNECTIONS", "3"),
    ("BUZZ_MAX_FRAME_BYTES", "65536"),
    ("BUZZ_OUTBOX_HARD_BYTES", "1000000"),
    ("BUZZ_OUTBOX_SOFT_BYTES", "500000"),
    ("BUZZ_OUTBOX_SOFT_SECONDS", "3"),
    ("BUZZ_OUTBOX_TOTAL_BYTES", "5000000"),
    ("BUZZ_PING_SECONDS", "3"),
    ("BUZZ_MAX_SUBSCRIPTIONS", "3"),
    ("BUZZ_MAX_FILTERS", "3"),
    ("BUZZ_MAX_FILTER_VALUES", "30"),
    ("BUZZ_MAX_VALUES_PER_FILTER", "3"),
    ("BUZZ_MAX_LIMIT", "30"),
    ("BUZZ_DEFAULT_LIMIT", "3"),
    ("BUZZ_MAX_SUBID_LENGTH", "3"),
    ("BUZZ_CREATED_AT_PAST_SECONDS", "3"),
    ("BUZZ_CREATED_AT_FUTURE_SECONDS", "3"),
    ("BUZZ_MIN_POW_DIFFICULTY", "3"),
    ("BUZZ_RATE_MESSAGES_PER_SECOND", "3"),
    ("BUZZ_RATE_BYTES_PER_SECOND", "3"),
    ("BUZZ_RATE_BURST_SECONDS", "3"),
    ("BUZZ_MAX_CONNECTIONS_PER_ADDRESS", "3"),
    ("BUZZ_RATE_CONNECTIONS_PER_MINUTE", "3"),
    ("BUZZ_TRUSTED_PROXIES", "10.0.0.0/8"),
    ("BUZZ_RELAY_URL", "wss://relay.example"),
    ("BUZZ_REQUIRE_AUTH", "true"),
    ("BUZZ_PUBKEY_ALLOWLIST", "true"),
    ("BUZZ_REQUIRE_RELAY_MEMBERSHIP", "true"),
    ("BUZZ_NAME", "another"),
    ("BUZZ_DESCRIPTION", "another"),
    (
        "BUZZ_PUBKEY",
        "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798",
    ),
    ("BUZZ_CONTACT", "another"),
    ("BUZZ_ICON", "https://relay.example/icon.png"),
    ("BUZZ_DRAIN_JITTER_MS", "3"),
    ("BUZZ_DRAIN_GRACE_MS", "3"),
    ("BUZZ_HARD_STOP_MS", "20000"),
    ("BUZZ_FEATURE_FLAGS_PROVIDER", "launchdarkly"),
    ("BUZZ_LAUNCHDARKLY_SDK_KEY", "sdk-hush"),
    ("BUZZ_LAUNCHDARKLY_RELAY_PROXY_URL", "https://hush.example"),
    ("BUZZ_REMEMBER_CAPS", "true"),
    ("BUZZ_LOG", "debug"),
];

#[test]
fn what_the_table_marks_is_taken_over_and_nothing_else() {
    let (marked, fixed): (Vec<_>, Vec<_>) = OTHERS
        .iter()
        .copied()
        .partition(|(variable, _)| cli::setting(variable).expect("a row").reread);
    let rows = SETTINGS.iter().map(|setting| setting.variable);
    let rows: Vec<_> = rows.filter(|variable| *variable != cli::CONFIG).collect();
    let others: Vec<_> = OTHERS.iter().map(|(variable, _)| *variable).collect();
    assert_eq!(others, rows, "each setting, in the table's order");

    let start = resolve(&[]).unwrap();
    // Whatever a mark promises is in the mixture: it is what the marked settings alone give.
    let (mixed, changes) = start.reread(&resolve(OTHERS).unwrap());
    let marked_alone = resolve(&marked).unwrap();
    let without_notes = |config: &Config| {
        let notes = Vec::new();
        let config = Config {
            notes,
            ..config.clone()
        };
        format!("{config:#?}")
    };
    assert_eq!(without_notes(&mixed), without_notes(&marked_alone));
    let names = |pairs: &[(&'static str, &str)]| -> Vec<&str> {
        pairs.iter().map(|(variable, _)| *variable).collect()
    };
    let applied: Vec<_> = changes.applied.iter().map(|one| one.variable).collect();
    assert_eq!(applied, names(&marked));
    let values: Vec<_> = changes.applied.iter().map(|one| &*one.new).collect();
    let expected: Vec<_> = marked.iter().map(|(_, value)| *value).collect();
    assert_eq!(values, expected);
    let waiting: Vec<_> = changes
        .need_restart
        .iter()
        .map(|one| &*one.variable)
        .collect();
    assert_eq!(waiting, names(&fixed));
    // With both values, but for the secrets'.
    for Waiting { variable, values } in &changes.need_restart {
        let setting = cli::setting(variable).expect("a row");
        let new = fixed.iter().find(|(name, _)| name == variable);
        let new = new.filter(|_| !setting.secret).map(|(_, value)| *value);
        let shown = values.as_ref().map(|[_, new]| &**new);
        assert_eq!(shown, new, "{variable}");
    }
    assert!(!format!("{changes:?}").contains("hush"));
    // The same again changes nothing, and back is the way back.
    let (again, nothing) = mixed.reread(&marked_alone);
    assert_eq!(nothing, Changes::default());
    let (back, changes) = again.reread(&start);
    assert_eq!(without_notes(&back), without_notes(&start));
    assert_eq!(changes.applied.len(), marked.len());
}

#[test]
fn a_secret_that_nothing_uses_is_kept_and_not_judged() {
    let with = |key: &str| resolve(&[("BUZZ_LAUNCHDARKLY_SDK_KEY", key)]).unwrap();
    let long = "hush ".repeat(limits::TEXT_SETTING_BYTES_MAX);
    let (_, changes) = with("hush").reread(&with(&long));
    let expected = Waiting {
        variable: "BUZZ_LAUNCHDARKLY_SDK_KEY".to_owned(),
        values: None,
    };
    assert_eq!(changes.need_restart, [expected]);
    let (_, changes) = with("hush").reread(&with("hush"));
    assert_eq!(changes, Changes::default());
}

/// What is given by a settings file of this text, and by variables.
fn given_by_file(
    path: &std::path::Path,
    text: &str,
    env: &[(&str, &str)],
    descriptors: u64,
) -> Given {
    std::fs::write(path, text).expect("a file");
    let shown = path.display().to_string();
    let env = env.iter().copied().chain([(cli::CONFIG, &*shown)]);
    let env = env.map(|(name, text)| (name.into(), text.into()));
    let (_, raw) = cli::parse(["buzz-uring".into()], env).unwrap();
    Given::new(raw, machine(descriptors))
}

#[test]
fn what_is_printed_is_a_settings_file_of_the_same_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("settings");
    let load = |text: &str, env: &[(&str, &str)]| {
        // So many descriptors that connections are cut.
        let given = given_by_file(&path, text, env, 1_024);
        given.load().expect("sound")
    };
    // What a configuration is, but for where it comes from.
    let meaning = |config: &Config| {
        let mut config = config.clone();
        config.notes.clear();
        for resolved in config.resolved.values_mut() {
            resolved.origin = Origin::Default;
            resolved.text = resolved.text.replace(char::is_control, " ");
        }
        format!("{config:#?}")
    };
    let odd = [
        ("BUZZ_NAME", "'a' \"b\" \\ $c `d` # e"),
        ("BUZZ_DESCRIPTION", "'"),
        ("BUZZ_CONTACT", "a = b #c"),
        ("BUZZ_DATA_DIR", "/a b/\\c"),
        ("BUZZ_RETENTION", "kinds=0 keep;\n\tkinds=* age=2y"),
        ("BUZZ_MAX_CONNECTIONS", "5000"),
        ("BUZZ_FEATURE_FLAGS_PROVIDER", "environment"),
        ("BUZZ_DATA\nBUZZ_MAX_LIMIT=3", "unknown"),
    ];
    let is_secret = |name: &str| cli::setting(name).is_some_and(|setting| setting.secret);
    for given in [&[][..], &odd, OTHERS] {
        let printed = load("", given).render();
        assert!(!printed.contains("hush"), "{printed}");
        let secrets: Vec<_> = given
            .iter()
            .copied()
            .filter(|(name, _)| is_secret(name))
            .collect();
        let again = load(&printed, &secrets);
        assert_eq!(meaning(&again), meaning(&load("", given)), "{printed}");
        let of = |text: &str| -> Vec<String> {
            let lines = text
                .lines()
                .filter(|line| !line.starts_with("# ") && !line.is_empty());
            lines.map(str::to_owned).collect()
        };
        assert_eq!(of(&again.render()), of(&printed));
        // With every default in force as well.
        let whole = printed.replace("\n#BUZZ_", "\nBUZZ_");
        assert_eq!(meaning(&load(&whole, &secrets)), meaning(&again), "{whole}");
    }
}

#[test]
fn changed_flags_need_a_restart() {
    let provider = ("BUZZ_FEATURE_FLAGS_PROVIDER", "environment");
    let flag = |name| -> &'static str {
        match name {
            'A' => "BUZZ_FEATURE_FLAG_A",
            'B' => "BUZZ_FEATURE_FLAG_B",
            _ => "BUZZ_FEATURE_FLAG_C",
        }
    };
    let old = resolve(&[provider, (flag('A'), "1"), (flag('B'), "1")]).unwrap();
    let new = resolve(&[provider, (flag('B'), "2"), (flag('C'), "1")]).unwrap();
    let (_, changes) = old.reread(&new);
    let waiting = |name| Waiting {
        variable: flag(name).to_owned(),
        values: None,
    };
    assert_eq!(changes.need_restart, ['A', 'B', 'C'].map(waiting));
    let (_, changes) = old.reread(&old);
    assert_eq!(changes, Changes::default());
}

#[test]
fn a_level_set_by_command_is_one_that_runs() {
    let start = resolve(&[]).unwrap();
    let set = start.with_log_level(LevelFilter::TRACE);
    assert_eq!(set.log_level, LevelFilter::TRACE);
    let (back, changes) = set.reread(&start);
    assert_eq!(back.log_level, LevelFilter::INFO);
    let expected = Applied {
        variable: "BUZZ_LOG",
        old: "trace".to_owned(),
        new: "info".to_owned(),
    };
    assert_eq!(changes.applied, [expected]);
}

#[test]
fn a_fault_of_the_file_s_value_is_told_with_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("settings");
    let shown = path.display().to_string();
    let load = |text: &str, env: &[(&str, &str)]| {
        let given = given_by_file(&path, text, env, MACHINE_DESCRIPTORS);
        assert_eq!(given.file(), Some(&*path));
        given.load()
    };
    let text = "BUZZ_SHARDS=1\n\nBUZZ_MAX_LIMIT=junk\nBUZZ_RETENTION=kinds=1\n\
                BUZZ_LAUNCHDARKLY_SDK_KEY='hush hush'\nBUZZ_FEATURE_FLAGS_PROVIDER=launchdarkly";
    let faults = load(text, &[]).expect_err("junk").faults;
    let starts = [
        format!("{shown}:4: BUZZ_RETENTION: rule 1"),
        format!("{shown}:5: BUZZ_LAUNCHDARKLY_SDK_KEY: its value"),
        format!("{shown}:3: BUZZ_MAX_LIMIT: `junk`"),
    ];
    for start in &starts {
        let told = faults.iter().any(|fault| fault.starts_with(start));
        assert!(told, "{start} in {faults:#?}");
    }
    assert!(!faults.iter().any(|fault| fault.contains("hush")));
    // The environment's fault is the environment's.
    let faults = load("BUZZ_MAX_LIMIT=5", &[("BUZZ_MAX_LIMIT", "junk")]);
    let faults = faults.expect_err("junk").faults;
    assert!(faults[0].starts_with("BUZZ_MAX_LIMIT: "), "{faults:?}");

    let config = load("\nBUZZ_SHARDS=1\nDATABASE_URL=hush", &[]).expect("sound");
    assert_eq!(config.file.as_deref(), Some(&*path));
    let shown = config.render();
    assert!(shown.contains("# BUZZ_SHARDS: file, line 2\n"), "{shown}");
    assert!(
        shown.contains("# DATABASE_URL is set (file, line 3)\n"),
        "{shown}"
    );
    assert!(!shown.contains("hush"), "{shown}");
    assert!(!format!("{config:?}").contains("hush"));
}

#[test]
fn a_database_url_of_another_form_is_told_at_the_start() {
    let with = |url| {
        resolve(&[("BUZZ_STORE", "postgres"), ("DATABASE_URL", url)]).map(|config| config.store)
    };
    for sound in [
        "postgres://u:p@localhost:5432/b",
        "postgresql://u@[::1]/b",
        "postgres://u:p%40:@[::1]:5432,other/b?sslmode=disable",
        "postgres:///b?host=/run/postgresql",
    ] {
        assert!(with(sound).is_ok(), "{sound}");
    }
    for wrong in [
        "mysql://hush@localhost/b",
        "host=localhost password=hush",
        "postgres://u:hush@localhost:xx/b",
        "postgres://u:hush@localhost:99999/b",
    ] {
        let error = with(wrong).unwrap_err().to_string();
        assert!(error.contains("DATABASE_URL"), "{error}");
        assert!(!error.contains("hush"), "{error}");
    }
}

#[test]
fn who_meets_a_running_relay_fails_by_no_other_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "BUZZ_HEALTH_PORT=81\nBUZZ_NAM=a\nBUZZ_SHARDS=many\nBUZZ_DATA_DIR=/data\nwhat\n";
    std::fs::write(file.path(), text).unwrap();
    let given = |options: &[(&str, &str)]| {
        let env = options
            .iter()
            .map(|(name, value)| (name.into(), value.into()));
        let (_, raw) = cli::parse(["buzz-uring".into()], env).unwrap();
        Given::new(raw, machine(MACHINE_DESCRIPTORS))
    };
    let path = file.path().to_str().unwrap();
    let wrong = given(&[("BUZZ_CONFIG", path), ("BUZZ_HEALTH_BIND", "127.0.0.1")]);
    assert!(wrong.load().is_err());
    let meeting = wrong.meeting().unwrap();
    assert_eq!(meeting.data_dir, std::path::Path::new("/data"));
    assert_eq!(meeting.health, "127.0.0.1:81".parse().unwrap());
    assert!(meeting.is_health_uncertain, "the file may have changed");
    let typed = given(&[
        ("BUZZ_CONFIG", path),
        ("BUZZ_HEALTH_BIND", "127.0.0.1"),
        ("BUZZ_HEALTH_PORT", "82"),
    ]);
    assert!(!typed.meeting().unwrap().is_health_uncertain);
    assert!(!given(&[]).meeting().unwrap().is_health_uncertain);
    let free = given(&[("BUZZ_HEALTH_PORT", "0")]);
    assert!(free.meeting().unwrap().is_health_uncertain);
    let gone = given(&[("BUZZ_CONFIG", "/not/there"), ("BUZZ_DATA_DIR", "/x")]);
    assert!(gone.load().is_err());
    assert_eq!(gone.meeting().unwrap().data_dir, std::path::Path::new("/x"));
    let junk = given(&[("BUZZ_HEALTH_PORT", "junk")])
        .meeting()
        .unwrap_err();
    assert!(junk.to_string().contains("BUZZ_HEALTH_PORT"), "{junk}");
}
