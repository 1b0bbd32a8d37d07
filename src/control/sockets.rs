//! Everything that the process listens on, and the locks that say that it may.
//!
//! A start comes by it in one of three ways: it binds the addresses of the settings, it finds sockets
//! that the service manager has opened ([`super::activation`]), or it takes those of the relay that
//! runs on its data folder ([`super::hand_over`]). From then on there is no difference, but for the
//! end: sockets that others hold as well are left, not closed.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, PoisonError};

use super::activation::Inherited;
use super::admin::{self, Admin};
use super::socket::{self, Socket};
use crate::config::Config;
use crate::shard::listener::{self, Bound};
use crate::store::embedded::FolderLock;

/// What a start has to listen on.
#[derive(Debug)]
pub struct Sockets {
    /// For clients.
    pub public: Bound,
    /// For health and metrics.
    pub admin: Admin,
    /// What came with them, if they were a running relay's.
    pub taken: Option<Taken>,
    /// How they were come by, for the start-up line.
    pub origin: &'static str,
}

/// What a running relay hands over besides its TCP sockets.
#[derive(Debug)]
pub struct Taken {
    /// The data folder.
    pub folder: FolderLock,
    /// `control.sock`.
    pub control: UnixListener,
    /// `hand-over.sock`.
    pub hand_over: UnixListener,
}

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The public one.
    #[error(transparent)]
    Public(#[from] listener::BindError),
    /// The health or the metrics one.
    #[error(transparent)]
    Admin(#[from] admin::BindError),
    /// An inherited socket.
    #[error("a socket of the service manager cannot be used: {0}")]
    Inherited(#[source] io::Error),
}

impl Sockets {
    /// Takes what was inherited, and binds the rest.
    ///
    /// # Errors
    ///
    /// What cannot be listened on, with the setting to change.
    pub fn bind(config: &Config, inherited: Inherited) -> Result<Sockets, BindError> {
        let origin = match inherited.public.is_empty() {
            true => "bound",
            false => "inherited",
        };
        let public = match inherited.public.is_empty() {
            true => listener::bind(config.bind, config.shards)?,
            false => kept(inherited.public).map_err(BindError::Inherited)?,
        };
        let admin = Admin::open(
            (config.health, inherited.health),
            (config.metrics, inherited.metrics),
        )?;
        Ok(Sockets {
            public,
            admin,
            taken: None,
            origin,
        })
    }

    /// The real addresses: public, health, metrics.
    pub fn addresses(&self) -> [SocketAddr; 3] {
        let admin = &self.admin;
        [
            self.public.address,
            admin.health_address(),
            admin.metrics_address(),
        ]
    }
}

/// Sockets that the service manager keeps.
fn kept(listeners: Vec<TcpListener>) -> io::Result<Bound> {
    let first = listeners.first().ok_or(io::ErrorKind::NotFound)?;
    Ok(Bound {
        address: first.local_addr()?,
        listeners,
        lock: None,
        kept: true,
    })
}

/// Sockets on their way to those who serve them, and what is held of them.
#[derive(Debug)]
pub struct Doors {
    /// The shards'.
    pub listeners: Vec<TcpListener>,
    /// Health and metrics.
    pub admin: Admin,
    /// `control.sock`.
    pub control: Socket,
    /// `hand-over.sock`, if the store can be another process's as well.
    pub hand_over: Option<Socket>,
    /// All of them, and the locks.
    pub held: Held,
}

impl Doors {
    /// Opens what is missing: those in the folder, whose lock is `folder` unless it was taken over or the
    /// store has it, and sockets for shards that have none.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn open(
        config: &Config,
        sockets: Sockets,
        folder: Option<FolderLock>,
    ) -> io::Result<Doors> {
        let mut public = sockets.public;
        if !public.kept {
            // A relay with fewer shards had them.
            let missing = config.shards.saturating_sub(public.listeners.len());
            public
                .listeners
                .extend(listener::bind_more(public.address, missing)?);
        }
        let (folder, unix) = match sockets.taken {
            Some(taken) => (Some(taken.folder), Some((taken.control, taken.hand_over))),
            None => (folder, None),
        };
        // A folder that the store holds itself is one process's alone.
        let (control, hand_over) = in_folder(config, unix, folder.is_some())?;
        let handles = public.listeners.iter().map(|one| one.try_clone());
        let held = Held {
            public: handles.collect::<io::Result<_>>()?,
            kept: public.kept,
            address_lock: public.lock,
            admin: sockets.admin.handles()?,
            folder,
            unix: (
                control.handle()?,
                hand_over.as_ref().map(|one| one.handle()).transpose()?,
            ),
        };
        Ok(Doors {
            listeners: public.listeners,
            admin: sockets.admin,
            control,
            hand_over,
            held,
        })
    }
}

/// The two sockets in the data folder, whose lock the caller holds.
fn in_folder(
    config: &Config,
    taken: Option<(UnixListener, UnixListener)>,
    hands_over: bool,
) -> io::Result<(Socket, Option<Socket>)> {
    let dir = &config.data_dir;
    if let Some((control, hand_over)) = taken {
        let control = Socket::adopt(dir, socket::NAME, control)?;
        let hand_over = Socket::adopt(dir, socket::HAND_OVER_NAME, hand_over)?;
        return Ok((control, Some(hand_over)));
    }
    let control = Socket::bind(dir)?;
    let hand_over = hands_over.then(|| Socket::bind_records(dir)).transpose()?;
    Ok((control, hand_over))
}

/// The process's own handles of all its sockets and locks, from the start to the end, or to the moment
/// in which they are another process's.
#[derive(Debug)]
pub struct Held {
    /// For clients. The shards have handles of their own.
    pub public: Vec<TcpListener>,
    /// See [`Bound::kept`].
    pub kept: bool,
    /// The public address's lock.
    pub address_lock: Option<UnixListener>,
    /// The health and the metrics socket.
    pub admin: [TcpListener; 2],
    /// The data folder, unless the store holds it itself.
    pub folder: Option<FolderLock>,
    /// `control.sock`, and `hand-over.sock` if there is one.
    pub unix: (UnixListener, Option<UnixListener>),
}

impl Held {
    /// Leaves this process's id in the folder's lock.
    pub fn sign(&self) {
        if let Some(folder) = &self.folder {
            folder.sign();
        }
    }
}

/// [`Held`], by all who may end that. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Holding(Arc<Mutex<Option<Held>>>);

impl Holding {
    /// Holds.
    pub fn new(held: Held) -> Holding {
        Holding(Arc::new(Mutex::new(Some(held))))
    }

    /// Looks at what is held; `None` when it is another process's.
    pub fn look<T>(&self, look: impl FnOnce(&Held) -> T) -> Option<T> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map(look)
    }

    /// Lets go: what nobody else holds is gone with it.
    pub fn release(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
