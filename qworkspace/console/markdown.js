// Markdown that arrives in pieces. Finished lines are final; only the last, open line is drawn again.

import { copyButton, h, visible } from "./dom.js";
import { inline } from "./inline.js";
import { t } from "./i18n.js";

const FENCE = /^(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^(#{1,6})(?:\s+(.*))?$/;
const RULE = /^(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const BULLET = /^([-*+])(\s+|$)/;
const NUMBER = /^(\d{1,9})([.)])(\s+|$)/;
const DELIMITER_CELL = /^:?-+:?$/;
// What an open line may still turn into something else: not shown before it is clear.
const UNDECIDED = /^\s*(?:[-*+#>|`~_=\s]{0,4}|`{3,}\S*|\d{1,9}[.)]?|\|?[\s:|-]+)$/;
const DEEPEST = 16;

/** Draw a whole text. */
export function renderMarkdown(root, text) {
  const stream = new MarkdownStream(root);
  stream.push(text);
  stream.end();
}

export class MarkdownStream {
  constructor(root) {
    this.stack = [{ kind: "root", element: root }];
    this.leaf = null;
    this.rest = "";
    this.undo = null;
    this.dirty = new Set();
    this.unfinished = null; // the text that was drawn as if its open marks were closed
  }

  /** Add text; draw what it changes. */
  push(text) {
    if (this.grow(text)) return;
    this.takeBack();
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop();
    for (const line of lines) this.line(line.endsWith("\r") ? line.slice(0, -1) : line);
    if (this.rest) this.showOpenLine();
    this.draw(true);
  }

  /** No more text: the open line is final. */
  end() {
    this.takeBack();
    if (this.rest) this.line(this.rest);
    this.rest = "";
    this.draw(false);
  }

  /** The usual piece only lengthens the open paragraph: its element stays. */
  grow(text) {
    const leaf = this.leaf;
    if (!this.undo || leaf?.kind !== "text" || !leaf.flows || text.includes("\n")) return false;
    const unshown = this.rest.slice(this.rest.trimEnd().length);
    this.rest += text;
    leaf.text += (unshown + text).trimEnd();
    this.dirty.add(leaf);
    this.draw(true);
    return true;
  }

  showOpenLine() {
    if (this.leaf?.kind !== "code" && UNDECIDED.test(this.rest)) return;
    const { stack, leaf } = this;
    this.undo = [
      () => {
        this.stack = stack;
        this.leaf = leaf;
      },
    ];
    this.stack = [...stack];
    this.line(this.rest);
  }

  takeBack() {
    for (const step of this.undo?.reverse() ?? []) step();
    this.undo = null;
  }

  /** Note how to take a change of the open line back. */
  undoable(step) {
    this.undo?.push(step);
  }

  draw(open) {
    // What was drawn as unfinished and is finished now looks different.
    if (this.unfinished && (this.unfinished !== this.leaf || !open)) {
      this.dirty.add(this.unfinished);
      this.unfinished = null;
    }
    for (const leaf of this.dirty) {
      const unfinished = open && leaf === this.leaf;
      if (unfinished) this.unfinished = leaf;
      leaf.element.replaceChildren();
      for (const node of inline(leaf.text, { open: unfinished })) leaf.element.append(node);
    }
    this.dirty.clear();
  }

  line(line) {
    const { depth, rest } = this.matchContainers(line.replace(/^\t+/, (tabs) => "    ".repeat(tabs.length)));
    if (depth < this.stack.length && !this.isLazy(rest)) this.closeTo(depth);
    if (this.leaf?.kind === "code") return this.codeLine(rest);
    this.block(rest);
  }

  /** How many open containers this line continues, and what is left of it. */
  matchContainers(line) {
    let rest = line;
    let depth = 1;
    for (; depth < this.stack.length; depth++) {
      const container = this.stack[depth];
      if (container.kind === "quote") {
        const quoted = /^ {0,3}> ?/.exec(rest);
        if (!quoted) break;
        rest = rest.slice(quoted[0].length);
      } else if (container.kind === "item") {
        const indent = rest.search(/\S|$/);
        const nested = indent >= Math.min(2, container.indent) && this.leaf?.kind !== "code" && marker(rest.trim());
        if (rest.trim() && indent < container.indent && !nested) break;
        rest = rest.slice(Math.min(indent, container.indent));
      }
    }
    // A list without its item is no match; a following item opens it again.
    while (depth > 1 && this.stack[depth - 1].kind === "list") depth--;
    return { depth, rest };
  }

  /** A plain line after an unfinished paragraph belongs to it, even less indented. */
  isLazy(rest) {
    const text = rest.trim();
    return this.leaf?.kind === "text" && this.leaf.flows && text && !startsBlock(text);
  }

  closeTo(depth) {
    this.left = this.stack[depth]?.kind === "list" ? this.stack[depth] : null;
    this.stack.length = depth;
    this.leaf = null;
  }

  block(rest) {
    const left = this.left;
    this.left = null;
    const indent = rest.search(/\S|$/);
    const text = rest.slice(indent).trimEnd();
    if (!text) {
      if (this.leaf?.kind === "text" || this.leaf?.kind === "table") this.leaf = null;
      return;
    }
    if (this.leaf?.kind === "table" && text.includes("|")) return this.tableRow(text);
    if (text[0] === ">" && this.stack.length < DEEPEST) return this.quote(text);
    if (RULE.test(text)) return this.addLeaf(h("hr"), null);
    const mark = this.stack.length < DEEPEST && marker(text);
    if (mark) return this.item(mark, indent, text, left);
    const fence = FENCE.exec(text);
    if (fence) return this.code(fence, indent);
    const heading = HEADING.exec(text);
    if (heading) return this.heading(heading);
    if (this.leaf?.kind === "text" && this.leaf.flows) return this.continueText(text);
    this.textLeaf(h("p", { dir: "auto" }), text, true);
  }

  quote(text) {
    const element = h("blockquote", { dir: "auto" });
    this.add(element);
    this.stack.push({ kind: "quote", element });
    this.leaf = null;
    this.block(text.slice(text[1] === " " ? 2 : 1));
  }

  item(mark, indent, text, left) {
    const top = this.stack.at(-1);
    const list = left?.mark === mark.kind ? left : { kind: "list", mark: mark.kind, element: null };
    if (!list.element) {
      list.element = mark.ordered ? h("ol", mark.start === 1 ? null : { start: mark.start }) : h("ul");
      this.add(list.element, top.element);
    }
    const element = h("li", { dir: "auto" });
    this.add(element, list.element);
    this.stack.push(list, { kind: "item", element, indent: indent + Math.min(mark.width, 5) });
    this.leaf = null;
    const rest = text.slice(mark.width);
    const task = /^\[([ xX])\]\s+/.exec(rest);
    if (task)
      element.append(
        h("span.task", { "aria-label": task[1] === " " ? t("md.open") : t("md.done") }, task[1] === " " ? "☐" : "☑"),
      );
    this.block(task ? rest.slice(task[0].length) : rest);
  }

  code(fence, indent) {
    const language = visible(fence[2].trim().split(/[\s{]/, 1)[0]).slice(0, 40);
    const content = document.createTextNode("");
    const leaf = { kind: "code", fence: fence[1], indent, source: "", content };
    const labels = { copy: t("copy"), copied: t("copied") };
    this.addLeaf(
      h(
        "div.code",
        { dir: "ltr" },
        h(
          "div.code-head",
          null,
          h("span", null, language || t("md.code")),
          copyButton(() => leaf.source, labels),
        ),
        h("pre", { tabindex: "0", role: "region", "aria-label": language || t("md.code") }, h("code", null, content)),
      ),
      leaf,
    );
  }

  codeLine(line) {
    const leaf = this.leaf;
    const bare = line.trim();
    if (bare.startsWith(leaf.fence) && bare === leaf.fence[0].repeat(bare.length)) {
      this.leaf = null;
      return;
    }
    const text = line.slice(Math.min(line.search(/\S|$/), leaf.indent));
    const [shown, source] = [leaf.content.length, leaf.source];
    leaf.source += `${text}\n`;
    leaf.content.appendData(`${visible(text)}\n`);
    this.undoable(() => {
      leaf.source = source;
      leaf.content.deleteData(shown, leaf.content.length - shown);
    });
  }

  heading([, marks, text = ""]) {
    // The page itself has the first levels.
    const level = Math.min(6, marks.length + 2);
    this.textLeaf(h(`h${level}.md-h${marks.length}`, { dir: "auto" }), text.replace(/\s#+$/, ""), false);
  }

  textLeaf(element, text, flows) {
    this.addLeaf(element, { kind: "text", element, text, flows });
    this.dirty.add(this.leaf);
  }

  continueText(text) {
    const leaf = this.leaf;
    const before = leaf.text;
    if (!before.includes("\n") && this.startTable(before, text)) return;
    leaf.text += `\n${text}`;
    this.dirty.add(leaf);
    this.undoable(() => {
      leaf.text = before;
      this.dirty.add(leaf);
    });
  }

  startTable(head, delimiter) {
    const aligns = cells(delimiter);
    const names = cells(head);
    if (!head.includes("|") || aligns.length !== names.length || !aligns.every((c) => DELIMITER_CELL.test(c)))
      return false;
    const paragraph = this.leaf.element;
    const body = h("tbody");
    const leaf = { kind: "table", body, align: aligns.map(alignment) };
    const table = h(
      "div.table",
      { tabindex: "0", role: "region", "aria-label": t("md.table") },
      h("table", null, h("thead", null, row("th", names, leaf.align)), body),
    );
    paragraph.replaceWith(table);
    this.leaf = leaf;
    this.undoable(() => table.replaceWith(paragraph));
    return true;
  }

  tableRow(text) {
    const { body, align } = this.leaf;
    const names = cells(text);
    this.add(
      row(
        "td",
        align.map((_, index) => names[index] ?? ""),
        align,
      ),
      body,
    );
  }

  addLeaf(element, leaf) {
    this.add(element);
    this.leaf = leaf;
  }

  add(element, parent = this.stack.at(-1).element) {
    parent.append(element);
    this.undoable(() => element.remove());
  }
}

function startsBlock(text) {
  return text[0] === ">" || RULE.test(text) || FENCE.test(text) || HEADING.test(text) || marker(text);
}

/** A list marker at the beginning of `text`: what kind, how wide with its spaces, where counting starts. */
function marker(text) {
  const bullet = BULLET.exec(text);
  if (bullet && !RULE.test(text)) return { kind: bullet[1], ordered: false, width: width(bullet[1].length, bullet[2]) };
  const number = NUMBER.exec(text);
  if (!number) return null;
  return { kind: number[2], ordered: true, start: Number(number[1]), width: width(number[1].length + 1, number[3]) };
}

function width(mark, spaces) {
  return mark + (spaces.length > 4 ? 1 : Math.max(1, spaces.length));
}

function alignment(cell) {
  if (cell.endsWith(":")) return cell.startsWith(":") ? "center" : "right";
  return "";
}

function row(tag, texts, align) {
  return h(
    "tr",
    null,
    ...texts.map((text, index) => h(align[index] ? `${tag}.${align[index]}` : tag, { dir: "auto" }, ...inline(text))),
  );
}

/** The cells of a table's line; `\|` and bars in code do not divide. */
function cells(line) {
  const text = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  const found = [""];
  let ticks = false;
  for (let at = 0; at < text.length; at++) {
    if (text[at] === "\\" && text[at + 1] === "|") found[found.length - 1] += text[++at];
    else if (text[at] === "|" && !ticks) found.push("");
    else {
      if (text[at] === "`") ticks = !ticks;
      found[found.length - 1] += text[at];
    }
  }
  return found.map((cell) => cell.trim());
}
