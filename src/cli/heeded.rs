//! Which settings each subcommand heeds: its help, the completions and the manual page show these.
//!
//! Every subcommand accepts all of them, so that one set of options and one settings file is for the
//! relay and for the commands beside it. What it does not heed is hidden, and most of it is judged.

use clap::{Arg, ArgAction};

use super::settings::{SETTINGS, Setting};

/// Where a running relay is met.
const MET: &[&str] = &["BUZZ_CONFIG", "BUZZ_DATA_DIR"];
/// Where its health port is.
const LOOKED_AT: &[&str] = &[
    "BUZZ_CONFIG",
    "BUZZ_HEALTH_BIND",
    "BUZZ_HEALTH_PORT",
    "BUZZ_DATA_DIR",
];
/// Its store, with or without it.
const OPENED: &[&str] = &[
    "BUZZ_CONFIG",
    "BUZZ_STORE",
    "BUZZ_DATA_DIR",
    "BUZZ_DB_POOL_SIZE",
    "BUZZ_DB_READ_POOL_SIZE",
    "BUZZ_STORE_MAX_BYTES",
];
/// The same, and what an event may be.
const IMPORTED: &[&str] = &[
    "BUZZ_CONFIG",
    "BUZZ_STORE",
    "BUZZ_DATA_DIR",
    "BUZZ_DB_POOL_SIZE",
    "BUZZ_DB_READ_POOL_SIZE",
    "BUZZ_STORE_MAX_BYTES",
    "BUZZ_MAX_FRAME_BYTES",
    "BUZZ_CREATED_AT_FUTURE_SECONDS",
    "BUZZ_RELAY_URL",
];
/// The embedded store.
const COPIED: &[&str] = &[
    "BUZZ_CONFIG",
    "BUZZ_STORE",
    "BUZZ_DATA_DIR",
    "BUZZ_STORE_MAX_BYTES",
];
/// The database.
const MIGRATED: &[&str] = &["BUZZ_CONFIG", "BUZZ_STORE"];

/// What a subcommand heeds; None is everything.
fn heeded(subcommand: &str) -> Option<&'static [&'static str]> {
    Some(match subcommand {
        "check-config" => return None,
        "drain" | "reload" | "log-level" => MET,
        "health" | "status" | "top" => LOOKED_AT,
        "access" | "export" => OPENED,
        "import" => IMPORTED,
        "backup" | "compact" => COPIED,
        "migrate" => MIGRATED,
        _ => &[],
    })
}

/// The command line with all settings where they are taken, and shown where they are heeded.
pub(super) fn for_parsing(command: clap::Command) -> clap::Command {
    let command = with_options(command, option);
    each_subcommand(command, |subcommand| {
        let heeded = heeded(subcommand.get_name());
        let is_heeded =
            |setting: &Setting| heeded.is_none_or(|names| names.contains(&setting.variable));
        let tail = match heeded {
            None => return subcommand,
            Some(names) => tail(&subcommand, names),
        };
        with_options(subcommand, |setting| {
            let hidden = !is_heeded(setting);
            option(setting).map(|option| option.hide(hidden))
        })
        .after_help(tail)
    })
}

/// The command line with settings only where they are heeded: what is read by those who cannot tell a
/// hidden option.
pub(super) fn for_pages(command: clap::Command) -> clap::Command {
    let command = with_options(command, |setting| {
        option(setting).map(|option| option.global(false))
    });
    each_subcommand(command, |subcommand| {
        let heeded = heeded(subcommand.get_name());
        with_options(subcommand, |setting| {
            let is_heeded = heeded.is_none_or(|names| names.contains(&setting.variable));
            option(setting).filter(|_| is_heeded)
        })
    })
}

/// What its help says at the end.
fn tail(subcommand: &clap::Command, heeded: &[&str]) -> String {
    let own = subcommand.get_after_help().map(ToString::to_string);
    let mut text = own.map_or_else(String::new, |own| own + "\n\n");
    if heeded.contains(&"BUZZ_STORE") {
        text.push_str(
            "DATABASE_URL is never an option: it stands in the environment or in the settings file.\n",
        );
    }
    text + "The relay's other settings are accepted as well: buzz-uring --help shows them."
}

fn with_options(
    command: clap::Command,
    option: impl Fn(&'static Setting) -> Option<Arg>,
) -> clap::Command {
    SETTINGS
        .iter()
        .filter_map(option)
        .fold(command, clap::Command::arg)
}

fn each_subcommand(
    mut command: clap::Command,
    change: impl Fn(clap::Command) -> clap::Command,
) -> clap::Command {
    let names = command.get_subcommands().map(clap::Command::get_name);
    let names: Vec<String> = names.map(str::to_owned).collect();
    for name in names {
        command = command.mut_subcommand(name, &change);
    }
    command
}

/// The option of a setting. None for a secret.
fn option(setting: &'static Setting) -> Option<Arg> {
    let name = setting.option()?;
    let default = setting.default_text();
    let help = format!(
        "{} [env: {}] [default: {default}]",
        setting.help, setting.variable
    );
    let arg = Arg::new(setting.variable)
        .long(name)
        .help(help)
        .help_heading(setting.section)
        .value_name(setting.unit)
        // Subcommands take the settings as well, before or after their name.
        .global(true)
        // So that `--shards -1` meets our message, which names the accepted form.
        .allow_negative_numbers(true)
        .action(ArgAction::Set);
    if !setting.switch {
        return Some(arg);
    }
    // `=` is required, or a bare `--require-auth` would swallow the subcommand after it.
    let arg = arg.num_args(0..=1).require_equals(true);
    Some(arg.default_missing_value("true"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::setting;
    use crate::cli::tests::run;
    use crate::cli::{CliError, Origin, command};

    fn names(command: &clap::Command) -> Vec<String> {
        let subcommands = command.get_subcommands();
        subcommands.map(|one| one.get_name().to_owned()).collect()
    }

    /// Arguments that a subcommand cannot do without.
    fn needed(name: &str) -> &'static [&'static str] {
        match name {
            "access" => &["list"],
            "backup" => &["/b"],
            _ => &[],
        }
    }

    #[test]
    fn a_subcommand_shows_what_it_heeds_and_takes_everything() {
        for name in names(&command()) {
            let Err(CliError::Asked(help)) = run(&[&name, "--help"], &[]) else {
                panic!("no help of {name}")
            };
            let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
            let heeded = heeded(&name);
            for setting in SETTINGS {
                let Some(option) = setting.option() else {
                    continue;
                };
                let is_heeded = heeded.is_none_or(|names| names.contains(&setting.variable));
                let is_shown = help.contains(&format!("[env: {}]", setting.variable));
                assert_eq!(is_shown, is_heeded, "{name} and --{option}: {help}");
            }
            if ["completions", "man"].contains(&&*name) {
                continue;
            }
            for place in [0, 1] {
                let mut args = [&[&*name], needed(&name)].concat();
                args.insert(place, "--max-limit=7");
                let (_, raw) = run(&args, &[]).unwrap();
                let expected = Some(("7", Origin::Option));
                assert_eq!(raw.get("BUZZ_MAX_LIMIT"), expected, "{args:?}");
            }
        }
    }

    #[test]
    fn what_is_heeded_are_settings_of_subcommands() {
        for name in names(&command()) {
            let heeded = heeded(&name).unwrap_or_default();
            assert!(heeded.iter().all(|name| setting(name).is_some()), "{name}");
            let is_page = ["completions", "man", "check-config"].contains(&&*name);
            assert_eq!(heeded.is_empty(), is_page, "{name} has no row");
        }
    }
}
