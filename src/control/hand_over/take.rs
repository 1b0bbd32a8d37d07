//! The new process's side of a hand-over: a short, blocking conversation at its start, and one word when
//! it serves.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use super::wire::{self, PROTOCOL, Part, Word};
use crate::config::Config;
use crate::control::admin::Admin;
use crate::control::socket;
use crate::control::sockets::{Sockets, Taken};
use crate::limits::{HAND_OVER_WORD_WAIT, SHARDS_MAX};
use crate::shard::listener::Bound;
use crate::store::embedded::FolderLock;

/// Why a running relay's sockets cannot be had. It goes on.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// It says so.
    #[error("the running relay does not hand over: {0}")]
    Refused(String),
    /// Something else is said than [`PROTOCOL`] has.
    #[error("the running relay does not hand over in a way that this version understands")]
    Unknown,
    /// It says nothing.
    #[error("the running relay does not answer on hand-over.sock")]
    Silent,
    /// The socket.
    #[error("hand-over.sock: {0}")]
    Socket(#[source] io::Error),
    /// The settings want another address.
    #[error(
        "{variable}: {wanted} is asked for, and the running relay listens on {real}; a hand-over moves \
         no address: give it the same one, or stop that relay first"
    )]
    Address {
        /// The setting.
        variable: &'static str,
        /// Its value.
        wanted: SocketAddr,
        /// The running relay's.
        real: SocketAddr,
    },
}

impl From<io::Error> for TakeError {
    fn from(error: io::Error) -> TakeError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => TakeError::Silent,
            io::ErrorKind::InvalidData => TakeError::Unknown,
            _ => TakeError::Socket(error),
        }
    }
}

/// The relay that goes on until it is told that this process serves.
#[derive(Debug)]
pub struct Before {
    stream: UnixStream,
    process: u32,
}

/// Takes the sockets of the relay that runs on the data folder. `None` when none does, or when it ends
/// before it has sent them all.
///
/// # Errors
///
/// See [`TakeError`].
pub fn take(config: &Config) -> Result<Option<(Sockets, Before)>, TakeError> {
    let stream = match socket::connect_records(&config.data_dir) {
        Ok(stream) => stream,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(None),
                _ => Err(error.into()),
            };
        }
    };
    stream.set_read_timeout(Some(HAND_OVER_WORD_WAIT))?;
    stream.set_write_timeout(Some(HAND_OVER_WORD_WAIT))?;
    let Some((given, kept, process)) = ask(&stream)? else {
        return Ok(None);
    };
    let sockets = given.sockets(kept)?;
    check(config, &sockets)?;
    Ok(Some((sockets, Before { stream, process })))
}

/// Asks for the sockets, and receives them: with them, whether the service manager keeps them, and whose
/// they are. `None`: the other side has ended.
fn ask(stream: &UnixStream) -> Result<Option<(Given, bool, u32)>, TakeError> {
    let hello = Word::Hello {
        protocol: PROTOCOL,
        version: crate::version::VERSION.to_owned(),
        process: std::process::id(),
    };
    if has_ended(wire::send(stream, &hello, &[]))?.is_none() {
        return Ok(None);
    }
    let mut given = Given::default();
    loop {
        let (word, descriptors) = match has_ended(wire::receive(stream))?.flatten() {
            None => return Ok(None),
            Some(received) => received,
        };
        let (parts, more, kept, process) = match word {
            Word::Gives {
                parts,
                more,
                kept,
                process,
            } if parts.len() == descriptors.len() => (parts, more, kept, process),
            Word::Refused { why } => return Err(TakeError::Refused(why)),
            _ => return Err(TakeError::Unknown),
        };
        for (part, descriptor) in parts.into_iter().zip(descriptors) {
            given.add(part, descriptor);
        }
        if !more {
            return Ok(Some((given, kept, process)));
        }
        if given.public.len() > PUBLIC_MAX {
            return Err(TakeError::Unknown);
        }
    }
}

impl Before {
    /// Its process id.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Says that this process serves, and waits until the other one leaves. Blocks, for a bounded time.
    ///
    /// # Errors
    ///
    /// Why the other one may go on beside this one, unless it has ended.
    pub fn relieve(self) -> io::Result<()> {
        if has_ended(wire::send(&self.stream, &Word::Ready, &[]))?.is_none() {
            return Ok(());
        }
        match has_ended(wire::receive(&self.stream))? {
            None | Some(None) | Some(Some((Word::Leaves, _))) => Ok(()),
            Some(Some(_)) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Public sockets that are taken, at most: more shards than that no relay ever had.
const PUBLIC_MAX: usize = 2 * SHARDS_MAX;

/// The end of the other side is no error here: `None`.
fn has_ended<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Ok(None),
            _ => Err(error),
        },
    }
}

#[derive(Default)]
struct Given {
    public: Vec<TcpListener>,
    health: Option<TcpListener>,
    metrics: Option<TcpListener>,
    address_lock: Option<UnixListener>,
    folder: Option<FolderLock>,
    control: Option<UnixListener>,
    hand_over: Option<UnixListener>,
}

impl Given {
    fn add(&mut self, part: Part, one: OwnedFd) {
        match part {
            Part::Public => self.public.push(one.into()),
            Part::Health => self.health = Some(one.into()),
            Part::Metrics => self.metrics = Some(one.into()),
            Part::AddressLock => self.address_lock = Some(one.into()),
            Part::Folder => self.folder = Some(FolderLock::adopt(one)),
            Part::Control => self.control = Some(one.into()),
            Part::HandOver => self.hand_over = Some(one.into()),
        }
    }

    fn sockets(self, kept: bool) -> Result<Sockets, TakeError> {
        let first = self.public.first().ok_or(TakeError::Unknown)?;
        let address = first.local_addr()?;
        let (Some(health), Some(metrics), Some(folder), Some(control), Some(hand_over)) = (
            self.health,
            self.metrics,
            self.folder,
            self.control,
            self.hand_over,
        ) else {
            return Err(TakeError::Unknown);
        };
        Ok(Sockets {
            public: Bound {
                address,
                listeners: self.public,
                lock: self.address_lock,
                kept,
            },
            admin: Admin::adopt(health, metrics)?,
            taken: Some(Taken {
                folder,
                control,
                hand_over,
            }),
            origin: "taken over",
        })
    }
}

/// The addresses must be those of the settings; port 0 is any.
fn check(config: &Config, sockets: &Sockets) -> Result<(), TakeError> {
    let [public, health, metrics] = sockets.addresses();
    let pairs = [
        ("BUZZ_BIND_ADDR", config.bind, public),
        ("BUZZ_HEALTH_BIND, BUZZ_HEALTH_PORT", config.health, health),
        (
            "BUZZ_METRICS_BIND, BUZZ_METRICS_PORT",
            config.metrics,
            metrics,
        ),
    ];
    for (variable, wanted, real) in pairs {
        let is_same = wanted.ip() == real.ip() && [0, real.port()].contains(&wanted.port());
        // What the service manager has opened follows its unit, not the settings.
        if !is_same && !sockets.public.kept {
            return Err(TakeError::Address {
                variable,
                wanted,
                real,
            });
        }
    }
    Ok(())
}
