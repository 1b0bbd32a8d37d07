//! A relay that is a list, and says what the store must say. It shares no code with what it checks
//! but the parsing of events: filters are matched by their words, and nothing is ever looked up.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde_json::Value;

use super::*;
use crate::nostr::hll::Hll;
use crate::nostr::kind::{Class, DELETION, GIFT_WRAP, VANISH};

/// The relay.
#[derive(Clone, Default)]
pub struct Model {
    events: Vec<Known>,
    /// Deletion requests ever taken in, but for those of a past that has vanished.
    requests: Vec<Known>,
    vanished: HashMap<[u8; 32], u64>,
    came: u64,
}

/// An event, and its tags as lists of strings.
#[derive(Clone)]
struct Known {
    event: Event,
    /// Its place in the order of coming.
    place: u64,
    tags: Vec<Vec<String>>,
}

/// What becomes of an event, in a word.
pub fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Stored { .. } => "stored",
        Outcome::Duplicate => "duplicate",
        Outcome::SignatureDiffers => "another signature",
        Outcome::Superseded => "superseded",
        Outcome::Refused(_) => "refused",
        Outcome::Failed(error) => panic!("{error}"),
    }
}

impl Known {
    fn new(event: &Event, place: u64) -> Known {
        let value: Value = serde_json::from_str(event.json()).expect("JSON");
        let tags = serde_json::from_value(value["tags"].clone()).expect("lists of strings");
        Known {
            event: event.clone(),
            place,
            tags,
        }
    }

    /// First values of the tags of this name.
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let tags = self.tags.iter().filter(move |tag| tag[0] == name);
        tags.filter_map(|tag| tag.get(1)).map(String::as_str)
    }

    fn has(&self, name: &str, value: &str) -> bool {
        self.values(name).any(|found| found == value)
    }

    /// Whether a key may take it back.
    fn is_of(&self, key: &[u8; 32]) -> bool {
        let addressed = || self.has("p", &const_hex::encode(key));
        self.event.pubkey() == key || self.event.kind() == GIFT_WRAP && addressed()
    }

    fn may_be_seen_by(&self, keys: &[[u8; 32]]) -> bool {
        let sealed = [1_059, 21_059].contains(&self.event.kind());
        let addressed = |key: &[u8; 32]| self.has("p", &const_hex::encode(key));
        !sealed || keys.iter().any(addressed)
    }

    /// Whether this deletion request takes an event back.
    fn takes_back(&self, other: &Known) -> bool {
        let (request, event) = (&self.event, &other.event);
        let by_id = self.has("e", &const_hex::encode(event.id()));
        let by_address = address(event).is_some_and(|(key, kind, d)| {
            let address = format!("{kind}:{}:{d}", const_hex::encode(key));
            self.has("a", &address) && event.created_at() <= request.created_at()
        });
        other.is_of(request.pubkey())
            && ![DELETION, VANISH].contains(&event.kind())
            && (by_id || by_address)
    }

    fn matches(&self, filter: &Filter) -> bool {
        let event = &self.event;
        let has_tag = |(letter, values): &(u8, Vec<Box<[u8]>>)| {
            let name = char::from(*letter).to_string();
            self.values(&name)
                .any(|found| values.iter().any(|value| **value == *found.as_bytes()))
        };
        let one_of_ids = |ids: &Vec<[u8; 32]>| ids.contains(event.id());
        let one_of_authors = |authors: &Vec<[u8; 32]>| authors.contains(event.pubkey());
        let one_of_kinds = |kinds: &Vec<u16>| kinds.contains(&event.kind());
        filter.ids.as_ref().is_none_or(one_of_ids)
            && filter.authors.as_ref().is_none_or(one_of_authors)
            && filter.kinds.as_ref().is_none_or(one_of_kinds)
            && filter.since.is_none_or(|since| event.created_at() >= since)
            && filter.until.is_none_or(|until| event.created_at() <= until)
            && filter.tags.iter().all(has_tag)
    }

    fn lives(&self, now: u64) -> bool {
        self.event.expiration().is_none_or(|expires| now < expires)
    }
}

impl Model {
    /// Takes an event in, or says why not.
    pub fn put(&mut self, event: &Event) -> &'static str {
        if let Some(known) = self
            .events
            .iter()
            .find(|known| known.event.id() == event.id())
        {
            let same = known.event.sig() == event.sig();
            return if same {
                "duplicate"
            } else {
                "another signature"
            };
        }
        let new = Known::new(event, self.came);
        let bars = |(key, until): (&[u8; 32], &u64)| {
            let again = event.kind() == VANISH && event.created_at() == *until;
            new.is_of(key) && event.created_at() <= *until && !again
        };
        let taken_back = |request: &Known| request.takes_back(&new);
        if self.vanished.iter().any(bars)
            || self.requests.iter().any(taken_back)
            || event.class() == Class::Ephemeral
        {
            return "refused";
        }
        let age = |event: &Event| (event.created_at(), Reverse(*event.id()));
        let version =
            |known: &Known| address(event).is_some() && address(&known.event) == address(event);
        if let Some(at) = self.events.iter().position(version) {
            if age(&self.events[at].event) > age(event) {
                return "superseded";
            }
            self.events.remove(at);
        }
        match event.kind() {
            VANISH => {
                let (key, until) = (event.pubkey(), event.created_at());
                let stays = |known: &Known| known.event.created_at() > until;
                self.vanished.insert(*key, until);
                self.events
                    .retain(|known| !known.is_of(key) || stays(known));
                let own = |known: &Known| known.event.pubkey() == key;
                self.requests.retain(|known| !own(known) || stays(known));
            }
            DELETION => {
                self.events.retain(|known| !new.takes_back(known));
                self.requests.push(new.clone());
            }
            _ => {}
        }
        self.came += 1;
        self.events.push(new);
        "stored"
    }

    /// Forgets what has expired.
    pub fn sweep(&mut self, now: u64) {
        self.events.retain(|known| known.lives(now));
    }

    /// Forgets the events that something else has removed.
    pub fn retain(&mut self, mut is_left: impl FnMut(&Event) -> bool) {
        self.events.retain(|known| is_left(&known.event));
    }

    /// Everything, by id.
    pub fn events(&self) -> Vec<&Event> {
        let mut events: Vec<&Event> = self.events.iter().map(|known| &known.event).collect();
        events.sort_by_key(|event| *event.id());
        events
    }

    /// Whether an event of an earlier day is there, and was all the time: a request to vanish may go
    /// and come again.
    pub fn kept(&self, event: &Event, earlier: &Model) -> bool {
        let place = |model: &Model| {
            let known = model.events.iter().find(|known| known.event == *event);
            known.map(|known| known.place)
        };
        place(self).is_some_and(|now| place(earlier) == Some(now))
    }

    /// All that a filter matches and who asks may see, in the order of answers.
    pub fn matching(&self, filter: &Filter, asked: &Asked) -> Vec<&Event> {
        let mut events: Vec<&Event> = self
            .events
            .iter()
            .filter(|known| known.matches(filter) && asked.gets(known))
            .map(|known| &known.event)
            .collect();
        events.sort_by_key(|event| (Reverse(event.created_at()), *event.id()));
        events
    }

    /// What filters are answered.
    pub fn answer(&self, filters: &[Filter], bounds: QueryBounds, asked: &Asked) -> Vec<&Event> {
        let mut answer = Vec::new();
        for filter in filters {
            let events = self.matching(filter, asked).into_iter();
            for event in events.take(limit(filter, bounds)) {
                if !answer.contains(&event) {
                    answer.push(event);
                }
            }
        }
        answer
    }

    /// All that any of the filters matches, without limits.
    pub fn union(&self, filters: &[Filter], asked: &Asked) -> Vec<&Event> {
        let matches = |known: &&Known| filters.iter().any(|filter| known.matches(filter));
        let seen = self.events.iter().filter(|known| asked.gets(known));
        seen.filter(matches).map(|known| &known.event).collect()
    }

    /// The HyperLogLog value, for filters that have one.
    pub fn hll(&self, filters: &[Filter], asked: &Asked) -> Option<Hll> {
        let mut hll = Hll::of(filters)?;
        let events = self.union(filters, asked);
        events.iter().for_each(|event| hll.add(event.pubkey()));
        Some(hll)
    }
}

/// When something is asked, and by whom.
#[derive(Clone, Debug)]
pub struct Asked {
    pub now: u64,
    /// The keys that have logged in; `None` sees everything.
    pub keys: Option<Vec<[u8; 32]>>,
}

impl Asked {
    /// By one who sees everything, when nothing has expired.
    pub fn by_all() -> Asked {
        Asked { now: 0, keys: None }
    }

    fn gets(&self, known: &Known) -> bool {
        let seen = self
            .keys
            .as_ref()
            .is_none_or(|keys| known.may_be_seen_by(keys));
        seen && (self.now == 0 || known.lives(self.now))
    }
}

/// How many events a filter may give.
pub fn limit(filter: &Filter, bounds: QueryBounds) -> usize {
    let asked = filter.limit.map(|limit| limit as usize);
    asked.unwrap_or(bounds.limit_default).min(bounds.limit_max)
}
