//! A small fake of LaunchDarkly's streaming service, as its SDK sees it: `GET /all` is a stream of
//! server-sent events (`put`, then `patch`), `POST /bulk` takes analytics. It can fail in all the
//! ways that a relay must survive. Threads and blocking sockets, so that any test can use it.

#![allow(dead_code)] // each test crate uses a part

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How `GET /all` is answered from now on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// As it should be.
    Ok,
    /// With this status and no stream (401, 403, 503, ...).
    Status(u16),
    /// Not at all; the connection stays open.
    Hung,
    /// As it should be, after this time.
    Slow(Duration),
    /// With a first delivery that is not JSON.
    Garbled,
}

/// A request that came in.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub authorization: String,
    pub bytes: usize,
}

/// The service. It ends when dropped.
pub struct Fake {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    mode: Mode,
    bulk_hangs: bool,
    patches: bool,
    version: u64,
    flags: BTreeMap<String, Value>,
    requests: Vec<Request>,
    streams: Vec<TcpStream>,
    held: Vec<TcpStream>,
    listening: bool,
}

impl Fake {
    /// A service with these flags, on a free port of the loopback.
    pub fn start(flags: &[(&str, Value)]) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let flags = flags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()));
        let state = State {
            mode: Mode::Ok,
            bulk_hangs: false,
            patches: true,
            version: 1,
            flags: flags.collect(),
            requests: Vec::new(),
            streams: Vec::new(),
            held: Vec::new(),
            listening: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let mut fake = Fake {
            address,
            shared,
            acceptor: None,
        };
        fake.accept(listener);
        fake
    }

    /// What to put into `BUZZ_LAUNCHDARKLY_RELAY_PROXY_URL`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// As [`Fake::url`], below a path that stands before every path of the service.
    pub fn url_below(&self, path: &str) -> String {
        format!("{}/{path}", self.url())
    }

    /// Sets how later requests are answered.
    pub fn mode(&self, mode: Mode) {
        self.lock().mode = mode;
    }

    /// Lets `POST /bulk` hang from now on.
    pub fn hang_bulk(&self) {
        self.lock().bulk_hangs = true;
    }

    /// Keeps open streams silent from now on, like a connection whose other end is gone.
    pub fn fall_silent(&self) {
        self.lock().patches = false;
    }

    /// Sends patches again.
    pub fn speak(&self) {
        self.lock().patches = true;
    }

    /// Sets a flag, and tells the open streams.
    pub fn set(&self, key: &str, value: Value) {
        let mut state = self.lock();
        state.version += 1;
        let data = flag(key, &value, state.version);
        state.flags.insert(key.to_owned(), value);
        if state.patches {
            let text = event(
                "patch",
                &json!({"path": format!("/flags/{key}"), "data": data}),
            );
            state
                .streams
                .retain_mut(|stream| stream.write_all(text.as_bytes()).is_ok());
        }
    }

    /// Cuts every open stream.
    pub fn lose_streams(&self) {
        let mut state = self.lock();
        for stream in state.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Stops listening and cuts every stream: connections are refused from now on.
    pub fn refuse(&mut self) {
        self.lock().listening = false;
        self.lose_streams();
        self.lock().held.clear();
        // Wakes the acceptor, which then drops its listener.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().expect("the acceptor does not panic");
        }
    }

    /// Listens again, on the same port.
    pub fn listen(&mut self) {
        let listener = TcpListener::bind(self.address).expect("its own port");
        self.accept(listener);
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<Request> {
        self.lock().requests.clone()
    }

    /// Open streams.
    pub fn streams(&self) -> usize {
        self.lock().streams.len()
    }

    /// Waits until so many requests for `path` have come in.
    pub fn wait_for(&self, path: &str, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut state = self.lock();
        while state
            .requests
            .iter()
            .filter(|request| request.path.ends_with(path))
            .count()
            < count
        {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "{count} requests for {path}: {:?}",
                state.requests
            );
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn accept(&mut self, listener: TcpListener) {
        self.lock().listening = true;
        let shared = Arc::clone(&self.shared);
        self.acceptor = Some(std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if !shared.lock().listening {
                    break;
                }
                let shared = Arc::clone(&shared);
                // It ends with its connection, at latest with the test.
                std::thread::spawn(move || serve(&shared, stream));
            }
        }));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if self.acceptor.is_some() {
            self.refuse();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers the requests of one connection until it ends or becomes a stream.
fn serve(shared: &Shared, stream: TcpStream) {
    let Ok(clone) = stream.try_clone() else {
        return;
    };
    let mut reader = BufReader::new(clone);
    while let Some(request) = read_request(&mut reader) {
        let path = request.path.clone();
        let mut state = shared.lock();
        state.requests.push(request);
        let (mode, bulk_hangs) = (state.mode, state.bulk_hangs);
        shared.changed.notify_all();
        drop(state);
        // Whatever stands before it is the path that the URL was given with.
        let ended = match &path[path.rfind('/').unwrap_or(0)..] {
            "/all" => answer_all(shared, mode, &stream),
            "/bulk" if bulk_hangs => hold(shared, &stream),
            "/bulk" => answer(&stream, 202),
            _ => answer(&stream, 404),
        };
        if ended {
            return;
        }
    }
}

/// True when the connection is no longer read from.
fn answer_all(shared: &Shared, mode: Mode, stream: &TcpStream) -> bool {
    match mode {
        Mode::Status(status) => return answer(stream, status),
        Mode::Hung => return hold(shared, stream),
        Mode::Slow(time) => std::thread::sleep(time),
        Mode::Ok | Mode::Garbled => {}
    }
    let Ok(mut stream) = stream.try_clone() else {
        return true;
    };
    let mut state = shared.lock();
    let flags: serde_json::Map<_, _> = state
        .flags
        .iter()
        .map(|(key, value)| (key.clone(), flag(key, value, state.version)))
        .collect();
    let put = event(
        "put",
        &json!({"path": "/", "data": {"flags": flags, "segments": {}}}),
    );
    let put = if mode == Mode::Garbled {
        "event: put\ndata: {oops\n\n".to_owned()
    } else {
        put
    };
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
    if stream.write_all(format!("{head}{put}").as_bytes()).is_ok() {
        state.streams.push(stream);
    }
    true
}

fn hold(shared: &Shared, stream: &TcpStream) -> bool {
    if let Ok(stream) = stream.try_clone() {
        shared.lock().held.push(stream);
    }
    true
}

fn answer(mut stream: &TcpStream, status: u16) -> bool {
    let head = format!("HTTP/1.1 {status} Fake\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(head.as_bytes()).is_err()
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut authorization, mut bytes) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => authorization = value.trim().to_owned(),
            "content-length" => bytes = value.trim().parse().ok()?,
            _ => {}
        }
    }
    std::io::copy(
        &mut reader.by_ref().take(bytes as u64),
        &mut std::io::sink(),
    )
    .ok()?;
    Some(Request {
        method,
        path,
        authorization,
        bytes,
    })
}

/// A flag that is on and has one value.
fn flag(key: &str, value: &Value, version: u64) -> Value {
    json!({
        "key": key,
        "version": version,
        "on": true,
        "targets": [],
        "prerequisites": [],
        "rules": [],
        "fallthrough": {"variation": 0},
        "offVariation": 0,
        "variations": [value],
        "clientSideAvailability": {"usingMobileKey": false, "usingEnvironmentId": false},
        "salt": "salt",
    })
}

fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}
