//! The thread that hands events and answers to the shards.
//!
//! A sink may block while a mailbox is full; the store's runtime must not, or the reads that a shard
//! waits for would stand still as well. So batches go through a short channel to a thread of their
//! own, and whoever fills it waits: the writer before its next commit, the listener before its next
//! fetch.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::mpsc;

use super::Core;
use super::decide::Removals;
use crate::limits::DB_DELIVERIES_WAITING_MAX;
use crate::store::{Arrived, CommitSink, Done, Outcome, Removal};

/// A batch for the shards.
pub enum Delivery {
    /// What became of one commit.
    Answers(Answers),
    /// What other processes have published.
    Arrived(Vec<Arrived>),
    /// Keys that were banned.
    Banned(Vec<[u8; 32]>),
}

/// What became of one commit.
#[derive(Default)]
pub struct Answers {
    /// Its events.
    pub done: Vec<Done>,
    /// How long it took, and how many events it stored, if any.
    pub took: Option<(Duration, usize)>,
    /// How many it removed.
    pub removals: Removals,
}

/// The way to the thread. It ends when all senders are gone.
pub type Deliveries = mpsc::Sender<Delivery>;

/// Starts the thread.
///
/// # Panics
/// If the system gives no thread.
pub fn start(core: &Arc<Core>, mut sink: impl CommitSink) -> (Deliveries, JoinHandle<()>) {
    let (sender, mut receiver) = mpsc::channel(DB_DELIVERIES_WAITING_MAX);
    let core = core.clone();
    let run = move || {
        let _guard = AbortOnPanic;
        while let Some(delivery) = receiver.blocking_recv() {
            deliver(&core, &mut sink, delivery);
        }
    };
    let thread = thread::Builder::new().name("store-live".into()).spawn(run);
    (
        sender,
        thread.expect("the system gives a thread for live events"),
    )
}

fn deliver(core: &Core, sink: &mut impl CommitSink, delivery: Delivery) {
    match delivery {
        Delivery::Answers(answers) => {
            let Answers {
                mut done,
                took,
                removals,
            } = answers;
            let stored = done.iter().filter_map(|done| match done.outcome {
                Outcome::Stored { seq } => Some(seq),
                _ => None,
            });
            note_delivered(core, stored.max());
            let events = done.len();
            let bytes = done.iter().map(|done| done.event.json().len()).sum();
            if let Some((duration, events)) = took {
                sink.commit_took(duration, events);
            }
            for why in Removal::ALL {
                match removals[why as usize] {
                    0 => {}
                    events => sink.removed(why, events),
                }
            }
            sink.committed(&mut done);
            core.queue.answered(events, bytes);
        }
        Delivery::Arrived(mut arrived) => {
            note_delivered(core, arrived.iter().filter_map(|arrived| arrived.seq).max());
            sink.arrived(&mut arrived);
        }
        Delivery::Banned(keys) => sink.banned(keys),
    }
}

/// Before the shards have the events: a subscription that is registered after one of them must read a
/// snapshot that has it.
fn note_delivered(core: &Core, seq: Option<u64>) {
    core.delivered.fetch_max(seq.unwrap_or(0), Ordering::SeqCst);
}

/// A relay that acknowledges nothing any more should not look alive.
pub(super) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}
