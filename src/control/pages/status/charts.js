// Charts: the last two minutes. A gap stays a gap.

const series = new Map();
const note = (name, now, value) => {
  if (!series.has(name)) series.set(name, []);
  const points = series.get(name);
  points.push([now, isNumber(value) ? value : null]);
  while (points[0][0] < now - SHOWN_MS) points.shift();
};
const gap = (now) => {
  for (const name of series.keys()) note(name, now, null);
};
const highest = (names) => {
  const values = names.flatMap((name) => (series.get(name) ?? []).map(([, value]) => value ?? 0));
  return Math.max(0, ...values);
};
const path = (name, now, most, closed) => {
  let drawn = "";
  let last;
  const end = () => (closed && last !== undefined ? `L${last} 40Z` : "");
  for (const [when, value] of series.get(name) ?? []) {
    if (value === null) {
      drawn += end();
      last = undefined;
      continue;
    }
    const x = (120 * (1 - (now - when) / SHOWN_MS)).toFixed(2);
    const y = (39 - 37 * (value / most)).toFixed(2);
    if (last === undefined) drawn += closed ? `M${x} 40L${x} ${y}` : `M${x} ${y}`;
    else drawn += `L${x} ${y}`;
    last = x;
  }
  return drawn + end();
};
const chart = (classes) => {
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of [
    ["class", "chart"], ["viewBox", "0 0 120 40"], ["preserveAspectRatio", "none"], ["role", "img"],
  ]) svg.setAttribute(name, value);
  svg.append(...classes.map((name) => {
    const line = document.createElementNS(SVG, "path");
    line.setAttribute("class", name);
    return line;
  }));
  return svg;
};
const draw = (svg, names, now, label) => {
  const most = Math.max(1, highest(names));
  [...svg.children].forEach((line, place) => {
    const closed = line.getAttribute("class") === "area";
    // The area lies under the first line.
    const name = names[Math.max(place - 1, 0)];
    line.setAttribute("d", path(name, now, most, closed));
  });
  const told = `at most ${rate(highest(names.slice(0, 1)))}`;
  svg.setAttribute("aria-label", `${label}, last two minutes: ${told}`);
  return told;
};
