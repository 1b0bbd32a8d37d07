//! The relay's door: parse, start, wait, exit code.

fn main() {}
