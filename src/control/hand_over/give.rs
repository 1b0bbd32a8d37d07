//! The running relay's side of a hand-over: tasks of the control thread.
//!
//! While somebody takes over, a request to stop leaves the sockets to that process too: closing them
//! would take its clients from it. So which of the two comes first makes no difference to clients.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::wire::{self, PROTOCOL, Part, Word};
use crate::control::signals::{Requests, StopRequest};
use crate::control::sockets::{Held, Holding};
use crate::lifecycle::{Lifecycle, Stage};
use crate::limits::{
    ACCEPT_PAUSE, DRAIN_LOOK, HAND_OVER_CONNECTIONS_MAX, HAND_OVER_DESCRIPTORS_MAX, HAND_OVER_MAX,
    HAND_OVER_WORD_WAIT,
};

/// Hands over what is held. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Giver {
    lifecycle: Arc<Lifecycle>,
    holding: Holding,
    requests: Requests,
    /// The process that takes over now; 0: none.
    taker: Arc<AtomicU32>,
}

/// The running server; it takes no more connections when it is dropped.
#[derive(Debug)]
pub struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Giver {
    /// For a relay in this stage of its life; a taker that is ready is put into `requests`.
    pub fn new(lifecycle: Arc<Lifecycle>, holding: Holding, requests: Requests) -> Giver {
        Giver {
            lifecycle,
            holding,
            requests,
            taker: Arc::default(),
        }
    }

    /// Whether a process has the sockets and is not ready yet.
    pub fn is_giving(&self) -> bool {
        self.taker.load(Ordering::Relaxed) != 0
    }

    /// What status shows.
    pub fn describe(&self) -> Value {
        let taker = Some(self.taker.load(Ordering::Relaxed));
        json!({ "to_process": taker.filter(|taker| *taker != 0) })
    }

    /// Starts to answer, on the runtime this is called within.
    ///
    /// # Errors
    ///
    /// When the runtime cannot take the listener.
    pub fn serve(&self, listener: UnixListener) -> io::Result<Running> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let giver = self.clone();
        Ok(Running(tokio::spawn(async move {
            let room = Arc::new(Semaphore::new(HAND_OVER_CONNECTIONS_MAX));
            loop {
                let permit = Arc::clone(&room).acquire_owned().await;
                let Ok((stream, _)) = listener.accept().await else {
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                let giver = giver.clone();
                tokio::spawn(async move {
                    giver.speak(&stream).await;
                    drop(permit);
                });
            }
        })))
    }

    /// One conversation.
    async fn speak(&self, stream: &UnixStream) {
        let hello = timeout(HAND_OVER_WORD_WAIT, receive(stream)).await;
        let Ok(Ok(Some((hello, _)))) = hello else {
            tracing::warn!("somebody on hand-over.sock has said nothing that can be understood");
            return;
        };
        let taking = match self.begin(&hello) {
            Ok(taking) => taking,
            Err(why) => {
                tracing::warn!("a hand-over is refused: {why}");
                // It may have left.
                let _ = send(stream, &Word::Refused { why }, &[]).await;
                return;
            }
        };
        let begun = Instant::now();
        let to_process = taking.process;
        tracing::info!(to_process, "a new process takes the listening sockets over");
        if let Err(why) = self.hand_over(stream).await {
            tracing::warn!(
                to_process,
                "the new process did not become ready, this one goes on: {why}"
            );
            return;
        }
        tracing::info!(
            to_process,
            took_ms = begun.elapsed().as_millis() as u64,
            "the new process serves, this one leaves"
        );
        // A full stream holds requests enough.
        self.requests.send(StopRequest::HandOver);
        while self.lifecycle.stage() < Stage::Leaving {
            sleep(DRAIN_LOOK).await;
        }
        drop(taking);
        let _ = send(stream, &Word::Leaves, &[]).await;
    }

    /// Whether there can be a hand-over to whoever says this. All on one thread with the request to
    /// stop, so the relay is either asked first or giving first.
    fn begin(&self, hello: &Word) -> Result<Taking<'_>, String> {
        let Word::Hello {
            protocol,
            version,
            process,
        } = hello
        else {
            return Err("that is no first word".to_owned());
        };
        if *protocol != PROTOCOL {
            return Err(format!(
                "version {} speaks hand-over protocol {PROTOCOL}, version {version} speaks \
                 {protocol}; stop the one, then start the other",
                crate::version::VERSION
            ));
        }
        if self.lifecycle.stage() != Stage::Ready {
            return Err("it is being stopped; wait for its end, and start again".to_owned());
        }
        let process = (*process).max(1);
        let first = self
            .taker
            .compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed);
        match first {
            Ok(_) => Ok(Taking {
                taker: &self.taker,
                process,
            }),
            Err(other) => Err(format!("process {other} is taking over already")),
        }
    }

    /// Sends everything, and waits for the word that the new process serves.
    async fn hand_over(&self, stream: &UnixStream) -> Result<(), String> {
        // Handles of its own: nothing is held locked across a wait.
        let parts = self.holding.look(parts).ok_or("nothing is held any more")?;
        let (kept, parts) = parts.map_err(|error| error.to_string())?;
        let mut rest = parts.as_slice();
        while !rest.is_empty() {
            let (now, then) = rest.split_at(rest.len().min(HAND_OVER_DESCRIPTORS_MAX));
            let word = Word::Gives {
                parts: now.iter().map(|(part, _)| *part).collect(),
                more: !then.is_empty(),
                kept,
                process: std::process::id(),
            };
            let descriptors: Vec<_> = now.iter().map(|(_, one)| one.as_fd()).collect();
            let sent = send(stream, &word, &descriptors).await;
            sent.map_err(|error| error.to_string())?;
            rest = then;
        }
        drop(parts);
        match timeout(HAND_OVER_MAX, receive(stream)).await {
            Ok(Ok(Some((Word::Ready, _)))) => Ok(()),
            Ok(Ok(Some(_))) => Err("it said something else".to_owned()),
            Ok(Ok(None)) => Err("it has ended".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it takes too long".to_owned()),
        }
    }
}

/// Somebody is taking over, until this is dropped.
struct Taking<'a> {
    taker: &'a AtomicU32,
    process: u32,
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.taker.store(0, Ordering::Relaxed);
    }
}

type Parts = (bool, Vec<(Part, OwnedFd)>);

/// A handle of everything that is held.
fn parts(held: &Held) -> io::Result<Parts> {
    let mut parts = Vec::new();
    let mut add = |part, of: BorrowedFd<'_>| -> io::Result<()> {
        parts.push((part, of.try_clone_to_owned()?));
        Ok(())
    };
    for listener in &held.public {
        add(Part::Public, listener.as_fd())?;
    }
    let [health, metrics] = &held.admin;
    add(Part::Health, health.as_fd())?;
    add(Part::Metrics, metrics.as_fd())?;
    if let Some(lock) = &held.address_lock {
        add(Part::AddressLock, lock.as_fd())?;
    }
    if let Some(folder) = &held.folder {
        add(Part::Folder, folder.as_fd())?;
    }
    let (control, hand_over) = &held.unix;
    add(Part::Control, control.as_fd())?;
    if let Some(hand_over) = hand_over {
        add(Part::HandOver, hand_over.as_fd())?;
    }
    Ok((held.kept, parts))
}

async fn receive(stream: &UnixStream) -> io::Result<Option<(Word, Vec<OwnedFd>)>> {
    let receive = || wire::receive(stream);
    stream.async_io(Interest::READABLE, receive).await
}

async fn send(stream: &UnixStream, word: &Word, beside: &[BorrowedFd<'_>]) -> io::Result<()> {
    let send = || wire::send(stream, word, beside);
    let sent = timeout(
        HAND_OVER_WORD_WAIT,
        stream.async_io(Interest::WRITABLE, send),
    );
    sent.await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
}
