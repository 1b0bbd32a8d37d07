//! The command line: one table of settings, and subcommands.
//!
//! [`parse`] takes the arguments and the environment and finds out what was typed; it judges no
//! value. What a value means is `config`'s business. An option wins over its variable, a variable
//! over the settings file, that over the default, and an empty or blank value is no value.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, ArgMatches};

use crate::secret::Secret;

pub mod settings;

pub use settings::{Preset, SETTINGS, Setting, setting};

/// Variables of the `environment` flag provider start so. The provider variable has `FLAGS` in it
/// and so can never be read as a flag.
pub const FEATURE_FLAG_PREFIX: &str = "BUZZ_FEATURE_FLAG_";

/// The variable that names the settings file.
pub const CONFIG: &str = "BUZZ_CONFIG";

/// What the process is asked to do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Command {
    /// Serve (no subcommand).
    Run,
    /// Print the resolved settings, open nothing.
    CheckConfig,
    /// Tell the relay that runs on the data folder to drain.
    Drain {
        /// Wait for its end, and end as it does.
        wait: bool,
    },
    /// Show or edit the access lists.
    Access(Access),
    /// Ask the health port of the relay that runs here.
    Health {
        /// Whether it wants traffic, not whether it lives.
        ready: bool,
    },
    /// Store the events that standard input gives.
    Import,
    /// Give the stored events to standard output.
    Export(Export),
    /// Copy the store into a new folder, while the relay runs or not.
    Backup {
        /// The folder to make.
        to: PathBuf,
    },
    /// Give the store's free pages back, while no relay runs.
    Compact,
    /// Bring the schema of the database up to date.
    Migrate {
        /// Only say what is missing.
        check: bool,
    },
}

/// What is asked of an export.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Export {
    /// Filters as they were typed; none for everything.
    pub filters: Vec<String>,
    /// Not older, in seconds since 1970.
    pub since: Option<u64>,
    /// Not newer, in seconds since 1970.
    pub until: Option<u64>,
}

/// What is asked of the access lists.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Access {
    /// Put keys on a list, or take them off.
    Edit {
        /// Which list, and which way.
        verb: AccessVerb,
        /// The keys as they were typed; at least one.
        keys: Vec<String>,
    },
    /// Print who is on a list.
    List {
        /// One JSON object a line.
        json: bool,
    },
}

/// One way to edit one list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AccessVerb {
    /// Ban.
    Ban,
    /// End a ban.
    Unban,
    /// Put on the allow-list.
    Allow,
    /// Take off the allow-list.
    Unallow,
    /// Make a member.
    AddMember,
    /// End a membership.
    RemoveMember,
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Origin {
    /// The table.
    Default,
    /// This line of the settings file.
    File(usize),
    /// An environment variable.
    Environment,
    /// A command-line option.
    Option,
}

impl Origin {
    /// The word that `check-config` prints, for a line of a file without its number.
    pub fn as_str(self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::File(_) => "file",
            Origin::Environment => "environment",
            Origin::Option => "option",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())?;
        match self {
            Origin::File(line) => write!(f, ", line {line}"),
            _ => Ok(()),
        }
    }
}

/// A line of the settings file that gives a value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileLine {
    /// Its number, from 1.
    pub number: usize,
    /// A variable of the table, or of the `environment` flag provider.
    pub name: String,
    /// What it gives.
    pub value: Secret,
}

/// What was given: texts by variable, each with its origin. Prints no value of any of them.
#[derive(Clone, Debug, Default)]
pub struct Raw {
    values: BTreeMap<&'static str, (Secret, Origin)>,
    feature_flags: BTreeMap<String, Secret>,
    unknown: Vec<String>,
    file: Option<String>,
}

impl Raw {
    /// The text given for a variable of the table, without white space around it; None when unset.
    pub fn get(&self, variable: &str) -> Option<(&str, Origin)> {
        self.values
            .get(variable)
            .map(|(text, origin)| (text.expose(), *origin))
    }

    /// The same, and where nothing was given, what the settings file at `path` gives.
    pub fn over_file(&self, path: &Path, lines: &[FileLine]) -> Raw {
        let mut raw = self.clone();
        raw.file = Some(path.display().to_string());
        for FileLine {
            number,
            name,
            value,
        } in lines
        {
            match setting(name) {
                Some(setting) if raw.get(setting.variable).is_none() => {
                    insert(&mut raw, setting, value.expose(), Origin::File(*number));
                }
                Some(_) => {}
                None => {
                    let given = raw.feature_flags.entry(name.clone());
                    let given = given.or_insert_with(|| Secret::new(""));
                    if given.expose().trim().is_empty() {
                        *given = value.clone();
                    }
                }
            }
        }
        raw
    }

    /// The settings file that lines are of, as messages name it.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// Variables of the `environment` flag provider, name to text.
    pub fn feature_flags(&self) -> &BTreeMap<String, Secret> {
        &self.feature_flags
    }

    /// Names of `BUZZ_` variables that no row of the table knows: most likely misspelt.
    pub fn unknown(&self) -> &[String] {
        &self.unknown
    }
}

/// Why there is nothing to run.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// `--help` or `--version`: print this on standard output and exit 0.
    #[error("{0}")]
    Asked(String),
    /// The command line cannot be understood: print this on standard error and exit
    /// [`crate::error::EXIT_CONFIG`].
    #[error("{0}")]
    Usage(String),
}

/// Finds out what was typed. `args` starts with the program's name; `env` is the environment.
pub fn parse(
    args: impl IntoIterator<Item = OsString>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(Command, Raw), CliError> {
    let matches = command().try_get_matches_from(args).map_err(|error| {
        let text = error.to_string();
        if error.use_stderr() {
            CliError::Usage(text)
        } else {
            CliError::Asked(text)
        }
    })?;

    let mut raw = Raw::default();
    read_environment(&mut raw, env)?;
    read_options(&mut raw, &matches);
    let command = match matches.subcommand() {
        Some((CHECK_CONFIG, _)) => Command::CheckConfig,
        Some((DRAIN, matches)) => Command::Drain {
            wait: matches.get_flag(WAIT),
        },
        Some((ACCESS, matches)) => Command::Access(access(matches)),
        Some((HEALTH, matches)) => Command::Health {
            ready: matches.get_flag(READY),
        },
        Some((IMPORT, _)) => Command::Import,
        Some((EXPORT, matches)) => Command::Export(export(matches)),
        Some((BACKUP, matches)) => Command::Backup {
            to: matches
                .get_one::<PathBuf>(DIR)
                .expect("clap demands a folder")
                .clone(),
        },
        Some((COMPACT, _)) => Command::Compact,
        Some((MIGRATE, matches)) => Command::Migrate {
            check: matches.get_flag(CHECK),
        },
        _ => Command::Run,
    };
    Ok((command, raw))
}

/// The command line as clap knows it: also the source of manual page and completions.
pub fn command() -> clap::Command {
    let mut command = clap::Command::new("buzz-uring")
        .about("A Nostr relay for Linux: one io_uring shard per core")
        .version(env!("CARGO_PKG_VERSION"))
        .after_help(secrets_help())
        .subcommand_required(false)
        .disable_help_subcommand(true)
        .subcommand(
            clap::Command::new(CHECK_CONFIG)
                .about("Print the resolved settings, secrets masked, and open nothing"),
        )
        .subcommand(
            clap::Command::new(DRAIN)
                .about(
                    "Tell the relay that runs on BUZZ_DATA_DIR to drain and end, as SIGTERM does",
                )
                .arg(
                    Arg::new(WAIT)
                        .long(WAIT)
                        .help("Wait for its end; exit 0 only if it ended in order")
                        .action(ArgAction::SetTrue),
                ),
        )
        .subcommand(access_command())
        .subcommand(
            clap::Command::new(HEALTH)
                .about("Ask the health port whether the relay lives: exit 0 if it does, else 1")
                .arg(
                    Arg::new(READY)
                        .long(READY)
                        .help("Ask whether it wants traffic instead (/_readiness)")
                        .action(ArgAction::SetTrue),
                ),
        )
        .subcommand(import_command())
        .subcommand(export_command())
        .subcommand(backup_command())
        .subcommand(compact_command())
        .subcommand(
            clap::Command::new(MIGRATE)
                .about("Bring the schema of DATABASE_URL up to date, as a start does")
                .arg(
                    Arg::new(CHECK)
                        .long(CHECK)
                        .help("Change nothing; exit 1 if a migration is missing")
                        .action(ArgAction::SetTrue),
                ),
        );
    for setting in SETTINGS {
        if let Some(name) = setting.option() {
            command = command.arg(option(setting, name));
        }
    }
    command
}

const CHECK_CONFIG: &str = "check-config";
const DRAIN: &str = "drain";
const WAIT: &str = "wait";
const HEALTH: &str = "health";
const READY: &str = "ready";
const ACCESS: &str = "access";
const IMPORT: &str = "import";
const EXPORT: &str = "export";
const FILTER: &str = "filter";
const SINCE: &str = "since";
const UNTIL: &str = "until";
const BACKUP: &str = "backup";
const COMPACT: &str = "compact";
const MIGRATE: &str = "migrate";
const CHECK: &str = "check";
const DIR: &str = "DIR";
const LIST: &str = "list";
const JSON: &str = "json";
const KEY: &str = "KEY";

/// The ways to edit the lists: name, help.
const ACCESS_VERBS: &[(&str, AccessVerb, &str)] = &[
    (
        "ban",
        AccessVerb::Ban,
        "Refuse these keys' logins and events, and end their connections",
    ),
    ("unban", AccessVerb::Unban, "End the ban of these keys"),
    (
        "allow",
        AccessVerb::Allow,
        "Put these keys on the allow-list (BUZZ_PUBKEY_ALLOWLIST)",
    ),
    (
        "unallow",
        AccessVerb::Unallow,
        "Take these keys off the allow-list",
    ),
    (
        "add-member",
        AccessVerb::AddMember,
        "Make these keys members (BUZZ_REQUIRE_RELAY_MEMBERSHIP)",
    ),
    (
        "remove-member",
        AccessVerb::RemoveMember,
        "End the membership of these keys",
    ),
];

fn access_command() -> clap::Command {
    let list = clap::Command::new(LIST)
        .about("Print every key that is on a list, and the lists it is on")
        .arg(
            Arg::new(JSON)
                .long(JSON)
                .help("One JSON object a line")
                .action(ArgAction::SetTrue),
        );
    let edits = ACCESS_VERBS.iter().map(|(name, _, about)| {
        clap::Command::new(*name).about(*about).arg(
            Arg::new(KEY)
                .help("A public key: 64 hex digits, or an npub")
                .num_args(1..)
                .required(true),
        )
    });
    clap::Command::new(ACCESS)
        .about(
            "Show or edit the access lists of BUZZ_DATA_DIR, through the relay if it runs, else in \
             its store",
        )
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommands(edits)
        .subcommand(list)
}

fn backup_command() -> clap::Command {
    clap::Command::new(BACKUP)
        .about(
            "Copy the store into a new data folder, through the relay if it runs on BUZZ_DATA_DIR, \
             else from its store; nothing is overwritten",
        )
        .arg(
            Arg::new(DIR)
                .help("The folder to make; to restore it, start a relay with it as BUZZ_DATA_DIR")
                .value_parser(clap::value_parser!(PathBuf))
                .required(true),
        )
        .after_help(
            "The copy is of one moment, while writes go on; the relay's user writes it, where the \
             relay runs. Until it is whole its name ends with .partial.\n\
             Exit code 0: it is made. 1: it is not, and nothing is left of it.",
        )
}

fn compact_command() -> clap::Command {
    clap::Command::new(COMPACT)
        .about("Make the store of BUZZ_DATA_DIR as small as it can be; the relay must be stopped")
        .after_help(
            "Needs as much free room on the disk as the store's events take. A sudden end at any \
             moment leaves the store whole.\n\
             Exit code 0: done. 1: not, and the store is as it was.",
        )
}

fn access(matches: &ArgMatches) -> Access {
    let (name, matches) = matches.subcommand().expect("clap demands a subcommand");
    let verb = ACCESS_VERBS.iter().find(|(verb, _, _)| *verb == name);
    match verb {
        None => Access::List {
            json: matches.get_flag(JSON),
        },
        Some((_, verb, _)) => Access::Edit {
            verb: *verb,
            keys: matches
                .get_many::<String>(KEY)
                .into_iter()
                .flatten()
                .cloned()
                .collect(),
        },
    }
}

fn import_command() -> clap::Command {
    clap::Command::new(IMPORT)
        .about(
            "Store the events of standard input, one JSON object a line, through the relay if it \
             runs on BUZZ_DATA_DIR, else in its store",
        )
        .after_help(
            "Ids and signatures are checked. A refused line is told on standard error with its \
             number and reason.\n\
             Exit code 0: every line is stored, or was, or a newer version is. 1: a line was \
             refused, or the import ended before its input. 64: bad usage.",
        )
}

fn export_command() -> clap::Command {
    let seconds = |name, help| {
        Arg::new(name)
            .long(name)
            .help(help)
            .value_name("SECONDS")
            .value_parser(clap::value_parser!(u64))
    };
    clap::Command::new(EXPORT)
        .about(
            "Write the stored events to standard output, one JSON object a line, through the relay \
             if it runs on BUZZ_DATA_DIR, else from its store",
        )
        .arg(
            Arg::new(FILTER)
                .long(FILTER)
                .help("What to export (NIP-01); given several times, what any of them wants")
                .value_name("JSON")
                .action(ArgAction::Append),
        )
        .arg(seconds(SINCE, "Nothing older, in seconds since 1970"))
        .arg(seconds(UNTIL, "Nothing newer, in seconds since 1970"))
        .after_help(
            "Without a filter everything, in the order in which it was stored; import reproduces \
             the store from it. With filters newest first, by filter. What has expired is left out. \
             Events for their addressee only (gift wraps) are not: whoever exports owns the \
             store.\n\
             Exit code 0: everything was written. 1: not. 64: bad usage.",
        )
}

fn export(matches: &ArgMatches) -> Export {
    let filters = matches.get_many::<String>(FILTER);
    Export {
        filters: filters.into_iter().flatten().cloned().collect(),
        since: matches.get_one(SINCE).copied(),
        until: matches.get_one(UNTIL).copied(),
    }
}

fn option(setting: &'static Setting, name: String) -> Arg {
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
    if setting.switch {
        // `=` is required, or a bare `--require-auth` would swallow the subcommand after it.
        arg.num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
    } else {
        arg
    }
}

/// Secrets have no option, so help lists their variables apart.
fn secrets_help() -> StyledStr {
    let mut text = String::from("Never options, because those show up in process lists:\n");
    for setting in SETTINGS.iter().filter(|setting| setting.secret) {
        text.push_str(&format!("  {}\n      {}\n", setting.variable, setting.help));
    }
    text.push_str(&format!(
        "  {FEATURE_FLAG_PREFIX}<NAME>\n      A flag's value with provider environment: its key in \
         upper case, _ for all else\n"
    ));
    text.push_str("\nAn empty value is no value. Exit code 64: bad settings.");
    text.into()
}

fn read_environment(
    raw: &mut Raw,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(), CliError> {
    for (name, value) in env {
        let Some(name) = name.to_str() else { continue };
        if name.starts_with(FEATURE_FLAG_PREFIX) {
            // A flag never fails start-up: whatever is not UTF-8 is simply not a number.
            let text = value.to_string_lossy().into_owned();
            raw.feature_flags.insert(name.to_owned(), Secret::new(text));
        } else if let Some(setting) = setting(name) {
            let Some(text) = value.to_str() else {
                return Err(CliError::Usage(format!("{name}: not UTF-8 text\n")));
            };
            insert(raw, setting, text, Origin::Environment);
        } else if name.starts_with("BUZZ_") {
            raw.unknown.push(name.to_owned());
        }
    }
    raw.unknown.sort();
    Ok(())
}

fn read_options(raw: &mut Raw, matches: &ArgMatches) {
    for setting in SETTINGS.iter().filter(|setting| !setting.secret) {
        if let Some(text) = matches.get_one::<String>(setting.variable) {
            insert(raw, setting, text, Origin::Option);
        }
    }
}

fn insert(raw: &mut Raw, setting: &'static Setting, text: &str, origin: Origin) {
    let text = text.trim();
    if !text.is_empty() {
        raw.values
            .insert(setting.variable, (Secret::new(text), origin));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(args: &[&str], env: &[(&str, &str)]) -> Result<(Command, Raw), CliError> {
        let args = std::iter::once("buzz-uring").chain(args.iter().copied());
        parse(
            args.map(OsString::from),
            env.iter().map(|(name, text)| (name.into(), text.into())),
        )
    }

    #[test]
    fn the_table_makes_a_sound_command_line() {
        command().debug_assert();
        for setting in SETTINGS {
            assert!(
                !setting.help.is_empty() && !setting.unit.is_empty(),
                "{}",
                setting.variable
            );
            let rows = SETTINGS
                .iter()
                .filter(|other| other.variable == setting.variable);
            assert_eq!(rows.count(), 1, "{} has two rows", setting.variable);
        }
    }

    #[test]
    fn option_before_environment_and_empty_is_unset() {
        let env = [
            ("BUZZ_SHARDS", "3"),
            ("BUZZ_MAX_LIMIT", "  "),
            ("BUZZ_LOG", " warn "),
        ];
        let (command, raw) = run(&["--shards", "5", "--log="], &env).unwrap();
        assert_eq!(command, Command::Run);
        assert_eq!(raw.get("BUZZ_SHARDS"), Some(("5", Origin::Option)));
        assert_eq!(raw.get("BUZZ_MAX_LIMIT"), None);
        assert_eq!(raw.get("BUZZ_LOG"), Some(("warn", Origin::Environment)));
    }

    #[test]
    fn a_file_gives_what_nothing_else_does() {
        let env = [
            ("BUZZ_NAME", "of the environment"),
            ("BUZZ_CONTACT", " "),
            ("BUZZ_FEATURE_FLAG_A", "1"),
            ("BUZZ_FEATURE_FLAG_B", " "),
        ];
        let (_, raw) = run(&["--shards=5"], &env).unwrap();
        let mut lines = Vec::new();
        for (name, value) in [
            ("BUZZ_SHARDS", "7"),
            ("BUZZ_NAME", "of the file"),
            ("BUZZ_CONTACT", " of the file "),
            ("BUZZ_PUBKEY", " "),
            ("DATABASE_URL", "hush"),
            ("BUZZ_FEATURE_FLAG_A", "2"),
            ("BUZZ_FEATURE_FLAG_B", "2"),
            ("BUZZ_FEATURE_FLAG_C", "2"),
        ] {
            lines.push(FileLine {
                number: 10 + lines.len(),
                name: name.to_owned(),
                value: Secret::new(value),
            });
        }
        let whole = raw.over_file(Path::new("/x/y"), &lines);
        assert_eq!(whole.file(), Some("/x/y"));
        let expected = [
            ("BUZZ_SHARDS", Some(("5", Origin::Option))),
            (
                "BUZZ_NAME",
                Some(("of the environment", Origin::Environment)),
            ),
            ("BUZZ_CONTACT", Some(("of the file", Origin::File(12)))),
            ("BUZZ_PUBKEY", None),
            ("DATABASE_URL", Some(("hush", Origin::File(14)))),
        ];
        for (name, given) in expected {
            assert_eq!(whole.get(name), given, "{name}");
        }
        let flags = whole.feature_flags().iter();
        let flags: Vec<_> = flags.map(|(name, text)| (&**name, text.expose())).collect();
        let expected = [
            ("BUZZ_FEATURE_FLAG_A", "1"),
            ("BUZZ_FEATURE_FLAG_B", "2"),
            ("BUZZ_FEATURE_FLAG_C", "2"),
        ];
        assert_eq!(flags, expected);
        assert_eq!(Origin::File(12).to_string(), "file, line 12");
        assert_eq!(raw.get("DATABASE_URL"), None, "as it was");
    }

    #[test]
    fn settings_stand_before_or_after_the_subcommand() {
        for args in [
            &["--shards=2", "check-config"],
            &["check-config", "--shards=2"],
        ] {
            let (command, raw) = run(args, &[]).unwrap();
            assert_eq!(command, Command::CheckConfig);
            assert_eq!(raw.get("BUZZ_SHARDS"), Some(("2", Origin::Option)));
        }
    }

    #[test]
    fn a_drain_waits_when_asked_to() {
        for (args, wait) in [(&["drain"][..], false), (&["drain", "--wait"], true)] {
            assert_eq!(run(args, &[]).unwrap().0, Command::Drain { wait });
        }
        assert!(run(&["--wait"], &[]).is_err(), "it is drain's own");
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

    #[test]
    fn a_bare_switch_is_true_and_does_not_eat_the_subcommand() {
        let (command, raw) = run(&["--require-auth", "check-config"], &[]).unwrap();
        assert_eq!(command, Command::CheckConfig);
        assert_eq!(raw.get("BUZZ_REQUIRE_AUTH"), Some(("true", Origin::Option)));
        let (_, raw) = run(&["--require-auth=false"], &[]).unwrap();
        assert_eq!(
            raw.get("BUZZ_REQUIRE_AUTH"),
            Some(("false", Origin::Option))
        );
    }

    #[test]
    fn help_names_every_option_variable_default_and_unit() {
        let Err(CliError::Asked(help)) = run(&["--help"], &[]) else {
            panic!("no help")
        };
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for setting in SETTINGS {
            assert!(help.contains(setting.variable), "{}", setting.variable);
            if let Some(option) = setting.option() {
                assert!(help.contains(&format!("--{option}")), "{option}");
                assert!(help.contains(&format!("[default: {}]", setting.default_text())));
                assert!(help.contains(setting.unit), "{}", setting.unit);
            }
        }
    }

    #[test]
    fn version_and_bad_usage() {
        let Err(CliError::Asked(version)) = run(&["--version"], &[]) else {
            panic!()
        };
        assert_eq!(
            version.trim(),
            concat!("buzz-uring ", env!("CARGO_PKG_VERSION"))
        );
        for args in [&["--nonsense"][..], &["frobnicate"], &["--database-url=x"]] {
            assert!(
                matches!(run(args, &[]), Err(CliError::Usage(_))),
                "{args:?}"
            );
        }
    }

    #[test]
    fn no_value_is_ever_printed_by_debug() {
        let env = [
            ("DATABASE_URL", "postgres://hush"),
            ("BUZZ_FEATURE_FLAG_X", "hush"),
        ];
        let (_, raw) = run(&[], &env).unwrap();
        assert_eq!(
            raw.get("DATABASE_URL"),
            Some(("postgres://hush", Origin::Environment))
        );
        assert!(!format!("{raw:?}").contains("hush"));
    }

    #[test]
    fn unknown_variables_are_told_and_flags_are_not_unknown() {
        let env = [
            ("BUZZ_DRIAN", "1"),
            ("BUZZ_FEATURE_FLAG_A", "4"),
            ("PATH", "/bin"),
        ];
        let (_, raw) = run(&[], &env).unwrap();
        assert_eq!(raw.unknown(), ["BUZZ_DRIAN"]);
        assert_eq!(raw.feature_flags()["BUZZ_FEATURE_FLAG_A"].expose(), "4");
    }
}
