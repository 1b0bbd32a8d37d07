//! The table of series. A row says all that Prometheus shows: name, kind, labels, help.

use metrics::{Counter, Gauge, Histogram};

use super::labels::{
    AcceptError, AuthMethod, AuthOutcome, CloseReason, DrainClose, Driver, DropReason,
    EventOutcome, GateName, ImportOutcome, Label, MessageRefusal, QueryKind, RateKind,
    RemovalReason, ShedReason, TransferKind, UpgradeRefusal,
};

/// One series, or one family of them by label.
#[derive(Debug)]
pub struct Series {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its labels.
    pub labels: &'static [Dimension],
    /// What it means, for the HELP line.
    pub help: &'static str,
}

/// What a series is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes both ways.
    Gauge,
    /// Seconds, in the buckets of [`SECONDS_BUCKETS`].
    Histogram,
}

/// One label of a series.
#[derive(Debug)]
pub enum Dimension {
    /// All values are known here, so every one of them exists from start.
    Closed(&'static str, &'static [&'static str]),
    /// The values are known to whoever owns the series at start (a shard's number, a version).
    AtStart(&'static str),
}

/// Upper bounds of the histograms' buckets, in seconds: a hot read of 0.1 ms up to the longest wait.
pub const SECONDS_BUCKETS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0,
    5.0,
];

impl Series {
    /// The handle under these labels; it exists, at zero, from this call on.
    pub fn counter(&self, labels: &[(&'static str, String)]) -> Counter {
        assert_eq!(self.kind, Kind::Counter, "{}", self.name);
        metrics::counter!(self.name, labels)
    }

    /// The handle under these labels; it exists, at zero, from this call on.
    pub fn gauge(&self, labels: &[(&'static str, String)]) -> Gauge {
        assert_eq!(self.kind, Kind::Gauge, "{}", self.name);
        metrics::gauge!(self.name, labels)
    }

    /// The handle under these labels; it exists, empty, from this call on.
    pub fn histogram(&self, labels: &[(&'static str, String)]) -> Histogram {
        assert_eq!(self.kind, Kind::Histogram, "{}", self.name);
        metrics::histogram!(self.name, labels)
    }
}

const fn closed<L: Label>() -> Dimension {
    Dimension::Closed(L::NAME, L::TEXTS)
}

const GATE: Dimension = closed::<GateName>();
const SHARD: Dimension = Dimension::AtStart("shard");

macro_rules! table {
    ($($constant:ident = $kind:ident $name:literal [$($label:expr),*] $help:literal;)*) => {
        $(#[doc = $help] pub static $constant: Series = Series {
            name: $name,
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)*

        /// Every series.
        pub static SERIES: &[&Series] = &[$(&$constant),*];
    };
}

table! {
    BUILD_INFO = Gauge "buzz_build_info" [Dimension::AtStart("version")]
        "Always 1; the label says which version runs";
    START_TIME = Gauge "buzz_start_time_seconds" []
        "When the process started, in seconds since 1970";
    IO_DRIVER = Gauge "buzz_io_driver" [closed::<Driver>()]
        "1 for the driver that the shards run on";
    LOG_LINES_DROPPED = Counter "buzz_log_lines_dropped_total" []
        "Log lines dropped because whoever reads standard error was too slow";

    CONCURRENCY_LIMIT = Gauge "buzz_concurrency_limit" [GATE]
        "The applied limit of a gate; 0 is no limit";
    CONCURRENCY_IN_FLIGHT = Gauge "buzz_concurrency_in_flight" [GATE]
        "Permits of a gate in use";
    CONCURRENCY_WAITING = Gauge "buzz_concurrency_waiting" [GATE]
        "Waiters of a gate";
    CONCURRENCY_DEBT = Gauge "buzz_concurrency_debt" [GATE]
        "Work in flight above a gate's limit, after a lowering";
    CONCURRENCY_SHEDS = Counter "buzz_concurrency_sheds_total" [GATE, closed::<ShedReason>()]
        "Work that a gate turned away, by reason";
    CONCURRENCY_WAIT = Histogram "buzz_concurrency_wait_seconds" [GATE]
        "Time from asking a gate to being admitted or shed";
    CONCURRENCY_HOLD = Histogram "buzz_concurrency_hold_seconds" [GATE]
        "Time that a permit was held";
    CONCURRENCY_REFRESH_PANICS = Counter "buzz_concurrency_limit_refresh_panics_total" []
        "Refreshes of the limits that panicked; the next one tries again";
    CONCURRENCY_REMEMBERED_AGE = Gauge "buzz_concurrency_remembered_age_seconds"
        [Dimension::AtStart("gate")]
        "Age of a remembered cap, while one is applied";
    FLAGS_READY = Gauge "buzz_feature_flags_ready" [Dimension::AtStart("provider")]
        "1 once the chosen provider has delivered";
    FLAGS_LAST_REFRESH = Gauge "buzz_feature_flags_last_refresh_timestamp_seconds" []
        "When the last refresh finished, in seconds since 1970; 0 before the first";
    FLAG_MISTYPED = Counter "buzz_feature_flag_mistyped_total" [Dimension::AtStart("flag")]
        "Flag values that were not integers: the default applied, so a cap may be looser than meant";

    AUTH_ATTEMPTS = Counter "buzz_auth_attempts_total" [closed::<AuthMethod>()]
        "Login attempts: AUTH messages, and connections that had to log in and ended without one";
    AUTH_OUTCOMES = Counter "buzz_auth_outcomes_total"
        [closed::<AuthMethod>(), closed::<AuthOutcome>()]
        "How login attempts ended";

    ACCEPT_ERRORS = Counter "buzz_accept_errors_total" [closed::<AcceptError>()]
        "Accepts that failed; the listener paused and went on";
    UPGRADES_REFUSED = Counter "buzz_ws_upgrades_refused_total" [closed::<UpgradeRefusal>()]
        "Upgrades refused before their handshake";
    CONNECTIONS_ACTIVE = Gauge "buzz_ws_connections_active" [SHARD]
        "Open WebSocket connections";
    CONNECTIONS = Counter "buzz_ws_connections_total" [SHARD]
        "WebSocket connections ever opened";
    AUTHENTICATED_ACTIVE = Gauge "buzz_ws_authenticated_connections_active" []
        "Open connections with at least one login";
    BACKPRESSURE_DISCONNECTS = Counter "buzz_ws_backpressure_disconnects_total" []
        "Clients disconnected because they read too slowly";
    QUEUED_BYTES = Gauge "buzz_ws_queued_bytes" [SHARD]
        "Bytes that wait to be written to open connections";
    CLOSES = Counter "buzz_ws_closes_total" [closed::<CloseReason>()]
        "WebSocket connections that ended, by reason";
    PANICS = Counter "buzz_ws_panics_total" []
        "Panics caught; each ended one connection";
    SUBSCRIPTIONS_ACTIVE = Gauge "buzz_subscriptions_active" [SHARD]
        "Open subscriptions";

    EVENTS_RECEIVED = Counter "buzz_events_received_total" [closed::<EventOutcome>()]
        "EVENT messages by what became of them";
    RATE_LIMITED = Counter "buzz_rate_limited_total" [closed::<RateKind>()]
        "Messages answered rate-limited, by which rate they were above";
    MESSAGES_REFUSED = Counter "buzz_messages_refused_total" [closed::<MessageRefusal>()]
        "Messages turned away that were no EVENT or AUTH, by reason";
    EVENTS_DELIVERED = Counter "buzz_events_delivered_total" []
        "Live events queued to subscribers";
    EVENTS_DROPPED = Counter "buzz_events_dropped_total" [closed::<DropReason>()]
        "Events not sent to a subscriber, by reason";
    EVENTS_REMOVED = Counter "buzz_events_removed_total" [closed::<RemovalReason>()]
        "Events that the store removed, by reason";
    QUERIES = Counter "buzz_queries_total" [closed::<QueryKind>()]
        "Questions to the store";
    QUERY_SECONDS = Histogram "buzz_query_seconds" [closed::<QueryKind>()]
        "Time from a question to its last row";
    READER_TURNS = Counter "buzz_reader_turns_total" []
        "Turns of reader threads: questions that met pages that were not in memory";
    STORE_COMMIT_SECONDS = Histogram "buzz_store_commit_seconds" []
        "Time of a commit, its sync included";
    STORE_USED = Gauge "buzz_store_used_bytes" []
        "Bytes of the store's file in use, without its free pages";
    STORE_FREE = Gauge "buzz_store_free_bytes" []
        "Bytes of free pages in the store's file, used again before it grows";
    STORE_MAX = Gauge "buzz_store_max_bytes" []
        "Bytes in use at which the store refuses events";

    TRANSFERS_ACTIVE = Gauge "buzz_transfers_active" [closed::<TransferKind>()]
        "Imports and exports that run through this relay";
    IMPORT_EVENTS = Counter "buzz_import_events_total" [closed::<ImportOutcome>()]
        "Events of imports through this relay, by what became of them";

    DRAIN_REMAINING = Gauge "buzz_drain_connections_remaining" [SHARD]
        "Connections that the drain has yet to end";
    DRAIN_CLOSES = Counter "buzz_drain_closes_total" [closed::<DrainClose>()]
        "Connections that the drain ended, by how";
}
