//! Exit codes of the process. Errors themselves live beside what fails.

/// The relay ended in order.
pub const EXIT_CLEAN: i32 = 0;
/// It could not start, or could not end in order.
pub const EXIT_FAILED: i32 = 1;
/// A bad command line or a bad setting (`EX_USAGE` of sysexits).
pub const EXIT_CONFIG: i32 = 64;
/// A shard or another thread that the relay cannot do without has ended (`EX_SOFTWARE`).
pub const EXIT_INTERNAL: i32 = 70;
