//! What the relay says of itself.

use axum::http::Uri;

use super::read::{self, Reader};

/// Texts of the information document (NIP-11).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct InfoTexts {
    /// The relay's name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// The operator's key: 64 lower-case hex digits.
    pub pubkey: Option<String>,
    /// How to reach the operator.
    pub contact: Option<String>,
    /// URL of a picture.
    pub icon: Option<String>,
}

pub(super) fn info(reader: &mut Reader<'_>) -> InfoTexts {
    let name_form = "a text without control characters";
    InfoTexts {
        name: reader.value("BUZZ_NAME", name_form, read::free_text),
        description: reader.text("BUZZ_DESCRIPTION"),
        pubkey: reader.optional("BUZZ_PUBKEY", "64 lower-case hex digits", |text| {
            let hex = text
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            (hex && text.len() == 64).then(|| text.to_owned())
        }),
        contact: reader.text("BUZZ_CONTACT"),
        icon: reader.optional("BUZZ_ICON", "an absolute http or https URL", |text| {
            let uri = text.parse::<Uri>().ok()?;
            let web = matches!(uri.scheme_str(), Some("http" | "https"));
            (web && uri.host().is_some_and(|host| !host.is_empty())).then(|| text.to_owned())
        }),
    }
}
