//! The command line: one table of settings, and subcommands.
//!
//! | file | what it holds |
//! |---|---|
//! | [`settings`] | the table |
//! | [`asked`] | what the process can be asked to do |
//! | [`commands`] | the subcommands, as clap knows them |
//! | [`heeded`] | which settings each of them heeds |
//! | [`pages`] | what is made of them: completions, the manual page |
//!
//! [`parse`] takes the arguments and the environment and finds out what was typed; it judges no
//! value. What a value means is `config`'s business. An option wins over its variable, a variable
//! over the settings file, that over the default, and an empty or blank value is no value.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use clap::ArgMatches;

use crate::secret::Secret;

pub mod asked;
pub mod commands;
pub mod heeded;
pub mod pages;
pub mod settings;

pub use asked::{Access, AccessVerb, Command, Export};
pub use commands::command;
pub use settings::{Preset, SETTINGS, Setting, setting};

/// Variables of the `environment` flag provider start so. The provider variable has `FLAGS` in it
/// and so can never be read as a flag.
pub const FEATURE_FLAG_PREFIX: &str = "BUZZ_FEATURE_FLAG_";

/// The variable that names the settings file.
pub const CONFIG: &str = "BUZZ_CONFIG";

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
    /// `--help`, `--version`, or a page: print this on standard output and exit 0.
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
            // Whoever prints it has a prefix of its own.
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            CliError::Usage(text.trim_end().to_owned())
        } else {
            CliError::Asked(text)
        }
    })?;

    // A page is the same whatever the settings are, so these are not looked at.
    if let Some(page) = pages::asked(&matches) {
        return Err(CliError::Asked(page));
    }
    let mut raw = Raw::default();
    read_environment(&mut raw, env)?;
    read_options(&mut raw, &matches);
    Ok((commands::read(&matches), raw))
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
                return Err(CliError::Usage(format!("{name}: not UTF-8 text")));
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

    /// Parses what was typed after the program's name.
    pub(super) fn run(args: &[&str], env: &[(&str, &str)]) -> Result<(Command, Raw), CliError> {
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
            format!("buzz-uring {}", crate::version::FULL)
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
