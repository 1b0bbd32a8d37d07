//! Faults for tests, at the places where they would come from: a busy store, a cold one, a panic.
//!
//! With the cargo feature `hooks`, the file that `BUZZ_HOOKS_FILE` names is read at each of these
//! places. Without the feature nothing here does anything.
//!
//! | line | what it does |
//! |---|---|
//! | `history_ms=N` | a pause before each read of history, once it has its permit |
//! | `scan_ms=N` | a slice of a read blocks its thread, as pages do that are not in memory |
//! | `deliver_ms=N` | the store's writer pauses between a commit and what it tells of it |
//! | `access_ms=N` | a pause before the access checks of a login, once it has its permit |
//! | `start_ms=N` | a pause before anything is opened |
//! | `rebuild_ms=N` | the time between a LaunchDarkly client that was rejected and the next one |
//! | `mailbox_items=N` | items that wait for a shard, at most; read at start |
//! | `echo=1` | no challenge is sent, and every message comes back as it is: for suites of WebSocket cases |
//! | `panic_on=TEXT` | a message that contains the text panics; `top`: the live view does |
//! | `block_on=TEXT` | a message that contains the text blocks its shard for ever |
//! | `panic_refresh=STEP` | that step of each refresh of the limits panics: `provider`, a gate's label, or `1` for all |

use std::time::Duration;

/// Where a delay can be put.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Hook {
    /// Before each read of history.
    History,
    /// Between a commit and its delivery.
    Delivery,
    /// Before the access checks of a login.
    Access,
    /// Before anything is opened.
    Start,
    /// Between a flag client that was rejected and the next one.
    Rebuild,
}

/// The delay that the hooks file asks for now, if any.
#[cfg(feature = "hooks")]
pub fn delay(hook: Hook) -> Option<Duration> {
    let name = match hook {
        Hook::History => "history_ms",
        Hook::Delivery => "deliver_ms",
        Hook::Access => "access_ms",
        Hook::Start => "start_ms",
        Hook::Rebuild => "rebuild_ms",
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

/// Pauses for as long as the hooks file asks for. It looks again while it waits, so that a test that
/// takes the delay away lets go of what is held.
#[cfg(feature = "hooks")]
pub async fn pause(hook: Hook) {
    const LOOK: Duration = Duration::from_millis(25);
    let start = std::time::Instant::now();
    while let Some(left) = delay(hook).and_then(|delay| delay.checked_sub(start.elapsed())) {
        super::runtime::sleep(left.min(LOOK)).await;
    }
}

/// Without the feature there is no pause.
#[cfg(not(feature = "hooks"))]
#[inline]
pub async fn pause(_hook: Hook) {}

/// Blocks the thread for as long as the hooks file asks for. It looks again as [`pause`] does.
#[cfg(feature = "hooks")]
pub fn block(hook: Hook) {
    const LOOK: Duration = Duration::from_millis(25);
    let start = std::time::Instant::now();
    while let Some(left) = delay(hook).and_then(|delay| delay.checked_sub(start.elapsed())) {
        std::thread::sleep(left.min(LOOK));
    }
}

/// Without the feature nothing blocks.
#[cfg(not(feature = "hooks"))]
#[inline]
pub fn block(_hook: Hook) {}

/// Blocks the thread for as long as the hooks file asks for, on behalf of a slice of a read.
#[cfg(feature = "hooks")]
pub fn stall() {
    if let Some(millis) = setting("scan_ms").and_then(|millis| millis.parse().ok()) {
        std::thread::sleep(Duration::from_millis(millis));
    }
}

/// Whether slices of reads block now.
#[cfg(feature = "hooks")]
pub fn stalls() -> bool {
    setting("scan_ms").is_some()
}

/// Without the feature none does.
#[cfg(not(feature = "hooks"))]
#[inline]
pub fn stalls() -> bool {
    false
}

/// Without the feature nothing blocks.
#[cfg(not(feature = "hooks"))]
#[inline]
pub fn stall() {}

/// The bound of a mailbox, if the hooks file sets one.
#[cfg(feature = "hooks")]
pub fn mailbox_items() -> Option<usize> {
    setting("mailbox_items")?.parse().ok()
}

/// Without the feature it is the product's.
#[cfg(not(feature = "hooks"))]
#[inline]
pub fn mailbox_items() -> Option<usize> {
    None
}

/// Whether messages are to come back as they are.
#[cfg(feature = "hooks")]
pub fn echoes() -> bool {
    setting("echo").is_some_and(|wanted| wanted == "1")
}

/// Without the feature they are read.
#[cfg(not(feature = "hooks"))]
#[inline]
pub fn echoes() -> bool {
    false
}

/// Panics if the hooks file asks for it, on behalf of a step of the refresh of the limits.
#[cfg(feature = "hooks")]
pub fn maybe_panic_in_refresh(step: &str) {
    let wanted = setting("panic_refresh");
    assert!(
        !wanted.is_some_and(|wanted| wanted == "1" || wanted == step),
        "asked for by the hooks file"
    );
}

/// Without the feature nothing panics on purpose.
#[cfg(not(feature = "hooks"))]
#[inline]
pub fn maybe_panic_in_refresh(_step: &str) {}

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
