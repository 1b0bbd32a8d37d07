//! JSON strings: finding their end, reading them, writing them canonically.
//!
//! Everything here walks a string whose UTF-8 is already known to be good. What [`string_end`]
//! has accepted, [`unescape`] can read: the two agree on the grammar of RFC 8259 section 7, and
//! both refuse lone surrogates, which no UTF-8 can hold.

use std::borrow::Cow;

/// The escapes that a string holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Escapes {
    /// None: the text is the value.
    None,
    /// Only those that NIP-01 writes itself: the text is its own canonical form.
    Canonical,
    /// Others too: the canonical form has to be built.
    Other,
}

/// Why a string was refused.
pub(super) type Fault = &'static str;

/// Walks the string whose first byte after the opening quote is at `at`. Returns where its closing
/// quote is, and which escapes it holds.
#[inline]
pub(super) fn string_end(bytes: &[u8], mut at: usize) -> Result<(usize, Escapes), Fault> {
    let mut escapes = Escapes::None;
    loop {
        at = plain_end(bytes, at);
        match bytes.get(at) {
            Some(b'"') => return Ok((at, escapes)),
            Some(b'\\') => {
                let (end, class) = escape_end(bytes, at)?;
                escapes = escapes.max(class);
                at = end;
            }
            Some(_) => return Err("control character in a string"),
            None => return Err("string without an end"),
        }
    }
}

/// The value of a string's text, both without the quotes. `text` was accepted by [`string_end`];
/// anything else comes back cut or unread, but never panics.
pub(super) fn unescape(text: &str) -> Cow<'_, str> {
    if !text.as_bytes().contains(&b'\\') {
        return Cow::Borrowed(text);
    }
    let mut value = String::with_capacity(text.len());
    unescape_into(text, &mut value);
    Cow::Owned(value)
}

/// As [`unescape`], appended to `value`.
pub(super) fn unescape_into(text: &str, value: &mut String) {
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
        value.push_str(&rest[..at]);
        let escape = &rest.as_bytes()[at..];
        let (letter, taken) = match escape.get(1) {
            Some(b'n') => ('\n', 2),
            Some(b'r') => ('\r', 2),
            Some(b't') => ('\t', 2),
            Some(b'b') => ('\u{8}', 2),
            Some(b'f') => ('\u{c}', 2),
            Some(b'u') => match unicode_escape(escape) {
                Some(read) => read,
                None => return,
            },
            Some(&letter @ (b'"' | b'\\' | b'/')) => (char::from(letter), 2),
            _ => return,
        };
        value.push(letter);
        rest = &rest[at + taken..];
    }
    value.push_str(rest);
}

/// Appends `value`, escaped as NIP-01 serializes it: its seven short escapes, other control
/// characters as `JSON.stringify` writes them (`\u00` and two lower-case digits), the rest
/// verbatim. Used for ids and for all text that the relay sends. Quotes are the caller's.
pub(super) fn escape_into(value: &str, out: &mut Vec<u8>) {
    let bytes = value.as_bytes();
    let mut at = 0;
    loop {
        let end = plain_end(bytes, at);
        out.extend_from_slice(&bytes[at..end]);
        let Some(&byte) = bytes.get(end) else { return };
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            _ => {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', DIGITS[high], DIGITS[low]]);
            }
        }
        at = end + 1;
    }
}

/// The first place at or after `at` that holds a quote, a backslash or a control character; the
/// length of `bytes` if none does.
///
/// Sixteen bytes a step while none of them is special: a test without branches, which compilers
/// turn into a few vector instructions. Then eight a step, in one word: each of three tests sets
/// the top bit of a matching byte. A borrow can set false bits, but only above a true one, so the
/// lowest is exact.
#[inline]
fn plain_end(bytes: &[u8], mut at: usize) -> usize {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const TOP: u64 = 0x8080_8080_8080_8080;
    let mut rest = bytes.get(at..).unwrap_or_default();
    while let Some((chunk, after)) = rest.split_first_chunk::<16>() {
        if chunk
            .iter()
            .fold(false, |found, &byte| found | is_special(byte))
        {
            break;
        }
        at += 16;
        rest = after;
    }
    while let Some((chunk, after)) = rest.split_first_chunk::<8>() {
        let word = u64::from_le_bytes(*chunk);
        let quote = word ^ (LOW * b'"' as u64);
        let slash = word ^ (LOW * b'\\' as u64);
        let control = word.wrapping_sub(LOW * 0x20);
        let found = (quote.wrapping_sub(LOW) | slash.wrapping_sub(LOW) | control) & !word & TOP;
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
        rest = after;
    }
    at + rest
        .iter()
        .position(|&byte| is_special(byte))
        .unwrap_or(rest.len())
}

#[inline]
fn is_special(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'"') | (byte == b'\\')
}

/// Checks the escape that starts at `at`. Returns its end and its class.
fn escape_end(bytes: &[u8], at: usize) -> Result<(usize, Escapes), Fault> {
    match bytes.get(at + 1) {
        Some(b'n' | b'"' | b'\\' | b'r' | b't' | b'b' | b'f') => Ok((at + 2, Escapes::Canonical)),
        Some(b'/') => Ok((at + 2, Escapes::Other)),
        Some(b'u') => match unicode_escape(&bytes[at..]) {
            Some((_, taken)) => Ok((at + taken, Escapes::Other)),
            None => Err("bad \\u escape or lone surrogate in a string"),
        },
        _ => Err("unknown escape in a string"),
    }
}

/// Reads `\uXXXX`, or two of them that form a surrogate pair, at the start of `bytes`. Returns the
/// character and the bytes taken; none for bad digits and for lone surrogates.
fn unicode_escape(bytes: &[u8]) -> Option<(char, usize)> {
    let unit = |from: usize| -> Option<u32> {
        let escape = bytes.get(from..from + 6)?;
        if !escape.starts_with(b"\\u") {
            return None;
        }
        escape[2..].iter().try_fold(0, |sum, &digit| {
            Some(sum * 16 + char::from(digit).to_digit(16)?)
        })
    };
    let first = unit(0)?;
    if let Some(letter) = char::from_u32(first) {
        return Some((letter, 6));
    }
    // What is left is a surrogate. Only a high one with a low one after it is a character.
    let second = unit(6)?;
    if !(0xd800..0xdc00).contains(&first) || !(0xdc00..0xe000).contains(&second) {
        return None;
    }
    let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
    Some((char::from_u32(code)?, 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_found_at_every_place() {
        for length in 0..40 {
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    // The worst neighbours: bytes around which a word's tests could borrow.
                    for filler in [b' ', b'!', b'#', b']', b'[', 0x7f, 0x80, 0xff] {
                        let mut bytes = vec![filler; length];
                        bytes[at] = byte;
                        let special = byte < 0x20 || byte == b'"' || byte == b'\\';
                        let expected = if special { at } else { length };
                        assert_eq!(plain_end(&bytes, 0), expected, "{bytes:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn text_that_was_never_checked_does_not_panic() {
        for text in [
            "\\",
            "a\\",
            "\\u",
            "\\u12",
            "\\ud800",
            "\\ud800\\u0041",
            "\\é",
            "é\\x",
        ] {
            let _ = unescape(text);
        }
    }
}
