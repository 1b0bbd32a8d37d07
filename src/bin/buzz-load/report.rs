//! What a run found: latencies, faults, and their JSON.
//!
//! Every duration in the JSON is in microseconds unless its name says otherwise, every size in
//! bytes. `faults` counts what would make the figures a lie: answers that are wrong, requests
//! without an answer, connections that broke. With any of them the process ends with code 1.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::limits;
use crate::schedule::Nanos;

/// Latencies of one kind of operation.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u64>);

impl Latency {
    /// None yet.
    pub fn new() -> Latency {
        let most = limits::LATENCY_MICROS_MAX * 1_000;
        Latency(
            Histogram::new_with_bounds(1, most, limits::LATENCY_DIGITS)
                .expect("constant bounds, tried by every test"),
        )
    }

    /// Adds one.
    pub fn record(&mut self, nanos: Nanos) {
        self.0.saturating_record(nanos);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// The value that a share of the operations stayed at or below, in microseconds.
    pub fn micros_at(&self, share: f64) -> f64 {
        tenths(self.0.value_at_quantile(share) as f64 / 1e3)
    }

    /// Percentiles in microseconds.
    pub fn json(&self) -> Value {
        json!({
            "count": self.0.len(),
            "mean": tenths(self.0.mean() / 1e3),
            "p50": self.micros_at(0.50),
            "p90": self.micros_at(0.90),
            "p99": self.micros_at(0.99),
            "p99.9": self.micros_at(0.999),
            "max": tenths(self.0.max() as f64 / 1e3),
        })
    }

    /// Operations that were recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }
}

/// What kind of fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// An answer that is not the right one.
    Wrong,
    /// A request that got no answer in time.
    Unanswered,
    /// A connection that could not be opened, or that broke.
    Connection,
}

/// Faults counted by kind, with the first few distinct reasons.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    wrong: u64,
    unanswered: u64,
    connection: u64,
    reasons: BTreeMap<String, u64>,
}

impl Faults {
    /// Counts one.
    pub fn add(&mut self, fault: Fault, reason: &str) {
        match fault {
            Fault::Wrong => self.wrong += 1,
            Fault::Unanswered => self.unanswered += 1,
            Fault::Connection => self.connection += 1,
        }
        let room = self.reasons.len() < limits::REASONS_MAX;
        let reason: String = reason.chars().take(120).collect();
        let name = if room || self.reasons.contains_key(&reason) {
            reason
        } else {
            "other".into()
        };
        *self.reasons.entry(name).or_default() += 1;
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.wrong + self.unanswered + self.connection
    }

    fn json(&self) -> Value {
        json!({
            "wrong": self.wrong,
            "unanswered": self.unanswered,
            "connection": self.connection,
            "reasons": self.reasons,
        })
    }
}

/// What one workload of a run found.
#[derive(Debug)]
pub struct Section {
    /// The workload.
    pub name: &'static str,
    /// What operations are, in the plural: "events", "deliveries".
    pub unit: &'static str,
    /// Operations that completed, rightly or wrongly.
    pub operations: u64,
    /// From the start (or the end of the warm-up) to the last answer.
    pub seconds: f64,
    /// Latencies by name: "latency" first, which in an open loop counts from when an operation was due.
    pub latencies: Vec<(&'static str, Latency)>,
    /// Faults.
    pub faults: Faults,
    /// Anything more.
    pub extra: Map<String, Value>,
}

impl Section {
    /// As JSON.
    pub fn json(&self) -> Value {
        let mut object = json!({
            "workload": self.name,
            "unit": self.unit,
            "operations": self.operations,
            "seconds": thousandths(self.seconds),
            "per_second": tenths(self.operations as f64 / self.seconds.max(1e-9)),
            "faults": self.faults.json(),
        });
        for (name, latency) in &self.latencies {
            object[format!("{name}_us")] = latency.json();
        }
        for (key, value) in &self.extra {
            object[key] = value.clone();
        }
        object
    }

    /// One line for a human.
    pub fn line(&self) -> String {
        let mut line = format!(
            "{}: {} {} in {:.2} s, {:.0} a second",
            self.name,
            self.operations,
            self.unit,
            self.seconds,
            self.operations as f64 / self.seconds.max(1e-9)
        );
        if let Some((_, latency)) = self
            .latencies
            .first()
            .filter(|(_, latency)| latency.count() > 0)
        {
            line.push_str(&format!(
                "; p50 {:.3} ms, p99 {:.3} ms, max {:.3} ms",
                latency.micros_at(0.5) / 1e3,
                latency.micros_at(0.99) / 1e3,
                latency.micros_at(1.0) / 1e3
            ));
        }
        if self.faults.total() > 0 {
            line.push_str(&format!("; FAULTS {}", self.faults.json()));
        }
        line
    }
}

/// What the relay used in the measured time, and divided by the operations.
pub fn relay_json(
    cpu: Duration,
    seconds: f64,
    operations: Option<u64>,
    anonymous: (u64, u64),
) -> Value {
    let mut found = json!({
        "cpu_seconds": thousandths(cpu.as_secs_f64()),
        "cpu_share": thousandths(cpu.as_secs_f64() / seconds.max(1e-9)),
        "anonymous_bytes_before": anonymous.0,
        "anonymous_bytes_after": anonymous.1,
    });
    if let Some(operations) = operations {
        let operations = operations.max(1) as f64;
        let grown = anonymous.1 as f64 - anonymous.0 as f64;
        found["cpu_us_per_operation"] = thousandths(cpu.as_secs_f64() * 1e6 / operations).into();
        found["anonymous_bytes_per_operation"] = tenths(grown / operations).into();
    }
    found
}

/// What the generator used itself, and whether it may have been the limit.
///
/// `late_p99` is how late it was with sends that nothing but itself held up, in microseconds.
pub fn generator_json(cpu: Duration, seconds: f64, late_p99: Option<f64>) -> Value {
    let share = cpu.as_secs_f64() / seconds.max(1e-9);
    let late = late_p99.is_some_and(|late| late > limits::OWN_LATE_MICROS_MAX as f64);
    json!({
        "cpu_seconds": thousandths(cpu.as_secs_f64()),
        "cpu_share": thousandths(share),
        "may_be_the_limit": share > limits::OWN_CPU_SHARE_MAX || late,
    })
}

/// The machine, as far as it says so.
pub fn machine_json() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown", |rest| rest.trim_start_matches([' ', '\t', ':']));
    json!({
        "cpu": model,
        "cores": crate::usage::cores_of(Some(1)).len().max(crate::usage::cores_of(None).len()),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load_1_minute": read("/proc/loadavg").split(' ').next().and_then(|text| text.parse::<f64>().ok()),
    })
}

/// Rounded to a tenth.
pub fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Rounded to a thousandth.
pub fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_known_series() {
        let mut latency = Latency::new();
        for micros in 1..=10_000 {
            latency.record(micros * 1_000);
        }
        for (share, expected) in [
            (0.5, 5_000.0),
            (0.9, 9_000.0),
            (0.99, 9_900.0),
            (1.0, 10_000.0),
        ] {
            let found = latency.micros_at(share);
            assert!(
                (found - expected).abs() <= expected / 1e3 + 0.1,
                "{share}: {found}"
            );
        }
        let json = latency.json();
        assert_eq!(json["count"], 10_000);
        assert!((json["mean"].as_f64().unwrap() - 5_000.5).abs() < 6.0);
        latency.clear();
        assert_eq!(latency.count(), 0);
    }

    #[test]
    fn extremes_are_kept_within_bounds() {
        let mut latency = Latency::new();
        latency.record(0);
        latency.record(u64::MAX);
        assert_eq!(latency.count(), 2);
        assert!(latency.micros_at(1.0) >= limits::LATENCY_MICROS_MAX as f64);
    }

    #[test]
    fn reasons_are_bounded_and_counts_are_not() {
        let mut faults = Faults::default();
        for index in 0..100 {
            faults.add(Fault::Wrong, &format!("reason {index}"));
            faults.add(Fault::Wrong, "reason 0");
        }
        faults.add(Fault::Unanswered, "late");
        assert_eq!(faults.total(), 201);
        assert_eq!(faults.reasons.len(), limits::REASONS_MAX + 1);
        assert_eq!(faults.reasons["reason 0"], 101);
        assert_eq!(faults.reasons.values().sum::<u64>(), 201);
    }

    #[test]
    fn the_generator_owns_up() {
        let at = |share: f64, late| {
            generator_json(Duration::from_secs_f64(share), 1.0, late)["may_be_the_limit"] == true
        };
        assert!(!at(0.5, None));
        assert!(at(0.95, None));
        assert!(!at(0.5, Some(100.0)));
        assert!(at(0.5, Some(5_000.0)));
    }
}
