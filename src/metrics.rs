//! Every series, in one table, and the handles that each thread keeps.
//!
//! [`install`] puts the recorder in place and makes every series with known labels exist, at zero;
//! the others exist once their owner is made ([`ShardMetrics::new`], the flag provider). Handles are
//! taken once: using one costs 4 ns, finding it by name 56 to 108.

use std::time::{SystemTime, UNIX_EPOCH};

use metrics::{Counter, Gauge, Histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

pub mod database;
pub mod labels;
pub mod series;
pub mod tally;

pub use labels::{
    AcceptError, AuthMethod, AuthOutcome, ByLabel, CloseReason, DbPool, DrainClose, Driver,
    DropReason, EventOutcome, GateName, ImportOutcome, Label, MessageRefusal, QueryKind, RateKind,
    RemovalReason, ShedReason, TransferKind, UpgradeRefusal,
};
pub use series::{Dimension, Kind, SERIES, Series};
pub use tally::{Commits, Counted, Level, Tallies, Tally};

/// Reads the series; cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    handle: PrometheusHandle,
}

/// Puts the recorder in place for the whole process, once, before any handle is taken.
///
/// # Errors
///
/// When a recorder is in place already.
pub fn install() -> Result<Metrics, BuildError> {
    let handle = builder()?.install_recorder()?;
    declare();
    Ok(Metrics { handle })
}

impl Metrics {
    /// The text that Prometheus scrapes.
    pub fn render(&self) -> String {
        self.handle.render()
    }

    /// Folds recorded samples into their buckets. Run it on a timer: what is recorded between two
    /// calls is held in memory sample by sample.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

#[cfg(test)]
impl Metrics {
    /// A recorder that is not the process's: closed series only, all at zero.
    pub(crate) fn detached() -> Metrics {
        let recorder = builder().unwrap().build_recorder();
        metrics::with_local_recorder(&recorder, declare);
        Metrics {
            handle: recorder.handle(),
        }
    }
}

/// The handles of one shard.
#[derive(Debug)]
pub struct ShardMetrics {
    /// Open connections of this shard.
    pub connections_active: Level,
    /// Connections ever opened on this shard.
    pub connections: Counted,
    /// Open connections with a login, of all shards: add and subtract, never set.
    pub authenticated_active: Gauge,
    /// Clients disconnected because they read too slowly.
    pub backpressure_disconnects: Counter,
    /// Bytes that wait to be written on this shard.
    pub queued_bytes: Level,
    /// Connections that ended.
    pub closes: ByLabel<CloseReason, Counted>,
    /// Panics caught.
    pub panics: Counter,
    /// Accepts that failed.
    pub accept_errors: ByLabel<AcceptError, Counter>,
    /// Upgrades refused.
    pub upgrades_refused: ByLabel<UpgradeRefusal, Counter>,
    /// Open subscriptions of this shard.
    pub subscriptions_active: Level,
    /// EVENT messages.
    pub events_received: ByLabel<EventOutcome, Counted>,
    /// Other messages turned away.
    pub messages_refused: ByLabel<MessageRefusal, Counter>,
    /// Messages above a rate.
    pub rate_limited: ByLabel<RateKind, Counter>,
    /// Live events queued.
    pub events_delivered: Counted,
    /// Turns of reader threads.
    pub reader_turns: Counter,
    /// Events not sent.
    pub events_dropped: ByLabel<DropReason, Counted>,
    /// Questions to the store.
    pub queries: ByLabel<QueryKind, Counted>,
    /// Time to their last row.
    pub query_seconds: ByLabel<QueryKind, Histogram>,
    /// Login attempts.
    pub auth_attempts: Counter,
    /// How they ended.
    pub auth_outcomes: ByLabel<AuthOutcome, Counted>,
    /// Connections of this shard that the drain has yet to end.
    pub drain_remaining: Gauge,
    /// How it ended them.
    pub drain_closes: ByLabel<DrainClose, Counter>,
}

impl ShardMetrics {
    /// Takes the handles, of which some count in the shard's tally as well; the shard's own series
    /// exist from here on.
    pub fn new(shard: usize, tally: &'static Tally) -> ShardMetrics {
        let own = [("shard", shard.to_string())];
        let nip42 = [(AuthMethod::NAME, AuthMethod::Nip42.as_label().to_owned())];
        ShardMetrics {
            connections_active: Level::new(series::CONNECTIONS_ACTIVE.gauge(&own), &tally.open),
            connections: Counted::new(series::CONNECTIONS.counter(&own), &tally.opened),
            authenticated_active: series::AUTHENTICATED_ACTIVE.gauge(&[]),
            backpressure_disconnects: series::BACKPRESSURE_DISCONNECTS.counter(&[]),
            queued_bytes: Level::new(series::QUEUED_BYTES.gauge(&own), &tally.queued_bytes),
            closes: ByLabel::counted(&series::CLOSES, &[], &tally.closes),
            panics: series::PANICS.counter(&[]),
            accept_errors: ByLabel::counters(&series::ACCEPT_ERRORS, &[]),
            upgrades_refused: ByLabel::counters(&series::UPGRADES_REFUSED, &[]),
            subscriptions_active: Level::new(
                series::SUBSCRIPTIONS_ACTIVE.gauge(&own),
                &tally.subscriptions,
            ),
            events_received: ByLabel::counted(&series::EVENTS_RECEIVED, &[], &tally.events),
            messages_refused: ByLabel::counters(&series::MESSAGES_REFUSED, &[]),
            rate_limited: ByLabel::counters(&series::RATE_LIMITED, &[]),
            events_delivered: Counted::new(series::EVENTS_DELIVERED.counter(&[]), &tally.delivered),
            reader_turns: series::READER_TURNS.counter(&[]),
            events_dropped: ByLabel::counted(&series::EVENTS_DROPPED, &[], &tally.dropped),
            queries: ByLabel::counted(&series::QUERIES, &[], &tally.queries),
            query_seconds: ByLabel::histograms(&series::QUERY_SECONDS),
            auth_attempts: series::AUTH_ATTEMPTS.counter(&nip42),
            auth_outcomes: ByLabel::counted(&series::AUTH_OUTCOMES, &nip42, &tally.logins),
            drain_remaining: series::DRAIN_REMAINING.gauge(&own),
            drain_closes: ByLabel::counters(&series::DRAIN_CLOSES, &[]),
        }
    }
}

/// The gauges of one gate, which are set together, from one snapshot.
#[derive(Debug)]
pub struct GateGauges {
    /// The applied limit; 0 is none.
    pub limit: Gauge,
    /// Permits in use.
    pub in_flight: Gauge,
    /// Waiters.
    pub waiting: Gauge,
    /// Work in flight above the limit.
    pub debt: Gauge,
}

impl GateGauges {
    /// Takes the handles.
    pub fn new(gate: GateName) -> GateGauges {
        let own = [(GateName::NAME, gate.as_label().to_owned())];
        GateGauges {
            limit: series::CONCURRENCY_LIMIT.gauge(&own),
            in_flight: series::CONCURRENCY_IN_FLIGHT.gauge(&own),
            waiting: series::CONCURRENCY_WAITING.gauge(&own),
            debt: series::CONCURRENCY_DEBT.gauge(&own),
        }
    }
}

/// The handles of one gate at its call sites. Every shard takes its own.
#[derive(Debug)]
pub struct AdmissionMetrics {
    /// Work turned away.
    pub sheds: ByLabel<ShedReason, Counted>,
    /// From asking to being admitted or shed.
    pub wait: Histogram,
    /// From being admitted to the release.
    pub hold: Histogram,
}

impl AdmissionMetrics {
    /// Takes the handles; sheds count in the shard's tally as well.
    pub fn new(gate: GateName, tally: &'static Tally) -> AdmissionMetrics {
        let own = [(GateName::NAME, gate.as_label().to_owned())];
        let sheds = &tally.sheds[gate.index()];
        AdmissionMetrics {
            sheds: ByLabel::counted(&series::CONCURRENCY_SHEDS, &own, sheds),
            wait: series::CONCURRENCY_WAIT.histogram(&own),
            hold: series::CONCURRENCY_HOLD.histogram(&own),
        }
    }
}

/// The handles of the transfers.
#[derive(Debug)]
pub struct TransferMetrics {
    /// Those that run.
    pub active: ByLabel<TransferKind, Gauge>,
    /// Events of imports.
    pub import_events: ByLabel<ImportOutcome, Counter>,
}

impl Default for TransferMetrics {
    fn default() -> TransferMetrics {
        TransferMetrics::new()
    }
}

impl TransferMetrics {
    /// Takes the handles.
    pub fn new() -> TransferMetrics {
        TransferMetrics {
            active: ByLabel::gauges(&series::TRANSFERS_ACTIVE),
            import_events: ByLabel::counters(&series::IMPORT_EVENTS, &[]),
        }
    }
}

/// How long the store's commits take; for the store's writer.
pub fn store_commits() -> Commits {
    Commits::new(series::STORE_COMMIT_SECONDS.histogram(&[]))
}

/// What the store removes; for the store's writer.
pub fn events_removed() -> ByLabel<RemovalReason, Counter> {
    ByLabel::counters(&series::EVENTS_REMOVED, &[])
}

/// Shows how full the store is, in bytes: in use, in free pages, and in use when events are refused.
pub fn show_store(used: u64, free: u64, max: u64) {
    series::STORE_USED.gauge(&[]).set(used as f64);
    series::STORE_FREE.gauge(&[]).set(free as f64);
    series::STORE_MAX.gauge(&[]).set(max as f64);
}

/// Says which driver the shards run on.
pub fn set_driver(driver: Driver) {
    for each in Driver::ALL {
        let value = if *each == driver { 1.0 } else { 0.0 };
        series::IO_DRIVER
            .gauge(&[(Driver::NAME, each.as_label().to_owned())])
            .set(value);
    }
}

fn builder() -> Result<PrometheusBuilder, BuildError> {
    // The matcher is per metric because a default for all would be silent about a new unit.
    SERIES
        .iter()
        .filter(|series| series.kind == Kind::Histogram)
        .try_fold(PrometheusBuilder::new(), |builder, series| {
            let matcher = Matcher::Full(series.name.to_owned());
            builder.set_buckets_for_metric(matcher, series::SECONDS_BUCKETS)
        })
}

/// Describes every series, and makes each with known labels exist.
fn declare() {
    for series in SERIES {
        match series.kind {
            Kind::Counter => metrics::describe_counter!(series.name, series.help),
            Kind::Gauge => metrics::describe_gauge!(series.name, series.help),
            Kind::Histogram => metrics::describe_histogram!(series.name, series.help),
        }
        for labels in combinations(series.labels) {
            match series.kind {
                Kind::Counter => series.counter(&labels).increment(0),
                Kind::Gauge => series.gauge(&labels).increment(0.0),
                Kind::Histogram => drop(series.histogram(&labels)),
            }
        }
    }
    series::BUILD_INFO
        .gauge(&[("version", crate::version::VERSION.to_owned())])
        .set(1.0);
    series::START_TIME
        .gauge(&[])
        .set(unix_seconds(SystemTime::now()));
}

/// Every combination of label values, none when some label's values are known only later.
fn combinations(dimensions: &[Dimension]) -> Vec<Vec<(&'static str, String)>> {
    let mut all = vec![Vec::new()];
    for dimension in dimensions {
        let Dimension::Closed(name, values) = dimension else {
            return Vec::new();
        };
        let with = |labels: &Vec<_>, value: &&str| {
            let mut labels = labels.clone();
            labels.push((*name, (*value).to_owned()));
            labels
        };
        all = all
            .iter()
            .flat_map(|labels| values.iter().map(|v| with(labels, v)))
            .collect();
    }
    all
}

/// Seconds since 1970, as Prometheus counts time.
pub fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

/// A recorder for the tests of this thread: what `f` records is in the text it returns.
#[cfg(test)]
pub(crate) fn recorded(f: impl FnOnce()) -> String {
    let recorder = builder().unwrap().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        declare();
        f();
    });
    recorder.handle().render()
}

#[cfg(test)]
mod tests;
