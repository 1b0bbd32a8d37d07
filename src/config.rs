//! Raw settings to a configuration. After this nobody sees a string.
//!
//! [`Config::resolve`] is pure: it takes what was typed and what the machine gives, and opens
//! nothing. Junk is a [`ConfigError`] that names each faulty variable and the accepted form. Where
//! one setting bounds another, an explicit conflict is a fault, while a default gives way and a note
//! says so.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use axum::http::Uri;
use tracing::level_filters::LevelFilter;

use crate::bucket::Rate;
use crate::cli::{Origin, Raw};
use crate::limits;
use crate::secret::Secret;
use crate::store::retention::Retention;

mod file;
mod given;
mod machine;
mod network;
mod read;
mod render;
mod reread;
mod retention;
#[cfg(test)]
mod tests;

pub use given::{Given, Meeting};
pub use machine::Machine;
pub use network::Network;
use read::{Reader, Resolved};
pub use reread::{Applied, Changes, Waiting};

/// Everything an operator decided, typed and checked against each other.
#[derive(Clone, Debug)]
pub struct Config {
    /// The settings file, which was read already when there is one.
    pub file: Option<PathBuf>,
    /// Shard threads; shard `i` is pinned to `cpus[i % cpus.len()]`.
    pub shards: usize,
    /// CPUs the process may use. Never empty.
    pub cpus: Vec<usize>,
    /// How shards do I/O.
    pub io_driver: IoDriver,
    /// Take the listening sockets of the relay that runs on the data folder.
    pub take_over: bool,
    /// Where clients connect.
    pub bind: SocketAddr,
    /// Where the health server listens.
    pub health: SocketAddr,
    /// Where the metrics server listens.
    pub metrics: SocketAddr,
    /// Folder of the embedded store, the control socket and the remembered caps.
    pub data_dir: PathBuf,
    /// Where events are kept.
    pub store: StoreKind,
    /// Writer connections to PostgreSQL.
    pub db_pool: usize,
    /// Reader connections; also sets the history ceiling.
    pub db_read_pool: usize,
    /// Time that a start waits for the database.
    pub db_wait: Duration,
    /// Bytes that the embedded store's file may grow to.
    pub store_bytes_max: usize,
    /// How long events are kept.
    pub retention: Retention,
    /// Connections of all shards together.
    pub connections_max: usize,
    /// Bytes of one message from a client.
    pub frame_bytes_max: usize,
    /// Bounds of the outbound queues.
    pub outbox: OutboxBounds,
    /// Time between pings of an open connection.
    pub ping: Duration,
    /// Subscriptions of one connection.
    pub subscriptions_max: usize,
    /// Filters of one REQ.
    pub filters_max: usize,
    /// Values in all filters of one connection.
    pub filter_values_max: usize,
    /// Values in one filter; at most `filter_values_max`.
    pub values_per_filter_max: usize,
    /// What one connection may send in a time.
    pub rates: Rates,
    /// Bounds on the connections of one address.
    pub addresses: AddressBounds,
    /// Proxies that say who the client is.
    pub trusted_proxies: Vec<Network>,
    /// Events that one filter may ask for.
    pub limit_max: usize,
    /// Events that a filter without a limit gets; at most `limit_max`.
    pub limit_default: usize,
    /// Characters of a subscription id.
    pub subid_length_max: usize,
    /// Seconds that `created_at` may lie back; None: any.
    pub created_at_past: Option<u64>,
    /// Seconds that `created_at` may lie ahead.
    pub created_at_future: u64,
    /// Leading zero bits that an id must have (NIP-13); 0: any.
    pub pow_difficulty_min: u8,
    /// The relay's own address, an absolute ws or wss URL.
    pub relay_url: String,
    /// Texts of the information document (NIP-11).
    pub info: InfoTexts,
    /// Serve only clients that have logged in (set by hand; see [`Config::login_required`]).
    pub require_auth: bool,
    /// Serve only keys on the allow-list.
    pub pubkey_allowlist: bool,
    /// Serve only members.
    pub require_membership: bool,
    /// Times of the drain.
    pub drain: DrainBudget,
    /// Where the caps' flags come from.
    pub flags: FlagsChoice,
    /// Keep the last caps in the data folder, for a start during an outage of LaunchDarkly.
    pub remember_caps: bool,
    /// Least severe log lines that are written.
    pub log_level: LevelFilter,
    /// What to say at start: clamps, and settings without effect. One sentence each.
    pub notes: Vec<String>,
    resolved: BTreeMap<&'static str, Resolved>,
}

/// How shards do I/O.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IoDriver {
    /// io_uring where the kernel lets us, else epoll.
    Auto,
    /// io_uring, or no start.
    IoUring,
    /// epoll.
    Epoll,
}

/// Where events are kept.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StoreKind {
    /// LMDB in the data folder.
    Embedded,
    /// PostgreSQL.
    Postgres {
        /// Database to write to.
        url: Secret,
        /// Database to read from, when it is another one.
        read_url: Option<Secret>,
    },
}

/// Bounds of the outbound queues: `soft_bytes <= hard_bytes <= total_bytes`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OutboxBounds {
    /// A connection whose queue reaches this is disconnected.
    pub hard_bytes: usize,
    /// A queue may be above this only for `soft`.
    pub soft_bytes: usize,
    /// How long a queue may be above `soft_bytes`.
    pub soft: Duration,
    /// Queues of all connections; past it the largest are disconnected.
    pub total_bytes: usize,
}

/// What one connection may send in a time; `None` is as much as it likes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rates {
    /// Messages.
    pub messages: Option<Rate>,
    /// Bytes of messages.
    pub bytes: Option<Rate>,
}

/// Bounds on the connections of one address; `None` is none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AddressBounds {
    /// Open at one time.
    pub connections_max: Option<usize>,
    /// Opened in a time.
    pub opened: Option<Rate>,
}

/// Texts of the information document (NIP-11).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct InfoTexts {
    /// The relay's name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// The operator's key: 64 lower-case hex digits.
    pub pubkey: Option<String>,
    /// How to reach the operator.
    pub contact: Option<String>,
    /// URL of a picture.
    pub icon: Option<String>,
}

/// Times of the drain. The window, the flush of its last close and that client's answer fit before
/// the hard stop.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DrainBudget {
    /// Window over which closes are spread; zero: all at once.
    pub jitter: Duration,
    /// Between the signal and the first close.
    pub grace: Duration,
    /// From the end of the grace to the exit, whatever is left.
    pub hard_stop: Duration,
}

/// Where the caps' flags come from: exactly one provider.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FlagsChoice {
    /// Always the declared defaults.
    Static,
    /// Variables, as they were at start: name to text.
    Environment(BTreeMap<String, Secret>),
    /// LaunchDarkly.
    LaunchDarkly {
        /// Server key.
        sdk_key: Secret,
        /// Relay Proxy that takes all traffic, without a slash at its end.
        relay_proxy: Option<Secret>,
    },
}

/// The words for log levels, as `BUZZ_LOG` takes them.
pub const LOG_LEVELS: &[(&str, LevelFilter)] = &[
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// Bad settings. Prints one line a fault, each naming its variable and the accepted form.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}", .faults.join("\n"))]
pub struct ConfigError {
    /// At least one.
    pub faults: Vec<String>,
}

impl Config {
    /// Types and checks what was given.
    ///
    /// # Errors
    ///
    /// Every fault found, not only the first.
    pub fn resolve(raw: &Raw, machine: &Machine) -> Result<Config, ConfigError> {
        let mut whole = Reader::new(raw);
        let reader = &mut whole;
        for name in raw.unknown() {
            reader.note(format!(
                "{name} is not a setting and has no effect; see --help"
            ));
        }

        let (bind, health, metrics) = addresses(reader);
        let flags = flags(reader, raw);
        let limit_max = reader.count("BUZZ_MAX_LIMIT", 1..=limits::COUNT_SETTING_MAX);
        let frame_bytes_max = reader.count(
            "BUZZ_MAX_FRAME_BYTES",
            limits::FRAME_BYTES_MIN..=limits::FRAME_BYTES_MAX,
        );
        let store = store(reader);
        let (store_bytes_max, retention) = keeping(reader, &store, frame_bytes_max);
        let counts = 1..=limits::COUNT_SETTING_MAX;
        let filter_values_max = reader.count("BUZZ_MAX_FILTER_VALUES", counts.clone());
        let seconds = 0..=limits::SECONDS_SETTING_MAX;

        let mut config = Config {
            file: reader
                .optional("BUZZ_CONFIG", "the path of a file", read::free_text)
                .map(PathBuf::from),
            shards: shards(reader, machine),
            cpus: machine.cpus.clone(),
            io_driver: reader.word(
                "BUZZ_IO_DRIVER",
                &[
                    ("auto", IoDriver::Auto),
                    ("io_uring", IoDriver::IoUring),
                    ("epoll", IoDriver::Epoll),
                ],
            ),
            take_over: take_over(reader, &store),
            bind,
            health,
            metrics,
            data_dir: data_dir(reader),
            store,
            db_pool: reader.count("BUZZ_DB_POOL_SIZE", 1..=limits::DB_POOL_MAX),
            db_read_pool: reader.count("BUZZ_DB_READ_POOL_SIZE", 1..=limits::DB_POOL_MAX),
            db_wait: Duration::from_millis(
                reader.number("BUZZ_DB_WAIT_MS", 0..=limits::DB_WAIT_MS_MAX),
            ),
            store_bytes_max,
            retention,
            connections_max: connections(reader, machine),
            frame_bytes_max,
            outbox: outbox(reader, frame_bytes_max),
            ping: Duration::from_secs(
                reader.number("BUZZ_PING_SECONDS", 1..=limits::PING_SECONDS_MAX),
            ),
            subscriptions_max: reader.count("BUZZ_MAX_SUBSCRIPTIONS", counts.clone()),
            filters_max: reader.count("BUZZ_MAX_FILTERS", counts.clone()),
            filter_values_max,
            values_per_filter_max: bounded(
                reader,
                "BUZZ_MAX_VALUES_PER_FILTER",
                "BUZZ_MAX_FILTER_VALUES",
                filter_values_max,
            ),
            rates: rates(reader),
            addresses: addresses_bounds(reader),
            trusted_proxies: trusted_proxies(reader),
            limit_max,
            limit_default: bounded(reader, "BUZZ_DEFAULT_LIMIT", "BUZZ_MAX_LIMIT", limit_max),
            subid_length_max: reader.count("BUZZ_MAX_SUBID_LENGTH", counts),
            created_at_past: reader.number_or(
                "BUZZ_CREATED_AT_PAST_SECONDS",
                seconds.clone(),
                None,
            ),
            created_at_future: reader.number("BUZZ_CREATED_AT_FUTURE_SECONDS", seconds),
            // Fits: see the bound.
            pow_difficulty_min: reader
                .number("BUZZ_MIN_POW_DIFFICULTY", 0..=limits::POW_DIFFICULTY_MAX)
                as u8,
            relay_url: reader.value("BUZZ_RELAY_URL", &url_form("ws or wss"), |text| {
                is_absolute_url(text, &["ws", "wss"]).then(|| text.to_owned())
            }),
            info: info(reader),
            require_auth: reader.switch("BUZZ_REQUIRE_AUTH"),
            pubkey_allowlist: reader.switch("BUZZ_PUBKEY_ALLOWLIST"),
            require_membership: reader.switch("BUZZ_REQUIRE_RELAY_MEMBERSHIP"),
            drain: drain(reader),
            remember_caps: remember_caps(reader, &flags),
            flags,
            log_level: reader.word("BUZZ_LOG", LOG_LEVELS),
            notes: Vec::new(),
            resolved: BTreeMap::new(),
        };
        (config.notes, config.resolved) = whole.finish()?;
        Ok(config)
    }

    /// True when a client must log in before it is served (CONTRACT: any of the three switches).
    pub fn login_required(&self) -> bool {
        self.require_auth || self.pubkey_allowlist || self.require_membership
    }

    /// Whether anybody gave the variable a value.
    pub fn is_given(&self, variable: &str) -> bool {
        let resolved = self.resolved.get(variable);
        resolved.is_some_and(|resolved| resolved.origin != Origin::Default)
    }
}

fn data_dir(reader: &mut Reader<'_>) -> PathBuf {
    let form = "the path of a folder";
    reader.value("BUZZ_DATA_DIR", form, read::free_text).into()
}

fn admin(reader: &mut Reader<'_>, address: &'static str, port: &'static str) -> SocketAddr {
    let form = "an IP address, such as 127.0.0.1 or ::";
    let address = reader.value(address, form, |text| text.parse::<IpAddr>().ok());
    let port = reader.number(port, 0..=u64::from(u16::MAX)) as u16;
    SocketAddr::new(address, port)
}

fn addresses(reader: &mut Reader<'_>) -> (SocketAddr, SocketAddr, SocketAddr) {
    let bind = reader.value(
        "BUZZ_BIND_ADDR",
        "an IP address and a port, such as 127.0.0.1:3000 or [::]:3000",
        |text| text.parse::<SocketAddr>().ok(),
    );
    let health = admin(reader, "BUZZ_HEALTH_BIND", "BUZZ_HEALTH_PORT");
    let metrics = admin(reader, "BUZZ_METRICS_BIND", "BUZZ_METRICS_PORT");

    let named = [
        ("BUZZ_BIND_ADDR", bind),
        ("BUZZ_HEALTH_PORT", health),
        ("BUZZ_METRICS_PORT", metrics),
    ];
    for (index, (name, address)) in named.iter().enumerate() {
        for (other_name, other) in &named[..index] {
            if collide(*address, *other) {
                reader.fault(format!(
                    "{name}: {address} is taken by {other_name} ({other}); choose another port, \
                     or 0 for a free one"
                ));
            }
        }
    }
    (bind, health, metrics)
}

/// Two listeners that the kernel could not hold at the same time.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    // `::` takes IPv4 as well, 0.0.0.0 does not take IPv6.
    let covers = |a: IpAddr, b: IpAddr| a.is_unspecified() && (a.is_ipv6() || b.is_ipv4());
    let meet = a.ip() == b.ip() || covers(a.ip(), b.ip()) || covers(b.ip(), a.ip());
    a.port() != 0 && a.port() == b.port() && meet
}

fn shards(reader: &mut Reader<'_>, machine: &Machine) -> usize {
    let found = machine.cpus.len().min(limits::SHARDS_MAX);
    let range = 1..=limits::SHARDS_MAX as u64;
    let shards = reader.number_or("BUZZ_SHARDS", range, Some(found as u64));
    let shards = shards.map_or(found, |shards| shards as usize);
    if shards > machine.cpus.len() {
        reader.note(format!(
            "BUZZ_SHARDS is {shards}, more than the CPUs that the process may use ({}): shards share \
             CPUs, which costs latency",
            machine.cpus.len()
        ));
    }
    shards
}

fn store(reader: &mut Reader<'_>) -> StoreKind {
    #[derive(Clone, Copy, Eq, PartialEq)]
    enum Word {
        Embedded,
        Postgres,
    }
    let words = [("embedded", Word::Embedded), ("postgres", Word::Postgres)];
    let word = reader.word("BUZZ_STORE", &words);
    let form = "postgres://user:password@host:port/database";
    // The embedded store has no use for them, whatever they are.
    let accepts = |text: &str| matches!(word, Word::Embedded) || read::is_database_url(text);
    let url = reader.secret("DATABASE_URL", form, accepts);
    let read_url = reader.secret("READ_DATABASE_URL", form, accepts);
    match (word, url) {
        (Word::Embedded, _) => StoreKind::Embedded,
        (Word::Postgres, Some(url)) => StoreKind::Postgres { url, read_url },
        (Word::Postgres, None) => {
            // One that is not accepted has its fault already.
            if !reader.is_given("DATABASE_URL") {
                reader.fault(format!(
                    "DATABASE_URL: required with BUZZ_STORE=postgres; {form}"
                ));
            }
            StoreKind::Embedded
        }
    }
}

fn take_over(reader: &mut Reader<'_>, store: &StoreKind) -> bool {
    let take_over = reader.switch("BUZZ_TAKE_OVER");
    if take_over && matches!(store, StoreKind::Embedded) {
        reader.fault(
            "BUZZ_TAKE_OVER: an embedded store belongs to one process, so nothing can be taken over \
             while it runs; stop the old relay, then start the new one, or use BUZZ_STORE=postgres",
        );
    }
    take_over
}

/// How large the embedded store may grow, and what it keeps for how long.
fn keeping(
    reader: &mut Reader<'_>,
    store: &StoreKind,
    frame_bytes_max: usize,
) -> (usize, Retention) {
    const BYTES: &str = "BUZZ_STORE_MAX_BYTES";
    const RULES: &str = "BUZZ_RETENTION";
    let bytes_max = reader.count(BYTES, limits::STORE_BYTES_MIN..=limits::STORE_BYTES_MAX);
    let needed = frame_bytes_max * limits::STORE_MESSAGES_MIN;
    if bytes_max < needed {
        reader.fault(format!(
            "{BYTES}: {bytes_max} bytes are too few for messages of BUZZ_MAX_FRAME_BYTES \
             {frame_bytes_max}; raise it to at least {needed}, or lower the latter"
        ));
    }
    let retention = reader.told(RULES, retention::FORM, retention::parse);
    for variable in [BYTES, RULES] {
        if *store != StoreKind::Embedded && reader.is_given(variable) {
            reader.note(format!(
                "{variable} has no effect: it is for the embedded store alone"
            ));
        }
    }
    (bytes_max, retention.unwrap_or_default())
}

/// The bound asked for, cut to the share of the descriptors that connections may take.
fn connections(reader: &mut Reader<'_>, machine: &Machine) -> usize {
    const VARIABLE: &str = "BUZZ_MAX_CONNECTIONS";
    let asked = reader.count(VARIABLE, 1..=limits::CONNECTIONS_MAX);
    let percent = limits::CONNECTIONS_DESCRIPTORS_PERCENT;
    // The product cannot overflow in 128 bits, and an unlimited process keeps what was asked.
    let share = u128::from(machine.descriptors_max) * u128::from(percent) / 100;
    let share = usize::try_from(share).unwrap_or(usize::MAX).max(1);
    if asked <= share {
        return asked;
    }
    reader.adjust(VARIABLE, share);
    reader.note(format!(
        "{VARIABLE} lowered from {asked} to {share}: {percent} % of the descriptor limit {}; \
         raise that limit (ulimit -Hn, LimitNOFILE=) to serve more",
        machine.descriptors_max
    ));
    share
}

fn outbox(reader: &mut Reader<'_>, frame_bytes_max: usize) -> OutboxBounds {
    let bytes = 1..=limits::OUTBOX_BYTES_MAX;
    let total_bytes = reader.count("BUZZ_OUTBOX_TOTAL_BYTES", bytes);
    let hard_bytes = bounded(
        reader,
        "BUZZ_OUTBOX_HARD_BYTES",
        "BUZZ_OUTBOX_TOTAL_BYTES",
        total_bytes,
    );
    if hard_bytes < frame_bytes_max {
        reader.fault(format!(
            "{}: {hard_bytes} does not hold one message of BUZZ_MAX_FRAME_BYTES \
             {frame_bytes_max}; raise it, or lower the latter",
            if total_bytes < frame_bytes_max {
                "BUZZ_OUTBOX_TOTAL_BYTES"
            } else {
                "BUZZ_OUTBOX_HARD_BYTES"
            },
        ));
    }
    OutboxBounds {
        hard_bytes,
        soft_bytes: bounded(
            reader,
            "BUZZ_OUTBOX_SOFT_BYTES",
            "BUZZ_OUTBOX_HARD_BYTES",
            hard_bytes,
        ),
        soft: Duration::from_secs(
            reader.number("BUZZ_OUTBOX_SOFT_SECONDS", 1..=limits::SECONDS_SETTING_MAX),
        ),
        total_bytes,
    }
}

/// A count that another setting bounds. Given and too large it is a fault; a default gives way.
fn bounded(
    reader: &mut Reader<'_>,
    variable: &'static str,
    bound_name: &str,
    bound: usize,
) -> usize {
    let count = reader.count(variable, 1..=limits::OUTBOX_BYTES_MAX);
    if count <= bound {
        return count;
    }
    if reader.is_given(variable) {
        reader.fault(format!(
            "{variable}: {count} is more than {bound_name}, which is {bound}"
        ));
    } else {
        reader.adjust(variable, bound);
        reader.note(format!(
            "{variable} lowered from {count} to {bound}, which is {bound_name}"
        ));
    }
    bound
}

fn rates(reader: &mut Reader<'_>) -> Rates {
    let seconds = 1..=limits::RATE_BURST_SECONDS_MAX;
    let burst = Duration::from_secs(reader.number("BUZZ_RATE_BURST_SECONDS", seconds));
    let mut rate = |variable| {
        let tokens = reader.number_or(variable, 1..=limits::RATE_MAX, None)?;
        Some(Rate {
            tokens,
            per: Duration::from_secs(1),
            burst,
        })
    };
    Rates {
        messages: rate("BUZZ_RATE_MESSAGES_PER_SECOND"),
        bytes: rate("BUZZ_RATE_BYTES_PER_SECOND"),
    }
}

fn addresses_bounds(reader: &mut Reader<'_>) -> AddressBounds {
    const MINUTE: Duration = Duration::from_secs(60);
    let range = 1..=limits::COUNT_SETTING_MAX as u64;
    let most = reader.number_or("BUZZ_MAX_CONNECTIONS_PER_ADDRESS", range.clone(), None);
    let tokens = reader.number_or("BUZZ_RATE_CONNECTIONS_PER_MINUTE", range, None);
    AddressBounds {
        connections_max: most.map(|most| most as usize),
        opened: tokens.map(|tokens| Rate {
            tokens,
            per: MINUTE,
            burst: MINUTE,
        }),
    }
}

fn trusted_proxies(reader: &mut Reader<'_>) -> Vec<Network> {
    let form = format!(
        "at most {} IP addresses or networks, with commas between, such as 10.0.0.0/8,2001:db8::1",
        limits::TRUSTED_PROXIES_MAX
    );
    let read = reader.optional("BUZZ_TRUSTED_PROXIES", &form, |text| {
        let networks = text.split(',').map(|one| Network::parse(one.trim()));
        let networks: Option<Vec<Network>> = networks.collect();
        networks.filter(|networks| networks.len() <= limits::TRUSTED_PROXIES_MAX)
    });
    read.unwrap_or_default()
}

fn info(reader: &mut Reader<'_>) -> InfoTexts {
    let name_form = "a text without control characters";
    InfoTexts {
        name: reader.value("BUZZ_NAME", name_form, read::free_text),
        description: reader.text("BUZZ_DESCRIPTION"),
        pubkey: reader.optional("BUZZ_PUBKEY", "64 lower-case hex digits", |text| {
            let hex = text
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            (hex && text.len() == 64).then(|| text.to_owned())
        }),
        contact: reader.text("BUZZ_CONTACT"),
        icon: reader.optional("BUZZ_ICON", "an absolute http or https URL", |text| {
            let uri = text.parse::<Uri>().ok()?;
            let web = matches!(uri.scheme_str(), Some("http" | "https"));
            (web && uri.host().is_some_and(|host| !host.is_empty())).then(|| text.to_owned())
        }),
    }
}

/// The drain's times, and the sum that must fit before the hard stop.
fn drain(reader: &mut Reader<'_>) -> DrainBudget {
    const JITTER: &str = "BUZZ_DRAIN_JITTER_MS";
    // Any whole number, also one that no integer type holds: the window is clamped, not refused.
    let form = "a whole number of milliseconds, 0 or more";
    let asked = reader.value(JITTER, form, |text| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    });
    let jitter = asked.min(limits::DRAIN_JITTER_MS_MAX);
    if jitter != asked {
        reader.adjust(JITTER, jitter);
        reader.note(format!(
            "{JITTER} lowered from {asked} to {jitter}, the longest window"
        ));
    }
    let grace = reader.number("BUZZ_DRAIN_GRACE_MS", 0..=limits::DRAIN_SETTING_MS_MAX);
    let hard_stop = reader.number("BUZZ_HARD_STOP_MS", 0..=limits::DRAIN_SETTING_MS_MAX);

    let (flush, answer) = (limits::DRAIN_FLUSH_MS_MAX, limits::CLOSE_ANSWER_MS_MAX);
    let needed = jitter + flush + answer;
    if needed > hard_stop {
        reader.fault(format!(
            "BUZZ_HARD_STOP_MS: {hard_stop} milliseconds are too short: {JITTER} {jitter} + \
             {flush} to flush the last close + {answer} for its answer = {needed}; raise \
             BUZZ_HARD_STOP_MS to at least {needed} or lower {JITTER}"
        ));
    }
    let whole = grace
        + hard_stop
        + limits::TRANSFER_STOP_MS_MAX
        + limits::STORE_CLOSE_MS_MAX
        + limits::FLAGS_CLOSE_MS_MAX;
    if whole > limits::TERMINATION_GRACE_SECONDS * 1_000 {
        reader.note(format!(
            "a restart may take {whole} milliseconds (grace + hard stop + imports + store + flags): \
             deploy with a termination grace period above that"
        ));
    }
    DrainBudget {
        jitter: Duration::from_millis(jitter),
        grace: Duration::from_millis(grace),
        hard_stop: Duration::from_millis(hard_stop),
    }
}

/// Exactly one provider. The settings of LaunchDarkly are not even judged under another one.
fn flags(reader: &mut Reader<'_>, raw: &Raw) -> FlagsChoice {
    #[derive(Clone, Copy)]
    enum Word {
        Static,
        Environment,
        LaunchDarkly,
    }
    let words = [
        ("static", Word::Static),
        ("environment", Word::Environment),
        ("launchdarkly", Word::LaunchDarkly),
    ];
    match reader.word("BUZZ_FEATURE_FLAGS_PROVIDER", &words) {
        Word::Static => {
            unused_launchdarkly(reader);
            FlagsChoice::Static
        }
        Word::Environment => {
            unused_launchdarkly(reader);
            FlagsChoice::Environment(raw.feature_flags().clone())
        }
        Word::LaunchDarkly => launchdarkly(reader),
    }
}

/// What another provider has no use for is only kept, so that a change of it is seen.
fn unused_launchdarkly(reader: &mut Reader<'_>) {
    for variable in [SDK_KEY, RELAY_PROXY_URL] {
        reader.unjudged_secret(variable);
    }
}

const SDK_KEY: &str = "BUZZ_LAUNCHDARKLY_SDK_KEY";
const RELAY_PROXY_URL: &str = "BUZZ_LAUNCHDARKLY_RELAY_PROXY_URL";

fn launchdarkly(reader: &mut Reader<'_>) -> FlagsChoice {
    // It travels in an HTTP header; one that could not would only fail later and in silence.
    let key_form = "visible ASCII characters";
    let is_given = reader.is_given(SDK_KEY);
    let sdk_key = reader.secret(SDK_KEY, key_form, |text| {
        text.bytes().all(|b| b.is_ascii_graphic())
    });
    if !is_given {
        reader.fault(format!(
            "{SDK_KEY}: required with BUZZ_FEATURE_FLAGS_PROVIDER=launchdarkly"
        ));
    }
    let proxy = reader.secret(RELAY_PROXY_URL, &url_form("http or https"), |text| {
        is_absolute_url(text, &["http", "https"])
    });
    FlagsChoice::LaunchDarkly {
        // Unread when it is missing: the fault above ends the start.
        sdk_key: sdk_key.unwrap_or_else(|| Secret::new("")),
        relay_proxy: proxy.map(|url| Secret::new(url.expose().trim_end_matches('/'))),
    }
}

fn remember_caps(reader: &mut Reader<'_>, flags: &FlagsChoice) -> bool {
    let asked = reader.switch("BUZZ_REMEMBER_CAPS");
    let of_use = matches!(flags, FlagsChoice::LaunchDarkly { .. });
    if asked && !of_use {
        reader.note("BUZZ_REMEMBER_CAPS has no effect: only provider launchdarkly can be late");
    }
    asked && of_use
}

fn url_form(schemes: &str) -> String {
    format!("an absolute {schemes} URL with a host, without user, query or fragment")
}

/// `scheme://host[:port][/path]`.
fn is_absolute_url(text: &str, schemes: &[&str]) -> bool {
    let Ok(uri) = text.parse::<Uri>() else {
        return false;
    };
    let scheme = uri
        .scheme_str()
        .is_some_and(|scheme| schemes.contains(&scheme));
    let host = uri.host().is_some_and(|host| !host.is_empty());
    // The parser drops a fragment without a word, and takes any text after a colon as a port.
    let port = uri.authority().is_some_and(|authority| {
        let given = authority.as_str().rsplit_once(':').map(|(_, port)| port);
        given.is_none_or(|port| port.ends_with(']') || port.parse::<u16>().is_ok())
    });
    scheme && host && port && !text.contains(['@', '?', '#'])
}
