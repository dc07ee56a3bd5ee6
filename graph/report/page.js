"use strict";
// The records of a run's page: their table, and the story of one in a drawer. Figures and charts are in the HTML already.
// Foreign text (of agents, tools and models) only ever becomes a text node: see show and element.

const byId = (id) => document.getElementById(id);
const own = (object, key) => (Object.hasOwn(object, key) ? object[key] : null);

// Replaces what would be invisible, or would reorder the line, by its code point: controls, bidi overrides, half pairs.
const HIDDEN = /(?![\n\t\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const show = (text) =>
  String(text).replace(HIDDEN, (one) => `⟨U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

// Returns an element with attributes; children are elements, texts and lists of both, and null is left out.
function element(tag, given, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(given)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null) made.setAttribute(key, show(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null) made.append(child instanceof Node ? child : document.createTextNode(show(child)));
  }
  return made;
}

const decoded = new Map();

// Returns a part of the records: gzip in base64 in a block of the page, decoded once, when it is first asked for.
function part(name) {
  if (!decoded.has(name)) decoded.set(name, decode(byId(`part-${name}`).textContent));
  return decoded.get(name);
}

async function decode(packed) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(plain).text());
}

const link = (kind, id, given, ...children) =>
  element("a", { href: `#${new URLSearchParams({ [kind]: id })}`, ...given }, ...children);

// ---------------------------------------------------------------- the table

const SHOWN = 100; // rows; a button shows more
let shown = SHOWN;

async function drawRows(most) {
  shown = most;
  const kind = byId("kind").value;
  const { columns, rows } = (await part("table"))[kind];
  const [iteration, tool] = [byId("iteration").value, byId("tool").value];
  const words = byId("search").value.trim().toLowerCase();
  const found = rows.filter(
    ([id, tools, ...cells]) =>
      (!iteration || cells[0] === iteration) &&
      (!tool || tools.includes(tool)) &&
      (!words || id === words || cells.some((one) => String(one).toLowerCase().includes(words))),
  );
  const drawn = found.slice(0, shown).map(([id, , number, name, ...cells]) =>
    element(
      "tr",
      {},
      element("td", {}, number),
      element("td", { class: "main" }, link(kind, id, { title: name }, name)),
      cells.map((one) => element("td", {}, one)),
    ),
  );
  const heads = columns.map((name) => element("th", { scope: "col" }, name));
  byId("rows").replaceChildren(element("thead", {}, element("tr", {}, heads)), element("tbody", {}, drawn));
  byId("found").textContent = `${found.length} of ${rows.length}`;
  byId("more").hidden = found.length <= shown;
}

// ---------------------------------------------------------------- the drawer: one record and all that led to it

// Returns the rollouts of a group, a dot for each.
const dots = (group, marked) =>
  group.map(([id, result, title]) =>
    link("rollout", id, { class: `k ${result}${id === marked ? " now" : ""}`, title, "aria-label": title }),
  );

// Returns a row of a step: its label, its text or what it leads to, and what is behind it.
function storyRow({ label = "", text = "", tone = "", to, code, groups = [], marked, more }) {
  const shownText = !text ? "" : to ? link(...to, {}, text) : element(code ? "code" : "span", { class: "long" }, text);
  const behind = more && element("dl", {}, more.map(storyRow));
  return element(
    "div",
    { class: `fact ${tone}` },
    element("dt", {}, label),
    element(
      "dd",
      {},
      groups.map((group) => element("span", { class: "dots" }, dots(group, marked))),
      behind ? element("details", {}, element("summary", {}, shownText), behind) : shownText,
    ),
  );
}

const card = ([name, id, about, rows], opened) =>
  element(
    "li",
    { class: "card", tabindex: 0 },
    element("h3", {}, name[0].toUpperCase() + name.slice(1)),
    about ? element("p", { class: "muted" }, about) : null,
    element("dl", {}, rows.map(storyRow)),
    name === "rollout" && id !== opened ? element("p", {}, link("rollout", id, {}, "Read the whole rollout")) : null,
    id ? element("p", { class: "id" }, id) : null,
  );

let drawing = 0;

async function drawDrawer() {
  const drawer = byId("drawer");
  const turn = (drawing += 1);
  const [[kind, id] = []] = new URLSearchParams(location.hash.slice(1));
  if (!["task", "context", "rollout"].includes(kind)) {
    drawer.close();
    return;
  }
  const name = own(await part("index"), id);
  const block = name && (await part(name));
  const story = block && own(block, id);
  if (turn !== drawing) return; // another address was opened meanwhile
  const steps = story ? [...(story.before ? block[story.before].steps : []), ...story.steps, ...(story.after || [])] : [];
  drawer.replaceChildren(
    element(
      "header",
      {},
      element("h2", { id: "drawer-h", tabindex: -1 }, story ? story.title : `This ${kind} is not here`),
      element("button", { type: "button", "aria-label": "Close", onclick: () => drawer.close() }, "✕"),
    ),
    story
      ? element("ol", { class: `lineage ${kind}` }, steps.map((one) => card(one, id)))
      : element("p", {}, `The page does not hold ${id}. The run's folder may: coevolve show ${id}`),
  );
  if (!drawer.open) drawer.showModal();
  drawer.dataset.id = id;
  byId("drawer-h").focus();
}

// ---------------------------------------------------------------- start

for (const id of ["kind", "iteration", "tool", "search"]) byId(id).addEventListener("input", () => drawRows(SHOWN));
byId("more").addEventListener("click", () => drawRows(10 * shown));
for (const cell of document.querySelectorAll("[data-tool]")) {
  cell.addEventListener("click", () => {
    byId("kind").value = "context";
    byId("tool").value = cell.dataset.tool;
    byId("iteration").value = cell.dataset.iteration;
    drawRows(SHOWN);
  });
}
byId("drawer").addEventListener("close", () => {
  if (location.hash.includes("=")) location.hash = "all"; // an empty one would scroll to the top
});
byId("drawer").addEventListener("click", (event) => event.target === byId("drawer") && byId("drawer").close());
window.addEventListener("hashchange", drawDrawer);
Promise.all([drawRows(SHOWN), drawDrawer()]).then(
  () => (document.documentElement.dataset.ready = "true"),
  (error) => byId("found").append(show(`The records cannot be shown: ${error}. A browser of 2023 or later can.`)),
);
