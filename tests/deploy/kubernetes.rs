//! The Kubernetes manifests: against the schemas of Kubernetes, and against what the relay needs.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use buzz_uring::cli::setting;
use buzz_uring::limits;
use serde_json::Value;

use crate::seccomp::MADE;
use crate::{document, documents, files, output, path, program, run, schemas, yaml};

const FOLDER: &str = "deploy/kubernetes";

/// The manifests that stand on their own; patches and kustomizations do not.
fn manifests() -> Vec<String> {
    let mut names = files(FOLDER);
    let folders = ["base/", "seccomp/"].map(|folder| format!("{FOLDER}/{folder}"));
    names.retain(|name| {
        let whole = folders.iter().any(|folder| name.starts_with(folder));
        whole && name.ends_with(".yaml") && !name.ends_with("/kustomization.yaml")
    });
    assert!(names.len() > 5, "{names:?}");
    names
}

fn relay() -> Value {
    document("deploy/kubernetes/base/statefulset.yaml")
}

#[test]
fn they_fit_the_schemas() {
    let Some(bin) = schemas("they_fit_the_schemas") else {
        return;
    };
    let validate = bin.join("kubernetes-validate");
    run(Command::new(validate)
        .arg("--strict")
        .args(manifests().iter().map(|name| path(name))));
}

#[test]
fn kustomize_makes_manifests_of_them_that_fit_the_schemas() {
    const TEST: &str = "kustomize_makes_manifests_of_them_that_fit_the_schemas";
    let Some(kubectl) = program(TEST, "kubectl") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    // A kustomization of an operator's own, with everything in it.
    let own = folder.path().canonicalize().expect("a path").join("own");
    fs::create_dir(&own).expect("a folder");
    // It takes other folders by relative names only.
    let up = "../".repeat(own.components().count() - 1);
    let here = path(FOLDER).display().to_string();
    let text = format!(
        "resources: [{up}{0}/postgres]\ncomponents: [{up}{0}/launchdarkly]\n",
        here.trim_start_matches('/')
    );
    fs::write(own.join("kustomization.yaml"), text).expect("a file");
    // The profile is not in the repository, and its text matters to nobody here.
    let seccomp = folder.path().join("seccomp");
    fs::create_dir(&seccomp).expect("a folder");
    for name in files(&format!("{FOLDER}/seccomp")) {
        let to = seccomp.join(path(&name).file_name().expect("a name"));
        fs::copy(path(&name), to).expect("a copy");
    }
    fs::write(seccomp.join("seccomp.json"), "{}").expect("a file");
    let folders = ["base", "postgres"].map(|name| path(FOLDER).join(name));
    for (number, source) in folders.into_iter().chain([seccomp, own]).enumerate() {
        let made = output(Command::new(&kubectl).arg("kustomize").arg(&source));
        let text = String::from_utf8_lossy(&made.stdout).into_owned();
        if !made.status.success() && crate::said(&made).contains("unknown field") {
            return crate::common::skip(TEST, "this kubectl is too old for components");
        }
        assert!(
            made.status.success(),
            "{}: {}",
            source.display(),
            crate::said(&made)
        );
        let made = documents(&text).expect("YAML");
        let stateful = made.iter().find(|one| one["kind"] == "StatefulSet");
        if let Some(stateful) = stateful {
            let replicas = stateful["spec"]["replicas"].as_u64();
            assert_eq!(replicas, Some([1, 3, 0, 3][number]));
            let text = stateful.to_string();
            assert!(
                text.contains("registry.example.com/buzz-uring:"),
                "the image's name"
            );
            assert!(
                text.contains("\"name\":\"buzz-uring-"),
                "the config map's name"
            );
        }
        let Some(bin) = schemas(TEST) else { return };
        let file = folder.path().join(format!("{number}.yaml"));
        fs::write(&file, text).expect("a file");
        run(Command::new(bin.join("kubernetes-validate"))
            .arg("--strict")
            .arg(&file));
    }
}

#[test]
fn kustomizations_name_files_that_are_there_and_leave_none_out() {
    for name in ["base", "postgres", "launchdarkly", "seccomp"] {
        let folder = format!("{FOLDER}/{name}");
        let kustomization = document(&format!("{folder}/kustomization.yaml"));
        let mut named = BTreeSet::from(["kustomization.yaml".to_owned()]);
        let texts = |value: &Value| -> Vec<String> {
            let all = value.as_array().into_iter().flatten();
            all.map(|one| one.as_str().expect("a name").to_owned())
                .collect()
        };
        named.extend(texts(&kustomization["resources"]));
        for patch in kustomization["patches"].as_array().into_iter().flatten() {
            named.insert(patch["path"].as_str().expect("a name").to_owned());
        }
        for made in kustomization["configMapGenerator"]
            .as_array()
            .into_iter()
            .flatten()
        {
            named.extend(texts(&made["envs"]));
            named.extend(texts(&made["files"]));
        }
        for name in &named {
            let is_made = MADE.contains(&format!("{folder}/{name}").as_str());
            assert!(
                is_made || path(&folder).join(name).exists(),
                "{folder}/{name}"
            );
        }
        for file in files(&folder) {
            let name = file.strip_prefix(&format!("{folder}/")).expect("below it");
            assert!(named.contains(name), "{file} is in no kustomization");
        }
    }
}

#[test]
fn a_pod_has_what_a_relay_needs() {
    let pod = &relay()["spec"]["template"]["spec"];
    assert_eq!(
        pod["terminationGracePeriodSeconds"].as_u64(),
        Some(limits::TERMINATION_GRACE_SECONDS)
    );
    let seccomp = &pod["securityContext"]["seccompProfile"];
    assert_eq!(seccomp["type"], "Localhost");
    // The file that the other folder puts there.
    let installed = document("deploy/kubernetes/seccomp/daemonset.yaml").to_string();
    let profile = seccomp["localhostProfile"].as_str().expect("a path");
    let (folder, name) = profile.split_once('/').expect("a folder");
    assert!(
        installed.contains(&format!("/var/lib/kubelet/seccomp/{folder}\"")),
        "{folder}"
    );
    assert!(installed.contains(&format!("/seccomp/{name}\\n")), "{name}");
    assert_eq!(MADE[1], format!("{FOLDER}/seccomp/{name}"));

    let container = &pod["containers"][0];
    let hook = &container["lifecycle"]["preStop"]["exec"]["command"];
    let hook: Vec<&str> = hook
        .as_array()
        .expect("words")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(hook, ["/usr/local/bin/buzz-uring", "drain", "--wait"]);
    for (probe, path) in [
        ("startupProbe", "/_liveness"),
        ("livenessProbe", "/_liveness"),
        ("readinessProbe", "/_readiness"),
    ] {
        assert_eq!(container[probe]["httpGet"]["path"], path);
        assert_eq!(container[probe]["httpGet"]["port"], "health");
    }
    // Whole cores, and a pod that nobody may squeeze.
    let resources = &container["resources"];
    assert_eq!(resources["requests"], resources["limits"]);
    let cores = resources["limits"]["cpu"].as_str().expect("a number");
    assert!(cores.parse::<u32>().is_ok_and(|cores| cores > 0), "{cores}");
    let context = &container["securityContext"];
    assert_eq!(context["readOnlyRootFilesystem"], true);
    assert_eq!(context["allowPrivilegeEscalation"], false);
    assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]));
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
}

#[test]
fn selectors_find_the_pods_and_settings_exist() {
    let relay = relay();
    let labels = &relay["spec"]["template"]["metadata"]["labels"];
    let labels = labels.as_object().expect("labels");
    let mut selectors = vec![relay["spec"]["selector"]["matchLabels"].clone()];
    let pod = &relay["spec"]["template"]["spec"];
    for spread in pod["topologySpreadConstraints"]
        .as_array()
        .expect("constraints")
    {
        selectors.push(spread["labelSelector"]["matchLabels"].clone());
    }
    let budget = document("deploy/kubernetes/base/disruption.yaml");
    selectors.push(budget["spec"]["selector"]["matchLabels"].clone());
    let network = document("deploy/kubernetes/base/network.yaml");
    selectors.push(network["spec"]["podSelector"]["matchLabels"].clone());
    let services = yaml("deploy/kubernetes/base/services.yaml");
    selectors.extend(
        services
            .iter()
            .map(|service| service["spec"]["selector"].clone()),
    );
    for selector in selectors {
        let selector = selector.as_object().expect("a selector");
        assert!(!selector.is_empty());
        assert!(
            selector
                .iter()
                .all(|(name, value)| labels.get(name) == Some(value))
        );
    }
    let names = services.iter().map(|service| &service["metadata"]["name"]);
    assert!(
        names
            .into_iter()
            .any(|name| *name == relay["spec"]["serviceName"])
    );

    for name in ["base", "postgres", "launchdarkly"] {
        let patch = document(&format!("{FOLDER}/{name}/statefulset.yaml"));
        let container = &patch["spec"]["template"]["spec"]["containers"][0];
        for variable in container["env"].as_array().expect("variables") {
            let variable = variable["name"].as_str().expect("a name");
            let setting = setting(variable).unwrap_or_else(|| panic!("{variable} is no setting"));
            assert!(
                !setting.secret || name != "base",
                "{variable} belongs into a secret"
            );
        }
    }
}
