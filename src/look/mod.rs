//! Looking at a relay from outside: one picture of it, or a live view, in a terminal.
//!
//! | file | what it holds |
//! |---|---|
//! | [`http`] | one bounded question over HTTP |
//! | [`health`] | `buzz-uring health` |
//! | [`source`] | where a relay's `/_status` is read |
//! | [`picture`] | what it says, typed, and what has changed between two of them |
//! | [`figures`] | numbers for people |
//! | [`status`] | `buzz-uring status` |
//! | [`screen`] | what `buzz-uring top` shows |
//! | [`top`] | its terminal |
//!
//! It asks the health port as anybody could, and knows nothing of the process that answers: that may
//! be on another machine, of another version, or no relay at all. Only where the port is, a relay that
//! runs here is asked over its control socket, if the settings cannot be sure.

pub mod figures;
pub mod health;
pub mod http;
pub mod picture;
pub mod screen;
pub mod source;
pub mod status;
pub mod top;
