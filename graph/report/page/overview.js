// ---------------------------------------------------------------- iterations

function drawPicker() {
  const picker = byId("picker");
  const focused = picker.contains(document.activeElement);
  const seeded = run.seeded;
  const names = [
    [null, "All"],
    ...(seeded ? [["seed", "D₀"]] : []),
    ...run.iterations.map((one) => [String(one.iteration), String(one.iteration)]),
  ];
  picker.replaceChildren(
    $.span({ class: "muted" }, "Iteration"),
    ...names.map(([value, name]) =>
      $.a(
        {
          href: address({}, value),
          class: "pick",
          "aria-current": at.iteration === value ? "true" : null,
          tabindex: at.iteration === value ? 0 : -1,
        },
        name,
      ),
    ),
  );
  if (!picker.querySelector("[tabindex='0']")) picker.querySelector("a").tabIndex = 0;
  if (focused) picker.querySelector("[tabindex='0']").focus();
}

// Moves the focus among elements of one tab stop; returns whether the key was one of those that do.
function rove(event, elements, previous, next) {
  const index = elements.indexOf(document.activeElement);
  const to = { [previous]: index - 1, [next]: index + 1, Home: 0, End: elements.length - 1 }[event.key];
  if (index < 0 || to === undefined || !elements[to]) return false;
  event.preventDefault();
  elements[index].tabIndex = -1;
  elements[to].tabIndex = 0;
  elements[to].focus();
  return true;
}

function drawNotices() {
  const notices = [];
  if (run.unpublishable) notices.push(`Not for publication: this page holds tasks and rollouts. ${run.unpublishable}.`);
  if (run.goes_on) {
    const done = run.iterations.filter((one) => one.finished).length;
    notices.push(
      `${done} of ${run.asked} iterations are done: the page shows the records as they were when it was made.`,
    );
  }
  for (const one of run.iterations) {
    for (const warning of one.warnings) notices.push(`Iteration ${one.iteration}: ${warning}.`);
  }
  byId("notices").replaceChildren(...notices.map((text) => $.p({ class: "notice" }, text)));
  byId("labels").replaceChildren(...[run.environment, ...run.labels].map((label) => $.li(label)));
}

function figures(of) {
  const scored = of.iterations.filter((one) => one.evaluation && one.evaluation.after);
  const first = scored[0] && (scored[0].evaluation.before || scored[0].evaluation.after);
  const last = scored.length ? scored.at(-1).evaluation.after : null;
  const sum = (pick) => of.iterations.reduce((total, one) => total + pick(one), 0);
  const groups = sum((one) => one.groups.all);
  const trained = of.iterations.filter((one) => one.success !== null);
  const figure = (name, value, note) =>
    $.div({ class: "figure" }, $.dt(name), $.dd(value, note ? $.small(note) : null));
  return $.dl(
    { class: "figures" },
    last
      ? figure(
          "Success, held out",
          `${percent(first.success)} → ${percent(last.success)}`,
          `95 %: ${percent(last.interval[0])} to ${percent(last.interval[1])}, n = ${last.n}`,
        )
      : figure("Success, held out", "not scored"),
    trained.length
      ? figure(
          "Success, training rollouts",
          `${percent(trained[0].success)} → ${percent(trained.at(-1).success)}`,
          "of tasks that change: not a measure of progress",
        )
      : null,
    figure("Tasks", number(of.counts.tasks), `${number(sum((one) => one.admitted))} admitted by iterations`),
    figure("Rollouts", number(of.counts.rollouts), plural(of.counts.signals, "signal")),
    figure(
      "Groups without a reward signal",
      percent(groups ? 1 - sum((one) => one.groups.mixed) / groups : null),
      `of ${number(groups)}: all of a group fail, or all succeed`,
    ),
  );
}

// ---------------------------------------------------------------- charts

// Returns the end of an axis whose half is a round number.
function roundedUp(most) {
  const unit = 10 ** Math.floor(Math.log10(Math.max(most, 1) / 2));
  const half = [1, 2, 3, 4, 5, 10].map((times) => times * unit).find((one) => 2 * one >= most);
  return 2 * Math.max(1, half);
}

const WIDE = 290,
  HIGH = 158,
  LEFT = 38,
  BOTTOM = 22,
  TOP = 8;

// Returns a chart with a slot per iteration. Series: bars {name, color, values, stacked} or lines {name, color, values,
// low, high, thin}. The slots lead to their iterations; the table below the charts says the same to who cannot see it.
function chart(title, note, names, given, { top = null, format = number } = {}) {
  const series = given.filter((one) => one.kind === "line" || one.values.some(Boolean));
  const bars = series.filter((one) => one.kind === "bar");
  const totals = names.map((_, i) => bars.reduce((sum, one) => sum + (one.values[i] || 0), 0));
  const lines = series.filter((one) => one.kind === "line");
  const seen = lines.flatMap((one) => [...one.values, ...(one.high || [])]).filter((value) => value !== null);
  const most = top || roundedUp(Math.max(...totals, ...seen, 0));
  const slot = (WIDE - LEFT - 6) / Math.max(1, names.length);
  const x = (i) => LEFT + slot * (i + 0.5);
  const y = (value) => TOP + (HIGH - TOP - BOTTOM) * (1 - value / most);
  const picture = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, "aria-hidden": "true" });
  for (const share of [0, 0.5, 1]) {
    picture.append(
      svg("line", { class: "grid", x1: LEFT, x2: WIDE, y1: y(most * share), y2: y(most * share) }),
      svg("text", { class: "tick", x: LEFT - 6, y: y(most * share) + 3.5, "text-anchor": "end" }, format(most * share)),
    );
  }
  const chosenName = at.iteration === "seed" ? null : at.iteration;
  names.forEach((name, i) => {
    if (String(name) === chosenName) {
      picture.append(
        svg("rect", { class: "chosen", x: LEFT + slot * i, y: TOP, width: slot, height: HIGH - TOP - BOTTOM }),
      );
    }
    let base = 0;
    for (const one of bars) {
      const value = one.values[i] || 0;
      if (value) {
        picture.append(
          svg("rect", {
            class: `bar ${one.color}`,
            x: x(i) - Math.min(slot * 0.36, 22),
            rx: 1.5,
            y: y(base + value),
            width: Math.min(slot * 0.72, 44),
            height: Math.max(0.5, y(base) - y(base + value) - 0.75),
          }),
        );
      }
      base += value;
    }
  });
  for (const one of lines) {
    const points = one.values
      .map((value, i) => (value === null ? null : [one.at ? one.at(i, x, slot) : x(i), y(value), i]))
      .filter(Boolean);
    if (one.low) {
      for (const [px, , i] of points) {
        picture.append(
          svg("line", { class: `whisker ${one.color}`, x1: px, x2: px, y1: y(one.low[i]), y2: y(one.high[i]) }),
        );
      }
    }
    picture.append(
      svg("polyline", {
        class: `line ${one.color} ${one.style || ""}`,
        points: points.map(([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`).join(" "),
      }),
    );
    if (!one.style) {
      for (const [px, py] of points) picture.append(svg("circle", { class: `dot ${one.color}`, cx: px, cy: py, r: 3 }));
    }
  }
  const every = Math.ceil(names.length / 11);
  names.forEach((name, i) => {
    if (i % every === 0) {
      picture.append(svg("text", { class: "tick", x: x(i), y: HIGH - 6, "text-anchor": "middle" }, String(name)));
    }
    if (name === "start") return;
    const values = series
      .filter(
        (one) =>
          one.name &&
          one.values.length === names.length &&
          one.values[i] !== null &&
          one.values[i] !== undefined &&
          one.values[i] !== 0,
      )
      .map((one) => `${one.name}: ${format(one.values[i])}`);
    picture.append(
      svg(
        "a",
        { href: address({}, String(name) === chosenName ? null : String(name)), tabindex: -1 },
        svg("title", {}, `Iteration ${name}\n${values.join("\n")}`),
        svg("rect", { class: "slot", x: LEFT + slot * i, y: TOP, width: slot, height: HIGH - TOP }),
      ),
    );
  });
  return $.figure(
    { class: "chart" },
    $.figcaption($.strong(title), note ? $.span(note) : null),
    picture,
    series.filter((one) => one.name).length > 1
      ? $.ul(
          { class: "legend" },
          series.filter((one) => one.name).map((one) => $.li({ class: one.color }, one.name)),
        )
      : null,
  );
}

const COLORS = ["c2", "c3", "c4", "c5", "c6", "c7", "c8"];

function drawCharts() {
  const place = byId("charts");
  const rows = run.iterations;
  const names = rows.map((one) => one.iteration);
  if (!rows.length) return place.replaceChildren(muted("No iteration has begun."));
  const charts = [];
  const bar = (name, color, pick) => ({ kind: "bar", name, color, values: rows.map(pick) });
  const scored = rows.some((one) => one.evaluation);
  if (scored) {
    const begun = rows[0].evaluation && rows[0].evaluation.before;
    const scores = [begun || null, ...rows.map((one) => (one.evaluation && one.evaluation.after) || null)];
    const line = (name, color, scores) => ({
      kind: "line",
      name,
      color,
      values: scores.map((one) => one && one.success),
      low: scores.map((one) => one && one.interval[0]),
      high: scores.map((one) => one && one.interval[1]),
    });
    const looked = [null, ...rows.map((one) => (one.evaluation && one.evaluation.lookup) || null)];
    const lines = [line("policy", "c1", scores)];
    if (looked.some(Boolean)) lines.push({ ...line("lookup over the training tasks, no model", "c2", looked), low: null });
    charts.push(
      chart(
        "Success on held-out tasks",
        `${(begun || scores.find(Boolean)).group}; 95 % intervals`,
        ["start", ...names],
        lines,
        { top: 1, format: percent },
      ),
    );
  }
  const steps = rows.flatMap((one, i) => one.steps.map((success, n) => [i, (n + 0.5) / one.steps.length, success]));
  charts.push(
    chart(
      "Success of training rollouts",
      "by iteration, and by step",
      names,
      [
        {
          kind: "line",
          name: "",
          color: "c1",
          style: "thin",
          values: steps.map((one) => one[2]),
          at: (i, x, slot) => x(steps[i][0]) + (steps[i][1] - 0.5) * slot,
        },
        { kind: "line", name: run.name, color: "c1", values: rows.map((one) => one.success) },
      ],
      { top: 1, format: percent },
    ),
  );
  charts.push(
    chart("Tasks", "trained on, and admitted for the next iteration", names, [
      bar("trained on", "c6", (one) => one.tasks),
      bar("admitted", "good", (one) => one.admitted),
    ]),
  );
  const reasons = [...new Set(rows.flatMap((one) => Object.keys(one.refused)))];
  charts.push(
    chart("Drafts by verification result", "admitted, and refused by cause", names, [
      bar("admitted", "good", (one) => one.admitted),
      ...reasons.map((reason, i) =>
        bar(spoken(reason), COLORS[i % COLORS.length], (one) => own(one.refused, reason, 0)),
      ),
    ]),
  );
  charts.push(
    chart(
      "Groups by reward signal",
      "GRPO learns from mixed groups alone",
      names,
      [
        bar("all fail", "bad", (one) => (one.groups.all ? one.groups.none / one.groups.all : 0)),
        bar("mixed", "c1", (one) => (one.groups.all ? one.groups.mixed / one.groups.all : 0)),
        bar("all succeed", "good", (one) => (one.groups.all ? one.groups.solved / one.groups.all : 0)),
      ],
      { top: 1, format: percent },
    ),
  );
  const kinds = [...new Set(rows.flatMap((one) => Object.keys(one.signals)))];
  charts.push(
    chart(
      "Signals by kind",
      "followed up, or left out",
      names,
      kinds.map((kind, i) => bar(kind, ["c3", "c1", "c4", "c2"][i % 4], (one) => own(one.signals, kind, 0))),
    ),
  );
  const stages = [...new Set(rows.flatMap((one) => Object.keys(one.seconds)))];
  if (stages.length) {
    charts.push(
      chart(
        "Wall seconds by stage",
        "",
        names,
        stages.map((stage, i) =>
          bar(stage, ["c1", "c4", "c6", "c3", "c5"][i % 5], (one) => own(one.seconds, stage, 0)),
        ),
      ),
    );
  }
  place.replaceChildren(...charts);
}

function drawStrip() {
  const rows = run.iterations;
  const head = [
    "Iteration",
    "Held out",
    "95 %",
    "Training",
    "Tasks",
    "Admitted",
    "Refused",
    "Signals",
    "No reward signal",
    "Cost",
  ];
  const refused = (one) =>
    Object.entries(one.refused)
      .map(([reason, count]) => `${count} ${spoken(reason)}`)
      .join(", ");
  const numbers = $.table(
    heads(head),
    $.tbody(
      rows.map((one) => {
        const score = one.evaluation && one.evaluation.after;
        return $.tr(
          $.th({ scope: "row" }, $.a({ href: address({}, String(one.iteration)) }, one.iteration)),
          [
            score ? percent(score.success, 1) : "–",
            score ? `${percent(score.interval[0])} to ${percent(score.interval[1])}` : "–",
            percent(one.success, 1),
            number(one.tasks),
            number(one.admitted),
            refused(one) || "none",
            Object.entries(one.signals)
              .map(([kind, count]) => `${number(count)} ${kind}`)
              .join(", "),
            percent(one.groups.all ? 1 - one.groups.mixed / one.groups.all : null),
            one.cost.join(", "),
          ].map((cell) => $.td(cell)),
        );
      }),
    ),
  );
  fill(byId("strip"), [
    $.p({ class: "verdict" }, run.verdict),
    figures(run),
    $.div({ id: "charts", class: "charts" }),
    $.details($.summary("The numbers"), scroller(numbers)),
  ]);
}

// ---------------------------------------------------------------- effect

function effectTable(effect) {
  const width = (share) => `${Math.round(100 * share)}%`;
  return $.table(
    { class: "effect" },
    heads(["Tasks", "Pairs", "Before", "After", "Change", ""]),
    $.tbody(
      effect.rows.map((row) => {
        const track = $.div({ class: "track", "aria-hidden": "true" });
        if (row.pairs) {
          const [from, to] = [Math.min(row.before, row.after), Math.max(row.before, row.after)];
          const span = $.i({ class: row.after >= row.before ? "good" : "bad" });
          span.style.left = width(from);
          span.style.width = width(to - from);
          const [start, end] = [$.b({ class: "hollow" }), $.b()];
          start.style.left = width(row.before);
          end.style.left = width(row.after);
          track.append(span, start, end);
        }
        return $.tr(
          $.th({ scope: "row" }, row.words),
          $.td(number(row.pairs)),
          $.td(percent(row.before)),
          $.td(percent(row.after)),
          $.td(points(row)),
          $.td(track),
        );
      }),
    ),
  );
}

const points = (row) =>
  row.change === null
    ? "–"
    : `${row.change >= 0 ? "+" : "−"}${Math.abs(100 * row.change).toFixed(1)}${row.half === null ? "" : ` ± ${(100 * row.half).toFixed(1)}`}`;

function drawEffect() {
  const fresh = run.effect.new;
  fill(byId("effect"), [
    $.p(
      "A weak task was picked because it failed, so that it rises by regression to the mean alone. Compare the first row ",
      "with the second, not with zero; the two differ in more than the new tasks. An experiment has arms: coevolve study.",
    ),
    muted(
      "A pair is a task and two iterations, one after the other, that rolled it out. The change is in points of a hundred, ± half of its 95 % interval.",
    ),
    scroller(effectTable(run.effect)),
    fresh.tasks
      ? $.p(
          `Of ${plural(fresh.tasks, "new task")}, ${number(fresh.drawn)} were rolled out. `,
          fresh.twice
            ? `The ${number(fresh.twice)} that were in two iterations or more went from ${percent(fresh.first)} in their first to ${percent(fresh.last)} in their last.`
            : "",
        )
      : null,
    run.story
      ? [
          $.h3("One task, from the failed rollout to its effect"),
          $.p({ class: "story" }, link({ task: run.story }, table.tasksById.get(run.story)[TASK.words])),
        ]
      : null,
  ]);
}

// ---------------------------------------------------------------- tools by iteration

const MAPPED = 12;

function drawMap() {
  const names = run.iterations.map((one) => one.iteration);
  const cell = (tool, iteration, found) => {
    if (!found) return $.td({ class: "quiet" }, "·");
    const [, weak, made, pairs, before, after] = found;
    const style = pairs && after !== before ? (after > before ? "good" : "bad") : "";
    return $.td(
      { class: style },
      $.a(
        { href: address({}, String(iteration)), onclick: () => showTool(tool) },
        `${number(weak)} weak, ${plural(made, "task")}`,
      ),
      $.small(pairs ? `${percent(before)} → ${percent(after)} of ${pairs}` : "not rolled out again"),
    );
  };
  const rows = run.map.map(([tool, cells]) =>
    $.tr(
      $.th({ scope: "row" }, tool),
      names.map((name) =>
        cell(
          tool,
          name,
          cells.find((one) => one[0] === name),
        ),
      ),
    ),
  );
  const body = $.tbody(rows.slice(0, MAPPED));
  const more = $.button(
    { type: "button", class: "more", onclick: () => more.replaceWith(fill(body, rows.slice(MAPPED)) && "") },
    `Show all ${plural(rows.length, "tool")}`,
  );
  fill(byId("map"), [
    muted(
      "The weaknesses at a tool, the tasks made of them, and the weak tasks' mean success in the iteration and in the ",
      "next one that rolled them out. Weak tasks rise by regression to the mean alone, too.",
    ),
    rows.length
      ? scroller($.table({ class: "map" }, heads(["Tool", ...names.map((name) => `Iteration ${name}`)]), body))
      : muted("No weakness names a tool yet."),
    rows.length > MAPPED ? more : null,
  ]);
}

// Filters the records below by a tool.
function showTool(tool) {
  byId("filter-tool").value = String(table.tools.indexOf(tool));
  setTimeout(() => jumpTo("records"), 50);
}

// ---------------------------------------------------------------- settings, costs

const value = (one) =>
  one === null || one === undefined ? "none" : typeof one === "object" ? JSON.stringify(one) : String(one);

function settingsTable() {
  const rows = run.settings.map(([key, here, otherwise]) =>
    $.tr($.th({ scope: "row" }, $.code(key)), $.td(value(here)), $.td({ class: "muted" }, value(otherwise))),
  );
  return scroller($.table(heads(["Setting", "Here", "Default"]), $.tbody(rows)));
}

const keptWords = () => {
  const { rollouts: kept, of } = run.kept;
  if (kept === of) return `All ${number(of)} rollouts are here with their turns.`;
  return `${number(kept)} of ${number(of)} rollouts are here with their turns: first those that contexts come from, with their counterparts and nearest successes; then failures, then successes, the first of every group before the second of any, later iterations first, until the page is full.`;
};

function drawAbout() {
  fill(byId("about"), [
    $.p(
      keptWords(),
      " Texts of more than 4,000 characters are cut",
      run.kept.length < 4000 ? `, those of explorations after ${number(run.kept.length)}.` : ".",
    ),
    $.h3("Settings that differ from the defaults"),
    run.settings.length ? settingsTable() : $.p("None."),
  ]);
  const told = run.iterations.filter((one) => one.facts.length);
  fill(byId("about"), [
    told.length ? $.h3("Costs and more of each iteration") : null,
    told.map((one) =>
      $.details(
        $.summary(`Iteration ${one.iteration}`),
        $.dl(
          { class: "facts" },
          one.facts.map(([title, words]) => fact(title, words)),
        ),
      ),
    ),
  ]);
  const words = (given) =>
    $.dl(
      { class: "words" },
      Object.entries(given).map(([word, meaning]) => fact(spoken(word), meaning)),
    );
  const { terms, kinds, reasons } = run.words;
  fill(byId("words"), [
    words(terms),
    $.h3("Kinds of signals"),
    words(kinds),
    Object.keys(reasons).length ? [$.h3("Reasons of a refusal"), words(reasons)] : null,
  ]);
  fill(byId("foot"), [
    $.p(
      "Made by coevolve report from the run's records. The page is one file, and its policy forbids it every connection.",
    ),
  ]);
}
