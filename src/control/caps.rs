//! The two gates as operators see them: their ceilings, limits, gauges and status.

use serde_json::{Map, Value, json};

use super::refresh::{Applied, Caps, Shown, Source};
use super::status::object;
use crate::gate::Limit;
use crate::metrics::{GateGauges, GateName, Label, ShedReason, Tallies};
use crate::shard::admission::Gates;

/// Both gates, with their gauges.
#[derive(Debug)]
pub struct GateControl {
    gates: Gates,
    gauges: [GateGauges; GateName::ALL.len()],
}

impl GateControl {
    /// Takes the gates that the shards use, and shows them once.
    pub fn new(gates: Gates) -> GateControl {
        let control = GateControl {
            gates,
            gauges: [
                GateGauges::new(GateName::HistoryReads),
                GateGauges::new(GateName::Auth),
            ],
        };
        control.show();
        control
    }

    /// Closes both: waiters are shed, holders go on.
    pub fn close(&self) {
        for name in GateName::ALL {
            self.gates.of(*name).close();
        }
    }

    /// Sets the gauges, each gate's from one snapshot. Call it before a scrape.
    pub fn show(&self) {
        for (name, gauges) in GateName::ALL.iter().zip(&self.gauges) {
            let now = self.gates.of(*name).snapshot();
            gauges.limit.set(f64::from(now.limit.as_count()));
            gauges.in_flight.set(f64::from(now.in_flight));
            gauges.waiting.set(f64::from(now.waiting));
            gauges.debt.set(f64::from(now.debt));
        }
    }

    /// Adds both to a status object, with what the shards' tallies say that they have turned away. A
    /// limit that is none is null: 0 would read as closed.
    pub fn describe(&self, shown: &Shown, tallies: &Tallies, status: &mut Map<String, Value>) {
        let count = |limit: Limit| match limit {
            Limit::Count(count) => json!(count.get()),
            Limit::None => Value::Null,
        };
        let gates = GateName::ALL.iter().map(|name| {
            let gate = self.gates.of(*name);
            let now = gate.snapshot();
            let sheds = tallies.by_label::<ShedReason>(|tally| &tally.sheds[name.index()]);
            let mut described = json!({
                "limit": count(now.limit),
                "ceiling": count(gate.ceiling()),
                "in_flight": now.in_flight,
                "waiting": now.waiting,
                "debt": now.debt,
                "sheds": object(sheds),
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

impl Caps for GateControl {
    fn apply(&self, gate: GateName, value: Option<i64>, _source: Source) -> Applied {
        let gate = self.gates.of(gate);
        let ceiling = gate.ceiling();
        let applied = gate.set_limit(Limit::from_flag(value, ceiling));
        Applied {
            old: applied.old.as_count(),
            new: applied.new.as_count(),
            ceiling: ceiling.as_count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::control::refresh::Refresh;
    use crate::flags::{Environment, Flags, key_of, variable_of};
    use crate::metrics::AdmissionMetrics;
    use crate::secret::Secret;

    fn gates() -> Gates {
        Gates::new(2, 10, 100)
    }

    #[test]
    fn flags_move_the_real_gates_and_status_and_gauges_say_so() {
        let mut status = Map::new();
        let text = crate::metrics::recorded(|| {
            let gates = gates();
            let control = Arc::new(GateControl::new(gates));
            let value = |key, text| (variable_of(key), Secret::new(text));
            let flags = [
                value(key_of(GateName::HistoryReads), "99"),
                value(key_of(GateName::Auth), "1"),
            ];
            let flags = Flags::Environment(Environment::new(&flags.into_iter().collect()));
            let auth = gates.of(GateName::Auth);
            let permits = [auth.try_acquire().unwrap(), auth.try_acquire().unwrap()];
            let mut refresh = Refresh::new(flags, control.clone(), None);
            refresh.refresh();
            control.show();
            let tallies = Tallies::new(2);
            for (shard, by) in [(0, 2), (1, 3)] {
                let auth = AdmissionMetrics::new(GateName::Auth, tallies.of(shard));
                auth.sheds.of(ShedReason::Full).increment(by);
            }
            control.describe(&refresh.shown(), &tallies, &mut status);
            drop(permits);
        });
        assert_eq!(
            Value::Object(status),
            json!({"gates": {
                "history_reads": {
                    "limit": 8, "ceiling": 8, "in_flight": 0, "waiting": 0, "debt": 0,
                    "sheds": {"timeout": 0, "full": 0, "closed": 0}, "source": "environment",
                },
                "auth": {
                    "limit": 1, "ceiling": null, "in_flight": 2, "waiting": 0, "debt": 1,
                    "sheds": {"timeout": 0, "full": 5, "closed": 0}, "source": "environment",
                },
            }})
        );
        for line in [
            "buzz_concurrency_limit{gate=\"history_reads\"} 8",
            "buzz_concurrency_limit{gate=\"auth\"} 1",
            "buzz_concurrency_in_flight{gate=\"auth\"} 2",
            "buzz_concurrency_debt{gate=\"auth\"} 1",
            "buzz_concurrency_waiting{gate=\"auth\"} 0",
            "buzz_concurrency_sheds_total{gate=\"auth\",reason=\"full\"} 5",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn limits_are_true_before_the_first_refresh() {
        let text = crate::metrics::recorded(|| drop(GateControl::new(gates())));
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
