//! The example settings: the relay takes them, and what they call a default is one.

use buzz_uring::cli::setting;

use crate::common::Launch;
use crate::file;

type Pairs<'a> = Vec<(&'a str, &'a str)>;

/// `NAME=value` lines; those behind a `#` apart.
fn lines(text: &str) -> (Pairs<'_>, Pairs<'_>) {
    let (mut set, mut shown) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let (into, line) = match line.strip_prefix('#') {
            Some(line) => (&mut shown, line),
            None => (&mut set, line),
        };
        let pair = line.split_once('=');
        let is_name = |name: &str| name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        into.extend(pair.filter(|(name, _)| is_name(name)));
    }
    (set, shown)
}

fn check(name: &str, default_shown: bool) {
    let text = file(name);
    let (set, shown) = lines(&text);
    assert!(set.len() > 2, "{name}: {set:?}");
    let launch = Launch::new().arg("check-config");
    let launch = set.iter().fold(launch, |launch, (name, value)| {
        assert!(setting(name).is_some(), "{name} is no setting");
        launch.set(name, value)
    });
    let exit = launch.run();
    assert_eq!(exit.code(), 0, "{name}: {exit:#?}");
    assert!(!exit.stdout.contains("no effect"), "{name}: {exit:#?}");
    for (variable, value) in shown.iter().filter(|_| default_shown) {
        let setting = setting(variable).unwrap_or_else(|| panic!("{variable} is no setting"));
        let default = setting.default_text();
        // An example where there is no default.
        let is_example = default == "none";
        assert!(
            is_example || default == *value,
            "{name}: {variable}={value}"
        );
    }
}

#[test]
fn the_service_s_settings_are_taken_and_show_true_defaults() {
    check("deploy/systemd/buzz-uring.env", true);
}

#[test]
fn the_service_s_settings_are_taken_as_a_settings_file() {
    let file = crate::path("deploy/systemd/buzz-uring.env");
    let config = format!("--config={}", file.display());
    let exit = Launch::new().arg("check-config").arg(&config).run();
    assert_eq!(exit.code(), 0, "{exit:#?}");
    let line = "BUZZ_RELAY_URL=wss://relay.example.com";
    assert!(exit.stdout.contains(line), "{exit:#?}");
    assert!(
        exit.stdout.contains("# BUZZ_RELAY_URL: file, line "),
        "{exit:#?}"
    );
}

#[test]
fn kubernetes_settings_are_taken() {
    check("deploy/kubernetes/base/relay.env", false);
}
