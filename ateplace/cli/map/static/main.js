// The page: what comes is shown as it comes, or, when stopped, as it was.

import { $, colour, el, plural, text, time } from "./dom.js";
import { Feed } from "./feed.js";
import { describe, Grid } from "./grid.js";
import { Panel } from "./panel.js";
import { Past, State } from "./state.js";
import { Timeline } from "./timeline.js";

const ROWS = 300;
const SENTENCES = 200;

let live = null; // the present
let past = null; // where we look instead, when stopped
let isLive = true; // whether there is a cluster behind it
let playing = 0;

const shown = () => past?.state ?? live;
const choose = (kind, name) => panel.choose(kind, name);
const grid = new Grid({ onChoose: choose });
const panel = new Panel({ onChoose: choose, stateNow: shown, canAsk: () => !past && isLive });
const timeline = new Timeline({ onSeek: seek });

// Words and numbers follow a few times a second; only the cells keep up with every change.
let late = 0;
function tell() {
  late ||= setTimeout(() => {
    late = 0;
    requestAnimationFrame(words);
  }, 150);
}

function words() {
  const state = shown();
  if (!state) return;
  for (const [key, value] of Object.entries(state.totals)) text($(`t-${key}`), value.toLocaleString());
  $("notes").hidden = !state.notes.length;
  $("notes").replaceChildren(...state.notes.map((note) => el("li", {}, note)));
  pools(state);
  filters(state);
  if ($("f-table").checked) table(state);
}

const poolRows = new Map();
function pools(state) {
  const names = [...state.pools.keys()].sort();
  for (const [name, row] of poolRows) {
    if (!state.pools.has(name)) {
      row.root.remove();
      poolRows.delete(name);
    }
  }
  $("no-pools").hidden = names.length > 0;
  names.forEach((name, index) => {
    const pool = state.pools.get(name);
    let row = poolRows.get(name);
    if (!row) {
      const cell = () => el("td");
      const ready = el("i", { className: `c${colour(name)}` }), starting = el("i", { className: `c${colour(name)} starting` });
      const parts = { ready, starting, wanted: cell(), readyText: cell(), waiting: cell(), headroom: cell(), nodes: cell() };
      const link = el("button", { type: "button", className: "link", onclick: () => choose("pool", name) }, name);
      const root = el("tr", {},
        el("td", {}, el("i", { className: `swatch c${colour(name)}` }), link, (parts.state = el("span", { className: "quiet" }))),
        el("td", { className: "fill" }, el("div", { className: "gauge" }, ready, starting)),
        parts.wanted, parts.readyText, parts.waiting, parts.headroom, parts.nodes);
      row = { root, ...parts };
      poolRows.set(name, row);
    }
    const most = Math.max(pool.replicas, pool.ateoms + pool.waiting, 1);
    row.ready.style.width = `${(100 * pool.ready) / most}%`;
    row.starting.style.width = `${(100 * (pool.ateoms - pool.ready)) / most}%`;
    text(row.state, pool.deleting ? " being deleted" : "");
    text(row.wanted, String(pool.replicas));
    text(row.readyText, String(pool.ready));
    text(row.waiting, String(pool.waiting));
    row.waiting.className = pool.waiting ? "alert" : "";
    const free = pool.headroom || pool.placeholders || pool.placeholders_waiting;
    text(row.headroom, free ? `${pool.placeholders} of ${pool.headroom}` : "–");
    text(row.nodes, String(pool.nodes));
    if ($("pool-rows").children[index] !== row.root) $("pool-rows").insertBefore(row.root, $("pool-rows").children[index] ?? null);
  });
}

function options(select, values) {
  const have = [...select.options].slice(1).map((option) => option.value);
  if (have.length === values.length && have.every((value, index) => value === values[index])) return;
  const chosen = select.value;
  select.replaceChildren(select.options[0], ...values.map((value) => el("option", { value }, value)));
  select.value = values.includes(chosen) ? chosen : "";
}

function filters(state) {
  const zones = new Set();
  for (const node of state.nodes.values()) if (node.zone) zones.add(node.zone);
  options($("f-pool"), [...state.pools.keys()].sort());
  options($("f-zone"), [...zones].sort());
  const count = [...state.nodes.values()].filter(grid.matches).length;
  text($("shown"), `${plural(count, "node")}${count === state.nodes.size ? "" : ` of ${state.nodes.size.toLocaleString()}`}, ${plural(state.pods.size, "pod")}`);
}

function filter() {
  const pool = $("f-pool").value, zone = $("f-zone").value, state = $("f-state").value, name = $("f-name").value.trim().toLowerCase();
  grid.pool = pool;
  grid.matches = (node) =>
    (!zone || node.zone === zone) && (!state || node.state === state) &&
    (!name || node.name.toLowerCase().includes(name)) && (!pool || node.pools.some((one) => one.pool === pool));
  const asTable = $("f-table").checked;
  $("grid").hidden = asTable;
  $("table").hidden = !asTable;
  grid.redraw(!asTable);
  tell();
}

function table(state) {
  const found = [...state.nodes.values()].filter(grid.matches).sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  $("node-rows").replaceChildren(...found.slice(0, ROWS).map((node) => {
    const [, , ...pools] = describe(node).split("\n");
    return el("tr", {},
      el("td", {}, el("button", { type: "button", className: "link", onclick: () => choose("node", node.name) }, node.name)),
      el("td", {}, node.zone || "–"), el("td", {}, node.state), el("td", {}, node.atelet ?? "–"), el("td", {}, pools.join("; ") || "–"));
  }));
  text($("more-rows"), found.length > ROWS ? `and ${found.length - ROWS} more: narrow the filter` : "");
}

// What happened, newest first. When stopped, only what had happened by then.
let sentences = [];
function say(added, at) {
  const list = $("said");
  for (const sentence of added) {
    sentences.push({ at, text: sentence });
    if (!past) list.prepend(line(sentences.at(-1)));
  }
  sentences = sentences.slice(-2 * SENTENCES);
  while (list.children.length > SENTENCES) list.lastChild.remove();
}
const line = ({ at, text: words }) => el("li", {}, el("time", {}, time(at)), el("span", {}, words));
function lately() {
  const until = past ? past.state.at : Infinity;
  $("said").replaceChildren(...sentences.filter(({ at }) => at <= until).slice(-SENTENCES).reverse().map(line));
}

function status(state, words) {
  $("status").dataset.state = state;
  text($("status"), words);
}
let connection = ["loading", "reading the cluster…"];
function showStatus() {
  if (past && connection[0] === "live") status("past", `stopped at ${time(timeline.at)}`);
  else status(...(connection[0] === "live" && !isLive ? ["live", "recording"] : connection));
}

// Time.

let fetching = null;
async function stop() {
  if (past) return past;
  fetching ??= (async () => {
    try {
      const answer = await fetch("/api/history");
      if (!answer.ok) throw new Error(answer.statusText);
      const loaded = new Past(await answer.json());
      loaded.seek(Infinity);
      past = loaded;
    } finally {
      fetching = null;
    }
  })();
  await fetching;
  $("pause").textContent = "Back to now";
  $("play").disabled = false;
  return past;
}

async function seek(at) {
  pausePlaying();
  await go(at);
}

async function go(at) {
  try {
    await stop();
  } catch {
    return; // the connection's own words say why
  }
  const before = grid.state === past.state;
  const touched = past.seek(at);
  timeline.place(at, true);
  if (before) grid.touch(touched, { flash: playing > 0 });
  else grid.show(past.state);
  lately();
  showStatus();
  tell();
  panel.refresh();
}

function resume() {
  pausePlaying();
  past = null;
  $("pause").textContent = "Stop";
  $("play").disabled = true;
  timeline.place(0, false);
  grid.show(live);
  lately();
  showStatus();
  tell();
  panel.refresh();
}

function pausePlaying() {
  clearInterval(playing);
  playing = 0;
  $("play").textContent = "Play";
}

function play() {
  if (playing) return pausePlaying();
  let before = performance.now();
  $("play").textContent = "Hold";
  playing = setInterval(() => {
    const now = performance.now();
    const at = timeline.at + (now - before) / 1000;
    before = now;
    if (at >= timeline.span[1]) resume();
    else go(at);
  }, 100);
}

// What comes.

let again = 0;
const feed = new Feed({
  async onPlacement(placement) {
    isLive = placement.live;
    text($("source"), placement.source);
    for (const pool of Object.keys(placement.pools).sort()) colour(pool);
    live = new State(placement);
    if (past) past = null;
    resume();
    words();
    const answer = await fetch("/api/timeline");
    if (!answer.ok) return;
    const found = await answer.json();
    sentences = found.said;
    timeline.load(found, isLive);
    lately();
  },
  onChange(change) {
    const { touched } = live.apply(change);
    past?.add(change);
    say(change.said, change.at);
    timeline.add(change);
    if (past) return;
    grid.touch(touched);
    tell();
    const { kind, name } = panel.chosen ?? {};
    const concerns = kind === "node" ? touched.has(name) : kind === "pod" ? name in change.pods : kind === "pool" && name in change.pools;
    if (concerns) again ||= setTimeout(() => ((again = 0), panel.refresh()), 700);
  },
  onStatus(state, words) {
    connection = [state, words];
    showStatus();
  },
});

// Theme.

const THEMES = ["system", "light", "dark"];
function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  text($("theme-name"), name);
  localStorage.setItem("theme", name);
  grid.theme();
  timeline.draw();
}
$("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(localStorage.getItem("theme") ?? "system") + 1) % 3]));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (grid.theme(), timeline.draw()));

$("pause").addEventListener("click", () => (past ? resume() : seek(timeline.span[1])));
$("play").addEventListener("click", play);
$("filters").addEventListener("input", filter);
$("filters").addEventListener("submit", (event) => event.preventDefault());
addEventListener("keydown", (event) => event.key === "Escape" && panel.close());
setInterval(() => past || timeline.draw(), 1000);

theme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system");
feed.start();

/** For those who look at the page with a program: the same as `ateplace status -o json`. */
globalThis.ateplaceMap = { status: () => shown()?.status(), at: () => shown()?.at };
