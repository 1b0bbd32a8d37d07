//! Settling: giving free permits to the oldest waiters, by one runner at a time.
//!
//! Whoever leaves the word with a free permit and somebody waiting calls
//! [`ConcurrencyGate::settle`]: a release, a change of the limit, a returned offer, a push. The
//! first three see it in the very change they make. Who has pushed must look again, *after* the
//! push, by a read-modify-write: whoever frees a permit later then sees the push, whoever freed
//! one before is seen. A look before the push, or a plain load, would leave a waiter asleep
//! beside a free permit.
//!
//! The word can be trusted to show a free permit because no runner ever holds one: it moves a
//! waiter from waiting to in flight in one step, under the lock of that waiter's queue.
//!
//! If a runner is at work, the caller leaves it a word, `Again`, and goes. That word is a
//! read-modify-write even if it is already there, so that what the caller did before it is seen
//! by the runner that reads it.
//!
//! The runner wakes each shard once for all the offers of its turn, and after its turn, so that
//! nobody waits for a system call.

use std::task::Waker;

use super::ConcurrencyGate;
use super::slab::NOBODY;
use super::sync::{AtomicU8, Ordering};
use super::waiters::Offered;

const IDLE: u8 = 0;
const RUNNING: u8 = 1;
const AGAIN: u8 = 2;

/// Wakers that a runner holds before it wakes them, turn or no turn.
const BELLS_MAX: usize = 16;
/// Rounds of one turn between which a runner wakes whom it has made offers.
const ROUNDS_PER_RING: u32 = 8;

/// Whose turn it is to settle.
pub(super) struct Turn(AtomicU8);

impl Turn {
    pub(super) fn new() -> Turn {
        Turn(AtomicU8::new(IDLE))
    }

    /// Takes the turn, or tells the one who has it to go round again.
    fn enter(&self) -> bool {
        let taken = self
            .0
            .compare_exchange(IDLE, RUNNING, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        // The runner may have left in between: then the turn is ours, with a round to spare.
        taken || self.0.swap(AGAIN, Ordering::AcqRel) == IDLE
    }

    /// Ends the turn, unless somebody asked for another round.
    fn leave(&self) -> bool {
        let left = self
            .0
            .compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if !left {
            self.0.swap(RUNNING, Ordering::AcqRel);
        }
        left
    }

    /// Whether nobody settles.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.0.load(Ordering::Acquire) == IDLE
    }
}

/// Wakers of the drives to which offers were made. At most one a shard: a drive's waker is taken
/// with the first offer and comes back only when the drive has looked.
struct Bells {
    wakers: [Option<Waker>; BELLS_MAX],
    count: usize,
}

impl Bells {
    fn add(&mut self, waker: Waker) {
        if self.count == BELLS_MAX {
            self.ring();
        }
        self.wakers[self.count] = Some(waker);
        self.count += 1;
    }

    fn ring(&mut self) {
        for waker in self.wakers[..self.count]
            .iter_mut()
            .filter_map(Option::take)
        {
            waker.wake();
        }
        self.count = 0;
    }
}

impl ConcurrencyGate {
    /// Offers free permits to waiters, oldest first, until none is free or nobody waits. Gives
    /// the number of offers that this call made; another runner may make more on its behalf.
    pub(super) fn settle(&self) -> u32 {
        if !self.turn.enter() {
            return 0;
        }
        let mut bells = Bells {
            wakers: [const { None }; BELLS_MAX],
            count: 0,
        };
        let mut offers = 0;
        let mut rounds: u32 = 0;
        loop {
            while self.state.load().wants_settling() && self.offer_to_oldest(&mut bells) {
                offers += 1;
            }
            if self.turn.leave() {
                break;
            }
            rounds += 1;
            if rounds.is_multiple_of(ROUNDS_PER_RING) {
                bells.ring();
            }
        }
        bells.ring();
        offers
    }

    /// Hands a free permit to the oldest published waiter. False if either is missing: those who
    /// are counted and not published are on their way in or out, and look for themselves.
    fn offer_to_oldest(&self, bells: &mut Bells) -> bool {
        loop {
            let heads = self.shards.iter().map(|shard| (shard.head(), shard));
            // There is at least one shard.
            let Some((ticket, shard)) = heads.min_by_key(|(ticket, _)| *ticket) else {
                return false;
            };
            if ticket == NOBODY {
                return false;
            }
            match shard.offer(ticket, &self.state) {
                Offered::Taken(bell) => {
                    if let Some(waker) = bell {
                        bells.add(waker);
                    }
                    return true;
                }
                // It left between the look and the lock: each look again is paid by a departure.
                Offered::Moved => {}
                Offered::NoRoom => return false,
            }
        }
    }
}
