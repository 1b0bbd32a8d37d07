//! `buzz-uring health`: one question to the health port of the relay that runs here, for container
//! engines and scripts that have no HTTP client at hand.

use std::net::SocketAddr;

use super::http::{Bounds, Server};
use crate::config::Meeting;
use crate::control::command;
use crate::limits::{HEALTH_ANSWER_BYTES_MAX, HEALTH_ANSWER_WAIT};

/// Asks the health server that the settings put on `health` whether the relay lives or, with
/// `ready`, whether it wants traffic. Returns what it answers.
///
/// # Errors
///
/// What to print when it does neither: its own words, or why there are none.
pub fn ask(health: SocketAddr, ready: bool) -> Result<String, String> {
    let server = here(health)?;
    let path = if ready { "/_readiness" } else { "/_liveness" };
    let bounds = Bounds {
        wait: HEALTH_ANSWER_WAIT,
        bytes: HEALTH_ANSWER_BYTES_MAX,
    };
    let answer = server
        .get(path, bounds)
        .map_err(|error| format!("no answer from http://{server}{path}: {error}"))?;
    match answer.status {
        200 => Ok(answer.body),
        status => Err(format!(
            "http://{server}{path} answers {status}: {}",
            answer.body
        )),
    }
}

/// Where the relay that is met there answers, which it says itself where the settings cannot be sure.
pub fn address(at: &Meeting) -> SocketAddr {
    if !at.is_health_uncertain {
        return at.health;
    }
    // Who may not ask it, or has no answer, tries what the settings say.
    let told = command::ask(&at.data_dir, "GET", "/_status").ok();
    let told = told.and_then(|(_, status)| status["addresses"]["health"].as_str()?.parse().ok());
    told.unwrap_or(at.health)
}

/// The health server of the relay that these settings run.
///
/// # Errors
///
/// When they leave its port to chance.
pub(super) fn here(health: SocketAddr) -> Result<Server, String> {
    if health.port() == 0 {
        return Err(
            "BUZZ_HEALTH_PORT=0 picks a free port, and no relay on BUZZ_DATA_DIR says which; set it to the one of the start-up line"
                .to_owned(),
        );
    }
    Ok(Server::bound_at(health))
}

#[cfg(test)]
mod tests {
    use super::super::http::tests::server;
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn what_counts_is_the_status() {
        let fine = server("HTTP/1.0 200 OK\r\n\r\nok");
        assert_eq!(ask(fine, false), Ok("ok".to_owned()));
        let sick = server("HTTP/1.0 503 Service Unavailable\r\n\r\nshard 1 has been silent");
        let error = ask(sick, false).unwrap_err();
        assert!(error.ends_with("/_liveness answers 503: shard 1 has been silent"));
        let other = server("SSH-2.0-something\r\n");
        assert!(ask(other, true).unwrap_err().contains("no HTTP"));
    }

    #[test]
    fn without_a_relay_to_ask_the_settings_count() {
        let folder = tempfile::tempdir().unwrap();
        let health = "127.0.0.1:81".parse().unwrap();
        for is_health_uncertain in [false, true] {
            let meeting = Meeting {
                data_dir: folder.path().to_owned(),
                health,
                is_health_uncertain,
            };
            assert_eq!(address(&meeting), health);
        }
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
}
