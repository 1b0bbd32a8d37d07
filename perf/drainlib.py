"""Relays and crowds, for perf/drain and perf/storm. Standard library only."""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import perflib


def relay_program(variable="BUZZ_URING"):
    """The relay's path: from the environment, else the release build of this checkout."""
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(perflib.ROOT, "target"))
    path = os.environ.get(variable, os.path.join(target, "release", "buzz-uring"))
    if not os.path.exists(path):
        perflib.fail(f"{path} is missing. Build it: cargo build --release")
    return path


def connections_max():
    """Connections that a relay takes here: 45 % of the descriptor limit (docs/drain.md)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return hard * 45 // 100


class Relay:
    """A relay as a child process, with a folder of its own."""

    def __init__(self, program, **settings):
        self.folder = tempfile.TemporaryDirectory(prefix="buzz-perf-")
        env = {
            "BUZZ_DATA_DIR": os.path.join(self.folder.name, "data"),
            "BUZZ_BIND_ADDR": "127.0.0.1:0",
            "BUZZ_HEALTH_BIND": "127.0.0.1",
            "BUZZ_HEALTH_PORT": "0",
            "BUZZ_METRICS_BIND": "127.0.0.1",
            "BUZZ_METRICS_PORT": "0",
            "BUZZ_REQUIRE_AUTH": "true",
            "BUZZ_MAX_CONNECTIONS": str(connections_max()),
            "BUZZ_LOG": "info",
        }
        env.update({name: str(value) for name, value in settings.items()})
        self.process = subprocess.Popen([program], env=env, stderr=subprocess.PIPE, text=True)
        self.lines, self.started = [], threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if not self.started.wait(20) or not self.line:
            perflib.fail("the relay did not start:\n" + "\n".join(map(str, self.lines)))
        self.url, self.metrics = self.line["url"], self.line["metrics"]

    line = None

    def _read(self):
        for text in self.process.stderr:
            try:
                line = json.loads(text)
            except ValueError:
                line = {"message": text.rstrip()}
            if line.get("target") == "access":
                continue
            self.lines.append(line)
            if "url" in line:
                self.line = line
                self.started.set()
        self.started.set()

    def find(self, message):
        """The first log line with this message."""
        return next((line for line in self.lines if line.get("message") == message), None)

    def terminate(self):
        """SIGTERM; the moment, in milliseconds since 1970."""
        now = time.time() * 1e3
        self.process.send_signal(signal.SIGTERM)
        return now

    def wait(self):
        """The exit code."""
        code = self.process.wait(120)
        self.reader.join(5)
        return code

    def kill(self):
        """The end, at once."""
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def scrape(self):
        """The series, by name and labels."""
        with urllib.request.urlopen(self.metrics, timeout=5) as answer:
            text = answer.read().decode()
        series = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {pair[0]: float(pair[1]) for pair in series if len(pair) == 2}


class Crowd:
    """Clients that are logged in."""

    def __init__(self, url, connections, then=None, limit_seconds=120):
        command = [perflib.load_program(), "crowd", "--url", url, "--connections", str(connections),
                   "--limit-seconds", str(limit_seconds)]
        command += ["--then", then] if then else []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        first = self.process.stdout.readline()
        if not first:
            perflib.fail("the crowd ended before it was logged in")
        self.logged_in = json.loads(first)["logged_in"]
        if self.logged_in != connections:
            print(f"warning: {self.logged_in} of {connections} are logged in", file=sys.stderr)

    def report(self):
        """What they saw, once all have."""
        text = self.process.stdout.read()
        self.process.wait()
        return json.loads(text)


def bins(moments, start, width, count):
    """How many moments fall into each bin from `start` on; later ones into the last."""
    counts = [0] * count
    for moment in moments:
        counts[min(max(int((moment - start) / width), 0), count - 1)] += 1
    return counts


def percentile(values, share):
    """A percentile, 0 where there are none."""
    values = sorted(values)
    return values[min(int(len(values) * share), len(values) - 1)] if values else 0
