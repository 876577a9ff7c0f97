// Tool calls and questions for permission, as cards within an answer.

import { announce, copyButton, h, icon, visible } from "./dom.js";
import { formatDuration, t } from "./i18n.js";

const SHOWN = 20_000; // characters of a result; the rest is in the stored text and the copy

/** A tool call: one line, opening to arguments and result. */
export class ToolCard {
  constructor({ name, args }) {
    this.state = h("span.tool-state", null, h("span.spinner.small"), h("span.sr-only", null, t("tool.running")));
    this.time = h("span.tool-time");
    this.body = h("div.tool-body", null, fields(args));
    this.element = h(
      "details.tool",
      { "data-tool": name },
      h(
        "summary",
        null,
        icon("tool"),
        h("span.tool-name", null, visible(name)),
        h("span.tool-hint", null, hint(args)),
        this.time,
        this.state,
        icon("chevron"),
      ),
      this.body,
    );
  }

  /** Show how it ended; a second result replaces the first. */
  finish({ outcome = "ok", text = "", file = null, duration_ms: duration = null }) {
    this.element.dataset.outcome = outcome;
    const names = { ok: "check", denied: "shield", error: "alert", interrupted: "alert" };
    const word = t(`tool.${outcome}`);
    this.state.replaceChildren(
      icon(names[outcome] ?? "info"),
      h(outcome === "ok" ? "span.sr-only" : "span", null, word),
    );
    this.time.textContent = duration === null ? "" : formatDuration(duration);
    this.result?.remove();
    this.result = h(
      "div",
      null,
      field(t("tool.result"), text),
      file && h("p.tool-file", null, t("tool.file", { file: visible(file) })),
    );
    this.body.append(this.result);
  }

  /** The call will not come to an end any more. */
  abandon() {
    if (!this.element.dataset.outcome) this.finish({ outcome: "interrupted" });
  }
}

/** What an answer was given from memory, folded: `hits` are there, or `load()` brings them when it is opened. */
export function sourcesCard(hits, load) {
  const list = h("ul.source-list");
  const title = hits ? t("sources.some", { count: hits.length }) : t("sources");
  const card = h("details.think.sources", null, h("summary", null, icon("info"), title, icon("chevron")), list);
  const show = (found) => list.replaceChildren(...found.map(source));
  const failed = (error) => list.replaceChildren(h("li", null, error.message));
  if (hits) show(hits);
  else card.addEventListener("toggle", () => load().then(show, failed), { once: true });
  return card;
}

function source({ path, start_line: first, end_line: last, text }) {
  const place = !first ? path : first === last ? `${path}:${first}` : `${path}:${first}–${last}`;
  return h("li", null, h("code.source-place", null, visible(place)), h("p", { dir: "auto" }, visible(text)));
}

/** A question for permission. `answer(decision)` sends the decision and may fail. */
export class ApprovalCard {
  constructor(approval, answer) {
    this.approval = approval;
    this.answer = answer;
    this.note = h("span.approval-note", { role: "status" });
    this.allow = h(
      "button.button.primary",
      { type: "button", onclick: () => this.decide("allow") },
      icon("check"),
      t("approval.allow"),
    );
    this.deny = h(
      "button.button",
      { type: "button", onclick: () => this.decide("deny") },
      icon("x"),
      t("approval.deny"),
    );
    this.title = h("h3", null, icon("shield"), h("span", null, ...title(approval.name)));
    this.actions = h("div.row", null, this.note, this.deny, this.allow);
    this.element = h(
      "section.approval",
      { "aria-label": t("approval.title", { tool: visible(approval.name) }), "data-approval": approval.approval_id },
      this.title,
      approval.reason && h("p", { dir: "auto" }, visible(approval.reason)),
      fields(approval.args),
      this.actions,
    );
    announce(t("approval.announce", { tool: visible(approval.name) }));
    this.decided = null;
    this.timer = setInterval(() => this.tick(), 1000);
    this.tick();
  }

  get open() {
    return this.timer !== null;
  }

  tick() {
    const left = Date.parse(this.approval.expires_at) - Date.now();
    if (Number.isNaN(left)) return;
    if (left <= 0) this.close("expired");
    else this.note.textContent = t("approval.left", { time: remaining(left) });
  }

  async decide(decision) {
    this.decided = { allow: "allowed", deny: "denied" }[decision];
    this.allow.disabled = this.deny.disabled = true;
    try {
      await this.answer(decision);
      this.close(this.decided);
    } catch (error) {
      this.decided = null;
      if (error.status === 409 || error.status === 404) return this.close("answered");
      this.allow.disabled = this.deny.disabled = false;
      this.note.textContent = error.message;
    }
  }

  /** The question is over: `allowed`, `denied`, `expired`, or `answered` when nobody here knows how. */
  close(how) {
    if (!this.open) return;
    clearInterval(this.timer);
    this.timer = null;
    this.element.dataset.answer = how;
    this.note.textContent = t(`approval.${how}`);
    this.actions.replaceChildren(icon(how === "allowed" ? "check" : "x"), this.note);
  }

  /** Take it away without an answer. */
  drop() {
    clearInterval(this.timer);
    this.timer = null;
    this.element.remove();
  }
}

function title(name) {
  const [before, after] = t("approval.title", { tool: "\u0000" }).split("\u0000");
  return [before, h("code", null, visible(name)), after];
}

function field(name, text) {
  if (!text) return null;
  const shown = text.length > SHOWN ? `${text.slice(0, SHOWN)}\n…` : text;
  return h(
    "div.field-block",
    null,
    h(
      "div.field-head",
      null,
      h("span", null, visible(name)),
      copyButton(() => text, { copy: t("copy"), copied: t("copied") }),
    ),
    h("pre", { tabindex: "0", role: "region", "aria-label": visible(name), dir: "auto" }, visible(shown)),
  );
}

/** Arguments as people read them: short ones as lines, each long text in a block of its own. */
function fields(args) {
  if (typeof args === "string") return field(t("tool.args"), args);
  const entries = Object.entries(args ?? {});
  const long = entries.filter(
    ([, value]) => typeof value === "string" && (value.includes("\n") || entries.length === 1),
  );
  const short = entries.filter((entry) => !long.includes(entry));
  const lines = short.map(
    ([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value, null, 2)}`,
  );
  return h(
    "div",
    null,
    lines.length > 0 && field(t("tool.args"), lines.join("\n")),
    long.map(([name, value]) => field(name, value)),
  );
}

/** The first text among the arguments: mostly the path, command or address. */
function hint(args) {
  const first = Object.values(args ?? {}).find((value) => typeof value === "string" && value);
  return first ? visible(first.slice(0, 200)) : "";
}

function remaining(milliseconds) {
  const seconds = Math.ceil(milliseconds / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.ceil(seconds / 60)} min`;
  return `${Math.ceil(seconds / 3600)} h`;
}
