//! Each rule of the decoder, kept and broken, on frames written out by hand.

use super::*;
use crate::ws::tests::{Said, client_frame, decode, masked};

const BOUND: usize = 1024;

fn faults(bytes: &[u8]) -> Option<Fault> {
    decode(BOUND, &[bytes]).1
}

fn says(bytes: &[u8]) -> Vec<Said> {
    let (said, fault) = decode(BOUND, &[bytes]);
    assert_eq!(fault, None);
    said
}

#[test]
fn the_masked_hello_of_rfc_6455() {
    let frame = [
        0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
    ];
    assert_eq!(says(&frame), [Said::Text("Hello".into())]);
}

#[test]
fn a_whole_message_is_lent_from_the_input() {
    let mut input = client_frame(Opcode::Text, true, b"[]");
    let range = input.as_ptr_range();
    let mut decoder = Decoder::new(BOUND);
    let decoded = decoder.next(&mut input).unwrap();
    assert_eq!(decoded.consumed, 8);
    let Some(Item::Text(text)) = decoded.item else {
        panic!("{decoded:?}")
    };
    assert!(range.contains(&text.as_ptr()));
}

#[test]
fn fragments_with_a_ping_between_them() {
    // The example of RFC 6455 section 5.4, with masks.
    let mut bytes = client_frame(Opcode::Text, false, b"Hel");
    bytes.extend(client_frame(Opcode::Ping, true, b"?"));
    bytes.extend(client_frame(Opcode::Continuation, true, b"lo"));
    assert_eq!(
        says(&bytes),
        [Said::Ping(b"?".into()), Said::Text("Hello".into())]
    );
}

#[test]
fn a_fragmented_message_is_freed_by_the_call_after_it() {
    let mut decoder = Decoder::new(BOUND);
    let mut first = client_frame(Opcode::Binary, false, &[1; 500]);
    decoder.next(&mut first).unwrap();
    assert!(decoder.is_mid_message());
    let mut last = client_frame(Opcode::Continuation, true, &[2; 500]);
    let decoded = decoder.next(&mut last).unwrap();
    assert!(matches!(decoded.item, Some(Item::Binary(bytes)) if bytes.len() == 1000));
    assert!(!decoder.is_mid_message());
    assert_eq!(decoder.next(&mut []), Ok(Decoded::NEEDS_MORE));
    assert_eq!(decoder.message.capacity(), 0);
}

#[test]
fn memory_of_a_fragmented_message_stays_within_the_bound() {
    let mut decoder = Decoder::new(1000);
    for len in [300, 300, 300, 100] {
        let opcode = if decoder.is_mid_message() {
            Opcode::Continuation
        } else {
            Opcode::Binary
        };
        decoder
            .next(&mut client_frame(opcode, false, &vec![0; len]))
            .unwrap();
        assert!(decoder.message.capacity() <= 1000);
    }
    let more = &mut client_frame(Opcode::Continuation, false, &[0]);
    assert_eq!(decoder.next(more), Err(Fault::MessageTooBig));
}

#[test]
fn a_declared_length_over_the_bound_fails_before_its_payload() {
    let frame = client_frame(Opcode::Text, true, &[b'x'; BOUND + 1]);
    assert_eq!(faults(&frame[..8]), Some(Fault::MessageTooBig));
    assert_eq!(
        says(&client_frame(Opcode::Text, true, &[b'x'; BOUND])).len(),
        1
    );
    // The largest length that the format can say.
    let mut huge = vec![0x82, 0xff, 0x7f];
    huge.extend([0xff; 7]);
    huge.extend([0; 4]);
    assert_eq!(faults(&huge), Some(Fault::MessageTooBig));
}

#[test]
fn the_bound_counts_all_fragments_and_no_control_frame() {
    let mut bytes = client_frame(Opcode::Text, false, &[b'x'; BOUND]);
    bytes.extend(client_frame(Opcode::Pong, true, &[0; 125]));
    let fits = client_frame(Opcode::Continuation, true, b"");
    let over = client_frame(Opcode::Continuation, true, b"x");
    assert_eq!(says(&[&bytes[..], &fits].concat()).len(), 2);
    assert_eq!(
        faults(&[&bytes[..], &over].concat()),
        Some(Fault::MessageTooBig)
    );
}

#[test]
fn fragments_are_counted() {
    let mut bytes = client_frame(Opcode::Text, false, b"");
    for _ in 2..FRAGMENTS_MAX {
        bytes.extend(client_frame(Opcode::Continuation, false, b""));
    }
    let last = client_frame(Opcode::Continuation, true, b"");
    let one_more = client_frame(Opcode::Continuation, false, b"");
    // A second message starts from nothing.
    let twice = [&bytes[..], &last, &bytes, &last].concat();
    assert_eq!(says(&twice), [Said::Text("".into()), Said::Text("".into())]);
    bytes.extend(one_more);
    bytes.extend(last);
    assert_eq!(faults(&bytes), Some(Fault::TooManyFragments));
}

#[test]
fn order_of_messages_and_fragments() {
    let start = client_frame(Opcode::Text, false, b"a");
    let end = client_frame(Opcode::Continuation, true, b"b");
    let whole = client_frame(Opcode::Binary, true, b"c");
    assert_eq!(faults(&end), Some(Fault::ContinuationWithoutStart));
    assert_eq!(
        faults(&[&start[..], &whole].concat()),
        Some(Fault::MessageInsideMessage)
    );
    assert_eq!(
        faults(&[&start[..], &start].concat()),
        Some(Fault::MessageInsideMessage)
    );
    assert_eq!(
        faults(&[&start[..], &end, &end].concat()),
        Some(Fault::ContinuationWithoutStart)
    );
    assert_eq!(
        says(&[&start[..], &end, &whole].concat()),
        [Said::Text("ab".into()), Said::Binary(b"c".into())]
    );
}

#[test]
fn text_is_checked_across_fragments() {
    let text = "aé€😀z";
    for cut in 0..=text.len() {
        for second in cut..=text.len() {
            let bytes = text.as_bytes();
            let frames = [
                client_frame(Opcode::Text, false, &bytes[..cut]),
                client_frame(Opcode::Continuation, false, &bytes[cut..second]),
                client_frame(Opcode::Continuation, true, &bytes[second..]),
            ];
            assert_eq!(says(&frames.concat()), [Said::Text(text.into())]);
        }
    }
    // A wrong byte shows at its fragment, a cut character only when nothing can follow.
    let wrong = client_frame(Opcode::Text, false, &[b'a', 0xc0]);
    assert_eq!(faults(&wrong), Some(Fault::NotUtf8));
    let cut = client_frame(Opcode::Text, false, &[0xe2, 0x82]);
    assert_eq!(faults(&cut), None);
    let end = client_frame(Opcode::Continuation, true, b"");
    assert_eq!(faults(&[cut, end].concat()), Some(Fault::NotUtf8));
    assert_eq!(
        faults(&client_frame(Opcode::Text, true, &[0xed, 0xa0, 0x80])),
        Some(Fault::NotUtf8)
    );
    // Binary messages may hold anything.
    assert_eq!(
        says(&client_frame(Opcode::Binary, true, &[0xff])),
        [Said::Binary([0xff].into())]
    );
}

#[test]
fn checked_text_is_not_checked_again() {
    // Else thousands of fragments cost a walk of the whole message each.
    let mut decoder = Decoder::new(BOUND);
    let mut first = client_frame(Opcode::Text, false, "aé€".as_bytes());
    decoder.next(&mut first).unwrap();
    assert_eq!(decoder.checked_bytes, 6);
    let mut second = client_frame(Opcode::Continuation, false, &[b'b', 0xe2]);
    decoder.next(&mut second).unwrap();
    assert_eq!(decoder.checked_bytes, 7);
}

#[test]
fn close_frames_and_what_comes_after() {
    let mut bytes = client_frame(Opcode::Close, true, &[0x03, 0xe8, b'b', b'y', b'e']);
    bytes.extend([0xff; 40]);
    assert_eq!(says(&bytes), [Said::Close(Some(1000), "bye".into())]);
    assert_eq!(
        says(&client_frame(Opcode::Close, true, &[])),
        [Said::Close(None, "".into())]
    );
    assert_eq!(
        faults(&client_frame(Opcode::Close, true, &[3])),
        Some(Fault::CloseTooShort)
    );
    let code = client_frame(Opcode::Close, true, &1005u16.to_be_bytes());
    assert_eq!(faults(&code), Some(Fault::CloseCode));
}

#[test]
fn header_faults_reach_the_caller() {
    assert_eq!(faults(&[0x81, 0x00]), Some(Fault::Unmasked));
    assert_eq!(faults(&masked(0x87, &[])), Some(Fault::ReservedOpcode));
    assert_eq!(faults(&masked(0xc1, b"x")), Some(Fault::ReservedBits));
}

#[test]
fn input_that_is_not_all_there_is_left_alone() {
    let frame = client_frame(Opcode::Text, true, b"hello");
    let mut part = frame[..frame.len() - 1].to_vec();
    let mut decoder = Decoder::new(BOUND);
    assert_eq!(decoder.next(&mut part), Ok(Decoded::NEEDS_MORE));
    assert_eq!(part, frame[..frame.len() - 1]);
}
