//! The refresh: reads the flags every few seconds and hands the limits to the gates.
//!
//! It must outlive everything: a refresh that panics is caught, logged and counted, and the next
//! tick tries again, because a limit that can no longer be moved is worst in the very incident it
//! is needed for. Ticks come at a fixed rate; missed ones are skipped, not made up.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use metrics::{Counter, Gauge};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::remembered::Remembered;
use crate::flags::{Flags, Reading, key_of};
use crate::limits;
use crate::metrics::{GateName, Label, series, unix_seconds};
use crate::shard::hooks;

/// Takes limits. The gates' side of it owns the rules for flag values and the ceilings.
pub trait Caps: Send + Sync + 'static {
    /// Applies a flag's value to a gate; None is no value. Called at every refresh, mostly with what
    /// is in force already.
    fn apply(&self, gate: GateName, value: Option<i64>, source: Source) -> Applied;
}

/// What [`Caps::apply`] did. In all three, 0 is no limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Applied {
    /// The limit before.
    pub old: u32,
    /// The limit now.
    pub new: u32,
    /// The gate's ceiling.
    pub ceiling: u32,
}

/// Where an applied limit comes from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Source {
    /// No usable value: the default, so the ceiling.
    Default,
    /// The provider `static`: the ceiling, by choice.
    Static,
    /// An environment variable.
    Environment,
    /// LaunchDarkly, in this process's life.
    LaunchDarkly,
    /// LaunchDarkly, as an earlier process saved it.
    Remembered,
}

impl Source {
    /// The word that status and logs show.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Default => "default",
            Source::Static => "static",
            Source::Environment => "environment",
            Source::LaunchDarkly => "launchdarkly",
            Source::Remembered => "remembered",
        }
    }
}

/// What the refresh knows, for `/_status`.
#[derive(Clone, Debug)]
pub struct Shown(Arc<Mutex<Known>>);

#[derive(Debug)]
struct Known {
    provider: &'static str,
    is_ready: bool,
    refreshed_at: Option<SystemTime>,
    sources: [Source; GateName::ALL.len()],
    remembered_age: [Option<Duration>; GateName::ALL.len()],
}

impl Shown {
    /// Where a gate's limit comes from.
    pub fn source(&self, gate: GateName) -> Source {
        self.lock().sources[gate.index()]
    }

    /// Age of the remembered cap that is applied to a gate, if one is.
    pub fn remembered_age(&self, gate: GateName) -> Option<Duration> {
        self.lock().remembered_age[gate.index()]
    }

    /// Adds the provider to a status object.
    pub fn describe(&self, status: &mut Map<String, Value>) {
        let known = self.lock();
        let provider = json!({
            "provider": known.provider,
            "ready": known.is_ready,
            "last_refresh": known.refreshed_at.map(|at| unix_seconds(at) as u64),
        });
        status.insert("feature_flags".to_owned(), provider);
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The refresh and all it owns.
pub struct Refresh {
    flags: Flags,
    caps: Arc<dyn Caps>,
    remembered: Option<Remembered>,
    clock: fn() -> SystemTime,
    shown: Shown,
    ready: Gauge,
    refreshed: Gauge,
    panics: Counter,
    mistyped: Vec<Counter>,
    ages: Vec<Gauge>,
}

impl Refresh {
    /// Takes the provider and the gates. `remembered` only where the setting asks for it.
    pub fn new(flags: Flags, caps: Arc<dyn Caps>, remembered: Option<Remembered>) -> Refresh {
        let known = Known {
            provider: flags.name(),
            is_ready: flags.is_ready(),
            refreshed_at: None,
            sources: [Source::Default; GateName::ALL.len()],
            remembered_age: [None; GateName::ALL.len()],
        };
        let gates = GateName::ALL.iter();
        let of_gate = |gate: &GateName| [(GateName::NAME, gate.as_label().to_owned())];
        let flag = |gate: &GateName| [("flag", key_of(*gate).to_owned())];
        let ages = remembered.is_some().then(|| {
            let series = &series::CONCURRENCY_REMEMBERED_AGE;
            gates
                .clone()
                .map(|gate| series.gauge(&of_gate(gate)))
                .collect()
        });
        let refresh = Refresh {
            ready: series::FLAGS_READY.gauge(&[("provider", flags.name().to_owned())]),
            refreshed: series::FLAGS_LAST_REFRESH.gauge(&[]),
            panics: series::CONCURRENCY_REFRESH_PANICS.counter(&[]),
            mistyped: gates
                .map(|gate| series::FLAG_MISTYPED.counter(&flag(gate)))
                .collect(),
            ages: ages.unwrap_or_default(),
            shown: Shown(Arc::new(Mutex::new(known))),
            clock: SystemTime::now,
            flags,
            caps,
            remembered,
        };
        // The gauge is true from the first scrape on, not only from the first refresh.
        refresh.show();
        refresh
    }

    /// What the refresh knows, for others to show.
    pub fn shown(&self) -> Shown {
        self.shown.clone()
    }

    /// One refresh. Call it once before the relay is ready, so that a cap holds from the first
    /// connection on.
    pub fn refresh(&mut self) {
        let now = (self.clock)();
        let mut readings = [Reading::NotDelivered; GateName::ALL.len()];
        // Step by step, so that a panic over one gate does not hold the other gate's limit.
        let mut panicked = panics(|| {
            hooks::maybe_panic_in_refresh("provider");
            self.flags.tend();
        });
        for gate in GateName::ALL {
            panicked |= panics(|| {
                hooks::maybe_panic_in_refresh(gate.as_label());
                let reading = self.flags.read(*gate);
                readings[gate.index()] = reading;
                self.apply(*gate, reading, now);
            });
        }
        panicked |= panics(|| self.remember(&readings, now));
        panicked |= panics(|| self.show());
        if panicked {
            self.panics.increment(1);
            tracing::error!("the refresh of the limits panicked; the next one tries again");
        } else {
            self.refreshed.set(unix_seconds(now));
            self.shown.lock().refreshed_at = Some(now);
        }
    }

    /// Refreshes until `stop` is ready, and gives the provider back to be closed. The first refresh
    /// is one period from now.
    pub async fn run(mut self, period: Duration, stop: impl Future<Output = ()>) -> Flags {
        let mut stop = std::pin::pin!(stop);
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                () = &mut stop => return self.flags,
                _ = ticks.tick() => self.refresh(),
            }
        }
    }

    /// The period that the contract promises.
    pub fn period() -> Duration {
        Duration::from_millis(limits::FLAGS_REFRESH_MS)
    }

    fn remember(&mut self, readings: &[Reading; GateName::ALL.len()], now: SystemTime) {
        let all = readings
            .iter()
            .all(|reading| *reading != Reading::NotDelivered);
        if let Some(remembered) = &mut self.remembered
            && all
        {
            remembered.keep(readings.map(Reading::value), now);
        }
    }

    fn show(&self) {
        let is_ready = self.flags.is_ready();
        self.ready.set(if is_ready { 1.0 } else { 0.0 });
        self.shown.lock().is_ready = is_ready;
    }

    fn apply(&self, gate: GateName, reading: Reading, now: SystemTime) {
        if reading == Reading::Mistyped {
            self.mistyped[gate.index()].increment(1);
        }
        let (value, source, age) = self.decide(gate, reading, now);
        let Applied { old, new, ceiling } = self.caps.apply(gate, value, source);
        if old != new {
            tracing::info!(
                gate = gate.as_label(),
                old = limit_text(old),
                new = limit_text(new),
                ceiling = limit_text(ceiling),
                source = source.as_str(),
                "concurrency limit changed"
            );
        }
        if let Some(gauge) = self.ages.get(gate.index()) {
            gauge.set(age.map_or(0.0, |age| age.as_secs_f64()));
        }
        let mut known = self.shown.lock();
        known.sources[gate.index()] = source;
        known.remembered_age[gate.index()] = age;
    }

    /// The value to apply, where it comes from, and its age if it is remembered.
    fn decide(
        &self,
        gate: GateName,
        reading: Reading,
        now: SystemTime,
    ) -> (Option<i64>, Source, Option<Duration>) {
        let of_provider = match self.flags {
            Flags::Static => Source::Static,
            Flags::Environment(_) => Source::Environment,
            Flags::LaunchDarkly(_) => Source::LaunchDarkly,
        };
        match reading {
            Reading::Value(value) => (Some(value), of_provider, None),
            Reading::Absent if of_provider == Source::Static => (None, Source::Static, None),
            Reading::Absent | Reading::Mistyped => (None, Source::Default, None),
            Reading::NotDelivered => {
                let cap = self
                    .remembered
                    .as_ref()
                    .and_then(|caps| caps.cap(gate, now));
                cap.map_or((None, Source::Default, None), |(value, age)| {
                    (Some(value), Source::Remembered, Some(age))
                })
            }
        }
    }
}

/// True when the step panicked. What it left half done is one gate's turn, which the next refresh
/// does anew.
fn panics(step: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(step)).is_err()
}

/// How logs show a limit: `none`, not 0, which would read as closed.
fn limit_text(limit: u32) -> String {
    if limit == 0 {
        "none".to_owned()
    } else {
        limit.to_string()
    }
}

#[cfg(test)]
mod tests;
