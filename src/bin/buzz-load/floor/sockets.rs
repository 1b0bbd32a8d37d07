//! The floors made of system calls on loopback sockets.
//!
//! One thread stands for the relay and is measured; its peer, on another core, keeps it busy. Both
//! are as plain as can be: no queue, no parsing, no timer.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use rustix::event::epoll;

use super::{Cost, Options, median};
use crate::limits;
use crate::usage;

/// A subscriber's header of its own, and the event that all share.
const HEADER_BYTES: usize = 24;
const EVENT_BYTES: usize = 700;
/// Connections of one batch of the accept floor: below any accept queue.
const ACCEPT_BATCH: usize = 32;
/// Connections of the reply floor.
const REPLY_CONNECTIONS: usize = 50;
const REQUEST_BYTES: usize = 64;
/// Bytes of an upgrade's answer.
const UPGRADE_BYTES: usize = 129;

/// A vectored send to each of `count` sockets, `burst` events in it.
pub fn sends(options: &Options, count: usize, burst: usize) -> io::Result<Cost> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let (ours, theirs) = pairs(&listener, count)?;
    let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let peer = scope.spawn(|| {
            options.peer_core.into_iter().for_each(usage::pin);
            drain(&theirs, &received, &over)
        });
        let cost = scope.spawn(|| {
            let cost = send_rounds(options, &ours, burst, &received);
            over.store(true, Ordering::Relaxed);
            cost
        });
        let cost = join(cost.join())?;
        join(peer.join())?;
        Ok(cost)
    })
}

fn send_rounds(
    options: &Options,
    ours: &[TcpStream],
    burst: usize,
    received: &AtomicU64,
) -> io::Result<Cost> {
    options.relay_core.into_iter().for_each(usage::pin);
    let (header, event) = ([b'h'; HEADER_BYTES], [b'e'; EVENT_BYTES]);
    let parts: Vec<IoSlice<'_>> = (0..burst)
        .flat_map(|_| [IoSlice::new(&header), IoSlice::new(&event)])
        .collect();
    let bytes = burst * (HEADER_BYTES + EVENT_BYTES);
    let (begin, mut rounds, mut sent) = (Instant::now(), Vec::new(), 0);
    while rounds.is_empty() || begin.elapsed().as_secs_f64() < options.seconds {
        let before = usage::cpu_of_thread();
        for mut socket in ours {
            let count = socket.write_vectored(&parts)?;
            if count != bytes {
                return Err(io::Error::other("a socket took less than a burst"));
            }
        }
        let spent = usage::cpu_of_thread().saturating_sub(before);
        rounds.push(spent.as_secs_f64() * 1e6 / (ours.len() * burst) as f64);
        sent += (bytes * ours.len()) as u64;
        while received.load(Ordering::Relaxed) < sent {
            thread::yield_now();
        }
    }
    Ok(Cost {
        count: (rounds.len() * ours.len() * burst) as u64,
        micros: median(rounds),
    })
}

fn drain(theirs: &[TcpStream], received: &AtomicU64, over: &AtomicBool) -> io::Result<()> {
    let set = ReadySet::new(theirs)?;
    let (mut ready, mut buffer) = (Vec::new(), vec![0; limits::READ_BYTES]);
    while !over.load(Ordering::Relaxed) {
        set.wait(&mut ready)?;
        for index in &ready {
            let count = (&theirs[*index]).read(&mut buffer)?;
            received.fetch_add(count as u64, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Accept, read a request, reply, see the peer's end, close.
pub fn accept(options: &Options) -> io::Result<Cost> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let peer = scope.spawn(|| visit(options, address, &over));
        let cost = scope.spawn(|| {
            let cost = accept_rounds(options, &listener);
            over.store(true, Ordering::Relaxed);
            // The peer may have begun another batch, and waits for replies.
            let last = finish_batch(&listener);
            cost.and_then(|cost| last.map(|()| cost))
        });
        let cost = join(cost.join())?;
        join(peer.join())?;
        Ok(cost)
    })
}

fn accept_rounds(options: &Options, listener: &TcpListener) -> io::Result<Cost> {
    options.relay_core.into_iter().for_each(usage::pin);
    let (begin, mut rounds) = (Instant::now(), Vec::new());
    while rounds.is_empty() || begin.elapsed().as_secs_f64() < options.seconds {
        let before = usage::cpu_of_thread();
        accept_batch(listener)?;
        let spent = usage::cpu_of_thread().saturating_sub(before);
        rounds.push(spent.as_secs_f64() * 1e6 / ACCEPT_BATCH as f64);
    }
    Ok(Cost {
        count: (rounds.len() * ACCEPT_BATCH) as u64,
        micros: median(rounds),
    })
}

fn accept_batch(listener: &TcpListener) -> io::Result<()> {
    let mut open = Vec::with_capacity(ACCEPT_BATCH);
    let mut buffer = [0; 4_096];
    for _ in 0..ACCEPT_BATCH {
        let (mut socket, _) = listener.accept()?;
        let _ = socket.read(&mut buffer)?;
        socket.write_all(&[b'r'; UPGRADE_BYTES])?;
        open.push(socket);
    }
    for mut socket in open {
        let _ = socket.read(&mut buffer)?;
    }
    Ok(())
}

/// Serves what is left in the queue once the rounds are over, without waiting for more.
fn finish_batch(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + std::time::Duration::from_millis(200);
    while Instant::now() < deadline {
        match listener.accept() {
            Ok((mut socket, _)) => socket.write_all(&[b'r'; UPGRADE_BYTES])?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The peer: batches of connections, each with its request sent before the relay's side looks.
fn visit(options: &Options, address: SocketAddr, over: &AtomicBool) -> io::Result<()> {
    options.peer_core.into_iter().for_each(usage::pin);
    let mut buffer = [0; UPGRADE_BYTES];
    let mut batch = 0_u32;
    while !over.load(Ordering::Relaxed) {
        batch += 1;
        let mut open = Vec::with_capacity(ACCEPT_BATCH);
        for _ in 0..ACCEPT_BATCH {
            // From many addresses, so that ports in TIME-WAIT do not run out.
            let source = Ipv4Addr::from(
                u32::from(Ipv4Addr::new(127, 0, 0, 2)) + batch % limits::SOURCES_MAX,
            );
            let mut socket = connect_from(source, address)?;
            socket.write_all(&[b'q'; 200])?;
            open.push(socket);
        }
        for socket in &mut open {
            match socket.read_exact(&mut buffer) {
                Err(_) if over.load(Ordering::Relaxed) => return Ok(()),
                other => other?,
            }
        }
    }
    Ok(())
}

fn connect_from(source: Ipv4Addr, address: SocketAddr) -> io::Result<TcpStream> {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((source, 0)).into())?;
    socket.connect(&address.into())?;
    Ok(socket.into())
}

/// Read a request, send `bytes` back, on each of a few dozen connections in turn.
pub fn reply(options: &Options, bytes: usize) -> io::Result<Cost> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let (ours, theirs) = pairs(&listener, REPLY_CONNECTIONS)?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let peer = scope.spawn(|| ask(options, theirs, bytes, &over));
        let cost = scope.spawn(|| {
            let cost = reply_rounds(options, &ours, bytes);
            over.store(true, Ordering::Relaxed);
            // The peer's reads end with the connections.
            ours.iter().for_each(|socket| {
                let _ = socket.shutdown(std::net::Shutdown::Both);
            });
            cost
        });
        let cost = join(cost.join())?;
        join(peer.join())?;
        Ok(cost)
    })
}

fn reply_rounds(options: &Options, ours: &[TcpStream], bytes: usize) -> io::Result<Cost> {
    options.relay_core.into_iter().for_each(usage::pin);
    let (set, page) = (ReadySet::new(ours)?, vec![b'p'; bytes]);
    let (mut ready, mut request) = (Vec::new(), [0; REQUEST_BYTES]);
    let (begin, mut rounds, mut total) = (Instant::now(), Vec::new(), 0);
    while rounds.is_empty() || begin.elapsed().as_secs_f64() < options.seconds {
        // A round is long enough for the clock to be read now and then only.
        let (before, mut count) = (usage::cpu_of_thread(), 0);
        while count < 4 * ours.len() {
            set.wait(&mut ready)?;
            for index in &ready {
                (&ours[*index]).read_exact(&mut request)?;
                (&ours[*index]).write_all(&page)?;
                count += 1;
            }
        }
        let spent = usage::cpu_of_thread().saturating_sub(before);
        rounds.push(spent.as_secs_f64() * 1e6 / count as f64);
        total += count as u64;
    }
    Ok(Cost {
        count: total,
        micros: median(rounds),
    })
}

fn ask(
    options: &Options,
    theirs: Vec<TcpStream>,
    bytes: usize,
    over: &AtomicBool,
) -> io::Result<()> {
    options.peer_core.into_iter().for_each(usage::pin);
    let set = ReadySet::new(&theirs)?;
    let (mut ready, mut buffer) = (Vec::new(), vec![0; limits::READ_BYTES]);
    let mut missing = vec![bytes; theirs.len()];
    theirs
        .iter()
        .try_for_each(|mut socket| socket.write_all(&[b'q'; REQUEST_BYTES]))?;
    while !over.load(Ordering::Relaxed) {
        set.wait(&mut ready)?;
        for index in &ready {
            let mut socket = &theirs[*index];
            let count = match socket.read(&mut buffer) {
                Ok(0) | Err(_) => return Ok(()),
                Ok(count) => count,
            };
            missing[*index] -= count;
            if missing[*index] == 0 {
                missing[*index] = bytes;
                // The other side may be gone by now; the next read tells.
                let _ = socket.write_all(&[b'q'; REQUEST_BYTES]);
            }
        }
    }
    Ok(())
}

/// `count` connections: the accepted ends and the connecting ones.
fn pairs(listener: &TcpListener, count: usize) -> io::Result<(Vec<TcpStream>, Vec<TcpStream>)> {
    let address = listener.local_addr()?;
    let (mut ours, mut theirs) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        theirs.push(TcpStream::connect(address)?);
        ours.push(listener.accept()?.0);
    }
    for socket in ours.iter().chain(&theirs) {
        socket.set_nodelay(true)?;
    }
    Ok((ours, theirs))
}

/// Which of some sockets can be read.
struct ReadySet(std::os::fd::OwnedFd);

impl ReadySet {
    fn new(sockets: &[TcpStream]) -> io::Result<ReadySet> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, socket) in sockets.iter().enumerate() {
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&set, socket.as_fd(), data, epoll::EventFlags::IN)?;
        }
        Ok(ReadySet(set))
    }

    /// Fills `ready` with indexes; leaves it empty when nothing came for a tenth of a second.
    fn wait(&self, ready: &mut Vec<usize>) -> io::Result<()> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 128];
        let tenth = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        let count = match epoll::wait(&self.0, &mut events[..], Some(&tenth)) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        ready.clear();
        ready.extend(events[..count].iter().map(|event| {
            let data = event.data;
            data.u64() as usize
        }));
        Ok(())
    }
}

fn join<T>(joined: thread::Result<io::Result<T>>) -> io::Result<T> {
    joined.unwrap_or_else(|_| Err(io::Error::other("a floor's thread panicked")))
}
