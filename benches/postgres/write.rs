//! Events on their way in, and to the other relays.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::made::{event, events};
use crate::notify::SILENT;
use crate::{Bench, POOL, Relay, job, quantiles};

impl Bench {
    /// Bursts, from one relay and from several at once, and what one writers' pool is worth.
    pub fn publish(&self, count: u64) {
        println!(
            "publish, {count} events in bursts   events    statements an event   us of CPU an event"
        );
        println!(
            "relays   pool  in flight   events/s   a commit   relays  its server     relays   server"
        );
        for (relays, pool, flight) in [
            (1, POOL, 1),
            (1, POOL, 16),
            (1, POOL, 256),
            (1, 1, 4_096),
            (1, 5, 4_096),
            (1, 20, 4_096),
            (2, POOL, 4_096),
            (3, POOL, 4_096),
        ] {
            self.bursts(
                relays,
                pool,
                flight,
                if flight < 256 { count / 20 } else { count },
            );
        }
    }

    fn bursts(&self, relays: u64, pool: usize, flight: usize, count: u64) {
        let url = self.cluster.database();
        let mut relays: Vec<Relay> = (0..relays).map(|_| self.relay(&url, pool)).collect();
        let share = count / relays.len() as u64;
        let count = share * relays.len() as u64;
        let shares: Vec<_> = (0..relays.len() as u64)
            .map(|relay| events(relay * share, share))
            .collect();
        let sum = |relays: &[Relay], of: fn(&Relay) -> u64| relays.iter().map(of).sum::<u64>();
        let (before, counted) = (sum(&relays, Relay::statements), self.counted());
        let (cost, ()) = self.cost(|| {
            std::thread::scope(|scope| {
                for (relay, events) in relays.iter_mut().zip(&shares) {
                    scope.spawn(move || relay.burst(events, flight));
                }
            });
        });
        let statements = (sum(&relays, Relay::statements) - before) as f64 / count as f64;
        let counted = counted
            .zip(self.counted())
            .map_or("-".to_owned(), |(then, now)| {
                format!("{:.3}", (now - then) as f64 / count as f64)
            });
        let (own, server) = cost.each(count);
        println!(
            "{:>6} {pool:>6} {flight:>10} {:>10.0} {:>10.1} {statements:>8.3} {counted:>11} {own:>10.1} {server:>8.1}",
            relays.len(),
            cost.rate(count),
            count as f64 / sum(&relays, Relay::commits) as f64,
        );
    }

    /// One turn at a time: lone events of several relays, against bare commits of the server.
    pub fn turns(&self, _: u64) {
        println!("turns: lone events at once, each waits for its commit");
        println!("              commits/s   us of CPU a commit: relays   server");
        for relays in [1, 2, 4, 8] {
            let url = self.cluster.database();
            let mut relays: Vec<Relay> = (0..relays).map(|_| self.relay(&url, POOL)).collect();
            let share = 2_000 / relays.len() as u64;
            let (cost, ()) = self.cost(|| {
                std::thread::scope(|scope| {
                    for (place, relay) in relays.iter_mut().enumerate() {
                        let events = events(place as u64 * share, share);
                        scope.spawn(move || relay.burst(&events, 1));
                    }
                });
            });
            let (own, server) = cost.each(2_000);
            println!(
                "{:>2} relays   {:>12.0} {own:>29.0} {server:>8.0}",
                relays.len(),
                cost.rate(2_000)
            );
        }
        for connections in [1, 8] {
            let rate = self.bare_commits(connections, SILENT, 2_000);
            println!("{connections:>2} bare     {rate:>13.0}");
        }
    }

    /// How long until an event is durable, and with the shards of another relay.
    pub fn live(&self, _: u64) {
        let url = self.cluster.database();
        let (one, two) = (self.relay(&url, POOL), self.relay(&url, POOL));
        let (mut durable, mut told) = (Vec::new(), Vec::new());
        for n in 0..500 {
            let started = Instant::now();
            one.store.submit(&mut vec![job(Arc::new(event(n)))]);
            let (committed, _) = one.done.recv().expect("an outcome");
            let (arrived, _) = two.arrived.recv().expect("an event");
            durable.push(committed - started);
            told.push(arrived.saturating_duration_since(committed));
        }
        println!("a lone event is durable after: {}", quantiles(&mut durable));
        println!(
            "and with another relay's shards after: {}",
            quantiles(&mut told)
        );
        let count = 8_000;
        let (cost, come) = self.cost(|| {
            for n in 0..count {
                one.store.pass_on(Arc::new(event(n)));
            }
            let wait = Duration::from_secs(10);
            (0..count)
                .filter(|_| two.arrived.recv_timeout(wait).is_ok())
                .count()
        });
        println!(
            "ephemeral events passed on: {:.0} a second, {come} of {count}",
            cost.rate(count)
        );
    }
}
