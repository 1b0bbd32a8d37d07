//! One pass over the JSON of an event: shape, bounds, and where everything is.
//!
//! Stricter than JSON, so that nothing ambiguous is ever stored or passed on:
//!
//! - exactly the seven keys of NIP-01, each once, written without escapes, in any order;
//! - `id`, `pubkey`, `sig` in lower-case hex without escapes;
//! - `created_at`, `kind` as plain integers within bounds: no sign, fraction or exponent;
//! - every tag an array of one or more strings. An empty tag is refused: NIP-01 says "one or more",
//!   and the usual clients and relays refuse it too;
//! - no control characters or lone surrogates in strings.
//!
//! Strings are not changed: the text between the quotes is kept as it was sent. White space
//! between tokens is accepted and dropped. The shape has no recursion, so depth is bounded by it:
//! an unexpected `[` or `{` ends the scan where it stands.

use super::{
    cursor::{Cursor, Hex, is_space},
    text::{Escapes, Fault, string_end, unescape, unescape_into},
};
use crate::limits::{CREATED_AT_MAX, EVENT_TAGS_MAX};

/// A piece of a text, in bytes. Half the size of a `Range<usize>`, and `Copy`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// `start..end`; both fit 32 bits, because [`scan`] refuses longer texts.
    pub(super) fn new(start: usize, end: usize) -> Self {
        debug_assert!(start <= end && end <= u32::MAX as usize);
        Self {
            start: start as u32,
            end: end as u32,
        }
    }

    /// The piece of `text`.
    pub(super) fn of(self, text: &str) -> &str {
        &text[self.start as usize..self.end as usize]
    }
}

/// A single-letter tag with a first value.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexTag {
    pub(super) letter: u8,
    /// The value is in the unescaped values; else in the tags' own text.
    pub(super) escaped: bool,
    pub(super) value: Span,
}

/// The tags of an event.
#[derive(Debug, Default)]
pub(super) struct Tags {
    /// What single-letter tags there are, in their order. Values are relative to the tags' text.
    pub(super) index: Vec<IndexTag>,
    /// The values of index tags that held escapes, end to end, without them.
    pub(super) unescaped: String,
    /// One bit per letter that occurs in `index`: [`letter_bit`].
    pub(super) letters: u64,
    /// There is a `-` tag (NIP-70).
    pub(super) protected: bool,
    /// The first well-formed `expiration` (NIP-40).
    pub(super) expiration: Option<u64>,
}

/// An event as it stands in a text.
pub(super) struct Scan<'a> {
    pub(super) id: Hex<'a, 32>,
    pub(super) pubkey: Hex<'a, 32>,
    pub(super) sig: Hex<'a, 64>,
    /// Value and digits.
    pub(super) created_at: (u64, &'a str),
    /// Value and digits.
    pub(super) kind: (u16, &'a str),
    pub(super) tags: Tags,
    /// From `[` to `]`; white space between tokens included.
    pub(super) tags_text: &'a str,
    /// `tags_text` holds white space between tokens.
    pub(super) tags_spaced: bool,
    /// With its quotes.
    pub(super) content: &'a str,
    /// Tags and content are their own canonical form.
    pub(super) canonical: bool,
    /// Bytes of the text that the event took.
    pub(super) length: usize,
}

/// The bit of a letter in [`Tags::letters`]; no bit for what is not a letter.
#[inline]
pub(super) fn letter_bit(letter: u8) -> u64 {
    match letter {
        b'a'..=b'z' => 1 << (letter - b'a'),
        b'A'..=b'Z' => 1 << (letter - b'A' + 26),
        _ => 0,
    }
}

/// Scans the event that `text` starts with; white space before it is allowed, anything may follow.
pub(super) fn scan(text: &str) -> Result<Scan<'_>, Fault> {
    if text.len() > u32::MAX as usize {
        return Err("event too long");
    }
    let mut cursor = Cursor::new(text);
    let (mut id, mut pubkey, mut sig) = (None, None, None);
    let (mut created_at, mut kind, mut tags, mut content) = (None, None, None, None);
    let mut escapes = Escapes::None;

    cursor.space();
    cursor.expect(b'{', "event is not an object")?;
    loop {
        cursor.space();
        let (key, _) = cursor.string("event key expected")?;
        cursor.space();
        cursor.expect(b':', "colon expected after an event key")?;
        cursor.space();
        match key.as_bytes() {
            b"id" => once(&mut id, cursor.hex("id must be 64 lower-case hex digits")?)?,
            b"pubkey" => once(
                &mut pubkey,
                cursor.hex("pubkey must be 64 lower-case hex digits")?,
            )?,
            b"sig" => once(
                &mut sig,
                cursor.hex("sig must be 128 lower-case hex digits")?,
            )?,
            b"created_at" => once(&mut created_at, cursor.created_at()?)?,
            b"kind" => once(&mut kind, cursor.kind()?)?,
            b"content" => {
                let start = cursor.at;
                let (_, found) = cursor.string("content must be a string")?;
                escapes = escapes.max(found);
                once(&mut content, &text[start..cursor.at])?;
            }
            b"tags" => {
                let start = cursor.at;
                cursor.spaced = false;
                let (found, found_escapes) = cursor.tags()?;
                escapes = escapes.max(found_escapes);
                once(&mut tags, (found, &text[start..cursor.at], cursor.spaced))?;
            }
            _ => return Err("unknown event key"),
        }
        cursor.space();
        match cursor.next() {
            Some(b',') => {}
            Some(b'}') => break,
            _ => return Err("comma or } expected in an event"),
        }
    }
    let (tags, tags_text, tags_spaced) = tags.ok_or("event without tags")?;
    Ok(Scan {
        id: id.ok_or("event without id")?,
        pubkey: pubkey.ok_or("event without pubkey")?,
        sig: sig.ok_or("event without sig")?,
        created_at: created_at.ok_or("event without created_at")?,
        kind: kind.ok_or("event without kind")?,
        tags,
        tags_text,
        tags_spaced,
        content: content.ok_or("event without content")?,
        canonical: escapes <= Escapes::Canonical,
        length: cursor.at,
    })
}

/// Scans tags from which [`without_space`] has taken the white space.
pub(super) fn scan_tags(text: &str) -> Result<Tags, Fault> {
    Cursor::new(text).tags().map(|(tags, _)| tags)
}

/// `text` without the white space between its tokens.
pub(super) fn without_space(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let bytes = text.as_bytes();
    let (mut at, mut copied) = (0, 0);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => match string_end(bytes, at + 1) {
                Ok((end, _)) => at = end + 1,
                Err(_) => break,
            },
            _ if is_space(byte) => {
                kept.push_str(&text[copied..at]);
                at += 1;
                copied = at;
            }
            _ => at += 1,
        }
    }
    kept.push_str(&text[copied..]);
    kept
}

/// The id of an event that [`scan`] has refused, so that the refusal can name it: the first
/// well-formed `id` of the object that `text` starts with, whatever else is wrong with it.
pub(super) fn find_id(text: &str) -> Option<[u8; 32]> {
    let mut cursor = Cursor::new(text);
    cursor.space();
    let mut depth = 0_usize;
    loop {
        match cursor.peek()? {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.checked_sub(1)?,
            b'"' => {
                let (key, _) = cursor.string("").ok()?;
                if depth == 1 && key == "id" {
                    cursor.space();
                    if cursor.peek() == Some(b':') {
                        cursor.at += 1;
                        cursor.space();
                        return cursor.hex("").ok().map(|hex| hex.bytes);
                    }
                }
                continue;
            }
            _ => {}
        }
        if depth == 0 {
            return None;
        }
        cursor.at += 1;
    }
}

/// Fills `slot`, once.
fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), Fault> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err("duplicate event key"),
    }
}

impl<'a> Cursor<'a> {
    fn created_at(&mut self) -> Result<(u64, &'a str), Fault> {
        self.integer(
            CREATED_AT_MAX,
            "created_at must be an integer from 0 to 2^63-1",
        )
    }

    fn kind(&mut self) -> Result<(u16, &'a str), Fault> {
        const FAULT: Fault = "kind must be an integer from 0 to 65535";
        let (kind, digits) = self.integer(u64::from(u16::MAX), FAULT)?;
        Ok((u16::try_from(kind).map_err(|_| FAULT)?, digits))
    }

    /// Takes the array of tags.
    fn tags(&mut self) -> Result<(Tags, Escapes), Fault> {
        let mut tags = Tags::default();
        let mut escapes = Escapes::None;
        let mut count = 0_usize;
        let start = self.at;
        self.expect(b'[', "tags must be an array")?;
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok((tags, escapes));
        }
        loop {
            if count == EVENT_TAGS_MAX {
                return Err("too many tags");
            }
            count += 1;
            self.space();
            escapes = escapes.max(self.tag(start, &mut tags)?);
            self.space();
            match self.next() {
                Some(b',') => {}
                Some(b']') => return Ok((tags, escapes)),
                _ => return Err("comma or ] expected in tags"),
            }
        }
    }

    /// Takes one tag. `base` is where the tags began.
    fn tag(&mut self, base: usize, tags: &mut Tags) -> Result<Escapes, Fault> {
        const FAULT: Fault = "a tag must be an array of one or more strings";
        self.expect(b'[', FAULT)?;
        self.space();
        let (name, mut escapes) = self.string(FAULT)?;
        let mut elements = 1_usize;
        let known = Known::of(name, escapes);
        tags.protected |= matches!(known, Known::Protected);
        loop {
            self.space();
            match self.next() {
                Some(b']') => break,
                Some(b',') => {}
                _ => return Err(FAULT),
            }
            self.space();
            let start = self.at + 1;
            let (value, found) = self.string(FAULT)?;
            escapes = escapes.max(found);
            elements += 1;
            if elements == 2 {
                tags.note(known, value, start - base, found);
            }
        }
        Ok(escapes)
    }
}

/// The tag names that the relay itself reads.
#[derive(Clone, Copy)]
enum Known {
    Letter(u8),
    Protected,
    Expiration,
    Other,
}

impl Known {
    #[inline]
    fn of(name: &str, escapes: Escapes) -> Self {
        if escapes != Escapes::None {
            return Self::of(&unescape(name), Escapes::None);
        }
        match name.as_bytes() {
            [letter] if letter.is_ascii_alphabetic() => Self::Letter(*letter),
            b"-" => Self::Protected,
            b"expiration" => Self::Expiration,
            _ => Self::Other,
        }
    }
}

impl Tags {
    /// Takes note of the first value of a known tag; `at` is where its text starts, relative to
    /// the tags.
    fn note(&mut self, known: Known, value: &str, at: usize, escapes: Escapes) {
        match known {
            Known::Letter(letter) => {
                let escaped = escapes != Escapes::None;
                let value = if escaped {
                    let start = self.unescaped.len();
                    unescape_into(value, &mut self.unescaped);
                    Span::new(start, self.unescaped.len())
                } else {
                    Span::new(at, at + value.len())
                };
                self.letters |= letter_bit(letter);
                self.index.push(IndexTag {
                    letter,
                    escaped,
                    value,
                });
            }
            Known::Expiration if self.expiration.is_none() => {
                let value = unescape(value);
                if value.bytes().all(|byte| byte.is_ascii_digit()) {
                    self.expiration = value.parse().ok();
                }
            }
            _ => {}
        }
    }
}
