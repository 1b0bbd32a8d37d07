//! Published events on their way to the store's writer, gathered for a moment.
//!
//! The writer commits what it finds. Handed over one by one, the first event of a burst would be a
//! commit of its own, and the others, whose signatures are checked meanwhile, the next: two syncs, and
//! two writes to every subscriber. So a shard holds events back while more are on their way: as long
//! as somebody waits for a turn and the turn before has brought another one. A lone event is not held
//! back.
//!
//! Bounded by [`GATHERED_EVENTS_MAX`] and [`GATHER_TIME`]. An event is in flight from the moment it
//! is submitted here.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use crate::limits::{GATHER_TIME, GATHERED_EVENTS_MAX};
use crate::shard::conn::Signal;
use crate::shard::runtime::{self, Turns};
use crate::shard::{Shard, ingest};
use crate::store::Job;

impl Shard {
    /// Passes an event on to the store's writer, soon. It is answered, also when there is no room.
    pub fn submit(self: &Rc<Self>, job: Job) {
        if self.gathered.push(job, Instant::now()) {
            self.hand_in();
        }
    }

    /// Hands in what is gathered whenever no more is on its way.
    pub(super) async fn hand_in_gathered(self: Rc<Self>) {
        loop {
            self.gathered.complete(&self.turns).await;
            self.hand_in();
        }
    }

    fn hand_in(self: &Rc<Self>) {
        let mut jobs = self.gathered.take();
        self.common.store.submit(&mut jobs);
        for job in jobs.drain(..) {
            if let Some(conn) = self.no_longer_in_flight(job.origin) {
                ingest::turn_away(self, &conn, &job.event);
            }
        }
        self.gathered.keep(jobs);
    }
}

/// What a shard has gathered.
pub struct Gathered<T> {
    items: RefCell<Vec<T>>,
    /// When the first of them came.
    since: Cell<Option<Instant>>,
    begun: Signal,
}

impl<T> Default for Gathered<T> {
    fn default() -> Gathered<T> {
        Gathered {
            items: RefCell::default(),
            since: Cell::default(),
            begun: Signal::default(),
        }
    }
}

impl<T> Gathered<T> {
    /// Takes one in. Returns whether they must not wait any longer.
    fn push(&self, item: T, now: Instant) -> bool {
        self.items.borrow_mut().push(item);
        let since = self.since.get().unwrap_or_else(|| {
            self.since.set(Some(now));
            self.begun.wake();
            now
        });
        self.len() >= GATHERED_EVENTS_MAX || now - since >= GATHER_TIME
    }

    /// Waits until there are some and no more seem to be on their way.
    async fn complete(&self, turns: &Turns) {
        while self.len() == 0 {
            self.begun.wait().await;
        }
        // By then it is known whether the connection has more and waits for its turn.
        runtime::after_others().await;
        let mut before = 0;
        while self.len() > before && turns.are_wanted() {
            before = self.len();
            turns.next().await;
        }
    }

    /// All of them.
    fn take(&self) -> Vec<T> {
        self.since.set(None);
        self.items.take()
    }

    /// Keeps the memory of what was taken, which is empty now, for the next.
    fn keep(&self, spare: Vec<T>) {
        debug_assert!(spare.is_empty(), "all were handed in");
        let mut items = self.items.borrow_mut();
        if items.is_empty() {
            *items = spare;
        }
    }

    fn len(&self) -> usize {
        self.items.borrow().len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::shard::runtime::tests::{drivers, on_shard};

    /// What is handed in at once, when items come in the given number of bursts, one an item's turn.
    fn handed_in(bursts: &'static [usize]) -> Vec<Vec<Vec<usize>>> {
        let run = |driver| {
            on_shard(driver, move || async move {
                let turns = Turns::start(driver).expect("eventfd");
                let gathered = Rc::new(Gathered::default());
                let now = Instant::now();
                for burst in bursts {
                    let (turns, gathered) = (turns.clone(), gathered.clone());
                    runtime::spawn(async move {
                        for nth in 0..*burst {
                            assert!(!gathered.push(nth, now), "not late");
                            if nth + 1 < *burst {
                                turns.next().await;
                            }
                        }
                    });
                }
                let mut left: usize = bursts.iter().sum();
                let mut taken = Vec::new();
                while left > 0 {
                    gathered.complete(&turns).await;
                    let items = gathered.take();
                    left -= items.len();
                    taken.push(items);
                }
                taken
            })
        };
        drivers().into_iter().map(run).collect()
    }

    #[test]
    fn a_burst_is_handed_in_at_once() {
        for taken in handed_in(&[16]) {
            assert_eq!(taken, [(0..16).collect::<Vec<_>>()]);
        }
    }

    #[test]
    fn bursts_of_many_connections_are_handed_in_together() {
        for taken in handed_in(&[3, 1, 2]) {
            assert_eq!(taken, [[0, 0, 0, 1, 1, 2]]);
        }
    }

    #[test]
    fn who_waits_for_another_reason_holds_nothing_back() {
        for driver in drivers() {
            let turns_passed = on_shard(driver, move || async move {
                let turns = Turns::start(driver).expect("eventfd");
                let gathered = Rc::new(Gathered::default());
                let passed = Rc::new(Cell::new(0));
                let (others, counted) = (turns.clone(), passed.clone());
                runtime::spawn(async move {
                    while counted.get() < 1_000 {
                        others.next().await;
                        counted.set(counted.get() + 1);
                    }
                });
                gathered.push((), Instant::now());
                // As a task, as in a shard: the first future of a runtime has no place in its queue.
                let (collected, counted) = (Rc::new(Cell::new(None)), passed.clone());
                let seen = collected.clone();
                runtime::spawn(async move {
                    gathered.complete(&turns).await;
                    seen.set(Some(counted.get()));
                });
                while collected.get().is_none() {
                    runtime::sleep(Duration::from_millis(1)).await;
                }
                collected.get().expect("it was collected")
            });
            assert!(turns_passed <= 2, "{turns_passed} turns");
        }
    }

    #[test]
    fn neither_many_nor_old_ones_wait() {
        let gathered = Gathered::default();
        let start = Instant::now();
        for nth in 1..GATHERED_EVENTS_MAX {
            assert!(!gathered.push(nth, start), "{nth}");
        }
        assert!(gathered.push(0, start));
        assert_eq!(gathered.take().len(), GATHERED_EVENTS_MAX);
        assert!(
            !gathered.push(0, start + GATHER_TIME),
            "the clock begins anew"
        );
        assert!(!gathered.push(1, start + GATHER_TIME * 2 - GATHER_TIME / 8));
        assert!(gathered.push(2, start + GATHER_TIME * 2));
    }
}
