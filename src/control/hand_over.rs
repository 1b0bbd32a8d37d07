//! Handing the listening sockets to a new process: an upgrade without a moment in which nobody listens.
//!
//! | file | what it holds |
//! |---|---|
//! | [`wire`] | what the two say to each other, and descriptors on their way |
//! | [`give`] | the running relay's side |
//! | [`take`] | the new process's side |
//!
//! The new one connects to `hand-over.sock` in the data folder and gets every listening socket, the
//! lock of the public address and that of the folder. It opens its store, starts its shards, accepts
//! from those same sockets, and only then says that it is ready. From that word on the old one accepts
//! no more, answers the upgrades that it has accepted, and drains.
//!
//! Invariants:
//! - A socket's queue belongs to the socket, not to a process. Until the word, the old one accepts from
//!   it as ever; before the word, the new one does. So nobody who connects is refused or reset.
//! - Until the word the new one can end in any way, and nothing has changed for the old one. After its
//!   sockets have been sent the old one can, and the new one goes on.
//! - There is one taker at a time.
//!
//! Only for a store that several processes may share. The embedded one belongs to one process, and has
//! no such socket.

pub mod give;
pub mod take;
pub mod wire;
