// Event streams that survive what happens to connections: read, lose, re-join, never twice and never not at all.

import { ApiError } from "./api.js";

const LAST = new Set(["turn.completed", "turn.failed", "turn.cancelled"]);
const SILENCE_MS = 45_000; // three times the daemon's own sign of life
const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 4_000;

/** The events of a response: `{id, type, data}`. Throws `ApiError` (status 0) when the connection breaks. */
export async function* readEvents(response, signal) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const lines = new Lines();
  try {
    while (true) {
      const { value, done } = await within(reader.read(), SILENCE_MS);
      if (done) return;
      yield* lines.feed(value);
    }
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "network", error.message);
  } finally {
    reader.cancel().catch(() => {}); // the connection may be broken already
  }
}

/** Pieces of text to events, by the rules of server-sent events. */
export class Lines {
  constructor() {
    this.rest = "";
    this.clear();
  }

  *feed(text) {
    const lines = (this.rest + text).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop();
    for (const line of lines) {
      const event = this.line(line);
      if (event) yield event;
    }
  }

  line(line) {
    if (line === "") return this.dispatch();
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.data.push(value);
    else if (name === "event") this.type = value;
    else if (name === "id") this.id = value;
    return null;
  }

  dispatch() {
    const { id, type, data } = this;
    this.clear();
    return data.length ? { id, type, data: JSON.parse(data.join("\n")) } : null;
  }

  clear() {
    this.id = "";
    this.type = "message";
    this.data = [];
  }
}

/** Waits between attempts; whoever knows that the network is back may call `now()`. */
export class Backoff {
  constructor() {
    this.attempt = 0;
    this.wake = () => {};
  }

  reset() {
    this.attempt = 0;
  }

  async wait(signal, atLeast = 0) {
    const longest = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.attempt++);
    const time = Math.max(atLeast, longest * (0.5 + Math.random() / 2));
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, time);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
      signal.addEventListener("abort", this.wake, { once: true });
    });
  }

  now() {
    this.attempt = 0;
    this.wake();
  }
}

/**
 * Follows one turn to its last event.
 *
 * `start(signal)` gives the first response (sending, or joining); `rejoin(lastId, signal)` the later ones, null when
 * the turn is not live any more. `on.event(event)` is called once per event, in order; `on.restart()` before
 * everything is told again from the first event; `on.link(connected)` as the connection comes and goes.
 * Resolves with {ended}: whether the last event came (else the stored messages say how it ended), and {gap}: whether
 * events are missing.
 */
export class TurnFollower {
  constructor({ turnId = null, start, rejoin, on, backoff }) {
    Object.assign(this, { turnId, start, rejoin, on, backoff });
    this.position = 0;
    this.gap = false;
    this.unsure = false;
    this.gone = false;
    this.wasOpen = false;
  }

  async run(signal) {
    while (!signal.aborted) {
      try {
        const response = await this.connect(signal);
        if (!response) return { ended: false, gap: true };
        this.on.link(true);
        const before = this.position;
        if (await this.read(response, signal)) return { ended: !this.gone, gap: this.gap || this.gone };
        // A stream that ends without telling anything new has nothing more: what is stored decides.
        if (this.position === before && !signal.aborted) return { ended: false, gap: true };
      } catch (error) {
        if (signal.aborted) break;
        if (!(error instanceof ApiError)) throw error;
        if (this.turnId && error.status === 404) return { ended: false, gap: true };
        if (!error.passing) throw error;
        // Nobody answered: it may be another process next time, in which numbers may begin anew.
        this.unsure ||= error.status === 0 && this.turnId !== null && !this.wasOpen;
        await this.pause(signal, error.retryAfter);
        continue;
      }
      await this.pause(signal);
    }
    return { ended: false, gap: true, aborted: true };
  }

  async pause(signal, retryAfter = 0) {
    this.wasOpen = false;
    this.on.link(false);
    await this.backoff.wait(signal, retryAfter * 1000);
  }

  connect(signal) {
    this.wasOpen = false;
    if (!this.turnId) return this.start(signal);
    if (this.unsure) this.position = 0;
    return this.rejoin(`${this.turnId}.${this.position}`, signal);
  }

  async read(response, signal) {
    let told = 0;
    for await (const event of readEvents(response, signal)) {
      if (signal.aborted) return false;
      this.wasOpen = true;
      if (told++ === 0 && this.unsure) {
        this.unsure = false;
        this.gap = false;
        this.on.restart();
      }
      this.backoff.reset();
      if (this.take(event)) return true;
    }
    return false;
  }

  /** Pass an event on unless it is known; true for the last one. */
  take(event) {
    const dot = event.id.lastIndexOf(".");
    if (dot < 0) {
      this.gap ||= event.data.code === "events_missing";
      return false;
    }
    this.turnId ??= event.id.slice(0, dot);
    if (event.id.slice(0, dot) !== this.turnId) {
      this.gone = true; // the session is at another turn already
      return true;
    }
    const number = Number(event.id.slice(dot + 1));
    if (number <= this.position) return false;
    this.gap ||= number > this.position + 1;
    this.position = number;
    this.on.event(event);
    return LAST.has(event.type);
  }
}

/**
 * The daemon's own events, for as long as the page is open.
 *
 * `on.event(event)`; `on.link(connected)`; `on.missed()` when events may have been missed and lists are to be read
 * again; `on.refused(error)` when the daemon does not let this browser in: then following ends.
 */
export async function followDaemon({ open, on, backoff, signal }) {
  let lastId = null;
  let first = true;
  while (!signal.aborted) {
    try {
      const response = await open(lastId, signal);
      on.link(true);
      if (!first) on.missed();
      first = false;
      backoff.reset();
      for await (const event of readEvents(response, signal)) {
        if (event.id) lastId = event.id;
        on.event(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 401 || error.status === 403) return void on.refused(error);
      // An id that the daemon does not know is from before its restart.
      if (!error.passing) lastId = null;
    }
    if (signal.aborted) return;
    on.link(false);
    await backoff.wait(signal);
  }
}

function within(promise, milliseconds) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("silence")), milliseconds);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}
