//! The reading side of one connection: request head, then messages, until the end.
//!
//! Bytes are received into the buffer that all connections of the shard share and decoded there.
//! Only what is left over, an unfinished message or those behind a pause, moves into a buffer of
//! the connection's own.
//!
//! A connection with nothing left over rests: it has no buffer, no decoder and no task. What comes
//! next is handled where it is reported, and a reader's task begins only if that leaves something
//! to wait for. It ends when the connection rests again.
//!
//! Fairness: after a message that costs something (a signature check, a read) the connection
//! pauses for a turn before it looks at its next one.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use crate::limits::WRITES_IN_FLIGHT_MAX;
use crate::metrics::{AuthOutcome, CloseReason, EventOutcome, MessageRefusal};
use crate::nostr::event::Event;
use crate::nostr::message::{self, ClientMessage, MessageError};
use crate::shard::conn::{Conn, Phase};
use crate::shard::{Shard, history, hooks, http, ingest, login, meter};
use crate::ws::close;
use crate::ws::decoder::{Decoder, Fault, Item};
use crate::ws::frame::{self, Opcode};
use crate::ws::handshake::{self, Upgrade};

/// What a handled message asks of the reader.
pub enum Flow {
    /// Look at the next message.
    Go,
    /// Others first: this message cost something.
    Turn,
    /// Nothing more of this connection until this login is answered.
    Login(Box<Event>),
}

/// What a reader has before it.
pub struct Reading {
    decoder: Decoder,
    kept: Kept,
    flow: Flow,
}

impl Reading {
    /// Of a connection that nothing has come from, or that rests.
    pub fn new(shard: &Shard) -> Reading {
        Reading {
            decoder: Decoder::new(shard.config().frame_bytes_max),
            kept: Kept::default(),
            flow: Flow::Go,
        }
    }

    /// Whether nothing is lost if it is dropped.
    fn is_over(&self) -> bool {
        matches!(self.flow, Flow::Go) && self.kept.is_empty() && self.decoder.is_between_messages()
    }
}

/// Handles what has come for a connection at rest. Gives back what is left to be read by a task, and
/// then it no longer rests.
pub fn wake(shard: &Rc<Shard>, conn: &Rc<Conn>) -> Option<Reading> {
    let mut reading = Reading::new(shard);
    if conn.phase() == Phase::Open && conn.in_flight.get() < WRITES_IN_FLIGHT_MAX {
        let received = read(shard, conn, &mut reading);
        let more = conn.socket.may_read() || is_end(&received) || conn.has_ended();
        if !more && reading.is_over() {
            return None;
        }
    }
    conn.set_resting(false);
    Some(reading)
}

/// Serves a connection to its end, or until it rests. At its end the caller removes it from the table.
pub async fn serve(shard: Rc<Shard>, conn: Rc<Conn>, mut reading: Reading) {
    if conn.phase() > Phase::Head || head(&shard, &conn, &mut reading.kept).await {
        messages(&shard, &conn, &mut reading).await;
        if conn.is_resting() {
            return;
        }
        // Who shuts its write side may still read, so it gets the answers that the store owes it.
        while conn.phase() == Phase::Open && conn.in_flight.get() > 0 {
            conn.changed().await;
        }
        conn.stream_ended(&shard);
    }
    // A close may be under way in which the peer must not be cut off; then its end is awaited.
    discard(&shard, &conn, reading).await;
    conn.cut(&shard, CloseReason::Lost);
}

/// Bytes received and not yet consumed.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    at: usize,
}

impl Kept {
    fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn rest(&mut self) -> &mut [u8] {
        &mut self.bytes[self.at..]
    }

    /// Takes note that `count` bytes were consumed; an empty buffer gives its memory back.
    fn consume(&mut self, count: usize) {
        self.at += count;
        if self.is_empty() {
            *self = Kept::default();
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.at));
        self.bytes.extend_from_slice(bytes);
    }
}

/// Reads and answers the request head. Returns whether the connection is now a WebSocket; what
/// was received behind the head is left in `kept`.
async fn head(shard: &Rc<Shard>, conn: &Rc<Conn>, kept: &mut Kept) -> bool {
    loop {
        if !receive(shard, conn, kept).await || conn.phase() != Phase::Head {
            return false;
        }
        let head = match handshake::parse_head(kept.rest()) {
            Ok(None) => continue,
            Ok(Some(head)) => head,
            Err(error) => {
                http::refuse(shard, conn, error);
                return false;
            }
        };
        let length = head.len;
        match head.upgrade {
            Upgrade::WebSocket { key } if head.path() == "/" => {
                if let Err(refusal) = shard.admit_upgrade(conn, &head.forwarded_for) {
                    http::unavailable(shard, conn, refusal);
                    return false;
                }
                conn.opened(Instant::now(), &shard.config());
                conn.send(shard, |batch| {
                    batch.push_with(|out| handshake::write_switching_protocols(out, key));
                });
                if !hooks::echoes() {
                    login::greet(shard, conn);
                }
                if shard.common.lifecycle.is_draining() {
                    shard.late(conn);
                }
            }
            Upgrade::WebSocket { .. } | Upgrade::None => {
                http::answer(shard, conn, &head);
                return false;
            }
            Upgrade::Bad(error) => {
                http::refuse(shard, conn, error);
                return false;
            }
        }
        kept.consume(length);
        return true;
    }
}

/// Handles messages until there are none and the connection rests, a close has been started, or the
/// peer is gone.
async fn messages(shard: &Rc<Shard>, conn: &Rc<Conn>, reading: &mut Reading) {
    loop {
        match std::mem::replace(&mut reading.flow, Flow::Go) {
            Flow::Go => {}
            Flow::Turn => shard.turns.next().await,
            // Boxed: a login is rare, and its state would make every reader's task larger.
            Flow::Login(event) => Box::pin(login::attend(shard, conn, *event)).await,
        }
        while conn.in_flight.get() >= WRITES_IN_FLIGHT_MAX && conn.phase() == Phase::Open {
            conn.changed().await;
        }
        if conn.phase() != Phase::Open {
            return;
        }
        if !reading.kept.is_empty() {
            let (consumed, flow) = decode(shard, conn, &mut reading.decoder, reading.kept.rest());
            reading.kept.consume(consumed);
            reading.flow = flow;
            let unfinished = matches!(reading.flow, Flow::Go) && !reading.kept.is_empty();
            if unfinished && !conn.has_ended() && !receive(shard, conn, &mut reading.kept).await {
                return;
            }
        } else if conn.socket.may_read() {
            if is_end(&read(shard, conn, reading)) {
                return;
            }
            if conn.socket.may_read() && matches!(reading.flow, Flow::Go) {
                // There is more, and nothing yet has been a pause.
                reading.flow = Flow::Turn;
            }
        } else if reading.is_over() {
            return conn.set_resting(true);
        } else {
            conn.readable().await;
        }
    }
}

/// Receives once and handles what has come. Nothing may be left over from before.
fn read(shard: &Rc<Shard>, conn: &Rc<Conn>, reading: &mut Reading) -> io::Result<usize> {
    let mut scratch = shard.scratch.take();
    let received = conn.socket.receive(&mut scratch);
    if let Ok(count) = received {
        let (consumed, flow) = decode(shard, conn, &mut reading.decoder, &mut scratch[..count]);
        reading.kept.append(&scratch[consumed..count]);
        reading.flow = flow;
    }
    shard.scratch.replace(scratch);
    received
}

/// Decodes and handles what is in `bytes`. Returns how many were consumed, and what it stopped for
/// before the end.
fn decode(
    shard: &Rc<Shard>,
    conn: &Rc<Conn>,
    decoder: &mut Decoder,
    bytes: &mut [u8],
) -> (usize, Flow) {
    let mut at = 0;
    while conn.phase() == Phase::Open {
        // Called once more when all is consumed: that call frees what a fragmented message took.
        let decoded = match decoder.next(&mut bytes[at..]) {
            Ok(decoded) => decoded,
            Err(fault) => {
                broken(shard, conn, fault);
                return (bytes.len(), Flow::Go);
            }
        };
        if decoded.consumed == 0 && decoded.item.is_none() {
            break;
        }
        at += decoded.consumed;
        match decoded.item.map(|item| handle(shard, conn, item)) {
            None | Some(Flow::Go) => {}
            // Waiting for the socket is a pause already.
            Some(Flow::Turn) if at == bytes.len() => {}
            Some(stop) => return (at, stop),
        }
    }
    (at, Flow::Go)
}

fn handle(shard: &Rc<Shard>, conn: &Rc<Conn>, item: Item<'_>) -> Flow {
    if hooks::echoes() && echo(shard, conn, &item) {
        return Flow::Go;
    }
    match item {
        Item::Text(text) => {
            let admitted = conn.admit_message(&shard.config().rates, text.len());
            return match admitted {
                Ok(()) => message(shard, conn, text),
                Err(above) => meter::refuse(shard, conn, text, above),
            };
        }
        Item::Binary(_) => {
            let text = "messages are text";
            let code = Some(close::UNSUPPORTED_DATA);
            conn.close(shard, CloseReason::Protocol, code, text);
        }
        Item::Ping(payload) => {
            conn.charge_message(&shard.config().rates, payload.len());
            conn.send(shard, |batch| {
                batch.push_with(|out| frame::write_frame(out, Opcode::Pong, payload));
            });
        }
        Item::Pong(payload) => {
            conn.charge_message(&shard.config().rates, payload.len());
            conn.ponged();
        }
        Item::Close { code, .. } => {
            conn.set_peer_done();
            conn.close(shard, CloseReason::Client, code, "");
        }
    }
    Flow::Go
}

/// Sends a message back as it came. Returns false for a control frame.
fn echo(shard: &Rc<Shard>, conn: &Rc<Conn>, item: &Item<'_>) -> bool {
    let (opcode, payload) = match item {
        Item::Text(text) => (Opcode::Text, text.as_bytes()),
        Item::Binary(bytes) => (Opcode::Binary, &**bytes),
        _ => return false,
    };
    conn.send(shard, |batch| {
        batch.push_with(|out| frame::write_frame(out, opcode, payload));
    });
    true
}

fn message(shard: &Rc<Shard>, conn: &Rc<Conn>, text: &str) -> Flow {
    hooks::maybe_panic(text);
    match ClientMessage::parse(text, &shard.parse_bounds) {
        Ok(ClientMessage::Event(event)) => ingest::event(shard, conn, event),
        Ok(ClientMessage::Req { sub, filters }) => {
            history::request(shard, conn, sub, filters);
            Flow::Turn
        }
        Ok(ClientMessage::Close { sub }) => {
            conn.remove_sub(shard, &sub);
            Flow::Go
        }
        Ok(ClientMessage::Count { sub, filters }) => {
            history::count(shard, conn, sub, filters);
            Flow::Turn
        }
        Ok(ClientMessage::Auth(event)) => Flow::Login(Box::new(event)),
        Err(error) => {
            if let MessageError::Sub { .. } | MessageError::Notice(_) = error {
                let refused = shard.metrics.messages_refused.of(MessageRefusal::Malformed);
                refused.increment(1);
            }
            refuse(shard, conn, &error);
            Flow::Go
        }
    }
}

/// Answers a text that is no message.
pub(super) fn refuse(shard: &Rc<Shard>, conn: &Rc<Conn>, error: &MessageError) {
    match error {
        MessageError::Sub { sub, reason } => return history::closed(shard, conn, sub, reason),
        MessageError::Auth(_) => login::Attempt::begin(shard, conn).end(AuthOutcome::Invalid),
        MessageError::Event(_) => {
            let refused = shard.metrics.events_received.of(EventOutcome::Refused);
            refused.increment(1);
        }
        MessageError::Notice(_) => {}
    }
    conn.send(shard, |batch| batch.push_text(|out| error.write(out)));
}

/// The peer broke the protocol: say so, where it can still be said.
fn broken(shard: &Rc<Shard>, conn: &Rc<Conn>, fault: Fault) {
    let why = match fault {
        Fault::NotUtf8 => CloseReason::NotUtf8,
        _ if fault.is_too_big() => CloseReason::TooBig,
        _ => CloseReason::Protocol,
    };
    if fault.is_too_big() {
        let bytes = shard.config().frame_bytes_max;
        let notice = match fault {
            Fault::TooManyFragments => format!("invalid: {}", fault.text()),
            _ => format!("invalid: a message has at most {bytes} bytes"),
        };
        conn.send(shard, |batch| {
            batch.push_text(|out| message::write_notice(out, &notice));
        });
    }
    conn.close(shard, why, Some(fault.close_code()), fault.text());
}

/// After a close was started: reads and throws away, so that the close is not destroyed by a
/// reset, until the peer's Close or its end. The sweep cuts off who takes too long.
async fn discard(shard: &Shard, conn: &Conn, reading: Reading) {
    if conn.phase() <= Phase::Open {
        // The peer is gone without a word.
        return;
    }
    let (mut decoder, mut kept) = (Some(reading.decoder), reading.kept);
    loop {
        decoder = decoder.and_then(|decoder| look_for_close(conn, decoder, &mut kept));
        if conn.phase() == Phase::Cut || conn.peer_is_done() && conn.phase() == Phase::Told {
            return;
        }
        if conn.peer_is_done() {
            conn.changed().await;
            continue;
        }
        if decoder.is_none() {
            kept = Kept::default();
        }
        if !receive(shard, conn, &mut kept).await {
            conn.set_peer_done();
        }
    }
}

/// Reads over what a closing peer still sends. Returns the decoder while it can follow.
fn look_for_close(conn: &Conn, mut decoder: Decoder, kept: &mut Kept) -> Option<Decoder> {
    while !kept.is_empty() {
        let decoded = decoder.next(kept.rest()).ok()?;
        if let Some(Item::Close { .. }) = decoded.item {
            conn.set_peer_done();
            return None;
        }
        let consumed = decoded.consumed;
        if consumed == 0 {
            break;
        }
        kept.consume(consumed);
    }
    Some(decoder)
}

/// Waits for bytes and appends them to `kept`. Returns false when the peer is gone.
async fn receive(shard: &Shard, conn: &Conn, kept: &mut Kept) -> bool {
    loop {
        if conn.socket.may_read() {
            // The last read had no room for all that was there: others first.
            shard.turns.next().await;
        }
        conn.readable().await;
        let mut scratch = shard.scratch.take();
        let received = conn.socket.receive(&mut scratch);
        if let Ok(count) = received {
            kept.append(&scratch[..count]);
        }
        shard.scratch.replace(scratch);
        if is_end(&received) {
            return false;
        }
        if received.is_ok() {
            return true;
        }
    }
}

/// Whether the peer is gone: its end was read, or an error other than that nothing was there.
fn is_end(received: &io::Result<usize>) -> bool {
    match received {
        Ok(count) => *count == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}
