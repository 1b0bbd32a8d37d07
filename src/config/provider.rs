//! Where the caps come from.

use std::collections::BTreeMap;

use super::read::{Reader, is_absolute_url, url_form};
use crate::cli::Raw;
use crate::secret::Secret;

/// Where the caps' flags come from: exactly one provider.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FlagsChoice {
    /// Always the declared defaults.
    Static,
    /// Variables, as they were at start: name to text.
    Environment(BTreeMap<String, Secret>),
    /// LaunchDarkly.
    LaunchDarkly {
        /// Server key.
        sdk_key: Secret,
        /// Relay Proxy that takes all traffic, without a slash at its end.
        relay_proxy: Option<Secret>,
    },
}

/// Exactly one provider. The settings of LaunchDarkly are not even judged under another one.
pub(super) fn flags(reader: &mut Reader<'_>, raw: &Raw) -> FlagsChoice {
    #[derive(Clone, Copy)]
    enum Word {
        Static,
        Environment,
        LaunchDarkly,
    }
    let words = [
        ("static", Word::Static),
        ("environment", Word::Environment),
        ("launchdarkly", Word::LaunchDarkly),
    ];
    match reader.word("BUZZ_FEATURE_FLAGS_PROVIDER", &words) {
        Word::Static => {
            unused_launchdarkly(reader);
            FlagsChoice::Static
        }
        Word::Environment => {
            unused_launchdarkly(reader);
            FlagsChoice::Environment(raw.feature_flags().clone())
        }
        Word::LaunchDarkly => launchdarkly(reader),
    }
}

pub(super) fn remember_caps(reader: &mut Reader<'_>, flags: &FlagsChoice) -> bool {
    let asked = reader.switch("BUZZ_REMEMBER_CAPS");
    let of_use = matches!(flags, FlagsChoice::LaunchDarkly { .. });
    if asked && !of_use {
        reader.note("BUZZ_REMEMBER_CAPS has no effect: only provider launchdarkly can be late");
    }
    asked && of_use
}

fn launchdarkly(reader: &mut Reader<'_>) -> FlagsChoice {
    // It travels in an HTTP header; one that could not would only fail later and in silence.
    let key_form = "visible ASCII characters";
    let is_given = reader.is_given(SDK_KEY);
    let sdk_key = reader.secret(SDK_KEY, key_form, |text| {
        text.bytes().all(|b| b.is_ascii_graphic())
    });
    if !is_given {
        reader.fault(format!(
            "{SDK_KEY}: required with BUZZ_FEATURE_FLAGS_PROVIDER=launchdarkly"
        ));
    }
    let proxy = reader.secret(RELAY_PROXY_URL, &url_form("http or https"), |text| {
        is_absolute_url(text, &["http", "https"])
    });
    FlagsChoice::LaunchDarkly {
        // Unread when it is missing: the fault above ends the start.
        sdk_key: sdk_key.unwrap_or_else(|| Secret::new("")),
        relay_proxy: proxy.map(|url| Secret::new(url.expose().trim_end_matches('/'))),
    }
}

/// What another provider has no use for is only kept, so that a change of it is seen.
fn unused_launchdarkly(reader: &mut Reader<'_>) {
    for variable in [SDK_KEY, RELAY_PROXY_URL] {
        reader.unjudged_secret(variable);
    }
}

const SDK_KEY: &str = "BUZZ_LAUNCHDARKLY_SDK_KEY";

const RELAY_PROXY_URL: &str = "BUZZ_LAUNCHDARKLY_RELAY_PROXY_URL";
