//! The subcommands, and the command line as clap knows it.

use std::path::PathBuf;

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, ArgMatches};

use super::FEATURE_FLAG_PREFIX;
use super::asked::{Access, AccessVerb, Command, Export};
use super::settings::SETTINGS;
use super::{heeded, pages};
use crate::version::FULL;

/// What the program is called.
pub(super) const NAME: &str = "buzz-uring";

/// The command line as clap knows it.
pub fn command() -> clap::Command {
    heeded::for_parsing(bare())
}

/// The same as the manual page and the completions show it.
pub(super) fn shown() -> clap::Command {
    heeded::for_pages(bare())
}

/// Without the settings.
fn bare() -> clap::Command {
    clap::Command::new(NAME)
        .about("A Nostr relay for Linux: one io_uring shard per core")
        .version(FULL)
        .after_help(secrets_help())
        .subcommand_required(false)
        .disable_help_subcommand(true)
        .subcommand(clap::Command::new(CHECK_CONFIG).about(
            "Print what the settings come to, as a settings file without secrets; open nothing",
        ))
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
        .subcommand(clap::Command::new(RELOAD).about(
            "Tell the relay that runs on BUZZ_DATA_DIR to read its settings file again, as \
                 SIGHUP does, and print what has changed",
        ))
        .subcommand(
            clap::Command::new(LOG_LEVEL)
                .about("Show or set the log level of the relay that runs on BUZZ_DATA_DIR")
                .arg(
                    Arg::new(LEVEL)
                        .help("A word that BUZZ_LOG takes; it holds until a reload or a restart")
                        .required(false),
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
        .subcommand(status_command())
        .subcommand(top_command())
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
        )
        .subcommand(pages::completions_command())
        .subcommand(pages::manual_command())
}

/// What these arguments ask for.
pub(super) fn read(matches: &ArgMatches) -> Command {
    match matches.subcommand() {
        Some((CHECK_CONFIG, _)) => Command::CheckConfig,
        Some((DRAIN, matches)) => Command::Drain {
            wait: matches.get_flag(WAIT),
        },
        Some((RELOAD, _)) => Command::Reload,
        Some((LOG_LEVEL, matches)) => Command::LogLevel {
            level: matches.get_one::<String>(LEVEL).cloned(),
        },
        Some((ACCESS, matches)) => Command::Access(access(matches)),
        Some((HEALTH, matches)) => Command::Health {
            ready: matches.get_flag(READY),
        },
        Some((STATUS, matches)) => Command::Status {
            json: matches.get_flag(JSON),
            url: matches.get_one(URL).cloned(),
        },
        Some((TOP, matches)) => Command::Top {
            url: matches.get_one(URL).cloned(),
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
    }
}

const CHECK_CONFIG: &str = "check-config";
const DRAIN: &str = "drain";
const WAIT: &str = "wait";
const RELOAD: &str = "reload";
const LOG_LEVEL: &str = "log-level";
const LEVEL: &str = "LEVEL";
const HEALTH: &str = "health";
const READY: &str = "ready";
const ACCESS: &str = "access";
const STATUS: &str = "status";
const TOP: &str = "top";
const URL: &str = "url";
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

fn status_command() -> clap::Command {
    clap::Command::new(STATUS)
        .about(
            "Print what the relay on BUZZ_HEALTH_PORT does: clients, gates, store, drain, shards",
        )
        .arg(
            Arg::new(JSON)
                .long(JSON)
                .help("As the relay answers it (/_status), on one line")
                .action(ArgAction::SetTrue),
        )
        .arg(url())
        .after_help(
            "Exit code 0: the relay is ready. 1: it is not, or does not answer. 64: bad usage.",
        )
}

fn top_command() -> clap::Command {
    clap::Command::new(TOP)
        .about("Show the relay on BUZZ_HEALTH_PORT, every second, until q is pressed")
        .arg(url())
}

fn url() -> Arg {
    Arg::new(URL)
        .long(URL)
        .help("The health port of another relay: http://host:port, or host:port")
        .value_name("URL")
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

#[cfg(test)]
mod tests;
