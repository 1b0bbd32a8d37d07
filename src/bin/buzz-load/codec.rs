//! The client side of a WebSocket (RFC 6455), without I/O: the request and its answer, masked
//! frames out, unmasked frames in.
//!
//! A relay's frame is borrowed from the bytes read, so that a page of events costs one look at
//! each header. Nothing is unmasked, because a server must not mask (section 5.1); a server that
//! does, sets a reserved bit or breaks the rules of fragments is an error, and the connection
//! with it. UTF-8 is left to whoever reads a message's text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

use crate::limits;

/// What the accepting side appends to a key before hashing it (RFC 6455 section 1.3).
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A frame's meaning (RFC 6455 section 11.8).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Opcode {
    /// A further part of a message.
    Continuation = 0,
    /// Text.
    Text = 1,
    /// Bytes. No relay sends them; they are counted.
    Binary = 2,
    /// The end.
    Close = 8,
    /// Asks for a pong.
    Ping = 9,
    /// Answers a ping.
    Pong = 10,
}

impl Opcode {
    fn of(nibble: u8) -> Option<Opcode> {
        Some(match nibble {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return None,
        })
    }

    fn is_control(self) -> bool {
        self as u8 & 8 != 0
    }
}

/// One thing that a relay said.
#[derive(Debug, Eq, PartialEq)]
pub enum Item<'a> {
    /// A whole text message; its UTF-8 is not checked.
    Text(&'a [u8]),
    /// A whole binary message.
    Binary(&'a [u8]),
    /// A ping and its payload.
    Ping(&'a [u8]),
    /// A pong and its payload.
    Pong(&'a [u8]),
    /// The close code, if one was given.
    Close(Option<u16>),
}

/// A step of [`Decoder::next`].
#[derive(Debug, Eq, PartialEq)]
pub struct Decoded<'a> {
    /// Bytes of the input that are done with. With no item and 0: more input is needed.
    pub consumed: usize,
    /// What they said; nothing for a fragment that is not the last.
    pub item: Option<Item<'a>>,
}

/// A broken rule of the protocol.
pub type Fault = &'static str;

/// The state of one connection's incoming side: the fragments of an unfinished message.
#[derive(Debug, Default)]
pub struct Decoder {
    parts: Vec<u8>,
    /// The kind of the unfinished message.
    kind: Option<Opcode>,
    fragments: usize,
}

impl Decoder {
    /// Reads one frame from the front of `input`, which holds everything received and not yet consumed.
    ///
    /// # Errors
    /// The rule that the relay broke. The connection is of no use afterwards.
    pub fn next<'a>(&'a mut self, input: &'a [u8]) -> Result<Decoded<'a>, Fault> {
        let Some((frame, consumed)) = parse_frame(input)? else {
            return Ok(Decoded {
                consumed: 0,
                item: None,
            });
        };
        let item = match frame.opcode {
            Opcode::Ping => Some(Item::Ping(frame.payload)),
            Opcode::Pong => Some(Item::Pong(frame.payload)),
            Opcode::Close => Some(Item::Close(
                frame
                    .payload
                    .first_chunk()
                    .map(|code| u16::from_be_bytes(*code)),
            )),
            Opcode::Text | Opcode::Binary if self.kind.is_some() => {
                return Err("a new message inside a fragmented one");
            }
            Opcode::Text if frame.last => Some(Item::Text(frame.payload)),
            Opcode::Binary if frame.last => Some(Item::Binary(frame.payload)),
            Opcode::Text | Opcode::Binary => {
                self.kind = Some(frame.opcode);
                self.fragments = 1;
                self.parts.clear();
                self.parts.extend_from_slice(frame.payload);
                None
            }
            Opcode::Continuation => {
                let kind = self.kind.ok_or("a continuation of nothing")?;
                self.fragments += 1;
                if self.fragments > limits::FRAGMENTS_MAX
                    || self.parts.len() + frame.payload.len() > limits::MESSAGE_BYTES_MAX
                {
                    return Err("a fragmented message beyond the bound");
                }
                self.parts.extend_from_slice(frame.payload);
                if frame.last {
                    self.kind = None;
                    Some(match kind {
                        Opcode::Text => Item::Text(&self.parts),
                        _ => Item::Binary(&self.parts),
                    })
                } else {
                    None
                }
            }
        };
        Ok(Decoded { consumed, item })
    }
}

/// Appends one frame, masked as a client's must be (RFC 6455 section 5.3).
pub fn write_frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8], mask: [u8; 4]) {
    out.push(0x80 | opcode as u8);
    // The casts fit: each arm has just compared the length.
    match payload.len() {
        length @ 0..=125 => out.push(0x80 | length as u8),
        length @ 126..=0xffff => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&mask);
    let start = out.len();
    out.extend_from_slice(payload);
    apply_mask(&mut out[start..], mask);
}

/// XORs `bytes` with the mask, eight at a time.
pub fn apply_mask(bytes: &mut [u8], mask: [u8; 4]) {
    let wide = u64::from_ne_bytes([
        mask[0], mask[1], mask[2], mask[3], mask[0], mask[1], mask[2], mask[3],
    ]);
    let mut chunks = bytes.chunks_exact_mut(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        chunk.copy_from_slice(&(u64::from_ne_bytes(word) ^ wide).to_ne_bytes());
    }
    for (byte, key) in chunks.into_remainder().iter_mut().zip(mask.iter().cycle()) {
        *byte ^= key;
    }
}

/// The `Sec-WebSocket-Key` for 16 random bytes.
pub fn key(random: [u8; 16]) -> String {
    STANDARD.encode(random)
}

/// Appends the upgrade request (RFC 6455 section 4.1). No extension is offered.
pub fn write_request(out: &mut Vec<u8>, host: &str, path: &str, key: &str) {
    out.extend_from_slice(
        format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        .as_bytes(),
    );
}

/// Checks the answer to the upgrade request that carried `key`; gives the length of its head, or
/// `None` while more bytes are needed.
///
/// # Errors
/// Why this is no WebSocket: the status that was sent, or the field that is missing or wrong.
pub fn parse_response(input: &[u8], key: &str) -> Result<Option<usize>, String> {
    let mut fields = [httparse::EMPTY_HEADER; limits::RESPONSE_FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let head = match response.parse(input) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if input.len() > limits::RESPONSE_HEAD_BYTES_MAX => {
            return Err("the answer's head is too long".into());
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(format!("the answer is not HTTP: {error}")),
    };
    if response.code != Some(101) {
        return Err(format!("HTTP status {}", response.code.unwrap_or(0)));
    }
    let field = |name: &str| {
        response
            .headers
            .iter()
            .find(|field| field.name.eq_ignore_ascii_case(name))
            .map(|field| field.value.trim_ascii())
    };
    if field("sec-websocket-extensions").is_some_and(|value| !value.is_empty()) {
        return Err("an extension that was not offered".into());
    }
    if field("sec-websocket-accept") != Some(accept_of(key).as_bytes()) {
        return Err("Sec-WebSocket-Accept does not match the key".into());
    }
    Ok(Some(head))
}

/// What a server answers to `key` (RFC 6455 section 4.2.2).
fn accept_of(key: &str) -> String {
    let mut hash = Sha1::new();
    hash.update(key.as_bytes());
    hash.update(KEY_SUFFIX);
    STANDARD.encode(hash.finalize())
}

struct Frame<'a> {
    last: bool,
    opcode: Opcode,
    payload: &'a [u8],
}

/// The frame at the front of `input` and its length; `None` while it is not whole.
fn parse_frame(input: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Fault> {
    let [first, second, rest @ ..] = input else {
        return Ok(None);
    };
    if first & 0x70 != 0 {
        return Err("a reserved bit is set");
    }
    let opcode = Opcode::of(first & 0x0f).ok_or("an unknown opcode")?;
    let last = first & 0x80 != 0;
    if second & 0x80 != 0 {
        return Err("a masked frame from a server");
    }
    let (length, header) = match second & 0x7f {
        126 => match rest.first_chunk() {
            Some(bytes) => (u64::from(u16::from_be_bytes(*bytes)), 4),
            None => return Ok(None),
        },
        127 => match rest.first_chunk() {
            Some(bytes) => (u64::from_be_bytes(*bytes), 10),
            None => return Ok(None),
        },
        short => (u64::from(short), 2),
    };
    if opcode.is_control() && (!last || length > limits::CONTROL_PAYLOAD_BYTES_MAX as u64) {
        return Err("a control frame that is fragmented or too long");
    }
    if length > limits::MESSAGE_BYTES_MAX as u64 {
        return Err("a frame beyond the bound");
    }
    // The cast fits: it has just been compared with a usize.
    let end = header + length as usize;
    Ok(input.get(header..end).map(|payload| {
        (
            Frame {
                last,
                opcode,
                payload,
            },
            end,
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A server's frame, from the text of section 5.2.
    fn server_frame(last: bool, opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![u8::from(last) << 7 | opcode];
        match payload.len() {
            length if length < 126 => out.push(length as u8),
            length if length < 65_536 => {
                out.push(126);
                out.extend((length as u16).to_be_bytes());
            }
            length => {
                out.push(127);
                out.extend((length as u64).to_be_bytes());
            }
        }
        out.extend_from_slice(payload);
        out
    }

    /// Owned copies of everything that `wire` says, fed in pieces that end at `cuts`.
    fn decode_all(wire: &[u8], cuts: &[usize]) -> Result<Vec<(char, Vec<u8>)>, Fault> {
        let mut decoder = Decoder::default();
        let (mut start, mut items) = (0, Vec::new());
        for end in cuts.iter().copied().chain([wire.len()]) {
            loop {
                let decoded = decoder.next(&wire[start..end.min(wire.len())])?;
                start += decoded.consumed;
                match decoded.item {
                    Some(Item::Text(text)) => items.push(('t', text.to_vec())),
                    Some(Item::Binary(bytes)) => items.push(('b', bytes.to_vec())),
                    Some(Item::Ping(bytes)) => items.push(('i', bytes.to_vec())),
                    Some(Item::Pong(bytes)) => items.push(('o', bytes.to_vec())),
                    Some(Item::Close(code)) => {
                        items.push(('c', code.unwrap_or(0).to_be_bytes().to_vec()));
                    }
                    None if decoded.consumed == 0 => break,
                    None => {}
                }
            }
        }
        Ok(items)
    }

    #[test]
    fn the_handshake_of_the_rfc() {
        assert_eq!(
            accept_of("dGhlIHNhbXBsZSBub25jZQ=="),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
            Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n\x81\x00";
        let key = "dGhlIHNhbXBsZSBub25jZQ==";
        assert_eq!(parse_response(answer, key), Ok(Some(answer.len() - 2)));
        for cut in 0..answer.len() - 2 {
            assert_eq!(
                parse_response(&answer[..cut], key),
                Ok(None),
                "cut at {cut}"
            );
        }
        assert!(parse_response(answer, "AAAA").is_err());
        assert_eq!(
            parse_response(b"HTTP/1.1 503 Service Unavailable\r\n\r\n", key),
            Err("HTTP status 503".into())
        );
        let extended = b"HTTP/1.1 101 x\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
            Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n";
        assert!(parse_response(extended, key).is_err());
    }

    #[test]
    fn broken_frames_are_faults() {
        for wire in [
            &[0xc1, 0x00][..],                    // reserved bit
            &[0x83, 0x00],                        // unknown opcode
            &[0x81, 0x80, 0, 0, 0, 0],            // masked
            &[0x09, 0x00],                        // fragmented ping
            &[0x89, 126, 0, 126],                 // long ping
            &[0x80, 0x00],                        // continuation of nothing
            &[0x01, 0x00, 0x81, 0x00],            // text within text
            &[0x81, 127, 1, 0, 0, 0, 0, 0, 0, 0], // too long
        ] {
            assert!(decode_all(wire, &[]).is_err(), "{wire:?}");
        }
    }

    proptest! {
        #[test]
        fn a_frame_written_is_the_frame_unmasked(
            payload in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..300),
                proptest::collection::vec(any::<u8>(), 65_530..65_545),
            ],
            mask: [u8; 4],
        ) {
            let mut out = vec![7];
            write_frame(&mut out, Opcode::Text, &payload, mask);
            prop_assert_eq!(out[2] & 0x80, 0x80);
            // Take the mask away by the letter of section 5.3 and read the frame as a server's.
            let header = match out[2] & 0x7f { 126 => 4, 127 => 10, _ => 2 };
            let mut plain = out[1..=header].to_vec();
            plain[1] &= 0x7f;
            let body = out[1 + header + 4..].iter().enumerate().map(|(i, byte)| byte ^ mask[i % 4]);
            plain.extend(body);
            prop_assert_eq!(plain, server_frame(true, 1, &payload));
        }

        #[test]
        fn what_was_framed_comes_back_however_it_is_cut(
            messages in proptest::collection::vec(
                (0..4_u8, proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..90), 1..4)), 0..8),
            mut cuts in proptest::collection::vec(0..1_500_usize, 0..12),
        ) {
            let (mut wire, mut expected) = (Vec::new(), Vec::new());
            for (kind, parts) in &messages {
                let letter = b"tbio"[usize::from(*kind)] as char;
                if *kind >= 2 {
                    wire.extend(server_frame(true, 7 + kind, &parts[0]));
                    expected.push((letter, parts[0].clone()));
                    continue;
                }
                for (index, part) in parts.iter().enumerate() {
                    let opcode = if index == 0 { kind + 1 } else { 0 };
                    wire.extend(server_frame(index + 1 == parts.len(), opcode, part));
                }
                expected.push((letter, parts.concat()));
            }
            cuts.sort_unstable();
            let cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut <= wire.len()).collect();
            prop_assert_eq!(decode_all(&wire, &cuts), Ok(expected));
        }

        #[test]
        fn noise_never_panics(wire in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_all(&wire, &[]);
            let _ = parse_response(&wire, "key");
        }
    }
}
