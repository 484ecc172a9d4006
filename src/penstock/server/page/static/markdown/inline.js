// Emphasis, code, links and the like within a paragraph. Every text becomes a text node, and every
// element is made here by name: what a model writes is never read as markup of the page.

import { element } from "../ui/dom.js";

const SPECIAL = /[\\`*_~[!h\n]/g;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const URL_START = /https?:\/\/[^\s<>"'`]{1,2000}/y;
const LINK =
  /\[((?:[^[\]\\]|\\.){0,500})\]\(\s*<?([^\s<>()]{0,2000}(?:\([^\s<>()]{0,500}\)[^\s<>()]{0,500})?)>?(?:\s+(?:"[^"]{0,500}"|'[^']{0,500}'))?\s*\)/y;
const SAFE_SCHEMES = ["http:", "https:", "mailto:"];
const MOST_OPEN = 64; // runs of * and _ that may wait for their ends
const MOST_DEPTH = 4; // of links' texts

/** The nodes of a paragraph's text. */
export function inlineNodes(text, depth = 0) {
  return new Inline(text, depth).nodes();
}

/** One pass over a text: `parts` are nodes, and runs of marks that may begin emphasis. */
class Inline {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.parts = [];
    this.open = []; // indices into parts
    this.plain = "";
    this.noCode = new Set(); // lengths of runs of backticks that none behind here closes
  }

  nodes() {
    const { text } = this;
    let at = 0;
    while (at < text.length) {
      SPECIAL.lastIndex = at;
      const found = SPECIAL.exec(text);
      if (found === null) break;
      this.plain += text.slice(at, found.index);
      at = this.special(found.index);
    }
    this.plain += text.slice(at);
    this.flush();
    return this.parts.map((part) => (part instanceof Node ? part : document.createTextNode(part.marks)));
  }

  flush() {
    if (this.plain) this.parts.push(document.createTextNode(this.plain));
    this.plain = "";
  }

  push(node) {
    this.flush();
    this.parts.push(node);
  }

  /** Take what begins at `at`; returns where it ends. */
  special(at) {
    const character = this.text[at];
    if (character === "\\") return this.escape(at);
    if (character === "`") return this.code(at);
    if (character === "[") return this.link(at, at);
    if (character === "!" && this.text[at + 1] === "[") return this.link(at, at + 1);
    if (character === "h") return this.address(at);
    if (character === "\n") return this.lineEnd(at);
    if (character === "!") return this.literal(at, at + 1);
    return this.marks(at);
  }

  literal(from, to) {
    this.plain += this.text.slice(from, to);
    return to;
  }

  escape(at) {
    const next = this.text[at + 1];
    if (next === "\n") {
      this.push(element("br"));
      return at + 2;
    }
    if (next === undefined || !ESCAPABLE.test(next)) return this.literal(at, at + 1);
    this.plain += next;
    return at + 2;
  }

  lineEnd(at) {
    if (this.plain.endsWith("  ")) {
      this.plain = this.plain.trimEnd();
      this.push(element("br"));
    } else {
      this.plain += "\n";
    }
    return at + 1;
  }

  code(at) {
    const { text } = this;
    let start = at;
    while (text[start] === "`") start += 1;
    const width = start - at;
    if (!this.noCode.has(width)) {
      const closing = new RegExp(`(?<!\`)\`{${width}}(?!\`)`, "g");
      closing.lastIndex = start;
      const found = closing.exec(text);
      if (found !== null) {
        let code = text.slice(start, found.index).replaceAll("\n", " ");
        if (code.startsWith(" ") && code.endsWith(" ") && code.trim()) code = code.slice(1, -1);
        this.push(element("code", {}, code));
        return found.index + width;
      }
      this.noCode.add(width);
    }
    return this.literal(at, start);
  }

  link(from, at) {
    LINK.lastIndex = at;
    const found = this.depth < MOST_DEPTH ? LINK.exec(this.text) : null;
    const target = found && safeAddress(found[2]);
    if (!target) return this.literal(from, at + 1);
    const label = found[1] || target;
    this.push(anchor(target, inlineNodes(label, MOST_DEPTH)));
    return LINK.lastIndex;
  }

  address(at) {
    const before = this.text[at - 1];
    URL_START.lastIndex = at;
    const found = before === undefined || !/\w/.test(before) ? URL_START.exec(this.text) : null;
    if (found === null || this.depth > 0) return this.literal(at, at + 1);
    let url = found[0];
    let end = url.length;
    while (".,;:!?*_~".includes(url[end - 1])) end -= 1;
    url = url.slice(0, end);
    for (let extra = count(url, ")") - count(url, "("); extra > 0 && url.endsWith(")"); extra -= 1) {
      url = url.slice(0, -1);
    }
    const target = safeAddress(url);
    if (!target) return this.literal(at, at + 1);
    this.push(anchor(target, [document.createTextNode(url)]));
    return at + url.length;
  }

  /** A run of *, _ or ~: it closes what is open of its kind, and may open. */
  marks(at) {
    const { text } = this;
    const mark = text[at];
    let end = at;
    while (text[end] === mark) end += 1;
    let width = end - at;
    const before = text[at - 1] ?? " ";
    const after = text[end] ?? " ";
    const opens = !/\s/.test(after) && (mark !== "_" || !/\w/.test(before));
    const closes = !/\s/.test(before) && (mark !== "_" || !/\w/.test(after));
    if (mark === "~" && width !== 2) return this.literal(at, end);
    if (closes) width = this.close(mark, width);
    if (width === 0) return end;
    if (opens && this.open.length < MOST_OPEN) {
      this.flush();
      this.open.push(this.parts.length);
      this.parts.push({ mark, marks: mark.repeat(width) });
    } else {
      this.plain += mark.repeat(width);
    }
    return end;
  }

  /** Make emphasis of what lies behind the nearest open runs of `mark`; returns the marks left. */
  close(mark, width) {
    while (width > 0) {
      let i = this.open.length - 1;
      while (i >= 0 && this.parts[this.open[i]].mark !== mark) i -= 1;
      if (i < 0) break;
      const start = this.open[i];
      const opening = this.parts[start];
      const used = mark === "~" ? 2 : Math.min(width, opening.marks.length, 2);
      this.flush();
      if (start + 1 === this.parts.length) break; // nothing between them
      const inside = this.parts
        .splice(start + 1)
        .map((part) => (part instanceof Node ? part : document.createTextNode(part.marks)));
      const tag = mark === "~" ? "del" : used === 2 ? "strong" : "em";
      this.open.length = i;
      opening.marks = opening.marks.slice(used);
      if (opening.marks) this.open.push(start);
      else this.parts.pop();
      this.parts.push(element(tag, {}, inside));
      width -= used;
    }
    return width;
  }
}

/** The address as a browser would go to it, or null where it is no plain address of a page. */
function safeAddress(text) {
  let url;
  try {
    url = new URL(text);
  } catch {
    return null; // an address without a scheme would lead into this server
  }
  return SAFE_SCHEMES.includes(url.protocol) ? url.href : null;
}

function anchor(target, children) {
  return element("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}

function count(text, character) {
  return text.split(character).length - 1;
}
