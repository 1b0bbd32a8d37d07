//! What the gate allocates: nothing while nobody waits, nothing under a queue's lock, and less
//! than 128 bytes a waiter.
#![allow(unsafe_code)] // a counting allocator cannot be had without

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use buzz_uring::gate::{Acquire, ConcurrencyGate, Limit};

struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static UNDER_LOCK: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    CALLS.set(CALLS.get() + 1);
    BYTES.set(BYTES.get() + bytes);
    #[cfg(debug_assertions)]
    UNDER_LOCK.set(UNDER_LOCK.get() + usize::from(buzz_uring::gate::held_locks() > 0));
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
// The counters are thread-locals without destructors, so counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn gate(limit: u32) -> ConcurrencyGate {
    let gate = ConcurrencyGate::new(Limit::None, 2, 20_000);
    let _ = gate.set_limit(Limit::from_count(limit));
    gate
}

#[test]
fn the_uncontended_path_allocates_nothing() {
    let gate = gate(3);
    let before = CALLS.get();
    for shard in [0, 1, 0, 1] {
        let permit = poll(&mut gate.acquire(shard));
        assert!(matches!(permit, Poll::Ready(Ok(_))));
        drop((permit, gate.try_acquire(), gate.snapshot()));
    }
    assert_eq!(CALLS.get(), before);
}

#[test]
fn nothing_is_allocated_or_freed_under_the_lock() {
    let gate = gate(1);
    let mut drives = [gate.drive(0), gate.drive(1)];
    let before = UNDER_LOCK.get();
    let permit = gate.try_acquire();
    let mut waiters: Vec<_> = (0..10_000).map(|i| gate.acquire(i % 2)).collect();
    assert!(waiters.iter_mut().all(|waiter| poll(waiter).is_pending()));
    waiters.truncate(5_000);
    let _ = gate.set_limit(Limit::from_count(1_000));
    for drive in &mut drives {
        assert!(poll(drive).is_pending());
    }
    let _ = gate.set_limit(Limit::from_count(2));
    // Some enter, some give back, some leave.
    drop(permit);
    for waiter in &mut waiters {
        drop(poll(waiter));
    }
    gate.close();
    drop((waiters, drives));
    assert_eq!(UNDER_LOCK.get(), before);
}

#[test]
fn a_waiter_takes_less_than_128_bytes() {
    const WAITERS: usize = 10_000;
    let gate = gate(1);
    let _permit = gate.try_acquire();
    let mut waiters: Vec<_> = (0..WAITERS).map(|_| gate.acquire(0)).collect();
    let before = BYTES.get();
    assert!(waiters.iter_mut().all(|waiter| poll(waiter).is_pending()));
    let queued = (BYTES.get() - before) as usize / WAITERS;
    let future = size_of::<Acquire<&ConcurrencyGate>>();
    assert!(
        queued + future < 128,
        "{queued} in the queue and {future} in the future"
    );
    println!("{queued} bytes in the queue and {future} in the future");
}
