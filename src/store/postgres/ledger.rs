//! Which sequences this process has accounted for: its own commits, and what it fetched of others.
//!
//! Sequences are given out in commit order, and what is visible has no gap: a commit holds the turn
//! until it is visible. So whoever has fetched all up to a number that it has seen has missed
//! nothing below it, and one number, the cursor, says what has been fetched.
//!
//! A process does not fetch its own commits: it delivers them itself, when their commit has
//! succeeded. Between sending `COMMIT` and its answer a range is *pending*: its notification may
//! already have come, so the fetch stops before it. If the answer never comes, the range is nobody's:
//! if it was committed after all it is fetched like any other's. So each sequence is delivered once,
//! whatever becomes of a connection.

use std::collections::BTreeMap;

/// See the head of this file.
#[derive(Debug)]
pub struct Ledger {
    /// Everything up to here is accounted for.
    cursor: u64,
    /// Own commits above the cursor: first and last sequence.
    own: BTreeMap<u64, u64>,
    pending: Option<(u64, u64)>,
}

/// What is to be fetched next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Gap {
    /// Nothing.
    Nothing,
    /// Sequences above the first number, up to the second.
    Fetch(u64, u64),
    /// Own commits come next, whose fate is not known yet.
    Wait,
}

impl Ledger {
    /// Everything up to `cursor` is accounted for.
    pub fn new(cursor: u64) -> Ledger {
        Ledger {
            cursor,
            own: BTreeMap::new(),
            pending: None,
        }
    }

    /// Sequences that are about to be committed by this process.
    pub fn begin(&mut self, first: u64, last: u64) {
        debug_assert!(self.pending.is_none(), "one commit at a time");
        self.pending = Some((first, last));
    }

    /// They were committed, and this process delivers them.
    pub fn committed(&mut self) {
        if let Some((first, last)) = self.pending.take()
            && last > self.cursor
        {
            match self.own.range_mut(..first).next_back() {
                Some((_, end)) if *end + 1 == first => *end = last,
                _ => drop(self.own.insert(first, last)),
            }
        }
    }

    /// They were not committed, or nobody knows.
    pub fn abandoned(&mut self) {
        self.pending = None;
    }

    /// The next gap, if everything up to `head` is committed.
    pub fn next(&mut self, head: u64) -> Gap {
        while let Some(entry) = self.own.first_entry() {
            if *entry.key() > self.cursor + 1 {
                break;
            }
            self.cursor = self.cursor.max(entry.remove());
        }
        if head <= self.cursor {
            return Gap::Nothing;
        }
        let mut upto = head;
        if let Some((first, _)) = self.own.first_key_value() {
            upto = upto.min(first - 1);
        }
        if let Some((first, _)) = self.pending {
            if first <= self.cursor + 1 {
                return Gap::Wait;
            }
            upto = upto.min(first - 1);
        }
        Gap::Fetch(self.cursor, upto)
    }

    /// A gap was fetched and delivered up to here.
    pub fn fetched(&mut self, upto: u64) {
        self.cursor = self.cursor.max(upto);
    }

    /// Everything up to here is accounted for.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Runs of own sequences that wait for those of others before them.
    pub fn own_ranges(&self) -> usize {
        self.own.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn own_commits_are_stepped_over() {
        let mut ledger = Ledger::new(10);
        assert_eq!(ledger.next(10), Gap::Nothing);
        ledger.begin(13, 14);
        // 11 and 12 are another's. 13 is visible already, and may be ours.
        assert_eq!(ledger.next(14), Gap::Fetch(10, 12));
        ledger.fetched(12);
        assert_eq!(ledger.next(14), Gap::Wait);
        ledger.committed();
        assert_eq!(ledger.next(14), Gap::Nothing);
        assert_eq!(ledger.cursor(), 14);
        ledger.begin(15, 15);
        ledger.abandoned();
        assert_eq!(ledger.next(15), Gap::Fetch(14, 15));
    }

    proptest! {
        /// Commits of several processes in one order; each process looks at any time, and the fate of
        /// its own commits becomes known at any time.
        #[test]
        fn each_sequence_is_accounted_for_once(
            commits in prop::collection::vec((0..3u8, 1..4u64, any::<bool>(), any::<bool>()), 1..60),
        ) {
            let mut ledger = Ledger::new(0);
            let mut seen = Vec::new();
            let mut head = 0;
            let look = |ledger: &mut Ledger, head, seen: &mut Vec<u64>| loop {
                match ledger.next(head) {
                    Gap::Fetch(after, upto) => {
                        // At most two at a time.
                        let upto = upto.min(after + 2);
                        seen.extend(after + 1..=upto);
                        ledger.fetched(upto);
                    }
                    Gap::Wait | Gap::Nothing => return,
                }
            };
            for (process, count, looks, answered) in commits {
                let (first, last) = (head + 1, head + count);
                if process == 0 {
                    ledger.begin(first, last);
                    head = last;
                    if looks {
                        look(&mut ledger, head, &mut seen);
                    }
                    if answered {
                        ledger.committed();
                        seen.extend(first..=last);
                    } else {
                        ledger.abandoned();
                    }
                } else {
                    head = last;
                    if looks {
                        look(&mut ledger, head, &mut seen);
                    }
                }
            }
            look(&mut ledger, head, &mut seen);
            seen.sort_unstable();
            prop_assert_eq!(seen, (1..=head).collect::<Vec<_>>());
            prop_assert_eq!(ledger.own_ranges(), 0);
        }
    }
}
