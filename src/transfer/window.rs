//! What became of each line, in the order of the lines.
//!
//! A line that is no event is decided at once, one that goes to a store when its answer comes, and
//! answers may overtake one another. The window holds what is decided back until everything before
//! it is. Its length is its keeper's to bound.

use std::collections::VecDeque;
use std::fmt;

use crate::nostr::reason::{Prefix, Reason};
use crate::store::Outcome;

/// What became of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is stored, durably.
    Accepted,
    /// The same event was stored before.
    Duplicate,
    /// A newer version of it is stored.
    Superseded,
    /// It is not stored, on purpose.
    Refused(String),
    /// It could not be stored: trouble that is not the event's.
    Failed(String),
}

impl Verdict {
    /// A refusal with a reason.
    pub fn refused(reason: &impl fmt::Display) -> Verdict {
        Verdict::Refused(reason.to_string())
    }
}

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Verdict {
        match outcome {
            Outcome::Stored { .. } => Verdict::Accepted,
            Outcome::Duplicate => Verdict::Duplicate,
            Outcome::Superseded => Verdict::Superseded,
            Outcome::SignatureDiffers => Verdict::refused(&SIGNATURE_DIFFERS),
            Outcome::Refused(reason) => Verdict::refused(&reason),
            Outcome::Failed(error) => Verdict::Failed(error.to_string()),
        }
    }
}

const SIGNATURE_DIFFERS: Reason =
    Reason::fixed(Prefix::Invalid, "this id is stored with another signature");

/// Lines between the first that is undecided and the last that was read.
#[derive(Debug, Default)]
pub struct Window {
    lines: VecDeque<Slot>,
    /// The ticket of the first.
    first: u64,
    undecided: usize,
}

#[derive(Debug)]
struct Slot {
    line: u64,
    verdict: Option<Verdict>,
}

impl Window {
    /// An empty one, whose first ticket is 0.
    pub fn new() -> Window {
        Window::default()
    }

    /// Takes a line in whose verdict will come under the ticket that is returned. Tickets count up.
    pub fn wait_for(&mut self, line: u64) -> u64 {
        self.undecided += 1;
        self.push(line, None)
    }

    /// Takes a line in that is decided. It has a ticket too, which nobody needs.
    pub fn decided(&mut self, line: u64, verdict: Verdict) {
        self.push(line, Some(verdict));
    }

    /// The verdict of a line. False: no line waits for it.
    pub fn decide(&mut self, ticket: u64, verdict: Verdict) -> bool {
        let at = ticket.checked_sub(self.first).map(usize::try_from);
        let Some(Ok(at)) = at else { return false };
        match self.lines.get_mut(at) {
            Some(slot) if slot.verdict.is_none() => {
                slot.verdict = Some(verdict);
                self.undecided -= 1;
                true
            }
            _ => false,
        }
    }

    /// Takes the first line out, if it is decided.
    pub fn take(&mut self) -> Option<(u64, Verdict)> {
        let verdict = self.lines.front_mut()?.verdict.take()?;
        let slot = self.lines.pop_front()?;
        self.first += 1;
        Some((slot.line, verdict))
    }

    /// Lines in it.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether no line is in it.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Lines that still wait for a verdict.
    pub fn undecided(&self) -> usize {
        self.undecided
    }

    fn push(&mut self, line: u64, verdict: Option<Verdict>) -> u64 {
        let ticket = self.first + self.lines.len() as u64;
        self.lines.push_back(Slot { line, verdict });
        ticket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_leave_in_order_whatever_comes_first() {
        let mut window = Window::new();
        let one = window.wait_for(1);
        window.decided(3, Verdict::Duplicate);
        let four = window.wait_for(4);
        assert_eq!((window.take(), window.undecided()), (None, 2));
        assert!(window.decide(four, Verdict::Superseded));
        assert!(!window.decide(four, Verdict::Accepted), "once");
        assert_eq!(window.take(), None);
        assert!(window.decide(one, Verdict::Accepted));
        let all: Vec<_> = std::iter::from_fn(|| window.take()).collect();
        assert_eq!(
            all,
            [
                (1, Verdict::Accepted),
                (3, Verdict::Duplicate),
                (4, Verdict::Superseded)
            ]
        );
        assert!(window.is_empty() && window.undecided() == 0);
        assert!(!window.decide(one, Verdict::Accepted), "gone");
        assert!(!window.decide(99, Verdict::Accepted), "never given");
        let five = window.wait_for(5);
        assert!(window.decide(five, Verdict::Accepted));
        assert_eq!(window.take(), Some((5, Verdict::Accepted)));
    }
}
