//! When the next operation is due, and from when its latency counts. No clock in here: times come
//! as arguments, in nanoseconds since the start of the run.
//!
//! Closed loop: an operation starts when a place is free; its latency counts from then. Open loop:
//! operation `i` is due at `i / rate`, whether or not a place is free; it waits in line for one,
//! and its latency counts from when it was due. So the requests that a stalled relay keeps from
//! being sent are in the histogram with the time that their users would have waited.

/// Nanoseconds since the start of a run.
pub type Nanos = u64;

/// How operations are paced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As soon as a place is free.
    Closed,
    /// At this many a second, in even steps.
    Open {
        /// Operations a second.
        rate: f64,
    },
}

/// The state of one workload's pacing.
#[derive(Clone, Debug)]
pub struct Schedule {
    pace: Pace,
    /// Operations handed out.
    issued: u64,
    /// The most that are handed out.
    count: u64,
    /// No operation is due at or after this time.
    end: Nanos,
}

/// An operation that may start.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ticket {
    /// From when its latency counts.
    pub due: Nanos,
}

impl Schedule {
    /// At most `count` operations, none due at or after `end`.
    pub fn new(pace: Pace, count: u64, end: Nanos) -> Schedule {
        Schedule {
            pace,
            issued: 0,
            count,
            end,
        }
    }

    /// The next operation, if one is due at `now`. The caller has a free place for it.
    pub fn take(&mut self, now: Nanos) -> Option<Ticket> {
        let due = self.next_due(now)?;
        if due > now {
            return None;
        }
        self.issued += 1;
        Some(Ticket { due })
    }

    /// When the next operation is due; `None` when there are no more.
    pub fn next_due(&self, now: Nanos) -> Option<Nanos> {
        if self.issued >= self.count {
            return None;
        }
        let due = match self.pace {
            Pace::Closed => now,
            Pace::Open { .. } => self.due_of(self.issued),
        };
        (due < self.end).then_some(due)
    }

    /// Operations that are due at `now` and were not taken yet: who stands in line.
    pub fn waiting(&self, now: Nanos) -> u64 {
        match self.pace {
            Pace::Closed => 0,
            Pace::Open { rate } => {
                let until = now.min(self.end.saturating_sub(1));
                // One is due at 0. The cast cuts the fraction, as it should.
                let due = (until as f64 * rate / 1e9) as u64 + 1;
                due.min(self.count).saturating_sub(self.issued)
            }
        }
    }

    fn due_of(&self, index: u64) -> Nanos {
        match self.pace {
            Pace::Closed => 0,
            // From the index each time, so that rounding does not add up over a long run.
            Pace::Open { rate } => (index as f64 * 1e9 / rate) as Nanos,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const MS: Nanos = 1_000_000;
    const SECOND: Nanos = 1_000 * MS;

    #[test]
    fn closed_loop_counts_from_the_start_of_each() {
        let mut schedule = Schedule::new(Pace::Closed, 2, SECOND);
        assert_eq!(schedule.take(5), Some(Ticket { due: 5 }));
        assert_eq!(schedule.take(9), Some(Ticket { due: 9 }));
        assert_eq!(schedule.take(9), None);
        assert_eq!(Schedule::new(Pace::Closed, 2, SECOND).take(SECOND), None);
    }

    #[test]
    fn open_loop_is_due_on_time_and_ends_on_time() {
        let mut schedule = Schedule::new(Pace::Open { rate: 3.0 }, 1_000, 2 * SECOND);
        assert_eq!(schedule.take(0), Some(Ticket { due: 0 }));
        assert_eq!(schedule.take(0), None);
        assert_eq!(schedule.next_due(0), Some(333_333_333));
        let mut dues = Vec::new();
        while let Some(ticket) = schedule.take(10 * SECOND) {
            dues.push(ticket.due);
        }
        assert_eq!(dues.len(), 5, "six in two seconds, the first taken before");
        assert_eq!(dues[2], SECOND, "no drift");
        assert_eq!(schedule.next_due(10 * SECOND), None);
    }

    #[test]
    fn who_stands_in_line_is_counted() {
        let mut schedule = Schedule::new(Pace::Open { rate: 1_000.0 }, 10, SECOND);
        assert_eq!(schedule.waiting(0), 1);
        assert!(schedule.take(0).is_some());
        assert_eq!(schedule.waiting(0), 0);
        assert_eq!(schedule.waiting(3 * MS + 1), 3);
        assert_eq!(schedule.waiting(SECOND), 9, "no more than there are");
    }

    /// One server, one place, 1 ms a request, that stops for a second: what each loop sees of it.
    fn latencies(pace: Pace) -> Vec<Nanos> {
        let mut schedule = Schedule::new(pace, u64::MAX, 3 * SECOND);
        let (mut now, mut seen, mut stalled) = (0, Vec::new(), false);
        let mut line: VecDeque<Ticket> = VecDeque::new();
        while now < 5 * SECOND {
            while let Some(ticket) = schedule.take(now) {
                line.push_back(ticket);
                if pace == Pace::Closed {
                    break;
                }
            }
            let Some(ticket) = line.pop_front() else {
                let Some(due) = schedule.next_due(now) else {
                    break;
                };
                now = due.max(now + 1);
                continue;
            };
            now += MS;
            if now > SECOND && !stalled {
                stalled = true;
                now += SECOND;
            }
            seen.push(now - ticket.due);
        }
        seen.sort_unstable();
        seen
    }

    #[test]
    fn a_stall_shows_in_the_open_loop_only() {
        let at = |seen: &[Nanos], share: f64| seen[((seen.len() - 1) as f64 * share) as usize];
        let closed = latencies(Pace::Closed);
        let open = latencies(Pace::Open { rate: 200.0 });
        assert_eq!(at(&closed, 0.99), MS, "one request in 2 000 hides it");
        assert!(
            at(&open, 0.90) > 500 * MS,
            "a third of the users waited: {}",
            at(&open, 0.90)
        );
        assert!(at(&open, 1.0) > SECOND - 10 * MS);
    }
}
