//! One question over HTTP, bounded in bytes and in time.
//!
//! HTTP/1.0, so that the answer ends with the connection and comes in one piece. Host names are
//! looked up on a thread of their own: the system's resolver knows no bound.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use axum::http::Uri;

use crate::limits::LOOK_ADDRESSES_MAX;

/// Where a server is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Server {
    /// At an address.
    At(SocketAddr),
    /// Behind a name, looked up for each question: what it stands for may move.
    Named {
        /// The name.
        host: String,
        /// The port.
        port: u16,
    },
}

/// An answer.
#[derive(Debug, Eq, PartialEq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// What follows the head.
    pub body: String,
}

/// How much one question may cost.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// From the first look at the name to the last byte.
    pub wait: Duration,
    /// Bytes of the answer, its head included.
    pub bytes: usize,
}

impl Server {
    /// The server that the settings put at `bound`. One that listens everywhere is reached on the
    /// loopback address.
    pub fn bound_at(bound: SocketAddr) -> Server {
        let reachable = match bound.ip() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
            given => given,
        };
        Server::At(SocketAddr::new(reachable, bound.port()))
    }

    /// The server of a URL: `http://host:port` and no more; `http://` may be left out.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and what is expected instead.
    pub fn of_url(url: &str) -> Result<Server, String> {
        let wrong = |what: &str| Err(format!("{what}; expected http://host:port, or host:port"));
        // Who types one shall not have it repeated.
        if url.contains('@') {
            return wrong("a user or a password has no use here");
        }
        let wrong = |what: &str| wrong(&format!("{url:?}: {what}"));
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        if !scheme.eq_ignore_ascii_case("http") {
            return wrong("the health port speaks plain http only");
        }
        let Ok(uri) = format!("http://{rest}").parse::<Uri>() else {
            return wrong("it is no address");
        };
        if uri.path() != "/" || uri.query().is_some() || rest.contains('#') {
            return wrong("nothing may follow the port");
        }
        let Some(authority) = uri.authority().filter(|found| !found.host().is_empty()) else {
            return wrong("it names no host");
        };
        let host = authority.host();
        let Some(port) = authority.port_u16().filter(|port| *port > 0) else {
            return wrong("it names no port");
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        Ok(match bare.parse() {
            Ok(address) => Server::At(SocketAddr::new(address, port)),
            Err(_) => Server::Named {
                host: host.to_owned(),
                port,
            },
        })
    }

    /// Asks for a path.
    ///
    /// # Errors
    ///
    /// No connection, no answer within the bounds, or one that is no HTTP.
    pub fn get(&self, path: &str, bounds: Bounds) -> io::Result<Answer> {
        let end = Instant::now() + bounds.wait;
        let mut stream = self.connect(end)?;
        stream.set_write_timeout(Some(left(end)?))?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {self}\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut bytes = Vec::new();
        let mut piece = [0; 4_096];
        loop {
            // One time for the whole answer, whatever pieces it comes in.
            stream.set_read_timeout(Some(left(end)?))?;
            let count = match stream.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // That is how Linux says that a socket's time is over.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            };
            bytes.extend_from_slice(&piece[..count]);
            if bytes.len() > bounds.bytes {
                let text = format!("the answer is longer than {} bytes", bounds.bytes);
                return Err(io::Error::other(text));
            }
        }
        parse(&bytes).ok_or_else(|| io::Error::other("the answer is no HTTP"))
    }

    fn connect(&self, end: Instant) -> io::Result<TcpStream> {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in self.addresses(end)? {
            match TcpStream::connect_timeout(&address, left(end)?) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn addresses(&self, end: Instant) -> io::Result<Vec<SocketAddr>> {
        let (host, port) = match self {
            Server::At(address) => return Ok(vec![*address]),
            Server::Named { host, port } => (host.clone(), *port),
        };
        let (sender, found) = mpsc::channel();
        std::thread::Builder::new().spawn(move || {
            let found = (host.as_str(), port).to_socket_addrs();
            // Nobody waits any longer when it took too long.
            let _ = sender.send(found.map(|all| all.take(LOOK_ADDRESSES_MAX).collect()));
        })?;
        let found = found.recv_timeout(left(end)?);
        found.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Server::At(address) => write!(f, "{address}"),
            Server::Named { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// What is left of the time; none is an error, for a socket takes 0 as no bound.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut words = head.lines().next()?.split(' ');
    let is_http = words.next()?.starts_with("HTTP/1.");
    let status = words.next()?.parse().ok()?;
    is_http.then(|| Answer {
        status,
        body: body.to_owned(),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A server that answers one request with this, whatever is asked.
    pub fn server(answer: impl Into<Vec<u8>>) -> SocketAddr {
        let answer = answer.into();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 512];
            let count = stream.read(&mut request).unwrap();
            assert!(request[..count].starts_with(b"GET /_"));
            let _ = stream.write_all(&answer);
        });
        address
    }

    const BOUNDS: Bounds = Bounds {
        wait: Duration::from_secs(20),
        bytes: 1_000,
    };

    fn ask(address: SocketAddr, bounds: Bounds) -> Result<Answer, String> {
        let answer = Server::At(address).get("/_x", bounds);
        answer.map_err(|error| error.to_string())
    }

    #[test]
    fn an_answer_is_a_status_and_a_body() {
        let fine = server("HTTP/1.1 503 Some Words\r\nA: b\r\n\r\nsick\r\n\r\nindeed");
        let answer = ask(fine, BOUNDS).unwrap();
        assert_eq!(answer.status, 503);
        assert_eq!(answer.body, "sick\r\n\r\nindeed");
        for other in ["SSH-2.0-something\r\n", "", "HTTP/1.1 many\r\n\r\n"] {
            assert_eq!(
                ask(server(other), BOUNDS).unwrap_err(),
                "the answer is no HTTP"
            );
        }
    }

    #[test]
    fn bytes_and_time_are_bounded() {
        let mut long = b"HTTP/1.0 200 OK\r\n\r\n".to_vec();
        long.resize(10_000, b'x');
        let error = ask(server(long), BOUNDS).unwrap_err();
        assert_eq!(error, "the answer is longer than 1000 bytes");
        // It takes the connection, and says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let bounds = Bounds {
            wait: Duration::from_millis(50),
            ..BOUNDS
        };
        let error = ask(silent.local_addr().unwrap(), bounds).unwrap_err();
        assert!(error.contains("timed out"), "{error}");
    }

    #[test]
    fn a_server_everywhere_is_reached_here() {
        for (bound, asked) in [
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:2", "[::1]:2"),
            ("192.0.2.1:3", "192.0.2.1:3"),
        ] {
            let asked = Server::At(asked.parse().unwrap());
            assert_eq!(Server::bound_at(bound.parse().unwrap()), asked);
        }
    }

    #[test]
    fn a_url_names_a_host_and_a_port() {
        for (url, shown) in [
            ("http://192.0.2.1:8080", "192.0.2.1:8080"),
            ("http://[2001:db8::1]:8080/", "[2001:db8::1]:8080"),
            ("http://relay.example:80", "relay.example:80"),
            ("HTTP://relay.example:80", "relay.example:80"),
            ("relay.example:80", "relay.example:80"),
            ("localhost:8080/", "localhost:8080"),
            ("192.0.2.1:8080", "192.0.2.1:8080"),
            ("[2001:db8::1]:8080", "[2001:db8::1]:8080"),
        ] {
            assert_eq!(Server::of_url(url).unwrap().to_string(), shown);
        }
        for (url, what) in [
            ("", "no address"),
            ("relay example:80", "no address"),
            ("relay.example", "no port"),
            ("http://relay.example", "no port"),
            ("http://relay.example:0", "no port"),
            ("https://relay.example:80", "plain http only"),
            ("ws://relay.example:80", "plain http only"),
            ("http://relay.example:80/_status", "follow the port"),
            ("relay.example:80/_status", "follow the port"),
            ("http://relay.example:80/?a", "follow the port"),
            ("http://relay.example:80#a", "follow the port"),
            ("http://somebody:hush@relay.example:80", "a password"),
            ("http://:80", ""),
            ("http://relay.example:99999", ""),
        ] {
            let error = Server::of_url(url).unwrap_err();
            assert!(error.contains("http://host:port"), "{url}: {error}");
            assert!(error.contains(what), "{url}: {error}");
            assert!(!error.contains("hush"), "{error}");
        }
        let named = Server::of_url("http://localhost:1").unwrap();
        let found = named.addresses(Instant::now() + BOUNDS.wait).unwrap();
        assert!(
            found.iter().all(|address| address.ip().is_loopback()),
            "{found:?}"
        );
    }
}
