// Pictures of items: the one whose address a column has, or else a tile in a colour of the item's category.

import { $, el, titleColumn } from "./dom.js";

const NAMED = /image|img|picture|photo|thumb|cover|poster/i;
const FILE = /\.(avif|gif|jpe?g|png|svg|webp)(\?|#|$)/i;
const ORIGIN = /^https?:\/\/[\w.-]+(:\d+)?(?=[/?#]|$)/; // a host of other characters could end the quotes of a shell
const CATEGORY = /categor|department|genre|kind|type|cuisine/i;

/** The address of an item's picture; null if no column has one. */
export function addressOf(item) {
  const isPicture = ([name, value]) =>
    typeof value === "string" && (value.startsWith("data:image/") || (/^https?:\/\//i.test(value) && (NAMED.test(name) || FILE.test(value))));
  return Object.entries(item.attributes).find(isPicture)?.[1] ?? null;
}

/** An item's category, or its first other short text; null for an item that has none. */
function categoryOf(item) {
  const texts = Object.entries(item.attributes).filter(
    ([name, value]) => name !== titleColumn.name && typeof value === "string" && value.length < 40 && /^\p{L}/u.test(value),
  );
  return (texts.find(([name]) => CATEGORY.test(name)) ?? texts[0])?.[1] ?? null;
}

/** A tile with the initials of the category, as the address of an SVG: items of one category have the same. */
function tileOf(category) {
  let hue = 7;
  for (const character of category) hue = (hue * 31 + character.codePointAt(0)) % 360;
  const initials = [...category.matchAll(/[\p{L}\p{N}]+/gu)].slice(0, 2).map(([word]) => [...word][0].toUpperCase());
  const drawing = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64"><path fill="hsl(${hue} 42% 38%)" d="M0 0h64v64H0z"/>
<text x="32" y="41" text-anchor="middle" font-family="system-ui, sans-serif" font-size="25" fill="#fff">${initials.join("")}</text></svg>`;
  return `data:image/svg+xml,${encodeURIComponent(drawing)}`;
}

/** The picture of an item, which says nothing that its title and attributes do not; null for an item without any. */
export function pictureOf(item) {
  const [address, category] = [addressOf(item), categoryOf(item)];
  const tile = category === null ? null : tileOf(category);
  if (address === null && tile === null) return null;
  const picture = el("img", { class: "picture", alt: "", loading: "lazy", decoding: "async", src: address ?? tile });
  picture.addEventListener("error", () => (tile === null ? picture.remove() : (picture.src = tile)), { once: true });
  return picture;
}

/** Say once which site's pictures the browser may not load, and which setting allows it. */
export function explainBlockedPictures() {
  addEventListener("securitypolicyviolation", ({ effectiveDirective, blockedURI }) => {
    const origin = ORIGIN.exec(blockedURI)?.[0];
    if (effectiveDirective !== "img-src" || !$("pictures").hidden || !origin) return;
    $("pictures").textContent = `Pictures of ${origin} are not loaded. To allow them, start the server with --set 'exposure.pictures=["${origin}"]'.`;
    $("pictures").hidden = false;
  });
}
