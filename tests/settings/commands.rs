//! The same by command: over the control socket, and on the health port from this machine.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{File, HUSH, REFUSED, hang_up, info, lines, says};
use crate::common::{Exit, Launch, Relay, WAIT, quiet_address, raw, until};

/// What a command says that is run beside the relay.
fn command(relay: &Relay, arguments: &[&str]) -> Exit {
    let launch = Launch::new().folder(relay.data_dir());
    let launch = arguments.iter().fold(launch, |launch, one| launch.arg(one));
    launch.run()
}

#[test]
fn the_log_level_is_shown_and_set() {
    let file = File::new("BUZZ_LOG=info");
    let relay = file.launch().start();
    let exit = command(&relay, &["log-level"]);
    exit.expect(0, &[]);
    assert_eq!(exit.stdout, "info\n");
    let exit = command(&relay, &["log-level", "debug"]);
    exit.expect(0, &[]);
    assert_eq!(exit.stdout, "debug (was info)\n");
    assert_eq!(relay.status()["log_level"], "debug");
    let told = until("it is told", || {
        let lines = lines(&relay.output());
        let told = |line: &Value| says(line, "the log level has changed");
        let told: Vec<Value> = lines.into_iter().filter(told).collect();
        (!told.is_empty()).then_some(told)
    });
    assert_eq!(told.len(), 1);
    assert_eq!(
        (&told[0]["old"], &told[0]["new"]),
        (&json!("info"), &json!("debug"))
    );
    // The file says another one.
    let lines = hang_up(&relay);
    assert_eq!(super::changed(&lines), [["BUZZ_LOG", "debug", "info"]]);
    assert_eq!(command(&relay, &["log-level"]).stdout, "info\n");
    // To less, its line is written all the same, and nothing after it.
    command(&relay, &["log-level", "off"]).expect(0, &[]);
    let before = until("it is told", || {
        let output = relay.output();
        output.contains("\"new\":\"off\"").then_some(output)
    });
    let exit = relay.stop();
    assert_eq!(
        exit.stderr.lines().count(),
        before.lines().count(),
        "{exit:#?}"
    );
}

#[test]
fn a_word_that_is_no_level_and_a_relay_that_is_not_there_are_told() {
    let relay = Launch::new().start();
    command(&relay, &["log-level", "loud"]).expect(64, &["loud", "off, error, warn, info, debug"]);
    let answer = raw::request(relay.health, "POST", "/log-level?level=loud", &[]);
    assert_eq!(answer.status, 400, "{answer:?}");
    let nowhere = Launch::new();
    for name in ["log-level", "reload"] {
        nowhere
            .clone()
            .arg(name)
            .run()
            .expect(1, &["no relay runs on", "BUZZ_DATA_DIR"]);
    }
}

#[test]
fn a_reload_says_what_has_changed_and_what_could_not() {
    let file = File::new(&format!("BUZZ_NAME=before\nDATABASE_URL={HUSH}"));
    let relay = file.launch().start();
    let exit = command(&relay, &["reload"]);
    exit.expect(0, &[]);
    assert_eq!(exit.stdout, "nothing has changed\n");
    file.write(&format!(
        "BUZZ_NAME=after\nDATABASE_URL={HUSH}-2\nBUZZ_PING_SECONDS=9"
    ));
    let exit = command(&relay, &["reload"]);
    exit.expect(0, &[]);
    let expected = "BUZZ_NAME: before -> after\n\
                    DATABASE_URL: has changed, needs a restart\n\
                    BUZZ_PING_SECONDS: 30 -> 9, needs a restart\n";
    assert_eq!(exit.stdout, expected);
    // When it is answered, every shard has it.
    assert_eq!(info(&relay)["name"], "after");

    file.write(&format!("BUZZ_NAME=again\nDATABASE_URL='{HUSH}"));
    let exit = command(&relay, &["reload"]);
    exit.expect(
        64,
        &[&format!("{}:2: DATABASE_URL: the quote", file.shown())],
    );
    assert!(!exit.stderr.contains(HUSH), "{exit:#?}");
    assert_eq!(info(&relay)["name"], "after");
    let without = Launch::new().start();
    command(&without, &["reload"]).expect(1, &["there is no settings file"]);
}

#[test]
fn the_health_port_that_is_asked_is_the_running_relay_s() {
    let (now, next) = (quiet_address(), quiet_address());
    let settings = |address: std::net::SocketAddr| {
        let (ip, port) = (address.ip(), address.port());
        format!("BUZZ_HEALTH_BIND={ip}\nBUZZ_HEALTH_PORT={port}\n")
    };
    let file = File::new(&settings(now));
    let launch = file
        .launch()
        .set("BUZZ_HEALTH_BIND", "")
        .set("BUZZ_HEALTH_PORT", "");
    let relay = launch.start();
    assert_eq!(relay.health, now);
    // For the next start.
    file.write(&settings(next));
    let beside = launch.folder(relay.data_dir());
    let run = |words: &[&str]| {
        let launch = beside.clone();
        words
            .iter()
            .fold(launch, |launch, word| launch.arg(word))
            .run()
    };
    run(&["health"]).expect(0, &[]);
    run(&["health", "--ready"]).expect(0, &[]);
    let exit = run(&["status"]);
    exit.expect(0, &[]);
    assert!(exit.stdout.contains(&format!("http://{now}")), "{exit:#?}");
    // What is typed counts.
    let typed = format!("--health-port={}", next.port());
    let bind = format!("--health-bind={}", next.ip());
    run(&["health", &bind, &typed]).expect(1, &["no answer from", &next.to_string()]);
}

#[test]
fn on_the_health_port_only_this_machine_may() {
    let file = File::new("");
    let mut relay = file.launch().start();
    let post =
        |path: &str, fields: &[(&str, &str)]| raw::request(relay.health, "POST", path, fields);
    let answer = post("/log-level?level=warn", &[]);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json(), json!({"log_level": "warn", "was": "info"}));
    file.write("BUZZ_NAME=after");
    let answer = post("/reload", &[]);
    let expected = json!({
        "changed": [
            {"setting": "BUZZ_NAME", "old": "buzz-uring", "new": "after"},
            {"setting": "BUZZ_LOG", "old": "warn", "new": "info"},
        ],
        "need_restart": [],
    });
    assert_eq!(answer.json(), expected);
    for path in ["/reload", "/log-level?level=off"] {
        let answer = post(path, &[("Origin", "http://pages.example")]);
        assert_eq!(answer.status, 403, "{answer:?}");
        let answer = raw::request(relay.address, "POST", path, &[]);
        assert_eq!(answer.status, 405, "{answer:?}");
    }
    assert_eq!(relay.status()["log_level"], "info");
    relay.signal(Signal::TERM);
    relay.wait_exit(WAIT).expect(0, &[]);
}

#[test]
fn commands_to_a_running_relay_fail_by_no_line_that_it_has_not_taken() {
    let file = File::new("BUZZ_NAME=before");
    let mut relay = file.launch().start();
    let own = file
        .launch()
        .folder(relay.data_dir())
        .set("BUZZ_HEALTH_PORT", relay.health.port());
    let run = |arguments: &[&str]| {
        let launch = arguments
            .iter()
            .fold(own.clone(), |launch, one| launch.arg(one));
        launch.run()
    };
    for text in [Some("BUZZ_NAM=after\nBUZZ_SHARDS=many"), None] {
        match text {
            Some(text) => file.write(text),
            None => std::fs::remove_file(file.path()).expect("our own file"),
        }
        for command in ["health", "status", "log-level"] {
            run(&[command]).expect(0, &[]);
        }
        // It is the relay that judges them, and says so in its log too.
        run(&["reload"]).expect(64, &[&file.shown()]);
        let told = lines(&relay.output())
            .iter()
            .any(|line| says(line, REFUSED));
        assert!(told, "{}", relay.output());
    }
    run(&["drain", "--wait"]).expect(0, &[]);
    relay.wait_exit(WAIT).expect(0, &[]);
}
