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
const said = (turns) => turns.map((turn) => folded("blockquote", turn));

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

// Returns the groups of a task by iteration, a dot for each rollout.
function groupRows(list, current) {
  const byStep = new Map();
  for (const one of list || []) {
    const key = `${one.iteration}/${one.step}`;
    if (!byStep.has(key)) byStep.set(key, []);
    byStep.get(key).push(one);
  }
  if (!byStep.size) return muted("It was never rolled out.");
  return $.table(
    { class: "groups" },
    heads(["It.", "Step", "Rollouts", ""]),
    $.tbody(
      [...byStep.values()].map((group) =>
        $.tr(
          $.td({ class: "num" }, group[0].iteration),
          $.td({ class: "num" }, group[0].step),
          $.td(dots(group, current)),
          $.td({ class: "num" }, `${group.filter(solved).length}/${group.length}`),
        ),
      ),
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

async function rolloutCard(chain) {
  const rollout = (await rollouts()).byId.get(chain.rollout);
  const turns = await turnsOf(rollout);
  if (!rollout) return null;
  const weak = table.tasksById.get(rollout.task);
  const [where, position] = chain.where;
  const played = turns && turns.turns[where];
  const shown = played ? played[2] : [];
  const from = Math.max(0, Math.min(position - 3, shown.length - 6));
  return card(
    solved(rollout) ? "Rollout" : "Failed rollout",
    `iteration ${rollout.iteration}, step ${rollout.step}, sample ${rollout.sample}`,
    $.p(weak ? link({ task: rollout.task }, weak[TASK.words]) : rollout.task),
    played
      ? [
          muted(`Turn ${where + 1}${from ? `, from action ${from + 1}` : ""}`),
          $.ol(
            { class: "steps", start: from + 1 },
            shown
              .slice(from, from + 6)
              .map((action, i) => step(action, i + from === position && chain.cause ? spoken(chain.cause) : null)),
          ),
          shown.length ? null : muted("No action in this turn."),
          chain.expected ? $.p("expected ", $.code(chain.expected)) : null,
        ]
      : muted(turns ? "This turn was not reached." : "Its turns are not on this page."),
    $.p(link({ rollout: rollout.id }, "Read the whole rollout")),
  );
}

function signalCard(chain, list) {
  const { signal } = chain;
  if (!signal) return null;
  const marked = list && list.find((one) => one.id === chain.rollout);
  const group = marked ? list.filter((one) => one.step === marked.step && one.iteration === marked.iteration) : [];
  return card(
    "Signal",
    signal.kind,
    $.p(signal.words),
    muted(own(run.words.kinds, signal.kind)),
    group.length ? $.p("Its group: ", dots(group, chain.rollout)) : null,
    signal.counterpart
      ? $.p(link({ rollout: signal.counterpart }, "A rollout of the group with the other result"))
      : null,
    identity(signal.id),
  );
}

function contextCard(chain, current) {
  const [status, nearest, cosine] = chain.deduplication || [];
  return card(
    chain.cause || chain.how ? "Reflection" : "Context",
    chain.name,
    $.dl(
      fact("How", chain.how),
      fact("Why", chain.why),
      fact("Summary", chain.summary),
      fact("Instability", chain.instability),
      fact("Diagnosis", [chain.label, chain.turn_cause].filter(Boolean).map(spoken).join(", ")),
      fact("Error", chain.error_class),
      fact("Facts", chain.facts.length ? $.ul(chain.facts.map((one) => $.li($.code(one)))) : null),
      fact("Explore", chain.explore.join(", ")),
      fact("Focus", chain.focus.join(", ")),
      fact(
        "Objectives",
        chain.objectives.map((one) => $.p(one)),
      ),
      fact(
        "Do not repeat",
        chain.avoid.map((one) => $.p(one)),
      ),
      status
        ? fact(
            "Failure memory",
            status,
            nearest ? [", nearest ", link({ context: nearest }, nearest), ` (cosine ${cosine})`] : null,
          )
        : null,
    ),
    stateDetails(chain.pool, chain),
    current === chain.id ? null : $.p(link({ context: chain.id }, "Open the context")),
    identity(chain.id),
  );
}

function explorationCard(chain) {
  if (chain.failure) return card("Exploration", "the branch failed", $.p(chain.failure));
  if (!chain.interactions.length) return null;
  const runs = new Map();
  for (const one of chain.interactions) {
    if (!runs.has(one[1])) runs.set(one[1], []);
    runs.get(one[1]).push(one);
  }
  const used = new Set(chain.drafts.filter((one) => one.accepted).flatMap((one) => one.parents));
  return card(
    "Exploration",
    `${plural(chain.interactions.length, "action")} in ${plural(runs.size, "episode")}`,
    muted($.b({ class: "changed" }, "●"), " changed the state, ", $.b({ class: "used" }, "★"), " in a task that was accepted"),
    [...runs].map(([episode, list]) =>
      $.details(
        { open: list.some((one) => used.has(one[0])) },
        $.summary(`Episode ${episode + 1}, ${plural(list.length, "action")}`),
        $.ol(
          { class: "acts" },
          list.map(([id, , , call, text, status, ran, hint, changed]) =>
            $.li(
              { class: status },
              $.details(
                $.summary(
                  $.code(call),
                  changed ? $.b({ class: "changed", title: "changed the state" }, " ●") : null,
                  used.has(id) ? $.b({ class: "used", title: "part of an accepted task" }, " ★") : null,
                ),
                muted(status),
                ran.map((one) => $.code(one)),
                folded("pre", text, "observation"),
                hint ? $.p({ class: "hint" }, hint) : null,
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

function draftsCard(chain, current) {
  if (!chain.drafts.length) return null;
  return card(
    "Drafts and verification",
    plural(chain.drafts.length, "draft"),
    chain.drafts.map((draft) =>
      $.article(
        { class: `draft${draft.task && draft.task === current ? " now" : ""}` },
        said(draft.turns),
        calls(draft.reference),
        $.p(
          { class: draft.accepted ? "result good" : "result bad" },
          draft.accepted === null
            ? "Not verified."
            : draft.accepted
              ? draft.task
                ? "Accepted and admitted."
                : "Accepted."
              : ["Refused, ", $.b(spoken(draft.reason || "")), draft.meaning ? `: ${draft.meaning}.` : "."],
        ),
        draft.detail ? $.p(draft.detail) : null,
        draft.agent
          ? $.p(
              `An agent carried it out: ${draft.agent.accepted ? "accepted" : "not accepted"}, ${plural(draft.agent.actions, "action")}. ${draft.agent.detail}`,
            )
          : null,
        identity(
          draft.id,
          draft.difficulty ? `, ${draft.difficulty}` : "",
          draft.task && draft.task !== current ? [", ", link({ task: draft.task }, "its task")] : "",
        ),
      ),
    ),
  );
}

function taskCard(task, current) {
  return card(
    current ? "The task" : "New task",
    `${task.row[TASK.origin]}${task.row[TASK.iteration] === null ? "" : `, admitted by iteration ${task.row[TASK.iteration]}`}`,
    said(task.turns),
    $.h4("Reference"),
    calls(task.reference),
    stateDetails(task.pool, task),
    current ? null : $.p(link({ task: task.id }, "Open the task")),
    identity(task.id),
  );
}

// Returns success of a task's rollouts until an iteration and after it: [share, number of rollouts], or null.
function beforeAfter(row, iteration) {
  const mean = (points) => {
    const count = points.reduce((sum, one) => sum + one[2], 0);
    return count ? [points.reduce((sum, one) => sum + one[1] * one[2], 0) / count, count] : null;
  };
  return [
    mean(course(row).filter((one) => one[0] <= iteration)),
    mean(course(row).filter((one) => one[0] > iteration)),
  ];
}

function effectCard(chain) {
  const weak = table.tasksById.get(chain.task);
  if (!weak || chain.iteration === null) return null;
  const [before, after] = beforeAfter(weak, chain.iteration);
  const words = (one) => (one ? `${percent(one[0])} of ${plural(one[1], "rollout")}` : "not rolled out");
  return card(
    "Effect on the weak task",
    null,
    $.p(link({ task: chain.task }, weak[TASK.words])),
    $.dl(fact(`Until iteration ${chain.iteration}`, words(before)), fact("After it", words(after))),
    courseTable(weak),
    $.p(
      { class: "caution" },
      "One task shows how, not how much. A weak task was picked because it failed, so it rises by regression to the mean alone.",
    ),
    $.p(
      $.a(
        { href: address({}), onclick: () => setTimeout(() => jumpTo("effect"), 50) },
        "All tasks, beside those without a signal",
      ),
    ),
  );
}

const courseTable = (row) =>
  $.ul(
    { class: "course" },
    course(row).map(([iteration, share, count]) => {
      const bar = $.i({ "aria-hidden": "true" });
      bar.style.width = `${Math.round(100 * share)}%`;
      return $.li(
        $.span(`Iteration ${iteration}`),
        $.span({ class: "meter" }, bar),
        $.span({ class: "num" }, `${percent(share)} of ${count}`),
      );
    }),
  );

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
  const cards = [];
  if (chain) {
    cards.push(
      await rolloutCard(chain),
      signalCard(chain, byTask.get(chain.task)),
      contextCard(chain, id),
      explorationCard(chain),
      draftsCard(chain, id),
    );
  }
  if (task) {
    cards.push(
      taskCard(task, true),
      card("Its groups", plural(task.row[TASK.groups], "group"), groupRows(byTask.get(id)), courseTable(task.row)),
    );
  } else {
    for (const draft of chain.drafts.filter((one) => one.task)) {
      const made = await taskOf(draft.task);
      cards.push(
        card(
          "New task",
          null,
          said(made.turns),
          $.h4("Its groups"),
          groupRows(byTask.get(made.id)),
          $.p(link({ task: made.id }, "Open the task")),
        ),
      );
    }
  }
  if (chain) cards.push(effectCard(chain));
  if (task) {
    const found = table.contexts.filter((row) => row[CONTEXT.task] === id);
    if (found.length) {
      cards.push(
        card(
          "Weaknesses found at it",
          plural(found.length, "context"),
          $.ul(
            { class: "links" },
            found.map((row) =>
              $.li(
                link({ context: row[CONTEXT.id] }, row[CONTEXT.words]),
                $.span({ class: "muted" }, ` iteration ${row[CONTEXT.iteration]}, ${row[CONTEXT.admitted]} admitted`),
              ),
            ),
          ),
        ),
      );
    }
  }
  const list = $.ol({ class: "lineage" }, cards.filter(Boolean));
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

function besideOptions(rollout, list) {
  const nearest = (test) =>
    (list || [])
      .filter((one) => one.id !== rollout.id && test(one))
      .sort((a, b) => Math.abs(a.step - rollout.step) - Math.abs(b.step - rollout.step) || a.sample - b.sample)[0];
  return { reference: "its task's reference", success: nearest(solved), failure: nearest(failed) };
}

async function reader(id) {
  const { byId: known, byTask } = await rollouts();
  const rollout = known.get(id);
  if (!rollout) return missing("rollout", id);
  const [turns, task, signals] = [await turnsOf(rollout), await taskOf(rollout.task), await part("signals")];
  const list = byTask.get(rollout.task);
  const options = besideOptions(rollout, list);
  const beside =
    at.beside && (at.beside === "none" || options[at.beside])
      ? at.beside
      : solved(rollout) || !options.success
        ? "reference"
        : "success";
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
  const panes = [$.article({ class: "pane" }, $.h3(name(rollout)), transcript(rollout, turns, marks))];
  if (beside === "reference") {
    panes.push(
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
    );
  } else if (beside !== "none") {
    const other = options[beside];
    panes.push(
      $.article(
        { class: "pane" },
        $.h3(link({ rollout: other.id }, name(other))),
        transcript(other, await turnsOf(other), new Map()),
      ),
    );
  }
  const choice = (value, words) =>
    value !== "none" && !options[value]
      ? null
      : $.a(
          {
            href: address({ rollout: id, beside: value }),
            class: "pick",
            "aria-current": beside === value ? "true" : null,
          },
          words,
        );
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
          "Signals",
          own(signals, id, []).map(([signal, , words]) => $.p({ title: signal }, words)),
        ),
        fact(
          "Contexts",
          from.map((row) => $.p(link({ context: row[CONTEXT.id] }, row[CONTEXT.words]))),
        ),
      ),
      $.div(
        { class: "choices" },
        $.span({ class: "muted" }, "Beside it"),
        choice("reference", "the reference"),
        choice("success", "a success"),
        choice("failure", "a failure"),
        choice("none", "nothing"),
      ),
      $.div({ class: "panes" }, panes),
      identity(id),
    ),
  };
}
