//! What the PostgreSQL store costs, on a real server that this program starts itself, with commits
//! that are durable.
//!
//! `cargo bench --bench postgres [-- EVENTS]`. `TMPDIR` chooses the disk. CPU of the relay is that of
//! this process, CPU of the server that of all its processes. Absolute figures mean little on a shared
//! machine where server and relays share the cores; ratios do.
#![allow(missing_docs)]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use buzz_uring::nostr::{Event, Filter};
use buzz_uring::store::embedded::{List, Progress, QueryBounds};
use buzz_uring::store::postgres::testing::Cluster;
use buzz_uring::store::postgres::{Budget, Postgres, PostgresOptions, Query};
use buzz_uring::store::{Arrived, CommitSink, Done, Job, Origin, Outcome};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};

const AUTHORS: u64 = 200;
const BOUNDS: QueryBounds = QueryBounds {
    limit_max: 1_000,
    limit_default: 500,
};

fn main() {
    // `cargo test` runs benches too, without asking for figures.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let count = std::env::args().find_map(|arg| arg.parse().ok());
    let count: u64 = count.unwrap_or(50_000);
    let cluster = match Cluster::start_in(&std::env::temp_dir(), &["-c", "shared_buffers=512MB"]) {
        Ok(cluster) => cluster,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let runtime = Builder::new_current_thread().enable_all().build();
    let bench = Bench {
        cluster,
        runtime: runtime.expect("a runtime"),
    };
    bench.publish(count);
    bench.lone();
    bench.live();
    bench.ephemeral();
    bench.logins();
    bench.history(count);
}

struct Bench {
    cluster: Cluster,
    runtime: Runtime,
}

struct Sink {
    done: Sender<(Instant, Done)>,
    arrived: Sender<(Instant, Arrived)>,
}

impl CommitSink for Sink {
    fn committed(&mut self, done: &mut Vec<Done>) {
        let now = Instant::now();
        done.drain(..)
            .for_each(|done| drop(self.done.send((now, done))));
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
}

impl Bench {
    fn relay(&self, url: &buzz_uring::secret::Secret, pools: usize) -> Relay {
        let options = PostgresOptions {
            url: url.clone(),
            read_url: None,
            pool: pools.min(20),
            read_pool: pools,
            wait: Duration::from_secs(5),
            clock: buzz_uring::store::unix_seconds,
        };
        let store = self
            .runtime
            .block_on(Postgres::open(options))
            .expect("opens");
        let (done_sender, done) = channel();
        let (arrived_sender, arrived) = channel();
        store.start_writer(Sink {
            done: done_sender,
            arrived: arrived_sender,
        });
        Relay {
            store,
            done,
            arrived,
        }
    }

    /// Bursts, from one relay and from several at once.
    fn publish(&self, count: u64) {
        println!("publish, {count} events in bursts         statements   us of CPU an event");
        println!("relays  in flight    events/s   an event      relays   server");
        for (relays, flight) in [
            (1, 1),
            (1, 16),
            (1, 256),
            (1, 4_096),
            (2, 4_096),
            (3, 4_096),
        ] {
            let url = self.cluster.database();
            let relays: Vec<Relay> = (0..relays).map(|_| self.relay(&url, 10)).collect();
            let count = if flight < 256 { count / 20 } else { count };
            let share = count / relays.len() as u64;
            let events: Vec<Vec<Arc<Event>>> = (0..relays.len() as u64)
                .map(|relay| {
                    (0..share)
                        .map(|n| Arc::new(event(relay * share + n)))
                        .collect()
                })
                .collect();
            let mut relays = relays;
            let statements = |relays: &[Relay]| -> u64 {
                relays
                    .iter()
                    .map(|relay| relay.store.status().statements)
                    .sum()
            };
            let (before, own, server) = (statements(&relays), cpu(), self.cluster.cpu());
            let started = Instant::now();
            std::thread::scope(|scope| {
                for (relay, events) in relays.iter_mut().zip(&events) {
                    scope.spawn(move || relay.burst(events, flight));
                }
            });
            let (wall, own) = (started.elapsed(), cpu() - own);
            let server = self.cluster.cpu() - server;
            let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
            println!(
                "{:>6} {flight:>10} {:>11.0} {:>10.3} {:>12.1} {:>8.1}",
                relays.len(),
                count as f64 / wall.as_secs_f64(),
                (statements(&relays) - before) as f64 / count as f64,
                each(own),
                each(server),
            );
        }
    }

    /// One event at a time: how long until it is durable.
    fn lone(&self) {
        let relay = self.relay(&self.cluster.database(), 10);
        let mut took: Vec<Duration> = (0..500)
            .map(|n| {
                let started = Instant::now();
                relay.store.submit(&mut vec![job(Arc::new(event(n)))]);
                let (at, _) = relay.done.recv().expect("an outcome");
                at - started
            })
            .collect();
        println!("\na lone event is durable after: {}", quantiles(&mut took));
    }

    /// From one relay's commit to another's shards.
    fn live(&self) {
        let url = self.cluster.database();
        let (one, two) = (self.relay(&url, 10), self.relay(&url, 10));
        let mut took: Vec<Duration> = (0..500)
            .map(|n| {
                one.store.submit(&mut vec![job(Arc::new(event(n)))]);
                let (committed, _) = one.done.recv().expect("an outcome");
                let (arrived, _) = two.arrived.recv().expect("an event");
                arrived.saturating_duration_since(committed)
            })
            .collect();
        println!(
            "from one relay's commit to another's shards: {}",
            quantiles(&mut took)
        );
    }

    fn ephemeral(&self) {
        let url = self.cluster.database();
        let (one, two) = (self.relay(&url, 10), self.relay(&url, 10));
        let count = 8_000;
        let started = Instant::now();
        for n in 0..count {
            one.store.pass_on(Arc::new(event(n)));
        }
        for _ in 0..count {
            let _ = two.arrived.recv_timeout(Duration::from_secs(10));
        }
        let each = count as f64 / started.elapsed().as_secs_f64();
        println!("ephemeral events passed on: {each:.0} a second");
    }

    fn logins(&self) {
        let url = self.cluster.database();
        let relay = self.relay(&url, 10);
        let keys: Vec<[u8; 32]> = (0..1_000u64).map(key).collect();
        let edit = relay.store.edit_access(keys.clone(), List::Members, true);
        self.runtime.block_on(edit).expect("an edit");
        println!("\nlogins at once    logins/s   statements a login   us of CPU of the relay");
        for at_once in [1, 10, 100, 1_000] {
            let rounds = if at_once == 1 {
                1_000
            } else {
                10_000 / at_once
            };
            let (before, own) = (relay.store.status().statements, cpu());
            let started = Instant::now();
            self.runtime.block_on(async {
                for _ in 0..rounds {
                    let reader = relay.store.reader();
                    let asked: Vec<_> = keys[..at_once]
                        .iter()
                        .map(|key| reader.access(*key))
                        .collect();
                    for access in asked {
                        assert!(access.await.expect("an answer").member);
                    }
                }
            });
            let count = (rounds * at_once) as f64;
            println!(
                "{at_once:>14} {:>11.0} {:>20.3} {:>24.1}",
                count / started.elapsed().as_secs_f64(),
                (relay.store.status().statements - before) as f64 / count,
                (cpu() - own).as_secs_f64() * 1e6 / count,
            );
        }
    }

    fn history(&self, count: u64) {
        let url = self.cluster.database();
        let mut relay = self.relay(&url, 50);
        let events: Vec<Arc<Event>> = (0..count).map(|n| Arc::new(event(n))).collect();
        relay.burst(&events, 4_096);
        drop(relay);
        let author = |n: u64| format!("\"{}\"", const_hex::encode(key(n)));
        let authors = |count| (0..count).map(author).collect::<Vec<_>>().join(",");
        let shapes = [
            (
                "by id",
                format!(r#"{{"ids":["{}"]}}"#, const_hex::encode(events[7].id())),
            ),
            (
                "100 newest of a kind",
                r#"{"kinds":[1],"limit":100}"#.to_owned(),
            ),
            ("500 newest", r#"{"limit":500}"#.to_owned()),
            (
                "feed, 50 authors, 100",
                format!(
                    r#"{{"authors":[{}],"kinds":[1,6],"limit":100}}"#,
                    authors(50)
                ),
            ),
            (
                "a hashtag, 100",
                r##"{"#t":["tag3"],"limit":100}"##.to_owned(),
            ),
        ];
        println!(
            "\nhistory of {count} events     pool    answers/s   us of CPU an answer: relay   server"
        );
        for pool in [1, 5, 10, 50] {
            let relay = self.relay(&url, pool);
            for (what, text) in &shapes {
                let filters: Arc<[Filter]> = [Filter::parse(text, 1_000).expect("a filter")].into();
                let reader = relay.store.reader();
                let answers = 400;
                let all = |answers: usize| {
                    let (filters, reader) = (filters.clone(), reader.clone());
                    self.runtime.block_on(async move {
                        let mut tasks = Vec::new();
                        for part in 0..pool {
                            let (filters, reader) = (filters.clone(), reader.clone());
                            let share = answers / pool + usize::from(part < answers % pool);
                            tasks.push(async move {
                                for _ in 0..share {
                                    let mut query = Query::new(filters.clone(), BOUNDS);
                                    loop {
                                        let budget = Budget {
                                            bytes_max: 1 << 20,
                                            now: 0,
                                            seq_min: 0,
                                        };
                                        let read =
                                            reader.read(query, budget).await.expect("a read");
                                        if read.progress == Progress::Done {
                                            break;
                                        }
                                        query = read.query;
                                    }
                                }
                            });
                        }
                        futures::future::join_all(tasks).await;
                    });
                };
                // Connections are opened, statements prepared.
                all(pool * 2);
                let (own, server, started) = (cpu(), self.cluster.cpu(), Instant::now());
                all(answers);
                let (wall, own) = (started.elapsed(), cpu() - own);
                let server = self.cluster.cpu() - server;
                let each = |time: Duration| time.as_secs_f64() * 1e6 / answers as f64;
                println!(
                    "{what:<26} {pool:>7} {:>12.0} {:>25.0} {:>8.0}",
                    answers as f64 / wall.as_secs_f64(),
                    each(own),
                    each(server),
                );
            }
        }
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

fn mix(n: u64, salt: u64) -> u64 {
    (n ^ salt)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn key(n: u64) -> [u8; 32] {
    let mut key = [0; 32];
    for (place, part) in key.chunks_mut(8).enumerate() {
        part.copy_from_slice(&mix(n + 1, place as u64).to_be_bytes());
    }
    key
}

/// An event of about 700 bytes with two or three tags, of a few hashtags and many threads.
fn event(n: u64) -> Event {
    let hex = |n: u64| const_hex::encode(key(n));
    let kind = [1, 1, 1, 7, 6][mix(n, 1) as usize % 5];
    let mut tags = vec![
        format!(r#"["e","{}"]"#, hex(mix(n, 2) % 20_000)),
        format!(r#"["p","{}"]"#, hex(mix(n, 3) % AUTHORS)),
    ];
    if n.is_multiple_of(2) {
        tags.push(format!(r#"["t","tag{}"]"#, mix(n, 4) % 20));
    }
    let json = format!(
        r#"{{"id":"{}","pubkey":"{}","created_at":{},"kind":{kind},"tags":[{}],"content":"{}","sig":"{}"}}"#,
        hex(n + 1_000_000),
        hex(mix(n, 6) % AUTHORS),
        1_700_000_000 + n / 3,
        tags.join(","),
        "lorem ipsum ".repeat(20),
        "5a".repeat(64),
    );
    Event::parse(&json).expect("an event")
}
