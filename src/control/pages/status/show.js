// What is shown.

const counters = (status) => {
  const shards = list(status.shards);
  const all = (field) => sum(shards.map((shard) => shard[field]));
  const totals = object(status.totals);
  const found = {
    events: sum(totals.events) ?? all("events"),
    delivered: sum(totals.delivered) ?? all("delivered"),
    queries: sum(totals.queries) ?? all("queries"),
    commits: object(status.store).commits,
    commitSeconds: object(status.store).commit_seconds,
  };
  for (const [place, shard] of shards.entries()) {
    for (const field of ["events", "delivered", "queries"]) {
      found[`${field} ${shard.id ?? place}`] = shard[field];
    }
  }
  for (const [name, gate] of Object.entries(object(status.gates))) {
    found[`sheds ${name}`] = sum(object(gate).sheds);
  }
  return found;
};
// Change a second since the look before. A counter that went back belongs to another process.
const changes = (before, now) => {
  const seconds = before ? (now.when - before.when) / 1000 : 0;
  const isOther = !before || now.uptime < before.uptime;
  const change = (name) => {
    const difference = isOther ? NaN : now.counters[name] - before.counters[name];
    return difference >= 0 && seconds > 0 ? difference / seconds : undefined;
  };
  return change;
};

const tile = (key, name, value, text, now) => {
  note(key, now, value);
  const made = part(at("tiles"), key, () => {
    const root = make("div", "panel tile");
    const big = make("p", "big");
    const svg = chart(["area", "first"]);
    const most = make("p", "soft small");
    root.append(make("h2", "", name), big, svg, most);
    return { root, big, svg, most };
  });
  say(made.big, text);
  say(made.most, draw(made.svg, [key], now, name));
};
const showTiles = (status, change, now) => {
  const connections = status.connections ?? sum(list(status.shards).map((one) => one.connections));
  tile("connections", "Connections", connections, count(connections), now);
  for (const [key, name] of [
    ["events", "Events/s"], ["queries", "Queries/s"], ["delivered", "Delivered/s"],
  ]) tile(key, name, change(key), rate(change(key)), now);
};

const card = (title, meterName, lines) => {
  const root = make("section", "panel");
  root.setAttribute("aria-label", title);
  const line = make("div", "line");
  const state = make("p", "badge");
  line.append(make("h3", "", title), state);
  const meter = make("div", "bar");
  for (const [name, value] of [["role", "meter"], ["aria-label", meterName], ["aria-valuemin", "0"]]) {
    meter.setAttribute(name, value);
  }
  meter.append(make("div"));
  const svg = chart(lines);
  const dl = make("dl");
  root.append(line, meter, svg, dl);
  return { root, state, meter, svg, dl };
};
const gateCard = (name) => {
  const lines = ["area", "first", "second", "limit"];
  const made = card(words(name), "Permits in flight", lines);
  const key = make("p", "key");
  key.append(make("span", "", "in flight"), make("span", "second", "waiting"), make("span", "limit", "limit"));
  made.svg.after(key);
  made.dl.className = "cols";
  return made;
};
const showGates = (status, change, now) => {
  const gates = Object.entries(object(status.gates)).filter(([, gate]) => isObject(gate));
  for (const [name, gate] of gates) {
    const shown = part(at("gates"), name, () => gateCard(name));
    const { limit, ceiling } = gate;
    const isLowered = isNumber(limit) && (!isNumber(ceiling) || limit < ceiling);
    const tone = gate.debt > 0 ? "bad" : isLowered || gate.waiting > 0 ? "warn" : "good";
    badge(shown.state, gate.debt > 0 ? `debt ${count(gate.debt)}` : isLowered ? "lowered"
      : gate.waiting > 0 ? "queueing" : "open", tone);
    bar(shown.meter, gate.in_flight, limit ?? 0);
    shown.meter.hidden = !isNumber(limit);
    const names = ["in_flight", "waiting", "limit"].map((field) => `${name} ${field}`);
    for (const field of ["in_flight", "waiting", "limit"]) note(`${name} ${field}`, now, gate[field]);
    draw(shown.svg, names, now, "In flight");
    const sheds = object(gate.sheds);
    const bound = (value) => (value === null ? "none" : count(value));
    rows(shown.dl, [
      ["Limit", bound(limit)],
      ["Ceiling", bound(ceiling)],
      ["In flight", count(gate.in_flight)],
      ["Waiting", count(gate.waiting)],
      ["Debt", count(gate.debt)],
      ["Source", typeof gate.source === "string" ? gate.source : undefined],
      ["Remembered for", gate.remembered_age_seconds === undefined ? undefined
        : time(gate.remembered_age_seconds)],
      ["Sheds/s", isObject(gate.sheds) ? rate(change(`sheds ${name}`)) : undefined],
      ["Sheds", isObject(gate.sheds) ? count(sum(sheds)) : undefined],
      ...Object.entries(sheds).filter(([, number]) => number > 0)
        .map(([reason, number]) => [`Sheds: ${reason}`, count(number), reason.replaceAll("_", " ")]),
    ]);
  }
  keep(at("gates"), gates.map(([name]) => name));
};

const showShards = (status, change, now) => {
  const shards = list(status.shards);
  const load = (shard) => shard.connections ?? shard.sockets ?? 0;
  const most = Math.max(1, ...shards.map(load));
  const ids = shards.map((shard, place) => shard.id ?? place);
  shards.forEach((shard, place) => {
    const id = ids[place];
    const shown = part(at("shards"), id, () =>
      card(`Shard ${id}`, "Connections, beside the fullest shard", ["area", "first"]));
    const silent = shard.heartbeat_age_ms > SILENT_MS;
    badge(shown.state, silent ? `silent ${time(shard.heartbeat_age_ms / 1000)}` : "", "bad");
    bar(shown.meter, load(shard), most);
    const perSecond = (field) =>
      shard[field] === undefined ? undefined : rate(change(`${field} ${id}`));
    note(`events ${id}`, now, change(`events ${id}`));
    draw(shown.svg, [`events ${id}`], now, "Events/s");
    shown.svg.style.display = shard.events === undefined ? "none" : "";
    rows(shown.dl, [
      ["Connections", shard.connections === undefined ? undefined : count(shard.connections)],
      ["Sockets", count(shard.sockets)],
      ["Subscriptions", shard.subscriptions === undefined ? undefined : count(shard.subscriptions)],
      ["Events/s", perSecond("events")],
      ["Queries/s", perSecond("queries")],
      ["Delivered/s", perSecond("delivered")],
      ["Queued", shard.queued_bytes === undefined ? undefined : bytes(shard.queued_bytes)],
    ]);
  });
  keep(at("shards"), ids);
};

const showStore = (status, change) => {
  const store = object(status.store);
  const commits = change("commits");
  const took = commits > 0 ? (1000 * change("commitSeconds")) / commits : undefined;
  const pool = (value) => (!isObject(value) ? undefined : value.open === 0 ? "not connected"
    : `${count(value.in_use)} of ${count(value.open)} in use`);
  const some = (value, form) => (isNumber(value) ? form(value) : undefined);
  const hasBound = isNumber(store.events_bytes_max) && store.events_bytes_max > 0;
  at("store-bar").hidden = !hasBound;
  if (hasBound) bar(at("store-bar"), store.used_bytes, store.events_bytes_max);
  rows(at("store"), [
    ["Kind", typeof store.kind === "string" ? store.kind : "–"],
    ["Waiting", count(store.pending_writes)],
    ["Commits/s", store.commits === undefined ? undefined : rate(commits)],
    ["Time of a commit", store.commits === undefined ? undefined : isNumber(took) ? `${took.toFixed(1)} ms` : "–"],
    ["Used", some(store.used_bytes, bytes)],
    ["Room for events", some(store.events_bytes_max, bytes)],
    ["File", some(store.file_bytes, bytes)],
    ["Free in it", some(store.free_bytes, bytes)],
    ["Writers", pool(store.writers)],
    ["Readers", pool(store.readers)],
    ["Listening", typeof store.listening === "boolean" ? (store.listening ? "yes" : "no") : undefined],
    ["Behind", some(store.behind, count)],
  ]);
};

const showTotals = (status) => {
  const totals = object(status.totals);
  const by = (name, value) => {
    if (!isObject(value)) return [[name, isNumber(value) ? count(value) : undefined]];
    const some = Object.entries(value).filter(([, number]) => number > 0);
    return [
      [name, count(sum(value) ?? 0)],
      ...some.map(([key, number]) => [`${name}: ${key}`, count(number), key.replaceAll("_", " ")]),
    ];
  };
  const transfers = object(status.transfers);
  rows(at("totals"), [
    ["Running", time(status.uptime_seconds)],
    ...by("Connections", totals.connections),
    ...by("Events", totals.events),
    ...by("Delivered", totals.delivered),
    ...by("Dropped", totals.dropped),
    ...by("Queries", totals.queries),
    ...by("Closes", totals.closes),
    ...by("Logins", totals.logins),
    ["Imports", transfers.imports > 0 ? count(transfers.imports) : undefined],
    ["Exports", transfers.exports > 0 ? count(transfers.exports) : undefined],
  ]);
};

const DRAIN = {
  grace: "waiting out the grace", closing: "closing connections", ending: "ending", ended: "ended",
};
const showDrain = (status) => {
  const drain = object(status.drain);
  const isOn = drain.state !== undefined && drain.state !== "none";
  at("drain").hidden = !isOn;
  if (!isOn) return;
  badge(at("drain-state"), DRAIN[drain.state] ?? words(drain.state), "warn");
  const done = sum([drain.acknowledged, drain.cancelled, drain.gone]) ?? 0;
  bar(at("drain-bar"), done, drain.connections || 0);
  const by = drain.requested_by ? `, asked for by ${drain.requested_by}` : "";
  const window = drain.window_ms > 0 ? ` Closes are spread over ${time(drain.window_ms / 1000)}.` : "";
  say(at("drain-text"), `${count(done)} of ${many(drain.connections, "connection")} closed: `
    + `${count(drain.acknowledged)} acknowledged, ${count(drain.cancelled)} cancelled, `
    + `${count(drain.gone)} gone. Sockets left: ${count(drain.sockets_remaining)}. `
    + `Running for ${time(drain.running_ms / 1000)}${by}.${window}`);
};

const STAGES = { ready: "good", starting: "warn", draining: "warn", closing: "warn", stopped: "bad" };
const showHead = (status) => {
  const stage = String(status.lifecycle ?? "unknown");
  const commit = typeof status.commit === "string" ? ` (${status.commit.slice(0, 12)})` : "";
  badge(at("stage"), stage, STAGES[stage] ?? "warn");
  const flags = object(status.feature_flags);
  const facts = [
    status.version && `${status.version}${commit}`,
    isNumber(status.uptime_seconds) && `up for ${time(status.uptime_seconds)}`,
    object(status.addresses).websocket && `clients at ${status.addresses.websocket}`,
    status.driver && `I/O by ${status.driver}`,
    flags.provider && `flags from ${flags.provider}${flags.ready === false ? ", not ready" : ""}`,
  ];
  say(at("facts"), facts.filter(Boolean).join(" · "));
  const figure = isNumber(status.connections) ? `, ${many(status.connections, "connection")}` : "";
  document.title = `${stage}${figure} · buzz-uring`;
};
