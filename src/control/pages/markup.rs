//! Texts into HTML, and the policy that lets a page run exactly what is in it.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

/// What the pages' picture in a browser's tab is: a honeycomb cell with a wave, of no other place.
pub const FAVICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' \
    viewBox='0 0 64 64'%3E%3Cpath fill='%23f2b84b' d='M32 3 57 17.5v29L32 61 7 46.5v-29z'/%3E\
    %3Cpath fill='none' stroke='%23101417' stroke-width='5' stroke-linecap='round' \
    d='M16 34q5-14 10 0t11 0 11 0'/%3E%3C/svg%3E";

/// A text as it stands in an element or in a quoted attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A template with each `{{name}}` replaced by its markup. What is put in is not looked at again, so
/// nobody's text can name a part.
///
/// # Panics
///
/// When the template, which is ours, names a part that is not given.
pub fn fill(template: &str, parts: &[(&str, &str)]) -> String {
    let mut filled = String::with_capacity(template.len());
    let mut pieces = template.split("{{");
    filled.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").expect("a name ends");
        let part = parts.iter().find(|(given, _)| *given == name);
        filled.push_str(part.expect("every part is given").1);
        filled.push_str(rest);
    }
    filled
}

/// A Content-Security-Policy that allows this one style sheet and this one script, both in the page,
/// and `more` (`connect-src 'self'`), and nothing else: nothing from elsewhere, no frame around it.
pub fn policy(style: &str, script: &str, more: &str) -> String {
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; {more}; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(style),
        hash(script),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operators_text_cannot_become_markup() {
        assert_eq!(
            escape("<b title=\"x\" id='y'>&</b>"),
            "&lt;b title=&quot;x&quot; id=&#39;y&#39;&gt;&amp;&lt;/b&gt;"
        );
    }

    #[test]
    fn what_is_filled_in_is_not_a_template() {
        let parts = [("a", "{{b}}"), ("b", "2")];
        assert_eq!(fill("{{a}}-{{b}}-{{a}}", &parts), "{{b}}-2-{{b}}");
        assert_eq!(fill("no part } { }}", &[]), "no part } { }}");
    }

    #[test]
    fn a_policy_names_the_hashes_of_what_it_allows() {
        // The hash of nothing, as everybody knows it.
        let empty = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='";
        let policy = policy("", "x", "img-src data:");
        assert!(
            policy.starts_with(&format!("default-src 'none'; style-src {empty}; ")),
            "{policy}"
        );
        assert!(
            policy.contains("; img-src data:; base-uri 'none'; "),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
    }
}
