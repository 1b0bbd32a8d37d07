//! `docs/configuration.md`, made from the one table of settings. After a change of the table:
//!
//!     BUZZ_UPDATE_DOCS=1 cargo test --test deploy configuration

use std::fmt::Write;
use std::fs;

use buzz_uring::cli::{FEATURE_FLAG_PREFIX, SETTINGS, Setting};

use crate::{file, path};

const PAGE: &str = "docs/configuration.md";

const HEAD: &str = "\
# Settings

Every setting is an environment variable and, unless it is a secret, the same long option. An option wins over its variable, a variable over the default; empty or blank is no value. What is wrong fails the start with exit code 64, and every fault is named. `buzz-uring check-config` prints what the settings come to, secrets masked, and opens nothing.

This page is made from the table in `src/cli/settings.rs`, and a test holds it to be current.
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut section = "";
    for setting in SETTINGS {
        if setting.section != section {
            section = setting.section;
            let rule = "|---|---|---|---|";
            write!(
                page,
                "\n## {section}\n\n| variable | default | unit | what it is |\n{rule}\n"
            )
            .expect("a String takes all");
        }
        page.push_str(&row(setting));
    }
    let flags = format!(
        "\n## Caps without LaunchDarkly\n\nWith `BUZZ_FEATURE_FLAGS_PROVIDER=environment` a flag is \
         the variable `{FEATURE_FLAG_PREFIX}<NAME>`, its key in upper case with `_` for all else, \
         read once at the start: see [the runbook](operator-concurrency-caps.md#when-launchdarkly-\
         is-away-and-a-cap-is-needed-now).\n"
    );
    page + &flags
}

fn row(setting: &Setting) -> String {
    let option = match setting.option() {
        Some(option) => format!("`--{option}`"),
        None => "environment only: a secret".to_owned(),
    };
    let default = setting.default_text();
    let default = match default.as_str() {
        "none" => "none".to_owned(),
        found if found.contains(' ') => found.to_owned(),
        value => format!("`{value}`"),
    };
    format!(
        "| `{}`<br>{option} | {default} | {} | {} |\n",
        setting.variable, setting.unit, setting.help
    )
}

#[test]
fn configuration_is_current() {
    let page = page();
    if std::env::var_os("BUZZ_UPDATE_DOCS").is_some() {
        fs::write(path(PAGE), &page).expect("a file");
    }
    assert!(
        file(PAGE) == page,
        "{PAGE} is not current: BUZZ_UPDATE_DOCS=1 makes it anew"
    );
}

#[test]
fn no_row_breaks_its_table() {
    for setting in SETTINGS {
        for text in [setting.unit, setting.help, &setting.default_text()] {
            assert!(
                !text.contains(['|', '\n', '<']),
                "{}: {text}",
                setting.variable
            );
        }
    }
}
