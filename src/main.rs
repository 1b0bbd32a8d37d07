//! The relay's door: parse, start, wait, exit code.
#![allow(unsafe_code)] // For one call: what the service manager hands to the process.

use std::io::{ErrorKind, Write};
use std::process::exit;

use buzz_uring::cli::{self, CliError, Command};
use buzz_uring::config::{Config, Given, Machine};
use buzz_uring::control::activation::{InheritError, Inherited};
use buzz_uring::control::{access, backup, command, logs, migrate, reload, start, transfer};
use buzz_uring::error::{EXIT_CLEAN, EXIT_CONFIG, EXIT_FAILED};
use buzz_uring::look::source::Source;
use buzz_uring::look::{health, status, top};
use buzz_uring::metrics;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    // SAFETY: the first thing that the process does.
    let inherited = unsafe { Inherited::take() };
    exit(match cli::parse(std::env::args_os(), std::env::vars_os()) {
        Ok((command, raw)) => {
            let given = Given::new(raw, Machine::probe());
            match given.load() {
                Ok(config) => run(command, config, given, inherited),
                Err(error) => fail(EXIT_CONFIG, &error),
            }
        }
        Err(CliError::Asked(text)) => print(&text),
        Err(error) => fail(EXIT_CONFIG, &error),
    })
}

/// What the service manager has opened for this process.
type Opened = Result<Inherited, InheritError>;

fn run(command: Command, config: Config, given: Given, inherited: Opened) -> i32 {
    match command {
        Command::CheckConfig => {
            print!("{}", config.render());
            EXIT_CLEAN
        }
        Command::Drain { wait } => command::drain_relay(&config.data_dir, wait)
            .unwrap_or_else(|error| fail(EXIT_FAILED, &error)),
        Command::Reload => reload::command::reload(&config.data_dir)
            .unwrap_or_else(|(code, error)| fail(code, &error)),
        Command::LogLevel { level } => {
            reload::command::log_level(&config.data_dir, level.as_deref())
                .unwrap_or_else(|(code, error)| fail(code, &error))
        }
        Command::Access(asked) => access::command::run(&config, &asked)
            .unwrap_or_else(|error| fail(error.exit_code(), &error)),
        Command::Health { ready } => match health::ask(config.health, ready) {
            Ok(answer) => {
                println!("{answer}");
                EXIT_CLEAN
            }
            Err(error) => fail(EXIT_FAILED, &error),
        },
        Command::Status { json, url } => match Source::new(url.as_deref(), config.health) {
            Ok(source) => match status::run(&source, json) {
                Ok(report) => print(&report.text).max(report.exit_code),
                Err(error) => fail(EXIT_FAILED, &error),
            },
            Err(error) => fail(EXIT_CONFIG, &error),
        },
        Command::Top { url } => match Source::new(url.as_deref(), config.health) {
            Ok(source) => match top::run(source) {
                Ok(()) => EXIT_CLEAN,
                Err(error) => fail(EXIT_FAILED, &error),
            },
            Err(error) => fail(EXIT_CONFIG, &error),
        },
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
