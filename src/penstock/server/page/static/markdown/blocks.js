// Lines into blocks, one line after the other. What stands is never made again: a line adds to the
// open block, closes it, or opens others, so an answer of any length costs each line once.

import { element } from "../ui/dom.js";
import { alignments, cells, Code, Prose, Table } from "./leaves.js";

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+|$)/;
const RULE = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(.*)|$)/;
const TASK = /^\[([ xX])\]\s+/;
const LONGEST_MARK = 2000; // characters of a line that may be a fence, a rule or a heading
const MOST_DEPTH = 12; // of lists and quotes in each other
const MOST_LINES = 100; // of a paragraph: it is made anew with each line

/**
 * Reads lines and builds nodes in `root`. Between `tentative(line)` and `takeBack()` the nodes are
 * those of a line that may not have ended yet.
 */
export class Blocks {
  constructor(root) {
    this.root = root;
    this.containers = []; // open lists' items and quotes, outermost first
    this.leaf = null;
    this.undoing = null; // functions, while a line is tentative
    this.blank = false; // whether the last line was
  }

  add(line) {
    this.line(line.replaceAll("\t", "    "));
  }

  tentative(line) {
    const { containers, leaf, blank } = this;
    this.kept = { containers: [...containers], leaf, blank };
    this.undoing = [];
    this.add(line);
  }

  takeBack() {
    for (const undo of this.undoing.reverse()) undo();
    this.undoing = null;
    Object.assign(this, this.kept);
  }

  /** Make the nodes of the paragraph that is open. */
  render() {
    this.leaf?.render();
  }

  line(text) {
    let rest = text;
    let depth = 0;
    for (; depth < this.containers.length; depth += 1) {
      const inside = this.containers[depth].strip(rest);
      if (inside === null) break;
      rest = inside;
    }
    const isBlank = rest.trim() === "";
    const lazy = depth < this.containers.length && this.leaf instanceof Prose && !this.blank;
    if (depth === this.containers.length && this.leaf?.fence) {
      this.inFence(rest);
    } else if (lazy && !isBlank && !opensBlock(rest)) {
      this.prose(rest.trim());
    } else if (isBlank && depth < this.containers.length && !this.leaf?.fence) {
      this.close(); // a blank line ends the paragraph; whether it ends lists the next line shows
    } else {
      if (depth < this.containers.length) {
        this.close();
        this.containers.length = depth;
      }
      this.open(rest);
    }
    this.blank = isBlank;
  }

  inFence(line) {
    const { fence } = this.leaf;
    const end = fenceOf(line);
    if (end && end[2].startsWith(fence.mark) && end[3] === "") this.close();
    else this.put(line.replace(new RegExp(`^ {0,${fence.indent}}`), ""));
  }

  /** Open the containers that the line begins with, and put the rest into a leaf. */
  open(line) {
    let rest = line;
    while (this.containers.length < MOST_DEPTH) {
      if (isRule(rest)) break;
      const quote = QUOTE.exec(rest);
      const item = quote ? null : ITEM.exec(rest);
      if (quote) {
        this.close();
        this.push(new Quote(this.insert(element("blockquote"))));
        rest = rest.slice(quote[0].length);
      } else if (item && this.mayBeItem(item)) {
        rest = this.item(item);
      } else {
        break;
      }
    }
    this.text(rest);
  }

  /** A number may interrupt a paragraph only if it is 1: others end sentences. */
  mayBeItem([, , mark, , rest]) {
    if (!(this.leaf instanceof Prose)) return true;
    return rest !== undefined && (!/\d/.test(mark) || parseInt(mark, 10) === 1);
  }

  item([, indent, mark, space, rest = ""]) {
    this.close();
    const kind = /\d/.test(mark) ? "ol" : "ul";
    const parent = this.parent();
    let list = parent.lastElementChild;
    if (list?.tagName.toLowerCase() !== kind) {
      list = this.insert(element(kind));
      if (kind === "ol") list.start = parseInt(mark, 10);
    }
    const node = element("li");
    this.into(list, node);
    const width = indent.length + mark.length + (space === undefined || space.length > 4 ? 1 : space.length);
    this.push(new Item(node, width));
    const task = TASK.exec(rest);
    if (task === null) return rest;
    node.className = "task";
    const box = element("input", { type: "checkbox", disabled: true, checked: task[1] !== " " });
    this.into(node, box);
    return rest.slice(task[0].length);
  }

  text(line) {
    const fence = fenceOf(line);
    const heading = headingOf(line);
    if (line.trim() === "") {
      this.close();
    } else if (fence) {
      const code = new Code(fence[3].trim().split(/\s/)[0]);
      code.fence = { mark: fence[2], indent: fence[1].length };
      this.begin(code);
    } else if (heading) {
      this.begin(new Prose(`h${heading.level}`));
      this.put(heading.text);
      this.close();
    } else if (isRule(line)) {
      this.close();
      this.insert(element("hr"));
    } else if (this.leaf instanceof Table && line.includes("|")) {
      this.put(line);
    } else if (!this.makesTable(line)) {
      this.prose(line.trimStart());
    }
  }

  /** The second line of a table makes one of the paragraph's last line. */
  makesTable(line) {
    const { leaf } = this;
    if (!(leaf instanceof Prose) || leaf.lines.length !== 1) return false;
    const given = alignments(line);
    const header = given && cells(leaf.lines[0]);
    if (!header || header.length !== given.length) return false;
    const table = new Table(header, given);
    leaf.node.replaceWith(table.node);
    this.undoing?.push(() => table.node.replaceWith(leaf.node));
    this.leaf = table;
    return true;
  }

  prose(line) {
    if (!(this.leaf instanceof Prose) || this.leaf.lines.length >= MOST_LINES) {
      this.begin(new Prose("p"));
    }
    this.put(line);
  }

  begin(leaf) {
    this.close();
    this.insert(leaf.node);
    this.leaf = leaf;
  }

  put(line) {
    const { leaf } = this;
    leaf.add(line);
    this.undoing?.push(() => leaf.undo());
  }

  close() {
    this.leaf?.render();
    this.leaf = null;
  }

  push(container) {
    this.containers.push(container);
  }

  parent() {
    return this.containers.at(-1)?.node ?? this.root;
  }

  insert(node) {
    return this.into(this.parent(), node);
  }

  into(parent, node) {
    parent.append(node);
    this.undoing?.push(() => node.remove());
    return node;
  }
}

class Quote {
  constructor(node) {
    this.node = node;
  }

  /** What a line of the quote holds, or null where the line is none of it. */
  strip(line) {
    const found = QUOTE.exec(line);
    return found && line.slice(found[0].length);
  }
}

class Item {
  constructor(node, width) {
    this.node = node;
    this.width = width;
  }

  strip(line) {
    const indent = line.length - line.trimStart().length;
    if (indent === line.length) return "";
    return indent >= this.width ? line.slice(this.width) : null;
  }
}

function fenceOf(line) {
  return line.length > LONGEST_MARK ? null : FENCE.exec(line);
}

function isRule(line) {
  return line.length <= LONGEST_MARK && RULE.test(line);
}

function headingOf(line) {
  const found = line.length > LONGEST_MARK ? null : HEADING.exec(line);
  if (found === null) return null;
  return {
    level: found[1].length,
    text: line
      .slice(found[0].length)
      .trimEnd()
      .replace(/(?:^|\s)#+$/, ""),
  };
}

function opensBlock(line) {
  return fenceOf(line) || headingOf(line) || isRule(line) || QUOTE.test(line) || ITEM.test(line);
}
