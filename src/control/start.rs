//! A relay's start and end: everything is opened in order, and closed in the opposite one.
//!
//! Signals are caught before anything is opened, so a signal during the start is not lost. The
//! address is taken before the store is opened, so a second relay by mistake touches no data.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::admin::{self, Admin, Sources, Status};
use super::caps::GateControl;
use super::pages::pages;
use super::refresh::{Refresh, Shown};
use super::remembered::Remembered;
use super::signals::Signals;
use crate::config::{Config, FlagsChoice, IoDriver};
use crate::error::{EXIT_CLEAN, EXIT_FAILED};
use crate::flags::Flags;
use crate::lifecycle::{Lifecycle, Stage};
use crate::limits::{
    HEARTBEAT_STALE, SHARD_START_WAIT, STOP_CLOSES_WAIT, STOP_POLL, STORE_MAP_BYTES_DEFAULT,
    STORE_READERS_DEFAULT,
};
use crate::metrics::{self, Metrics};
use crate::shard::listener::{self, Bound};
use crate::shard::runtime::Driver;
use crate::shard::{self, Common, Mail};
use crate::store::embedded::{Embedded, EmbeddedOptions, OpenError};

/// Why the relay did not start. Each says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The public address.
    #[error(transparent)]
    Listen(#[from] listener::BindError),
    /// The health or the metrics address.
    #[error(transparent)]
    Admin(#[from] admin::BindError),
    /// The data folder.
    #[error("BUZZ_DATA_DIR={dir}: {source}")]
    Store {
        /// The folder.
        dir: String,
        /// What is wrong with it.
        source: OpenError,
    },
    /// io_uring was demanded and refused.
    #[error("BUZZ_IO_DRIVER=io_uring, but the kernel refuses it: {0}; {1}")]
    Driver(io::Error, &'static str),
    /// The operating system gave no thread, descriptor or memory.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
}

/// Runs a relay until it is told to stop. Returns the exit code.
///
/// # Errors
///
/// What kept it from starting; nothing of it is left running.
pub fn run(config: Config, metrics: Metrics) -> Result<i32, StartError> {
    let system = |what| move |error| StartError::System(what, error);
    let started = Instant::now();
    let runtime = super::runtime().map_err(system("cannot start the control thread"))?;
    let _entered = runtime.enter();
    let signals = Signals::install().map_err(system("cannot catch signals"))?;
    let (driver, why) = choose_driver(config.io_driver)?;
    let public = listener::bind(config.bind, config.shards)?;
    let servers = Admin::bind(config.health, config.metrics)?;
    let (health, metrics_address) = (servers.health_address(), servers.metrics_address());
    let store = Embedded::open(&EmbeddedOptions {
        dir: config.data_dir.clone(),
        map_bytes: STORE_MAP_BYTES_DEFAULT,
        readers_max: STORE_READERS_DEFAULT,
    })
    .map_err(|source| StartError::Store {
        dir: config.data_dir.display().to_string(),
        source,
    })?;

    let lifecycle = Lifecycle::new();
    let pages = pages(&config);
    let common = Common::new(Arc::new(config), lifecycle.clone(), pages, store.clone());
    store.start_writer(common.sink());
    let caps = Arc::new(GateControl::new(common.gates));
    let flags = runtime.block_on(Flags::start(&common.config.flags));
    let remembered = remembers(&common.config).then(|| Remembered::open(&common.config.data_dir));
    let mut refresh = Refresh::new(flags, caps.clone(), remembered);
    // Once before the first connection: a cap holds from the start.
    refresh.refresh();
    let shown = refresh.shown();
    let Bound {
        address,
        listeners,
        lock,
    } = public;
    start_shards(&common, driver, listeners).map_err(system("cannot start a shard"))?;
    metrics::set_driver(driver.label());
    runtime.spawn(super::metrics_upkeep(metrics.clone()));
    let _servers = servers
        .serve(Sources {
            lifecycle: lifecycle.clone(),
            metrics,
            status: Arc::new(RelayStatus {
                common: common.clone(),
                caps,
                shown,
                driver,
                addresses: [address, health, metrics_address],
            }),
            started,
        })
        .map_err(system("cannot serve health and metrics"))?;
    lifecycle.advance(Stage::Ready);
    say_started(
        &common.config,
        driver,
        &why,
        [address, health, metrics_address],
    );

    let (stop_refresh, stopped) = tokio::sync::oneshot::channel::<()>();
    let refreshing = runtime.spawn(refresh.run(Refresh::period(), async {
        // A dropped sender asks for the same.
        let _ = stopped.await;
    }));
    let code = runtime.block_on(async {
        let code = stop(&common, signals).await;
        drop(stop_refresh);
        match refreshing.await {
            Ok(flags) => flags.close().await,
            Err(error) => tracing::error!(%error, "the refresh of the limits has ended before"),
        }
        code
    });
    lifecycle.advance(Stage::Stopped);
    drop(lock);
    Ok(code)
}

/// Which driver runs, and why not the best one.
fn choose_driver(wanted: IoDriver) -> Result<(Driver, String), StartError> {
    if wanted == IoDriver::Epoll {
        return Ok((Driver::Epoll, "asked for".to_owned()));
    }
    match Driver::probe() {
        (driver, None) => Ok((driver, "available".to_owned())),
        (Driver::Epoll, Some(error)) if wanted == IoDriver::IoUring => {
            let advice = advice(&error);
            Err(StartError::Driver(error, advice))
        }
        (Driver::Epoll, Some(error)) => {
            let advice = advice(&error);
            Ok((
                Driver::Epoll,
                format!("io_uring refused: {error}; {advice}"),
            ))
        }
        (driver, Some(error)) => Ok((driver, format!("without its newest flags: {error}"))),
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp \
             profile, and look at sysctl kernel.io_uring_disabled"
        }
        Some(libc::ENOMEM) => "raise the locked memory limit (LimitMEMLOCK=infinity)",
        Some(libc::ENOSYS) => "this kernel has no io_uring; Linux 5.10 or later has",
        _ => "look at the kernel's log",
    }
}

/// Starts all shards and waits until each accepts connections.
fn start_shards(
    common: &Arc<Common>,
    driver: Driver,
    listeners: Vec<std::net::TcpListener>,
) -> io::Result<()> {
    let (sender, ready) = mpsc::channel();
    let cpus = &common.config.cpus;
    let count = listeners.len();
    for (id, listener) in listeners.into_iter().enumerate() {
        let sender = sender.clone();
        let cpu = cpus.get(id % cpus.len().max(1)).copied();
        shard::start(common.clone(), id, cpu, driver, listener, move |result| {
            // Nobody waits any longer when an earlier shard has failed.
            let _ = sender.send(result);
        })?;
    }
    for _ in 0..count {
        let result = ready.recv_timeout(SHARD_START_WAIT);
        result.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    }
    Ok(())
}

/// One line that a person can act on.
fn say_started(config: &Config, driver: Driver, why: &str, addresses: [SocketAddr; 3]) {
    for note in &config.notes {
        tracing::warn!("{note}");
    }
    let [public, health, metrics] = addresses;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        driver = driver.name(),
        driver_why = why,
        shards = config.shards,
        cpus = ?config.cpus,
        store = "embedded",
        data_dir = %config.data_dir.display(),
        connections_max = config.connections_max,
        message_bytes_max = config.frame_bytes_max,
        url = %format_args!("ws://{public}"),
        health = %format_args!("http://{health}"),
        metrics = %format_args!("http://{metrics}/metrics"),
        "the relay is ready"
    );
}

/// Waits for the request to stop, and stops in order. Returns the exit code.
async fn stop(common: &Arc<Common>, mut signals: Signals) -> i32 {
    let request = signals.next().await;
    common.lifecycle.advance(Stage::Draining);
    tracing::info!(signal = request.as_str(), "the relay stops");
    let drain = common.config.drain;
    tokio::time::sleep(drain.grace).await;
    common.tell_all(|| Mail::CloseAll);
    let deadline = Instant::now() + STOP_CLOSES_WAIT.min(drain.hard_stop);
    while common.open_connections() > 0 && Instant::now() < deadline {
        tokio::time::sleep(STOP_POLL).await;
    }
    let left = common.open_connections();
    common.lifecycle.advance(Stage::Closing);
    let store = common.store.clone();
    let closed = tokio::task::spawn_blocking(move || store.close());
    let limit = Duration::from_millis(crate::limits::STORE_CLOSE_MS_MAX);
    let closed = tokio::time::timeout(limit, closed).await.is_ok();
    tracing::info!(
        connections_left = left,
        store_closed = closed,
        "the relay has stopped"
    );
    if left == 0 && closed {
        EXIT_CLEAN
    } else {
        EXIT_FAILED
    }
}

/// Only what LaunchDarkly has delivered is worth remembering: the other providers are at hand at
/// every start.
fn remembers(config: &Config) -> bool {
    config.remember_caps && matches!(config.flags, FlagsChoice::LaunchDarkly { .. })
}

/// What the health server shows of the relay.
struct RelayStatus {
    common: Arc<Common>,
    caps: Arc<GateControl>,
    shown: Shown,
    driver: Driver,
    addresses: [SocketAddr; 3],
}

impl Status for RelayStatus {
    fn alive(&self) -> Result<(), String> {
        for shard in 0..self.common.config.shards {
            let age = self.common.heartbeat_age(shard);
            if age > HEARTBEAT_STALE {
                return Err(format!(
                    "shard {shard} has been silent for {} s",
                    age.as_secs()
                ));
            }
        }
        Ok(())
    }

    fn describe(&self, status: &mut Map<String, Value>) {
        let [public, health, metrics] = self.addresses;
        let usage = self.common.store.usage();
        let shards: Vec<Value> = (0..self.common.config.shards)
            .map(|id| {
                json!({
                    "id": id,
                    "sockets": self.common.sockets(id),
                    "heartbeat_age_ms": self.common.heartbeat_age(id).as_millis() as u64,
                })
            })
            .collect();
        self.caps.describe(&self.shown, status);
        self.shown.describe(status);
        status.insert("driver".to_owned(), self.driver.name().into());
        status.insert(
            "addresses".to_owned(),
            json!({
                "websocket": public.to_string(),
                "health": health.to_string(),
                "metrics": metrics.to_string(),
            }),
        );
        status.insert(
            "connections".to_owned(),
            self.common.open_connections().into(),
        );
        status.insert("shards".to_owned(), shards.into());
        status.insert(
            "store".to_owned(),
            json!({
                "kind": "embedded",
                "file_bytes": usage.file_bytes,
                "map_bytes": usage.map_bytes,
                "pending_writes": self.common.store.pending(),
            }),
        );
    }

    fn before_scrape(&self) {
        self.caps.show();
    }
}
