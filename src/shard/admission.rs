//! The two gates at their call sites: bounded waits, counted sheds, measured holds.
//!
//! The gates themselves know neither time nor metrics. A wait ends early when its connection does,
//! so a client that leaves cannot hold a place in the line.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use metrics::Histogram;

use crate::gate::{ConcurrencyGate, Limit, Permit, Shed};
use crate::limits::{AUTH_WAIT, HISTORY_RESERVED_DIVISOR, HISTORY_WAIT, READS_AT_ONCE_MAX};
use crate::metrics::{AdmissionMetrics, GateName, ShedReason};
use crate::shard::common::Common;
use crate::shard::conn::Conn;
use crate::shard::runtime;

/// The gates of the process. They live as long as it, so permits may be kept anywhere.
#[derive(Clone, Copy, Debug)]
pub struct Gates {
    /// Store reads for REQ and COUNT.
    pub history: &'static ConcurrencyGate,
    /// Access checks of logins.
    pub auth: &'static ConcurrencyGate,
}

impl Gates {
    /// Makes the gates: `history` with a ceiling of `pool - pool / 5` reads, `auth` without one.
    pub fn new(shards: usize, pool: usize, connections_max: usize) -> Gates {
        let ceiling = history_ceiling(pool);
        let waiting_max = u32::try_from(connections_max).unwrap_or(u32::MAX);
        let reads_max = waiting_max.saturating_mul(READS_AT_ONCE_MAX as u32);
        let gate = |ceiling, waiting| {
            let gate = ConcurrencyGate::new(ceiling, shards, waiting);
            &*Box::leak(Box::new(gate))
        };
        Gates {
            history: gate(ceiling, reads_max),
            auth: gate(Limit::None, waiting_max),
        }
    }

    /// The gate of a name.
    pub fn of(&self, name: GateName) -> &'static ConcurrencyGate {
        match name {
            GateName::HistoryReads => self.history,
            GateName::Auth => self.auth,
        }
    }
}

/// What history reads may take of the reader pool; a pool under 5 reserves nothing.
fn history_ceiling(pool: usize) -> Limit {
    let ceiling = pool - pool / HISTORY_RESERVED_DIVISOR;
    Limit::from_count(u32::try_from(ceiling).unwrap_or(u32::MAX))
}

/// One gate as a shard's connections meet it.
pub struct Admission {
    gate: &'static ConcurrencyGate,
    shard: usize,
    wait_max: Duration,
    metrics: AdmissionMetrics,
}

/// Why there is no permit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refused {
    /// The relay refuses on purpose, for this reason.
    Shed(ShedReason),
    /// The connection has ended: there is nobody to refuse.
    Gone,
}

impl Admission {
    /// A shard's view of one of the gates.
    pub fn new(common: &Common, name: GateName, shard: usize) -> Admission {
        Admission {
            gate: common.gates.of(name),
            shard,
            wait_max: match name {
                GateName::HistoryReads => HISTORY_WAIT,
                GateName::Auth => AUTH_WAIT,
            },
            metrics: AdmissionMetrics::new(name, common.tallies.of(shard)),
        }
    }

    /// A permit, if one is free and nobody waits.
    pub fn at_once(&self) -> Option<Held> {
        let permit = self.gate.try_acquire().ok()?;
        self.metrics.wait.record(0.0);
        Some(self.held(permit))
    }

    /// Waits for a permit, for a bounded time, as long as the connection is open.
    ///
    /// # Errors
    ///
    /// A counted shed, or the end of the connection.
    pub async fn wait(&self, conn: &Conn) -> Result<Held, Refused> {
        let start = Instant::now();
        let waited = unless_ended(conn, async {
            let acquire = self.gate.acquire(self.shard);
            match runtime::timeout(self.wait_max, acquire).await {
                None => Err(ShedReason::Timeout),
                Some(Err(Shed::Full)) => Err(ShedReason::Full),
                Some(Err(Shed::Closed)) => Err(ShedReason::Closed),
                Some(Ok(permit)) => Ok(permit),
            }
        });
        let Some(waited) = waited.await else {
            return Err(Refused::Gone);
        };
        self.metrics.wait.record(start.elapsed());
        match waited {
            Ok(permit) => Ok(self.held(permit)),
            Err(reason) => {
                self.metrics.sheds.of(reason).increment(1);
                Err(Refused::Shed(reason))
            }
        }
    }

    fn held(&self, permit: Permit<&'static ConcurrencyGate>) -> Held {
        Held {
            _permit: permit,
            since: Instant::now(),
            seconds: self.metrics.hold.clone(),
        }
    }
}

/// A permit that measures how long it is held.
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct Held {
    _permit: Permit<&'static ConcurrencyGate>,
    since: Instant,
    seconds: Histogram,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.seconds.record(self.since.elapsed());
    }
}

/// Runs `work` as long as the connection is open. `None`: it ended first, and `work` was dropped.
pub async fn unless_ended<T>(conn: &Conn, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut changed = pin!(conn.changed());
    std::future::poll_fn(|context| {
        if conn.has_ended() {
            return Poll::Ready(None);
        }
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        while changed.as_mut().poll(context).is_ready() {
            if conn.has_ended() {
                return Poll::Ready(None);
            }
            changed.set(conn.changed());
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_ceiling_follows_the_reader_pool() {
        for (pool, ceiling) in [(50, 40), (10, 8), (5, 4), (4, 4), (1, 1)] {
            assert_eq!(history_ceiling(pool), Limit::from_count(ceiling), "{pool}");
        }
    }
}
