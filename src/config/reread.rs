//! What becomes of a running relay's settings when its file is read again: those that the table marks
//! take their new values, the others keep those of the start.
//!
//! Nothing that is kept bounds anything that changes, so the mixture is as sound as either side: a
//! limit and its default, the three times of the drain, and the rates with their burst change
//! together.

use tracing::level_filters::LevelFilter;

use super::{Config, FlagsChoice, LOG_LEVELS};
use crate::cli::{SETTINGS, Setting};

/// The setting of the log level.
const LOG: &str = "BUZZ_LOG";

/// What differs between what runs and what was read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Changes {
    /// What was taken over.
    pub applied: Vec<Applied>,
    /// What needs a restart.
    pub need_restart: Vec<Waiting>,
}

/// A setting whose new value needs a restart.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Waiting {
    /// Its variable, or a flag's.
    pub variable: String,
    /// What it is, and what it would be, as `check-config` prints them. None of a secret or a flag:
    /// these are never shown.
    pub values: Option<[String; 2]>,
}

/// A setting that has a new value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Applied {
    /// Its variable. Never that of a secret.
    pub variable: &'static str,
    /// What it was, as `check-config` prints it.
    pub old: String,
    /// What it is now.
    pub new: String,
}

impl Config {
    /// The same, with a log level that was set by command.
    pub fn with_log_level(&self, level: LevelFilter) -> Config {
        let mut next = Config {
            log_level: level,
            ..self.clone()
        };
        let words = LOG_LEVELS.iter().find(|(_, known)| *known == level);
        if let (Some(resolved), Some((word, _))) = (next.resolved.get_mut(LOG), words) {
            resolved.set_text(word);
        }
        next
    }

    /// The settings of a relay that runs with these ones and has read `new`.
    pub fn reread(&self, new: &Config) -> (Config, Changes) {
        let mut next = Config {
            limit_max: new.limit_max,
            limit_default: new.limit_default,
            created_at_past: new.created_at_past,
            created_at_future: new.created_at_future,
            pow_difficulty_min: new.pow_difficulty_min,
            rates: new.rates,
            addresses: new.addresses,
            trusted_proxies: new.trusted_proxies.clone(),
            info: new.info.clone(),
            drain: new.drain,
            log_level: new.log_level,
            notes: new.notes.clone(),
            ..self.clone()
        };
        let mut changes = Changes::default();
        for Setting {
            variable,
            reread,
            secret,
            ..
        } in SETTINGS
        {
            let (Some(was), Some(is)) = (self.resolved.get(variable), new.resolved.get(variable))
            else {
                continue;
            };
            let differs = was.value != is.value;
            if *reread {
                next.resolved.insert(variable, is.clone());
                changes.applied.extend(differs.then(|| Applied {
                    variable,
                    old: was.text.clone(),
                    new: is.text.clone(),
                }));
            } else if differs {
                let values = [&was.text, &is.text].map(Clone::clone);
                changes.need_restart.push(Waiting {
                    variable: (*variable).to_owned(),
                    values: (!secret).then_some(values),
                });
            }
        }
        changes.need_restart.extend(changed_flags(self, new));
        (next, changes)
    }
}

/// Variables of the `environment` flag provider whose values differ.
fn changed_flags(old: &Config, new: &Config) -> Vec<Waiting> {
    let (FlagsChoice::Environment(old), FlagsChoice::Environment(new)) = (&old.flags, &new.flags)
    else {
        return Vec::new();
    };
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    let given = new
        .iter()
        .filter(|(name, text)| old.get(*name) != Some(text));
    let changed = gone.chain(given.map(|(name, _)| name));
    let waiting = changed.map(|name| Waiting {
        variable: name.clone(),
        values: None,
    });
    waiting.collect()
}
