//! The codec against a model, against every cut of its input, and against an independent codec.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

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

/// The messages that the streams below are made for: room for all three encodings of a length.
const BOUND: usize = 70_000;

/// A message as it goes out: cut into frames, with control frames between them.
#[derive(Debug, Clone)]
struct Sent {
    said: Said,
    /// Where it is cut, modulo its length.
    cuts: Vec<usize>,
    /// What is sent before each of its frames.
    between: Vec<Option<Said>>,
}

impl Sent {
    /// Appends the frames, and what a decoder must say of them.
    fn write(&self, stream: &mut Vec<u8>, expected: &mut Vec<Said>) {
        let (opcode, payload) = wire(&self.said);
        let mut cuts: Vec<usize> = self
            .cuts
            .iter()
            .map(|cut| cut % (payload.len() + 1))
            .collect();
        if opcode.is_control() {
            cuts.clear();
        }
        cuts.sort_unstable();
        cuts.push(payload.len());
        let mut start = 0;
        for (i, end) in cuts.iter().enumerate() {
            if let Some(control) = self.between.get(i).cloned().flatten() {
                let (opcode, payload) = wire(&control);
                stream.extend(client_frame(opcode, true, &payload));
                expected.push(control);
            }
            let opcode = if i == 0 { opcode } else { Opcode::Continuation };
            stream.extend(client_frame(
                opcode,
                i + 1 == cuts.len(),
                &payload[start..*end],
            ));
            start = *end;
        }
        expected.push(self.said.clone());
    }
}

fn wire(said: &Said) -> (Opcode, Vec<u8>) {
    match said {
        Said::Text(text) => (Opcode::Text, text.clone().into_bytes()),
        Said::Binary(bytes) => (Opcode::Binary, bytes.clone()),
        Said::Ping(bytes) => (Opcode::Ping, bytes.clone()),
        Said::Pong(bytes) => (Opcode::Pong, bytes.clone()),
        Said::Close(code, reason) => {
            let mut payload = Vec::new();
            close::write_payload(&mut payload, *code, reason);
            (Opcode::Close, payload)
        }
    }
}

fn bytes(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), len)
}

fn control() -> impl Strategy<Value = Said> {
    prop_oneof![
        bytes(0..126).prop_map(Said::Ping),
        bytes(0..126).prop_map(Said::Pong)
    ]
}

fn said() -> impl Strategy<Value = Said> {
    let long = prop_oneof![
        Just(125),
        Just(126),
        127..2_000usize,
        Just(65_535),
        Just(65_536)
    ];
    prop_oneof![
        6 => ".{0,60}".prop_map(Said::Text),
        3 => bytes(0..200).prop_map(Said::Binary),
        1 => long.prop_map(|len| Said::Text("é".repeat(len / 2) + &"x"[..len % 2])),
        2 => control(),
    ]
}

/// A well-formed stream and what it says.
fn good_stream() -> impl Strategy<Value = (Vec<u8>, Vec<Said>)> {
    let sent = (
        said(),
        vec(any::<usize>(), 0..4),
        vec(option::of(control()), 0..4),
    )
        .prop_map(|(said, cuts, between)| Sent {
            said,
            cuts,
            between,
        });
    let close = option::of((3000..5000u16, ".{0,30}"));
    (vec(sent, 0..5), close).prop_map(|(sent, close)| {
        let (mut stream, mut expected) = (Vec::new(), Vec::new());
        for sent in sent {
            sent.write(&mut stream, &mut expected);
        }
        if let Some((code, reason)) = close {
            let said = Said::Close(Some(code), reason);
            Sent {
                said,
                cuts: vec![],
                between: vec![],
            }
            .write(&mut stream, &mut expected);
        }
        (stream, expected)
    })
}

/// A frame with any first byte, any mask bit and any encoding of its length.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let first = prop_oneof![
        8 => prop_oneof![Just(0x01), Just(0x02), Just(0x00), Just(0x80), Just(0x81), Just(0x82)],
        4 => 0x88..=0x8au8,
        1 => any::<u8>(),
    ];
    let payload = prop_oneof![
        4 => ".{0,8}".prop_map(String::into_bytes),
        2 => bytes(0..6),
        1 => (900..5100u16).prop_map(|code| code.to_be_bytes().to_vec()),
        1 => bytes(120..130),
    ];
    let length_bytes = prop_oneof![12 => Just(0usize), 1 => Just(2), 1 => Just(8)];
    let huge = option::weighted(0.02, prop_oneof![any::<u64>(), 100..1_000_000u64]);
    (
        first,
        prop::bool::weighted(0.97),
        payload,
        length_bytes,
        huge,
    )
        .prop_map(|(first, mask, payload, mut length_bytes, huge)| {
            let mut frame = masked(first, &payload);
            if huge.is_some() {
                length_bytes = 8;
            }
            let length = huge.unwrap_or(payload.len() as u64).to_be_bytes();
            let header_len = frame.len() - 4 - payload.len();
            if length_bytes > 0 {
                let marker = if length_bytes == 2 { 0xfe } else { 0xff };
                let forced = length[8 - length_bytes..].iter().copied();
                frame.splice(1..header_len, std::iter::once(marker).chain(forced));
            }
            if !mask {
                frame[1] &= 0x7f;
            }
            frame
        })
}

/// Streams with and without faults: good ones with a few bytes changed, lost or added, and runs of
/// frames that follow no rule.
fn any_stream() -> impl Strategy<Value = Vec<u8>> {
    let damage = vec((any::<prop::sample::Index>(), 0..3, any::<u8>()), 0..3);
    let damaged = (good_stream(), damage).prop_map(|((mut stream, _), damage)| {
        for (at, how, byte) in damage {
            let at = at.index(stream.len() + 1);
            match how {
                0 => stream.insert(at, byte),
                1 if at < stream.len() => drop(stream.remove(at)),
                _ if at < stream.len() => stream[at] ^= 1 << (byte % 8),
                _ => {}
            }
        }
        stream
    });
    prop_oneof![
        damaged,
        vec(any_frame(), 0..8).prop_map(|frames| frames.concat())
    ]
}

fn cut<'a>(stream: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
    cuts.sort_unstable();
    cuts.push(stream.len());
    let mut start = 0;
    cuts.iter()
        .map(|end| &stream[std::mem::replace(&mut start, *end)..*end])
        .collect()
}

/// What the independent codec says, and the close code of its error.
fn decode_by_sockudo(bound: usize, stream: &[u8]) -> (Vec<Said>, Option<u16>) {
    use sockudo_ws::error::Error;
    use sockudo_ws::protocol::{Message, Protocol, Role};

    let mut protocol = Protocol::new(Role::Server, bound, bound);
    let mut messages = Vec::new();
    let result = protocol.process_into(&mut bytes::BytesMut::from(stream), &mut messages);
    let said = messages.into_iter().map(|message| match message {
        Message::Text(text) => Said::Text(String::from_utf8(text.into()).unwrap()),
        Message::Binary(bytes) => Said::Binary(bytes.into()),
        Message::Ping(bytes) => Said::Ping(bytes.into()),
        Message::Pong(bytes) => Said::Pong(bytes.into()),
        Message::Close(None) => Said::Close(None, String::new()),
        Message::Close(Some(close)) => Said::Close(Some(close.code), close.reason),
    });
    let code = result.err().map(|error| match error {
        Error::InvalidUtf8 => 1007,
        Error::FrameTooLarge | Error::MessageTooLarge => 1009,
        _ => 1002,
    });
    (said.collect(), code)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_good_stream_says_what_was_sent((stream, expected) in good_stream()) {
        prop_assert_eq!(decode(BOUND, &[&stream]), (expected, None));
    }

    #[test]
    fn the_cut_into_reads_changes_nothing(
        stream in any_stream(),
        cuts in vec(any::<prop::sample::Index>(), 1..20),
        bound in prop_oneof![Just(BOUND), 0..300usize],
    ) {
        let whole = decode(bound, &[&stream]);
        prop_assert_eq!(&decode(bound, &cut(&stream, &cuts)), &whole);
        let single: Vec<&[u8]> = stream.chunks(1).collect();
        prop_assert_eq!(&decode(bound, &single), &whole);
    }

    /// Three differences are meant, and taken out here:
    /// - After a close frame we hear nothing; sockudo-ws reads on. So both are cut at the first.
    /// - A frame that is not all there: we judge all of its header and none of its payload,
    ///   sockudo-ws less of the one and more of the other. So pings follow, enough to complete any
    ///   frame within the bound, and show how far each codec went.
    /// - A frame both out of order and over the bound is out of order to us (1002).
    ///
    /// A fourth cannot show in streams this short: we bound the number of fragments.
    #[test]
    fn an_independent_codec_agrees(
        mut stream in any_stream(),
        bound in prop_oneof![Just(BOUND), 125..300usize],
    ) {
        let ping = client_frame(Opcode::Ping, true, b"");
        stream.extend(ping.repeat(bound / ping.len() + 3));

        let (mut ours, fault) = decode(bound, &[&stream]);
        let (mut theirs, code) = decode_by_sockudo(bound, &stream);
        let close = |said: &[Said]| said.iter().position(|one| matches!(one, Said::Close(..)));
        if let Some(at) = close(&theirs) {
            theirs.truncate(at + 1);
            ours.truncate(at + 1);
            prop_assert_eq!(ours, theirs);
            prop_assert_eq!(fault, None);
            return Ok(());
        }
        prop_assert_eq!(ours, theirs);
        let out_of_order =
            matches!(fault, Some(Fault::MessageInsideMessage | Fault::ContinuationWithoutStart));
        if !(out_of_order && code == Some(1009)) {
            prop_assert_eq!(fault.map(Fault::close_code), code);
        }
    }
}
