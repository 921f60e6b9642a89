// The connection: a placement, then changes; whatever breaks is begun again.

const SILENCE = 12000; // the server says something every five seconds

/** Calls `onPlacement(placement)`, `onChange(change)` and `onStatus(state, words)` for as long as the page lives. */
export class Feed {
  #stream = null;
  #heard = 0;
  #last = "";
  #attempt = 0;

  constructor({ onPlacement, onChange, onStatus }) {
    this.onPlacement = onPlacement;
    this.onChange = onChange;
    this.onStatus = onStatus;
    setInterval(() => {
      if (this.#stream && performance.now() - this.#heard > SILENCE) this.#again("the map does not answer");
    }, 2000);
  }

  async start() {
    const attempt = ++this.#attempt;
    try {
      const answer = await fetch("/api/placement");
      const body = await answer.json();
      if (attempt !== this.#attempt) return;
      if (!answer.ok) throw new Error(body.detail ?? answer.statusText);
      performance.mark("placement-received");
      this.#last = body.id;
      this.onPlacement(body);
      this.#open();
    } catch (error) {
      this.#again(error instanceof TypeError ? "the map cannot be reached" : error.message, true);
    }
  }

  #open() {
    this.#stream?.close();
    this.#heard = performance.now();
    const stream = (this.#stream = new EventSource(`/api/changes?after=${encodeURIComponent(this.#last)}`));
    stream.onopen = () => {
      this.#heard = performance.now();
      this.onStatus("live", "live");
    };
    stream.addEventListener("beat", () => (this.#heard = performance.now()));
    stream.addEventListener("change", (event) => {
      this.#heard = performance.now();
      this.#last = event.lastEventId;
      this.onChange(JSON.parse(event.data));
    });
    stream.addEventListener("reset", () => {
      stream.close(); // its end is no error
      this.start();
    });
    stream.onerror = () => this.#again("the connection was lost; trying again");
  }

  /** Resume where we were; the server says `reset` when it cannot. */
  #again(why, afresh = false) {
    const attempt = ++this.#attempt;
    this.#stream?.close();
    this.#stream = null;
    this.onStatus("lost", why);
    setTimeout(() => {
      if (attempt === this.#attempt) afresh ? this.start() : this.#open();
    }, 1000);
  }
}
