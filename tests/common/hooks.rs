//! Faults of a relay, while it runs: see `shard/hooks.rs`.

use std::fmt::Write as _;
use std::path::PathBuf;

use tempfile::TempDir;

use super::Launch;

/// The file by which a relay is made slow or faulty while it runs.
pub struct Hooks {
    folder: TempDir,
}

impl Hooks {
    pub fn new(settings: &[(&str, &str)]) -> Hooks {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let hooks = Hooks { folder };
        hooks.set(settings);
        hooks
    }

    /// What to put into `BUZZ_HOOKS_FILE`.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("hooks")
    }

    /// Replaces all that was set.
    pub fn set(&self, settings: &[(&str, &str)]) {
        let text = settings
            .iter()
            .fold(String::new(), |mut text, (key, value)| {
                let _ = writeln!(text, "{key}={value}");
                text
            });
        // Renamed over the old one: a relay that reads meanwhile sees the old or the new one.
        let next = self.folder.path().join("next");
        std::fs::write(&next, text).expect("a file");
        std::fs::rename(next, self.path()).expect("a file");
    }

    /// Takes everything away.
    pub fn clear(&self) {
        self.set(&[]);
    }
}

/// Adds the hooks file to a launch.
pub fn hooked(launch: Launch, hooks: &Hooks) -> Launch {
    launch.set("BUZZ_HOOKS_FILE", hooks.path().display())
}
