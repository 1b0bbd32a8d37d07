//! Export and import, there and back; what filters choose.

use serde_json::Value;

use crate::common::{Author, Launch, id_of, now};
use crate::{Running, export, exported, import, lines, notes};

/// A history with everything in it that changes what is stored.
fn history() -> Vec<String> {
    let (ada, ben) = (Author::new(1), Author::new(2));
    let at = now() - 10_000;
    let mut events: Vec<String> = Vec::new();
    for n in 0..300u64 {
        let author = if n % 3 == 0 { &ben } else { &ada };
        let topic = format!("topic-{}", n % 7);
        events.push(match n % 10 {
            0 => author.json::<&str>(at + n, 0, &[], &format!("profile {n}")),
            1 => author.json(at + n, 30_023, &[&["d", &topic]], "article"),
            2 => author.json(at + n, 1_059, &[&["p", &ada.pubkey_hex()]], "sealed"),
            3 => author.json(at + n, 1, &[&["expiration", "99999999999"]], "later"),
            4 => author.json(
                at + n,
                1,
                &[&["-"], &["t", &topic]],
                "a \"quote\" \\ \n é \u{1f980}",
            ),
            // Of this author or not, before it or never.
            5 => author.json(
                at + n,
                5,
                &[&["e", id_of(&events[(n - 3 - n / 10 % 2) as usize])]],
                "",
            ),
            6 => author.json(at + n, 5, &[&["e", &"ab".repeat(32)]], ""),
            _ => author.json(at - n, 1, &[&["t", &topic]], "note"),
        });
    }
    events
}

#[test]
fn an_export_of_an_import_is_the_same_whichever_way_each_goes() {
    let first = Launch::new();
    import(&first, lines(&history())).expect(0, &[]);
    let original = exported(&first, &[]);
    let count = original.lines().count();
    assert!(count > 150 && count < 300, "{count}");
    for (import_runs, export_runs) in [(false, true), (true, false), (true, true)] {
        let launch = Launch::new();
        let relay = import_runs.then(|| launch.start());
        import(&launch, &original)
            .expect(0, &[])
            .counts([count, 0, 0, 0]);
        drop(relay);
        let relay = export_runs.then(|| launch.start());
        assert_eq!(exported(&launch, &[]), original);
        drop(relay);
    }
}

#[test]
fn filters_choose_and_each_event_comes_once() {
    let launch = Launch::new();
    import(&launch, lines(&history())).expect(0, &[]);
    let all = exported(&launch, &[]);
    let parsed = |text: &str| -> Vec<Value> {
        text.lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    };
    let all = parsed(&all);
    let middle = all[all.len() / 2]["created_at"].as_u64().expect("a time");
    let ben = Author::new(2).pubkey_hex();
    let by_ben = format!("{{\"authors\":[\"{ben}\"]}}");
    let newest = {
        let mut notes: Vec<&Value> = all.iter().filter(|e| e["kind"] == 1).collect();
        notes.sort_by_key(|e| (!e["created_at"].as_u64().unwrap(), e["id"].to_string()));
        notes.truncate(7);
        notes
            .iter()
            .map(|e| e["id"].to_string())
            .collect::<Vec<_>>()
    };
    let (since, until) = (middle.to_string(), (middle + 20).to_string());
    let is_between = |e: &Value| {
        let at = e["created_at"].as_u64().unwrap();
        at >= middle && at <= middle + 20
    };
    type Wanted<'a> = Box<dyn Fn(&Value) -> bool + 'a>;
    let cases: Vec<(Vec<&str>, Wanted<'_>)> = vec![
        (
            vec!["--filter", r#"{"kinds":[0,5]}"#],
            Box::new(|e| e["kind"] == 0 || e["kind"] == 5),
        ),
        (
            vec!["--filter", r#"{"kinds":[1059]}"#],
            Box::new(|e| e["kind"] == 1_059),
        ),
        (
            vec!["--filter", &by_ben, "--filter", "{ \"kinds\":\n[30023] }"],
            Box::new(|e| e["pubkey"] == ben || e["kind"] == 30_023),
        ),
        (
            vec!["--filter", r#"{"kinds":[1],"limit":7}"#],
            Box::new(|e| newest.contains(&e["id"].to_string())),
        ),
        (
            vec![
                "--filter",
                r#"{"kinds":[1],"limit":7}"#,
                "--filter",
                &by_ben,
            ],
            Box::new(|e| newest.contains(&e["id"].to_string()) || e["pubkey"] == ben),
        ),
        (
            vec!["--since", &since, "--until", &until],
            Box::new(is_between),
        ),
        (
            vec![
                "--filter",
                r##"{"#t":["topic-3"],"since":1}"##,
                "--since",
                &since,
                "--until",
                &until,
            ],
            Box::new(|e| is_between(e) && e["tags"].to_string().contains("topic-3")),
        ),
        (vec!["--filter", r#"{"limit":0}"#], Box::new(|_| false)),
    ];
    for runs in [false, true] {
        let relay = runs.then(|| launch.start());
        for (args, wanted) in &cases {
            let mut found = parsed(&exported(&launch, args));
            let mut expected: Vec<Value> = all.iter().filter(|e| wanted(e)).cloned().collect();
            if args.len() == 2 && args[0] == "--filter" {
                // One filter: newest first.
                expected.sort_by_key(|e| (!e["created_at"].as_u64().unwrap(), e["id"].to_string()));
            } else {
                found.sort_by_key(|e| e["id"].to_string());
                expected.sort_by_key(|e| e["id"].to_string());
            }
            assert_eq!(found, expected, "{args:?}");
        }
        drop(relay);
    }
}

#[test]
fn a_command_that_is_wrong_says_so_and_does_nothing() {
    let launch = Launch::new();
    for (args, word) in [
        (
            &["--filter", "{\"kind\":[1]}"][..],
            "filter 1: unknown filter field kind",
        ),
        (&["--filter", "{}", "--filter", "kinds"], "filter 2: "),
        (&["--filter"], "--filter"),
        (&["--since", "yesterday"], "--since"),
        (&["--everything"], "--everything"),
    ] {
        export(&launch, args).expect(64, &[word]);
    }
    assert!(!launch.data_dir().exists());
    // No store: an export has nothing to give, an import makes one.
    export(&launch, &[]).expect(1, &["no relay runs on", "BUZZ_DATA_DIR"]);
    assert!(!launch.data_dir().exists());
    let wrong = Running::start(launch.clone().arg("import").arg("--no-verify").command());
    wrong.wait().expect(64, &[]);
    import(&launch, lines(&notes(1, 1))).expect(0, &["a new store is made in"]);
    let again = import(&launch, "").expect(0, &[]);
    assert!(!again.stderr.contains("new store"), "{again:#?}");
}

#[test]
fn the_help_says_what_the_exit_codes_mean() {
    for name in ["import", "export"] {
        let launch = Launch::new().arg(name).arg("--help");
        let ran = Running::start(launch.command()).wait().expect(0, &[]);
        let words = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        for word in ["Exit code 0", "64: bad usage", "one JSON object a line"] {
            assert!(words.contains(word), "{word} is not in {words}");
        }
    }
}
