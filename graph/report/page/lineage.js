// ---------------------------------------------------------------- the drawer: one record and all that led to it

let drawing = 0;

async function drawDrawer() {
  const drawer = byId("drawer");
  const turn = (drawing += 1);
  if (!at.view) {
    if (drawer.open) drawer.close();
    return;
  }
  const content = await lineage(at.view, at.id);
  if (turn !== drawing) return; // another address was opened meanwhile
  drawer.replaceChildren(
    $.header(
      $.h2({ id: "drawer-h", tabindex: -1 }, content.title),
      $.button({ type: "button", class: "close", "aria-label": "Close", onclick: () => go(address({})) }, "✕"),
    ),
    content.body,
  );
  if (!drawer.open) drawer.showModal();
  drawer.scrollTop = 0;
  byId("drawer-h").focus();
}

function fact(name, ...value) {
  return value.some((one) => one !== null && one !== undefined && one !== "" && !(Array.isArray(one) && !one.length))
    ? $.div({ class: "fact" }, $.dt(name), $.dd(value))
    : null;
}

const FOLD_LINES = 20,
  FOLD_LETTERS = 1600;

// Returns foreign text in an element, folded when it is long.
function folded(tag, text, style = null) {
  const lines = String(text).split("\n");
  if (lines.length <= FOLD_LINES && text.length <= FOLD_LETTERS) return $[tag]({ class: style }, text);
  const begin = $[tag]({ class: style }, lines.slice(0, FOLD_LINES).join("\n").slice(0, FOLD_LETTERS));
  const unfold = () => {
    begin.replaceChildren(document.createTextNode(show(text)));
    more.remove();
  };
  const words = `Show all ${plural(lines.length, "line")}, ${number(text.length)} characters`;
  const more = $.button({ type: "button", class: "more", onclick: unfold }, words);
  return $.div(begin, more);
}

function stateDetails(pool, task) {
  const state = pool[task.state];
  return $.details(
    $.summary("Start state and tools"),
    folded("pre", typeof state === "string" ? state : JSON.stringify(state, null, 1)),
    task.setup.length ? [$.p("Calls before the first turn"), task.setup.map((call) => folded("pre", call))] : null,
    task.tools === undefined ? null : muted(pool[task.tools].join(", ")),
  );
}

function dots(group, current) {
  return $.span(
    { class: "dots" },
    group.map((one) =>
      $.a({
        href: address({ rollout: one.id }),
        class: `k ${solved(one) ? "good" : failed(one) ? "bad" : "fault"}${one.id === current ? " now" : ""}`,
        title: `step ${one.step}, sample ${one.sample}: ${RESULTS[one.result]}`,
        "aria-label": `step ${one.step}, sample ${one.sample}: ${RESULTS[one.result]}`,
      }),
    ),
  );
}

function card(title, note, ...children) {
  return $.li($.div({ class: "card", tabindex: 0 }, $.h3(title), note ? muted(note) : null, children));
}

// Returns the groups that a row names, with a dot for each rollout.
function groupDots([task, iteration, steps, marked], byTask) {
  const its = (byTask.get(task) || []).filter((one) => one.iteration === iteration);
  return $.div(
    { class: marked ? null : "groups" },
    steps.map((number) =>
      dots(
        its.filter((one) => one.step === number),
        marked,
      ),
    ),
  );
}

// Returns a row of a step: its label, its text or what it leads to, and what is behind it.
function storyRow(one, byTask) {
  const tag = one.code ? "code" : "span";
  const text = !one.text ? null : one.to ? link({ [one.to[0]]: one.to[1] }, one.text) : folded(tag, one.text);
  return $.div(
    { class: `fact ${one.tone || ""}` },
    $.dt(one.label || ""),
    $.dd(
      one.groups ? groupDots(one.groups, byTask) : null,
      one.more
        ? $.details(
            $.summary(text),
            $.dl(one.more.map((its) => storyRow(its, byTask))),
          )
        : text,
    ),
  );
}

function stepCard([name, id, about, rows], byTask, ...more) {
  return card(
    name[0].toUpperCase() + name.slice(1),
    about,
    $.dl(rows.map((one) => storyRow(one, byTask))),
    name === "rollout" && at.id !== id ? $.p(link({ rollout: id }, "Read the whole rollout")) : null,
    more,
    id ? identity(id) : null,
  );
}

const cardsOf = (list) => [...list.querySelectorAll(".card")];

// Returns the steps of a record's story, with its title; null for a record that the run does not have.
async function storyOf(kind, id) {
  if (kind === "rollout") {
    const rollout = (await rollouts()).byId.get(id);
    if (!rollout) return null;
    const task = table.tasksById.get(rollout.task);
    return { title: task ? task[TASK.words] : rollout.task, steps: await turnsOf(rollout), rollout };
  }
  const task = kind === "task" ? await taskOf(id) : null;
  const chain = await chainOf(task ? task.row[TASK.context] : kind === "context" ? id : null);
  if (!task && !chain) return null;
  const before = chain ? chain.steps : [];
  return task
    ? { title: task.row[TASK.words], steps: [...before, ...task.steps], task, own: before.length }
    : { title: chain.name, steps: [...before, ...chain.effect] };
}

async function lineage(kind, id) {
  const story = await storyOf(kind, id);
  if (!story) return { title: `No such ${kind}`, body: $.p(`This run has no ${kind} ${id}.`) };
  const { byTask } = await rollouts();
  const { title, steps, task, rollout } = story;
  if (!steps) {
    const group = byTask.get(rollout.task).filter((one) => one.step === rollout.step);
    const words = `The turns of this rollout are not on this page. ${keptWords()} This one is in the run's folder: coevolve show ${id}`;
    return { title, body: $.div({ class: "absent" }, dots(group, id), $.p({ class: "notice" }, words)) };
  }
  const cards = steps.map((one, i) =>
    stepCard(one, byTask, task && i === story.own ? stateDetails(task.pool, task) : null),
  );
  const list = $.ol({ class: kind === "rollout" ? "lineage wide" : "lineage" }, cards);
  list.addEventListener("keydown", (event) => {
    if (event.target.classList.contains("card")) rove(event, cardsOf(list), "ArrowLeft", "ArrowRight");
    for (const one of cardsOf(list)) one.tabIndex = 0;
  });
  return { title, body: list };
}
