// The request of the page as a command of curl, and as Python.

import { stringify } from "./api.js";
import { hasKey } from "./keys.js";

/** A value of JSON as Python writes it. */
function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value !== "object") return String(value); // a number, or a whole number beyond 53 bits
  return `{${Object.entries(value).map(([name, part]) => `${literal(name)}: ${literal(part)}`).join(", ")}}`;
}

export function curlOf(body) {
  const key = hasKey() ? '-H "authorization: Bearer $LEAFBEAM_KEY" ' : "";
  const data = stringify(body).replaceAll("'", String.raw`'\''`);
  return `curl ${location.origin}/v1/recommend ${key}-H 'content-type: application/json' -d '${data}'`;
}

export function pythonOf(body) {
  const fields = Object.entries(body).map(([name, value]) => `        ${name}=${literal(value)},\n`);
  const [imports, key] = hasKey() ? ["import os\n\n", ', key=os.environ["LEAFBEAM_KEY"]'] : ["", ""];
  return `${imports}from leafbeam import Client

with Client("${location.origin}"${key}) as client:
    answer = client.recommend(
${fields.join("")}    )
print(answer.item_ids)
`;
}

/** Copy a text to the clipboard, and let the button say so for a moment. */
export async function copy(button, text) {
  button.dataset.label ??= button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    throw new Error(`This browser does not let the page copy. Copy this yourself: ${text}`);
  }
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = button.dataset.label), 1500);
}
