// Asking.

let last;
let stage;
let timer;
let failures = 0;
let next = 0;
// Which question is the current one: the answer to an older one is nobody's.
let turn = 0;

const word = (text, tone) => {
  say(at("word"), text);
  at("word").className = `word ${tone}`;
  at("figures").classList.toggle("stale", tone === "bad");
};
const clock = () => {
  const asOf = last ? `figures of ${last.clock.toLocaleTimeString()}` : "";
  const wait = Math.ceil((next - performance.now()) / 1000);
  const again = failures > 0 && wait > 0 ? `next try in ${wait} s` : "";
  say(at("when"), [asOf, again].filter(Boolean).join(", "));
};
const show = (status) => {
  const when = performance.now();
  const now = { when, clock: new Date(), uptime: status.uptime_seconds, counters: counters(status) };
  const change = changes(last, now);
  last = now;
  stage = status.lifecycle;
  at("figures").hidden = false;
  showHead(status);
  showDrain(status);
  showTiles(status, change, when);
  showGates(status, change, when);
  showShards(status, change, when);
  showStore(status, change);
  showTotals(status);
};
const lost = (isAnswering) => {
  failures += 1;
  gap(performance.now());
  badge(at("stage"), "", "bad");
  const hasDrained = ["draining", "closing", "stopped"].includes(stage);
  const text = isAnswering ? "The relay answers without a status: it is starting, or not a relay."
    : hasDrained ? "The relay has ended after its drain." : "The relay does not answer.";
  word(text, "bad");
  document.title = `${hasDrained ? "ended" : "no answer"} · buzz-uring`;
};
const ask = async () => {
  const mine = ++turn;
  let isAnswering = false;
  let status;
  try {
    const signal = AbortSignal.timeout(ANSWER_MS_MAX);
    const answer = await fetch("/_status", { cache: "no-store", credentials: "omit", signal });
    isAnswering = true;
    if (answer.ok) status = await answer.json();
  } catch {
    // No answer, or no JSON: told below.
  }
  if (mine !== turn) return;
  let delay = PERIOD_MS;
  if (isObject(status)) {
    failures = 0;
    show(status);
    word("Live", "good");
  } else {
    delay = Math.min(PERIOD_MS * 2 ** failures, RETRY_MS_MAX);
    lost(isAnswering);
  }
  next = performance.now() + delay;
  clock();
  timer = setTimeout(ask, delay);
};
const pause = () => {
  turn += 1;
  clearTimeout(timer);
  gap(performance.now());
  word("Paused while this tab is hidden.", "soft");
};

document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "hidden") {
    pause();
  } else {
    clearTimeout(timer);
    ask();
  }
});
setInterval(clock, PERIOD_MS);
if (document.visibilityState === "hidden") pause();
else ask();
