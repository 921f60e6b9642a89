// Nodes as cells, by zone, on one canvas for each zone. Only cells that changed are drawn again.

import { $, colour, COLOURS, el, plural, text } from "./dom.js";

const SIZES = [128, 104, 84, 68, 56, 46, 38, 31, 26, 22, 18, 15, 13];
const NAMED = 56; // from this size on a cell has its node's name
const FLASH = 900;

/** What a person is told about a node. */
export function describe(node) {
  const pools = node.pools.map((one) => {
    const has = [
      one.ateoms && plural(one.ateoms, "ateom") + (one.ready < one.ateoms ? ` (${one.ready} ready)` : ""),
      one.placeholders && plural(one.placeholders, "placeholder"),
      one.in_flight && plural(one.in_flight, "pick"),
      !one.claimed && "no claim",
    ].filter(Boolean);
    return `${one.pool}: ${has.join(", ") || "claimed, nothing there"}`;
  });
  const atelet = node.atelet ? `atelet ${node.atelet}` : "no atelet";
  return [`${node.name}${node.zone ? `, zone ${node.zone}` : ""}`, `${node.state}, ${atelet}`, ...pools].join("\n");
}

export class Grid {
  #zones = []; // {name, canvas, context, heading, names}
  #where = new Map(); // node -> {zone, index}
  #dirty = new Set();
  #flash = new Map();
  #size = 26;
  #columns = 1;
  #most = 1;
  #theme = {};
  #frame = 0;
  #all = true;
  #layout = true;
  #current = "";
  #order = [];
  #still = matchMedia("(prefers-reduced-motion: reduce)");

  constructor({ onChoose }) {
    this.state = null;
    this.matches = () => true;
    this.pool = "";
    this.onChoose = onChoose;
    this.root = $("grid");
    this.tip = el("div", { id: "tip", hidden: true });
    document.body.append(this.tip);
    new ResizeObserver(() => this.redraw(true)).observe(this.root);
    this.root.addEventListener("keydown", (event) => this.#key(event));
    this.root.addEventListener("focus", () => this.#announce());
    this.root.addEventListener("blur", () => this.#mark(""));
    addEventListener("scroll", () => (this.tip.hidden = true), { passive: true });
  }

  show(state) {
    this.state = state;
    this.redraw(true);
  }

  /** Some nodes look different now. */
  touch(names, { flash = true } = {}) {
    for (const name of names) {
      if (this.#where.has(name) !== this.state.nodes.has(name)) this.#layout = true;
      else if (this.#where.has(name) && this.state.nodes.get(name).zone !== this.#zones[this.#where.get(name).zone].name) this.#layout = true;
      this.#dirty.add(name);
      if (flash && !this.#still.matches) this.#flash.set(name, performance.now());
    }
    this.#ask();
  }

  redraw(layout = false) {
    this.#all = true;
    this.#layout ||= layout;
    this.#ask();
  }

  theme() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    this.#theme = {
      card: get("--card"), ink: get("--ink"), quiet: get("--quiet"), line: get("--cold-line"), warm: get("--warm"),
      warmLine: get("--warm-line"), claimed: get("--claimed"), claimedLine: get("--claimed-line"), flash: get("--flash"),
      fail: get("--fail"), focus: get("--focus"), pools: Array.from({ length: COLOURS }, (_, index) => get(`--p${index}`)),
    };
    this.redraw();
  }

  #ask() {
    if (!this.#frame) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#frame = 0;
    if (!this.state || this.root.hidden) return;
    if (this.#layout) this.#arrange();
    const most = this.#all ? this.#fullest() : this.#most;
    if (most !== this.#most) {
      this.#most = most;
      this.#all = true;
    }
    const now = performance.now();
    for (const [name, since] of this.#flash) {
      this.#dirty.add(name);
      if (now - since > FLASH) this.#flash.delete(name);
    }
    if (!this.#all) for (const name of this.#dirty) if ((this.state.on.get(name)?.size ?? 0) > this.#most) return this.redraw();
    for (const [zone, one] of this.#zones.entries()) {
      if (this.#all) one.context.clearRect(0, 0, one.canvas.width, one.canvas.height);
      if (this.#all) one.names.forEach((name, index) => this.#cell(zone, index, name, now));
    }
    if (!this.#all) {
      for (const name of this.#dirty) {
        const at = this.#where.get(name);
        if (at) this.#cell(at.zone, at.index, name, now);
      }
    }
    this.#all = false;
    this.#dirty.clear();
    if (this.#flash.size) this.#ask();
    if (!performance.getEntriesByName("first-picture").length) performance.mark("first-picture");
  }

  /** The room that a pod gets is the same in all cells, so that fuller nodes look fuller; it only ever shrinks. */
  #fullest() {
    let most = Math.max(9, this.#most);
    for (const here of this.state.on.values()) while (most < here.size) most = Math.ceil(most * 1.3);
    return most;
  }

  #arrange() {
    this.#layout = false;
    this.#all = true;
    const zones = new Map();
    for (const node of this.state.nodes.values()) {
      let names = zones.get(node.zone);
      if (!names) zones.set(node.zone, (names = []));
      names.push(node.name);
    }
    const compare = new Intl.Collator("en", { numeric: true }).compare;
    const sorted = [...zones].sort(([a], [b]) => compare(a, b));
    for (const [, names] of sorted) names.sort(compare);
    this.#order = sorted.flatMap(([, names]) => names);
    const width = Math.max(120, $("zones").clientWidth || this.root.clientWidth);
    const height = Math.max(280, innerHeight * 0.62);
    const high = (size) => sorted.reduce((sum, [, names]) => sum + Math.ceil(names.length / Math.floor(width / size)) * size + 24, 0);
    this.#size = SIZES.find((size) => size <= width && high(size) <= height) ?? SIZES.at(-1);
    this.#columns = Math.floor(width / this.#size);
    if (this.#order.length > this.#columns) this.#size = Math.floor(width / this.#columns);
    this.#where.clear();
    while (this.#zones.length > sorted.length) this.#zones.pop().box.remove();
    sorted.forEach(([name, names], index) => {
      const zone = (this.#zones[index] ??= this.#zone(index));
      zone.name = name;
      zone.names = names;
      names.forEach((node, at) => this.#where.set(node, { zone: index, index: at }));
      text(zone.heading, `${name || (sorted.length > 1 ? "no zone" : "")}`);
      zone.heading.hidden = !zone.heading.textContent;
      const tall = Math.ceil(names.length / this.#columns) * this.#size;
      const scale = Math.min(devicePixelRatio || 1, 2);
      zone.canvas.width = width * scale;
      zone.canvas.height = tall * scale;
      zone.canvas.style.width = `${width}px`;
      zone.canvas.style.height = `${tall}px`;
      zone.context.setTransform(scale, 0, 0, scale, 0, 0);
    });
  }

  #zone(index) {
    const canvas = el("canvas");
    const heading = el("h3");
    const box = el("div", {}, heading, canvas);
    $("zones").append(box);
    canvas.addEventListener("click", (event) => {
      const name = this.#hit(index, event);
      if (name) this.onChoose("node", name);
    });
    canvas.addEventListener("pointermove", (event) => this.#hover(this.#hit(index, event), event));
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    return { canvas, heading, box, context: canvas.getContext("2d"), name: "", names: [] };
  }

  #hit(zone, event) {
    const column = Math.floor(event.offsetX / this.#size), row = Math.floor(event.offsetY / this.#size);
    return column < this.#columns ? this.#zones[zone].names[row * this.#columns + column] : undefined;
  }

  #hover(name, event) {
    const node = name && this.state.nodes.get(name);
    this.tip.hidden = !node || event.pointerType === "touch";
    if (!node) return;
    text(this.tip, describe(node));
    this.tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 260)}px`;
    this.tip.style.top = `${Math.min(event.clientY + 16, innerHeight - 110)}px`;
  }

  #cell(zone, index, name, now) {
    const node = this.state.nodes.get(name);
    const size = this.#size, gap = size > 30 ? 4 : size > 18 ? 3 : 2;
    const x = (index % this.#columns) * size, y = Math.floor(index / this.#columns) * size;
    const c = this.#zones[zone].context, theme = this.#theme, side = size - gap, radius = Math.min(7, side / 6);
    c.clearRect(x, y, size, size);
    if (!node) return;
    c.globalAlpha = this.matches(node) ? 1 : 0.18;
    c.beginPath();
    c.roundRect(x + 1, y + 1, side - 1, side - 1, radius);
    if (node.state === "warm") {
      c.fillStyle = theme.warm;
      c.fill();
    } else if (node.state === "claimed") {
      c.save();
      c.clip();
      c.strokeStyle = theme.claimed;
      c.lineWidth = 3;
      c.beginPath();
      for (let at = -side; at < side; at += 7) {
        c.moveTo(x + at, y + side);
        c.lineTo(x + at + side, y);
      }
      c.stroke();
      c.restore();
      c.beginPath();
      c.roundRect(x + 1, y + 1, side - 1, side - 1, radius);
      c.setLineDash([4, 3]);
    }
    c.strokeStyle = node.state === "warm" ? theme.warmLine : node.state === "claimed" ? theme.claimedLine : theme.line;
    c.lineWidth = size > 30 ? 1.5 : 1;
    c.stroke();
    c.setLineDash([]);
    const head = size >= NAMED ? 16 : 0;
    if (head) {
      c.font = "10px system-ui, sans-serif";
      c.textBaseline = "middle";
      const trouble = node.atelet && !["ready", "starting", "terminating"].includes(node.atelet);
      c.fillStyle = trouble ? theme.fail : node.state === "cold" ? theme.quiet : theme.ink;
      c.fillText(fit(c, node.name, side - 10 - (trouble ? 10 : 0)), x + 6, y + 10);
      if (trouble) c.fillText("✕", x + side - 12, y + 10);
    }
    this.#marks(c, node, x + 3, y + 3 + head, side - 5, side - 5 - head, theme);
    const since = this.#flash.get(name);
    if (since !== undefined) {
      const age = Math.min(1, (now - since) / FLASH);
      c.globalAlpha *= 1 - age;
      c.strokeStyle = theme.flash;
      c.lineWidth = 2;
      c.beginPath();
      c.roundRect(x + 1, y + 1, side - 1, side - 1, radius);
      c.stroke();
    }
    c.globalAlpha = 1;
    if (name === this.#current) {
      c.strokeStyle = theme.focus;
      c.lineWidth = 2.5;
      c.strokeRect(x + 1, y + 1, side - 1, side - 1);
    }
  }

  #marks(c, node, x, y, wide, high, theme) {
    const pods = [...(this.state.on.get(node.name) ?? [])];
    // What an extender has picked may be bound already: picks get the room that is left.
    const room = Math.max(0, this.#most - pods.length);
    const picks = node.pools.flatMap((one) => Array(Math.min(one.in_flight, room)).fill(one.pool)).slice(0, room);
    if (!pods.length && !picks.length) return;
    pods.sort(([a, one], [b, two]) => one.placeholder - two.placeholder || (one.pool < two.pool ? -1 : one.pool > two.pool ? 1 : a < b ? -1 : 1));
    const slots = Math.max(this.#most, pods.length);
    let columns = Math.max(1, Math.ceil(Math.sqrt((slots * wide) / high)));
    const step = Math.min(wide / columns, high / Math.ceil(slots / columns), 14);
    if (step >= 2.5) columns = Math.max(columns, Math.floor(wide / step));
    const mark = step > 5 ? step - 2 : step > 3 ? step - 1 : step;
    const put = (index) => [x + (index % columns) * step, y + Math.floor(index / columns) * step];
    const base = c.globalAlpha;
    pods.forEach(([, pod], index) => {
      const [left, top] = put(index);
      c.globalAlpha = this.pool && pod.pool !== this.pool ? base * 0.2 : base;
      c.fillStyle = c.strokeStyle = theme.pools[colour(pod.pool)];
      if (pod.placeholder) {
        c.lineWidth = mark > 5 ? 1.5 : 1;
        c.strokeRect(left + 0.75, top + 0.75, mark - 1.5, mark - 1.5);
      } else if (pod.ready && !pod.leaving) c.fillRect(left, top, mark, mark);
      else {
        // Half a square: on its way, in or out.
        c.globalAlpha *= pod.leaving ? 0.45 : 0.8;
        c.beginPath();
        c.moveTo(left, top);
        c.lineTo(left + mark, top);
        c.lineTo(left, top + mark);
        c.fill();
      }
    });
    picks.forEach((pool, index) => {
      const [left, top] = put(pods.length + index);
      c.globalAlpha = this.pool && pool !== this.pool ? base * 0.2 : base;
      c.strokeStyle = theme.pools[colour(pool)];
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(left + mark / 2, top);
      c.lineTo(left + mark, top + mark / 2);
      c.lineTo(left + mark / 2, top + mark);
      c.lineTo(left, top + mark / 2);
      c.closePath();
      c.stroke();
    });
    c.globalAlpha = base;
  }

  #key(event) {
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.#columns, ArrowUp: -this.#columns, Home: -Infinity, End: Infinity };
    if (event.key in moves) {
      const at = Math.max(0, this.#order.indexOf(this.#current));
      const next = Math.min(this.#order.length - 1, Math.max(0, at + moves[event.key]));
      this.#mark(this.#order[next] ?? "");
      this.#announce();
    } else if ((event.key === "Enter" || event.key === " ") && this.#current) this.onChoose("node", this.#current);
    else return;
    event.preventDefault();
  }

  #mark(name) {
    const before = this.#current;
    this.#current = name;
    this.touch([before, name].filter((one) => this.#where.has(one)), { flash: false });
  }

  #announce() {
    if (!this.#current || !this.#where.has(this.#current)) this.#mark(this.#order[0] ?? "");
    const node = this.state?.nodes.get(this.#current);
    const option = $("option");
    text(option, node ? describe(node).replaceAll("\n", "; ") : "no nodes");
    option.setAttribute("aria-selected", String(Boolean(node)));
    this.root.setAttribute("aria-activedescendant", "option");
    const at = this.#where.get(this.#current);
    if (!at) return;
    const box = this.#zones[at.zone].canvas.getBoundingClientRect();
    const top = box.top + Math.floor(at.index / this.#columns) * this.#size;
    if (top < 70 || top > innerHeight - 190) scrollBy(0, top - innerHeight / 2);
  }
}

/** As much of a name's end as there is room for: ends differ, beginnings do not. */
function fit(context, name, room) {
  let from = 0;
  while (from < name.length && context.measureText(name.slice(from)).width > room) from++;
  if (!from) return name;
  const whole = name.slice(from - 1).search(/[-.]/); // from the next part on, if that leaves enough
  return whole >= 0 && name.length - from - whole > 3 ? name.slice(from + whole) : name.slice(from);
}
