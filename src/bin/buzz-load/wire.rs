//! A relay's messages, read just far enough to check them.
//!
//! A page brings a hundred events; parsing them whole would make the generator the limit. So a
//! message is looked at by position and key: what it is, which subscription, which id and time.
//! An unescaped `"id"` or `"created_at"` followed by a colon can only be a key of the event, for
//! within a string its quotes would be escaped, and tags hold no objects.

use memchr::{memchr, memmem};

/// One message of a relay (NIP-01, NIP-42), its parts borrowed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Message<'a> {
    /// An event for a subscription. `rest` begins with the event's `{`.
    Event { sub: &'a [u8], rest: &'a [u8] },
    /// The end of what is stored.
    Eose { sub: &'a [u8] },
    /// The end of a subscription, and the reason as JSON text.
    Closed { sub: &'a [u8], reason: &'a [u8] },
    /// The answer to an event or a login: its id in hex, the verdict, the reason as JSON text.
    Ok {
        id: &'a [u8],
        accepted: bool,
        reason: &'a [u8],
    },
    /// The answer to a COUNT.
    Count { sub: &'a [u8], count: u64 },
    /// A challenge.
    Auth { challenge: &'a [u8] },
    /// A message to humans.
    Notice { text: &'a [u8] },
    /// Anything else.
    Other,
}

/// Reads one message. What does not look like one is [`Message::Other`].
pub fn parse(text: &[u8]) -> Message<'_> {
    scan(text).unwrap_or(Message::Other)
}

fn scan(text: &[u8]) -> Option<Message<'_>> {
    let mut at = Cursor { rest: text };
    at.expect(b'[')?;
    let message = match at.string()? {
        b"EVENT" => {
            at.expect(b',')?;
            let sub = at.string()?;
            at.expect(b',')?;
            at.skip_space();
            Message::Event { sub, rest: at.rest }
        }
        b"OK" => {
            at.expect(b',')?;
            let id = at.string()?;
            at.expect(b',')?;
            let accepted = at.boolean()?;
            let reason = at
                .expect(b',')
                .and_then(|()| at.string())
                .unwrap_or_default();
            Message::Ok {
                id,
                accepted,
                reason,
            }
        }
        b"EOSE" => {
            at.expect(b',')?;
            Message::Eose { sub: at.string()? }
        }
        b"CLOSED" => {
            at.expect(b',')?;
            let sub = at.string()?;
            let reason = at
                .expect(b',')
                .and_then(|()| at.string())
                .unwrap_or_default();
            Message::Closed { sub, reason }
        }
        b"COUNT" => {
            at.expect(b',')?;
            let sub = at.string()?;
            at.expect(b',')?;
            Message::Count {
                sub,
                count: number(value_of(at.rest, b"\"count\"")?)?,
            }
        }
        b"AUTH" => {
            at.expect(b',')?;
            Message::Auth {
                challenge: at.string()?,
            }
        }
        b"NOTICE" => {
            at.expect(b',')?;
            Message::Notice { text: at.string()? }
        }
        _ => Message::Other,
    };
    Some(message)
}

/// An id's first 8 bytes: enough to tell the events of a run apart (two of a million events share
/// them by chance once in 10⁷ runs).
pub type ShortId = u64;

/// The short form of 64 hex digits; `None` for anything else.
pub fn short_id(hex: &[u8]) -> Option<ShortId> {
    if hex.len() != 64 {
        return None;
    }
    let mut bytes = [0; 8];
    const_hex::decode_to_slice(&hex[..16], &mut bytes).ok()?;
    Some(u64::from_be_bytes(bytes))
}

/// The short form of an event's id, wherever its key stands.
pub fn event_id(event: &[u8]) -> Option<ShortId> {
    let value = value_of(event, b"\"id\"")?;
    short_id(Cursor { rest: value }.string()?)
}

/// An event's time, in seconds.
pub fn event_time(event: &[u8]) -> Option<u64> {
    number(value_of(event, b"\"created_at\"")?)
}

/// The digits that `text` begins with.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    std::str::from_utf8(&text[..digits.count()])
        .ok()?
        .parse()
        .ok()
}

/// What follows `key` and its colon; a string that equals the key is passed over.
fn value_of<'a>(object: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let mut rest = object;
    loop {
        let mut after = Cursor {
            rest: &rest[memmem::find(rest, key)? + key.len()..],
        };
        rest = after.rest;
        if after.expect(b':').is_some() {
            after.skip_space();
            return Some(after.rest);
        }
    }
}

struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn skip_space(&mut self) {
        let space = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        let count = self.rest.iter().take_while(space).count();
        self.rest = &self.rest[count..];
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.skip_space();
        self.rest = self.rest.strip_prefix(&[byte])?;
        Some(())
    }

    /// A string's raw JSON text, escapes as they are.
    fn string(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let mut end = 0;
        loop {
            end += memchr(b'"', &self.rest[end..])?;
            let escapes = self.rest[..end]
                .iter()
                .rev()
                .take_while(|byte| **byte == b'\\')
                .count();
            if escapes % 2 == 0 {
                break;
            }
            end += 1;
        }
        let text = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Some(text)
    }

    fn boolean(&mut self) -> Option<bool> {
        self.skip_space();
        for (word, value) in [(&b"true"[..], true), (b"false", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    #[test]
    fn every_message_is_told() {
        let ok = format!(r#"["OK","{ID}",true,""]"#);
        assert_eq!(
            parse(ok.as_bytes()),
            Message::Ok {
                id: ID.as_bytes(),
                accepted: true,
                reason: b""
            }
        );
        let refused = format!(r#" [ "OK" , "{ID}" , false , "blocked: \"no\\" ] "#);
        assert_eq!(
            parse(refused.as_bytes()),
            Message::Ok {
                id: ID.as_bytes(),
                accepted: false,
                reason: br#"blocked: \"no\\"#
            }
        );
        assert_eq!(
            parse(br#"["EVENT","a\"b", {"id":"x"}]"#),
            Message::Event {
                sub: br#"a\"b"#,
                rest: br#"{"id":"x"}]"#
            }
        );
        // With a hint (NIP-67) or without.
        for eose in [
            &br#"["EOSE","a"]"#[..],
            br#"["EOSE","a",["finish"]]"#,
            br#"["EOSE", "a", []]"#,
        ] {
            assert_eq!(parse(eose), Message::Eose { sub: b"a" });
        }
        assert_eq!(
            parse(br#"["CLOSED","a","error: x"]"#),
            Message::Closed {
                sub: b"a",
                reason: b"error: x"
            }
        );
        assert_eq!(
            parse(br#"["AUTH","chal"]"#),
            Message::Auth { challenge: b"chal" }
        );
        assert_eq!(
            parse(br#"["NOTICE","hi"]"#),
            Message::Notice { text: b"hi" }
        );
        for other in [
            &b"[\"EOSE\"]"[..],
            b"",
            b"[",
            b"[\"COUNT\",\"a\",{}]",
            b"[\"OK\",\"",
            b"{}",
        ] {
            assert_eq!(parse(other), Message::Other);
        }
    }

    #[test]
    fn keys_are_found_where_strings_pretend() {
        let event = format!(
            r#"{{"content":"\"id\":\"nope\" \"created_at\":1","tags":[["id","created_at"]],"created_at" : 42,"id": "{ID}"}}"#
        );
        assert_eq!(event_id(event.as_bytes()), Some(0x0011_2233_4455_6677));
        assert_eq!(event_time(event.as_bytes()), Some(42));
        assert_eq!(event_id(br#"{"id":"short"}"#), None);
        assert_eq!(event_time(br#"{"created_at":"x"}"#), None);
        assert_eq!(event_time(br#"{"created_at""#), None);
    }

    proptest! {
        /// Against serde_json: whatever the content, id and time are the object's own.
        #[test]
        fn agrees_with_a_parser(content: String, tag: String, time in 0..=i64::MAX as u64, sub: String) {
            let event = serde_json::json!({
                "content": content, "tags": [[tag, "id", "created_at"]], "created_at": time, "id": ID,
            });
            let text = serde_json::json!(["EVENT", sub, event]).to_string();
            let Message::Event { sub: found, rest } = parse(text.as_bytes()) else {
                return Err(TestCaseError::fail("not an event"));
            };
            let quoted = serde_json::to_vec(&sub).unwrap();
            prop_assert_eq!(&quoted[1..quoted.len() - 1], found);
            prop_assert_eq!(event_time(rest), Some(time));
            prop_assert_eq!(event_id(rest), Some(0x0011_2233_4455_6677));
        }

        #[test]
        fn noise_never_panics(text: Vec<u8>) {
            let _ = parse(&text);
            let _ = (event_id(&text), event_time(&text));
        }
    }
}
