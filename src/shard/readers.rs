//! Reader threads: where a question goes on that would hold its shard.
//!
//! A shard reads the store itself: what is in memory is answered faster than a hop takes. But a page
//! that is not in memory blocks whoever touches it, and a shard that is blocked serves nobody. So a
//! question whose slice took far longer than it may goes on here, from where it stood.
//!
//! A slice may also have been long because the core went to somebody else. That is no reason to move:
//! it would only run beside its shard, on the same core. So [`Faults`] asks the kernel whether the
//! thread had to wait for pages. And these threads step back for the shards where both want a core.
//!
//! A question comes back after each turn of [`READER_TURN`], so that its shard can see whether
//! anybody still waits for it, and so that more questions than threads share them fairly. Its permit
//! stays with it: the history gate bounds how many are here at one time, and the queue with them.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, TrySendError};
use tokio::sync::oneshot;

use crate::limits::{READER_NICE, READER_THREADS, READER_TURN};
use crate::nostr::filter::Filter;
use crate::shard::hooks;
use crate::store::StoreError;
use crate::store::embedded::{Budget, Count, Progress, Query, Reader, Row};

/// A question to the store, at any place between its first row and its last.
pub enum Question {
    /// A REQ.
    Events(Box<Query<Arc<[Filter]>>>),
    /// A COUNT (NIP-45).
    Count(Box<Count<Arc<[Filter]>>>),
}

impl Question {
    /// Goes on for one slice. Each event is handed to `each`.
    ///
    /// # Errors
    ///
    /// What the store says; the question cannot go on then.
    pub fn slice(
        &mut self,
        reader: &Reader,
        budget: &Budget,
        each: &mut dyn FnMut(Row<'_>),
    ) -> Result<Progress, StoreError> {
        hooks::stall();
        match self {
            Question::Events(query) => query.slice_rows(reader, budget, each),
            Question::Count(count) => count.slice(reader, budget),
        }
    }
}

/// How often a thread had to wait for a page to be read from disk.
#[derive(Debug, Default)]
pub struct Faults(Cell<u64>);

impl Faults {
    /// Whether the calling thread waited for pages since the last call. Takes some 20 µs.
    pub fn have_grown(&self) -> bool {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
        // Who cannot know stays on the safe side.
        major_faults(&stat).is_none_or(|major| self.0.replace(major) < major)
    }
}

/// `majflt` of proc_pid_stat(5): the tenth field after the name, which may hold anything.
fn major_faults(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(9)?.parse().ok()
}

/// Events in their order.
#[derive(Debug, Default)]
pub struct Rows {
    text: String,
    /// Of each, where it ends in `text`, and when it expires.
    ends: Vec<(usize, Option<u64>)>,
}

impl Rows {
    fn push(&mut self, row: Row<'_>) {
        self.text.push_str(row.json);
        self.ends.push((self.text.len(), row.expires));
    }

    /// Each event.
    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(end, _)| *end));
        starts.zip(&self.ends).map(|(start, (end, expires))| Row {
            json: &self.text[start..*end],
            expires: *expires,
        })
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }
}

/// What a turn has brought.
pub struct Turn {
    /// The question, to go on with.
    pub question: Question,
    /// Its next rows.
    pub rows: Rows,
    /// Whether there is more.
    pub progress: Result<Progress, StoreError>,
}

/// A question on its way to a thread.
struct Job {
    question: Question,
    bytes_max: usize,
    now: u64,
    reply: oneshot::Sender<Turn>,
}

/// The threads. They end when this is dropped.
pub struct Readers {
    queue: Sender<Job>,
}

impl Readers {
    /// Starts the threads, for at most `questions_max` questions at a time.
    ///
    /// If the system gives no thread there is none, and [`turn`](Self::turn) gives every question
    /// back.
    pub fn start(reader: &Reader, questions_max: usize) -> Readers {
        let (queue, jobs) = crossbeam_channel::bounded(questions_max);
        for number in 0..READER_THREADS.min(questions_max) {
            let (reader, jobs) = (reader.clone(), jobs.clone());
            let thread = std::thread::Builder::new().name(format!("reader-{number}"));
            let life = move || {
                step_back();
                read(&reader, &jobs);
            };
            if let Err(error) = thread.spawn(life) {
                tracing::warn!(%error, "a reader thread cannot be started");
            }
        }
        Readers { queue }
    }

    /// Reads on with a question, for at most `bytes_max` of rows, as of the time `now` (see
    /// [`Budget::now`]).
    ///
    /// # Errors
    ///
    /// The question, when no thread takes it. `None`: it is lost, because reading it panicked.
    pub async fn turn(
        &self,
        question: Question,
        bytes_max: usize,
        now: u64,
    ) -> Result<Turn, Option<Question>> {
        let (reply, answer) = oneshot::channel();
        let job = Job {
            question,
            bytes_max,
            now,
            reply,
        };
        match self.queue.try_send(job) {
            Ok(()) => answer.await.map_err(|_| None),
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => {
                Err(Some(job.question))
            }
        }
    }
}

/// Lets shards have the core first, before the calling thread.
pub fn step_back() {
    let this = Some(rustix::thread::gettid());
    if let Err(error) = rustix::process::setpriority_process(this, READER_NICE) {
        tracing::warn!(%error, "a thread keeps its priority");
    }
}

/// A thread's life: one turn after the other.
fn read(reader: &Reader, jobs: &Receiver<Job>) {
    for job in jobs {
        // A panic drops the reply, which tells the shard. Nothing else of the question is used again.
        let turn = catch_unwind(AssertUnwindSafe(|| take_turn(reader, job)));
        if turn.is_err() {
            tracing::error!("a reader thread caught a panic, its question is lost");
        }
    }
}

fn take_turn(reader: &Reader, job: Job) {
    let Job {
        mut question,
        bytes_max,
        now,
        reply,
    } = job;
    let mut rows = Rows::default();
    let budget = Budget {
        entries_max: u32::MAX,
        bytes_max,
        deadline: Some(Instant::now() + READER_TURN),
        now,
    };
    let progress = question.slice(reader, &budget, &mut |row| rows.push(row));
    // Nobody may wait any longer: then the question ends here.
    let _ = reply.send(Turn {
        question,
        rows,
        progress,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::testing::Author;
    use crate::store::embedded::{Embedded, EmbeddedOptions, QueryBounds};
    use crate::store::{CommitSink, Done, Job, Origin};

    const BOUNDS: QueryBounds = QueryBounds {
        limit_max: 1_000,
        limit_default: 500,
    };

    struct Nobody;

    impl CommitSink for Nobody {
        fn committed(&mut self, done: &mut Vec<Done>) {
            done.clear();
        }
    }

    fn store_of(events: u64) -> (Embedded, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(&EmbeddedOptions {
            dir: folder.path().to_owned(),
            map_bytes: 1 << 24,
            readers_max: 16,
        });
        let store = store.unwrap();
        store.start_writer(Nobody);
        let author = Author::new(1);
        let origin = Origin { shard: 0, token: 0 };
        let event = |n| Arc::new(author.event::<&str>(n, 1, &[], ""));
        let mut jobs: Vec<Job> = (0..events)
            .map(|n| Job {
                event: event(n),
                origin,
            })
            .collect();
        store.submit(&mut jobs);
        assert!(jobs.is_empty());
        store.close();
        (store, folder)
    }

    fn everything() -> Question {
        let filters: Arc<[Filter]> = [Filter::parse("{}", 100).unwrap()].into();
        Question::Events(Box::new(Query::new(filters, BOUNDS)))
    }

    #[tokio::test]
    async fn a_question_goes_on_from_where_it_stood() {
        let (store, _folder) = store_of(100);
        let readers = Readers::start(&store.reader(), 2);
        let mut question = everything();
        let mut given = Vec::new();
        let few = Budget {
            entries_max: 10,
            bytes_max: 1 << 20,
            deadline: None,
            now: 0,
        };
        let reader = store.reader();
        let here = question.slice(&reader, &few, &mut |row| given.push(row.json.to_owned()));
        assert_eq!(here, Ok(Progress::More));
        assert!((1..=10).contains(&given.len()));
        let mut turns = 0;
        loop {
            // A few rows a turn.
            let turn = readers.turn(question, 2_000, 0).await.ok().unwrap();
            assert!(turn.rows.bytes() <= 2_000);
            given.extend(turn.rows.iter().map(|row| row.json.to_owned()));
            question = turn.question;
            turns += 1;
            if turn.progress == Ok(Progress::Done) {
                break;
            }
        }
        assert!(turns > 5);
        let mut whole = Vec::new();
        let all = Budget {
            entries_max: u32::MAX,
            bytes_max: 1 << 20,
            deadline: None,
            now: 0,
        };
        let mut again = everything();
        let done = again.slice(&reader, &all, &mut |row| whole.push(row.json.to_owned()));
        assert_eq!(done, Ok(Progress::Done));
        assert_eq!(given.len(), 100);
        assert_eq!(given, whole);
    }

    #[test]
    fn who_only_computes_has_waited_for_no_page() {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let before = major_faults(&stat).unwrap();
        assert!(!Faults(Cell::new(before)).have_grown());
        assert!(before == 0 || Faults(Cell::new(before - 1)).have_grown());
    }

    #[test]
    fn the_name_of_a_thread_may_hold_anything() {
        let stat = "7 (a) R 1 (b) S 1 2 3 4 5 6 7 8 9 10 11";
        assert_eq!(major_faults(stat), Some(9));
        assert_eq!(major_faults("7 (a) S 1"), None);
        assert_eq!(major_faults(""), None);
    }

    #[tokio::test]
    async fn where_no_thread_takes_it_the_question_comes_back() {
        let (store, _folder) = store_of(1);
        let readers = Readers::start(&store.reader(), 1);
        let (queue, _jobs) = crossbeam_channel::bounded(0);
        let full = Readers { queue };
        let back = full.turn(everything(), 1_000, 0).await;
        let Err(Some(question)) = back else {
            panic!("the question is lost")
        };
        let turn = readers.turn(question, 1_000, 0).await.ok().unwrap();
        assert_eq!(turn.rows.iter().count(), 1);
    }
}
