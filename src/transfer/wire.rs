//! How the command line and a running relay speak of an import and an export, over the control
//! socket.
//!
//! ```text
//! POST /import   body: chunked.     <number> <event>            any number; blank lines are nothing
//!                answer, streamed:  <number> stored|duplicate|superseded
//!                                   <number> refused|failed <reason>
//!                                   end <word>                  `ok`, or why it ended before its input
//! POST /export   body: one filter a line, none for everything
//!                answer, streamed:  <event>
//!                                   end <word>
//! ```
//!
//! Answers may overtake one another; each number is answered once, unless the connection ends
//! without an `end`. Both sides are of one program, so there is no version in it.

use std::io::{self, BufRead, Read};

use crate::transfer::window::Verdict;

/// The path of an import.
pub const IMPORT: &str = "/import";
/// The path of an export.
pub const EXPORT: &str = "/export";
/// The last word of a transfer that is complete.
pub const OK: &str = "ok";
/// Bytes in front of an event: the longest number and a space.
pub const NUMBER_BYTES_MAX: usize = 21;

/// A line of an answer to an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What became of an event.
    Verdict(u64, Verdict),
    /// The last line.
    End(String),
}

impl Answer {
    /// Appends the line.
    pub fn write(&self, out: &mut Vec<u8>) {
        let (number, word, reason) = match self {
            Answer::End(word) => return write_end(out, word),
            Answer::Verdict(number, verdict) => match verdict {
                Verdict::Accepted => (number, "stored", ""),
                Verdict::Duplicate => (number, "duplicate", ""),
                Verdict::Superseded => (number, "superseded", ""),
                Verdict::Refused(reason) => (number, "refused", reason.as_str()),
                Verdict::Failed(reason) => (number, "failed", reason.as_str()),
            },
        };
        out.extend_from_slice(number.to_string().as_bytes());
        for part in [word, reason] {
            if !part.is_empty() {
                out.push(b' ');
                push_line_text(out, part);
            }
        }
        out.push(b'\n');
    }

    /// Reads a line without its end. `None`: it is no answer.
    pub fn read(line: &str) -> Option<Answer> {
        let (first, rest) = line.split_once(' ')?;
        if first == "end" {
            return Some(Answer::End(rest.to_owned()));
        }
        let number = first.parse().ok()?;
        let (word, reason) = rest.split_once(' ').unwrap_or((rest, ""));
        let verdict = match word {
            "stored" => Verdict::Accepted,
            "duplicate" => Verdict::Duplicate,
            "superseded" => Verdict::Superseded,
            "refused" => Verdict::Refused(reason.to_owned()),
            "failed" => Verdict::Failed(reason.to_owned()),
            _ => return None,
        };
        Some(Answer::Verdict(number, verdict))
    }
}

/// Appends `end <word>`.
pub fn write_end(out: &mut Vec<u8>, word: &str) {
    out.extend_from_slice(b"end ");
    push_line_text(out, word);
    out.push(b'\n');
}

/// The word of an `end` line without its LF; `None` of any other line. Events begin with `{`.
pub fn read_end(line: &[u8]) -> Option<String> {
    let word = line.strip_prefix(b"end ")?;
    Some(String::from_utf8_lossy(word).into_owned())
}

/// Splits the number off an event.
pub fn read_number(line: &[u8]) -> Option<(u64, &[u8])> {
    let at = memchr::memchr(b' ', line)?;
    let number = std::str::from_utf8(&line[..at]).ok()?;
    Some((number.parse().ok()?, &line[at + 1..]))
}

/// A text of ours on one line, whatever is in it.
fn push_line_text(out: &mut Vec<u8>, text: &str) {
    let one_line = |byte| {
        if matches!(byte, b'\n' | b'\r') {
            b' '
        } else {
            byte
        }
    };
    out.extend(text.bytes().map(one_line));
}

/// Appends one chunk of a chunked body (RFC 9112 section 7.1) around `data`, which is not empty: an
/// empty one would end the body.
pub fn write_chunk(out: &mut Vec<u8>, data: &[u8]) {
    debug_assert!(!data.is_empty());
    out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// The end of a chunked body.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The body of an answer that comes in chunks, without their frames.
#[derive(Debug)]
pub struct Chunked<R> {
    input: R,
    /// Bytes of the chunk under way that are still to come.
    left: u64,
    begun: bool,
    ended: bool,
}

impl<R: BufRead> Chunked<R> {
    /// Reads from where the head has ended.
    pub fn new(input: R) -> Chunked<R> {
        Chunked {
            input,
            left: 0,
            begun: false,
            ended: false,
        }
    }

    /// Reads the frame up to the next byte of the body, or up to its end.
    fn next_chunk(&mut self) -> io::Result<()> {
        const FRAME_BYTES_MAX: u64 = 64;
        let mut frame = Vec::new();
        if std::mem::replace(&mut self.begun, true) {
            (&mut self.input).take(2).read_to_end(&mut frame)?;
            if frame != b"\r\n" {
                return Err(cut());
            }
            frame.clear();
        }
        (&mut self.input)
            .take(FRAME_BYTES_MAX)
            .read_until(b'\n', &mut frame)?;
        match httparse::parse_chunk_size(&frame) {
            Ok(httparse::Status::Complete((_, 0))) => self.ended = true,
            Ok(httparse::Status::Complete((_, size))) => self.left = size,
            _ => return Err(cut()),
        }
        Ok(())
    }
}

impl<R: BufRead> Read for Chunked<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.ended {
            self.next_chunk()?;
        }
        if self.ended || into.is_empty() {
            return Ok(0);
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let most = most.min(into.len());
        let count = self.input.read(&mut into[..most])?;
        if count == 0 {
            return Err(cut());
        }
        self.left -= count as u64;
        Ok(count)
    }
}

fn cut() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::BufReader;

    #[test]
    fn answers_are_read_as_they_were_written() {
        for (answer, text) in [
            (Answer::Verdict(0, Verdict::Accepted), "0 stored\n"),
            (Answer::Verdict(7, Verdict::Duplicate), "7 duplicate\n"),
            (
                Answer::Verdict(u64::MAX, Verdict::Superseded),
                "18446744073709551615 superseded\n",
            ),
            (
                Answer::Verdict(3, Verdict::Refused("blocked: no more".to_owned())),
                "3 refused blocked: no more\n",
            ),
            (
                Answer::Verdict(3, Verdict::Failed("full".to_owned())),
                "3 failed full\n",
            ),
            (
                Answer::End("the relay stops".to_owned()),
                "end the relay stops\n",
            ),
        ] {
            let mut line = Vec::new();
            answer.write(&mut line);
            assert_eq!(line, text.as_bytes());
            assert_eq!(Answer::read(text.trim_end()), Some(answer));
        }
        for text in ["", "x", "1", "1 what", "-1 stored", "endless"] {
            assert_eq!(Answer::read(text), None, "{text}");
        }
        let mut line = Vec::new();
        Answer::End("two\nlines".to_owned()).write(&mut line);
        assert_eq!(line, b"end two lines\n");
        assert_eq!(read_end(b"end two").as_deref(), Some("two"));
        assert_eq!(read_end(b"{\"id\""), None);
        assert_eq!(
            read_number(b"12 {\"a\": 1}"),
            Some((12, &b"{\"a\": 1}"[..]))
        );
        for line in [&b"{\"a\"}"[..], b"x {", b"", b"12"] {
            assert_eq!(read_number(line), None);
        }
    }

    proptest! {
        #[test]
        fn a_chunked_body_is_what_was_put_in(
            parts in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 1..200), 0..8),
            buffer in 1..64usize,
            read in 1..64usize,
        ) {
            let mut text = Vec::new();
            parts.iter().for_each(|part| write_chunk(&mut text, part));
            let whole = text.len();
            text.extend_from_slice(LAST_CHUNK);
            for cut_at in [text.len(), whole, whole.saturating_sub(1)] {
                let input = BufReader::with_capacity(buffer, &text[..cut_at]);
                let mut body = Chunked::new(input);
                let mut found = Vec::new();
                let mut part = vec![0; read];
                let ended = loop {
                    match body.read(&mut part) {
                        Ok(0) => break true,
                        Ok(count) => found.extend_from_slice(&part[..count]),
                        Err(_) => break false,
                    }
                };
                // Only the last chunk ends it: what is cut before is an error.
                prop_assert_eq!(ended, cut_at == text.len());
                prop_assert!(parts.concat().starts_with(&found));
                prop_assert!(!ended || found == parts.concat());
            }
        }
    }
}
