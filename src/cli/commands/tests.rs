use super::ACCESS_VERBS;
use crate::cli::tests::run;
use crate::cli::{Access, CliError, Command, Export, Origin};

#[test]
fn a_drain_waits_when_asked_to() {
    for (args, wait) in [(&["drain"][..], false), (&["drain", "--wait"], true)] {
        assert_eq!(run(args, &[]).unwrap().0, Command::Drain { wait });
    }
    assert!(run(&["--wait"], &[]).is_err(), "it is drain's own");
}

#[test]
fn the_log_level_is_shown_or_set_and_a_reload_takes_nothing() {
    for (args, level) in [(&["log-level"][..], None), (&["log-level", "x"], Some("x"))] {
        let level = level.map(str::to_owned);
        assert_eq!(run(args, &[]).unwrap().0, Command::LogLevel { level });
    }
    let (command, raw) = run(&["reload", "--config=/x"], &[]).unwrap();
    assert_eq!(command, Command::Reload);
    assert_eq!(raw.get("BUZZ_CONFIG"), Some(("/x", Origin::Option)));
    for args in [&["reload", "x"][..], &["log-level", "a", "b"]] {
        assert!(run(args, &[]).is_err(), "{args:?}");
    }
}

#[test]
fn health_asks_for_life_or_for_readiness() {
    for (args, ready) in [(&["health"][..], false), (&["health", "--ready"], true)] {
        assert_eq!(run(args, &[]).unwrap().0, Command::Health { ready });
    }
    assert!(run(&["--ready"], &[]).is_err(), "it is health's own");
}

#[test]
fn access_takes_a_list_or_keys_for_one() {
    let keys = vec!["a".to_owned(), "b".to_owned()];
    for (name, verb, _) in ACCESS_VERBS {
        let (command, raw) = run(&["access", name, "a", "b", "--data-dir=/x"], &[]).unwrap();
        let keys = keys.clone();
        let expected = Access::Edit { verb: *verb, keys };
        assert_eq!(command, Command::Access(expected));
        assert_eq!(raw.get("BUZZ_DATA_DIR"), Some(("/x", Origin::Option)));
        assert!(run(&["access", name], &[]).is_err(), "{name} without a key");
    }
    for (args, json) in [
        (&["access", "list"][..], false),
        (&["access", "list", "--json"], true),
    ] {
        let expected = Command::Access(Access::List { json });
        assert_eq!(run(args, &[]).unwrap().0, expected);
    }
    for args in [
        &["access"][..],
        &["access", "lists"],
        &["access", "list", "a"],
        &["access", "ban", "--json", "a"],
    ] {
        assert!(
            matches!(run(args, &[]), Err(CliError::Usage(_))),
            "{args:?}"
        );
    }
}

#[test]
fn an_export_takes_filters_and_times() {
    assert_eq!(run(&["import"], &[]).unwrap().0, Command::Import);
    let (command, _) = run(&["export"], &[]).unwrap();
    assert_eq!(command, Command::Export(Export::default()));
    let args = [
        "export",
        "--filter",
        "{}",
        "--since=5",
        "--filter={\"kinds\":[1]}",
        "--until",
        "9",
    ];
    let expected = Export {
        filters: vec!["{}".to_owned(), "{\"kinds\":[1]}".to_owned()],
        since: Some(5),
        until: Some(9),
    };
    assert_eq!(run(&args, &[]).unwrap().0, Command::Export(expected));
    for args in [
        &["export", "--since", "yesterday"][..],
        &["export", "--filter"],
        &["import", "--no-verify"],
        &["import", "file"],
    ] {
        assert!(
            matches!(run(args, &[]), Err(CliError::Usage(_))),
            "{args:?}"
        );
    }
}

#[test]
fn a_backup_needs_its_folder_and_compaction_nothing() {
    let (command, raw) = run(&["backup", "/b", "--data-dir=/x"], &[]).unwrap();
    assert_eq!(command, Command::Backup { to: "/b".into() });
    assert_eq!(raw.get("BUZZ_DATA_DIR"), Some(("/x", Origin::Option)));
    assert_eq!(run(&["compact"], &[]).unwrap().0, Command::Compact);
    for args in [
        &["backup"][..],
        &["backup", "a", "b"],
        &["backup", ""],
        &["compact", "a"],
    ] {
        assert!(
            matches!(run(args, &[]), Err(CliError::Usage(_))),
            "{args:?}"
        );
    }
}
