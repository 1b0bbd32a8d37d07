//! Where the settings come from: what was typed, the settings file, and the machine.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::listen::admin;
use super::read::Reader;
use super::storing::data_dir;
use super::{Config, ConfigError, Machine, file};
use crate::cli::{CONFIG, Raw};

/// What a configuration is made of. Kept while the relay runs, so that its file can be read again.
#[derive(Clone, Debug)]
pub struct Given {
    raw: Raw,
    machine: Machine,
}

/// Where a running relay answers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Meeting {
    /// The folder that its control socket is in.
    pub data_dir: PathBuf,
    /// Its health server, by the settings as they are now.
    pub health: SocketAddr,
    /// Whether the relay, which has them from its start, may have another one: the settings file has
    /// changed meanwhile, or the port was left to chance.
    pub is_health_uncertain: bool,
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

    /// Where the relay of these settings is met. Nothing else is judged: whoever asks a relay that runs
    /// must not fail by a line that the relay has not taken over.
    ///
    /// # Errors
    ///
    /// What is wrong with the two.
    pub fn meeting(&self) -> Result<Meeting, ConfigError> {
        let lines = self.file().map(file::read_what_is_sound);
        let raw = match (self.file(), lines) {
            (Some(path), Some(lines)) => self.raw.over_file(path, &lines),
            _ => self.raw.clone(),
        };
        let mut reader = Reader::new(&raw);
        let [bind, port] = ["BUZZ_HEALTH_BIND", "BUZZ_HEALTH_PORT"];
        let health = admin(&mut reader, bind, port);
        // An option and a variable are what they are, whatever the file says.
        let is_typed = [bind, port].map(|name| self.raw.get(name).is_some());
        let by_file = self.file().is_some() && is_typed != [true, true];
        let meeting = Meeting {
            data_dir: data_dir(&mut reader),
            health,
            is_health_uncertain: by_file || health.port() == 0,
        };
        reader.finish().map(|_| meeting)
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
