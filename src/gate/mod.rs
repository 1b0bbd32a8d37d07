//! The ConcurrencyGate: a first-come-first-served limiter that all shards share, whose limit can
//! move at any moment.
//!
//! What a caller may trust (docs/gate.md has the reasons and the evidence):
//! - No permit is granted while as many or more are held than the limit says; a lowered limit
//!   takes nothing away from holders, it only admits nobody until enough of them have left.
//! - The newest [`set_limit`](ConcurrencyGate::set_limit) wins: once it has returned, every
//!   admission obeys it.
//! - First come, first served by ticket over all shards. Two bounded exceptions: one grant that
//!   was under way when a waiter published itself, and after a lowering the offers that were
//!   already out, at most as many as the new limit.
//! - A waiter may be dropped at any moment, also the very one in which it is offered a permit:
//!   nothing leaks and nobody sleeps beside a free permit.
//! - Debt, the work in flight above the limit, is derived from one word and stored nowhere.
//!
//! How it works: `word` packs limit, in flight, waiting and a closed bit into one atomic; `waiters`
//! keeps one queue a shard; `settle` gives free permits to the oldest. The gate depends on nothing
//! but std. It knows no runtime, no time and no flags: the caller bounds the wait by dropping the
//! future, and each shard runs [`drive`](ConcurrencyGate::drive) so that one foreign wake serves a
//! whole batch of offers.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

mod drive;
mod limit;
mod settle;
mod slab;
mod sync;
mod waiters;
mod word;

pub use drive::Drive;
pub use limit::{Applied, Limit, Snapshot};

use settle::Turn;
use slab::NIL;
use sync::{AtomicU64, CachePadded};
use waiters::{Left, Look, Waiters};
use word::{Entry, State, WAITING_MAX};

/// Why no permit was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shed {
    /// As many wait as may; for [`try_acquire`](ConcurrencyGate::try_acquire), no permit is free.
    Full,
    /// The gate is closed, or the shard's drive has ended.
    Closed,
}

impl fmt::Display for Shed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Shed::Full => "the gate's queue is full",
            Shed::Closed => "the gate is closed",
        })
    }
}

impl std::error::Error for Shed {}

/// A limiter shared by all shards; see the [module](self).
pub struct ConcurrencyGate {
    state: CachePadded<State>,
    turn: CachePadded<Turn>,
    tickets: CachePadded<AtomicU64>,
    shards: Box<[Waiters]>,
    ceiling: Limit,
    waiting_max: u32,
}

impl ConcurrencyGate {
    /// A gate for `shards` shards, its limit at the `ceiling`, in which at most `waiting_max`
    /// wait (at most 1 048 576). Waiters that give an offer back under debt, at most as many as
    /// were offered a permit, are kept beyond that bound.
    ///
    /// # Panics
    ///
    /// If `shards` is 0.
    pub fn new(ceiling: Limit, shards: usize, waiting_max: u32) -> ConcurrencyGate {
        assert!(shards > 0, "a gate has at least one shard");
        let ceiling = Limit::from_field(ceiling.field());
        ConcurrencyGate {
            state: CachePadded(State::new(ceiling.field())),
            turn: CachePadded(Turn::new()),
            tickets: CachePadded(AtomicU64::new(0)),
            shards: (0..shards).map(|_| Waiters::new()).collect(),
            ceiling,
            waiting_max: waiting_max.min(WAITING_MAX),
        }
    }

    /// Waits for a permit, on a shard (the one whose [`drive`](Self::drive) runs on the polling
    /// thread). Nothing happens before the first poll; dropping the future is leaving the queue.
    ///
    /// # Errors
    ///
    /// [`Shed::Full`] at once if `waiting_max` wait already, and in the rare case that an offer
    /// must be given back and not even the word has room for one more waiter; [`Shed::Closed`] if
    /// the gate is or gets closed, or the shard's drive has ended.
    ///
    /// # Panics
    ///
    /// If there is no such shard, or if polled again after it was ready.
    #[inline]
    pub fn acquire(&self, shard: usize) -> Acquire<&ConcurrencyGate> {
        Acquire::new(self, shard)
    }

    /// As [`acquire`](Self::acquire), for a permit that outlives every borrow of the gate, at the
    /// price of two changes of a shared reference count.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire).
    #[inline]
    pub fn acquire_owned(self: &Arc<Self>, shard: usize) -> Acquire<Arc<ConcurrencyGate>> {
        Acquire::new(Arc::clone(self), shard)
    }

    /// Takes a permit if one is free and nobody waits; never queues.
    ///
    /// # Errors
    ///
    /// [`Shed::Full`] if no permit is free; [`Shed::Closed`].
    #[inline]
    pub fn try_acquire(&self) -> Result<Permit<&ConcurrencyGate>, Shed> {
        match self.state.try_admit() {
            Ok(()) => Ok(Permit { gate: self }),
            Err(word) if word.is_closed() => Err(Shed::Closed),
            Err(_) => Err(Shed::Full),
        }
    }

    /// Runs a shard's side of the gate: takes the offers made to this shard, a whole batch for
    /// one wake, and wakes the tasks they are for. Each shard runs it once, for as long as it
    /// lives. It is ready when the gate is closed and every waiter of the shard has been woken.
    ///
    /// Dropped before that, it ends the shard: the shard's waiters are shed as `Closed` and its
    /// unclaimed offers go to others. A later drive of the same shard opens it again.
    ///
    /// # Panics
    ///
    /// If there is no such shard, or it is being driven already.
    pub fn drive(&self, shard: usize) -> Drive<'_> {
        Drive::new(self, shard)
    }

    /// Applies a limit, clamped to the ceiling. Meant for one caller, the control thread; with
    /// several, the one whose write comes last wins. Raising wakes waiters; the same value again
    /// does nothing.
    pub fn set_limit(&self, limit: Limit) -> Applied {
        let limit = limit.min(self.ceiling);
        let (before, after) = self.state.set_limit(limit.field());
        let applied = Applied {
            old: Limit::from_field(before.limit()),
            new: Limit::from_field(after.limit()),
        };
        if after.wants_settling() {
            self.settle();
        }
        applied
    }

    /// The ceiling: no limit is above it.
    pub fn ceiling(&self) -> Limit {
        self.ceiling
    }

    /// Limit, in flight, waiting and debt, from one load.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.state.load())
    }

    /// Closes the gate for good: all waiters end with [`Shed::Closed`], those with an unclaimed
    /// offer too, and nobody new is admitted. Holders are untouched.
    pub fn close(&self) {
        self.state.close();
        for shard in &self.shards {
            let withdrawn = shard.close();
            self.state.unregister(withdrawn.registrations);
            if let Some(drive) = withdrawn.drive {
                drive.wake();
            }
        }
    }

    /// One permit back, from a holder or from an offer that nobody took.
    #[inline]
    fn release(&self, count: u32) {
        if self.state.release(count).wants_settling() {
            self.settle();
        }
    }
}

impl fmt::Debug for ConcurrencyGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyGate")
            .field("ceiling", &self.ceiling)
            .field("now", &self.snapshot())
            .finish_non_exhaustive()
    }
}

/// The right to do one piece of work. Dropping it, on any thread, gives it back.
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct Permit<G: Deref<Target = ConcurrencyGate> = Arc<ConcurrencyGate>> {
    gate: G,
}

impl<G: Deref<Target = ConcurrencyGate>> Drop for Permit<G> {
    #[inline]
    fn drop(&mut self) {
        self.gate.release(1);
    }
}

impl<G: Deref<Target = ConcurrencyGate>> fmt::Debug for Permit<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Permit")
    }
}

/// A wait for a permit; see [`ConcurrencyGate::acquire`].
#[must_use = "a future does nothing unless polled"]
pub struct Acquire<G: Deref<Target = ConcurrencyGate> = Arc<ConcurrencyGate>> {
    /// Given away with the permit; none once ready.
    gate: Option<G>,
    shard: u32,
    /// The slot in the shard's queue, [`NIL`] before and after the wait.
    slot: u32,
}

impl<G: Deref<Target = ConcurrencyGate> + Unpin> Future for Acquire<G> {
    type Output = Result<Permit<G>, Shed>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.slot == NIL {
            let gate = this.gate.take().expect("polled after it was ready");
            if gate.state.try_admit().is_ok() {
                return Poll::Ready(Ok(Permit { gate }));
            }
            this.gate = Some(gate);
        }
        this.wait(cx)
    }
}

impl<G: Deref<Target = ConcurrencyGate>> Acquire<G> {
    #[inline]
    fn new(gate: G, shard: usize) -> Acquire<G> {
        // A number too large for the field is none of a shard either: the wait will say so.
        let shard = u32::try_from(shard).unwrap_or(u32::MAX);
        Acquire {
            gate: Some(gate),
            shard,
            slot: NIL,
        }
    }

    #[inline]
    fn admitted(&mut self) -> Poll<Result<Permit<G>, Shed>> {
        self.slot = NIL;
        Poll::Ready(
            self.gate
                .take()
                .map(|gate| Permit { gate })
                .ok_or(Shed::Closed),
        )
    }

    fn shed(&mut self, shed: Shed) -> Poll<Result<Permit<G>, Shed>> {
        self.slot = NIL;
        self.gate = None;
        Poll::Ready(Err(shed))
    }

    #[cold]
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit<G>, Shed>> {
        let gate = self.gate.as_deref().expect("polled after it was ready");
        let shard = &gate.shards[self.shard as usize];
        let slot = match self.slot {
            NIL => {
                // The order is load-bearing: register on the word, push, look again, park.
                // Registered first, the count never falls below the queues; looked at last, a
                // permit that came free before the push is not left lying.
                match gate.state.enter(gate.waiting_max) {
                    Entry::Admitted => return self.admitted(),
                    Entry::Full => return self.shed(Shed::Full),
                    Entry::Closed => return self.shed(Shed::Closed),
                    Entry::Registered => {}
                }
                let Ok(slot) = shard.push(&gate.tickets, cx.waker().clone()) else {
                    gate.state.unregister(1);
                    return self.shed(Shed::Closed);
                };
                self.slot = slot;
                if !gate.state.newest().wants_settling() || gate.settle() == 0 {
                    return Poll::Pending;
                }
                slot
            }
            slot => slot,
        };
        match shard.look(slot, &gate.state, cx.waker()) {
            Look::Waiting => Poll::Pending,
            Look::Admitted => self.admitted(),
            Look::Closed => self.shed(Shed::Closed),
            Look::GivenBack => {
                // Pushed again, so look again. If this very waiter gets the offer, the drive will
                // wake it.
                if gate.state.newest().wants_settling() {
                    gate.settle();
                }
                Poll::Pending
            }
            Look::ClosedWithOffer => {
                gate.release(1);
                self.shed(Shed::Closed)
            }
            Look::FullWithOffer => {
                gate.release(1);
                self.shed(Shed::Full)
            }
        }
    }
}

impl<G: Deref<Target = ConcurrencyGate>> Drop for Acquire<G> {
    #[inline]
    fn drop(&mut self) {
        if self.slot == NIL {
            return;
        }
        let Some(gate) = self.gate.as_deref() else {
            return;
        };
        match gate.shards[self.shard as usize].leave(self.slot) {
            Left::Registration => gate.state.unregister(1),
            Left::Offer => gate.release(1),
            Left::Nothing => {}
        }
    }
}

impl<G: Deref<Target = ConcurrencyGate>> fmt::Debug for Acquire<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("shard", &self.shard)
            .finish_non_exhaustive()
    }
}

#[cfg(debug_assertions)]
#[doc(hidden)]
pub use sync::held_locks;

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests;

#[cfg(all(test, any(feature = "loom", feature = "shuttle")))]
mod models;
