//! Settings that change while the relay runs: its file read again, and the log level by command.
//!
//! A file is judged whole, as at a start, before anything of it is taken over; if anything is wrong
//! all old values stay. What a changed setting cannot change now is named. SIGHUP and the command go
//! the same way, one at a time; afterwards what runs is what the settings say, also where a command
//! had set something else.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;
use tokio::signal::unix::Signal;
use tracing::level_filters::LevelFilter;

use super::logs::Logs;
use super::notify::Manager;
use super::pages::pages;
use crate::config::{Changes, ConfigError, Given, LOG_LEVELS, Waiting};
use crate::limits::SETTINGS_EXCHANGE_WAIT;
use crate::shard::Common;
use crate::shard::settings::Settings;

pub mod command;

/// Reads the settings again. Clones are the same one.
#[derive(Clone)]
pub struct Reloader(Arc<Inner>);

struct Inner {
    given: Given,
    common: Arc<Common>,
    logs: Logs,
    manager: Manager,
    turn: tokio::sync::Mutex<()>,
}

/// Why everything stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The relay was started without one.
    #[error("there is no settings file to read again: the relay was started without --config")]
    NoFile,
    /// The file, or what the settings come to with it.
    #[error(transparent)]
    Wrong(#[from] ConfigError),
    /// A defect.
    #[error("the settings could not be read again: {0}")]
    Broken(String),
}

/// Settings that were read, and what differs from before.
struct Read {
    changes: Changes,
    notes: Vec<String>,
    old_level: LevelFilter,
    log_level: LevelFilter,
    /// Whether every shard serves by them.
    everywhere: bool,
}

impl Reloader {
    /// For a relay whose settings came from `given`.
    pub fn new(given: Given, common: Arc<Common>, logs: Logs, manager: Manager) -> Reloader {
        Reloader(Arc::new(Inner {
            given,
            common,
            logs,
            manager,
            turn: tokio::sync::Mutex::new(()),
        }))
    }

    /// Reads the settings again at each hang-up, for ever.
    pub async fn follow(self, mut hangups: Signal) {
        while hangups.recv().await.is_some() {
            // What is wrong is in the log.
            let _ = self.reload("SIGHUP").await;
        }
    }

    /// Reads the settings file again and takes over what can change.
    ///
    /// # Errors
    ///
    /// Why nothing was changed; it is in the log as well.
    pub async fn reload(&self, requested_by: &str) -> Result<Changes, ReloadError> {
        let Inner {
            common, manager, ..
        } = &*self.0;
        let _turn = self.0.turn.lock().await;
        if !common.lifecycle.is_draining() {
            manager.reloading("reading the settings again");
        }
        let result = self.read_again().await;
        match &result {
            Ok(read) => self.tell(read, requested_by),
            Err(error @ ReloadError::NoFile) => tracing::warn!(requested_by, "{error}"),
            Err(error) => {
                let faults = error.to_string().replace('\n', "; ");
                tracing::error!(
                    requested_by,
                    "the settings are wrong, and all old ones stay: {faults}"
                );
            }
        }
        // A manager that was told of the end is not told of anything else.
        if !common.lifecycle.is_draining() {
            manager.ready("serving");
        }
        result.map(|read| read.changes)
    }

    async fn read_again(&self) -> Result<Read, ReloadError> {
        if self.0.given.file().is_none() {
            return Err(ReloadError::NoFile);
        }
        let inner = self.0.clone();
        // Files may be slow, and a shard may be busy.
        let read = tokio::task::spawn_blocking(move || {
            let new = inner.given.load()?;
            let old = inner.common.settings();
            let (config, changes) = old.config.reread(&new);
            let is_new = |note: &&String| !old.config.notes.contains(note);
            let read = Read {
                changes,
                notes: config.notes.iter().filter(is_new).cloned().collect(),
                old_level: old.config.log_level,
                log_level: config.log_level,
                everywhere: false,
            };
            let pages = pages(&config);
            let settings = Settings { config, pages };
            let everywhere = inner.common.exchange(settings, SETTINGS_EXCHANGE_WAIT);
            Ok(Read { everywhere, ..read })
        });
        read.await
            .unwrap_or_else(|error| Err(ReloadError::Broken(error.to_string())))
    }

    /// Logs what has changed, and sets the log level so that the lines of its change are written.
    fn tell(&self, read: &Read, requested_by: &str) {
        self.set_level_around(read.old_level, read.log_level, || {
            let Changes {
                applied,
                need_restart,
            } = &read.changes;
            for change in applied {
                let (old, new) = (&change.old, &change.new);
                tracing::info!(setting = change.variable, old, new, "a setting has changed");
            }
            for Waiting { variable, values } in need_restart {
                let [old, new] = match values {
                    Some([old, new]) => [Some(old.as_str()), Some(new.as_str())],
                    None => [None, None],
                };
                let setting = variable;
                tracing::warn!(setting, old, new, "a changed setting needs a restart");
            }
            for note in &read.notes {
                tracing::warn!("{note}");
            }
            if !read.everywhere {
                tracing::warn!("a shard is too busy to take the new settings over: reload again");
            }
            tracing::info!(
                requested_by,
                changed = applied.len(),
                need_restart = need_restart.len(),
                "the settings were read again"
            );
        });
    }

    /// Sets the log level. Returns the one before.
    pub async fn set_level(&self, level: LevelFilter) -> LevelFilter {
        let _turn = self.0.turn.lock().await;
        let old = self.level();
        self.0.common.note_log_level(level);
        self.set_level_around(old, level, || {
            let (old, new) = (word(old), word(level));
            tracing::info!(
                requested_by = "admin",
                old,
                new,
                "the log level has changed"
            );
        });
        old
    }

    fn level(&self) -> LevelFilter {
        self.0.common.settings().config.log_level
    }

    /// Sets the log level. If it is another one, `lines` are written whatever both are: nobody should
    /// have to guess why a log falls silent.
    fn set_level_around(&self, old: LevelFilter, level: LevelFilter, lines: impl FnOnce()) {
        if old != level {
            self.0.logs.set_level(level.max(old).max(LevelFilter::INFO));
        }
        lines();
        self.0.logs.set_level(level);
    }
}

/// The word for a log level.
pub fn word(level: LevelFilter) -> &'static str {
    let found = LOG_LEVELS.iter().find(|(_, known)| *known == level);
    found.map_or("unknown", |(word, _)| word)
}

/// The log level that a word means.
pub fn level_of(word: &str) -> Option<LevelFilter> {
    let found = LOG_LEVELS.iter().find(|(known, _)| *known == word);
    found.map(|(_, level)| *level)
}

/// All words for log levels, as a message lists them.
fn words() -> String {
    let words: Vec<&str> = LOG_LEVELS.iter().map(|(word, _)| *word).collect();
    words.join(", ")
}

/// `POST /reload`; `GET /log-level`, and `POST /log-level?level=debug`.
pub fn router(reloader: Reloader) -> Router {
    Router::new()
        .route("/reload", post(reload))
        .route("/log-level", get(log_level).post(set_log_level))
        .with_state(reloader)
}

async fn reload(State(reloader): State<Reloader>) -> Response {
    match reloader.reload("admin").await {
        Ok(changes) => {
            let changed = changes.applied.iter().map(
                |change| json!({"setting": change.variable, "old": change.old, "new": change.new}),
            );
            let changed: Vec<_> = changed.collect();
            let waiting = changes
                .need_restart
                .iter()
                .map(|waiting| match &waiting.values {
                    Some([old, new]) => {
                        json!({"setting": waiting.variable, "old": old, "new": new})
                    }
                    None => json!({"setting": waiting.variable}),
                });
            let waiting: Vec<_> = waiting.collect();
            Json(json!({"changed": changed, "need_restart": waiting})).into_response()
        }
        Err(error) => {
            let code = match error {
                ReloadError::NoFile => StatusCode::CONFLICT,
                ReloadError::Wrong(_) => StatusCode::UNPROCESSABLE_ENTITY,
                ReloadError::Broken(_) => StatusCode::INTERNAL_SERVER_ERROR,
            };
            (code, Json(json!({"error": error.to_string()}))).into_response()
        }
    }
}

async fn log_level(State(reloader): State<Reloader>) -> Response {
    Json(json!({"log_level": word(reloader.level())})).into_response()
}

#[derive(Deserialize)]
struct Level {
    level: String,
}

async fn set_log_level(
    State(reloader): State<Reloader>,
    Query(Level { level }): Query<Level>,
) -> Response {
    let Some(level) = level_of(&level) else {
        let error = format!("expected one of: {}", words());
        return (StatusCode::BAD_REQUEST, Json(json!({"error": error}))).into_response();
    };
    let was = reloader.set_level(level).await;
    Json(json!({"log_level": word(level), "was": word(was)})).into_response()
}
