// JSON schemas as tables that can be read.

import { element } from "../ui/dom.js";

const MOST_DEPTH = 4;

/** Follows references into a document's components. */
export class Schemas {
  constructor(document) {
    this.document = document;
  }

  resolve(schema) {
    const name = schema?.$ref?.replace("#/components/schemas/", "");
    return name === undefined ? schema : { ...this.document.components.schemas[name], name };
  }

  /** The type in a few words, as in "list of strings, or null". */
  words(schema, depth = 0) {
    const found = this.resolve(schema);
    if (found.name && found.type === "object") return found.name;
    if (found.const !== undefined) return JSON.stringify(found.const);
    if (found.enum) return found.enum.map((each) => JSON.stringify(each)).join(" or ");
    const choices = found.anyOf ?? found.oneOf;
    if (choices) {
      const words = choices.map((each) => this.words(each, depth + 1));
      return [...new Set(words)].join(" or ");
    }
    if (found.type === "array")
      return `list of ${found.items && depth < MOST_DEPTH ? this.words(found.items, depth + 1) : "any"}`;
    if (Array.isArray(found.type)) return found.type.join(" or ");
    return found.type ?? "any";
  }

  /** The objects with fields that are within a schema: itself, or those that it lists or may be. */
  objects(schema, found = new Map()) {
    const resolved = this.resolve(schema);
    if (!resolved || typeof resolved !== "object") return found;
    if (resolved.properties && resolved.name) {
      if (found.has(resolved.name)) return found;
      found.set(resolved.name, resolved);
      for (const each of Object.values(resolved.properties)) this.objects(each, found);
      return found;
    }
    const inner = [
      resolved.items,
      ...(resolved.anyOf ?? []),
      ...(resolved.oneOf ?? []),
      ...Object.values(resolved.properties ?? {}),
    ];
    for (const each of [...inner, resolved.contentSchema, resolved.else]) this.objects(each, found);
    return found;
  }
}

/** The fields of an object as a table. */
export function fieldTable(schemas, schema) {
  const required = new Set(schema.required ?? []);
  const rows = Object.entries(schema.properties).map(([name, field]) =>
    element(
      "tr",
      {},
      element(
        "th",
        { scope: "row" },
        element("code", {}, name),
        required.has(name) && element("span", { className: "required" }, "required"),
      ),
      element("td", {}, schemas.words(field)),
      element("td", {}, remarks(schemas.resolve(field), field)),
    ),
  );
  return element(
    "div",
    { className: "table", tabIndex: 0, attributes: { role: "region", "aria-label": "Fields" } },
    element(
      "table",
      {},
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          ["Field", "Type", ""].map((text) => element("th", { scope: "col" }, text)),
        ),
      ),
      element("tbody", {}, rows),
    ),
  );
}

const BOUNDS = [
  ["minimum", "at least"],
  ["exclusiveMinimum", "above"],
  ["maximum", "at most"],
  ["exclusiveMaximum", "below"],
  ["minItems", "items at least"],
  ["maxItems", "items at most"],
  ["minLength", "characters at least"],
  ["maxLength", "characters at most"],
];

function remarks(found, field) {
  const texts = [];
  const description = field.description ?? (found.name ? null : found.description);
  if (description) texts.push(description);
  const bounded = [found, ...(found.anyOf ?? [])];
  for (const [key, words] of BOUNDS) {
    const value = bounded.map((each) => each[key]).find((each) => each !== undefined);
    if (value !== undefined) texts.push(bound(key, words, value));
  }
  const given = field.default ?? found.default;
  if (given !== undefined && given !== null) texts.push(`default ${JSON.stringify(given)}`);
  return prose(texts.join("; "));
}

function bound(key, words, value) {
  const power = Math.log2(Math.abs(value));
  // Beyond what a number here holds exactly, bounds are the limits of 64 bits.
  if (Number.isSafeInteger(value) || !Number.isInteger(power)) return `${words} ${value}`;
  return key === "maximum" ? `below 2^${power}` : `${words} ${value < 0 ? "−" : ""}2^${power}`;
}

/** The nodes of a description, where two backticks mark code. */
export function prose(text) {
  return text.split("``").map((part, i) => (i % 2 ? element("code", {}, part) : part));
}
