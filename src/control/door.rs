//! The drain as commands and status see it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::signals::{Requests, Signals, StopRequest};
use crate::config::DrainBudget;
use crate::error::EXIT_FAILED;
use crate::lifecycle::Stage;
use crate::limits::{DRAIN_BEGIN_WAIT, DRAIN_LOOK};
use crate::shard::Common;

/// The way to the drain. Cheap to clone.
#[derive(Clone)]
pub struct Door {
    requests: Requests,
    pub(super) common: Arc<Common>,
    known: Arc<Mutex<Known>>,
    pub(super) code: watch::Sender<Option<i32>>,
}

#[derive(Default)]
pub(super) struct Known {
    pub(super) by: Option<StopRequest>,
    pub(super) began: Option<Instant>,
    /// The times as they were when it began: whatever is read again changes the next one only.
    pub(super) budget: Option<DrainBudget>,
    pub(super) seed: u64,
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

    /// Waits until the drain that was asked for has begun, for a bounded time.
    pub async fn begun(&self) {
        // A relay that ends at once waits for those who listen, so that who asked has an answer.
        let _listens = self.code.subscribe();
        let begun = async {
            while self.known().by.is_none() {
                sleep(DRAIN_LOOK).await;
            }
        };
        // Else who asked sees that it has not.
        let _ = timeout(DRAIN_BEGIN_WAIT, begun).await;
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
                (Stage::Leaving, _) => "leaving",
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

    /// Sockets of all shards, upgraded or not.
    pub fn sockets(&self) -> usize {
        let shards = 0..self.common.shards();
        shards.map(|shard| self.common.sockets(shard)).sum()
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
