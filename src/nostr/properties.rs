//! Properties of the protocol code, each against a dumb model: serde_json's own reading and
//! writing, the `nostr` crate, a matcher that walks JSON values.

use nostr_sdk::prelude as sdk;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    event::{CREATED_AT_START, Event, PUBKEY_RANGE, SIG_FROM_END},
    filter::Filter,
    message::{ClientMessage, MessageError, ParseBounds},
    testing::Author,
    text::{Escapes, escape_into, string_end, unescape},
    verify::Verifier,
};
use crate::limits::{CREATED_AT_MAX, EVENT_TAGS_MAX};

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// An event as serde_json reads it, refusing unknown and repeated keys.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    id: String,
    pubkey: String,
    created_at: u64,
    kind: u16,
    tags: Vec<Vec<String>>,
    content: String,
    sig: String,
}

impl Model {
    /// What serde_json takes and our own rules leave.
    fn parse(text: &str) -> Option<Self> {
        let model: Self = serde_json::from_str(text).ok()?;
        let hex = |text: &str, digits: usize| {
            text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let fits = hex(&model.id, 64)
            && hex(&model.pubkey, 64)
            && hex(&model.sig, 128)
            && model.created_at <= CREATED_AT_MAX
            && model.tags.len() <= EVENT_TAGS_MAX
            && model.tags.iter().all(|tag| !tag.is_empty());
        fits.then_some(model)
    }

    fn canonical_hash(&self) -> [u8; 32] {
        let Self {
            pubkey,
            created_at,
            kind,
            tags,
            content,
            ..
        } = self;
        let canonical = serde_json::to_string(&(0, pubkey, created_at, kind, tags, content));
        Sha256::digest(canonical.unwrap()).into()
    }
}

/// Compares every field that `event` gives out.
fn assert_same(event: &Event, model: &Model) {
    assert_eq!(const_hex::encode(event.id()), model.id);
    assert_eq!(const_hex::encode(event.pubkey()), model.pubkey);
    assert_eq!(const_hex::encode(event.sig()), model.sig);
    assert_eq!(event.created_at(), model.created_at);
    assert_eq!(event.kind(), model.kind);
    assert_eq!(event.content(), model.content);
    let tags: Vec<Vec<String>> = event
        .tags()
        .map(|tag| tag.iter().map(Into::into).collect())
        .collect();
    assert_eq!(tags, model.tags);
    for (tag, model) in event.tags().zip(&model.tags) {
        assert_eq!(tag.name(), model[0]);
        assert_eq!(tag.value().as_deref(), model.get(1).map(String::as_str));
    }
    let index: Vec<(u8, Vec<u8>)> = event
        .index_tags()
        .map(|(letter, value)| (letter, value.to_vec()))
        .collect();
    let model_index: Vec<(u8, Vec<u8>)> = model
        .tags
        .iter()
        .filter(|tag| tag.len() > 1 && tag[0].len() == 1)
        .filter(|tag| tag[0].as_bytes()[0].is_ascii_alphabetic())
        .map(|tag| (tag[0].as_bytes()[0], tag[1].as_bytes().to_vec()))
        .collect();
    assert_eq!(index, model_index);
    for letter in 0..=u8::MAX {
        assert_eq!(
            event.has_letter(letter),
            index.iter().any(|(found, _)| *found == letter)
        );
    }
    let d = model.tags.iter().find(|tag| tag.len() > 1 && tag[0] == "d");
    assert_eq!(event.d_tag(), d.map_or("", |tag| &tag[1]));
    assert_eq!(
        event.is_protected(),
        model.tags.iter().any(|tag| tag[0] == "-")
    );
    let expiration = model
        .tags
        .iter()
        .filter(|tag| tag.len() > 1 && tag[0] == "expiration")
        .filter(|tag| tag[1].bytes().all(|byte| byte.is_ascii_digit()))
        .find_map(|tag| tag[1].parse().ok());
    assert_eq!(event.expiration(), expiration);
    assert_eq!(
        event.id_matches(),
        model.canonical_hash()[..] == event.id()[..]
    );
}

/// Characters of every kind that escapes and UTF-8 tell apart.
fn letter() -> impl Strategy<Value = char> {
    prop_oneof![
        6 => prop::char::range(' ', '~'),
        1 => prop::char::range('\0', '\u{1f}'),
        1 => prop::sample::select(vec!['"', '\\', '/', '\n', '\r', '\t', '\u{8}', '\u{c}', '\u{7f}']),
        1 => prop::sample::select(vec!['\u{2028}', '\u{d7ff}', '\u{e000}', '\u{ffff}', '\u{10ffff}']),
        1 => any::<char>(),
    ]
}

fn words() -> impl Strategy<Value = String> {
    prop::collection::vec(letter(), 0..20).prop_map(|letters| letters.into_iter().collect())
}

fn tag() -> impl Strategy<Value = Vec<String>> {
    let name = prop_oneof![
        4 => "[a-zA-Z]",
        2 => Just("d".to_owned()),
        1 => Just("-".to_owned()),
        1 => Just("expiration".to_owned()),
        1 => words(),
    ];
    let value = prop_oneof![3 => words(), 1 => "[0-9]{0,22}", 1 => "[0-9a-f]{64}"];
    let rest = prop_oneof![1 => Just(vec![]), 4 => prop::collection::vec(value, 1..4)];
    (name, rest).prop_map(|(name, rest)| std::iter::once(name).chain(rest).collect())
}

fn model() -> impl Strategy<Value = Model> {
    let created_at = prop_oneof![0..=3_u64, Just(1_700_000_000), Just(CREATED_AT_MAX)];
    (
        "[0-9a-f]{64}",
        "[0-9a-f]{64}",
        created_at,
        any::<u16>(),
        prop::collection::vec(tag(), 0..6),
        words(),
        "[0-9a-f]{128}",
    )
        .prop_map(|(id, pubkey, created_at, kind, tags, content, sig)| Model {
            id,
            pubkey,
            created_at,
            kind,
            tags,
            content,
            sig,
        })
}

/// Writes a model as JSON in one of many ways. `style` is consumed as a source of choices.
struct Scribe {
    style: Vec<u8>,
    at: usize,
    text: String,
}

impl Scribe {
    fn write(model: &Model, style: Vec<u8>) -> String {
        let mut scribe = Self {
            style,
            at: 0,
            text: String::new(),
        };
        scribe.space();
        let mut keys = vec![
            "id",
            "pubkey",
            "created_at",
            "kind",
            "tags",
            "content",
            "sig",
        ];
        scribe.text.push('{');
        while !keys.is_empty() {
            let key = keys.remove(scribe.choose(keys.len()));
            scribe.space();
            scribe.text.push_str(&format!("\"{key}\""));
            scribe.space();
            scribe.text.push(':');
            scribe.space();
            match key {
                "id" => scribe.plain(&model.id),
                "pubkey" => scribe.plain(&model.pubkey),
                "sig" => scribe.plain(&model.sig),
                "created_at" => scribe.text.push_str(&model.created_at.to_string()),
                "kind" => scribe.text.push_str(&model.kind.to_string()),
                "content" => scribe.string(&model.content),
                _ => scribe.list(&model.tags, |scribe, tag| {
                    scribe.list(tag, |s, v| s.string(v))
                }),
            }
            scribe.space();
            scribe.text.push(if keys.is_empty() { '}' } else { ',' });
        }
        scribe.space();
        scribe.text
    }

    fn choose(&mut self, count: usize) -> usize {
        let byte = self
            .style
            .get(self.at % self.style.len().max(1))
            .copied()
            .unwrap_or(0);
        self.at += 1;
        usize::from(byte) % count
    }

    fn space(&mut self) {
        let space = ["", "", "", "", " ", "\n", "\t\r", "  "][self.choose(8)];
        self.text.push_str(space);
    }

    fn plain(&mut self, text: &str) {
        self.text.push_str(&format!("\"{text}\""));
    }

    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.text.push('[');
        self.space();
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                self.space();
                self.text.push(',');
                self.space();
            }
            each(self, item);
        }
        self.space();
        self.text.push(']');
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for letter in text.chars() {
            let short = match letter {
                '"' => Some("\\\""),
                '\\' => Some("\\\\"),
                '/' => Some("\\/"),
                '\n' => Some("\\n"),
                '\r' => Some("\\r"),
                '\t' => Some("\\t"),
                '\u{8}' => Some("\\b"),
                '\u{c}' => Some("\\f"),
                _ => None,
            };
            let must = letter < ' ' || matches!(letter, '"' | '\\');
            match (self.choose(8), short) {
                (0..6, None) if !must => self.text.push(letter),
                (0..3, Some(_)) if !must => self.text.push(letter),
                (0..6, Some(short)) => self.text.push_str(short),
                (how, _) => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        let escape = match how {
                            6 => format!("\\u{unit:04X}"),
                            _ => format!("\\u{unit:04x}"),
                        };
                        self.text.push_str(&escape);
                    }
                }
            }
        }
        self.text.push('"');
    }
}

/// Changes a text at a few places, as an attacker or a broken client might.
fn mutate(text: &str, edits: &[(u16, u8, u8)]) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    const SPICE: &[char] = &[
        '"',
        '\\',
        '{',
        '}',
        '[',
        ']',
        ',',
        ':',
        ' ',
        '\n',
        'u',
        'd',
        '0',
        '1',
        '9',
        '-',
        '+',
        '.',
        'e',
        'E',
        'A',
        'a',
        '/',
        '\u{c}',
        '\0',
        '\u{7f}',
        'é',
        '\u{1f600}',
        'n',
        't',
    ];
    for &(at, how, spice) in edits {
        let spice = SPICE[usize::from(spice) % SPICE.len()];
        if letters.is_empty() {
            letters.push(spice);
        }
        let at = usize::from(at) % letters.len();
        match how % 5 {
            0 => letters[at] = spice,
            1 => letters.insert(at, spice),
            2 => drop(letters.remove(at)),
            3 => letters.truncate(at),
            _ => {
                // Repeat a piece: duplicate keys, doubled commas.
                let end = (at + 1 + usize::from(how) / 5 * 3).min(letters.len());
                let piece: Vec<char> = letters[at..end].to_vec();
                letters.splice(at..at, piece);
            }
        }
    }
    letters.into_iter().collect()
}

fn edits() -> impl Strategy<Value = Vec<(u16, u8, u8)>> {
    prop::collection::vec(any::<(u16, u8, u8)>(), 1..4)
}

fn style() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![1 => Just(vec![0]), 4 => prop::collection::vec(any::<u8>(), 1..64)]
}

proptest! {
    #![proptest_config(cases(5_000))]

    #[test]
    fn the_scanner_reads_what_serde_json_reads(model in model(), style in style()) {
        let text = Scribe::write(&model, style);
        prop_assert_eq!(&Model::parse(&text), &Some(model.clone()));
        let event = Event::parse(&text).unwrap();
        assert_same(&event, &model);
        // The normalized text: the same values, the same escapes, and itself when read again.
        prop_assert_eq!(&Model::parse(event.json()), &Some(model.clone()));
        let again = Event::parse(event.json()).unwrap();
        prop_assert_eq!(again.json(), event.json());
        assert_same(&again, &model);
        prop_assert_eq!(&strings(event.json()), &strings_by_key(&text));
        prop_assert_eq!(&event.json()[PUBKEY_RANGE], &model.pubkey);
        prop_assert!(event.json()[CREATED_AT_START..].starts_with(&model.created_at.to_string()));
        let sig = event.json().len() - SIG_FROM_END;
        prop_assert_eq!(&event.json()[sig..sig + 128], &model.sig);
        // The right id is accepted however strings were escaped, any other is not.
        let right = const_hex::encode(model.canonical_hash());
        prop_assert!(!event.id_matches());
        prop_assert!(Event::parse(&text.replace(&model.id, &right)).unwrap().id_matches());
    }

    #[test]
    fn the_scanner_refuses_what_serde_json_refuses(
        model in model(),
        style in style(),
        edits in edits(),
    ) {
        let text = mutate(&Scribe::write(&model, style), &edits);
        match (Event::parse(&text), Model::parse(&text)) {
            (Ok(event), Some(model)) => assert_same(&event, &model),
            (Err(_), None) => {}
            (ours, theirs) => prop_assert!(false, "{text}\n{ours:?}\n{theirs:?}"),
        }
    }

    #[test]
    fn a_string_is_read_as_serde_json_reads_it(value in words(), style in style(), edits in edits()) {
        let mut scribe = Scribe { style, at: 0, text: String::new() };
        scribe.string(&value);
        for text in [scribe.text.clone(), mutate(&scribe.text, &edits)] {
            let whole = text.starts_with('"');
            let ours = string_end(text.as_bytes(), 1).ok().filter(|(end, _)| whole && end + 1 == text.len());
            let theirs: Option<String> = serde_json::from_str(&text).ok();
            // serde_json allows white space around.
            if text.trim_matches(['\n', ' ', '\t', '\r']) != text {
                continue;
            }
            prop_assert_eq!(ours.is_some(), theirs.is_some(), "{}", text);
            let (Some((end, escapes)), Some(theirs)) = (ours, theirs) else { continue };
            let inner = &text[1..end];
            prop_assert_eq!(unescape(inner), theirs.as_str());
            let mut canonical = Vec::new();
            escape_into(&theirs, &mut canonical);
            prop_assert_eq!(&format!("\"{}\"", String::from_utf8(canonical.clone()).unwrap()), &json!(theirs).to_string());
            if escapes <= Escapes::Canonical {
                prop_assert_eq!(inner.as_bytes(), &canonical[..]);
            }
        }
    }

    #[test]
    fn no_input_panics_and_what_is_accepted_is_json(
        model in model(),
        style in style(),
        edits in edits(),
        which in 0..5_usize,
        noise in any::<Vec<u8>>(),
    ) {
        let event = Scribe::write(&model, style);
        let message = match which {
            0 => format!("[\"EVENT\",{event}]"),
            1 => format!("[\"AUTH\", {event}]"),
            2 => format!("[\"REQ\",\"é\\u0041\",{{\"ids\":[\"{}\"],\"kinds\":[1,65535],\"#t\":[\"x\",\"\\n\"],\"since\":1}},{{\"limit\":0}}]", model.id),
            3 => "[\"COUNT\",\"a\",{\"#e\":[],\"until\":18446744073709551615}]".to_owned(),
            _ => " [ \"CLOSE\" , \"a\" ] ".to_owned(),
        };
        prop_assert!(ClientMessage::parse(&message, &ParseBounds::default()).is_ok());
        let broken = mutate(&message, &edits);
        let noise = String::from_utf8_lossy(&noise).into_owned();
        let spliced = format!("{}{noise}", &message[..message.floor_char_boundary(noise.len() * 3)]);
        for text in [broken, noise, spliced] {
            let read = ClientMessage::parse(&text, &ParseBounds::default());
            if read.is_ok() {
                prop_assert!(serde_json::from_str::<Value>(&text).is_ok(), "{}", text);
            }
            if let Err(MessageError::Event(error) | MessageError::Auth(error)) = read {
                // A refusal names an id only if the text holds it.
                if let Some(id) = error.id {
                    prop_assert!(text.contains(&const_hex::encode(id)));
                }
            }
        }
    }
}

/// The strings of a normalized event as they are written, by key: tags and content only.
fn strings(json: &str) -> (String, String) {
    let tags = json.find(",\"tags\":").unwrap() + 8;
    let content = json.rfind(",\"content\":").unwrap();
    (
        json[tags..content].to_owned(),
        json[content + 11..json.len() - SIG_FROM_END - 8].to_owned(),
    )
}

/// The same of any event text, by a walk over tokens that knows nothing of events.
fn strings_by_key(text: &str) -> (String, String) {
    let (mut depth, mut key, mut parts) = (0, String::new(), [String::new(), String::new()]);
    let mut letters = text.chars();
    let mut token = String::new();
    let mut value = false;
    while let Some(letter) = letters.next() {
        token.clear();
        token.push(letter);
        match letter {
            '"' => loop {
                let letter = letters.next().unwrap();
                token.push(letter);
                match letter {
                    '\\' => token.push(letters.next().unwrap()),
                    '"' => break,
                    _ => {}
                }
            },
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            ' ' | '\n' | '\r' | '\t' => continue,
            _ => {}
        }
        if depth == 0 {
            break;
        } else if depth == 1 && letter == ',' {
            value = false;
        } else if depth == 1 && letter == ':' && !value {
            value = true;
        } else if !value {
            key.clone_from(&token);
        } else if key == "\"tags\"" {
            parts[0].push_str(&token);
        } else if key == "\"content\"" {
            parts[1].push_str(&token);
        }
    }
    parts.into()
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn signed_events_pass_here_and_in_the_nostr_crate(model in model(), seed in 0..20_u64) {
        let author = Author::new(seed);
        let tags: Vec<Vec<&str>> =
            model.tags.iter().map(|tag| tag.iter().map(String::as_str).collect()).collect();
        let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
        let json = author.json(model.created_at, model.kind, &tags, &model.content);
        let event = Event::parse(&json).unwrap();
        prop_assert!(event.id_matches());
        prop_assert!(Verifier::new(8).verify(&event));
        let theirs = <sdk::Event as sdk::JsonUtil>::from_json(event.json()).unwrap();
        prop_assert!(theirs.verify_id() && theirs.verify_signature());
        prop_assert_eq!(theirs.id.to_bytes(), *event.id());
    }

    #[test]
    fn events_of_the_nostr_crate_pass_here(content in words(), tags in prop::collection::vec(tag(), 0..4), kind in any::<u16>()) {
        let keys = sdk::Keys::generate();
        let tags: Vec<sdk::Tag> = tags.into_iter().map(|tag| sdk::Tag::parse(tag).unwrap()).collect();
        let theirs = sdk::EventBuilder::new(sdk::Kind::from(kind), content)
            .tags(tags)
            .allow_self_tagging()
            .sign_with_keys(&keys)
            .unwrap();
        let event = Event::parse(&sdk::JsonUtil::as_json(&theirs)).unwrap();
        prop_assert!(event.id_matches());
        prop_assert!(Verifier::new(0).verify(&event));
    }
}

/// Events and filters over a few values, so that most fields meet.
fn small_event() -> impl Strategy<Value = Value> {
    let tag = prop_oneof![
        (
            prop::sample::select(vec!["e", "t", "T", "d", "x1", "-"]),
            small_value()
        )
            .prop_map(|(name, value)| json!([name, value])),
        (
            prop::sample::select(vec!["t", "alt"]),
            small_value(),
            small_value()
        )
            .prop_map(|(name, a, b)| json!([name, a, b])),
        Just(json!(["t"])),
    ];
    (
        0..4_usize,
        0..4_usize,
        0..5_u16,
        0..6_u64,
        prop::collection::vec(tag, 0..4),
    )
        .prop_map(|(id, author, kind, made, tags)| {
            json!({
                "id": digits(id), "pubkey": digits(author), "kind": kind, "created_at": made,
                "tags": tags, "content": "", "sig": "0".repeat(128),
            })
        })
}

fn digits(which: usize) -> String {
    "0123456789abcdef"[which..=which].repeat(64)
}

fn small_value() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        digits(0),
        digits(1),
        "x".into(),
        "X".into(),
        "\n\"".into(),
        String::new(),
    ])
}

fn small_filter() -> impl Strategy<Value = Value> {
    let hex = || prop::collection::vec((0..4_usize).prop_map(|which| json!(digits(which))), 0..3);
    let values = || prop::collection::vec(small_value().prop_map(Value::from), 0..3);
    let number = |bound: u64| (0..bound).prop_map(Value::from);
    let field = prop_oneof![
        hex().prop_map(|list| ("ids", json!(list))),
        hex().prop_map(|list| ("authors", json!(list))),
        prop::collection::vec(0..5_u16, 0..4).prop_map(|list| ("kinds", json!(list))),
        hex().prop_map(|list| ("#e", json!(list))),
        values().prop_map(|list| ("#t", json!(list))),
        values().prop_map(|list| ("#T", json!(list))),
        values().prop_map(|list| ("#d", json!(list))),
        number(6).prop_map(|number| ("since", number)),
        number(6).prop_map(|number| ("until", number)),
        number(2).prop_map(|number| ("limit", number)),
    ];
    prop::collection::vec(field, 0..3).prop_map(|fields| {
        Value::Object(
            fields
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        )
    })
}

/// NIP-01, word for word, over JSON values.
fn passes(filter: &Value, event: &Value) -> bool {
    filter
        .as_object()
        .unwrap()
        .iter()
        .all(|(key, wanted)| match key.as_str() {
            "ids" => wanted.as_array().unwrap().contains(&event["id"]),
            "authors" => wanted.as_array().unwrap().contains(&event["pubkey"]),
            "kinds" => wanted.as_array().unwrap().contains(&event["kind"]),
            "since" => event["created_at"].as_u64() >= wanted.as_u64(),
            "until" => event["created_at"].as_u64() <= wanted.as_u64(),
            "limit" => true,
            tag => event["tags"].as_array().unwrap().iter().any(|found| {
                found[0] == tag[1..]
                    && found
                        .get(1)
                        .is_some_and(|v| wanted.as_array().unwrap().contains(v))
            }),
        })
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn filters_match_as_the_dumb_matcher_does(
        filters in prop::collection::vec(small_filter(), 1..12),
        events in prop::collection::vec(small_event(), 1..12),
    ) {
        for filter in &filters {
            let read = Filter::parse(&filter.to_string(), 100).unwrap();
            for event in &events {
                let parsed = Event::parse(&event.to_string()).unwrap();
                prop_assert_eq!(read.matches(&parsed), passes(filter, event), "{} {}", filter, event);
                prop_assert!(!(read.is_void() && read.matches(&parsed)));
            }
        }
    }
}
