//! A client's bytes → messages and control frames, for one connection.
//!
//! The caller owns the bytes: it gives [`Decoder::next`] all it holds, drops what was consumed,
//! and calls again until nothing is (`consumed` 0 and no item). Only then does it read more. That
//! last call also frees what a fragmented message took.
//!
//! A frame is taken only when it is all there, so between calls a decoder knows nothing of the
//! bytes that are still the caller's, and the cut of the stream into reads cannot change what
//! comes out. The declared length of a frame is judged before its payload is waited for, so the
//! caller never holds more than one message and one header for it.
//!
//! A message in one frame is lent from the caller's bytes. Only a message in several is copied
//! here, and its text is checked as it comes: a fault shows at the fragment that has it.

use super::close;
use super::frame::{ClientHeader, Opcode, unmask};
use crate::limits::{FRAGMENTS_MAX, FRAME_BYTES_MAX};

pub use super::close::Fault;

/// What a client said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// A whole text message.
    Text(&'a str),
    /// A whole binary message.
    Binary(&'a [u8]),
    /// A ping: to be answered by a pong with the same payload.
    Ping(&'a [u8]),
    /// A pong.
    Pong(&'a [u8]),
    /// The client closes; whatever it sends after is discarded.
    Close {
        /// The code, if the client gave one.
        code: Option<u16>,
        /// The reason, or nothing.
        reason: &'a str,
    },
}

/// What one call took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// Bytes at the start of the input that are done with.
    pub consumed: usize,
    /// What they said. `None` with `consumed` above 0: they went into a message under way;
    /// `None` with `consumed` 0: the next frame is not all there.
    pub item: Option<Item<'a>>,
}

impl Decoded<'_> {
    const NEEDS_MORE: Decoded<'static> = Decoded {
        consumed: 0,
        item: None,
    };
}

/// The state of one connection's incoming side. Without heap while no message is in fragments.
#[derive(Debug)]
pub struct Decoder {
    /// A message under way. Empty, without heap, in every state but the two with fragments.
    message: Vec<u8>,
    message_bytes_max: u32,
    /// How much of `message` is known to be whole characters; stays 0 for binary messages.
    checked_bytes: u32,
    fragments: u32,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Between messages.
    Idle,
    /// A text message has begun and not ended.
    InText,
    /// A binary message has begun and not ended.
    InBinary,
    /// `message` was lent to the caller; the next call frees it.
    Lent,
    /// A close frame came.
    Closed,
}

// Ten thousand idle connections hold one each.
const _: () = assert!(size_of::<Decoder>() <= 64);

impl Decoder {
    /// A decoder for messages of at most `message_bytes_max` bytes.
    ///
    /// # Panics
    ///
    /// If the bound is over [`FRAME_BYTES_MAX`]: it comes from a checked setting.
    pub fn new(message_bytes_max: usize) -> Decoder {
        assert!(message_bytes_max <= FRAME_BYTES_MAX);
        Decoder {
            message: Vec::new(),
            message_bytes_max: message_bytes_max as u32,
            checked_bytes: 0,
            fragments: 0,
            state: State::Idle,
        }
    }

    /// Whether no message is under way, so that a new decoder would do as well.
    pub fn is_between_messages(&self) -> bool {
        self.state == State::Idle
    }

    /// Takes the next frame off the start of `input`: all bytes received and not yet consumed. A
    /// frame that is taken is unmasked in place.
    ///
    /// # Errors
    ///
    /// The first fault of the stream. The decoder is of no use after it.
    #[inline]
    pub fn next<'a>(&'a mut self, input: &'a mut [u8]) -> Result<Decoded<'a>, Fault> {
        if matches!(self.state, State::Lent | State::Closed) {
            self.message = Vec::new();
            if self.state == State::Closed {
                // RFC 6455 section 5.5.1: nothing after a close frame counts.
                return Ok(Decoded {
                    consumed: input.len(),
                    item: None,
                });
            }
            self.state = State::Idle;
        }
        let Some(header) = ClientHeader::parse(input)? else {
            return Ok(Decoded::NEEDS_MORE);
        };
        let payload_len = self.admit(&header)?;
        let consumed = header.len + payload_len;
        let Some(payload) = input.get_mut(header.len..consumed) else {
            return Ok(Decoded::NEEDS_MORE);
        };
        unmask(payload, header.mask);
        let payload = &*payload;
        let item = match header.opcode {
            Opcode::Text if header.fin => Some(Item::Text(text(payload)?)),
            Opcode::Binary if header.fin => Some(Item::Binary(payload)),
            Opcode::Ping => Some(Item::Ping(payload)),
            Opcode::Pong => Some(Item::Pong(payload)),
            Opcode::Close => {
                self.state = State::Closed;
                let (code, reason) = close::parse_payload(payload)?;
                Some(Item::Close { code, reason })
            }
            Opcode::Text | Opcode::Binary | Opcode::Continuation => {
                self.take_fragment(&header, payload)?
            }
        };
        Ok(Decoded { consumed, item })
    }

    /// Whether a message has begun and not ended: a peer that idles now holds memory.
    pub fn is_mid_message(&self) -> bool {
        matches!(self.state, State::InText | State::InBinary)
    }

    /// Judges a header by the frames before it; returns its payload length, which is now bounded.
    #[inline]
    fn admit(&self, header: &ClientHeader) -> Result<usize, Fault> {
        if header.opcode.is_control() {
            return Ok(header.payload_len as usize);
        }
        let mid_message = self.is_mid_message();
        match header.opcode {
            Opcode::Continuation if !mid_message => return Err(Fault::ContinuationWithoutStart),
            Opcode::Text | Opcode::Binary if mid_message => {
                return Err(Fault::MessageInsideMessage);
            }
            _ => {}
        }
        let room = self.message_bytes_max as u64 - self.message.len() as u64;
        if header.payload_len > room {
            return Err(Fault::MessageTooBig);
        }
        if self.fragments as usize >= FRAGMENTS_MAX {
            return Err(Fault::TooManyFragments);
        }
        Ok(header.payload_len as usize)
    }

    /// Adds a fragment to the message under way and lends the message if it was the last one.
    #[cold]
    fn take_fragment(
        &mut self,
        header: &ClientHeader,
        payload: &[u8],
    ) -> Result<Option<Item<'_>>, Fault> {
        match header.opcode {
            Opcode::Text => self.state = State::InText,
            Opcode::Binary => self.state = State::InBinary,
            _ => assert!(self.is_mid_message()),
        }
        self.append(payload);
        self.fragments += 1;
        let is_text = self.state == State::InText;
        if is_text {
            self.check_text()?;
        }
        if !header.fin {
            return Ok(None);
        }
        self.state = State::Lent;
        self.fragments = 0;
        self.checked_bytes = 0;
        if is_text {
            // Known to be valid but for a character cut off at the end. A second look at the
            // whole costs less than a second representation of it.
            Ok(Some(Item::Text(text(&self.message)?)))
        } else {
            Ok(Some(Item::Binary(&self.message)))
        }
    }

    /// Copies a fragment. Capacity doubles, but never beyond the bound of a message.
    fn append(&mut self, payload: &[u8]) {
        let needed = self.message.len() + payload.len();
        assert!(needed <= self.message_bytes_max as usize);
        if needed > self.message.capacity() {
            let doubled = 2 * self.message.capacity();
            let target = doubled.min(self.message_bytes_max as usize).max(needed);
            self.message.reserve_exact(target - self.message.len());
        }
        self.message.extend_from_slice(payload);
    }

    /// Checks what came since the last whole character. A character may be cut by the end of a
    /// fragment, never be wrong.
    fn check_text(&mut self) -> Result<(), Fault> {
        let unchecked = &self.message[self.checked_bytes as usize..];
        let valid = match simdutf8::compat::from_utf8(unchecked) {
            Ok(text) => text.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => return Err(Fault::NotUtf8),
        };
        self.checked_bytes += valid as u32;
        Ok(())
    }
}

#[inline]
fn text(bytes: &[u8]) -> Result<&str, Fault> {
    simdutf8::basic::from_utf8(bytes).map_err(|_| Fault::NotUtf8)
}

#[cfg(test)]
mod tests;
