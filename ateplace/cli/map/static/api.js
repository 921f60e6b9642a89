// /openapi.json as a page: what the usual viewers would load from elsewhere, in a few lines.

import { $, el } from "./dom.js";

const nameOf = (schema) => {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map(nameOf).join(" or ");
  if (schema.enum || schema.const) return (schema.enum ?? [schema.const]).map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `list of ${nameOf(schema.items)}`;
  if (schema.type === "object" && schema.additionalProperties) return `map of ${nameOf(schema.additionalProperties)}`;
  return schema.type ?? "anything";
};

const spec = await (await fetch("/openapi.json")).json();
$("about").textContent = `${spec.info.description} Version ${spec.info.version}.`;
$("paths").append(...Object.entries(spec.paths).map(([path, { get }]) => {
  const answer = Object.values(get.responses[200]?.content ?? {}).map(({ schema }) => nameOf(schema)).filter(Boolean).join(", ");
  return el("section", {}, el("h2", {}, el("code", {}, `GET ${path}`)), el("p", {}, get.description ?? ""),
    get.parameters ? el("ul", {}, ...get.parameters.map((one) => el("li", {}, el("code", {}, one.name), ` in ${one.in}: ${one.description ?? nameOf(one.schema)}`))) : null,
    answer ? el("p", { className: "quiet" }, `answers ${answer}`) : null);
}));
$("schemas").append(...Object.entries(spec.components.schemas).filter(([name]) => !name.includes("Validation")).map(([name, schema]) =>
  el("section", {}, el("h2", {}, name), el("p", { className: "quiet" }, (schema.description ?? "").split("(")[0].startsWith(name) ? "" : (schema.description ?? "")),
    el("table", {}, el("tbody", {}, ...Object.entries(schema.properties ?? {}).map(([key, value]) =>
      el("tr", {}, el("td", {}, el("code", {}, key)), el("td", {}, nameOf(value)))))))));
