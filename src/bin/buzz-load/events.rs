//! Events to store and to publish: deterministic by seed, signed before a run, about 700 bytes.
//!
//! A *stored* event is a function of the seed and its index alone, so that a query workload knows,
//! without asking anyone, which events a relay filled from the same seed must answer with. Times of
//! stored events are all distinct, so that their order is beyond dispute. *Fresh* events, for the
//! publishing workloads, come from other authors and other tag values: however many are published,
//! the answers about the stored ones stay the same.
//!
//! Authors, threads (`e`), mentions (`p`) and topics (`t`) are drawn with a square law: few write
//! much, most write little. Of 100 000 events by 1 000 authors about 120 authors have a hundred
//! notes or more, and five have five hundred.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use secp256k1::{Keypair, schnorr};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::dice::Dice;
use crate::limits;
use crate::wire::ShortId;

/// The time of the newest stored event; each older one is [`STORED_SECONDS_STEP`] earlier.
pub const STORED_TIME_DEFAULT: u64 = 1_750_000_000;
/// Seconds between two stored events.
pub const STORED_SECONDS_STEP: u64 = 60;
/// Authors of stored events; as many write fresh ones.
pub const AUTHORS: usize = 1_000;

const THREADS: u64 = 2_000;
const TOPICS: u64 = 200;
/// Bytes of an event's JSON that the content is filled up to, on average.
const EVENT_BYTES_MEAN: u64 = 700;

/// An event as queries see it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stored {
    /// Its id.
    pub id: [u8; 32],
    /// Its author, as hex.
    pub pubkey: String,
    /// Its kind.
    pub kind: u16,
    /// Its time.
    pub created_at: u64,
    /// Its tags with a single-letter name: letter and value.
    pub tags: Vec<(u8, String)>,
}

/// An event to send.
#[derive(Clone, Debug)]
pub struct Signed {
    /// What its OK will name.
    pub id: ShortId,
    /// `["EVENT",{…}]`
    pub message: Vec<u8>,
}

/// An event before its id.
#[derive(Debug)]
struct Draft {
    author: usize,
    kind: u16,
    created_at: u64,
    tags: Vec<(u8, String)>,
    content: String,
}

/// A source of events for one seed.
#[derive(Debug)]
pub struct Maker {
    seed: u64,
    stored_time: u64,
    authors: Vec<(Keypair, String)>,
    /// What sets values of fresh events apart from those of stored ones.
    realm: &'static str,
}

impl Maker {
    /// A maker of stored events, the newest of them at `stored_time`.
    pub fn stored(seed: u64, stored_time: u64) -> Maker {
        Maker::new(seed, stored_time, "stored")
    }

    /// A maker of fresh events. Runs with the same `nonce` make the same events.
    pub fn fresh(nonce: u64) -> Maker {
        Maker::new(nonce, 0, "fresh")
    }

    fn new(seed: u64, stored_time: u64, realm: &'static str) -> Maker {
        // Authors do not depend on a fresh maker's nonce: a relay's cache of keys may know them.
        let root = if realm == "stored" { seed } else { 0 };
        let authors = (0..AUTHORS)
            .map(|index| {
                let keypair = keypair(&format!("buzz-load {realm} author {root} {index}"));
                let pubkey = const_hex::encode(keypair.x_only_public_key().0.to_byte_array());
                (keypair, pubkey)
            })
            .collect();
        Maker {
            seed,
            stored_time,
            authors,
            realm,
        }
    }

    /// What the stored event `index` looks like to a query.
    pub fn stored_event(&self, index: u64) -> Stored {
        let draft = self.draft(index, self.stored_time - index * STORED_SECONDS_STEP);
        let pubkey = self.authors[draft.author].1.clone();
        let id = id_of(&draft, &pubkey);
        Stored {
            id,
            pubkey,
            kind: draft.kind,
            created_at: draft.created_at,
            tags: draft.tags,
        }
    }

    /// The stored event `index`, signed.
    pub fn sign_stored(&self, index: u64) -> Signed {
        self.sign(&self.draft(index, self.stored_time - index * STORED_SECONDS_STEP))
    }

    /// The fresh event `index`, signed.
    pub fn sign_fresh(&self, index: u64, now: u64) -> Signed {
        self.sign(&self.draft(index, now))
    }

    /// A fresh event of a chosen kind with one topic, for subscribers to it.
    pub fn sign_topic(&self, index: u64, now: u64, kind: u16, topic: &str) -> Signed {
        let mut draft = self.draft(index, now);
        draft.kind = kind;
        draft.tags = vec![(b't', topic.to_owned())];
        self.sign(&draft)
    }

    fn sign(&self, draft: &Draft) -> Signed {
        let (keypair, pubkey) = &self.authors[draft.author];
        sign(draft, keypair, pubkey)
    }

    fn draft(&self, index: u64, created_at: u64) -> Draft {
        let mut dice = Dice::new(self.seed, index);
        // The cast fits: the figure is below AUTHORS.
        let author = dice.skewed(AUTHORS as u64) as usize;
        let kind = match dice.below(100) {
            0..70 => 1,
            70..90 => 7,
            90..96 => 6,
            _ => 1063,
        };
        let mut tags = Vec::new();
        if dice.below(100) < 55 {
            tags.push((b'e', self.thread(dice.skewed(THREADS))));
        }
        for _ in 0..[0, 1, 1, 2][dice.below(4) as usize] {
            tags.push((
                b'p',
                self.authors[dice.skewed(AUTHORS as u64) as usize].1.clone(),
            ));
        }
        for _ in 0..dice.below(3) {
            tags.push((
                b't',
                format!("{}-topic-{}", self.realm, dice.skewed(TOPICS)),
            ));
        }
        let fixed: usize = 330 + tags.iter().map(|(_, value)| value.len() + 9).sum::<usize>();
        let spread = EVENT_BYTES_MEAN / 4;
        let target = EVENT_BYTES_MEAN - spread + dice.below(2 * spread + 1);
        let content = prose(&mut dice, (target as usize).saturating_sub(fixed).max(20));
        Draft {
            author,
            kind,
            created_at,
            tags,
            content,
        }
    }

    fn thread(&self, index: u64) -> String {
        const_hex::encode(Sha256::digest(format!("{} thread {index}", self.realm)))
    }
}

/// A key pair that is a function of `name` alone.
pub fn keypair(name: &str) -> Keypair {
    let mut bytes: [u8; 32] = Sha256::digest(name).into();
    loop {
        // All but one in 2^128 hashes are a valid key.
        match Keypair::from_secret_bytes(bytes) {
            Ok(pair) => return pair,
            Err(_) => bytes = Sha256::digest(bytes).into(),
        }
    }
}

/// A login (NIP-42): kind 22242 for `challenge` and `relay`, as `["AUTH",{…}]`.
pub fn sign_login(keypair: &Keypair, relay: &str, challenge_json: &str, now: u64) -> Signed {
    let pubkey = const_hex::encode(keypair.x_only_public_key().0.to_byte_array());
    let relay = serde_json::to_string(relay).unwrap_or_default();
    let tags = format!(r#"[["relay",{relay}],["challenge","{challenge_json}"]]"#);
    seal(keypair, &pubkey, now, 22_242, &tags, "", "AUTH")
}

/// Events of a file of JSON lines, as messages and as queries see them. Lines may be bare events
/// or `["EVENT",{…}]` messages.
///
/// # Errors
/// The file's, or the first line that is no event.
pub fn read_file(path: &Path) -> io::Result<Vec<(Signed, Stored)>> {
    #[derive(Deserialize)]
    struct Line {
        id: String,
        pubkey: String,
        created_at: u64,
        kind: u16,
        tags: Vec<Vec<String>>,
    }
    let mut events = Vec::new();
    for (number, line) in BufReader::new(File::open(path)?).lines().enumerate() {
        let line = line?;
        let text = line.trim();
        if text.is_empty() {
            continue;
        }
        let bad = |why: &str| {
            let place = path.display();
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{place}:{}: {why}", number + 1),
            )
        };
        if text.len() > limits::EVENT_LINE_BYTES_MAX || events.len() >= limits::EVENTS_MAX {
            return Err(bad("the line or the file is too long"));
        }
        let event = text
            .strip_prefix("[\"EVENT\",")
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(text);
        let line: Line = serde_json::from_str(event).map_err(|error| bad(&error.to_string()))?;
        let mut id = [0; 32];
        const_hex::decode_to_slice(&line.id, &mut id)
            .map_err(|_| bad("the id is not 64 hex digits"))?;
        let tags = line
            .tags
            .into_iter()
            .filter_map(|tag| match &tag[..] {
                [name, value, ..] if name.len() == 1 => Some((name.as_bytes()[0], value.clone())),
                _ => None,
            })
            .collect();
        let message = format!("[\"EVENT\",{event}]").into_bytes();
        let stored = Stored {
            id,
            pubkey: line.pubkey,
            kind: line.kind,
            created_at: line.created_at,
            tags,
        };
        events.push((
            Signed {
                id: short(&id),
                message,
            },
            stored,
        ));
    }
    Ok(events)
}

/// The short form of an id.
pub fn short(id: &[u8; 32]) -> ShortId {
    id.first_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn tags_json(tags: &[(u8, String)]) -> String {
    let tags: Vec<String> = tags
        .iter()
        .map(|(name, value)| format!(r#"["{}","{value}"]"#, char::from(*name)))
        .collect();
    format!("[{}]", tags.join(","))
}

fn id_of(draft: &Draft, pubkey: &str) -> [u8; 32] {
    hash(
        pubkey,
        draft.created_at,
        draft.kind,
        &tags_json(&draft.tags),
        &draft.content,
    )
}

/// The hash of the NIP-01 serialization. All values are JSON text already, in its one allowed form.
fn hash(pubkey: &str, created_at: u64, kind: u16, tags: &str, content: &str) -> [u8; 32] {
    Sha256::digest(format!(
        r#"[0,"{pubkey}",{created_at},{kind},{tags},"{content}"]"#
    ))
    .into()
}

fn sign(draft: &Draft, keypair: &Keypair, pubkey: &str) -> Signed {
    let tags = tags_json(&draft.tags);
    seal(
        keypair,
        pubkey,
        draft.created_at,
        draft.kind,
        &tags,
        &draft.content,
        "EVENT",
    )
}

fn seal(
    keypair: &Keypair,
    pubkey: &str,
    created_at: u64,
    kind: u16,
    tags: &str,
    content: &str,
    verb: &str,
) -> Signed {
    let id = hash(pubkey, created_at, kind, tags, content);
    // Without extra randomness, so that the same seed gives the same bytes.
    let signature = schnorr::sign_no_aux_rand(&id, keypair).to_byte_array();
    let message = format!(
        r#"["{verb}",{{"id":"{}","pubkey":"{pubkey}","created_at":{created_at},"kind":{kind},"tags":{tags},"content":"{content}","sig":"{}"}}]"#,
        const_hex::encode(id),
        const_hex::encode(signature)
    );
    Signed {
        id: short(&id),
        message: message.into_bytes(),
    }
}

/// Words, with an escaped quote or line break here and there, as JSON string text of about `bytes`.
fn prose(dice: &mut Dice, bytes: usize) -> String {
    const WORDS: [&str; 32] = [
        "relay", "shard", "ring", "event", "the", "a", "of", "and", "to", "in", "light", "river",
        "stone", "quiet", "loud", "morning", "note", "über", "naïve", "日本", "coffee", "signal",
        "noise", "bridge", "open", "late", "early", "never", "again", "window", "harbour", "field",
    ];
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        text.push_str(WORDS[dice.below(WORDS.len() as u64) as usize]);
        text.push_str(match dice.below(40) {
            0 => "\\n",
            1 => "\\\" ",
            _ => " ",
        });
    }
    text
}

#[cfg(test)]
mod tests;
