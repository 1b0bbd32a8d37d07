//! The closed lists of label values. A label with an open list (a key, an address) would let a
//! client fill the memory of whoever scrapes us, so there is none.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;

use metrics::{Counter, Gauge, Histogram};

use super::Series;
use super::tally::Counted;

/// A closed list of values of one label.
pub trait Label: Copy + fmt::Debug + 'static {
    /// The label's name.
    const NAME: &'static str;
    /// Every value's text, in the order of [`Label::index`].
    const TEXTS: &'static [&'static str];
    /// Place in [`Label::TEXTS`].
    fn index(self) -> usize;
    /// The text on the wire of the metrics endpoint and in logs.
    fn as_label(self) -> &'static str {
        Self::TEXTS[self.index()]
    }
}

macro_rules! labels {
    ($($(#[$doc:meta])* $name:ident($label:literal) {
        $($(#[$variant_doc:meta])* $variant:ident => $text:literal,)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// Every value.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
        }

        impl Label for $name {
            const NAME: &'static str = $label;
            const TEXTS: &'static [&'static str] = &[$($text,)*];
            fn index(self) -> usize {
                self as usize
            }
        }
    )*};
}

labels! {
    /// The two runtime-tunable caps.
    GateName("gate") {
        /// Store reads for REQ history, COUNT and NEG-OPEN.
        HistoryReads => "history_reads",
        /// Verified logins while their access checks run.
        Auth => "auth",
    }
    /// What became of a line of an import.
    ImportOutcome("outcome") {
        /// Committed.
        Stored => "stored",
        /// Stored before.
        Duplicate => "duplicate",
        /// A newer version is stored.
        Superseded => "superseded",
        /// Not stored, on purpose.
        Refused => "refused",
        /// Not stored: the store failed.
        Failed => "failed",
    }
    /// Which way events go by the line.
    TransferKind("transfer") {
        /// Into the store.
        Import => "import",
        /// Out of it.
        Export => "export",
    }
    /// Why a gate turned work away.
    ShedReason("reason") {
        /// The wait ended.
        Timeout => "timeout",
        /// Too many were waiting.
        Full => "full",
        /// The gate was closed.
        Closed => "closed",
    }
    /// How a login attempt ended; each has exactly one.
    AuthOutcome("outcome") {
        /// Logged in.
        Success => "success",
        /// Signature, kind, challenge, relay URL or time.
        Invalid => "invalid",
        /// The key is banned.
        Banned => "banned",
        /// Not on the allow-list.
        AllowlistDenied => "allowlist_denied",
        /// Not a member.
        NotRelayMember => "not_relay_member",
        /// The store failed during the checks.
        CheckError => "check_error",
        /// Shed by the auth gate.
        ConcurrencyLimit => "concurrency_limit",
        /// No login within the time allowed.
        Timeout => "timeout",
        /// The client left.
        Disconnect => "disconnect",
        /// The relay restarted.
        Shutdown => "shutdown",
    }
    /// The ways to log in.
    AuthMethod("method") {
        /// NIP-42.
        Nip42 => "nip42",
    }
    /// Why a WebSocket connection ended.
    CloseReason("reason") {
        /// The client sent a Close.
        Client => "client",
        /// The client's stream ended without one.
        Lost => "lost",
        /// Reading or writing failed.
        Io => "io",
        /// Broken framing (1002).
        Protocol => "protocol",
        /// A text that is not UTF-8 (1007).
        NotUtf8 => "not_utf8",
        /// A message above the bound (1009).
        TooBig => "too_big",
        /// Pings went unanswered.
        Unresponsive => "unresponsive",
        /// A queue outgrew a bound.
        SlowReader => "slow_reader",
        /// All queues outgrew their bound, and this was the largest.
        QueuesFull => "queues_full",
        /// The auth gate shed its login (bare close).
        AuthShed => "auth_shed",
        /// It did not log in in time (bare close).
        AuthTimeout => "auth_timeout",
        /// Its key is banned (1008).
        Banned => "banned",
        /// The relay restarts (1012).
        Restart => "restart",
        /// A defect of ours (1011).
        Panic => "panic",
    }
    /// Why a live event was not sent to a subscriber.
    DropReason("reason") {
        /// Its connection was being closed.
        Closing => "closing",
        /// Its connection was too slow.
        SlowReader => "slow_reader",
        /// Too much came in while the history was being sent.
        Backlog => "backlog",
        /// Its time came before it was written (NIP-40).
        Expired => "expired",
        /// A defect of ours while matching it.
        Panic => "panic",
    }
    /// What became of an EVENT message.
    EventOutcome("outcome") {
        /// Committed.
        Stored => "stored",
        /// Passed on, not kept.
        Ephemeral => "ephemeral",
        /// Known already, or superseded.
        Duplicate => "duplicate",
        /// Refused, with a reason on the wire.
        Refused => "refused",
    }
    /// Why the store removed an event.
    RemovalReason("reason") {
        /// A deletion request names it (NIP-09).
        Deleted => "deleted",
        /// Its time had come (NIP-40).
        Expired => "expired",
        /// A newer version took its place.
        Replaced => "replaced",
        /// Its key has asked to vanish (NIP-62).
        Vanished => "vanished",
        /// No rule keeps it.
        Retention => "retention",
    }
    /// What a client asked of the store.
    QueryKind("kind") {
        /// REQ.
        Req => "req",
        /// COUNT.
        Count => "count",
        /// NEG-OPEN.
        Neg => "neg",
    }
    /// How the drain ended a connection.
    DrainClose("how") {
        /// The kernel took its 1012.
        Acknowledged => "acknowledged",
        /// Closed without that.
        Cancelled => "cancelled",
        /// It had left, or was being closed for another reason.
        Gone => "gone",
        /// Cut by the hard stop.
        Hard => "hard",
    }
    /// Why an accept failed; the listener pauses and goes on.
    AcceptError("reason") {
        /// The process is out of descriptors (EMFILE).
        ProcessDescriptors => "emfile",
        /// The machine is out of descriptors (ENFILE).
        MachineDescriptors => "enfile",
        /// The client gave up before (ECONNABORTED).
        Aborted => "econnaborted",
        /// Anything else.
        Other => "other",
    }
    /// Why an upgrade was refused before its handshake.
    UpgradeRefusal("reason") {
        /// The relay is full (503).
        Capacity => "capacity",
        /// The relay is starting (503).
        Starting => "starting",
        /// The relay is draining (503).
        Draining => "draining",
        /// Not an upgrade we understand (4xx).
        Malformed => "malformed",
        /// The head did not arrive in time.
        Timeout => "timeout",
        /// Its address has as many connections as it may (429).
        AddressConnections => "address_connections",
        /// Its address has opened as many lately as it may (429).
        AddressRate => "address_rate",
    }
    /// Why a message that is no EVENT or AUTH was turned away.
    MessageRefusal("reason") {
        /// It cannot be read, or is above a bound on its form.
        Malformed => "malformed",
        /// A login comes first.
        AuthRequired => "auth_required",
        /// The connection's filters have as many values as they may.
        FilterValues => "filter_values",
        /// The connection has as many subscriptions as it may.
        Subscriptions => "subscriptions",
        /// As many reads of the connection wait as may.
        Reads => "reads",
    }
    /// Which of its rates a connection is above.
    RateKind("what") {
        /// Messages.
        Messages => "messages",
        /// Bytes of messages.
        Bytes => "bytes",
    }
    /// Connections to a database, by what they are for.
    DbPool("pool") {
        /// Commits, logins, edits of the access lists.
        Writers => "writers",
        /// History.
        Readers => "readers",
    }
    /// How shards do I/O.
    Driver("driver") {
        /// io_uring.
        IoUring => "io_uring",
        /// epoll.
        Epoll => "epoll",
    }
}

/// One handle for each value of a label, taken once: finding a handle by name costs twenty times
/// its use.
pub struct ByLabel<L, H> {
    handles: Box<[H]>,
    label: PhantomData<fn(L)>,
}

impl<L: Label, H> ByLabel<L, H> {
    fn new(handle: impl Fn(&'static str) -> H) -> ByLabel<L, H> {
        ByLabel {
            handles: L::TEXTS.iter().map(|text| handle(text)).collect(),
            label: PhantomData,
        }
    }

    /// The handle of one value.
    pub fn of(&self, label: L) -> &H {
        &self.handles[label.index()]
    }
}

impl<L: Label> ByLabel<L, Counter> {
    /// Counters of a series by `L`, under further fixed labels.
    pub fn counters(series: &Series, fixed: &[(&'static str, String)]) -> Self {
        ByLabel::new(|text| series.counter(&with::<L>(fixed, text)))
    }
}

impl<L: Label> ByLabel<L, Counted> {
    /// As [`ByLabel::counters`], each wrapped with its number: one for each value, in their order.
    pub fn counted(
        series: &Series,
        fixed: &[(&'static str, String)],
        numbers: &'static [AtomicU64],
    ) -> Self {
        assert_eq!(numbers.len(), L::TEXTS.len(), "{}", series.name);
        let handles = L::TEXTS
            .iter()
            .zip(numbers)
            .map(|(text, number)| Counted::new(series.counter(&with::<L>(fixed, text)), number));
        ByLabel {
            handles: handles.collect(),
            label: PhantomData,
        }
    }
}

impl<L: Label> ByLabel<L, Gauge> {
    /// Gauges of a series by `L`.
    pub fn gauges(series: &Series) -> Self {
        ByLabel::new(|text| series.gauge(&with::<L>(&[], text)))
    }
}

impl<L: Label> ByLabel<L, Histogram> {
    /// Histograms of a series by `L`.
    pub fn histograms(series: &Series) -> Self {
        ByLabel::new(|text| series.histogram(&with::<L>(&[], text)))
    }
}

impl<L: Label, H> fmt::Debug for ByLabel<L, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByLabel({})", L::NAME)
    }
}

fn with<L: Label>(
    fixed: &[(&'static str, String)],
    text: &'static str,
) -> Vec<(&'static str, String)> {
    let mut labels = fixed.to_vec();
    labels.push((L::NAME, text.to_owned()));
    labels
}
