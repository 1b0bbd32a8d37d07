//! Where a relay's `/_status` is read.

use std::net::SocketAddr;

use serde_json::Value;

use super::health::here;
use super::http::{Bounds, Server};
use super::picture::Text;
use crate::limits::{STATUS_ANSWER_BYTES_MAX, STATUS_ANSWER_WAIT};

/// A relay's health port.
#[derive(Clone, Debug)]
pub struct Source(Server);

impl Source {
    /// The health port of `url`; without one, that of the relay that the settings put on `health`.
    ///
    /// # Errors
    ///
    /// A URL of another form, or a port that the settings leave to chance.
    pub fn new(url: Option<&str>, health: SocketAddr) -> Result<Source, String> {
        let server = match url {
            Some(url) => Server::of_url(url).map_err(|error| format!("--url {error}"))?,
            None => here(health)?,
        };
        Ok(Source(server))
    }

    /// How to call it.
    pub fn name(&self) -> String {
        format!("http://{}", self.0)
    }

    /// Asks once. What comes is an object, and nothing more is known of it.
    ///
    /// # Errors
    ///
    /// Why there is none, in words that a terminal can show.
    pub fn ask(&self) -> Result<Value, String> {
        let bounds = Bounds {
            wait: STATUS_ANSWER_WAIT,
            bytes: STATUS_ANSWER_BYTES_MAX,
        };
        let path = format!("{}/_status", self.name());
        let answer = self.0.get("/_status", bounds);
        let answer = answer.map_err(|error| format!("no answer from {path}: {error}"))?;
        if answer.status != 200 {
            let body = Text::of(answer.body.trim());
            return Err(format!("{path} answers {}: {body}", answer.status));
        }
        match serde_json::from_str(&answer.body) {
            Ok(object @ Value::Object(_)) => Ok(object),
            _ => Err(format!("{path} answers something else than a status")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::http::tests::server;
    use super::*;

    fn ask(answer: &str) -> Result<Value, String> {
        let address = server(answer);
        Source::new(None, address).unwrap().ask()
    }

    #[test]
    fn an_object_is_taken_and_all_else_is_told() {
        assert_eq!(ask("HTTP/1.0 200 OK\r\n\r\n{}"), Ok(serde_json::json!({})));
        for body in ["[]", "ok", "", "{"] {
            let error = ask(&format!("HTTP/1.0 200 OK\r\n\r\n{body}")).unwrap_err();
            assert!(error.ends_with("/_status answers something else than a status"));
        }
        let error = ask("HTTP/1.0 404 Not Found\r\n\r\n\u{1b}[2Jnothing\n").unwrap_err();
        assert!(
            error.ends_with("/_status answers 404: ?[2Jnothing"),
            "{error}"
        );
    }

    #[test]
    fn a_url_counts_before_the_settings() {
        let nowhere = "0.0.0.0:0".parse().unwrap();
        let source = Source::new(Some("http://relay.example:80"), nowhere).unwrap();
        assert_eq!(source.name(), "http://relay.example:80");
        let error = Source::new(Some("relay"), nowhere).unwrap_err();
        assert!(error.starts_with("--url "), "{error}");
        let error = Source::new(None, nowhere).unwrap_err();
        assert!(error.contains("BUZZ_HEALTH_PORT"), "{error}");
        let here = Source::new(None, "0.0.0.0:8080".parse().unwrap()).unwrap();
        assert_eq!(here.name(), "http://127.0.0.1:8080");
    }
}
