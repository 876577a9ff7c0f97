// The daemon's HTTP interface, as far as this page uses it.

/** An answer that is not what was asked for: `status` 0 means that nobody answered. */
export class ApiError extends Error {
  constructor(status, code, message, retryAfter = 0) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }

  /** Whether the same request may succeed later without anybody's doing. */
  get passing() {
    return this.status === 0 || this.status === 503 || this.status === 502 || this.status === 504;
  }
}

/** Send a request; `ApiError` for every answer but a good one. Streams are handed over unread. */
export async function request(method, path, { body, headers = {}, signal } = {}) {
  const options = {
    method,
    headers: { accept: "application/json", ...headers },
    signal,
    credentials: "same-origin",
    cache: "no-store",
  };
  if (body !== undefined) {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "network", error.message);
  }
  if (!response.ok) throw await failure(response);
  return response;
}

async function failure(response) {
  const retryAfter = Number(response.headers.get("retry-after")) || 0;
  try {
    const { error } = await response.json();
    return new ApiError(response.status, error.code, error.message, retryAfter);
  } catch {
    return new ApiError(response.status, "http", `${response.status} ${response.statusText}`, retryAfter);
  }
}

async function json(method, path, options) {
  const response = await request(method, path, options);
  if (response.status === 204) return null;
  try {
    return await response.json();
  } catch (error) {
    if (options?.signal?.aborted) throw error;
    throw new ApiError(0, "network", error.message);
  }
}

const part = encodeURIComponent;

function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export const pair = (code) => json("POST", "/api/pair", { body: { code, name: browserName() } });
export const status = (signal) => json("GET", "/api/status", { signal });
export const answerApproval = (id, decision) => json("POST", `/api/approvals/${part(id)}`, { body: { decision } });
export const pendingApprovals = (signal) => json("GET", "/api/approvals?state=pending&limit=200", { signal });
export const daemonEvents = (lastId, signal) => stream("GET", "/api/events", { lastId, signal });

/** All agents, and the id of the active one. */
export async function allAgents() {
  const agents = [];
  let page = { next_cursor: null };
  do {
    page = await json("GET", `/api/agents${query({ limit: 200, cursor: page.next_cursor })}`);
    agents.push(...page.agents);
  } while (page.next_cursor);
  return { agents, active: page.active_agent };
}

/** The conversations of one agent. */
export class AgentApi {
  constructor(id) {
    this.id = id;
    this.base = `/api/agents/${part(id)}`;
  }

  sessions({ query: words, cursor, limit = 40, signal } = {}) {
    return json("GET", `${this.base}/sessions${query({ query: words, cursor, limit })}`, { signal });
  }

  session(id) {
    return new SessionApi(this, id);
  }
}

export class SessionApi {
  constructor(agent, id) {
    this.agent = agent;
    this.id = id;
    this.base = `${agent.base}/sessions/${part(id)}`;
  }

  facts(signal) {
    return json("GET", this.base, { signal });
  }

  change(values) {
    return json("PATCH", this.base, { body: values });
  }

  remove() {
    return json("DELETE", this.base);
  }

  turns(signal, limit = 50) {
    return json("GET", `${this.base}/turns${query({ limit })}`, { signal });
  }

  /** All messages, oldest first. */
  async messages(signal) {
    const found = [];
    let cursor = null;
    do {
      const page = await json("GET", `${this.base}/messages${query({ limit: 200, cursor })}`, { signal });
      found.push(...page.messages);
      cursor = page.next_cursor;
    } while (cursor);
    return found;
  }

  stop() {
    return json("POST", `${this.base}/stop`);
  }

  resume(turnId) {
    return request("POST", `${this.base}/turns/${part(turnId)}/resume`);
  }

  /** What was put into a turn's context, as places in notes. */
  async sources(turnId) {
    const { notes } = await json("GET", `${this.base}/turns/${part(turnId)}/context`);
    return notes.map(({ title, text, origin }) => ({ path: title, start_line: "", end_line: "", ...origin, text }));
  }

  /** Say something; the same key never says it twice, however often it is sent. */
  say(text, key, signal) {
    const body = { session_id: this.id, message: text, stream: true };
    return stream("POST", `${this.agent.base}/chat`, { body, headers: { "idempotency-key": key }, signal });
  }

  /** Follow a turn from the event after `lastId` on; null when it is not there any more. */
  follow(lastId, signal) {
    return stream("GET", `${this.base}/stream`, { lastId, signal });
  }
}

async function stream(method, path, { lastId, headers = {}, ...options }) {
  const extra = lastId ? { "last-event-id": lastId } : {};
  const response = await request(method, path, {
    ...options,
    headers: { ...headers, ...extra, accept: "text/event-stream" },
  });
  return response.headers.get("content-type")?.startsWith("text/event-stream") ? response : null;
}

/** An id that sorts by time, made here so that a lost answer still has a known place. */
export function newId(prefix) {
  const alphabet = "0123456789abcdefghjkmnpqrstvwxyz";
  const random = crypto.getRandomValues(new Uint8Array(8));
  let time = "";
  for (let left = Date.now() * 1000, at = 0; at < 11; at++, left = Math.floor(left / 32))
    time = alphabet[left % 32] + time;
  return `${prefix}_${time}${Array.from(random, (byte) => alphabet[byte % 32]).join("")}`;
}

function browserName() {
  const agent = navigator.userAgent;
  const browser = ["Edg", "Firefox", "Chrome", "Safari"].find((name) => agent.includes(name)) ?? "browser";
  const system = ["Android", "iPhone", "iPad", "Windows", "Mac OS", "Linux"].find((name) => agent.includes(name)) ?? "";
  return `${browser === "Edg" ? "Edge" : browser}${system ? ` · ${system}` : ""}`;
}
