//! An outlet to lines.

use std::io::{self, Write};

/// Gives events, a slice at a time.
pub trait Outlet {
    /// Appends lines, each with its LF. Returns whether there are more.
    ///
    /// # Errors
    /// Why it ends before everything was given.
    fn next(&mut self, into: &mut Vec<u8>) -> Result<bool, String>;
}

/// Why an export ended before everything was written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The outlet.
    #[error("{0}")]
    Outlet(String),
    /// The output.
    #[error("cannot write: {0}")]
    Write(#[from] io::Error),
}

/// Writes everything that `outlet` gives, and tells `told` the bytes and the lines of each slice.
/// Returns the number of lines.
///
/// # Errors
/// What ended it. What came before has been written.
pub fn run(
    outlet: &mut dyn Outlet,
    output: &mut dyn Write,
    told: &mut dyn FnMut(u64, u64),
) -> Result<u64, ExportError> {
    let mut slice = Vec::new();
    let mut lines = 0;
    loop {
        slice.clear();
        let more = outlet.next(&mut slice);
        output.write_all(&slice)?;
        lines += memchr::memchr_iter(b'\n', &slice).count() as u64;
        told(slice.len() as u64, lines);
        if !more.map_err(ExportError::Outlet)? {
            output.flush()?;
            return Ok(lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Slices(Vec<Result<&'static str, &'static str>>);

    impl Outlet for Slices {
        fn next(&mut self, into: &mut Vec<u8>) -> Result<bool, String> {
            let slice = self.0.remove(0)?;
            into.extend_from_slice(slice.as_bytes());
            Ok(!self.0.is_empty())
        }
    }

    #[test]
    fn slices_are_written_and_counted_also_before_an_error() {
        let mut output = Vec::new();
        let mut outlet = Slices(vec![Ok("a\nb\n"), Ok(""), Ok("c\n")]);
        let lines = run(&mut outlet, &mut output, &mut |_, _| {});
        assert_eq!((lines.expect("all"), &output[..]), (3, &b"a\nb\nc\n"[..]));
        output.clear();
        let mut outlet = Slices(vec![Ok("a\n"), Err("stopped")]);
        let error = run(&mut outlet, &mut output, &mut |_, _| {}).expect_err("ended");
        assert_eq!(
            (error.to_string().as_str(), &output[..]),
            ("stopped", &b"a\n"[..])
        );
    }
}
