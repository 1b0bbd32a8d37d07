//! Bytes over TCP: HTTP requests, and WebSocket frames as a client that may break every rule.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::WAIT;

/// The key of the example in RFC 6455 section 1.3, and what proves that it was read.
pub const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
pub const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

pub const CONTINUATION: u8 = 0x0;
pub const TEXT: u8 = 0x1;
pub const BINARY: u8 = 0x2;
pub const CLOSE: u8 = 0x8;
pub const PING: u8 = 0x9;
pub const PONG: u8 = 0xa;

/// A connection.
pub struct Raw {
    stream: TcpStream,
    received: Vec<u8>,
}

/// An HTTP answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// The status line and the header fields.
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// The value of a header field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().skip(1);
        let mut fields = fields.filter_map(|line| line.split_once(':'));
        let found = fields.find(|(field, _)| field.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }
}

/// One frame from the relay.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub opcode: u8,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn text(&self) -> &str {
        assert_eq!(self.opcode, TEXT, "{self:?}");
        std::str::from_utf8(&self.payload).expect("UTF-8")
    }

    /// Code and reason of a close frame.
    pub fn close(&self) -> (Option<u16>, &str) {
        assert_eq!(self.opcode, CLOSE, "{self:?}");
        match self.payload.split_first_chunk::<2>() {
            Some((code, reason)) => (
                Some(u16::from_be_bytes(*code)),
                std::str::from_utf8(reason).expect("UTF-8"),
            ),
            None => (None, ""),
        }
    }
}

/// One request, and its answer up to the end of the connection.
pub fn get(address: SocketAddr, path: &str, fields: &[(&str, &str)]) -> Answer {
    request(address, "GET", path, fields)
}

/// As [`get`], with another method.
pub fn request(address: SocketAddr, method: &str, path: &str, fields: &[(&str, &str)]) -> Answer {
    let mut raw = Raw::connect(address);
    raw.send(head(method, path, fields));
    raw.answer()
}

/// A request head.
pub fn head(method: &str, path: &str, fields: &[(&str, &str)]) -> String {
    let fields: String = fields
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    format!("{method} {path} HTTP/1.1\r\nHost: relay.example\r\n{fields}\r\n")
}

/// The head that asks for a WebSocket, with further fields.
pub fn upgrade(fields: &[(&str, &str)]) -> String {
    let mut all = vec![
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", KEY),
    ];
    all.extend(fields);
    head("GET", "/", &all)
}

/// A frame of a client, masked.
pub fn frame(first_byte: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    let mut bytes = header(first_byte, payload.len(), true);
    bytes.extend(mask);
    bytes.extend(
        payload
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    bytes
}

/// The start of a frame: what precedes mask and payload.
pub fn header(first_byte: u8, len: usize, masked: bool) -> Vec<u8> {
    let mask_bit = if masked { 0x80 } else { 0 };
    let mut bytes = vec![first_byte];
    match len {
        0..=125 => bytes.push(mask_bit | len as u8),
        126..=0xffff => {
            bytes.push(mask_bit | 126);
            bytes.extend((len as u16).to_be_bytes());
        }
        _ => {
            bytes.push(mask_bit | 127);
            bytes.extend((len as u64).to_be_bytes());
        }
    }
    bytes
}

/// A whole text message.
pub fn text(payload: &str) -> Vec<u8> {
    frame(0x80 | TEXT, payload.as_bytes())
}

/// A close frame.
pub fn close(code: u16, reason: &str) -> Vec<u8> {
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend(reason.as_bytes());
    frame(0x80 | CLOSE, &payload)
}

/// A connection whose kernel takes little on its behalf.
pub fn slow_socket(relay: SocketAddr) -> Raw {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.connect(&relay.into()).unwrap();
    let mut raw = Raw::over(socket.into());
    raw.send(upgrade(&[]));
    raw.expect_upgrade();
    raw
}

impl Raw {
    pub fn connect(address: SocketAddr) -> Raw {
        Raw::over(TcpStream::connect(address).expect("a connection"))
    }

    pub fn over(stream: TcpStream) -> Raw {
        stream.set_nodelay(true).expect("a TCP option");
        stream.set_read_timeout(Some(WAIT)).expect("a time");
        stream.set_write_timeout(Some(WAIT)).expect("a time");
        Raw {
            stream,
            received: Vec::new(),
        }
    }

    /// A connection that is a WebSocket already.
    pub fn upgraded(address: SocketAddr) -> Raw {
        let mut raw = Raw::connect(address);
        raw.send(upgrade(&[]));
        raw.expect_upgrade();
        raw
    }

    /// Reads the answer that opens a WebSocket, and gives the challenge (NIP-42), which is the first
    /// frame of every connection.
    #[track_caller]
    pub fn expect_upgrade(&mut self) -> String {
        let answer = self.answer_head();
        assert_eq!(answer.status, 101, "{answer:?}");
        let first = self.message();
        assert_eq!(first[0], "AUTH", "{first}");
        let challenge = first[1].as_str().unwrap_or_default();
        assert!(challenge.len() >= 16, "{first}");
        challenge.to_owned()
    }

    /// Our end, as the relay sees it.
    pub fn address(&self) -> SocketAddr {
        self.stream.local_addr().expect("a connected socket")
    }

    /// Leaves without a word: a reset.
    pub fn reset(self) {
        let socket = socket2::SockRef::from(&self.stream);
        socket
            .set_linger(Some(Duration::ZERO))
            .expect("a TCP option");
    }

    /// Vanishes without a word, as a cable that is cut: from here on our kernel drops whatever comes
    /// and acknowledges nothing. Keep the socket, or its end tells the relay.
    pub fn vanish(&self) {
        let drop_all = socket2::SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
        socket2::SockRef::from(&self.stream)
            .attach_filter(&[drop_all])
            .expect("a filter");
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("the relay takes bytes");
    }

    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Bounds the time of one write.
    pub fn bound_write(&self, wait: Duration) {
        self.stream.set_write_timeout(Some(wait)).expect("a time");
    }

    pub fn shut_write(&self) {
        self.stream.shutdown(Shutdown::Write).expect("a shutdown");
    }

    /// Reads more; false at the end of the stream.
    fn read_more(&mut self) -> io::Result<bool> {
        let mut piece = [0; 16 << 10];
        let count = self.stream.read(&mut piece)?;
        self.received.extend(&piece[..count]);
        Ok(count > 0)
    }

    /// Throws away what has come, without waiting. False at the end of the stream.
    pub fn skip_received(&mut self) -> bool {
        self.stream.set_nonblocking(true).expect("an option");
        let mut piece = [0; 16 << 10];
        let open = loop {
            match self.stream.read(&mut piece) {
                Ok(0) => break false,
                Ok(_) => {}
                Err(error) => break error.kind() == io::ErrorKind::WouldBlock,
            }
        };
        self.stream.set_nonblocking(false).expect("an option");
        open
    }

    /// Reads one byte, past all that was received. False at the end of the stream.
    pub fn read_one(&mut self) -> io::Result<bool> {
        Ok(self.stream.read(&mut [0])? > 0)
    }

    /// The head of an answer; what follows it stays.
    pub fn answer_head(&mut self) -> Answer {
        let end = loop {
            let end = self
                .received
                .windows(4)
                .position(|four| four == b"\r\n\r\n");
            if let Some(end) = end {
                break end + 4;
            }
            let more = self.read_more().expect("an answer");
            assert!(
                more,
                "ended within a head: {:?}",
                String::from_utf8_lossy(&self.received)
            );
        };
        let head: Vec<u8> = self.received.drain(..end).collect();
        let head = String::from_utf8(head).expect("UTF-8");
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        Answer {
            status: status.unwrap_or_else(|| panic!("no status: {head}")),
            head,
            body: Vec::new(),
        }
    }

    /// A whole answer, which ends the connection.
    pub fn answer(&mut self) -> Answer {
        let mut answer = self.answer_head();
        answer.body = self.rest().expect("an end without a reset");
        answer
    }

    /// Everything up to the end of the stream.
    pub fn rest(&mut self) -> io::Result<Vec<u8>> {
        while self.read_more()? {}
        Ok(std::mem::take(&mut self.received))
    }

    /// Waits for the end of the stream, which must come without a further byte and without a reset,
    /// and says how long it took.
    #[track_caller]
    pub fn expect_end(&mut self) -> Duration {
        let start = Instant::now();
        let rest = self.rest().expect("an end without a reset");
        assert!(
            rest.is_empty(),
            "after the end: {:?}",
            String::from_utf8_lossy(&rest)
        );
        start.elapsed()
    }

    /// The next frame. `None`: the stream ended.
    pub fn try_frame(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.take_frame() {
                return Ok(Some(frame));
            }
            if !self.read_more()? {
                assert!(
                    self.received.is_empty(),
                    "ended within a frame: {:?}",
                    self.received
                );
                return Ok(None);
            }
        }
    }

    /// The next frame.
    #[track_caller]
    pub fn frame(&mut self) -> Frame {
        self.try_frame()
            .expect("a frame")
            .expect("a frame, not the end")
    }

    /// The next message, which is a text.
    #[track_caller]
    pub fn message(&mut self) -> Value {
        serde_json::from_str(self.frame().text()).expect("JSON")
    }

    /// Messages up to the close frame, and that one. Then the stream must end without a reset,
    /// once it is answered.
    #[track_caller]
    pub fn messages_until_close(&mut self) -> (Vec<String>, Option<u16>, String) {
        let mut messages = Vec::new();
        loop {
            let frame = self.frame();
            if frame.opcode == CLOSE {
                let (code, reason) = frame.close();
                let reason = reason.to_owned();
                let _ = self.try_send(super::raw::frame(0x80 | CLOSE, &frame.payload));
                self.expect_end();
                return (messages, code, reason);
            }
            messages.push(frame.text().to_owned());
        }
    }

    fn take_frame(&mut self) -> Option<Frame> {
        let (first, second) = (*self.received.first()?, *self.received.get(1)?);
        assert_eq!(
            first & 0xf0,
            0x80,
            "a relay sends whole messages without reserved bits"
        );
        assert_eq!(second & 0x80, 0, "a server does not mask");
        let (start, len) = match second {
            126 => (
                4,
                u16::from_be_bytes(self.received.get(2..4)?.try_into().ok()?) as usize,
            ),
            127 => (
                10,
                u64::from_be_bytes(self.received.get(2..10)?.try_into().ok()?) as usize,
            ),
            len => (2, len as usize),
        };
        let payload = self.received.get(start..start + len)?.to_vec();
        self.received.drain(..start + len);
        Some(Frame {
            opcode: first & 0x0f,
            payload,
        })
    }
}
