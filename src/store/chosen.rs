//! The store that the settings choose, behind what both have in common.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};

use super::embedded::{self, Embedded};
use super::postgres::{self, Postgres};
use super::{CommitSink, Job};
use crate::nostr::event::Event;

/// A handle to the store. Clones are the same store.
#[derive(Clone, Debug)]
pub enum Store {
    /// LMDB in the data folder.
    Embedded(Embedded),
    /// A PostgreSQL database, which other relays may share.
    Postgres(Postgres),
}

/// A shard's view of the store.
#[derive(Clone, Debug)]
pub enum Reader {
    /// Reads on the thread that asks.
    Embedded(embedded::Reader),
    /// Asks the store's thread, and awaits its answer.
    Postgres(postgres::Reader),
}

impl Store {
    /// The word of `BUZZ_STORE`.
    pub fn name(&self) -> &'static str {
        match self {
            Store::Embedded(_) => "embedded",
            Store::Postgres(_) => "postgres",
        }
    }

    /// Starts writing, once.
    ///
    /// # Panics
    /// If it was started before, or the system gives no thread.
    pub fn start_writer(&self, sink: impl CommitSink) {
        match self {
            Store::Embedded(store) => store.start_writer(sink),
            Store::Postgres(store) => store.start_writer(sink),
        }
    }

    /// As [`start_writer`](Self::start_writer), for a process that does nothing but fill the store.
    ///
    /// # Panics
    /// As [`start_writer`](Self::start_writer).
    pub fn start_filling(&self, sink: impl CommitSink) {
        match self {
            Store::Embedded(store) => store.start_filling(sink),
            Store::Postgres(store) => store.start_writer(sink),
        }
    }

    /// Hands events to the writer, from any thread, without waiting. What does not fit the queue's
    /// bounds stays in `jobs`.
    pub fn submit(&self, jobs: &mut Vec<Job>) {
        match self {
            Store::Embedded(store) => store.submit(jobs),
            Store::Postgres(store) => store.submit(jobs),
        }
    }

    /// Events handed in and not yet answered.
    pub fn pending(&self) -> usize {
        match self {
            Store::Embedded(store) => store.pending(),
            Store::Postgres(store) => store.pending(),
        }
    }

    /// Takes no more events and waits until those handed in are answered. Not for a shard, nor for a
    /// runtime.
    pub fn close(&self) {
        match self {
            Store::Embedded(store) => store.close(),
            Store::Postgres(store) => store.close(),
        }
    }

    /// A reader; one a shard.
    pub fn reader(&self) -> Reader {
        match self {
            Store::Embedded(store) => Reader::Embedded(store.reader()),
            Store::Postgres(store) => Reader::Postgres(store.reader()),
        }
    }

    /// Passes an ephemeral event on to the relays that share the store, if there can be any. What
    /// cannot be passed on is counted by the store.
    pub fn pass_on(&self, event: &Arc<Event>) {
        if let Store::Postgres(store) = self {
            store.pass_on(event.clone());
        }
    }
}

/// Waits for an answer of a store elsewhere. For threads that may wait, with a runtime or without.
pub fn block_on<T>(answer: impl Future<Output = T>) -> T {
    struct Thread(std::thread::Thread);
    impl Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Thread(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let mut answer = pin!(answer);
    loop {
        match answer.as_mut().poll(&mut context) {
            Poll::Ready(answer) => return answer,
            // A wake in between is not lost: the next park returns at once.
            Poll::Pending => std::thread::park(),
        }
    }
}
