//! Commands to a running relay: the routes that answer them, and the command line's side.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::Value;

use super::door::Door;
use super::socket;
use crate::error::{EXIT_CLEAN, EXIT_FAILED};
use crate::limits::{CONTROL_ANSWER_BYTES_MAX, CONTROL_ANSWER_WAIT};

/// `POST /drain`, at once or, with `?wait=true`, at the end.
pub fn router(door: Door) -> Router {
    Router::new().route("/drain", post(drain)).with_state(door)
}

#[derive(Deserialize)]
struct Wait {
    #[serde(default)]
    wait: bool,
}

async fn drain(State(door): State<Door>, Query(Wait { wait }): Query<Wait>) -> Response {
    door.ask();
    if !wait {
        door.begun().await;
        return (StatusCode::ACCEPTED, Json(door.describe())).into_response();
    }
    door.ended().await;
    Json(door.describe()).into_response()
}

/// Asks the relay that runs on `dir` something that it answers at once: status code and answer.
///
/// # Errors
///
/// What to print when no relay can be reached, or answers.
pub fn ask(dir: &Path, method: &str, path: &str) -> Result<(u16, Value), String> {
    ask_within(CONTROL_ANSWER_WAIT, dir, method, path)
}

fn ask_within(
    wait: Duration,
    dir: &Path,
    method: &str,
    path: &str,
) -> Result<(u16, Value), String> {
    let asked = || {
        let stream = send(dir, method, path)?;
        stream.set_read_timeout(Some(wait))?;
        receive(&stream)
    };
    let answer: String = asked().map_err(|error| unreachable(dir, &error))?;
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let told = serde_json::from_str(body(&answer)).ok();
    status
        .zip(told)
        .ok_or_else(|| "no answer that can be understood".to_owned())
}

fn send(dir: &Path, method: &str, path: &str) -> io::Result<UnixStream> {
    let mut stream = socket::connect(dir)?;
    stream.write_all(format!("{method} {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    Ok(stream)
}

fn receive(stream: &UnixStream) -> io::Result<String> {
    let mut answer = String::new();
    stream
        .take(CONTROL_ANSWER_BYTES_MAX)
        .read_to_string(&mut answer)?;
    Ok(answer)
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

fn unreachable(dir: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            let dir = dir.display();
            format!("no relay runs on {dir}; set BUZZ_DATA_DIR to its data folder")
        }
        io::ErrorKind::WouldBlock => "the relay does not answer: it is stuck, or it has as many \
                                      connections to its control socket as it may"
            .to_owned(),
        _ => format!("{}: {error}", dir.join(socket::NAME).display()),
    }
}

/// `buzz-uring drain`: tells the relay that runs on `dir` to drain. Returns the exit code: with
/// `wait` that of the relay, which is [`EXIT_FAILED`] if it ends without a word.
///
/// # Errors
///
/// What to print when no relay can be reached.
pub fn drain_relay(dir: &Path, wait: bool) -> Result<i32, String> {
    let told: Value = if wait {
        let stream = send(dir, "POST", "/drain?wait=true");
        let stream = stream.map_err(|error| unreachable(dir, &error))?;
        eprintln!("the relay drains; waiting for its end");
        let answer = receive(&stream).unwrap_or_default();
        serde_json::from_str(body(&answer))
            .map_err(|_| "the relay has ended without a word, so not in order".to_owned())?
    } else {
        ask(dir, "POST", "/drain")?.1
    };
    // The relay drains, whether anybody reads of it or not.
    let _ = writeln!(io::stdout(), "{told}");
    Ok(match told["exit_code"].as_i64() {
        Some(code) => i32::try_from(code).unwrap_or(EXIT_FAILED),
        // It has only just begun.
        None => EXIT_CLEAN,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::socket::Socket;

    #[test]
    fn a_relay_that_is_stuck_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let _silent = Socket::bind(dir.path()).unwrap();
        let wait = Duration::from_millis(1);
        let error = ask_within(wait, dir.path(), "POST", "/drain").unwrap_err();
        assert!(error.contains("does not answer"), "{error}");
        let nobody = tempfile::tempdir().unwrap();
        let error = ask(nobody.path(), "POST", "/drain").unwrap_err();
        assert!(error.contains("BUZZ_DATA_DIR"), "{error}");
    }
}
