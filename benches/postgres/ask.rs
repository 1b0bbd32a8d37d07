//! What clients ask for: logins and history.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buzz_uring::nostr::Filter;
use buzz_uring::store::embedded::{List, Progress, QueryBounds};
use buzz_uring::store::postgres::{Budget, Query, Reader};

use crate::made::{AUTHORS, events, key};
use crate::{Bench, POOL, Relay};

const BOUNDS: QueryBounds = QueryBounds {
    limit_max: 1_000,
    limit_default: 500,
};

impl Bench {
    /// Access checks, as logins make them: alone, and while events are published.
    pub fn logins(&self, count: u64) {
        let url = self.cluster.database();
        let keys: Vec<[u8; 32]> = (0..1_000u64).map(key).collect();
        self.admit(&self.relay(&url, POOL), &keys);
        println!("logins                                  statements   us of CPU a login");
        println!("  pool  at once  meanwhile    logins/s     a login     relay   server");
        for pool in [1, 5, 20] {
            let relay = self.relay(&url, pool);
            for at_once in [1, 10, 100, 1_000] {
                self.logins_at_once(&relay, &keys, pool, at_once);
            }
        }
        let shared = AtomicBool::new(false);
        for pool in [1, 5, 20] {
            let mut relay = self.relay(&self.cluster.database(), pool);
            self.admit(&relay, &keys);
            let events = events(0, count);
            let reader = relay.store.reader();
            shared.store(false, Ordering::SeqCst);
            let answered = std::thread::scope(|scope| {
                let over = &shared;
                let burst = scope.spawn(move || {
                    relay.burst(&events, 4_096);
                    over.store(true, Ordering::SeqCst);
                });
                let (cost, answered) = self.cost(|| {
                    let mut answered = 0u64;
                    while !shared.load(Ordering::SeqCst) {
                        self.ask_all(&reader, &keys[..100]);
                        answered += 100;
                    }
                    answered
                });
                burst.join().expect("a burst");
                cost.rate(answered)
            });
            println!("{pool:>6} {:>8} {:>10} {answered:>11.0}", 100, "a burst");
        }
    }

    fn admit(&self, relay: &Relay, keys: &[[u8; 32]]) {
        let edit = relay.store.edit_access(keys.to_vec(), List::Members, true);
        self.runtime.block_on(edit).expect("an edit");
    }

    fn logins_at_once(&self, relay: &Relay, keys: &[[u8; 32]], pool: usize, at_once: usize) {
        let rounds = (10_000 / at_once).min(1_000);
        let count = (rounds * at_once) as u64;
        let (before, reader) = (relay.statements(), relay.store.reader());
        let (cost, ()) = self.cost(|| {
            for _ in 0..rounds {
                self.ask_all(&reader, &keys[..at_once]);
            }
        });
        let statements = (relay.statements() - before) as f64 / count as f64;
        let (own, server) = cost.each(count);
        println!(
            "{pool:>6} {at_once:>8} {:>10} {:>11.0} {statements:>11.3} {own:>9.1} {server:>8.1}",
            "nothing",
            cost.rate(count),
        );
    }

    fn ask_all(&self, reader: &Reader, keys: &[[u8; 32]]) {
        self.runtime.block_on(async {
            let asked: Vec<_> = keys.iter().map(|key| reader.access(*key)).collect();
            for access in asked {
                access.await.expect("an answer");
            }
        });
    }

    /// Answers, as many at once as the pool has connections.
    pub fn history(&self, count: u64) {
        let url = self.cluster.database();
        let mut relay = self.relay(&url, POOL);
        let events = events(0, count);
        relay.burst(&events, 4_096);
        drop(relay);
        let author = |n: u64| format!("\"{}\"", const_hex::encode(key(n % AUTHORS)));
        let authors = (0..50).map(author).collect::<Vec<_>>().join(",");
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
                format!(r#"{{"authors":[{authors}],"kinds":[1,6],"limit":100}}"#),
            ),
            (
                "a hashtag, 100",
                r##"{"#t":["tag3"],"limit":100}"##.to_owned(),
            ),
        ];
        println!("history of {count} events                   statements   us of CPU an answer");
        println!("                             pool   answers/s   an answer     relay   server");
        for (what, text) in &shapes {
            let filters: Arc<[Filter]> = [Filter::parse(text, 1_000).expect("a filter")].into();
            for pool in [1, 5, 10, 50] {
                let relay = self.relay(&url, pool);
                let reader = relay.store.reader();
                // Connections are opened, statements prepared.
                self.answers(&reader, &filters, pool, pool * 2);
                let (count, before) = (400, relay.statements());
                let (cost, ()) =
                    self.cost(|| self.answers(&reader, &filters, pool, count as usize));
                let statements = (relay.statements() - before) as f64 / count as f64;
                let (own, server) = cost.each(count);
                println!(
                    "{what:<26} {pool:>6} {:>11.0} {statements:>11.2} {own:>9.0} {server:>8.0}",
                    cost.rate(count),
                );
            }
        }
    }

    fn answers(&self, reader: &Reader, filters: &Arc<[Filter]>, at_once: usize, count: usize) {
        let part = |part: usize| async move {
            let share = count / at_once + usize::from(part < count % at_once);
            for _ in 0..share {
                let mut query = Query::new(filters.clone(), BOUNDS);
                loop {
                    let budget = Budget {
                        bytes_max: 1 << 20,
                        now: 0,
                        seq_min: 0,
                    };
                    let read = reader.read(query, budget).await.expect("a read");
                    if read.progress == Progress::Done {
                        break;
                    }
                    query = read.query;
                }
            }
        };
        let parts = futures::future::join_all((0..at_once).map(part));
        self.runtime.block_on(parts);
    }
}
