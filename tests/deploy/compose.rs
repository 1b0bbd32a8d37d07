//! The compose files: against their schema, and against the files and services that they name.

use std::collections::BTreeSet;
use std::process::Command;

use buzz_uring::cli::setting;
use serde_json::Value;

use crate::seccomp::MADE;
use crate::{document, path, run, schemas};

const FILES: [&str; 2] = [
    "deploy/docker/compose.yaml",
    "deploy/docker/compose.postgres.yaml",
];

fn keys(value: &Value) -> BTreeSet<String> {
    let object = value.as_object().into_iter().flatten();
    object.map(|(key, _)| key.clone()).collect()
}

#[test]
fn they_fit_the_schema() {
    let Some(bin) = schemas("they_fit_the_schema") else {
        return;
    };
    // A field that is not known, or of a wrong type, is an error with its line.
    let script = "import sys\n\
        from compose_spec import PyCompose\n\
        for name in sys.argv[1:]:\n    \
            compose = PyCompose.from_yaml(open(name).read())\n    \
            compose.validate()\n    \
            assert compose.service_names(), name\n";
    let mut python = Command::new(bin.join("python"));
    run(python.arg("-c").arg(script).args(FILES.map(path)));
}

#[test]
fn what_they_name_is_there() {
    let (mut services, mut volumes) = (BTreeSet::new(), BTreeSet::new());
    for name in FILES {
        let compose = document(name);
        services.extend(keys(&compose["services"]));
        volumes.extend(keys(&compose["volumes"]));
        for (service, given) in compose["services"].as_object().expect("services") {
            for other in keys(&given["depends_on"]) {
                assert!(services.contains(&other) || compose["services"].get(&other).is_some());
            }
            for volume in given["volumes"].as_array().into_iter().flatten() {
                let volume = volume.as_str().expect("the short form");
                let source = volume.split(':').next().expect("a source");
                match source.starts_with('.') {
                    true => assert!(path("deploy/docker").join(source).exists(), "{source}"),
                    false => assert!(volumes.contains(source), "{service}: {source}"),
                }
            }
            let environment = match service.as_str() {
                "relay" => keys(&given["environment"]),
                _ => BTreeSet::new(),
            };
            for variable in environment {
                assert!(setting(&variable).is_some(), "{variable} is no setting");
            }
        }
    }
}

#[test]
fn the_relay_has_the_profile_and_the_time_to_drain() {
    let compose = document(FILES[0]);
    let relay = &compose["services"]["relay"];
    let options = relay["security_opt"].to_string();
    assert!(options.contains("no-new-privileges:true"), "{options}");
    // Read by the name that scripts/seccomp-profile writes, from the folder of the file.
    assert!(options.contains("\"seccomp:seccomp.json\""), "{options}");
    assert_eq!(MADE[0], "deploy/docker/seccomp.json");
    assert_eq!(relay["read_only"], true);
    assert_eq!(relay["cap_drop"], serde_json::json!(["ALL"]));
    let seconds = buzz_uring::limits::TERMINATION_GRACE_SECONDS;
    assert_eq!(relay["stop_grace_period"], format!("{seconds}s"));
    let build = &relay["build"];
    let context = path("deploy/docker").join(build["context"].as_str().expect("a path"));
    assert!(
        context
            .join(build["dockerfile"].as_str().expect("a path"))
            .is_file()
    );
    // Nobody but this machine reaches health, metrics and dashboard.
    for (name, service) in compose["services"].as_object().expect("services") {
        for port in service["ports"].as_array().into_iter().flatten() {
            let port = port.as_str().expect("the short form");
            let public = name == "relay" && port == "3000:3000";
            assert!(public || port.starts_with("127.0.0.1:"), "{name}: {port}");
        }
    }
}
