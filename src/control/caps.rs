//! The two gates as operators see them: their ceilings, limits, gauges and status.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::refresh::{Applied, Caps, Shown, Source};
use crate::config::Config;
use crate::gate::{ConcurrencyGate, Limit};
use crate::limits;
use crate::metrics::{GateMetrics, GateName, Label};

/// Both gates, shared by shards and control thread.
#[derive(Debug)]
pub struct Gates {
    gates: [Arc<ConcurrencyGate>; GateName::ALL.len()],
    metrics: [GateMetrics; GateName::ALL.len()],
}

impl Gates {
    /// Both gates at their ceilings: history at four fifths of the reader pool, auth without one.
    pub fn new(config: &Config) -> Gates {
        let connections = config.connections_max;
        let history_waiting = connections.saturating_mul(limits::HISTORY_READS_PER_CONNECTION_MAX);
        let gate = |gate: GateName| {
            let (ceiling, waiting_max) = match gate {
                GateName::HistoryReads => (history_ceiling(config.db_read_pool), history_waiting),
                GateName::Auth => (Limit::None, connections),
            };
            let waiting_max = u32::try_from(waiting_max).unwrap_or(u32::MAX);
            Arc::new(ConcurrencyGate::new(ceiling, config.shards, waiting_max))
        };
        let gates = Gates {
            gates: [gate(GateName::HistoryReads), gate(GateName::Auth)],
            metrics: [
                GateMetrics::new(GateName::HistoryReads),
                GateMetrics::new(GateName::Auth),
            ],
        };
        gates.show();
        gates
    }

    /// One of them.
    pub fn of(&self, gate: GateName) -> &Arc<ConcurrencyGate> {
        &self.gates[gate.index()]
    }

    /// Closes both: waiters are shed, holders go on.
    pub fn close(&self) {
        for gate in &self.gates {
            gate.close();
        }
    }

    /// Sets the gauges, each gate's from one snapshot. Call it before a scrape.
    pub fn show(&self) {
        for (gate, metrics) in self.gates.iter().zip(&self.metrics) {
            let now = gate.snapshot();
            metrics.limit.set(f64::from(now.limit.as_count()));
            metrics.in_flight.set(f64::from(now.in_flight));
            metrics.waiting.set(f64::from(now.waiting));
            metrics.debt.set(f64::from(now.debt));
        }
    }

    /// Adds both to a status object. A limit that is none is null: 0 would read as closed.
    pub fn describe(&self, shown: &Shown, status: &mut Map<String, Value>) {
        let count = |limit: Limit| match limit {
            Limit::Count(count) => json!(count.get()),
            Limit::None => Value::Null,
        };
        let gates = GateName::ALL.iter().map(|name| {
            let gate = self.of(*name);
            let now = gate.snapshot();
            let mut described = json!({
                "limit": count(now.limit),
                "ceiling": count(gate.ceiling()),
                "in_flight": now.in_flight,
                "waiting": now.waiting,
                "debt": now.debt,
                "source": shown.source(*name).as_str(),
            });
            if let Some(age) = shown.remembered_age(*name) {
                described["remembered_age_seconds"] = json!(age.as_secs());
            }
            (name.as_label().to_owned(), described)
        });
        status.insert("gates".to_owned(), Value::Object(gates.collect()));
    }
}

impl Caps for Gates {
    fn apply(&self, gate: GateName, value: Option<i64>, _source: Source) -> Applied {
        let gate = self.of(gate);
        let ceiling = gate.ceiling();
        let applied = gate.set_limit(Limit::from_flag(value, ceiling));
        Applied {
            old: applied.old.as_count(),
            new: applied.new.as_count(),
            ceiling: ceiling.as_count(),
        }
    }
}

/// What history reads may take of the reader pool; a pool under 5 reserves nothing.
fn history_ceiling(pool: usize) -> Limit {
    let ceiling = pool - pool / limits::HISTORY_RESERVED_DIVISOR;
    Limit::from_count(u32::try_from(ceiling).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::config::Machine;
    use crate::control::refresh::Refresh;
    use crate::flags::{Environment, Flags, key_of, variable_of};
    use crate::secret::Secret;

    fn gates() -> Gates {
        let env = [("BUZZ_DB_READ_POOL_SIZE", "10"), ("BUZZ_SHARDS", "2")];
        let env = env.map(|(name, text)| (name.into(), text.into()));
        let (_, raw) = cli::parse(["buzz-uring".into()], env).unwrap();
        let machine = Machine {
            cpus: vec![0],
            descriptors_max: 100_000,
        };
        Gates::new(&Config::resolve(&raw, &machine).unwrap())
    }

    #[test]
    fn the_history_ceiling_follows_the_reader_pool() {
        for (pool, ceiling) in [(50, 40), (10, 8), (5, 4), (4, 4), (1, 1)] {
            assert_eq!(history_ceiling(pool), Limit::from_count(ceiling), "{pool}");
        }
    }

    #[test]
    fn flags_move_the_real_gates_and_status_and_gauges_say_so() {
        let mut status = Map::new();
        let text = crate::metrics::recorded(|| {
            let gates = Arc::new(gates());
            let value = |key, text| (variable_of(key), Secret::new(text));
            let flags = [
                value(key_of(GateName::HistoryReads), "99"),
                value(key_of(GateName::Auth), "1"),
            ];
            let flags = Flags::Environment(Environment::new(&flags.into_iter().collect()));
            let auth = gates.of(GateName::Auth);
            let permits = [auth.try_acquire().unwrap(), auth.try_acquire().unwrap()];
            let mut refresh = Refresh::new(flags, gates.clone(), None);
            refresh.refresh();
            gates.show();
            gates.describe(&refresh.shown(), &mut status);
            drop(permits);
        });
        assert_eq!(
            Value::Object(status),
            json!({"gates": {
                "history_reads": {
                    "limit": 8, "ceiling": 8, "in_flight": 0, "waiting": 0, "debt": 0,
                    "source": "environment",
                },
                "auth": {
                    "limit": 1, "ceiling": null, "in_flight": 2, "waiting": 0, "debt": 1,
                    "source": "environment",
                },
            }})
        );
        for line in [
            "buzz_concurrency_limit{gate=\"history_reads\"} 8",
            "buzz_concurrency_limit{gate=\"auth\"} 1",
            "buzz_concurrency_in_flight{gate=\"auth\"} 2",
            "buzz_concurrency_debt{gate=\"auth\"} 1",
            "buzz_concurrency_waiting{gate=\"auth\"} 0",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn limits_are_true_before_the_first_refresh() {
        let text = crate::metrics::recorded(|| drop(gates()));
        assert!(
            text.contains("buzz_concurrency_limit{gate=\"history_reads\"} 8"),
            "{text}"
        );
        assert!(
            text.contains("buzz_concurrency_limit{gate=\"auth\"} 0"),
            "{text}"
        );
    }
}
