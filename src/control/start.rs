//! A relay's start and end: everything is opened in order, and closed in the opposite one.
//!
//! Signals are caught before anything is opened, so a signal during the start is not lost. The
//! address is taken before the store is opened, so a second relay by mistake touches no data. Clients
//! are accepted last, when they can be served: until then they wait in the sockets' queues. Where the
//! sockets are taken over, the relay that had them serves until then.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::access;
use super::activation::{InheritError, Inherited};
use super::admin::{self, Sources};
use super::backup;
use super::caps::GateControl;
use super::command;
use super::door::Door;
use super::driver;
use super::hand_over::give::Giver;
use super::hand_over::take::{self, Before, TakeError};
use super::logs::Logs;
use super::notify::Manager;
use super::open::{self, Opened};
use super::pages::pages;
use super::refresh::{Refresh, Shown};
use super::reload::{self, Reloader};
use super::remembered::Remembered;
use super::shards;
use super::signals::{Signals, StopRequest};
use super::sockets::{self, Doors, Held, Holding, Sockets};
use super::status::RelayStatus;
use super::stop::{Fronts, Stop};
use super::transfer;
use super::watchdog;
use crate::config::{Config, FlagsChoice, Given};
use crate::error::EXIT_CLEAN;
use crate::flags::Flags;
use crate::lifecycle::{Lifecycle, Stage};
use crate::limits::SIGNAL_LOOK;
use crate::metrics::database::DatabaseMetrics;
use crate::metrics::{self, Metrics};
use crate::shard::Common;
use crate::shard::hooks::{self, Hook};
use crate::shard::runtime::Driver;
use crate::shard::settings::Settings;
use crate::store::embedded::OpenError;
use crate::store::{Store, postgres};
use crate::version::VERSION;

/// Why the relay did not start. Each says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address.
    #[error(transparent)]
    Listen(#[from] sockets::BindError),
    /// Sockets of the service manager.
    #[error(transparent)]
    Inherited(#[from] InheritError),
    /// Sockets of a running relay.
    #[error("BUZZ_TAKE_OVER: {0}")]
    TakeOver(#[from] TakeError),
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

/// Why there is nothing to drain.
enum Unstarted {
    /// The start failed.
    Failed(StartError),
    /// A signal came while nothing was served yet.
    Stopped,
}

impl<E: Into<StartError>> From<E> for Unstarted {
    fn from(error: E) -> Unstarted {
        Unstarted::Failed(error.into())
    }
}

/// Runs a relay until it is told to stop. Returns the exit code.
///
/// # Errors
///
/// What kept it from starting; nothing of it is left running.
pub fn run(
    config: Config,
    given: Given,
    metrics: Metrics,
    logs: Logs,
    inherited: Inherited,
) -> Result<i32, StartError> {
    let runtime = super::runtime().map_err(system("cannot start the control thread"))?;
    let ran = runtime.block_on(start(config, given, metrics, logs, inherited));
    // A task that hangs, such as the store's close, must not hold up the exit.
    runtime.shutdown_background();
    match ran {
        Ok(code) => Ok(code),
        Err(Unstarted::Stopped) => Ok(EXIT_CLEAN),
        Err(Unstarted::Failed(error)) => Err(error),
    }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::System(what, error)
}

/// The start in order, and the rest of the relay's life.
async fn start(
    config: Config,
    given: Given,
    metrics: Metrics,
    logs: Logs,
    inherited: Inherited,
) -> Result<i32, Unstarted> {
    let started = Instant::now();
    let mut signals = Signals::install().map_err(system("cannot catch signals"))?;
    tracing::info!(version = VERSION, "the relay starts");
    let manager = Manager::from_environment();
    let hook = hooks::delay(Hook::Start).unwrap_or_default();
    unless_stopped(&mut signals, SIGNAL_LOOK + hook).await?;
    let driver = driver::choose(config.io_driver)?;
    let flags = start_flags(&config, &mut signals).await?;
    let (sockets, before) = find_sockets(&config, inherited)?;
    unless_stopped(&mut signals, SIGNAL_LOOK).await?;
    let opened = open::store(&config, &sockets, &mut signals).await?;
    let opened = opened.map_err(|request| {
        say_stopped_early(request);
        Unstarted::Stopped
    })?;
    let parts = Parts::start(config, opened.store.clone(), flags, driver)?;
    // From here on there may be clients, and the end is a drain.
    if let Err(stopped) = unless_stopped(&mut signals, SIGNAL_LOOK).await {
        opened.store.close();
        return Err(stopped);
    }
    let relay = Relay {
        parts,
        given,
        metrics,
        logs,
        manager,
        started,
    };
    relay.serve(sockets, before, opened, signals).await
}

/// Whether a signal came while nothing was served yet. Then there is nothing to drain.
async fn unless_stopped(signals: &mut Signals, look: Duration) -> Result<(), Unstarted> {
    // Not only what has come: a signal that the kernel has just delivered comes through a task.
    match tokio::time::timeout(look, signals.next()).await {
        Ok(request) => {
            say_stopped_early(request);
            Err(Unstarted::Stopped)
        }
        Err(_) => Ok(()),
    }
}

fn say_stopped_early(request: StopRequest) {
    let signal = request.as_str();
    tracing::info!(signal, "stopped while starting: nothing was served");
}

/// The provider may take seconds. Until it has answered nothing is open, so a signal ends it all.
async fn start_flags(config: &Config, signals: &mut Signals) -> Result<Flags, Unstarted> {
    tokio::select! {
        flags = Flags::start(&config.flags) => Ok(flags),
        request = signals.next() => {
            say_stopped_early(request);
            Err(Unstarted::Stopped)
        }
    }
}

/// The running relay's sockets if they are to be taken over and there is one, else new ones.
fn find_sockets(
    config: &Config,
    inherited: Inherited,
) -> Result<(Sockets, Option<Before>), StartError> {
    if config.take_over {
        if let Some((sockets, before)) = take::take(config)? {
            let process = before.process();
            tracing::info!(process, "took the listening sockets of the running relay");
            return Ok((sockets, Some(before)));
        }
        tracing::info!("no relay runs on the data folder, so nothing is taken over");
    }
    Ok((Sockets::bind(config, inherited)?, None))
}

/// What serves clients, running, while none is accepted yet.
struct Parts {
    common: Arc<Common>,
    caps: Arc<GateControl>,
    refresh: Refresh,
    shown: Shown,
    driver: Driver,
    driver_why: String,
}

impl Parts {
    /// Starts the store's writer and the shards, and applies the caps.
    fn start(
        config: Config,
        store: Store,
        flags: Flags,
        (driver, driver_why): (Driver, String),
    ) -> Result<Parts, StartError> {
        let pages = pages(&config);
        let lifecycle = Lifecycle::new();
        let settings = Settings { config, pages };
        let common = Common::new(settings, lifecycle, store.clone());
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
        shards::start(&common, driver).map_err(system("cannot start a shard"))?;
        metrics::set_driver(driver.label());
        Ok(Parts {
            common,
            caps,
            refresh,
            shown,
            driver,
            driver_why,
        })
    }
}

/// Everything but what it listens on.
struct Relay {
    parts: Parts,
    given: Given,
    metrics: Metrics,
    logs: Logs,
    manager: Manager,
    started: Instant,
}

impl Relay {
    /// Serves clients, relieves the relay before, and goes on to the end. Returns the exit code.
    async fn serve(
        self,
        sockets: Sockets,
        before: Option<Before>,
        opened: Opened,
        mut signals: Signals,
    ) -> Result<i32, Unstarted> {
        let Parts { common, caps, .. } = &self.parts;
        let settings = common.settings();
        let (addresses, origin) = (sockets.addresses(), sockets.origin);
        let Doors {
            listeners,
            admin,
            control,
            hand_over,
            held,
        } = Doors::open(&settings.config, sockets, opened.folder)
            .map_err(system("cannot open the sockets"))?;
        let lifecycle = common.lifecycle.clone();
        let holding = Holding::new(held);
        let giver = Giver::new(lifecycle.clone(), holding.clone(), signals.requests());
        let door = Door::new(common.clone(), &signals);
        let is_postgres = matches!(common.store, Store::Postgres(_));
        let status = Arc::new(RelayStatus {
            common: common.clone(),
            caps: caps.clone(),
            database: is_postgres.then(DatabaseMetrics::new),
            shown: self.parts.shown.clone(),
            driver: self.parts.driver,
            addresses,
            door: door.clone(),
            giver: giver.clone(),
        });
        let sources = Sources {
            lifecycle: lifecycle.clone(),
            metrics: self.metrics.clone(),
            status: status.clone(),
            started: self.started,
        };

        tokio::spawn(super::metrics_upkeep(self.metrics.clone()));
        // Before the first client: there is none that finds a relay that starts.
        lifecycle.advance(Stage::Ready);
        let (logs, manager) = (self.logs, self.manager);
        let reloader = Reloader::new(self.given, common.clone(), logs.clone(), manager.clone());
        let commands = command::router(door.clone()).merge(reload::router(reloader.clone()));
        let control = control
            .serve(
                commands
                    .clone()
                    .merge(access::router(common.clone()))
                    .merge(transfer::router(common.clone()))
                    .merge(backup::router(common.clone()))
                    .merge(admin::status_router(sources.clone())),
            )
            .map_err(system("cannot serve the control socket"))?;
        let admin = admin
            .serve(sources, commands)
            .map_err(system("cannot serve health and metrics"))?;
        shards::accept(common, listeners).map_err(system("cannot accept connections"))?;
        if let Some(before) = before {
            relieve(before).await;
            holding.look(Held::sign);
        }
        // Not before: until now a further process is answered by the relay that still serves.
        let hand_over = match hand_over.map(|socket| socket.into_parts()) {
            Some((listener, file)) => {
                let giving = giver.serve(listener);
                Some((giving.map_err(system("cannot serve hand-over.sock"))?, file))
            }
            None => None,
        };
        say_started(&self.parts, addresses, origin);
        manager.ready("serving");
        // One that came during the start is answered now.
        if let Some(hangups) = signals.hangups() {
            tokio::spawn(reloader.follow(hangups));
        }
        if let Some(period) = watchdog::period() {
            let alive = move || admin::Status::alive(&*status);
            tokio::spawn(watchdog::feed(manager.clone(), period, alive));
        }
        let stop = Stop {
            door,
            manager,
            logs,
            holding,
            giver,
            fronts: Some(Fronts {
                control,
                admin,
                hand_over,
            }),
        };
        Ok(until_the_end(stop, signals, self.parts.refresh).await)
    }
}

/// Refreshes the caps until every connection has ended: the gates stay open until then.
async fn until_the_end(stop: Stop, signals: Signals, refresh: Refresh) -> i32 {
    let (stop_refresh, stopped) = tokio::sync::oneshot::channel::<()>();
    let refreshing = tokio::spawn(refresh.run(Refresh::period(), async {
        // A dropped sender asks for the same.
        let _ = stopped.await;
    }));
    let close_flags = async {
        drop(stop_refresh);
        match refreshing.await {
            Ok(flags) => flags.close().await,
            Err(error) => tracing::error!(%error, "the refresh of the limits has ended before"),
        }
    };
    stop.run(signals, close_flags).await
}

/// Lets the relay before leave, now that this one serves.
async fn relieve(before: Before) {
    let process = before.process();
    match tokio::task::spawn_blocking(move || before.relieve()).await {
        Ok(Ok(())) => tracing::info!(process, "took over: the relay before drains"),
        Ok(Err(error)) => tracing::warn!(
            process,
            %error,
            "the relay before has not said that it leaves; both may serve: look at it"
        ),
        Err(error) => tracing::error!(%error, "the relay before was not told to leave"),
    }
}

/// One line that a person can act on.
fn say_started(parts: &Parts, addresses: [SocketAddr; 3], origin: &str) {
    let settings = parts.common.settings();
    let config = &settings.config;
    for note in &config.notes {
        tracing::warn!("{note}");
    }
    let [public, health, metrics] = addresses;
    tracing::info!(
        version = VERSION,
        driver = parts.driver.name(),
        driver_why = parts.driver_why,
        shards = config.shards,
        cpus = ?config.cpus,
        store = parts.common.store.name(),
        data_dir = %config.data_dir.display(),
        connections_max = config.connections_max,
        message_bytes_max = config.frame_bytes_max,
        sockets = origin,
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
