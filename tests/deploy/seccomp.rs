//! The seccomp profiles that `scripts/seccomp-profile` makes: a default, and exactly three names
//! more. The default is one made up here, and the one of this machine where it has one; none is in
//! the repository.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::skip;
use crate::{file, output, path, program, run, said};

const IO_URING: [&str; 3] = ["io_uring_enter", "io_uring_register", "io_uring_setup"];

/// What the script writes, by the names that everything else in `deploy/` has for it.
pub const MADE: [&str; 2] = [
    "deploy/docker/seccomp.json",
    "deploy/kubernetes/seccomp/seccomp.json",
];

/// Where the script looks for a default.
const DEFAULTS: [&str; 2] = [
    "/etc/containers/seccomp.json",
    "/usr/share/containers/seccomp.json",
];

/// A default and the two profiles made of it.
pub struct Profiles {
    default: Value,
    docker: Value,
    pub kubernetes: Value,
}

/// From the default of this machine, found as an operator's is.
pub fn of_this_machine(test: &str) -> Option<Profiles> {
    let Some(default) = DEFAULTS.into_iter().find(|name| Path::new(name).is_file()) else {
        skip(test, "no container engine's default seccomp profile here");
        return None;
    };
    let default = fs::read_to_string(default).expect("a file");
    let default = serde_json::from_str(&default).expect("JSON");
    made(test, default, None)
}

/// From a default of the test's own.
fn of(test: &str, default: Value) -> Option<Profiles> {
    let folder = tempfile::tempdir().expect("a folder");
    let name = folder.path().join("default.json");
    fs::write(&name, default.to_string()).expect("a file");
    made(test, default, Some(&name))
}

fn made(test: &str, default: Value, argument: Option<&Path>) -> Option<Profiles> {
    let python = program(test, "python3")?;
    // Laid out as the repository, which is not written to.
    let folder = tempfile::tempdir().expect("a folder");
    let mut script = Command::new(python);
    script.arg(path("scripts/seccomp-profile"));
    script.arg("--into").arg(folder.path().join("deploy"));
    run(script.args(argument));
    let [docker, kubernetes] = MADE.map(|name| {
        let text = fs::read_to_string(folder.path().join(name)).expect("a file");
        serde_json::from_str(&text).expect("JSON")
    });
    Some(Profiles {
        default,
        docker,
        kubernetes,
    })
}

/// The names that a profile allows, under whatever condition.
fn allowed(profile: &Value) -> BTreeSet<String> {
    let rules = profile["syscalls"].as_array().expect("rules").iter();
    let allowed = rules.filter(|rule| rule["action"] == "SCMP_ACT_ALLOW");
    let names = allowed.flat_map(|rule| rule["names"].as_array().expect("names"));
    names
        .map(|name| name.as_str().expect("a name").to_owned())
        .collect()
}

/// A default with one rule of each kind.
fn made_up() -> Value {
    let allow = |names: &[&str], includes: Value, excludes: Value| {
        json!({"names": names, "action": "SCMP_ACT_ALLOW", "args": null, "comment": "",
               "includes": includes, "excludes": excludes})
    };
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 38,
        "defaultErrno": "ENOSYS",
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": null},
            {"architecture": "SCMP_ARCH_S390X", "subArchitectures": ["SCMP_ARCH_S390"]},
        ],
        "syscalls": [
            allow(&["read", "write"], json!({}), json!({})),
            allow(&["mount"], json!({"caps": ["CAP_SYS_ADMIN"]}), json!({})),
            {"names": ["mount"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "errno": "EPERM",
             "excludes": {"caps": ["CAP_SYS_ADMIN"]}},
            allow(&["arch_prctl"], json!({"arches": ["amd64", "x32"]}), json!({})),
            allow(&["s390_runtime_instr"], json!({"arches": ["s390x"]}), json!({})),
            allow(&["ptrace"], json!({"minKernel": "4.8"}), json!({})),
            allow(&["clone"], json!({}), json!({"arches": ["s390x"], "caps": ["CAP_SYS_ADMIN"]})),
            {"names": ["personality"], "action": "SCMP_ACT_ALLOW",
             "args": [{"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}]},
        ],
    })
}

#[test]
fn docker_s_is_the_default_and_one_rule() {
    let test = "docker_s_is_the_default_and_one_rule";
    for profiles in [of(test, made_up()), of_this_machine(test)] {
        let Some(profiles) = profiles else { continue };
        let mut made = profiles.docker;
        let rules = made["syscalls"].as_array_mut().expect("rules");
        let added = rules.pop().expect("a rule");
        assert_eq!(added["names"], json!(IO_URING));
        assert_eq!(added["action"], "SCMP_ACT_ALLOW");
        assert!(added.get("args").is_none() && added.get("includes").is_none());
        if !profiles.default.to_string().contains("io_uring") {
            assert_eq!(made, profiles.default, "nothing else differs");
        }
        assert!(!made.to_string().contains("\"io_uring"), "said once");
    }
}

#[test]
fn a_default_that_knows_io_uring_comes_to_the_same() {
    let test = "a_default_that_knows_io_uring_comes_to_the_same";
    let mut default = made_up();
    let rules = default["syscalls"].as_array_mut().expect("rules");
    let names = rules[0]["names"].as_array_mut().expect("names");
    names.push(json!("io_uring_setup"));
    rules.push(json!({"names": IO_URING, "action": "SCMP_ACT_ERRNO", "errnoRet": 1}));
    let plain = of(test, made_up());
    if let (Some(profiles), Some(plain)) = (of(test, default), plain) {
        assert_eq!(profiles.docker, plain.docker);
        assert_eq!(profiles.kubernetes, plain.kubernetes);
    }
}

#[test]
fn conditions_are_decided_for_kubernetes() {
    let Some(profiles) = of("conditions_are_decided_for_kubernetes", made_up()) else {
        return;
    };
    let rule = |names: &[&str]| json!({"names": names, "action": "SCMP_ACT_ALLOW"});
    let mut personality = rule(&["personality"]);
    personality["args"] = json!([{"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}]);
    let expected = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 38,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_AARCH64"],
        "syscalls": [
            rule(&["read", "write"]),
            {"names": ["mount"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
            rule(&["arch_prctl"]),
            rule(&["ptrace"]),
            rule(&["clone"]),
            personality,
            rule(&IO_URING),
        ],
    });
    assert_eq!(profiles.kubernetes, expected);
}

#[test]
fn a_condition_that_is_not_known_is_not_guessed_at() {
    const TEST: &str = "a_condition_that_is_not_known_is_not_guessed_at";
    let Some(python) = program(TEST, "python3") else {
        return;
    };
    for condition in [
        json!({"includes": {"moon": ["full"]}}),
        json!({"excludes": {"minKernel": "4.8"}}),
    ] {
        let mut default = made_up();
        let first = default["syscalls"][0].as_object_mut().expect("a rule");
        first.extend(condition.as_object().expect("a condition").clone());
        let folder = tempfile::tempdir().expect("a folder");
        let name = folder.path().join("default.json");
        fs::write(&name, default.to_string()).expect("a file");
        let mut script = Command::new(&python);
        script.arg(path("scripts/seccomp-profile")).arg(&name);
        let ended = output(script.arg("--into").arg(folder.path()));
        assert!(!ended.status.success(), "{condition}");
        assert!(said(&ended).contains("not known here"), "{}", said(&ended));
        assert!(!folder.path().join("docker").exists(), "{condition}");
    }
}

#[test]
fn kubernetes_has_nothing_that_a_condition_guarded() {
    let test = "kubernetes_has_nothing_that_a_condition_guarded";
    let Some(profiles) = of_this_machine(test) else {
        return;
    };
    let (docker, names) = (allowed(&profiles.docker), allowed(&profiles.kubernetes));
    assert!(names.is_subset(&docker));
    assert!(IO_URING.iter().all(|name| names.contains(*name)));
    // Each of these is allowed by a rule for a container with some capability, in the engines'
    // defaults of all times.
    for name in [
        "bpf",
        "init_module",
        "perf_event_open",
        "settimeofday",
        "open_by_handle_at",
    ] {
        assert!(docker.contains(name), "{name} is in the default");
        assert!(!names.contains(name), "{name}");
    }
    // What its readers would pass over in silence.
    let known = [
        "architectures",
        "defaultAction",
        "defaultErrnoRet",
        "syscalls",
    ];
    let mut keys = profiles.kubernetes.as_object().expect("an object").keys();
    assert!(keys.all(|key| known.contains(&key.as_str())), "{known:?}");
    for rule in profiles.kubernetes["syscalls"].as_array().expect("rules") {
        for key in rule.as_object().expect("an object").keys() {
            let known = ["names", "action", "args", "errnoRet"];
            assert!(known.contains(&key.as_str()), "{rule}");
        }
    }
}

#[test]
fn what_is_made_stays_out_of_the_repository() {
    let ignored = file(".gitignore");
    for name in MADE {
        let line = format!("/{name}");
        assert!(ignored.lines().any(|ignored| ignored == line), "{name}");
    }
    let script = file("scripts/seccomp-profile");
    let manual = file("docs/operate.md");
    for default in DEFAULTS {
        assert!(script.contains(default), "{default}");
        assert!(manual.contains(default), "{default}");
    }
}
