//! The page that a person sees at the relay's address: the information document in words.
//!
//! It asks for nothing from elsewhere, with one exception that the operator makes: the picture of
//! `BUZZ_ICON`, from that host only.

use axum::http::Uri;

use super::markup::{self, escape, fill};
use crate::config::Config;
use crate::nostr::info::{Info, Limitation};
use crate::nostr::key::PublicKey;

const HTML: &str = include_str!("front/front.html");
const STYLE: &str = concat!(include_str!("base.css"), include_str!("front/front.css"));
const SCRIPT: &str = include_str!("front/front.js");

/// Where each NIP can be read.
const NIPS_HOME: &str = "https://github.com/nostr-protocol/nips/blob/master";

/// Shown where there is no other picture.
const PICTURE: &str = "<svg viewBox=\"0 0 64 64\" aria-hidden=\"true\">\
    <path class=\"cell\" d=\"M32 3 57 17.5v29L32 61 7 46.5v-29z\"/>\
    <path class=\"wave\" d=\"M16 34q5-14 10 0t11 0 11 0\"/></svg>";

/// The page, and the Content-Security-Policy that it needs.
pub fn front(config: &Config, info: &Info) -> (String, String) {
    let description = info.description.as_deref().unwrap_or("A Nostr relay.");
    let icon = info
        .icon
        .as_deref()
        .and_then(|url| Some((url, origin(url)?)));
    let picture = icon.as_ref().map_or(PICTURE.to_owned(), |(url, _)| {
        let url = escape(url);
        format!("<img src=\"{url}\" alt=\"\" width=\"64\" height=\"64\">")
    });
    let (access, detail) = access(config);
    let page = fill(
        HTML,
        &[
            ("name", &escape(&config.info.name)),
            ("description", &escape(description)),
            ("favicon", &escape(markup::FAVICON)),
            ("style", STYLE),
            ("script", SCRIPT),
            ("picture", &picture),
            ("url", &escape(&config.relay_url)),
            ("access", access),
            ("access_detail", detail),
            (
                "access_class",
                if config.login_required() {
                    " closed"
                } else {
                    ""
                },
            ),
            ("operator", &operator(info)),
            ("bounds", &bounds(&info.limitation)),
            (
                "nips",
                &info.supported_nips.iter().map(nip).collect::<String>(),
            ),
            ("version", &escape(&info.version)),
        ],
    );
    let mut pictures = "img-src data:".to_owned();
    if let Some((_, origin)) = icon {
        pictures = format!("{pictures} {origin}");
    }
    (page, markup::policy(STYLE, SCRIPT, &pictures))
}

/// Scheme, host and port of a URL; none where they hold what a policy cannot say.
fn origin(url: &str) -> Option<String> {
    let uri = url.parse::<Uri>().ok()?;
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?);
    let host = authority.as_str().rsplit('@').next()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
    (matches!(scheme, "http" | "https") && host.bytes().all(plain))
        .then(|| format!("{scheme}://{host}"))
}

/// Who may use the relay, in a few words, and what that means.
fn access(config: &Config) -> (&'static str, &'static str) {
    if config.require_membership {
        (
            "For members.",
            "Your client must log in with a member's key (NIP-42) to read or to write.",
        )
    } else if config.pubkey_allowlist {
        (
            "By invitation.",
            "Your client must log in with a key that the operator has allowed (NIP-42) to read or to \
             write.",
        )
    } else if config.require_auth {
        (
            "A login is needed.",
            "Your client must log in with your key (NIP-42) to read or to write. Any key will do.",
        )
    } else {
        (
            "No login is needed.",
            "Everybody may read and write. What is addressed to somebody in a gift wrap is given to \
             them only, after a login (NIP-42).",
        )
    }
}

fn operator(info: &Info) -> String {
    let mut rows = String::new();
    if let Some(key) = &info.pubkey {
        // The settings have seen to it that it is one.
        let npub = key.parse::<PublicKey>().map(|key| key.npub());
        let key = escape(&npub.unwrap_or_else(|_| key.clone()));
        rows += &row("Public key", &format!("<code>{key}</code>"));
    }
    if let Some(contact) = &info.contact {
        rows += &row("Contact", &contact_markup(contact));
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "<section class=\"panel\" aria-labelledby=\"operator\">\n\
         <h2 id=\"operator\">Who runs it</h2>\n<dl>\n{rows}</dl>\n</section>"
    )
}

/// A link where it is one that cannot run anything.
fn contact_markup(contact: &str) -> String {
    let scheme = contact.split(':').next().unwrap_or_default();
    let whole = escape(contact);
    let harmless = ["https", "http", "mailto", "nostr"];
    if contact.contains(':') && harmless.iter().any(|one| scheme.eq_ignore_ascii_case(one)) {
        let shown = whole.strip_prefix("mailto:").unwrap_or(&whole);
        format!("<a href=\"{whole}\" rel=\"noreferrer\">{shown}</a>")
    } else {
        whole
    }
}

fn bounds(limitation: &Limitation) -> String {
    let age = match limitation.created_at_lower_limit {
        Some(seconds) => format!("at most {} old", duration(seconds)),
        None => "of any age".to_owned(),
    };
    let ahead = duration(limitation.created_at_upper_limit);
    let work = match limitation.min_pow_difficulty {
        0 => "none".to_owned(),
        bits => format!("{bits} bits at least (NIP-13)"),
    };
    let writers = if limitation.restricted_writes {
        "those who may log in"
    } else if limitation.auth_required {
        "everybody who has logged in"
    } else {
        "everybody"
    };
    [
        ("Writing", writers.to_owned()),
        ("Payment", "none".to_owned()),
        (
            "A message",
            format!("up to {}", bytes(limitation.max_message_length)),
        ),
        (
            "An event",
            format!("up to {} tags", number(limitation.max_event_tags)),
        ),
        ("Its date", format!("{age}, at most {ahead} ahead")),
        ("Proof of work", work),
        (
            "Subscriptions",
            format!(
                "up to {} a connection, with names of up to {} characters",
                number(limitation.max_subscriptions),
                number(limitation.max_subid_length),
            ),
        ),
        (
            "A filter",
            format!(
                "up to {} stored events, {} where it does not say how many",
                number(limitation.max_limit),
                number(limitation.default_limit),
            ),
        ),
    ]
    .iter()
    .map(|(name, text)| row(name, text))
    .collect()
}

/// `text` is markup.
fn row(name: &str, text: &str) -> String {
    format!("<dt>{name}</dt><dd>{text}</dd>\n")
}

fn nip(nip: &u16) -> String {
    let title = title(*nip);
    format!(
        "<li><a href=\"{NIPS_HOME}/{nip:02}.md\" rel=\"noreferrer\"><b>NIP-{nip:02}</b>\
         <span>{title}</span></a></li>\n"
    )
}

/// What a NIP is about.
fn title(nip: u16) -> &'static str {
    match nip {
        1 => "Events, filters, subscriptions",
        9 => "Deletion requests",
        11 => "Relay information",
        13 => "Proof of work",
        40 => "Events that expire",
        42 => "Logins",
        45 => "Counts",
        50 => "Search",
        59 => "Gift wraps",
        62 => "Requests to vanish",
        67 => "How complete a history is",
        70 => "Protected events",
        77 => "Negentropy syncing",
        86 => "Management",
        _ => "",
    }
}

/// With a comma before every three digits.
fn number(value: usize) -> String {
    let digits = value.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// In the largest unit that leaves no rest.
fn bytes(value: usize) -> String {
    for (unit, name) in [(1 << 20, "MiB"), (1 << 10, "KiB")] {
        if value > 0 && value.is_multiple_of(unit) {
            return format!("{} {name}", number(value / unit));
        }
    }
    format!("{} bytes", number(value))
}

/// In the largest unit that leaves no rest.
fn duration(seconds: u64) -> String {
    let units = [(86_400, "day"), (3_600, "hour"), (60, "minute")];
    let fits = |(unit, _): &&(u64, &str)| seconds > 0 && seconds.is_multiple_of(*unit);
    let (unit, name) = units.iter().find(fits).unwrap_or(&(1, "second"));
    match seconds / unit {
        1 => format!("1 {name}"),
        many => format!("{many} {name}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::pages::SUPPORTED_NIPS;

    #[test]
    fn only_harmless_contacts_are_links() {
        assert_eq!(
            contact_markup("mailto:op@relay.example"),
            "<a href=\"mailto:op@relay.example\" rel=\"noreferrer\">op@relay.example</a>"
        );
        assert_eq!(
            contact_markup("HTTPS://a/\"><b>"),
            "<a href=\"HTTPS://a/&quot;&gt;&lt;b&gt;\" rel=\"noreferrer\">HTTPS://a/&quot;&gt;&lt;b&gt;</a>"
        );
        for text in [
            "javascript:alert(1)",
            "data:text/html,x",
            " https://a",
            "https",
            "ask Ann",
        ] {
            assert_eq!(contact_markup(text), text);
        }
    }

    #[test]
    fn a_picture_opens_the_policy_for_its_host_and_nothing_more() {
        let of = |url| origin(url);
        let host = Some("https://a.example:8443".to_owned());
        assert_eq!(of("https://a.example:8443/x.png?y=1;2"), host);
        assert_eq!(of("https://me:secret@a.example:8443/x"), host);
        for url in ["https://a;script-src/x", "https://a,b/x", "ftp://a/x", "/x"] {
            assert_eq!(of(url), None, "{url}");
        }
    }

    #[test]
    fn figures_are_for_people() {
        assert_eq!(
            [0, 999, 1_024, 1_234_567].map(number).join(" "),
            "0 999 1,024 1,234,567"
        );
        assert_eq!(
            [524_288, 8 << 20, 4_097].map(bytes).join(", "),
            "512 KiB, 8 MiB, 4,097 bytes"
        );
        assert_eq!(
            [0, 1, 90, 900, 3_600, 86_400 * 30].map(duration).join(", "),
            "0 seconds, 1 second, 90 seconds, 15 minutes, 1 hour, 30 days"
        );
    }

    #[test]
    fn every_nip_has_a_title() {
        for one in SUPPORTED_NIPS {
            assert!(!title(*one).is_empty(), "{one}");
        }
        assert!(nip(&1).contains("/01.md\"") && nip(&1).contains("NIP-01"));
    }
}
