//! What was built.

/// The package's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit, as `build.rs` found it; `unknown` where nobody knew.
pub const COMMIT: &str = env!("COMMIT_OF_BUILD");

/// Both, for people.
pub const FULL: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("COMMIT_OF_BUILD"),
    ")"
);
