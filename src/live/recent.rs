//! The ids of recent ephemeral events, so that each is broadcast once.
//!
//! An ephemeral event is not stored (NIP-01), so no store can tell that it came before, and a
//! client that publishes through several connections would be heard several times. This is a
//! memory of bounded size for that purpose alone: it may forget, and then an event is broadcast
//! again; it never takes a new event for a known one (short of equal 64-bit fingerprints under a
//! key that no client knows).
//!
//! A direct-mapped table: an id has one place, its newest tenant is there, and one atomic swap both
//! asks and remembers. So of several threads that insert one id at once, exactly one is told that
//! it is new, unless another id took the place in between.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::quality::RandomState;

use crate::limits::RECENT_IDS_ENTRIES;

/// A process-wide memory of recent event ids, lock-free. Shared by `Arc` or as a static.
pub struct RecentIds {
    fingerprints: Box<[AtomicU64]>,
    key: RandomState,
}

impl RecentIds {
    /// An empty memory of [`RECENT_IDS_ENTRIES`] places.
    pub fn new() -> RecentIds {
        RecentIds::with_entries(RECENT_IDS_ENTRIES)
    }

    /// Remembers `id`. True: it was not known. To be called for verified events only, lest a forged
    /// copy silence the real event.
    pub fn insert(&self, id: &[u8; 32]) -> bool {
        // 0 is the empty place.
        let fingerprint = self.key.hash_one(id).max(1);
        let place = fingerprint as usize & (self.fingerprints.len() - 1);
        // No other memory is published by this swap; all swaps of one place have one order.
        self.fingerprints[place].swap(fingerprint, Ordering::Relaxed) != fingerprint
    }

    fn with_entries(entries: usize) -> RecentIds {
        assert!(entries.is_power_of_two());
        let fingerprints = (0..entries).map(|_| AtomicU64::new(0)).collect();
        RecentIds {
            fingerprints,
            key: RandomState::default(),
        }
    }
}

impl fmt::Debug for RecentIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecentIds")
            .field("entries", &self.fingerprints.len())
            .finish_non_exhaustive()
    }
}

impl Default for RecentIds {
    fn default() -> RecentIds {
        RecentIds::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    fn id(number: u64) -> [u8; 32] {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&number.to_le_bytes());
        id
    }

    #[test]
    fn an_id_is_new_once() {
        let recent = RecentIds::new();
        assert!(recent.insert(&id(1)));
        assert!(!recent.insert(&id(1)));
        assert!(recent.insert(&id(2)));
        assert!(!recent.insert(&id(2)));
    }

    #[test]
    fn a_new_id_is_never_taken_for_a_known_one() {
        let recent = RecentIds::with_entries(16);
        assert!((0..100_000).all(|number| recent.insert(&id(number))));
    }

    #[test]
    fn most_of_the_recent_ones_are_remembered() {
        let recent = RecentIds::new();
        let count = RECENT_IDS_ENTRIES as u64 / 16;
        for number in 0..count {
            recent.insert(&id(number));
        }
        let forgotten = (0..count)
            .filter(|&number| recent.insert(&id(number)))
            .count() as u64;
        // A sixteenth full: about 1 in 32 was pushed out the first time, and as many again now.
        assert!(forgotten < count / 8, "{forgotten} of {count}");
    }

    #[test]
    fn of_threads_that_race_with_one_id_one_wins() {
        const THREADS: usize = 4;
        const ROUNDS: u64 = 2_000;
        let recent = RecentIds::with_entries(1 << 16);
        let wins: Vec<AtomicUsize> = (0..ROUNDS).map(|_| AtomicUsize::new(0)).collect();
        let start = Barrier::new(THREADS);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        if round % 100 == 0 {
                            start.wait();
                        }
                        if recent.insert(&id(round)) {
                            wins[round as usize].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let wrong = wins
            .iter()
            .filter(|wins| wins.load(Ordering::Relaxed) != 1)
            .count();
        // Two ids of one place may push each other out while threads are at different rounds.
        assert!(wrong <= ROUNDS as usize / 100, "{wrong} of {ROUNDS} rounds");
        assert!(wins.iter().all(|wins| wins.load(Ordering::Relaxed) >= 1));
    }
}
