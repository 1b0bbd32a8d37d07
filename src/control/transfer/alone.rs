//! Into the store and out of it, where no relay runs: this process holds the folder.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::limits::{
    EXPORT_SLICE_TIME, FILL_BYTES_MAX, FILL_EVENTS_MAX, IMPORT_ALONE_BYTES_MAX,
    IMPORT_ALONE_EVENTS_MAX, IMPORT_GATHER, IMPORT_TICK, READ_BYTES_MAX, SLICE_ENTRIES_MAX,
};
use crate::nostr::event::Event;
use crate::store::embedded::{Budget, Progress};
use crate::store::{Export, Job, Origin, Reader, Store, StoreError, unix_seconds};
use crate::transfer::export::Outlet;
use crate::transfer::import::{Ended, Intake};
use crate::transfer::inflow::{Answers, Bounds, Inflow, Shut, Verdicts};
use crate::transfer::policy::Policy;
use crate::transfer::pool::{Screen, Screened};

/// A store that takes events in.
///
/// They are handed over by the thousand, in one piece that the writer commits as one: the more events
/// a commit holds, the fewer times each page of an index is written.
pub struct StoreIntake {
    store: Store,
    inflow: Arc<Inflow>,
    jobs: Vec<Job>,
    jobs_bytes: usize,
    /// When the first of them came.
    since: Instant,
    /// Answers that were taken to make room.
    taken: Verdicts,
}

impl StoreIntake {
    /// Starts the store's writer.
    pub fn start(store: Store) -> StoreIntake {
        let inflow = Inflow::new(Bounds {
            events_max: IMPORT_ALONE_EVENTS_MAX,
            bytes_max: IMPORT_ALONE_BYTES_MAX,
        });
        store.start_filling(Answers::new(Arc::clone(&inflow)));
        StoreIntake {
            store,
            inflow,
            jobs: Vec::new(),
            jobs_bytes: 0,
            since: Instant::now(),
            taken: Verdicts::new(),
        }
    }

    /// Hands over what was gathered.
    fn submit(&mut self) {
        loop {
            self.store.submit(&mut self.jobs);
            if self.jobs.is_empty() {
                self.jobs_bytes = 0;
                return;
            }
            // The queue is as large as what may be on its way: its room comes with an answer.
            self.inflow.take(&mut self.taken, IMPORT_TICK);
        }
    }
}

impl Intake for StoreIntake {
    fn put(&mut self, number: u64, event: Event) -> Result<(), Ended> {
        let bytes = event.json().len();
        loop {
            match self.inflow.admit(bytes, Duration::ZERO) {
                Ok(()) => break,
                Err(Shut::Stopped(why)) => return Err(Ended(why.to_owned())),
                // This thread is the one who makes room.
                Err(Shut::Full) => {
                    self.submit();
                    self.inflow.take(&mut self.taken, IMPORT_TICK);
                }
            }
        }
        if self.jobs.is_empty() {
            self.since = Instant::now();
        }
        self.jobs.push(Job {
            event: Arc::new(event),
            origin: Origin {
                shard: 0,
                token: number,
            },
        });
        self.jobs_bytes += bytes;
        if self.jobs.len() >= FILL_EVENTS_MAX || self.jobs_bytes >= FILL_BYTES_MAX {
            self.submit();
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Ended> {
        if self.since.elapsed() >= IMPORT_GATHER {
            self.submit();
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Ended> {
        self.submit();
        Ok(())
    }

    fn verdicts(&mut self, into: &mut Verdicts, wait: Duration) -> Result<(), Ended> {
        if self.taken.is_empty() {
            self.inflow.take(into, wait);
        } else {
            into.append(&mut self.taken);
        }
        Ok(())
    }
}

impl Drop for StoreIntake {
    fn drop(&mut self) {
        self.store.close();
    }
}

/// What this store and the policy say of an event, before its signature is checked.
#[derive(Clone)]
pub struct StoreScreen {
    /// The store.
    pub reader: Reader,
    /// The policy.
    pub policy: Policy,
}

impl Screen for StoreScreen {
    fn screen(&self, event: &Event) -> Screened {
        if let Err(reason) = self.policy.check(event, unix_seconds()) {
            return Screened::Refused(reason);
        }
        // What cannot be looked up is checked like any event.
        let Reader::Embedded(reader) = &self.reader else {
            // A question costs as much as a signature: the writer finds out.
            return Screened::Unknown;
        };
        let Ok(screen) = reader.known(event) else {
            return Screened::Unknown;
        };
        // Whether it is a duplicate is the writer's to say, in the order of the lines: one before
        // may have taken it back.
        match (screen.ban(event), screen.found) {
            (Some(reason), _) => Screened::Refused(reason),
            (None, Some(found)) if found.sig == *event.sig() => Screened::Known,
            (None, _) => Screened::Unknown,
        }
    }
}

/// A store that gives events.
pub struct StoreOutlet {
    /// What is left to give.
    pub export: Export,
    /// The store.
    pub reader: Reader,
}

impl Outlet for StoreOutlet {
    fn next(&mut self, into: &mut Vec<u8>) -> Result<bool, String> {
        next_slice(&mut self.export, &self.reader, into).map_err(|error| error.to_string())
    }
}

/// Appends a slice of an export, an event a line. Returns whether there is more.
///
/// # Errors
/// What the store says; the export cannot go on then.
pub fn next_slice(
    export: &mut Export,
    reader: &Reader,
    into: &mut Vec<u8>,
) -> Result<bool, StoreError> {
    let budget = Budget {
        entries_max: SLICE_ENTRIES_MAX,
        bytes_max: READ_BYTES_MAX,
        deadline: Some(Instant::now() + EXPORT_SLICE_TIME),
        now: unix_seconds(),
    };
    let progress = export.slice(reader, &budget, &mut |json| {
        into.extend_from_slice(json.as_bytes());
        into.push(b'\n');
    })?;
    Ok(progress == Progress::More)
}
