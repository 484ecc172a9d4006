// Blocks that hold text: each takes lines, and shows them.

import { copy } from "../ui/clipboard.js";
import { element, iconButton } from "../ui/dom.js";
import { inlineNodes } from "./inline.js";

const MOST_LINES = 200; // of a part of code
const MOST_ROWS = 200; // of a part of a table

/** A paragraph or a heading. Its nodes are made anew when `render` is called. */
export class Prose {
  constructor(tag) {
    this.node = element(tag);
    this.lines = [];
  }

  add(line) {
    this.lines.push(line);
  }

  /** Take the last line back. */
  undo() {
    this.lines.pop();
  }

  render() {
    this.node.replaceChildren(...inlineNodes(this.lines.join("\n")));
  }
}

/** A block of code. Its text only grows, in parts: a browser lays out all of a part anew. */
export class Code {
  constructor(language = "") {
    this.code = element("code");
    this.begin();
    const button = iconButton("copy", "Copy code", () =>
      copy(this.code.textContent.replace(/\n$/, ""), button),
    );
    const label = language ? `Code, ${language}` : "Code";
    this.node = element(
      "div",
      { className: "code-block" },
      element("div", { className: "code-head" }, element("span", {}, language), button),
      element("pre", { tabIndex: 0, attributes: { "aria-label": label } }, this.code),
    );
  }

  begin() {
    this.text = document.createTextNode("");
    this.lines = 0;
    this.code.append(element("span", {}, this.text));
  }

  add(line) {
    const { text, lines } = this;
    const { length } = text;
    if (lines === MOST_LINES) this.begin();
    this.lines += 1;
    this.text.appendData(`${line}\n`);
    this.before = { text, lines, length };
  }

  undo() {
    const { text, lines, length } = this.before;
    if (this.text !== text) this.text.parentNode.remove();
    else text.deleteData(length, text.length - length);
    this.text = text;
    this.lines = lines;
  }

  render() {}
}

/**
 * A table whose rows come one by one. A long one is several, each with the header: the widths of
 * columns depend on all rows of a table, so that each new row would cost as much as all before.
 */
export class Table {
  constructor(header, alignments) {
    this.header = header;
    this.alignments = alignments;
    this.node = element("div", {
      className: "table",
      tabIndex: 0,
      attributes: { role: "region", "aria-label": "Table" },
    });
    this.begin();
  }

  begin() {
    const table = element("table", {}, element("thead", {}, this.row("th", this.header)), element("tbody"));
    this.node.append(table);
  }

  get body() {
    return this.node.lastChild.lastChild;
  }

  add(line) {
    if (this.body.childElementCount === MOST_ROWS) this.begin();
    this.body.append(this.row("td", cells(line)));
  }

  undo() {
    this.body.lastChild.remove();
    if (!this.body.firstChild && this.node.childElementCount > 1) this.node.lastChild.remove();
  }

  row(tag, texts) {
    const made = this.alignments.map((alignment, i) =>
      element(tag, { className: alignment }, inlineNodes(texts[i] ?? "")),
    );
    return element("tr", {}, made);
  }

  render() {}
}

/** The cells of a row, between bars that no backslash precedes. */
export function cells(line) {
  const inner = line
    .trim()
    .replace(/^\|/, "")
    .replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

/** The alignments that a table's second line gives, or null where the line is none. */
export function alignments(line) {
  if (!line.includes("-") || !/^[\s|:-]+$/.test(line) || !/[|:]/.test(line)) return null;
  const given = cells(line);
  if (!given.every((cell) => /^:?-+:?$/.test(cell))) return null;
  return given.map((cell) => {
    if (!cell.endsWith(":")) return "";
    return cell.startsWith(":") ? "center" : "right";
  });
}
