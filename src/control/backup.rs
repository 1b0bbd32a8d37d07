//! Backups of a running relay's store: the route, and what passes over it.
//!
//! `POST /backup` on the control socket alone names a folder, which the relay makes. The answer is
//! JSON, an object a line: how far it is, twice a second, and at last what was made or why not. A
//! thread of its own copies; it goes on when whoever asked has left.

use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures_core::Stream;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::limits::{BACKUP_REQUEST_BYTES_MAX, BACKUP_TELL};
use crate::shard::Common;
use crate::store::Store;

pub mod command;

/// The route's path.
const PATH: &str = "/backup";

/// What is asked: the body of `POST`.
#[derive(Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Ask {
    /// The folder to make, by its whole path: the relay's own folder is another one.
    to: PathBuf,
}

/// A line of the answer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    /// How far it is, in bytes.
    Written {
        /// Written so far.
        bytes: u64,
        /// About how many there will be.
        total: u64,
    },
    /// It is made. The last line.
    Made {
        /// Its bytes.
        bytes: u64,
        /// Its events.
        events: u64,
    },
    /// It is not made, and why. The last line.
    Failed(String),
}

/// What the route works with.
#[derive(Clone)]
struct Backups {
    common: Arc<Common>,
    /// Two at once would keep twice as many pages from being used again, for nothing.
    busy: Arc<AtomicBool>,
}

/// The route, for the control socket alone.
pub fn router(common: Arc<Common>) -> Router {
    let backups = Backups {
        common,
        busy: Arc::default(),
    };
    Router::new()
        .route(PATH, post(backup))
        .layer(DefaultBodyLimit::max(BACKUP_REQUEST_BYTES_MAX))
        .with_state(backups)
}

async fn backup(State(backups): State<Backups>, Json(ask): Json<Ask>) -> Response {
    if !ask.to.is_absolute() {
        return (StatusCode::BAD_REQUEST, "the path must be a whole one").into_response();
    }
    let Some(busy) = Busy::begin(backups.busy) else {
        let text = "another backup is being made; try again when it is done";
        return (StatusCode::CONFLICT, text).into_response();
    };
    let progress = Arc::new(Progress::default());
    let (sender, made) = oneshot::channel();
    let (common, shown) = (backups.common, Arc::clone(&progress));
    let copy = move || {
        // Nobody waits any longer for the answer if whoever asked has left.
        let _ = sender.send(copy(&common, ask, &shown));
        drop(busy);
    };
    if let Err(error) = thread::Builder::new().name("backup".to_owned()).spawn(copy) {
        let text = format!("no thread for it: {error}");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    }
    let (lines, body) = mpsc::channel(1);
    tokio::spawn(tell(progress, made, lines));
    Response::new(Body::from_stream(Lines(body)))
}

/// Makes the backup, and says so in the log.
fn copy(common: &Common, ask: Ask, progress: &Progress) -> Line {
    let to = ask.to.display();
    tracing::info!(%to, "a backup begins");
    let began = Instant::now();
    let Store::Embedded(store) = &common.store else {
        return Line::Failed(command::NOT_EMBEDDED.to_owned());
    };
    let made = store.backup(&ask.to, &mut |bytes, total| {
        progress.bytes.store(bytes, Ordering::Relaxed);
        progress.total.store(total, Ordering::Relaxed);
    });
    match made {
        Ok(made) => {
            let (bytes, events) = (made.bytes, made.events);
            let seconds = began.elapsed().as_secs();
            tracing::info!(%to, bytes, events, seconds, "a backup is made");
            Line::Made { bytes, events }
        }
        Err(error) => {
            tracing::warn!(%to, %error, "a backup could not be made");
            Line::Failed(error.to_string())
        }
    }
}

/// Says how far it is until it is done: also that it is alive, while a disk takes its time.
async fn tell(
    progress: Arc<Progress>,
    mut made: oneshot::Receiver<Line>,
    lines: mpsc::Sender<Bytes>,
) {
    let mut ticks = tokio::time::interval(BACKUP_TELL);
    loop {
        let line = tokio::select! {
            made = &mut made => {
                let line = made.unwrap_or_else(|_| Line::Failed("the relay has failed".to_owned()));
                let _ = lines.send(text(&line)).await;
                return;
            }
            _ = ticks.tick() => Line::Written {
                bytes: progress.bytes.load(Ordering::Relaxed),
                total: progress.total.load(Ordering::Relaxed),
            },
        };
        if lines.send(text(&line)).await.is_err() {
            return;
        }
    }
}

fn text(line: &Line) -> Bytes {
    let mut text = serde_json::to_vec(line).expect("a line is JSON");
    text.push(b'\n');
    text.into()
}

/// How far a copy is.
#[derive(Default)]
struct Progress {
    bytes: AtomicU64,
    total: AtomicU64,
}

/// Held while a backup is being made.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn begin(busy: Arc<AtomicBool>) -> Option<Busy> {
        (!busy.swap(true, Ordering::AcqRel)).then_some(Busy(busy))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The answer's body.
struct Lines(mpsc::Receiver<Bytes>);

impl Stream for Lines {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|line| line.map(Ok))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_what_the_command_reads() {
        for (line, expected) in [
            (
                Line::Written { bytes: 1, total: 9 },
                r#"{"written":{"bytes":1,"total":9}}"#,
            ),
            (
                Line::Made {
                    bytes: 9,
                    events: 2,
                },
                r#"{"made":{"bytes":9,"events":2}}"#,
            ),
            (Line::Failed("full".to_owned()), r#"{"failed":"full"}"#),
        ] {
            let text = text(&line);
            assert_eq!(text.strip_suffix(b"\n"), Some(expected.as_bytes()));
            assert_eq!(serde_json::from_slice::<Line>(&text).expect("a line"), line);
        }
    }

    #[test]
    fn one_is_made_at_a_time() {
        let busy = Arc::default();
        let first = Busy::begin(Arc::clone(&busy)).expect("the first");
        assert!(Busy::begin(Arc::clone(&busy)).is_none());
        drop(first);
        assert!(Busy::begin(busy).is_some());
    }
}
