// The box to write in: grows with its text, keeps drafts, sends by keyboard.

import { h, icon } from "./dom.js";
import { t } from "./i18n.js";

const TOUCH = matchMedia("(pointer: coarse)");

/** `on.send(text)`, `on.stop()`. */
export class Composer {
  constructor(on) {
    this.on = on;
    this.busy = false;
    this.key = null;
    this.box = h("textarea", {
      id: "message",
      rows: "1",
      "aria-label": t("composer.label"),
      "aria-describedby": "message-hint",
      autocomplete: "off",
      enterkeyhint: "send",
      dir: "auto",
      oninput: () => this.changed(),
      onkeydown: (event) => this.pressed(event),
    });
    this.send = h("button.send", { type: "button", onclick: () => this.submit() }, icon("send"));
    this.stop = h(
      "button.send.stop",
      {
        type: "button",
        "aria-label": t("composer.stop"),
        title: `${t("composer.stop")} (Esc)`,
        onclick: () => this.on.stop(),
      },
      icon("stop"),
    );
    this.element = h(
      "div.composer",
      null,
      h("div.composer-box", null, this.box, h("div.composer-buttons", null, this.stop, this.send)),
      h("p.hint", { id: "message-hint" }, t("composer.hint")),
    );
    this.update();
  }

  /** Write to that conversation; its unsent draft comes back. */
  open(key, agentName) {
    this.key = `qworkspace.draft.${key}`;
    this.box.placeholder = t("composer.placeholder", { agent: agentName });
    this.box.value = recall(this.key);
    this.changed(false);
  }

  focus() {
    // On a touch screen the focus would open the keyboard over what there is to read.
    if (!TOUCH.matches) this.box.focus({ preventScroll: true });
  }

  /** Put a text into the box. */
  fill(text) {
    this.box.value = text;
    this.changed();
    this.box.focus();
  }

  setBusy(busy) {
    this.busy = busy;
    this.update();
  }

  submit() {
    const text = this.box.value.trim();
    if (!text) return;
    this.box.value = "";
    this.changed();
    this.on.send(text);
  }

  pressed(event) {
    // While an input method composes, Enter chooses a candidate.
    if (event.key !== "Enter" || event.isComposing || event.keyCode === 229) return;
    const always = event.ctrlKey || event.metaKey;
    if (!always && (event.shiftKey || event.altKey || TOUCH.matches)) return;
    event.preventDefault();
    this.submit();
  }

  changed(keep = true) {
    if (keep && this.key) remember(this.key, this.box.value);
    this.box.style.height = "auto";
    this.box.style.height = `${Math.min(this.box.scrollHeight, innerHeight * 0.4)}px`;
    this.update();
  }

  update() {
    const written = Boolean(this.box.value.trim());
    const label = this.busy ? t("composer.queue") : t("composer.send");
    this.send.setAttribute("aria-label", label);
    this.send.title = label;
    this.send.disabled = !written;
    this.send.hidden = this.busy && !written;
    this.stop.hidden = !this.busy;
  }
}

function recall(key) {
  try {
    return sessionStorage.getItem(key) ?? "";
  } catch {
    return "";
  }
}

function remember(key, text) {
  try {
    if (text) sessionStorage.setItem(key, text);
    else sessionStorage.removeItem(key);
  } catch {
    // A browser that keeps nothing keeps no drafts.
  }
}
