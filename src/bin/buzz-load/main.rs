//! `buzz-load`: a load generator for any Nostr relay, and the floors to compare with.
//!
//! One thread, one epoll. Answers are checked one by one, because a relay that answers wrongly is
//! fast. `docs/benchmarks.md` says how to run it and what not to conclude.

mod accept;
mod build;
mod cli;
mod codec;
mod crowd;
mod dice;
mod drive;
mod events;
mod fanout;
mod flight;
mod floor;
mod given;
mod idle;
mod limits;
mod login;
mod mixed;
mod net;
mod ping;
mod publish;
mod query;
mod questions;
mod report;
mod requests;
mod run;
mod rush;
mod scan;
mod schedule;
mod usage;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    let matches = match cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(64)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match run::run(&matches) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("buzz-load: {error}");
            ExitCode::FAILURE
        }
    }
}
