//! The table of settings: one row is one environment variable and the same long option.
//!
//! Everything an operator can set is here and nowhere else: parsing, `--help` and `check-config`
//! are driven by it, so they cannot disagree. A row's meaning is given to it by `config`, which a
//! test holds to read every row.

use crate::limits;

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// The environment variable, such as `BUZZ_DRAIN_JITTER_MS`.
    pub variable: &'static str,
    /// The value used when neither option nor variable gives one.
    pub default: Preset,
    /// Unit or form of the value, as shown in help and messages.
    pub unit: &'static str,
    /// One sentence for an operator.
    pub help: &'static str,
    /// Heading under which help lists it.
    pub section: &'static str,
    /// No option, and masked wherever it could be printed: options show up in process lists.
    pub secret: bool,
    /// Takes effect when a running relay reads its settings file again.
    pub reread: bool,
    /// `true` or `false`; the bare option means `true`.
    pub switch: bool,
}

/// The default of a setting.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Preset {
    /// Unset.
    Nothing,
    /// A text.
    Text(&'static str),
    /// A whole number.
    Number(u64),
    /// Found out at start; this says how.
    Found(&'static str),
}

impl Setting {
    const fn reread(mut self) -> Setting {
        self.reread = true;
        self
    }

    /// The long option, without its dashes: `drain-jitter-ms`. None for a secret.
    pub fn option(&self) -> Option<String> {
        if self.secret {
            return None;
        }
        let name = self.variable.strip_prefix("BUZZ_").unwrap_or(self.variable);
        Some(name.to_ascii_lowercase().replace('_', "-"))
    }

    /// The default as help shows it.
    pub fn default_text(&self) -> String {
        match self.default {
            Preset::Nothing => "none".to_owned(),
            Preset::Text(text) | Preset::Found(text) => text.to_owned(),
            Preset::Number(number) => number.to_string(),
        }
    }
}

/// The row of a variable.
pub fn setting(variable: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.variable == variable)
}

const fn row(
    section: &'static str,
    variable: &'static str,
    default: Preset,
    unit: &'static str,
    help: &'static str,
) -> Setting {
    Setting {
        variable,
        default,
        unit,
        help,
        section,
        secret: false,
        reread: false,
        switch: false,
    }
}

const fn switch(section: &'static str, variable: &'static str, help: &'static str) -> Setting {
    Setting {
        variable,
        default: Preset::Text("false"),
        unit: "true or false",
        help,
        section,
        secret: false,
        reread: false,
        switch: true,
    }
}

const fn secret(section: &'static str, variable: &'static str, help: &'static str) -> Setting {
    Setting {
        variable,
        default: Preset::Nothing,
        unit: "text",
        help,
        section,
        secret: true,
        reread: false,
        switch: false,
    }
}

const fn count(number: usize) -> Preset {
    Preset::Number(number as u64)
}

const FILE: &str = "Settings file";
const NETWORK: &str = "Network";
const STORE: &str = "Store";
const BOUNDS: &str = "Bounds of connections and messages";
const RATES: &str = "Rates, and bounds by address";
const ACCESS: &str = "Identity and access";
const DRAIN: &str = "Drain";
const FLAGS: &str = "Feature flags";
const LOGS: &str = "Logs";

/// Every setting, in the order that help and `check-config` show.
#[rustfmt::skip] // a table reads better with one row a line
pub const SETTINGS: &[Setting] = &[
    row(FILE, "BUZZ_CONFIG", Preset::Nothing, "file", "Settings as NAME=value lines, for what is neither an option nor a variable; SIGHUP reads it again"),

    row(NETWORK, "BUZZ_BIND_ADDR", Preset::Text("0.0.0.0:3000"), "address:port", "Where clients connect; port 0 picks a free one"),
    row(NETWORK, "BUZZ_HEALTH_BIND", Preset::Text("0.0.0.0"), "address", "Address of the health server"),
    row(NETWORK, "BUZZ_HEALTH_PORT", Preset::Number(limits::HEALTH_PORT_DEFAULT as u64), "port", "Port of the health server: /_liveness, /_readiness, /_status"),
    row(NETWORK, "BUZZ_METRICS_BIND", Preset::Text("0.0.0.0"), "address", "Address of the metrics server"),
    row(NETWORK, "BUZZ_METRICS_PORT", Preset::Number(limits::METRICS_PORT_DEFAULT as u64), "port", "Port of the metrics server: /metrics"),
    row(NETWORK, "BUZZ_SHARDS", Preset::Found("CPUs the process may use"), "threads", "Shard threads, one a CPU"),
    row(NETWORK, "BUZZ_IO_DRIVER", Preset::Text("auto"), "auto, io_uring or epoll", "How shards do I/O; auto falls back to epoll and says why"),

    row(STORE, "BUZZ_STORE", Preset::Text("embedded"), "embedded or postgres", "Where events are kept"),
    row(STORE, "BUZZ_DATA_DIR", Preset::Text("./data"), "folder", "Embedded store, control socket, remembered caps"),
    secret(STORE, "DATABASE_URL", "PostgreSQL to write to and read from"),
    secret(STORE, "READ_DATABASE_URL", "PostgreSQL to read from, when it is another one"),
    row(STORE, "BUZZ_DB_POOL_SIZE", count(limits::DB_POOL_DEFAULT), "connections", "Writer connections to PostgreSQL"),
    row(STORE, "BUZZ_DB_WAIT_MS", Preset::Number(limits::DB_WAIT_MS_DEFAULT), "milliseconds", "Time that a start waits for the database to answer"),
    row(STORE, "BUZZ_DB_READ_POOL_SIZE", count(limits::DB_READ_POOL_DEFAULT), "connections", "Reader connections; with either store four fifths of it is the ceiling of history reads"),
    row(STORE, "BUZZ_STORE_MAX_BYTES", count(limits::STORE_MAP_BYTES_DEFAULT), "bytes", "What the embedded store's file may grow to; a little before, events are refused"),
    row(STORE, "BUZZ_RETENTION", Preset::Nothing, "rules", "What is kept for how long, by kinds: 'kinds=0,3 keep; kinds=1,6,7 age=90d; kinds=* age=2y count=1000000'; the first rule that has the kind applies"),

    row(BOUNDS, "BUZZ_MAX_CONNECTIONS", count(limits::CONNECTIONS_DEFAULT), "connections", "Connections of all shards; at most 45 % of the descriptor limit"),
    row(BOUNDS, "BUZZ_MAX_FRAME_BYTES", count(limits::FRAME_BYTES_DEFAULT), "bytes", "Longest message a client may send"),
    row(BOUNDS, "BUZZ_OUTBOX_HARD_BYTES", count(limits::OUTBOX_HARD_BYTES_DEFAULT), "bytes", "Queue of one connection at which it is disconnected"),
    row(BOUNDS, "BUZZ_OUTBOX_SOFT_BYTES", count(limits::OUTBOX_SOFT_BYTES_DEFAULT), "bytes", "Queue of one connection that it may exceed only for a while"),
    row(BOUNDS, "BUZZ_OUTBOX_SOFT_SECONDS", Preset::Number(limits::OUTBOX_SOFT_SECONDS_DEFAULT), "seconds", "How long a queue may stay above its soft bound"),
    row(BOUNDS, "BUZZ_OUTBOX_TOTAL_BYTES", count(limits::OUTBOX_TOTAL_BYTES_DEFAULT), "bytes", "Queues of all connections; past it the largest are disconnected"),
    row(BOUNDS, "BUZZ_PING_SECONDS", Preset::Number(limits::PING_SECONDS_DEFAULT), "seconds", "Time between pings; a client that leaves three unanswered is dropped"),
    row(BOUNDS, "BUZZ_MAX_SUBSCRIPTIONS", count(limits::SUBSCRIPTIONS_DEFAULT), "subscriptions", "Subscriptions of one connection"),
    row(BOUNDS, "BUZZ_MAX_FILTERS", count(limits::FILTERS_DEFAULT), "filters", "Filters of one REQ"),
    row(BOUNDS, "BUZZ_MAX_FILTER_VALUES", count(limits::FILTER_VALUES_DEFAULT), "values", "Values in all filters of one connection"),
    row(BOUNDS, "BUZZ_MAX_VALUES_PER_FILTER", count(limits::VALUES_PER_FILTER_DEFAULT), "values", "Values in one filter"),
    row(BOUNDS, "BUZZ_MAX_LIMIT", count(limits::LIMIT_MAX_DEFAULT), "events", "Events that one filter may ask for").reread(),
    row(BOUNDS, "BUZZ_DEFAULT_LIMIT", count(limits::LIMIT_DEFAULT), "events", "Events that a filter without a limit gets").reread(),
    row(BOUNDS, "BUZZ_MAX_SUBID_LENGTH", count(limits::SUBID_LENGTH_DEFAULT), "characters", "Longest subscription id"),
    row(BOUNDS, "BUZZ_CREATED_AT_PAST_SECONDS", Preset::Nothing, "seconds", "Oldest accepted created_at, back from now").reread(),
    row(BOUNDS, "BUZZ_CREATED_AT_FUTURE_SECONDS", Preset::Number(limits::CREATED_AT_FUTURE_SECONDS_DEFAULT), "seconds", "Newest accepted created_at, ahead of now").reread(),
    row(BOUNDS, "BUZZ_MIN_POW_DIFFICULTY", Preset::Number(0), "bits", "Proof of work (NIP-13) that an event must carry and commit to; 0 asks for none").reread(),

    row(RATES, "BUZZ_RATE_MESSAGES_PER_SECOND", Preset::Nothing, "messages", "Messages of one connection; more are answered rate-limited").reread(),
    row(RATES, "BUZZ_RATE_BYTES_PER_SECOND", Preset::Nothing, "bytes", "Bytes of messages of one connection; more are answered rate-limited").reread(),
    row(RATES, "BUZZ_RATE_BURST_SECONDS", Preset::Number(limits::RATE_BURST_SECONDS_DEFAULT), "seconds", "How long a connection may save up what these rates allow").reread(),
    row(RATES, "BUZZ_MAX_CONNECTIONS_PER_ADDRESS", Preset::Nothing, "connections", "Connections of one address; an IPv6 /64 is one").reread(),
    row(RATES, "BUZZ_RATE_CONNECTIONS_PER_MINUTE", Preset::Nothing, "connections", "New connections of one address").reread(),
    row(RATES, "BUZZ_TRUSTED_PROXIES", Preset::Nothing, "addresses or networks, with commas", "Proxies whose X-Forwarded-For says who the client is").reread(),

    row(ACCESS, "BUZZ_RELAY_URL", Preset::Text("ws://localhost:3000"), "ws or wss URL", "The relay's own address, which logins (NIP-42) and requests to vanish (NIP-62) must name"),
    switch(ACCESS, "BUZZ_REQUIRE_AUTH", "Serve only clients that have logged in"),
    switch(ACCESS, "BUZZ_PUBKEY_ALLOWLIST", "Serve only keys on the allow-list; implies a login"),
    switch(ACCESS, "BUZZ_REQUIRE_RELAY_MEMBERSHIP", "Serve only members; implies a login"),
    row(ACCESS, "BUZZ_NAME", Preset::Text("buzz-uring"), "text", "Name in the information document (NIP-11)").reread(),
    row(ACCESS, "BUZZ_DESCRIPTION", Preset::Nothing, "text", "Description in the information document").reread(),
    row(ACCESS, "BUZZ_PUBKEY", Preset::Nothing, "64 lower-case hex digits", "The operator's public key, in the information document").reread(),
    row(ACCESS, "BUZZ_CONTACT", Preset::Nothing, "text", "How to reach the operator, in the information document").reread(),
    row(ACCESS, "BUZZ_ICON", Preset::Nothing, "http or https URL", "Picture in the information document").reread(),

    row(DRAIN, "BUZZ_DRAIN_JITTER_MS", Preset::Number(limits::DRAIN_JITTER_MS_DEFAULT), "milliseconds", "Window over which a restart spreads its closes; 0 closes all at once; above 20000 is 20000").reread(),
    row(DRAIN, "BUZZ_DRAIN_GRACE_MS", Preset::Number(limits::DRAIN_GRACE_MS_DEFAULT), "milliseconds", "Between the signal and the first close").reread(),
    row(DRAIN, "BUZZ_HARD_STOP_MS", Preset::Number(limits::HARD_STOP_MS_DEFAULT), "milliseconds", "From the end of the grace until the process exits whatever is left").reread(),

    row(FLAGS, "BUZZ_FEATURE_FLAGS_PROVIDER", Preset::Text("static"), "static, environment or launchdarkly", "Where the caps' flags come from"),
    secret(FLAGS, "BUZZ_LAUNCHDARKLY_SDK_KEY", "LaunchDarkly server key; required with provider launchdarkly"),
    secret(FLAGS, "BUZZ_LAUNCHDARKLY_RELAY_PROXY_URL", "Relay Proxy that all LaunchDarkly traffic then goes to"),
    switch(FLAGS, "BUZZ_REMEMBER_CAPS", "Start with the last caps (at most 24 h old) while LaunchDarkly has not delivered"),

    row(LOGS, "BUZZ_LOG", Preset::Text("info"), "off, error, warn, info, debug or trace", "Least severe log lines that are written").reread(),
];
