//! The way into a shard from any other thread: a bounded queue that is taken whole.
//!
//! Senders append to one vector under a lock; the receiver swaps it for its own empty one. Both
//! sides hold the lock for a few instructions, and the two vectors are used in turn, so a mailbox
//! allocates nothing once they have grown to the batches that really occur.
//!
//! Invariants:
//! - What one sender pushes is taken in the order in which it was pushed. Between senders the order
//!   is that of the lock.
//! - At most `items_max` items wait. An item that does not fit stays with its sender.
//! - The receiver is woken once when an empty mailbox gets something, not once an item: waking a
//!   sleeping shard is thousands of times dearer than the push. A receiver that goes to sleep
//!   registers its waker and then looks again, so a push between its look and its sleep is seen.
//! - After `close` nothing gets in; what is in is still taken, and only then the receiver is told.
//!
//! Any runtime, or none, can be on either side.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;

/// A bounded queue from many threads to one receiver. Shared by `Arc`.
pub struct Mailbox<T> {
    queue: Mutex<Queue<T>>,
    /// Threads in [`push_batch_blocking`](Self::push_batch_blocking) wait here.
    room: Condvar,
    receiver: AtomicWaker,
    items_max: usize,
}

/// The mailbox is closed: its receiver has left, or the process ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the mailbox is closed")]
pub struct Closed;

/// Why a push that does not wait left items behind.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PushError {
    /// The receiver has left, or the process ends. It will never take an item again.
    #[error("the mailbox is closed")]
    Closed,
    /// `items_max` items wait already. The receiver is awake and will take them.
    #[error("the mailbox is full")]
    Full,
}

impl<T> Mailbox<T> {
    /// An empty mailbox for at most `items_max` items.
    ///
    /// # Panics
    ///
    /// If `items_max` is 0: nothing could ever pass.
    pub fn new(items_max: usize) -> Mailbox<T> {
        assert!(items_max > 0, "a mailbox holds at least one item");
        Mailbox {
            queue: Mutex::new(Queue {
                items: Vec::new(),
                closed: false,
                waiting: 0,
            }),
            room: Condvar::new(),
            receiver: AtomicWaker::new(),
            items_max,
        }
    }

    /// Moves items from the front of `batch` into the mailbox, without waiting, until the batch is
    /// empty or the mailbox is full.
    ///
    /// # Errors
    ///
    /// [`PushError::Full`]: what did not fit is still in `batch`, in order.
    /// [`PushError::Closed`]: nothing was moved. An empty batch always succeeds.
    pub fn push_batch(&self, batch: &mut Vec<T>) -> Result<(), PushError> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut queue = self.lock();
        if queue.closed {
            return Err(PushError::Closed);
        }
        let wakes = queue.fill(batch, self.items_max);
        drop(queue);
        if wakes {
            self.receiver.wake();
        }
        if batch.is_empty() {
            Ok(())
        } else {
            Err(PushError::Full)
        }
    }

    /// Moves one item into the mailbox, without waiting.
    ///
    /// # Errors
    ///
    /// The item, and why it did not go in.
    pub fn try_push(&self, item: T) -> Result<(), (T, PushError)> {
        let mut queue = self.lock();
        if queue.closed {
            return Err((item, PushError::Closed));
        }
        if queue.items.len() >= self.items_max {
            return Err((item, PushError::Full));
        }
        let wakes = queue.items.is_empty();
        queue.items.push(item);
        drop(queue);
        if wakes {
            self.receiver.wake();
        }
        Ok(())
    }

    /// Moves all of `batch` into the mailbox; blocks the thread while it is full. Not for shards: a
    /// shard never blocks. A batch may be larger than the mailbox.
    ///
    /// # Errors
    ///
    /// [`Closed`], also when that happens during the wait: what was not moved is still in `batch`.
    pub fn push_batch_blocking(&self, batch: &mut Vec<T>) -> Result<(), Closed> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut queue = self.lock();
        loop {
            if queue.closed {
                return Err(Closed);
            }
            // The receiver is woken before this thread sleeps, and never under the lock.
            if queue.fill(batch, self.items_max) {
                drop(queue);
                self.receiver.wake();
                if batch.is_empty() {
                    return Ok(());
                }
                queue = self.lock();
                continue;
            }
            if batch.is_empty() {
                return Ok(());
            }
            queue.waiting += 1;
            queue = self
                .room
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            queue.waiting -= 1;
        }
    }

    /// Waits for items and swaps all of them into `into`, which must be empty: its memory becomes
    /// the mailbox's. One receiver at a time; of two, the later one is woken. Dropping the future
    /// loses nothing.
    ///
    /// # Errors
    ///
    /// [`Closed`], once the mailbox is closed and everything in it was taken.
    ///
    /// # Panics
    ///
    /// When polled, if `into` is not empty.
    pub fn take<'a>(&'a self, into: &'a mut Vec<T>) -> Take<'a, T> {
        Take {
            mailbox: self,
            into,
        }
    }

    /// [`take`](Self::take) without the wait: false when nothing is there.
    ///
    /// # Errors
    ///
    /// As `take`.
    ///
    /// # Panics
    ///
    /// If `into` is not empty.
    pub fn try_take(&self, into: &mut Vec<T>) -> Result<bool, Closed> {
        assert!(into.is_empty(), "a batch is taken into an empty vector");
        let mut queue = self.lock();
        if queue.items.is_empty() {
            return if queue.closed { Err(Closed) } else { Ok(false) };
        }
        std::mem::swap(&mut queue.items, into);
        let waiting = queue.waiting > 0;
        drop(queue);
        if waiting {
            self.room.notify_all();
        }
        Ok(true)
    }

    /// Lets nothing more in, wakes the receiver and every blocked sender. Either side may close,
    /// and more than once. A receiver that leaves closes, and so frees its senders.
    pub fn close(&self) {
        self.lock().closed = true;
        self.receiver.wake();
        self.room.notify_all();
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Items that wait now; a figure for metrics, old as soon as it is read.
    pub fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Whether nothing waits now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// No code of a stranger runs under the lock except an item's move, so a poisoned queue is whole.
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Without the items: those of clients do not belong in logs.
impl<T> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox")
            .field("len", &self.len())
            .field("items_max", &self.items_max)
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

/// The future of [`Mailbox::take`].
#[must_use = "futures do nothing unless polled"]
pub struct Take<'a, T> {
    mailbox: &'a Mailbox<T>,
    into: &'a mut Vec<T>,
}

impl<T> Future for Take<'_, T> {
    type Output = Result<(), Closed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mailbox = self.mailbox;
        let into = &mut *self.into;
        // The first look spares a busy receiver the registration.
        match mailbox.try_take(into) {
            Ok(false) => mailbox.receiver.register(context.waker()),
            taken => return Poll::Ready(taken.map(drop)),
        }
        match mailbox.try_take(into) {
            Ok(false) => Poll::Pending,
            taken => Poll::Ready(taken.map(drop)),
        }
    }
}

struct Queue<T> {
    items: Vec<T>,
    closed: bool,
    /// Threads that wait for room: without one, a take needs no notification.
    waiting: usize,
}

impl<T> Queue<T> {
    /// Moves what fits from the front of `batch`; true when that ended an empty queue, so that the
    /// receiver is to be woken.
    fn fill(&mut self, batch: &mut Vec<T>, items_max: usize) -> bool {
        debug_assert!(self.items.len() <= items_max);
        let was_empty = self.items.is_empty();
        let room = items_max - self.items.len();
        if batch.len() <= room {
            self.items.append(batch);
        } else {
            self.items.extend(batch.drain(..room));
        }
        was_empty && !self.items.is_empty()
    }
}

#[cfg(test)]
mod tests;
