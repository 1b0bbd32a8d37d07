//! Tests of the gate on the real primitives. The helpers poll by hand, so that a test decides
//! what runs between any two steps; `models` does the same for every interleaving.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::*;

mod invariants;
mod oracle;
mod soak;
mod table;

pub(super) type Held<'g> = Permit<&'g ConcurrencyGate>;
pub(super) type Answer<'g> = Poll<Result<Held<'g>, Shed>>;

/// A waker that counts.
#[derive(Default)]
pub(super) struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A future polled by hand.
pub(super) struct Task<F> {
    future: F,
    wakes: Arc<Count>,
}

impl<F: Future + Unpin> Task<F> {
    pub(super) fn new(future: F) -> Task<F> {
        Task {
            future,
            wakes: Arc::default(),
        }
    }

    pub(super) fn poll(&mut self) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker))
    }

    /// Wakes since the last call.
    pub(super) fn wakes(&self) -> usize {
        self.wakes.0.swap(0, Ordering::SeqCst)
    }
}

pub(super) type Wait<'g> = Task<Acquire<&'g ConcurrencyGate>>;

pub(super) fn limit(count: u32) -> Limit {
    Limit::from_count(count)
}

/// A gate of two shards at a ceiling (0 is none).
pub(super) fn gate(ceiling: u32) -> ConcurrencyGate {
    ConcurrencyGate::new(limit(ceiling), 2, 1_000)
}

/// Takes `count` permits that must be free.
pub(super) fn hold(gate: &ConcurrencyGate, count: usize) -> Vec<Held<'_>> {
    (0..count)
        .map(|_| gate.try_acquire().expect("free"))
        .collect()
}

/// Begins a wait that must not be ready at once.
pub(super) fn wait(gate: &ConcurrencyGate, shard: usize) -> Wait<'_> {
    let mut task = Task::new(gate.acquire(shard));
    assert!(task.poll().is_pending(), "a permit was free");
    task
}

pub(super) fn drive(gate: &ConcurrencyGate, shard: usize) -> Task<Drive<'_>> {
    let mut drive = Task::new(gate.drive(shard));
    assert!(drive.poll().is_pending());
    drive
}

#[track_caller]
pub(super) fn admitted(answer: Answer<'_>) -> Held<'_> {
    match answer {
        Poll::Ready(Ok(permit)) => permit,
        other => panic!("not admitted: {other:?}"),
    }
}

#[track_caller]
pub(super) fn assert_shed(answer: Answer<'_>, shed: Shed) {
    assert!(
        matches!(&answer, Poll::Ready(Err(s)) if *s == shed),
        "{answer:?} is not {shed:?}"
    );
}

/// The numbers of the table: limit, in flight, free, debt. Without a limit, free is 0.
#[track_caller]
pub(super) fn assert_state(gate: &ConcurrencyGate, expected: (u32, u32, u32, u32)) {
    let now = gate.snapshot();
    let free = now.free().unwrap_or(0);
    assert_eq!(
        (now.limit.as_count(), now.in_flight, free, now.debt),
        expected,
        "{now:?}"
    );
}

/// `quiescent_zero`: with nothing held and nobody waiting, nothing is counted and all is free.
#[track_caller]
pub(super) fn assert_quiescent(gate: &ConcurrencyGate) {
    let now = gate.snapshot();
    assert_eq!((now.in_flight, now.waiting, now.debt), (0, 0, 0), "{now:?}");
    assert!(gate.turn.is_idle());
    for shard in &gate.shards {
        shard.assert_empty();
    }
}

/// `no_lost_wake`: at rest nobody waits beside a free permit.
#[track_caller]
pub(super) fn assert_no_lost_wake(gate: &ConcurrencyGate) {
    let now = gate.snapshot();
    assert!(
        now.closed || now.waiting == 0 || now.free() == Some(0),
        "{now:?}"
    );
}
