//! The page that shows the relay at work, for the health port: what `/_status` says, once a second.
//!
//! It holds no figure itself, so it is one text for the whole life of the process.

use std::sync::LazyLock;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::IntoResponse;
use axum::routing::get;

use super::markup::{self, escape, fill};

const HTML: &str = include_str!("status/status.html");
const STYLE: &str = concat!(include_str!("base.css"), include_str!("status/status.css"));
const SCRIPT: &str = concat!(
    include_str!("status/figures.js"),
    include_str!("status/charts.js"),
    include_str!("status/show.js"),
    include_str!("status/ask.js"),
);

/// Answers `/` with the page.
pub fn router() -> Router {
    Router::new().route("/", get(page))
}

async fn page() -> impl IntoResponse {
    static PAGE: LazyLock<(String, HeaderValue)> = LazyLock::new(|| {
        let favicon = escape(markup::FAVICON);
        let parts = [
            ("favicon", favicon.as_str()),
            ("style", STYLE),
            ("script", SCRIPT),
        ];
        let policy = markup::policy(STYLE, SCRIPT, "connect-src 'self'; img-src data:");
        let policy = HeaderValue::try_from(policy).expect("hashes and words are visible ASCII");
        (fill(HTML, &parts), policy)
    });
    let (page, policy) = &*PAGE;
    let word = HeaderValue::from_static;
    let fields: [(HeaderName, HeaderValue); 4] = [
        (header::CONTENT_TYPE, word("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, policy.clone()),
        (header::REFERRER_POLICY, word("no-referrer")),
        // The next version's page is another one.
        (header::CACHE_CONTROL, word("no-cache")),
    ];
    (fields, page.as_str())
}
