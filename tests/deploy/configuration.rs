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

Every setting is an environment variable and, unless it is a secret, the same long option. An option wins over its variable, a variable over [the settings file](#the-settings-file), that over the default; empty or blank is no value. What is wrong fails the start with exit code 64, and every fault is named: first those of the settings file's lines, then those of values. `buzz-uring check-config` prints what the settings come to and where each came from, and opens nothing. What it prints is itself a settings file: what was given stands in lines, defaults and secrets are comments, and no secret is shown.

What is marked *reload* in the last column takes effect when a running relay [reads its settings file again](operate.md#change-settings-while-it-runs); the rest needs a restart.

This page is made from the table in `src/cli/settings.rs`, and a test holds it to be current.
";

const FILE: &str = "
## The settings file

`buzz-uring --config FILE`, or `BUZZ_CONFIG=FILE`, reads settings from a file, for what is neither an option nor a variable:

```sh
# A comment, which is a line of its own.
BUZZ_NAME=relay.example.com
BUZZ_DESCRIPTION=\"A relay for \\\"friends\\\"\"
BUZZ_RETENTION='kinds=0,3 keep; kinds=1,6,7 age=90d'
DATABASE_URL=postgres://relay:secret@db.example/relay
```

- One `NAME=value` a line, with the names above, also those of secrets and of flags. No space before the `=`.
- White space around a value is not part of it. Quotes are needed only around a value that has a backslash, or begins with a quote. Between `'` everything is as it stands; between `\"` a `\\` stands before `\"`, `\\`, `$` or a backtick, and before nothing else. A `#` within a value is part of it.
- systemd's `EnvironmentFile=` reads such a file alike, so one file can serve both.
- An unknown name, a name that comes twice, and a line that is none of this fail the start, with file, line and name, and never the value. So do a file of more than 64 KiB, one that is not UTF-8, and one that is not a regular file.
- A file with secrets that every user of the machine can read is warned of.
- `buzz-uring check-config > relay.conf` writes one from the settings as they are. Secrets stay where they were; remove the `#` before a default to hold it fast.
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut section = "";
    for setting in SETTINGS {
        if setting.section != section {
            section = setting.section;
            let rule = "|---|---|---|---|---|";
            write!(
                page,
                "\n## {section}\n\n| variable | default | unit | what it is | takes effect |\n{rule}\n"
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
    page + &flags + FILE
}

fn row(setting: &Setting) -> String {
    let option = match setting.option() {
        Some(option) => format!("`--{option}`"),
        None => "no option: a secret".to_owned(),
    };
    let effect = match setting.reread {
        true => "reload",
        false => "restart",
    };
    let default = setting.default_text();
    let default = match default.as_str() {
        "none" => "none".to_owned(),
        found if found.contains(' ') => found.to_owned(),
        value => format!("`{value}`"),
    };
    format!(
        "| `{}`<br>{option} | {default} | {} | {} | {effect} |\n",
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
