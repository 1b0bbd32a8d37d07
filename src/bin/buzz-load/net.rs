//! Connections to a relay: one thread, one epoll, non-blocking sockets.
//!
//! Kept cheap on purpose: one buffer for all reads, messages borrowed from it, a connection's
//! writes gathered into one send after each of its reads. What happened is told to the workload
//! that owns the connection; a workload never waits.

mod reactor;
mod target;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags};
use slab::Slab;

use crate::codec::{self, Decoder, Opcode};
use crate::limits;
use crate::schedule::Nanos;

pub use reactor::Reactor;
pub use target::Target;

/// A connection. Never used twice: an answer that comes late finds no one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnId(u64);

impl ConnId {
    /// No connection.
    pub const NONE: ConnId = ConnId(u64::MAX);
    /// A place for a connection that is opened later; it names none either.
    pub const PLACE: ConnId = ConnId(u64::MAX - 1);

    /// Any connection, for tests without a network.
    #[cfg(test)]
    pub fn test(number: u32) -> ConnId {
        ConnId(u64::from(number))
    }

    fn slot(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }
}

/// What happened on a connection.
#[derive(Debug)]
pub enum Event<'a> {
    /// It was upgraded.
    Opened,
    /// A text message came; its UTF-8 is not checked.
    Text(&'a [u8]),
    /// A pong came.
    Pong(&'a [u8]),
    /// It is gone, or could not be opened; why.
    Closed(&'a str),
}

/// A happening for the workload `owner`, on its connection `tag`.
#[derive(Debug)]
pub struct Notice<'a> {
    /// The workload.
    pub owner: usize,
    /// Its own number for the connection.
    pub tag: u32,
    /// The connection.
    pub conn: ConnId,
    /// What happened.
    pub event: Event<'a>,
}

enum State {
    Connecting,
    Upgrading { key: String },
    Open,
}

struct Conn {
    id: ConnId,
    socket: OwnedFd,
    owner: usize,
    tag: u32,
    state: State,
    since: Nanos,
    decoder: Decoder,
    /// Bytes of an unfinished frame.
    rest: Vec<u8>,
    out: Vec<u8>,
    sent: usize,
    /// Whether the kernel tells when there is room to write.
    waits_for_room: bool,
    /// Whether it stands in `Net::dirty`.
    dirty: bool,
}

/// All connections of a run.
pub struct Net {
    epoll: OwnedFd,
    conns: Slab<Conn>,
    next_generation: u64,
    target: Target,
    sources: u32,
    next_source: u32,
    /// Asked for and not begun: owner and tag.
    asked: VecDeque<(usize, u32)>,
    opening: usize,
    dirty: Vec<ConnId>,
    broken: Vec<(ConnId, String)>,
    random: fastrand::Rng,
    /// Bytes read since the start.
    pub received_bytes: u64,
}

impl Net {
    /// No connections yet. `sources` is the number of loopback addresses to connect from; 0 leaves
    /// the choice to the kernel, as does a relay that is not on this machine's loopback.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(target: Target, sources: u32) -> io::Result<Net> {
        let loopback = matches!(target.address.ip(), IpAddr::V4(ip) if ip.is_loopback());
        Ok(Net {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            conns: Slab::new(),
            next_generation: 0,
            target,
            sources: if loopback {
                sources.min(limits::SOURCES_MAX)
            } else {
                0
            },
            next_source: 0,
            asked: VecDeque::new(),
            opening: 0,
            dirty: Vec::new(),
            broken: Vec::new(),
            random: fastrand::Rng::new(),
            received_bytes: 0,
        })
    }

    /// Asks for one more connection. It is begun when fewer than [`limits::OPENING_MAX`] are on
    /// their way; `Opened` or `Closed` follows.
    pub fn open(&mut self, owner: usize, tag: u32) {
        self.asked.push_back((owner, tag));
    }

    /// Queues a text message. Nothing happens when the connection is gone: `Closed` was told.
    pub fn send(&mut self, id: ConnId, text: &[u8]) {
        self.frame(id, Opcode::Text, text);
    }

    /// Queues a ping.
    pub fn ping(&mut self, id: ConnId, payload: &[u8]) {
        self.frame(id, Opcode::Ping, payload);
    }

    /// Ends a connection, with a Close frame before if asked; no `Closed` follows.
    pub fn close(&mut self, id: ConnId, with_frame: bool) {
        if with_frame {
            self.frame(id, Opcode::Close, &1_000_u16.to_be_bytes());
            self.flush_one(id);
        }
        self.remove(id);
    }

    fn get(&self, id: ConnId) -> Option<&Conn> {
        self.conns.get(id.slot()).filter(|conn| conn.id == id)
    }

    fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(id.slot()).filter(|conn| conn.id == id)
    }

    fn frame(&mut self, id: ConnId, opcode: Opcode, payload: &[u8]) {
        let mask = self.random.u32(..).to_ne_bytes();
        let Some(conn) = self.get_mut(id) else { return };
        codec::write_frame(&mut conn.out, opcode, payload, mask);
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push(id);
        }
    }

    /// Begins connections that were asked for, as many as may be on their way.
    fn begin(&mut self, now: Nanos, mut tell: impl FnMut(&mut Net, Notice<'_>)) {
        while self.opening < limits::OPENING_MAX {
            let Some((owner, tag)) = self.asked.pop_front() else {
                break;
            };
            if let Err(error) = self.connect(owner, tag, now) {
                let why = format!("connect: {error}");
                tell(
                    self,
                    Notice {
                        owner,
                        tag,
                        conn: ConnId::NONE,
                        event: Event::Closed(&why),
                    },
                );
            }
        }
    }

    fn connect(&mut self, owner: usize, tag: u32, now: Nanos) -> io::Result<()> {
        let family = if self.target.address.is_ipv4() {
            rustix::net::AddressFamily::INET
        } else {
            rustix::net::AddressFamily::INET6
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(family, rustix::net::SocketType::STREAM, flags, None)?;
        rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
        if self.sources > 0 {
            let host = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 0, 0, 2)) + self.next_source);
            self.next_source = (self.next_source + 1) % self.sources;
            rustix::net::bind(&socket, &SocketAddrV4::new(host, 0))?;
        }
        match rustix::net::connect(&socket, &self.target.address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let entry = self.conns.vacant_entry();
        let id = ConnId((self.next_generation << 32) | entry.key() as u64);
        self.next_generation = (self.next_generation + 1) & 0x7fff_ffff;
        let data = epoll::EventData::new_u64(id.0);
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::OUT)?;
        entry.insert(Conn {
            id,
            socket,
            owner,
            tag,
            state: State::Connecting,
            since: now,
            decoder: Decoder::default(),
            rest: Vec::new(),
            out: Vec::new(),
            sent: 0,
            waits_for_room: true,
            dirty: false,
        });
        self.opening += 1;
        Ok(())
    }

    /// The socket is connected, or not: sends the upgrade request.
    fn connected(&mut self, id: ConnId) -> Result<(), String> {
        let key = codec::key(self.random.u128(..).to_ne_bytes());
        let (host, path) = (self.target.host.clone(), self.target.path.clone());
        let Some(conn) = self.get_mut(id) else {
            return Ok(());
        };
        match rustix::net::sockopt::socket_error(&conn.socket) {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => return Err(format!("connect: {error}")),
        }
        codec::write_request(&mut conn.out, &host, &path, &key);
        conn.state = State::Upgrading { key };
        self.flush_one(id);
        Ok(())
    }

    fn remove(&mut self, id: ConnId) -> Option<(usize, u32)> {
        let open = matches!(self.get(id)?.state, State::Open);
        let conn = self.conns.remove(id.slot());
        if !open {
            self.opening -= 1;
        }
        // Closing the descriptor takes it off the epoll as well.
        Some((conn.owner, conn.tag))
    }

    /// Sends what is queued on one connection; asks for a notice of room when it does not all fit.
    fn flush_one(&mut self, id: ConnId) {
        let epoll = &self.epoll;
        let Some(conn) = self.conns.get_mut(id.slot()).filter(|conn| conn.id == id) else {
            return;
        };
        conn.dirty = false;
        while conn.sent < conn.out.len() {
            match rustix::net::send(&conn.socket, &conn.out[conn.sent..], SendFlags::NOSIGNAL) {
                Ok(count) => conn.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => {
                    self.broken.push((id, format!("send: {error}")));
                    return;
                }
            }
        }
        let full = conn.sent < conn.out.len();
        if !full {
            conn.out.clear();
            conn.sent = 0;
        }
        if full != conn.waits_for_room {
            conn.waits_for_room = full;
            let mut interest = epoll::EventFlags::IN;
            interest.set(epoll::EventFlags::OUT, full);
            if let Err(error) = epoll::modify(
                epoll,
                &conn.socket,
                epoll::EventData::new_u64(id.0),
                interest,
            ) {
                self.broken.push((id, format!("epoll: {error}")));
            }
        }
    }

    fn flush(&mut self) {
        while let Some(id) = self.dirty.pop() {
            self.flush_one(id);
        }
    }
}
