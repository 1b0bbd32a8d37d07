//! The relay's door: parse, start, wait, exit code.
#![allow(unsafe_code)] // For what the process inherits: sockets of the service manager, a signal.

use std::io::{ErrorKind, Write};
use std::process::exit;

use buzz_uring::cli::{self, CliError, Command};
use buzz_uring::config::{Config, Given, Machine, Meeting};
use buzz_uring::control::activation::{InheritError, Inherited};
use buzz_uring::control::{access, backup, command, logs, migrate, reload, start, transfer};
use buzz_uring::error::{EXIT_CLEAN, EXIT_CONFIG, EXIT_FAILED};
use buzz_uring::look::source::Source;
use buzz_uring::look::{health, status, top};
use buzz_uring::metrics;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    // A relay that starts is not ended by being told to read its settings again. Its own handler comes
    // later, with the runtime.
    // SAFETY: no handler is put in place.
    let on_hang_up = unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    // SAFETY: the process has one thread, and has opened nothing.
    let inherited = unsafe { Inherited::take() };
    exit(match cli::parse(std::env::args_os(), std::env::vars_os()) {
        Ok((command, raw)) => {
            if command != Command::Run {
                // SAFETY: what it was before.
                unsafe { libc::signal(libc::SIGHUP, on_hang_up) };
            }
            let given = Given::new(raw, Machine::probe());
            match ask_running(&command, &given) {
                Some(code) => code,
                None => match given.load() {
                    Ok(config) => run(command, config, given, inherited),
                    Err(error) => fail(EXIT_CONFIG, &error),
                },
            }
        }
        Err(CliError::Asked(text)) => print(&text),
        Err(error) => fail(EXIT_CONFIG, &error),
    })
}

/// Does what only asks a relay that runs; `None` for everything else.
fn ask_running(command: &Command, given: &Given) -> Option<i32> {
    let met = |ask: &dyn Fn(Meeting) -> i32| match given.meeting() {
        Ok(meeting) => ask(meeting),
        Err(error) => fail(EXIT_CONFIG, &error),
    };
    Some(match command {
        Command::Drain { wait } => met(&|at| {
            command::drain_relay(&at.data_dir, *wait)
                .unwrap_or_else(|error| fail(EXIT_FAILED, &error))
        }),
        Command::Reload => met(&|at| said(reload::command::reload(&at.data_dir))),
        Command::LogLevel { level } => {
            met(&|at| said(reload::command::log_level(&at.data_dir, level.as_deref())))
        }
        Command::Health { ready } => met(&|at| match health::ask(health::address(&at), *ready) {
            Ok(answer) => print(&format!("{answer}\n")),
            Err(error) => fail(EXIT_FAILED, &error),
        }),
        Command::Status { json, url } => met(&|at| match source(url.as_deref(), &at) {
            Ok(source) => match status::run(&source, *json) {
                Ok(report) => print(&report.text).max(report.exit_code),
                Err(error) => fail(EXIT_FAILED, &error),
            },
            Err(error) => fail(EXIT_CONFIG, &error),
        }),
        Command::Top { url } => met(&|at| match source(url.as_deref(), &at) {
            Ok(source) => match top::run(source) {
                Ok(()) => EXIT_CLEAN,
                Err(error) => fail(EXIT_FAILED, &error),
            },
            Err(error) => fail(EXIT_CONFIG, &error),
        }),
        _ => return None,
    })
}

/// The health port to look at.
fn source(url: Option<&str>, at: &Meeting) -> Result<Source, String> {
    let here = match url {
        None => health::address(at),
        // Not asked for.
        Some(_) => at.health,
    };
    Source::new(url, here)
}

/// What the service manager has opened for this process.
type Opened = Result<Inherited, InheritError>;

fn run(command: Command, config: Config, given: Given, inherited: Opened) -> i32 {
    match command {
        Command::CheckConfig => print(&config.render()),
        Command::Access(asked) => access::command::run(&config, &asked)
            .unwrap_or_else(|error| fail(error.exit_code(), &error)),
        Command::Import => transfer::command::import(&config)
            .unwrap_or_else(|error| fail(error.exit_code(), &error)),
        Command::Export(asked) => transfer::command::export(&config, &asked)
            .unwrap_or_else(|error| fail(error.exit_code(), &error)),
        Command::Backup { to } => {
            backup::command::backup(&config, &to).unwrap_or_else(|error| fail(EXIT_FAILED, &error))
        }
        Command::Compact => {
            backup::command::compact(&config).unwrap_or_else(|error| fail(EXIT_FAILED, &error))
        }
        Command::Migrate { check } => {
            migrate::run(&config, check).unwrap_or_else(|error| fail(EXIT_FAILED, &error))
        }
        Command::Run => serve(config, given, inherited),
        Command::Drain { .. }
        | Command::Reload
        | Command::LogLevel { .. }
        | Command::Health { .. }
        | Command::Status { .. }
        | Command::Top { .. } => unreachable!("done by ask_running"),
    }
}

fn serve(config: Config, given: Given, inherited: Opened) -> i32 {
    let logs = match logs::install(config.log_level, logs::Form::of_stderr()) {
        Ok(logs) => logs,
        Err(error) => return fail(EXIT_FAILED, &error),
    };
    let metrics = match metrics::install() {
        Ok(metrics) => metrics,
        Err(error) => return fail(EXIT_FAILED, &error),
    };
    let started = inherited.map_err(start::StartError::from);
    let started =
        started.and_then(|sockets| start::run(config, given, metrics, logs.clone(), sockets));
    let code = started.unwrap_or_else(|error| {
        tracing::error!("the relay cannot start: {error}");
        EXIT_FAILED
    });
    logs.flush();
    code
}

/// Prints what a relay has said.
fn said(answer: Result<String, (i32, String)>) -> i32 {
    match answer {
        Ok(text) => print(&format!("{text}\n")),
        Err((code, error)) => fail(code, &error),
    }
}

/// Prints a text. Whoever reads may have seen enough before its end.
fn print(text: &str) -> i32 {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => fail(EXIT_FAILED, &error),
        _ => EXIT_CLEAN,
    }
}

fn fail(code: i32, error: &dyn std::fmt::Display) -> i32 {
    eprintln!("buzz-uring: {error}");
    code
}
