//! Raw settings to a configuration. After this nobody sees a string.
//!
//! [`Config::resolve`] is pure: it takes what was typed and what the machine gives, and opens
//! nothing. Junk is a [`ConfigError`] that names each faulty variable and the accepted form. Where
//! one setting bounds another, an explicit conflict is a fault, while a default gives way and a note
//! says so.
//!
//! | file | what it holds |
//! |---|---|
//! | [`read`] | one setting: its text, its form, its faults |
//! | [`file`] | the settings file |
//! | [`machine`] | what the machine gives, and the shards that it has room for |
//! | [`network`] | a network of addresses |
//! | [`listen`] | where the relay listens |
//! | [`storing`], [`retention`] | where events are kept, how many, and for how long |
//! | [`bounds`] | what clients may take |
//! | [`identity`] | what the relay says of itself |
//! | [`ending`] | the times of the drain |
//! | [`provider`] | where the caps come from |
//! | [`given`] | all of these together: options, environment, file, machine |
//! | [`reread`] | what changes while the relay runs |
//! | [`render`] | the way back: a settings file of a configuration |

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tracing::level_filters::LevelFilter;

use crate::cli::{Origin, Raw};
use crate::limits;
use crate::store::retention::Retention;

mod bounds;
mod ending;
mod file;
mod given;
mod identity;
mod listen;
mod machine;
mod network;
mod provider;
mod read;
mod render;
mod reread;
mod retention;
mod storing;
#[cfg(test)]
mod tests;

pub use bounds::{AddressBounds, OutboxBounds, Rates};
pub use ending::DrainBudget;
pub use given::{Given, Meeting};
pub use identity::InfoTexts;
pub use machine::Machine;
pub use network::Network;
pub use provider::FlagsChoice;
use read::{Reader, Resolved};
pub use reread::{Applied, Changes, Waiting};
pub use storing::StoreKind;

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

        let (bind, health, metrics) = listen::addresses(reader);
        let flags = provider::flags(reader, raw);
        let limit_max = reader.count("BUZZ_MAX_LIMIT", 1..=limits::COUNT_SETTING_MAX);
        let frame_bytes_max = reader.count(
            "BUZZ_MAX_FRAME_BYTES",
            limits::FRAME_BYTES_MIN..=limits::FRAME_BYTES_MAX,
        );
        let store = storing::store(reader);
        let (store_bytes_max, retention) = storing::keeping(reader, &store, frame_bytes_max);
        let counts = 1..=limits::COUNT_SETTING_MAX;
        let filter_values_max = reader.count("BUZZ_MAX_FILTER_VALUES", counts.clone());
        let seconds = 0..=limits::SECONDS_SETTING_MAX;

        let mut config = Config {
            file: reader
                .optional("BUZZ_CONFIG", "the path of a file", read::free_text)
                .map(PathBuf::from),
            shards: machine::shards(reader, machine),
            cpus: machine.cpus.clone(),
            io_driver: reader.word(
                "BUZZ_IO_DRIVER",
                &[
                    ("auto", IoDriver::Auto),
                    ("io_uring", IoDriver::IoUring),
                    ("epoll", IoDriver::Epoll),
                ],
            ),
            take_over: storing::take_over(reader, &store),
            bind,
            health,
            metrics,
            data_dir: storing::data_dir(reader),
            store,
            db_pool: reader.count("BUZZ_DB_POOL_SIZE", 1..=limits::DB_POOL_MAX),
            db_read_pool: reader.count("BUZZ_DB_READ_POOL_SIZE", 1..=limits::DB_POOL_MAX),
            db_wait: Duration::from_millis(
                reader.number("BUZZ_DB_WAIT_MS", 0..=limits::DB_WAIT_MS_MAX),
            ),
            store_bytes_max,
            retention,
            connections_max: bounds::connections(reader, machine),
            frame_bytes_max,
            outbox: bounds::outbox(reader, frame_bytes_max),
            ping: Duration::from_secs(
                reader.number("BUZZ_PING_SECONDS", 1..=limits::PING_SECONDS_MAX),
            ),
            subscriptions_max: reader.count("BUZZ_MAX_SUBSCRIPTIONS", counts.clone()),
            filters_max: reader.count("BUZZ_MAX_FILTERS", counts.clone()),
            filter_values_max,
            values_per_filter_max: bounds::bounded(
                reader,
                "BUZZ_MAX_VALUES_PER_FILTER",
                "BUZZ_MAX_FILTER_VALUES",
                filter_values_max,
            ),
            rates: bounds::rates(reader),
            addresses: bounds::addresses_bounds(reader),
            trusted_proxies: bounds::trusted_proxies(reader),
            limit_max,
            limit_default: bounds::bounded(
                reader,
                "BUZZ_DEFAULT_LIMIT",
                "BUZZ_MAX_LIMIT",
                limit_max,
            ),
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
            relay_url: reader.value("BUZZ_RELAY_URL", &read::url_form("ws or wss"), |text| {
                read::is_absolute_url(text, &["ws", "wss"]).then(|| text.to_owned())
            }),
            info: identity::info(reader),
            require_auth: reader.switch("BUZZ_REQUIRE_AUTH"),
            pubkey_allowlist: reader.switch("BUZZ_PUBKEY_ALLOWLIST"),
            require_membership: reader.switch("BUZZ_REQUIRE_RELAY_MEMBERSHIP"),
            drain: ending::drain(reader),
            remember_caps: provider::remember_caps(reader, &flags),
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
