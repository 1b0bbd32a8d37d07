//! `buzz-uring import` and `buzz-uring export`.
//!
//! Events go through standard input and output, an event a line; everything that is said goes to
//! standard error. Signatures are checked here, on all cores, whichever way the events go.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use super::alone::{StoreIntake, StoreOutlet, StoreScreen};
use super::through::{RelayIntake, RelayOutlet};
use crate::cli::Export as Asked;
use crate::config::Config;
use crate::control::reach::{Missing, ReachError, Way, reach};
use crate::error::{EXIT_CLEAN, EXIT_CONFIG, EXIT_FAILED};
use crate::limits::{EXPORT_FILTER_VALUES_MAX, EXPORT_FILTERS_MAX, IMPORT_NICENESS};
use crate::nostr::auth::RelayUrl;
use crate::nostr::filter::Filter;
use crate::store::embedded::Embedded;
use crate::store::{Export, Store};
use crate::transfer::export::{self, ExportError, Outlet};
use crate::transfer::import::{self, Intake};
use crate::transfer::policy::Policy;
use crate::transfer::pool::{self, Checks, NoScreen};
use crate::transfer::report::{Progress, Told, rate};
use crate::words::counted;

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// A filter that cannot be read.
    #[error("filter {place}: {reason}")]
    Filter {
        /// Which, from 1.
        place: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// More filters than an export may have.
    #[error("an export has at most {EXPORT_FILTERS_MAX} filters")]
    TooManyFilters,
    /// Neither a relay nor a store.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// The relay does not do it.
    #[error("{0}")]
    Relay(String),
    /// The operating system.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
}

impl TransferError {
    /// The exit code that tells a bad command from a command that failed.
    pub fn exit_code(&self) -> i32 {
        match self {
            TransferError::Filter { .. } | TransferError::TooManyFilters => EXIT_CONFIG,
            _ => EXIT_FAILED,
        }
    }
}

/// Imports what standard input gives. Returns the exit code: not 0 if a line was refused, or if it
/// ended before its input.
///
/// # Errors
/// What to print; nothing was imported.
pub fn import(config: &Config) -> Result<i32, TransferError> {
    let input = input().map_err(|error| TransferError::System("standard input", error))?;
    let length = input.metadata().ok().filter(|meta| meta.is_file());
    let length = length.map(|meta| meta.len());
    let system = |error| TransferError::System("cannot start a thread", error);
    let is_new = matches!(Embedded::is_in(&config.data_dir), Ok(false));
    let (mut intake, mut checks): (Box<dyn Intake>, Checks) = match reach(config, Missing::Make)? {
        Way::Relay(dir) => {
            // The relay and its clients go first.
            let _ = rustix::process::nice(IMPORT_NICENESS);
            let intake = RelayIntake::begin(&dir).map_err(TransferError::Relay)?;
            let checks = check(config, input, NoScreen).map_err(system)?;
            (Box::new(intake), checks)
        }
        Way::Store(store) => {
            if is_new && matches!(store, Store::Embedded(_)) {
                eprintln!("a new store is made in {}", config.data_dir.display());
            }
            let relay_url = RelayUrl::parse(&config.relay_url)
                .map_err(|error| TransferError::Relay(format!("BUZZ_RELAY_URL: {error}")))?;
            let screen = StoreScreen {
                reader: store.reader(),
                policy: Policy {
                    relay_url,
                    vanish_ahead_seconds: config.created_at_future,
                },
            };
            let checks = check(config, input, screen).map_err(system)?;
            (Box::new(StoreIntake::start(store)), checks)
        }
    };
    let mut told = Told::new(Progress::of_bytes(length));
    let ran = import::run(&mut checks, &mut *intake, &mut told);
    drop(intake);
    let took = told.progress.finish();
    let counts = told.counts;
    if let Err((ended, unanswered)) = &ran {
        eprintln!("import: ended before its input: {ended}");
        if unanswered.lines > 0 {
            let lines = counted(unanswered.lines, "line");
            eprintln!("import: {lines} handed in without an answer, and may be stored");
        }
        eprintln!("import: what is stored stays; the same input may be imported again");
    }
    let rate = rate(counts.total(), took);
    let seconds = took.as_secs_f64();
    eprintln!("import: {counts} ({seconds:.1} s, {rate} events/s)");
    let clean = ran.is_ok() && counts.refused == 0 && counts.failed == 0;
    Ok(if clean { EXIT_CLEAN } else { EXIT_FAILED })
}

fn check(config: &Config, input: File, screen: impl pool::Screen) -> io::Result<Checks> {
    pool::start(input, config.frame_bytes_max, config.cpus.len(), screen)
}

/// Standard input without a second buffer.
fn input() -> io::Result<File> {
    Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// Exports to standard output. Returns the exit code: 0 only if everything was written, or if
/// whoever reads it has seen enough.
///
/// # Errors
/// What to print; nothing was exported.
pub fn export(config: &Config, asked: &Asked) -> Result<i32, TransferError> {
    let filters = filters(asked)?;
    let mut outlet: Box<dyn Outlet> = match reach(config, Missing::Refuse)? {
        Way::Relay(dir) => {
            let texts: Vec<String> = filters.iter().map(Filter::to_json).collect();
            Box::new(RelayOutlet::begin(&dir, &texts).map_err(TransferError::Relay)?)
        }
        Way::Store(store) => Box::new(StoreOutlet {
            export: Export::new(filters),
            reader: store.reader(),
        }),
    };
    let progress = Progress::of_output();
    let ran = export::run(
        &mut *outlet,
        &mut io::stdout().lock(),
        &mut |bytes, lines| {
            progress.advance(bytes, lines);
        },
    );
    let took = progress.finish();
    match ran {
        Ok(lines) => {
            let (rate, seconds) = (rate(lines, took), took.as_secs_f64());
            let events = counted(lines, "event");
            eprintln!("export: {events} ({seconds:.1} s, {rate} events/s)");
            Ok(EXIT_CLEAN)
        }
        Err(ExportError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(EXIT_CLEAN)
        }
        Err(error) => {
            eprintln!("export: not complete: {error}");
            Ok(EXIT_FAILED)
        }
    }
}

/// All filters are read before anything is opened.
fn filters(asked: &Asked) -> Result<Vec<Filter>, TransferError> {
    if asked.filters.len() > EXPORT_FILTERS_MAX {
        return Err(TransferError::TooManyFilters);
    }
    let mut filters = Vec::new();
    for (at, text) in asked.filters.iter().enumerate() {
        let filter = Filter::parse(text, EXPORT_FILTER_VALUES_MAX);
        filters.push(filter.map_err(|reason| TransferError::Filter {
            place: at + 1,
            reason: reason.text().to_owned(),
        })?);
    }
    if filters.is_empty() && (asked.since.is_some() || asked.until.is_some()) {
        filters.push(Filter::default());
    }
    for filter in &mut filters {
        filter.since = filter.since.max(asked.since);
        filter.until = match (filter.until, asked.until) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
    Ok(filters)
}
