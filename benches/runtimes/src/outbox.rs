//! What waits to be written on one connection, for one thread and any runtime.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A queue of shared messages with one reader.
#[derive(Default)]
pub struct Outbox {
    queue: RefCell<Vec<Rc<[u8]>>>,
    reader: Cell<Option<Waker>>,
}

impl Outbox {
    /// Adds a message; wakes the reader if it sleeps.
    pub fn push(&self, message: Rc<[u8]>) {
        self.queue.borrow_mut().push(message);
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    /// Waits for messages and appends all of them to `out`.
    pub async fn take_all(&self, out: &mut Vec<u8>) {
        poll_fn(|context| {
            if self.queue.borrow().is_empty() {
                self.reader.set(Some(context.waker().clone()));
                return Poll::Pending;
            }
            self.queue
                .borrow_mut()
                .drain(..)
                .for_each(|message| out.extend_from_slice(&message));
            Poll::Ready(())
        })
        .await;
    }
}

/// All subscribers of a server.
#[derive(Default)]
pub struct Subscribers(RefCell<Vec<Rc<Outbox>>>);

impl Subscribers {
    /// A new one.
    pub fn add(&self) -> Rc<Outbox> {
        let outbox = Rc::new(Outbox::default());
        self.0.borrow_mut().push(outbox.clone());
        outbox
    }

    /// Takes whole messages from the front of `input` and queues each for everyone.
    pub fn publish(&self, input: &mut Vec<u8>) {
        let whole = input.len() / crate::FANOUT_BYTES * crate::FANOUT_BYTES;
        for message in input[..whole].chunks(crate::FANOUT_BYTES) {
            let message: Rc<[u8]> = message.into();
            self.0
                .borrow()
                .iter()
                .for_each(|outbox| outbox.push(message.clone()));
        }
        input.drain(..whole);
    }
}
