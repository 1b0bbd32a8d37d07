"""Stacks of `perf script`, folded, and drawn as an SVG. Standard library only."""

import collections
import html
import re
import subprocess
import zlib

WIDTH, ROW, MIN_PIXELS = 1400, 17, 0.4
FRAME = re.compile(r"^\s+[0-9a-f]+ (.*?)(?: \(([^()]*)\))?$")
HASH = re.compile(r"::h[0-9a-f]{16}$")


def folded(perf, data):
    """Counts by stack, outermost frame first."""
    fields = "comm,tid,ip,sym"
    script = subprocess.run(
        [perf, "script", "-i", data, "-F", fields], capture_output=True, text=True, check=False)
    stacks, comm, frames = collections.Counter(), None, []

    def finish():
        if comm is not None:
            stacks[(comm, *reversed(frames))] += 1

    for line in script.stdout.splitlines():
        if not line.strip():
            continue
        if line[0] not in " \t" or re.match(r"^\s*\S.*\s\d+\s*$", line) and not FRAME.match(line):
            finish()
            comm, frames = re.sub(r"\s+\d+\s*$", "", line.strip()), []
            continue
        match = FRAME.match(line)
        if match:
            frames.append(HASH.sub("", match.group(1).split("+0x")[0]) or "[unknown]")
    finish()
    return stacks


def top_self(stacks, count=25):
    """The innermost frames with the most samples, as lines of text."""
    total = sum(stacks.values()) or 1
    own = collections.Counter()
    for stack, samples in stacks.items():
        own[stack[-1]] += samples
    return [f"{samples / total:7.1%}  {name}" for name, samples in own.most_common(count)]


def top_total(stacks, count=15):
    """The relay's own functions by samples, with all that they called, as lines of text."""
    total = sum(stacks.values()) or 1
    whole = collections.Counter()
    for stack, samples in stacks.items():
        for name in {name for name in stack if "buzz_uring" in name}:
            whole[name] += samples
    return [f"{samples / total:7.1%}  {name}" for name, samples in whole.most_common(count)]


def svg(stacks, title):
    """A flame graph: width is samples, the root at the bottom, names on hover."""
    root = {"samples": 0, "children": {}}
    for stack, samples in stacks.items():
        node = root
        node["samples"] += samples
        for name in stack:
            node = node["children"].setdefault(name, {"samples": 0, "children": {}})
            node["samples"] += samples
    total = root["samples"] or 1
    boxes, depth_max = [], 0

    def place(node, name, left, depth):
        nonlocal depth_max
        width = node["samples"] / total * WIDTH
        if width < MIN_PIXELS:
            return
        depth_max = max(depth_max, depth)
        boxes.append((left, depth, width, name, node["samples"]))
        for child_name, child in sorted(node["children"].items()):
            place(child, child_name, left, depth + 1)
            left += child["samples"] / total * WIDTH

    place(root, "all", 0.0, 0)
    height = (depth_max + 1) * ROW + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="monospace" font-size="11">',
        f'<rect width="100%" height="100%" fill="#fff"/><text x="6" y="20">{html.escape(title)}</text>',
    ]
    for left, depth, width, name, samples in boxes:
        top = height - (depth + 1) * ROW - 4
        shade = zlib.crc32(name.encode()) & 0x3f
        text = html.escape(name[: int(width / 6.7)]) if width > 20 else ""
        out.append(
            f'<g><title>{html.escape(name)}: {samples} samples, {samples / total:.1%}</title>'
            f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 1}" '
            f'fill="rgb({210 + shade // 2},{120 + shade},{60 + shade // 2})"/>'
            f'<text x="{left + 2:.1f}" y="{top + 12}">{text}</text></g>')
    out.append("</svg>")
    return "\n".join(out)
