//! Where NOTIFY stops scaling: its lock at commit, which the whole cluster shares, and its listeners.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use buzz_uring::secret::Secret;
use tokio_postgres::{AsyncMessage, NoTls};

use crate::Bench;
use crate::made::events;

/// A commit that tells nobody, and one that tells. Both write a row, or nothing would be flushed.
pub const SILENT: &str = "INSERT INTO bench VALUES ($1::bigint)";
const TELLING: &str = "WITH made AS (INSERT INTO bench VALUES ($1::bigint))
    SELECT pg_notify('bench', $1::bigint::text)::text";

/// Connections that listen, until they are dropped.
struct Listeners {
    heard: Arc<AtomicU64>,
    clients: Vec<tokio_postgres::Client>,
}

impl Bench {
    /// Commits with a notification against commits without, by writers and by listeners; and what a
    /// relay's bursts lose by listeners, and by others that notify.
    pub fn notify(&self, count: u64) {
        println!("notify: commits/s of so many connections   silent   telling   ratio");
        for writers in [1, 4, 16, 64] {
            let silent = self.bare_commits(writers, SILENT, 2_000);
            let telling = self.bare_commits(writers, TELLING, 2_000);
            println!(
                "{writers:>41} {silent:>8.0} {telling:>9.0} {:>7.2}",
                telling / silent
            );
        }
        println!("\nlisteners   telling commits/s   heard/s   us of the server's CPU a commit");
        for listeners in [0, 1, 3, 10, 30, 100, 300] {
            let listening = self.listen(&self.cluster.url("postgres"), "bench", listeners);
            let (cost, _) = self.cost(|| self.bare_commits(8, TELLING, 2_000));
            let heard = listening.heard.load(Ordering::Relaxed);
            println!(
                "{listeners:>9} {:>19.0} {:>9.0} {:>33.0}",
                cost.rate(2_000),
                cost.rate(heard),
                cost.each(2_000).1,
            );
        }
        println!("\na relay's burst of {count} beside                    events/s");
        for listeners in [0, 10, 100, 300] {
            let url = self.cluster.database();
            let _listening = self.listen(&url, "buzz", listeners);
            println!(
                "{listeners:>4} more that listen                      {:>14.0}",
                self.burst_on(&url, count)
            );
        }
        for writers in [1, 8] {
            let over = AtomicBool::new(false);
            let url = self.cluster.database();
            let (rate, others) = std::thread::scope(|scope| {
                let others = scope.spawn(|| self.commits_until(writers, TELLING, &over));
                let rate = self.burst_on(&url, count);
                over.store(true, Ordering::SeqCst);
                (rate, others.join().expect("commits"))
            });
            println!("{writers:>4} of another database, telling {others:>7.0}/s {rate:>11.0}");
        }
    }

    fn burst_on(&self, url: &Secret, count: u64) -> f64 {
        let mut relay = self.relay(url, crate::POOL);
        let events = events(0, count);
        let started = Instant::now();
        relay.burst(&events, 4_096);
        count as f64 / started.elapsed().as_secs_f64()
    }

    /// Commits a second of a statement, by so many connections at once.
    pub fn bare_commits(&self, connections: usize, statement: &'static str, count: u64) -> f64 {
        let left = AtomicU64::new(count);
        let more = || {
            let taken =
                left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            taken.is_ok()
        };
        self.commits(connections, statement, &more)
    }

    fn commits_until(&self, connections: usize, statement: &'static str, over: &AtomicBool) -> f64 {
        self.commits(connections, statement, &|| !over.load(Ordering::Relaxed))
    }

    fn commits(&self, connections: usize, text: &'static str, more: &dyn Fn() -> bool) -> f64 {
        let url = self.cluster.url("postgres");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let mut clients = Vec::new();
            for _ in 0..connections {
                let client = connect(&url, |_| ()).await;
                let statement = client.prepare(text).await.expect("a statement");
                clients.push((client, statement));
            }
            let done = AtomicU64::new(0);
            let started = Instant::now();
            let each = clients.iter().map(|(client, statement)| async {
                while more() {
                    let n = done.fetch_add(1, Ordering::Relaxed) as i64;
                    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&n];
                    client.query(statement, &params).await.expect("a commit");
                }
            });
            futures::future::join_all(each).await;
            done.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64()
        })
    }

    /// Opens connections that listen, each of which takes what comes.
    fn listen(&self, url: &Secret, channel: &str, count: usize) -> Listeners {
        let heard = Arc::new(AtomicU64::new(0));
        let (url, channel, hears) = (url.clone(), channel.to_owned(), heard.clone());
        let (sender, ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.expect("a runtime").block_on(async {
                let mut clients = Vec::new();
                let mut ends = Vec::new();
                for _ in 0..count {
                    let hears = hears.clone();
                    let (client, end) = connect_ending(&url, move |_| {
                        hears.fetch_add(1, Ordering::Relaxed);
                    })
                    .await;
                    client
                        .batch_execute(&format!("LISTEN {channel}"))
                        .await
                        .expect("it listens");
                    clients.push(client);
                    ends.push(end);
                }
                let _ = sender.send(clients);
                // They end with their clients.
                futures::future::join_all(ends).await;
            });
        });
        Listeners {
            heard,
            clients: ready
                .recv_timeout(Duration::from_secs(60))
                .expect("they listen"),
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.clients.clear();
    }
}

async fn connect(
    url: &Secret,
    hear: impl Fn(AsyncMessage) + Send + 'static,
) -> tokio_postgres::Client {
    connect_ending(url, hear).await.0
}

async fn connect_ending(
    url: &Secret,
    hear: impl Fn(AsyncMessage) + Send + 'static,
) -> (tokio_postgres::Client, tokio::task::JoinHandle<()>) {
    let (client, mut connection) = tokio_postgres::connect(url.expose(), NoTls)
        .await
        .expect("a connection");
    let end = tokio::spawn(async move {
        while let Some(Ok(message)) =
            std::future::poll_fn(|context| connection.poll_message(context)).await
        {
            hear(message);
        }
    });
    (client, end)
}
