"""What the scripts of this folder share. Standard library only."""

import json
import os
import platform
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def fail(text):
    """Ends the script with a message and exit code 1."""
    sys.exit(f"{os.path.basename(sys.argv[0])}: {text}")


def need(program, package):
    """The path of a program, or an end that names the package it is in. Nothing is installed."""
    path = shutil.which(program)
    if not path:
        fail(f"{program} is missing. On Debian it is in the package {package}.")
    return path


def target():
    """Where cargo builds."""
    return os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))


def load_program():
    """The path of buzz-load: $BUZZ_LOAD, else the release build of this checkout."""
    path = os.environ.get("BUZZ_LOAD", os.path.join(target(), "release", "buzz-load"))
    if not os.path.exists(path):
        fail(f"{path} is missing. Build it: cargo build --release --bin buzz-load")
    return path


def read(path, default=""):
    """The text of a file, or the default where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return default


def machine():
    """Machine, kernel, commit and date: without them a figure means nothing."""
    model = next(
        (line.split(":", 1)[1].strip() for line in read("/proc/cpuinfo").splitlines()
         if line.startswith("model name")), platform.machine())
    governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "unknown").strip()
    virtual = "yes" if "hypervisor" in read("/proc/cpuinfo") else "no"
    git = ["git", "-C", ROOT]
    commit = run(git + ["rev-parse", "--short=12", "HEAD"]).strip() or "unknown"
    if run(git + ["status", "--porcelain", "--untracked-files=no"]).strip():
        commit += " with changes"
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": model,
        "cores": os.cpu_count(),
        "virtual machine": virtual,
        "governor": governor,
        "kernel": platform.release(),
        "commit": commit,
        "load before": read("/proc/loadavg").split(" ")[0],
    }


def run(command):
    """The output of a command, or nothing where it fails."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout if result.returncode == 0 else ""


def counters_work(event="cycles"):
    """Whether a hardware counter counts here. On most virtual machines none does."""
    perf = need("perf", "linux-perf")
    result = subprocess.run(
        [perf, "stat", "-x,", "-e", event, "--", "true"], capture_output=True, text=True, check=False)
    return result.returncode == 0 and "not supported" not in result.stderr


def split_command(arguments):
    """Own arguments, and the command after `--`."""
    if "--" in arguments:
        at = arguments.index("--")
        return arguments[:at], arguments[at + 1:]
    return arguments, []


def alive(pid):
    """The process id as a number, checked."""
    if not str(pid).isdigit() or not os.path.exists(f"/proc/{pid}"):
        fail(f"there is no process {pid}")
    return int(pid)


def operations(text):
    """Operations in the report of buzz-load, or none if the text is no report."""
    for line in text.splitlines():
        try:
            return json.loads(line)["sections"][0]["operations"]
        except (ValueError, KeyError, IndexError, TypeError):
            continue
    return None


def run_beside(command, seconds):
    """Runs the command to its end, or sleeps; gives its standard output."""
    if not command:
        time.sleep(seconds)
        return ""
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        print(f"warning: the command ended with code {result.returncode}", file=sys.stderr)
    return result.stdout
