//! Why a connection ends, as the wire says it: close codes, close payloads, faults of a peer.
//!
//! A close payload is empty, or two bytes of code and up to 123 bytes of UTF-8 (RFC 6455
//! section 5.5.1). Codes that only describe what an endpoint saw (1005, 1006, 1015) never travel.

use crate::limits::{CLOSE_REASON_BYTES_MAX, CONTROL_PAYLOAD_BYTES_MAX};

/// The purpose is fulfilled.
pub const NORMAL: u16 = 1000;
/// The endpoint leaves.
pub const GOING_AWAY: u16 = 1001;
/// The peer broke the protocol.
pub const PROTOCOL_ERROR: u16 = 1002;
/// A kind of data that is not spoken here, such as binary messages.
pub const UNSUPPORTED_DATA: u16 = 1003;
/// Data that is not what its type says, such as text that is not UTF-8.
pub const INVALID_DATA: u16 = 1007;
/// The peer broke a rule of the house.
pub const POLICY_VIOLATION: u16 = 1008;
/// A message over the bound.
pub const MESSAGE_TOO_BIG: u16 = 1009;
/// The relay failed.
pub const INTERNAL_ERROR: u16 = 1011;
/// The relay restarts.
pub const SERVICE_RESTART: u16 = 1012;
/// The relay is overloaded.
pub const TRY_AGAIN_LATER: u16 = 1013;

/// Whether a code may stand in a close frame: those RFC 6455 section 7.4 and the IANA registry
/// define for the wire (1000–1003, 1007–1014), and the ranges for libraries and applications.
pub const fn is_valid_code(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

/// What a peer did that ends its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A reserved bit is set, though no extension was negotiated.
    ReservedBits,
    /// An opcode that RFC 6455 leaves undefined.
    ReservedOpcode,
    /// A frame without a mask; clients mask all (section 5.1).
    Unmasked,
    /// A length that a shorter encoding could hold (section 5.2).
    LengthNotMinimal,
    /// A 64-bit length with its top bit set.
    LengthTopBit,
    /// A control frame over 125 bytes.
    ControlTooLong,
    /// A control frame without FIN.
    ControlFragmented,
    /// A continuation while no message is under way.
    ContinuationWithoutStart,
    /// A new message while another one is still in fragments.
    MessageInsideMessage,
    /// A close payload of one byte.
    CloseTooShort,
    /// A close code that may not be sent.
    CloseCode,
    /// A text message, or a close reason, that is not UTF-8.
    NotUtf8,
    /// A message over the bound, seen from a declared length.
    MessageTooBig,
    /// A message in more fragments than the bound.
    TooManyFragments,
}

impl Fault {
    /// The code to close with: 1002, 1007 or 1009.
    pub const fn close_code(self) -> u16 {
        match self {
            Fault::NotUtf8 => INVALID_DATA,
            Fault::MessageTooBig | Fault::TooManyFragments => MESSAGE_TOO_BIG,
            _ => PROTOCOL_ERROR,
        }
    }

    /// The reason to close with; it fits a close frame.
    pub const fn text(self) -> &'static str {
        match self {
            Fault::ReservedBits => "reserved bits are set",
            Fault::ReservedOpcode => "reserved opcode",
            Fault::Unmasked => "frame is not masked",
            Fault::LengthNotMinimal => "length encoding is not minimal",
            Fault::LengthTopBit => "length has its top bit set",
            Fault::ControlTooLong => "control frame over 125 bytes",
            Fault::ControlFragmented => "control frame is fragmented",
            Fault::ContinuationWithoutStart => "continuation without a message",
            Fault::MessageInsideMessage => "new message before the last one ended",
            Fault::CloseTooShort => "close payload of one byte",
            Fault::CloseCode => "invalid close code",
            Fault::NotUtf8 => "text is not UTF-8",
            Fault::MessageTooBig => "message is too big",
            Fault::TooManyFragments => "message in too many fragments",
        }
    }

    /// Whether the message was over a bound, so that the client is told the bound in a NOTICE first.
    pub const fn is_too_big(self) -> bool {
        matches!(self, Fault::MessageTooBig | Fault::TooManyFragments)
    }
}

/// Reads an unmasked close payload: its code, if it has one, and its reason.
///
/// # Errors
///
/// [`Fault::CloseTooShort`], [`Fault::CloseCode`] or [`Fault::NotUtf8`].
pub fn parse_payload(payload: &[u8]) -> Result<(Option<u16>, &str), Fault> {
    let Some((code, reason)) = payload.split_first_chunk::<2>() else {
        return match payload {
            [] => Ok((None, "")),
            _ => Err(Fault::CloseTooShort),
        };
    };
    let code = u16::from_be_bytes(*code);
    if !is_valid_code(code) {
        return Err(Fault::CloseCode);
    }
    let reason = std::str::from_utf8(reason).map_err(|_| Fault::NotUtf8)?;
    Ok((Some(code), reason))
}

/// Appends a close payload. Without a code it is empty, and so is the reason. A reason over
/// 123 bytes is cut where a character ends.
///
/// # Panics
///
/// If the code may not stand in a close frame: codes are chosen here, or were read by
/// [`parse_payload`].
pub fn write_payload(out: &mut Vec<u8>, code: Option<u16>, reason: &str) {
    let Some(code) = code else { return };
    assert!(is_valid_code(code), "close code {code} never travels");
    let before = out.len();
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(cut(reason).as_bytes());
    assert!(out.len() - before <= CONTROL_PAYLOAD_BYTES_MAX);
}

/// The longest start of a reason that fits a close frame.
fn cut(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(CLOSE_REASON_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_may_travel() {
        let valid = (0..=u16::MAX).filter(|code| is_valid_code(*code));
        let expected = (1000..=1003).chain(1007..=1014).chain(3000..=4999);
        assert!(valid.eq(expected));
    }

    #[test]
    fn a_payload_is_read_as_it_was_written() {
        let mut out = Vec::new();
        write_payload(&mut out, Some(SERVICE_RESTART), "relay restarting");
        assert_eq!(out[..2], [0x03, 0xf4]);
        assert_eq!(parse_payload(&out), Ok((Some(1012), "relay restarting")));
    }

    #[test]
    fn a_bare_close_has_neither_code_nor_reason() {
        let mut out = Vec::new();
        write_payload(&mut out, None, "unheard");
        assert!(out.is_empty());
        assert_eq!(parse_payload(&out), Ok((None, "")));
    }

    #[test]
    fn a_long_reason_is_cut_where_a_character_ends() {
        // 122 bytes of ASCII, then a character of three bytes over the bound.
        let reason = "x".repeat(122) + "€";
        let mut out = Vec::new();
        write_payload(&mut out, Some(NORMAL), &reason);
        assert_eq!(parse_payload(&out), Ok((Some(1000), &reason[..122])));
        out.clear();
        write_payload(&mut out, Some(NORMAL), &"x".repeat(124));
        assert_eq!(out.len(), CONTROL_PAYLOAD_BYTES_MAX);
    }

    #[test]
    fn faulty_payloads() {
        assert_eq!(parse_payload(&[3]), Err(Fault::CloseTooShort));
        for code in [
            0u16,
            999,
            1004,
            1005,
            1006,
            1015,
            1016,
            2999,
            5000,
            u16::MAX,
        ] {
            assert_eq!(
                parse_payload(&code.to_be_bytes()),
                Err(Fault::CloseCode),
                "{code}"
            );
        }
        assert_eq!(parse_payload(&[3, 0xe8, 0xff]), Err(Fault::NotUtf8));
    }

    #[test]
    fn the_text_of_every_fault_fits_a_close_frame() {
        for fault in [
            Fault::ReservedBits,
            Fault::NotUtf8,
            Fault::MessageInsideMessage,
        ] {
            assert!(is_valid_code(fault.close_code()));
            assert_eq!(cut(fault.text()), fault.text());
        }
        assert_eq!(Fault::ReservedBits.close_code(), 1002);
        assert_eq!(Fault::NotUtf8.close_code(), 1007);
        assert_eq!(Fault::MessageTooBig.close_code(), 1009);
    }
}
