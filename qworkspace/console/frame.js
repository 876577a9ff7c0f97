// The fixed parts around a conversation: header, banners, empty state, dialogs.

import { avatar } from "./agents.js";
import { h, icon, iconButton, show } from "./dom.js";
import { chooseLanguage, currentLanguage, t } from "./i18n.js";
import { command } from "./pairing.js";
import { LANGUAGES } from "./texts.js";

const LOCAL = `"providers": {
  "local": {"type": "ollama", "models": [{"name": "qwen3:8b"}]}
},
"default_model": {"provider": "local", "name": "qwen3:8b"}`;
const CLOUD = `"providers": {
  "cloud": {
    "type": "openai", "base_url": "https://…/v1",
    "api_key": "\${MY_API_KEY}", "models": [{"name": "model-name"}]
  }
},
"default_model": {"provider": "cloud", "name": "model-name"}`;

/** Whether this agent answers without a real model. */
export function hasNoModel(agent) {
  return !agent?.model || agent.model.startsWith("offline/");
}

/** The line over the conversation: agent, title, model, problems. `on.menu()`, `on.rename()`. */
export class Header {
  constructor(on) {
    this.agent = h("span.head-agent");
    this.title = h("button.head-title", { type: "button", title: t("rename"), onclick: on.rename });
    this.model = h("button.badge", { type: "button", onclick: () => show(modelDialog()) });
    this.problems = h("button.badge.bad", {
      type: "button",
      hidden: true,
      onclick: () => show(problemsDialog(this.open)),
    });
    this.menu = iconButton("menu", t("menu.open"), on.menu, "button.icon-button.menu-button");
    this.fresh = iconButton("plus", t("chat.new"), on.fresh, "button.icon-button.menu-button");
    this.open = [];
    this.element = h(
      "header.head",
      null,
      this.menu,
      h("div.head-names", null, this.agent, this.title),
      this.problems,
      this.model,
      this.fresh,
    );
  }

  showAgent(agent) {
    this.agent.replaceChildren(avatar(agent.id, agent.name), h("span", { dir: "auto" }, agent.name));
    const none = hasNoModel(agent);
    this.model.replaceChildren(
      h(none ? "i.light.off" : "i.light"),
      h("span", null, none ? t("model.none") : agent.model),
    );
    this.model.title = none ? t("model.offline") : `${t("model")}: ${agent.model}`;
  }

  showTitle(title, renamable) {
    this.title.textContent = title;
    this.title.disabled = !renamable;
  }

  showProblems(problems) {
    this.open = problems;
    this.problems.hidden = problems.length === 0;
    this.problems.replaceChildren(
      icon("alert"),
      h("span", null, problems.length === 1 ? t("problems.one") : t("problems", { n: problems.length })),
    );
  }
}

export function logo() {
  return h("img.logo", { src: "favicon.svg", alt: "", width: "26", height: "26" });
}

/** Lines above the conversation that come and go. */
export class Banners {
  constructor(retry) {
    this.link = h(
      "div.banner.warn",
      { role: "status", hidden: true },
      icon("alert"),
      h("span"),
      h("button.button.small", { type: "button", onclick: retry }, t("banner.retry")),
    );
    this.model = h(
      "div.banner",
      { hidden: true },
      icon("plug"),
      h("span", null, t("model.offline")),
      h("button.button.small", { type: "button", onclick: () => show(modelDialog()) }, t("model.how")),
    );
    this.element = h("div.banners", null, this.link, this.model);
  }

  showLink(connected) {
    this.link.hidden = connected;
    this.link.querySelector("span").textContent = navigator.onLine ? t("banner.lost") : t("banner.offline");
  }
}

/** What a conversation shows before its first message. `fill(text)` puts a suggestion to use. */
export function welcome(agent, fill) {
  const tries = ["empty.try1", "empty.try2", "empty.try3"].map((key) =>
    h("button.try", { type: "button", onclick: () => fill(t(key)) }, t(key)),
  );
  return h(
    "div.welcome",
    null,
    avatar(agent.id, agent.name),
    h("h1", { dir: "auto" }, t("empty.hello", { agent: agent.name })),
    h("p", { dir: "auto" }, agent.description || t("empty.text")),
    h("div.tries", null, tries),
  );
}

/** A full-size message in place of a conversation. */
export function trouble(title, text, again) {
  return h(
    "div.welcome",
    { role: "alert" },
    h("div.gate-icon", null, icon("alert")),
    h("h1", null, title),
    text && h("p", null, text),
    again && h("button.button.primary", { type: "button", onclick: again }, t("error.again")),
  );
}

/** Language and connection, at the foot of the sidebar. */
export class Footer {
  constructor() {
    this.state = h("span.connection", { role: "status" });
    const choice = h(
      "select",
      { id: "language", "aria-label": t("language"), onchange: (event) => chooseLanguage(event.target.value) },
      ...Object.entries(LANGUAGES).map(([value, name]) =>
        h("option", { value, lang: value, selected: value === currentLanguage() }, name),
      ),
    );
    this.element = h("footer.side-foot", null, this.state, h("label.language", null, icon("globe"), choice));
    this.showLink(true);
  }

  showLink(connected) {
    const word = connected ? "live" : navigator.onLine ? "lost" : "offline";
    this.state.replaceChildren(h(`i.light${connected ? "" : ".bad"}`), t(`connection.${word}`));
  }
}

function modelDialog() {
  const [before, after] = t("model.how.intro", { file: "\u0000" }).split("\u0000");
  return h(
    "dialog.wide",
    { "aria-label": t("model.how.title") },
    h("h2", null, t("model.how.title")),
    h("p", null, before, h("code", null, "config.json"), after),
    h("h3", null, t("model.how.local")),
    snippet(LOCAL),
    h("h3", null, t("model.how.cloud")),
    snippet(CLOUD),
    h("p", null, t("model.how.key")),
    command("qworkspace doctor"),
    closeRow(),
  );
}

function problemsDialog(problems) {
  return h(
    "dialog.wide",
    { "aria-label": t("problems.title") },
    h("h2", null, t("problems.title")),
    h(
      "ul.problems",
      null,
      ...problems.map(({ message, key, severity, agent_id: agent }) =>
        h(
          `li.${severity}`,
          { dir: "auto" },
          icon("alert"),
          h("span", null, agent && h("strong", null, `${agent}: `), message ?? key),
        ),
      ),
    ),
    command("qworkspace doctor"),
    closeRow(),
  );
}

function snippet(text) {
  return h("pre.snippet", { tabindex: "0" }, h("code", null, text));
}

function closeRow() {
  return h(
    "div.row",
    null,
    h(
      "button.button.primary",
      { type: "button", onclick: (event) => event.target.closest("dialog").close() },
      t("close"),
    ),
  );
}
