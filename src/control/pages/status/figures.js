// The relay at work: asks /_status each second and shows what changed. Fields that are not there are
// shown as "–" or not at all, so that page and relay need not be of the same day.
const PERIOD_MS = 1000;
const ANSWER_MS_MAX = 3000;
const RETRY_MS_MAX = 15000;
const SHOWN_MS = 120000;
const SILENT_MS = 2000;

// Figures.

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const isObject = (value) => typeof value === "object" && value !== null;
const list = (value) => (Array.isArray(value) ? value.filter(isObject) : []);
const object = (value) => (isObject(value) ? value : {});
// A number as it is, or all numbers in an object together; undefined where there is none.
const sum = (value) => {
  if (isNumber(value)) return value;
  const all = isObject(value) ? Object.values(value).map(sum).filter(isNumber) : [];
  return all.length ? all.reduce((a, b) => a + b) : undefined;
};
const exact = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const count = (value) =>
  isNumber(value) ? (value < 1e6 ? exact : short).format(value) : "–";
const rate = (value) =>
  !isNumber(value) ? "–" : value > 0 && value < 10 ? value.toFixed(1) : count(Math.round(value));
const bytes = (value) => {
  if (!isNumber(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), units.length - 1);
  const scaled = value / 1024 ** power;
  // As `buzz-uring status` does: cut, not rounded, and one more digit where there are few.
  const digits = power > 0 && scaled < 100 ? 1 : 0;
  return `${(Math.floor(scaled * 10 ** digits) / 10 ** digits).toFixed(digits)} ${units[power]}`;
};
const many = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
const time = (seconds) => {
  if (!isNumber(seconds)) return "–";
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, unit]) => seconds >= unit);
  if (first < 0) return `${Math.floor(seconds)} s`;
  let left = Math.floor(seconds);
  const parts = units.slice(first, first + 2).map(([name, unit]) => {
    const whole = Math.floor(left / unit);
    left -= whole * unit;
    return whole ? `${whole} ${name}` : "";
  });
  return parts.filter(Boolean).join(" ");
};
const words = (name) => {
  const text = String(name).replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
};

// Elements. Text goes in as text only.

const at = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const make = (name, classes = "", text = "") => {
  const made = document.createElement(name);
  made.className = classes;
  made.textContent = text;
  return made;
};
const say = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};
const badge = (element, text, tone) => {
  say(element, text);
  element.className = `badge ${tone}`;
  element.hidden = !text;
};
// The part of `parent` that is called `key`, made if it is new. Parts that no look names go.
const parts = new WeakMap();
const part = (parent, key, create) => {
  if (!parts.has(parent)) parts.set(parent, new Map());
  const known = parts.get(parent);
  if (!known.has(key)) {
    const made = create();
    known.set(key, made);
    parent.append(made.root ?? made);
  }
  return known.get(key);
};
const keep = (parent, keys) => {
  for (const [key, made] of parts.get(parent) ?? []) {
    if (keys.includes(key)) continue;
    (made.root ?? made).remove();
    parts.get(parent).delete(key);
  }
};
// Rows of a description list: name, text and, for a row that belongs to the one before, what it is
// called there. A row whose text is undefined is left out.
const rows = (dl, texts) => {
  const shown = texts.filter(([, text]) => text !== undefined);
  for (const [name, text, within] of shown) {
    const row = part(dl, name, () => {
      const root = make("div", within ? "sub" : "");
      const value = make("dd");
      root.append(make("dt", "", within ?? name), value);
      return { root, value };
    });
    say(row.value, text);
  }
  keep(dl, shown.map(([name]) => name));
  shown.forEach(([name], place) => {
    const { root } = parts.get(dl).get(name);
    if (dl.children[place] !== root) dl.insertBefore(root, dl.children[place]);
  });
};
const bar = (element, value, most) => {
  const share = isNumber(value) && most > 0 ? Math.min(value / most, 1) : 0;
  element.setAttribute("aria-valuemax", String(most || 0));
  element.setAttribute("aria-valuenow", String(Math.min(value || 0, most || 0)));
  element.firstElementChild.style.width = `${share * 100}%`;
};
