// Agents and conversations beside the chat.

import { AgentList } from "./agents.js";
import { ask, h, icon } from "./dom.js";
import { formatMoment, t } from "./i18n.js";

const SEARCH_MS = 180;
const PAGE = 40;

/** `on.agent(id)`, `on.fresh()`, `on.gone(sessionId)`, `on.renamed(sessionId, title)`. */
export class Sidebar {
  constructor(on) {
    this.on = on;
    this.agent = null; // an AgentApi
    this.current = null;
    this.found = [];
    this.cursor = null;
    this.pages = 1;
    this.unread = new Map(); // session id -> agent id
    this.shown = "";
    this.agentList = new AgentList((id) => this.on.agent(id));
    this.search = h("input", {
      id: "session-search",
      type: "search",
      placeholder: t("sessions.search"),
      "aria-label": t("sessions.search"),
      oninput: () => this.searchSoon(),
    });
    this.list = h("nav.sessions", { "aria-label": t("sessions"), onkeydown: (event) => this.arrows(event) });
    this.fresh = h(
      "button.new",
      { type: "button", title: `${t("chat.new")} (Ctrl+Shift+O)`, onclick: () => this.on.fresh() },
      icon("plus"),
      t("chat.new"),
    );
    this.elements = [
      this.agentList.element,
      h(
        "section.side-part.grow",
        null,
        h("h2.sr-only", null, t("sessions")),
        this.fresh,
        h("label.search", null, icon("search"), this.search),
        this.list,
      ),
    ];
  }

  /** The agents, as the daemon tells them. */
  setAgents(agents) {
    this.agentList.show({ agents });
  }

  /** Show the conversations of that agent, one of them (or none) as the open one. */
  async choose(agent, sessionId) {
    const other = this.agent?.id !== agent.id;
    this.agent = agent;
    this.current = sessionId;
    this.read(sessionId);
    if (!other) return this.showSessions();
    this.search.value = "";
    this.pages = 1;
    this.found = [];
    this.shown = "";
    this.list.replaceChildren(
      h("div.skeleton.lines", { role: "status", "aria-label": t("chat.load") }, h("i"), h("i"), h("i")),
    );
    return this.refresh();
  }

  /** Ask the daemon for the list again. */
  async refresh() {
    const { agent } = this;
    if (!agent) return;
    this.request?.abort();
    const { signal } = (this.request = new AbortController());
    try {
      const found = [];
      let cursor = null;
      for (let page = 0; page < this.pages && (page === 0 || cursor); page++) {
        const answer = await agent.sessions({ query: this.search.value.trim(), cursor, limit: PAGE, signal });
        found.push(...answer.sessions);
        cursor = answer.next_cursor;
      }
      Object.assign(this, { found, cursor });
      this.showSessions();
    } catch (error) {
      if (signal.aborted) return;
      if (!this.found.length) this.list.replaceChildren(h("p.quiet", null, t("sessions.failed")));
    }
  }

  searchSoon() {
    clearTimeout(this.searchTimer);
    this.searchTimer = setTimeout(() => {
      this.pages = 1;
      this.refresh();
    }, SEARCH_MS);
  }

  /** Something happened in a conversation that is not open. */
  markUnread(sessionId, agentId) {
    if (sessionId === this.current) return;
    this.unread.set(sessionId, agentId);
    this.showSessions();
    this.showWaiting();
  }

  read(sessionId) {
    this.unread.delete(sessionId);
    this.showWaiting();
  }

  showWaiting() {
    this.agentList.show({ chosen: this.agent?.id ?? null, waiting: new Set(this.unread.values()) });
  }

  showSessions() {
    const facts = JSON.stringify([this.found, this.current, [...this.unread.keys()], this.cursor]);
    if (facts === this.shown) return;
    this.shown = facts;
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.session : null;
    const rows = [];
    let last = null;
    for (const session of arranged(this.found)) {
      const group = groupOf(session);
      if (group !== last) rows.push(h("h3", null, t(group)));
      last = group;
      rows.push(this.sessionRow(session));
    }
    const words = this.search.value.trim();
    if (!rows.length) rows.push(h("p.quiet", null, words ? t("sessions.none", { query: words }) : t("sessions.empty")));
    if (this.cursor) rows.push(h("button.more", { type: "button", onclick: () => this.more() }, t("sessions.more")));
    this.list.replaceChildren(...rows);
    if (focused) this.list.querySelector(`[data-session="${CSS.escape(focused)}"]`)?.focus();
  }

  more() {
    this.pages++;
    this.refresh();
  }

  sessionRow(session) {
    const title = titleOf(session);
    const running = session.live_turn_id || ["running", "queued"].includes(session.last_state);
    const mark = running
      ? h("span.mark", null, h("span.spinner.small"), h("span.sr-only", null, t("session.running")))
      : this.unread.has(session.id)
        ? h("span.dot", null, h("span.sr-only", null, t("session.unread")))
        : null;
    return h(
      "div.session",
      null,
      h(
        "a.session-link",
        {
          href: `#/${this.agent.id}/${encodeURIComponent(session.id)}`,
          "data-session": session.id,
          "aria-current": session.id === this.current ? "page" : null,
          title,
          dir: "auto",
        },
        h("span.session-title", null, title),
        mark ?? h("time", { datetime: session.updated_at }, formatMoment(new Date(session.updated_at))),
      ),
      h(
        "button.icon-button.session-more",
        {
          type: "button",
          "aria-label": t("menu.more", { title }),
          "aria-haspopup": "menu",
          onclick: (event) => this.openMenu(session, event.currentTarget),
        },
        icon("more"),
      ),
    );
  }

  openMenu(session, anchor) {
    const api = this.agent.session(session.id);
    const item = (iconName, label, run, spec = "button") =>
      h(
        spec,
        {
          type: "button",
          role: "menuitem",
          onclick: () => {
            menu.hidePopover();
            run();
          },
        },
        icon(iconName),
        label,
      );
    const menu = h(
      "div.menu",
      { role: "menu", popover: "auto" },
      item("pencil", t("rename"), () => this.rename(session, api)),
      item("pin", session.pinned ? t("unpin") : t("pin"), () => this.change(api.change({ pinned: !session.pinned }))),
      item("trash", t("delete"), () => this.remove(session, api), "button.danger"),
    );
    menu.addEventListener("toggle", (event) => event.newState === "closed" && menu.remove());
    menu.addEventListener("keydown", (event) => moveFocus(event, [...menu.children]));
    document.body.append(menu);
    menu.showPopover();
    const { right, bottom, top } = anchor.getBoundingClientRect();
    const below = bottom + menu.offsetHeight + 8 < innerHeight;
    menu.style.left = `${Math.max(8, Math.min(right - menu.offsetWidth, innerWidth - menu.offsetWidth - 8))}px`;
    menu.style.top = `${below ? bottom + 4 : top - menu.offsetHeight - 4}px`;
    menu.firstElementChild.focus();
  }

  async rename(session, api) {
    const title = await ask({
      title: t("rename.title"),
      confirm: t("save"),
      cancel: t("cancel"),
      input: titleOf(session),
    });
    if (!title) return;
    await this.change(api.change({ title }));
    this.on.renamed(session.id, title);
  }

  async remove(session, api) {
    const sure = await ask({
      title: t("delete.title"),
      body: t("delete.body", { title: titleOf(session) }),
      confirm: t("delete"),
      cancel: t("cancel"),
      danger: true,
    });
    if (!sure) return;
    await this.change(api.remove());
    this.on.gone(session.id);
  }

  async change(request) {
    try {
      await request;
    } catch (error) {
      if (error.status !== 404) await ask({ title: error.message, confirm: t("close"), cancel: t("cancel") });
    }
    await this.refresh();
  }

  arrows(event) {
    if (event.target.dataset.session) moveFocus(event, [...this.list.querySelectorAll("[data-session]")]);
  }

  titleOf(sessionId) {
    const session = this.found.find(({ id }) => id === sessionId);
    return session ? titleOf(session) : null;
  }
}

function titleOf({ title }) {
  return title || t("chat.new");
}

function arranged(sessions) {
  return [...sessions.filter(({ pinned }) => pinned), ...sessions.filter(({ pinned }) => !pinned)];
}

function groupOf({ pinned, updated_at: updated }) {
  if (pinned) return "sessions.pinned";
  const midnight = new Date().setHours(0, 0, 0, 0);
  const days = Math.ceil((midnight - Date.parse(updated)) / 86_400_000);
  if (days <= 0) return "time.today";
  if (days === 1) return "time.yesterday";
  return days <= 7 ? "time.week" : "time.earlier";
}

function moveFocus(event, targets) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const at = targets.indexOf(document.activeElement);
  targets.at((at + step + targets.length) % targets.length)?.focus();
}
