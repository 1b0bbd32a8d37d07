//! The gate beside `tokio::sync::Semaphore` and beside a mutex and a queue, in one run.
//!
//! ```text
//! cargo bench --bench gate [-- part of a case's name]
//! ```
//!
//! Absolute times mean little on shared machines. The three subjects take turns within each round,
//! and what counts is the median over the rounds of their ratios. Run by anything but
//! `cargo bench` it only shows that every case works.

use std::collections::{HashSet, VecDeque};
use std::future::{Future, pending, poll_fn};
use std::hint::spin_loop;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use buzz_uring::gate::{ConcurrencyGate, Limit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::sync::Semaphore;

/// What is compared: something that gives permits and whose limit moves.
trait Subject: Send + Sync + Sized + 'static {
    const NAME: &'static str;
    /// 0 is none.
    fn new(limit: usize, shards: usize) -> Self;
    fn acquire(&self, shard: usize) -> impl Future<Output = impl Sized> + Send;
    fn acquire_owned(this: &Arc<Self>, shard: usize) -> impl Future<Output = impl Sized + Send>;
    fn drive(&self, _shard: usize) -> impl Future<Output = ()> {
        pending()
    }
    /// From a limit to another.
    fn change(&self, from: usize, to: usize);
}

fn limit(count: usize) -> Limit {
    Limit::from_count(count as u32)
}

impl Subject for ConcurrencyGate {
    const NAME: &'static str = "gate";
    fn new(count: usize, shards: usize) -> Self {
        let gate = ConcurrencyGate::new(Limit::None, shards, 100_000);
        let _ = gate.set_limit(limit(count));
        gate
    }
    fn acquire(&self, shard: usize) -> impl Future<Output = impl Sized> + Send {
        let acquire = self.acquire(shard);
        async { acquire.await.expect("open") }
    }
    fn acquire_owned(this: &Arc<Self>, shard: usize) -> impl Future<Output = impl Sized + Send> {
        let acquire = this.acquire_owned(shard);
        async { acquire.await.expect("open") }
    }
    fn drive(&self, shard: usize) -> impl Future<Output = ()> {
        self.drive(shard)
    }
    fn change(&self, _from: usize, to: usize) {
        let _ = self.set_limit(limit(to));
    }
}

impl Subject for Semaphore {
    const NAME: &'static str = "tokio";
    fn new(count: usize, _shards: usize) -> Self {
        Semaphore::new(if count == 0 {
            Semaphore::MAX_PERMITS
        } else {
            count
        })
    }
    async fn acquire(&self, _shard: usize) -> impl Sized {
        self.acquire().await.expect("open")
    }
    fn acquire_owned(this: &Arc<Self>, _shard: usize) -> impl Future<Output = impl Sized + Send> {
        let this = Arc::clone(this);
        async { this.acquire_owned().await.expect("open") }
    }
    /// What is closest to a limit here: it takes what is free, and forgets the rest of the change.
    fn change(&self, from: usize, to: usize) {
        if to > from {
            self.add_permits(to - from);
        } else {
            let mut left = from - to;
            while left > 0 {
                left -= self.forget_permits(left);
                thread::yield_now();
            }
        }
    }
}

/// The oracle: the same contract behind one mutex.
struct Oracle(Mutex<Inner>);

struct Inner {
    limit: usize,
    in_flight: usize,
    next: u64,
    queue: VecDeque<(u64, Waker)>,
    offered: HashSet<u64>,
}

struct OraclePermit<O: std::ops::Deref<Target = Oracle>>(O);

impl Oracle {
    fn settle(&self, change: impl FnOnce(&mut Inner)) {
        let mut woken = Vec::new();
        let mut inner = self.0.lock().unwrap();
        change(&mut inner);
        while inner.in_flight < inner.limit {
            let Some((id, waker)) = inner.queue.pop_front() else {
                break;
            };
            inner.in_flight += 1;
            inner.offered.insert(id);
            woken.push(waker);
        }
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
    }

    /// The claim under debt is left out: it costs nothing here, and nothing is cancelled.
    async fn enter(&self) {
        let mut ticket = None;
        poll_fn(|cx| {
            let mut inner = self.0.lock().unwrap();
            match ticket {
                Some(id) if inner.offered.remove(&id) => Poll::Ready(()),
                Some(_) => Poll::Pending,
                None if inner.queue.is_empty() && inner.in_flight < inner.limit => {
                    inner.in_flight += 1;
                    Poll::Ready(())
                }
                None => {
                    inner.next += 1;
                    ticket = Some(inner.next);
                    let id = inner.next;
                    inner.queue.push_back((id, cx.waker().clone()));
                    Poll::Pending
                }
            }
        })
        .await;
    }
}

impl<O: std::ops::Deref<Target = Oracle>> Drop for OraclePermit<O> {
    fn drop(&mut self) {
        self.0.settle(|inner| inner.in_flight -= 1);
    }
}

impl Subject for Oracle {
    const NAME: &'static str = "mutex";
    fn new(count: usize, _shards: usize) -> Self {
        Oracle(Mutex::new(Inner {
            limit: if count == 0 { usize::MAX } else { count },
            in_flight: 0,
            next: 0,
            queue: VecDeque::new(),
            offered: HashSet::new(),
        }))
    }
    async fn acquire(&self, _shard: usize) -> impl Sized {
        self.enter().await;
        OraclePermit(self)
    }
    fn acquire_owned(this: &Arc<Self>, _shard: usize) -> impl Future<Output = impl Sized + Send> {
        let this = Arc::clone(this);
        async {
            this.enter().await;
            OraclePermit(this)
        }
    }
    fn change(&self, _from: usize, to: usize) {
        self.settle(|inner| inner.limit = to);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future, and the shard's drive beside it, on this thread.
fn run<T>(drive: impl Future<Output = ()>, future: impl Future<Output = T>) -> T {
    let (mut drive, mut future) = (pin!(drive), pin!(future));
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        let _ = drive.as_mut().poll(&mut cx);
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        thread::park();
    }
}

/// Pins this thread to the n-th of the cores that the process may use.
fn pin_to(core: usize) {
    static CORES: OnceLock<Vec<usize>> = OnceLock::new();
    let cores = CORES.get_or_init(|| {
        let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        (0..CpuSet::MAX_CPU)
            .filter(|&core| set.is_set(core))
            .collect()
    });
    let Some(&core) = cores.get(core % cores.len().max(1)) else {
        return;
    };
    let mut set = CpuSet::new();
    set.set(core);
    // A machine that forbids it is measured unpinned.
    let _ = sched_setaffinity(None, &set);
}

fn nanos_each(since: Instant, count: usize) -> f64 {
    since.elapsed().as_nanos() as f64 / count as f64
}

fn uncontended<S: Subject>(count: usize) -> f64 {
    let subject = S::new(8, 1);
    run(subject.drive(0), async {
        let start = Instant::now();
        for _ in 0..count {
            drop(subject.acquire(0).await);
        }
        nanos_each(start, count)
    })
}

fn uncontended_owned<S: Subject>(count: usize) -> f64 {
    let subject = Arc::new(S::new(8, 1));
    run(subject.drive(0), async {
        let start = Instant::now();
        for _ in 0..count {
            drop(S::acquire_owned(&subject, 0).await);
        }
        nanos_each(start, count)
    })
}

/// Threads that do nothing but acquire and release: nanoseconds of wall time an operation.
fn contended<S: Subject>(threads: usize, limit: usize, hold: u32, count: usize) -> f64 {
    let subject = S::new(limit, threads);
    let barrier = Barrier::new(threads + 1);
    thread::scope(|scope| {
        for shard in 0..threads {
            let (subject, barrier) = (&subject, &barrier);
            scope.spawn(move || {
                pin_to(shard);
                run(subject.drive(shard), async {
                    barrier.wait();
                    for _ in 0..count / threads {
                        let permit = subject.acquire(shard).await;
                        (0..hold).for_each(|_| spin_loop());
                        drop(permit);
                    }
                });
                barrier.wait();
            });
        }
        barrier.wait();
        let start = Instant::now();
        barrier.wait();
        nanos_each(start, count)
    })
}

/// As `contended`, while another thread moves the limit up and down.
fn flapping<S: Subject>(threads: usize, count: usize) -> f64 {
    let subject = S::new(threads, threads);
    let barrier = Barrier::new(threads + 1);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for shard in 0..threads {
            let (subject, barrier) = (&subject, &barrier);
            scope.spawn(move || {
                run(subject.drive(shard), async {
                    barrier.wait();
                    for _ in 0..count / threads {
                        drop(subject.acquire(shard).await);
                    }
                });
                barrier.wait();
            });
        }
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                subject.change(threads, 1);
                thread::sleep(Duration::from_micros(50));
                subject.change(1, threads);
                thread::sleep(Duration::from_micros(50));
            }
        });
        barrier.wait();
        let start = Instant::now();
        barrier.wait();
        done.store(true, Ordering::Relaxed);
        nanos_each(start, count)
    })
}

/// From a release on one core to the waiter's entry on another, which sleeps: median nanoseconds.
fn hand_off<S: Subject>(count: usize) -> f64 {
    let subject = S::new(1, 2);
    let (ready, start) = (AtomicU64::new(0), Instant::now());
    let released = AtomicU64::new(0);
    let now = || start.elapsed().as_nanos() as u64;
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            pin_to(1);
            let mut samples = Vec::with_capacity(count);
            run(subject.drive(1), async {
                for round in 1..=count as u64 {
                    // The other side holds the permit before it lets this one begin.
                    while ready.load(Ordering::Acquire) < 2 * round - 1 {
                        thread::yield_now();
                    }
                    let mut acquire = pin!(subject.acquire(1));
                    let permit = poll_fn(|cx| {
                        let answer = acquire.as_mut().poll(cx);
                        if answer.is_pending() {
                            ready.fetch_max(2 * round, Ordering::Release);
                        }
                        answer
                    })
                    .await;
                    samples.push(now().saturating_sub(released.load(Ordering::Acquire)));
                    drop(permit);
                }
            });
            samples.sort_unstable();
            samples[samples.len() / 2] as f64
        });
        scope.spawn(|| {
            pin_to(0);
            run(subject.drive(0), async {
                for round in 1..=count as u64 {
                    let permit = subject.acquire(0).await;
                    ready.store(2 * round - 1, Ordering::Release);
                    while ready.load(Ordering::Acquire) < 2 * round {
                        thread::yield_now();
                    }
                    // Long enough for the waiter's thread to fall asleep.
                    thread::sleep(Duration::from_micros(60));
                    released.store(now(), Ordering::Release);
                    drop(permit);
                }
            });
        });
        waiter.join().expect("no panic")
    })
}

/// So many waiters queued on one shard, then let in one after the other: nanoseconds a waiter.
fn drained<S: Subject>(count: usize) -> f64 {
    let subject = S::new(1, 1);
    run(subject.drive(0), async {
        let permit = subject.acquire(0).await;
        let start = Instant::now();
        let mut waiters: Vec<_> = (0..count).map(|_| Box::pin(subject.acquire(0))).collect();
        poll_fn(|cx| {
            for waiter in &mut waiters {
                assert!(waiter.as_mut().poll(cx).is_pending());
            }
            Poll::Ready(())
        })
        .await;
        drop(permit);
        for waiter in waiters {
            drop(waiter.await);
        }
        nanos_each(start, count)
    })
}

/// As `drained`, let in all at once by a raise of the limit.
fn drained_by_a_raise<S: Subject>(count: usize) -> f64 {
    let subject = S::new(1, 1);
    run(subject.drive(0), async {
        let permit = subject.acquire(0).await;
        let start = Instant::now();
        let mut waiters: Vec<_> = (0..count).map(|_| Box::pin(subject.acquire(0))).collect();
        poll_fn(|cx| {
            for waiter in &mut waiters {
                assert!(waiter.as_mut().poll(cx).is_pending());
            }
            Poll::Ready(())
        })
        .await;
        subject.change(1, count + 1);
        for waiter in waiters {
            drop(waiter.await);
        }
        drop(permit);
        nanos_each(start, count)
    })
}

/// From the call of `set_limit` to the first admission test on another core that obeys it:
/// nanoseconds, median and 99th of a hundred. Half of it is the reading of two clocks.
fn visible(count: usize) -> (u64, u64) {
    let gate = ConcurrencyGate::new(Limit::None, 1, 10);
    let (seen_at, start) = (AtomicU64::new(0), Instant::now());
    let now = || start.elapsed().as_nanos() as u64;
    let mut samples = Vec::with_capacity(count);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin_to(1);
            for round in 1..=count {
                while gate.snapshot().limit != limit(round) {
                    spin_loop();
                }
                seen_at.store(now().max(1), Ordering::Release);
                while seen_at.load(Ordering::Acquire) != 0 {
                    spin_loop();
                }
            }
        });
        scope.spawn(|| {
            pin_to(0);
            for round in 1..=count {
                let pause = Instant::now();
                while pause.elapsed() < Duration::from_micros(5) {
                    spin_loop();
                }
                let begun = now();
                let _ = gate.set_limit(limit(round));
                let seen = loop {
                    match seen_at.load(Ordering::Acquire) {
                        0 => spin_loop(),
                        seen => break seen,
                    }
                };
                samples.push(seen.saturating_sub(begun));
                seen_at.store(0, Ordering::Release);
            }
        });
    });
    samples.sort_unstable();
    (samples[count / 2], samples[count * 99 / 100])
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Rounds of one case, the subjects taking turns, and its line of the table.
fn case(name: &str, rounds: usize, subjects: [&dyn Fn() -> f64; 3]) {
    let wanted = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    if wanted.is_some_and(|wanted| !name.contains(&wanted)) {
        return;
    }
    let rounds: Vec<[f64; 3]> = (0..rounds)
        .map(|_| subjects.map(|subject| subject()))
        .collect();
    let of = |which: usize| median(rounds.iter().map(|round| round[which]));
    let ratio = |to: usize| median(rounds.iter().map(|round| round[0] / round[to]));
    println!(
        "| {name} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} |",
        of(0),
        of(1),
        of(2),
        ratio(1),
        ratio(2)
    );
}

macro_rules! case {
    ($name:expr, $rounds:expr, $run:ident($($argument:expr),*)) => {
        case($name, $rounds, [
            &|| $run::<ConcurrencyGate>($($argument),*),
            &|| $run::<Semaphore>($($argument),*),
            &|| $run::<Oracle>($($argument),*),
        ])
    };
}

fn main() {
    let measured = std::env::args().any(|argument| argument == "--bench");
    let (rounds, scale) = if measured { (15, 100) } else { (1, 1) };
    let names = [ConcurrencyGate::NAME, Semaphore::NAME, Oracle::NAME];
    let [a, b, c] = names;
    println!("| nanoseconds an operation | {a} | {b} | {c} | {a}/{b} | {a}/{c} |");
    println!("|---|---|---|---|---|---|");
    case!(
        "acquire and release, alone",
        rounds,
        uncontended(10_000 * scale)
    );
    case!("the same, owned", rounds, uncontended_owned(10_000 * scale));
    let many = 4;
    for (threads, limit) in [
        (2, 1),
        (2, 2),
        (2, 0),
        (many, 1),
        (many, many / 2),
        (many, many),
        (many, 0),
    ] {
        let shown = if limit == 0 {
            "none".to_owned()
        } else {
            limit.to_string()
        };
        let count = if limit == 0 || limit >= threads {
            4_000
        } else {
            400
        } * scale;
        let name = format!("{threads} threads, limit {shown}");
        case!(&name, rounds.min(9), contended(threads, limit, 0, count));
    }
    case!(
        "2 threads, limit 1, held 1 µs",
        rounds.min(9),
        contended(2, 1, 40, 200 * scale)
    );
    case!(
        "4 threads, limit moving 1 to 4",
        rounds.min(9),
        flapping(many, 400 * scale)
    );
    case!(
        "hand-off to a sleeping core",
        rounds.min(5),
        hand_off(10 * scale)
    );
    case!(
        "10 000 queued, drained one by one",
        rounds,
        drained(100 * scale)
    );
    case!(
        "10 000 queued, drained by a raise",
        rounds,
        drained_by_a_raise(100 * scale)
    );
    let (half, most) = visible(50 * scale);
    println!("\na new limit seen by another core after {half} ns (median), {most} ns (99 of 100)");
}
