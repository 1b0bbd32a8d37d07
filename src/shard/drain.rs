//! A shard's part of the drain: it stops accepting, tells its connections to leave, and counts how
//! each of them ended.
//!
//! Invariant: a connection comes under the drain once and is settled once. It comes under it when
//! the shard stops accepting, or when it registers after that. Until it is told to leave it is
//! served as always; whoever starts its close first wins, and to the drain a connection that
//! somebody else is closing is gone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::drain::REASON;
use crate::drain::run::Part;
use crate::limits::CLOSES_AT_ONCE_MAX;
use crate::metrics::{CloseReason, DrainClose, UpgradeRefusal};
use crate::shard::conn::{Conn, Phase};
use crate::shard::{Shard, http, listener, runtime};
use crate::ws::close;

/// What the drain has to do with a connection. It only moves forward.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Stand {
    /// Nothing.
    #[default]
    Outside,
    /// Its time will come.
    Due,
    /// Its 1012 is queued or being written.
    Told,
    /// It was counted.
    Settled,
}

/// A connection that is due, and the moment.
type Due = (Instant, u32, u32);

impl Shard {
    /// Empties the accept queues and closes the listeners, where they are this shard's, and counts the
    /// connections. Those that have not sent their request are no connections yet: they are answered
    /// when the closes start.
    pub(super) fn stop_accepting(self: &Rc<Self>) {
        self.accepting.set(false);
        if self.is_counted.replace(true) {
            return;
        }
        if self.common.leaves.load(Ordering::Acquire) {
            self.leave_listeners();
        }
        for listener in self.listeners.take() {
            listener::stop(self, &listener);
        }
        let (mut due, mut all) = (0, 0);
        self.each_conn(|conn| {
            if conn.counted.get() {
                // One that registered late has come under the drain already.
                if conn.stand.get() == Stand::Outside {
                    self.come_under(conn);
                }
                all += 1;
                due += usize::from(conn.stand.get() == Stand::Due);
            }
        });
        self.metrics.drain_remaining.set(f64::from(all));
        self.common.drain.stopped_accepting(self.id, due);
    }

    fn come_under(self: &Rc<Self>, conn: &Rc<Conn>) {
        self.common.drain.came_under(self.id);
        conn.stand.set(Stand::Due);
        if conn.phase() > Phase::Open {
            self.settle(conn, DrainClose::Gone);
        }
    }

    /// Closes a WebSocket that was opened although the relay no longer takes any: it read the flag
    /// just before the flag was set.
    pub(super) fn late(self: &Rc<Self>, conn: &Rc<Conn>) {
        if conn.stand.get() != Stand::Outside {
            return;
        }
        self.metrics.drain_remaining.increment(1.0);
        self.come_under(conn);
        self.tell(conn, Instant::now());
    }

    /// Starts the closes that the plan gave to this shard.
    pub(super) fn start_closes(self: &Rc<Self>, part: Part) {
        let mut due: Vec<Due> = Vec::new();
        let mut unupgraded = Vec::new();
        let delays = part.delays.unwrap_or_default();
        self.each_conn(|conn| match conn.stand.get() {
            Stand::Due => {
                // More connections than delays: the shard was counted without its answer. Then
                // some share a moment.
                let delay = delays.get(due.len() % delays.len().max(1));
                let at = part.start + delay.copied().unwrap_or_default();
                due.push((at, conn.key(), conn.serial));
            }
            _ if conn.phase() == Phase::Head => unupgraded.push(conn.clone()),
            _ => {}
        });
        due.sort_unstable();
        for conn in unupgraded {
            http::unavailable(self, &conn, UpgradeRefusal::Draining);
        }
        runtime::spawn(self.clone().walk(part.start, due));
    }

    async fn walk(self: Rc<Self>, start: Instant, due: Vec<Due>) {
        let mut in_a_row = 0;
        for (at, key, serial) in due {
            let wait = at.saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                runtime::sleep(wait).await;
                in_a_row = 0;
            } else if in_a_row == CLOSES_AT_ONCE_MAX {
                self.turns.next().await;
                in_a_row = 0;
            }
            in_a_row += 1;
            let conn = self.conns.borrow().get(key as usize).cloned();
            if let Some(conn) = conn.filter(|conn| conn.serial == serial) {
                // As for any task of a connection: a panic ends it and nothing else.
                if catch_unwind(AssertUnwindSafe(|| self.tell(&conn, start))).is_err() {
                    self.caught(&conn);
                }
            }
        }
    }

    /// Tells a connection to leave, unless it is leaving already.
    fn tell(self: &Rc<Self>, conn: &Rc<Conn>, start: Instant) {
        if conn.stand.get() != Stand::Due {
            return;
        }
        let code = Some(close::SERVICE_RESTART);
        if conn.close(self, CloseReason::Restart, code, REASON) {
            conn.stand.set(Stand::Told);
            self.common.drain.told(self.id, start.elapsed());
        } else {
            self.settle(conn, DrainClose::Gone);
        }
    }

    /// Takes note that the last byte queued for a connection was accepted by the kernel.
    pub(super) fn flushed(&self, conn: &Conn) {
        if conn.stand.get() == Stand::Told {
            self.settle(conn, DrainClose::Acknowledged);
        }
    }

    /// Takes note that a connection was cut, whatever was still queued for it.
    pub(super) fn was_cut(&self, conn: &Conn) {
        match conn.stand.get() {
            Stand::Due => self.settle(conn, DrainClose::Gone),
            Stand::Told => self.settle(conn, DrainClose::Cancelled),
            Stand::Outside | Stand::Settled => {}
        }
    }

    /// Takes note that a connection has ended and left the table.
    pub(super) fn ended(&self, conn: &Conn) {
        self.was_cut(conn);
        if conn.stand.get() == Stand::Settled {
            self.metrics.drain_remaining.decrement(1.0);
        }
    }

    fn settle(&self, conn: &Conn, how: DrainClose) {
        conn.stand.set(Stand::Settled);
        self.metrics.drain_closes.of(how).increment(1);
        self.common.drain.settled(self.id, how);
    }
}
