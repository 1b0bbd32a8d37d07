//! How clients come to a shard: the sockets it listens on, and those that are accepted, here or by
//! another shard, until they are connections.
//!
//! A socket counts as a shard's from the moment it is accepted, also while it is on its way there. So
//! when every shard has left its listening sockets, the counts miss nobody.

use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::Instant;

use crate::limits::{IMBALANCE_MAX, UNUPGRADED_MAX, UNUPGRADED_MIN, UNUPGRADED_SHARE};
use crate::metrics::UpgradeRefusal;
use crate::shard::common::Padded;
use crate::shard::conn::Conn;
use crate::shard::runtime::{self, Listener};
use crate::shard::session::Reading;
use crate::shard::socket::Socket;
use crate::shard::{Mail, Shard, listener, login};

impl Shard {
    /// Accepts from these sockets from now on.
    pub(super) fn accept_from(self: &Rc<Self>, listeners: Vec<TcpListener>) -> io::Result<()> {
        for listener in listeners {
            let listener = Rc::new(Listener::adopt(listener)?);
            self.listeners.borrow_mut().push(listener.clone());
            runtime::spawn(listener::accept(self.clone(), listener));
        }
        Ok(())
    }

    /// Accepts no more, and closes its handles of the listening sockets, which are others' now: whoever
    /// waits there is accepted by them.
    pub(super) fn leave_listeners(&self) {
        if self.has_left.replace(true) {
            return;
        }
        self.accepting.set(false);
        self.listeners.take();
        self.leaving.take().into_iter().for_each(Waker::wake);
        // What was handed to other shards before is counted there: see `accepted`.
        self.common.left.fetch_add(1, Ordering::Release);
    }

    /// Lets the task that awaits this be woken when the listening sockets are left. To be called once.
    pub async fn be_woken_to_leave(&self) {
        poll_fn(|context| {
            self.leaving.borrow_mut().push(context.waker().clone());
            Poll::Ready(())
        })
        .await;
    }

    /// Waits for a listening socket, for as long as it is this shard's. `None`: it no longer is. The
    /// wait is then taken back from the kernel, which would else hold the socket until its end.
    pub async fn unless_left<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        let mut wait = pin!(wait);
        poll_fn(|context| match self.has_left.get() {
            true => Poll::Ready(None),
            false => wait.as_mut().poll(context).map(Some),
        })
        .await
    }
}

/// Accepted sockets.
impl Shard {
    /// Takes an accepted socket, or hands it to a shard that has far fewer. It counts from here on,
    /// also while it is on its way.
    pub fn accepted(self: &Rc<Self>, socket: OwnedFd, peer: SocketAddr) {
        let load = |padded: &Padded| padded.0.load(Ordering::Relaxed);
        let loads = self.common.load.iter().map(load).enumerate();
        let (least, fewest) = loads.min_by_key(|(_, load)| *load).unwrap_or((self.id, 0));
        if load(&self.common.load[self.id]) <= fewest + IMBALANCE_MAX {
            return self.keep(socket, peer);
        }
        self.common.load[least].0.fetch_add(1, Ordering::Relaxed);
        if let Err((mail, _)) = self.common.mail[least].try_push(Mail::Adopt(socket, peer)) {
            self.common.load[least].0.fetch_sub(1, Ordering::Relaxed);
            self.common.load[self.id].0.fetch_add(1, Ordering::Relaxed);
            self.open_mail(mail);
        }
    }

    /// Takes an accepted socket.
    pub fn keep(self: &Rc<Self>, socket: OwnedFd, peer: SocketAddr) {
        self.common.load[self.id].0.fetch_add(1, Ordering::Relaxed);
        self.admit(socket, peer);
    }

    /// Serves an accepted socket, which counts as this shard's, or drops it.
    pub(super) fn admit(self: &Rc<Self>, socket: OwnedFd, peer: SocketAddr) {
        if self.try_admit(socket, peer).is_none() {
            self.common.load[self.id].0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn try_admit(self: &Rc<Self>, socket: OwnedFd, peer: SocketAddr) -> Option<()> {
        let refuse = |refusal| self.metrics.upgrades_refused.of(refusal).increment(1);
        // Only one handed over by another shard can find it so.
        if self.has_enough_unupgraded() {
            refuse(UpgradeRefusal::Capacity);
            return None;
        }
        let now = Instant::now();
        let place = {
            let config = self.config();
            let (bounds, trusted) = (&config.addresses, &config.trusted_proxies);
            let table = &self.common.addresses;
            let entered = table.enter_socket(bounds, trusted, peer, now);
            entered.map_err(|full| refuse(full.refusal())).ok()?
        };
        let no_challenge = |error: getrandom::Error| {
            tracing::error!(shard = self.id, %error, "no random bytes, so no connection");
        };
        let challenge = login::challenge().map_err(no_challenge).ok()?;
        let socket = Socket::adopt(socket);
        let conn = Conn::new(socket, peer, self.next_serial(), challenge, now);
        conn.set_place(place);
        let key = self.conns.borrow_mut().insert(conn.clone());
        conn.set_key(key as u32);
        let name = u64::from(conn.key()) << 32 | u64::from(conn.serial);
        if let Err(error) = self.sockets.add(&conn.socket, name) {
            tracing::warn!(shard = self.id, %error, "a connection cannot be taken over");
            self.conns.borrow_mut().remove(key);
            return None;
        }
        self.unupgraded.set(self.unupgraded.get() + 1);
        self.read_on(conn, Reading::new(self));
        Some(())
    }

    /// Whether as many sockets of this shard are without an upgrade as may be: a share of the
    /// connections, which are themselves a share of the descriptors, so that silent sockets cannot
    /// take those that the store and the health server need.
    pub fn has_enough_unupgraded(&self) -> bool {
        let share = self.config().connections_max / UNUPGRADED_SHARE / self.common.shards();
        self.unupgraded.get() >= share.clamp(UNUPGRADED_MIN, UNUPGRADED_MAX)
    }
}
