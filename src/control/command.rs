//! Commands to a running relay: the routes that answer them, and the command line's side.

use std::io::{self, Read, Write};
use std::path::Path;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::Value;

use super::socket;
use super::stop::Door;
use crate::error::{EXIT_CLEAN, EXIT_FAILED};
use crate::limits::CONTROL_ANSWER_BYTES_MAX;

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
pub(super) fn ask(dir: &Path, method: &str, path: &str) -> Result<(u16, Value), String> {
    let asked = || {
        let mut stream = socket::connect(dir)?;
        stream.write_all(format!("{method} {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        (&mut stream)
            .take(CONTROL_ANSWER_BYTES_MAX)
            .read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer: String = asked().map_err(|error| unreachable(dir, &error))?;
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
    let told = body.and_then(|body| serde_json::from_str(body).ok());
    status
        .zip(told)
        .ok_or_else(|| "no answer that can be understood".to_owned())
}

fn unreachable(dir: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            let dir = dir.display();
            format!("no relay runs on {dir}; set BUZZ_DATA_DIR to its data folder")
        }
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
    let unreachable = |error| unreachable(dir, &error);
    let mut stream = socket::connect(dir).map_err(unreachable)?;
    let request = format!("POST /drain?wait={wait} HTTP/1.0\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(unreachable)?;
    if wait {
        eprintln!("the relay drains; waiting for its end");
    }
    let mut answer = String::new();
    let read = (&mut stream)
        .take(CONTROL_ANSWER_BYTES_MAX)
        .read_to_string(&mut answer);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let Ok(told) = serde_json::from_str::<Value>(body) else {
        return match (wait, read) {
            (true, _) => Err("the relay has ended without a word, so not in order".to_owned()),
            (false, Err(error)) => Err(format!("no answer: {error}")),
            (false, Ok(_)) => Err("no answer that can be understood".to_owned()),
        };
    };
    println!("{told}");
    Ok(match told["exit_code"].as_i64() {
        Some(code) => i32::try_from(code).unwrap_or(EXIT_FAILED),
        // It has only just begun.
        None => EXIT_CLEAN,
    })
}
