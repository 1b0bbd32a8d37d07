//! The invariants by name, where one thread can show them. Those about what runs at the same time
//! are in `models` too, and all of them are asserted at every rest of `oracle` and `soak`.

use super::*;

#[test]
fn conservation() {
    let gate = gate(2);
    let mut held = hold(&gate, 2);
    let mut waiters = [wait(&gate, 0), wait(&gate, 1)];
    held.pop();
    // One permit held, one offer unclaimed.
    assert_eq!((gate.snapshot().in_flight, gate.snapshot().waiting), (2, 1));
    let claimed = admitted(waiters[0].poll());
    assert_eq!(gate.snapshot().in_flight, 2);
    drop((held, claimed));
    assert_eq!((gate.snapshot().in_flight, gate.snapshot().waiting), (1, 0));
    drop(admitted(waiters[1].poll()));
    assert_quiescent(&gate);
}

#[test]
fn cap_at_admission() {
    let gate = gate(8);
    for count in 1..=8 {
        let _ = gate.set_limit(limit(count));
        let held = hold(&gate, count as usize);
        assert!(gate.try_acquire().is_err());
        let mut waiter = wait(&gate, 0);
        let _ = gate.set_limit(limit(8));
        if count < 8 {
            assert!(gate.snapshot().in_flight <= 8);
            drop(admitted(waiter.poll()));
        }
        drop(held);
    }
}

#[test]
fn growth_only_below_limit() {
    let gate = gate(3);
    let _held = hold(&gate, 3);
    let mut waiters: Vec<_> = (0..3).map(|_| wait(&gate, 0)).collect();
    gate.settle();
    for waiter in &mut waiters {
        assert!(waiter.poll().is_pending());
    }
    assert_state(&gate, (3, 3, 0, 0));
}

#[test]
fn monotone_under_debt() {
    let gate = gate(8);
    let mut held = hold(&gate, 8);
    let _ = gate.set_limit(limit(2));
    let mut waiters = [wait(&gate, 0), wait(&gate, 1)];
    let mut before = gate.snapshot();
    while before.debt > 0 {
        held.pop();
        gate.settle();
        assert!(gate.try_acquire().is_err());
        assert!(waiters.iter_mut().all(|w| w.poll().is_pending()));
        let now = gate.snapshot();
        assert_eq!(now.in_flight, before.in_flight - 1);
        before = now;
    }
}

#[test]
fn newest_limit_wins() {
    let gate = gate(0);
    for count in [5, 1, 9, 2, 2, 7] {
        let _ = gate.set_limit(limit(count));
        let held: Vec<_> = std::iter::from_fn(|| gate.try_acquire().ok()).collect();
        assert_eq!(held.len(), count as usize);
    }
}

#[test]
fn no_lost_wake() {
    // Every cause that frees a permit, with one waiter.
    let causes: [fn(&ConcurrencyGate, Vec<Held<'_>>, Wait<'_>); 3] = [
        |_, held, _other| drop(held),
        |gate, held, _other| {
            let _ = gate.set_limit(limit(3));
            std::mem::forget(held);
        },
        |_, mut held, other| {
            held.truncate(1);
            std::mem::forget(held);
            drop(other);
        },
    ];
    for cause in causes {
        let gate = gate(8);
        let mut drive = drive(&gate, 1);
        let _ = gate.set_limit(limit(2));
        let held = hold(&gate, 2);
        let (older, mut waiter) = (wait(&gate, 0), wait(&gate, 1));
        cause(&gate, held, older);
        assert_no_lost_wake(&gate);
        let _ = drive.poll();
        assert_eq!(waiter.wakes(), 1);
        drop(admitted(waiter.poll()));
    }
}

#[test]
fn exactly_once() {
    let gate = ConcurrencyGate::new(limit(1), 2, 3);
    let held = hold(&gate, 1);
    let (mut admitted_one, cancelled, mut closed) =
        (wait(&gate, 0), wait(&gate, 0), wait(&gate, 1));
    assert_shed(Task::new(gate.acquire(0)).poll(), Shed::Full);
    drop(cancelled);
    drop(held);
    drop(admitted(admitted_one.poll()));
    gate.close();
    assert_shed(closed.poll(), Shed::Closed);
    for mut done in [admitted_one, closed] {
        let again =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| done.poll().is_ready()));
        assert!(again.is_err(), "an answer is given once");
    }
    assert_quiescent(&gate);
}

#[test]
fn offer_returns() {
    let gate = gate(2);
    let mut held = hold(&gate, 2);
    let mut waiters = [wait(&gate, 0), wait(&gate, 0), wait(&gate, 1)];
    held.clear();
    let _ = gate.set_limit(limit(1));
    // The first is indebted and gives back, the second then is not and may start.
    assert!(waiters[0].poll().is_pending());
    assert_state(&gate, (1, 1, 0, 0));
    let second = admitted(waiters[1].poll());
    drop(second);
    drop(admitted(waiters[0].poll()));
    // A cancelled offer goes on to the next.
    let [_, _, third] = waiters;
    assert_state(&gate, (1, 1, 0, 0));
    drop(third);
    assert_quiescent(&gate);
}

#[test]
fn no_barging() {
    let gate = gate(1);
    let held = hold(&gate, 1);
    let mut waiter = wait(&gate, 0);
    drop(held);
    assert!(gate.try_acquire().is_err(), "the offer is out");
    let mut newcomer = wait(&gate, 0);
    let _ = gate.set_limit(limit(1));
    drop(admitted(waiter.poll()));
    assert!(gate.try_acquire().is_err());
    drop(admitted(newcomer.poll()));
}

#[test]
fn overtake_bound() {
    // One thread has no grant under way, so the order is exact: by ticket over all shards.
    let gate = ConcurrencyGate::new(limit(1), 3, 100);
    let held = hold(&gate, 1);
    let mut waiters: Vec<_> = [2, 0, 1, 1, 0, 2, 0].map(|shard| wait(&gate, shard)).into();
    drop(held);
    for next in 0..waiters.len() {
        for other in &mut waiters[next + 1..] {
            assert!(other.poll().is_pending(), "a later one before {next}");
        }
        drop(admitted(waiters[next].poll()));
    }
    assert_quiescent(&gate);
}

#[test]
fn bounded_queue() {
    let gate = ConcurrencyGate::new(limit(1), 2, 100);
    let held = hold(&gate, 1);
    let waiters: Vec<_> = (0..100).map(|i| wait(&gate, i % 2)).collect();
    for shard in [0, 1] {
        assert_shed(Task::new(gate.acquire(shard)).poll(), Shed::Full);
    }
    assert_eq!(gate.snapshot().waiting, 100);
    drop((waiters, held));
    assert_quiescent(&gate);
    // The memory of a waiter: its slot and its future.
    let bytes = slab::SLOT_BYTES + size_of::<Acquire<&ConcurrencyGate>>();
    assert!(bytes < 128, "{bytes} bytes a waiter");
}

#[test]
fn hand_off_order() {
    // A plain cell would need unsafe; relaxed accesses carry no order of their own either.
    let gate = Arc::new(gate(1));
    let work = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..2)
        .map(|shard| {
            let (gate, work) = (Arc::clone(&gate), Arc::clone(&work));
            std::thread::spawn(move || {
                soak::run_shard(&gate, shard, async {
                    for _ in 0..500 {
                        let _permit = gate.acquire(shard).await.unwrap();
                        let seen = work.load(Ordering::Relaxed);
                        work.store(seen + 1, Ordering::Relaxed);
                    }
                });
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert_eq!(work.load(Ordering::Relaxed), 1_000);
    assert_quiescent(&gate);
}

#[test]
fn quiescent_zero() {
    let gate = gate(2);
    assert_quiescent(&gate);
    let held = hold(&gate, 2);
    let waiters: Vec<_> = (0..200).map(|i| wait(&gate, i % 2)).collect();
    drop(waiters);
    drop(held);
    assert_quiescent(&gate);
}

#[test]
fn close_sheds_all() {
    let gate = gate(1);
    let held = hold(&gate, 1);
    let (mut offered, mut waiting) = (wait(&gate, 0), wait(&gate, 1));
    drop(held);
    gate.close();
    gate.close();
    assert_shed(offered.poll(), Shed::Closed);
    assert_shed(waiting.poll(), Shed::Closed);
    // The limit may still be written, and opens nothing.
    let _ = gate.set_limit(Limit::None);
    assert!(gate.snapshot().closed);
    assert_eq!(gate.try_acquire().unwrap_err(), Shed::Closed);
    assert_quiescent(&gate);
}

#[test]
fn restart_keeps_place() {
    let gate = gate(0);
    let _ = gate.set_limit(limit(100));
    let held = hold(&gate, 100);
    let mut waiters: Vec<_> = (0..100).map(|i| wait(&gate, i % 2)).collect();
    drop(held);
    let _ = gate.set_limit(limit(1));
    // All have offers, 99 must give them back: in several orders, younger ones wait on.
    let mut younger = wait(&gate, 0);
    for index in (0..100)
        .step_by(3)
        .chain((1..100).step_by(3))
        .chain((5..99).step_by(3).rev())
    {
        assert!(waiters[index].poll().is_pending());
    }
    assert_eq!(gate.snapshot().waiting, 100);
    drop(admitted(waiters[2].poll()));
    waiters.remove(2);
    for waiter in &mut waiters {
        assert!(younger.poll().is_pending());
        drop(admitted(waiter.poll()));
    }
    drop(admitted(younger.poll()));
    assert_quiescent(&gate);
}

#[test]
fn one_foreign_wake_for_a_batch_of_offers() {
    let gate = gate(0);
    let _ = gate.set_limit(limit(1));
    let _held = hold(&gate, 1);
    let mut drives = [drive(&gate, 0), drive(&gate, 1)];
    let waiters: Vec<_> = (0..200).map(|i| wait(&gate, i % 2)).collect();
    let _ = gate.set_limit(Limit::None);
    for drive in &mut drives {
        assert_eq!(drive.wakes(), 1);
        assert!(drive.poll().is_pending());
    }
    assert!(waiters.iter().all(|waiter| waiter.wakes() == 1));
}

#[test]
fn a_task_may_change_its_waker() {
    let gate = gate(1);
    let held = hold(&gate, 1);
    let mut drive = drive(&gate, 0);
    let mut waiter = wait(&gate, 0);
    let old = std::mem::take(&mut waiter.wakes);
    assert!(waiter.poll().is_pending());
    drop(held);
    assert!(drive.poll().is_pending());
    assert_eq!((waiter.wakes(), old.0.load(Ordering::SeqCst)), (1, 0));
}

#[test]
#[should_panic(expected = "one future at a time")]
fn a_shard_is_driven_once() {
    let gate = gate(1);
    let _first = gate.drive(0);
    let _second = gate.drive(0);
}
