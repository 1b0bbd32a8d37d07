//! A relay seen from outside: `status`, `top`, and the pages that the program prints of itself.

#[path = "../common/mod.rs"]
mod common;

mod pages;
mod status;
mod terminal;
mod top;

use common::{Launch, Relay};

/// A command of the same settings as a relay's, its health port included.
fn beside(relay: &Relay, words: &[&str]) -> Launch {
    let launch = Launch::new().set("BUZZ_HEALTH_PORT", relay.health.port());
    words.iter().fold(launch, |launch, word| launch.arg(word))
}
