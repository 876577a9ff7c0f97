// Whether the page and the daemon hear each other, and the daemon's own events while they do.

import { daemonEvents } from "./api.js";
import { Backoff, followDaemon } from "./stream.js";

const HIDDEN_MS = 30_000; // a tab out of sight gives its connection back after that
const LOST_MS = 1_200; // shorter gaps are not worth a word

/** `on.event(event)`, `on.missed()`, `on.unpaired()`, `on.show(connected)`, `on.retry()` when trying at once may help. */
export class Link {
  constructor(on) {
    this.on = on;
    this.lost = new Set();
    this.backoff = new Backoff();
    this.life = new AbortController();
  }

  start() {
    const { signal } = this.life;
    addEventListener("online", () => this.retryNow(), { signal });
    addEventListener("offline", () => this.report("network", false), { signal });
    document.addEventListener("visibilitychange", () => this.seen(), { signal });
    this.follow();
  }

  close() {
    this.life.abort();
    this.daemon?.abort();
  }

  follow() {
    this.daemon = new AbortController();
    followDaemon({
      open: daemonEvents,
      backoff: this.backoff,
      signal: this.daemon.signal,
      on: {
        event: this.on.event,
        missed: this.on.missed,
        link: (connected) => this.heard(connected),
        refused: (error) => (error.status === 401 ? this.on.unpaired() : this.report("daemon", false)),
      },
    });
  }

  heard(connected) {
    // What else was lost need not wait for its turn to try again.
    if (connected && this.lost.has("daemon")) this.on.retry();
    this.report("daemon", connected);
  }

  /** Browsers allow few connections to one host: a tab out of sight keeps none that it does not need. */
  seen() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.daemon.abort(), HIDDEN_MS);
    else if (this.daemon.signal.aborted) {
      this.follow();
      this.on.missed();
    }
  }

  retryNow() {
    this.report("network", true);
    this.backoff.now();
    this.on.retry();
  }

  /** One of the page's streams (`key`) has its connection, or has lost it. */
  report(key, connected) {
    if (connected) this.lost.delete(key);
    else this.lost.add(key);
    clearTimeout(this.timer);
    if (this.lost.size) this.timer = setTimeout(() => this.on.show(false), LOST_MS);
    else this.on.show(true);
  }
}
