//! The filters of a subscription, as they are kept for live events: in one allocation, in place.
//!
//! A parsed filter is made to be read by the store: 144 bytes, and a list of its own for each field
//! that it has. It goes when its history has been read. What is left stays as long as the client,
//! so it is small: a filter for a kind and a tag of nine letters has 16 bytes.
//!
//! One filter after the other: flags; the bytes that follow, unless it is the last; then of these
//! what it has, in this order, which is also that in which an event is held against them:
//!
//! | part | bytes |
//! |---|---|
//! | kinds | count, each two bytes, big-endian, so that their order is that of numbers |
//! | since, until | eight bytes each, little-endian |
//! | authors, ids | count, 32 bytes each |
//! | tags | letter, and its highest bit if another letter follows; count; form; values |
//!
//! Values have one of three forms: 32 bytes each, where all are 64 lower-case hex digits, as ids and
//! keys are; all of one length; or the ends of each, four bytes, and then all of them. A count is one
//! byte below 255, else five. Lists are sorted, as they are in a [`Filter`].
//!
//! A filter that no event can pass is left out. `limit` is, too: it is about history.

use crate::nostr::{Event, Filter, lower_hex};
use crate::thin::ThinBytes;

/// Filters, of which one must match.
#[derive(Debug)]
pub(super) struct Packed(ThinBytes);

const KINDS: u8 = 1;
const SINCE: u8 = 2;
const UNTIL: u8 = 4;
const AUTHORS: u8 = 8;
const IDS: u8 = 16;
const TAGS: u8 = 32;
const LAST: u8 = 64;

/// Forms of values. Above these it is the length of each, and [`EVEN`] more.
const MIXED: usize = 0;
const HEX: usize = 1;
const EVEN: usize = 2;

/// What most filters fit into.
const SCRATCH_BYTES: usize = 128;

/// Of a letter, which is ASCII: another one follows.
const MORE: u8 = 128;
/// The first byte of a count that is in the four after it.
const LONG: u8 = u8::MAX;

impl Packed {
    pub(super) fn new(filters: &[Filter]) -> Packed {
        let kept = |filter: &Filter| !filter.is_void();
        let last = filters.iter().rposition(kept).unwrap_or(0);
        let mut out = Vec::with_capacity(SCRATCH_BYTES);
        for (place, filter) in filters
            .iter()
            .enumerate()
            .filter(|(_, filter)| kept(filter))
        {
            if place == last {
                out.push(flags(filter) | LAST);
                write_parts(&mut out, filter);
            } else {
                let mut parts = Vec::new();
                write_parts(&mut parts, filter);
                out.push(flags(filter));
                write_count(&mut out, parts.len());
                out.append(&mut parts);
            }
        }
        Packed(ThinBytes::new(&out))
    }

    /// Whether `event` passes one of them.
    #[inline]
    pub(super) fn matches(&self, event: &Event) -> bool {
        let mut rest = Bytes(&self.0);
        while let Some((flags, behind)) = rest.0.split_first() {
            rest.0 = behind;
            if flags & LAST != 0 {
                return rest.pass(*flags, event);
            }
            let length = rest.count();
            if Bytes(rest.take(length)).pass(*flags, event) {
                return true;
            }
        }
        false
    }

    /// Filter by filter.
    pub(super) fn each(&self) -> impl Iterator<Item = Parts<'_>> {
        let mut rest = Bytes(&self.0);
        std::iter::from_fn(move || {
            if rest.0.is_empty() {
                return None;
            }
            let flags = rest.byte();
            let length = match flags & LAST {
                0 => rest.count(),
                _ => rest.0.len(),
            };
            let bytes = Bytes(rest.take(length));
            Some(Parts { flags, bytes })
        })
    }
}

/// What a filter asks for. Each part is taken once, in the order in which they stand here, and none
/// is left out.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    flags: u8,
    bytes: Bytes<'a>,
}

impl<'a> Parts<'a> {
    /// In big-endian order of bytes.
    pub(super) fn kinds(&mut self) -> Option<&'a [[u8; 2]]> {
        self.has(KINDS).then(|| self.bytes.array())
    }

    pub(super) fn since(&mut self) -> Option<u64> {
        self.has(SINCE).then(|| self.bytes.number())
    }

    pub(super) fn until(&mut self) -> Option<u64> {
        self.has(UNTIL).then(|| self.bytes.number())
    }

    pub(super) fn authors(&mut self) -> Option<&'a [[u8; 32]]> {
        self.has(AUTHORS).then(|| self.bytes.array())
    }

    pub(super) fn ids(&mut self) -> Option<&'a [[u8; 32]]> {
        self.has(IDS).then(|| self.bytes.array())
    }

    /// The letters, each with its values.
    pub(super) fn tags(mut self) -> impl Iterator<Item = (u8, Values<'a>)> {
        let mut more = self.has(TAGS);
        std::iter::from_fn(move || {
            if !more {
                return None;
            }
            let letter = self.bytes.byte();
            more = letter & MORE != 0;
            Some((letter & !MORE, self.bytes.values()))
        })
    }

    /// Values in all lists together.
    pub(super) fn value_count(mut self) -> usize {
        let kinds = self.kinds().map_or(0, <[_]>::len);
        let _ = (self.since(), self.until());
        let keys = [self.authors(), self.ids()];
        let keys: usize = keys.into_iter().flatten().map(<[_]>::len).sum();
        let tags: usize = self.tags().map(|(_, values)| values.len()).sum();
        kinds + keys + tags
    }

    fn has(&self, part: u8) -> bool {
        self.flags & part != 0
    }

    /// Whether an event passes what is left behind the times.
    fn lists_pass(mut self, event: &Event) -> bool {
        if let Some(authors) = self.authors()
            && !has_key(authors, event.pubkey())
        {
            return false;
        }
        if let Some(ids) = self.ids()
            && !has_key(ids, event.id())
        {
            return false;
        }
        self.tags()
            .all(|(letter, values)| event.has_letter(letter) && values.has_one_of(event, letter))
    }
}

fn has_key(keys: &[[u8; 32]], key: &[u8; 32]) -> bool {
    match keys {
        [only] => only == key,
        keys => keys.binary_search(key).is_ok(),
    }
}

/// The values of a letter: one at least.
#[derive(Clone, Copy)]
pub(super) enum Values<'a> {
    Hex(&'a [[u8; 32]]),
    /// Bytes of all, and the length and the number of these.
    Even(&'a [u8], usize, usize),
    Mixed {
        ends: &'a [[u8; 4]],
        bytes: &'a [u8],
    },
}

impl<'a> Values<'a> {
    /// How many.
    pub(super) fn len(&self) -> usize {
        match *self {
            Values::Hex(values) => values.len(),
            Values::Even(_, _, count) => count,
            Values::Mixed { ends, .. } => ends.len(),
        }
    }

    /// Calls `each` with every value, as text.
    pub(super) fn for_each(&self, mut each: impl FnMut(&[u8])) {
        match *self {
            Values::Hex(values) => values.iter().for_each(|value| each(&hex(value))),
            _ => (0..self.len()).for_each(|place| each(self.plain(place))),
        }
    }

    fn has_one_of(&self, event: &Event, letter: u8) -> bool {
        let values = || {
            let tags = event.index_tags();
            tags.filter_map(|(found, value)| (found == letter).then_some(value))
        };
        match *self {
            // An event may have very many tags: the one that is wanted is made text once.
            Values::Hex([wanted]) => {
                let wanted = hex(wanted);
                values().any(|value| value == wanted)
            }
            Values::Hex(wanted) => values()
                .filter_map(lower_hex)
                .any(|value| wanted.binary_search(&value).is_ok()),
            _ => values().any(|value| self.has_plain(value)),
        }
    }

    /// Binary search.
    fn has_plain(&self, value: &[u8]) -> bool {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.plain(middle).cmp(value) {
                std::cmp::Ordering::Equal => return true,
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        false
    }

    /// The value at this place, where they are kept as text.
    fn plain(&self, place: usize) -> &'a [u8] {
        match *self {
            Values::Hex(values) => &values[place],
            Values::Even(bytes, length, _) => &bytes[place * length..][..length],
            Values::Mixed { ends, bytes } => {
                let end = |place: usize| u32::from_le_bytes(ends[place]) as usize;
                let start = place.checked_sub(1).map_or(0, end);
                &bytes[start..end(place)]
            }
        }
    }
}

/// What is still to be read. It was written below, so there is always as much as is asked for.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// Whether an event passes the parts that these are. Asked of every subscription that has a key
    /// of the event, so it leaves as early as it can.
    #[inline]
    fn pass(mut self, flags: u8, event: &Event) -> bool {
        if flags & KINDS != 0 {
            let fits = match self.array() {
                [only] => u16::from_be_bytes(*only) == event.kind(),
                kinds => kinds
                    .binary_search_by_key(&event.kind(), |kind| u16::from_be_bytes(*kind))
                    .is_ok(),
            };
            if !fits {
                return false;
            }
        }
        let made = event.created_at();
        if flags & SINCE != 0 && made < self.number() || flags & UNTIL != 0 && self.number() < made
        {
            return false;
        }
        let lists = flags & (AUTHORS | IDS | TAGS) != 0;
        !lists || Parts { flags, bytes: self }.lists_pass(event)
    }

    #[inline]
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(count);
        self.0 = rest;
        head
    }

    #[inline]
    fn byte(&mut self) -> u8 {
        self.take(1)[0]
    }

    #[inline]
    fn count(&mut self) -> usize {
        match self.byte() {
            LONG => u32::from_le_bytes(self.chunk()) as usize,
            count => usize::from(count),
        }
    }

    #[inline]
    fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.chunk())
    }

    #[inline]
    fn chunk<const N: usize>(&mut self) -> [u8; N] {
        let (chunk, rest) = self.0.split_first_chunk().expect("as it was written");
        self.0 = rest;
        *chunk
    }

    #[inline]
    fn chunks<const N: usize>(&mut self, count: usize) -> &'a [[u8; N]] {
        self.take(count * N).as_chunks().0
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> &'a [[u8; N]] {
        let count = self.count();
        self.chunks(count)
    }

    fn values(&mut self) -> Values<'a> {
        let count = self.count();
        match self.count() {
            HEX => Values::Hex(self.chunks(count)),
            MIXED => {
                let ends: &[[u8; 4]] = self.chunks(count);
                let length = ends.last().map_or(0, |end| u32::from_le_bytes(*end));
                let bytes = self.take(length as usize);
                Values::Mixed { ends, bytes }
            }
            form => {
                let length = form - EVEN;
                Values::Even(self.take(count * length), length, count)
            }
        }
    }
}

fn hex(value: &[u8; 32]) -> [u8; 64] {
    let mut text = [0; 64];
    const_hex::encode_to_slice(value, &mut text).expect("two digits a byte");
    text
}

fn flags(filter: &Filter) -> u8 {
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    flag(filter.kinds.is_some(), KINDS)
        | flag(filter.since.is_some(), SINCE)
        | flag(filter.until.is_some(), UNTIL)
        | flag(filter.authors.is_some(), AUTHORS)
        | flag(filter.ids.is_some(), IDS)
        | flag(!filter.tags.is_empty(), TAGS)
}

fn write_parts(out: &mut Vec<u8>, filter: &Filter) {
    if let Some(kinds) = &filter.kinds {
        write_count(out, kinds.len());
        out.extend(kinds.iter().flat_map(|kind| kind.to_be_bytes()));
    }
    for number in [filter.since, filter.until].into_iter().flatten() {
        out.extend_from_slice(&number.to_le_bytes());
    }
    for list in [&filter.authors, &filter.ids].into_iter().flatten() {
        write_count(out, list.len());
        out.extend_from_slice(list.as_flattened());
    }
    for (place, (letter, values)) in filter.tags.iter().enumerate() {
        let more = place + 1 < filter.tags.len();
        out.push(letter | if more { MORE } else { 0 });
        write_values(out, values);
    }
}

fn write_values(out: &mut Vec<u8>, values: &[Box<[u8]>]) {
    write_count(out, values.len());
    let start = out.len();
    write_count(out, HEX);
    let are_hex = values.iter().all(|value| {
        let bytes = lower_hex(value);
        out.extend_from_slice(bytes.as_ref().map_or(&[], |bytes| &bytes[..]));
        bytes.is_some()
    });
    if are_hex {
        return;
    }
    out.truncate(start);
    let length = values.first().map_or(0, |value| value.len());
    if values.iter().all(|value| value.len() == length) {
        write_count(out, EVEN + length);
    } else {
        write_count(out, MIXED);
        let mut end = 0;
        for value in values {
            end += value.len();
            out.extend_from_slice(&written(end).to_le_bytes());
        }
    }
    values.iter().for_each(|value| out.extend_from_slice(value));
}

fn write_count(out: &mut Vec<u8>, count: usize) {
    match u8::try_from(count) {
        Ok(count) if count != LONG => out.push(count),
        _ => {
            out.push(LONG);
            out.extend_from_slice(&written(count).to_le_bytes());
        }
    }
}

/// Filters came in one message, which has far less than 4 GiB.
fn written(count: usize) -> u32 {
    u32::try_from(count).expect("less than a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_many_have_is_small() {
        let key = "ab".repeat(32);
        for (text, bytes) in [
            ("{}".to_owned(), 1),
            (r#"{"kinds":[1]}"#.to_owned(), 4),
            (r##"{"kinds":[1],"#t":["idle-4999"]}"##.to_owned(), 16),
            (format!(r##"{{"kinds":[1],"#p":["{key}"]}}"##), 39),
            (format!(r#"{{"kinds":[1],"authors":["{key}"]}}"#), 37),
            (r##"{"#t":["a","bc",""]}"##.to_owned(), 19),
            (r#"{"kinds":[]}"#.to_owned(), 0),
        ] {
            let filter = Filter::parse(&text, 10).expect("a filter");
            assert_eq!(Packed::new(&[filter]).0.len(), bytes, "{text}");
        }
    }

    #[test]
    fn long_lists_and_values_are_found_as_well() {
        let long = |place: u64| format!("{place:0300}");
        let kinds: Vec<u64> = (0..1_000).collect();
        let filter = serde_json::json!({
            "kinds": kinds,
            "#t": (0..300).map(long).collect::<Vec<_>>(),
            "#x": (0..300).map(|place| "x".repeat(place)).collect::<Vec<_>>(),
            "#p": (0..300).map(|place| format!("{place:064x}")).collect::<Vec<_>>(),
        });
        let packed = Packed::new(&[Filter::parse(&filter.to_string(), 2_000).expect("a filter")]);
        let author = crate::nostr::testing::Author::new(1);
        let matches = |kind, t: &str, x: usize, p: &str| {
            let tags: &[&[&str]] = &[&["t", t], &["x", &"x".repeat(x)], &["p", p]];
            packed.matches(&author.event(1, kind, tags, ""))
        };
        let key = format!("{:064x}", 299);
        assert!(matches(999, &long(299), 299, &key));
        assert!(matches(0, &long(0), 0, &format!("{:064x}", 0)));
        assert!(!matches(1_000, &long(299), 299, &key));
        assert!(!matches(999, &long(300), 299, &key));
        assert!(!matches(999, &long(299), 300, &key));
        assert!(!matches(999, &long(299), 299, &format!("{:064x}", 300)));
        assert!(!matches(999, &long(299), 299, &key.replace('b', "B")));
        assert!(!matches(999, &long(299), 299, &key[1..]));
    }
}
