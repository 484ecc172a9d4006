import { ConnectionLost, ServerError } from "../server/api.js";
import { element, replaceChildren } from "../ui/dom.js";
import { fieldTable, prose, Schemas } from "./schema.js";

/** The server's OpenAPI document as a page; read when it is first shown. */
export class ApiView {
  #reading = null;

  constructor(api) {
    this.api = api;
    this.title = element("h1", { tabIndex: -1 }, "API");
    this.body = element("div", {});
    this.element = element("div", { className: "api" }, this.title, this.body);
  }

  focus() {
    this.title.focus();
  }

  set shown(shown) {
    if (shown) this.#reading ??= this.#read();
  }

  async #read() {
    try {
      this.#show(await this.api.json("/openapi.json"));
    } catch (error) {
      if (!(error instanceof ServerError || error instanceof ConnectionLost)) throw error;
      this.#reading = null; // once more when it is next shown
      replaceChildren(
        this.body,
        element("p", { className: "error", attributes: { role: "alert" } }, error.message),
      );
    }
  }

  #show(document) {
    const schemas = new Schemas(document);
    const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => ({
        path,
        method: method.toUpperCase(),
        operation,
      })),
    );
    replaceChildren(
      this.body,
      element(
        "p",
        { className: "note" },
        `${document.info.title} ${document.info.version}, OpenAPI ${document.openapi}. The same as JSON: `,
        element("code", {}, "GET /openapi.json"),
        ".",
      ),
      element(
        "div",
        { className: "operations" },
        operations.map((each) => operationView(schemas, each)),
      ),
    );
  }
}

function operationView(schemas, { path, method, operation }) {
  const view = element(
    "details",
    { className: "operation", id: operation.operationId },
    element(
      "summary",
      {},
      element("span", { className: `method ${method.toLowerCase()}` }, method),
      element("code", { className: "path" }, path),
      element("span", { className: "note" }, operation.summary),
      operation.security &&
        element(
          "span",
          { className: "lock" },
          operation.security.some((each) => each.user) ? "key" : "admin key",
        ),
    ),
  );
  // Tables of all operations at once would take longer than anybody waits.
  view.addEventListener("toggle", () => view.append(details(schemas, operation)), { once: true });
  return view;
}

function details(schemas, operation) {
  const parts = [];
  const parameters = operation.parameters ?? [];
  if (parameters.length) {
    parts.push(element("h3", {}, "Parameters"));
    parts.push(
      element(
        "ul",
        {},
        parameters.map((each) =>
          element(
            "li",
            {},
            element("code", {}, each.name),
            ` in the ${each.in}: ${schemas.words(each.schema)}${each.required ? ", required" : ""}`,
          ),
        ),
      ),
    );
  }
  const body = operation.requestBody?.content["application/json"]?.schema;
  if (body) parts.push(element("h3", {}, "Body"), objectsView(schemas, body));
  for (const [status, { description, content = {} }] of Object.entries(operation.responses)) {
    for (const [type, { schema }] of Object.entries(content)) {
      parts.push(element("h3", {}, `${status} `, element("span", { className: "note" }, type)));
      parts.push(element("p", {}, prose(schema.description ?? description)));
      if (!status.endsWith("XX")) parts.push(objectsView(schemas, schema));
    }
  }
  return element("div", { className: "operation-body" }, parts);
}

/** The object that a schema is, and those within it, closed. */
function objectsView(schemas, schema) {
  const objects = [...schemas.objects(schema)];
  return element(
    "div",
    {},
    objects.map(([name, object], i) => {
      const table = element(
        "details",
        { className: "object", open: i === 0 },
        element("summary", {}, element("code", {}, name)),
      );
      const fill = () => {
        if (table.childElementCount > 1) return;
        if (object.description) table.append(element("p", { className: "note" }, prose(object.description)));
        table.append(fieldTable(schemas, object));
      };
      if (i === 0) fill();
      else table.addEventListener("toggle", fill);
      return table;
    }),
  );
}
