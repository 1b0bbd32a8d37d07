//! Where the settings come from: what was typed, the settings file, and the machine.

use std::path::Path;

use super::{Config, ConfigError, Machine, file};
use crate::cli::{CONFIG, Raw};

/// What a configuration is made of. Kept while the relay runs, so that its file can be read again.
#[derive(Clone, Debug)]
pub struct Given {
    raw: Raw,
    machine: Machine,
}

impl Given {
    /// What was typed, and what the machine gives.
    pub fn new(raw: Raw, machine: Machine) -> Given {
        Given { raw, machine }
    }

    /// The settings file, if one was named.
    pub fn file(&self) -> Option<&Path> {
        self.raw.get(CONFIG).map(|(path, _)| Path::new(path))
    }

    /// Reads the settings file, if one was named, and makes the configuration. Blocks.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or every line of it that is wrong; else every setting that is.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let Some(path) = self.file() else {
            return Config::resolve(&self.raw, &self.machine);
        };
        let read = file::read(path)?;
        let mut config = Config::resolve(&self.raw.over_file(path, &read.lines), &self.machine)?;
        config.notes.extend(read.note);
        Ok(config)
    }
}
