//! The table of what an operator may do, row by row: limit / in flight / free / debt.

use super::*;

#[test]
fn row_01_lower_while_idle() {
    let gate = gate(8);
    assert!(gate.set_limit(limit(3)).changed());
    assert_state(&gate, (3, 0, 3, 0));
    let held = hold(&gate, 3);
    assert_eq!(gate.try_acquire().unwrap_err(), Shed::Full);
    let mut fourth = wait(&gate, 0);
    drop(held);
    drop(admitted(fourth.poll()));
    assert_quiescent(&gate);
}

#[test]
fn row_02_lower_with_room() {
    let gate = gate(8);
    let _held = hold(&gate, 3);
    let _ = gate.set_limit(limit(5));
    assert_state(&gate, (5, 3, 2, 0));
}

#[test]
fn row_03_lower_below_the_count_held() {
    let gate = gate(8);
    let mut held = hold(&gate, 5);
    let _ = gate.set_limit(limit(3));
    for expected in [(3, 5, 0, 2), (3, 4, 0, 1), (3, 3, 0, 0), (3, 2, 1, 0)] {
        assert_state(&gate, expected);
        held.pop();
    }
}

#[test]
fn row_03_lower_below_the_count_held_with_a_waiter() {
    let gate = gate(8);
    let mut held = hold(&gate, 5);
    let _ = gate.set_limit(limit(3));
    let mut waiter = wait(&gate, 1);
    for expected in [(3, 4, 0, 1), (3, 3, 0, 0)] {
        held.pop();
        assert_state(&gate, expected);
        assert!(waiter.poll().is_pending());
    }
    held.pop();
    let _permit = admitted(waiter.poll());
    assert_state(&gate, (3, 3, 0, 0));
}

#[test]
fn row_04_lower_then_raise_before_holders_leave() {
    let gate = gate(8);
    let mut held = hold(&gate, 5);
    let _ = gate.set_limit(limit(2));
    let _ = gate.set_limit(limit(4));
    assert_state(&gate, (4, 5, 0, 1));
    held.pop();
    assert_state(&gate, (4, 4, 0, 0));
    assert_eq!(gate.try_acquire().unwrap_err(), Shed::Full);
}

#[test]
fn row_05_lower_then_raise_past_the_count_held() {
    let gate = gate(8);
    let _held = hold(&gate, 5);
    let _ = gate.set_limit(limit(2));
    let (mut first, mut second) = (wait(&gate, 0), wait(&gate, 1));
    let _ = gate.set_limit(limit(7));
    let _both = (admitted(first.poll()), admitted(second.poll()));
    assert_state(&gate, (7, 7, 0, 0));
}

#[test]
fn row_06_restore_the_ceiling() {
    let gate = gate(8);
    let _held = hold(&gate, 5);
    let _ = gate.set_limit(limit(2));
    let _ = gate.set_limit(Limit::from_flag(Some(0), gate.ceiling()));
    assert_state(&gate, (8, 5, 3, 0));
}

#[test]
fn row_07_newest_wins() {
    let gate = gate(8);
    let _held = hold(&gate, 5);
    for count in [2, 6, 4] {
        let _ = gate.set_limit(limit(count));
    }
    assert_state(&gate, (4, 5, 0, 1));
}

#[test]
fn row_08_a_cancelled_waiter_cannot_reopen_a_lowered_gate() {
    let gate = gate(8);
    let _ = gate.set_limit(limit(2));
    let mut held = hold(&gate, 2);
    let waiter = wait(&gate, 0);
    held.pop();
    assert_eq!(gate.snapshot().waiting, 0, "the offer is made");
    let _ = gate.set_limit(limit(1));
    drop(waiter);
    assert_state(&gate, (1, 1, 0, 0));
    let _next = wait(&gate, 0);
}

#[test]
fn row_09_an_offered_waiter_returns_to_its_place() {
    let gate = gate(8);
    let _ = gate.set_limit(limit(2));
    let mut held = hold(&gate, 2);
    let mut drive = drive(&gate, 0);
    let mut waiter = wait(&gate, 0);
    held.pop();
    assert!(drive.poll().is_pending());
    assert_eq!(waiter.wakes(), 1);
    let _ = gate.set_limit(limit(1));
    let mut later = wait(&gate, 1);
    assert!(waiter.poll().is_pending(), "it would start under debt");
    assert_state(&gate, (1, 1, 0, 0));
    assert_eq!(gate.snapshot().waiting, 2);
    held.pop();
    assert!(later.poll().is_pending(), "the older one is first");
    assert!(drive.poll().is_pending());
    assert_eq!(waiter.wakes(), 1);
    drop(admitted(waiter.poll()));
    drop(admitted(later.poll()));
}

#[test]
fn row_10_a_wait_that_ends_while_the_offer_arrives() {
    // The offer first, then the end: released. `models` has every interleaving.
    let gate = gate(1);
    let mut held = hold(&gate, 1);
    let waiter = wait(&gate, 0);
    held.pop();
    assert_state(&gate, (1, 1, 0, 0));
    drop(waiter);
    assert_state(&gate, (1, 0, 1, 0));
    // The end first, then the release: there is nobody to offer to.
    held = hold(&gate, 1);
    drop(wait(&gate, 0));
    held.pop();
    assert_state(&gate, (1, 0, 1, 0));
    assert_quiescent(&gate);
}

#[test]
fn row_11_no_ceiling() {
    let gate = gate(0);
    let mut held = hold(&gate, 100);
    assert_eq!(gate.snapshot().free(), None);
    let _ = gate.set_limit(limit(10));
    assert_state(&gate, (10, 100, 0, 90));
    let mut waiter = wait(&gate, 0);
    held.truncate(10);
    assert_state(&gate, (10, 10, 0, 0));
    assert!(waiter.poll().is_pending());
    held.pop();
    let _permit = admitted(waiter.poll());
    assert_state(&gate, (10, 10, 0, 0));
}

#[test]
fn row_12_back_to_none() {
    let gate = gate(0);
    let _held = hold(&gate, 100);
    let _ = gate.set_limit(limit(10));
    let mut waiters: Vec<_> = (0..50).map(|i| wait(&gate, i % 2)).collect();
    let _ = gate.set_limit(Limit::None);
    let _permits: Vec<_> = waiters.iter_mut().map(|w| admitted(w.poll())).collect();
    assert_state(&gate, (0, 150, 0, 0));
}

#[test]
fn row_13_flag_values() {
    let ceiling = limit(8);
    assert_eq!(Limit::from_flag(Some(99), ceiling), ceiling);
    assert_eq!(Limit::from_flag(Some(i64::MAX), ceiling), ceiling);
    assert_eq!(Limit::from_flag(Some(3), ceiling), limit(3));
    for value in [Some(-1), Some(0), Some(i64::MIN), None] {
        assert_eq!(Limit::from_flag(value, ceiling), ceiling);
        assert_eq!(Limit::from_flag(value, Limit::None), Limit::None);
    }
    assert_eq!(Limit::from_flag(Some(7), Limit::None), limit(7));
    assert_eq!(
        Limit::from_flag(Some(i64::MAX), Limit::None),
        limit(u32::MAX)
    );
}

#[test]
fn row_13_the_gate_clamps_too() {
    let gate = gate(8);
    let applied = gate.set_limit(limit(99));
    assert_eq!((applied.new, applied.changed()), (limit(8), false));
    let _ = gate.set_limit(limit(3));
    assert_eq!(gate.set_limit(Limit::None).new, limit(8));
    assert_state(&gate, (8, 0, 8, 0));
}

#[test]
fn row_13_a_count_above_the_field_is_the_fields_maximum() {
    let gate = ConcurrencyGate::new(Limit::None, 1, u32::MAX);
    let applied = gate.set_limit(limit(u32::MAX));
    assert_eq!(applied.new, limit(2_097_150));
    assert_eq!(
        gate.set_limit(limit(2_097_151)).new,
        limit(2_097_150),
        "not none"
    );
    assert_eq!(gate.set_limit(Limit::None).new, Limit::None);
}

#[test]
fn row_14_the_same_value_twice() {
    let gate = gate(8);
    let mut drive = drive(&gate, 0);
    let _held = hold(&gate, 8);
    assert!(gate.set_limit(limit(3)).changed(), "one line");
    let mut waiter = wait(&gate, 0);
    assert!(!gate.set_limit(limit(3)).changed(), "no line");
    assert!(waiter.poll().is_pending());
    assert_eq!((drive.wakes(), waiter.wakes()), (0, 0), "no wake");
    assert!(drive.poll().is_pending());
}

#[test]
fn row_15_close_with_waiters() {
    let gate = gate(2);
    let held = hold(&gate, 2);
    let mut drives = [drive(&gate, 0), drive(&gate, 1)];
    let mut waiters: Vec<_> = (0..70).map(|i| wait(&gate, i % 2)).collect();
    gate.close();
    assert_state(&gate, (2, 2, 0, 0));
    assert_eq!(gate.snapshot().waiting, 0);
    for drive in &mut drives {
        assert_eq!(drive.wakes(), 1);
        assert!(drive.poll().is_ready());
    }
    for waiter in &mut waiters {
        assert_eq!(waiter.wakes(), 1);
        assert_shed(waiter.poll(), Shed::Closed);
    }
    assert_shed(Task::new(gate.acquire(0)).poll(), Shed::Closed);
    assert_eq!(gate.try_acquire().unwrap_err(), Shed::Closed);
    drop(held);
    assert_quiescent(&gate);
}

#[test]
fn row_16_waiting_max() {
    let gate = ConcurrencyGate::new(limit(1), 2, 2);
    let held = hold(&gate, 1);
    let (mut first, second) = (wait(&gate, 0), wait(&gate, 1));
    assert_shed(Task::new(gate.acquire(0)).poll(), Shed::Full);
    drop(second);
    let mut third = wait(&gate, 0);
    assert_shed(Task::new(gate.acquire(1)).poll(), Shed::Full);
    drop(held);
    drop(admitted(first.poll()));
    drop(admitted(third.poll()));
    assert_quiescent(&gate);
}

#[test]
fn row_17_a_permit_dropped_on_another_thread() {
    let gate = Arc::new(ConcurrencyGate::new(limit(1), 2, 10));
    let permit: Permit = match Task::new(gate.acquire_owned(0)).poll() {
        Poll::Ready(Ok(permit)) => permit,
        other => panic!("{other:?}"),
    };
    let mut drive = drive(&gate, 0);
    let mut waiter = wait(&gate, 0);
    std::thread::spawn(move || drop(permit)).join().unwrap();
    assert_eq!(drive.wakes(), 1, "the foreign thread wakes the drive");
    assert_eq!(waiter.wakes(), 0, "and only the drive");
    assert!(drive.poll().is_pending());
    assert_eq!(waiter.wakes(), 1);
    drop(admitted(waiter.poll()));
    assert_quiescent(&gate);
}

#[test]
fn row_18_a_shard_ends_with_waiters_queued() {
    let gate = gate(1);
    let held = hold(&gate, 1);
    let ending = drive(&gate, 0);
    let mut lost = [wait(&gate, 0), wait(&gate, 0)];
    let mut other = wait(&gate, 1);
    drop(ending);
    assert_eq!(gate.snapshot().waiting, 1);
    drop(held);
    drop(admitted(other.poll()));
    for waiter in &mut lost {
        assert_eq!(waiter.wakes(), 1);
        assert_shed(waiter.poll(), Shed::Closed);
    }
    let held = hold(&gate, 1);
    assert_shed(Task::new(gate.acquire(0)).poll(), Shed::Closed);
    let _again = drive(&gate, 0);
    drop(wait(&gate, 0));
    drop(held);
    assert_quiescent(&gate);
}

#[test]
fn row_18_a_shard_ends_with_an_offer_unclaimed() {
    let gate = gate(1);
    let held = hold(&gate, 1);
    let mut ending = drive(&gate, 0);
    let mut lost = wait(&gate, 0);
    let mut other = wait(&gate, 1);
    drop(held);
    assert!(ending.poll().is_pending());
    drop(ending);
    assert_shed(lost.poll(), Shed::Closed);
    drop(admitted(other.poll()));
    assert_quiescent(&gate);
}
