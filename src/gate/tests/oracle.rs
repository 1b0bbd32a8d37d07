//! Random operations on the gate and on a dumb model of it: same operations, same answers.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// What the gate promises, as plainly as it can be said: a queue, a set of offers, two numbers.
#[derive(Default)]
struct Oracle {
    limit: u32,
    in_flight: u32,
    queue: BTreeSet<usize>,
    offered: BTreeSet<usize>,
    closed: bool,
}

const WAITING_MAX: usize = 6;
const SHARDS: usize = 3;

impl Oracle {
    fn pump(&mut self) {
        while self.in_flight < self.limit && !self.queue.is_empty() && !self.closed {
            self.offered.extend(self.queue.pop_first());
            self.in_flight += 1;
        }
    }
    fn release(&mut self) {
        self.in_flight -= 1;
        self.pump();
    }
    /// The answer to a first poll.
    fn enter(&mut self, id: usize) -> Option<Result<(), Shed>> {
        if self.closed {
            return Some(Err(Shed::Closed));
        }
        if self.queue.is_empty() && self.in_flight < self.limit {
            self.in_flight += 1;
            return Some(Ok(()));
        }
        if self.queue.len() >= WAITING_MAX {
            return Some(Err(Shed::Full));
        }
        self.queue.insert(id);
        None
    }
    /// The answer to a later poll.
    fn poll(&mut self, id: usize) -> Option<Result<(), Shed>> {
        if self.offered.remove(&id) {
            if self.closed {
                self.release();
                return Some(Err(Shed::Closed));
            }
            if self.in_flight <= self.limit {
                return Some(Ok(()));
            }
            self.queue.insert(id);
            self.release();
            return None;
        }
        self.closed.then_some(Err(Shed::Closed))
    }
    fn cancel(&mut self, id: usize) {
        if self.offered.remove(&id) {
            self.release();
        }
        self.queue.remove(&id);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Acquire(usize),
    TryAcquire,
    Poll(usize),
    Cancel(usize),
    Release(usize),
    SetLimit(u32),
    Drive(usize),
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..SHARDS).prop_map(Step::Acquire),
        1 => Just(Step::TryAcquire),
        4 => any::<usize>().prop_map(Step::Poll),
        2 => any::<usize>().prop_map(Step::Cancel),
        4 => any::<usize>().prop_map(Step::Release),
        3 => (0..6u32).prop_map(Step::SetLimit),
        2 => (0..SHARDS).prop_map(Step::Drive),
    ];
    // At most one close, near the end: a closed gate has little to tell.
    (prop::collection::vec(step, 1..120), any::<bool>()).prop_map(|(mut steps, close)| {
        if close {
            steps.insert(steps.len() * 9 / 10, Step::Close);
        }
        steps
    })
}

fn pick<T>(map: &BTreeMap<usize, T>, which: usize) -> Option<usize> {
    map.keys().nth(which % map.len().max(1)).copied()
}

fn run(ceiling: Limit, steps: Vec<Step>) {
    let gate = ConcurrencyGate::new(ceiling, SHARDS, WAITING_MAX as u32);
    let field = |limit: Limit| {
        if limit == Limit::None {
            u32::MAX
        } else {
            limit.as_count()
        }
    };
    let mut oracle = Oracle {
        limit: field(ceiling),
        ..Oracle::default()
    };
    let mut drives: Vec<_> = (0..SHARDS).map(|shard| drive(&gate, shard)).collect();
    let mut waits: BTreeMap<usize, Wait<'_>> = BTreeMap::new();
    let mut held: BTreeMap<usize, Held<'_>> = BTreeMap::new();
    for (id, step) in steps.into_iter().enumerate() {
        match step {
            Step::Acquire(shard) => {
                let mut task = Task::new(gate.acquire(shard));
                let answer = task.poll();
                compare(answer, oracle.enter(id), id, &mut held);
                if oracle.queue.contains(&id) {
                    waits.insert(id, task);
                }
            }
            Step::TryAcquire => match gate.try_acquire() {
                Ok(permit) => {
                    assert_eq!(oracle.enter(id), Some(Ok(())));
                    held.insert(id, permit);
                }
                Err(Shed::Closed) => assert!(oracle.closed),
                Err(Shed::Full) => {
                    assert!(!oracle.queue.is_empty() || oracle.in_flight >= oracle.limit);
                }
            },
            Step::Poll(which) => {
                let Some(id) = pick(&waits, which) else {
                    continue;
                };
                let answer = waits.get_mut(&id).unwrap().poll();
                if answer.is_ready() {
                    waits.remove(&id);
                }
                compare(answer, oracle.poll(id), id, &mut held);
            }
            Step::Cancel(which) => {
                let Some(id) = pick(&waits, which) else {
                    continue;
                };
                waits.remove(&id);
                oracle.cancel(id);
            }
            Step::Release(which) => {
                let Some(id) = pick(&held, which) else {
                    continue;
                };
                held.remove(&id);
                oracle.release();
            }
            Step::SetLimit(count) => {
                let applied = gate.set_limit(limit(count));
                oracle.limit = field(limit(count).min(ceiling));
                assert_eq!(field(applied.new), oracle.limit);
                oracle.pump();
            }
            Step::Drive(shard) => {
                if drives[shard].wakes() > 0 && !oracle.closed {
                    let _ = drives[shard].poll();
                }
            }
            Step::Close => {
                gate.close();
                oracle.closed = true;
                oracle.queue.clear();
            }
        }
        check(&gate, &oracle, held.len());
    }
    // At rest: once the drives have run, whoever has an answer was woken.
    for drive in &mut drives {
        let _ = drive.poll();
    }
    for (id, wait) in &waits {
        let answered = oracle.offered.contains(id) || oracle.closed;
        assert!(!answered || wait.wakes() > 0, "{id} sleeps");
    }
    drop((waits, held));
    drop(drives);
    assert_quiescent(&gate);
}

fn compare<'g>(
    answer: Answer<'g>,
    expected: Option<Result<(), Shed>>,
    id: usize,
    held: &mut BTreeMap<usize, Held<'g>>,
) {
    match (answer, expected) {
        (Poll::Pending, None) => {}
        (Poll::Ready(Ok(permit)), Some(Ok(()))) => {
            held.insert(id, permit);
        }
        (Poll::Ready(Err(shed)), Some(Err(expected))) => assert_eq!(shed, expected),
        (answer, expected) => panic!("{id}: {answer:?}, not {expected:?}"),
    }
}

fn check(gate: &ConcurrencyGate, oracle: &Oracle, held: usize) {
    let now = gate.snapshot();
    assert_eq!(now.in_flight, oracle.in_flight);
    assert_eq!(
        now.in_flight as usize,
        held + oracle.offered.len(),
        "conservation"
    );
    assert_eq!(now.waiting as usize, oracle.queue.len());
    assert_eq!(now.debt, oracle.in_flight.saturating_sub(oracle.limit));
    assert_eq!(now.closed, oracle.closed);
    assert_no_lost_wake(gate);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn the_gate_answers_as_the_oracle(ceiling in 0..6u32, steps in steps()) {
        run(limit(ceiling), steps);
    }
}
