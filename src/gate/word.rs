//! The gate's state: one word, so that its parts can never disagree.
//!
//! ```text
//!   63      62 .. 42     41 .. 21    20 .. 0
//!   closed  waiting      limit       in flight
//! ```
//!
//! Debt is `in flight - limit`, computed from one load and stored nowhere. Lowering the limit is
//! then one field write, a release under debt frees nothing by itself, and no pair of steps
//! exists between which a release could be lost or let through.
//!
//! Three rules hold for every transition below, whatever else runs:
//! - in flight grows only where the same compare-and-swap saw it below the limit
//!   (`growth_only_below_limit`, hence `monotone_under_debt` and `cap_at_admission`);
//! - the fast path is taken only where the same compare-and-swap saw nobody waiting
//!   (`no_barging`);
//! - the closed bit is never cleared.
//!
//! Every write is a read-modify-write, so each one continues the release sequence of all before
//! it: who acquires from the word sees what every earlier holder wrote (`hand_off_order`).

use super::sync::{AtomicU64, Ordering};

const FIELD_BITS: u32 = 21;
/// The largest value of a field; in the limit's field it means "none".
const FIELD_MAX: u32 = (1 << FIELD_BITS) - 1;
const LIMIT_SHIFT: u32 = FIELD_BITS;
const WAITING_SHIFT: u32 = 2 * FIELD_BITS;
const ONE_IN_FLIGHT: u64 = 1;
const ONE_WAITING: u64 = 1 << WAITING_SHIFT;
const CLOSED: u64 = 1 << 63;

/// The largest count that a limit can state; a larger one is this.
pub(super) const COUNT_MAX: u32 = FIELD_MAX - 1;
/// The limit field of a gate without a limit. As a number it is one more than any count, so
/// "none" needs no path of its own: in flight is compared with it as with any other limit.
pub(super) const NO_LIMIT: u32 = FIELD_MAX;
/// The most waiters a gate can be asked to hold. Half the field: waiters that give an offer back
/// are counted above it.
pub(super) const WAITING_MAX: u32 = 1 << (FIELD_BITS - 1);

const _: () = assert!(3 * FIELD_BITS + 1 == u64::BITS);
const _: () = assert!(WAITING_MAX < FIELD_MAX);

/// One reading of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(u64);

impl Word {
    pub(super) fn new(limit: u32) -> Word {
        Word(0).with_limit(limit)
    }

    pub(super) fn in_flight(self) -> u32 {
        (self.0 & u64::from(FIELD_MAX)) as u32
    }

    pub(super) fn limit(self) -> u32 {
        ((self.0 >> LIMIT_SHIFT) & u64::from(FIELD_MAX)) as u32
    }

    pub(super) fn waiting(self) -> u32 {
        ((self.0 >> WAITING_SHIFT) & u64::from(FIELD_MAX)) as u32
    }

    pub(super) fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    fn with_limit(self, limit: u32) -> Word {
        debug_assert!(limit <= FIELD_MAX);
        Word(self.0 & !(u64::from(FIELD_MAX) << LIMIT_SHIFT) | u64::from(limit) << LIMIT_SHIFT)
    }

    /// Somebody waits and a permit is free: the one cause to settle.
    pub(super) fn wants_settling(self) -> bool {
        self.waiting() > 0 && self.has_room() && !self.is_closed()
    }

    fn has_room(self) -> bool {
        self.in_flight() < self.limit()
    }

    /// Open and nobody waits: a newcomer may be admitted without overtaking anyone.
    fn is_clear(self) -> bool {
        self.0 >> WAITING_SHIFT == 0
    }
}

/// What became of a newcomer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Counted in flight.
    Admitted,
    /// Counted as waiting; it must now be pushed into a queue.
    Registered,
    /// Not counted: as many wait as may.
    Full,
    /// Not counted: the gate is closed.
    Closed,
}

/// What became of an offer that its waiter came to claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// In flight is within the limit, this waiter counted in.
    Admitted,
    /// There was debt: no longer in flight, waiting again.
    GivenBack,
    /// The gate is closed; the offer is still counted in flight.
    Closed,
    /// There was debt and the waiting field is full; the offer is still counted in flight.
    Full,
}

/// The word that all cores share.
pub(super) struct State(AtomicU64);

impl State {
    pub(super) fn new(limit: u32) -> State {
        State(AtomicU64::new(Word::new(limit).0))
    }

    pub(super) fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// The fast path alone: admits, or counts nothing.
    #[inline]
    pub(super) fn try_admit(&self) -> Result<(), Word> {
        let mut word = self.0.load(Ordering::Relaxed);
        while Word(word).is_clear() && Word(word).has_room() {
            match self.swap(word, word + ONE_IN_FLIGHT) {
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
        Err(Word(word))
    }

    /// Admits a newcomer or registers it as a waiter, whichever the word allows at one instant.
    pub(super) fn enter(&self, waiting_max: u32) -> Entry {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let now = Word(word);
            let (next, entry) = if now.is_closed() {
                return Entry::Closed;
            } else if now.is_clear() && now.has_room() {
                (word + ONE_IN_FLIGHT, Entry::Admitted)
            } else if now.waiting() >= waiting_max {
                return Entry::Full;
            } else {
                (word + ONE_WAITING, Entry::Registered)
            };
            match self.swap(word, next) {
                Ok(_) => return entry,
                Err(now) => word = now,
            }
        }
    }

    /// Moves one waiter from waiting to in flight, if there is room. The caller holds the lock of
    /// a queue that has one.
    pub(super) fn grant(&self) -> bool {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            if !Word(word).wants_settling() {
                return false;
            }
            match self.swap(word, word - ONE_WAITING + ONE_IN_FLIGHT) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// The newest value, by a read-modify-write that changes nothing. Whoever changes the word
    /// after it sees what the caller did before it: a plain load promises neither.
    pub(super) fn newest(&self) -> Word {
        Word(self.0.fetch_or(0, Ordering::AcqRel))
    }

    /// Gives back `count` places in flight, and says what is left. Under debt this retires them.
    #[inline]
    pub(super) fn release(&self, count: u32) -> Word {
        let before = Word(self.0.fetch_sub(u64::from(count), Ordering::AcqRel));
        debug_assert!(before.in_flight() >= count, "released more than was held");
        Word(before.0.wrapping_sub(u64::from(count)))
    }

    /// Takes `count` waiters off the count.
    pub(super) fn unregister(&self, count: u32) {
        let before = Word(
            self.0
                .fetch_sub(u64::from(count) << WAITING_SHIFT, Ordering::AcqRel),
        );
        debug_assert!(before.waiting() >= count, "more waiters left than had come");
    }

    /// Accepts an offer, or under debt gives it back. The giving back is one step: between two,
    /// a newcomer would see nobody waiting and walk past.
    ///
    /// The acceptance writes nothing, so it needs no swap: it happens at the load.
    pub(super) fn claim(&self) -> Claim {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let now = Word(word);
            if now.is_closed() {
                return Claim::Closed;
            } else if now.in_flight() <= now.limit() {
                return Claim::Admitted;
            } else if now.waiting() == FIELD_MAX {
                return Claim::Full;
            }
            match self.swap(word, word - ONE_IN_FLIGHT + ONE_WAITING) {
                Ok(_) => return Claim::GivenBack,
                Err(now) => word = now,
            }
        }
    }

    /// Writes the limit's field, and says what the word was and is.
    pub(super) fn set_limit(&self, limit: u32) -> (Word, Word) {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let next = Word(word).with_limit(limit);
            match self.swap(word, next.0) {
                Ok(before) => return (Word(before), next),
                Err(now) => word = now,
            }
        }
    }

    /// Sets the closed bit, for good.
    pub(super) fn close(&self) {
        self.0.fetch_or(CLOSED, Ordering::AcqRel);
    }

    fn swap(&self, from: u64, to: u64) -> Result<u64, u64> {
        self.0
            .compare_exchange_weak(from, to, Ordering::AcqRel, Ordering::Acquire)
    }
}
