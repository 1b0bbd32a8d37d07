//! Why something was refused, as clients can read it (NIP-01, "From relay to client").
//!
//! A reason is a standard word, a colon and a sentence. Clients act on the word, people on the
//! sentence.

use std::{borrow::Cow, fmt};

/// The machine-readable word of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prefix {
    /// A login is needed first (NIP-42).
    AuthRequired,
    /// The author or the client is banned.
    Blocked,
    /// The event is already here.
    Duplicate,
    /// None of the others; trying again may help.
    Error,
    /// The message or event breaks a rule, and will tomorrow.
    Invalid,
    /// Too little proof of work (NIP-13).
    Pow,
    /// Too much at once.
    RateLimited,
    /// Logged in, and still not allowed (NIP-42).
    Restricted,
    /// The relay does not do this.
    Unsupported,
}

impl Prefix {
    /// The word as it stands on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AuthRequired => "auth-required",
            Self::Blocked => "blocked",
            Self::Duplicate => "duplicate",
            Self::Error => "error",
            Self::Invalid => "invalid",
            Self::Pow => "pow",
            Self::RateLimited => "rate-limited",
            Self::Restricted => "restricted",
            Self::Unsupported => "unsupported",
        }
    }
}

/// A prefix and a sentence. Displays as `invalid: text`, unescaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    prefix: Prefix,
    text: Cow<'static, str>,
}

impl Reason {
    /// A reason; `text` is a sentence without a final stop.
    pub fn new(prefix: Prefix, text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            prefix,
            text: text.into(),
        }
    }

    /// As [`Reason::new`], for constants.
    pub const fn fixed(prefix: Prefix, text: &'static str) -> Self {
        Self {
            prefix,
            text: Cow::Borrowed(text),
        }
    }

    /// `invalid: text`.
    pub fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Prefix::Invalid, text)
    }

    /// The machine-readable word.
    pub fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// The sentence after the colon.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.prefix.as_str(), self.text)
    }
}
