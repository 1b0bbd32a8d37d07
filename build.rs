//! Finds out which commit is built, for `--version` and `/_status`.
//!
//! `BUZZ_COMMIT` says it where there is no git, as in an image or a package; else git does; else the
//! commit is `unknown`, which is no reason not to build.

use std::path::Path;
use std::process::Command;

/// Characters of a hash that are shown.
const SHOWN: usize = 12;
/// Those of a whole hash, SHA-1's.
const HASH_LENGTH_MIN: usize = 40;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=BUZZ_COMMIT");
    let commit = given().or_else(of_git);
    let commit = commit.as_deref().unwrap_or("unknown");
    // Not a name of a setting: `cargo run` hands it to the relay as well.
    println!("cargo::rustc-env=COMMIT_OF_BUILD={commit}");
}

/// What whoever builds says.
fn given() -> Option<String> {
    let given = std::env::var("BUZZ_COMMIT").unwrap_or_default();
    let given = given.trim();
    let is_word = given
        .chars()
        .all(|char| char.is_ascii_alphanumeric() || "-._+".contains(char));
    assert!(
        is_word,
        "BUZZ_COMMIT={given:?}: expected a commit, in letters and digits"
    );
    (!given.is_empty()).then(|| shown(given))
}

/// What git says, if these sources are its working tree: a package may have been unpacked within
/// somebody else's.
fn of_git() -> Option<String> {
    if !Path::new(".git").exists() {
        return None;
    }
    let commit = git(&["rev-parse", "--verify", "HEAD"])?;
    // A commit moves the branch that HEAD names, a switch to another one moves HEAD.
    watch(&git(&["rev-parse", "--git-path", "HEAD"])?);
    if let Some(branch) = git(&["symbolic-ref", "--quiet", "HEAD"]) {
        watch(&git(&["rev-parse", "--git-path", &branch])?);
    }
    Some(shown(&commit))
}

/// Builds anew when this file changes. One that is packed away will come to be in its folder.
fn watch(file: &str) {
    let file = Path::new(file);
    let present = file.ancestors().find(|path| path.exists());
    if let Some(present) = present {
        println!("cargo::rerun-if-changed={}", present.display());
    }
}

fn shown(commit: &str) -> String {
    let is_hash =
        commit.len() >= HASH_LENGTH_MIN && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    let length = if is_hash { SHOWN } else { commit.len() };
    commit[..length].to_owned()
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
