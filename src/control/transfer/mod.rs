//! Import and export: the routes of a running relay, and the commands.
//!
//! | file | what it holds |
//! |---|---|
//! | `import` | `POST /import`, the relay's side |
//! | `export` | `POST /export`, the relay's side |
//! | [`command`] | `buzz-uring import` and `buzz-uring export` |
//! | `alone` | their way into a store that nobody else uses |
//! | `through` | their way through a running relay |
//!
//! Only the control socket has the routes, and **an import is trusted**: the command checks the
//! signatures, on all cores, and the relay does not again. It checks shape and id, because what is
//! stored must be readable, and leaves it at that: whoever can open the socket (mode 0600) owns the
//! data folder, and could write into it what he likes.
//!
//! Each transfer has a thread of its own: neither a shard nor the control thread waits for the disk
//! or for a full queue.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use metrics::Gauge;

use crate::limits::EXPORT_REQUEST_BYTES_MAX;
use crate::metrics::{TransferKind, TransferMetrics};
use crate::shard::Common;
use crate::transfer::wire;

mod alone;
pub mod command;
mod export;
mod import;
mod through;

/// What the routes work with.
#[derive(Clone)]
struct Routes {
    common: Arc<Common>,
    metrics: Arc<TransferMetrics>,
}

/// The routes, for the control socket alone.
pub fn router(common: Arc<Common>) -> Router {
    let routes = Routes {
        common,
        metrics: Arc::default(),
    };
    let import = post(import::import).layer(DefaultBodyLimit::disable());
    let export = post(export::export).layer(DefaultBodyLimit::max(EXPORT_REQUEST_BYTES_MAX));
    Router::new()
        .route(wire::IMPORT, import)
        .route(wire::EXPORT, export)
        .with_state(routes)
}

fn unavailable(why: impl std::fmt::Display) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, why.to_string()).into_response()
}

/// Counts a transfer as running until it is dropped.
struct Active(Gauge);

impl Active {
    fn new(metrics: &TransferMetrics, kind: TransferKind) -> Active {
        let gauge = metrics.active.of(kind).clone();
        gauge.increment(1.0);
        Active(gauge)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
