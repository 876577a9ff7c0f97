// Text within a block: code spans, emphasis, links. Work grows with the length of the text, whatever is in it.

import { h, visible } from "./dom.js";

const SAFE = new Set(["http:", "https:", "mailto:"]);
const PLAIN = /(?:[^\\`*_~!\[\]<h]|h(?!ttps?:\/\/))+/y;
const BARE_URL = /https?:\/\/[^\s<>"`\u3000-\u303f\uff00-\uffef]+/y;
const ANGLE_URL = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;
// The bounds keep a hostile text from making this search long.
const TARGET =
  /\(\s{0,9}(?:<([^<>\n]{0,2000})>|([^\s()]{0,2000}(?:\([^\s()]{0,200}\)[^\s()]{0,200}){0,9}))(?:\s{1,9}(?:"[^"\n]{0,500}"|'[^'\n]{0,500}'))?\s{0,9}\)/y;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}_]/u;
const DEEPEST = 12;

/** The absolute form of a link that may be followed, else null. */
export function safeHref(text) {
  try {
    const url = new URL(text);
    return SAFE.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** Nodes and texts for `text`. While a block is still open, an unfinished `**` or backtick already takes effect. */
export function inline(text, { open = false } = {}) {
  // A mark at the open end may be half of one: it waits for what follows.
  return new Inline(open ? text.replace(/[*_~`]{1,3}$/, "") : text, open).nodes();
}

class Inline {
  constructor(text, open) {
    this.text = text;
    this.open = open;
    this.at = 0;
    this.items = [];
    this.brackets = [];
    this.noRun = new Set();
  }

  nodes() {
    while (this.at < this.text.length) this.step();
    return emphasize(this.items, this.open);
  }

  step() {
    const plain = this.match(PLAIN);
    if (plain) return this.items.push(plain[0]);
    switch (this.text[this.at]) {
      case "\\":
        return this.escape();
      case "`":
        return this.code();
      case "*":
      case "_":
      case "~":
        return this.delimiter();
      case "!":
        return this.text[this.at + 1] === "[" ? this.bracket(2) : this.literal();
      case "[":
        return this.bracket(1);
      case "]":
        return this.closeBracket();
      case "<":
        return this.link(this.match(ANGLE_URL)?.[1]) ?? this.literal();
      default:
        return this.bareUrl();
    }
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found) this.at = pattern.lastIndex;
    return found;
  }

  literal() {
    this.items.push(this.text[this.at++]);
  }

  escape() {
    const next = this.text[this.at + 1] ?? "";
    if (!ESCAPABLE.test(next)) return this.literal();
    this.items.push(next);
    this.at += 2;
  }

  code() {
    const ticks = /`+/y;
    ticks.lastIndex = this.at;
    const run = ticks.exec(this.text)[0];
    const start = this.at + run.length;
    const end = this.noRun.has(run.length) ? -1 : closing(this.text, run.length, start);
    if (end < 0) {
      // Known from here on: no later run has that length, so nobody looks again.
      this.noRun.add(run.length);
      if (!this.open || run.length > 2) {
        this.at = start;
        return this.items.push(run);
      }
    }
    const body = this.text.slice(start, end < 0 ? undefined : end);
    this.at = end < 0 ? this.text.length : end + run.length;
    this.items.push(h("code", null, visible(trimCode(body))));
  }

  delimiter() {
    const mark = this.text[this.at];
    let end = this.at;
    while (this.text[end] === mark) end++;
    const count = end - this.at;
    const before = this.text[this.at - 1] ?? " ";
    const after = this.text[end] ?? " ";
    this.at = end;
    const left = !/\s/.test(after);
    const right = !/\s/.test(before);
    this.items.push({
      mark,
      count,
      opens: left && (mark !== "_" || !WORD.test(before)) && (mark !== "~" || count === 2),
      closes: right && (mark !== "_" || !WORD.test(after)) && (mark !== "~" || count === 2),
    });
  }

  bracket(width) {
    this.brackets.push({ index: this.items.length, width });
    this.items.push(this.text.slice(this.at, this.at + width));
    this.at += width;
  }

  closeBracket() {
    const bracket = this.brackets.pop();
    this.at++;
    const target = bracket && this.text[this.at] === "(" ? this.match(TARGET) : null;
    const href = target && safeHref(target[1] ?? target[2]);
    if (!href) return this.items.push("]" + (target ? target[0] : ""));
    const label = emphasize(this.items.splice(bracket.index).slice(1), false);
    this.brackets.length = 0;
    this.items.push(anchor(href, label));
  }

  link(url) {
    const href = url && safeHref(url);
    if (!href) return url ? this.items.push(`<${url}>`) : undefined;
    return this.items.push(anchor(href, [url]));
  }

  bareUrl() {
    const found = this.match(BARE_URL)?.[0];
    if (!found) return this.literal();
    const url = trimUrl(found);
    this.at -= found.length - url.length;
    const href = safeHref(url);
    this.items.push(href ? anchor(href, [url]) : url);
  }
}

/** Without the punctuation that ends the sentence around it. */
function trimUrl(found) {
  const tail = found.includes("(") ? ".,;:!?'*_~]" : ".,;:!?'*_~])";
  let end = found.length;
  while (tail.includes(found[end - 1])) end--;
  return found.slice(0, end);
}

function closing(text, length, from) {
  const ticks = /`+/g;
  ticks.lastIndex = from;
  for (let found = ticks.exec(text); found; found = ticks.exec(text)) {
    if (found[0].length === length) return found.index;
  }
  return -1;
}

function trimCode(body) {
  const line = body.replaceAll("\n", " ");
  return line.length > 2 && line.startsWith(" ") && line.endsWith(" ") && line.trim() ? line.slice(1, -1) : line;
}

function anchor(href, label) {
  const link = h("a", { href, target: "_blank", rel: "noopener noreferrer", title: href });
  for (const node of label) link.append(typeof node === "string" ? visible(node) : node);
  if (!link.textContent.trim()) link.textContent = href;
  return link;
}

/** Resolve delimiter runs by one pass with a stack of openers per mark; the rest becomes text. */
function emphasize(items, open) {
  const out = [];
  const openers = { "*": [], _: [], "~": [] };
  for (const item of items) {
    if (!item.mark) {
      out.push(item);
      continue;
    }
    if (item.closes) close(out, openers, item);
    if (item.count && item.opens) openers[item.mark].push(out.length);
    if (item.count) out.push(item);
  }
  if (open) closeAtEnd(out, openers);
  return joined(out);
}

/** Neighbouring texts as one. */
function joined(items) {
  const nodes = [];
  let text = [];
  for (const item of items.map(plain)) {
    if (typeof item === "string") text.push(item);
    else {
      if (text.length) nodes.push(text.join(""));
      text = [];
      nodes.push(item);
    }
  }
  if (text.length) nodes.push(text.join(""));
  return nodes;
}

function close(out, openers, closer) {
  const stack = openers[closer.mark];
  while (closer.count && stack.length) {
    const index = stack.at(-1);
    const opener = out[index];
    const used = Math.min(2, opener.count, closer.count);
    const element = wrap(out, index, closer.mark, used);
    if (!element) {
      stack.length = 0; // too deep: what is open stays text
      return;
    }
    for (const other of Object.values(openers)) while (other.length && other.at(-1) > index) other.pop();
    closer.count -= used;
    opener.count -= used;
    if (!opener.count) {
      stack.pop();
      out.pop();
    }
    out.push(element);
  }
}

function closeAtEnd(out, openers) {
  const index = openers["*"].at(-1);
  if (index === undefined || out[index].count !== 2 || index === out.length - 1) return;
  const element = wrap(out, index, "*", 2);
  if (element) out.splice(index, 1, element);
}

function wrap(out, index, mark, used) {
  const inside = out.slice(index + 1);
  const depth = 1 + inside.reduce((deepest, node) => Math.max(deepest, node.depth ?? 0), 0);
  if (!inside.length || depth > DEEPEST) return null;
  out.length = index + 1;
  const element = h(mark === "~" ? "s" : used === 2 ? "strong" : "em");
  for (const node of joined(inside)) element.append(node);
  element.depth = depth;
  return element;
}

function plain(node) {
  return node.mark ? node.mark.repeat(node.count) : node;
}
