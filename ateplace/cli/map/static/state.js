// The placement as the page has it: what the server sent, and which pods are on which node.

/** Placement and changes as in /openapi.json. */
export class State {
  constructor(placement) {
    this.id = placement.id;
    this.at = placement.at;
    this.nodes = new Map(Object.entries(placement.nodes));
    this.pods = new Map(Object.entries(placement.pods));
    this.pools = new Map(Object.entries(placement.pools));
    this.totals = placement.totals;
    this.notes = placement.notes;
    this.on = new Map();
    for (const [key, pod] of this.pods) this.#place(key, pod);
  }

  #place(key, pod) {
    if (!pod.node) return;
    let here = this.on.get(pod.node);
    if (!here) this.on.set(pod.node, (here = new Map()));
    here.set(key, pod);
  }

  #unplace(key, pod) {
    const here = pod.node && this.on.get(pod.node);
    if (!here) return;
    here.delete(key);
    if (!here.size) this.on.delete(pod.node);
  }

  /** Bring it one change further. Returns the change that would undo it, and the names of nodes that look different. */
  apply(change) {
    const undo = { id: this.id, at: this.at, totals: this.totals, notes: this.notes, nodes: {}, pods: {}, pools: {} };
    const touched = new Set(Object.keys(change.nodes));
    for (const [key, pod] of Object.entries(change.pods)) {
      const old = this.pods.get(key);
      undo.pods[key] = old ?? null;
      if (old) {
        this.#unplace(key, old);
        if (old.node) touched.add(old.node);
      }
      if (pod) {
        this.pods.set(key, pod);
        this.#place(key, pod);
        if (pod.node) touched.add(pod.node);
      } else this.pods.delete(key);
    }
    for (const kind of ["nodes", "pools"]) {
      for (const [key, entry] of Object.entries(change[kind])) {
        undo[kind][key] = this[kind].get(key) ?? null;
        if (entry) this[kind].set(key, entry);
        else this[kind].delete(key);
      }
    }
    this.id = change.id;
    this.at = change.at;
    this.totals = change.totals;
    if (change.notes) this.notes = change.notes;
    return { undo, touched };
  }

  /** Its part of `ateplace status -o json`, in no particular order. */
  status() {
    const pools = [...this.pools.values()].map(({ headroom, rules, placeholders_waiting, ...rest }) => ({
      ...rest, placeholdersWaiting: placeholders_waiting,
    }));
    const nodes = [...this.nodes.values()].map(({ name, labelled, atelet, pools: here }) => ({
      name, labelled, atelet, pools: here.map(({ in_flight, ...rest }) => ({ ...rest, inFlight: in_flight })),
    }));
    return { nodes, pools };
  }
}

/** The remembered past, at any moment of it: a start, changes, and where we are among them. */
export class Past {
  #undo = [];

  constructor(history) {
    this.changes = history.changes;
    this.state = new State(history.start);
    this.first = history.start.at;
  }

  get position() { return this.#undo.length; }

  /** A change that came since. */
  add(change) {
    if (!this.changes.length || this.changes.at(-1).id !== change.id) this.changes.push(change);
  }

  /** Go to the last change not after `at`. Returns the nodes that look different, or null when very many do. */
  seek(at) {
    const touched = new Set();
    let steps = 0;
    while (this.#undo.length && this.state.at > at) {
      for (const name of this.state.apply(this.#undo.pop()).touched) touched.add(name);
      steps++;
    }
    while (this.#undo.length < this.changes.length && this.changes[this.#undo.length].at <= at) {
      const { undo, touched: here } = this.state.apply(this.changes[this.#undo.length]);
      this.#undo.push(undo);
      for (const name of here) touched.add(name);
      steps++;
    }
    return steps ? touched : new Set();
  }
}
