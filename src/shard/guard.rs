//! A panic in a connection ends that connection and nothing else.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::limits::RECEIVE_BYTES;
use crate::metrics::CloseReason;
use crate::shard::Shard;
use crate::shard::conn::Conn;

impl Shard {
    /// Runs a step of one connection so that its panic ends that connection and nothing else.
    /// Returns what the step gives, if it came to an end.
    pub(super) fn guard<T>(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        step: impl FnOnce() -> T,
    ) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(step));
        done.map_err(|_| self.caught(conn)).ok()
    }

    /// Runs a task of one connection so that its panic ends that connection and nothing else.
    pub fn guarded<F: Future<Output = ()>>(self: &Rc<Self>, conn: Rc<Conn>, task: F) -> Guarded<F> {
        Guarded {
            shard: self.clone(),
            conn,
            is_reader: false,
            task,
        }
    }

    /// As [`Shard::guarded`], for the connection's reader: with it the connection leaves the table,
    /// unless it rests.
    pub(super) fn guarded_reader<F: Future<Output = ()>>(
        self: &Rc<Self>,
        conn: Rc<Conn>,
        reader: F,
    ) -> Guarded<F> {
        Guarded {
            is_reader: true,
            ..self.guarded(conn, reader)
        }
    }

    pub(super) fn caught(self: &Rc<Self>, conn: &Rc<Conn>) {
        self.metrics.panics.increment(1);
        conn.cut(self, CloseReason::Panic);
        // The task may have been holding the shared buffer.
        let mut scratch = self.scratch.borrow_mut();
        if scratch.is_empty() {
            scratch.resize(RECEIVE_BYTES, 0);
        }
    }
}

pin_project_lite::pin_project! {
    /// A task of one connection. See [`Shard::guarded`].
    ///
    /// A future of its own and not an `async` block around the task: a block would hold the task
    /// twice.
    #[must_use = "futures do nothing unless polled"]
    pub struct Guarded<F> {
        shard: Rc<Shard>,
        conn: Rc<Conn>,
        is_reader: bool,
        #[pin]
        task: F,
    }
}

impl<F: Future<Output = ()>> Future for Guarded<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        // Nothing of the task is used after a panic but what the shard keeps consistent itself.
        let polled = catch_unwind(AssertUnwindSafe(|| this.task.poll(context)));
        let polled = polled.unwrap_or_else(|_| {
            this.shard.caught(this.conn);
            Poll::Ready(())
        });
        if polled.is_ready() && *this.is_reader && !this.conn.is_resting() {
            this.shard.remove(this.conn);
        }
        polled
    }
}
