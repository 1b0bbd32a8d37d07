//! A way to a server that can be cut: connections are passed on byte by byte, until they are not.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Time between two looks at whether bytes may go on.
const LOOK: Duration = Duration::from_millis(5);

/// What the threads of a proxy share.
#[derive(Debug, Default)]
struct State {
    streams: Mutex<Vec<TcpStream>>,
    closed: AtomicBool,
    held: AtomicBool,
    /// Connections whose next `COMMIT` is passed on and whose answer is not.
    swallow: AtomicUsize,
    swallowed: AtomicUsize,
}

/// A proxy on loopback. It ends with the process.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

impl Proxy {
    /// Passes on to a port of this machine.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn to(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.closed.load(Ordering::SeqCst) {
                    continue;
                }
                if let Ok(server) = TcpStream::connect(("127.0.0.1", port)) {
                    // A connection that cannot be passed on is closed.
                    let _ = pass(&shared, &client, &server);
                }
            }
        });
        Proxy { port: own, state }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Cuts every connection. New ones are passed on.
    pub fn cut(&self) {
        for stream in lock(&self.state.streams).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Cuts every connection, and drops new ones until [`open`](Self::open).
    pub fn close(&self) {
        self.state.closed.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Keeps every connection and passes nothing on until [`open`](Self::open), as a server does that
    /// hangs.
    pub fn hold(&self) {
        self.state.held.store(true, Ordering::SeqCst);
    }

    /// Passes new connections on again, and what was held.
    pub fn open(&self) {
        self.state.closed.store(false, Ordering::SeqCst);
        self.state.held.store(false, Ordering::SeqCst);
    }

    /// Passes so many further `COMMIT`s on, and cuts their connections before the answer comes.
    pub fn swallow_commits(&self, count: usize) {
        self.state.swallow.store(count, Ordering::SeqCst);
    }

    /// How many were.
    pub fn swallowed(&self) -> usize {
        self.state.swallowed.load(Ordering::SeqCst)
    }
}

fn pass(state: &Arc<State>, client: &TcpStream, server: &TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let cut = Arc::new(AtomicBool::new(false));
    for (from, to, asks) in [(client, server, true), (server, client, false)] {
        let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
        let (state, cut) = (state.clone(), cut.clone());
        thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                let bytes = &buffer[..length];
                while state.held.load(Ordering::SeqCst) {
                    thread::sleep(LOOK);
                }
                if asks && holds_commit(bytes) && take_one(&state.swallow) {
                    // Before the bytes go on: nothing that comes back is passed on.
                    cut.store(true, Ordering::SeqCst);
                    state.swallowed.fetch_add(1, Ordering::SeqCst);
                }
                if !asks && cut.load(Ordering::SeqCst) {
                    // The answer has come, so the commit is done.
                    break;
                }
                if to.write_all(bytes).is_err() {
                    break;
                }
            }
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    let mut streams = lock(&state.streams);
    streams.push(client.try_clone()?);
    streams.push(server.try_clone()?);
    Ok(())
}

fn holds_commit(bytes: &[u8]) -> bool {
    bytes.windows(7).any(|window| window == b"COMMIT\0")
}

fn take_one(count: &AtomicUsize) -> bool {
    count
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
        .is_ok()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
