//! Reading settings: each read takes a variable of the table, checks the text against the accepted
//! form, and records what was resolved. A fault does not stop the reading, so that an operator sees
//! all of them at once; the default stands in meanwhile.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use axum::http::Uri;

use super::ConfigError;
use crate::cli::{Origin, Preset, Raw, Setting, setting};
use crate::limits;
use crate::secret::{MASK, Secret};

/// What a setting came to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Resolved {
    /// As `check-config` prints it; a secret is masked.
    pub(super) text: String,
    /// What `text` masks, so that a change is seen.
    pub(super) value: Secret,
    pub(super) origin: Origin,
}

impl Resolved {
    /// Puts another text in place of the one that was resolved. Not for a secret.
    pub(super) fn set_text(&mut self, text: impl fmt::Display) {
        self.text = text.to_string();
        self.value = Secret::new(self.text.clone());
    }
}

pub(super) struct Reader<'a> {
    raw: &'a Raw,
    faults: Vec<String>,
    notes: Vec<String>,
    resolved: BTreeMap<&'static str, Resolved>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(raw: &'a Raw) -> Reader<'a> {
        Reader {
            raw,
            faults: Vec::new(),
            notes: Vec::new(),
            resolved: BTreeMap::new(),
        }
    }

    /// Notes and resolved settings, or every fault found.
    #[allow(clippy::type_complexity)] // private to this module and its parent
    pub(super) fn finish(
        self,
    ) -> Result<(Vec<String>, BTreeMap<&'static str, Resolved>), ConfigError> {
        if self.faults.is_empty() {
            Ok((self.notes, self.resolved))
        } else {
            Err(ConfigError {
                faults: self.faults,
            })
        }
    }

    /// True when an operator gave the variable a value.
    pub(super) fn is_given(&self, variable: &'static str) -> bool {
        self.raw.get(variable).is_some()
    }

    /// Records a fault that no single text is to blame for.
    pub(super) fn fault(&mut self, fault: impl Into<String>) {
        self.faults.push(fault.into());
    }

    /// Something to say at start that does not forbid it.
    pub(super) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Replaces a resolved value that another setting bounds.
    pub(super) fn adjust(&mut self, variable: &'static str, text: impl fmt::Display) {
        let resolved = self
            .resolved
            .get_mut(variable)
            .expect("only what was read is adjusted");
        resolved.set_text(text);
    }

    /// A value with a default in the table. `form` says what is accepted.
    pub(super) fn value<T>(
        &mut self,
        variable: &'static str,
        form: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> T {
        match self.read(variable, form, &parse) {
            Some(value) => value,
            None => {
                let text = row(variable).default_text();
                self.record(variable, &text, Origin::Default);
                parse(&text).expect("the table's defaults have the accepted form")
            }
        }
    }

    /// A value that may be unset.
    pub(super) fn optional<T>(
        &mut self,
        variable: &'static str,
        form: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let value = self.read(variable, form, &parse);
        if value.is_none() {
            self.record(variable, "none", Origin::Default);
        }
        value
    }

    /// A text that may be unset and is read by `parse`, whose error says what is wrong with it.
    pub(super) fn told<T>(
        &mut self,
        variable: &'static str,
        form: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let faults = self.faults.len();
        let place = self.place(variable);
        let value = self.optional(variable, form, |text| parse(text).ok());
        if let Some(refusal) = self.faults[faults..].first_mut()
            && let Some((text, _)) = self.raw.get(variable)
            && let Err(fault) = parse(text)
        {
            *refusal = format!("{place}{variable}: {fault}; expected {form}");
        }
        value
    }

    /// A whole number within `range`.
    pub(super) fn number(&mut self, variable: &'static str, range: RangeInclusive<u64>) -> u64 {
        let form = number_form(variable, &range);
        self.value(variable, &form, |text| parse_number(text, &range))
    }

    /// A count within `range`.
    pub(super) fn count(&mut self, variable: &'static str, range: RangeInclusive<usize>) -> usize {
        self.number(variable, *range.start() as u64..=*range.end() as u64) as usize
    }

    /// A whole number that may be unset, or whose default is found elsewhere (`default`).
    pub(super) fn number_or(
        &mut self,
        variable: &'static str,
        range: RangeInclusive<u64>,
        default: Option<u64>,
    ) -> Option<u64> {
        let form = number_form(variable, &range);
        let value = self.optional(variable, &form, |text| parse_number(text, &range));
        if value.is_none()
            && let Some(default) = default
        {
            self.adjust(variable, default);
        }
        value.or(default)
    }

    /// A switch.
    pub(super) fn switch(&mut self, variable: &'static str) -> bool {
        let form = "true, 1, yes, on, or false, 0, no, off";
        self.value(variable, form, |text| {
            match text.to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => Some(true),
                "false" | "0" | "no" | "off" => Some(false),
                _ => None,
            }
        })
    }

    /// One word of a closed list.
    pub(super) fn word<T: Copy>(
        &mut self,
        variable: &'static str,
        words: &[(&'static str, T)],
    ) -> T {
        let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
        let form = format!("one of: {}", names.join(", "));
        self.value(variable, &form, |text| {
            words
                .iter()
                .find(|(name, _)| *name == text)
                .map(|(_, value)| *value)
        })
    }

    /// A free text that may be unset.
    pub(super) fn text(&mut self, variable: &'static str) -> Option<String> {
        let form = format!("a text of at most {} bytes", limits::TEXT_SETTING_BYTES_MAX);
        self.optional(variable, &form, free_text)
    }

    /// A secret that may be unset; only its mask is recorded.
    pub(super) fn secret(
        &mut self,
        variable: &'static str,
        form: &str,
        accepts: impl Fn(&str) -> bool,
    ) -> Option<Secret> {
        let parse = |text: &str| accepts(text).then(|| Secret::new(text));
        self.optional(variable, form, parse)
    }

    /// A secret that nothing uses: whatever it is, it is only recorded.
    pub(super) fn unjudged_secret(&mut self, variable: &'static str) {
        match self.raw.get(variable) {
            Some((text, origin)) => self.record(variable, text, origin),
            None => self.record(variable, "none", Origin::Default),
        }
    }

    /// The given value, or None when unset or faulty (which is then recorded).
    fn read<T>(
        &mut self,
        variable: &'static str,
        form: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let (text, origin) = self.raw.get(variable)?;
        let fits = text.len() <= limits::TEXT_SETTING_BYTES_MAX;
        let Some(value) = fits.then(|| parse(text)).flatten() else {
            let refusal = refusal(row(variable), text, form);
            self.faults.push(self.place(variable) + &refusal);
            return None;
        };
        self.record(variable, text, origin);
        Some(value)
    }

    fn record(&mut self, variable: &'static str, text: &str, origin: Origin) {
        let masked = row(variable).secret && origin != Origin::Default;
        let resolved = Resolved {
            text: if masked { MASK } else { text }.to_owned(),
            value: Secret::new(text),
            origin,
        };
        self.resolved.insert(variable, resolved);
    }

    /// What to put in front of a fault: where its text stands, if in the settings file.
    fn place(&self, variable: &str) -> String {
        match (self.raw.file(), self.raw.get(variable)) {
            (Some(file), Some((_, Origin::File(line)))) => format!("{file}:{line}: "),
            _ => String::new(),
        }
    }
}

/// A text within the bound of all text settings, without control characters.
pub(super) fn free_text(text: &str) -> Option<String> {
    let fits = text.len() <= limits::TEXT_SETTING_BYTES_MAX;
    (fits && !text.chars().any(char::is_control)).then(|| text.to_owned())
}

/// Whether it looks like a database URL: the scheme, a host, and ports that are numbers. The rest is
/// the store's to judge.
pub(super) fn is_database_url(text: &str) -> bool {
    let schemes = ["postgres://", "postgresql://"];
    let Some(rest) = schemes.iter().find_map(|scheme| text.strip_prefix(scheme)) else {
        return false;
    };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let hosts = authority.rsplit('@').next().unwrap_or_default();
    // A host may also be a parameter.
    hosts.split(',').all(|host| {
        let port = match host.rsplit_once(':') {
            Some((_, port)) if !port.ends_with(']') => port,
            _ => "",
        };
        port.is_empty() || port.parse::<u16>().is_ok()
    })
}

pub(super) fn url_form(schemes: &str) -> String {
    format!("an absolute {schemes} URL with a host, without user, query or fragment")
}

/// `scheme://host[:port][/path]`.
pub(super) fn is_absolute_url(text: &str, schemes: &[&str]) -> bool {
    let Ok(uri) = text.parse::<Uri>() else {
        return false;
    };
    let scheme = uri
        .scheme_str()
        .is_some_and(|scheme| schemes.contains(&scheme));
    let host = uri.host().is_some_and(|host| !host.is_empty());
    // The parser drops a fragment without a word, and takes any text after a colon as a port.
    let port = uri.authority().is_some_and(|authority| {
        let given = authority.as_str().rsplit_once(':').map(|(_, port)| port);
        given.is_none_or(|port| port.ends_with(']') || port.parse::<u16>().is_ok())
    });
    scheme && host && port && !text.contains(['@', '?', '#'])
}

fn row(variable: &str) -> &'static Setting {
    setting(variable).expect("only variables of the table are read")
}

fn number_form(variable: &str, range: &RangeInclusive<u64>) -> String {
    let unit = row(variable).unit;
    format!(
        "a whole number of {unit} from {} to {}",
        range.start(),
        range.end()
    )
}

fn parse_number(text: &str, range: &RangeInclusive<u64>) -> Option<u64> {
    // `parse` alone would accept a leading plus sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|number| digits && range.contains(number))
}

/// Names the variable, what was given (never a secret) and what is accepted.
fn refusal(setting: &Setting, text: &str, form: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 60;
    let variable = setting.variable;
    if setting.secret {
        return format!("{variable}: its value is not accepted; expected {form}");
    }
    let mut shown: String = text.escape_debug().take(SHOWN_CHARS_MAX).collect();
    if text.escape_debug().count() > SHOWN_CHARS_MAX {
        shown.push('…');
    }
    let default = match setting.default {
        Preset::Nothing => String::new(),
        _ => format!(" (default {})", setting.default_text()),
    };
    format!("{variable}: `{shown}` is not accepted; expected {form}{default}")
}
