//! What waits to be written to one connection.
//!
//! Small bytes (frame headers, answers, pages of history) are copied together into one buffer; an
//! event that many subscribers get is kept once and only pointed at. The writer takes everything
//! that is queued as one [`Batch`] and sends it with one vectored write: sixteen messages in one
//! write cost a tenth of sixteen writes.
//!
//! Invariant: the bytes on the wire are, for each piece in order, the small bytes up to
//! `small_end` and then the event's. A live event's frame header and prefix are the last
//! `prefix_len` small bytes of its piece, and its closing bracket is the first small byte after,
//! so that the queue, and the unwritten rest of a batch, can be cut down to their answers when the
//! connection is being closed.
#![allow(unsafe_code)]

use std::rc::Rc;
use std::sync::Arc;

use crate::limits::{
    BATCH_PARTS_MAX, BATCH_SPARE_BYTES_MAX, EVENT_COPY_BYTES_MAX, WRITE_BYTES_MAX,
};
use crate::nostr::event::Event;
use crate::nostr::message::{self, SubId};
use crate::shard::runtime::IoVecBuf;
use crate::ws::frame::{self, Opcode};

/// An event as one shard's connections share it: one count per shard, so that deliveries on
/// different cores do not contend for one cache line.
pub type Shared = Rc<Arc<Event>>;

/// The outbound queue of one connection.
#[derive(Default)]
pub struct Outbox {
    batch: Batch,
}

impl Outbox {
    /// Bytes that wait here, those of a batch under way not counted.
    pub fn bytes(&self) -> usize {
        self.batch.bytes
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.batch.bytes == 0
    }

    /// Queues what `write` appends, as it is: a control frame, an HTTP answer.
    pub fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.batch.small.len();
        write(&mut self.batch.small);
        self.batch.bytes += self.batch.small.len() - before;
    }

    /// Queues one text message whose payload `write` appends.
    pub fn push_text(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let small = &mut self.batch.small;
        let start = small.len();
        // The header's length depends on the payload's; most answers need the short form.
        small.extend_from_slice(&[0; SHORT_HEADER]);
        write(small);
        let length = small.len() - start - SHORT_HEADER;
        let (header, header_len) = frame::header(Opcode::Text, length);
        if header_len == SHORT_HEADER {
            small[start..start + SHORT_HEADER].copy_from_slice(&header[..SHORT_HEADER]);
        } else {
            small.splice(
                start..start + SHORT_HEADER,
                header[..header_len].iter().copied(),
            );
        }
        self.batch.bytes += header_len + length;
    }

    /// Queues one event of a subscription, its stored JSON copied.
    pub fn push_row(&mut self, sub: &SubId, json: &str) {
        self.push_head(sub, json.len());
        self.batch.small.extend_from_slice(json.as_bytes());
        self.batch.small.push(b']');
    }

    /// Queues a live event: header and `["EVENT",<sub>,` are copied, the event's bytes shared.
    pub fn push_live(&mut self, sub: &SubId, event: &Shared) {
        let json = event.json();
        let start = self.batch.small.len();
        self.push_head(sub, json.len());
        let copied = json.len() <= EVENT_COPY_BYTES_MAX;
        if copied {
            self.batch.small.extend_from_slice(json.as_bytes());
        }
        // A copied event is marked like a shared one, so that a close can drop it all the same.
        self.batch.pieces.push(Piece {
            small_end: self.batch.small.len() as u32,
            prefix_len: (self.batch.small.len() - start) as u32,
            event: (!copied).then(|| event.clone()),
        });
        self.batch.small.push(b']');
    }

    /// Appends the header and the start of an EVENT message around `json_len` bytes, and counts
    /// the whole message.
    fn push_head(&mut self, sub: &SubId, json_len: usize) {
        let length = message::event_prefix_len(sub) + json_len + 1;
        let (header, header_len) = frame::header(Opcode::Text, length);
        self.batch.small.extend_from_slice(&header[..header_len]);
        message::event_prefix(&mut self.batch.small, sub);
        self.batch.bytes += header_len + length;
    }

    /// Drops the queued live events and keeps everything else. Returns how many were dropped.
    pub fn drop_live(&mut self) -> usize {
        self.batch.drop_live(0)
    }

    /// Takes all that is queued, in `spare`'s memory for the next queue.
    pub fn take(&mut self, spare: Batch) -> Batch {
        debug_assert!(spare.bytes == 0, "a spare batch is empty");
        let mut batch = std::mem::replace(&mut self.batch, spare);
        batch.arm();
        batch
    }

    /// Gives the queue's memory back, with what is in it.
    pub fn into_batch(self) -> Batch {
        self.batch
    }
}

/// Header bytes of a server's frame whose payload has up to 125 bytes.
const SHORT_HEADER: usize = 2;

#[derive(Default)]
struct Piece {
    small_end: u32,
    prefix_len: u32,
    event: Option<Shared>,
}

/// One vectored write: everything that was queued at one moment.
#[derive(Default)]
pub struct Batch {
    small: Vec<u8>,
    pieces: Vec<Piece>,
    bytes: usize,
    parts: Vec<libc::iovec>,
    first: usize,
    whole: usize,
}

impl Batch {
    /// Bytes not yet accepted by the kernel.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes note that the kernel accepted `count` bytes. Returns whether all are written.
    pub fn advance(&mut self, count: usize) -> bool {
        let mut left = count.min(self.bytes);
        self.bytes -= left;
        while left > 0 {
            let part = &mut self.parts[self.first];
            if part.iov_len > left {
                // SAFETY: `left` is less than the part's length, so this stays inside the part.
                part.iov_base = unsafe { part.iov_base.cast::<u8>().add(left) }.cast();
                part.iov_len -= left;
                break;
            }
            left -= part.iov_len;
            self.first += 1;
        }
        self.bytes == 0
    }

    /// Cuts what the kernel has not accepted yet down to the end of the frame under way and the
    /// frames that are no live events. Returns how many live events were dropped.
    pub fn cut_down(&mut self) -> usize {
        let dropped = self.drop_live(self.whole - self.bytes);
        if dropped > 0 {
            self.parts.clear();
            self.first = 0;
            self.arm();
        }
        dropped
    }

    /// Drops the live events of which no byte is among the first `written` on the wire, and those
    /// bytes. Nothing changes if there is no such event.
    fn drop_live(&mut self, written: usize) -> usize {
        let mut kept = Vec::new();
        // Where the next piece starts: on the wire, and in the small bytes.
        let (mut wire, mut start) = (0, 0);
        let mut keep = |wire: &mut usize, bytes: &[u8]| {
            let done = written.saturating_sub(*wire).min(bytes.len());
            kept.extend_from_slice(&bytes[done..]);
            *wire += bytes.len();
        };
        let mut dropped = 0;
        for piece in &self.pieces {
            let end = piece.small_end as usize;
            let live = end - piece.prefix_len as usize;
            keep(&mut wire, &self.small[start..live]);
            let json = piece.event.as_ref().map_or("", |event| event.json());
            // The bracket that closes this event's array goes with it.
            start = end + 1;
            if wire < written {
                keep(&mut wire, &self.small[live..end]);
                keep(&mut wire, json.as_bytes());
                keep(&mut wire, &self.small[end..start]);
            } else {
                // Nothing of it is written, so neither is anything behind it.
                dropped += 1;
            }
        }
        if dropped > 0 {
            keep(&mut wire, &self.small[start..]);
            self.pieces.clear();
            self.bytes = kept.len();
            self.small = kept;
        }
        dropped
    }

    /// Empties the batch for its next use. Memory beyond what a usual burst needs is given back.
    pub fn clear(&mut self) {
        if self.small.capacity() > BATCH_SPARE_BYTES_MAX {
            self.small = Vec::new();
        }
        self.small.clear();
        self.pieces.clear();
        self.parts.clear();
        self.bytes = 0;
        self.first = 0;
        self.whole = 0;
    }

    /// Lays out the parts. From here on the batch's buffers do not change until it is cleared or cut.
    fn arm(&mut self) {
        self.whole = self.bytes;
        self.parts.reserve(2 * self.pieces.len() + 1);
        let mut start = 0;
        for piece in &self.pieces {
            let Some(event) = &piece.event else { continue };
            let end = piece.small_end as usize;
            self.parts
                .extend(self.small[start..end].chunks(WRITE_BYTES_MAX).map(part));
            self.parts.push(part(event.json().as_bytes()));
            start = end;
        }
        self.parts
            .extend(self.small[start..].chunks(WRITE_BYTES_MAX).map(part));
    }

    /// Parts of the next write: few enough for the kernel, and with the last of them its bytes
    /// reach [`WRITE_BYTES_MAX`]. What one write names can no longer be dropped.
    fn window(&self) -> usize {
        let mut bytes = 0;
        let rest = self.parts[self.first..].iter().take(BATCH_PARTS_MAX);
        rest.take_while(|part| {
            let fits = bytes < WRITE_BYTES_MAX;
            bytes += part.iov_len;
            fits
        })
        .count()
    }
}

fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

// SAFETY: the parts point into `small` and into events that `pieces` keep alive. Neither changes
// between `arm` and `clear` (or `cut_down`, which lays the parts out anew, and which only the batch's
// owner can call: while the kernel reads, the batch is the operation's), and moving the batch moves no heap memory, so the pointers stay valid
// while the kernel reads them. `first` is at most the number of parts.
unsafe impl IoVecBuf for Batch {
    fn read_iovec_ptr(&self) -> *const libc::iovec {
        self.parts[self.first..].as_ptr()
    }

    fn read_iovec_len(&self) -> usize {
        self.window()
    }
}

#[cfg(test)]
mod tests {
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
        let mut bytes = Vec::new();
        for part in &batch.parts[batch.first..] {
            // SAFETY: the test holds the batch, whose parts are valid.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len)
            });
        }
        bytes
    }

    fn sub() -> SubId {
        SubId::new("s", 64).expect("a valid id")
    }

    #[test]
    fn pieces_come_out_in_the_order_they_went_in() {
        let (long, short) = (event(&"x".repeat(2_000)), event(""));
        assert!(long.json().len() > EVENT_COPY_BYTES_MAX);
        let mut outbox = Outbox::default();
        outbox.push_text(|out| out.extend_from_slice(b"[\"EOSE\",\"s\"]"));
        outbox.push_live(&sub(), &long);
        outbox.push_live(&sub(), &short);
        outbox.push_row(&sub(), "{}");
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
        let batch = outbox.take(Batch::default());
        assert_eq!(batch.bytes(), expected.len());
        assert_eq!(wire(&batch), expected);
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_close_drops_live_events_and_nothing_else() {
        let (long, short) = (event(&"x".repeat(2_000)), event(""));
        let mut outbox = Outbox::default();
        outbox.push_live(&sub(), &short);
        outbox.push_text(|out| out.extend_from_slice(b"first"));
        outbox.push_live(&sub(), &long);
        outbox.push_live(&sub(), &long);
        outbox.push_row(&sub(), "{}");
        outbox.push_live(&sub(), &short);
        outbox.push_text(|out| out.extend_from_slice(b"last"));
        assert_eq!(outbox.drop_live(), 4);
        let expected = [
            frame(b"first"),
            frame(br#"["EVENT","s",{}]"#),
            frame(b"last"),
        ]
        .concat();
        assert_eq!(outbox.bytes(), expected.len());
        assert_eq!(wire(&outbox.take(Batch::default())), expected);
    }

    #[test]
    fn short_writes_go_on_where_they_stopped() {
        let long = event(&"x".repeat(1_000));
        let mut expected = Vec::new();
        let mut outbox = Outbox::default();
        for _ in 0..3 {
            outbox.push_live(&sub(), &long);
            expected.extend(live_frame(&long));
        }
        for step in [1, 7, 15, 1_000, 1_017, expected.len() - 1] {
            let mut outbox_copy = Outbox::default();
            for _ in 0..3 {
                outbox_copy.push_live(&sub(), &long);
            }
            let mut batch = outbox_copy.take(Batch::default());
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
        let mut outbox = Outbox::default();
        for _ in 0..BATCH_PARTS_MAX {
            outbox.push_live(&sub(), &long);
        }
        let batch = outbox.take(Batch::default());
        assert!(batch.read_iovec_len() <= BATCH_PARTS_MAX);
        assert!(batch.parts.len() > BATCH_PARTS_MAX);
    }

    #[test]
    fn one_write_names_little_more_than_its_share() {
        let (long, short) = (event(&"x".repeat(WRITE_BYTES_MAX / 2)), event(""));
        let mut outbox = Outbox::default();
        for _ in 0..4 * WRITE_BYTES_MAX / short.json().len() {
            outbox.push_live(&sub(), &short);
        }
        for _ in 0..4 {
            outbox.push_live(&sub(), &long);
        }
        let mut batch = outbox.take(Batch::default());
        loop {
            let window = &batch.parts[batch.first..][..batch.read_iovec_len()];
            let bytes: usize = window.iter().map(|part| part.iov_len).sum();
            assert!(bytes < 2 * WRITE_BYTES_MAX, "{bytes}");
            assert!(bytes >= WRITE_BYTES_MAX.min(batch.bytes()), "{bytes}");
            if batch.advance(bytes) {
                return;
            }
        }
    }

    #[test]
    fn wherever_a_batch_is_cut_its_frame_is_finished_and_its_answers_stay() {
        let (long, short) = (event(&"x".repeat(300)), event(""));
        // Frames in order, and whether each is a live event.
        let row = frame(br#"["EVENT","s",{}]"#);
        let frames = [
            (live_frame(&short), true),
            (frame(b"first"), false),
            (live_frame(&long), true),
            (live_frame(&long), true),
            (row, false),
            (live_frame(&short), true),
            (frame(b"last"), false),
            (live_frame(&long), true),
        ];
        let all: Vec<u8> = frames.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        for written in 0..all.len() {
            let mut outbox = Outbox::default();
            outbox.push_live(&sub(), &short);
            outbox.push_text(|out| out.extend_from_slice(b"first"));
            outbox.push_live(&sub(), &long);
            outbox.push_live(&sub(), &long);
            outbox.push_row(&sub(), "{}");
            outbox.push_live(&sub(), &short);
            outbox.push_text(|out| out.extend_from_slice(b"last"));
            outbox.push_live(&sub(), &long);
            let mut batch = outbox.take(Batch::default());
            batch.advance(written);
            let dropped = batch.cut_down();
            let (mut at, mut expected, mut expected_drops) = (0, all[..written].to_vec(), 0);
            for (bytes, live) in &frames {
                let done = written.saturating_sub(at).min(bytes.len());
                at += bytes.len();
                if *live && done == 0 {
                    expected_drops += 1;
                } else {
                    expected.extend(&bytes[done..]);
                }
            }
            assert_eq!(dropped, expected_drops, "cut at {written}");
            let sent = [&all[..written], &wire(&batch)].concat();
            assert!(sent == expected, "cut at {written}");
            assert_eq!(batch.bytes(), expected.len() - written);
            assert!(batch.bytes() == 0 || batch.advance(batch.bytes()));
        }
    }
}
