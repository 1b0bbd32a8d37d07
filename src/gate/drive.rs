//! A shard's side of the gate: one task that turns offers into local wakes.
//!
//! A wake that crosses threads costs a queue push and perhaps a system call, and runtimes do not
//! merge them. So whoever settles wakes only this task, once for all the offers it makes to the
//! shard, and this task, at home, wakes the waiters.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::ConcurrencyGate;
use super::waiters::{NOTICES_PER_HOLD, Notices, Waiters};

/// A shard's drive; see [`ConcurrencyGate::drive`].
#[must_use = "waiters of a shard are woken only while its drive is polled"]
pub struct Drive<'g> {
    gate: &'g ConcurrencyGate,
    shard: &'g Waiters,
    over: bool,
}

impl<'g> Drive<'g> {
    pub(super) fn new(gate: &'g ConcurrencyGate, shard: usize) -> Drive<'g> {
        let shard = &gate.shards[shard];
        shard.begin();
        Drive {
            gate,
            shard,
            over: false,
        }
    }

    /// Wakes every task that has an answer. A bounded loop: only this thread's own tasks can
    /// join the queue, and they do not run meanwhile.
    fn deliver(&self, waker: Option<&Waker>) -> Notices {
        loop {
            let mut wakers = [const { None }; NOTICES_PER_HOLD];
            let notices = self.shard.notices(&mut wakers, waker);
            for waker in wakers.into_iter().flatten() {
                waker.wake();
            }
            if !matches!(notices, Notices::More) {
                return notices;
            }
        }
    }
}

impl Future for Drive<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.over {
            return Poll::Ready(());
        }
        if matches!(self.deliver(Some(cx.waker())), Notices::Over) {
            self.over = true;
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Drive<'_> {
    /// The shard ends: what waits here is shed, what was offered here goes to others.
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let withdrawn = self.shard.end();
        self.gate.state.unregister(withdrawn.registrations);
        if withdrawn.offers > 0 {
            self.gate.release(withdrawn.offers);
        }
        // Tasks that outlive the drive learn that they are shed.
        self.deliver(None);
        drop(withdrawn.drive);
    }
}

impl fmt::Debug for Drive<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drive")
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}
