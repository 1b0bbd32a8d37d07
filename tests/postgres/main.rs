//! Relays that share a PostgreSQL database, as clients see them: the real server, the real relay.

#[path = "../common/mod.rs"]
mod common;

mod caps;
mod failures;
mod lists;
mod standby;
mod together;
mod trouble;

use buzz_uring::secret::Secret;

use common::Relay;
use common::database::{cluster, database, on};

/// Several relays on one database.
fn several(url: &Secret, count: usize) -> Vec<Relay> {
    // Together: they race for the migrations.
    let processes: Vec<_> = (0..count).map(|_| on(url).spawn()).collect();
    let started = processes.into_iter().map(|mut process| {
        let line = process.wait_ready().expect("a relay that serves");
        Relay::new(process, line)
    });
    started.collect()
}
