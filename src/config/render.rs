//! The configuration as `check-config` prints it: a settings file.
//!
//! What was given stands in lines that give it again, under a comment that says where it came from.
//! Everything else is a comment: defaults, so that the next version's apply and what is found out at
//! a start is found out again; secrets; and the notes.

use std::fmt::Write;

use super::read::Resolved;
use super::{Config, FlagsChoice, file};
use crate::cli::{CONFIG, Origin, Preset, SETTINGS, Setting};

const HEAD: &str =
    "# What the settings come to, as a settings file. Behind # are defaults and remarks.\n";

impl Config {
    /// The resolved settings for `check-config`, in the order of the table, each with its origin,
    /// secrets masked; then the notes. Read as a settings file beside the same secrets, it makes the
    /// same configuration.
    pub fn render(&self) -> String {
        let mut out = String::from(HEAD);
        let mut section = "";
        for setting in SETTINGS {
            let Some(resolved) = self.resolved.get(setting.variable) else {
                continue;
            };
            if setting.section != section {
                section = setting.section;
                write(&mut out, format_args!("\n# {section}\n"));
            }
            line(&mut out, setting, resolved);
        }
        if let FlagsChoice::Environment(flags) = &self.flags {
            for name in flags.keys() {
                remark(&mut out, &format!("{name} is set"));
            }
        }
        if !self.notes.is_empty() {
            out.push('\n');
        }
        for note in &self.notes {
            remark(&mut out, &format!("note: {note}"));
        }
        out
    }
}

fn line(out: &mut String, setting: &Setting, resolved: &Resolved) {
    let name = setting.variable;
    let Resolved { text, origin, .. } = resolved;
    let is_given = *origin != Origin::Default;
    // A file cannot name another, and has its secrets from elsewhere.
    if setting.secret && is_given {
        remark(out, &format!("{name} is set ({origin})"));
    } else if setting.secret {
        remark(out, &format!("{name} is not set"));
    } else if name == CONFIG {
        remark(out, &format!("{name} is {text} ({origin})"));
    } else if is_given {
        remark(out, &format!("{name}: {origin}"));
        write(out, format_args!("{name}={}\n", file::quote(text)));
    } else if setting.default == Preset::Nothing {
        // Nothing behind the sign is no value.
        write(out, format_args!("#{name}=\n"));
    } else {
        write(out, format_args!("#{name}={}\n", file::quote(text)));
    }
}

/// A comment of one line, whatever is in it: names come from the environment.
fn remark(out: &mut String, text: &str) {
    let text = text.replace(char::is_control, " ");
    write(out, format_args!("# {text}\n"));
}

fn write(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes all");
}
