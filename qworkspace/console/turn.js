// One turn on the page: what the person said, and the answer as it grows.

import { ApprovalCard, sourcesCard, ToolCard } from "./cards.js";
import { append, copyButton, h, icon } from "./dom.js";
import { formatFull, formatMoment, formatNumber, hasText, t } from "./i18n.js";
import { MarkdownStream } from "./markdown.js";

const BETWEEN_MS = 40; // drawing more often costs much and shows nothing more

/** A turn's element and its state. `actions`: answer(id, decision), resume(view), again(view), sources(view), grown(). */
export class TurnView {
  constructor(actions, { id = null, text = "", createdAt = new Date() } = {}) {
    this.actions = actions;
    this.id = id;
    this.bubble = h("div.bubble", { dir: "auto" });
    this.user = h("div.user", { title: formatFull(createdAt) }, h("span.sr-only", null, t("turn.you")), this.bubble);
    this.parts = h("div.parts");
    this.status = h("p.working", { role: "status", hidden: true });
    this.foot = h("footer.turn-foot", { hidden: true });
    this.reply = h("div.reply", null, this.parts, this.status, this.foot);
    this.element = h("section.turn", null, this.user, this.reply);
    this.createdAt = createdAt;
    this.clear();
    this.say(text);
  }

  /** What the person said. */
  say(text) {
    this.userText = text;
    this.bubble.textContent = text;
    this.user.hidden = !text;
  }

  /** Forget the answer: it is about to be told again. */
  clear() {
    for (const card of this.approvals?.values() ?? []) card.drop();
    clearTimeout(this.timer);
    this.timer = null;
    this.raw = "";
    this.unseen = "";
    this.text = null;
    this.thought = null;
    this.tools = new Map();
    this.approvals = new Map();
    this.model = "";
    this.usage = null;
    this.state = "waiting";
    this.resumed = false;
    this.notBefore = 0;
    this.parts.replaceChildren();
    this.foot.hidden = true;
    delete this.element.dataset.state;
  }

  /** Show that something is being done, in words; an empty text shows nothing. */
  working(text) {
    this.status.hidden = !text;
    if (this.status.textContent !== text)
      this.status.replaceChildren(h("span.dots", { "aria-hidden": "true" }, h("i"), h("i"), h("i")), text);
  }

  get live() {
    return this.state === "waiting" || this.state === "running";
  }

  /** One event of the turn's stream. */
  apply({ type, data }) {
    switch (type) {
      case "turn.started":
        return this.begin(data);
      case "text.delta":
        return this.addText(data.text);
      case "reasoning.delta":
        return this.addThought(data.text);
      case "memory.recalled":
        return this.addPart(sourcesCard(data.hits));
      case "tool.call":
        return this.addTool(data.call_id, data);
      case "tool.result":
        return this.addResult(data.call_id, data);
      case "tool.approval":
        return this.addApproval(data);
      case "usage":
        return void (this.usage = data);
      case "notice":
        return this.addNotice(data);
      case "turn.completed":
        return this.end("completed", data);
      case "turn.cancelled":
        return this.end("cancelled", data);
      case "turn.failed":
        return this.end(data.code === "interrupted" ? "interrupted" : "failed", data);
      default:
        return undefined;
    }
  }

  begin({ model, resumed = false }) {
    this.state = "running";
    this.model = model ?? "";
    this.resumed = resumed;
    for (const waiting of this.parts.querySelectorAll("[data-notice=queued]")) waiting.remove();
    this.working(t("thinking"));
  }

  addText(text) {
    this.raw += text;
    this.unseen += text;
    this.working("");
    this.thought = null;
    this.timer ??= setTimeout(() => this.draw(), Math.max(0, this.notBefore - performance.now()));
  }

  /** Show what came since the last drawing; the costlier it was, the longer until the next. */
  draw() {
    const began = performance.now();
    this.timer = null;
    this.flush();
    this.actions.grown();
    this.notBefore = began + Math.max(BETWEEN_MS, 8 * (performance.now() - began));
  }

  flush() {
    if (!this.unseen) return;
    if (!this.text) {
      const element = h("div.md");
      this.parts.append(element);
      this.text = new MarkdownStream(element);
    }
    this.text.push(this.unseen);
    this.unseen = "";
  }

  /** What comes next is something else than the text so far. */
  closeText() {
    clearTimeout(this.timer);
    this.timer = null;
    if (this.unseen.trim()) this.flush();
    this.unseen = "";
    this.text?.end();
    this.text = null;
    this.thought = null;
  }

  addPart(element) {
    this.closeText();
    this.parts.append(element);
    this.actions.grown();
  }

  addThought(text) {
    if (!this.thought) {
      const content = document.createTextNode("");
      this.addPart(
        h(
          "details.think",
          null,
          h("summary", null, icon("thought"), t("thought"), icon("chevron")),
          h("div.think-text", { dir: "auto" }, content),
        ),
      );
      this.thought = content;
    }
    this.thought.appendData(text);
  }

  addTool(id, { name, args }) {
    if (this.tools.has(id)) return;
    const card = new ToolCard({ name, args });
    this.tools.set(id, card);
    this.addPart(card.element);
    this.working(t("turn.working"));
  }

  addResult(id, result) {
    if (!this.tools.has(id)) this.addTool(id, { name: result.name, args: {} });
    this.tools.get(id).finish(result);
    for (const card of this.approvals.values()) {
      if (card.approval.call_id === id)
        card.close(card.decided ?? (result.outcome === "denied" ? "denied" : "allowed"));
    }
    this.working(t("thinking"));
  }

  addApproval(approval) {
    if (this.approvals.has(approval.approval_id)) return;
    const card = new ApprovalCard(approval, (decision) => this.actions.answer(approval.approval_id, decision));
    this.approvals.set(approval.approval_id, card);
    this.addPart(card.element);
    this.working("");
  }

  addNotice({ code, message, position }) {
    const text = hasText(`notice.${code}`) ? t(`notice.${code}`) : (message ?? code);
    this.addPart(
      h(
        "p.notice",
        { "data-notice": code, dir: "auto" },
        icon(code === "queued" ? "clock" : "info"),
        position > 1 ? `${text} (${position})` : text,
      ),
    );
  }

  /** The answer is over. False when what is shown may not be what is stored. */
  end(state, { text = null, usage = null, code = "", message = "" } = {}) {
    this.closeText();
    this.state = state;
    this.usage = usage ?? this.usage;
    this.working("");
    this.element.dataset.state = state;
    for (const card of this.tools.values()) card.abandon();
    for (const card of this.approvals.values()) if (card.open && state !== "interrupted") card.close("answered");
    for (const queued of this.parts.querySelectorAll("[data-notice=queued]")) queued.remove();
    if (state === "cancelled") this.parts.append(h("p.notice", null, icon("stop"), t("turn.cancelled")));
    if (state === "interrupted") this.parts.append(this.interruption());
    if (state === "failed") this.parts.append(this.failure(t("turn.failed"), message, code));
    this.showFoot();
    this.actions.grown();
    return !this.resumed && (text === null || text === this.raw);
  }

  /** The message did not reach the daemon, or was refused. */
  refuse(error) {
    this.clear();
    this.working("");
    this.state = "unsent";
    this.element.dataset.state = "unsent";
    this.parts.append(this.failure(t("turn.unsent"), error.message, error.code));
  }

  interruption() {
    const button = h(
      "button.button.primary",
      { type: "button", onclick: () => this.actions.resume(this, button) },
      icon("play"),
      t("turn.resume"),
    );
    return h("div.ending", null, icon("alert"), h("p", null, t("turn.interrupted")), button);
  }

  failure(title, message, code) {
    const button = h("button.button", { type: "button", onclick: () => this.actions.again(this) }, t("turn.again"));
    return h(
      "div.ending.failed",
      { role: "alert" },
      icon("alert"),
      h("p", { title: code }, h("strong", null, title), message && h("span", { dir: "auto" }, message)),
      this.userText && button,
    );
  }

  showFoot() {
    this.foot.replaceChildren();
    append(this.foot, [
      this.raw && copyButton(() => this.raw, { copy: t("copy"), copied: t("copied") }),
      this.model &&
        h("span", { title: t("model") }, this.model === "offline/offline" ? t("model.offlineName") : this.model),
      this.usage?.output_tokens > 0 &&
        h(
          "span",
          null,
          t("turn.tokens", {
            in: formatNumber(this.usage.input_tokens),
            out: formatNumber(this.usage.output_tokens),
          }),
        ),
      h(
        "time",
        { datetime: this.createdAt.toISOString(), title: formatFull(this.createdAt) },
        formatMoment(this.createdAt),
      ),
    ]);
    this.foot.hidden = false;
  }

  /** Show the stored messages of this turn, oldest first, and how it ended. */
  load(messages, turn) {
    this.clear();
    const texts = [];
    if (turn?.notes) this.addPart(sourcesCard(null, () => this.actions.sources(this)));
    for (const message of messages) {
      if (message.role === "user") this.say(message.text);
      else for (const part of message.parts) this.loadPart(part);
      if (message.role === "assistant" && message.text) texts.push(message.text);
      this.closeText();
    }
    this.raw = texts.join("\n\n");
    this.usage = turn?.usage ?? null;
    const ended = turn?.state ?? "completed";
    if (!["queued", "running"].includes(ended)) this.end(ended, { ...turn?.error, usage: turn?.usage });
    else this.working(t("turn.working"));
  }

  loadPart(part) {
    if (part.type === "text") this.addText(part.text);
    else if (part.type === "reasoning") this.addThought(part.text);
    else if (part.type === "tool_call") this.addTool(part.id, { name: part.name, args: part.raw ?? part.args });
    else if (part.type === "tool_result") this.addResult(part.id, part);
    else if (part.type === "file") this.addPart(h("p.notice", null, icon("info"), part.name || part.path));
  }
}
