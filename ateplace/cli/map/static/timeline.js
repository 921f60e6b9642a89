// The last hour as a strip: how many ateoms were ready, starting and waiting, and where the bursts were.

import { $, el, text, time } from "./dom.js";

const LEAST = 60;
const MOST = 3600;

export class Timeline {
  #points = [];
  #bursts = new Map();
  #asked = false;
  #live = true;

  constructor({ onSeek }) {
    this.at = 0;
    this.past = false;
    this.range = $("when");
    this.canvas = $("strip");
    this.range.addEventListener("input", () => onSeek(Number(this.range.value)));
    this.onSeek = onSeek;
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  load({ points, bursts }, live) {
    this.#live = live;
    this.#points = points;
    this.#bursts = new Map(bursts.map((burst) => [burst.number, burst]));
    this.#list();
    this.draw();
  }

  add(change) {
    const points = this.#points;
    const point = { at: change.at, totals: change.totals };
    if (points.length > 1 && change.at - points.at(-2).at < 1) points[points.length - 1] = point;
    else points.push(point);
    while (this.#live && points.length && change.at - points[0].at > MOST) points.shift();
    for (const burst of change.bursts) this.#bursts.set(burst.number, burst);
    if (change.bursts.length) this.#list();
    this.draw();
  }

  /** The remembered time. */
  get span() {
    const first = this.#points[0]?.at ?? 0;
    const last = this.#live ? Math.max(Date.now() / 1000, first) : (this.#points.at(-1)?.at ?? first);
    return [Math.min(first, last - (this.#live ? LEAST : 1)), last];
  }

  get first() { return this.#points[0]?.at ?? 0; }

  /** Show where we are: `at`, or the present. */
  place(at, past) {
    this.at = at;
    this.past = past;
    this.draw();
  }

  #list() {
    const list = $("bursts");
    const bursts = [...this.#bursts.values()].slice(-12).reverse();
    const seconds = (value) => (value === null ? "–" : `${value.toFixed(2)} s`);
    list.replaceChildren(
      ...bursts.map((burst) =>
        el("li", {}, el("button", { type: "button", onclick: () => this.onSeek(burst.began) },
          `${time(burst.began)}  ${burst.pool}: ${burst.created} ateoms, P50 ${seconds(burst.p50)}, P99 ${seconds(burst.p99)}${burst.over ? "" : " …"}`)),
      ),
    );
  }

  draw() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => {
      this.#asked = false;
      this.#draw();
    });
  }

  #draw() {
    const [from, to] = this.span;
    const range = this.range;
    range.min = from;
    range.max = to;
    const shown = this.past ? this.at : to;
    if (document.activeElement !== range || !this.past) range.value = shown;
    range.setAttribute("aria-valuetext", this.past ? time(shown) : "now");
    text($("clock"), this.past ? `${time(shown)} (stopped)` : time(to));
    const canvas = this.canvas, scale = Math.min(devicePixelRatio || 1, 2);
    const wide = canvas.clientWidth, high = canvas.clientHeight;
    if (canvas.width !== wide * scale || canvas.height !== high * scale) {
      canvas.width = wide * scale;
      canvas.height = high * scale;
    }
    const c = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, wide, high);
    const floor = high - 14;
    const x = (at) => ((at - from) / (to - from || 1)) * wide;
    const points = this.#points;
    let most = 1;
    for (const { totals } of points) most = Math.max(most, totals.ready + totals.starting + totals.waiting, totals.placeholders);
    const y = (value) => floor - (value / most) * (floor - 12);
    c.font = "10px system-ui, sans-serif";
    for (const burst of this.#bursts.values()) {
      const left = x(burst.began), right = x(burst.last_bound ?? to);
      c.fillStyle = get("--claimed");
      c.fillRect(left, 0, Math.max(3, right - left), floor);
    }
    const area = (value, fill) => {
      c.beginPath();
      c.moveTo(x(points[0]?.at ?? from), floor);
      points.forEach((point, index) => {
        if (index) c.lineTo(x(point.at), y(value(points[index - 1].totals)));
        c.lineTo(x(point.at), y(value(point.totals)));
      });
      if (points.length) c.lineTo(wide, y(value(points.at(-1).totals)));
      c.lineTo(wide, floor);
      c.closePath();
      c.fillStyle = fill;
      c.fill();
    };
    area((t) => t.ready + t.starting + t.waiting, get("--p1"));
    area((t) => t.ready + t.starting, get("--starting"));
    area((t) => t.ready, get("--p0"));
    c.strokeStyle = get("--line");
    c.beginPath();
    c.moveTo(0, floor + 0.5);
    c.lineTo(wide, floor + 0.5);
    c.stroke();
    c.fillStyle = get("--quiet");
    c.textBaseline = "bottom";
    c.textAlign = "left";
    c.fillText(time(from), 0, high);
    c.textAlign = "right";
    c.fillText(this.#live ? "now" : time(to), wide, high);
    c.textAlign = "left";
    c.textBaseline = "top";
    let free = 0;
    for (const burst of this.#bursts.values()) {
      c.fillStyle = get("--claimed-line");
      c.fillRect(x(burst.began), 0, 1.5, floor);
      if (x(burst.began) < free) continue; // the list above the strip has them all
      const label = `${burst.created} ateoms` + (burst.p99 === null ? "" : `, P99 ${burst.p99.toFixed(2)} s`);
      const left = Math.min(x(burst.began) + 4, wide - c.measureText(label).width - 2);
      c.fillStyle = get("--ink");
      c.fillText(label, left, 0);
      free = left + c.measureText(label).width + 8;
    }
    if (this.past) {
      c.fillStyle = get("--focus");
      c.fillRect(x(shown) - 1, 0, 2.5, floor + 4);
    }
  }
}
