"use strict";
// The page of a run. Foreign text (of agents, tools and models) only ever becomes a text node: see fill and show.

// ---------------------------------------------------------------- elements

const byId = (id) => document.getElementById(id);

// Replaces what would be invisible, or would reorder the line, by its code point: controls, bidi overrides, half pairs.
const HIDDEN = /(?![\n\t\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const show = (text) =>
  String(text).replace(HIDDEN, (one) => `⟨U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

function fill(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(show(child)));
  }
  return element;
}

function set(element, given) {
  for (const [key, value] of Object.entries(given || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : show(value));
  }
  return element;
}

// $.p("text"), $.a({ href: "#" }, "text", [more]): an element with attributes, where the first argument is a plain object.
const plain = (value) =>
  value !== null && typeof value === "object" && !(value instanceof Node) && !Array.isArray(value);
const $ = new Proxy(
  {},
  {
    get:
      (_, tag) =>
      (...inside) =>
        fill(set(document.createElement(tag), plain(inside[0]) ? inside.shift() : {}), inside),
  },
);
const svg = (tag, given, ...children) =>
  fill(set(document.createElementNS("http://www.w3.org/2000/svg", tag), given), children);

const muted = (...words) => $.p({ class: "muted" }, ...words);
const identity = (...words) => $.p({ class: "id" }, ...words);
const heads = (names) => $.thead($.tr(names.map((name) => $.th({ scope: "col" }, name))));
const scroller = (...inside) => $.div({ class: "scroll", tabindex: 0 }, ...inside);

// A half goes to the even digit, as in Python: 1/8 is 12 % here and in the terminal.
const halfEven = (value) => (value % 1 === 0.5 ? 2 * Math.round(value / 2) : Math.round(value));
const percent = (share, digits = 0) =>
  share === null || share === undefined ? "–" : `${digits ? (100 * share).toFixed(digits) : halfEven(100 * share)}\u00a0%`;
const number = (value) => (value === null || value === undefined ? "–" : Number(value).toLocaleString("en-US"));
const plural = (count, one, more) => `${number(count)} ${count === 1 ? one : more || `${one}s`}`;
const own = (object, key, otherwise = null) => (Object.hasOwn(object, key) ? object[key] : otherwise);
const spoken = (word) => String(word).replaceAll("_", " ");

// ---------------------------------------------------------------- records

const decoded = new Map();

// Returns a part of the records: gzip in base64 in a block of the page, decoded once, when it is first asked for.
function part(name) {
  if (!decoded.has(name)) decoded.set(name, decode(byId(`part-${name}`)));
  return decoded.get(name);
}

async function decode(block) {
  if (!block) return null;
  const packed = atob(block.textContent);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i += 1) bytes[i] = packed.charCodeAt(i);
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(plain).text());
}

let run = null; // the overview
let table = null; // rows of tasks and contexts, with tasksById and contextsById
let taskRollouts = null;

const stageName = (iteration) => (iteration === null ? "stage-seed" : `stage-${String(iteration).padStart(3, "0")}`);
const turnsName = (iteration) => `turns-${String(iteration).padStart(3, "0")}`;

const TASK = { id: 0, origin: 1, iteration: 2, words: 3, tools: 4, context: 5, groups: 6, course: 7 };
const CONTEXT = {
  id: 0,
  iteration: 1,
  kind: 2,
  words: 3,
  status: 4,
  drafts: 5,
  admitted: 6,
  reasons: 7,
  tools: 8,
  task: 9,
};

// Returns all rollouts as objects, with indices by id and by task.
async function rollouts() {
  if (taskRollouts) return taskRollouts;
  const columns = await part("rollouts");
  const all = columns.id.map((id, i) => ({
    id,
    task: columns.tasks[columns.task[i]],
    iteration: columns.iteration[i],
    step: columns.step[i],
    sample: columns.sample[i],
    result: columns.result[i],
  }));
  const byTask = new Map();
  for (const one of all) {
    if (!byTask.has(one.task)) byTask.set(one.task, []);
    byTask.get(one.task).push(one);
  }
  taskRollouts = { all, byId: new Map(all.map((one) => [one.id, one])), byTask };
  return taskRollouts;
}

const solved = (one) => one.result === "1";
const failed = (one) => one.result === "0";
const RESULTS = {
  1: "success",
  0: "failure",
  "-": "infrastructure error",
};

async function turnsOf(rollout) {
  const block = rollout && (await part(turnsName(rollout.iteration)));
  return block ? own(block, rollout.id) : null;
}

async function taskOf(id) {
  const row = table.tasksById.get(id);
  if (!row) return null;
  const block = await part(stageName(row[TASK.iteration]));
  return { id, row, pool: block.pool, ...block.tasks[id] };
}

async function chainOf(id) {
  const row = table.contextsById.get(id);
  if (!row) return null;
  const block = await part(stageName(row[CONTEXT.iteration]));
  return { id, row, pool: block.pool, ...block.chains[id] };
}

// ---------------------------------------------------------------- addresses

const VIEWS = ["task", "context", "rollout"];
let at = {}; // what the address says: iteration, and one of VIEWS

function parsed(hash) {
  const found = Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));
  return {
    iteration: found.iteration === undefined ? null : found.iteration,
    view: VIEWS.find((name) => found[name]) || null,
    id: found[VIEWS.find((name) => found[name])] || null,
  };
}

// Returns the address of a view that keeps the iteration: address({task: id}), address({}) closes it.
function address(to, iteration = at.iteration) {
  const query = new URLSearchParams();
  if (iteration !== null && iteration !== undefined) query.set("iteration", iteration);
  for (const [key, value] of Object.entries(to)) query.set(key, value);
  return `#${query}` === "#" ? "#all" : `#${query}`; // an empty one would scroll to the top
}

const link = (to, ...children) => $.a({ href: address(to) }, ...children);
const go = (hash) => {
  location.hash = hash;
};

function route() {
  const before = at;
  at = parsed(location.hash);
  if (at.iteration !== before.iteration || !before.drawn) drawIteration();
  at.drawn = true;
  drawDrawer();
}

function drawIteration() {
  drawPicker();
  drawCharts();
  drawRows(0);
}
