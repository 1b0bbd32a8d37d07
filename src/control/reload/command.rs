//! `buzz-uring reload` and `buzz-uring log-level`: the command line's side.

use std::path::Path;

use serde_json::Value;

use super::level_of;
use crate::control::command::ask;
use crate::error::{EXIT_CONFIG, EXIT_FAILED};

/// Why a command did nothing: the exit code, and what to print.
type Failed = (i32, String);

/// Lets the relay that runs on `dir` read its settings again, and says what has changed.
///
/// # Errors
///
/// With [`EXIT_CONFIG`] what is wrong with the settings, else why nothing was read.
pub fn reload(dir: &Path) -> Result<String, Failed> {
    let told = answered(ask(dir, "POST", "/reload"))?;
    let changed = told["changed"].as_array().into_iter().flatten();
    let needing = told["need_restart"].as_array().into_iter().flatten();
    let mut lines: Vec<String> = changed
        .map(|change| {
            let [setting, old, new] = ["setting", "old", "new"].map(|name| text(&change[name]));
            format!("{setting}: {old} -> {new}")
        })
        .collect();
    lines.extend(needing.map(|waiting| {
        let [setting, old, new] = ["setting", "old", "new"].map(|name| text(&waiting[name]));
        match waiting["new"].is_string() {
            true => format!("{setting}: {old} -> {new}, needs a restart"),
            // Its values are shown to nobody.
            false => format!("{setting}: has changed, needs a restart"),
        }
    }));
    if lines.is_empty() {
        lines.push("nothing has changed".to_owned());
    }
    Ok(lines.join("\n"))
}

/// Says the log level of the relay that runs on `dir`, or sets it.
///
/// # Errors
///
/// With [`EXIT_CONFIG`] that there is no such level, else why it was not set.
pub fn log_level(dir: &Path, level: Option<&str>) -> Result<String, Failed> {
    let Some(level) = level else {
        let told = answered(ask(dir, "GET", "/log-level"))?;
        return Ok(text(&told["log_level"]).to_owned());
    };
    if level_of(level).is_none() {
        let words = super::words();
        let shown = level.escape_debug();
        let error = format!("`{shown}` is no log level; expected one of: {words}");
        return Err((EXIT_CONFIG, error));
    }
    let path = format!("/log-level?level={level}");
    let told = answered(ask(dir, "POST", &path))?;
    let [level, was] = ["log_level", "was"].map(|name| text(&told[name]));
    Ok(format!("{level} (was {was})"))
}

/// What was told, if that is not an error.
fn answered(asked: Result<(u16, Value), String>) -> Result<Value, Failed> {
    let (status, told) = asked.map_err(|error| (EXIT_FAILED, error))?;
    match status {
        200 => Ok(told),
        // The settings themselves are wrong.
        422 => Err((EXIT_CONFIG, text(&told["error"]).to_owned())),
        _ => Err((EXIT_FAILED, text(&told["error"]).to_owned())),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
