//! What the PostgreSQL store costs, on a real server that this program starts itself, with commits
//! that are durable.
//!
//! `cargo bench --bench postgres [-- PART...] [EVENTS]`; the parts are `publish`, `turns`, `live`,
//! `logins`, `history` and `notify`, and without one all of them. `TMPDIR` chooses the disk. CPU of the
//! relay is that of this process, CPU of the server that of all its processes. Absolute figures mean
//! little on a shared machine where server and relays share the cores; ratios and counts do.
#![allow(missing_docs)]

mod ask;
mod made;
mod notify;
mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use buzz_uring::nostr::Event;
use buzz_uring::secret::Secret;
use buzz_uring::store::postgres::testing::Cluster;
use buzz_uring::store::postgres::{Postgres, PostgresOptions};
use buzz_uring::store::{Arrived, CommitSink, Done, Job, Origin, Outcome};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};

/// Connections of each pool where their number is not what is asked about.
const POOL: usize = 10;
/// The server counts statements with this, where it is installed.
const COUNTING: [&str; 4] = [
    "-c",
    "shared_preload_libraries=pg_stat_statements",
    "-c",
    "pg_stat_statements.max=1000",
];

fn main() {
    // `cargo test` runs benches too, without asking for figures.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let count = std::env::args().find_map(|arg| arg.parse().ok());
    let count: u64 = count.unwrap_or(50_000);
    let bench = match Bench::start() {
        Ok(bench) => bench,
        Err(reason) => return println!("skipped: {reason}"),
    };
    type Part = (&'static str, fn(&Bench, u64));
    let parts: [Part; 6] = [
        ("publish", Bench::publish),
        ("turns", Bench::turns),
        ("live", Bench::live),
        ("logins", Bench::logins),
        ("history", Bench::history),
        ("notify", Bench::notify),
    ];
    let is_named = |name: &str| std::env::args().any(|arg| arg == name);
    let all = !parts.iter().any(|(name, _)| is_named(name));
    for (name, part) in parts {
        if all || is_named(name) {
            part(&bench, count);
            println!();
        }
    }
}

struct Bench {
    cluster: Cluster,
    runtime: Runtime,
    /// Whether the server counts statements.
    counts: bool,
}

struct Sink {
    done: Sender<(Instant, Done)>,
    arrived: Sender<(Instant, Arrived)>,
    commits: Arc<AtomicU64>,
}

impl CommitSink for Sink {
    fn committed(&mut self, done: &mut Vec<Done>) {
        let now = Instant::now();
        done.drain(..)
            .for_each(|done| drop(self.done.send((now, done))));
    }

    fn commit_took(&mut self, _: Duration, _: usize) {
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    fn arrived(&mut self, arrived: &mut Vec<Arrived>) {
        let now = Instant::now();
        for event in arrived.drain(..) {
            let _ = self.arrived.send((now, event));
        }
    }
}

struct Relay {
    store: Postgres,
    done: Receiver<(Instant, Done)>,
    arrived: Receiver<(Instant, Arrived)>,
    commits: Arc<AtomicU64>,
}

/// What something has cost.
struct Cost {
    wall: Duration,
    /// CPU time of this process.
    own: Duration,
    /// CPU time of the server.
    server: Duration,
}

impl Cost {
    /// So many a second.
    fn rate(&self, count: u64) -> f64 {
        count as f64 / self.wall.as_secs_f64()
    }

    /// Microseconds of CPU each: of this process, of the server.
    fn each(&self, count: u64) -> (f64, f64) {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
        (each(self.own), each(self.server))
    }
}

impl Bench {
    fn start() -> Result<Bench, String> {
        let mut options = vec!["-c", "shared_buffers=512MB"];
        let place = std::env::temp_dir();
        let plain = options.clone();
        options.extend(COUNTING);
        let (cluster, counts) = match Cluster::start_in(&place, &options) {
            Ok(cluster) => (cluster, true),
            Err(_) => (Cluster::start_in(&place, &plain)?, false),
        };
        cluster.run("postgres", "CREATE TABLE bench (n bigint)");
        if counts {
            cluster.run("postgres", "CREATE EXTENSION pg_stat_statements");
        }
        let runtime = Builder::new_current_thread().enable_all().build();
        Ok(Bench {
            cluster,
            runtime: runtime.map_err(|error| error.to_string())?,
            counts,
        })
    }

    fn relay(&self, url: &Secret, pools: usize) -> Relay {
        let options = PostgresOptions {
            url: url.clone(),
            read_url: None,
            pool: pools,
            read_pool: pools,
            wait: Duration::from_secs(5),
            clock: buzz_uring::store::unix_seconds,
        };
        let store = self.runtime.block_on(Postgres::open(options));
        let store = store.expect("opens");
        let (done_sender, done) = channel();
        let (arrived_sender, arrived) = channel();
        let commits = Arc::new(AtomicU64::new(0));
        store.start_writer(Sink {
            done: done_sender,
            arrived: arrived_sender,
            commits: commits.clone(),
        });
        Relay {
            store,
            done,
            arrived,
            commits,
        }
    }

    /// Statements on all databases but the first, as the server counts them.
    fn counted(&self) -> Option<u64> {
        let sum = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements \
                   WHERE dbid <> (SELECT oid FROM pg_database WHERE datname = 'postgres')";
        self.counts
            .then(|| self.cluster.number("postgres", sum) as u64)
    }

    fn cost<T>(&self, work: impl FnOnce() -> T) -> (Cost, T) {
        let (own, server, started) = (cpu(), self.cluster.cpu(), Instant::now());
        let done = work();
        let wall = started.elapsed();
        let cost = Cost {
            wall,
            own: cpu() - own,
            server: self.cluster.cpu() - server,
        };
        (cost, done)
    }
}

impl Relay {
    /// Publishes events, so many unanswered at a time.
    fn burst(&mut self, events: &[Arc<Event>], flight: usize) {
        let (mut next, mut open) = (0, 0);
        while next < events.len() || open > 0 {
            let batch = (flight - open).min(events.len() - next);
            if batch > 0 && (open == 0 || batch * 4 >= flight) {
                let jobs = events[next..next + batch].iter();
                self.store
                    .submit(&mut jobs.map(|event| job(event.clone())).collect());
                next += batch;
                open += batch;
            }
            let (_, done) = self.done.recv().expect("an outcome");
            assert!(
                matches!(done.outcome, Outcome::Stored { .. }),
                "{:?}",
                done.outcome
            );
            open -= 1;
        }
    }

    fn statements(&self) -> u64 {
        self.store.status().statements
    }

    fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }
}

fn job(event: Arc<Event>) -> Job {
    Job {
        event,
        origin: Origin { shard: 0, token: 0 },
    }
}

fn quantiles(took: &mut [Duration]) -> String {
    took.sort_unstable();
    let at = |share: f64| took[(took.len() as f64 * share) as usize].as_secs_f64() * 1e3;
    format!(
        "median {:.2} ms, 99 of 100 within {:.2} ms",
        at(0.5),
        at(0.99)
    )
}

/// CPU time of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
