//! A place in a JSON text, and the tokens that can be taken from there.

use super::text::{Escapes, Fault, string_end};

/// A place in a text.
///
/// `at` may stand within a character, after a step over a byte that is not ASCII. Text is only ever
/// cut at quotes and after ASCII tokens, which are at boundaries.
pub(super) struct Cursor<'a> {
    text: &'a str,
    pub(super) at: usize,
    /// White space was passed over.
    pub(super) spaced: bool,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            spaced: false,
        }
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Takes a byte. The caller goes on only after one that is ASCII.
    #[inline]
    pub(super) fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// The text from `start` to here.
    pub(super) fn since(&self, start: usize) -> &'a str {
        &self.text[start..self.at]
    }

    /// Passes over white space.
    #[inline]
    pub(super) fn space(&mut self) {
        while self.peek().is_some_and(is_space) {
            self.at += 1;
            self.spaced = true;
        }
    }

    /// Takes `byte`.
    #[inline]
    pub(super) fn expect(&mut self, byte: u8, fault: Fault) -> Result<(), Fault> {
        if self.peek() != Some(byte) {
            return Err(fault);
        }
        self.at += 1;
        Ok(())
    }

    /// Takes a string. Returns its text between the quotes.
    #[inline]
    pub(super) fn string(&mut self, fault: Fault) -> Result<(&'a str, Escapes), Fault> {
        self.expect(b'"', fault)?;
        let start = self.at;
        let (end, escapes) = string_end(self.text.as_bytes(), start)?;
        self.at = end + 1;
        Ok((&self.text[start..end], escapes))
    }

    /// Takes a quoted hex number of `N` bytes.
    #[inline]
    pub(super) fn hex<const N: usize>(&mut self, fault: Fault) -> Result<Hex<'a, N>, Fault> {
        let start = self.at + 1;
        let end = start + 2 * N;
        let bytes = self.text.as_bytes();
        let (Some(b'"'), Some(b'"')) = (bytes.get(self.at), bytes.get(end)) else {
            return Err(fault);
        };
        let decoded = decode_hex(&bytes[start..end]).ok_or(fault)?;
        self.at = end + 1;
        Ok(Hex {
            bytes: decoded,
            text: &self.text[start..end],
        })
    }

    /// Takes a decimal integer without sign, fraction, exponent or leading zeros.
    #[inline]
    pub(super) fn integer(&mut self, max: u64, fault: Fault) -> Result<(u64, &'a str), Fault> {
        let start = self.at;
        let mut value = 0_u64;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            value = value
                .checked_mul(10)
                .and_then(|value| value.checked_add(u64::from(digit - b'0')))
                .filter(|&value| value <= max)
                .ok_or(fault)?;
            self.at += 1;
        }
        let digits = &self.text[start..self.at];
        let padded = digits.len() > 1 && digits.starts_with('0');
        if digits.is_empty() || padded || matches!(self.peek(), Some(b'.' | b'e' | b'E')) {
            return Err(fault);
        }
        Ok((value, digits))
    }
}

/// Bytes and the hex they were read from.
pub(super) struct Hex<'a, const N: usize> {
    pub(super) bytes: [u8; N],
    pub(super) text: &'a str,
}

/// Reads `N` bytes from exactly `2 * N` lower-case hex digits.
pub(super) fn decode_hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let upper = text
        .iter()
        .fold(false, |found, byte| found | byte.is_ascii_uppercase());
    if upper || text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    const_hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(bytes)
}

/// White space of JSON (RFC 8259 section 2).
#[inline]
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}
