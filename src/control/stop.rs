//! The relay's end, in order: from the request to stop to the exit code.
//!
//! Signals and commands are told apart only here. The first request starts the drain; the first
//! signal after a command's drain joins it; a signal that repeats another one stops at once.
//!
//! Listening sockets that others hold as well, the service manager or a process that takes over, are
//! left to them: whoever connects is theirs to serve. There is no grace then, because nobody has to
//! notice anything, and the upgrades under way are answered first.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::admin;
use super::door::Door;
use super::hand_over::give::{self, Giver};
use super::hard_stop::HardStop;
use super::logs::Logs;
use super::notify::Manager;
use super::signals::{Signals, StopRequest};
use super::socket::{self, SocketFile};
use super::sockets::Holding;
use crate::config::DrainBudget;
use crate::drain::ledger::{Ledger, Totals};
use crate::drain::run::{self, Part, Relay};
use crate::error::{EXIT_CLEAN, EXIT_FAILED};
use crate::lifecycle::Stage;
use crate::limits::{
    DRAIN_ANSWER_WAIT, DRAIN_LOOK, DRAIN_QUIET, FLAGS_CLOSE_MS_MAX, HAND_OVER_UPGRADES_WAIT,
    SIGNAL_REPEATS, STORE_CLOSE_MS_MAX, TRANSFER_STOP_MS_MAX,
};
use crate::metrics::{DrainClose, Label, series};
use crate::shard::{Common, Mail, listener};
use crate::words::counted;

/// Everything that is needed to end the relay.
pub struct Stop {
    /// The drain as others see it.
    pub door: Door,
    /// The service manager.
    pub manager: Manager,
    /// Flushed before a hard stop's exit.
    pub logs: Logs,
    /// What is listened on, and the locks.
    pub holding: Holding,
    /// Who hands it over.
    pub giver: Giver,
    /// Taken when the sockets are another process's.
    pub fronts: Option<Fronts>,
}

/// The servers that are not the shards'.
pub struct Fronts {
    /// The control socket's.
    pub control: socket::Running,
    /// Health and metrics.
    pub admin: admin::Running,
    /// Hand-overs, and their socket's file.
    pub hand_over: Option<(give::Running, SocketFile)>,
}

impl Fronts {
    /// Stops them, and leaves the files of their sockets to the process that has those now.
    fn leave(self) {
        self.control.leave();
        if let Some((_, file)) = self.hand_over {
            file.leave();
        }
    }
}

/// What becomes of the listening sockets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Sockets {
    /// They are this process's alone and are closed.
    Close,
    /// The service manager keeps them.
    Keep,
    /// Another process has them.
    Give,
}

impl Sockets {
    fn as_str(self) -> &'static str {
        match self {
            Sockets::Close => "closed",
            Sockets::Keep => "kept",
            Sockets::Give => "handed over",
        }
    }
}

impl Stop {
    /// Waits for the request to stop, and stops in order. Returns the exit code.
    pub async fn run(mut self, mut signals: Signals, close_flags: impl Future<Output = ()>) -> i32 {
        let first = signals.next().await;
        let mut requests = RequestsSoFar::default();
        requests.is_repeated(first, Instant::now());
        let (sockets, budget) = self.begin(first);
        let code = tokio::select! {
            biased;
            signal = repeated(&mut signals, &mut requests) => {
                let left = self.door.sockets();
                tracing::error!(
                    signal = signal.as_str(),
                    sockets_left = left,
                    "a second signal: the relay stops at once"
                );
                EXIT_FAILED
            }
            code = self.in_order(sockets, budget, close_flags) => code,
        };
        self.answer(code).await;
        // The sockets' files first: they are the folder's, which another process may take then.
        drop(self.fronts.take());
        self.holding.release();
        code
    }

    /// Sets the flag before anything waits. Returns what becomes of the listening sockets, and the times
    /// of this drain.
    fn begin(&mut self, request: StopRequest) -> (Sockets, DrainBudget) {
        let kept = self.holding.look(|held| held.kept);
        let sockets = match request == StopRequest::HandOver || self.giver.is_giving() {
            true => Sockets::Give,
            false if kept == Some(true) => Sockets::Keep,
            false => Sockets::Close,
        };
        let lifecycle = &self.common().lifecycle;
        if sockets == Sockets::Close {
            lifecycle.advance(Stage::Draining);
        } else {
            self.common().leave_listeners();
            lifecycle.advance(Stage::Leaving);
        }
        if sockets == Sockets::Give {
            self.fronts.take().into_iter().for_each(Fronts::leave);
            self.holding.release();
        }
        let budget = self.common().settings().config.drain;
        let grace = match sockets {
            Sockets::Close => budget.grace,
            // Nobody has to notice anything.
            Sockets::Keep | Sockets::Give => Duration::ZERO,
        };
        // A client that reconnects finds another relay; a transfer had better be told early.
        self.common().transfers.stop();
        {
            let mut known = self.door.known();
            known.by = Some(request);
            known.began = Some(Instant::now());
            known.budget = Some(budget);
        }
        tracing::info!(
            requested_by = request.as_str(),
            connections = self.common().open_connections(),
            grace_ms = grace.as_millis() as u64,
            window_ms = budget.jitter.as_millis() as u64,
            hard_stop_ms = budget.hard_stop.as_millis() as u64,
            sockets = sockets.as_str(),
            "the relay drains"
        );
        self.manager.stopping(match sockets {
            Sockets::Close => "draining: new clients are refused",
            Sockets::Keep => "draining: new clients wait for the next process",
            Sockets::Give => "draining: new clients are another process's",
        });
        (sockets, budget)
    }

    async fn in_order(
        &self,
        sockets: Sockets,
        budget: DrainBudget,
        close_flags: impl Future<Output = ()>,
    ) -> i32 {
        match sockets {
            Sockets::Close => self.grace(budget.grace).await,
            Sockets::Keep => self.leave(budget.grace).await,
            Sockets::Give => self.leave(HAND_OVER_UPGRADES_WAIT).await,
        }
        let hard_stop = HardStop::arm(budget.hard_stop, self.hard_stop());
        let seed = seed();
        self.door.known().seed = seed;
        run::run(self, budget.jitter, seed).await;
        drop(hard_stop);

        self.common().lifecycle.advance(Stage::Closing);
        let totals = self.common().drain.totals();
        tracing::info!(
            connections = totals.all,
            acknowledged = totals.acknowledged,
            cancelled = totals.cancelled,
            gone = totals.gone,
            last_close_ms = totals.last_close.as_millis() as u64,
            "every connection has ended"
        );
        self.end_transfers().await;
        self.manager.status("closing the store");
        if !self.close_store().await {
            return EXIT_FAILED;
        }
        // The provider bounds its own close; this is for a defect in that.
        let limit = Duration::from_millis(FLAGS_CLOSE_MS_MAX + FLAGS_CLOSE_MS_MAX / 2);
        if tokio::time::timeout(limit, close_flags).await.is_err() {
            tracing::warn!("the flag provider did not close and is left behind");
        }
        tracing::info!("the relay has stopped");
        EXIT_CLEAN
    }

    /// Lets others notice that this relay is going. New clients are told meanwhile.
    async fn grace(&self, grace: Duration) {
        let quiet = DRAIN_QUIET.min(grace / 2);
        tokio::time::sleep(grace - quiet).await;
        self.holding.look(|held| {
            for listener in &held.public {
                if let Err(error) = listener::refuse_handshakes(listener) {
                    tracing::debug!(%error, "handshakes go on until the listeners close");
                }
            }
        });
        tokio::time::sleep(quiet).await;
    }

    /// Accepts no more, and answers the upgrades of those that were accepted, for at most this long.
    /// From then on a connection that opens is the drain's to close.
    async fn leave(&self, upgrades: Duration) {
        let end = Instant::now() + upgrades;
        let mut told = vec![false; self.shards()];
        loop {
            for (shard, told) in told.iter_mut().enumerate() {
                let tell = || self.common().tell(shard, Mail::LeaveListeners).is_ok();
                *told = *told || tell();
            }
            if self.common().has_left() || Instant::now() >= end {
                break;
            }
            tokio::time::sleep(DRAIN_LOOK).await;
        }
        self.common().lifecycle.advance(Stage::Draining);
    }

    /// Waits until imports and exports have ended: they were told when the drain began.
    async fn end_transfers(&self) {
        let end = Instant::now() + Duration::from_millis(TRANSFER_STOP_MS_MAX);
        while self.common().transfers.running() != (0, 0) {
            if Instant::now() >= end {
                tracing::warn!("an import or an export does not end and is cut off");
                return;
            }
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    }

    /// Completes the pending writes. Returns false when that took too long.
    async fn close_store(&self) -> bool {
        let pending = self.common().store.pending();
        let store = self.common().store.clone();
        let closed = tokio::task::spawn_blocking(move || store.close());
        let limit = Duration::from_millis(STORE_CLOSE_MS_MAX);
        match tokio::time::timeout(limit, closed).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::error!(%error, "the store's close failed");
                false
            }
            Err(_) => {
                let left = self.common().store.pending();
                tracing::error!(pending, left, "the store's pending writes take too long");
                false
            }
        }
    }

    fn hard_stop(&self) -> impl FnOnce() + Send + 'static {
        let (door, logs) = (self.door.clone(), self.logs.clone());
        move || {
            let ledger = &door.common.drain;
            let totals = ledger.totals();
            // A shard that is stuck has not even counted its connections.
            let silent = (0..door.common.shards()).filter(|id| ledger.planned(*id).is_none());
            let uncounted: usize = silent.map(|id| door.common.sockets(id)).sum();
            let left = totals.unsettled() + uncounted;
            let hard = DrainClose::Hard.as_label().to_owned();
            let counter = series::DRAIN_CLOSES.counter(&[(DrainClose::NAME, hard)]);
            counter.increment(left as u64);
            tracing::error!(
                connections = totals.all,
                acknowledged = totals.acknowledged,
                cancelled = totals.cancelled,
                gone = totals.gone,
                hard = left,
                sockets_left = door.sockets(),
                "the hard stop: the relay ends with connections left"
            );
            logs.flush();
            std::process::exit(EXIT_FAILED);
        }
    }

    /// Lets those who wait for the end know how it came out.
    async fn answer(&self, code: i32) {
        self.common().lifecycle.advance(Stage::Stopped);
        let somebody_waits = self.door.code.receiver_count() > 0;
        self.door.code.send_replace(Some(code));
        if somebody_waits {
            tokio::time::sleep(DRAIN_ANSWER_WAIT).await;
        }
    }

    fn common(&self) -> &Arc<Common> {
        &self.door.common
    }
}

impl Relay for Stop {
    fn shards(&self) -> usize {
        self.common().shards()
    }

    fn ledger(&self) -> &Ledger {
        &self.common().drain
    }

    fn sockets(&self, shard: usize) -> usize {
        self.common().sockets(shard)
    }

    fn stop_accepting(&self, shard: usize) -> bool {
        self.common().tell(shard, Mail::StopAccepting).is_ok()
    }

    fn close(&self, shard: usize, part: Part) -> Result<(), Part> {
        match self.common().tell(shard, Mail::Close(part)) {
            Err(Mail::Close(part)) => Err(part),
            _ => Ok(()),
        }
    }

    fn progress(&self, totals: &Totals, remaining: usize) {
        tracing::info!(
            seed = format_args!("{:016x}", self.door.known().seed),
            connections = totals.all,
            remaining,
            acknowledged = totals.acknowledged,
            cancelled = totals.cancelled,
            gone = totals.gone,
            "closing connections"
        );
        let all = counted(totals.all as u64, "connection");
        self.manager
            .status(&format!("draining: {remaining} of {all} left"));
    }
}

/// Which requests came so far.
#[derive(Debug, Default)]
struct RequestsSoFar {
    first_signal: Option<Instant>,
}

impl RequestsSoFar {
    /// Whether this is a signal that repeats an earlier one. Two within a moment are one: a
    /// supervisor and a terminal may both send theirs.
    fn is_repeated(&mut self, request: StopRequest, now: Instant) -> bool {
        if matches!(request, StopRequest::Admin | StopRequest::HandOver) {
            return false;
        }
        let first = *self.first_signal.get_or_insert(now);
        now.duration_since(first) >= SIGNAL_REPEATS
    }
}

async fn repeated(signals: &mut Signals, requests: &mut RequestsSoFar) -> StopRequest {
    loop {
        let request = signals.next().await;
        if requests.is_repeated(request, Instant::now()) {
            return request;
        }
    }
}

/// Fresh for each drain, so that the processes of a fleet do not close in step. Never 0.
fn seed() -> u64 {
    // Without random bytes the drain goes on: the plan is even with any seed.
    getrandom::u64().unwrap_or_else(|_| fastrand::u64(..)) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_repeats_another_only_after_a_while_and_a_command_never_does() {
        use StopRequest::{Admin, Interrupt, Terminate};
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);

        let mut by_signal = RequestsSoFar::default();
        assert!(!by_signal.is_repeated(Terminate, at(0)));
        assert!(!by_signal.is_repeated(Interrupt, at(999)));
        assert!(!by_signal.is_repeated(Admin, at(5_000)));
        assert!(by_signal.is_repeated(Terminate, at(1_000)));

        let mut by_command = RequestsSoFar::default();
        assert!(!by_command.is_repeated(Admin, at(0)));
        assert!(!by_command.is_repeated(Admin, at(5_000)));
        // Kubernetes sends its SIGTERM after the preStop command: it joins.
        assert!(!by_command.is_repeated(Terminate, at(6_000)));
        assert!(!by_command.is_repeated(Terminate, at(6_500)));
        assert!(by_command.is_repeated(Interrupt, at(7_000)));
    }

    #[test]
    fn seeds_differ_and_tell_that_the_closes_have_begun() {
        assert_ne!(seed(), 0);
        assert_ne!(seed(), seed());
    }
}
