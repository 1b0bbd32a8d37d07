//! A relay's start and end: everything is opened in order, and closed in the opposite one.
//!
//! Signals are caught before anything is opened, so a signal during the start is not lost. The
//! address is taken before the store is opened, so a second relay by mistake touches no data.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::access;
use super::admin::{self, Admin, Sources, Status};
use super::backup;
use super::caps::GateControl;
use super::command;
use super::logs::Logs;
use super::notify::Manager;
use super::open::{self, Opened};
use super::pages::pages;
use super::refresh::Refresh;
use super::reload::{self, Reloader};
use super::remembered::Remembered;
use super::signals::{Signals, StopRequest};
use super::socket::Socket;
use super::status::RelayStatus;
use super::stop::{Door, Stop};
use super::transfer;
use super::watchdog;
use crate::config::{Config, FlagsChoice, Given, IoDriver};
use crate::error::EXIT_CLEAN;
use crate::flags::Flags;
use crate::lifecycle::{Lifecycle, Stage};
use crate::limits::{SHARD_START_WAIT, SIGNAL_LOOK};
use crate::metrics::database::DatabaseMetrics;
use crate::metrics::{self, Metrics};
use crate::shard::hooks::{self, Hook};
use crate::shard::listener::{self, Bound};
use crate::shard::runtime::Driver;
use crate::shard::settings::Settings;
use crate::shard::{self, Common};
use crate::store::embedded::OpenError;
use crate::store::{Store, postgres};
use crate::version::VERSION;

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
    /// The database.
    #[error(transparent)]
    Database(#[from] postgres::OpenError),
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
pub fn run(config: Config, given: Given, metrics: Metrics, logs: Logs) -> Result<i32, StartError> {
    let system = |what| move |error| StartError::System(what, error);
    let started = Instant::now();
    let runtime = super::runtime().map_err(system("cannot start the control thread"))?;
    let _entered = runtime.enter();
    let mut signals = Signals::install().map_err(system("cannot catch signals"))?;
    tracing::info!(version = VERSION, "the relay starts");
    let manager = Manager::from_environment();
    let hook = hooks::delay(Hook::Start).unwrap_or_default();
    if runtime.block_on(stopped_early(&mut signals, SIGNAL_LOOK + hook)) {
        return Ok(EXIT_CLEAN);
    }
    let (driver, why) = choose_driver(config.io_driver)?;
    // The provider may take seconds. Until it has answered nothing is open, so a signal ends it all.
    let flags = runtime.block_on(async {
        tokio::select! {
            flags = Flags::start(&config.flags) => Some(flags),
            request = signals.next() => {
                say_stopped_early(request);
                None
            }
        }
    });
    let Some(flags) = flags else {
        return Ok(EXIT_CLEAN);
    };
    let public = listener::bind(config.bind, config.shards)?;
    let servers = Admin::bind(config.health, config.metrics)?;
    let (health, metrics_address) = (servers.health_address(), servers.metrics_address());
    if runtime.block_on(stopped_early(&mut signals, SIGNAL_LOOK)) {
        return Ok(EXIT_CLEAN);
    }
    let opening = open::store(&config, &public.listeners, &servers, &mut signals);
    let Opened { store, folder } = match runtime.block_on(opening)? {
        Ok(opened) => opened,
        Err(request) => {
            say_stopped_early(request);
            return Ok(EXIT_CLEAN);
        }
    };

    // The folder's lock is held from here on, so the socket's file is nobody else's.
    let socket =
        Socket::bind(&config.data_dir).map_err(system("cannot open the control socket"))?;

    let lifecycle = Lifecycle::new();
    let pages = pages(&config);
    let settings = Settings { config, pages };
    let common = Common::new(settings, lifecycle.clone(), store.clone());
    let settings = common.settings();
    let config = &settings.config;
    if let Store::Embedded(store) = &store {
        store.retain(config.retention.clone());
    }
    store.start_writer(common.sink());
    let caps = Arc::new(GateControl::new(common.gates));
    let remembered = remembers(config).then(|| Remembered::open(&config.data_dir));
    let mut refresh = Refresh::new(flags, caps.clone(), remembered);
    // Once before the first connection: a cap holds from the start.
    refresh.refresh();
    let shown = refresh.shown();
    let Bound {
        address,
        listeners,
        lock,
    } = public;
    let second_handles: io::Result<Vec<_>> = listeners.iter().map(|one| one.try_clone()).collect();
    let second_handles = second_handles.map_err(system("cannot keep the listening sockets"))?;
    start_shards(&common, driver, listeners).map_err(system("cannot start a shard"))?;
    metrics::set_driver(driver.label());
    runtime.spawn(super::metrics_upkeep(metrics.clone()));
    // From here on there may be clients, and the end is a drain.
    if runtime.block_on(stopped_early(&mut signals, SIGNAL_LOOK)) {
        store.close();
        return Ok(EXIT_CLEAN);
    }
    let door = Door::new(common.clone(), &signals);
    let status = Arc::new(RelayStatus {
        common: common.clone(),
        caps,
        database: matches!(store, Store::Postgres(_)).then(DatabaseMetrics::new),
        shown,
        driver,
        addresses: [address, health, metrics_address],
        door: door.clone(),
    });
    let sources = Sources {
        lifecycle: lifecycle.clone(),
        metrics,
        status: status.clone(),
        started,
    };
    let reloader = Reloader::new(given, common.clone(), logs.clone(), manager.clone());
    let commands = command::router(door.clone()).merge(reload::router(reloader.clone()));
    let control = socket
        .serve(
            commands
                .clone()
                .merge(access::router(common.clone()))
                .merge(transfer::router(common.clone()))
                .merge(backup::router(common.clone()))
                .merge(admin::status_router(sources.clone())),
        )
        .map_err(system("cannot serve the control socket"))?;
    let _servers = servers
        .serve(sources, commands)
        .map_err(system("cannot serve health and metrics"))?;
    lifecycle.advance(Stage::Ready);
    say_started(
        config,
        &store,
        driver,
        &why,
        [address, health, metrics_address],
    );

    manager.ready("serving");
    // One that came during the start is answered now.
    if let Some(hangups) = signals.hangups() {
        runtime.spawn(reloader.follow(hangups));
    }
    if let Some(period) = watchdog::period() {
        runtime.spawn(watchdog::feed(manager.clone(), period, move || {
            status.alive()
        }));
    }
    let (stop_refresh, stopped) = tokio::sync::oneshot::channel::<()>();
    let refreshing = runtime.spawn(refresh.run(Refresh::period(), async {
        // A dropped sender asks for the same.
        let _ = stopped.await;
    }));
    // The caps can be moved until every connection has ended: the gates stay open until then.
    let close_flags = async {
        drop(stop_refresh);
        match refreshing.await {
            Ok(flags) => flags.close().await,
            Err(error) => tracing::error!(%error, "the refresh of the limits has ended before"),
        }
    };
    let stop = Stop {
        door,
        manager,
        logs,
        listeners: second_handles,
    };
    let code = runtime.block_on(stop.run(signals, close_flags));
    drop((control, lock, folder));
    // A task that hangs, such as the store's close, must not hold up the exit.
    drop(_entered);
    runtime.shutdown_background();
    Ok(code)
}

/// Whether a signal came while nothing was served yet. Then there is nothing to drain.
async fn stopped_early(signals: &mut Signals, look: Duration) -> bool {
    // Not only what has come: a signal that the kernel has just delivered comes through a task.
    match tokio::time::timeout(look, signals.next()).await {
        Ok(request) => {
            say_stopped_early(request);
            true
        }
        Err(_) => false,
    }
}

fn say_stopped_early(request: StopRequest) {
    let signal = request.as_str();
    tracing::info!(signal, "stopped while starting: nothing was served");
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
        // Podman's profile refuses what it does not know as if the kernel did not know it.
        Some(libc::ENOSYS) => {
            "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp \
             profile; outside of containers, this kernel has no io_uring, and Linux 5.10 or later has"
        }
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
    let settings = common.settings();
    let cpus = &settings.config.cpus;
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
fn say_started(
    config: &Config,
    store: &Store,
    driver: Driver,
    why: &str,
    addresses: [SocketAddr; 3],
) {
    for note in &config.notes {
        tracing::warn!("{note}");
    }
    let [public, health, metrics] = addresses;
    tracing::info!(
        version = VERSION,
        driver = driver.name(),
        driver_why = why,
        shards = config.shards,
        cpus = ?config.cpus,
        store = store.name(),
        data_dir = %config.data_dir.display(),
        connections_max = config.connections_max,
        message_bytes_max = config.frame_bytes_max,
        url = %format_args!("ws://{public}"),
        health = %format_args!("http://{health}"),
        metrics = %format_args!("http://{metrics}/metrics"),
        "the relay is ready"
    );
}

/// Only what LaunchDarkly has delivered is worth remembering: the other providers are at hand at
/// every start.
fn remembers(config: &Config) -> bool {
    config.remember_caps && matches!(config.flags, FlagsChoice::LaunchDarkly { .. })
}
