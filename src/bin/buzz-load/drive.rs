//! The run: opens the connections, starts the clock, drives the workloads, counts what was used.
//!
//! Three steps. *Set-up*: all connections are opened and whatever a workload needs beforehand is
//! done (subscriptions, challenges). *Warm-up*: operations that are carried out and forgotten.
//! *Measured*: CPU time and memory of relay and generator are taken at its start and its end.

use std::io;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::limits;
use crate::net::{ConnId, Event, Net, Notice, Reactor};
use crate::report::Section;
use crate::schedule::Nanos;
use crate::usage;

/// One workload of a run. Nothing in here may wait.
pub trait Work {
    /// Asks for its connections.
    fn open(&mut self, net: &mut Net, owner: usize);
    /// Something happened on its connection `tag`.
    fn event(&mut self, net: &mut Net, conn: ConnId, tag: u32, event: Event<'_>, now: Nanos);
    /// Whether set-up is over; connections that failed do not hold it up.
    fn ready(&self) -> bool;
    /// Does what takes time and is not to be measured.
    fn prepare(&mut self) {}
    /// The clock stands at 0: the run begins.
    fn start(&mut self);
    /// Begins what is due; tells when the next thing will be.
    fn tick(&mut self, net: &mut Net, now: Nanos) -> Option<Nanos>;
    /// Whether all is done.
    fn settled(&self, now: Nanos) -> bool;
    /// Operations completed since the start or the last `reset`.
    fn operations(&self) -> u64;
    /// Forgets what was measured so far.
    fn reset(&mut self, now: Nanos);
    /// Counts what was not answered, after the run was given up or is over.
    fn finish(&mut self, now: Nanos);
    /// What was found.
    fn section(&self) -> Section;
}

/// How a run is carried out.
#[derive(Debug)]
pub struct Options {
    /// The relay's processes; none when it runs elsewhere.
    pub pids: Vec<u32>,
    /// Operations of the warm-up.
    pub warmup: u64,
    /// Operations to come in all, for the progress bar; none if time is the bound.
    pub expected: Option<u64>,
    /// When the last operation is due at the latest.
    pub end: Option<Nanos>,
    /// How long the last answers may take, and how long nothing at all may happen, in seconds.
    pub drain_seconds: u64,
}

/// What was used in the measured time.
#[derive(Debug)]
pub struct Used {
    /// The measured time.
    pub seconds: f64,
    /// CPU time of the relay, where its process is known.
    pub relay_cpu: Option<Duration>,
    /// CPU time of the generator.
    pub own_cpu: Duration,
    /// The relay's anonymous memory at the start of the run and at its end, in bytes.
    pub anonymous: (u64, u64),
}

/// Carries out one run.
///
/// # Errors
/// A relay that cannot be reached or looked at; not what goes wrong with single operations.
pub fn run(net: &mut Net, works: &mut [Box<dyn Work>], options: &Options) -> io::Result<Used> {
    let memory_before = memory(&options.pids)?;
    let bar = progress_bar(options.expected);
    let mut reactor = Reactor::new();
    let mut clock = Instant::now();
    bar.set_message("opening connections");
    for (owner, work) in works.iter_mut().enumerate() {
        work.open(net, owner);
    }
    while !works.iter().all(|work| work.ready()) {
        turn(&mut reactor, net, works, clock, TICK)?;
        bar.tick();
        if nanos(clock) > limits::SETUP_SECONDS_MAX * 1_000_000_000 {
            return Err(io::Error::other(
                "set-up did not end: a connection waits for an EOSE or a challenge that never came",
            ));
        }
    }
    bar.set_message("preparing");
    for work in works.iter_mut() {
        work.prepare();
    }
    bar.set_message("");

    clock = Instant::now();
    let mut snapshot = Snapshot::take(&options.pids, 0)?;
    for work in works.iter_mut() {
        work.start();
    }
    let mut warming = options.warmup > 0;
    let (mut seen, mut seen_at) = (0, 0);
    let drain = options.drain_seconds * 1_000_000_000;
    loop {
        let now = nanos(clock);
        let next = works
            .iter_mut()
            .filter_map(|work| work.tick(net, now))
            .min();
        if works.iter().all(|work| work.settled(now)) {
            break;
        }
        let wait = next.map_or(TICK, |due| due.saturating_sub(now).min(TICK));
        turn(&mut reactor, net, works, clock, wait)?;

        let now = nanos(clock);
        let done = works.iter().map(|work| work.operations()).sum();
        if warming && done >= options.warmup {
            warming = false;
            snapshot = Snapshot::take(&options.pids, now)?;
            works.iter_mut().for_each(|work| work.reset(now));
            (seen, seen_at) = (0, now);
        } else if done != seen {
            (seen, seen_at) = (done, now);
        }
        bar.set_position(done);
        let idle_too_long = now > seen_at + drain && next.is_none();
        let over = options.end.is_some_and(|end| now > end + drain);
        if idle_too_long || over {
            break;
        }
    }
    let end = nanos(clock);
    let last = Snapshot::take(&options.pids, end)?;
    works.iter_mut().for_each(|work| work.finish(end));
    bar.finish_and_clear();
    Ok(Used {
        seconds: (end - snapshot.at) as f64 / 1e9,
        relay_cpu: last
            .relay
            .zip(snapshot.relay)
            .map(|(last, first)| last.saturating_sub(first)),
        own_cpu: last.own.saturating_sub(snapshot.own),
        anonymous: (memory_before, memory(&options.pids)?),
    })
}

/// The longest wait: how often time limits and the progress bar are looked at.
const TICK: Nanos = 100_000_000;

struct Snapshot {
    relay: Option<Duration>,
    own: Duration,
    at: Nanos,
}

impl Snapshot {
    fn take(pids: &[u32], at: Nanos) -> io::Result<Snapshot> {
        let relay = if pids.is_empty() {
            None
        } else {
            Some(usage::cpu_of(pids)?)
        };
        Ok(Snapshot {
            relay,
            own: usage::cpu_of_self(),
            at,
        })
    }
}

fn memory(pids: &[u32]) -> io::Result<u64> {
    usage::anonymous_bytes(pids)
}

fn nanos(clock: Instant) -> Nanos {
    clock.elapsed().as_nanos() as Nanos
}

fn turn(
    reactor: &mut Reactor,
    net: &mut Net,
    works: &mut [Box<dyn Work>],
    clock: Instant,
    wait: Nanos,
) -> io::Result<()> {
    reactor.turn(net, wait, || nanos(clock), &mut |net, notice, now| {
        let Notice {
            owner,
            tag,
            conn,
            event,
        } = notice;
        works[owner].event(net, conn, tag, event, now);
    })
}

/// Drawn on standard error, and only where that is a terminal.
pub fn progress_bar(length: Option<u64>) -> ProgressBar {
    let template = match length {
        Some(_) => "{elapsed_precise} {wide_bar} {pos}/{len} {per_sec} {msg}",
        None => "{elapsed_precise} {spinner} {pos} {per_sec} {msg}",
    };
    let bar = length.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
