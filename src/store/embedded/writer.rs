//! The writer's queue and its thread.
//!
//! Group commit without a timer: while one commit is being made durable the next group gathers, and
//! the writer takes whatever is there. A lone event is committed at once; under load a group grows
//! to its bound, and one sync pays for all of it.
//!
//! A group whose commit fails is answered [`Outcome::Failed`] as a whole and leaves no trace; the
//! next one is tried as if nothing had happened. Between groups, and while there are none, the writer
//! removes what has expired or vanished, a little at a time (`upkeep`). A panic of the writer ends the process: a relay that
//! acknowledges nothing any more should not look alive.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Shared;
use super::apply::{Group, Scratch};
use super::layout;
use super::lone;
use super::upkeep::Upkeep;
use crate::limits::{
    COMMIT_BYTES_MAX, COMMIT_EVENTS_MAX, COMMIT_INDEX_ENTRIES_MAX, FILL_BYTES_MAX, FILL_EVENTS_MAX,
    FILL_INDEX_ENTRIES_MAX, WRITE_QUEUE_BYTES_MAX, WRITE_QUEUE_EVENTS_MAX, WRITER_NICE,
};
use crate::nostr::event::Event;
use crate::store::retention::Retention;
use crate::store::{CommitSink, Done, Job, Outcome, StoreError, StoreErrorKind};

/// Events on their way to the writer. Shards meet here; the lock is held for a few moves.
pub struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    jobs: Vec<Job>,
    /// Taken in and not yet answered.
    events: usize,
    bytes: usize,
    closing: bool,
}

impl Queue {
    pub fn new() -> Queue {
        Queue {
            state: Mutex::default(),
            wake: Condvar::new(),
            thread: Mutex::new(None),
        }
    }

    /// Moves jobs in, in their order, as many as the bounds allow.
    pub fn submit(&self, jobs: &mut Vec<Job>) {
        let mut state = lock(&self.state);
        if state.closing {
            return;
        }
        let was_empty = state.jobs.is_empty();
        let (mut events, mut bytes) = (state.events, state.bytes);
        let taken = jobs.iter().take_while(|job| {
            events += 1;
            bytes += job.event.json().len();
            events <= WRITE_QUEUE_EVENTS_MAX && bytes <= WRITE_QUEUE_BYTES_MAX
        });
        let taken = taken.count();
        state.bytes += jobs[..taken]
            .iter()
            .map(|job| job.event.json().len())
            .sum::<usize>();
        state.events += taken;
        state.jobs.extend(jobs.drain(..taken));
        drop(state);
        if was_empty && taken > 0 {
            self.wake.notify_one();
        }
    }

    pub fn pending(&self) -> usize {
        lock(&self.state).events
    }

    pub fn close(&self) {
        lock(&self.state).closing = true;
        self.wake.notify_one();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // Its panic has ended the process already.
            let _ = thread.join();
        }
    }

    /// Waits for jobs, at most so long, and takes them all. False: closed, and nothing is left.
    fn take(&self, jobs: &mut Vec<Job>, wait: Duration) -> bool {
        let state = lock(&self.state);
        let idle = |state: &mut State| state.jobs.is_empty() && !state.closing;
        let (mut state, _) = self
            .wake
            .wait_timeout_while(state, wait, idle)
            .unwrap_or_else(PoisonError::into_inner);
        mem::swap(&mut state.jobs, jobs);
        !(jobs.is_empty() && state.closing)
    }

    pub(super) fn answered(&self, events: usize, bytes: usize) {
        let mut state = lock(&self.state);
        state.events -= events;
        state.bytes -= bytes;
    }
}

/// What one commit may hold. An event that passes a bound on its own is a commit of its own.
#[derive(Clone, Copy, Debug)]
pub struct GroupBounds {
    /// Events.
    pub events_max: usize,
    /// Bytes of their JSON.
    pub bytes_max: usize,
    /// Their entries in the ordered indexes.
    pub entries_max: usize,
}

impl GroupBounds {
    /// Of a store that serves: a commit stays short, because others wait for it.
    pub const SERVING: GroupBounds = GroupBounds {
        events_max: COMMIT_EVENTS_MAX,
        bytes_max: COMMIT_BYTES_MAX,
        entries_max: COMMIT_INDEX_ENTRIES_MAX,
    };

    /// Of a store that does nothing but take events in: the more events touch a page, the less each
    /// of them pays for it.
    pub const FILLING: GroupBounds = GroupBounds {
        events_max: FILL_EVENTS_MAX,
        bytes_max: FILL_BYTES_MAX,
        entries_max: FILL_INDEX_ENTRIES_MAX,
    };
}

/// Starts the thread. Panics if it runs already or the system gives none.
pub fn start(
    shared: &Arc<Shared>,
    sink: impl CommitSink,
    rules: Retention,
    clock: impl Fn() -> u64 + Send + 'static,
    bounds: GroupBounds,
) {
    let mut thread = lock(&shared.queue.thread);
    assert!(thread.is_none(), "the writer runs already");
    let shared = Arc::clone(shared);
    let run = thread::Builder::new()
        .name("store-writer".into())
        .spawn(move || run(&shared, sink, rules, clock, bounds));
    *thread = Some(run.expect("the system gives a thread for the writer"));
}

/// The thread's own.
struct Writer<'s, S, C> {
    shared: &'s Shared,
    sink: S,
    upkeep: Upkeep<C>,
    scratch: Scratch,
    /// Places in the group of requests to vanish, which its commit only begins.
    vanishing: Vec<usize>,
}

fn run(
    shared: &Shared,
    sink: impl CommitSink,
    rules: Retention,
    clock: impl Fn() -> u64,
    bounds: GroupBounds,
) {
    let _guard = AbortOnPanic;
    step_back();
    let mut writer = Writer {
        shared,
        sink,
        upkeep: Upkeep::begin(&shared.tables, rules, clock),
        scratch: Scratch::default(),
        vanishing: Vec::new(),
    };
    let mut jobs = Vec::new();
    let mut group: Vec<Done> = Vec::new();
    loop {
        let wait = writer.upkeep.wait(&shared.tables);
        let open = shared.queue.take(&mut jobs, wait);
        let mut rest = jobs.drain(..).peekable();
        while rest.peek().is_some() || !group.is_empty() {
            let mut size = Size::default();
            // What is left of a group that was full before it was through comes first.
            for done in &group {
                size.takes(&done.event, bounds);
            }
            while let Some(job) = rest.next_if(|job| size.takes(&job.event, bounds)) {
                // The outcome is set below, whatever happens.
                group.push(Done {
                    origin: job.origin,
                    event: job.event,
                    outcome: Outcome::Duplicate,
                });
            }
            group = writer.write(group);
            writer.turn();
        }
        if !open && !writer.upkeep.owes_an_answer() {
            writer.end();
            return;
        }
        writer.turn();
    }
}

impl<S: CommitSink, C: Fn() -> u64> Writer<'_, S, C> {
    fn turn(&mut self) {
        self.upkeep
            .turn(self.shared, &mut self.scratch, &mut self.sink);
    }

    /// Writes what is held to its tree, so that nothing is in the journal alone.
    fn end(&mut self) {
        let tables = &self.shared.tables;
        if let Err(error) = tables.write_held(&mut self.scratch) {
            let error = tables.explain(error);
            tracing::warn!(%error, "the last events stay in the journal until the next start");
        } else if let Some(journal) = &mut *tables.journal() {
            // What is left in it is behind the times, and does no harm.
            let _ = journal.clear();
        }
    }

    /// Commits a group and answers it; what is too large to be one commit, in parts. Returns what is
    /// left for the next group, in its order.
    fn write(&mut self, mut group: Vec<Done>) -> Vec<Done> {
        let start = Instant::now();
        let mut later = Vec::new();
        let committed = match self.commit(&mut group, false) {
            Err(error) if error.may_fit_in_parts() => self.commit(&mut group, true),
            committed => committed,
        };
        match committed {
            Ok((stored, taken)) => {
                later = group.split_off(taken);
                if stored > 0 {
                    self.sink.commit_took(start.elapsed(), stored);
                }
                self.upkeep.follow(&self.scratch);
                self.scratch.report(&mut self.sink);
            }
            Err(error) if error.may_fit_in_parts() && group.len() > 1 => {
                let mut second = group.split_off(group.len() / 2);
                let mut left = self.write(group);
                if left.is_empty() {
                    return self.write(second);
                }
                left.append(&mut second);
                return left;
            }
            Err(error) => {
                let error = self.shared.tables.explain(error);
                // Once a group: a full disk refuses thousands of events a second.
                tracing::error!(%error, events = group.len(), "a commit failed");
                self.vanishing.clear();
                for done in &mut group {
                    done.outcome = Outcome::Failed(error.clone());
                }
            }
        }
        // From behind, so that the places before stay.
        for at in self.vanishing.drain(..).rev() {
            self.upkeep.vanish(group.remove(at));
        }
        if group.iter().any(found_no_room) {
            self.upkeep.say_full(&self.shared.tables);
        }
        let events = group.len();
        let bytes = group.iter().map(|done| done.event.json().len()).sum();
        self.sink.committed(&mut group);
        self.shared.queue.answered(events, bytes);
        later
    }

    /// Decides and commits one group. Returns how many events were stored, and of how many at its
    /// front there is an outcome: the others are left for the next group. With `alone` nothing is
    /// written that is due of groups before it.
    fn commit(&mut self, group: &mut [Done], alone: bool) -> Result<(usize, usize), StoreError> {
        self.vanishing.clear();
        if let [done] = &mut *group
            && !alone
            && self.upkeep.refusal(&done.event).is_none()
            && let Some(outcome) = lone::store(&self.shared.tables, &mut self.scratch, &done.event)?
        {
            done.outcome = outcome;
            return Ok((1, 1));
        }
        let mut commit = Group::begin(&self.shared.tables, &mut self.scratch)?;
        if alone {
            commit.hold();
        }
        let (mut stored, mut taken) = (0, 0);
        for (at, done) in group.iter_mut().enumerate() {
            if commit.is_full() {
                break;
            }
            taken = at + 1;
            if let Some(reason) = self.upkeep.refusal(&done.event) {
                done.outcome = Outcome::Refused(reason);
                continue;
            }
            match commit.add(&done.event)? {
                Some(outcome) => {
                    stored += usize::from(matches!(outcome, Outcome::Stored { .. }));
                    done.outcome = outcome;
                }
                None => self.vanishing.push(at),
            }
        }
        commit.commit()?;
        Ok((stored, taken))
    }
}

/// Whether there was no room for an event.
fn found_no_room(done: &Done) -> bool {
    matches!(&done.outcome, Outcome::Failed(error) if error.kind() == StoreErrorKind::Full)
}

/// How large a group is.
#[derive(Default)]
struct Size {
    events: usize,
    bytes: usize,
    entries: usize,
}

impl Size {
    /// Counts an event in, if there is room for it. There always is for the first.
    fn takes(&mut self, event: &Event, bounds: GroupBounds) -> bool {
        let bytes = self.bytes + event.json().len();
        let entries = self.entries + layout::entry_count(event);
        let fits = self.events < bounds.events_max
            && bytes <= bounds.bytes_max
            && entries <= bounds.entries_max;
        if self.events > 0 && !fits {
            return false;
        }
        *self = Size {
            events: self.events + 1,
            bytes,
            entries,
        };
        true
    }
}

/// Lets shards have the core first: on a machine with as many shards as cores one of them shares it
/// with the writer, and who waits there is not one that publishes alone.
fn step_back() {
    let this = Some(rustix::thread::gettid());
    if let Err(error) = rustix::process::setpriority_process(this, WRITER_NICE) {
        tracing::warn!(%error, "the store's writer keeps its priority");
    }
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

/// A panic while a lock was held has ended the process, or happened in a test: nothing is half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
