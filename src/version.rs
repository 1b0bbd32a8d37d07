//! What was built.

/// The package's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit, as `build.rs` found it; `unknown` where nobody knew.
pub const COMMIT: &str = env!("BUZZ_COMMIT");

/// Both, for people.
pub const FULL: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUZZ_COMMIT"), ")");
