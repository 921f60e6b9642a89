// Why? The sentences of `ateplace explain`, for what was chosen.

import { $, el, plural, text } from "./dom.js";

export class Panel {
  #asked = 0;

  constructor({ onChoose, stateNow, canAsk }) {
    this.chosen = null;
    this.onChoose = onChoose;
    this.stateNow = stateNow;
    this.canAsk = canAsk;
    $("panel-close").addEventListener("click", () => this.close());
  }

  close() {
    this.chosen = null;
    this.#asked++;
    text($("panel-title"), "Why?");
    $("panel-close").hidden = true;
    $("panel-body").replaceChildren(el("p", { className: "quiet" }, "Choose a node, a pool or a pod to see why it is as it is."));
  }

  /** `kind`: node, pool or pod; `name`: as everywhere, `namespace/name` but for nodes. */
  async choose(kind, name, { focus = true } = {}) {
    if (this.chosen?.kind !== kind || this.chosen.name !== name) $("panel-body").replaceChildren();
    this.chosen = { kind, name };
    text($("panel-title"), `${kind} ${name}`);
    $("panel-close").hidden = false;
    if (focus) {
      $("panel").focus({ preventScroll: true });
      if (matchMedia("(max-width: 72rem)").matches) $("panel").scrollIntoView({ block: "nearest" });
    }
    await this.refresh();
  }

  /** What is known now; when it is the present of a cluster, also what the cluster says. */
  async refresh() {
    if (!this.chosen) return;
    const { kind, name } = this.chosen;
    const asked = ++this.#asked;
    const facts = this.#facts(kind, name);
    if (!this.canAsk()) {
      $("panel-body").replaceChildren(...facts, el("p", { className: "quiet" }, "This is the past: only the present can be explained."));
      return;
    }
    if (!$("panel-body").querySelector(".findings")) $("panel-body").replaceChildren(...facts, el("p", { className: "quiet" }, "asking…"));
    let found;
    try {
      const answer = await fetch(`/api/explain/${kind}/${name.split("/").map(encodeURIComponent).join("/")}`);
      const body = await answer.json();
      found = answer.ok ? this.#explained(body) : [el("p", { className: "quiet" }, body.detail ?? answer.statusText)];
    } catch {
      found = [el("p", { className: "quiet" }, "The map cannot be reached.")];
    }
    if (asked === this.#asked) $("panel-body").replaceChildren(...facts, ...found);
  }

  #facts(kind, name) {
    const state = this.stateNow();
    if (kind === "node") {
      const node = state.nodes.get(name);
      if (!node) return [el("p", {}, "There is no such node now.")];
      const chips = [node.state, node.zone && `zone ${node.zone}`, node.atelet ? `atelet ${node.atelet}` : "no atelet"];
      const pods = [...(state.on.get(name) ?? [])].sort(([a], [b]) => (a < b ? -1 : 1));
      return [
        el("ul", { className: "chips" }, ...chips.filter(Boolean).map((chip) => el("li", {}, chip))),
        pods.length ? el("h3", {}, plural(pods.length, "pod")) : null,
        pods.length ? el("ul", { className: "pods", tabIndex: 0 }, ...pods.map(([key, pod]) => this.#pod(key, pod))) : null,
      ].filter(Boolean);
    }
    if (kind === "pod") {
      const pod = state.pods.get(name);
      if (!pod) return [el("p", {}, "There is no such pod now.")];
      const on = pod.node ? el("button", { type: "button", className: "link", onclick: () => this.onChoose("node", pod.node) }, pod.node) : "no node";
      const how = pod.leaving ? "leaving" : !pod.node ? "waiting" : pod.ready ? "ready" : "starting";
      return [el("p", {}, `${pod.placeholder ? "placeholder" : "ateom"} of ${pod.pool}, ${how}, on `, on)];
    }
    const pool = state.pools.get(name);
    if (!pool) return [el("p", {}, "There is no such pool now.")];
    const waiting = [...state.pods].filter(([, pod]) => pod.pool === name && !pod.node).slice(0, 50);
    const chips = [...pool.rules, pool.headroom && `headroom=${pool.headroom}`].filter(Boolean);
    return [
      chips.length ? el("ul", { className: "chips", "aria-label": "rules" }, ...chips.map((chip) => el("li", {}, chip))) : null,
      waiting.length ? el("h3", {}, "waiting for a node") : null,
      waiting.length ? el("ul", { className: "pods", tabIndex: 0 }, ...waiting.map(([key, pod]) => this.#pod(key, pod))) : null,
    ].filter(Boolean);
  }

  #pod(key, pod) {
    const how = pod.placeholder ? "placeholder" : pod.leaving ? "leaving" : pod.ready ? "ready" : "starting";
    return el("li", {},
      el("button", { type: "button", className: "link", onclick: () => this.onChoose("pod", key) }, key),
      el("span", { className: "quiet" }, pod.node || pod.placeholder ? how : "waiting"));
  }

  #explained({ findings, decisions, events, notes }) {
    const parts = [
      el("ul", { className: "findings" }, ...findings.map((one) =>
        el("li", { className: one.level },
          el("div", {}, el("span", { className: "unseen" }, `${one.level}: `), el("span", {}, one.says), one.fix ? el("p", { className: "fix" }, one.fix) : null)))),
    ];
    if (decisions.length) {
      parts.push(el("h3", {}, "What the extenders decided"));
      parts.push(el("ol", { className: "decisions" }, ...decisions.map((one) =>
        el("li", {}, el("small", {}, `${one.at.slice(11, 23)} ${one.verb}`), one.outcome, ...one.notes.map((note) => el("small", {}, note))))));
    }
    if (events.length) {
      parts.push(el("h3", {}, "Events"));
      parts.push(el("ul", { className: "decisions" }, ...events.map((one) => el("li", {}, el("small", {}, one.reason), one.message))));
    }
    parts.push(...notes.map((note) => el("p", { className: "quiet" }, `! ${note}`)));
    return parts;
  }
}
