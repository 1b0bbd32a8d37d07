//! Every series, in one table, and the handles that each thread keeps.
//!
//! [`install`] puts the recorder in place and makes every series with known labels exist, at zero;
//! the others exist once their owner is made ([`ShardMetrics::new`], the flag provider). Handles are
//! taken once: using one costs 4 ns, finding it by name 56 to 108.

use std::time::{SystemTime, UNIX_EPOCH};

use metrics::{Counter, Gauge, Histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

pub mod labels;
pub mod series;

pub use labels::{
    AcceptError, AuthMethod, AuthOutcome, ByLabel, CloseReason, DrainClose, Driver, DropReason,
    EventOutcome, GateName, ImportOutcome, Label, MessageRefusal, QueryKind, RateKind,
    RemovalReason, ShedReason, TransferKind, UpgradeRefusal,
};
pub use series::{Dimension, Kind, SERIES, Series};

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
    pub connections_active: Gauge,
    /// Connections ever opened on this shard.
    pub connections: Counter,
    /// Open connections with a login, of all shards: add and subtract, never set.
    pub authenticated_active: Gauge,
    /// Clients disconnected because they read too slowly.
    pub backpressure_disconnects: Counter,
    /// Bytes that wait to be written on this shard.
    pub queued_bytes: Gauge,
    /// Connections that ended.
    pub closes: ByLabel<CloseReason, Counter>,
    /// Panics caught.
    pub panics: Counter,
    /// Accepts that failed.
    pub accept_errors: ByLabel<AcceptError, Counter>,
    /// Upgrades refused.
    pub upgrades_refused: ByLabel<UpgradeRefusal, Counter>,
    /// Open subscriptions of this shard.
    pub subscriptions_active: Gauge,
    /// EVENT messages.
    pub events_received: ByLabel<EventOutcome, Counter>,
    /// Other messages turned away.
    pub messages_refused: ByLabel<MessageRefusal, Counter>,
    /// Messages above a rate.
    pub rate_limited: ByLabel<RateKind, Counter>,
    /// Live events queued.
    pub events_delivered: Counter,
    /// Turns of reader threads.
    pub reader_turns: Counter,
    /// Events not sent.
    pub events_dropped: ByLabel<DropReason, Counter>,
    /// Questions to the store.
    pub queries: ByLabel<QueryKind, Counter>,
    /// Time to their last row.
    pub query_seconds: ByLabel<QueryKind, Histogram>,
    /// Login attempts.
    pub auth_attempts: Counter,
    /// How they ended.
    pub auth_outcomes: ByLabel<AuthOutcome, Counter>,
    /// Connections of this shard that the drain has yet to end.
    pub drain_remaining: Gauge,
    /// How it ended them.
    pub drain_closes: ByLabel<DrainClose, Counter>,
}

impl ShardMetrics {
    /// Takes the handles; the shard's own series exist from here on.
    pub fn new(shard: usize) -> ShardMetrics {
        let own = [("shard", shard.to_string())];
        let nip42 = [(AuthMethod::NAME, AuthMethod::Nip42.as_label().to_owned())];
        ShardMetrics {
            connections_active: series::CONNECTIONS_ACTIVE.gauge(&own),
            connections: series::CONNECTIONS.counter(&own),
            authenticated_active: series::AUTHENTICATED_ACTIVE.gauge(&[]),
            backpressure_disconnects: series::BACKPRESSURE_DISCONNECTS.counter(&[]),
            queued_bytes: series::QUEUED_BYTES.gauge(&own),
            closes: ByLabel::counters(&series::CLOSES, &[]),
            panics: series::PANICS.counter(&[]),
            accept_errors: ByLabel::counters(&series::ACCEPT_ERRORS, &[]),
            upgrades_refused: ByLabel::counters(&series::UPGRADES_REFUSED, &[]),
            subscriptions_active: series::SUBSCRIPTIONS_ACTIVE.gauge(&own),
            events_received: ByLabel::counters(&series::EVENTS_RECEIVED, &[]),
            messages_refused: ByLabel::counters(&series::MESSAGES_REFUSED, &[]),
            rate_limited: ByLabel::counters(&series::RATE_LIMITED, &[]),
            events_delivered: series::EVENTS_DELIVERED.counter(&[]),
            reader_turns: series::READER_TURNS.counter(&[]),
            events_dropped: ByLabel::counters(&series::EVENTS_DROPPED, &[]),
            queries: ByLabel::counters(&series::QUERIES, &[]),
            query_seconds: ByLabel::histograms(&series::QUERY_SECONDS),
            auth_attempts: series::AUTH_ATTEMPTS.counter(&nip42),
            auth_outcomes: ByLabel::counters(&series::AUTH_OUTCOMES, &nip42),
            drain_remaining: series::DRAIN_REMAINING.gauge(&own),
            drain_closes: ByLabel::counters(&series::DRAIN_CLOSES, &[]),
        }
    }
}

/// The handles of one gate. Every thread that needs them takes its own.
#[derive(Debug)]
pub struct GateMetrics {
    /// The applied limit; 0 is none. This and the next three are set together, from one snapshot.
    pub limit: Gauge,
    /// Permits in use.
    pub in_flight: Gauge,
    /// Waiters.
    pub waiting: Gauge,
    /// Work in flight above the limit.
    pub debt: Gauge,
    /// Work turned away.
    pub sheds: ByLabel<ShedReason, Counter>,
    /// From asking to being admitted or shed.
    pub wait: Histogram,
    /// From being admitted to the release.
    pub hold: Histogram,
}

impl GateMetrics {
    /// Takes the handles.
    pub fn new(gate: GateName) -> GateMetrics {
        let own = [(GateName::NAME, gate.as_label().to_owned())];
        GateMetrics {
            limit: series::CONCURRENCY_LIMIT.gauge(&own),
            in_flight: series::CONCURRENCY_IN_FLIGHT.gauge(&own),
            waiting: series::CONCURRENCY_WAITING.gauge(&own),
            debt: series::CONCURRENCY_DEBT.gauge(&own),
            sheds: ByLabel::counters(&series::CONCURRENCY_SHEDS, &own),
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
pub fn store_commit_seconds() -> Histogram {
    series::STORE_COMMIT_SECONDS.histogram(&[])
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
        .gauge(&[("version", env!("CARGO_PKG_VERSION").to_owned())])
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
mod tests {
    use super::*;

    fn lines(text: &str, series: &str) -> Vec<String> {
        let of = |line: &&str| line.split(['{', ' ']).next() == Some(series);
        text.lines().filter(of).map(str::to_owned).collect()
    }

    #[test]
    fn names_follow_their_kind() {
        for series in SERIES {
            let name = series.name;
            assert!(
                name.starts_with("buzz_") && !series.help.is_empty(),
                "{name}"
            );
            assert_eq!(
                name.ends_with("_total"),
                series.kind == Kind::Counter,
                "{name}"
            );
            if series.kind == Kind::Histogram {
                assert!(name.ends_with("_seconds"), "{name}");
            }
            assert_eq!(
                SERIES.iter().filter(|other| other.name == name).count(),
                1,
                "{name}"
            );
        }
    }

    #[test]
    fn closed_series_exist_at_zero_from_start() {
        let text = recorded(|| ());
        for series in SERIES.iter().filter(|series| series.kind == Kind::Counter) {
            let shown = lines(&text, series.name);
            assert_eq!(
                shown.len(),
                combinations(series.labels).len(),
                "{}",
                series.name
            );
            assert!(shown.iter().all(|line| line.ends_with(" 0")), "{shown:?}");
        }
        let sheds = lines(&text, "buzz_concurrency_sheds_total");
        assert_eq!(sheds.len(), 2 * 3);
        assert!(
            sheds.contains(
                &"buzz_concurrency_sheds_total{gate=\"history_reads\",reason=\"full\"} 0".into()
            ),
            "{sheds:?}"
        );
        assert!(
            text.contains("buzz_concurrency_wait_seconds_count{gate=\"auth\"} 0"),
            "{text}"
        );
        assert!(text.contains("buzz_concurrency_hold_seconds_bucket{gate=\"auth\",le=\"0.01\"} 0"));
        assert!(text.contains("buzz_store_commit_seconds_sum 0"), "{text}");
        assert!(text.contains("# HELP buzz_concurrency_debt "), "{text}");
        assert_eq!(lines(&text, "buzz_auth_outcomes_total").len(), 10);
        // Only the chosen provider has a ready gauge.
        assert!(!text.contains("buzz_feature_flags_ready"), "{text}");
        assert!(!text.contains("remembered_age"), "{text}");
    }

    #[test]
    fn a_shard_s_series_exist_once_it_has_its_handles() {
        let text = recorded(|| {
            let shard = ShardMetrics::new(3);
            shard.connections.increment(2);
            shard.closes.of(CloseReason::TooBig).increment(1);
            shard.query_seconds.of(QueryKind::Count).record(0.2);
            ShardMetrics::new(4)
                .auth_outcomes
                .of(AuthOutcome::Banned)
                .increment(1);
        });
        assert!(
            text.contains("buzz_ws_connections_total{shard=\"3\"} 2"),
            "{text}"
        );
        assert!(
            text.contains("buzz_ws_connections_total{shard=\"4\"} 0"),
            "{text}"
        );
        assert!(
            text.contains("buzz_drain_connections_remaining{shard=\"4\"} 0"),
            "{text}"
        );
        assert!(
            text.contains("buzz_ws_closes_total{reason=\"too_big\"} 1"),
            "{text}"
        );
        assert!(text.contains("buzz_query_seconds_bucket{kind=\"count\",le=\"0.25\"} 1"));
        assert!(text.contains("buzz_query_seconds_bucket{kind=\"count\",le=\"0.1\"} 0"));
        let banned = "buzz_auth_outcomes_total{method=\"nip42\",outcome=\"banned\"} 1";
        assert!(text.contains(banned), "{text}");
    }

    #[test]
    fn a_gate_and_the_driver() {
        let text = recorded(|| {
            let gate = GateMetrics::new(GateName::Auth);
            gate.limit.set(4.0);
            gate.sheds.of(ShedReason::Timeout).increment(3);
            set_driver(Driver::Epoll);
        });
        assert!(
            text.contains("buzz_concurrency_limit{gate=\"auth\"} 4"),
            "{text}"
        );
        assert!(
            text.contains("sheds_total{gate=\"auth\",reason=\"timeout\"} 3"),
            "{text}"
        );
        assert!(
            text.contains("buzz_io_driver{driver=\"epoll\"} 1"),
            "{text}"
        );
        assert!(
            text.contains("buzz_io_driver{driver=\"io_uring\"} 0"),
            "{text}"
        );
    }

    #[test]
    fn label_texts_are_unique() {
        fn check<L: Label>(all: &[L]) {
            assert_eq!(all.len(), L::TEXTS.len());
            let mut texts: Vec<_> = all.iter().map(|label| label.as_label()).collect();
            texts.sort_unstable();
            texts.dedup();
            assert_eq!(texts.len(), all.len(), "{}", L::NAME);
        }
        check(CloseReason::ALL);
        check(DropReason::ALL);
        check(AuthOutcome::ALL);
        check(UpgradeRefusal::ALL);
    }
}
