//! The relay's end, in order: from the request to stop to the exit code.
//!
//! Signals and commands are told apart only here. The first request starts the drain; the first
//! signal after a command's drain joins it; a signal that repeats another one stops at once.
//!
//! The hard stop is a thread of its own. It must fire also when this runtime is stuck.

use std::future::Future;
use std::net::TcpListener;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::watch;

use super::logs::Logs;
use super::notify::Manager;
use super::signals::{Requests, Signals, StopRequest};
use crate::config::DrainBudget;
use crate::drain::ledger::{Ledger, Totals};
use crate::drain::run::{self, Part, Relay};
use crate::error::{EXIT_CLEAN, EXIT_FAILED};
use crate::lifecycle::Stage;
use crate::limits::{
    DRAIN_ANSWER_WAIT, DRAIN_LOOK, DRAIN_QUIET, FLAGS_CLOSE_MS_MAX, SIGNAL_REPEATS,
    STORE_CLOSE_MS_MAX, TRANSFER_STOP_MS_MAX,
};
use crate::metrics::{DrainClose, Label, series};
use crate::shard::{Common, Mail, listener};

/// The drain as commands and status see it. Cheap to clone.
#[derive(Clone)]
pub struct Door {
    requests: Requests,
    common: Arc<Common>,
    known: Arc<Mutex<Known>>,
    code: watch::Sender<Option<i32>>,
}

#[derive(Default)]
struct Known {
    by: Option<StopRequest>,
    began: Option<Instant>,
    /// The times as they were when it began: whatever is read again changes the next one only.
    budget: Option<DrainBudget>,
    seed: u64,
}

impl Door {
    /// The door to the process whose requests go to `signals`.
    pub fn new(common: Arc<Common>, signals: &Signals) -> Door {
        Door {
            requests: signals.requests(),
            common,
            known: Arc::default(),
            code: watch::Sender::new(None),
        }
    }

    /// Asks for the drain. It joins one that runs.
    pub fn ask(&self) {
        // A full stream holds requests enough.
        self.requests.send(StopRequest::Admin);
    }

    /// Waits for the end of the drain: the exit code.
    pub async fn ended(&self) -> i32 {
        let mut code = self.code.subscribe();
        match code.wait_for(Option::is_some).await {
            Ok(code) => code.unwrap_or(EXIT_FAILED),
            // The sender lives in `self`.
            Err(_) => EXIT_FAILED,
        }
    }

    /// What status shows.
    pub fn describe(&self) -> Value {
        let totals = self.common.drain.totals();
        let known = self.known();
        // The seed is drawn when the closes begin.
        let is_closing = known.seed != 0;
        let budget = known
            .budget
            .unwrap_or_else(|| self.common.settings().config.drain);
        json!({
            "state": match (self.common.lifecycle.stage(), is_closing) {
                (Stage::Starting | Stage::Ready, _) => "none",
                (Stage::Draining, false) => "grace",
                (Stage::Draining, true) => "closing",
                (Stage::Closing, _) => "ending",
                (Stage::Stopped, _) => "ended",
            },
            "requested_by": known.by.map(StopRequest::as_str),
            "running_ms": known.began.map(|began| began.elapsed().as_millis() as u64),
            "window_ms": budget.jitter.as_millis() as u64,
            "seed": format!("{:016x}", known.seed),
            "connections": totals.all,
            "sockets_remaining": self.sockets(),
            "acknowledged": totals.acknowledged,
            "cancelled": totals.cancelled,
            "gone": totals.gone,
            "exit_code": *self.code.borrow(),
        })
    }

    fn sockets(&self) -> usize {
        let shards = 0..self.common.shards();
        shards.map(|shard| self.common.sockets(shard)).sum()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything that is needed to end the relay.
pub struct Stop {
    /// The drain as others see it.
    pub door: Door,
    /// The service manager.
    pub manager: Manager,
    /// Flushed before a hard stop's exit.
    pub logs: Logs,
    /// Second handles of the shards' listening sockets.
    pub listeners: Vec<TcpListener>,
}

impl Stop {
    /// Waits for the request to stop, and stops in order. Returns the exit code.
    pub async fn run(self, mut signals: Signals, close_flags: impl Future<Output = ()>) -> i32 {
        let first = signals.next().await;
        let mut requests = RequestsSoFar::default();
        requests.is_repeated(first, Instant::now());
        let budget = self.begin(first);
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
            code = self.in_order(budget, close_flags) => code,
        };
        self.answer(code).await;
        code
    }

    /// Sets the draining flag before anything waits. Returns the times of this drain.
    fn begin(&self, request: StopRequest) -> DrainBudget {
        self.common().lifecycle.advance(Stage::Draining);
        let budget = self.common().settings().config.drain;
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
            grace_ms = budget.grace.as_millis() as u64,
            window_ms = budget.jitter.as_millis() as u64,
            hard_stop_ms = budget.hard_stop.as_millis() as u64,
            "the relay drains"
        );
        self.manager.stopping("draining: new clients are refused");
        budget
    }

    async fn in_order(&self, budget: DrainBudget, close_flags: impl Future<Output = ()>) -> i32 {
        let quiet = DRAIN_QUIET.min(budget.grace / 2);
        tokio::time::sleep(budget.grace - quiet).await;
        for listener in &self.listeners {
            if let Err(error) = listener::refuse_handshakes(listener) {
                tracing::debug!(%error, "handshakes go on until the listeners close");
            }
        }
        tokio::time::sleep(quiet).await;
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
        let all = totals.all;
        self.manager
            .status(&format!("draining: {remaining} of {all} connections left"));
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
        if request == StopRequest::Admin {
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

/// Ends the process after a while, unless it is dropped before.
struct HardStop {
    _disarm: SyncSender<()>,
}

impl HardStop {
    fn arm(after: Duration, fire: impl FnOnce() + Send + 'static) -> HardStop {
        let (disarm, wait) = sync_channel::<()>(0);
        let thread = std::thread::Builder::new().name("hard-stop".to_owned());
        let started = thread.spawn(move || {
            // Dropping the sender ends the wait with another error.
            if wait.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
                fire();
            }
        });
        if let Err(error) = started {
            tracing::error!(%error, "there is no hard stop: no thread for it");
        }
        HardStop { _disarm: disarm }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

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
    fn the_hard_stop_fires_once_it_is_time_and_not_when_disarmed() {
        let fired = Arc::new(AtomicBool::new(false));
        let fire = |fired: &Arc<AtomicBool>| {
            let fired = fired.clone();
            move || fired.store(true, Ordering::SeqCst)
        };
        drop(HardStop::arm(Duration::from_millis(30), fire(&fired)));
        std::thread::sleep(Duration::from_millis(120));
        assert!(!fired.load(Ordering::SeqCst), "disarmed");
        let armed = HardStop::arm(Duration::from_millis(10), fire(&fired));
        let end = Instant::now() + Duration::from_secs(10);
        while !fired.load(Ordering::SeqCst) {
            assert!(Instant::now() < end, "never fired");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(armed);
    }

    #[test]
    fn seeds_differ_and_tell_that_the_closes_have_begun() {
        assert_ne!(seed(), 0);
        assert_ne!(seed(), seed());
    }
}
