//! Clients that come all the time, and clients that stay. Each says what went wrong, in words.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::common::{Author, WAIT, id_of, now};

/// What the clients have seen.
#[derive(Default)]
pub struct Seen {
    /// Connections that were opened.
    pub opened: AtomicUsize,
    /// Connections of staying clients that were ended by 1012.
    pub told: AtomicUsize,
    /// Events that came live to the staying ones.
    pub live: AtomicUsize,
    /// Ids that were acknowledged.
    pub acknowledged: Mutex<HashSet<String>>,
    /// Everything that must not be.
    pub faults: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

/// The clients, until [`Load::stop`].
pub struct Load {
    pub seen: Arc<Seen>,
    coming: Vec<JoinHandle<()>>,
    staying: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts as many clients that come, and as many that stay.
    pub fn start(relay: SocketAddr, coming: u64, staying: usize) -> Load {
        let seen = Arc::new(Seen::default());
        let coming = (1..=coming).map(|author| tokio::spawn(come(relay, author, seen.clone())));
        let staying = (0..staying).map(|_| tokio::spawn(stay(relay, seen.clone())));
        Load {
            coming: coming.collect(),
            staying: staying.collect(),
            seen,
        }
    }

    /// Ends all clients and gives what they have seen.
    pub async fn stop(self) -> Arc<Seen> {
        self.seen.is_over.store(true, Ordering::Relaxed);
        for task in self.coming {
            task.await.expect("no panic");
        }
        // There is nothing more that they could hear.
        self.staying.iter().for_each(JoinHandle::abort);
        self.seen
    }
}

impl Seen {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn fault(&self, what: impl Into<String>) {
        self.faults.lock().unwrap().push(what.into());
    }

    /// Opens a WebSocket. Whatever keeps it from being opened is a fault.
    async fn open(&self, relay: SocketAddr) -> Option<WebSocketStream<TcpStream>> {
        let opening = async {
            let stream = TcpStream::connect(relay).await;
            let stream = stream.map_err(|error| format!("not connected: {error}"))?;
            let opened = client_async(format!("ws://{relay}/"), stream).await;
            opened.map_err(|error| format!("not opened: {error}"))
        };
        match timeout(WAIT, opening).await {
            Ok(Ok((socket, _))) => {
                self.opened.fetch_add(1, Ordering::Relaxed);
                return Some(socket);
            }
            Ok(Err(what)) => self.fault(what),
            Err(_) => self.fault("not opened in time"),
        }
        None
    }

    /// The next text; `None` once the relay has ended the connection, which it may do by 1012 alone.
    async fn next(&self, socket: &mut WebSocketStream<TcpStream>) -> Option<String> {
        loop {
            match timeout(WAIT, socket.next()).await {
                Ok(Some(Ok(Message::Text(text)))) => return Some(text.to_string()),
                Ok(Some(Ok(Message::Close(frame)))) => {
                    let code = frame.map(|frame| u16::from(frame.code));
                    if code != Some(1012) {
                        self.fault(format!("closed with {code:?}"));
                    }
                    // Its end, by the answer that this sends.
                    while let Ok(Some(Ok(_))) = timeout(WAIT, socket.next()).await {}
                    return None;
                }
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(error))) => self.fault(format!("lost: {error}")),
                Ok(None) => self.fault("ended without a close"),
                Err(_) => self.fault("nothing in time"),
            }
            if !self.faults.lock().unwrap().is_empty() {
                return None;
            }
        }
    }
}

/// Connects, publishes, waits for the answer, leaves, and comes again.
async fn come(relay: SocketAddr, author: u64, seen: Arc<Seen>) {
    let key = Author::new(author);
    let mut number = 0;
    while !seen.is_over() {
        let Some(mut socket) = seen.open(relay).await else {
            return;
        };
        number += 1;
        let event = key.json::<&str>(now(), 1, &[], &number.to_string());
        let id = id_of(&event).to_owned();
        let event = Message::text(format!("[\"EVENT\",{event}]"));
        if socket.send(event).await.is_err() {
            // It was told to leave; the end is read below.
        }
        while let Some(text) = seen.next(&mut socket).await {
            if text.starts_with("[\"AUTH\"") {
                continue;
            }
            let accepted = format!("[\"OK\",\"{id}\",true,\"\"]");
            match text == accepted {
                true => drop(seen.acknowledged.lock().unwrap().insert(id.clone())),
                false => seen.fault(format!("answered: {text}")),
            }
            let _ = socket.close(None).await;
            while let Ok(Some(Ok(_))) = timeout(WAIT, socket.next()).await {}
            break;
        }
    }
}

/// Subscribes and listens until it is told to leave, and comes again.
async fn stay(relay: SocketAddr, seen: Arc<Seen>) {
    while !seen.is_over() {
        let Some(mut socket) = seen.open(relay).await else {
            return;
        };
        let ask = Message::text("[\"REQ\",\"live\",{\"kinds\":[1],\"limit\":0}]");
        let _ = socket.send(ask).await;
        loop {
            match seen.next(&mut socket).await {
                Some(text) if text.starts_with("[\"EVENT\"") => {
                    seen.live.fetch_add(1, Ordering::Relaxed);
                }
                Some(_) => {}
                None => break,
            }
        }
        seen.told.fetch_add(1, Ordering::Relaxed);
    }
}
