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
    /// Runs a task of one connection so that its panic ends that connection and nothing else.
    pub fn guarded<F: Future<Output = ()>>(self: &Rc<Self>, conn: Rc<Conn>, task: F) -> Guarded<F> {
        Guarded {
            shard: self.clone(),
            conn,
            task,
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
    #[must_use = "futures do nothing unless polled"]
    pub struct Guarded<F> {
        shard: Rc<Shard>,
        conn: Rc<Conn>,
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
        polled.unwrap_or_else(|_| {
            this.shard.caught(this.conn);
            Poll::Ready(())
        })
    }
}
