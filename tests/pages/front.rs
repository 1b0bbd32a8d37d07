//! The relay's address in a browser.

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::common::{Launch, get};
use crate::looks::looks_right;

/// An operator whose texts try everything.
fn hostile() -> Launch {
    let long = "Wort".repeat(60);
    let description = format!("\"><img src=x onerror=\"document.title='owned'\"> {long}");
    Launch::new()
        .set("BUZZ_NAME", NAME)
        .set("BUZZ_DESCRIPTION", description)
        .set("BUZZ_CONTACT", "javascript:document.title='owned'")
        .set("BUZZ_RELAY_URL", URL)
        .set("BUZZ_PUBKEY", "ab".repeat(32))
}

const NAME: &str = "<script>document.title='owned'</script> & {{url}}";
const URL: &str = "wss://relay.example/&amp;'";

#[test]
fn it_shows_the_relay_and_runs_nothing_of_its_texts() {
    let test = "it_shows_the_relay_and_runs_nothing_of_its_texts";
    let Some(browser) = Browser::start(test) else {
        return;
    };
    let relay = hostile().start();
    let home = format!("http://{}/", relay.address);
    browser.open(&home);
    let heading = browser.text("document.querySelector('h1').textContent");
    assert_eq!(heading, NAME);
    assert_eq!(
        browser.text("document.title"),
        format!("{NAME} · Nostr relay")
    );
    let url = browser.text("document.getElementById('url').textContent");
    assert_eq!(url, URL);
    let count = "['script', 'img', 'a[href^=javascript]', '[onerror]', 'button:not([hidden])']
        .map((part) => document.querySelectorAll(part).length)";
    assert_eq!(browser.value(count), json!([1, 0, 0, 0, 1]));
    let nostr = [("Accept", "application/nostr+json")];
    let document = get(relay.address, "/", &nostr).json();
    let nips = browser.value("document.querySelectorAll('.nips a').length");
    let listed = document["supported_nips"].as_array().map(Vec::len);
    assert_eq!(nips, json!(listed));
    looks_right(&browser);
    assert_eq!(browser.console(), Vec::<Value>::new());
    assert_eq!(browser.requested(), [home]);
}

#[test]
fn its_address_is_copied_or_selected() {
    let Some(browser) = Browser::start("its_address_is_copied_or_selected") else {
        return;
    };
    let relay = Launch::new().start();
    browser.open(&format!("http://{}/", relay.address));
    let said = |text: &str| {
        browser.until(&format!(
            "document.getElementById('said').textContent === '{text}'"
        ));
        browser.value("document.getElementById('said').textContent = ''");
    };
    browser.press("#copy");
    said("The address is copied.");
    // Over plain HTTP there is no clipboard, and where copying is not allowed at all the address
    // is at least selected.
    browser.value("Object.defineProperty(navigator, 'clipboard', { value: undefined }) && 0");
    browser.press("#copy");
    said("The address is copied.");
    browser.value("void (document.execCommand = () => false)");
    browser.press("#copy");
    said("The address is selected: copy it now.");
    let selected = browser.text("getSelection().toString()");
    assert_eq!(selected, "ws://localhost:3000");
}
