//! The relay's door: parse, start, wait, exit code.

use std::process::exit;

use buzz_uring::cli::{self, CliError, Command};
use buzz_uring::config::{Config, Given, Machine};
use buzz_uring::control::{
    access, backup, command, health, logs, migrate, reload, start, transfer,
};
use buzz_uring::error::{EXIT_CLEAN, EXIT_CONFIG, EXIT_FAILED};
use buzz_uring::metrics;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    exit(match cli::parse(std::env::args_os(), std::env::vars_os()) {
        Ok((command, raw)) => {
            let given = Given::new(raw, Machine::probe());
            match given.load() {
                Ok(config) => run(command, config, given),
                Err(error) => fail(EXIT_CONFIG, &error),
            }
        }
        Err(CliError::Asked(text)) => {
            print!("{text}");
            EXIT_CLEAN
        }
        Err(error) => fail(EXIT_CONFIG, &error),
    })
}

fn run(command: Command, config: Config, given: Given) -> i32 {
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
        Command::Run => serve(config, given),
    }
}

fn serve(config: Config, given: Given) -> i32 {
    let logs = match logs::install(config.log_level, logs::Form::of_stderr()) {
        Ok(logs) => logs,
        Err(error) => return fail(EXIT_FAILED, &error),
    };
    let metrics = match metrics::install() {
        Ok(metrics) => metrics,
        Err(error) => return fail(EXIT_FAILED, &error),
    };
    let code = start::run(config, given, metrics, logs.clone()).unwrap_or_else(|error| {
        tracing::error!("the relay cannot start: {error}");
        EXIT_FAILED
    });
    logs.flush();
    code
}

fn fail(code: i32, error: &dyn std::fmt::Display) -> i32 {
    eprintln!("buzz-uring: {error}");
    code
}
