//! What is shown to people and programs that ask over plain HTTP: on the public port the information
//! document and a page that says the same, on the health port a page that shows the relay at work.

mod front;
mod markup;
pub mod status;

use crate::config::Config;
use crate::nostr::info::{Bounds, Info, Limitation};
use crate::shard::http::Pages;

/// NIPs that the relay implements, ascending.
pub const SUPPORTED_NIPS: &[u16] = &[1, 9, 11, 13, 40, 42, 45, 59, 62, 67, 70];

/// Makes what the public port shows from the settings.
pub fn pages(config: &Config) -> Pages {
    let info = info(config);
    let (page, policy) = front::front(config, &info);
    Pages {
        info: info.to_json(),
        page,
        policy,
    }
}

fn info(config: &Config) -> Info {
    Info {
        name: Some(config.info.name.clone()),
        description: config.info.description.clone(),
        pubkey: config.info.pubkey.clone(),
        contact: config.info.contact.clone(),
        icon: config.info.icon.clone(),
        supported_nips: SUPPORTED_NIPS.to_vec(),
        software: None,
        version: crate::version::VERSION.to_owned(),
        limitation: Limitation::of(&Bounds {
            frame_bytes: config.frame_bytes_max,
            subscriptions: config.subscriptions_max,
            subid_length: config.subid_length_max,
            limit_max: config.limit_max,
            limit_default: config.limit_default,
            created_at_past_seconds: config.created_at_past,
            created_at_future_seconds: config.created_at_future,
            pow_difficulty_min: config.pow_difficulty_min,
            auth_required: config.login_required(),
            restricted_writes: config.pubkey_allowlist || config.require_membership,
        }),
    }
}
