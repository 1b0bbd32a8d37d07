//! The relay in a container as the manifests ask for it: another user, no capability, a file system
//! that is read-only but for the data, and the seccomp profile. Run by runc, which is what container
//! engines run; so it needs root, and no engine.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{LOOK, WAIT, get, skip};
use crate::{file, program, seccomp, systemd};

/// The user of the image and of the manifests.
const USER: u32 = 65_532;

/// A container that holds nothing but the libraries of this machine and the relay.
struct Container {
    runc: PathBuf,
    folder: TempDir,
    child: Child,
}

impl Container {
    fn start(runc: &Path, seccomp: &Value) -> Container {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        // The user of the container goes through it.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
        for name in ["rootfs", "data", "state"] {
            fs::create_dir(at(name)).expect("a folder");
        }
        chown(at("data"), Some(USER), Some(USER)).expect("an owner");
        let spec = spec(&at("data"), seccomp).to_string();
        fs::write(at("config.json"), spec).expect("a file");
        let log = |name: &str| fs::File::create(at(name)).expect("a file");
        let child = Command::new(runc)
            .arg("--root")
            .arg(at("state"))
            .args(["run", "--bundle"])
            .arg(folder.path())
            .arg("relay")
            .stdin(Stdio::null())
            .stdout(log("stdout"))
            .stderr(log("stderr"))
            .spawn()
            .expect("a program that runs");
        Container {
            runc: runc.to_owned(),
            folder,
            child,
        }
    }

    fn runc(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.runc);
        let command_ = command.arg("--root").arg(self.folder.path().join("state"));
        command_.args(words);
        command
    }

    fn said(&self) -> String {
        let read = |name| fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        read("stdout") + &read("stderr")
    }

    /// The start-up line, or what was said instead.
    fn ready(&mut self) -> Result<Value, String> {
        let end = Instant::now() + WAIT;
        loop {
            let said = self.said();
            let lines = said
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            let mut ready = lines.filter(|line: &Value| line["message"] == "the relay is ready");
            if let Some(line) = ready.next() {
                return Ok(line);
            }
            let ended = self.child.try_wait().expect("our own child").is_some();
            if ended || Instant::now() > end {
                return Err(said);
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        for words in [
            &["kill", "relay", "KILL"][..],
            &["delete", "--force", "relay"],
        ] {
            let _ = self.runc(words).output();
        }
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the container's lines:\n{}\n---", self.said());
        }
    }
}

fn spec(data: &Path, seccomp: &Value) -> Value {
    let read_only = |path: &str| json!({"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro"]});
    let libraries = ["/lib", "/lib64", "/usr/lib"];
    let mut mounts: Vec<Value> = libraries
        .into_iter()
        .filter(|path| Path::new(path).exists())
        .map(read_only)
        .collect();
    mounts.push(json!({"destination": "/proc", "type": "proc", "source": "proc"}));
    mounts.push(
        json!({"destination": "/data", "type": "bind", "source": data,
                       "options": ["bind", "rw"]}),
    );
    mounts.push(
        json!({"destination": "/usr/local/bin/buzz-uring", "type": "bind",
                       "source": env!("CARGO_BIN_EXE_buzz-uring"), "options": ["bind", "ro"]}),
    );
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": USER, "gid": USER},
            "args": ["/usr/local/bin/buzz-uring"],
            "env": [
                "BUZZ_DATA_DIR=/data", "BUZZ_BIND_ADDR=127.0.0.1:0", "BUZZ_HEALTH_PORT=0",
                "BUZZ_METRICS_PORT=0", "BUZZ_DRAIN_GRACE_MS=0", "BUZZ_SHARDS=2",
            ],
            "cwd": "/",
            "capabilities": {},
            "noNewPrivileges": true,
        },
        "root": {"path": "rootfs", "readonly": true},
        "mounts": mounts,
        // The network is the test's own, so that it needs no bridge.
        "linux": {
            "namespaces": [
                {"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"},
            ],
            "seccomp": seccomp,
        },
    })
}

/// Runc, where it can run anything at all.
fn runc(test: &str) -> Option<PathBuf> {
    let runc = program(test, "runc")?;
    if !rustix::process::geteuid().is_root() {
        skip(test, "runc here needs root");
        return None;
    }
    Some(runc)
}

/// Starts the relay under a profile; its start-up line, after it has ended in order.
fn line_under(test: &str, seccomp: &Value) -> Option<Value> {
    let runc = runc(test)?;
    let mut container = Container::start(&runc, seccomp);
    let line = match container.ready() {
        Ok(line) => line,
        // Its own words come without the relay's.
        Err(said) if !said.contains("the relay starts") => {
            skip(test, &format!("runc cannot run a container here: {said}"));
            return None;
        }
        Err(said) => panic!("{said}"),
    };
    assert!(
        !container.said().contains("cannot be pinned"),
        "sched_setaffinity"
    );
    // It serves, and does not only say so.
    let url = line["url"]
        .as_str()
        .and_then(|url| url.strip_prefix("ws://"));
    let address = url
        .and_then(|address| address.parse().ok())
        .expect("an address");
    assert_eq!(get(address, "/health", &[]).text(), "ok");
    // The command that a manifest runs before its SIGTERM, in the same container.
    let drained = container
        .runc(&[
            "exec",
            "--env",
            "BUZZ_DATA_DIR=/data",
            "relay",
            "/usr/local/bin/buzz-uring",
            "drain",
            "--wait",
        ])
        .output()
        .expect("a program that runs");
    let status = container.child.wait().expect("our own child");
    assert_eq!(status.code(), Some(0), "{}", container.said());
    // The hook ends with the container, and so it may or may not see how it came out.
    let told = String::from_utf8_lossy(&drained.stderr);
    assert!(told.contains("the relay drains"), "{told}");
    Some(line)
}

#[test]
fn under_our_profile_it_runs_on_io_uring() {
    let test = "under_our_profile_it_runs_on_io_uring";
    let Some(profiles) = seccomp::of_this_machine(test) else {
        return;
    };
    if let Some(line) = line_under(test, &profiles.kubernetes) {
        assert_eq!(line["driver"], "io_uring", "{line}");
    }
}

#[test]
fn under_the_engine_s_default_it_runs_on_epoll_and_says_why() {
    let test = "under_the_engine_s_default_it_runs_on_epoll_and_says_why";
    let Some(profiles) = seccomp::of_this_machine(test) else {
        return;
    };
    let mut profile = profiles.kubernetes;
    let rules = profile["syscalls"].as_array_mut().expect("rules");
    rules.retain(|rule| !rule.to_string().contains("io_uring"));
    if let Some(line) = line_under(test, &profile) {
        assert_eq!(line["driver"], "epoll", "{line}");
        let why = line["driver_why"].as_str().expect("a text");
        assert!(why.contains("seccomp profile"), "{line}");
    }
}

#[test]
fn under_the_unit_s_filter_it_runs_on_io_uring() {
    let test = "under_the_unit_s_filter_it_runs_on_io_uring";
    let Some(allowed) = systemd::allowed_calls(test) else {
        return;
    };
    let profile = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": [{"names": allowed, "action": "SCMP_ACT_ALLOW"}],
    });
    if let Some(line) = line_under(test, &profile) {
        assert_eq!(line["driver"], "io_uring", "{line}");
    }
}

#[test]
fn user_and_folder_are_the_same_everywhere() {
    let dockerfile = file("deploy/docker/Dockerfile");
    assert!(dockerfile.contains(&format!("USER {USER}:{USER}")));
    assert!(dockerfile.contains(&format!("--chown={USER}:{USER} --chmod=700 /data /data")));
    let pods = file("deploy/kubernetes/base/statefulset.yaml");
    for name in ["runAsUser", "runAsGroup", "fsGroup"] {
        assert!(pods.contains(&format!("{name}: {USER}\n")), "{name}");
    }
    for text in [dockerfile, pods] {
        assert!(text.contains("BUZZ_DATA_DIR") && text.contains("/data"));
    }
}
