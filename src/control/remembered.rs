//! Remembered caps: what was in force last, for a start during an outage of LaunchDarkly.
//!
//! The values that this process was given are saved in the data folder, when they change and every
//! few minutes, so that their age is true. A later process applies them, for at most a day, until it
//! is given values of its own. A process never saves what it only remembers: that would make a cap
//! young again for ever.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::limits;
use crate::metrics::{GateName, Label};

const FILE: &str = "remembered-caps.json";
/// Written whole and synced, then renamed over [`FILE`]: a reader sees the old or the new one.
const FILE_NEXT: &str = "remembered-caps.json.next";

/// Flag values by [`GateName`]; None is no value.
pub type Caps = [Option<i64>; GateName::ALL.len()];

/// The memory of one data folder.
#[derive(Debug)]
pub struct Remembered {
    folder: PathBuf,
    /// What an earlier process left; None once this one was given values of its own.
    found: Option<Saved>,
    writing: Arc<Mutex<Writing>>,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Saved {
    saved_at_seconds: u64,
    history_reads: Option<i64>,
    auth: Option<i64>,
}

#[derive(Debug, Default)]
struct Writing {
    /// The last write that succeeded.
    done: Option<(Caps, SystemTime)>,
    under_way: bool,
    /// A failure has been logged and no success since.
    failing: bool,
}

impl Remembered {
    /// Reads what an earlier process left in the folder. A file that cannot be read is as none, and
    /// a warning.
    pub fn open(folder: &Path) -> Remembered {
        let found = match read(&folder.join(FILE)) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "remembered caps cannot be read: the ceilings apply instead");
                None
            }
        };
        Remembered {
            folder: folder.to_owned(),
            found,
            writing: Arc::default(),
        }
    }

    /// A remembered cap that may be applied at `now`, and its age.
    pub fn cap(&self, gate: GateName, now: SystemTime) -> Option<(i64, Duration)> {
        let saved = self.found.as_ref()?;
        let age = saved.age(now)?;
        saved.caps()[gate.index()]
            .filter(|value| *value > 0)
            .map(|value| (value, age))
    }

    /// Takes the values in force, as given by the provider, and forgets the remembered ones. Saves
    /// them when it is time to, on a thread of the runtime: a slow disk must not hold the caller.
    pub fn keep(&mut self, caps: Caps, now: SystemTime) {
        self.found = None;
        let mut writing = self.lock();
        let fresh = writing.done.is_some_and(|(done, at)| {
            let age = now.duration_since(at).unwrap_or(Duration::MAX);
            done == caps && age < Duration::from_secs(limits::REMEMBERED_SAVE_SECONDS)
        });
        if fresh || writing.under_way {
            return;
        }
        writing.under_way = true;
        drop(writing);
        let (folder, state) = (self.folder.clone(), Arc::clone(&self.writing));
        tokio::task::spawn_blocking(move || {
            let result = write(&folder, &Saved::new(caps, now));
            let mut writing = state.lock().unwrap_or_else(PoisonError::into_inner);
            writing.under_way = false;
            match result {
                Ok(()) => (writing.done, writing.failing) = (Some((caps, now)), false),
                Err(error) if !std::mem::replace(&mut writing.failing, true) => {
                    tracing::warn!(%error, "caps cannot be remembered; trying again");
                }
                Err(_) => {}
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Saved {
    fn new(caps: Caps, now: SystemTime) -> Saved {
        Saved {
            saved_at_seconds: now
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            history_reads: caps[GateName::HistoryReads.index()],
            auth: caps[GateName::Auth.index()],
        }
    }

    fn caps(&self) -> Caps {
        let mut caps = [None; GateName::ALL.len()];
        caps[GateName::HistoryReads.index()] = self.history_reads;
        caps[GateName::Auth.index()] = self.auth;
        caps
    }

    /// None when too old, or from a future that no small step of the clock explains.
    fn age(&self, now: SystemTime) -> Option<Duration> {
        let now = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
        if self.saved_at_seconds > now.saturating_add(limits::REMEMBERED_AHEAD_SECONDS_MAX) {
            return None;
        }
        let age = now.saturating_sub(self.saved_at_seconds);
        (age <= limits::REMEMBERED_AGE_SECONDS_MAX).then(|| Duration::from_secs(age))
    }
}

fn read(path: &Path) -> io::Result<Option<Saved>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(limits::REMEMBERED_BYTES_MAX)
        .read_to_string(&mut text)?;
    Ok(Some(serde_json::from_str(&text)?))
}

fn write(folder: &Path, saved: &Saved) -> io::Result<()> {
    let next = folder.join(FILE_NEXT);
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&next)?;
    file.write_all(&serde_json::to_vec(saved)?)?;
    file.sync_all()?;
    std::fs::rename(&next, folder.join(FILE))?;
    // The rename itself must survive a crash as well.
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::logs::capture;
    use tracing::level_filters::LevelFilter;

    const CAPS: Caps = [Some(9), Some(4)];

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
    }

    async fn settled(remembered: &Remembered) {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while remembered.lock().under_way {
            assert!(
                std::time::Instant::now() < deadline,
                "the write has not ended"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn save(folder: &Path, caps: Caps, now: SystemTime) {
        let mut remembered = Remembered::open(folder);
        remembered.keep(caps, now);
        settled(&remembered).await;
    }

    #[tokio::test]
    async fn caps_last_a_day() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), CAPS, at(0)).await;
        let remembered = Remembered::open(folder.path());
        let day = limits::REMEMBERED_AGE_SECONDS_MAX;
        for age in [0, 1, day] {
            let expected = Some((4, Duration::from_secs(age)));
            assert_eq!(remembered.cap(GateName::Auth, at(age)), expected);
        }
        let history = remembered.cap(GateName::HistoryReads, at(1)).unwrap();
        assert_eq!(history, (9, Duration::from_secs(1)));
        // The same memory, asked later: expiry is checked while running.
        assert_eq!(remembered.cap(GateName::Auth, at(day + 1)), None);
        // A clock that was set back, by a little and by a lot.
        let ahead = Duration::from_secs(limits::REMEMBERED_AHEAD_SECONDS_MAX);
        assert_eq!(
            remembered.cap(GateName::Auth, at(0) - ahead),
            Some((4, Duration::ZERO))
        );
        let second = Duration::from_secs(1);
        assert_eq!(remembered.cap(GateName::Auth, at(0) - ahead - second), None);
    }

    #[tokio::test]
    async fn what_is_given_replaces_what_is_remembered() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), CAPS, at(0)).await;
        let mut remembered = Remembered::open(folder.path());
        remembered.keep([Some(0), None], at(5));
        assert_eq!(remembered.cap(GateName::Auth, at(5)), None);
        settled(&remembered).await;
        // Neither 0 nor no value is a cap to remember.
        let remembered = Remembered::open(folder.path());
        assert_eq!(remembered.found, Some(Saved::new([Some(0), None], at(5))));
        for gate in GateName::ALL {
            assert_eq!(remembered.cap(*gate, at(6)), None);
        }
    }

    #[tokio::test]
    async fn it_is_saved_on_change_and_every_few_minutes() {
        let folder = tempfile::tempdir().unwrap();
        let mut remembered = Remembered::open(folder.path());
        let period = limits::REMEMBERED_SAVE_SECONDS;
        let later = [Some(9), Some(3)];
        let rows = [
            (CAPS, 0, 0),
            (CAPS, 5, 0),
            (CAPS, period - 1, 0),
            (CAPS, period, period),
            (later, period + 5, period + 5),
            (later, period + 10, period + 5),
        ];
        for (caps, now, saved_at) in rows {
            remembered.keep(caps, at(now));
            settled(&remembered).await;
            assert_eq!(
                read(&folder.path().join(FILE)).unwrap(),
                Some(Saved::new(caps, at(saved_at)))
            );
        }
        assert!(!folder.path().join(FILE_NEXT).exists());
    }

    #[tokio::test]
    async fn a_broken_file_is_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let padding = " ".repeat(limits::REMEMBERED_BYTES_MAX as usize);
        let sound = serde_json::to_string(&Saved::new(CAPS, at(0))).unwrap();
        for text in ["", "{}", "[1]", &sound[..20], &format!("{padding}{sound}")] {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            let (captured, _guard) = capture::logs(LevelFilter::WARN);
            let remembered = Remembered::open(folder.path());
            assert_eq!(remembered.cap(GateName::Auth, at(0)), None);
            assert_eq!(captured.text().lines().count(), 1, "{text}");
        }
        let (captured, _guard) = capture::logs(LevelFilter::WARN);
        let other = tempfile::tempdir().unwrap();
        assert_eq!(Remembered::open(other.path()).found, None);
        assert_eq!(captured.text(), "", "no file is nothing to warn of");
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_written_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let mut remembered = Remembered::open(&missing);
        for _ in 0..3 {
            remembered.keep(CAPS, at(0));
            settled(&remembered).await;
            assert!(remembered.lock().failing);
        }
        std::fs::create_dir(&missing).unwrap();
        remembered.keep(CAPS, at(5));
        settled(&remembered).await;
        assert!(!remembered.lock().failing);
        assert_eq!(
            Remembered::open(&missing)
                .cap(GateName::Auth, at(5))
                .unwrap()
                .0,
            4
        );
    }
}
