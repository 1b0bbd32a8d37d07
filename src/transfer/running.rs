//! The transfers of a running relay: how many there may be, how their events' answers find them, and
//! how all of them are ended.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::limits::{EXPORTS_MAX, IMPORT_SHARED_BYTES_MAX, IMPORT_SHARED_EVENTS_MAX, IMPORTS_MAX};
use crate::store::{Done, Origin};
use crate::transfer::inflow::{Bounds, Inflow, Verdicts};

/// What transfers are told when the relay stops.
pub const STOPPING: &str = "the relay is stopping";

/// The shard number of events that no shard has sent. There are never so many shards.
const NO_SHARD: u16 = u16::MAX;
/// Bits of a token that hold an event's number; those above tell one import from an earlier one.
const NUMBER_BITS: u32 = 48;

/// All transfers of one relay. Shared by all threads.
#[derive(Debug)]
pub struct Transfers {
    import: Mutex<Option<(u64, Arc<Inflow>)>>,
    imports_begun: AtomicU64,
    exports: AtomicUsize,
    stopping: watch::Sender<bool>,
}

// The one slot above.
const _: () = assert!(IMPORTS_MAX == 1);

/// Why a transfer may not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The relay stops.
    #[error("{STOPPING}")]
    Stopping,
    /// There are as many as may be.
    #[error("as many of them run as may; wait for one to end")]
    TooMany,
}

impl Default for Transfers {
    fn default() -> Transfers {
        Transfers::new()
    }
}

impl Transfers {
    /// None so far.
    pub fn new() -> Transfers {
        Transfers {
            import: Mutex::default(),
            imports_begun: AtomicU64::new(0),
            exports: AtomicUsize::new(0),
            stopping: watch::Sender::new(false),
        }
    }

    /// Begins an import. It runs until what this gives is dropped.
    ///
    /// # Errors
    /// Why not.
    pub fn begin_import(self: &Arc<Self>) -> Result<Import, Refusal> {
        let mut import = self.import();
        if self.is_stopping() {
            return Err(Refusal::Stopping);
        }
        if import.is_some() {
            return Err(Refusal::TooMany);
        }
        let serial = self.imports_begun.fetch_add(1, Ordering::Relaxed) & (u64::MAX >> NUMBER_BITS);
        let inflow = Inflow::new(Bounds {
            events_max: IMPORT_SHARED_EVENTS_MAX,
            bytes_max: IMPORT_SHARED_BYTES_MAX,
        });
        *import = Some((serial, Arc::clone(&inflow)));
        Ok(Import {
            inflow,
            serial,
            all: Arc::clone(self),
        })
    }

    /// Begins an export. It runs until what this gives is dropped.
    ///
    /// # Errors
    /// Why not.
    pub fn begin_export(self: &Arc<Self>) -> Result<Export, Refusal> {
        if self.is_stopping() {
            return Err(Refusal::Stopping);
        }
        let export = Export(Arc::clone(self));
        if self.exports.fetch_add(1, Ordering::Relaxed) >= EXPORTS_MAX {
            return Err(Refusal::TooMany);
        }
        Ok(export)
    }

    /// Whether an event was sent by an import.
    pub fn has_sent(origin: Origin) -> bool {
        origin.shard == NO_SHARD
    }

    /// Hands what became of an import's events to it; drains `done`. Those of one that has ended
    /// nobody asks for.
    pub fn answer(&self, done: &mut Vec<Done>) {
        let import = self.import().clone();
        let (mut answers, mut bytes) = (Verdicts::new(), 0);
        for done in done.drain(..) {
            let token = done.origin.token;
            let is_of = |(serial, _): &(u64, _)| *serial == token >> NUMBER_BITS;
            if import.as_ref().is_some_and(is_of) {
                bytes += done.event.json().len();
                answers.push((token & !(u64::MAX << NUMBER_BITS), done.outcome.into()));
            }
        }
        if let Some((_, inflow)) = import
            && !answers.is_empty()
        {
            inflow.answer(&mut answers, bytes);
        }
    }

    /// Ends all of them, and lets no more begin.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
        if let Some((_, inflow)) = &*self.import() {
            inflow.stop(STOPPING);
        }
    }

    /// Whether [`stop`](Self::stop) was called.
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Waits for [`stop`](Self::stop).
    pub async fn stopped(&self) {
        let mut stopping = self.stopping.subscribe();
        // The sender lives in `self`.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    /// Imports and exports that run.
    pub fn running(&self) -> (usize, usize) {
        let imports = usize::from(self.import().is_some());
        (imports, self.exports.load(Ordering::Relaxed))
    }

    fn import(&self) -> MutexGuard<'_, Option<(u64, Arc<Inflow>)>> {
        self.import.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An import that runs.
#[derive(Debug)]
pub struct Import {
    /// Its events on their way.
    pub inflow: Arc<Inflow>,
    serial: u64,
    all: Arc<Transfers>,
}

impl Import {
    /// What the store gives back with an event's answer, so that it finds this import. `None`: there
    /// is no such number.
    pub fn origin(&self, number: u64) -> Option<Origin> {
        (number >> NUMBER_BITS == 0).then_some(Origin {
            shard: NO_SHARD,
            token: self.serial << NUMBER_BITS | number,
        })
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        *self.all.import() = None;
    }
}

/// An export that runs.
#[derive(Debug)]
pub struct Export(Arc<Transfers>);

impl Drop for Export {
    fn drop(&mut self) {
        self.0.exports.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::testing::Author;
    use crate::store::Outcome;
    use crate::transfer::window::Verdict;
    use std::time::Duration;

    fn done(origin: Origin) -> Done {
        Done {
            origin,
            event: Arc::new(Author::new(1).note(1, "x")),
            outcome: Outcome::Duplicate,
        }
    }

    #[test]
    fn one_import_some_exports_and_none_when_the_relay_stops() {
        let all = Arc::new(Transfers::new());
        let import = all.begin_import().expect("the first");
        assert_eq!(all.begin_import().err(), Some(Refusal::TooMany));
        let exports: Vec<Export> = (0..EXPORTS_MAX)
            .map(|_| all.begin_export().expect("room"))
            .collect();
        assert_eq!(all.begin_export().err(), Some(Refusal::TooMany));
        assert_eq!(all.running(), (1, EXPORTS_MAX));
        drop((import, exports));
        assert_eq!(all.running(), (0, 0));
        let import = all.begin_import().expect("room again");
        all.stop();
        assert_eq!(import.inflow.stopped(), Some(STOPPING));
        drop(import);
        assert_eq!(all.begin_import().err(), Some(Refusal::Stopping));
        assert_eq!(all.begin_export().err(), Some(Refusal::Stopping));
    }

    #[test]
    fn answers_find_their_import_and_no_later_one() {
        let all = Arc::new(Transfers::new());
        let origin = |import: &Import| import.origin(7).expect("a number");
        let first = all.begin_import().expect("an import");
        let old = origin(&first);
        assert!(Transfers::has_sent(old));
        assert!(first.origin(1 << NUMBER_BITS).is_none());
        drop(first);
        all.answer(&mut vec![done(old)]);
        let second = all.begin_import().expect("another");
        let bytes = done(old).event.json().len();
        second.inflow.admit(bytes, Duration::ZERO).expect("room");
        all.answer(&mut vec![done(old), done(origin(&second))]);
        let mut taken = Verdicts::new();
        second.inflow.take(&mut taken, Duration::ZERO);
        assert_eq!(taken, [(7, Verdict::Duplicate)]);
        assert!(second.inflow.settle(Duration::ZERO));
    }
}
