// Building the page from nodes: text is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";
const ICONS = {
  alert: "M12 8v5m0 3.2v.1M10.3 3.9 2.4 17.6A2 2 0 0 0 4.1 20.6h15.8a2 2 0 0 0 1.7-3L13.7 3.9a2 2 0 0 0-3.4 0Z",
  arrowDown: "M12 5v14m-6-6 6 6 6-6",
  check: "m5 12.5 4.5 4.5L19 7.5",
  chevron: "m9 6 6 6-6 6",
  clock: "M12 7v5l3 2m6-2a9 9 0 1 1-18 0 9 9 0 0 1 18 0Z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  globe: "M3 12h18M12 3c5 5 5 13 0 18-5-5-5-13 0-18Zm9 9a9 9 0 1 1-18 0 9 9 0 0 1 18 0Z",
  info: "M12 11v5.5m0-9v.1M21 12a9 9 0 1 1-18 0 9 9 0 0 1 18 0Z",
  menu: "M4 7h16M4 12h16M4 17h10",
  more: "M5.5 12h.1M12 12h.1m6.4 0h.1",
  pencil: "m4 20 1-4L16.5 4.5l3 3L8 19l-4 1Z",
  pin: "M12 15v6M8 3h8l-1 6 3 4v2H6v-2l3-4-1-6Z",
  play: "M7 5v14l12-7Z",
  plug: "M9 3v5m6-5v5M6 8h12v3a6 6 0 0 1-12 0V8Zm6 9v4",
  plus: "M12 5v14M5 12h14",
  search: "m20 20-4.5-4.5M17.5 11a6.5 6.5 0 1 1-13 0 6.5 6.5 0 0 1 13 0Z",
  send: "M12 19V5m-6 6 6-6 6 6",
  shield: "M12 3 5 6v5c0 5 3 8 7 10 4-2 7-5 7-10V6l-7-3Z",
  stop: "M7 7h10v10H7z",
  thought: "M9 18h6m-5 3h4M12 3a6 6 0 0 0-4 10.5c.7.7 1 1.5 1 2.5h6c0-1 .3-1.8 1-2.5A6 6 0 0 0 12 3Z",
  tool: "M14.5 6.5a4 4 0 0 1 5-1l-2.7 2.7.3 1.8 1.8.3 2.1-2.2a4 4 0 0 1-5.4 4.6L8.5 20a2.1 2.1 0 0 1-3-3l7.3-7.2a4 4 0 0 1 1.7-3.3Z",
  trash: "M4 7h16M9 7V4h6v3m-8 0 1 13h8l1-13M10 11v5m4-5v5",
  x: "m6 6 12 12M18 6 6 18",
};

/** An element: `h("button.primary", {type: "button", onclick: f}, "text", node)`. */
export function h(spec, props, ...children) {
  const [tag, ...classes] = spec.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(props ?? {})) setProp(element, name, value);
  append(element, children);
  return element;
}

/** Add nodes or texts; false, null and undefined add nothing. */
export function append(element, children) {
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

/** One of the drawn icons, hidden from screen readers. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", `icon icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button that is only an icon; `label` is its name and its tooltip. */
export function iconButton(name, label, onclick, spec = "button.icon-button") {
  return h(spec, { type: "button", "aria-label": label, title: label, onclick }, icon(name));
}

/** Characters that reorder or hide text, shown as what they are. */
export function visible(text) {
  return text.replace(
    /[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g,
    (character) => `\u27e8U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`,
  );
}

/** Say something to screen readers without moving the focus. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** Put text on the clipboard, also on pages that are not a secure context. */
export async function copyText(text) {
  if (navigator.clipboard) {
    try {
      return await navigator.clipboard.writeText(text);
    } catch {
      // Refused without focus or permission: the old way below needs neither.
    }
  }
  const box = h("textarea.sr-only", { readonly: true });
  box.value = text;
  document.body.append(box);
  box.select();
  document.execCommand("copy");
  box.remove();
}

/** A button that copies `text()` and says so for a moment. */
export function copyButton(text, labels, spec = "button.copy") {
  const word = h("span", null, labels.copy);
  const button = h(spec, { type: "button", title: labels.copy }, icon("copy"), word);
  button.addEventListener("click", async () => {
    await copyText(text());
    word.textContent = labels.copied;
    button.classList.add("done");
    setTimeout(() => {
      word.textContent = labels.copy;
      button.classList.remove("done");
    }, 1600);
  });
  return button;
}

/** Ask in a modal dialog; resolves with `true` or the input's text, or null when it was dismissed. */
export function ask({ title, body, confirm, cancel, danger = false, input = null }) {
  const field = input === null ? null : h("input.field", { type: "text", "aria-label": title, maxlength: "200" });
  const done = (value) => () => {
    answer = value();
    dialog.close();
  };
  const yes = done(() => (field ? field.value.trim() : true));
  const dialog = h(
    "dialog.ask",
    { "aria-label": title },
    h("h2", null, title),
    body && h("p", null, body),
    field,
    h(
      "div.row",
      null,
      h("button.button", { type: "button", onclick: done(() => null) }, cancel),
      h(danger ? "button.button.danger" : "button.button.primary", { type: "button", onclick: yes }, confirm),
    ),
  );
  let answer = null;
  if (field) {
    field.value = input;
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault(); // else it would press what gets the focus back
      yes();
    });
  }
  return show(dialog).then(() => answer);
}

/** Show a modal dialog; resolves once it is closed. */
export function show(dialog) {
  document.body.append(dialog);
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.showModal();
  dialog.querySelector("input")?.select();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        dialog.remove();
        resolve();
      },
      { once: true },
    );
  });
}

function setProp(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (typeof value === "function") element.addEventListener(name.slice(2), value);
  else element.setAttribute(name, value === true ? "" : value);
}
