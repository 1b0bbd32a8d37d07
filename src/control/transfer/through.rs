//! Through a running relay, by its control socket. See `transfer::wire` for what is said.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::control::socket;
use crate::limits::{
    CONTROL_ANSWER_BYTES_MAX, FRAME_BYTES_MAX, HEAD_BYTES_MAX, HEAD_FIELDS_MAX, IMPORT_QUIET,
    READ_BYTES_MAX, TRANSFER_ANSWER_WAIT, TRANSFER_BEGIN_WAIT, TRANSFER_WRITE_BYTES,
};
use crate::nostr::event::Event;
use crate::transfer::export::Outlet;
use crate::transfer::import::{Ended, Intake};
use crate::transfer::inflow::Verdicts;
use crate::transfer::wire::{self, Answer, Chunked};

/// What is said of a relay that ends a transfer without its last word.
const WITHOUT_A_WORD: &str = "the relay has ended it without a word";

/// The body of an answer.
type Body = Chunked<BufReader<UnixStream>>;

/// A running relay that takes events in.
pub struct RelayIntake {
    stream: UnixStream,
    /// Lines that were not sent yet.
    lines: Vec<u8>,
    /// When lines were last sent.
    sent: Instant,
    answers: Receiver<Heard>,
    /// When the relay last said anything, or was owed nothing.
    heard: Instant,
    /// Answers that came while something else was waited for.
    pending: Verdicts,
    /// The relay's last word.
    ended: Option<Ended>,
}

/// What the relay says.
enum Heard {
    Verdicts(Verdicts),
    /// Nothing more.
    End(Ended),
}

impl RelayIntake {
    /// Asks the relay on `dir` to take events.
    ///
    /// # Errors
    /// What to print.
    pub fn begin(dir: &Path) -> Result<RelayIntake, String> {
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: relay\r\nTransfer-Encoding: chunked\r\n\r\n",
            wire::IMPORT
        );
        let (stream, body) = begin(dir, head.as_bytes())?;
        // Unbounded, and bounded by what was asked: a relay answers what it was sent, and the window
        // of the import bounds that. A full queue here would hold up the relay that fills it.
        let (sender, answers) = mpsc::channel();
        let thread = thread::Builder::new().name("import-answers".to_owned());
        thread
            .spawn(move || hear(body, &sender))
            .map_err(|error| format!("no thread: {error}"))?;
        Ok(RelayIntake {
            stream,
            lines: Vec::new(),
            sent: Instant::now(),
            answers,
            heard: Instant::now(),
            pending: Verdicts::new(),
            ended: None,
        })
    }

    fn send(&mut self) -> Result<(), Ended> {
        let mut chunk = Vec::with_capacity(self.lines.len() + 16);
        wire::write_chunk(&mut chunk, &self.lines);
        self.lines.clear();
        self.sent = Instant::now();
        self.write(&chunk)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        self.stream
            .write_all(bytes)
            .map_err(|error| self.why(&error))
    }

    /// Why the relay takes no more: its own word, if it says one.
    fn why(&mut self, error: &io::Error) -> Ended {
        let said = || Ended(format!("the relay takes no more: {error}"));
        if matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ) {
            return said();
        }
        let end = Instant::now() + TRANSFER_BEGIN_WAIT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left) {
                Ok(Heard::End(ended)) => {
                    self.ended = Some(ended.clone());
                    return ended;
                }
                Ok(Heard::Verdicts(mut verdicts)) => self.pending.append(&mut verdicts),
                Err(_) => return said(),
            }
        }
    }
}

impl Intake for RelayIntake {
    fn put(&mut self, number: u64, event: Event) -> Result<(), Ended> {
        self.lines.extend_from_slice(number.to_string().as_bytes());
        self.lines.push(b' ');
        self.lines.extend_from_slice(event.json().as_bytes());
        self.lines.push(b'\n');
        if self.lines.len() >= TRANSFER_WRITE_BYTES {
            self.send()?;
        }
        Ok(())
    }

    /// With nothing to send, now and then a blank line: so the relay sees that this process lives.
    fn tick(&mut self) -> Result<(), Ended> {
        if self.lines.is_empty() {
            if self.sent.elapsed() < IMPORT_QUIET {
                return Ok(());
            }
            self.lines.push(b'\n');
        }
        self.send()
    }

    fn finish(&mut self) -> Result<(), Ended> {
        if !self.lines.is_empty() {
            self.send()?;
        }
        self.heard = Instant::now();
        self.write(wire::LAST_CHUNK)
    }

    fn verdicts(&mut self, into: &mut Verdicts, wait: Duration) -> Result<(), Ended> {
        let mut wait = wait;
        if !self.pending.is_empty() {
            into.append(&mut self.pending);
            wait = Duration::ZERO;
        }
        loop {
            match self.answers.recv_timeout(wait) {
                Ok(Heard::Verdicts(mut verdicts)) => {
                    into.append(&mut verdicts);
                    wait = Duration::ZERO;
                    self.heard = Instant::now();
                }
                Ok(Heard::End(ended)) => self.ended = Some(ended),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    let ended = self.ended.get_or_insert(Ended(WITHOUT_A_WORD.to_owned()));
                    return Err(ended.clone());
                }
            }
        }
        if self.heard.elapsed() > TRANSFER_ANSWER_WAIT {
            return Err(Ended("the relay does not answer".to_owned()));
        }
        Ok(())
    }
}

impl Drop for RelayIntake {
    fn drop(&mut self) {
        // Its reader may wait in it.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Reads answers to the end.
fn hear(body: Body, heard: &Sender<Heard>) {
    let mut body = BufReader::with_capacity(TRANSFER_WRITE_BYTES, body);
    let mut line = Vec::new();
    let ended = loop {
        let mut verdicts = Verdicts::new();
        // Everything that is here at once.
        let ended = loop {
            match read_line(&mut body, &mut line, CONTROL_ANSWER_BYTES_MAX) {
                Err(_) => break Some(Ended(WITHOUT_A_WORD.to_owned())),
                Ok(()) => match std::str::from_utf8(&line).ok().and_then(Answer::read) {
                    Some(Answer::Verdict(number, verdict)) => verdicts.push((number, verdict)),
                    Some(Answer::End(word)) if word == wire::OK => {
                        break Some(Ended("the relay has left answers out".to_owned()));
                    }
                    Some(Answer::End(word)) => break Some(Ended(word)),
                    None => break Some(Ended("the relay cannot be understood".to_owned())),
                },
            }
            if !body.buffer().contains(&b'\n') {
                break None;
            }
        };
        if heard.send(Heard::Verdicts(verdicts)).is_err() {
            return;
        }
        if let Some(ended) = ended {
            break ended;
        }
    };
    // One who has gone does not want to know.
    let _ = heard.send(Heard::End(ended));
}

/// A running relay that gives events.
pub struct RelayOutlet {
    body: BufReader<Body>,
    line: Vec<u8>,
}

impl RelayOutlet {
    /// Asks the relay on `dir` for what some filters want, each as JSON.
    ///
    /// # Errors
    /// What to print.
    pub fn begin(dir: &Path, filters: &[String]) -> Result<RelayOutlet, String> {
        let mut lines = String::new();
        for filter in filters {
            // White space, wherever it is: a string of JSON holds neither.
            lines.push_str(&filter.replace(['\n', '\r'], " "));
            lines.push('\n');
        }
        let request = format!(
            "POST {} HTTP/1.1\r\nHost: relay\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{lines}",
            wire::EXPORT,
            lines.len()
        );
        let (stream, body) = begin(dir, request.as_bytes())?;
        stream
            .set_read_timeout(Some(TRANSFER_ANSWER_WAIT))
            .map_err(|error| error.to_string())?;
        Ok(RelayOutlet {
            body: BufReader::with_capacity(TRANSFER_WRITE_BYTES, body),
            line: Vec::new(),
        })
    }
}

impl Outlet for RelayOutlet {
    fn next(&mut self, into: &mut Vec<u8>) -> Result<bool, String> {
        while into.len() < READ_BYTES_MAX {
            let bytes_max = 2 * FRAME_BYTES_MAX as u64;
            match read_line(&mut self.body, &mut self.line, bytes_max) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err("the relay gives nothing more".to_owned());
                }
                Err(_) => return Err(WITHOUT_A_WORD.to_owned()),
            }
            match wire::read_end(&self.line) {
                None => {
                    into.extend_from_slice(&self.line);
                    into.push(b'\n');
                }
                Some(word) if word == wire::OK => return Ok(false),
                Some(word) => return Err(word),
            }
        }
        Ok(true)
    }
}

/// Reads a line without its LF. One that the end cuts short is an error: a body ends with a line.
fn read_line(body: &mut BufReader<Body>, line: &mut Vec<u8>, bytes_max: u64) -> io::Result<()> {
    line.clear();
    body.take(bytes_max).read_until(b'\n', line)?;
    match line.pop() {
        Some(b'\n') => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Connects, sends the request's beginning, and waits until the relay agrees.
fn begin(dir: &Path, request: &[u8]) -> Result<(UnixStream, Body), String> {
    let shown = |error: io::Error| format!("{}: {error}", dir.join(socket::NAME).display());
    let mut stream = socket::connect(dir).map_err(shown)?;
    stream
        .set_read_timeout(Some(TRANSFER_BEGIN_WAIT))
        .and_then(|()| stream.set_write_timeout(Some(TRANSFER_ANSWER_WAIT)))
        .and_then(|()| stream.write_all(request))
        .map_err(shown)?;
    let mut input = BufReader::new(stream.try_clone().map_err(shown)?);
    let (status, is_chunked) = read_head(&mut input).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => "the relay does not answer".to_owned(),
        _ => shown(error),
    })?;
    match (status, is_chunked) {
        (200, true) => {}
        (404, _) => return Err("the relay is of a version that cannot do this".to_owned()),
        _ => {
            let mut why = String::new();
            // What it says is not worth another error.
            let _ = input
                .take(CONTROL_ANSWER_BYTES_MAX)
                .read_to_string(&mut why);
            return Err(format!("the relay refused: {why}"));
        }
    }
    stream.set_read_timeout(None).map_err(shown)?;
    Ok((stream, Chunked::new(input)))
}

/// Reads the head of an answer: its status, and whether its body is chunked.
fn read_head(input: &mut impl BufRead) -> io::Result<(u16, bool)> {
    let mut head = Vec::new();
    let mut rest = input.take(HEAD_BYTES_MAX as u64);
    while !head.ends_with(b"\r\n\r\n") {
        if rest.read_until(b'\n', &mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let mut fields = [httparse::EMPTY_HEADER; HEAD_FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut fields);
    match parsed.parse(&head) {
        Ok(httparse::Status::Complete(_)) => {}
        _ => return Err(io::ErrorKind::InvalidData.into()),
    }
    let is_chunked = parsed.headers.iter().any(|field| {
        field.name.eq_ignore_ascii_case("transfer-encoding")
            && field.value.eq_ignore_ascii_case(b"chunked")
    });
    Ok((parsed.code.unwrap_or_default(), is_chunked))
}

#[cfg(test)]
mod tests;
