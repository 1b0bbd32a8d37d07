//! The order of things, from the end of the grace to the end of the last socket.
//!
//! 1. Every shard empties its accept queue, closes its listener, and says how many connections it
//!    has. The draining flag was set long before, so that number can only become smaller.
//! 2. The plan is made, and each shard gets its part with one common start.
//! 3. The sockets end, one after the other; each tenth is told.
//!
//! It runs on the control thread, owns nothing and can be given up at any await: whatever the
//! shards were told goes on without it.

use std::time::{Duration, Instant};

use crate::drain::ledger::{Ledger, Totals};
use crate::drain::plan;
use crate::limits::{DRAIN_LOOK, SHARD_STOPS_ACCEPTING_WAIT};

/// A shard's share of the closes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Part {
    /// The zero of all delays, the same for all shards.
    pub start: Instant,
    /// One delay for each connection, in the order of the shard's table; `None`: all at once.
    pub delays: Option<Vec<Duration>>,
}

/// What the drain needs of the process.
pub trait Relay {
    /// How many shards there are.
    fn shards(&self) -> usize;
    /// What the shards count.
    fn ledger(&self) -> &Ledger;
    /// Sockets of a shard that have not ended, WebSockets or not.
    fn sockets(&self, shard: usize) -> usize;
    /// Tells a shard to accept no more; false when its mailbox has no room now.
    fn stop_accepting(&self, shard: usize) -> bool;
    /// Gives a shard its part, or gives it back when its mailbox has no room now.
    ///
    /// # Errors
    ///
    /// The part.
    fn close(&self, shard: usize, part: Part) -> Result<(), Part>;
    /// Called at the start of the closes and at each tenth of the connections that have ended.
    fn progress(&self, totals: &Totals, remaining: usize);
}

/// Closes everything, and returns when every socket has ended. The hard stop is the caller's.
pub async fn run(relay: &impl Relay, window: Duration, seed: u64) {
    let connections = stop_accepting(relay).await;
    let start = Instant::now();
    let planned = (!window.is_zero()).then(|| plan::plan(&connections, window, seed));
    let mut planned = planned.map(Vec::into_iter);
    for shard in 0..relay.shards() {
        let mut part = Part {
            start,
            delays: planned.as_mut().and_then(Iterator::next),
        };
        while let Err(back) = relay.close(shard, part) {
            part = back;
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    }
    watch(relay).await;
}

/// Stops all accepting. Returns how many connections each shard has.
///
/// A shard that does not answer in time is busy or stuck; the others do not wait for it. It is
/// planned with the sockets that it is known to have, which may be more than its connections:
/// surplus slots stay empty.
async fn stop_accepting(relay: &impl Relay) -> Vec<usize> {
    let deadline = Instant::now() + SHARD_STOPS_ACCEPTING_WAIT;
    let mut told = vec![false; relay.shards()];
    loop {
        for (shard, told) in told.iter_mut().enumerate() {
            *told = *told || relay.stop_accepting(shard);
        }
        let answers: Vec<Option<usize>> = (0..relay.shards())
            .map(|shard| relay.ledger().planned(shard))
            .collect();
        let late = Instant::now() >= deadline;
        if answers.iter().all(Option::is_some) || late {
            let known = |(shard, answer): (usize, &Option<usize>)| {
                answer.unwrap_or_else(|| relay.sockets(shard))
            };
            return answers.iter().enumerate().map(known).collect();
        }
        tokio::time::sleep(DRAIN_LOOK).await;
    }
}

async fn watch(relay: &impl Relay) {
    let sockets = || (0..relay.shards()).map(|shard| relay.sockets(shard)).sum();
    let first: usize = sockets();
    relay.progress(&relay.ledger().totals(), first);
    let mut tenths = 0;
    loop {
        let remaining: usize = sockets();
        let ended = first.saturating_sub(remaining);
        let now = ended * 10 / first.max(1);
        if now > tenths {
            tenths = now;
            relay.progress(&relay.ledger().totals(), remaining);
        }
        if remaining == 0 {
            return;
        }
        tokio::time::sleep(DRAIN_LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::DrainClose;
    use std::cell::{Cell, RefCell};

    /// Shards that answer when the test lets them, and whose sockets end at their planned time.
    struct Toy {
        ledger: Ledger,
        connections: Vec<usize>,
        parts: RefCell<Vec<Option<Part>>>,
        /// Calls that find the mailbox full, for each shard.
        full: Vec<Cell<usize>>,
        stuck: Option<usize>,
        told: Cell<usize>,
        progress: RefCell<Vec<usize>>,
    }

    impl Toy {
        fn new(connections: &[usize]) -> Toy {
            Toy {
                ledger: Ledger::new(connections.len()),
                connections: connections.to_vec(),
                parts: RefCell::new(vec![None; connections.len()]),
                full: connections.iter().map(|_| Cell::new(0)).collect(),
                stuck: None,
                told: Cell::new(0),
                progress: RefCell::default(),
            }
        }

        fn has_room(&self, shard: usize) -> bool {
            let full = &self.full[shard];
            let room = full.get() == 0;
            full.set(full.get().saturating_sub(1));
            room
        }
    }

    impl Relay for Toy {
        fn shards(&self) -> usize {
            self.connections.len()
        }

        fn ledger(&self) -> &Ledger {
            &self.ledger
        }

        fn sockets(&self, shard: usize) -> usize {
            let parts = self.parts.borrow();
            match &parts[shard] {
                Some(Part { start, delays }) => {
                    let ended = |delay: &&Duration| start.elapsed() >= **delay;
                    let delays = delays.as_deref().unwrap_or_default();
                    delays.len() - delays.iter().filter(ended).count()
                }
                None => self.connections[shard],
            }
        }

        fn stop_accepting(&self, shard: usize) -> bool {
            let room = self.has_room(shard);
            if room {
                self.told.set(self.told.get() + 1);
                for _ in 0..self.connections[shard] {
                    self.ledger.came_under(shard);
                    self.ledger.settled(shard, DrainClose::Acknowledged);
                }
                if self.stuck != Some(shard) {
                    let count = self.connections[shard];
                    self.ledger.stopped_accepting(shard, count);
                }
            }
            room
        }

        fn close(&self, shard: usize, part: Part) -> Result<(), Part> {
            if !self.has_room(shard) {
                return Err(part);
            }
            self.parts.borrow_mut()[shard] = Some(part);
            Ok(())
        }

        fn progress(&self, totals: &Totals, remaining: usize) {
            assert_eq!(totals.unsettled(), 0);
            self.progress.borrow_mut().push(remaining);
        }
    }

    const WINDOW: Duration = Duration::from_millis(60);

    #[tokio::test]
    async fn every_shard_gets_its_part_of_one_plan() {
        let toy = Toy::new(&[30, 0, 70]);
        run(&toy, WINDOW, 3).await;
        let parts = toy.parts.take();
        let starts: Vec<_> = parts.iter().flatten().map(|part| part.start).collect();
        assert!(starts.iter().all(|start| *start == starts[0]), "one zero");
        assert!(starts[0].elapsed() >= WINDOW * 9 / 10, "it awaits the ends");
        let delays = parts.into_iter().map(|part| part.unwrap().delays.unwrap());
        let delays: Vec<_> = delays.collect();
        assert_eq!(delays, plan::plan(&[30, 0, 70], WINDOW, 3));
        let progress = toy.progress.take();
        assert_eq!(
            (progress.first(), progress.last()),
            (Some(&100), Some(&0)),
            "{progress:?}"
        );
        assert!(progress.len() > 3 && progress.len() <= 11, "{progress:?}");
    }

    #[tokio::test]
    async fn without_a_window_all_are_closed_at_once() {
        let toy = Toy::new(&[5, 5]);
        run(&toy, Duration::ZERO, 3).await;
        let parts = toy.parts.take();
        assert!(parts.iter().flatten().all(|part| part.delays.is_none()));
        assert_eq!(parts.iter().flatten().count(), 2);
    }

    #[tokio::test]
    async fn nobody_connected_ends_at_once_whatever_the_window() {
        let start = Instant::now();
        run(&Toy::new(&[0, 0]), Duration::from_secs(20), 3).await;
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn a_full_mailbox_is_tried_again_and_told_once() {
        let toy = Toy::new(&[4, 4]);
        toy.full[0].set(3);
        run(&toy, WINDOW, 3).await;
        assert_eq!(toy.told.get(), 2);
        assert!(toy.parts.take().iter().all(Option::is_some));
    }

    #[tokio::test]
    async fn a_shard_that_does_not_answer_holds_up_nobody() {
        let mut toy = Toy::new(&[4, 9]);
        toy.stuck = Some(1);
        let start = Instant::now();
        run(&toy, WINDOW, 3).await;
        assert!(start.elapsed() >= SHARD_STOPS_ACCEPTING_WAIT);
        let part = toy.parts.take()[1].take().expect("its part waits for it");
        assert_eq!(part.delays.map(|delays| delays.len()), Some(9));
    }
}
