//! The settings file: what `--config` or `BUZZ_CONFIG` names.
//!
//! One `NAME=value` a line, with the names of the environment variables. Empty lines, and lines whose
//! first character is `#`, say nothing. White space around a value is not part of it, nor are quotes
//! that enclose all of it: between `'` everything is as it stands, between `"` a `\` stands before
//! `"`, `\`, `$` or `` ` ``. A backslash outside of quotes is refused, so that systemd, which reads
//! such files as well (`EnvironmentFile=`), cannot read another value than we do.
//!
//! Whatever is wrong is told with its line. The line itself is never repeated: it may hold a secret.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::ConfigError;
use crate::cli::{CONFIG, FEATURE_FLAG_PREFIX, FileLine, setting};
use crate::limits::{SETTINGS_FAULTS_MAX, SETTINGS_FILE_BYTES_MAX, SETTINGS_NAME_BYTES_MAX};
use crate::secret::Secret;
use crate::words::counted;

/// What a file gives.
#[derive(Debug)]
pub struct SettingsFile {
    /// Its lines, in order; no name comes twice.
    pub lines: Vec<FileLine>,
    /// What to say of it at the start.
    pub note: Option<String>,
}

/// Reads a file.
///
/// # Errors
///
/// Why it cannot be read, or every line that is wrong, up to a bound.
pub fn read(path: &Path) -> Result<SettingsFile, ConfigError> {
    let shown = path.display();
    let (text, mode) = read_text(path).map_err(|error| ConfigError {
        faults: vec![format!("{CONFIG}: {shown}: {error}")],
    })?;
    let lines = parse(&text).map_err(|faults| {
        let more = faults.len().saturating_sub(SETTINGS_FAULTS_MAX);
        let shown_faults = faults.iter().take(SETTINGS_FAULTS_MAX);
        let mut faults: Vec<String> = shown_faults
            .map(|(line, fault)| format!("{shown}:{line}: {fault}"))
            .collect();
        if more > 0 {
            let more = counted(more as u64, "more wrong line");
            faults.push(format!("{shown}: {more}"));
        }
        ConfigError { faults }
    })?;
    const BY_OTHERS: u32 = 0o004;
    let is_secret = |line: &&FileLine| setting(&line.name).is_some_and(|setting| setting.secret);
    let secret = lines
        .iter()
        .find(is_secret)
        .filter(|_| mode & BY_OTHERS != 0);
    let note = secret.map(|line| {
        format!(
            "{shown} holds a secret ({}) and can be read by every user of this machine: chmod o-r",
            line.name
        )
    });
    Ok(SettingsFile { lines, note })
}

/// Reads the lines of a file that can be read, for whoever only looks for one of them.
pub fn read_what_is_sound(path: &Path) -> Vec<FileLine> {
    read_text(path).map_or_else(|_| Vec::new(), |(text, _)| sort(&text).0)
}

/// A file's text and mode.
fn read_text(path: &Path) -> Result<(String, u32), String> {
    let system = |error: io::Error| format!("the settings file cannot be read: {error}");
    let mut options = File::options();
    // A pipe without a writer would hold the open for ever.
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).map_err(system)?;
    let about = file.metadata().map_err(system)?;
    if !about.is_file() {
        return Err("the settings file is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    let bound = SETTINGS_FILE_BYTES_MAX as u64;
    file.take(bound + 1)
        .read_to_end(&mut bytes)
        .map_err(system)?;
    if bytes.len() as u64 > bound {
        return Err(format!("the settings file has more than {bound} bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        format!("the settings file is not UTF-8 text, in line {line}")
    })?;
    Ok((text, about.mode()))
}

/// Reads lines. The second form of an answer is every line that is wrong, with its number from 1.
fn parse(text: &str) -> Result<Vec<FileLine>, Vec<Fault>> {
    match sort(text) {
        (lines, faults) if faults.is_empty() => Ok(lines),
        (_, faults) => Err(faults),
    }
}

/// The number of a line, and what is wrong with it.
type Fault = (usize, String);

/// Lines that are sound, and those that are not.
fn sort(text: &str) -> (Vec<FileLine>, Vec<Fault>) {
    let mut lines: Vec<FileLine> = Vec::new();
    let mut faults = Vec::new();
    for (number, text) in (1..).zip(text.lines()) {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let line = parse_line(number, text).and_then(|line| {
            match lines.iter().find(|earlier| earlier.name == line.name) {
                Some(earlier) => Err(format!(
                    "{}: it stands in line {} already",
                    line.name, earlier.number
                )),
                None => Ok(line),
            }
        });
        match line {
            Ok(line) => lines.push(line),
            Err(fault) => faults.push((number, fault)),
        }
    }
    (lines, faults)
}

fn parse_line(number: usize, text: &str) -> Result<FileLine, String> {
    let pair = text.split_once('=').filter(|(name, _)| is_name(name));
    let Some((name, value)) = pair else {
        return Err("this is not NAME=value, without space before the `=`".to_owned());
    };
    if name == CONFIG {
        return Err(format!("{name}: a settings file cannot name another"));
    }
    let is_flag = name.len() > FEATURE_FLAG_PREFIX.len() && name.starts_with(FEATURE_FLAG_PREFIX);
    if setting(name).is_none() && !is_flag {
        return Err(format!("{name}: this is not a setting; see --help"));
    }
    match unquote(value.trim()) {
        Ok(value) => Ok(FileLine {
            number,
            name: name.to_owned(),
            value: Secret::new(value),
        }),
        Err(fault) => Err(format!("{name}: {fault}")),
    }
}

/// Whether it looks like a variable's name, so that it may be repeated in a fault.
fn is_name(text: &str) -> bool {
    let fits = (1..=SETTINGS_NAME_BYTES_MAX).contains(&text.len());
    let is_letter = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
    fits && text
        .bytes()
        .all(|byte| is_letter(byte) || byte.is_ascii_digit())
}

/// What a value means.
fn unquote(text: &str) -> Result<String, &'static str> {
    const OPEN: &str = "the quote at the start of its value is not closed at the end";
    if let Some(rest) = text.strip_prefix('\'') {
        let value = rest.strip_suffix('\'').ok_or(OPEN)?;
        return match value.contains('\'') {
            true => Err("a `'` cannot stand between two of them; use `\"`"),
            false => Ok(value.to_owned()),
        };
    }
    let Some(rest) = text.strip_prefix('"') else {
        return match text.contains('\\') {
            true => Err("a value with a `\\` needs quotes: '…'"),
            false => Ok(text.to_owned()),
        };
    };
    let mut value = String::with_capacity(rest.len());
    let mut letters = rest.chars();
    loop {
        match letters.next() {
            None => return Err(OPEN),
            Some('"') if letters.as_str().is_empty() => return Ok(value),
            Some('"') => return Err("something stands behind the closing quote"),
            Some('\\') => match letters.next() {
                Some(escaped @ ('"' | '\\' | '$' | '`')) => value.push(escaped),
                _ => return Err("between `\"`, a `\\` stands before `\"`, `\\`, `$` or ` only"),
            },
            Some(other) => value.push(other),
        }
    }
}

/// A value as it stands in a file, so that reading it gives the value again. A control character, which
/// no setting minds more than a space, becomes one.
pub fn quote(value: &str) -> String {
    let value = value.replace(char::is_control, " ");
    let is_plain = value.trim() == value
        && !value.contains(['\\', '$', '`'])
        && !value.starts_with(['\'', '"']);
    if is_plain {
        return value;
    }
    if !value.contains('\'') {
        return format!("'{value}'");
    }
    let mut quoted = String::from('"');
    for letter in value.chars() {
        if matches!(letter, '"' | '\\' | '$' | '`') {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    fn values(text: &str) -> Vec<(usize, String, String)> {
        let lines = parse(text).expect("sound lines").into_iter();
        let plain = |line: FileLine| (line.number, line.name, line.value.expose().to_owned());
        lines.map(plain).collect()
    }

    fn value(text: &str) -> String {
        let [(_, _, value)] = <[_; 1]>::try_from(values(&format!("BUZZ_NAME={text}"))).unwrap();
        value
    }

    #[test]
    fn lines_are_names_and_values_and_comments_are_neither() {
        let text = "# a comment\n\n  \t\nBUZZ_SHARDS=2\r\n  DATABASE_URL=postgres://a:b@c/d?e=f#g \n\
                    #BUZZ_LOG=trace\nBUZZ_FEATURE_FLAG_A_B1= 7\nBUZZ_NAME=";
        let line = |number, name: &str, value: &str| (number, name.to_owned(), value.to_owned());
        let expected = [
            line(4, "BUZZ_SHARDS", "2"),
            line(5, "DATABASE_URL", "postgres://a:b@c/d?e=f#g"),
            line(7, "BUZZ_FEATURE_FLAG_A_B1", "7"),
            line(8, "BUZZ_NAME", ""),
        ];
        assert_eq!(values(text), expected);
        assert_eq!(values(""), []);
    }

    #[test]
    fn quotes_are_no_part_of_a_value() {
        for (text, expected) in [
            ("it's \"fine\" # here", "it's \"fine\" # here"),
            ("''", ""),
            ("\"\"", ""),
            ("'a \\ \"b\" $c'", "a \\ \"b\" $c"),
            (r#""a 'b' \"c\" \\ \$d \`e\`" "#, r#"a 'b' "c" \ $d `e`"#),
            ("a=b=c", "a=b=c"),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
    }

    #[test]
    fn whatever_is_wrong_is_told_by_its_line_and_never_repeated() {
        for (text, words) in [
            ("hush", "not NAME=value"),
            ("buzz_name=hush", "not NAME=value"),
            ("export BUZZ_NAME=hush", "not NAME=value"),
            ("BUZZ_NAME =hush", "not NAME=value"),
            ("=hush", "not NAME=value"),
            ("; hush", "not NAME=value"),
            ("\u{feff}BUZZ_NAME=hush", "not NAME=value"),
            ("BUZZ_NAMES=hush", "BUZZ_NAMES: this is not a setting"),
            ("PATH=hush", "PATH: this is not a setting"),
            ("BUZZ_FEATURE_FLAG_=1", "BUZZ_FEATURE_FLAG_: this is not"),
            ("BUZZ_CONFIG=hush", "BUZZ_CONFIG: a settings file cannot"),
            ("DATABASE_URL='hush", "DATABASE_URL: the quote"),
            ("DATABASE_URL='", "DATABASE_URL: the quote"),
            ("DATABASE_URL=\"hush", "DATABASE_URL: the quote"),
            ("DATABASE_URL=\"hush\\\"", "DATABASE_URL: the quote"),
            ("DATABASE_URL='hu'sh'", "DATABASE_URL: a `'` cannot"),
            ("DATABASE_URL=\"hu\"sh", "DATABASE_URL: something stands"),
            ("DATABASE_URL=\"hu\\nsh\"", "DATABASE_URL: between"),
            ("DATABASE_URL=hu\\sh", "DATABASE_URL: a value with"),
        ] {
            let faults = parse(&format!("# first\n{text}\n")).expect_err(text);
            let [(line, fault)] = &faults[..] else {
                panic!("{faults:?}")
            };
            assert_eq!(*line, 2);
            assert!(fault.contains(words), "{text}: {fault}");
            assert!(!fault.contains("hu"), "{fault}");
        }
        let name = "B".repeat(SETTINGS_NAME_BYTES_MAX + 1);
        let faults = parse(&format!("{name}=1")).expect_err("too long");
        assert!(!faults[0].1.contains("BB"), "{faults:?}");
    }

    #[test]
    fn a_name_comes_once_and_every_fault_is_told() {
        let text = "BUZZ_NAME=a\nx\nBUZZ_NAME=b\nBUZZ_FEATURE_FLAG_A=1\nBUZZ_FEATURE_FLAG_A=1";
        let faults = parse(text).expect_err("faults");
        let lines: Vec<usize> = faults.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 3, 5]);
        assert_eq!(faults[1].1, "BUZZ_NAME: it stands in line 1 already");
    }

    #[test]
    fn a_file_is_read_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("settings");
        let write = |bytes: &[u8]| std::fs::write(&path, bytes).expect("a file");
        let fault = || read(&path).expect_err("a fault").to_string();
        let shown = path.display().to_string();

        assert!(fault().starts_with(&format!("BUZZ_CONFIG: {shown}: ")));
        assert!(fault().contains("cannot be read"), "{}", fault());
        write(b"BUZZ_NAME=a\n\xff");
        assert!(fault().contains("not UTF-8 text, in line 2"), "{}", fault());
        write(&vec![b'\n'; SETTINGS_FILE_BYTES_MAX + 1]);
        assert!(fault().contains("more than 65536 bytes"), "{}", fault());
        write(&vec![b'\n'; SETTINGS_FILE_BYTES_MAX]);
        assert_eq!(read(&path).expect("just fits").lines, []);
        write(b"x\n".repeat(SETTINGS_FAULTS_MAX + 2).as_slice());
        let faults = fault();
        assert_eq!(faults.lines().count(), SETTINGS_FAULTS_MAX + 1);
        assert!(faults.starts_with(&format!("{shown}:1: ")), "{faults}");
        assert!(faults.ends_with("2 more wrong lines"), "{faults}");

        let folder_fault = read(folder.path()).expect_err("a folder").to_string();
        assert!(folder_fault.contains("not a regular file"));
        let pipe = folder.path().join("pipe");
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        );
        made.expect("a pipe");
        assert!(read(&pipe).is_err());
    }

    #[test]
    fn a_secret_that_others_can_read_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("settings");
        for (text, mode, noted) in [
            ("DATABASE_URL=hush", 0o644, true),
            ("DATABASE_URL=hush", 0o640, false),
            ("BUZZ_NAME=a", 0o644, false),
        ] {
            std::fs::write(&path, text).expect("a file");
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, mode).expect("its owner");
            let note = read(&path).expect("sound").note;
            assert_eq!(note.is_some(), noted, "{note:?}");
            assert!(!note.is_some_and(|note| note.contains("hush")));
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC*|(?s).*|[\"'\\\\=#\n \tBUZNAME_]*") {
            let _ = parse(&text);
        }

        #[test]
        fn what_is_written_is_what_is_read(value in "\\PC*|[\"'\\\\$`=# a]*|(?s).*") {
            let expected = value.replace(char::is_control, " ");
            prop_assert_eq!(self::value(&quote(&value)), expected);
        }

        #[test]
        fn a_plain_value_is_what_stands_there(text in "[^\\s\\\\'\"]([^\r\n\\\\]*[^\\s\\\\])?") {
            prop_assert_eq!(value(&text), text);
        }
    }
}
