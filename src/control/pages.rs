//! What the public port serves over plain HTTP: the information document and a page for people.

use crate::config::Config;
use crate::nostr::info::{Bounds, Info, Limitation};
use crate::shard::http::Pages;

/// NIPs that the relay implements, ascending.
pub const SUPPORTED_NIPS: &[u16] = &[1, 9, 11, 13, 40, 42, 45, 59, 62, 67, 70];

/// Makes the pages from the settings. They do not change while the process runs.
pub fn pages(config: &Config) -> Pages {
    let info = info(config);
    Pages {
        page: page(config, &info),
        info: info.to_json(),
    }
}

fn info(config: &Config) -> Info {
    Info {
        name: Some(config.info.name.clone()),
        description: config.info.description.clone(),
        pubkey: config.info.pubkey.clone(),
        contact: config.info.contact.clone(),
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

fn page(config: &Config, info: &Info) -> String {
    let name = escape(&config.info.name);
    let description = config
        .info
        .description
        .as_deref()
        .unwrap_or("A Nostr relay.");
    let nips: Vec<String> = info.supported_nips.iter().map(u16::to_string).collect();
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{name}</title>\
         <h1>{name}</h1><p>{}</p>\
         <p>This is a Nostr relay. Add <code>{}</code> to a Nostr client to use it.</p>\
         <p>NIPs: {}. Software: buzz-uring {}.</p></html>",
        escape(description),
        escape(&config.relay_url),
        nips.join(", "),
        info.version,
    )
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operators_text_cannot_become_markup() {
        assert_eq!(
            escape("<b title=\"x\">&</b>"),
            "&lt;b title=&quot;x&quot;&gt;&amp;&lt;/b&gt;"
        );
    }
}
