//! The `environment` provider: one variable a flag, read once at start.

use std::collections::BTreeMap;

use super::{Reading, key_of};
use crate::cli::FEATURE_FLAG_PREFIX;
use crate::metrics::GateName;
use crate::secret::Secret;

/// The flags' values as they were at start.
#[derive(Debug)]
pub struct Environment {
    readings: Vec<(GateName, Reading)>,
}

impl Environment {
    /// Reads the variables. A value that is not a decimal integer is the default and one warning,
    /// which names the flag and not the value; so is a variable that belongs to no flag.
    pub fn new(variables: &BTreeMap<String, Secret>) -> Environment {
        let readings = GateName::ALL.iter().map(|gate| {
            let reading = match variables.get(&variable_of(key_of(*gate))) {
                Some(text) => read(text.expose()),
                None => Reading::Absent,
            };
            if reading == Reading::Mistyped {
                tracing::warn!(
                    flag = key_of(*gate),
                    "flag is not an integer: its default applies"
                );
            }
            (*gate, reading)
        });
        let readings = readings.collect();
        for name in variables.keys() {
            if !GateName::ALL
                .iter()
                .any(|gate| variable_of(key_of(*gate)) == *name)
            {
                tracing::warn!(variable = name, "variable belongs to no flag of this relay");
            }
        }
        Environment { readings }
    }

    /// What was read for a gate's flag.
    pub fn read(&self, gate: GateName) -> Reading {
        let found = self.readings.iter().find(|(name, _)| *name == gate);
        found.map_or(Reading::Absent, |(_, reading)| *reading)
    }
}

/// The variable of a flag: its key in upper-case ASCII, each run of other characters one `_`, none
/// at the ends.
pub fn variable_of(key: &str) -> String {
    let mut name = String::from(FEATURE_FLAG_PREFIX);
    let mut gap = false;
    for letter in key.chars().map(|letter| letter.to_ascii_uppercase()) {
        if letter.is_ascii_uppercase() || letter.is_ascii_digit() {
            if gap && name.len() > FEATURE_FLAG_PREFIX.len() {
                name.push('_');
            }
            name.push(letter);
            gap = false;
        } else {
            gap = true;
        }
    }
    name
}

fn read(text: &str) -> Reading {
    let text = text.trim();
    if text.is_empty() {
        return Reading::Absent;
    }
    text.parse().map_or(Reading::Mistyped, Reading::Value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::logs::capture;
    use tracing::level_filters::LevelFilter;

    const AUTH: &str = "BUZZ_FEATURE_FLAG_BUZZ_RELAY_CONCURRENCY_AUTH";
    const HISTORY: &str = "BUZZ_FEATURE_FLAG_BUZZ_RELAY_CONCURRENCY_HISTORY_READS";

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        let pairs = pairs
            .iter()
            .map(|(name, text)| ((*name).to_owned(), Secret::new(*text)));
        Environment::new(&pairs.collect())
    }

    #[test]
    fn names_are_as_the_contract_spells_them() {
        assert_eq!(variable_of(key_of(GateName::Auth)), AUTH);
        assert_eq!(variable_of(key_of(GateName::HistoryReads)), HISTORY);
        assert_eq!(variable_of("--a..b_c\u{e9}1-"), "BUZZ_FEATURE_FLAG_A_B_C_1");
        assert_eq!(variable_of("..."), "BUZZ_FEATURE_FLAG_");
    }

    #[test]
    fn values_are_trimmed_decimal_integers() {
        let rows = [
            (" 7\n", Reading::Value(7)),
            ("-3", Reading::Value(-3)),
            ("0", Reading::Value(0)),
            ("9223372036854775807", Reading::Value(i64::MAX)),
            ("9223372036854775808", Reading::Mistyped),
            ("1.0", Reading::Mistyped),
            ("0x10", Reading::Mistyped),
            ("true", Reading::Mistyped),
            ("4 5", Reading::Mistyped),
            ("", Reading::Absent),
            ("  ", Reading::Absent),
        ];
        for (text, reading) in rows {
            let provider = environment(&[(AUTH, text)]);
            assert_eq!(provider.read(GateName::Auth), reading, "{text:?}");
            assert_eq!(provider.read(GateName::HistoryReads), Reading::Absent);
        }
    }

    #[test]
    fn a_mistyped_value_warns_once_without_showing_it() {
        let (captured, _guard) = capture::logs(LevelFilter::TRACE);
        let provider = environment(&[(AUTH, "hush"), (HISTORY, "4"), ("BUZZ_FEATURE_FLAG_X", "1")]);
        for _ in 0..3 {
            provider.read(GateName::Auth);
        }
        let text = captured.text();
        assert_eq!(
            text.matches("buzz.relay.concurrency.auth").count(),
            1,
            "{text}"
        );
        assert_eq!(text.matches("BUZZ_FEATURE_FLAG_X").count(), 1, "{text}");
        assert!(!text.contains("hush"), "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
    }
}
