//! Filters (NIP-01): what a client asks for, and whether an event passes.
//!
//! A filter is the conjunction of its fields; a field with a list passes when one value does. So
//! an empty list passes nothing. Lists are kept sorted and without repetition: matching searches
//! them, the store walks them in order.
//!
//! Reading is strict, because a filter that the relay silently reads otherwise than it was meant
//! sends wrong events for ever: unknown fields are `unsupported:`, repeated ones `invalid:`.

use std::{fmt, marker::PhantomData};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{
    cursor::decode_hex,
    event::Event,
    reason::{Prefix, Reason},
};
use crate::limits::{FILTER_KEY_CHARS_SHOWN_MAX, FILTER_VALUE_BYTES_MAX};

/// One filter of a REQ or COUNT. Fields that are `None` (or letters that are not in `tags`) ask
/// for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Ids; sorted, no repetition.
    pub ids: Option<Vec<[u8; 32]>>,
    /// Public keys of authors; sorted, no repetition.
    pub authors: Option<Vec<[u8; 32]>>,
    /// Kinds; sorted, no repetition.
    pub kinds: Option<Vec<u16>>,
    /// Tag letters in order, each once, each with its values; values sorted, no repetition.
    pub tags: Vec<(u8, Vec<Box<[u8]>>)>,
    /// Not older, in seconds since 1970.
    pub since: Option<u64>,
    /// Not newer, in seconds since 1970.
    pub until: Option<u64>,
    /// The most events that the client wants from history. Live events are not counted.
    pub limit: Option<u64>,
}

impl Filter {
    /// Reads one filter: a JSON object with nothing but white space around it, its lists holding
    /// `values_max` values together.
    ///
    /// # Errors
    /// `unsupported:` for a field the relay does not know, `invalid:` for all else.
    pub fn parse(text: &str, values_max: usize) -> Result<Self, Reason> {
        let mut budget = Budget {
            values_left: values_max,
            filter_values_max: values_max,
            filter_values_left: 0,
            fault: None,
        };
        let mut json = serde_json::Deserializer::from_str(text);
        let read = FilterSeed(&mut budget)
            .deserialize(&mut json)
            .and_then(|filter| json.end().map(|()| filter));
        read.map_err(|_| budget.fault.unwrap_or(MALFORMED))
    }

    /// The filter as JSON, which [`Filter::parse`] reads as this filter.
    pub fn to_json(&self) -> String {
        let hex = |values: &Vec<[u8; 32]>| -> Value {
            values
                .iter()
                .map(|value| Value::from(const_hex::encode(value)))
                .collect()
        };
        let mut fields = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(name.to_owned(), value);
            }
        };
        put("ids", self.ids.as_ref().map(hex));
        put("authors", self.authors.as_ref().map(hex));
        put("kinds", self.kinds.clone().map(Value::from));
        for (letter, values) in &self.tags {
            // Values were text when they were read.
            let texts = values.iter().map(|value| String::from_utf8_lossy(value));
            put(&format!("#{}", char::from(*letter)), Some(texts.collect()));
        }
        put("since", self.since.map(Value::from));
        put("until", self.until.map(Value::from));
        put("limit", self.limit.map(Value::from));
        Value::Object(fields).to_string()
    }

    /// Whether `event` passes. `limit` has no say.
    pub fn matches(&self, event: &Event) -> bool {
        // Cheapest first, and what most often fails first.
        if let Some(kinds) = &self.kinds
            && kinds.binary_search(&event.kind()).is_err()
        {
            return false;
        }
        if let Some(authors) = &self.authors
            && authors.binary_search(event.pubkey()).is_err()
        {
            return false;
        }
        if let Some(ids) = &self.ids
            && ids.binary_search(event.id()).is_err()
        {
            return false;
        }
        let made = event.created_at();
        self.since.is_none_or(|since| since <= made)
            && self.until.is_none_or(|until| made <= until)
            && self
                .tags
                .iter()
                .all(|(letter, values)| has_tag(event, *letter, values))
    }

    /// Values in all lists together: what the filter costs to keep.
    pub fn value_count(&self) -> usize {
        self.ids.as_ref().map_or(0, Vec::len)
            + self.authors.as_ref().map_or(0, Vec::len)
            + self.kinds.as_ref().map_or(0, Vec::len)
            + self
                .tags
                .iter()
                .map(|(_, values)| values.len())
                .sum::<usize>()
    }

    /// Whether no event can ever pass: an empty list, or `since` after `until`.
    pub fn is_void(&self) -> bool {
        self.ids.as_ref().is_some_and(Vec::is_empty)
            || self.authors.as_ref().is_some_and(Vec::is_empty)
            || self.kinds.as_ref().is_some_and(Vec::is_empty)
            || self.tags.iter().any(|(_, values)| values.is_empty())
            || matches!((self.since, self.until), (Some(since), Some(until)) if since > until)
    }
}

fn has_tag(event: &Event, letter: u8, values: &[Box<[u8]>]) -> bool {
    event.has_letter(letter)
        && event.index_tags().any(|(found, value)| {
            found == letter && values.binary_search_by(|v| (**v).cmp(value)).is_ok()
        })
}

const MALFORMED: Reason = Reason::fixed(Prefix::Invalid, "filter is not a JSON object");

/// What reading may still take, over all filters of a message, and what went wrong: serde's own
/// errors are text for people, with pieces of the input in it.
pub(super) struct Budget {
    pub(super) values_left: usize,
    /// Values that one filter may have, and how many are left of them in the filter under way.
    pub(super) filter_values_max: usize,
    pub(super) filter_values_left: usize,
    pub(super) fault: Option<Reason>,
}

impl Budget {
    /// Keeps the first fault, and makes the error that ends the reading.
    fn fail<E: Error>(&mut self, reason: Reason) -> E {
        self.fault.get_or_insert(reason);
        E::custom("")
    }

    fn take_value<E: Error>(&mut self) -> Result<(), E> {
        if self.values_left == 0 {
            return Err(self.fail(Reason::fixed(Prefix::Invalid, "too many values in filters")));
        }
        if self.filter_values_left == 0 {
            return Err(self.fail(Reason::fixed(
                Prefix::Invalid,
                "too many values in a filter",
            )));
        }
        self.values_left -= 1;
        self.filter_values_left -= 1;
        Ok(())
    }
}

/// Reads a [`Filter`] within a [`Budget`].
pub(super) struct FilterSeed<'b>(pub(super) &'b mut Budget);

impl<'de> DeserializeSeed<'de> for FilterSeed<'_> {
    type Value = Filter;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Filter, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FilterSeed<'_> {
    type Value = Filter;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a filter")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Filter, A::Error> {
        const NUMBER: &str = "since, until and limit must be integers, not negative";
        let budget = self.0;
        budget.filter_values_left = budget.filter_values_max;
        let mut filter = Filter::default();
        while let Some(key) = map.next_key_seed(KeySeed(budget))? {
            match key {
                Key::Ids => {
                    let ids = list(
                        &mut map,
                        budget,
                        "ids must be 64 lower-case hex digits each",
                    )?;
                    set(&mut filter.ids, ids, budget)?;
                }
                Key::Authors => {
                    let keys = list(
                        &mut map,
                        budget,
                        "authors must be 64 lower-case hex digits each",
                    )?;
                    set(&mut filter.authors, keys, budget)?;
                }
                Key::Kinds => {
                    let kinds = list(&mut map, budget, "kinds must be integers from 0 to 65535")?;
                    set(&mut filter.kinds, kinds, budget)?;
                }
                Key::Tag(letter @ (b'e' | b'p')) => {
                    let fault = "#e and #p must be 64 lower-case hex digits each";
                    let values: Vec<HexText> = list(&mut map, budget, fault)?;
                    let values = values.into_iter().map(|HexText(text)| text).collect();
                    set_tag(&mut filter, letter, values, budget)?;
                }
                Key::Tag(letter) => {
                    let values: Vec<Text> = list(&mut map, budget, TAG_VALUES)?;
                    let values = values.into_iter().map(|Text(text)| text).collect();
                    set_tag(&mut filter, letter, values, budget)?;
                }
                Key::Since => {
                    let since = value(&mut map, budget, NUMBER)?;
                    set(&mut filter.since, since, budget)?;
                }
                Key::Until => {
                    let until = value(&mut map, budget, NUMBER)?;
                    set(&mut filter.until, until, budget)?;
                }
                Key::Limit => {
                    let limit = value(&mut map, budget, NUMBER)?;
                    set(&mut filter.limit, limit, budget)?;
                }
            }
        }
        filter.tags.sort_unstable_by_key(|(letter, _)| *letter);
        filter.tags.shrink_to_fit();
        Ok(filter)
    }
}

/// Reads a number.
fn value<'de, A: MapAccess<'de>>(
    map: &mut A,
    budget: &mut Budget,
    fault: &'static str,
) -> Result<u64, A::Error> {
    map.next_value()
        .map_err(|_| budget.fail(Reason::fixed(Prefix::Invalid, fault)))
}

/// Reads a list, sorts it and drops repetitions.
fn list<'de, A: MapAccess<'de>, T: Item>(
    map: &mut A,
    budget: &mut Budget,
    fault: &'static str,
) -> Result<Vec<T>, A::Error> {
    let seed = ListSeed::<T> {
        budget,
        item: PhantomData,
    };
    match map.next_value_seed(seed) {
        Ok(mut values) => {
            values.sort_unstable();
            values.dedup();
            values.shrink_to_fit();
            Ok(values)
        }
        Err(_) => Err(budget.fail(Reason::fixed(Prefix::Invalid, fault))),
    }
}

fn set<T, E: Error>(slot: &mut Option<T>, value: T, budget: &mut Budget) -> Result<(), E> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(budget.fail(REPEATED)),
    }
}

fn set_tag<E: Error>(
    filter: &mut Filter,
    letter: u8,
    values: Vec<Box<[u8]>>,
    budget: &mut Budget,
) -> Result<(), E> {
    // At most 52 letters: a walk is bounded.
    if filter.tags.iter().any(|(found, _)| *found == letter) {
        return Err(budget.fail(REPEATED));
    }
    filter.tags.push((letter, values));
    Ok(())
}

const TAG_VALUES: &str = "tag values must be strings of at most 1024 bytes";
const _: () = assert!(FILTER_VALUE_BYTES_MAX == 1_024);
const REPEATED: Reason = Reason::fixed(Prefix::Invalid, "filter field given twice");

enum Key {
    Authors,
    Ids,
    Kinds,
    Limit,
    Since,
    Tag(u8),
    Until,
}

struct KeySeed<'b>(&'b mut Budget);

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Key, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for KeySeed<'_> {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a filter field")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Key, E> {
        Ok(match key.as_bytes() {
            b"ids" => Key::Ids,
            b"authors" => Key::Authors,
            b"kinds" => Key::Kinds,
            b"since" => Key::Since,
            b"until" => Key::Until,
            b"limit" => Key::Limit,
            [b'#', letter] if letter.is_ascii_alphabetic() => Key::Tag(*letter),
            _ => {
                let shown: String = key.chars().take(FILTER_KEY_CHARS_SHOWN_MAX).collect();
                let text = format!("unknown filter field {shown}");
                return Err(self.0.fail(Reason::new(Prefix::Unsupported, text)));
            }
        })
    }
}

/// A value of a list.
trait Item: Ord {
    fn read<'de, A: SeqAccess<'de>>(list: &mut A) -> Result<Option<Self>, A::Error>
    where
        Self: Sized;
}

impl Item for u16 {
    fn read<'de, A: SeqAccess<'de>>(list: &mut A) -> Result<Option<Self>, A::Error> {
        list.next_element()
    }
}

impl Item for [u8; 32] {
    fn read<'de, A: SeqAccess<'de>>(list: &mut A) -> Result<Option<Self>, A::Error> {
        list.next_element_seed(StrSeed(|text: &str| decode_hex(text.as_bytes())))
    }
}

/// The value of a tag that holds an id or a key. Kept as text: that is what events hold.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct HexText(Box<[u8]>);

impl Item for HexText {
    fn read<'de, A: SeqAccess<'de>>(list: &mut A) -> Result<Option<Self>, A::Error> {
        list.next_element_seed(StrSeed(|text: &str| {
            decode_hex::<32>(text.as_bytes()).map(|_| Self(text.as_bytes().into()))
        }))
    }
}

/// The value of any other tag.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Text(Box<[u8]>);

impl Item for Text {
    fn read<'de, A: SeqAccess<'de>>(list: &mut A) -> Result<Option<Self>, A::Error> {
        list.next_element_seed(StrSeed(|text: &str| {
            (text.len() <= FILTER_VALUE_BYTES_MAX).then(|| Self(text.as_bytes().into()))
        }))
    }
}

struct ListSeed<'b, T> {
    budget: &'b mut Budget,
    item: PhantomData<T>,
}

impl<'de, T: Item> DeserializeSeed<'de> for ListSeed<'_, T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Vec<T>, D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de, T: Item> Visitor<'de> for ListSeed<'_, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = T::read(&mut list)? {
            self.budget.take_value()?;
            values.push(value);
        }
        Ok(values)
    }
}

/// Reads a string through a function that may refuse it.
struct StrSeed<F>(F);

impl<'de, T, F: FnOnce(&str) -> Option<T>> DeserializeSeed<'de> for StrSeed<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<T, D::Error> {
        json.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> Option<T>> Visitor<'_> for StrSeed<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).ok_or_else(|| E::custom(""))
    }
}

#[cfg(test)]
mod tests;
