//! Connected sockets, and who of a shard's connections has something to read or room to write.
//!
//! Nothing is in flight for a connection: bytes are moved by calls that do not block, and all
//! sockets of a shard are in one set of the kernel's (epoll), which the shard's ring waits for as
//! one descriptor. So a connection at rest needs no task, no operation and no buffer, and a burst
//! to a thousand of them no thousand tasks. Measured with 1 000 sockets, a vectored send of two parts
//! costs the same whether a submission of a thousand or a call of its own asks for it.
//!
//! The set reports a change once (edge-triggered): what was reported is remembered by the socket
//! until a call finds that it is over.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::limits::READY_AT_ONCE_MAX;
use crate::shard::runtime::{Pollable, Turns};

/// A connected TCP socket.
pub struct Socket {
    fd: OwnedFd,
    state: Cell<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    may_read: bool,
    may_write: bool,
    /// The peer's end or an error was reported: no further report comes, so reads go on up to it.
    ended: bool,
}

impl Socket {
    /// Takes over an accepted socket and switches off Nagle's algorithm.
    pub fn adopt(fd: OwnedFd) -> Socket {
        // A socket that its peer has reset already answers EINVAL; the first read will tell.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&fd, true);
        let state = Cell::new(State {
            may_read: false,
            may_write: true,
            ended: false,
        });
        Socket { fd, state }
    }

    /// Whether a read may find something.
    pub fn may_read(&self) -> bool {
        self.state.get().may_read
    }

    /// Whether a write may find room.
    pub fn may_write(&self) -> bool {
        self.state.get().may_write
    }

    /// Takes note of what was reported.
    pub fn report(&self, flags: EventFlags) {
        let mut state = self.state.get();
        let ended = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        state.ended |= flags.intersects(ended);
        state.may_read |= state.ended || flags.contains(EventFlags::IN);
        state.may_write |= state.ended || flags.contains(EventFlags::OUT);
        self.state.set(state);
    }

    /// Reads what is there into `buffer` without waiting. 0 is the peer's end.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when nothing is there, else the socket's error.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state.get();
        if !state.may_read {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let space = buffer.len();
        let received = rustix::net::recv(&self.fd, buffer, RecvFlags::DONTWAIT);
        let received = received.map(|(length, _)| length).map_err(io::Error::from);
        state.ended |= matches!(received, Ok(0));
        // Less than there was room for is all there was; what comes later is reported.
        state.may_read = match &received {
            Ok(length) => *length == space || state.ended,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        self.state.set(state);
        received
    }

    /// Writes as much of these parts as there is room for.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when there is none, else the socket's error.
    pub fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut none = SendAncillaryBuffer::default();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = rustix::net::sendmsg(&self.fd, parts, &mut none, flags);
        let sent = sent.map_err(io::Error::from);
        if let Err(error) = &sent {
            let mut state = self.state.get();
            state.may_write = error.kind() != io::ErrorKind::WouldBlock;
            self.state.set(state);
        }
        sent
    }

    /// Ends one or both directions now. The end is reported like the peer's.
    pub fn shutdown(&self, how: Shutdown) {
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        // Already gone is as good as shut down.
        let _ = rustix::net::shutdown(&self.fd, how);
    }

    /// Whether the peer has closed its side or reset the connection. Looks past unread bytes.
    pub fn peer_has_left(&self) -> bool {
        let mut polled = [PollFd::new(&self.fd, PollFlags::RDHUP)];
        let now = Timespec::default();
        rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|count| count > 0)
    }
}

/// The sockets of a shard's connections, and a name for each.
pub struct Sockets {
    set: Pollable,
}

/// What was reported of which socket.
pub type Report = epoll::Event;

impl Sockets {
    /// An empty set.
    ///
    /// # Errors
    ///
    /// If the kernel has no descriptor left.
    pub fn new() -> io::Result<Sockets> {
        let set = Pollable::adopt(epoll::create(CreateFlags::CLOEXEC)?)?;
        Ok(Sockets { set })
    }

    /// From now on what happens to `socket` is reported under `name`, until it is dropped.
    ///
    /// # Errors
    ///
    /// If the kernel has no memory left.
    pub fn add(&self, socket: &Socket, name: u64) -> io::Result<()> {
        let changes = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.set, &socket.fd, EventData::new_u64(name), changes)?;
        Ok(())
    }

    /// Waits until there is something to report, and puts some of it into `reports`, which is
    /// empty. The shard has a turn in between, whatever comes.
    pub async fn next(&self, turns: &Turns, reports: &mut Vec<Report>) {
        debug_assert!(reports.is_empty() && reports.capacity() >= READY_AT_ONCE_MAX);
        loop {
            if self.set.readable().await.is_err() {
                turns.next().await;
            }
            let space = rustix::buffer::spare_capacity(reports);
            // Interrupted, or nothing after all: it is asked again.
            let taken = epoll::wait(self.set.as_fd(), space, Some(&Timespec::default()));
            if taken.is_ok_and(|count| count > 0) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::shard::runtime;
    use crate::shard::runtime::tests::{drivers, on_shard, pair};
    use std::rc::Rc;
    use std::time::Duration;

    /// Waits until `socket`, the only one, is as it should be.
    async fn until(sockets: &Sockets, turns: &Turns, socket: &Socket, is: fn(&Socket) -> bool) {
        let mut reports = Vec::with_capacity(READY_AT_ONCE_MAX);
        while !is(socket) {
            sockets.next(turns, &mut reports).await;
            for report in reports.drain(..) {
                let (name, flags) = (report.data.u64(), report.flags);
                assert_eq!(name, 7);
                socket.report(flags);
            }
        }
    }

    #[test]
    fn what_comes_is_reported_once_and_read_up_to_the_end() {
        for driver in drivers() {
            on_shard(driver, move || async move {
                let turns = Turns::start(driver).expect("eventfd");
                let (server, mut client) = pair();
                let (socket, sockets) = (Socket::adopt(server), Sockets::new().expect("a set"));
                sockets.add(&socket, 7).expect("added");
                let mut buffer = [0; 4];
                let nothing = socket.receive(&mut buffer).expect_err("nothing");
                assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
                client.write_all(b"hello").expect("write");
                until(&sockets, &turns, &socket, Socket::may_read).await;
                assert_eq!(socket.receive(&mut buffer).expect("bytes"), 4);
                assert!(socket.may_read(), "there may be more");
                assert_eq!(socket.receive(&mut buffer).expect("bytes"), 1);
                assert!(!socket.may_read());
                client.write_all(b"bye").expect("write");
                drop(client);
                until(&sockets, &turns, &socket, |socket| {
                    socket.may_read() && socket.state.get().ended
                })
                .await;
                assert_eq!(socket.receive(&mut buffer).expect("bytes"), 3);
                assert!(socket.may_read(), "the end is not reported again");
                assert_eq!(socket.receive(&mut buffer).expect("the end"), 0);
                assert!(socket.may_read());
            });
        }
    }

    #[test]
    fn a_full_socket_reports_when_it_has_room() {
        for driver in drivers() {
            on_shard(driver, move || async move {
                let turns = Turns::start(driver).expect("eventfd");
                let (server, mut client) = pair();
                let (socket, sockets) = (Socket::adopt(server), Sockets::new().expect("a set"));
                sockets.add(&socket, 7).expect("added");
                let bytes = vec![1; 64 << 10];
                let mut sent = 0;
                while socket.may_write() {
                    sent += socket.send(&[IoSlice::new(&bytes)]).unwrap_or(0);
                }
                let reader = std::thread::spawn(move || {
                    let mut all = Vec::new();
                    client.read_to_end(&mut all).map(|_| all.len())
                });
                until(&sockets, &turns, &socket, Socket::may_write).await;
                socket.shutdown(Shutdown::Write);
                while !reader.is_finished() {
                    runtime::sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(reader.join().expect("no panic").expect("read"), sent);
            });
        }
    }

    #[test]
    fn a_shutdown_is_reported() {
        for driver in drivers() {
            on_shard(driver, move || async move {
                let turns = Turns::start(driver).expect("eventfd");
                let (server, _client) = pair();
                let (socket, sockets) = (Socket::adopt(server), Sockets::new().expect("a set"));
                sockets.add(&socket, 7).expect("added");
                let socket = Rc::new(socket);
                let other = socket.clone();
                runtime::spawn(async move {
                    runtime::sleep(Duration::from_millis(1)).await;
                    other.shutdown(Shutdown::Both);
                });
                until(&sockets, &turns, &socket, Socket::may_read).await;
                assert_eq!(socket.receive(&mut [0; 8]).expect("end"), 0);
            });
        }
    }
}
