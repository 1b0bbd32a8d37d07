//! What clients say, and what the relay answers (NIP-01, NIP-42, NIP-45).
//!
//! `["EVENT",{…}]` is almost all of the traffic and is read in one pass without a parser between.
//! Of other messages the label and the subscription id are read first, so that whatever is wrong
//! behind them can be answered to the right subscription; then serde_json reads the filters. Every
//! type is known before it is read, so nothing nests deeper than the shapes of NIP-01.
//!
//! Answers are appended to a buffer as text. All text in them is escaped, whoever it comes from.

use std::fmt;

use serde::de::{Deserializer as _, Error as _, IgnoredAny, SeqAccess, Visitor};

pub use super::reason::{Prefix, Reason};
use super::{
    cursor::Cursor,
    event::{Event, EventError},
    filter::{Budget, Filter, FilterSeed},
    text::{escape_into, unescape},
};
use crate::limits::{
    FILTER_VALUES_DEFAULT, FILTERS_DEFAULT, LABEL_CHARS_SHOWN_MAX, SUBID_LENGTH_DEFAULT,
    VALUES_PER_FILTER_DEFAULT,
};
use crate::thin::ThinBytes;

/// A message of a client.
#[derive(Debug)]
pub enum ClientMessage {
    /// A login (NIP-42).
    Auth(Event),
    /// No more events for a subscription.
    Close {
        /// The subscription.
        sub: SubId,
    },
    /// How many events pass (NIP-45).
    Count {
        /// The query, named like a subscription.
        sub: SubId,
        /// At least one.
        filters: Vec<Filter>,
    },
    /// An event to publish.
    Event(Event),
    /// History, then live events.
    Req {
        /// The subscription.
        sub: SubId,
        /// At least one.
        filters: Vec<Filter>,
    },
}

/// What [`ClientMessage::parse`] accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseBounds {
    /// Filters of a message.
    pub filters_max: usize,
    /// Values in all filters of a message.
    pub filter_values_max: usize,
    /// Values in one filter.
    pub values_per_filter_max: usize,
    /// Characters of a subscription id.
    pub subid_length_max: usize,
}

impl Default for ParseBounds {
    fn default() -> Self {
        Self {
            filters_max: FILTERS_DEFAULT,
            filter_values_max: FILTER_VALUES_DEFAULT,
            values_per_filter_max: VALUES_PER_FILTER_DEFAULT,
            subid_length_max: SUBID_LENGTH_DEFAULT,
        }
    }
}

/// Why a text is no message, and whom to tell how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// A bad event in AUTH: `OK` false if it has an id, else `NOTICE`.
    Auth(EventError),
    /// A bad event in EVENT: `OK` false if it has an id, else `NOTICE`.
    Event(EventError),
    /// Nothing to answer to: `NOTICE`.
    Notice(Reason),
    /// A bad REQ, COUNT or CLOSE: `CLOSED`.
    Sub {
        /// What it was about.
        sub: SubId,
        /// What is wrong.
        reason: Reason,
    },
}

impl MessageError {
    /// Appends the one answer that the client is owed: `OK` false, `CLOSED` or `NOTICE`.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Auth(error) | Self::Event(error) => match &error.id {
                Some(id) => write_ok(out, id, false, Some(&error.reason)),
                None => write_notice(out, &error.reason.to_string()),
            },
            Self::Notice(reason) => write_notice(out, &reason.to_string()),
            Self::Sub { sub, reason } => write_closed(out, sub, reason),
        }
    }
}

/// A subscription id, held as its canonical JSON text, quotes included: identity and wire form at
/// once, so that an id cannot leave unescaped.
#[derive(Clone)]
pub struct SubId(ThinBytes);

impl SubId {
    /// The id of which `value` is the unescaped text.
    ///
    /// # Errors
    /// `invalid:` if it is empty or longer than `length_max` characters (NIP-01).
    pub fn new(value: &str, length_max: usize) -> Result<Self, Reason> {
        if value.is_empty() {
            return Err(Reason::invalid("subscription id is empty"));
        }
        // A character has at most 4 bytes: no need to count what is much too long.
        if value.len() > length_max.saturating_mul(4) || value.chars().count() > length_max {
            return Err(Reason::invalid("subscription id is too long"));
        }
        let mut json = Vec::with_capacity(value.len() + 2);
        write_string(&mut json, value);
        Ok(Self(ThinBytes::new(&json)))
    }

    /// The id as JSON, quotes included.
    pub fn as_json(&self) -> &str {
        // Escapes are ASCII and the rest was copied from a str.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl PartialEq for SubId {
    fn eq(&self, other: &Self) -> bool {
        *self.0 == *other.0
    }
}

impl Eq for SubId {}

impl fmt::Debug for SubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_json())
    }
}

impl ClientMessage {
    /// Reads one message: the text of one WebSocket message.
    ///
    /// # Errors
    /// See [`MessageError`]; each names the event or subscription where it could be read.
    pub fn parse(text: &str, bounds: &ParseBounds) -> Result<Self, MessageError> {
        const EVENT: &str = "[\"EVENT\",";
        if text.starts_with(EVENT) {
            return event_after(text, EVENT.len())
                .map(Self::Event)
                .map_err(MessageError::Event);
        }
        let notice = |text| MessageError::Notice(Reason::fixed(Prefix::Invalid, text));
        let mut head = Cursor::new(text);
        head.space();
        head.expect(b'[', "message is not a JSON array")
            .map_err(notice)?;
        head.space();
        let (label, _) = head.string("message without a label").map_err(notice)?;
        let label = unescape(label);
        head.space();
        match &*label {
            "EVENT" | "AUTH" | "REQ" | "COUNT" | "CLOSE" => {}
            other => return Err(unknown(other)),
        }
        head.expect(b',', "message ends after its label")
            .map_err(notice)?;
        match &*label {
            "EVENT" => {
                return event_after(text, head.at)
                    .map(Self::Event)
                    .map_err(MessageError::Event);
            }
            "AUTH" => {
                return event_after(text, head.at)
                    .map(Self::Auth)
                    .map_err(MessageError::Auth);
            }
            _ => {}
        }
        head.space();
        let (sub, _) = head
            .string("subscription id is not a string")
            .map_err(notice)?;
        let sub =
            SubId::new(&unescape(sub), bounds.subid_length_max).map_err(MessageError::Notice)?;
        let closes = label == "CLOSE";
        match read_filters(text, bounds, if closes { 0 } else { bounds.filters_max }) {
            Err(reason) => Err(MessageError::Sub { sub, reason }),
            Ok(_) if closes => Ok(Self::Close { sub }),
            Ok(filters) if filters.is_empty() => Err(MessageError::Sub {
                sub,
                reason: Reason::invalid("no filter given"),
            }),
            Ok(filters) if label == "REQ" => Ok(Self::Req { sub, filters }),
            Ok(filters) => Ok(Self::Count { sub, filters }),
        }
    }
}

/// Appends `["OK",<id>,<accepted>,<reason>]`; no reason is the empty string, which NIP-01 allows
/// only where the event was accepted.
pub fn write_ok(out: &mut Vec<u8>, id: &[u8; 32], accepted: bool, reason: Option<&Reason>) {
    debug_assert!(accepted || reason.is_some(), "a refusal has a reason");
    let mut hex = [0; 64];
    // Cannot fail: the buffer is twice the input.
    let _ = const_hex::encode_to_slice(id, &mut hex);
    out.extend_from_slice(b"[\"OK\",\"");
    out.extend_from_slice(&hex);
    out.extend_from_slice(if accepted { b"\",true," } else { b"\",false," });
    match reason {
        Some(reason) => write_reason(out, reason),
        None => out.extend_from_slice(b"\"\""),
    }
    out.push(b']');
}

/// What `EOSE` says of the history before it (NIP-67). Neither is said where it is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EoseHint {
    /// Every stored event that matches was sent.
    Finish,
    /// A stored event that matches was not sent.
    More,
}

/// Appends `["EOSE",<sub>]`, or `["EOSE",<sub>,[<hint>]]`.
pub fn write_eose(out: &mut Vec<u8>, sub: &SubId, hint: Option<EoseHint>) {
    out.extend_from_slice(b"[\"EOSE\",");
    out.extend_from_slice(&sub.0);
    out.extend_from_slice(match hint {
        None => b"]",
        Some(EoseHint::Finish) => b",[\"finish\"]]",
        Some(EoseHint::More) => b",[\"more\"]]",
    });
}

/// Appends `["CLOSED",<sub>,<reason>]`.
pub fn write_closed(out: &mut Vec<u8>, sub: &SubId, reason: &Reason) {
    out.extend_from_slice(b"[\"CLOSED\",");
    out.extend_from_slice(&sub.0);
    out.push(b',');
    write_reason(out, reason);
    out.push(b']');
}

/// Appends `["NOTICE",<text>]`.
pub fn write_notice(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(b"[\"NOTICE\",");
    write_string(out, text);
    out.push(b']');
}

/// Appends `["AUTH",<challenge>]` (NIP-42).
pub fn write_auth(out: &mut Vec<u8>, challenge: &str) {
    out.extend_from_slice(b"[\"AUTH\",");
    write_string(out, challenge);
    out.push(b']');
}

/// Appends `["COUNT",<sub>,{"count":N}]`, or `["COUNT",<sub>,{"count":N,"hll":"<hex>"}]` (NIP-45).
pub fn write_count(out: &mut Vec<u8>, sub: &SubId, count: u64, hll: Option<&str>) {
    out.extend_from_slice(b"[\"COUNT\",");
    out.extend_from_slice(&sub.0);
    out.extend_from_slice(format!(",{{\"count\":{count}").as_bytes());
    if let Some(hll) = hll {
        out.extend_from_slice(b",\"hll\":");
        write_string(out, hll);
    }
    out.extend_from_slice(b"}]");
}

/// Appends `["EVENT",<sub>,`. The event's JSON and `]` follow: those bytes are shared by all who
/// get the event.
pub fn event_prefix(out: &mut Vec<u8>, sub: &SubId) {
    out.extend_from_slice(b"[\"EVENT\",");
    out.extend_from_slice(&sub.0);
    out.push(b',');
}

/// Bytes that [`event_prefix`] appends.
pub fn event_prefix_len(sub: &SubId) -> usize {
    b"[\"EVENT\",,".len() + sub.0.len()
}

fn write_reason(out: &mut Vec<u8>, reason: &Reason) {
    out.push(b'"');
    out.extend_from_slice(reason.prefix().as_str().as_bytes());
    out.extend_from_slice(b": ");
    escape_into(reason.text(), out);
    out.push(b'"');
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escape_into(text, out);
    out.push(b'"');
}

/// The event of an EVENT or AUTH message, `at` being behind the comma.
fn event_after(text: &str, at: usize) -> Result<Event, EventError> {
    let (event, length) = Event::parse_prefix(&text[at..])?;
    let mut tail = Cursor::new(&text[at + length..]);
    tail.space();
    let closed = tail.next() == Some(b']');
    tail.space();
    if closed && tail.peek().is_none() {
        return Ok(event);
    }
    Err(EventError {
        id: Some(*event.id()),
        reason: Reason::invalid("text after the event"),
    })
}

fn unknown(label: &str) -> MessageError {
    let shown: String = label.chars().take(LABEL_CHARS_SHOWN_MAX).collect();
    MessageError::Notice(Reason::new(
        Prefix::Unsupported,
        format!("unknown message {shown}"),
    ))
}

/// The filters of a whole message: what follows its label and its subscription id.
fn read_filters(
    text: &str,
    bounds: &ParseBounds,
    filters_max: usize,
) -> Result<Vec<Filter>, Reason> {
    let mut budget = Budget {
        values_left: bounds.filter_values_max,
        filter_values_max: bounds.values_per_filter_max,
        filter_values_left: 0,
        fault: None,
    };
    let mut json = serde_json::Deserializer::from_str(text);
    let read = (&mut json)
        .deserialize_seq(FiltersVisitor {
            budget: &mut budget,
            filters_max,
        })
        .and_then(|filters| json.end().map(|()| filters));
    read.map_err(|_| {
        budget
            .fault
            .unwrap_or(Reason::fixed(Prefix::Invalid, "malformed message"))
    })
}

struct FiltersVisitor<'b> {
    budget: &'b mut Budget,
    filters_max: usize,
}

impl<'de> Visitor<'de> for FiltersVisitor<'_> {
    type Value = Vec<Filter>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut message: A) -> Result<Vec<Filter>, A::Error> {
        // Both are known to be strings.
        let _label: Option<IgnoredAny> = message.next_element()?;
        let _sub: Option<IgnoredAny> = message.next_element()?;
        let mut filters = Vec::new();
        while let Some(filter) = message.next_element_seed(FilterSeed(self.budget))? {
            if filters.len() == self.filters_max {
                self.budget
                    .fault
                    .get_or_insert(Reason::invalid("too many filters"));
                return Err(A::Error::custom(""));
            }
            filters.push(filter);
        }
        Ok(filters)
    }
}

#[cfg(test)]
mod tests;
