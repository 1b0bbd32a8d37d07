//! One connection as its shard holds it: socket, phase, outbound queue, subscriptions.
//!
//! A connection at rest has no task. The reader (`session`) has one while something is half read or
//! waited for, and only it removes the connection; a writer has one only while its socket is full.
//! Else what comes is handled where it is reported, and what is queued is written by the shard, for all
//! connections in a row ([`Shard::write_queued`]). Whoever wants to end a connection calls
//! [`Conn::close`] or [`Conn::cut`]; the reader notices, or the socket reports it and wakes one.
//!
//! Invariants: the phase only moves forward; exactly one close is started; after it nothing is
//! queued but what was there, and the Close frame is the last thing written.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::limits::{
    BATCH_PARTS_MAX, CLOSE_LINGER, CLOSE_WRITE, HEAD_WAIT, LOGIN_WAIT, PINGS_UNANSWERED_MAX,
    WRITES_A_TURN_MAX,
};
use crate::metrics::{CloseReason, UpgradeRefusal};
use crate::shard::Shard;
use crate::shard::addresses::Place;
use crate::shard::drain::Stand;
use crate::shard::history::Reads;
use crate::shard::login::Challenge;
use crate::shard::meter::Meter;
use crate::shard::moment::Moment;
use crate::shard::outbox::{Batch, Outbox};
use crate::shard::peer::Peer;
use crate::shard::runtime;
use crate::shard::socket::Socket;
use crate::shard::subs::Sub;
use crate::thin::ThinBytes;
use crate::ws::close;
use crate::ws::frame::{self, Opcode};

/// How far a connection is. It only moves forward.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Phase {
    /// The request head has not arrived whole.
    Head,
    /// A WebSocket that serves its client.
    Open,
    /// A close was started: what is queued goes out, what comes in is discarded.
    Closing,
    /// The last byte was written and the write side is shut.
    Told,
    /// The socket is shut in both directions.
    Cut,
}

/// One connection.
pub struct Conn {
    peer: Peer,
    pub(super) rare: Cell<Option<Box<Rare>>>,
    /// Unique on this shard, so that an answer cannot reach the next owner of a slot.
    pub serial: u32,
    /// Writes that the store has not answered.
    pub in_flight: Cell<u32>,
    /// Whether it was counted as a WebSocket.
    pub counted: Cell<bool>,
    /// The socket; its reader is `session`, its writer below.
    pub socket: Socket,
    key: Cell<u32>,
    pub(super) phase: Cell<Phase>,
    pub(super) outbox: RefCell<Outbox>,
    writing: Cell<bool>,
    resting: Cell<bool>,
    unwritten: Cell<usize>,
    pub(super) held_bytes: Cell<usize>,
    pub(super) counted_bytes: Cell<usize>,
    pub(super) over_soft_since: Cell<Option<Moment>>,
    /// Values in the filters of all subscriptions.
    pub filter_values: Cell<usize>,
    pub(super) subs: RefCell<Box<[Option<Sub>]>>,
    /// History reads that run or wait.
    pub reads: Cell<Option<Box<Reads>>>,
    deadline: Cell<Moment>,
    pings_unanswered: Cell<u8>,
    peer_done: Cell<bool>,
    /// What the drain has to do with it.
    pub stand: Cell<Stand>,
    /// What its client has to sign to log in.
    pub challenge: Challenge,
    /// Whether an AUTH frame ever came.
    pub attempted: Cell<bool>,
    /// Keys that have logged in, one after the other.
    pub(super) keys: Cell<Option<ThinBytes>>,
    /// When the time for the first login is over, if one is required and while none is checked.
    pub(super) login_end: Cell<Option<Moment>>,
    /// Whether one is being checked.
    pub(super) login_pending: Cell<bool>,
    ended_by: Cell<Option<CloseReason>>,
    born: Moment,
    waiting: Signal,
}

/// What only some relays need of a connection: behind a proxy, with bounds by address, with rates.
#[derive(Default)]
pub(super) struct Rare {
    /// For whom the peer speaks, if for another.
    client: Option<IpAddr>,
    /// Where it is counted among those of its address.
    place: Option<Place>,
    /// What it may still send, once it has sent something that is measured.
    pub(super) meter: Option<Meter>,
}

// What a connection at rest costs, with its two counts: one of the allocator's sizes.
const _: () = assert!(size_of::<Conn>() + 2 * size_of::<usize>() <= 224);

impl Conn {
    /// Wraps an accepted socket. `serial` must be new on this shard.
    pub fn new(
        socket: Socket,
        peer: SocketAddr,
        serial: u32,
        challenge: Challenge,
        now: Instant,
    ) -> Rc<Conn> {
        Rc::new(Conn {
            peer: peer.into(),
            rare: Cell::default(),
            serial,
            in_flight: Cell::new(0),
            counted: Cell::new(false),
            socket,
            key: Cell::new(u32::MAX),
            phase: Cell::new(Phase::Head),
            outbox: RefCell::default(),
            writing: Cell::new(false),
            resting: Cell::new(false),
            unwritten: Cell::new(0),
            held_bytes: Cell::new(0),
            counted_bytes: Cell::new(0),
            over_soft_since: Cell::new(None),
            filter_values: Cell::new(0),
            subs: RefCell::default(),
            reads: Cell::default(),
            deadline: Cell::new((now + HEAD_WAIT).into()),
            pings_unanswered: Cell::new(0),
            peer_done: Cell::new(false),
            stand: Cell::default(),
            challenge,
            attempted: Cell::new(false),
            keys: Cell::default(),
            login_end: Cell::new(None),
            login_pending: Cell::new(false),
            ended_by: Cell::new(None),
            born: now.into(),
            waiting: Signal::default(),
        })
    }

    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer.address()
    }

    /// Who its client is: the peer, or whom a trusted proxy speaks for.
    pub fn client(&self) -> IpAddr {
        let rare = self.rare.take();
        let client = rare.as_ref().and_then(|rare| rare.client);
        self.rare.set(rare);
        client.unwrap_or_else(|| self.peer().ip())
    }

    /// Called when the peer has said for whom it speaks.
    pub fn speaks_for(&self, client: IpAddr) {
        if client != self.peer().ip() {
            self.with_rare(|rare| rare.client = Some(client));
        }
    }

    /// What is seldom there, made if it is not.
    pub(super) fn with_rare<T>(&self, work: impl FnOnce(&mut Rare) -> T) -> T {
        let mut rare = self.rare.take().unwrap_or_default();
        let done = work(&mut rare);
        self.rare.set(Some(rare));
        done
    }

    /// The slot in the shard's table.
    pub fn key(&self) -> u32 {
        self.key.get()
    }

    /// Called once, when the table has given a slot.
    pub fn set_key(&self, key: u32) {
        self.key.set(key);
    }

    /// Where it is counted among those of its address, instead of before.
    pub fn set_place(&self, place: Option<Place>) {
        if place.is_some() {
            self.with_rare(|rare| rare.place = place);
        } else if let Some(mut rare) = self.rare.take() {
            rare.place = None;
            self.rare.set(Some(rare));
        }
    }

    /// How far the connection is.
    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// The upgrade was answered: from now on pings are due, and a login where one is required.
    pub fn opened(&self, now: Instant, config: &Config) {
        debug_assert!(self.phase.get() == Phase::Head, "opened once");
        self.phase.set(Phase::Open);
        self.deadline.set((now + config.ping).into());
        if config.login_required() {
            self.login_end.set(Some((now + LOGIN_WAIT).into()));
        }
    }

    /// Whether a close was started or the connection cut.
    pub fn has_ended(&self) -> bool {
        self.phase.get() > Phase::Open
    }

    /// Why it ended, once it has.
    pub fn ended_by(&self) -> Option<CloseReason> {
        self.ended_by.get()
    }

    /// What log lines call it: unique while the process lives.
    pub fn name(&self, shard: &Shard) -> String {
        format!("{}-{}", shard.id, self.serial)
    }

    /// How long it has existed.
    pub fn age(&self) -> Duration {
        self.born.instant().elapsed()
    }

    /// The peer answered a ping.
    pub fn ponged(&self) {
        self.pings_unanswered.set(0);
    }

    /// Bytes queued, being written, or held back until a history ends.
    pub fn backlog(&self) -> usize {
        self.outbox.borrow().bytes() + self.unwritten.get() + self.held_bytes.get()
    }

    /// Queues with `push` unless a close was started, and sees to it that a writer runs.
    /// Returns whether it was queued.
    pub fn send(self: &Rc<Self>, shard: &Rc<Shard>, push: impl FnOnce(&mut Batch)) -> bool {
        if self.phase.get() > Phase::Open {
            return false;
        }
        self.queue(shard, push);
        self.write_soon(shard);
        self.within_bounds(shard)
    }

    /// Starts a close: what is queued except live events goes out, then the Close frame with
    /// `code`, or a bare one; then the write side is shut and input discarded. The first close
    /// wins. Returns whether this one did.
    pub fn close(
        self: &Rc<Self>,
        shard: &Rc<Shard>,
        why: CloseReason,
        code: Option<u16>,
        text: &str,
    ) -> bool {
        if self.phase.get() >= Phase::Closing {
            return false;
        }
        if self.phase.get() == Phase::Open {
            let dropped = self.outbox.borrow_mut().drop_live();
            self.count_dropped(shard, why, dropped);
            self.queue(shard, |batch| {
                batch.push_with(|out| frame::write_close(out, code, text));
            });
        }
        shard.metrics.closes.of(why).increment(1);
        self.ended_by.set(Some(why));
        self.leave(shard);
        true
    }

    /// The peer's stream has ended without a Close frame. It may have shut its write side only, and
    /// still read: so it gets what it was answered, and a bare close.
    /// Nothing happens if a close was started already.
    pub fn stream_ended(self: &Rc<Self>, shard: &Rc<Shard>) {
        if self.close(shard, CloseReason::Lost, None, "") {
            self.set_peer_done();
        }
    }

    /// Ends an HTTP exchange: what `answer` appends goes out, then as after a Close frame.
    pub fn finish_http(self: &Rc<Self>, shard: &Rc<Shard>, answer: impl FnOnce(&mut Vec<u8>)) {
        if self.phase.get() == Phase::Head {
            self.queue(shard, |batch| batch.push_with(answer));
            self.leave(shard);
        }
    }

    /// Ends the connection without another word: the peer is gone, or its time is over.
    pub fn cut(self: &Rc<Self>, shard: &Rc<Shard>, why: CloseReason) {
        if self.phase.get() == Phase::Open {
            shard.metrics.closes.of(why).increment(1);
            self.ended_by.set(Some(why));
            self.drop_subs(shard);
        }
        if self.phase.get() < Phase::Cut {
            self.phase.set(Phase::Cut);
            self.recount(shard);
            shard.was_cut(self);
            self.socket.shutdown(Shutdown::Both);
        }
        self.waiting.wake();
    }

    /// What is due by now: pings, deadlines, a queue too large for too long.
    pub fn sweep(self: &Rc<Self>, shard: &Rc<Shard>, now: Instant) {
        if self.phase.get() == Phase::Open {
            if self.is_over_soft_too_long(shard, now) {
                return self.overflow(shard);
            }
            if self.login_pending.get() {
                // Its socket is not read while a login waits, so its end is not noticed either.
                if self.socket.peer_has_left() {
                    return self.stream_ended(shard);
                }
            } else if self
                .login_end
                .get()
                .is_some_and(|end| Moment::from(now) >= end)
            {
                self.close(shard, CloseReason::AuthTimeout, None, "");
                return;
            }
        }
        if Moment::from(now) < self.deadline.get() {
            return;
        }
        match self.phase.get() {
            Phase::Head => {
                shard
                    .metrics
                    .upgrades_refused
                    .of(UpgradeRefusal::Timeout)
                    .increment(1);
                self.cut(shard, CloseReason::Lost);
            }
            Phase::Open if self.pings_unanswered.get() >= PINGS_UNANSWERED_MAX => {
                let text = "pings went unanswered";
                self.close(
                    shard,
                    CloseReason::Unresponsive,
                    Some(close::GOING_AWAY),
                    text,
                );
            }
            Phase::Open => {
                self.pings_unanswered.set(self.pings_unanswered.get() + 1);
                self.deadline.set((now + shard.config().ping).into());
                self.send(shard, |batch| {
                    batch.push_with(|out| frame::write_frame(out, Opcode::Ping, b""));
                });
            }
            Phase::Closing | Phase::Told => self.cut(shard, CloseReason::Lost),
            Phase::Cut => {}
        }
    }

    /// Waits until something changed that the reader or a history read may wait for: an answer of
    /// the store, room in the queue, the end.
    pub async fn changed(&self) {
        self.waiting.wait().await;
    }

    /// Waits until a read may find something.
    pub async fn readable(&self) {
        while !self.socket.may_read() {
            self.changed().await;
        }
    }

    /// Whether nothing is half read or waited for, so that the connection has no reader.
    pub fn is_resting(&self) -> bool {
        self.resting.get()
    }

    /// See [`Conn::is_resting`].
    pub fn set_resting(&self, resting: bool) {
        self.resting.set(resting);
    }

    /// The peer sent its Close frame, or its end: nothing more is read from it.
    pub fn peer_is_done(&self) -> bool {
        self.peer_done.get()
    }

    /// See [`Conn::peer_is_done`].
    pub fn set_peer_done(&self) {
        self.peer_done.set(true);
    }

    /// Wakes whoever waits in [`Conn::changed`].
    pub fn wake(&self) {
        self.waiting.wake();
    }

    /// The reader may be waiting for the socket. It need not be woken: whatever comes next is read
    /// in the new phase, which discards it.
    fn leave(self: &Rc<Self>, shard: &Rc<Shard>) {
        self.phase.set(Phase::Closing);
        self.drop_subs(shard);
        self.recount(shard);
        self.deadline.set((Instant::now() + CLOSE_WRITE).into());
        self.write_soon(shard);
        self.waiting.wake();
    }

    /// Appends to what is queued.
    pub(super) fn queue<T>(&self, shard: &Shard, push: impl FnOnce(&mut Batch) -> T) -> T {
        push(self.outbox.borrow_mut().batch(|| shard.spare_batch()))
    }

    pub(super) fn write_soon(self: &Rc<Self>, shard: &Shard) {
        if !self.writing.replace(true) {
            shard.to_write(self.clone());
        }
    }

    /// Writes what is queued, `under_way` first, until nothing is or the socket is full. Then gives
    /// back what is under way.
    fn write(
        self: &Rc<Self>,
        shard: &Rc<Shard>,
        under_way: Option<Box<Batch>>,
    ) -> Option<Box<Batch>> {
        let mut next = under_way;
        loop {
            let mut batch = match next.take() {
                Some(mut batch) => {
                    if self.phase.get() == Phase::Closing {
                        let dropped = batch.cut_down();
                        self.count_dropped(shard, self.why(), dropped);
                    }
                    batch
                }
                None => match self.outbox.borrow_mut().take() {
                    Some(batch) => batch,
                    None => break,
                },
            };
            let written = self.write_batch(shard, &mut batch);
            if matches!(&written, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
                return Some(batch);
            }
            self.unwritten.set(0);
            self.recount(shard);
            if written.is_err() {
                self.cut(shard, CloseReason::Lost);
                let dropped = batch.cut_down() + self.outbox.borrow_mut().drop_live();
                self.count_dropped(shard, self.why(), dropped);
            }
            shard.keep_batch(batch);
            self.waiting.wake();
            if written.is_err() {
                break;
            }
        }
        self.writing.set(false);
        if self.phase.get() == Phase::Closing {
            self.phase.set(Phase::Told);
            shard.flushed(self);
            self.deadline.set((Instant::now() + CLOSE_LINGER).into());
            self.socket.shutdown(Shutdown::Write);
            self.waiting.wake();
        }
        None
    }

    fn write_batch(&self, shard: &Shard, batch: &mut Batch) -> io::Result<()> {
        loop {
            let expired = batch.drop_expired(|| shard.unix_seconds());
            if expired > 0 {
                self.count_expired(shard, expired);
            }
            self.unwritten.set(batch.bytes());
            if batch.bytes() == 0 {
                return Ok(());
            }
            let mut parts = [IoSlice::new(&[]); BATCH_PARTS_MAX];
            let count = batch.parts(&mut parts);
            let sent = self.socket.send(&parts[..count])?;
            batch.advance(sent);
            self.unwritten.set(batch.bytes());
            self.recount(shard);
        }
    }

    fn why(&self) -> CloseReason {
        self.ended_by.get().unwrap_or(CloseReason::Lost)
    }
}

impl Shard {
    fn to_write(&self, conn: Rc<Conn>) {
        let mut conns = self.to_write.borrow_mut();
        conns.push(conn);
        if conns.len() == 1 {
            self.written_soon.wake();
        }
    }

    /// Writes to all connections for which something was queued since it was their turn, and again.
    pub(super) async fn write_queued(self: Rc<Self>) {
        let mut conns = Vec::new();
        loop {
            while self.to_write.borrow().is_empty() {
                self.written_soon.wait().await;
            }
            std::mem::swap(&mut conns, &mut *self.to_write.borrow_mut());
            let mut in_a_row = 0;
            for conn in conns.drain(..) {
                if in_a_row == WRITES_A_TURN_MAX {
                    self.turns.next().await;
                    in_a_row = 0;
                }
                in_a_row += 1;
                self.guard(&conn, || {
                    if let Some(batch) = conn.write(&self, None) {
                        let task = write_slowly(self.clone(), conn.clone(), batch);
                        runtime::spawn(self.guarded(conn.clone(), task));
                    }
                });
            }
        }
    }
}

/// Writes to a socket that is full whenever it has room, until nothing is queued.
async fn write_slowly(shard: Rc<Shard>, conn: Rc<Conn>, batch: Box<Batch>) {
    let mut left = Some(batch);
    while left.is_some() {
        let phase = conn.phase();
        while !conn.socket.may_write() && conn.phase() == phase {
            conn.changed().await;
        }
        left = conn.write(&shard, left);
    }
}

/// Wakes tasks of one connection. Whoever waits looks again at what it waits for.
#[derive(Default)]
pub(super) struct Signal {
    waiting: Cell<Option<Box<Waiting>>>,
}

struct Waiting {
    first: Waker,
    others: Vec<Waker>,
}

impl Signal {
    pub(super) fn wake(&self) {
        if let Some(waiting) = self.waiting.take() {
            waiting.first.wake();
            waiting.others.into_iter().for_each(Waker::wake);
        }
    }

    pub(super) async fn wait(&self) {
        let mut armed = false;
        std::future::poll_fn(|context| {
            if armed {
                return Poll::Ready(());
            }
            armed = true;
            let waker = context.waker().clone();
            let waiting = match self.waiting.take() {
                Some(mut waiting) => {
                    waiting.others.push(waker);
                    waiting
                }
                None => Box::new(Waiting {
                    first: waker,
                    others: Vec::new(),
                }),
            };
            self.waiting.set(Some(waiting));
            Poll::Pending
        })
        .await;
    }
}
