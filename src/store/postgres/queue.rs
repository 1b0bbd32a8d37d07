//! Events on their way to the database: those to store, and ephemeral ones to pass on.
//!
//! Shards meet here; a lock is held for a few moves. The store's runtime is woken once for what came
//! while it was elsewhere.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::limits::{
    COMMIT_BYTES_MAX, COMMIT_EVENTS_MAX, COMMIT_INDEX_ENTRIES_MAX, DB_EPHEMERAL_WAITING_BYTES_MAX,
    DB_EPHEMERAL_WAITING_MAX, WRITE_QUEUE_BYTES_MAX, WRITE_QUEUE_EVENTS_MAX,
};
use crate::nostr::event::Event;
use crate::store::Job;

/// Index entries of an event without tags.
const ENTRIES_WITHOUT_TAGS: usize = 7;

/// Events to store.
#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    wake: Notify,
    /// Told whenever fewer are pending.
    fewer: Notify,
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
    /// Moves jobs in, in their order, as many as the bounds allow.
    pub fn submit(&self, jobs: &mut Vec<Job>) {
        let mut state = lock(&self.state);
        if state.closing {
            return;
        }
        let was_empty = state.jobs.is_empty();
        let (mut events, mut bytes) = (state.events, state.bytes);
        let mut taken = 0;
        for job in jobs.iter() {
            let length = job.event.json().len();
            if events == WRITE_QUEUE_EVENTS_MAX || bytes + length > WRITE_QUEUE_BYTES_MAX {
                break;
            }
            events += 1;
            bytes += length;
            taken += 1;
        }
        (state.events, state.bytes) = (events, bytes);
        state.jobs.extend(jobs.drain(..taken));
        drop(state);
        if was_empty && taken > 0 {
            self.wake.notify_one();
        }
    }

    /// Events handed in and not yet answered.
    pub fn pending(&self) -> usize {
        lock(&self.state).events
    }

    /// Takes no more.
    pub fn close(&self) {
        lock(&self.state).closing = true;
        self.wake.notify_one();
    }

    /// Waits for jobs, at most so long, and takes them all. False: closed, and nothing is left.
    pub async fn take(&self, jobs: &mut Vec<Job>, wait: Duration) -> bool {
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            {
                let mut state = lock(&self.state);
                if !state.jobs.is_empty() {
                    mem::swap(&mut state.jobs, jobs);
                    return true;
                }
                if state.closing {
                    return false;
                }
            }
            let woken = tokio::time::timeout_at(deadline, self.wake.notified());
            if woken.await.is_err() {
                return true;
            }
        }
    }

    /// Counts answers out.
    pub fn answered(&self, events: usize, bytes: usize) {
        let mut state = lock(&self.state);
        state.events -= events;
        state.bytes -= bytes;
        drop(state);
        self.fewer.notify_waiters();
    }
}

/// How large a group is.
#[derive(Default)]
pub struct Size {
    events: usize,
    bytes: usize,
    entries: usize,
}

impl Size {
    /// Counts an event in, if there is room for it. There always is for the first.
    pub fn takes(&mut self, event: &Event) -> bool {
        let bytes = self.bytes + event.json().len();
        let entries = self.entries + ENTRIES_WITHOUT_TAGS + event.index_tags().count();
        let fits = self.events < COMMIT_EVENTS_MAX
            && bytes <= COMMIT_BYTES_MAX
            && entries <= COMMIT_INDEX_ENTRIES_MAX;
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

/// Ephemeral events to pass on. What does not fit is not passed on: a relay that cannot reach its
/// database goes on serving its own clients.
#[derive(Default)]
pub struct Passing {
    state: Mutex<(Vec<Arc<Event>>, usize)>,
    wake: Notify,
}

impl Passing {
    /// Takes an event in. False: there is no room.
    pub fn push(&self, event: Arc<Event>) -> bool {
        let mut state = lock(&self.state);
        let (events, bytes) = &mut *state;
        let length = event.json().len();
        if events.len() == DB_EPHEMERAL_WAITING_MAX
            || *bytes + length > DB_EPHEMERAL_WAITING_BYTES_MAX
        {
            return false;
        }
        *bytes += length;
        events.push(event);
        let was_empty = events.len() == 1;
        drop(state);
        if was_empty {
            self.wake.notify_one();
        }
        true
    }

    /// Waits for events and takes at most so many.
    pub async fn take(&self, most: usize) -> Vec<Arc<Event>> {
        loop {
            {
                let mut state = lock(&self.state);
                let (events, bytes) = &mut *state;
                if !events.is_empty() {
                    let taken: Vec<_> = events.drain(..most.min(events.len())).collect();
                    *bytes -= taken.iter().map(|event| event.json().len()).sum::<usize>();
                    return taken;
                }
            }
            self.wake.notified().await;
        }
    }
}

/// A panic while a lock was held has ended the process, or happened in a test: nothing is half done.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::testing::Author;
    use crate::store::Origin;

    #[test]
    fn the_queue_leaves_what_does_not_fit() {
        let queue = Queue::default();
        let job = Job {
            event: Arc::new(Author::new(1).note(1, "")),
            origin: Origin { shard: 0, token: 0 },
        };
        let mut jobs = vec![job; WRITE_QUEUE_EVENTS_MAX + 5];
        queue.submit(&mut jobs);
        assert_eq!((jobs.len(), queue.pending()), (5, WRITE_QUEUE_EVENTS_MAX));
        queue.submit(&mut jobs);
        assert_eq!(jobs.len(), 5);
        queue.close();
        queue.submit(&mut jobs);
        assert_eq!(jobs.len(), 5);
    }

    #[test]
    fn the_queue_is_bounded_by_bytes_too() {
        let queue = Queue::default();
        let large = Author::new(1).note(1, &"x".repeat(500_000));
        let most = WRITE_QUEUE_BYTES_MAX / large.json().len();
        let job = Job {
            event: Arc::new(large),
            origin: Origin { shard: 0, token: 0 },
        };
        let mut jobs = vec![job; most + 3];
        queue.submit(&mut jobs);
        assert_eq!((jobs.len(), queue.pending()), (3, most));
        queue.answered(1, jobs[0].event.json().len());
        queue.submit(&mut jobs);
        assert_eq!((jobs.len(), queue.pending()), (2, most));
    }

    #[test]
    fn a_group_has_room_for_its_first_event_and_for_what_fits() {
        let author = Author::new(1);
        let takes = |event: &Event| {
            let mut size = Size::default();
            (0..2 * COMMIT_EVENTS_MAX)
                .take_while(|_| size.takes(event))
                .count()
        };
        assert_eq!(takes(&author.note(1, "")), COMMIT_EVENTS_MAX);
        let long = author.note(1, &"x".repeat(COMMIT_BYTES_MAX / 3));
        assert_eq!(takes(&long), 2);
        let beyond = author.note(1, &"x".repeat(COMMIT_BYTES_MAX + 1));
        assert_eq!(takes(&beyond), 1);
        let value = |n: usize| format!("{n}");
        let tags: Vec<[String; 2]> = (0..1_000).map(|n| ["t".to_owned(), value(n)]).collect();
        let tags: Vec<[&str; 2]> = tags.iter().map(|[t, v]| [&t[..], &v[..]]).collect();
        let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
        let tagged = author.event(1, 1, &tags, "");
        let entries = ENTRIES_WITHOUT_TAGS + 1_000;
        assert_eq!(takes(&tagged), COMMIT_INDEX_ENTRIES_MAX / entries);
    }

    #[test]
    fn what_waits_to_be_passed_on_is_bounded() {
        let passing = Passing::default();
        let event = Arc::new(Author::new(1).note(1, ""));
        let taken = (0..DB_EPHEMERAL_WAITING_MAX + 9).filter(|_| passing.push(event.clone()));
        assert_eq!(taken.count(), DB_EPHEMERAL_WAITING_MAX);
    }
}
