//! The series of a store that is a database, from what the store says of itself.

use metrics::{Counter, Gauge};

use super::labels::{ByLabel, DbPool};
use super::series;
use crate::store::postgres::Status;

/// Their handles. They exist from here on.
pub struct DatabaseMetrics {
    open: ByLabel<DbPool, Gauge>,
    in_use: ByLabel<DbPool, Gauge>,
    opened: Counter,
    statements: Counter,
    listening: Gauge,
    listeners_lost: Counter,
    behind: Gauge,
    fetched: Counter,
    caught_up: Counter,
    ephemeral_passed: Counter,
    ephemeral_lost: Counter,
}

impl DatabaseMetrics {
    /// Takes the handles.
    pub fn new() -> DatabaseMetrics {
        DatabaseMetrics {
            open: ByLabel::gauges(&series::DB_CONNECTIONS),
            in_use: ByLabel::gauges(&series::DB_CONNECTIONS_IN_USE),
            opened: series::DB_CONNECTIONS_OPENED.counter(&[]),
            statements: series::DB_STATEMENTS.counter(&[]),
            listening: series::DB_LISTENING.gauge(&[]),
            listeners_lost: series::DB_LISTENERS_LOST.counter(&[]),
            behind: series::DB_BEHIND.gauge(&[]),
            fetched: series::DB_FETCHED.counter(&[]),
            caught_up: series::DB_CAUGHT_UP.counter(&[]),
            ephemeral_passed: series::DB_EPHEMERAL_PASSED.counter(&[]),
            ephemeral_lost: series::DB_EPHEMERAL_LOST.counter(&[]),
        }
    }

    /// Shows how the store fares now.
    pub fn show(&self, now: &Status) {
        let pools = [
            (DbPool::Writers, now.writers),
            (DbPool::Readers, now.readers),
        ];
        for (pool, (in_use, open)) in pools {
            self.in_use.of(pool).set(in_use as f64);
            self.open.of(pool).set(open as f64);
        }
        self.opened.absolute(now.opened);
        self.statements.absolute(now.statements);
        self.listening.set(f64::from(u8::from(now.listening)));
        self.listeners_lost.absolute(now.lost);
        self.behind.set(now.head.saturating_sub(now.cursor) as f64);
        self.fetched.absolute(now.fetched);
        self.caught_up.absolute(now.caught_up);
        let (passed, lost) = now.passed;
        self.ephemeral_passed.absolute(passed);
        self.ephemeral_lost.absolute(lost);
    }
}

impl Default for DatabaseMetrics {
    fn default() -> DatabaseMetrics {
        DatabaseMetrics::new()
    }
}
