"""Small SVG charts: a grid of panels with bars. Standard library only.

Readable on light and dark pages: no background, and text that follows the reader's scheme.
"""

import html

STYLE = """
svg { font: 12px system-ui, sans-serif; color: #24292f; }
text { fill: currentColor; }
.quiet { opacity: .65; }
.axis { stroke: currentColor; stroke-opacity: .35; fill: none; }
.grid { stroke: currentColor; stroke-opacity: .12; fill: none; }
.s0 { fill: #2f81f7; } .s1 { fill: #f0883e; } .s2 { fill: #8957e5; } .s3 { fill: #3fb950; }
@media (prefers-color-scheme: dark) { svg { color: #e6edf3; } }
"""


class Panel:
    """One set of axes. A series is a list of (x, height), bars of one width."""

    def __init__(self, title, note=""):
        self.title, self.note, self.series = title, note, []

    def bars(self, points, width, style):
        """Bars from 0 up: points are (x, height)."""
        self.series.append((points, width, style))

    def top(self):
        """The highest point."""
        return max((height for points, _, _ in self.series for _, height in points), default=0)

    def right(self):
        """The last x."""
        return max((x + width for points, width, _ in self.series for x, _ in points), default=1)


def nice(value):
    """The next round number up."""
    if value <= 0:
        return 1
    step = 1
    while True:
        for factor in (1, 2, 2.5, 5):
            if factor * step >= value:
                return factor * step
        step *= 10


def number(value):
    """As people write it."""
    return f"{value:,.0f}".replace(",", " ") if value >= 10 or value == int(value) else f"{value:g}"


def grid(rows, x_label, title, legend=(), width=960, height=190, x_max=None):
    """An SVG document. `rows` is a list of (y label, panels); a row shares its scale."""
    left, right, top, gap, below = 56, 12, 62, 18, 34
    columns = max(len(panels) for _, panels in rows)
    each = (width - left - right - gap * (columns - 1)) / columns
    total = top + len(rows) * (height + below + 22) + 8
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total:.0f}" role="img">',
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>",
        f'<text x="{left}" y="20" font-size="15" font-weight="600">{html.escape(title)}</text>',
    ]
    at = left
    for style, text in legend:
        out.append(f'<rect x="{at}" y="30" width="11" height="11" class="{style}"/>')
        out.append(f'<text x="{at + 16}" y="40">{html.escape(text)}</text>')
        at += 34 + 6.6 * len(text)
    for row, (y_label, panels) in enumerate(rows):
        y0 = top + row * (height + below + 22) + 20
        y_max = nice(max(panel.top() for panel in panels))
        for column, panel in enumerate(panels):
            x0 = left + column * (each + gap)
            x_right = x_max or nice(panel.right())
            out.append(f'<text x="{x0}" y="{y0 - 8}" font-weight="600">{html.escape(panel.title)}</text>')
            if panel.note:
                out.append(f'<text x="{x0 + each}" y="{y0 - 8}" text-anchor="end" class="quiet">'
                           f"{html.escape(panel.note)}</text>")
            for share in (0, 0.5, 1):
                y = y0 + height * (1 - share)
                out.append(f'<path d="M{x0:.1f} {y:.1f}h{each:.1f}" class="{"axis" if share == 0 else "grid"}"/>')
                if column == 0:
                    out.append(f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end" class="quiet">'
                               f"{number(y_max * share)}</text>")
            for points, bar, style in panel.series:
                path = []
                for x, tall in points:
                    if tall <= 0 or x >= x_right:
                        continue
                    wide = max(bar / x_right * each, 0.5)
                    high = tall / y_max * height
                    path.append(f"M{x0 + x / x_right * each:.1f} {y0 + height:.1f}v{-high:.1f}h{wide:.2f}v{high:.1f}z")
                out.append(f'<path d="{"".join(path)}" class="{style}"/>')
            for share in (0, 0.5, 1):
                out.append(f'<text x="{x0 + each * share:.1f}" y="{y0 + height + 16}" text-anchor='
                           f'"{("start", "middle", "end")[int(share * 2)]}" class="quiet">'
                           f"{number(x_right * share)}</text>")
        out.append(f'<text transform="translate(14 {y0 + height / 2}) rotate(-90)" text-anchor="middle" '
                   f'class="quiet">{html.escape(y_label)}</text>')
        out.append(f'<text x="{left + (width - left - right) / 2}" y="{y0 + height + 30}" '
                   f'text-anchor="middle" class="quiet">{html.escape(x_label)}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"
