//! One frame's outside (RFC 6455 section 5.2): opcode, header, mask.
//!
//! ```text
//! byte 0      FIN, three reserved bits (always 0 here), four bits of opcode
//! byte 1      MASK, seven bits of length; 126: two more bytes of length, 127: eight
//! then        a mask key of four bytes, only from client to server
//! ```
//!
//! What a client sent is checked in wire order and each rule as soon as its byte is there, so a
//! stream fails with the same fault however it was cut into reads.

use super::close::{self, Fault};
use crate::limits::{
    CLIENT_FRAME_HEADER_BYTES_MAX, CONTROL_PAYLOAD_BYTES_MAX, SERVER_FRAME_HEADER_BYTES_MAX,
};

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASK: u8 = 0x80;
const LENGTH_IN_2_BYTES: u8 = 126;
const LENGTH_IN_8_BYTES: u8 = 127;
const MASK_KEY_BYTES: usize = 4;

/// The defined opcodes, with their number on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// The next fragment of a message.
    Continuation = 0,
    /// A text message, or its first fragment.
    Text = 1,
    /// A binary message, or its first fragment.
    Binary = 2,
    /// The close handshake.
    Close = 8,
    /// Asks for a pong with the same payload.
    Ping = 9,
    /// Answers a ping, or comes unasked.
    Pong = 10,
}

impl Opcode {
    /// The opcode in the low four bits of a frame's first byte, if it is defined.
    pub const fn from_bits(first: u8) -> Option<Opcode> {
        Some(match first & 0x0f {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return None,
        })
    }

    /// Whether frames of this opcode may come between the fragments of a message.
    pub const fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

/// The header of a client's frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientHeader {
    /// Whether the frame ends its message.
    pub fin: bool,
    /// What the frame is.
    pub opcode: Opcode,
    /// Bytes of payload, as declared: nothing has bounded them yet, except in control frames.
    pub payload_len: u64,
    /// What the payload was masked with.
    pub mask: [u8; MASK_KEY_BYTES],
    /// Bytes of this header, mask key included.
    pub len: usize,
}

impl ClientHeader {
    /// Reads the header at the start of `bytes`. `None`: it is not all there.
    ///
    /// # Errors
    ///
    /// A fault in the header itself. What depends on the frames before it (continuations, the
    /// message bound) is the decoder's to judge.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Option<ClientHeader>, Fault> {
        let Some(&first) = bytes.first() else {
            return Ok(None);
        };
        if first & RESERVED != 0 {
            return Err(Fault::ReservedBits);
        }
        let opcode = Opcode::from_bits(first).ok_or(Fault::ReservedOpcode)?;
        let fin = first & FIN != 0;
        if opcode.is_control() && !fin {
            return Err(Fault::ControlFragmented);
        }

        let Some(&second) = bytes.get(1) else {
            return Ok(None);
        };
        if second & MASK == 0 {
            return Err(Fault::Unmasked);
        }
        let short = second & !MASK;
        if opcode.is_control() && short as usize > CONTROL_PAYLOAD_BYTES_MAX {
            return Err(Fault::ControlTooLong);
        }

        let Some((payload_len, length_end)) = parse_length(bytes, short)? else {
            return Ok(None);
        };
        let Some(&mask) = bytes.get(length_end..).and_then(|rest| rest.first_chunk()) else {
            return Ok(None);
        };
        let len = length_end + MASK_KEY_BYTES;
        debug_assert!(len <= CLIENT_FRAME_HEADER_BYTES_MAX);
        Ok(Some(ClientHeader {
            fin,
            opcode,
            payload_len,
            mask,
            len,
        }))
    }
}

/// The payload length and where its encoding ends. `None`: it is not all there.
#[inline]
fn parse_length(bytes: &[u8], short: u8) -> Result<Option<(u64, usize)>, Fault> {
    match short {
        LENGTH_IN_2_BYTES => {
            let Some(length) = bytes.get(2..4).and_then(|b| b.first_chunk()) else {
                return Ok(None);
            };
            let length = u16::from_be_bytes(*length);
            if length < LENGTH_IN_2_BYTES as u16 {
                return Err(Fault::LengthNotMinimal);
            }
            Ok(Some((length as u64, 4)))
        }
        LENGTH_IN_8_BYTES => {
            let Some(length) = bytes.get(2..10).and_then(|b| b.first_chunk()) else {
                return Ok(None);
            };
            let length = u64::from_be_bytes(*length);
            if length >> 63 != 0 {
                return Err(Fault::LengthTopBit);
            }
            if length <= u16::MAX as u64 {
                return Err(Fault::LengthNotMinimal);
            }
            Ok(Some((length, 10)))
        }
        short => Ok(Some((short as u64, 2))),
    }
}

/// The header of a whole, unmasked message or control frame: `(bytes, how many of them)`.
#[inline]
pub const fn header(
    opcode: Opcode,
    payload_len: usize,
) -> ([u8; SERVER_FRAME_HEADER_BYTES_MAX], usize) {
    assert!(!opcode.is_control() || payload_len <= CONTROL_PAYLOAD_BYTES_MAX);
    let mut header = [0; SERVER_FRAME_HEADER_BYTES_MAX];
    header[0] = FIN | opcode as u8;
    if payload_len < LENGTH_IN_2_BYTES as usize {
        header[1] = payload_len as u8;
        return (header, 2);
    }
    let length = (payload_len as u64).to_be_bytes();
    if payload_len <= u16::MAX as usize {
        header[1] = LENGTH_IN_2_BYTES;
        header[2] = length[6];
        header[3] = length[7];
        return (header, 4);
    }
    header[1] = LENGTH_IN_8_BYTES;
    let mut i = 0;
    while i < 8 {
        header[2 + i] = length[i];
        i += 1;
    }
    (header, 10)
}

/// Appends [`header`].
///
/// # Panics
///
/// If a control frame is given more than 125 bytes.
#[inline]
pub fn write_header(out: &mut Vec<u8>, opcode: Opcode, payload_len: usize) {
    let (header, len) = header(opcode, payload_len);
    out.extend_from_slice(&header[..len]);
}

/// Appends a whole frame. For pings and pongs, and for messages that are built in one piece.
///
/// # Panics
///
/// If a control frame is given more than 125 bytes; what was decoded as a ping always fits.
pub fn write_frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8]) {
    write_header(out, opcode, payload.len());
    out.extend_from_slice(payload);
}

/// Appends a close frame. Without a code it is a bare close; a long reason is cut.
///
/// # Panics
///
/// As [`close::write_payload`].
pub fn write_close(out: &mut Vec<u8>, code: Option<u16>, reason: &str) {
    let start = out.len();
    write_header(out, Opcode::Close, 0);
    let payload = out.len();
    close::write_payload(out, code, reason);
    out[start + 1] = (out.len() - payload) as u8;
}

/// Masks or unmasks in place (RFC 6455 section 5.3); the payload starts at the key's first byte.
///
/// Eight bytes a step, which the compiler widens to vectors.
#[inline]
pub fn unmask(payload: &mut [u8], key: [u8; MASK_KEY_BYTES]) {
    let [a, b, c, d] = key;
    let word = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, tail) = payload.as_chunks_mut::<8>();
    for bytes in words {
        *bytes = (u64::from_ne_bytes(*bytes) ^ word).to_ne_bytes();
    }
    // Whole words are whole keys, so the tail starts at the key's first byte again.
    for (i, byte) in tail.iter_mut().enumerate() {
        *byte ^= key[i % MASK_KEY_BYTES];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Option<ClientHeader>, Fault> {
        ClientHeader::parse(bytes)
    }

    #[test]
    fn the_masked_hello_of_rfc_6455() {
        let mut frame = [
            0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
        ];
        let header = parse(&frame).unwrap().unwrap();
        assert_eq!(
            (header.fin, header.opcode, header.len),
            (true, Opcode::Text, 6)
        );
        assert_eq!(header.payload_len, 5);
        unmask(&mut frame[header.len..], header.mask);
        assert_eq!(&frame[6..], b"Hello");
    }

    #[test]
    fn the_servers_frames_of_rfc_6455() {
        let mut out = Vec::new();
        write_frame(&mut out, Opcode::Text, b"Hello");
        assert_eq!(out, [0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f]);
        out.clear();
        write_frame(&mut out, Opcode::Ping, b"Hello");
        assert_eq!(out, [0x89, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f]);
        let header_of = |len| {
            let (bytes, used) = header(Opcode::Binary, len);
            bytes[..used].to_vec()
        };
        assert_eq!(header_of(256), [0x82, 0x7e, 0x01, 0x00]);
        assert_eq!(header_of(65536), [0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn lengths_at_every_change_of_encoding() {
        for (len, header_len) in [
            (0, 2),
            (125, 2),
            (126, 4),
            (65535, 4),
            (65536, 10),
            (1 << 24, 10),
        ] {
            let (bytes, used) = header(Opcode::Text, len);
            assert_eq!(used, header_len, "{len}");
            let mut masked = bytes[..used].to_vec();
            masked[1] |= MASK;
            masked.extend_from_slice(&[9, 8, 7, 6]);
            let parsed = parse(&masked).unwrap().unwrap();
            assert_eq!(parsed.payload_len, len as u64);
            assert_eq!((parsed.mask, parsed.len), ([9, 8, 7, 6], used + 4));
            for cut in 0..masked.len() {
                assert_eq!(parse(&masked[..cut]), Ok(None), "{len} cut at {cut}");
            }
        }
    }

    #[test]
    fn faults_show_as_soon_as_their_byte_is_there() {
        for (bytes, fault) in [
            (&[0xc1][..], Fault::ReservedBits),
            (&[0xa1], Fault::ReservedBits),
            (&[0x91], Fault::ReservedBits),
            (&[0x83], Fault::ReservedOpcode),
            (&[0x8b], Fault::ReservedOpcode),
            (&[0x08], Fault::ControlFragmented),
            (&[0x09], Fault::ControlFragmented),
            (&[0x81, 0x05], Fault::Unmasked),
            (&[0x89, 0xfe], Fault::ControlTooLong),
            (&[0x88, 0xff], Fault::ControlTooLong),
            (&[0x81, 0xfe, 0, 125], Fault::LengthNotMinimal),
            (
                &[0x81, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff],
                Fault::LengthNotMinimal,
            ),
            (
                &[0x81, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0],
                Fault::LengthTopBit,
            ),
        ] {
            assert_eq!(parse(bytes), Err(fault), "{bytes:x?}");
            assert_eq!(parse(&bytes[..bytes.len() - 1]), Ok(None), "{bytes:x?}");
        }
    }

    #[test]
    fn opcodes_are_exactly_the_defined_ones() {
        for bits in 0..16u8 {
            let defined = matches!(bits, 0..=2 | 8..=10);
            assert_eq!(Opcode::from_bits(bits).is_some(), defined);
            if let Some(opcode) = Opcode::from_bits(bits) {
                assert_eq!(opcode as u8, bits);
                assert_eq!(opcode.is_control(), bits >= 8);
            }
        }
    }

    #[test]
    fn unmasking_equals_the_formula_of_section_5_3() {
        let key = [0x37, 0xfa, 0x21, 0x3d];
        for len in 0..70 {
            let plain: Vec<u8> = (0..len as u8).collect();
            let formula: Vec<u8> = plain
                .iter()
                .enumerate()
                .map(|(i, byte)| byte ^ key[i % 4])
                .collect();
            let mut fast = plain.clone();
            unmask(&mut fast, key);
            assert_eq!(fast, formula, "{len} bytes");
        }
    }

    #[test]
    fn close_frames() {
        let mut out = vec![0xaa];
        write_close(&mut out, None, "");
        assert_eq!(out, [0xaa, 0x88, 0x00]);
        write_close(&mut out, Some(1009), "too big");
        assert_eq!(out[3..5], [0x88, 9]);
        assert_eq!(close::parse_payload(&out[5..]), Ok((Some(1009), "too big")));
        out.clear();
        write_close(&mut out, Some(1000), &"é".repeat(100));
        assert_eq!((out[1], out.len()), (124, 126));
    }
}
