// ---------------------------------------------------------------- the drawer: one record and all that led to it

let drawing = 0;

async function drawDrawer() {
  const drawer = byId("drawer");
  const turn = (drawing += 1);
  if (!at.view) {
    if (drawer.open) drawer.close();
    return;
  }
  const content = at.view === "rollout" ? await reader(at.id) : await lineage(at.view, at.id);
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

const missing = (kind, id) => ({ title: `No such ${kind}`, body: $.p(`This run has no ${kind} ${id}.`) });

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

const calls = (turns) =>
  $.ol(
    { class: "reference" },
    turns.map((turn) =>
      $.li(turn.length ? turn.map((call) => folded("code", call)) : $.span({ class: "muted" }, "no call")),
    ),
  );
function stateDetails(pool, task) {
  const state = pool[task.state];
  return $.details(
    $.summary("Start state and tools"),
    folded("pre", typeof state === "string" ? state : JSON.stringify(state, null, 1)),
    task.setup.length ? [$.p("Calls before the first turn"), calls([task.setup])] : null,
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

const NOTED = ["unstable", "superfluous call"]; // causes of rollouts that may well have succeeded

function step(action, mark) {
  const [call, text, status, ran, hint] = action;
  return $.li(
    { class: `step ${status}${NOTED.includes(mark) ? " noted" : mark ? " wrong" : ""}` },
    folded("code", call),
    mark ? $.em(mark) : null,
    ran.length
      ? $.div(
          { class: "muted" },
          "ran ",
          ran.map((one) => $.code(one)),
        )
      : null,
    folded("pre", text, "observation"),
    hint ? $.p({ class: "hint" }, hint) : null,
  );
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
    name === "rollout" ? $.p(link({ rollout: id }, "Read the whole rollout")) : null,
    more,
    id ? identity(id) : null,
  );
}

const cardsOf = (list) => [...list.querySelectorAll(".card")];

async function lineage(kind, id) {
  const task = kind === "task" ? await taskOf(id) : null;
  const chain =
    kind === "context"
      ? await chainOf(id)
      : task && task.row[TASK.context]
        ? await chainOf(task.row[TASK.context])
        : null;
  if (!task && !chain) return missing(kind, id);
  const { byTask } = await rollouts();
  const cards = chain ? chain.steps.map((one) => stepCard(one, byTask)) : [];
  if (task) cards.push(...task.steps.map((one, i) => stepCard(one, byTask, i ? null : stateDetails(task.pool, task))));
  else cards.push(...chain.effect.map((one) => stepCard(one, byTask)));
  const list = $.ol({ class: "lineage" }, cards);
  list.addEventListener("keydown", (event) => {
    if (event.target.classList.contains("card")) rove(event, cardsOf(list), "ArrowLeft", "ArrowRight");
    for (const one of cardsOf(list)) one.tabIndex = 0;
  });
  return { title: task ? task.row[TASK.words] : chain.name, body: list };
}

// ---------------------------------------------------------------- the reader of rollouts

const CHECKS = ["instances", "state", "response"];

function turnCheck(check) {
  if (!check) return null;
  const [made, malformed, wanted, ...rest] = check;
  const marks = CHECKS.map((name, i) =>
    rest[i] === null ? null : $.span({ class: rest[i] ? "good" : "bad" }, `${rest[i] ? "✓" : "✗"} ${name}`),
  );
  return $.p(
    { class: "checks" },
    marks,
    $.span(`${plural(made, "call")} of ${wanted} in the reference`),
    malformed ? $.span({ class: "bad" }, `${number(malformed)} malformed`) : null,
    rest[3] ? $.span({ class: "bad" }, rest[3]) : null,
    rest[4] ? $.span({ class: "label" }, `SEAL: ${spoken(rest[4])}`) : null,
  );
}

function transcript(rollout, turns, marks) {
  if (!turns) {
    return $.p(
      { class: "notice" },
      `The turns of this rollout are not on this page. ${keptWords()} This one is in the run's folder: coevolve show ${rollout.id}`,
    );
  }
  return $.div(
    turns.turns.map(([text, guidelines, steps, ended, stop], i) =>
      $.section(
        { class: "turn" },
        $.h4(`Turn ${i + 1}`),
        guidelines.map((one) => $.p({ class: "hint" }, one)),
        folded("blockquote", text),
        $.ol(
          { class: "steps" },
          steps.map((action, n) => step(action, marks.get(`${i}/${n}`))),
        ),
        muted(stop ? `Stopped: ${spoken(stop)}.` : ended ? "The agent ended the turn." : "The turn was cut off."),
        turnCheck(turns.checks[i]),
      ),
    ),
    turns.checks
      .slice(turns.turns.length)
      .map((check, i) =>
        $.section(
          { class: "turn" },
          $.h4(`Turn ${turns.turns.length + i + 1}`),
          muted("Not reached."),
          turnCheck(check),
        ),
      ),
    turns.error ? $.p({ class: "notice" }, `Infrastructure error, left out of every rate: ${turns.error}`) : null,
  );
}

async function reader(id) {
  const { byId: known, byTask } = await rollouts();
  const rollout = known.get(id);
  if (!rollout) return missing("rollout", id);
  const [turns, task, signals] = [await turnsOf(rollout), await taskOf(rollout.task), await part("signals")];
  const list = byTask.get(rollout.task);
  const nearest = (test) =>
    list
      .filter((one) => one.id !== rollout.id && test(one))
      .sort((a, b) => Math.abs(a.step - rollout.step) - Math.abs(b.step - rollout.step) || a.sample - b.sample)[0];
  const others = [nearest(solved), nearest(failed)].filter(Boolean);
  const contexts = table.contexts.filter((row) => row[CONTEXT.task] === rollout.task);
  const marks = new Map();
  const from = [];
  for (const row of contexts) {
    const chain = await chainOf(row[CONTEXT.id]);
    if (chain.rollout !== id) continue;
    if (chain.cause) marks.set(chain.where.join("/"), spoken(chain.cause));
    from.push(row);
  }
  const name = (one) => `Iteration ${one.iteration}, step ${one.step}, sample ${one.sample}: ${RESULTS[one.result]}`;
  const panes = [
    $.article({ class: "pane" }, $.h3(name(rollout)), transcript(rollout, turns, marks)),
    $.article(
      { class: "pane" },
      $.h3("The reference"),
      task
        ? task.turns.map((text, i) =>
            $.section(
              { class: "turn" },
              $.h4(`Turn ${i + 1}`),
              folded("blockquote", text),
              calls([task.reference[i]]),
            ),
          )
        : $.p("Its task is not in the run's task set."),
    ),
  ];
  const group = list.filter((one) => one.step === rollout.step && one.iteration === rollout.iteration);
  return {
    title: task ? task.row[TASK.words] : rollout.task,
    body: $.div(
      { class: "reader" },
      $.dl(
        { class: "facts" },
        fact("Its group", dots(group, id)),
        fact("Reward", turns && turns.reward !== null ? turns.reward : null),
        fact(
          "Failure",
          turns && turns.failure
            ? `${turns.failure}${turns.failed_turn === null ? "" : `, turn ${turns.failed_turn + 1}`}`
            : null,
        ),
        fact("Checks passed", turns && turns.partial !== null ? percent(turns.partial) : null),
        fact("Sampled tokens", number(rollout.tokens)),
        fact("Task", link({ task: rollout.task }, rollout.task)),
        fact(
          "Nearest others",
          others.map((one) => $.p(link({ rollout: one.id }, name(one)))),
        ),
        fact(
          "Signals",
          own(signals, id, []).map(([signal, , words]) => $.p({ title: signal }, words)),
        ),
        fact(
          "Contexts",
          from.map((row) => $.p(link({ context: row[CONTEXT.id] }, row[CONTEXT.words]))),
        ),
      ),
      $.div({ class: "panes" }, panes),
      identity(id),
    ),
  };
}
