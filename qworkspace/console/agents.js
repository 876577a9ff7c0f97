// The agents of this daemon, as a list to choose from.

import { h, icon } from "./dom.js";
import { t } from "./i18n.js";

const MANY = 8;

/** `onChoose(agentId)`. `show` may be called as often as one likes: it draws what has changed. */
export class AgentList {
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.agents = [];
    this.chosen = null;
    this.waiting = new Set(); // ids of agents that said something unread
    this.drawn = "";
    this.list = h("nav.agents", { "aria-label": t("agents") });
    this.filter = h("input.field.small", {
      type: "search",
      hidden: true,
      placeholder: t("agents.filter"),
      "aria-label": t("agents.filter"),
      oninput: () => this.show({}),
    });
    this.element = h("section.side-part", null, h("h2", null, t("agents")), this.filter, this.list);
  }

  /** Take over what is new of `agents`, `chosen`, `waiting`. */
  show(changes) {
    Object.assign(this, changes);
    this.filter.hidden = this.agents.length <= MANY;
    const words = this.filter.hidden ? "" : this.filter.value.toLowerCase();
    const found = this.agents.filter(({ id, name }) => `${id} ${name}`.toLowerCase().includes(words));
    const facts = JSON.stringify([found, this.chosen, [...this.waiting]]);
    if (facts === this.drawn) return;
    this.drawn = facts;
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.agent : null;
    this.list.replaceChildren(...found.map((agent) => this.row(agent)));
    if (!found.length) this.list.append(h("p.quiet", null, t("agents.empty")));
    if (focused) this.list.querySelector(`[data-agent="${CSS.escape(focused)}"]`)?.focus();
  }

  row(agent) {
    const { id, name, description, enabled } = agent;
    return h(
      "button.agent",
      {
        type: "button",
        "data-agent": id,
        "aria-current": id === this.chosen ? "true" : null,
        disabled: enabled === false,
        title: description || name,
        onclick: () => this.onChoose(id),
      },
      avatar(id, name),
      h("span.agent-name", { dir: "auto" }, name),
      this.mark(agent),
    );
  }

  mark({ id, problems = [], active_turns: turns = 0 }) {
    if (problems.length) {
      return h("span.mark.bad", { title: problems[0].message }, icon("alert"), hidden(t("problems.title")));
    }
    if (turns)
      return h("span.mark", { title: t("session.running") }, h("span.spinner.small"), hidden(t("session.running")));
    return this.waiting.has(id) && id !== this.chosen ? h("span.dot", null, hidden(t("session.unread"))) : null;
  }
}

/** The round sign of an agent: its first letter on a colour of its own. */
export function avatar(id, name) {
  const hue = [...id].reduce((sum, character) => (sum * 31 + character.codePointAt(0)) % 997, 7) % 6;
  return h(`span.avatar.hue-${hue}`, { "aria-hidden": "true" }, [...(name || id)][0].toUpperCase());
}

function hidden(text) {
  return h("span.sr-only", null, text);
}
