//! What waits to be written to one connection.
//!
//! Small bytes (frame headers, answers, pages of history) are copied together into one buffer; an
//! event that many subscribers get is kept once and only pointed at. The writer takes everything
//! that is queued as one [`Batch`] and sends it with one vectored write: sixteen messages in one
//! write cost a tenth of sixteen writes.
//!
//! Invariant: the bytes on the wire are, for each piece in order, the small bytes up to
//! `small_end` and then the event's. Its event's frame header and prefix are the last
//! `prefix_len` small bytes of its piece, and its closing bracket is the first small byte after,
//! so that events can be taken out of the queue, and out of the unwritten rest of a batch: the live
//! ones when the connection is being closed, and those whose time has come (NIP-40).

use std::io::IoSlice;
use std::rc::Rc;
use std::sync::Arc;

use crate::limits::{
    BATCH_PARTS_MAX, BATCH_SPARE_BYTES_MAX, EVENT_COPY_BYTES_MAX, WRITE_BYTES_MAX,
};
use crate::nostr::event::Event;
use crate::nostr::message::{self, SubId};
use crate::store::Row;
use crate::ws::frame::{self, Opcode};

/// An event as one shard's connections share it: one count per shard, so that deliveries on
/// different cores do not contend for one cache line.
pub type Shared = Rc<Arc<Event>>;

/// The outbound queue of one connection. An empty one holds no memory.
#[derive(Default)]
pub struct Outbox {
    batch: Option<Box<Batch>>,
}

impl Outbox {
    /// Bytes that wait here, those of a batch under way not counted.
    pub fn bytes(&self) -> usize {
        self.batch.as_ref().map_or(0, |batch| batch.bytes)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// What to queue into, in the memory of a spare batch where there is no other.
    pub fn batch(&mut self, spare: impl FnOnce() -> Box<Batch>) -> &mut Batch {
        self.batch.get_or_insert_with(spare)
    }

    /// Drops the queued live events and keeps everything else. Returns how many were dropped.
    pub fn drop_live(&mut self) -> usize {
        let batch = self.batch.as_mut();
        batch.map_or(0, |batch| batch.drop_pieces(0, |piece| piece.live))
    }

    /// Takes all that is queued.
    pub fn take(&mut self) -> Option<Box<Batch>> {
        let mut batch = self.batch.take()?;
        batch.begin();
        Some(batch)
    }
}

/// Queueing.
impl Batch {
    /// Queues what `write` appends, as it is: a control frame, an HTTP answer.
    pub fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.small.len();
        write(&mut self.small);
        self.bytes += self.small.len() - before;
    }

    /// Queues one text message whose payload `write` appends.
    pub fn push_text(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let small = &mut self.small;
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
        self.bytes += header_len + length;
    }

    /// Queues one event of a subscription, its stored JSON copied.
    pub fn push_row(&mut self, sub: &SubId, row: Row<'_>) {
        let start = self.small.len();
        self.push_head(sub, row.json.len());
        self.small.extend_from_slice(row.json.as_bytes());
        if row.expires.is_some() {
            self.mark(start, row.expires, false, None);
        }
        self.small.push(b']');
    }

    /// Queues a live event: header and `["EVENT",<sub>,` are copied, the event's bytes shared.
    pub fn push_live(&mut self, sub: &SubId, event: &Shared) {
        let json = event.json();
        let start = self.small.len();
        self.push_head(sub, json.len());
        let copied = json.len() <= EVENT_COPY_BYTES_MAX;
        if copied {
            self.small.extend_from_slice(json.as_bytes());
        }
        // A copied event is marked like a shared one, so that a close can drop it all the same.
        let shared = (!copied).then(|| event.clone());
        self.mark(start, event.expiration(), true, shared);
        self.small.push(b']');
    }

    /// Appends the header and the start of an EVENT message around `json_len` bytes, and counts
    /// the whole message.
    fn push_head(&mut self, sub: &SubId, json_len: usize) {
        let length = message::event_prefix_len(sub) + json_len + 1;
        let (header, header_len) = frame::header(Opcode::Text, length);
        self.small.extend_from_slice(&header[..header_len]);
        message::event_prefix(&mut self.small, sub);
        self.bytes += header_len + length;
    }
}

/// Header bytes of a server's frame whose payload has up to 125 bytes.
const SHORT_HEADER: usize = 2;

/// An event that may be dropped, and the small bytes before it.
struct Piece {
    small_end: u32,
    prefix_len: u32,
    /// Whether it came live, or out of the history.
    live: bool,
    /// In seconds since 1970, or [`NEVER`].
    expires: u64,
    /// Where its bytes are, unless they were copied.
    event: Option<Shared>,
}

impl Piece {
    fn json(&self) -> &str {
        self.event.as_ref().map_or("", |event| event.json())
    }
}

const NEVER: u64 = u64::MAX;

/// Everything that was queued at one moment, on its way to the kernel.
///
/// Of the bytes on the wire, those before piece `first` are written, and `written` of that piece's.
#[derive(Default)]
pub struct Batch {
    small: Vec<u8>,
    pieces: Vec<Piece>,
    bytes: usize,
    /// Bytes when it was taken, or cut.
    whole: usize,
    first: u32,
    /// Where the small bytes of piece `first` start.
    start: u32,
    written: usize,
    /// The first time at which an event in it expires.
    expires: Option<u64>,
}

impl Batch {
    /// Bytes not yet accepted by the kernel.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Puts the parts of the next write into `parts`, and returns how many there are: as many as it
    /// has room for, until their bytes reach [`WRITE_BYTES_MAX`].
    pub fn parts<'a>(&'a self, parts: &mut [IoSlice<'a>; BATCH_PARTS_MAX]) -> usize {
        let (mut count, mut room) = (0, WRITE_BYTES_MAX);
        for (place, part) in parts.iter_mut().zip(self.rest()) {
            if room == 0 {
                break;
            }
            let part = &part[..part.len().min(room)];
            *place = IoSlice::new(part);
            room -= part.len();
            count += 1;
        }
        count
    }

    /// What is still to be written, in the order of the wire.
    fn rest(&self) -> impl Iterator<Item = &[u8]> {
        let pieces = &self.pieces[self.first as usize..];
        let shared = |piece: &&Piece| piece.event.is_some();
        let last = pieces.iter().rfind(shared);
        let tail = last.map_or(self.start, |piece| piece.small_end) as usize;
        let mut start = self.start as usize;
        let parts = pieces.iter().filter(shared).flat_map(move |piece| {
            let end = piece.small_end as usize;
            let small = &self.small[std::mem::replace(&mut start, end)..end];
            [small, piece.json().as_bytes()]
        });
        let mut skip = self.written;
        let parts = parts.chain([&self.small[tail..]]).map(move |part| {
            let skipped = skip.min(part.len());
            skip -= skipped;
            &part[skipped..]
        });
        parts.filter(|part| !part.is_empty())
    }

    /// Takes note that the kernel accepted `count` bytes. Returns whether all are written.
    pub fn advance(&mut self, count: usize) -> bool {
        let count = count.min(self.bytes);
        self.bytes -= count;
        self.written += count;
        while let Some(piece) = self.pieces.get(self.first as usize) {
            let length = (piece.small_end - self.start) as usize + piece.json().len();
            if self.written < length {
                break;
            }
            self.written -= length;
            self.start = piece.small_end;
            self.first += 1;
        }
        self.bytes == 0
    }

    /// Cuts what the kernel has not accepted yet down to the end of the frame under way and the
    /// frames that are no live events. Returns how many live events were dropped.
    pub fn cut_down(&mut self) -> usize {
        self.cut(|piece| piece.live)
    }

    /// Takes out the events that have expired at `now`, in seconds since 1970, unless the kernel has
    /// accepted some of their bytes. Returns how many. The clock is read only if there could be any.
    pub fn drop_expired(&mut self, now: impl FnOnce() -> u64) -> usize {
        let Some(first) = self.expires else { return 0 };
        let now = now();
        if now < first {
            return 0;
        }
        let dropped = self.cut(|piece| piece.expires <= now);
        let later = self.pieces.iter().map(|piece| piece.expires);
        self.expires = later.filter(|at| *at > now && *at < NEVER).min();
        dropped
    }

    /// Marks the small bytes from `start` on as those before an event's bytes.
    fn mark(&mut self, start: usize, expires: Option<u64>, live: bool, event: Option<Shared>) {
        let first = self.expires.into_iter().chain(expires).min();
        self.expires = first;
        self.pieces.push(Piece {
            small_end: self.small.len() as u32,
            prefix_len: (self.small.len() - start) as u32,
            live,
            expires: expires.unwrap_or(NEVER),
            event,
        });
    }

    fn cut(&mut self, goes: impl Fn(&Piece) -> bool) -> usize {
        let dropped = self.drop_pieces(self.whole - self.bytes, goes);
        if dropped > 0 {
            self.begin();
        }
        dropped
    }

    /// Drops the events that shall go and of which no byte is among the first `written` on the wire,
    /// and those bytes. Nothing changes if there is no such event.
    fn drop_pieces(&mut self, written: usize, goes: impl Fn(&Piece) -> bool) -> usize {
        let mut kept = Vec::new();
        // Where the next piece starts: on the wire, and in the small bytes.
        let (mut wire, mut start) = (0, 0);
        let mut keep = |kept: &mut Vec<u8>, bytes: &[u8]| {
            let done = written.saturating_sub(wire).min(bytes.len());
            kept.extend_from_slice(&bytes[done..]);
            wire += bytes.len();
            wire >= written
        };
        // By piece: where its small bytes end now, if all of it is still to be written.
        let mut stays = Vec::new();
        let mut dropped = 0;
        for piece in &self.pieces {
            let end = piece.small_end as usize;
            let head = end - piece.prefix_len as usize;
            let unwritten = keep(&mut kept, &self.small[start..head]);
            // The bracket that closes this event's array goes with it.
            start = end + 1;
            if unwritten && goes(piece) {
                dropped += 1;
                stays.push(None);
                continue;
            }
            keep(&mut kept, &self.small[head..end]);
            if unwritten {
                stays.push(Some(kept.len() as u32));
            } else {
                keep(&mut kept, piece.json().as_bytes());
                stays.push(None);
            }
            keep(&mut kept, &self.small[end..start]);
        }
        if dropped == 0 {
            return 0;
        }
        keep(&mut kept, &self.small[start..]);
        let mut stays = stays.into_iter();
        self.pieces
            .retain_mut(|piece| match stays.next().flatten() {
                Some(end) => {
                    piece.small_end = end;
                    true
                }
                None => false,
            });
        let shared = self.pieces.iter().map(|piece| piece.json().len());
        self.bytes = kept.len() + shared.sum::<usize>();
        self.small = kept;
        dropped
    }

    /// Empties the batch for its next use. Memory beyond what a usual burst needs is given back.
    pub fn clear(&mut self) {
        if self.small.capacity() > BATCH_SPARE_BYTES_MAX {
            self.small = Vec::new();
        }
        self.small.clear();
        self.pieces.clear();
        self.bytes = 0;
        self.expires = None;
        self.begin();
    }

    /// From here on nothing is added, and nothing of it is written yet.
    fn begin(&mut self) {
        self.whole = self.bytes;
        (self.first, self.start, self.written) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests;
