//! `crowd`: clients that log in, hold their connection until the relay closes it, and, with
//! `--then`, come back to another relay as clients do: after a backoff that a 1012 resets to one
//! second, and that each failure doubles.
//!
//! For `perf/drain` and `perf/storm`. The first line on standard output says that all are logged
//! in; the second is the report: the moment of every close and of every return, as milliseconds
//! since 1970, so that whoever started this can lay them beside what the relay says of itself.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::LocalSet;

use crate::build;
use crate::codec::{self, Decoder, Item, Opcode};
use crate::events;
use crate::given::Given;
use crate::limits::{
    CROWD_BACKOFF, CROWD_BACKOFF_MAX, CROWD_SPREAD_PERCENT, OPEN_SECONDS_MAX, OPENING_MAX,
    READ_BYTES,
};
use crate::net::Target;
use crate::usage;
use crate::wire::{self, Message};

/// Carries out the command; true when every client got its connection and was closed with a code.
///
/// # Errors
/// What made the run impossible.
pub fn run(given: &Given<'_>) -> io::Result<bool> {
    let target = |name: &str| given.text(name).map(Target::parse).transpose();
    let first = target("url").map_err(io::Error::other)?;
    let first = first.ok_or_else(|| io::Error::other("--url is required"))?;
    let then = target("then").map_err(io::Error::other)?;
    let connections = given.size("connections").max(1);
    if connections as u64 + 32 > usage::raise_descriptors() {
        return Err(io::Error::other(
            "too many connections for the descriptor limit",
        ));
    }
    let crowd = Rc::new(Crowd {
        first,
        then,
        relay: given.text("relay-url").unwrap_or_default().to_owned(),
        begun: Instant::now(),
        begun_unix: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
        opening: Semaphore::new(OPENING_MAX),
        buffer: RefCell::new(vec![0; READ_BYTES]),
        settled: Cell::new(0),
        seen: RefCell::default(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let limit = Duration::from_secs(given.number("limit-seconds").unwrap_or(120));
    let all = LocalSet::new();
    let ended = all.block_on(&runtime, async {
        let clients: Vec<_> = (0..connections)
            .map(|index| tokio::task::spawn_local(crowd.clone().client(index)))
            .collect();
        while crowd.settled.get() < connections {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let held = connections - crowd.seen.borrow().failed;
        print_line(&json!({ "logged_in": held, "ready_unix_ms": crowd.now() }))?;
        let ends = async {
            for client in clients {
                // A client that panics has counted nothing: the sums show it.
                let _ = client.await;
            }
        };
        io::Result::Ok(tokio::time::timeout(limit, ends).await.is_ok())
    })?;
    let report = crowd.report(connections, ended);
    print_line(&report)?;
    Ok(report["closes"]["with_1012"] == connections && report["closes"]["resets"] == 0)
}

fn print_line(value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}")?;
    out.flush()
}

struct Crowd {
    first: Target,
    then: Option<Target>,
    /// The relay's URL as it knows itself, which logins name.
    relay: String,
    begun: Instant,
    begun_unix: Duration,
    opening: Semaphore,
    /// One for all reads: nothing is held between them.
    buffer: RefCell<Vec<u8>>,
    /// Clients that have logged in for the first time, or could not.
    settled: Cell<usize>,
    seen: RefCell<Seen>,
}

#[derive(Default)]
struct Seen {
    failed: usize,
    codes: BTreeMap<String, usize>,
    resets: usize,
    closes: Vec<f64>,
    returns: Vec<f64>,
    return_took: Vec<f64>,
    away: Vec<f64>,
    attempts: usize,
    refusals: BTreeMap<String, usize>,
    refused_at: Vec<f64>,
}

impl Crowd {
    /// Milliseconds since 1970, on a clock that only goes forwards.
    fn now(&self) -> f64 {
        let now = self.begun_unix + self.begun.elapsed();
        (now.as_secs_f64() * 1e6).round() / 1e3
    }

    async fn client(self: Rc<Self>, index: usize) {
        let link = {
            let _room = self.opening.acquire().await;
            self.log_in(&self.first, index).await
        };
        self.settled.set(self.settled.get() + 1);
        match link {
            Ok(link) => self.stay(link).await,
            Err(why) => {
                let mut seen = self.seen.borrow_mut();
                seen.failed += 1;
                *seen.refusals.entry(format!("first: {why}")).or_default() += 1;
                return;
            }
        }
        let closed = self.now();
        if let Some(then) = &self.then {
            self.come_back(then, index, closed).await;
        }
    }

    /// Holds the connection until the relay closes it.
    async fn stay(&self, mut link: Link) {
        let code = loop {
            match link.next(&self.buffer).await {
                Ok(Said::Text(_)) => {}
                Ok(Said::Close(code)) => {
                    self.seen.borrow_mut().closes.push(self.now());
                    let payload = code.map(u16::to_be_bytes);
                    let payload = payload.as_ref().map_or(&[][..], |code| code);
                    let answered = link.send(Opcode::Close, payload).await;
                    let end = link.next(&self.buffer).await;
                    if answered.is_err() || !matches!(end, Err(Fault::Ended)) {
                        self.seen.borrow_mut().resets += 1;
                    }
                    break code.map_or("none".to_owned(), |code| code.to_string());
                }
                Err(fault) => {
                    let mut seen = self.seen.borrow_mut();
                    seen.closes.push(self.now());
                    seen.resets += usize::from(!matches!(fault, Fault::Ended));
                    break fault.to_string();
                }
            }
        };
        *self.seen.borrow_mut().codes.entry(code).or_default() += 1;
    }

    /// Tries until it is logged in elsewhere, and stays there.
    async fn come_back(&self, target: &Target, index: usize, closed: f64) {
        let mut backoff = CROWD_BACKOFF;
        loop {
            let spread = CROWD_SPREAD_PERCENT / 100.0;
            let factor = 1.0 + spread * (2.0 * fastrand::f64() - 1.0);
            tokio::time::sleep(backoff.mul_f64(factor)).await;
            let asked = self.now();
            self.seen.borrow_mut().attempts += 1;
            match self.log_in(target, index).await {
                Ok(link) => {
                    let now = self.now();
                    let mut seen = self.seen.borrow_mut();
                    seen.returns.push(now);
                    seen.return_took.push(now - asked);
                    seen.away.push(now - closed);
                    // Held until the process ends.
                    std::mem::forget(link);
                    return;
                }
                Err(why) => {
                    let mut seen = self.seen.borrow_mut();
                    seen.refused_at.push(self.now());
                    *seen.refusals.entry(why).or_default() += 1;
                }
            }
            backoff = (backoff * 2).min(CROWD_BACKOFF_MAX);
        }
    }

    /// Connects, upgrades, and answers the challenge.
    async fn log_in(&self, target: &Target, index: usize) -> Result<Link, String> {
        let limit = Duration::from_secs(OPEN_SECONDS_MAX);
        let attempt = tokio::time::timeout(limit, self.try_log_in(target, index));
        attempt
            .await
            .unwrap_or_else(|_| Err("no answer in time".to_owned()))
    }

    async fn try_log_in(&self, target: &Target, index: usize) -> Result<Link, String> {
        let words = |error: io::Error| error.kind().to_string();
        let stream = TcpStream::connect(target.address).await.map_err(words)?;
        stream.set_nodelay(true).map_err(words)?;
        let mut link = Link {
            stream,
            rest: Vec::new(),
            out: Vec::new(),
            decoder: Decoder::default(),
        };
        link.upgrade(target, &self.buffer).await?;
        loop {
            let said = link
                .next(&self.buffer)
                .await
                .map_err(|fault| fault.to_string())?;
            match said {
                Said::Close(code) => {
                    return Err(code.map_or("a bare close".to_owned(), |code| code.to_string()));
                }
                Said::Text(text) => match wire::parse(&text) {
                    Message::Auth { challenge } => {
                        let challenge = String::from_utf8_lossy(challenge);
                        let pair = events::keypair(&format!("crowd {index}"));
                        let now = build::unix_time();
                        let login = events::sign_login(&pair, &self.relay, &challenge, now);
                        let sent = link.send(Opcode::Text, &login.message).await;
                        sent.map_err(words)?;
                    }
                    Message::Ok { accepted: true, .. } => return Ok(link),
                    Message::Ok { reason, .. } => {
                        return Err(String::from_utf8_lossy(reason).into_owned());
                    }
                    _ => {}
                },
            }
        }
    }

    fn report(&self, connections: usize, ended: bool) -> Value {
        let seen = self.seen.borrow();
        json!({
            "version": 1,
            "command": "crowd",
            "connections": connections,
            "all_ended": ended,
            "closes": {
                "with_1012": seen.codes.get("1012").copied().unwrap_or(0),
                "codes": seen.codes,
                "resets": seen.resets,
                "at_unix_ms": seen.closes,
            },
            "returns": {
                "attempts": seen.attempts,
                "refusals": seen.refusals,
                "refused_at_unix_ms": seen.refused_at,
                "at_unix_ms": seen.returns,
                "login_ms": seen.return_took,
                "away_ms": seen.away,
            },
        })
    }
}

/// One connection.
struct Link {
    stream: TcpStream,
    rest: Vec<u8>,
    out: Vec<u8>,
    decoder: Decoder,
}

/// What a relay said.
enum Said {
    Text(Vec<u8>),
    Close(Option<u16>),
}

/// Why nothing more comes.
enum Fault {
    /// The stream's end.
    Ended,
    /// A reset, or another error of the socket.
    Broken(io::ErrorKind),
    /// Not the protocol.
    Wrong(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Ended => f.write_str("the end without a close"),
            Fault::Broken(kind) => write!(f, "{kind}"),
            Fault::Wrong(why) => f.write_str(why),
        }
    }
}

impl Link {
    async fn upgrade(&mut self, target: &Target, buffer: &RefCell<Vec<u8>>) -> Result<(), String> {
        let key = codec::key(fastrand::u128(..).to_ne_bytes());
        codec::write_request(&mut self.out, &target.host, &target.path, &key);
        self.flush()
            .await
            .map_err(|error| error.kind().to_string())?;
        loop {
            if let Some(head) = codec::parse_response(&self.rest, &key)? {
                self.rest.drain(..head);
                return Ok(());
            }
            self.read(buffer).await.map_err(|fault| fault.to_string())?;
        }
    }

    async fn next(&mut self, buffer: &RefCell<Vec<u8>>) -> Result<Said, Fault> {
        loop {
            let decoded = self.decoder.next(&self.rest);
            let decoded = decoded.map_err(|fault| Fault::Wrong(fault.to_string()))?;
            let consumed = decoded.consumed;
            let said = match decoded.item {
                Some(Item::Text(text)) => Some(Ok(Said::Text(text.to_vec()))),
                Some(Item::Close(code)) => Some(Ok(Said::Close(code))),
                Some(Item::Ping(payload)) => Some(Err(payload.to_vec())),
                _ => None,
            };
            self.rest.drain(..consumed);
            match said {
                Some(Ok(said)) => {
                    // An idle client holds no buffer.
                    if self.rest.is_empty() {
                        self.rest = Vec::new();
                    }
                    return Ok(said);
                }
                Some(Err(payload)) => {
                    let sent = self.send(Opcode::Pong, &payload).await;
                    sent.map_err(|error| Fault::Broken(error.kind()))?;
                }
                None if consumed == 0 => self.read(buffer).await?,
                None => {}
            }
        }
    }

    async fn read(&mut self, buffer: &RefCell<Vec<u8>>) -> Result<(), Fault> {
        loop {
            let ready = self.stream.readable().await;
            ready.map_err(|error| Fault::Broken(error.kind()))?;
            let mut buffer = buffer.borrow_mut();
            match self.stream.try_read(&mut buffer) {
                Ok(0) => return Err(Fault::Ended),
                Ok(count) => {
                    self.rest.extend_from_slice(&buffer[..count]);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(Fault::Broken(error.kind())),
            }
        }
    }

    async fn send(&mut self, opcode: Opcode, payload: &[u8]) -> io::Result<()> {
        codec::write_frame(
            &mut self.out,
            opcode,
            payload,
            fastrand::u32(..).to_ne_bytes(),
        );
        self.flush().await
    }

    async fn flush(&mut self) -> io::Result<()> {
        use tokio::io::AsyncWriteExt;
        let out = std::mem::take(&mut self.out);
        self.stream.write_all(&out).await
    }
}
