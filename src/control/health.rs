//! `buzz-uring health`: one question to the health port of the relay that runs here, for container
//! engines and scripts that have no HTTP client at hand.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Instant;

use crate::limits::{HEALTH_ANSWER_BYTES_MAX, HEALTH_ANSWER_WAIT};

/// Asks the health server that the settings put on `health` whether the relay lives or, with
/// `ready`, whether it wants traffic. Returns what it answers.
///
/// # Errors
///
/// What to print when it does neither: its own words, or why there are none.
pub fn ask(health: SocketAddr, ready: bool) -> Result<String, String> {
    if health.port() == 0 {
        return Err(
            "BUZZ_HEALTH_PORT=0 picks a free port; set it to the one of the start-up line"
                .to_owned(),
        );
    }
    let address = SocketAddr::new(reachable(health.ip()), health.port());
    let path = if ready { "/_readiness" } else { "/_liveness" };
    let answer = get(address, path)
        .map_err(|error| format!("no answer from http://{address}{path}: {error}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        Some(status) => Err(format!("http://{address}{path} answers {status}: {body}")),
        None => Err(format!("http://{address}{path} answers no HTTP")),
    }
}

/// A server that listens everywhere is reached on the loopback address.
fn reachable(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        given => given,
    }
}

fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let end = Instant::now() + HEALTH_ANSWER_WAIT;
    let mut stream = TcpStream::connect_timeout(&address, HEALTH_ANSWER_WAIT)?;
    stream.set_write_timeout(Some(HEALTH_ANSWER_WAIT))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = [0; 1_024];
    while (answer.len() as u64) < HEALTH_ANSWER_BYTES_MAX {
        // One time for the whole answer, whatever pieces it comes in.
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => break,
            count => answer.extend_from_slice(&piece[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A server that answers one request with this.
    fn server(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 256];
            let count = stream.read(&mut request).unwrap();
            assert!(request[..count].starts_with(b"GET /_"));
            let _ = stream.write_all(answer.as_bytes());
        });
        address
    }

    #[test]
    fn what_counts_is_the_status() {
        let fine = server("HTTP/1.0 200 OK\r\n\r\nok");
        assert_eq!(ask(fine, false), Ok("ok".to_owned()));
        let sick = server("HTTP/1.0 503 Service Unavailable\r\n\r\nshard 1 has been silent");
        let error = ask(sick, false).unwrap_err();
        assert!(error.ends_with("/_liveness answers 503: shard 1 has been silent"));
        let other = server("SSH-2.0-something\r\n");
        assert!(ask(other, true).unwrap_err().contains("no HTTP"));
        let silent = server("");
        assert!(ask(silent, true).unwrap_err().contains("no HTTP"));
    }

    #[test]
    fn nobody_there_and_no_port_are_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = ask(address, true).unwrap_err();
        assert!(error.contains("/_readiness: "), "{error}");
        let error = ask("0.0.0.0:0".parse().unwrap(), false).unwrap_err();
        assert!(error.contains("BUZZ_HEALTH_PORT"), "{error}");
    }

    #[test]
    fn a_server_everywhere_is_reached_here() {
        for (bound, asked) in [
            ("0.0.0.0", "127.0.0.1"),
            ("::", "::1"),
            ("192.0.2.1", "192.0.2.1"),
        ] {
            let asked: IpAddr = asked.parse().unwrap();
            assert_eq!(reachable(bound.parse().unwrap()), asked);
        }
    }
}
