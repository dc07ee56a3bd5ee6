// ---------------------------------------------------------------- the table

const PAGE = 50;
const view = { tab: "contexts", page: 0, sort: { contexts: ["iteration", -1], tasks: ["iteration", -1] }, rows: [] };
const course = (row) => row[TASK.course];
const COLUMNS = {
  contexts: [
    ["iteration", "Iter.", (row) => row[CONTEXT.iteration] ?? -1, (row) => row[CONTEXT.iteration] ?? "D₀", "num"],
    [
      "words",
      "Weakness",
      (row) => row[CONTEXT.words],
      (row) => $.a({ href: address({ context: row[CONTEXT.id] }), title: row[CONTEXT.words] }, row[CONTEXT.words]),
      "main",
    ],
    ["status", "Memory", (row) => row[CONTEXT.status], (row) => row[CONTEXT.status], "wide"],
    ["drafts", "Drafts", (row) => row[CONTEXT.drafts], (row) => row[CONTEXT.drafts], "num wide"],
    ["admitted", "Admitted", (row) => row[CONTEXT.admitted], (row) => row[CONTEXT.admitted], "num"],
    [
      "refused",
      "Refused",
      (row) => row[CONTEXT.reasons].length,
      (row) => row[CONTEXT.reasons].map((i) => spoken(table.reasons[i])).join(", "),
      "wide",
    ],
  ],
  tasks: [
    ["iteration", "Iter.", (row) => row[TASK.iteration] ?? -1, (row) => row[TASK.iteration] ?? "D₀", "num"],
    [
      "words",
      "Task",
      (row) => row[TASK.words],
      (row) => $.a({ href: address({ task: row[TASK.id] }), title: row[TASK.words] }, row[TASK.words]),
      "main",
    ],
    ["origin", "Origin", (row) => row[TASK.origin], (row) => row[TASK.origin], "wide"],
    ["groups", "Groups", (row) => row[TASK.groups], (row) => row[TASK.groups], "num wide"],
    ["last", "Success", (row) => (course(row).length ? course(row).at(-1)[1] : -1), (row) => spark(row), "num course"],
    [
      "change",
      "Change",
      (row) => (course(row).length > 1 ? course(row).at(-1)[1] - course(row)[0][1] : -9),
      (row) => (course(row).length > 1 ? `${Math.round(100 * (course(row).at(-1)[1] - course(row)[0][1]))}` : "–"),
      "num wide",
    ],
  ],
};

function spark(row) {
  const points = course(row);
  if (!points.length) return "–";
  const last = Math.max(1, run.iterations.length - 1);
  const place = ([iteration, share]) => [3 + (50 * iteration) / last, 15 - 12 * share];
  return [
    svg(
      "svg",
      { class: "spark", viewBox: "0 0 56 18", "aria-hidden": "true" },
      svg("polyline", { class: "line c1 thin", points: points.map(place).join(" ") }),
      points.map((one) => svg("circle", { class: "dot c1", cx: place(one)[0], cy: place(one)[1], r: 1.8 })),
    ),
    percent(points.at(-1)[1]),
  ];
}

function option(value, name) {
  return $.option({ value }, name);
}

function drawTable() {
  const tools = table.tools.map((name, i) => [name, i]).sort((a, b) => (a[0] < b[0] ? -1 : 1));
  const kinds = [...new Set(table.contexts.map((row) => row[CONTEXT.kind]).filter(Boolean))].sort();
  const filter = (id, name, options) =>
    $.label($.span(name), $.select({ id: `filter-${id}`, onchange: () => drawRows(0) }, option("", "any"), options));
  fill(byId("records"), [
    $.div(
      { class: "tabs", role: "tablist", "aria-label": "Records" },
      ["contexts", "tasks"].map((tab) =>
        $.button(
          {
            type: "button",
            role: "tab",
            id: `tab-${tab}`,
            "aria-controls": "panel",
            "aria-selected": "false",
            tabindex: -1,
            onclick: () => {
              view.tab = tab;
              drawRows(0);
            },
            onkeydown: (event) => {
              if (rove(event, [...event.target.parentNode.children], "ArrowLeft", "ArrowRight"))
                document.activeElement.click();
            },
          },
          "",
        ),
      ),
    ),
    $.div(
      { class: "filters" },
      $.label(
        { class: "search" },
        $.span("Search"),
        $.input({
          id: "search",
          type: "search",
          autocomplete: "off",
          placeholder: "words or an id",
          oninput: () => drawRows(0),
          onkeydown: jump,
        }),
      ),
      filter(
        "tool",
        "Tool",
        tools.map(([name, i]) => option(i, name)),
      ),
      filter(
        "kind",
        "Signal",
        kinds.map((kind) => option(kind, kind)),
      ),
      filter(
        "reason",
        "Refusal",
        table.reasons.map((reason, i) => option(i, spoken(reason))),
      ),
    ),
    $.p({ id: "found", class: "muted", role: "status" }),
    $.div({ id: "panel", class: "scroll", role: "tabpanel" }, $.table({ id: "rows", class: "rows" })),
    $.div(
      { class: "pages" },
      $.button({ type: "button", id: "previous", onclick: () => drawRows(view.page - 1) }, "Previous"),
      $.span({ id: "page", class: "muted" }),
      $.button({ type: "button", id: "next", onclick: () => drawRows(view.page + 1) }, "Next"),
    ),
  ]);
  byId("rows").addEventListener("keydown", (event) => {
    if (!event.target.closest("tbody")) return;
    const links = [...byId("rows").querySelectorAll("tbody a")];
    if (rove(event, links, "ArrowUp", "ArrowDown")) return;
    const to = { PageUp: view.page - 1, PageDown: view.page + 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    drawRows(to);
    byId("rows").querySelector("tbody a")?.focus();
  });
}

// Opens the record whose id was typed in full.
async function jump(event) {
  const id = event.target.value.trim();
  if (event.key !== "Enter" || !id) return;
  if (table.tasksById.has(id)) go(address({ task: id }));
  else if (table.contextsById.has(id)) go(address({ context: id }));
  else if ((await rollouts()).byId.has(id)) go(address({ rollout: id }));
}

function matching(tab) {
  const words = byId("search").value.trim().toLowerCase();
  const [tool, kind, reason] = ["tool", "kind", "reason"].map((id) => byId(`filter-${id}`).value);
  const iteration = at.iteration === null ? undefined : at.iteration === "seed" ? null : Number(at.iteration);
  const its = tab === "tasks" ? TASK : CONTEXT;
  return table[tab].filter((row) => {
    const context = tab === "tasks" ? table.contextsById.get(row[TASK.context]) : row;
    return (
      (iteration === undefined || row[its.iteration] === iteration) &&
      (!tool || row[its.tools].includes(Number(tool))) &&
      (!kind || (context && context[CONTEXT.kind] === kind)) &&
      (!reason || (context && context[CONTEXT.reasons].includes(Number(reason)))) &&
      (!words || row[its.words].toLowerCase().includes(words) || row[its.id].includes(words))
    );
  });
}

function drawRows(page) {
  const { tab } = view;
  const columns = COLUMNS[tab];
  const [by, direction] = view.sort[tab];
  const key = columns.find((column) => column[0] === by)[2];
  const found = { contexts: matching("contexts"), tasks: matching("tasks") };
  const rows = found[tab]
    .map((row) => [key(row), row])
    .sort((a, b) => direction * (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0));
  const pages = Math.max(1, Math.ceil(rows.length / PAGE));
  view.page = Math.min(Math.max(0, page), pages - 1);
  for (const name of ["contexts", "tasks"]) {
    const button = byId(`tab-${name}`);
    button.setAttribute("aria-selected", String(name === tab));
    button.tabIndex = name === tab ? 0 : -1;
    button.replaceChildren(`${name === "tasks" ? "Tasks" : "Contexts"} ${number(found[name].length)}`);
  }
  const head = $.thead(
    $.tr(
      columns.map(([name, title, , , style]) =>
        $.th(
          {
            scope: "col",
            class: style,
            "aria-sort": name === by ? (direction > 0 ? "ascending" : "descending") : "none",
          },
          $.button(
            {
              type: "button",
              onclick: () => {
                view.sort[tab] = [
                  name,
                  name === by ? -direction : style.includes("num") && name !== "iteration" ? -1 : 1,
                ];
                drawRows(0);
                byId("rows").querySelector(`[aria-sort="ascending"] button, [aria-sort="descending"] button`)?.focus();
              },
            },
            title,
            name === by ? (direction > 0 ? " ↑" : " ↓") : "",
          ),
        ),
      ),
    ),
  );
  const body = $.tbody(
    rows
      .slice(view.page * PAGE, (view.page + 1) * PAGE)
      .map(([, row]) => $.tr(columns.map((column) => $.td({ class: column[4] }, column[3](row))))),
  );
  byId("rows").replaceChildren(head, body);
  body.querySelectorAll("a").forEach((one, i) => {
    one.tabIndex = i ? -1 : 0;
  });
  byId("found").textContent =
    `${plural(rows.length, tab.slice(0, -1))} of ${number(table[tab].length)}` +
    (at.iteration === null ? "" : at.iteration === "seed" ? ", of D₀" : `, of iteration ${at.iteration}`);
  byId("page").textContent = `${view.page + 1} of ${pages}`;
  byId("previous").disabled = view.page === 0;
  byId("next").disabled = view.page >= pages - 1;
}
