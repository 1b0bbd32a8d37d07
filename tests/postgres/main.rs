//! Relays that share a PostgreSQL database, as clients see them: the real server, the real relay.
//!
//! Each test has a database of its own on one server, which the first of them starts. Where no server
//! can be had they say so and are skipped.

#[path = "../common/mod.rs"]
mod common;

mod caps;
mod failures;
mod lists;
mod standby;
mod together;
mod trouble;

use std::sync::LazyLock;

use buzz_uring::secret::Secret;
use buzz_uring::store::postgres::testing::Cluster;

use common::{Launch, Relay};

/// The server of these tests; `None`, with a word, where there is none.
fn cluster() -> Option<&'static Cluster> {
    static WHY: LazyLock<Result<&'static Cluster, &'static str>> =
        LazyLock::new(|| apart(Cluster::shared));
    match *WHY {
        Ok(cluster) => Some(cluster),
        Err(reason) => {
            common::skip("PostgreSQL", reason);
            None
        }
    }
}

/// A database of a test's own.
fn database(cluster: &'static Cluster) -> Secret {
    apart(|| cluster.database())
}

/// Does what waits for a runtime of its own, away from the one that a test runs on.
fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(work).join().expect("no panic")
}

/// A relay on a database, with pools that leave room for the other tests'.
fn on(url: &Secret) -> Launch {
    Launch::new()
        .set("BUZZ_STORE", "postgres")
        .set("DATABASE_URL", url.expose())
        .set("BUZZ_MAX_LIMIT", 1_000_000)
        .set("BUZZ_DB_POOL_SIZE", 4)
        .set("BUZZ_DB_READ_POOL_SIZE", 5)
}

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
