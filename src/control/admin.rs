//! The health and metrics servers.
//!
//! They answer from the control thread, so they answer while every shard is busy. They know nothing
//! of shards: what they show of them comes through [`Status`]. Read-only from anywhere they are
//! bound; what changes something is on the health port too, for requests from this machine. One request a connection, a bound on connections and on the life of each: neither a
//! stranger nor a stuck scraper can take the port away from the supervisor for long.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::IncomingStream;
use axum::{Json, Router, middleware};
use serde_json::{Map, Value};
use tokio::task::JoinHandle;

use super::bounded::Bounded;
use super::pages;
use crate::lifecycle::{Lifecycle, Stage};
use crate::limits;
use crate::metrics::Metrics;
use crate::version::{COMMIT, VERSION};

/// What the servers show of the rest of the process. Called on the control thread: each call must
/// be quick and must not block.
pub trait Status: Send + Sync + 'static {
    /// Ok while every shard's heart beats; else which one does not.
    ///
    /// # Errors
    ///
    /// A sentence for the supervisor's log.
    fn alive(&self) -> Result<(), String>;
    /// Adds to the object that `/_status` answers: shards, gates, provider, drain.
    fn describe(&self, status: &mut Map<String, Value>);
    /// Sets the gauges that are read from snapshots, before a scrape shows them.
    fn before_scrape(&self);
}

/// What the servers answer from.
#[derive(Clone)]
pub struct Sources {
    /// The life of the process.
    pub lifecycle: Arc<Lifecycle>,
    /// The series.
    pub metrics: Metrics,
    /// Everything else.
    pub status: Arc<dyn Status>,
    /// When the process started.
    pub started: Instant,
}

/// Both listeners, bound and not yet answering.
#[derive(Debug)]
pub struct Admin {
    health: Bound,
    metrics: Bound,
}

/// A listener that could not be bound.
#[derive(Debug, thiserror::Error)]
#[error(
    "{variable}: cannot listen on {address}: {source}; choose another port, or 0 for a free one"
)]
pub struct BindError {
    /// The setting to change.
    pub variable: &'static str,
    /// What was tried.
    pub address: SocketAddr,
    /// What the kernel said.
    pub source: io::Error,
}

/// The running servers; they stop when it is dropped.
#[derive(Debug)]
pub struct Running(Vec<JoinHandle<()>>);

impl Admin {
    /// Binds both listeners, so that a taken port fails the start.
    ///
    /// # Errors
    ///
    /// Names the setting.
    pub fn bind(health: SocketAddr, metrics: SocketAddr) -> Result<Admin, BindError> {
        Ok(Admin {
            health: Bound::new("BUZZ_HEALTH_PORT", health)?,
            metrics: Bound::new("BUZZ_METRICS_PORT", metrics)?,
        })
    }

    /// The health server's real address.
    pub fn health_address(&self) -> SocketAddr {
        self.health.address
    }

    /// The metrics server's real address.
    pub fn metrics_address(&self) -> SocketAddr {
        self.metrics.address
    }

    /// Answers on the health port before there is anything to show, until the task is aborted.
    ///
    /// # Errors
    ///
    /// When the runtime cannot take the listener.
    pub fn serve_health_early(&self, router: Router) -> io::Result<JoinHandle<()>> {
        let life = Duration::from_millis(limits::ADMIN_CONNECTION_MS_MAX);
        let router = router.layer(middleware::map_response(for_this_site_only));
        self.health.again()?.serve(life, router)
    }

    /// Starts to answer, on the runtime this is called within. `changes` holds the routes that
    /// change something: the health server has them for requests from this machine only.
    ///
    /// # Errors
    ///
    /// When the runtime cannot take a listener.
    pub fn serve(self, sources: Sources, changes: Router) -> io::Result<Running> {
        self.serve_for(
            Duration::from_millis(limits::ADMIN_CONNECTION_MS_MAX),
            sources,
            changes,
        )
    }

    fn serve_for(self, life: Duration, sources: Sources, changes: Router) -> io::Result<Running> {
        let changes = changes.layer(middleware::from_fn(only_from_here));
        let health = health_router(sources.clone())
            .merge(pages::status::router())
            .merge(changes)
            .layer(middleware::map_response(for_this_site_only));
        let health = self.health.serve(life, health)?;
        let metrics = self.metrics.serve(life, metrics_router(sources))?;
        Ok(Running(vec![health, metrics]))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for server in &self.0 {
            server.abort();
        }
    }
}

fn health_router(sources: Sources) -> Router {
    Router::new()
        .route("/health", get(liveness))
        .route("/_liveness", get(liveness))
        .route("/_readiness", get(readiness))
        .route("/_status", get(status))
        .with_state(sources)
}

/// `/_status` alone, for the control socket.
pub fn status_router(sources: Sources) -> Router {
    Router::new()
        .route("/_status", get(status))
        .with_state(sources)
}

fn metrics_router(sources: Sources) -> Router {
    Router::new()
        .route("/metrics", get(scrape))
        .with_state(sources)
}

async fn liveness(State(sources): State<Sources>) -> Response {
    match sources.status.alive() {
        Ok(()) => "ok".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    }
}

/// Readiness is about the life of the process alone: a database outage does not flip it, because
/// taking every relay out of service at once would not mend the database.
async fn readiness(State(sources): State<Sources>) -> Response {
    let (ready, body) = sources.lifecycle.stage().readiness();
    let code = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let form = HeaderValue::from_static("application/json");
    (code, [(header::CONTENT_TYPE, form)], body).into_response()
}

async fn status(State(sources): State<Sources>) -> Json<Map<String, Value>> {
    let mut status = basics(sources.lifecycle.stage());
    status.insert(
        "uptime_seconds".to_owned(),
        sources.started.elapsed().as_secs().into(),
    );
    sources.status.describe(&mut status);
    Json(status)
}

/// What `/_status` says at any time: what runs, and where in its life it is.
pub fn basics(stage: Stage) -> Map<String, Value> {
    let pairs = [
        ("version", VERSION),
        ("commit", COMMIT),
        ("lifecycle", stage.as_str()),
    ];
    let members = pairs.map(|(name, text)| (name.to_owned(), text.into()));
    members.into_iter().collect()
}

async fn scrape(State(sources): State<Sources>) -> Response {
    sources.status.before_scrape();
    let form = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, form)], sources.metrics.render()).into_response()
}

/// Lets a request through that was made on this machine, by hand or by a script: from the loopback
/// address, not passed on by a proxy, and not by a page in somebody's browser.
async fn only_from_here(
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
    const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
    let foreign = [header::ORIGIN, header::FORWARDED, FORWARDED_FOR, FETCH_SITE];
    let is_foreign = foreign
        .iter()
        .any(|name| request.headers().contains_key(name));
    if is_foreign || !peer.ip().to_canonical().is_loopback() {
        let text = "only from the loopback address, or by the control socket";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    next.run(request).await
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
struct Peer(SocketAddr);

impl Connected<IncomingStream<'_, Bounded<tokio::net::TcpListener>>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Bounded<tokio::net::TcpListener>>) -> Peer {
        Peer(*stream.remote_addr())
    }
}

/// Keeps what the health port answers out of the pages of other sites: none may load it, and no
/// browser may take it for something else than it says. That they cannot read it needs no word: there
/// are no CORS headers.
async fn for_this_site_only(mut response: Response) -> Response {
    const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
    let word = HeaderValue::from_static;
    let headers = response.headers_mut();
    headers.insert(RESOURCE_POLICY, word("same-origin"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, word("nosniff"));
    response
}

async fn one_request_a_connection(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

#[derive(Debug)]
struct Bound {
    address: SocketAddr,
    listener: TcpListener,
}

impl Bound {
    fn new(variable: &'static str, address: SocketAddr) -> Result<Bound, BindError> {
        let bind = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(Bound {
                address: listener.local_addr()?,
                listener,
            })
        };
        bind().map_err(|source| BindError {
            variable,
            address,
            source,
        })
    }

    fn again(&self) -> io::Result<Bound> {
        Ok(Bound {
            address: self.address,
            listener: self.listener.try_clone()?,
        })
    }

    fn serve(self, life: Duration, router: Router) -> io::Result<JoinHandle<()>> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let listener = Bounded::new(listener, limits::ADMIN_CONNECTIONS_MAX, life);
        let router = router.layer(middleware::map_response(one_request_a_connection));
        Ok(tokio::spawn(async move {
            // It ends only with its task: accept errors pause and go on.
            let router = router.into_make_service_with_connect_info::<Peer>();
            let _ = axum::serve(listener, router).await;
        }))
    }
}

#[cfg(test)]
mod tests;
