//! The relay information document (NIP-11), from the bounds that are really enforced.

use serde::Serialize;

use crate::limits::EVENT_TAGS_MAX;

/// The document. Serialize with [`Info::to_json`]; what is `None` is left out.
#[derive(Clone, Debug, Serialize)]
pub struct Info {
    /// Name of the relay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Public key of the administrator, hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pubkey: Option<String>,
    /// Another way to reach the administrator: a URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contact: Option<String>,
    /// URL of a picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icon: Option<String>,
    /// The NIPs that the relay implements, ascending.
    pub supported_nips: Vec<u16>,
    /// URL of the software's home.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub software: Option<String>,
    /// Version of the software.
    pub version: String,
    /// The bounds.
    pub limitation: Limitation,
}

/// The bounds, in the words of NIP-11.
#[derive(Clone, Debug, Serialize)]
pub struct Limitation {
    /// Bytes of a message.
    pub max_message_length: usize,
    /// Subscriptions of a connection.
    pub max_subscriptions: usize,
    /// Events that one filter can get.
    pub max_limit: usize,
    /// Characters of a subscription id.
    pub max_subid_length: usize,
    /// Tags of an event.
    pub max_event_tags: usize,
    /// Characters of an event's content.
    pub max_content_length: usize,
    /// Leading zero bits that an id must have (NIP-13).
    pub min_pow_difficulty: u8,
    /// Nothing goes without a login.
    pub auth_required: bool,
    /// Nothing goes without a payment.
    pub payment_required: bool,
    /// Not everybody may write.
    pub restricted_writes: bool,
    /// Seconds that `created_at` may lie back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at_lower_limit: Option<u64>,
    /// Seconds that `created_at` may lie ahead.
    pub created_at_upper_limit: u64,
    /// Events that a filter without `limit` gets.
    pub default_limit: usize,
}

/// The settings that the document states.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of a message (`BUZZ_MAX_FRAME_BYTES`).
    pub frame_bytes: usize,
    /// `BUZZ_MAX_SUBSCRIPTIONS`.
    pub subscriptions: usize,
    /// `BUZZ_MAX_SUBID_LENGTH`.
    pub subid_length: usize,
    /// `BUZZ_MAX_LIMIT`.
    pub limit_max: usize,
    /// `BUZZ_DEFAULT_LIMIT`.
    pub limit_default: usize,
    /// `BUZZ_CREATED_AT_PAST_SECONDS`.
    pub created_at_past_seconds: Option<u64>,
    /// `BUZZ_CREATED_AT_FUTURE_SECONDS`.
    pub created_at_future_seconds: u64,
    /// `BUZZ_MIN_POW_DIFFICULTY`.
    pub pow_difficulty_min: u8,
    /// A login is required.
    pub auth_required: bool,
    /// An allow-list or membership decides who writes.
    pub restricted_writes: bool,
}

impl Limitation {
    /// What `bounds` come to.
    pub fn of(bounds: &Bounds) -> Self {
        Self {
            max_message_length: bounds.frame_bytes,
            max_subscriptions: bounds.subscriptions,
            max_limit: bounds.limit_max,
            max_subid_length: bounds.subid_length,
            max_event_tags: EVENT_TAGS_MAX,
            // The message bounds the content; what is left beside the shortest event around it.
            max_content_length: bounds.frame_bytes.saturating_sub(EVENT_MESSAGE_BYTES_MIN),
            min_pow_difficulty: bounds.pow_difficulty_min,
            auth_required: bounds.auth_required,
            payment_required: false,
            restricted_writes: bounds.restricted_writes,
            created_at_lower_limit: bounds.created_at_past_seconds,
            created_at_upper_limit: bounds.created_at_future_seconds,
            default_limit: bounds.limit_default,
        }
    }
}

impl Info {
    /// The document as JSON text.
    pub fn to_json(&self) -> String {
        // Strings, numbers and lists under fixed keys: nothing here can fail to serialize.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Bytes of an EVENT message without content and tags.
const EVENT_MESSAGE_BYTES_MIN: usize = {
    let shell = r#"["EVENT",{"id":"","pubkey":"","created_at":0,"kind":0,"tags":[],"content":"","sig":""}]"#;
    shell.len() + 64 + 64 + 128
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::nostr::testing::Author;

    const BOUNDS: Bounds = Bounds {
        frame_bytes: 1_024,
        subscriptions: 7,
        subid_length: 64,
        limit_max: 1_000,
        limit_default: 500,
        created_at_past_seconds: None,
        created_at_future_seconds: 900,
        pow_difficulty_min: 12,
        auth_required: true,
        restricted_writes: false,
    };

    #[test]
    fn the_document_states_the_bounds_and_leaves_out_what_is_unset() {
        let info = Info {
            name: Some("a \"relay\"".into()),
            description: None,
            pubkey: None,
            contact: None,
            icon: None,
            supported_nips: vec![1, 11],
            software: None,
            version: "0.1.0".into(),
            limitation: Limitation::of(&BOUNDS),
        };
        let document: serde_json::Value = serde_json::from_str(&info.to_json()).unwrap();
        let expected = json!({
            "name": "a \"relay\"", "supported_nips": [1, 11], "version": "0.1.0",
            "limitation": {
                "max_message_length": 1_024, "max_subscriptions": 7, "max_limit": 1_000,
                "max_subid_length": 64, "max_event_tags": 5_000, "max_content_length": 681,
                "min_pow_difficulty": 12, "auth_required": true, "payment_required": false,
                "restricted_writes": false, "created_at_upper_limit": 900, "default_limit": 500,
            },
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn the_longest_content_just_fits_a_message() {
        let length = Limitation::of(&BOUNDS).max_content_length;
        let event = Author::new(1).event::<&str>(0, 0, &[], &"x".repeat(length));
        assert_eq!(
            format!("[\"EVENT\",{}]", event.json()).len(),
            BOUNDS.frame_bytes
        );
    }
}
