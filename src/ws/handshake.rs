//! Request heads, the upgrade to WebSocket, and the few plain HTTP answers a relay gives.
//!
//! A head is judged as a whole: it is HTTP or it is not ([`parse_head`] fails), and if it asks for
//! a WebSocket it does so by every rule of RFC 6455 section 4.2.1 or [`Upgrade::Bad`] says which
//! one it broke. What to answer is the caller's choice.
//!
//! Every plain answer closes the connection, so no request body is ever read as a second request.
//! Offers of extensions and subprotocols are ignored, which declines them (sections 4.2.2, 9.1).

use std::io::Write;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, PAD};
use httparse::{EMPTY_HEADER, Header, Request, Status};
use sha1::{Digest, Sha1};

use crate::limits::{HEAD_BYTES_MAX, HEAD_FIELDS_MAX};

/// What section 1.3 has appended to the key before it is hashed.
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Base64 of the 16 bytes of a key, and of the 20 bytes of a hash.
const KEY_CHARS: usize = 24;
const ACCEPT_CHARS: usize = 28;
/// A key is random: its last character may carry bits beyond the 16th byte.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, PAD.with_decode_allow_trailing_bits(true));

/// Header fields that let any web page read an answer (NIP-11 asks for them), pre-flight included.
pub const CORS: &[(&str, &str)] = &[
    ("Access-Control-Allow-Origin", "*"),
    ("Access-Control-Allow-Headers", "*"),
    ("Access-Control-Allow-Methods", "GET, HEAD, OPTIONS"),
];

/// What is said to a client whose request head cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadError {
    /// Not HTTP/1.x, or a line that does not end in CR LF.
    Malformed,
    /// Over 8192 bytes, or over 64 fields.
    TooLarge,
    /// HTTP/1.1 without exactly one readable `Host` (RFC 9112 section 3.2).
    Host,
    /// An upgrade in HTTP/1.0.
    Version,
    /// An upgrade by another method than GET.
    Method,
    /// A WebSocket key or version without the tokens in `Upgrade` and `Connection`, or one of the
    /// tokens without the other.
    Tokens,
    /// Another `Sec-WebSocket-Version` than 13, or none.
    WebSocketVersion,
    /// Not exactly one `Sec-WebSocket-Key` of 16 bytes in base64.
    Key,
    /// An upgrade with a body: it would be read as frames.
    Body,
}

impl HeadError {
    /// The HTTP status to answer with.
    pub const fn status(&self) -> u16 {
        match self {
            HeadError::TooLarge => 431,
            HeadError::Version => 505,
            HeadError::Method => 405,
            HeadError::WebSocketVersion => 426,
            _ => 400,
        }
    }

    /// What is wrong, and where to look, for a person.
    pub const fn text(&self) -> &'static str {
        match self {
            HeadError::Malformed => "this is not an HTTP/1.1 request",
            HeadError::TooLarge => "the request head is over 8192 bytes or 64 fields",
            HeadError::Host => "an HTTP/1.1 request has exactly one Host",
            HeadError::Version => {
                "a WebSocket needs HTTP/1.1; a proxy in front may be speaking HTTP/1.0"
            }
            HeadError::Method => "a WebSocket is opened with GET",
            HeadError::Tokens => {
                "a WebSocket needs Upgrade: websocket and Connection: Upgrade; \
                 a proxy in front may be dropping them"
            }
            HeadError::WebSocketVersion => "only version 13 of WebSocket is spoken here",
            HeadError::Key => "Sec-WebSocket-Key is not 16 bytes in base64, once",
            HeadError::Body => "a WebSocket request has no body",
        }
    }

    /// Header fields that the status asks for.
    pub const fn extra(&self) -> &'static [(&'static str, &'static str)] {
        match self {
            // RFC 9110 section 15.5.22: a 426 names what to upgrade to.
            HeadError::WebSocketVersion => &[
                ("Sec-WebSocket-Version", "13"),
                ("Upgrade", "websocket"),
                ("Connection", "Upgrade"),
            ],
            HeadError::Method => &[("Allow", "GET")],
            _ => &[],
        }
    }
}

/// What a request says about becoming a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upgrade<'a> {
    /// Nothing: it is plain HTTP.
    None,
    /// It may become one.
    WebSocket {
        /// The key, for [`write_switching_protocols`].
        key: &'a str,
    },
    /// It wants to, against a rule.
    Bad(HeadError),
}

/// A request head: all that is asked of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head<'a> {
    /// Bytes of the head, the empty line included. What follows is the next protocol's.
    pub len: usize,
    /// The method, as sent.
    pub method: &'a str,
    /// The request target, as sent; see [`Head::path`].
    pub target: &'a str,
    /// Whether `Accept` names `application/nostr+json` (NIP-11).
    pub wants_nostr_json: bool,
    /// What it says about becoming a WebSocket.
    pub upgrade: Upgrade<'a>,
    /// The `X-Forwarded-For` lines in their order, an unreadable one as an empty one: the nearest
    /// proxy wrote the end of the last.
    pub forwarded_for: Vec<&'a str>,
    /// `Host`; only HTTP/1.0 goes without.
    pub host: Option<&'a str>,
    /// Whether the client would go on after the answer. [`write_response`] does not.
    pub keep_alive: bool,
}

impl<'a> Head<'a> {
    /// The target's path: without query, and without the origin that a client sends to a proxy.
    pub fn path(&self) -> &'a str {
        let target = self.target.split(['?', '#']).next().unwrap_or_default();
        let Some((_, after_scheme)) = target
            .split_once("://")
            .filter(|_| !target.starts_with('/'))
        else {
            return target;
        };
        after_scheme
            .find('/')
            .map_or("/", |slash| &after_scheme[slash..])
    }
}

/// Reads a request head off the start of `bytes`. `None`: it is not all there.
///
/// # Errors
///
/// [`HeadError::TooLarge`] past [`HEAD_BYTES_MAX`] or [`HEAD_FIELDS_MAX`], however long the rest
/// is; [`HeadError::Host`]; [`HeadError::Malformed`] for anything else.
pub fn parse_head(bytes: &[u8]) -> Result<Option<Head<'_>>, HeadError> {
    let bounded = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
    let mut fields = [EMPTY_HEADER; HEAD_FIELDS_MAX];
    let mut request = Request::new(&mut fields);
    let len = match request.parse(bounded) {
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) if bytes.len() >= HEAD_BYTES_MAX => return Err(HeadError::TooLarge),
        Ok(Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooLarge),
        Err(_) => return Err(HeadError::Malformed),
    };
    // The parser takes a bare LF for the end of a line. A proxy in front may not, and then the
    // two would see different requests.
    if memchr::memchr_iter(b'\n', &bounded[..len]).any(|at| at == 0 || bounded[at - 1] != b'\r') {
        return Err(HeadError::Malformed);
    }
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version)
    else {
        return Err(HeadError::Malformed);
    };

    let fields = Fields::read(request.headers)?;
    if minor >= 1 && fields.host.is_none() {
        return Err(HeadError::Host);
    }
    Ok(Some(Head {
        len,
        method,
        target,
        wants_nostr_json: fields.wants_nostr_json,
        upgrade: fields.upgrade(method, minor),
        forwarded_for: fields.forwarded_for,
        host: fields.host,
        keep_alive: !fields.connection_close && (minor >= 1 || fields.connection_keep_alive),
    }))
}

/// The header fields that count here, each over all its lines.
#[derive(Default)]
struct Fields<'a> {
    host: Option<&'a str>,
    forwarded_for: Vec<&'a str>,
    wants_nostr_json: bool,
    upgrade_websocket: bool,
    connection_upgrade: bool,
    connection_close: bool,
    connection_keep_alive: bool,
    key: Once<'a>,
    version: Once<'a>,
    has_body: bool,
}

/// A field that may come once.
#[derive(Default, Clone, Copy)]
enum Once<'a> {
    #[default]
    Never,
    One(&'a [u8]),
    Several,
}

impl<'a> Once<'a> {
    fn add(&mut self, value: &'a [u8]) {
        *self = match self {
            Once::Never => Once::One(value),
            _ => Once::Several,
        };
    }

    fn is_present(self) -> bool {
        !matches!(self, Once::Never)
    }
}

impl<'a> Fields<'a> {
    fn read(headers: &[Header<'a>]) -> Result<Fields<'a>, HeadError> {
        let mut fields = Fields::default();
        for header in headers {
            let value = header.value.trim_ascii();
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            if is("Host") {
                let host = readable(value).ok_or(HeadError::Host)?;
                if fields.host.replace(host).is_some() {
                    return Err(HeadError::Host);
                }
            } else if is("Connection") {
                fields.connection_upgrade |= has_token(value, "upgrade");
                fields.connection_close |= has_token(value, "close");
                fields.connection_keep_alive |= has_token(value, "keep-alive");
            } else if is("Upgrade") {
                fields.upgrade_websocket |= has_token(value, "websocket");
            } else if is("Sec-WebSocket-Key") {
                fields.key.add(value);
            } else if is("Sec-WebSocket-Version") {
                fields.version.add(value);
            } else if is("Accept") {
                fields.wants_nostr_json |= accepts(value, "application/nostr+json");
            } else if is("X-Forwarded-For") {
                fields
                    .forwarded_for
                    .push(readable(value).unwrap_or_default());
            } else if is("Content-Length") {
                fields.has_body |= value != b"0";
            } else if is("Transfer-Encoding") {
                fields.has_body = true;
            }
        }
        Ok(fields)
    }

    /// The rules of RFC 6455 section 4.2.1. A request that shows any sign of a WebSocket is held to
    /// all of them: behind a proxy that drops half, a page of HTML would explain nothing.
    fn upgrade(&self, method: &str, minor: u8) -> Upgrade<'a> {
        let wanted = self.upgrade_websocket || self.key.is_present() || self.version.is_present();
        if !wanted {
            return Upgrade::None;
        }
        if minor < 1 {
            return Upgrade::Bad(HeadError::Version);
        }
        if method != "GET" {
            return Upgrade::Bad(HeadError::Method);
        }
        if !self.upgrade_websocket || !self.connection_upgrade {
            return Upgrade::Bad(HeadError::Tokens);
        }
        if !matches!(self.version, Once::One(b"13")) {
            return Upgrade::Bad(HeadError::WebSocketVersion);
        }
        if self.has_body {
            return Upgrade::Bad(HeadError::Body);
        }
        match self.key {
            Once::One(key) => match key_text(key) {
                Some(key) => Upgrade::WebSocket { key },
                None => Upgrade::Bad(HeadError::Key),
            },
            _ => Upgrade::Bad(HeadError::Key),
        }
    }
}

/// A value as text, if it is visible ASCII and spaces.
fn readable(value: &[u8]) -> Option<&str> {
    let plain = value.iter().all(|byte| matches!(byte, b' '..=b'~'));
    std::str::from_utf8(value).ok().filter(|_| plain)
}

/// Whether a comma-separated list has a token, in any case.
fn has_token(list: &[u8], token: &str) -> bool {
    list.split(|byte| *byte == b',')
        .any(|member| member.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

/// Whether an `Accept` list names a media type; parameters, weights included, are not looked at.
fn accepts(list: &[u8], media_type: &str) -> bool {
    list.split(|byte| *byte == b',')
        .filter_map(|range| range.split(|byte| *byte == b';').next())
        .any(|name| {
            name.trim_ascii()
                .eq_ignore_ascii_case(media_type.as_bytes())
        })
}

/// The key as text, if it is 16 bytes in base64.
fn key_text(key: &[u8]) -> Option<&str> {
    let mut decoded = [0; KEY_CHARS / 4 * 3];
    if BASE64.decode_slice(key, &mut decoded) != Ok(16) {
        return None;
    }
    std::str::from_utf8(key).ok()
}

/// Appends the answer that opens a WebSocket (RFC 6455 section 4.2.2).
pub fn write_switching_protocols(out: &mut Vec<u8>, key: &str) {
    out.extend_from_slice(
        b"HTTP/1.1 101 Switching Protocols\r\n\
          Upgrade: websocket\r\n\
          Connection: Upgrade\r\n\
          Sec-WebSocket-Accept: ",
    );
    out.extend_from_slice(&accept(key));
    out.extend_from_slice(b"\r\n\r\n");
}

/// What proves that the key was read: base64 of SHA-1 of the key and a fixed text.
fn accept(key: &str) -> [u8; ACCEPT_CHARS] {
    let hash = Sha1::new()
        .chain_update(key)
        .chain_update(KEY_SUFFIX)
        .finalize();
    let mut text = [0; ACCEPT_CHARS];
    let written = BASE64.encode_slice(hash, &mut text);
    assert_eq!(written, Ok(ACCEPT_CHARS));
    text
}

/// Appends a whole plain answer, which ends the connection.
///
/// `content_type` and `extra` are the caller's own texts, never a client's.
pub fn write_response(
    out: &mut Vec<u8>,
    status: u16,
    content_type: &str,
    extra: &[(&str, &str)],
    body: &[u8],
) {
    write_response_head(out, status, content_type, extra, body.len());
    out.extend_from_slice(body);
}

/// Appends an answer without its body: the answer to HEAD (RFC 9110 section 9.3.2).
///
/// A 204 has no body, so neither its type nor its length is said (section 8.6).
pub fn write_response_head(
    out: &mut Vec<u8>,
    status: u16,
    content_type: &str,
    extra: &[(&str, &str)],
    body_len: usize,
) {
    assert!(status != 204 || body_len == 0);
    // Writing to a vector cannot fail.
    let _ = write!(out, "HTTP/1.1 {status} {}\r\n", phrase(status));
    if status != 204 {
        let _ = write!(
            out,
            "Content-Type: {content_type}\r\nContent-Length: {body_len}\r\n"
        );
    }
    for (name, value) in extra {
        debug_assert!(!name.contains(['\r', '\n', ':']) && !value.contains(['\r', '\n']));
        let _ = write!(out, "{name}: {value}\r\n");
    }
    out.extend_from_slice(b"Connection: close\r\n\r\n");
}

/// Appends the answer to a head that cannot be served.
pub fn write_head_error(out: &mut Vec<u8>, error: HeadError) {
    let text = error.text().as_bytes();
    write_response(
        out,
        error.status(),
        "text/plain; charset=utf-8",
        error.extra(),
        text,
    );
}

const fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        // The phrase may be empty (RFC 9112 section 4).
        _ => "",
    }
}

#[cfg(test)]
mod tests;
