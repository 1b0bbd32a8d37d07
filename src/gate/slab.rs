//! The memory of one shard's waiters: slots in chunks, and two lists through them.
//!
//! Safe code and indices only: the list operations are a few assignments each, and what they must
//! keep is said at the head of `waiters`, which holds the lock around all of this. Nothing here
//! allocates or frees but [`Room`], which is made and dropped outside the lock.

use std::task::Waker;

/// Slots that are allocated together.
pub(super) const CHUNK_SLOTS: usize = 64;
/// No slot.
pub(super) const NIL: u32 = u32::MAX;
/// Published by a shard whose waiting list is empty. No ticket reaches it.
pub(super) const NOBODY: u64 = u64::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Free,
    Waiting,
    Offered,
    Shed,
}

/// One waiter.
pub(super) struct Slot {
    pub(super) ticket: u64,
    pub(super) waker: Option<Waker>,
    /// Neighbours on the list the slot is on; a free slot uses `next` only.
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) condition: Condition,
    /// Offered or shed, and its task was woken: on no list.
    pub(super) noticed: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Which {
    Waiting,
    Notices,
}

pub(super) struct List {
    pub(super) head: u32,
    pub(super) tail: u32,
}

const EMPTY: List = List {
    head: NIL,
    tail: NIL,
};

pub(super) struct Queue {
    pub(super) chunks: Vec<Box<[Slot]>>,
    /// First of the free slots.
    pub(super) free: u32,
    pub(super) waiting: List,
    pub(super) notices: List,
    /// The waiter that last returned to its place, while it waits. Those that return do so in the
    /// order of their tickets, so the next one's place is beside it; a walk from the head would
    /// make many returns quadratic.
    returned: u32,
    /// The waker of the shard's drive, while that has nothing to do.
    pub(super) drive: Option<Waker>,
    pub(super) driven: bool,
    pub(super) ended: bool,
    pub(super) closed: bool,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            chunks: Vec::new(),
            free: NIL,
            waiting: EMPTY,
            notices: EMPTY,
            returned: NIL,
            drive: None,
            driven: false,
            ended: false,
            closed: false,
        }
    }
}

impl Queue {
    pub(super) fn slot(&mut self, index: u32) -> &mut Slot {
        &mut self.chunks[index as usize / CHUNK_SLOTS][index as usize % CHUNK_SLOTS]
    }

    fn list(&mut self, which: Which) -> &mut List {
        match which {
            Which::Waiting => &mut self.waiting,
            Which::Notices => &mut self.notices,
        }
    }

    /// Links a slot behind `prev`, at the front if that is none.
    pub(super) fn link(&mut self, which: Which, index: u32, prev: u32) {
        let next = match prev {
            NIL => std::mem::replace(&mut self.list(which).head, index),
            prev => std::mem::replace(&mut self.slot(prev).next, index),
        };
        match next {
            NIL => self.list(which).tail = index,
            next => self.slot(next).prev = index,
        }
        let slot = self.slot(index);
        (slot.prev, slot.next) = (prev, next);
    }

    pub(super) fn unlink(&mut self, which: Which, index: u32) {
        if self.returned == index {
            self.returned = NIL;
        }
        let slot = self.slot(index);
        let (prev, next) = (slot.prev, slot.next);
        match prev {
            NIL => self.list(which).head = next,
            prev => self.slot(prev).next = next,
        }
        match next {
            NIL => self.list(which).tail = prev,
            next => self.slot(next).prev = prev,
        }
    }

    /// Moves a waiter to the notices, with an answer.
    pub(super) fn notify(&mut self, index: u32, answer: Condition) {
        self.unlink(Which::Waiting, index);
        let tail = self.notices.tail;
        self.link(Which::Notices, index, tail);
        let slot = self.slot(index);
        (slot.condition, slot.noticed) = (answer, false);
    }

    /// Puts an offered waiter back among the waiting, where its old ticket belongs.
    pub(super) fn return_to_place(&mut self, index: u32) {
        if !self.slot(index).noticed {
            self.unlink(Which::Notices, index);
        }
        let ticket = self.slot(index).ticket;
        let mut prev = self.returned;
        while prev != NIL && self.slot(prev).ticket > ticket {
            prev = self.slot(prev).prev;
        }
        loop {
            let next = if prev == NIL {
                self.waiting.head
            } else {
                self.slot(prev).next
            };
            if next == NIL || self.slot(next).ticket > ticket {
                break;
            }
            prev = next;
        }
        self.link(Which::Waiting, index, prev);
        self.slot(index).condition = Condition::Waiting;
        self.returned = index;
    }

    /// Stores a waker, and hands out the one it replaces.
    pub(super) fn keep_waker(&mut self, index: u32, waker: &Waker) -> Option<Waker> {
        let kept = &mut self.slot(index).waker;
        match kept {
            Some(kept) if kept.will_wake(waker) => None,
            _ => kept.replace(waker.clone()),
        }
    }

    pub(super) fn shed_waiting(&mut self) -> u32 {
        let mut count = 0;
        while self.waiting.head != NIL {
            let index = self.waiting.head;
            self.notify(index, Condition::Shed);
            count += 1;
        }
        count
    }

    pub(super) fn shed_offered(&mut self) -> u32 {
        let mut count = 0;
        // A slot keeps its list: one not yet noticed is woken with the others, and finds this.
        for slot in self.chunks.iter_mut().flat_map(|chunk| chunk.iter_mut()) {
            if slot.condition == Condition::Offered {
                slot.condition = Condition::Shed;
                count += 1;
            }
        }
        count
    }

    pub(super) fn take_free(&mut self) -> u32 {
        let index = self.free;
        self.free = self.slot(index).next;
        index
    }

    /// Frees a slot that is not on the waiting list, and hands out its waker.
    pub(super) fn free_slot(&mut self, index: u32) -> Option<Waker> {
        let slot = self.slot(index);
        let answered = matches!(slot.condition, Condition::Offered | Condition::Shed);
        if answered && !slot.noticed {
            self.unlink(Which::Notices, index);
        }
        let free = std::mem::replace(&mut self.free, index);
        let slot = self.slot(index);
        (slot.condition, slot.next) = (Condition::Free, free);
        slot.waker.take()
    }

    /// Takes in a chunk of slots, if `room` has one that fits.
    pub(super) fn grow(&mut self, room: &mut Room) -> bool {
        if self.chunks.len() == self.chunks.capacity() {
            if room.chunks.capacity() <= self.chunks.len() {
                return false;
            }
            std::mem::swap(&mut self.chunks, &mut room.chunks);
            self.chunks.append(&mut room.chunks);
        }
        let Some(mut chunk) = room.chunk.take() else {
            return false;
        };
        let first = (self.chunks.len() * CHUNK_SLOTS) as u32;
        for (slot, index) in chunk.iter_mut().zip(first..) {
            slot.next = index + 1;
        }
        chunk[CHUNK_SLOTS - 1].next = self.free;
        self.free = first;
        self.chunks.push(chunk);
        true
    }
}

/// Memory made outside the lock, for a queue that has no free slot.
#[derive(Default)]
pub(super) struct Room {
    chunk: Option<Box<[Slot]>>,
    /// A longer list of chunks, for when the old one is full as well.
    pub(super) chunks: Vec<Box<[Slot]>>,
}

impl Room {
    /// Room for a queue that has `chunks` of them. The list doubles, with a slot to spare in case
    /// another thread grows the queue meanwhile.
    pub(super) fn after(chunks: usize) -> Room {
        let slot = || Slot {
            ticket: NOBODY,
            waker: None,
            prev: NIL,
            next: NIL,
            condition: Condition::Free,
            noticed: false,
        };
        Room {
            chunk: Some((0..CHUNK_SLOTS).map(|_| slot()).collect()),
            chunks: Vec::with_capacity(2 * chunks + 2),
        }
    }
}

/// Bytes that a waiter takes in the slab; its future is on the caller's side.
pub(super) const SLOT_BYTES: usize = size_of::<Slot>();
const _: () = assert!(SLOT_BYTES <= 48);
