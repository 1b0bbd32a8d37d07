//! Other sites in the same browser: they get nothing of the health port, and move nothing.

use serde_json::json;

use crate::browser::Browser;
use crate::common::{Launch, get};
use crate::site::site;

#[test]
fn other_sites_read_nothing_and_change_nothing() {
    let Some(browser) = Browser::start("other_sites_read_nothing_and_change_nothing") else {
        return;
    };
    let relay = Launch::new().start();
    let health = format!("http://{}", relay.health);
    let html = "<!doctype html><title>x</title><p>elsewhere";
    let elsewhere = site(vec![("/", "text/html".to_owned(), html.to_owned())]);
    let fetched = |from: &str, path: &str, options: &str| {
        browser.open(from);
        browser.value(&format!(
            "fetch('{health}{path}', {options}).then(
                async (answer) => [answer.status, (await answer.text()).length > 0],
                (error) => error.name)"
        ))
    };
    let elsewhere = format!("http://{elsewhere}/");
    for path in ["/", "/_status", "/_readiness"] {
        assert_eq!(fetched(&elsewhere, path, "{}"), "TypeError", "{path}");
        // Without CORS it is not told what came; here it may not even come.
        let blind = fetched(&elsewhere, path, "{ mode: 'no-cors' }");
        assert_eq!(blind, "TypeError", "{path}");
    }
    let blind = "{ method: 'POST', mode: 'no-cors' }";
    fetched(&elsewhere, "/drain", blind);
    // Nor does the status page itself: only looking is for browsers.
    let own = fetched(&format!("{health}/"), "/drain", "{ method: 'POST' }");
    assert_eq!(own, json!([403, true]));
    assert_eq!(
        fetched(&format!("{health}/"), "/_status", "{}"),
        json!([200, true])
    );
    assert_eq!(get(relay.address, "/_readiness", &[]).status, 200);
}
