//! An event: immutable, checked in shape, cheap to share.
//!
//! An [`Event`] owns one JSON text in a fixed form, and knows where everything is in it. What
//! clients and stores see of an event is that text: no other serialization exists. Order of keys
//! and white space are ours, every string is as it was sent, every escape included.
//!
//! ```text
//! {"id":"<64>","pubkey":"<64>","created_at":N,"kind":N,"tags":[…],"content":"…","sig":"<128>"}
//!        7..71            83..147            162..                               the 128 before "}
//! ```
//!
//! Parsing proves shape only. [`Event::id_matches`] proves that the id is the hash of the content,
//! [`super::Verifier`] that the author signed it.

use std::{borrow::Cow, fmt, io::Write};

use sha2::{Digest, Sha256};

use super::{
    cursor::Cursor,
    kind::Class,
    reason::Reason,
    scan::{self, IndexTag, Scan, Span, letter_bit},
    text::{Fault, escape_into, unescape},
};

/// Where the hex of the id is in [`Event::json`].
pub const ID_RANGE: std::ops::Range<usize> = 7..71;
/// Where the hex of the author's key is in [`Event::json`].
pub const PUBKEY_RANGE: std::ops::Range<usize> = 83..147;
/// Where the digits of `created_at` start in [`Event::json`].
pub const CREATED_AT_START: usize = 162;
/// How far before the end of [`Event::json`] the 128 hex digits of the signature start.
pub const SIG_FROM_END: usize = 130;

/// An event of well-formed shape (NIP-01). Neither its id nor its signature is checked by parsing.
#[derive(Clone)]
pub struct Event {
    json: Box<str>,
    /// Values of index tags that held escapes, end to end.
    unescaped: Box<str>,
    index: Vec<IndexTag>,
    /// One bit per letter in `index`.
    letters: u64,
    created_at: u64,
    expiration: Option<u64>,
    id: [u8; 32],
    pubkey: [u8; 32],
    sig: [u8; 64],
    /// From `[` to `]` in `json`.
    tags: Span,
    /// With its quotes, in `json`.
    content: Span,
    kind: u16,
    protected: bool,
    /// `tags` and `content` are their own canonical form.
    canonical: bool,
}

/// Why a text is not an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventError {
    /// The id, where it could be read: then the refusal is an `OK`, else a `NOTICE`.
    pub id: Option<[u8; 32]>,
    /// What is wrong.
    pub reason: Reason,
}

impl Event {
    /// Reads `text`, which is one JSON object with nothing but white space around it.
    ///
    /// # Errors
    /// `invalid:` with what is wrong; see the head of `scan.rs` for the rules.
    pub fn parse(text: &str) -> Result<Self, EventError> {
        let (event, length) = Self::parse_prefix(text)?;
        let mut rest = Cursor::new(&text[length..]);
        rest.space();
        match rest.peek() {
            None => Ok(event),
            Some(_) => Err(EventError {
                id: Some(event.id),
                reason: Reason::invalid("text after the event"),
            }),
        }
    }

    /// Reads the event that `text` starts with. Returns it and the bytes it took, white space
    /// before it included.
    ///
    /// # Errors
    /// As [`Event::parse`].
    pub fn parse_prefix(text: &str) -> Result<(Self, usize), EventError> {
        match scan::scan(text).and_then(Self::from_scan) {
            Ok(read) => Ok(read),
            Err(fault) => Err(EventError {
                id: scan::find_id(text),
                reason: Reason::invalid(fault),
            }),
        }
    }

    /// The id: SHA-256 of the canonical serialization, if [`Event::id_matches`].
    pub fn id(&self) -> &[u8; 32] {
        &self.id
    }

    /// The author's x-only public key.
    pub fn pubkey(&self) -> &[u8; 32] {
        &self.pubkey
    }

    /// The author's BIP-340 signature of the id.
    pub fn sig(&self) -> &[u8; 64] {
        &self.sig
    }

    /// When it was made, in seconds since 1970; at most `i64::MAX`.
    pub fn created_at(&self) -> u64 {
        self.created_at
    }

    /// The kind.
    pub fn kind(&self) -> u16 {
        self.kind
    }

    /// What the relay does with events of this kind.
    pub fn class(&self) -> Class {
        Class::of(self.kind)
    }

    /// The event as JSON, in the form shown at the head of this file.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// The content, unescaped.
    pub fn content(&self) -> Cow<'_, str> {
        let quoted = self.content.of(&self.json);
        unescape(&quoted[1..quoted.len() - 1])
    }

    /// Whether the id is the SHA-256 of the event's canonical serialization (NIP-01).
    ///
    /// Strings with only NIP-01's own escapes are hashed where they stand; others are serialized
    /// anew first. The value decides, not how it was escaped.
    pub fn id_matches(&self) -> bool {
        self.canonical_hash() == self.id
    }

    /// All tags, in order.
    pub fn tags(&self) -> impl Iterator<Item = Tag<'_>> {
        let text = self.tags.of(&self.json);
        let mut cursor = Cursor::new(&text[1..text.len() - 1]);
        std::iter::from_fn(move || Tag::take(&mut cursor))
    }

    /// The tags that filters can ask for, in order: letter and first value, unescaped. Precomputed.
    pub fn index_tags(&self) -> impl Iterator<Item = (u8, &[u8])> {
        self.index
            .iter()
            .map(|tag| (tag.letter, self.index_value(tag).as_bytes()))
    }

    /// The first value of the first `d` tag that has one, else the empty string: what an
    /// addressable event is addressed by (NIP-01).
    pub fn d_tag(&self) -> &str {
        if !self.has_letter(b'd') {
            return "";
        }
        self.index
            .iter()
            .find(|tag| tag.letter == b'd')
            .map_or("", |tag| self.index_value(tag))
    }

    /// Whether only the author may publish it: it has a `-` tag (NIP-70).
    pub fn is_protected(&self) -> bool {
        self.protected
    }

    /// When it expires, in seconds since 1970: the first `expiration` tag that holds decimal
    /// digits within 64 bits (NIP-40). Malformed ones are as if not there.
    pub fn expiration(&self) -> Option<u64> {
        self.expiration
    }

    /// Whether [`Event::index_tags`] has a tag of this letter. A bit test.
    pub fn has_letter(&self, letter: u8) -> bool {
        self.letters & letter_bit(letter) != 0
    }

    fn index_value(&self, tag: &IndexTag) -> &str {
        tag.value.of(if tag.escaped {
            &self.unescaped
        } else {
            self.tags.of(&self.json)
        })
    }

    /// Writes the normalized JSON and takes the precomputed parts along. Returns the event and the
    /// bytes of the text it took.
    fn from_scan(scan: Scan<'_>) -> Result<(Self, usize), Fault> {
        let mut tags = scan.tags;
        let mut tags_text = Cow::Borrowed(scan.tags_text);
        if scan.tags_spaced {
            // Positions of values were taken with the white space: take them again.
            tags_text = Cow::Owned(scan::without_space(&tags_text));
            tags = scan::scan_tags(&tags_text)?;
        }
        let mut json = String::with_capacity(
            FRAME_BYTES
                + scan.created_at.1.len()
                + scan.kind.1.len()
                + tags_text.len()
                + scan.content.len(),
        );
        json.push_str("{\"id\":\"");
        json.push_str(scan.id.text);
        json.push_str("\",\"pubkey\":\"");
        json.push_str(scan.pubkey.text);
        json.push_str("\",\"created_at\":");
        json.push_str(scan.created_at.1);
        json.push_str(",\"kind\":");
        json.push_str(scan.kind.1);
        json.push_str(",\"tags\":");
        let tags_start = json.len();
        json.push_str(&tags_text);
        let tags_span = Span::new(tags_start, json.len());
        json.push_str(",\"content\":");
        let content_start = json.len();
        json.push_str(scan.content);
        let content_span = Span::new(content_start, json.len());
        json.push_str(",\"sig\":\"");
        json.push_str(scan.sig.text);
        json.push_str("\"}");
        let event = Self {
            json: json.into_boxed_str(),
            unescaped: tags.unescaped.into_boxed_str(),
            index: tags.index,
            letters: tags.letters,
            created_at: scan.created_at.0,
            expiration: tags.expiration,
            id: scan.id.bytes,
            pubkey: scan.pubkey.bytes,
            sig: scan.sig.bytes,
            tags: tags_span,
            content: content_span,
            kind: scan.kind.0,
            protected: tags.protected,
            canonical: scan.canonical,
        };
        Ok((event, scan.length))
    }

    fn canonical_hash(&self) -> [u8; 32] {
        let (tags, content) = (self.tags.of(&self.json), self.content.of(&self.json));
        // `[0,"<key>",<created_at>,<kind>,` in one piece: the fewer pieces, the fewer copies into
        // the hash's own block.
        let mut head = [0; CANONICAL_HEAD_BYTES_MAX];
        let mut rest = &mut head[..];
        let pubkey = &self.json[PUBKEY_RANGE];
        let fits = write!(rest, "[0,\"{pubkey}\",{},{},", self.created_at, self.kind);
        debug_assert!(fits.is_ok(), "the longest head fits");
        let unused = rest.len();
        let mut hash = Sha256::new();
        hash.update(&head[..CANONICAL_HEAD_BYTES_MAX - unused]);
        if self.canonical {
            hash.update(tags);
            hash.update(b",");
            hash.update(content);
        } else {
            let mut rebuilt = Vec::with_capacity(tags.len() + content.len() + 1);
            reescape(tags, &mut rebuilt);
            rebuilt.push(b',');
            reescape(content, &mut rebuilt);
            hash.update(rebuilt);
        }
        hash.update(b"]");
        hash.finalize().into()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.json)
    }
}

impl PartialEq for Event {
    /// Equal in every field and escape.
    fn eq(&self, other: &Self) -> bool {
        self.json == other.json
    }
}

impl Eq for Event {}

impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for EventError {}

/// One tag: a name, and values after it.
#[derive(Clone, Copy)]
pub struct Tag<'a> {
    /// The strings with their quotes and commas, without the brackets.
    text: &'a str,
}

impl<'a> Tag<'a> {
    /// The first string.
    pub fn name(&self) -> Cow<'a, str> {
        // A tag without a name does not pass the scanner.
        self.get(0).unwrap_or_default()
    }

    /// The second string, if there is one.
    pub fn value(&self) -> Option<Cow<'a, str>> {
        self.get(1)
    }

    /// The string at `position`; the name is at 0.
    pub fn get(&self, position: usize) -> Option<Cow<'a, str>> {
        self.iter().nth(position)
    }

    /// All strings, unescaped, the name first.
    pub fn iter(&self) -> impl Iterator<Item = Cow<'a, str>> + use<'a> {
        let mut cursor = Cursor::new(self.text);
        std::iter::from_fn(move || {
            let (text, _) = cursor.string("").ok()?;
            cursor.next();
            Some(unescape(text))
        })
    }

    /// Takes the next tag of normalized tags, the comma after it included.
    fn take(cursor: &mut Cursor<'a>) -> Option<Self> {
        cursor.expect(b'[', "").ok()?;
        let start = cursor.at;
        loop {
            cursor.string("").ok()?;
            match cursor.next()? {
                b',' => {}
                _ => break,
            }
        }
        let text = cursor.since(start);
        cursor.next();
        Some(Self {
            text: &text[..text.len() - 1],
        })
    }
}

impl fmt::Debug for Tag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Bytes of the normalized JSON besides `created_at`, `kind`, `tags` and `content`.
const FRAME_BYTES: usize = {
    let keys = r#"{"id":"","pubkey":"","created_at":,"kind":,"tags":,"content":,"sig":""}"#;
    keys.len() + 64 + 64 + 128
};

/// Bytes of `[0,"<key>",<created_at>,<kind>,` with the longest numbers.
const CANONICAL_HEAD_BYTES_MAX: usize =
    "[0,\"\",,,".len() + 64 + "9223372036854775807".len() + "65535".len();

/// Appends normalized JSON of strings, brackets and commas, each string in its canonical form.
fn reescape(text: &str, out: &mut Vec<u8>) {
    let mut rest = Cursor::new(text);
    while let Some(byte) = rest.peek() {
        if byte != b'"' {
            out.push(byte);
            rest.at += 1;
            continue;
        }
        let Ok((string, _)) = rest.string("") else {
            return;
        };
        out.push(b'"');
        escape_into(&unescape(string), out);
        out.push(b'"');
    }
}

#[cfg(test)]
mod tests;
