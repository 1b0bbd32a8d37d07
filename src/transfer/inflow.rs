//! Events on their way into a store: given and not answered, answered and not taken.
//!
//! Three parties meet here. Whoever imports *admits* each event before it hands it in; the store's
//! writer *answers*, and never waits; whoever tells the sender *takes* the answers, on a thread or
//! as a task. Both what is unanswered and what is untaken counts against one bound, so a writer that
//! is busy and a taker that is slow hold the import up, and nothing grows.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;

use crate::store::{CommitSink, Done};
use crate::transfer::report::Counts;
use crate::transfer::window::Verdict;

/// Answers by the number under which their events were handed in.
pub type Verdicts = Vec<(u64, Verdict)>;

/// How much may be on its way.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Events, from their admission until their answer is taken.
    pub events_max: usize,
    /// Bytes of events that are not answered. A larger one goes alone.
    pub bytes_max: usize,
}

/// See the head of this file. Shared by `Arc`.
#[derive(Debug)]
pub struct Inflow {
    bounds: Bounds,
    state: Mutex<State>,
    changed: Condvar,
    taker: AtomicWaker,
}

#[derive(Debug, Default)]
struct State {
    unanswered: usize,
    bytes: usize,
    untaken: Verdicts,
    counts: Counts,
    end: Option<String>,
    stopped: Option<&'static str>,
}

/// Why nothing more is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shut {
    /// There is no room, and none came in time.
    Full,
    /// [`Inflow::stop`] was called, with this reason.
    Stopped(&'static str),
}

impl Inflow {
    /// Nothing on its way.
    pub fn new(bounds: Bounds) -> Arc<Inflow> {
        Arc::new(Inflow {
            bounds,
            state: Mutex::default(),
            changed: Condvar::new(),
            taker: AtomicWaker::new(),
        })
    }

    /// Counts an event in, or an answer that is told without the store (`bytes` 0); waits for room at
    /// most so long.
    ///
    /// # Errors
    /// Nothing was counted in.
    pub fn admit(&self, bytes: usize, wait: Duration) -> Result<(), Shut> {
        let end = Instant::now() + wait;
        let mut state = self.lock();
        loop {
            if let Some(why) = state.stopped {
                return Err(Shut::Stopped(why));
            }
            let is_alone = state.unanswered == 0;
            let events = state.unanswered + state.untaken.len();
            if events < self.bounds.events_max
                && (is_alone || state.bytes + bytes <= self.bounds.bytes_max)
            {
                state.unanswered += 1;
                state.bytes += bytes;
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Shut::Full);
            }
            state = self.wait(state, left);
        }
    }

    /// Takes back an admission whose event was not handed in.
    pub fn retract(&self, bytes: usize) {
        let mut state = self.lock();
        state.unanswered -= 1;
        state.bytes -= bytes;
        drop(state);
        self.changed.notify_all();
    }

    /// Answers of admitted events, of so many bytes together. Does not wait.
    pub fn answer(&self, answers: &mut Verdicts, bytes: usize) {
        let mut state = self.lock();
        state.unanswered -= answers.len();
        state.bytes -= bytes;
        answers
            .iter()
            .for_each(|(_, verdict)| state.counts.add(verdict));
        state.untaken.append(answers);
        drop(state);
        self.changed.notify_all();
        self.taker.wake();
    }

    /// Moves the answers that have come into `into`; waits for the first at most so long.
    pub fn take(&self, into: &mut Verdicts, wait: Duration) {
        let end = Instant::now() + wait;
        let mut state = self.lock();
        while state.untaken.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.wait(state, left);
        }
        into.append(&mut state.untaken);
        drop(state);
        self.changed.notify_all();
    }

    /// As [`take`](Self::take), for a task. `None` once [`end`](Self::end) was called and everything
    /// is taken.
    pub fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Option<Verdicts>> {
        self.taker.register(cx.waker());
        let mut state = self.lock();
        if !state.untaken.is_empty() {
            let taken = mem::take(&mut state.untaken);
            drop(state);
            self.changed.notify_all();
            return Poll::Ready(Some(taken));
        }
        match state.end {
            Some(_) => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// Admits nothing more, for this reason; the first one counts.
    pub fn stop(&self, why: &'static str) {
        self.lock().stopped.get_or_insert(why);
        self.changed.notify_all();
    }

    /// Why nothing more is admitted.
    pub fn stopped(&self) -> Option<&'static str> {
        self.lock().stopped
    }

    /// Waits until everything admitted is answered, at most so long. False: it is not.
    pub fn settle(&self, wait: Duration) -> bool {
        let end = Instant::now() + wait;
        let mut state = self.lock();
        while state.unanswered > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.wait(state, left);
        }
        true
    }

    /// What was answered so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Nothing more will be answered; the last word for the taker.
    pub fn end(&self, word: String) {
        self.lock().end.get_or_insert(word);
        self.taker.wake();
    }

    /// The last word, once there is one.
    pub fn last_word(&self) -> Option<String> {
        self.lock().end.clone()
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>, wait: Duration) -> MutexGuard<'s, State> {
        let waited = self.changed.wait_timeout(state, wait);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Nothing is half done where a panic could come.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way back from a store that nobody else uses: the token is the number.
pub struct Answers {
    inflow: Arc<Inflow>,
    answers: Verdicts,
}

impl Answers {
    /// Answers for this inflow.
    pub fn new(inflow: Arc<Inflow>) -> Answers {
        Answers {
            inflow,
            answers: Verdicts::new(),
        }
    }
}

impl CommitSink for Answers {
    fn committed(&mut self, done: &mut Vec<Done>) {
        let mut bytes = 0;
        for done in done.drain(..) {
            bytes += done.event.json().len();
            self.answers.push((done.origin.token, done.outcome.into()));
        }
        if !self.answers.is_empty() {
            self.inflow.answer(&mut self.answers, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;
    use std::thread;

    const NOW: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(30);

    fn inflow() -> Arc<Inflow> {
        Inflow::new(Bounds {
            events_max: 3,
            bytes_max: 100,
        })
    }

    fn accepted(numbers: &[u64]) -> Verdicts {
        let one = |number: &u64| (*number, Verdict::Accepted);
        numbers.iter().map(one).collect()
    }

    #[test]
    fn events_and_bytes_are_bounded_until_they_are_taken() {
        let inflow = inflow();
        assert_eq!(inflow.admit(1_000, NOW), Ok(()), "a large one alone");
        assert_eq!(inflow.admit(1, NOW), Err(Shut::Full), "and none beside it");
        inflow.answer(&mut accepted(&[0]), 1_000);
        assert_eq!(inflow.admit(60, NOW), Ok(()));
        assert_eq!(inflow.admit(60, NOW), Err(Shut::Full));
        assert_eq!(inflow.admit(40, NOW), Ok(()));
        assert_eq!(inflow.admit(0, NOW), Err(Shut::Full), "one is untaken");
        let mut taken = Verdicts::new();
        inflow.take(&mut taken, NOW);
        assert_eq!(taken, accepted(&[0]));
        assert_eq!(inflow.admit(0, NOW), Ok(()));
        inflow.retract(0);
        assert!(!inflow.settle(NOW));
        inflow.answer(&mut accepted(&[1, 2]), 100);
        assert!(inflow.settle(NOW));
    }

    #[test]
    fn who_waits_is_woken_by_an_answer_a_take_and_a_stop() {
        let inflow = inflow();
        for _ in 0..3 {
            inflow.admit(1, NOW).expect("room");
        }
        let waiting = |wanted| {
            let inflow = Arc::clone(&inflow);
            thread::spawn(move || assert_eq!(inflow.admit(1, LONG), wanted))
        };
        let admitted = waiting(Ok(()));
        inflow.answer(&mut accepted(&[0]), 1);
        inflow.take(&mut Verdicts::new(), LONG);
        admitted.join().expect("admitted");
        let stopped = waiting(Err(Shut::Stopped("enough")));
        inflow.stop("enough");
        inflow.stop("later");
        stopped.join().expect("stopped");
        assert_eq!(inflow.stopped(), Some("enough"));
    }

    #[test]
    fn a_task_takes_everything_and_then_the_end() {
        let inflow = inflow();
        let cx = &mut Context::from_waker(Waker::noop());
        assert_eq!(inflow.poll_take(cx), Poll::Pending);
        inflow.admit(0, NOW).expect("room");
        inflow.answer(&mut accepted(&[7]), 0);
        inflow.end("done".to_owned());
        assert_eq!(inflow.poll_take(cx), Poll::Ready(Some(accepted(&[7]))));
        assert_eq!(inflow.poll_take(cx), Poll::Ready(None));
        assert_eq!(inflow.last_word().as_deref(), Some("done"));
    }
}
