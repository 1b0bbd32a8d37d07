//! Threads that hammer acquire, drop, cancel and set_limit on the real primitives, with the
//! invariants asserted while they run and at every rest point.
//!
//! `GATE_SOAK_SECONDS` sets how long (default 1).

use std::cell::RefCell;
use std::pin::pin;
use std::sync::Barrier;
use std::sync::atomic::AtomicU32;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::*;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future and a shard's drive on this thread until the future is ready.
pub(super) fn run_shard<T>(
    gate: &ConcurrencyGate,
    shard: usize,
    future: impl Future<Output = T>,
) -> T {
    let mut future = pin!(future);
    let mut drive = gate.drive(shard);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        let _ = Pin::new(&mut drive).poll(&mut cx);
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        thread::park();
    }
}

/// A small generator, so that the gate's tests need no crate for it.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Ends the process when its thread panics: the others would wait at the barrier for ever.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

/// What one round is made of. All threads meet at its rests, and nothing may be left over.
struct Round {
    gate: ConcurrencyGate,
    /// Odd while the control thread changes the limit, and `limit` is what it last wrote.
    epoch: AtomicU32,
    limit: AtomicU32,
    held: AtomicU32,
    rest: Barrier,
}

impl Round {
    /// `cap_at_admission`, `newest_limit_wins`: who was admitted within one epoch was admitted
    /// within its limit, and since then the count can only have grown within it.
    fn assert_admitted_within(&self, epoch: u32) {
        let held = self.held.fetch_add(1, Ordering::SeqCst) + 1;
        let limit = self.limit.load(Ordering::SeqCst);
        let unchanged = epoch.is_multiple_of(2) && self.epoch.load(Ordering::SeqCst) == epoch;
        assert!(!unchanged || held <= limit, "{held} held at limit {limit}");
    }

    fn set_limit(&self, count: u32) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let _ = self.gate.set_limit(limit(count));
        self.limit.store(count, Ordering::SeqCst);
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }
}

const SHARDS: usize = 4;
const TASKS: usize = 5;

/// Several tasks of one shard, each acquiring, holding over a few polls, or giving up.
async fn hammer(round: &Round, shard: usize, random: &RefCell<Random>, turns: usize) {
    let mut tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            Box::pin(async move {
                for _ in 0..turns {
                    let patience = random.borrow_mut().below(8);
                    let mut epoch = 0;
                    let wait = give_up_after(patience, round.gate.acquire(shard), || {
                        epoch = round.epoch.load(Ordering::SeqCst);
                    });
                    let Some(answer) = wait.await else {
                        continue;
                    };
                    let _permit = answer.expect("open, and room to wait");
                    round.assert_admitted_within(epoch);
                    let pauses = random.borrow_mut().below(3);
                    for _ in 0..pauses {
                        pause().await;
                    }
                    round.held.fetch_sub(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    std::future::poll_fn(|cx| {
        tasks.retain_mut(|task| task.as_mut().poll(cx).is_pending());
        if tasks.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// Cancels a wait after a number of polls; patience 7 is for ever.
async fn give_up_after<F: Future + Unpin>(
    patience: u64,
    mut future: F,
    mut before_poll: impl FnMut(),
) -> Option<F::Output> {
    let mut polls = 0;
    std::future::poll_fn(|cx| {
        before_poll();
        if let Poll::Ready(value) = Pin::new(&mut future).poll(cx) {
            return Poll::Ready(Some(value));
        }
        polls += 1;
        if patience < 7 {
            if polls > patience {
                return Poll::Ready(None);
            }
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

async fn pause() {
    let mut polled = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut polled, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

#[test]
fn soak() {
    let seconds = std::env::var("GATE_SOAK_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    while Instant::now() < until {
        let round = Round {
            gate: ConcurrencyGate::new(limit(6), SHARDS, 1_000),
            epoch: AtomicU32::new(0),
            limit: AtomicU32::new(6),
            held: AtomicU32::new(0),
            rest: Barrier::new(SHARDS + 1),
        };
        thread::scope(|scope| {
            for shard in 0..SHARDS {
                seed += 0x1_0001;
                let (round, random) = (&round, RefCell::new(Random(seed)));
                scope.spawn(move || {
                    let _abort = AbortOnPanic;
                    for _ in 0..10 {
                        run_shard(&round.gate, shard, hammer(round, shard, &random, 40));
                        round.rest.wait();
                        round.rest.wait();
                    }
                });
            }
            let _abort = AbortOnPanic;
            let mut random = Random(seed ^ 0xffff);
            for _ in 0..10 {
                for _ in 0..200 {
                    round.set_limit(1 + random.below(6) as u32);
                    thread::yield_now();
                }
                round.rest.wait();
                assert_quiescent(&round.gate);
                let last = round.limit.load(Ordering::SeqCst);
                assert_eq!(
                    round.gate.snapshot().limit,
                    limit(last),
                    "newest_limit_wins"
                );
                round.rest.wait();
            }
        });
    }
}
