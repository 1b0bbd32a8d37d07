//! What was given on the command line, by type.

use std::path::PathBuf;

use clap::ArgMatches;

use crate::schedule::{Nanos, Pace};

/// Typed reading of what was given. Names are those of the table; a wrong one is a defect that every
/// test of the workload shows.
pub struct Given<'a>(pub &'a ArgMatches);

impl Given<'_> {
    /// A number, if given or defaulted.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.0.try_get_one::<u64>(name).ok().flatten().copied()
    }

    /// A number that counts things in memory.
    pub fn size(&self, name: &str) -> usize {
        self.number(name)
            .map_or(0, |number| usize::try_from(number).unwrap_or(usize::MAX))
    }

    /// Seconds, as nanoseconds.
    pub fn end(&self) -> Option<Nanos> {
        let seconds = self
            .0
            .try_get_one::<f64>("seconds")
            .ok()
            .flatten()
            .copied()?;
        Some((seconds.max(0.0) * 1e9) as Nanos)
    }

    /// Closed loop, or open at a rate.
    pub fn pace(&self) -> Pace {
        match self.0.try_get_one::<f64>("rate").ok().flatten() {
            Some(rate) => Pace::Open { rate: *rate },
            None => Pace::Closed,
        }
    }

    /// Text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0
            .try_get_one::<String>(name)
            .ok()
            .flatten()
            .map(String::as_str)
    }

    /// A path.
    pub fn path(&self, name: &str) -> Option<&PathBuf> {
        self.0.try_get_one::<PathBuf>(name).ok().flatten()
    }

    /// A switch.
    pub fn is_set(&self, name: &str) -> bool {
        self.0
            .try_get_one::<bool>(name)
            .ok()
            .flatten()
            .copied()
            .unwrap_or(false)
    }

    /// All values of an option that may be repeated.
    pub fn all<T: Clone + Send + Sync + 'static>(&self, name: &str) -> Vec<T> {
        let values = self.0.try_get_many::<T>(name).ok().flatten();
        values.map_or_else(Vec::new, |values| values.cloned().collect())
    }
}
