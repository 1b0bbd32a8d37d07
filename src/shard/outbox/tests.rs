//! Tests of the outbox.

use super::*;
use crate::nostr::testing::Author;

fn event(content: &str) -> Shared {
    Rc::new(Arc::new(Author::new(1).note(1_700_000_000, content)))
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let (header, length) = frame::header(Opcode::Text, payload.len());
    [&header[..length], payload].concat()
}

fn live_frame(event: &Shared) -> Vec<u8> {
    frame(format!(r#"["EVENT","s",{}]"#, event.json()).as_bytes())
}

fn wire(batch: &Batch) -> Vec<u8> {
    batch.rest().collect::<Vec<_>>().concat()
}

/// What the next write names.
fn parts(batch: &Batch) -> Vec<Vec<u8>> {
    let mut parts = [IoSlice::new(&[]); BATCH_PARTS_MAX];
    let count = batch.parts(&mut parts);
    parts[..count].iter().map(|part| part.to_vec()).collect()
}

fn taken(mut batch: Batch) -> Batch {
    batch.begin();
    batch
}

fn row(json: &str, expires: Option<u64>) -> Row<'_> {
    Row { json, expires }
}

fn sub() -> SubId {
    SubId::new("s", 64).expect("a valid id")
}

#[test]
fn pieces_come_out_in_the_order_they_went_in() {
    let (long, short) = (event(&"x".repeat(2_000)), event(""));
    assert!(long.json().len() > EVENT_COPY_BYTES_MAX);
    let mut outbox = Batch::default();
    outbox.push_text(|out| out.extend_from_slice(b"[\"EOSE\",\"s\"]"));
    outbox.push_live(&sub(), &long);
    outbox.push_live(&sub(), &short);
    outbox.push_row(&sub(), row("{}", None));
    outbox.push_text(|out| out.extend_from_slice(&[b'y'; 300]));
    outbox.push_live(&sub(), &long);
    let expected = [
        frame(b"[\"EOSE\",\"s\"]"),
        live_frame(&long),
        live_frame(&short),
        frame(br#"["EVENT","s",{}]"#),
        frame(&[b'y'; 300]),
        live_frame(&long),
    ]
    .concat();
    assert_eq!(outbox.bytes(), expected.len());
    let batch = taken(outbox);
    assert_eq!(batch.bytes(), expected.len());
    assert_eq!(wire(&batch), expected);
}

#[test]
fn a_close_drops_live_events_and_nothing_else() {
    let (long, short) = (event(&"x".repeat(2_000)), event(""));
    let mut outbox = Batch::default();
    outbox.push_live(&sub(), &short);
    outbox.push_text(|out| out.extend_from_slice(b"first"));
    outbox.push_live(&sub(), &long);
    outbox.push_live(&sub(), &long);
    outbox.push_row(&sub(), row("{}", None));
    outbox.push_live(&sub(), &short);
    outbox.push_text(|out| out.extend_from_slice(b"last"));
    assert_eq!(outbox.drop_pieces(0, |piece| piece.live), 4);
    let expected = [
        frame(b"first"),
        frame(br#"["EVENT","s",{}]"#),
        frame(b"last"),
    ]
    .concat();
    assert_eq!(outbox.bytes(), expected.len());
    assert_eq!(wire(&taken(outbox)), expected);
}

#[test]
fn short_writes_go_on_where_they_stopped() {
    let long = event(&"x".repeat(1_000));
    let mut expected = Vec::new();
    let mut outbox = Batch::default();
    for _ in 0..3 {
        outbox.push_live(&sub(), &long);
        expected.extend(live_frame(&long));
    }
    for step in [1, 7, 15, 1_000, 1_017, expected.len() - 1] {
        let mut outbox_copy = Batch::default();
        for _ in 0..3 {
            outbox_copy.push_live(&sub(), &long);
        }
        let mut batch = taken(outbox_copy);
        let mut sent = 0;
        loop {
            assert_eq!(wire(&batch), expected[sent..]);
            let count = step.min(expected.len() - sent);
            sent += count;
            if batch.advance(count) {
                break;
            }
        }
        assert_eq!(sent, expected.len());
    }
}

#[test]
fn one_write_names_no_more_parts_than_the_kernel_takes() {
    let long = event(&"x".repeat(1_000));
    let mut outbox = Batch::default();
    for _ in 0..BATCH_PARTS_MAX {
        outbox.push_live(&sub(), &long);
    }
    let batch = taken(outbox);
    assert_eq!(parts(&batch).len(), BATCH_PARTS_MAX);
    let window = parts(&batch).concat();
    assert_eq!(window, wire(&batch)[..window.len()]);
}

#[test]
fn one_write_names_no_more_than_its_share() {
    let (long, short) = (event(&"x".repeat(WRITE_BYTES_MAX / 2)), event(""));
    let mut outbox = Batch::default();
    for _ in 0..4 * WRITE_BYTES_MAX / short.json().len() {
        outbox.push_live(&sub(), &short);
    }
    for _ in 0..4 {
        outbox.push_live(&sub(), &long);
    }
    let mut batch = taken(outbox);
    loop {
        let window = parts(&batch).concat();
        let bytes = window.len();
        let all_parts = parts(&batch).len() == BATCH_PARTS_MAX;
        assert!(
            bytes == WRITE_BYTES_MAX.min(batch.bytes()) || bytes < WRITE_BYTES_MAX && all_parts
        );
        assert_eq!(window, wire(&batch)[..bytes]);
        if batch.advance(bytes) {
            return;
        }
    }
}

/// A queue of everything: each frame, whether it is live, and when it expires.
fn mixed() -> (Batch, Vec<(Vec<u8>, bool, u64)>) {
    let author = Author::new(1);
    let expiring = |at: &str, content: &str| -> Shared {
        let tags: &[&[&str]] = &[&["expiration", at]];
        Rc::new(Arc::new(author.event(1, 1, tags, content)))
    };
    let (long, short) = (event(&"x".repeat(300)), event(""));
    let (long_5, short_5) = (expiring("5", &"y".repeat(300)), expiring("5", ""));
    let long_9 = expiring("9", &"z".repeat(300));
    let mut outbox = Batch::default();
    let mut frames = Vec::new();
    let live = |outbox: &mut Batch, event: &Shared| {
        outbox.push_live(&sub(), event);
        let expires = event.expiration().unwrap_or(NEVER);
        (live_frame(event), true, expires)
    };
    let text = |outbox: &mut Batch, text: &str| {
        outbox.push_text(|out| out.extend_from_slice(text.as_bytes()));
        (frame(text.as_bytes()), false, NEVER)
    };
    let stored = |outbox: &mut Batch, expires: Option<u64>| {
        outbox.push_row(&sub(), row("{}", expires));
        let frame = frame(br#"["EVENT","s",{}]"#);
        (frame, false, expires.unwrap_or(NEVER))
    };
    frames.push(live(&mut outbox, &short));
    frames.push(text(&mut outbox, "first"));
    frames.push(live(&mut outbox, &long_5));
    frames.push(live(&mut outbox, &long));
    frames.push(stored(&mut outbox, Some(5)));
    frames.push(stored(&mut outbox, None));
    frames.push(live(&mut outbox, &short_5));
    frames.push(live(&mut outbox, &long_9));
    frames.push(stored(&mut outbox, Some(9)));
    frames.push(text(&mut outbox, "last"));
    frames.push(live(&mut outbox, &long));
    (outbox, frames)
}

/// Writes some bytes, cuts, and compares with the frames that should be left.
fn check_cut(
    written: usize,
    cut: &dyn Fn(&mut Batch) -> usize,
    goes: &dyn Fn(bool, u64) -> bool,
) -> Batch {
    let (outbox, frames) = mixed();
    let all: Vec<u8> = frames
        .iter()
        .flat_map(|(bytes, ..)| bytes.clone())
        .collect();
    let mut batch = taken(outbox);
    batch.advance(written);
    let dropped = cut(&mut batch);
    let (mut at, mut expected, mut expected_drops) = (0, all[..written].to_vec(), 0);
    for (bytes, live, expires) in &frames {
        let done = written.saturating_sub(at).min(bytes.len());
        at += bytes.len();
        if goes(*live, *expires) && done == 0 {
            expected_drops += 1;
        } else {
            expected.extend(&bytes[done..]);
        }
    }
    assert_eq!(dropped, expected_drops, "cut at {written}");
    let sent = [&all[..written], &wire(&batch)].concat();
    assert!(sent == expected, "cut at {written}");
    assert_eq!(batch.bytes(), expected.len() - written);
    batch
}

#[test]
fn wherever_a_batch_is_cut_its_frame_is_finished_and_its_answers_stay() {
    let (outbox, _) = mixed();
    for written in 0..outbox.bytes() {
        let mut batch = check_cut(written, &|batch| batch.cut_down(), &|live, _| live);
        assert!(batch.bytes() == 0 || batch.advance(batch.bytes()));
    }
}

#[test]
fn what_expires_before_it_is_written_is_taken_out() {
    let (outbox, _) = mixed();
    for written in 0..outbox.bytes() {
        for now in [0, 4, 5, 8, 9] {
            let expire = |batch: &mut Batch| batch.drop_expired(|| now);
            let mut batch = check_cut(written, &expire, &|_, at| at <= now);
            assert_eq!(batch.drop_expired(|| now), 0);
            // A second cut finds what is left, and a close all live events.
            check_cut(
                written,
                &|batch| batch.drop_expired(|| 5) + batch.drop_expired(|| now),
                &|_, at| at <= now.max(5),
            );
            check_cut(
                written,
                &|batch| batch.drop_expired(|| now) + batch.cut_down(),
                &|live, at| live || at <= now,
            );
            assert!(batch.bytes() == 0 || batch.advance(batch.bytes()));
        }
    }
}

#[test]
fn the_clock_is_read_only_for_events_that_expire() {
    let mut outbox = Batch::default();
    outbox.push_live(&sub(), &event(""));
    outbox.push_row(&sub(), row("{}", None));
    let mut batch = taken(outbox);
    assert_eq!(batch.drop_expired(|| panic!("no clock")), 0);
    // A batch that is used again does not remember the last one's times.
    let mut batch = taken(mixed().0);
    batch.clear();
    assert_eq!(batch.drop_expired(|| panic!("no clock")), 0);
}
