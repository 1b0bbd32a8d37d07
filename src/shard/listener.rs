//! Listening sockets: bound by the control thread, accepted from by the shards.
//!
//! Each shard has a socket of its own on the same address (SO_REUSEPORT), and the kernel spreads
//! connections over them by hash. That option would also let a second relay share the port in
//! silence, so [`bind`] first asks for the address alone, and holds a lock that settles two
//! processes that start in the same moment.
//!
//! Sockets may also come from elsewhere: from the service manager, or from the relay whose place this
//! process takes. Then there may be more or fewer of them than shards. Each is accepted from by one
//! shard, because a socket that nobody accepts from holds its clients for ever, and one that is
//! closed resets them; a shard that has none gets its clients from the others ([`Shard::accepted`]).
//!
//! An accept that fails never ends anything: it is counted, and accepting pauses and goes on.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::rc::Rc;
use std::time::Instant;

use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};

use crate::limits::{
    ACCEPT_BACKLOG, ACCEPT_PAUSE, ACCEPTS_AT_ONCE_MAX, ACCEPTS_AT_STOP_MAX, BIND_ATTEMPTS_MAX,
    BIND_PAUSE, BIND_WAIT,
};
use crate::metrics::AcceptError;
use crate::shard::Shard;
use crate::shard::runtime::{self, Listener};

/// Sockets that listen for clients, and the lock on their address.
#[derive(Debug)]
pub struct Bound {
    /// The address, with its real port.
    pub address: SocketAddr,
    /// At least one.
    pub listeners: Vec<TcpListener>,
    /// Held for the life of the process, if it has bound the address itself.
    pub lock: Option<UnixListener>,
    /// Whether the service manager keeps the sockets beyond the life of the process.
    pub kept: bool,
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else listens there.
    #[error("{0} is in use by another process; stop it or set BUZZ_BIND_ADDR")]
    InUse(SocketAddr),
    /// Anything else, with the kernel's word for it.
    #[error("cannot listen on {0}: {1}")]
    Failed(SocketAddr, io::Error),
}

/// Binds `count` sockets to `address`. Port 0 picks a free one.
///
/// A relay that was killed leaves its address taken for a moment: the kernel takes its rings down
/// after the process is gone, and they hold the sockets. So an address that is in use although no
/// relay holds its lock is tried again for [`BIND_WAIT`].
///
/// # Errors
///
/// [`BindError::InUse`] if any other process listens there, also one that would share the port.
pub fn bind(address: SocketAddr, count: usize) -> Result<Bound, BindError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse(address),
        _ => BindError::Failed(address, error),
    };
    if address.port() != 0 {
        let lock = lock(address).map_err(failed)?;
        let until = Instant::now() + BIND_WAIT;
        loop {
            match share(address, count) {
                Ok(listeners) => {
                    return Ok(Bound {
                        address,
                        listeners,
                        lock: Some(lock),
                        kept: false,
                    });
                }
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    return Err(failed(error));
                }
                Err(error) if Instant::now() >= until => return Err(failed(error)),
                Err(_) => std::thread::sleep(BIND_PAUSE),
            }
        }
    }
    let mut attempts = 0;
    loop {
        let free = socket(address, false).and_then(|socket| socket.local_addr());
        let real = free.map_err(failed)?.as_socket().unwrap_or(address);
        attempts += 1;
        match lock(real).and_then(|lock| Ok((lock, share(real, count)?))) {
            Ok((lock, listeners)) => {
                return Ok(Bound {
                    address: real,
                    listeners,
                    lock: Some(lock),
                    kept: false,
                });
            }
            // Somebody took the port between two calls: take another.
            Err(_) if attempts < BIND_ATTEMPTS_MAX => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Binds `count` sockets more to an address whose lock the caller holds.
///
/// # Errors
///
/// What the kernel says.
pub fn bind_more(address: SocketAddr, count: usize) -> io::Result<Vec<TcpListener>> {
    (0..count)
        .map(|_| socket(address, true).map(TcpListener::from))
        .collect()
}

/// Gives each of so many shards its sockets.
pub fn deal(listeners: Vec<TcpListener>, shards: usize) -> Vec<Vec<TcpListener>> {
    let mut dealt: Vec<Vec<TcpListener>> = (0..shards).map(|_| Vec::new()).collect();
    for (number, listener) in listeners.into_iter().enumerate() {
        dealt[number % shards].push(listener);
    }
    dealt
}

/// Makes sure that the address is nobody's, then binds all sockets to it.
fn share(address: SocketAddr, count: usize) -> io::Result<Vec<TcpListener>> {
    drop(socket(address, false)?);
    bind_more(address, count)
}

fn socket(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // Without this, connections of an earlier process in TIME_WAIT would keep the port.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    if shared {
        socket.listen(ACCEPT_BACKLOG)?;
    }
    Ok(socket)
}

/// A name in the network namespace that only one process can hold, gone with the process.
fn lock(address: SocketAddr) -> io::Result<UnixListener> {
    let name = format!("buzz-uring/listen/{address}");
    UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?)
}

/// Accepts connections for as long as the shard wants them.
pub async fn accept(shard: Rc<Shard>, listener: Rc<Listener>) {
    shard.be_woken_to_leave().await;
    while shard.accepting.get() {
        match shard.unless_left(listener.readable()).await {
            // The listener was stopped or left under this wait.
            _ if !shard.accepting.get() => return,
            None => return,
            Some(Ok(())) => {}
            Some(Err(error)) => failed(&shard, &error).await,
        }
        let mut count = 0;
        while shard.accepting.get() && count < ACCEPTS_AT_ONCE_MAX {
            if shard.has_enough_unupgraded() {
                // Who comes now waits in the kernel's queue until silent ones have had their time.
                runtime::sleep(ACCEPT_PAUSE).await;
                break;
            }
            match listener.accept() {
                Ok((socket, peer)) => shard.accepted(socket, peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => failed(&shard, &error).await,
            }
            count += 1;
        }
    }
}

/// Takes whoever waits to be accepted, so that each is answered, and stops listening. A socket that
/// is closed with clients in its queue resets them.
pub fn stop(shard: &Rc<Shard>, listener: &Listener) {
    for _ in 0..ACCEPTS_AT_STOP_MAX {
        match listener.accept() {
            // Kept here: another shard may have counted already.
            Ok((socket, peer)) => shard.keep(socket, peer),
            Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => {}
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    tracing::warn!(shard = shard.id, %error, "clients that waited are reset");
                }
                break;
            }
        }
    }
    listener.stop();
}

/// Lets no further handshake begin on a listening socket, while those that have begun go on. So when
/// its queue is emptied and it closes a moment later, no client is left between the two: one that
/// the kernel has told that it is connected, and whose socket then is reset.
///
/// # Errors
///
/// If the kernel takes no filter; then such a client may be reset.
pub fn refuse_handshakes(listener: &TcpListener) -> io::Result<()> {
    // The filter sees a segment from its TCP header on. Byte 13 holds the flags, SYN is its second.
    // Accepted sockets inherit it and never see such a segment.
    let step = |code: u32, otherwise: u8, k: u32| SockFilter::new(code as u16, 0, otherwise, k);
    let whole = u32::MAX;
    SockRef::from(listener).attach_filter(&[
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 13),
        step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 1, 0x02),
        step(libc::BPF_RET | libc::BPF_K, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, 0, whole),
    ])
}

async fn failed(shard: &Shard, error: &io::Error) {
    let kind = match error.raw_os_error() {
        Some(libc::EMFILE) => AcceptError::ProcessDescriptors,
        Some(libc::ENFILE) => AcceptError::MachineDescriptors,
        Some(libc::ECONNABORTED) => AcceptError::Aborted,
        _ => AcceptError::Other,
    };
    shard.metrics.accept_errors.of(kind).increment(1);
    // A client that gave up before it was accepted says nothing about the next one.
    if kind != AcceptError::Aborted {
        tracing::warn!(shard = shard.id, %error, "accepting pauses");
        runtime::sleep(ACCEPT_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loopback(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn all_sockets_share_one_real_port() {
        let bound = bind(loopback(0), 4).expect("bind");
        assert_ne!(bound.address.port(), 0);
        for listener in &bound.listeners {
            assert_eq!(listener.local_addr().expect("address"), bound.address);
        }
    }

    #[test]
    fn a_handshake_that_has_begun_is_finished_and_none_begins_any_more() {
        let bound = bind(loopback(0), 1).expect("bind");
        let listener = &bound.listeners[0];
        let mut early = std::net::TcpStream::connect(bound.address).expect("connect");
        refuse_handshakes(listener).expect("a filter");
        let late = std::net::TcpStream::connect_timeout(
            &bound.address,
            std::time::Duration::from_millis(300),
        );
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let (mut accepted, _) = listener.accept().expect("the early one");
        io::Write::write_all(&mut early, b"hello").expect("write");
        let mut bytes = [0; 5];
        io::Read::read_exact(&mut accepted, &mut bytes).expect("read");
        assert_eq!(&bytes, b"hello");
    }

    #[test]
    fn a_second_relay_is_refused() {
        let bound = bind(loopback(0), 2).expect("bind");
        let second = bind(bound.address, 2);
        assert!(matches!(second, Err(BindError::InUse(_))), "{second:?}");
        let port = bound.address.port();
        drop(bound);
        bind(loopback(port), 2).expect("free again");
    }

    #[test]
    fn the_lock_alone_refuses_a_twin_that_has_not_bound_yet() {
        let bound = bind(loopback(0), 1).expect("bind");
        let Bound {
            address,
            listeners,
            lock,
            ..
        } = bound;
        drop(listeners);
        let twin = bind(address, 1);
        assert!(matches!(twin, Err(BindError::InUse(_))), "{twin:?}");
        drop(lock);
        bind(address, 1).expect("free again");
    }

    #[test]
    fn every_socket_has_a_shard_whatever_their_numbers() {
        let bound = bind(loopback(0), 5).expect("bind");
        let mut all = bound.listeners;
        all.extend(bind_more(bound.address, 2).expect("more"));
        let handles = |dealt: &[Vec<TcpListener>]| dealt.iter().map(Vec::len).collect::<Vec<_>>();
        let dealt = deal(all, 3);
        assert_eq!(handles(&dealt), [3, 2, 2]);
        let dealt = deal(dealt.into_iter().flatten().collect(), 9);
        assert_eq!(handles(&dealt), [1, 1, 1, 1, 1, 1, 1, 0, 0]);
    }

    #[test]
    fn any_other_listener_is_refused_too() {
        let other = TcpListener::bind(loopback(0)).expect("bind");
        let address = other.local_addr().expect("address");
        assert!(matches!(bind(address, 1), Err(BindError::InUse(_))));
    }

    #[test]
    fn an_address_of_another_machine_is_named_in_the_error() {
        let address = SocketAddr::from(([192, 0, 2, 1], 3_000));
        let error = bind(address, 1).expect_err("not ours").to_string();
        assert!(error.contains("192.0.2.1:3000"), "{error}");
    }
}
