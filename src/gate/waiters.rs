//! The waiters of one shard: a slab of slots and two lists through it, under one lock.
//!
//! A slot belongs to one [`Acquire`](super::Acquire) from push to free and is named by its index,
//! so neither a generation nor a reference count is needed. It is on the *waiting* list, sorted
//! by ticket, until it is offered a permit or shed; then on the *notices* list until the shard's
//! drive has woken its task. The ticket at the head of the waiting list is published outside the
//! lock, so that whoever settles can compare shards without touching their locks.
//!
//! What holds whenever the lock is free:
//! - a slot is on the waiting list if and only if its state is `Waiting`;
//! - each waiter on the list is counted in the word: it was registered before it was pushed, and
//!   is unregistered only after it was unlinked. The count may exceed the lists, never the
//!   reverse;
//! - `head` is the smallest ticket on the waiting list, or [`NOBODY`](super::slab::NOBODY);
//! - a notice implies that the drive's waker was taken to be woken, or that it has none: then the
//!   drive is yet to be polled and will look.
//!
//! Nothing is allocated, freed or woken under the lock. Room for slots is made outside and handed
//! in; wakers are carried out and dropped or called by the caller.

use std::task::Waker;

use super::slab::{CHUNK_SLOTS, Condition, NIL, NOBODY, Queue, Room, Which};
use super::sync::{AtomicU64, CachePadded, Lock, Ordering};
use super::word::{Claim, State};

/// Tasks that the drive wakes per hold of the lock.
pub(super) const NOTICES_PER_HOLD: usize = 32;

/// The waiters of one shard.
pub(super) struct Waiters {
    /// Read by every core that settles; written only when the oldest waiter changes.
    head: CachePadded<AtomicU64>,
    queue: CachePadded<Lock<Queue>>,
}

/// Why a waiter could not be pushed: its shard takes none any more.
#[derive(Debug)]
pub(super) struct Refused;

/// What a waiter finds when it looks at its slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing yet; the waker is kept.
    Waiting,
    /// It was offered a permit under debt, gave it back and has its old place again.
    GivenBack,
    /// Admitted. The slot is free.
    Admitted,
    /// Shed, as closed. The slot is free.
    Closed,
    /// As `Closed`, and the permit it was offered is the caller's to release.
    ClosedWithOffer,
    /// It had to give an offer back and nobody more can wait. The slot is free, the permit is the
    /// caller's to release.
    FullWithOffer,
}

/// What a waiter that leaves leaves behind. Its slot is free.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// One registration, to be taken off the word.
    Registration,
    /// An offer, to be released like any permit.
    Offer,
    Nothing,
}

/// The answer to an offer.
pub(super) enum Offered {
    /// The waiter has it. The drive's waker is to be woken, unless that is already under way.
    Taken(Option<Waker>),
    /// The oldest waiter of this shard is no longer the one seen: look again.
    Moved,
    /// No permit is free any more.
    NoRoom,
}

/// What a drive finds.
pub(super) enum Notices {
    /// More notices than fit one batch: come again.
    More,
    /// None left; the drive's waker is kept.
    Idle,
    /// None left, and none will come: the gate is closed.
    Over,
}

/// What was withdrawn from a shard.
#[derive(Default)]
pub(super) struct Withdrawn {
    pub(super) registrations: u32,
    pub(super) offers: u32,
    /// The drive's waker: to be woken after a close, to be dropped after an end.
    pub(super) drive: Option<Waker>,
}

impl Waiters {
    pub(super) fn new() -> Waiters {
        Waiters {
            head: CachePadded(AtomicU64::new(NOBODY)),
            queue: CachePadded(Lock::new(Queue::default())),
        }
    }

    /// The oldest ticket that waits here, or [`NOBODY`].
    pub(super) fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Pushes a registered waiter, drawing its ticket, and gives the index of its slot.
    pub(super) fn push(&self, tickets: &AtomicU64, waker: Waker) -> Result<u32, Refused> {
        // Outlives each hold of the lock below, so that what is left of it is freed outside.
        let mut room = Room::default();
        loop {
            let mut queue = self.queue.hold();
            if queue.closed || queue.ended {
                return Err(Refused);
            }
            if queue.free == NIL && !queue.grow(&mut room) {
                let chunks = queue.chunks.len();
                drop(queue);
                room = Room::after(chunks);
                continue;
            }
            // Drawn inside the lock: the list is sorted because the newest goes to the tail.
            let ticket = tickets.fetch_add(1, Ordering::Relaxed);
            let index = queue.take_free();
            let slot = queue.slot(index);
            (slot.ticket, slot.waker, slot.condition) = (ticket, Some(waker), Condition::Waiting);
            let tail = queue.waiting.tail;
            queue.link(Which::Waiting, index, tail);
            self.publish(&queue);
            return Ok(index);
        }
    }

    /// The owner of a slot looks at it: claims an offer, or leaves its waker.
    pub(super) fn look(&self, index: u32, state: &State, waker: &Waker) -> Look {
        let mut queue = self.queue.hold();
        let (look, spare) = match queue.slot(index).condition {
            Condition::Waiting => (Look::Waiting, queue.keep_waker(index, waker)),
            Condition::Shed => (Look::Closed, queue.free_slot(index)),
            Condition::Offered => match state.claim() {
                Claim::GivenBack => {
                    queue.return_to_place(index);
                    self.publish(&queue);
                    (Look::GivenBack, queue.keep_waker(index, waker))
                }
                Claim::Admitted => (Look::Admitted, queue.free_slot(index)),
                Claim::Closed => (Look::ClosedWithOffer, queue.free_slot(index)),
                Claim::Full => (Look::FullWithOffer, queue.free_slot(index)),
            },
            Condition::Free => unreachable!("a freed slot has no owner"),
        };
        drop(queue);
        drop(spare);
        look
    }

    /// The owner of a slot gives it up.
    pub(super) fn leave(&self, index: u32) -> Left {
        let mut queue = self.queue.hold();
        let left = match queue.slot(index).condition {
            Condition::Waiting => {
                queue.unlink(Which::Waiting, index);
                self.publish(&queue);
                Left::Registration
            }
            Condition::Offered => Left::Offer,
            Condition::Shed => Left::Nothing,
            Condition::Free => unreachable!("a freed slot has no owner"),
        };
        let spare = queue.free_slot(index);
        drop(queue);
        drop(spare);
        left
    }

    /// Offers a permit to the waiter with this ticket, if it is still the oldest here and one is
    /// free. The count moves under the lock, so that the waiter cannot leave in between.
    pub(super) fn offer(&self, ticket: u64, state: &State) -> Offered {
        let mut queue = self.queue.hold();
        let index = queue.waiting.head;
        if index == NIL || queue.slot(index).ticket != ticket {
            return Offered::Moved;
        }
        if !state.grant() {
            return Offered::NoRoom;
        }
        queue.notify(index, Condition::Offered);
        self.publish(&queue);
        Offered::Taken(queue.drive.take())
    }

    /// A drive begins. There is at most one a shard, and a shard may have another after an end.
    pub(super) fn begin(&self) {
        let mut queue = self.queue.hold();
        assert!(!queue.driven, "a shard is driven by one future at a time");
        queue.driven = true;
        queue.ended = false;
    }

    /// Takes the wakers of tasks that have an answer; keeps the drive's waker, if it has
    /// one, when these are all.
    pub(super) fn notices(
        &self,
        wakers: &mut [Option<Waker>; NOTICES_PER_HOLD],
        drive: Option<&Waker>,
    ) -> Notices {
        let mut queue = self.queue.hold();
        for waker in wakers.iter_mut() {
            let index = queue.notices.head;
            if index == NIL {
                break;
            }
            queue.unlink(Which::Notices, index);
            let slot = queue.slot(index);
            slot.noticed = true;
            *waker = slot.waker.take();
        }
        if queue.notices.head != NIL {
            return Notices::More;
        }
        if queue.closed {
            queue.driven = false;
            return Notices::Over;
        }
        let mut spare = None;
        if let Some(drive) = drive
            && !queue
                .drive
                .as_ref()
                .is_some_and(|kept| kept.will_wake(drive))
        {
            spare = queue.drive.replace(drive.clone());
        }
        drop(queue);
        drop(spare);
        Notices::Idle
    }

    /// Sheds all waiters and takes no more: the gate is closed. Offers made are left to be
    /// claimed, and the claim sheds them.
    pub(super) fn close(&self) -> Withdrawn {
        let mut queue = self.queue.hold();
        queue.closed = true;
        let registrations = queue.shed_waiting();
        self.publish(&queue);
        Withdrawn {
            registrations,
            offers: 0,
            drive: queue.drive.take(),
        }
    }

    /// Sheds all waiters and takes back all offers: the shard ends.
    pub(super) fn end(&self) -> Withdrawn {
        let mut queue = self.queue.hold();
        (queue.ended, queue.driven) = (true, false);
        let registrations = queue.shed_waiting();
        let offers = queue.shed_offered();
        self.publish(&queue);
        Withdrawn {
            registrations,
            offers,
            drive: queue.drive.take(),
        }
    }

    /// Asserts that no slot is in use and nobody is published.
    #[cfg(test)]
    pub(super) fn assert_empty(&self) {
        let queue = self.queue.hold();
        let slots = || queue.chunks.iter().flat_map(|chunk| chunk.iter());
        assert!(slots().all(|slot| slot.condition == Condition::Free && slot.waker.is_none()));
        assert_eq!((queue.waiting.head, queue.waiting.tail), (NIL, NIL));
        assert_eq!((queue.notices.head, queue.notices.tail), (NIL, NIL));
        let mut free = 0;
        let mut index = queue.free;
        while index != NIL {
            let slot = &queue.chunks[index as usize / CHUNK_SLOTS][index as usize % CHUNK_SLOTS];
            (free, index) = (free + 1, slot.next);
        }
        assert_eq!(free, slots().count(), "every slot is on the free list");
        assert_eq!(self.head(), NOBODY);
    }

    /// Publishes the oldest ticket, unless it already is.
    fn publish(&self, queue: &Queue) {
        let ticket = match queue.waiting.head {
            NIL => NOBODY,
            index => {
                queue.chunks[index as usize / CHUNK_SLOTS][index as usize % CHUNK_SLOTS].ticket
            }
        };
        // Only ever stored under the lock, so this load cannot be stale.
        if self.head.load(Ordering::Relaxed) != ticket {
            self.head.store(ticket, Ordering::Release);
        }
    }
}
