//! The codec against a model, against every cut of its input, and against an independent codec.

use super::*;

/// An [`Item`] that owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
}

impl From<Item<'_>> for Said {
    fn from(item: Item<'_>) -> Said {
        match item {
            Item::Text(text) => Said::Text(text.into()),
            Item::Binary(bytes) => Said::Binary(bytes.into()),
            Item::Ping(bytes) => Said::Ping(bytes.into()),
            Item::Pong(bytes) => Said::Pong(bytes.into()),
            Item::Close { code, reason } => Said::Close(code, reason.into()),
        }
    }
}

/// A masked frame with any first byte.
pub fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let key = [0x37, 0xfa, 0x21, 0x3d];
    let mut frame = Vec::new();
    frame::write_header(&mut frame, Opcode::Binary, payload.len());
    frame[0] = first;
    frame[1] |= 0x80;
    frame.extend(key);
    frame.extend(
        payload
            .iter()
            .zip(key.iter().cycle())
            .map(|(byte, key)| byte ^ key),
    );
    frame
}

/// A client's frame.
pub fn client_frame(opcode: Opcode, fin: bool, payload: &[u8]) -> Vec<u8> {
    masked(opcode as u8 | (fin as u8) << 7, payload)
}

/// Feeds reads to a decoder the way a session does.
pub fn decode(bound: usize, reads: &[&[u8]]) -> (Vec<Said>, Option<Fault>) {
    let mut decoder = Decoder::new(bound);
    let mut held = Vec::new();
    let mut said = Vec::new();
    for read in reads {
        held.extend_from_slice(read);
        let mut start = 0;
        loop {
            match decoder.next(&mut held[start..]) {
                Ok(Decoded {
                    consumed: 0,
                    item: None,
                }) => break,
                Ok(Decoded { consumed, item }) => {
                    said.extend(item.map(Said::from));
                    start += consumed;
                }
                Err(fault) => return (said, Some(fault)),
            }
        }
        held.drain(..start);
    }
    (said, None)
}
