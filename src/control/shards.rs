//! The shards' start.

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, mpsc};

use crate::limits::SHARD_START_WAIT;
use crate::shard::runtime::Driver;
use crate::shard::{self, Common, Mail, listener};

/// Starts all shards and waits until each takes its mail.
///
/// # Errors
///
/// Why one of them does not run.
pub fn start(common: &Arc<Common>, driver: Driver) -> io::Result<()> {
    let (sender, ready) = mpsc::channel();
    let settings = common.settings();
    let cpus = &settings.config.cpus;
    let count = common.shards();
    for id in 0..count {
        let sender = sender.clone();
        let cpu = cpus.get(id % cpus.len().max(1)).copied();
        shard::start(common.clone(), id, cpu, driver, move |result| {
            // Nobody waits any longer when an earlier shard has failed.
            let _ = sender.send(result);
        })?;
    }
    all(&ready, count)
}

/// Gives the shards their listening sockets and waits until each accepts connections.
///
/// # Errors
///
/// Why one of them does not accept.
pub fn accept(common: &Common, listeners: Vec<TcpListener>) -> io::Result<()> {
    let (done, accepting) = mpsc::channel();
    let count = common.shards();
    for (id, listeners) in listener::deal(listeners, count).into_iter().enumerate() {
        let done = done.clone();
        let told = common.tell(id, Mail::Accept { listeners, done });
        told.map_err(|_| io::Error::other("its mailbox is full"))?;
    }
    all(&accepting, count)
}

/// Waits for as many answers.
fn all(answers: &mpsc::Receiver<io::Result<()>>, count: usize) -> io::Result<()> {
    for _ in 0..count {
        let answer = answers.recv_timeout(SHARD_START_WAIT);
        answer.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    }
    Ok(())
}
