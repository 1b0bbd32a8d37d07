//! Sockets that the service manager has opened for this process (systemd's socket activation):
//! `LISTEN_FDS` of them from descriptor 3 on, for the process `LISTEN_PID`, with the names
//! `LISTEN_FDNAMES` between colons. `health` and `metrics` are those servers'; any other name is for
//! clients.
//!
//! The manager keeps them: while no relay runs, who connects waits in their queues.
#![allow(unsafe_code)]

use std::io;
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};

use crate::limits::SHARDS_MAX;

/// The first of the descriptors, after the standard ones.
const FIRST: i32 = 3;
const VARIABLES: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// What the service manager has opened.
#[derive(Debug, Default)]
pub struct Inherited {
    /// For clients.
    pub public: Vec<TcpListener>,
    /// The health server's.
    pub health: Option<TcpListener>,
    /// The metrics server's.
    pub metrics: Option<TcpListener>,
}

/// Why what was inherited cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    /// No count, or one beyond all bounds.
    #[error("LISTEN_FDS is not a number from 0 to {most}", most = SHARDS_MAX)]
    Count,
    /// Another kind of socket.
    #[error(
        "LISTEN_FDS: {0:?} is no TCP socket that listens; the socket unit needs ListenStream= with \
         a port, and Accept=no"
    )]
    Kind(String),
    /// Two of a kind of which one will do.
    #[error("LISTEN_FDS: there are two sockets of the name {0:?}")]
    Twice(String),
    /// The operating system.
    #[error("LISTEN_FDS: {0:?} cannot be used: {1}")]
    System(String, io::Error),
}

impl Inherited {
    /// Takes the descriptors over and the variables out of the environment.
    ///
    /// # Errors
    ///
    /// See [`InheritError`].
    ///
    /// # Safety
    ///
    /// At most once, while the process has one thread, and before it opens anything: the descriptors
    /// must be those that it was started with, and nobody may read the environment meanwhile.
    pub unsafe fn take() -> Result<Inherited, InheritError> {
        let [pid, count, names] = VARIABLES.map(|name| std::env::var(name).ok());
        for name in VARIABLES {
            // SAFETY: the caller's promise of one thread.
            unsafe { std::env::remove_var(name) };
        }
        let count = count_for(pid.as_deref(), count.as_deref(), std::process::id())?;
        let names = names.unwrap_or_default();
        let mut names = names.split(':');
        let named = (FIRST..FIRST + count).map(|number| {
            let name = names.next().unwrap_or_default().to_owned();
            // SAFETY: only asked about, and closed by nobody meanwhile.
            match fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }) {
                // SAFETY: it is open, for this process, and nobody else here knows of it.
                Ok(_) => Ok((name, unsafe { OwnedFd::from_raw_fd(number) })),
                Err(error) => Err(InheritError::System(name, error.into())),
            }
        });
        Inherited::sort(named.collect::<Result<_, _>>()?)
    }

    fn sort(sockets: Vec<(String, OwnedFd)>) -> Result<Inherited, InheritError> {
        let mut inherited = Inherited::default();
        for (name, socket) in sockets {
            let listener = match listener(socket) {
                Ok(Some(listener)) => listener,
                Ok(None) => return Err(InheritError::Kind(name)),
                Err(error) => return Err(InheritError::System(name, error)),
            };
            let place = match name.as_str() {
                "health" => &mut inherited.health,
                "metrics" => &mut inherited.metrics,
                _ => {
                    inherited.public.push(listener);
                    continue;
                }
            };
            if place.replace(listener).is_some() {
                return Err(InheritError::Twice(name));
            }
        }
        Ok(inherited)
    }
}

/// How many descriptors are this process's: none if they were meant for the one that started it.
fn count_for(pid: Option<&str>, count: Option<&str>, own: u32) -> Result<i32, InheritError> {
    let (Some(pid), Some(count)) = (pid, count) else {
        return Ok(0);
    };
    if pid.parse() != Ok(own) {
        return Ok(0);
    }
    match count.parse::<i32>() {
        Ok(count) if (0..=SHARDS_MAX as i32).contains(&count) => Ok(count),
        _ => Err(InheritError::Count),
    }
}

/// The socket, if it is one that TCP connections are accepted from. It no longer passes to children.
fn listener(socket: OwnedFd) -> io::Result<Option<TcpListener>> {
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    let listens = match socket_acceptconn(&socket) {
        Ok(listens) => listens && socket_type(&socket)? == SocketType::STREAM,
        Err(rustix::io::Errno::NOTSOCK) => false,
        Err(error) => return Err(error.into()),
    };
    let internet = [AddressFamily::INET, AddressFamily::INET6];
    let is_tcp = listens && internet.contains(&socket_domain(&socket)?);
    Ok(is_tcp.then(|| TcpListener::from(socket)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn tcp() -> OwnedFd {
        TcpListener::bind("127.0.0.1:0").expect("bind").into()
    }

    #[test]
    fn descriptors_are_for_one_process_and_bounded() {
        assert!(matches!(count_for(Some("7"), Some("2"), 7), Ok(2)));
        for (pid, count) in [
            (None, Some("1")),
            (Some("7"), None),
            (Some("8"), Some("1")),
            (Some(""), Some("1")),
        ] {
            assert!(matches!(count_for(pid, count, 7), Ok(0)), "{pid:?}");
        }
        for count in ["-1", "", "many", "257", "99999999999"] {
            let refused = count_for(Some("7"), Some(count), 7);
            assert!(matches!(refused, Err(InheritError::Count)), "{count}");
        }
    }

    #[test]
    fn names_say_what_a_socket_is_for() {
        let named = |name: &str| (name.to_owned(), tcp());
        let sockets = ["health", "buzz-uring.socket", "", "metrics"].map(named);
        let inherited = Inherited::sort(sockets.into()).expect("sockets");
        assert_eq!(inherited.public.len(), 2);
        assert!(inherited.health.is_some() && inherited.metrics.is_some());
        let flags = rustix::io::fcntl_getfd(&inherited.public[0]).expect("flags");
        assert!(flags.contains(FdFlags::CLOEXEC));
        let twice = Inherited::sort(["health", "health"].map(named).into());
        assert!(matches!(twice, Err(InheritError::Twice(_))), "{twice:?}");
    }

    #[test]
    fn what_is_no_listening_tcp_socket_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let unix = UnixListener::bind(dir.path().join("socket")).expect("bind");
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let connected = std::net::TcpStream::connect(listener.local_addr().expect("address"));
        let file = std::fs::File::open("/dev/null").expect("a file");
        for (name, other) in [
            ("unix", OwnedFd::from(unix)),
            ("stream", connected.expect("a connection").into()),
            ("file", file.into()),
        ] {
            let error = Inherited::sort(vec![(name.to_owned(), other)]);
            let error = error.expect_err("no listener").to_string();
            assert!(
                error.contains(name) && error.contains("Accept=no"),
                "{error}"
            );
        }
    }
}
