//! Opening the store that the settings choose.
//!
//! A database may be away for a while. Until it answers nobody is served: the health port says that
//! the relay starts, and upgrades are refused as they are at any other time that passes.

use std::net::TcpListener;
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::admin::{self, Admin};
use super::bounded::Bounded;
use super::pages;
use super::reach::store_options;
use super::signals::{Signals, StopRequest};
use super::start::StartError;
use crate::config::{Config, StoreKind};
use crate::lifecycle::Stage;
use crate::limits::{ADMIN_CONNECTION_MS_MAX, ADMIN_CONNECTIONS_MAX};
use crate::metrics::Commits;
use crate::shard::http;
use crate::store::embedded::{self, Embedded, FolderLock};
use crate::store::postgres::{Postgres, PostgresOptions};
use crate::store::{Store, unix_seconds};

/// The store, and the data folder if the store does not hold it itself.
pub struct Opened {
    /// The store. It does not write yet.
    pub store: Store,
    /// Held as long as the process runs.
    pub folder: Option<FolderLock>,
}

/// Opens the store.
///
/// # Errors
///
/// What keeps it from being opened. A signal that came meanwhile is none: it is the inner `Err`.
pub async fn store(
    config: &Config,
    public: &[TcpListener],
    servers: &Admin,
    signals: &mut Signals,
) -> Result<Result<Opened, StopRequest>, StartError> {
    let of_folder = |source: embedded::OpenError| StartError::Store {
        dir: config.data_dir.display().to_string(),
        source,
    };
    let StoreKind::Postgres { url, read_url } = &config.store else {
        let store = Embedded::open(&store_options(config));
        return Ok(Ok(Opened {
            store: Store::Embedded(store.map_err(of_folder)?),
            folder: None,
        }));
    };
    let folder = FolderLock::take(&config.data_dir).map_err(of_folder)?;
    let options = PostgresOptions {
        url: url.clone(),
        read_url: read_url.clone(),
        pool: config.db_pool,
        read_pool: config.db_read_pool,
        wait: config.db_wait,
        clock: unix_seconds,
    };
    let _meanwhile = Meanwhile::serve(public, servers)
        .map_err(|error| StartError::System("cannot answer while the database is away", error))?;
    tokio::select! {
        store = Postgres::open(options) => Ok(Ok(Opened {
            store: Store::Postgres(store?),
            folder: Some(folder),
        })),
        request = signals.next() => Ok(Err(request)),
    }
}

/// What `/_status` says of the store, and of its commits ever.
pub fn describe(store: &Store, commits: &Commits) -> Value {
    let mut described = json!({
        "kind": store.name(),
        "pending_writes": store.pending(),
        "commits": commits.count(),
        "commit_seconds": commits.time().as_secs_f64(),
    });
    match store {
        Store::Embedded(store) => {
            let usage = store.usage().ok();
            described["used_bytes"] = usage.map(|usage| usage.used_bytes).into();
            described["free_bytes"] = usage.map(|usage| usage.free_bytes).into();
            described["file_bytes"] = usage.map(|usage| usage.file_bytes()).into();
            described["events_bytes_max"] = usage.map(|usage| usage.events_max).into();
            described["bytes_max"] = usage.map(|usage| usage.bytes_max).into();
        }
        Store::Postgres(store) => {
            let status = store.status();
            let pool = |(in_use, open)| json!({"in_use": in_use, "open": open});
            described["writers"] = pool(status.writers);
            described["readers"] = pool(status.readers);
            described["listening"] = status.listening.into();
            described["behind"] = status.head.saturating_sub(status.cursor).into();
        }
    }
    described
}

/// Answers on the public and the health port while there is no store; ends when dropped.
struct Meanwhile(Vec<JoinHandle<()>>);

impl Meanwhile {
    fn serve(public: &[TcpListener], servers: &Admin) -> std::io::Result<Meanwhile> {
        let mut meanwhile = Meanwhile(vec![servers.serve_health_early(health().merge(looks()))?]);
        for listener in public {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::TcpListener::from_std(listener.try_clone()?)?;
            let life = Duration::from_millis(ADMIN_CONNECTION_MS_MAX);
            let listener = Bounded::new(listener, ADMIN_CONNECTIONS_MAX, life);
            meanwhile.0.push(tokio::spawn(async move {
                // It ends only with its task: accept errors pause and go on.
                let _ = axum::serve(listener, health().fallback(starting)).await;
            }));
        }
        Ok(meanwhile)
    }
}

impl Drop for Meanwhile {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// What only the health port shows meanwhile.
fn looks() -> Router {
    let status = || async { Json(admin::basics(Stage::Starting)) };
    pages::status::router().route("/_status", get(status))
}

/// The relay lives, and wants no traffic.
fn health() -> Router {
    let ready = || async {
        let (_, body) = Stage::Starting.readiness();
        let form = [(header::CONTENT_TYPE, "application/json")];
        (StatusCode::SERVICE_UNAVAILABLE, form, body)
    };
    Router::new()
        .route("/health", get(|| async { "ok" }))
        .route("/_liveness", get(|| async { "ok" }))
        .route("/_readiness", get(ready))
}

async fn starting() -> impl IntoResponse {
    let fields = [
        (header::RETRY_AFTER, http::RETRY_AFTER_SECONDS),
        (header::CONNECTION, "close"),
    ];
    (StatusCode::SERVICE_UNAVAILABLE, fields, "relay starting")
}
