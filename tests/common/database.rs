//! A real PostgreSQL server. Each test has a database of its own on one server, which the first of them
//! starts. Where no server can be had they say so and are skipped.

use std::sync::LazyLock;

use buzz_uring::secret::Secret;
use buzz_uring::store::postgres::testing::Cluster;

use super::{Launch, skip};

/// The server of these tests; `None`, with a word, where there is none.
pub fn cluster() -> Option<&'static Cluster> {
    static WHY: LazyLock<Result<&'static Cluster, &'static str>> =
        LazyLock::new(|| apart(Cluster::shared));
    match *WHY {
        Ok(cluster) => Some(cluster),
        Err(reason) => {
            skip("PostgreSQL", reason);
            None
        }
    }
}

/// A database of a test's own.
pub fn database(cluster: &'static Cluster) -> Secret {
    apart(|| cluster.database())
}

/// Does what waits for a runtime of its own, away from the one that a test runs on.
pub fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(work).join().expect("no panic")
}

/// A relay on a database, with pools that leave room for the other tests'.
pub fn on(url: &Secret) -> Launch {
    Launch::new()
        .set("BUZZ_STORE", "postgres")
        .set("DATABASE_URL", url.expose())
        .set("BUZZ_MAX_LIMIT", 1_000_000)
        .set("BUZZ_DB_POOL_SIZE", 4)
        .set("BUZZ_DB_READ_POOL_SIZE", 5)
}
