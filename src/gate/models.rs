//! The gate under two model checkers, from one set of scenarios.
//!
//! loom runs every interleaving and every value a load may return under the C11 memory model, up
//! to a number of pre-emptions a run; shuttle runs random and priority-driven schedules, and
//! more threads. Both find a lost wake-up as a deadlock.
//!
//! ```text
//! cargo test --features loom    --lib gate::models   GATE_LOOM_PREEMPTIONS (3)
//! cargo test --features shuttle --lib gate::models   GATE_SHUTTLE_SCHEDULES (2000)
//! ```
//!
//! What loom does not do: orders weaker than acquire and release on the way of a load are not all
//! explored (load buffering), and `SeqCst` accesses count as acquire and release. The gate needs
//! neither.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::sync::{AtomicU64, Ordering};
use super::*;

#[cfg(feature = "loom")]
use loom::{future::block_on, thread};
#[cfg(feature = "shuttle")]
use shuttle::{future::block_on, thread};

type Gate = Arc<ConcurrencyGate>;

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

#[cfg(feature = "loom")]
fn check(scenario: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(setting("GATE_LOOM_PREEMPTIONS", 3));
    builder.max_branches = 100_000;
    builder.check(scenario);
}

#[cfg(feature = "shuttle")]
fn check(scenario: fn()) {
    let schedules = setting("GATE_SHUTTLE_SCHEDULES", 2_000);
    shuttle::check_random(scenario, schedules);
    // Priorities with three change points find what uniform choice seldom does.
    shuttle::check_pct(scenario, schedules, 3);
}

fn gate(limit: u32, shards: usize) -> Gate {
    Arc::new(ConcurrencyGate::new(Limit::from_count(limit), shards, 8))
}

fn set(gate: &Gate, limit: u32) {
    let _ = gate.set_limit(Limit::from_count(limit));
}

/// Takes a permit that must be free.
fn hold(gate: &Gate) -> Permit {
    let mut acquire = gate.acquire_owned(0);
    match poll_once(&mut acquire) {
        Poll::Ready(Ok(permit)) => permit,
        other => panic!("{other:?}"),
    }
}

/// Begins a wait that must not be ready at once.
fn queue(gate: &Gate, shard: usize) -> Acquire {
    let mut acquire = gate.acquire_owned(shard);
    assert!(poll_once(&mut acquire).is_pending());
    acquire
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a future and its shard's drive on this thread. The drive is left as it is: what an end
/// does has a scenario of its own.
fn on_shard<T>(gate: &Gate, shard: usize, future: impl Future<Output = T>) -> T {
    let mut drive = std::mem::ManuallyDrop::new(gate.drive(shard));
    let mut future = pin!(future);
    block_on(poll_fn(|cx| {
        let _ = Pin::new(&mut *drive).poll(cx);
        future.as_mut().poll(cx)
    }))
}

fn spawn<T: 'static + Send>(
    gate: &Gate,
    run: impl FnOnce(&Gate) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let gate = Arc::clone(gate);
    thread::spawn(move || run(&gate))
}

/// `quiescent_zero`, and that nobody is left in a queue.
fn assert_quiescent(gate: &Gate) {
    let now = gate.snapshot();
    assert_eq!((now.in_flight, now.waiting), (0, 0), "{now:?}");
    assert!(gate.turn.is_idle());
    for shard in &gate.shards {
        shard.assert_empty();
    }
}

/// Work that only the order given by the gate keeps whole: a load and a store, both relaxed.
fn work(cell: &AtomicU64) {
    let seen = cell.load(Ordering::Relaxed);
    cell.store(seen + 1, Ordering::Relaxed);
}

/// Fast path against fast path: at most one is in, and sees what the other did.
#[test]
fn hand_off_order_on_the_fast_path() {
    check(|| {
        let (gate, cell) = (gate(1, 1), Arc::new(AtomicU64::new(0)));
        let attempt = |gate: &Gate, cell: &AtomicU64| {
            let permit = gate.try_acquire();
            permit.map(|_permit| work(cell)).is_ok() as u64
        };
        let other = {
            let cell = Arc::clone(&cell);
            spawn(&gate, move |gate| {
                attempt(gate, &cell) + attempt(gate, &cell)
            })
        };
        let done = attempt(&gate, &cell) + other.join().unwrap();
        let _permit = hold(&gate);
        assert_eq!(cell.load(Ordering::Relaxed), done);
    });
}

/// A wait that begins while the only permit is released, and the order of what both did.
#[test]
fn no_lost_wake_and_hand_off_order() {
    check(|| {
        let (gate, cell) = (gate(1, 2), Arc::new(AtomicU64::new(0)));
        let threads = [0, 1].map(|shard| {
            let cell = Arc::clone(&cell);
            spawn(&gate, move |gate| {
                on_shard(gate, shard, async {
                    let _permit = gate.acquire(shard).await.unwrap();
                    work(&cell);
                });
            })
        });
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_quiescent(&gate);
        let _permit = hold(&gate);
        assert_eq!(cell.load(Ordering::Relaxed), 2);
    });
}

/// A wait that ends while the offer arrives: both or neither would show in the count.
#[test]
fn row_10_cancel_against_offer() {
    check(|| {
        let gate = gate(1, 1);
        let permit = hold(&gate);
        let waiter = queue(&gate, 0);
        let canceller = spawn(&gate, |_| drop(waiter));
        drop(permit);
        canceller.join().unwrap();
        assert_quiescent(&gate);
        drop(hold(&gate));
    });
}

/// As above, with one more waiter, which must get the permit in any case.
#[test]
fn offer_returns() {
    check(|| {
        let gate = gate(1, 2);
        let permit = hold(&gate);
        let (first, second) = (queue(&gate, 0), queue(&gate, 1));
        let canceller = spawn(&gate, |_| drop(first));
        let waiter = spawn(&gate, |gate| drop(on_shard(gate, 1, second).unwrap()));
        drop(permit);
        canceller.join().unwrap();
        waiter.join().unwrap();
        assert_quiescent(&gate);
    });
}

/// A waiter that is counted and already gone, a runner that settles on its account and finds
/// nobody, and a newcomer that registers meanwhile: it must not be left asleep.
#[test]
fn no_lost_wake_beside_a_cancel() {
    check(|| {
        let gate = gate(1, 2);
        let permit = hold(&gate);
        let leaving = queue(&gate, 0);
        let canceller = spawn(&gate, |_| drop(leaving));
        let newcomer = spawn(&gate, |gate| {
            drop(on_shard(gate, 1, gate.acquire(1)).unwrap())
        });
        drop(permit);
        canceller.join().unwrap();
        newcomer.join().unwrap();
        assert_quiescent(&gate);
    });
}

/// The limit goes down and up while a permit comes back and somebody waits.
#[test]
fn limit_change_against_release() {
    check(|| {
        let gate = gate(2, 1);
        let (first, second) = (hold(&gate), hold(&gate));
        let waiter = spawn(&gate, |gate| {
            drop(on_shard(gate, 0, gate.acquire(0)).unwrap())
        });
        let holder = spawn(&gate, |_| drop(first));
        set(&gate, 1);
        set(&gate, 2);
        waiter.join().unwrap();
        holder.join().unwrap();
        drop(second);
        assert_quiescent(&gate);
    });
}

/// A raise alone must wake: nobody else will.
#[test]
fn raise_against_enqueue() {
    check(|| {
        let gate = gate(2, 1);
        set(&gate, 1);
        let permit = hold(&gate);
        let waiter = spawn(&gate, |gate| {
            drop(on_shard(gate, 0, gate.acquire(0)).unwrap())
        });
        set(&gate, 2);
        waiter.join().unwrap();
        drop(permit);
        assert_quiescent(&gate);
    });
}

/// The limit falls after the offer: the waiter gives it back while the last holder leaves.
#[test]
fn row_09_give_back_against_release() {
    check(|| {
        let gate = gate(2, 1);
        let (first, second) = (hold(&gate), hold(&gate));
        let waiter = queue(&gate, 0);
        drop(first);
        set(&gate, 1);
        let holder = spawn(&gate, |_| drop(second));
        drop(on_shard(&gate, 0, waiter).unwrap());
        holder.join().unwrap();
        assert_quiescent(&gate);
    });
}

/// The limit falls while the offer is claimed: once it has fallen, the waiter is in or out, and
/// out it stays while there is debt.
#[test]
fn row_09_claim_against_lowering() {
    check(|| {
        let gate = gate(2, 1);
        let (first, second) = (hold(&gate), hold(&gate));
        let mut waiter = queue(&gate, 0);
        drop(first);
        let control = spawn(&gate, |gate| set(gate, 1));
        let early = poll_once(&mut waiter).is_ready();
        control.join().unwrap();
        let late = !early && poll_once(&mut waiter).is_ready();
        assert!(!late, "started under debt");
        drop((second, waiter));
        assert_quiescent(&gate);
    });
}

/// A newcomer must not pass a waiter that gives its offer back, even where the last holder leaves
/// in the middle of it: the waiter is in flight or waiting, and never neither.
#[test]
fn no_barging_past_a_give_back() {
    check(|| {
        let gate = gate(2, 1);
        let (first, second) = (hold(&gate), hold(&gate));
        let mut waiter = queue(&gate, 0);
        drop(first);
        set(&gate, 1);
        let newcomer = spawn(&gate, |gate| {
            drop(second);
            gate.try_acquire().is_ok()
        });
        let early = poll_once(&mut waiter);
        assert!(!newcomer.join().unwrap(), "it walked past");
        assert!(early.is_ready() || poll_once(&mut waiter).is_ready());
        drop((early, waiter));
        assert_quiescent(&gate);
    });
}

/// A newcomer must not take the permit that is on its way from a holder to a waiter.
#[test]
fn no_barging() {
    check(|| {
        let gate = gate(1, 1);
        let permit = hold(&gate);
        let waiter = queue(&gate, 0);
        let newcomer = spawn(&gate, |gate| gate.try_acquire().is_ok());
        drop(permit);
        assert!(!newcomer.join().unwrap(), "it walked past");
        drop(waiter);
        assert_quiescent(&gate);
    });
}

/// An offer that is being made while the limit falls is made before it or not at all: after the
/// fall, in flight does not grow above the limit, not even for a moment.
#[test]
fn growth_only_below_limit_and_monotone_under_debt() {
    check(|| {
        let gate = gate(2, 1);
        let (first, second) = (hold(&gate), hold(&gate));
        let waiter = queue(&gate, 0);
        let holder = spawn(&gate, |_| drop(first));
        set(&gate, 1);
        let fallen = gate.snapshot().in_flight;
        holder.join().unwrap();
        assert!(gate.snapshot().in_flight <= fallen.max(1));
        drop((second, waiter));
        assert_quiescent(&gate);
    });
}

/// Close while one comes and one leaves: everybody gets one answer.
#[test]
fn close_sheds_all() {
    check(|| {
        let gate = gate(1, 1);
        let permit = hold(&gate);
        let waiter = spawn(&gate, |gate| on_shard(gate, 0, gate.acquire(0)).map(drop));
        let holder = spawn(&gate, |_| drop(permit));
        gate.close();
        assert!(gate.try_acquire().is_err());
        let answer = waiter.join().unwrap();
        assert!(matches!(answer, Ok(()) | Err(Shed::Closed)));
        holder.join().unwrap();
        assert_quiescent(&gate);
    });
}

/// A shard ends while an offer is on its way to it: another shard's waiter gets the permit.
#[test]
fn row_18_shard_end_against_offer() {
    check(|| {
        let gate = gate(1, 2);
        let permit = hold(&gate);
        let (lost, other) = (queue(&gate, 0), queue(&gate, 1));
        let ending = spawn(&gate, move |gate| {
            let mut drive = gate.drive(0);
            let _ = poll_once(&mut drive);
            drop(drive);
            drop(lost);
        });
        let waiter = spawn(&gate, |gate| drop(on_shard(gate, 1, other).unwrap()));
        drop(permit);
        ending.join().unwrap();
        waiter.join().unwrap();
        assert_quiescent(&gate);
    });
}

/// Two that settle at once: what the one leaves to the other is done.
#[test]
fn settle_again() {
    check(|| {
        let gate = gate(2, 2);
        let (first, second) = (hold(&gate), hold(&gate));
        let waiters = [queue(&gate, 0), queue(&gate, 1)];
        let holder = spawn(&gate, |_| drop(first));
        drop(second);
        holder.join().unwrap();
        assert_eq!(gate.snapshot().waiting, 0);
        for mut waiter in waiters {
            assert!(matches!(poll_once(&mut waiter), Poll::Ready(Ok(_))));
        }
        assert_quiescent(&gate);
    });
}

#[cfg(feature = "shuttle")]
mod crowd {
    //! More threads than loom can take, and choices made at random.

    use shuttle::rand::{Rng, thread_rng};
    use shuttle::sync::Mutex;

    use super::*;

    /// Polls a wait up to `polls` times, then drops it.
    async fn give_up_after(polls: u32, mut acquire: Acquire) -> Option<Permit> {
        let mut left = polls;
        poll_fn(move |cx| {
            if let Poll::Ready(answer) = Pin::new(&mut acquire).poll(cx) {
                return Poll::Ready(answer.ok());
            }
            if left == 0 {
                return Poll::Ready(None);
            }
            left -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    /// The limit as the control thread last wrote it: odd while it writes.
    struct Truth {
        epoch: AtomicU64,
        limit: AtomicU64,
        held: AtomicU64,
    }

    /// Several shards acquire, hold and cancel while the limit moves: the model's 2, 1, 3, 1.
    /// Whoever was admitted within one epoch was admitted within its limit.
    #[test]
    fn cap_at_admission_and_newest_limit_wins() {
        check(|| {
            let gate = gate(3, 3);
            set(&gate, 2);
            let truth = Arc::new(Truth {
                epoch: AtomicU64::new(0),
                limit: AtomicU64::new(2),
                held: AtomicU64::new(0),
            });
            let threads = [0, 1, 2].map(|shard| {
                let truth = Arc::clone(&truth);
                spawn(&gate, move |gate| {
                    for _ in 0..2 {
                        let patience = thread_rng().gen_range(0..4_u32);
                        let epoch = truth.epoch.load(Ordering::SeqCst);
                        let acquire = gate.acquire_owned(shard);
                        let permit = if patience < 3 {
                            block_on(give_up_after(patience, acquire))
                        } else {
                            let mut drive = gate.drive(shard);
                            let mut acquire = acquire;
                            let answer = block_on(poll_fn(|cx| {
                                let _ = Pin::new(&mut drive).poll(cx);
                                Pin::new(&mut acquire).poll(cx)
                            }));
                            Some(answer.unwrap())
                        };
                        let Some(_permit) = permit else { continue };
                        let held = truth.held.fetch_add(1, Ordering::SeqCst) + 1;
                        let limit = truth.limit.load(Ordering::SeqCst);
                        let unchanged = truth.epoch.load(Ordering::SeqCst) == epoch;
                        assert!(
                            epoch % 2 == 1 || !unchanged || held <= limit,
                            "{held} > {limit}"
                        );
                        truth.held.fetch_sub(1, Ordering::SeqCst);
                    }
                })
            });
            for limit in [1, 3, 1] {
                truth.epoch.fetch_add(1, Ordering::SeqCst);
                set(&gate, limit);
                truth.limit.store(u64::from(limit), Ordering::SeqCst);
                truth.epoch.fetch_add(1, Ordering::SeqCst);
            }
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            assert_quiescent(&gate);
        });
    }

    /// At limit 1 admissions are offers in order: nobody who has published itself is passed by
    /// more than one that came after.
    #[test]
    fn overtake_bound() {
        check(|| {
            let gate = gate(1, 4);
            // Who had published when a newcomer began, and who has entered.
            let log = Arc::new(Mutex::new((Vec::new(), Vec::new())));
            let threads = [0, 1, 2, 3].map(|shard| {
                let log = Arc::clone(&log);
                spawn(&gate, move |gate| {
                    let older = log.lock().unwrap().0.clone();
                    let mut published = false;
                    on_shard(gate, shard, async {
                        let mut acquire = gate.acquire(shard);
                        let permit = poll_fn(|cx| {
                            let answer = Pin::new(&mut acquire).poll(cx);
                            if answer.is_ready() {
                                log.lock().unwrap().1.push((shard, older.clone()));
                            } else if !std::mem::replace(&mut published, true) {
                                log.lock().unwrap().0.push(shard);
                            }
                            answer
                        })
                        .await;
                        drop(permit.unwrap());
                    });
                })
            });
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            let log = log.lock().unwrap();
            let order: Vec<usize> = log.1.iter().map(|(shard, _)| *shard).collect();
            for (place, shard) in order.iter().enumerate() {
                let passed_by = log.1[..place]
                    .iter()
                    .filter(|(_, older)| older.contains(shard));
                assert!(passed_by.count() <= 1, "{order:?}");
            }
            assert_quiescent(&gate);
        });
    }

    /// Close and shard ends among comings and goings.
    #[test]
    fn exactly_once() {
        check(|| {
            let gate = gate(1, 3);
            let threads = [0, 1, 2].map(|shard| {
                spawn(&gate, move |gate| {
                    for _ in 0..2 {
                        let mut drive = gate.drive(shard);
                        let mut acquire = gate.acquire(shard);
                        let answer = block_on(poll_fn(|cx| {
                            let _ = Pin::new(&mut drive).poll(cx);
                            Pin::new(&mut acquire).poll(cx)
                        }));
                        assert!(matches!(answer, Ok(_) | Err(Shed::Closed)));
                    }
                })
            });
            if thread_rng().gen_bool(0.5) {
                gate.close();
            }
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            assert_quiescent(&gate);
        });
    }
}
