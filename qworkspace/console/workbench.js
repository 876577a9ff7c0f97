// Agents and conversations beside the open one, and what happens meanwhile.

import * as api from "./api.js";
import { Conversation } from "./chat.js";
import { Composer } from "./composer.js";
import { ask, h, iconButton } from "./dom.js";
import { Banners, Footer, hasNoModel, Header, logo, trouble, welcome } from "./frame.js";
import { t } from "./i18n.js";
import { Link } from "./link.js";
import { takeCode } from "./pairing.js";
import { Sidebar } from "./sidebar.js";

const REFRESH_MS = 150;
const ABOUT_AGENTS = /^(?:agent|workspace|problem)\./;
const FEW_AGENTS = 50; // so many are read again at each turn, to show who is busy
const narrow = matchMedia("(max-width: 760px)");

/** `on.unpaired()` when the daemon does not let this browser in any more. */
export class Workbench {
  constructor(root, on) {
    this.root = root;
    this.on = on;
    this.agents = [];
    this.agent = null;
    this.sessionId = null;
    this.title = "";
    this.life = new AbortController();
  }

  /** Ask for what the page begins with; throws `ApiError`. */
  async load() {
    const [{ agents, active }, { problems }] = await Promise.all([api.allAgents(), api.status()]);
    Object.assign(this, { agents, activeAgent: active, problems });
  }

  show() {
    this.build();
    this.listen();
    this.showOverview();
    this.route();
  }

  close() {
    this.life.abort();
    this.link?.close();
    this.conversation?.close();
  }

  build() {
    const fresh = () => this.go(this.agent.id);
    this.tabs = new BroadcastChannel("qworkspace");
    this.sidebar = new Sidebar({
      agent: (id) => this.go(id),
      fresh,
      gone: (id) => this.gone(id),
      renamed: (id, title) => this.renamed(id, title),
    });
    this.header = new Header({ menu: () => this.toggleSide(true), rename: () => this.rename(), fresh });
    this.footer = new Footer();
    this.banners = new Banners(() => this.link.retryNow());
    this.composer = new Composer({ send: (text) => this.send(text), stop: () => this.conversation.stop() });
    this.log = h("div.log", { id: "log", role: "log", "aria-live": "off", "aria-label": t("chat.log"), tabindex: "0" });
    this.latest = iconButton("arrowDown", t("chat.latest"), () => this.conversation.scroll.toEnd(), "button.latest");
    this.conversation = new Conversation(this.log, {
      busy: (busy) => this.composer.setBusy(busy),
      link: (key, connected) => this.link.report(key, connected),
      changed: () => this.refreshSoon(),
      unauthorized: () => this.on.unpaired(),
      atEnd: (atEnd) => (this.latest.hidden = atEnd),
    });
    this.link = new Link({
      event: (event) => this.happened(event),
      missed: () => this.catchUp(),
      unpaired: () => this.on.unpaired(),
      retry: () => this.conversation.retryNow(),
      show: (connected) => [this.banners, this.footer].forEach((part) => part.showLink(connected)),
    });
    this.place();
  }

  place() {
    const closeSide = iconButton("x", t("menu.close"), () => this.toggleSide(false), "button.icon-button.close-side");
    const skip = (event) => {
      event.preventDefault();
      this.composer.box.focus();
    };
    this.side = h(
      "aside.side",
      { id: "side", "aria-label": t("sessions") },
      h("div.side-head", null, logo(), h("strong", null, "qworkspace"), closeSide),
      this.sidebar.elements,
      this.footer.element,
    );
    this.main = h(
      "main.main",
      null,
      this.header.element,
      this.banners.element,
      h("div.log-frame", null, this.log, this.latest),
      this.composer.element,
    );
    this.latest.hidden = true;
    this.root.className = "app";
    this.root.replaceChildren(
      h("a.skip", { href: "#message", onclick: skip }, t("skip")),
      this.side,
      h("div.scrim", { onclick: () => this.toggleSide(false) }),
      this.main,
    );
  }

  listen() {
    const { signal } = this.life;
    addEventListener("hashchange", () => this.route(), { signal });
    document.addEventListener("keydown", (event) => this.pressed(event), { signal });
    narrow.addEventListener("change", () => this.toggleSide(false), { signal });
    this.tabs.addEventListener("message", ({ data }) => this.toldByTab(data), { signal });
    this.link.start();
  }

  async catchUp() {
    this.refreshSoon(true);
    await this.conversation.reread();
  }

  /** Something happened in the daemon. */
  happened({ type, data }) {
    const { agent_id: agentId, session_id: sessionId, turn_id: turnId } = data;
    const here = sessionId === this.sessionId && agentId === this.agent?.id;
    if (type === "turn.started" && here) this.conversation.discover(turnId);
    if (type === "turn.completed" && sessionId && !here) this.sidebar.markUnread(sessionId, agentId);
    if (type.startsWith("approval.") && type !== "approval.created") this.approvalEnded(type, data);
    this.refreshSoon(ABOUT_AGENTS.test(type) || this.agents.length <= FEW_AGENTS);
  }

  approvalEnded(type, { approval_id: approvalId, decision }) {
    const word = type.slice("approval.".length);
    const how = word === "answered" ? { allow: "allowed", deny: "denied" }[decision] : word;
    this.conversation.approvalClosed(approvalId, how ?? "answered");
  }

  toldByTab({ gone, renamed, title }) {
    if (gone) this.gone(gone, false);
    if (renamed) this.renamed(renamed, title, false);
  }

  /** Read the lists again, once for many events. */
  refreshSoon(withAgents = false) {
    this.staleAgents ||= withAgents;
    this.refreshTimer ??= setTimeout(() => this.refresh(), REFRESH_MS);
  }

  async refresh() {
    const withAgents = this.staleAgents;
    this.refreshTimer = null;
    this.staleAgents = false;
    try {
      await Promise.all([this.sidebar.refresh(), withAgents && this.load()]);
    } catch (error) {
      if (error.status === 401) this.on.unpaired();
      return;
    }
    this.showOverview();
  }

  showOverview() {
    this.sidebar.setAgents(this.agents);
    this.header.showProblems(this.problems);
    this.showAgent();
    this.showTitle();
  }

  go(agentId, sessionId = "") {
    const hash = `#/${agentId}${sessionId ? `/${encodeURIComponent(sessionId)}` : ""}`;
    if (location.hash === hash) this.route();
    else location.hash = hash;
  }

  /** Show what the address names. */
  async route() {
    takeCode(); // this browser is paired: a code in the address is only to be removed
    const [agentId = "", sessionId = ""] = location.hash.replace(/^#\/?/, "").split("/").map(decode);
    const name = agentId || this.activeAgent;
    this.toggleSide(false);
    const agent = this.agents.find(({ id }) => id === name);
    if (!agent) return this.fail(t("chat.agentMissing", { agent: name }));
    if (this.agent?.id === agent.id && sessionId && this.sessionId === sessionId) return undefined;
    Object.assign(this, { agent, agentApi: new api.AgentApi(agent.id), sessionId: sessionId || null, title: "" });
    this.sidebar.choose(this.agentApi, this.sessionId);
    this.showOverview();
    this.composer.open(`${agent.id}/${sessionId}`, agent.name);
    this.composer.focus();
    return sessionId ? this.openSession() : this.beginSession();
  }

  beginSession() {
    this.conversation.begin(null);
    this.log.replaceChildren(welcome(this.agent, (text) => this.composer.fill(text)));
  }

  async openSession() {
    const { sessionId } = this;
    try {
      const { title } = await this.conversation.open(this.agentApi.session(sessionId));
      if (this.sessionId !== sessionId) return;
      this.title = title;
      this.showTitle();
    } catch (error) {
      if (this.sessionId === sessionId && error.name !== "AbortError") this.openingFailed(error);
    }
  }

  openingFailed(error) {
    if (error.status === 401) this.on.unpaired();
    else if (error.status === 404) this.fail(t("chat.missing"));
    else this.fail(t("chat.loadFailed"), error.message, () => this.openSession());
  }

  fail(title, text = "", again = null) {
    this.conversation.close();
    this.log.replaceChildren(trouble(title, text, again));
  }

  send(text) {
    if (!this.conversation.session) this.nameSession();
    this.conversation.send(text);
  }

  /** The first message makes the conversation; its id is made here, so that it can be re-joined from now on. */
  nameSession() {
    this.sessionId = api.newId("sess");
    history.pushState(null, "", `#/${this.agent.id}/${this.sessionId}`);
    this.conversation.begin(this.agentApi.session(this.sessionId));
    this.composer.open(`${this.agent.id}/${this.sessionId}`, this.agent.name);
    this.sidebar.choose(this.agentApi, this.sessionId);
  }

  showAgent() {
    this.agent = this.agents.find(({ id }) => id === this.agent?.id) ?? this.agent;
    if (!this.agent) return;
    this.header.showAgent(this.agent);
    this.banners.model.hidden = !hasNoModel(this.agent);
  }

  showTitle() {
    this.title = (this.sessionId && this.sidebar.titleOf(this.sessionId)) || this.title;
    this.header.showTitle(this.title || t("chat.new"), Boolean(this.sessionId));
    document.title = [this.title, this.agent?.name, "qworkspace"].filter(Boolean).join(" · ");
  }

  async rename() {
    const { sessionId, agentApi } = this;
    const title = await ask({ title: t("rename.title"), confirm: t("save"), cancel: t("cancel"), input: this.title });
    if (!title) return;
    await this.sidebar.change(agentApi.session(sessionId).change({ title }));
    this.renamed(sessionId, title);
  }

  renamed(sessionId, title, tell = true) {
    if (tell) this.tabs.postMessage({ renamed: sessionId, title });
    else this.refreshSoon();
    if (sessionId === this.sessionId) this.title = title;
    this.showTitle();
  }

  gone(sessionId, tell = true) {
    if (tell) this.tabs.postMessage({ gone: sessionId });
    else this.refreshSoon();
    if (sessionId === this.sessionId) this.go(this.agent.id);
  }

  toggleSide(open) {
    this.root.classList.toggle("side-open", open);
    this.main.inert = open && narrow.matches;
    this.side.inert = !open && narrow.matches;
    if (open && narrow.matches) this.side.querySelector("button").focus();
  }

  pressed(event) {
    const command = event.ctrlKey || event.metaKey;
    const key = event.key.toLowerCase();
    if (key === "escape" && !event.isComposing && !document.querySelector("dialog[open], .menu")) this.escape();
    else if (command && !event.shiftKey && key === "k") this.findSession(event);
    else if (command && event.shiftKey && key === "o") {
      event.preventDefault();
      this.go(this.agent.id);
    }
  }

  findSession(event) {
    event.preventDefault();
    this.toggleSide(true);
    this.sidebar.search.select();
  }

  escape() {
    if (this.root.classList.contains("side-open")) this.toggleSide(false);
    else this.conversation.stop();
  }
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
