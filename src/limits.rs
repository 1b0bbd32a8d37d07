//! Every bound of the relay, named with its unit, and how the bounds relate.
//!
//! A queue, buffer, loop, wait or retry whose bound is not here is a defect. What an operator may
//! change is a *default* here; everything else is a constant of the design.
//!
//! Sorted by room, from the ground up; how they relate stands at the end. Bytes are shifts: `64 << 10` is
//! 64 KiB.

use std::time::Duration;

// ws: what the wire carries.

/// Longest message a client may send, in bytes (`BUZZ_MAX_FRAME_BYTES`).
pub const FRAME_BYTES_DEFAULT: usize = 512 << 10;
/// Smallest value accepted for the message bound: an event must fit.
pub const FRAME_BYTES_MIN: usize = 1 << 10;
/// Largest value accepted for the message bound.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Fragments that one message may come in.
pub const FRAGMENTS_MAX: usize = 4_096;
/// Payload bytes of a control frame (RFC 6455 section 5.5).
pub const CONTROL_PAYLOAD_BYTES_MAX: usize = 125;
/// Bytes of a request head, request line included.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
/// Header fields of a request head.
pub const HEAD_FIELDS_MAX: usize = 64;
/// Header bytes of a frame that a client sends: 2, 8 of length, 4 of mask key (RFC 6455 section 5.2).
pub const CLIENT_FRAME_HEADER_BYTES_MAX: usize = 14;
/// Header bytes of a frame that a server sends: it has no mask key.
pub const SERVER_FRAME_HEADER_BYTES_MAX: usize = 10;
/// Bytes of a close reason: a control payload less the two of the code.
pub const CLOSE_REASON_BYTES_MAX: usize = CONTROL_PAYLOAD_BYTES_MAX - 2;

// nostr: events, filters, keys. The depth of JSON needs no number: every message is read
// by its shape, and what does not fit the shape ends the reading where it stands.

/// Tags of one event.
pub const EVENT_TAGS_MAX: usize = 5_000;
/// Largest `kind` (NIP-01).
pub const KIND_MAX: u16 = u16::MAX;
/// Largest `created_at`: what fits a signed 64-bit integer, so that every database can hold it.
pub const CREATED_AT_MAX: u64 = i64::MAX as u64;
/// Filters of one REQ (`BUZZ_MAX_FILTERS`).
pub const FILTERS_DEFAULT: usize = 10;
/// Values in all filters of one connection (`BUZZ_MAX_FILTER_VALUES`).
pub const FILTER_VALUES_DEFAULT: usize = 20_000;
/// Values in one filter (`BUZZ_MAX_VALUES_PER_FILTER`).
pub const VALUES_PER_FILTER_DEFAULT: usize = 10_000;
/// Bytes of one tag value in a filter: longer ones would make the bound on their number worthless.
pub const FILTER_VALUE_BYTES_MAX: usize = 1 << 10;
/// Subscriptions of one connection (`BUZZ_MAX_SUBSCRIPTIONS`).
pub const SUBSCRIPTIONS_DEFAULT: usize = 1_024;
/// Characters of a subscription id (`BUZZ_MAX_SUBID_LENGTH`; NIP-01 says 64).
pub const SUBID_LENGTH_DEFAULT: usize = 64;
/// Events that one filter may ask for (`BUZZ_MAX_LIMIT`).
pub const LIMIT_MAX_DEFAULT: usize = 1_000;
/// Events that a filter without `limit` gets (`BUZZ_DEFAULT_LIMIT`).
pub const LIMIT_DEFAULT: usize = 500;
/// How far `created_at` may lie ahead, in seconds (`BUZZ_CREATED_AT_FUTURE_SECONDS`).
pub const CREATED_AT_FUTURE_SECONDS_DEFAULT: u64 = 900;
/// Largest proof of work that can be asked for, in leading zero bits (`BUZZ_MIN_POW_DIFFICULTY`):
/// what is beyond everybody's reach is a mistake.
pub const POW_DIFFICULTY_MAX: u64 = 128;
/// Characters of an unknown filter field that a refusal repeats.
pub const FILTER_KEY_CHARS_SHOWN_MAX: usize = 32;
/// Characters of an unknown message label that a refusal repeats.
pub const LABEL_CHARS_SHOWN_MAX: usize = 32;
/// Parsed public keys that a shard remembers, at about 100 bytes each.
pub const VERIFIER_KEYS_MAX: usize = 32_768;
/// How far `created_at` of a login may be off, in seconds (NIP-42).
pub const AUTH_AGE_SECONDS_MAX: u64 = 600;

// config: what settings accept.

/// Time between pings of an open connection, in seconds (`BUZZ_PING_SECONDS`).
pub const PING_SECONDS_DEFAULT: u64 = 30;
/// Largest value accepted for it, in seconds: a proxy in front forgets a silent client long before.
pub const PING_SECONDS_MAX: u64 = 3_600;
/// How long a client may save up what its rate allows, in seconds (`BUZZ_RATE_BURST_SECONDS`).
pub const RATE_BURST_SECONDS_DEFAULT: u64 = 5;
/// Largest value accepted for it.
pub const RATE_BURST_SECONDS_MAX: u64 = 3_600;
/// Largest value accepted for any rate.
pub const RATE_MAX: u64 = 1 << 40;
/// Networks that may be trusted as proxies.
pub const TRUSTED_PROXIES_MAX: usize = 256;
/// Shards, at most (`BUZZ_SHARDS`); more threads than this gain nothing on any machine known.
pub const SHARDS_MAX: usize = 256;
/// Connections of all shards together (`BUZZ_MAX_CONNECTIONS`).
pub const CONNECTIONS_DEFAULT: usize = 10_000;
/// Largest value accepted for the connection bound.
pub const CONNECTIONS_MAX: usize = 10_000_000;
/// Share of the descriptor limit that connections may take, in percent. The rest is for the store,
/// pools, rings, listeners, and for refusing politely.
pub const CONNECTIONS_DESCRIPTORS_PERCENT: u64 = 45;
/// Bytes queued for one connection at which it is disconnected (`BUZZ_OUTBOX_HARD_BYTES`).
pub const OUTBOX_HARD_BYTES_DEFAULT: usize = 8 << 20;
/// Bytes queued for one connection that it may exceed only for a while (`BUZZ_OUTBOX_SOFT_BYTES`).
pub const OUTBOX_SOFT_BYTES_DEFAULT: usize = 2 << 20;
/// How long a queue may stay above its soft bound, in seconds (`BUZZ_OUTBOX_SOFT_SECONDS`).
pub const OUTBOX_SOFT_SECONDS_DEFAULT: u64 = 15;
/// Bytes queued for all connections together (`BUZZ_OUTBOX_TOTAL_BYTES`).
pub const OUTBOX_TOTAL_BYTES_DEFAULT: usize = 1 << 30;
/// Largest value accepted for any outbox bound, in bytes: far above any sane machine, far below
/// where sums could overflow.
pub const OUTBOX_BYTES_MAX: usize = 1 << 42;
/// Largest value accepted for a setting that counts things in one connection or filter.
pub const COUNT_SETTING_MAX: usize = 10_000_000;
/// Largest value accepted for a setting in seconds: ten years.
pub const SECONDS_SETTING_MAX: u64 = 10 * 366 * 86_400;
/// Longest text setting, in bytes (NIP-11 texts, folders, URLs).
pub const TEXT_SETTING_BYTES_MAX: usize = 4 << 10;
/// Bytes of the settings file (`BUZZ_CONFIG`).
pub const SETTINGS_FILE_BYTES_MAX: usize = 64 << 10;
/// Faults of the settings file that are told at once.
pub const SETTINGS_FAULTS_MAX: usize = 20;
/// Longest name in the settings file, in bytes.
pub const SETTINGS_NAME_BYTES_MAX: usize = 128;

// flags: their refresh, and the caps that are remembered.

/// Period of the refresh that reads the flags and applies the limits, in milliseconds.
pub const FLAGS_REFRESH_MS: u64 = 5_000;
/// Longest wait at start for the flag provider, in milliseconds; then the defaults serve.
pub const FLAGS_START_MS_MAX: u64 = 3_000;
/// Between a stream that LaunchDarkly's SDK gave up and its next client, in milliseconds.
pub const FLAGS_REBUILD_MS: u64 = 60_000;
/// First pause before a lost stream is opened again, in milliseconds; it doubles up to 30 s.
pub const FLAGS_RECONNECT_MS: u64 = 1_000;
/// Longest wait for a connection to LaunchDarkly, its TLS included, in milliseconds.
pub const FLAGS_CONNECT_MS_MAX: u64 = 10_000;
/// Longest wait for the head of an answer of LaunchDarkly, in milliseconds.
pub const FLAGS_ANSWER_MS_MAX: u64 = 15_000;
/// Longest silence of the flag stream, in milliseconds: it sends a comment every 3 minutes.
pub const FLAGS_SILENCE_MS_MAX: u64 = 300_000;
/// Time without any sign of the SDK's stream task after which it counts as ended, in milliseconds.
/// While it lives, a silence ends its request and a pause of at most 30 s precedes the next one.
pub const FLAGS_STALL_MS_MAX: u64 = 420_000;
/// Largest size of an integer flag value: beyond it a JSON number is no longer exact.
pub const FLAG_VALUE_MAX: i64 = 1 << 53;
/// Age at which a remembered cap is no longer applied, in seconds.
pub const REMEMBERED_AGE_SECONDS_MAX: u64 = 24 * 3_600;
/// How far in the future a remembered cap's time may lie (a clock set back), in seconds.
pub const REMEMBERED_AHEAD_SECONDS_MAX: u64 = 300;
/// Period at which unchanged caps are saved again, so that their age is true, in seconds.
pub const REMEMBERED_SAVE_SECONDS: u64 = 600;
/// Largest file of remembered caps that is read, in bytes.
pub const REMEMBERED_BYTES_MAX: u64 = 4 << 10;

// gate: what history leaves to others, and the longest waits.

/// Share of the reader pool that history reads leave to others: one in so many, rounded down.
pub const HISTORY_RESERVED_DIVISOR: usize = 5;
/// Longest wait for a permit of the history gate, for each read.
pub const HISTORY_WAIT: Duration = Duration::from_secs(1);
/// Longest wait for a permit of the auth gate.
pub const AUTH_WAIT: Duration = Duration::from_secs(2);

// store: the embedded one, and how long events are kept.

/// Address space reserved for the embedded store's file, in bytes. The file is sparse: it grows as
/// events come and never to this size on its own.
pub const STORE_MAP_BYTES_DEFAULT: usize = 256 << 30;
/// Smallest value accepted for what the store may grow to (`BUZZ_STORE_MAX_BYTES`), in bytes.
pub const STORE_BYTES_MIN: usize = 16 << 20;
/// Largest value accepted: what LMDB can map on common machines, and far above any disk.
pub const STORE_BYTES_MAX: usize = 16 << 40;
/// The last part of the store's room, kept for what makes room, in bytes: two commits that each touch
/// as many pages as a share of upkeep removes index entries.
pub const STORE_RESERVE_BYTES_MAX: u64 = 128 << 20;
/// But of a small store no more than one part in so many.
pub const STORE_RESERVE_DIVISOR: u64 = 4;
/// Messages of the largest size that the store must be able to hold.
pub const STORE_MESSAGES_MIN: usize = 16;
/// How full the store is when that is said in the log, in percent of what it takes. At 100 events are
/// refused.
pub const STORE_WARN_PERCENTS: [u64; 4] = [80, 90, 95, 100];
/// So far below a step the store must fall before that is said, and before the step is said again.
pub const STORE_WARN_FALL_PERCENT: u64 = 3;
/// Smallest address space that the embedded store accepts, in bytes: an empty store and one commit.
pub const STORE_MAP_BYTES_MIN: usize = 1 << 20;
/// Read transactions that may be open at one time, over all threads. LMDB's own default is 126.
pub const STORE_READERS_DEFAULT: u32 = 512;
/// Events of one commit.
pub const COMMIT_EVENTS_MAX: usize = 1_024;
/// Bytes of event JSON in one commit; a larger event is a commit of its own.
pub const COMMIT_BYTES_MAX: usize = 4 << 20;
/// Index entries of one commit, so that events full of tags cannot stretch it.
pub const COMMIT_INDEX_ENTRIES_MAX: usize = 32_768;
/// Index entries of the events that one deletion request may name.
pub const DELETION_INDEX_ENTRIES_MAX: usize = 2 * COMMIT_INDEX_ENTRIES_MAX;
/// Bytes of the JSON of those events.
pub const DELETION_BYTES_MAX: usize = 16 * COMMIT_BYTES_MAX;
/// Tags of a deletion request that cannot name more than that, whatever they name.
pub const DELETION_TAGS_UNCHECKED_MAX: usize = 4;
/// Events of one commit of a process that does nothing but fill the store.
pub const FILL_EVENTS_MAX: usize = 32_768;
/// Bytes of event JSON in one such commit.
pub const FILL_BYTES_MAX: usize = 64 << 20;
/// Index entries of one such commit.
pub const FILL_INDEX_ENTRIES_MAX: usize = 262_144;
/// Index entries that are gathered before they are written to their trees: more of them share a page
/// then. An event has five and one for each tag. Two layers of them may be there, each of about
/// 9 MB of memory.
pub const YOUNG_ENTRIES_MAX: usize = 98_304;
/// After so long without a commit they are written, however few they are.
pub const YOUNG_REST: Duration = Duration::from_secs(2);
/// Fewer of them are not written with one group, unless they are the last of their layer.
pub const YOUNG_SLICE_ENTRIES_MIN: usize = 1_024;
/// The store's journal: room for events that were stored alone and are not in their tree yet.
pub const JOURNAL_BYTES: usize = 1 << 20;
/// Events at most that are held in memory and in the journal: then a commit takes them along.
pub const HELD_EVENTS_MAX: usize = 64;
/// How much the scheduler prefers a shard to the store's writer, in steps of `nice`.
pub const WRITER_NICE: i32 = 5;
/// Events that wait for the writer, the commit under way included.
pub const WRITE_QUEUE_EVENTS_MAX: usize = 65_536;
/// Bytes of event JSON that wait for the writer, the commit under way included.
pub const WRITE_QUEUE_BYTES_MAX: usize = 256 << 20;
/// Longest tag value that is an index key as it is, in bytes; a longer one is hashed.
pub const TAG_VALUE_RAW_BYTES_MAX: usize = 64;
/// Index runs that one filter may merge; with more values a wider index is read and sieved.
pub const MERGE_STREAMS_MAX: usize = 2_048;
/// Entries of a scan between two looks at the clock.
pub const SCAN_CLOCK_ENTRIES: u32 = 32;
/// Entries that the writer looks at between two groups, to remove what is not kept any longer.
pub const UPKEEP_STEPS_MAX: u32 = 1_024;
/// Index entries that it removes between two groups; the last event may pass it.
pub const UPKEEP_INDEX_ENTRIES_MAX: usize = 8_192;
/// Time between two looks for what has become due, and at how full the store is.
pub const UPKEEP_LOOK: Duration = Duration::from_secs(1);
/// Bytes that a disk must have free beyond those that a copy of the store takes.
pub const COPY_SPARE_BYTES: u64 = 1 << 20;
/// Time between two looks at how far a copy of the store is.
pub const COPY_LOOK: Duration = Duration::from_millis(100);
/// Rules of `BUZZ_RETENTION`.
pub const RETENTION_RULES_MAX: usize = 64;
/// Longest age that a rule may give its events, in seconds: a hundred years.
pub const RETENTION_AGE_SECONDS_MAX: u64 = 100 * 365 * 86_400;
/// Entries that the writer counts between two groups, when it learns at the start how many events
/// the rules with a count have.
pub const RETENTION_LEARN_ENTRIES_MAX: u32 = 8_192;
/// Entries that a full answer is looked beyond, to tell whether there are more (NIP-67).
pub const HINT_ENTRIES_MAX: u32 = 64;

// store/postgres: connections, statements, and what other relays tell.

/// Writer connections of the PostgreSQL store (`BUZZ_DB_POOL_SIZE`).
pub const DB_POOL_DEFAULT: usize = 20;
/// Reader connections of the PostgreSQL store (`BUZZ_DB_READ_POOL_SIZE`); sets the history ceiling
/// of both stores.
pub const DB_READ_POOL_DEFAULT: usize = 50;
/// Largest pool accepted.
pub const DB_POOL_MAX: usize = 10_000;
/// Connections of each pool that a command opens.
pub const COMMAND_DB_POOL_MAX: usize = 2;
/// Time that a start waits for the first connection, in milliseconds (`BUZZ_DB_WAIT_MS`).
pub const DB_WAIT_MS_DEFAULT: u64 = 60_000;
/// Largest value accepted for that, in milliseconds: one day.
pub const DB_WAIT_MS_MAX: u64 = 86_400_000;
/// Time between two tries of a start.
pub const DB_START_PAUSE: Duration = Duration::from_millis(500);
/// Time that a new connection has, TLS and login included.
pub const DB_CONNECT_WAIT: Duration = Duration::from_secs(3);
/// Longest wait for a connection of a pool.
pub const DB_ACQUIRE_WAIT: Duration = Duration::from_secs(2);
/// Time that the server gives a statement.
pub const DB_STATEMENT_WAIT: Duration = Duration::from_secs(10);
/// Time that the server lets a statement wait for a lock, the turn to commit included.
pub const DB_LOCK_WAIT: Duration = Duration::from_secs(5);
/// Time after which a statement counts as lost and its connection is dropped: the server would have
/// ended it before.
pub const DB_ANSWER_WAIT: Duration = Duration::from_secs(12);
/// Silence after which the kernel probes a connection, and the time that its data may stay
/// unacknowledged.
pub const DB_KEEPALIVE: Duration = Duration::from_secs(10);
/// Time that a migration waits for one of another process.
pub const DB_MIGRATION_WAIT: Duration = Duration::from_secs(60);
/// Time that one migration may take.
pub const DB_MIGRATION_TIME: Duration = Duration::from_secs(3_600);
/// Tries of one commit whose connection was lost, and the time in which they may begin.
pub const DB_COMMIT_TRIES_MAX: u32 = 3;
/// See [`DB_COMMIT_TRIES_MAX`].
pub const DB_COMMIT_RETRY_TIME: Duration = Duration::from_secs(5);
/// Time between two tries of a commit.
pub const DB_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Time after which a removal that a vanished key has begun is taken up by any relay.
pub const DB_VANISH_SECONDS: u64 = 15;
/// Questions to the database that are under way or wait for a connection, all shards together.
pub const DB_QUESTIONS_MAX: usize = 16_384;
/// Keys that one access check looks up.
pub const DB_ACCESS_KEYS_MAX: usize = 1_024;
/// Time that a ban is remembered for logins whose check had begun before it.
pub const DB_BAN_REMEMBERED: Duration = Duration::from_secs(60);
/// Keys in one notice of bans to the shards.
pub const DB_BAN_KEYS_MAX: usize = 1_024;
/// Index runs that one statement of a read merges; a filter with more reads a wider index.
pub const DB_RUNS_MAX: usize = 1_024;
/// Index entries that one statement of a read looks at, over all its runs.
pub const DB_READ_ENTRIES_MAX: usize = 16_384;
/// Index entries that one statement of a count looks at.
pub const DB_COUNT_ENTRIES_MAX: usize = 65_536;
/// Index entries that the first statement of a read looks at where it merges many runs: the newest of
/// many come from a few of them, as a rule.
pub const DB_READ_ENTRIES_FIRST: usize = 1_024;
/// Runs of authors from which on a read first looks at the newest entries of all authors.
pub const DB_RUNS_WIDE_MIN: usize = 64;
/// Entries of that look.
pub const DB_READ_ENTRIES_WIDE: usize = 2_048;
/// Entries of each run that the first statement of a read takes, at least.
pub const DB_RUN_ENTRIES_MIN: usize = 4;
/// Time after which a read gives its permit and its connection back and asks for others.
pub const DB_READ_TIME: Duration = Duration::from_millis(250);
/// Longest wait for a replica that is behind.
pub const DB_REPLICA_WAIT: Duration = Duration::from_secs(1);
/// Time between two looks at it.
pub const DB_REPLICA_PAUSE: Duration = Duration::from_millis(10);
/// Time between two looks at the last sequence while no notification comes.
pub const DB_LISTEN_LOOK: Duration = Duration::from_secs(2);
/// First pause before a lost listening connection is opened again; it doubles.
pub const DB_LISTEN_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest of those pauses.
pub const DB_LISTEN_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Events of other processes that one statement fetches.
pub const DB_FETCH_EVENTS_MAX: usize = 1_024;
/// Bytes of events that one statement fetches; passed only by a first event that is larger.
pub const DB_FETCH_BYTES_MAX: usize = 1 << 20;
/// Batches that wait for the thread that hands them to the shards.
pub const DB_DELIVERIES_WAITING_MAX: usize = 8;
/// Runs of own sequences that are remembered while those of others before them are not fetched; then
/// the writer waits.
pub const DB_OWN_RANGES_MAX: usize = 65_536;
/// Ephemeral events that wait to be passed on to other processes; further ones stay here.
pub const DB_EPHEMERAL_WAITING_MAX: usize = 8_192;
/// Bytes of those.
pub const DB_EPHEMERAL_WAITING_BYTES_MAX: usize = 32 << 20;
/// Ephemeral events passed on in one transaction.
pub const DB_EPHEMERAL_GROUP_MAX: usize = 512;
/// Time that a passed on ephemeral event stays in the database, for processes that are behind.
pub const DB_EPHEMERAL_SECONDS: u64 = 30;
/// Bytes of ephemeral events that stay in the database.
pub const DB_EPHEMERAL_BYTES_MAX: usize = 64 << 20;

// transfer: imports and exports.

/// Bytes that an import reads at once; the lines in them are checked by one thread.
pub const IMPORT_READ_BYTES: usize = 64 << 10;
/// Pieces of an import's input that are read and not yet taken, for each core.
pub const IMPORT_PIECES_PER_CORE: usize = 8;
/// Lines of an import between the first that is undecided and the last that was taken in; the piece
/// under way may pass it.
pub const IMPORT_WINDOW_LINES: usize = 131_072;
/// Time between two looks of an import at its answers, while no input comes.
pub const IMPORT_TICK: Duration = Duration::from_millis(50);
/// Time without input after which an import that goes through a relay shows that it lives.
pub const IMPORT_QUIET: Duration = Duration::from_secs(10);
/// Refused lines of an import that are told with their reasons; more are counted.
pub const REFUSED_LINES_TOLD_MAX: u64 = 1_000;
/// Time that an import gathers events for one commit, while fewer come than it may hold.
pub const IMPORT_GATHER: Duration = Duration::from_secs(2);
/// Events that a relay's import hands to the writer at once.
pub const IMPORT_BATCH_EVENTS: usize = 256;
/// Bytes of them.
pub const IMPORT_BATCH_BYTES: usize = 1 << 20;
/// Events of an import that are on their way in a store that nobody else uses.
pub const IMPORT_ALONE_EVENTS_MAX: usize = 65_536;
/// Bytes of them.
pub const IMPORT_ALONE_BYTES_MAX: usize = 128 << 20;
/// Events of an import that are on their way in a running relay, which has others to serve: what a
/// client's event waits behind.
pub const IMPORT_SHARED_EVENTS_MAX: usize = 1_024;
/// Bytes of them.
pub const IMPORT_SHARED_BYTES_MAX: usize = 4 << 20;
/// Chunks of a request's body that wait for the thread of its import.
pub const IMPORT_CHUNKS_MAX: usize = 4;
/// Time between two tries to hand events to a writer whose queue is full.
pub const IMPORT_RETRY_PAUSE: Duration = Duration::from_millis(2);
/// Longest wait of one look of a relay's import for room.
pub const IMPORT_ROOM_WAIT: Duration = Duration::from_secs(1);
/// Longest wait for the answers of a relay's import whose sender has left or must leave.
pub const IMPORT_SETTLE_WAIT: Duration = Duration::from_secs(2);
/// Silence after which a relay ends an import: whoever sends it shows that it lives every
/// [`IMPORT_QUIET`].
pub const IMPORT_IDLE: Duration = Duration::from_secs(60);
/// Time without an event being taken after which a relay ends an export: somebody may look at it
/// page by page.
pub const EXPORT_IDLE: Duration = Duration::from_secs(600);
/// Imports of a relay at one time: there is one writer.
pub const IMPORTS_MAX: usize = 1;
/// Exports of a relay at one time.
pub const EXPORTS_MAX: usize = 2;
/// Slices of an export that wait to be sent.
pub const EXPORT_SLICES_MAX: usize = 2;
/// Time of one slice of an export, which is a transaction.
pub const EXPORT_SLICE_TIME: Duration = Duration::from_millis(20);
/// Bytes of an export's filters.
pub const EXPORT_REQUEST_BYTES_MAX: usize = 4 << 20;
/// Values in all filters of an export.
pub const EXPORT_FILTER_VALUES_MAX: usize = 60_000;
/// Filters of an export.
pub const EXPORT_FILTERS_MAX: usize = 100;
/// Bytes that the command line collects before it writes them.
pub const TRANSFER_WRITE_BYTES: usize = 256 << 10;
/// Longest wait of the command line for the relay to take an event, to answer one or to give one.
pub const TRANSFER_ANSWER_WAIT: Duration = Duration::from_secs(600);
/// Longest wait of the command line for the relay to agree to a transfer.
pub const TRANSFER_BEGIN_WAIT: Duration = Duration::from_secs(15);
/// Longest wait of a relay that stops for its transfers to end.
pub const TRANSFER_STOP_MS_MAX: u64 = 3_000;
/// How far an import through a running relay stands back behind it on the CPU (nice).
pub const IMPORT_NICENESS: i32 = 10;
/// Draws of a progress bar in a second.
pub const PROGRESS_DRAWS_PER_SECOND_MAX: u8 = 5;

// live: who wants an event.

/// Places for ids of recent ephemeral events, of 8 bytes each, one table a process. A power of two.
pub const RECENT_IDS_ENTRIES: usize = 1 << 16;
/// Subscriptions of one shard: what a 31-bit number can tell apart. Memory ends long before.
pub const SUBSCRIPTIONS_SHARD_MAX: usize = 1 << 31;
/// Kinds of a filter up to which it is indexed by value and kind together: its index entries are at
/// most this many times its values.
pub const COMBINED_KINDS_MAX: usize = 4;
/// Entries of a table below which it is not worth shrinking.
pub const INDEX_SHRINK_ENTRIES_MIN: usize = 1_024;

// drain: its times, and what must fit around it.

/// Drain window, in milliseconds (`BUZZ_DRAIN_JITTER_MS`): 0 closes all at once.
pub const DRAIN_JITTER_MS_DEFAULT: u64 = 0;
/// Longest drain window, in milliseconds; a longer one is clamped to it.
pub const DRAIN_JITTER_MS_MAX: u64 = 20_000;
/// Time between the signal and the first close, in milliseconds (`BUZZ_DRAIN_GRACE_MS`).
pub const DRAIN_GRACE_MS_DEFAULT: u64 = 5_000;
/// From the end of the grace to the hard stop, in milliseconds (`BUZZ_HARD_STOP_MS`).
pub const HARD_STOP_MS_DEFAULT: u64 = 30_000;
/// Largest value accepted for the grace and the hard stop, in milliseconds: one hour.
pub const DRAIN_SETTING_MS_MAX: u64 = 3_600_000;
/// Longest wait of the drain for the flush acknowledgement of one close, in milliseconds.
pub const DRAIN_FLUSH_MS_MAX: u64 = 5_000;
/// Longest wait for a peer's answer to our Close, in milliseconds.
pub const CLOSE_ANSWER_MS_MAX: u64 = 2_000;
/// Longest wait at shutdown for pending store writes, in milliseconds.
pub const STORE_CLOSE_MS_MAX: u64 = 5_000;
/// Longest wait at shutdown for the flag provider's last flush, in milliseconds.
pub const FLAGS_CLOSE_MS_MAX: u64 = 2_000;
/// Termination grace period to deploy with, in seconds.
pub const TERMINATION_GRACE_SECONDS: u64 = 60;
/// Longest wait of whoever asks for a drain until it has begun.
pub const DRAIN_BEGIN_WAIT: Duration = Duration::from_secs(2);
/// Time between two looks at what is left to end.
pub const DRAIN_LOOK: Duration = Duration::from_millis(10);
/// The end of the grace in which no TCP handshake begins any more, so that those under way are
/// finished when the accept queues are emptied: a long round trip.
pub const DRAIN_QUIET: Duration = Duration::from_millis(200);
/// Time that every shard has to empty its accept queue and to count its connections; then the drain
/// goes on without the answer of those that are late.
pub const SHARD_STOPS_ACCEPTING_WAIT: Duration = Duration::from_secs(1);
/// Connections that a shard closes before it looks at its others.
pub const CLOSES_AT_ONCE_MAX: usize = 64;
/// Connections that are taken from one accept queue before its listener closes. The queue holds
/// half of that; the rest is for those that arrive meanwhile.
pub const ACCEPTS_AT_STOP_MAX: usize = 2 * ACCEPT_BACKLOG as usize;
/// A second signal this long after the first stops at once; before, it is the same one, such as a
/// supervisor's and a terminal's.
pub const SIGNAL_REPEATS: Duration = Duration::from_secs(1);
/// Longest wait at the very end for whoever waits for the drain to be told how it came out.
pub const DRAIN_ANSWER_WAIT: Duration = Duration::from_millis(250);

// shard: its ring, its connections, its reads, its mail.

/// Entries of a shard's submission ring. A full ring is submitted and goes on, so this is a batch
/// size and no bound on connections.
pub const RING_ENTRIES: u32 = 1_024;
/// Bytes that a shard reads from a socket at once, into the buffer that its connections share.
pub const RECEIVE_BYTES: usize = 64 << 10;
/// Parts of one vectored write: a burst of 31 events. They are listed on the stack.
pub const BATCH_PARTS_MAX: usize = 64;
/// Bytes that one write names. More than a socket takes at once is looked at in vain.
pub const WRITE_BYTES_MAX: usize = 128 << 10;
/// Events that a shard matches before it queues them for those they fit.
pub const DELIVERED_AT_ONCE_MAX: usize = 64;
/// Connections that are written to in one turn of a shard, some microseconds each.
pub const WRITES_A_TURN_MAX: usize = 256;
/// Connections that a shard learns of at once that have something to read.
pub const READY_AT_ONCE_MAX: usize = 256;
/// Events up to this size are copied into each subscriber's batch instead of being pointed at.
pub const EVENT_COPY_BYTES_MAX: usize = 256;
/// Batches that a shard keeps for reuse, and the buffer that each may keep, in bytes.
pub const BATCH_SPARES_MAX: usize = 256;
/// See [`BATCH_SPARES_MAX`].
pub const BATCH_SPARE_BYTES_MAX: usize = 16 << 10;
/// Time for a whole request head, also for a peer that never sends a byte.
pub const HEAD_WAIT: Duration = Duration::from_secs(5);
/// Unanswered pings after which a connection is dropped.
pub const PINGS_UNANSWERED_MAX: u8 = 3;
/// Time that a close gives its queued bytes to be accepted by the kernel.
pub const CLOSE_WRITE: Duration = Duration::from_secs(1);
/// Time that the peer has after the Close frame to answer it or to leave.
pub const CLOSE_LINGER: Duration = Duration::from_secs(2);
/// Time between two looks at all connections of a shard.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(250);
/// Index entries that a read looks at before its shard turns to others.
pub const SLICE_ENTRIES_MAX: u32 = 4_096;
/// Bytes of rows that one read brings into memory, under one permit of the history gate.
pub const READ_BYTES_MAX: usize = 1 << 20;
/// Time that a read may hold its shard.
pub const SLICE_TIME: Duration = Duration::from_millis(1);
/// A slice that took this long is looked into: if it met pages that were not in memory, its question
/// goes on on a reader thread. Twice what it may take, since the clock is looked at between entries
/// only.
pub const SLICE_TIME_COLD: Duration = Duration::from_millis(2);
/// Threads for questions that would hold their shard. They wait for the disk, not for a core.
pub const READER_THREADS: usize = 4;
/// How much the scheduler prefers a shard to them, in steps of `nice`.
pub const READER_NICE: i32 = 10;
/// Time that a question may keep a reader thread while others wait for one.
pub const READER_TURN: Duration = Duration::from_millis(20);
/// A connection with more than this queued gets no further rows of history until it has taken some.
pub const HISTORY_BACKLOG_BYTES_MAX: usize = 1 << 20;
/// Reads of one connection that run at once; more wait behind them.
pub const READS_AT_ONCE_MAX: usize = 4;
/// Connections that may wait to be accepted, for each listening socket.
pub const ACCEPT_BACKLOG: i32 = 1_024;
/// Connections that a shard accepts before it looks at its others.
pub const ACCEPTS_AT_ONCE_MAX: usize = 64;
/// Time that accepting pauses after an error that will not pass by itself at once.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time that an address in use is tried again, for the sockets of a killed relay to go.
pub const BIND_WAIT: Duration = Duration::from_secs(2);
/// Time between two tries.
pub const BIND_PAUSE: Duration = Duration::from_millis(20);
/// Free ports that are tried before binding port 0 fails.
pub const BIND_ATTEMPTS_MAX: usize = 16;
/// Writes of one connection that the store has not answered; then its socket is not read further.
pub const WRITES_IN_FLIGHT_MAX: u32 = 256;
/// Published events that a shard gathers before it hands them to the store's writer.
pub const GATHERED_EVENTS_MAX: usize = 32;
/// Time for which the first of them is held back, while others come.
pub const GATHER_TIME: Duration = Duration::from_millis(1);
/// Part of the bound on all queues by which the shards' published sums may be off together.
pub const OUTBOX_TOTAL_SLACK_DIVISOR: usize = 64;
/// Items that wait for one shard; then whoever sends them waits.
pub const MAILBOX_ITEMS_MAX: usize = 65_536;
/// Time after which a shard looks again whether another one's mailbox has room.
pub const MAILBOX_PAUSE: Duration = Duration::from_millis(2);
/// Connections that a shard may have more than the least loaded one before it hands some over.
pub const IMBALANCE_MAX: usize = 16;
/// Sockets of one shard that have not been upgraded; further ones wait to be accepted.
pub const UNUPGRADED_MAX: usize = 4_096;
/// Sockets of one address that have not been upgraded, where connections are bounded by address.
pub const UNUPGRADED_PER_ADDRESS_MAX: usize = 64;
/// Addresses that are remembered for the rate of their connections, about 100 bytes each.
pub const ADDRESSES_REMEMBERED_MAX: usize = 1 << 16;
/// Locks that the table of addresses is spread over.
pub const ADDRESS_STRIPES: usize = 16;
/// Fewer than that: one for so many connections that may be open, over all shards.
pub const UNUPGRADED_SHARE: usize = 4;
/// But at least so many on each shard.
pub const UNUPGRADED_MIN: usize = 16;
/// Time that a shard has to accept connections after its thread was started.
pub const SHARD_START_WAIT: Duration = Duration::from_secs(10);
/// A shard whose heart has not beaten for this long is taken for dead.
pub const HEARTBEAT_STALE: Duration = Duration::from_secs(5);
/// Time to a first login on a relay that requires one, counted from the challenge.
pub const LOGIN_WAIT: Duration = Duration::from_secs(5);
/// Random bytes of a challenge; sent as twice as many hex digits.
pub const AUTH_CHALLENGE_BYTES: usize = 16;
/// Keys that one connection may authenticate.
pub const KEYS_PER_CONNECTION_MAX: usize = 64;

// control: its servers, commands, logs and hand-overs.

/// Port of the health server (`BUZZ_HEALTH_PORT`).
pub const HEALTH_PORT_DEFAULT: u16 = 8_080;
/// Port of the metrics server (`BUZZ_METRICS_PORT`).
pub const METRICS_PORT_DEFAULT: u16 = 9_102;
/// Connections that each admin server holds at once; the next one waits in the accept queue.
pub const ADMIN_CONNECTIONS_MAX: usize = 128;
/// Life of one connection of an admin server, in milliseconds: one request and its answer.
pub const ADMIN_CONNECTION_MS_MAX: u64 = 3_000;
/// Shortest time between two words to the service manager's watchdog.
pub const WATCHDOG_PERIOD_MIN: Duration = Duration::from_millis(10);
/// Longest wait until every shard serves by settings that were read again.
pub const SETTINGS_EXCHANGE_WAIT: Duration = Duration::from_secs(5);
/// Time between two looks at a mailbox that is full when it is to take them.
pub const SETTINGS_LOOK: Duration = Duration::from_millis(2);
/// Signals that may wait to be looked at; a further one is dropped, as the kernel would merge it.
pub const SIGNALS_WAITING_MAX: usize = 8;
/// Log lines that may wait for the log thread; a further one is dropped and counted, because a shard
/// must not wait for whoever reads our standard error.
pub const LOG_LINES_WAITING_MAX: usize = 8_192;
/// Time after which lines that are not urgent are written, those of the time together.
pub const LOG_GATHER: Duration = Duration::from_millis(5);
/// Bytes of lines that are written at once; the line that passes it is the last.
pub const LOG_BLOCK_BYTES_MAX: usize = 64 << 10;
/// Longest wait at exit for the waiting log lines to be written, in milliseconds.
pub const LOG_FLUSH_MS_MAX: u64 = 1_000;
/// Period of the metrics recorder's own upkeep, in milliseconds. Until then it holds each time that
/// was measured in 24 bytes, and a REQ is measured three times.
pub const METRICS_UPKEEP_MS: u64 = 500;
/// Time that upgrades under way have to be answered when a new process has taken the listening sockets
/// over: until every silent client has been told that its request takes too long.
pub const HAND_OVER_UPGRADES_WAIT: Duration =
    HEAD_WAIT.saturating_add(SWEEP_INTERVAL.saturating_mul(2));
/// Descriptors that pass to a new process at once; the kernel takes up to 253.
pub const HAND_OVER_DESCRIPTORS_MAX: usize = 64;
/// Bytes of what the two processes say to each other at once.
pub const HAND_OVER_WORD_BYTES_MAX: usize = 4 << 10;
/// Conversations about a hand-over at one time: all but one are refusals.
pub const HAND_OVER_CONNECTIONS_MAX: usize = 4;
/// Longest wait for a word that the other process has at hand.
pub const HAND_OVER_WORD_WAIT: Duration = Duration::from_secs(5);
/// Longest time from the sockets to the word that the new process serves: its database may be away.
pub const HAND_OVER_MAX: Duration = Duration::from_millis(DB_WAIT_MS_MAX + 60_000);
/// Longest wait of a command for the control socket, and for an answer that is given at once: longer
/// than a reload waits for the shards.
pub const CONTROL_ANSWER_WAIT: Duration = Duration::from_secs(15);
/// Longest life of a connection to the control socket, in milliseconds: it may wait for a drain with
/// the longest times that can be set.
pub const CONTROL_CONNECTION_MS_MAX: u64 =
    2 * DRAIN_SETTING_MS_MAX + STORE_CLOSE_MS_MAX + FLAGS_CLOSE_MS_MAX + 10_000;
/// Bytes of an answer of the control socket that the command line reads.
pub const CONTROL_ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Keys that one request to the control socket may put on a list or take off.
pub const ACCESS_KEYS_MAX: usize = 1_000;
/// Bytes of such a request.
pub const ACCESS_REQUEST_BYTES_MAX: usize = 128 << 10;
/// Bytes of a request to make a backup: a path, escaped.
pub const BACKUP_REQUEST_BYTES_MAX: usize = 32 << 10;
/// Time between two words of a relay on how far a backup is.
pub const BACKUP_TELL: Duration = Duration::from_millis(500);
/// Silence of a relay that makes a backup after which the command line gives up.
pub const BACKUP_SILENCE_MAX: Duration = Duration::from_secs(30);
/// Entries of the access lists in one answer of the control socket.
pub const ACCESS_PAGE_ENTRIES_MAX: usize = 1_000;
/// Bytes of one of those entries, as JSON.
pub const ACCESS_ENTRY_BYTES_MAX: usize = 160;
/// Longest wait of the command line for an answer about the access lists, for each request.
pub const ACCESS_ANSWER_WAIT: Duration = Duration::from_secs(15);
/// Time that the command line tries to reach the lists while another process holds the folder and
/// does not answer: a relay that starts or ends, or another command.
pub const ACCESS_REACH_WAIT: Duration = Duration::from_secs(5);
/// Time between two tries.
pub const ACCESS_REACH_PAUSE: Duration = Duration::from_millis(20);
/// Time that a start gives, twice, to a signal that has come already.
pub const SIGNAL_LOOK: Duration = Duration::from_millis(1);

// look: the commands that look at a relay.

/// Longest wait of `buzz-uring health` for a whole answer: less than a container engine waits for it.
pub const HEALTH_ANSWER_WAIT: Duration = Duration::from_secs(3);
/// Bytes of that answer that are read.
pub const HEALTH_ANSWER_BYTES_MAX: usize = 4 << 10;
/// Longest wait of `buzz-uring status` and `top` for a whole answer.
pub const STATUS_ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Bytes of that answer that are read: some 250 a shard, and a few thousand besides.
pub const STATUS_ANSWER_BYTES_MAX: usize = 1 << 20;
/// Characters of a text in that answer that are shown.
pub const STATUS_TEXT_CHARS_MAX: usize = 200;
/// Addresses of a host name that are tried.
pub const LOOK_ADDRESSES_MAX: usize = 8;
/// Time from one question of `buzz-uring top` to the next.
pub const TOP_PERIOD: Duration = Duration::from_secs(1);
/// Longest time for which `buzz-uring top` waits for a key before it looks for an answer.
pub const TOP_KEY_LOOK: Duration = Duration::from_millis(50);
/// Points of a chart that are kept, one a question: more than the columns of any terminal's third.
pub const TOP_POINTS_MAX: usize = 400;
/// Columns of a terminal that `buzz-uring top` draws on. A terminal may say that it has 65 535.
pub const TOP_COLUMNS_MAX: u16 = 1_200;
/// Rows of a terminal that `buzz-uring top` draws on.
pub const TOP_ROWS_MAX: u16 = 400;

// How they relate.

// Lengths of a message are kept in 32 bits, so that an idle decoder stays small.
const _: () = assert!(FRAME_BYTES_MAX <= u32::MAX as usize);
const _: () = assert!(FRAGMENTS_MAX <= u32::MAX as usize);
const _: () = assert!(VERIFIER_KEYS_MAX.is_power_of_two());
const _: () = assert!(RECENT_IDS_ENTRIES.is_power_of_two());
const _: () = assert!(SLICE_TIME.as_micros() < SLICE_TIME_COLD.as_micros());
const _: () = assert!(LIMIT_DEFAULT <= LIMIT_MAX_DEFAULT);
const _: () = assert!(FRAME_BYTES_MIN <= FRAME_BYTES_DEFAULT);
const _: () = assert!(FRAME_BYTES_DEFAULT <= FRAME_BYTES_MAX);
const _: () = assert!(
    FLAGS_STALL_MS_MAX > FLAGS_SILENCE_MS_MAX + FLAGS_CONNECT_MS_MAX + FLAGS_ANSWER_MS_MAX + 30_000
);
const _: () = assert!(REMEMBERED_SAVE_SECONDS < REMEMBERED_AGE_SECONDS_MAX);
const _: () = assert!(OUTBOX_SOFT_BYTES_DEFAULT <= OUTBOX_HARD_BYTES_DEFAULT);
const _: () = assert!(OUTBOX_HARD_BYTES_DEFAULT <= OUTBOX_TOTAL_BYTES_DEFAULT);
// A connection's queue must hold the largest message, or the first big event would end it.
const _: () = assert!(FRAME_BYTES_DEFAULT <= OUTBOX_HARD_BYTES_DEFAULT);
const _: () = assert!(CONNECTIONS_DESCRIPTORS_PERCENT < 50);
// The widest chart finds a point for each of its columns.
const _: () = assert!(TOP_POINTS_MAX * 3 >= TOP_COLUMNS_MAX as usize);
// The longest window, the flush of its last close and that client's answer fit before the hard stop.
const _: () =
    assert!(DRAIN_JITTER_MS_MAX + DRAIN_FLUSH_MS_MAX + CLOSE_ANSWER_MS_MAX <= HARD_STOP_MS_DEFAULT);
// Grace, hard stop, transfers, store and flags all fit before the supervisor loses its patience.
const _: () = assert!(
    DRAIN_GRACE_MS_DEFAULT
        + HARD_STOP_MS_DEFAULT
        + TRANSFER_STOP_MS_MAX
        + STORE_CLOSE_MS_MAX
        + FLAGS_CLOSE_MS_MAX
        <= TERMINATION_GRACE_SECONDS * 1_000
);
const _: () = assert!(FRAME_BYTES_MAX <= WRITE_QUEUE_BYTES_MAX);
const _: () = assert!(DELETION_TAGS_UNCHECKED_MAX * FRAME_BYTES_MAX <= DELETION_BYTES_MAX);
const _: () =
    assert!(DELETION_TAGS_UNCHECKED_MAX * (EVENT_TAGS_MAX + 6) <= DELETION_INDEX_ENTRIES_MAX);
const _: () = assert!(COMMIT_EVENTS_MAX <= WRITE_QUEUE_EVENTS_MAX);
// A key in JSON is 64 digits, two quotes and a comma; the rest of a request is a few dozen bytes.
const _: () = assert!(ACCESS_KEYS_MAX * 67 + 1_024 <= ACCESS_REQUEST_BYTES_MAX);
const _: () = assert!(
    (ACCESS_PAGE_ENTRIES_MAX * ACCESS_ENTRY_BYTES_MAX + 1_024) as u64 <= CONTROL_ANSWER_BYTES_MAX
);
// The drain waits for a flush acknowledgement as long as a close may take to be written, which every
// connection's own deadline bounds; it is looked at once a sweep.
const _: () =
    assert!(CLOSE_WRITE.as_millis() + SWEEP_INTERVAL.as_millis() < DRAIN_FLUSH_MS_MAX as u128);
const _: () = assert!(CLOSE_LINGER.as_millis() <= CLOSE_ANSWER_MS_MAX as u128);
const _: () = assert!(DB_ANSWER_WAIT.as_millis() > DB_STATEMENT_WAIT.as_millis());
const _: () = assert!(DB_LOCK_WAIT.as_millis() < DB_STATEMENT_WAIT.as_millis());
const _: () = assert!(DB_RUNS_MAX * DB_RUN_ENTRIES_MIN <= DB_READ_ENTRIES_MAX);
// A login's check began at most so long before its answer.
const _: () = assert!(
    DB_BAN_REMEMBERED.as_millis()
        > DB_ACQUIRE_WAIT.as_millis() + DB_CONNECT_WAIT.as_millis() + DB_ANSWER_WAIT.as_millis()
);
const _: () = assert!(IMPORT_ALONE_EVENTS_MAX <= WRITE_QUEUE_EVENTS_MAX);
// While one commit is written the next gathers.
const _: () = assert!(2 * FILL_EVENTS_MAX <= IMPORT_ALONE_EVENTS_MAX);
const _: () = assert!(2 * FILL_BYTES_MAX <= IMPORT_ALONE_BYTES_MAX);
const _: () = assert!(IMPORT_ALONE_BYTES_MAX <= WRITE_QUEUE_BYTES_MAX);
const _: () = assert!(IMPORT_SHARED_EVENTS_MAX < WRITE_QUEUE_EVENTS_MAX);
const _: () = assert!(IMPORT_QUIET.as_millis() * 3 < IMPORT_IDLE.as_millis());
const _: () = assert!(IMPORT_SETTLE_WAIT.as_millis() < TRANSFER_STOP_MS_MAX as u128);
