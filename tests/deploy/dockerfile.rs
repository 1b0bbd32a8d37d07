//! The image's recipe, as far as it can be followed without an engine.

use std::fs;
use std::process::Command;

use serde_json::Value;

use buzz_uring::config::Config;
use buzz_uring::config::Machine;

use crate::{documents, file, path, run, schemas};

const DOCKERFILE: &str = "deploy/docker/Dockerfile";

/// Instructions and their arguments, continued lines joined, comments left out.
fn instructions() -> Vec<(String, String)> {
    let text = file(DOCKERFILE);
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let pairs = joined.lines().filter_map(|line| line.split_once(' '));
    pairs
        .map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()))
        .collect()
}

fn arguments<'a>(all: &'a [(String, String)], name: &str) -> Vec<&'a str> {
    let of_name = all.iter().filter(|(other, _)| other == name);
    of_name.map(|(_, rest)| rest.as_str()).collect()
}

#[test]
fn it_is_built_and_run_on_the_same_system() {
    let all = instructions();
    let from = arguments(&all, "FROM");
    let rust = env!("CARGO_PKG_RUST_VERSION");
    let build = format!("rust:{rust}-slim-bookworm AS build");
    // Both are Debian 12: the C library that it was linked with is the one it meets.
    assert_eq!(
        from,
        [build.as_str(), "gcr.io/distroless/cc-debian12:nonroot"]
    );
    let command = "cargo build --release --locked --bin buzz-uring";
    assert!(arguments(&all, "RUN")[0].starts_with(command));
    assert!(file("README.md").contains("cargo build --release"));
}

#[test]
fn what_is_copied_is_there_and_is_a_package() {
    let all = instructions();
    let ignored = file("deploy/docker/Dockerfile.dockerignore");
    let folder = tempfile::tempdir().expect("a folder");
    for copy in arguments(&all, "COPY") {
        if copy.starts_with("--from=build") {
            continue;
        }
        let mut names: Vec<&str> = copy.split_whitespace().collect();
        let target = names.pop().expect("a target");
        for name in names {
            assert!(path(name).exists(), "{name}");
            let allowed = ignored.lines().any(|line| {
                let line = line.strip_prefix('!').unwrap_or_default();
                line == name || line.starts_with(&format!("{name}/"))
            });
            assert!(allowed, "{name} is kept out by .dockerignore");
            let to = match target {
                "./" => folder.path().join(name),
                folder_ => folder.path().join(folder_),
            };
            // Cargo looks at names of sources only.
            run(Command::new("cp").arg("-r").arg(path(name)).arg(to));
        }
    }
    // Whatever the manifest names is among what was copied, and the lock file fits it.
    let cargo = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--locked",
            "--offline",
            "--no-deps",
            "--format-version=1",
        ])
        .current_dir(folder.path())
        .output();
    let cargo = cargo.expect("cargo runs");
    assert!(cargo.status.success(), "{}", crate::said(&cargo));
    let package: Value = serde_json::from_slice(&cargo.stdout).expect("JSON");
    let targets = package["packages"][0]["targets"]
        .as_array()
        .expect("targets");
    for target in targets {
        let source = target["src_path"].as_str().expect("a path");
        assert!(
            fs::exists(source).expect("a folder"),
            "{source} is missing in the image"
        );
    }
    // What `metadata` passes over, a build does not: benches without their files.
    let manifest = file("Cargo.toml");
    for bench in manifest.split("[[bench]]\n").skip(1) {
        let name = bench
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("name = "));
        let name = name.expect("a name").trim_matches('"');
        let places = [
            format!("benches/{name}.rs"),
            format!("benches/{name}/main.rs"),
        ];
        let source = places
            .iter()
            .find(|place| folder.path().join(place).is_file());
        let source = source.unwrap_or_else(|| panic!("{name} has no source"));
        // The whole of it: the engine leaves out what this file does not name.
        let allowed = ignored.lines().any(|line| {
            let Some(line) = line.strip_prefix('!') else {
                return false;
            };
            line == "benches/*.rs" && !source.ends_with("/main.rs")
                || source.starts_with(&format!("{line}/"))
        });
        assert!(allowed, "{source} is kept out by .dockerignore");
    }
    // Nor does it find files that a source includes from outside of what was copied.
    for name in crate::files("src") {
        if name.ends_with(".rs") {
            assert!(!file(&name).contains("include_str!(\"../../"), "{name}");
        }
    }
}

#[test]
fn it_runs_as_nobody_and_asks_for_its_own_health() {
    let all = instructions();
    assert_eq!(arguments(&all, "USER"), ["65532:65532"]);
    let program = "/usr/local/bin/buzz-uring";
    assert_eq!(arguments(&all, "ENTRYPOINT"), [format!("[\"{program}\"]")]);
    let health = arguments(&all, "HEALTHCHECK");
    let [health] = health[..] else {
        panic!("{health:?}")
    };
    assert!(
        health.ends_with(&format!("CMD [\"{program}\", \"health\"]")),
        "{health}"
    );
    assert_eq!(arguments(&all, "VOLUME"), ["/data"]);
    assert_eq!(arguments(&all, "STOPSIGNAL"), ["SIGTERM"]);
    // The ports are the defaults.
    let config = Config::resolve(&Default::default(), &Machine::probe()).expect("the defaults");
    let ports = [config.bind, config.health, config.metrics].map(|address| address.port());
    let ports = ports.map(|port| port.to_string()).join(" ");
    assert_eq!(arguments(&all, "EXPOSE"), [ports]);
}

#[test]
fn a_linter_takes_it() {
    let Some(bin) = schemas("a_linter_takes_it") else {
        return;
    };
    run(Command::new(bin.join("hadolint")).arg(path(DOCKERFILE)));
}

#[test]
fn provisioning_is_yaml_that_fits_the_compose_file() {
    let sources = file("deploy/docker/grafana/provisioning/datasources/prometheus.yaml");
    let sources = documents(&sources).expect("YAML");
    let source = &sources[0]["datasources"][0];
    assert_eq!(source["type"], "prometheus");
    assert_eq!(source["url"], "http://prometheus:9090");
    let boards = file("deploy/docker/grafana/provisioning/dashboards/dashboards.yaml");
    let boards = documents(&boards).expect("YAML");
    let folder = &boards[0]["providers"][0]["options"]["path"];
    let compose = crate::document("deploy/docker/compose.yaml");
    let mounted = compose["services"]["grafana"]["volumes"].to_string();
    let mount = format!("../grafana:{}:ro", folder.as_str().expect("a path"));
    assert!(mounted.contains(&mount), "{mounted}");
}
