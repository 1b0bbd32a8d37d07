//! A stream of bytes, in chunks of any size, cut into numbered lines.
//!
//! A line ends with LF, or with CR LF, or with the stream. Blank lines count and are not handed on.
//! What is longer than the bound is told as [`Line::TooLong`], once, and never held: at most the
//! bound and one byte (a CR that may still be the line's end) are kept between chunks.

use memchr::memchr;

/// A line that is not blank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// The line without its end.
    Text(&'a [u8]),
    /// It is longer than the bound.
    TooLong,
}

/// Cuts a stream into lines.
#[derive(Debug)]
pub struct Lines {
    bytes_max: usize,
    /// The line under way, as far as it came in earlier chunks.
    begun: Vec<u8>,
    /// What was begun is longer than the bound, and was let go.
    overlong: bool,
    /// Lines that have ended.
    ended: u64,
}

impl Lines {
    /// A stream whose lines have at most `bytes_max` bytes, their ends not counted.
    pub fn new(bytes_max: usize) -> Lines {
        Lines {
            bytes_max,
            begun: Vec::new(),
            overlong: false,
            ended: 0,
        }
    }

    /// Takes the next chunk, and hands on every line that ends in it with its number, from 1.
    pub fn push(&mut self, mut chunk: &[u8], each: &mut dyn FnMut(u64, Line<'_>)) {
        while let Some(end) = memchr(b'\n', chunk) {
            let (text, rest) = (&chunk[..end], &chunk[end + 1..]);
            if self.begun.is_empty() {
                self.ended += 1;
                let overlong = std::mem::take(&mut self.overlong);
                hand_on(self.ended, text, overlong, self.bytes_max, each);
            } else {
                self.keep(text);
                self.end(each);
            }
            chunk = rest;
        }
        self.keep(chunk);
    }

    /// Ends the stream: its last line may have come without an end.
    pub fn finish(&mut self, each: &mut dyn FnMut(u64, Line<'_>)) {
        if self.overlong || !self.begun.is_empty() {
            self.end(each);
        }
    }

    fn keep(&mut self, text: &[u8]) {
        if self.overlong {
            return;
        }
        if self.begun.len() + text.len() > self.bytes_max + 1 {
            self.overlong = true;
            self.begun = Vec::new();
        } else {
            self.begun.extend_from_slice(text);
        }
    }

    fn end(&mut self, each: &mut dyn FnMut(u64, Line<'_>)) {
        self.ended += 1;
        let overlong = std::mem::take(&mut self.overlong);
        hand_on(self.ended, &self.begun, overlong, self.bytes_max, each);
        self.begun.clear();
    }
}

fn hand_on(
    number: u64,
    text: &[u8],
    overlong: bool,
    bytes_max: usize,
    each: &mut dyn FnMut(u64, Line<'_>),
) {
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if overlong || text.len() > bytes_max {
        each(number, Line::TooLong);
    } else if !text.iter().all(u8::is_ascii_whitespace) {
        each(number, Line::Text(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a line came to: its text, or `None` if it was too long.
    type Found = Vec<(u64, Option<Vec<u8>>)>;

    fn cut(chunks: &[&[u8]], bytes_max: usize) -> Found {
        let mut lines = Lines::new(bytes_max);
        let mut found = Found::new();
        let mut each = |number, line: Line<'_>| {
            found.push((
                number,
                match line {
                    Line::Text(text) => Some(text.to_vec()),
                    Line::TooLong => None,
                },
            ));
        };
        for chunk in chunks {
            lines.push(chunk, &mut each);
            assert!(lines.begun.len() <= bytes_max + 1);
        }
        lines.finish(&mut each);
        found
    }

    /// The whole text at once, as one would write it without a thought of memory.
    fn dumb(text: &[u8], bytes_max: usize) -> Found {
        let mut parts: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
        if parts.last().is_some_and(|last| last.is_empty()) {
            parts.pop();
        }
        let mut found = Found::new();
        for (at, part) in parts.iter().enumerate() {
            let text = part.strip_suffix(b"\r").unwrap_or(part);
            if text.len() > bytes_max {
                found.push((at as u64 + 1, None));
            } else if text.iter().any(|byte| !byte.is_ascii_whitespace()) {
                found.push((at as u64 + 1, Some(text.to_vec())));
            }
        }
        found
    }

    proptest! {
        #[test]
        fn chunks_do_not_matter(
            text in proptest::collection::vec(
                prop_oneof![Just(b'\n'), Just(b'\r'), Just(b' '), Just(b'a'), Just(0xff)], 0..60),
            cuts in proptest::collection::vec(0..60usize, 0..8),
            bytes_max in 0..12usize,
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|at| *at <= text.len()).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            prop_assert_eq!(cut(&chunks, bytes_max), dumb(&text, bytes_max));
        }
    }

    #[test]
    fn ends_of_all_kinds_and_blank_lines() {
        let found = cut(&[b"a\r", b"\n\n \t\r\nb\r\r\nc"], 9);
        let text = |text: &[u8]| Some(text.to_vec());
        assert_eq!(found, [(1, text(b"a")), (4, text(b"b\r")), (5, text(b"c"))]);
        assert_eq!(cut(&[], 9), []);
    }

    #[test]
    fn an_endless_line_is_told_once_and_not_held() {
        let mut lines = Lines::new(100);
        let mut found = Vec::new();
        for _ in 0..1_000 {
            lines.push(&[b'x'; 50], &mut |number, line| {
                found.push((number, line == Line::TooLong));
            });
            assert!(lines.begun.capacity() <= 256);
        }
        lines.push(b"\ny\n", &mut |number, line| {
            found.push((number, line == Line::TooLong));
        });
        assert_eq!(found, [(1, true), (2, false)]);
    }
}
