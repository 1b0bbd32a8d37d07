//! What `deploy/` and `docs/` say, held against the relay as it is: units, manifests, dashboards,
//! alerts, proxies, and the pages that people read at night.
//!
//! Where a program is the judge (`systemd-analyze`, `promtool`, `nginx`, …) the test asks it, and
//! says so when it cannot be had. What is a file of ours against another is checked always.

#[path = "../common/mod.rs"]
mod common;

mod compose;
mod configuration;
mod container;
mod dockerfile;
mod environment;
mod health;
mod kubernetes;
mod pages;
mod prometheus;
mod proxies;
mod seccomp;
mod series;
mod systemd;
mod troubleshooting;
mod watchdog;
mod wss;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A path of the repository.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// A file of the repository.
#[track_caller]
fn file(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The documents of a YAML file of the repository.
#[track_caller]
fn yaml(name: &str) -> Vec<Value> {
    documents(&file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn documents(text: &str) -> Result<Vec<Value>, String> {
    serde_saphyr::from_multiple(text).map_err(|error| error.to_string())
}

/// The one document of a YAML file of the repository.
#[track_caller]
fn document(name: &str) -> Value {
    let [document] = <[Value; 1]>::try_from(yaml(name)).expect("one document");
    document
}

/// Looks for a program where a shell does, and where servers are.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let servers = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let mut folders = std::env::split_paths(&path).chain(servers);
    folders.find_map(|folder| Some(folder.join(name)).filter(|program| program.is_file()))
}

/// The program, or the reason why a test is skipped.
fn program(test: &str, name: &str) -> Option<PathBuf> {
    let found = find_program(name);
    if found.is_none() {
        common::skip(test, &format!("no {name} here"));
    }
    found
}

/// Python with the packages that hold the schemas, from `scripts/deploy-schemas`.
fn schemas(test: &str) -> Option<PathBuf> {
    let venv = std::env::var_os("BUZZ_DEPLOY_SCHEMAS").map(PathBuf::from);
    let venv = venv.unwrap_or_else(|| path("target/deploy-schemas"));
    let python = venv.join("bin/python");
    if python.is_file() {
        return Some(venv.join("bin"));
    }
    common::skip(test, "no schemas here: scripts/deploy-schemas fetches them");
    None
}

/// Runs a program to its end. What it said is in the panic when it fails.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = output(command);
    let text = said(&output);
    assert!(output.status.success(), "{command:?}\n{text}");
    text
}

fn output(command: &mut Command) -> Output {
    let output = command.env("LC_ALL", "C").output();
    output.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(err)
}

/// All files below a folder of the repository, by their names in it, sorted.
fn files(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(path(&folder)).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
            match entry.path().is_dir() {
                true => folders.push(name),
                false => found.push(name),
            }
        }
    }
    found.sort();
    found
}
