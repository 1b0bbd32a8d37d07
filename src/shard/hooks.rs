//! Delays for tests, without blocking the shard: a busy store, at the place where one would be.
//!
//! With the cargo feature `hooks`, the file that `BUZZ_HOOKS_FILE` names is read before each store
//! read and each access check, and at the start: lines of `history_ms=N`, `access_ms=N` and
//! `start_ms=N`, and `panic_on=TEXT` and `block_on=TEXT`, which make a message that contains the text
//! panic, or block its shard for ever. Without the feature nothing here does anything.

use std::time::Duration;

/// Where a delay can be put.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Hook {
    /// Before each read of history.
    History,
    /// Before the access checks of a login.
    Access,
    /// Before anything is opened.
    Start,
}

/// The delay that the hooks file asks for now, if any.
#[cfg(feature = "hooks")]
pub fn delay(hook: Hook) -> Option<Duration> {
    let name = match hook {
        Hook::History => "history_ms",
        Hook::Access => "access_ms",
        Hook::Start => "start_ms",
    };
    let millis = setting(name)?.parse().ok()?;
    (millis > 0).then(|| Duration::from_millis(millis))
}

/// Without the feature there is no delay.
#[cfg(not(feature = "hooks"))]
#[inline]
pub fn delay(_hook: Hook) -> Option<Duration> {
    None
}

/// Panics, or blocks the thread, if the hooks file asks for it, on behalf of a message.
#[cfg(feature = "hooks")]
pub fn maybe_panic(message: &str) {
    let wanted = |name: &str| {
        let text = setting(name).filter(|text| !text.is_empty());
        text.is_some_and(|text| message.contains(&text))
    };
    assert!(!wanted("panic_on"), "asked for by the hooks file");
    while wanted("block_on") {
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Without the feature nothing panics on purpose.
#[cfg(not(feature = "hooks"))]
#[inline]
pub fn maybe_panic(_message: &str) {}

#[cfg(feature = "hooks")]
fn setting(name: &str) -> Option<String> {
    use std::sync::OnceLock;
    static FILE: OnceLock<Option<std::ffi::OsString>> = OnceLock::new();
    let file = FILE
        .get_or_init(|| std::env::var_os("BUZZ_HOOKS_FILE"))
        .as_ref()?;
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}
