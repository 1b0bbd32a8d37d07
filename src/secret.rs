//! Text that never shows itself.
//!
//! Keys and database addresses travel through settings, errors and debug prints of whole structures.
//! Wrapped here, none of those can print them: the only way to the text is [`Secret::expose`], which
//! is easy to find with a search.

use std::fmt;

/// A text that `Debug` and `Display` mask.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret(String);

/// What is printed in place of a secret.
pub const MASK: &str = "********";

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself, for the one place that must hand it on.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_prints_as_its_mask() {
        let secret = Secret::new("sdk-key-of-somebody");
        assert_eq!(format!("{secret}"), MASK);
        assert_eq!(format!("{:?}", Some(&secret)), format!("Some({MASK})"));
        assert_eq!(secret.expose(), "sdk-key-of-somebody");
    }
}
