// The first steps: letting this browser in, and the page for when nobody answers.

import { pair } from "./api.js";
import { copyButton, h, icon } from "./dom.js";
import { t } from "./i18n.js";
import { Backoff } from "./stream.js";

const CODE = /(?:^|#)pair=([^&\s]+)/;

/** The code in the address, which loses it at once: it must not stay in the history. */
export function takeCode() {
  const code = codeIn(location.hash);
  if (code) history.replaceState(null, "", location.pathname);
  return code;
}

/** Trade the code for the cookie; while the daemon starts, wait for it. */
export async function usePairingCode(code) {
  const backoff = new Backoff();
  while (true) {
    try {
      return await pair(code);
    } catch (error) {
      if (!error.passing || backoff.attempt > 6) throw error;
      await backoff.wait(new AbortController().signal);
    }
  }
}

/** A page in itself: why nothing is here yet and what to do. `failed` shows that a code did not work. */
export function pairingPage({ failed = null, onPaired }) {
  const field = h("input.field", {
    id: "pair-code",
    type: "text",
    autocomplete: "off",
    spellcheck: "false",
    "aria-label": t("pair.code"),
    placeholder: t("pair.code"),
  });
  const error = h("p.error", { role: "alert", hidden: !failed }, failed);
  const button = h("button.button.primary", { type: "button" }, t("pair.do"));
  const submit = async () => {
    const code = codeIn(field.value) ?? field.value.trim();
    if (!code) return field.focus();
    button.disabled = true;
    try {
      await usePairingCode(code);
      onPaired();
    } catch (failure) {
      error.textContent = failure.status === 403 ? t("pair.failed") : failure.message;
      error.hidden = false;
      button.disabled = false;
      field.select();
    }
    return undefined;
  };
  button.addEventListener("click", submit);
  field.addEventListener("keydown", (event) => event.key === "Enter" && submit());
  return card(
    "plug",
    t("pair.title"),
    t("pair.text"),
    error,
    h(
      "ol.steps",
      null,
      h("li", null, t("pair.step1")),
      h("li", null, t("pair.step2"), command("qworkspace console")),
      h("li", null, t("pair.step3")),
    ),
    h("p.or", null, t("pair.or")),
    h("div.row", null, field, button),
  );
}

/** Shown while a code is being used. */
export function pairingBusy() {
  return card("plug", t("pair.busy"), "", h("div.spinner", { role: "status", "aria-label": t("pair.busy") }));
}

/** Shown while the daemon cannot be reached. */
export function offlinePage() {
  return card(
    "alert",
    t("offline.page"),
    t("offline.text"),
    command("qworkspace up"),
    h("p.waiting", { role: "status" }, h("span.spinner.small"), t("connection.lost")),
  );
}

/** A command to type, with a button that copies it. */
export function command(text) {
  return h(
    "div.command",
    null,
    h("code", null, text),
    copyButton(() => text, { copy: t("copy"), copied: t("copied") }),
  );
}

function card(iconName, title, text, ...content) {
  return h(
    "main.gate",
    null,
    h(
      "div.gate-card",
      null,
      h("div.gate-icon", null, icon(iconName)),
      h("h1", null, title),
      text && h("p", null, text),
      ...content,
    ),
  );
}

function codeIn(text) {
  const found = CODE.exec(text);
  if (!found) return null;
  try {
    return decodeURIComponent(found[1]);
  } catch {
    return found[1];
  }
}
