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

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    #[tokio::test]
    async fn the_page_is_whole_and_runs_what_its_policy_names() {
        let answer = page().await.into_response();
        let policy = answer.headers()[header::CONTENT_SECURITY_POLICY].clone();
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let page = std::str::from_utf8(&body).unwrap();
        assert!(!page.contains("{{"), "a part is left");
        let within = |start: &str, end: &str| {
            let (_, rest) = page.split_once(start).unwrap();
            rest.split_once(end).unwrap().0.to_owned()
        };
        let style = within("<style>", "</");
        let script = within("<script type=\"module\">", "</");
        // Neither ends early, by a text in it.
        assert_eq!((style.as_str(), script.as_str()), (STYLE, SCRIPT));
        let named = markup::policy(&style, &script, "connect-src 'self'; img-src data:");
        assert_eq!(policy.to_str().unwrap(), named);
    }
}
